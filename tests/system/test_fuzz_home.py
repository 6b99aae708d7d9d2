# SPDX-License-Identifier: Apache-2.0
"""The controller reads files that a node's account wrote. No bytes in them crash a reader or delay
it.

The suite runs the same few examples every time. For a long run: TRAINYARD_FUZZ=2000 pytest
tests/system/test_fuzz_home.py
"""

from __future__ import annotations

import json
import os
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence
from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.plugin_utils.checkpoints import (
    resume_point_choice,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    archive,
    log_view,
    rank_index,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import series
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import plan_directory
from core_support import RUN, compiled, put
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

LONG = int(os.environ.get("TRAINYARD_FUZZ", "0"))
FUZZ = settings(
    max_examples=LONG or 40,
    derandomize=not LONG,
    deadline=20000,
    database=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)
ODD = st.sampled_from(
    [
        float("nan"),
        float("inf"),
        10**400,
        -1,
        1e308,
        True,
        None,
        "",
        "x" * 5000,
        "\x1b[2J",
        "\ud800",
        "../../x",
        [],
        {},
        [[]],
        "9" * 400,
    ]
)
VALUES = st.recursive(
    ODD | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
BYTES = st.one_of(
    st.binary(max_size=300),
    st.sampled_from(
        [
            b"[" * 200_000,
            b'{"a":' * 100_000,
            b"{" * 10,
            b"\xff\xfe" * 100,
            b"1" * 100_000,
            b"\0" * 5000,
            b"\n" * 5000,
            b'"\\ud800"',
            b"NaN",
        ]
    ),
    VALUES.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
)


def mapping(*keys):
    """A mapping with some of these keys and values of every kind."""
    return st.dictionaries(st.sampled_from(keys), VALUES, max_size=len(keys)).map(
        lambda value: json.dumps(value).encode("utf-8", "surrogatepass")
    )


EVENTS = mapping("event", "rank", "pid", "time", "exit_code", "signal", "endpoints")
SHAPED = st.one_of(
    BYTES,
    EVENTS,
    st.lists(EVENTS, max_size=4).map(b"\n".join),
    mapping("service_result", "stopped_by", "stopped_from", "time", "stopped_at"),
    mapping("version", "run", "attempt", "nodes", "ranks", "files"),
    st.lists(
        st.dictionaries(
            st.sampled_from(["rank", "node", "state", "error", "last_time", "bytes", "signal"]),
            VALUES,
        ),
        max_size=3,
    ).map(
        lambda rows: json.dumps({"version": 2, "ranks": rows, "files": rows, "nodes": rows}).encode(
            "utf-8", "surrogatepass"
        )
    ),
)
LINE = (
    b"[11/20 19:18:14] ppdet.engine INFO: Epoch: [%s] [ %s/%s] learning_rate: %s loss: %s eta:"
    b" 0:00:02 ips: %s images/s\n"
)
FIGURE = st.sampled_from(
    [b"0", b"1", b"12", b"9" * 400, b"nan", b"-1", b"1e999", b"", b"\xff", b"0.5"]
)
LOGS = st.one_of(
    BYTES,
    st.lists(st.tuples(*[FIGURE] * 6).map(lambda figures: LINE % figures), max_size=6).map(
        b"".join
    ),
)
NAMES = [
    "rank-000.node1.log",
    "ranks.node1.jsonl",
    "exit.node1.json",
    "stall.node1.json",
    "ranks.json",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home") / RUN
    text = json.dumps(compiled())
    put(folder, {"plan.json": text, "attempt-1/plan.json": text, "job.json": "{}"})
    return folder


def lay(run, files):
    for name in NAMES:
        (run / "attempt-1" / name).unlink(missing_ok=True)
    for name, data in files.items():
        (run / "attempt-1" / name).write_bytes(data)


@FUZZ
@given(log=LOGS, events=SHAPED, ended=SHAPED, index=SHAPED)
def test_curves_phases_and_marks_of_any_bytes(run, log, events, ended, index):
    lay(run, dict(zip(NAMES, [log, events, ended, ended, index])))
    began = time.monotonic()
    json.dumps(series.of_run(str(run)))
    assert time.monotonic() - began < 10


@FUZZ
@given(log=LOGS, index=SHAPED)
def test_the_view_of_any_bytes(run, log, index):
    lay(run, {"rank-000.node1.log": log, "ranks.json": index})
    try:
        home = archive.LocalAttempt(str(run.parent), RUN)
    except rank_index.NewerIndex:
        return
    logs = home.logs()
    lines, _ends = log_view.merge_lines(logs, 20, home.zones, True)
    for text in [
        log_view.format_line(line, home.secrets) for _log, line in lines
    ] + log_view.describe_logs(home.index or {"ranks": []}, logs, "x"):
        assert all(char.isprintable() for char in text), ascii(text)
    assert isinstance(home.over, bool) and isinstance(home.nodes, list)


@FUZZ
@given(data=SHAPED)
def test_events_of_any_bytes(data):
    found = evidence.read_events(data)
    assert set(found) == {"ranks", "launcher"}


@FUZZ
@given(data=BYTES)
def test_a_plan_and_a_job_of_any_bytes_are_refused_in_words(data):
    for take in (
        lambda: plan_directory.parse(data, 1 << 20),
        lambda: plan_directory.read_job(data),
    ):
        try:
            take()
        except plan_directory.PlanProblem as error:
            assert str(error).isprintable()


@FUZZ
@given(point=VALUES, rows=VALUES)
def test_points_of_any_shape_are_believed_or_skipped(point, rows):
    best, skipped = resume_point_choice.choose(
        {"node1": {"point": point, "skipped": rows}, "node2": point}
    )
    assert best is None and isinstance(resume_point_choice.describe_choice(best, skipped), list)


@FUZZ
@given(name=st.text(max_size=30) | st.sampled_from(["a\n", "..", "-a", "a/../b", "\udcff", "/x"]))
def test_what_passes_the_rule_stays_below(name):
    if safe_names.problem(name) is None:
        inside = os.path.normpath(os.path.join("/root/below", name))
        assert (
            inside.startswith("/root/below/")
            and name.isprintable()
            and not any(part.startswith("-") for part in name.split("/"))
        )


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_regular_file_is_not_read(run, tmp_path, kind, name):
    lay(run, {})
    path = run / "attempt-1" / name
    path.unlink(missing_ok=True)
    outside = put(tmp_path, {"x": '{"version": 99, "ranks": [], "files": []}'}) + "/x"
    {
        "link": lambda: os.symlink(outside, path),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[kind]()
    try:
        json.dumps(series.of_run(str(run)))
        home = archive.LocalAttempt(str(run.parent), RUN)
        assert home.index is None and log_view.merge_lines(home.logs(), 20) == ([], {})
        assert run_json.attempt_numbers(str(run)) == [1]
    finally:
        path.rmdir() if kind == "folder" else path.unlink()


def test_an_index_with_entries_of_other_kinds_is_unknown_where_they_are(run):
    rows = [
        {},
        {"rank": 0, "node": [], "exit_code": "x", "last_time": 10**400, "error": 1},
        {"rank": "x"},
    ]
    lay(
        run,
        {
            "ranks.json": (
                json.dumps(
                    {"version": 2, "ranks": rows, "files": [{}], "nodes": [1, {"node": 2}]}
                ).encode()
            )
        },
    )
    home = archive.LocalAttempt(str(run.parent), RUN)
    assert [(rank["rank"], rank["node"], rank["error"]) for rank in home.index["ranks"]] == [
        (None, None, None),
        (0, None, None),
    ]
    assert (
        home.index["files"] == home.index["nodes"] == []
        and log_view.describe_logs(home.index, [], "x")
        and not home.over
    )
