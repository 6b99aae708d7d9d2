# SPDX-License-Identifier: Apache-2.0
"""run.json: the written file matches the documentation, a record of version 1 is understood, and
two writers lose nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import record_attempt
from core_support import ROOT, RUN, put
from jsonschema import Draft202012Validator
from unit.logsync.test_log_index import of_schema
from unit.modules.test_run_record import MADE, node, rank

WRITERS = {
    "started": record_attempt.record_start,
    "ended": record_attempt.record_end,
    "refused": record_attempt.record_refusal,
}
SCHEMA = yaml.safe_load((ROOT / "docs/schemas/run.yml").read_text(encoding="utf-8"))
# A real run of version 1; see the README beside it.
OLD = ROOT / "tests/fixtures/raised/20261120-190935-raise-1b3e"
POINT = {
    "attempt": 1, "name": "2", "stem": "2", "source": "node1", "path": "output/2", "files": {},
    "digest": "d" * 64, "epoch": 3, "step": None,
    "lr": 0.001, "note": None, "skipped": [],
}  # fmt: skip
KILLED = {
    "service_result": "exit-code",
    "exit_code": "exited",
    "exit_status": "1",
    "stopped_by": None,
}
TOLD = {
    "service_result": "success",
    "exit_code": "exited",
    "exit_status": "0",
    "stopped_by": "peer",
}


def valid(found):
    """Assert that a record is what the schema says, after it was JSON."""
    problems = [
        (list(error.path), error.message)
        for error in Draft202012Validator(SCHEMA).iter_errors(json.loads(json.dumps(found)))
    ]
    assert not problems, problems


def ended_by(signal=None):
    """What two nodes say of an attempt in which rank 1 was killed, or which ended well."""
    if not signal:
        return [node("node1", rank(0, saved_count=1)), node("node2", rank(1))]
    return [
        node("node1", rank(0, exit_code=None, signal="SIGTERM"), exit=TOLD),
        node("node2", rank(1, exit_code=None, signal=signal), exit=KILLED),
    ]


@pytest.fixture
def run(tmp_path):
    """Record attempts of one run as the module does: run("started", 1), run("ended", 1, ...);
    run.found() reads and checks run.json.
    """

    def call(what, number, job=None, **given):
        params = {
            "runs_dir": str(tmp_path),
            "run_id": RUN,
            "number": number,
            "job": job or {"name": "ppyoloe", "max_restarts": 2},
        }
        plan = {
            "plan": json.dumps(MADE),
            "plan_sha256": "a" * 64,
            "code": {"commit": "c"},
            "code_diff": "diff of %d" % number,
        }
        result = WRITERS[what](dict(dict(params, nodes=[], **plan), **given))
        valid(call.found())
        return result

    call.dir = tmp_path / RUN
    call.found = lambda: json.loads((call.dir / "run.json").read_text(encoding="utf-8"))
    return call


# -- the documented fields, the schema, and what is written


def documented():
    """Return {section: {field: types}} of docs/run-json.md."""
    found, section = {}, None
    for line in (ROOT / "docs/run-json.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:].strip("`")
        row = re.match(r"^\| `(\w+)` \| ([a-z, ]+) \| .{4,}\|$", line)
        if row:
            found.setdefault(section, {})[row.group(1)] = sorted(row.group(2).split(", "))
    return found


def test_the_document_has_the_schemas_fields_and_types():
    attempt = SCHEMA["properties"]["attempts"]["items"]
    parts = {
        f"attempts[].{name}": of_schema(attempt["properties"][name])
        for name in ("culprit", "resume", "again")
    }
    nodes = of_schema(attempt["properties"]["nodes"]["items"])
    assert documented() == {
        "The whole": of_schema(SCHEMA),
        "attempts[]": of_schema(attempt),
        "attempts[].nodes[]": nodes,
        **parts,
    }


def test_a_run_of_two_attempts_from_start_to_end(run):
    run("started", 1)
    assert (run.found()["outcome"], run.found()["ended"]) == ("running", None)
    first = run("ended", 1, nodes=ended_by("SIGKILL"))
    found = run.found()
    assert (found["outcome"], found["reason"], found["attempts"][0]["culprit"]) == (
        "failed",
        "killed",
        {"node": "node2", "rank": 1},
    )
    assert (
        first["again"] == found["attempts"][0]["again"]
        and first["again"]["again"]
        and first["again"]["delay"] == 10
    )
    assert (
        first["summary"][-2]
        == "restart      1 of 2 in 10 s, because something from outside ended it"
    )
    run("started", 2, resume=POINT)
    found = run.found()
    assert (
        found["outcome"],
        found["reason"],
        found["restarts"],
        found["attempts"][0]["again"]["again"],
    ) == ("running", None, 1, True)
    last = run("ended", 2, nodes=ended_by())
    found = run.found()
    assert (found["outcome"], found["reason"], last["again"]) == ("completed", None, None)
    assert found["attempts"][1]["resume"] == {
        key: POINT[key] for key in found["attempts"][1]["resume"]
    }
    assert (
        "resumed      attempt 2 from 2 of attempt 1: 3 epochs done, learning rate 0.001"
        in last["summary"]
    )
    assert (run.dir / "code.diff").read_text() == "diff of 1" and (
        run.dir / "attempt-2" / "code.diff"
    ).read_text() == "diff of 2"
    assert all((run.dir / name / "plan.json").exists() for name in ("", "attempt-1", "attempt-2"))


def test_an_attempt_that_was_begun_is_nobody_elses(run):
    run("started", 1)
    run("ended", 1, nodes=ended_by("SIGKILL"))
    run("started", 2)
    before = run.found()
    with pytest.raises(FileExistsError):
        run("started", 2)
    assert run.found() == before


def test_a_start_that_nobody_took_is_said_and_not_for_ever_running(run):
    run("started", 1)
    run("refused", 1, why="node2 is held by another run")
    found = run.found()
    assert (found["outcome"], found["reason"]) == (
        "failed",
        "not_started",
    ) and "node2 is held" in found["attempts"][0]["verdict"]["text"]


def test_a_late_verdict_on_the_first_attempt_leaves_the_second_as_it_is(run):
    """A second follower may be slower than the restart of the first follower."""
    run("started", 1)
    run("ended", 1, nodes=ended_by("SIGKILL"))
    run("started", 2, resume=POINT)
    put(str(run.dir), {"plan.json": json.dumps(dict(MADE, site="of the second"))})
    for followed in (True, False):
        assert run("ended", 1, nodes=ended_by("SIGKILL"), followed=followed)["again"] is None
    found = run.found()
    assert (
        found["outcome"] == "running"
        and found["attempts"][0]["again"]["again"]
        and len(found["attempts"]) == 2
    )
    assert json.loads((run.dir / "plan.json").read_text())["site"] == "of the second"


def test_a_look_at_an_old_end_starts_nothing_and_takes_nothing_back(run):
    run("started", 1)
    assert run("ended", 1, nodes=ended_by("SIGKILL"), followed=False)["again"]["reason"] == "late"
    assert run("ended", 1, nodes=ended_by("SIGKILL"))["again"]["again"]
    assert run("ended", 1, nodes=ended_by("SIGKILL"), followed=False)["again"]["reason"] == "late"
    assert run.found()["attempts"][0]["again"]["again"]


def test_the_runs_plan_is_the_newest_attempts(run):
    run("started", 1)
    other = dict(MADE, site="another")
    put(
        str(run.dir), {"attempt-2/plan.json": json.dumps(other)}
    )  # collect brought it to a controller that did not start it
    run("ended", 2, nodes=ended_by())
    assert json.loads((run.dir / "plan.json").read_text()) == other and run_json.read_plan(
        str(run.dir), 1
    ) == json.loads(json.dumps(MADE))
    assert oct((run.dir / "plan.json").stat().st_mode)[-3:] == "600"


# -- version 1


def test_a_real_record_of_version_1_is_understood():
    found = run_json.read(str(OLD))
    valid(found)
    assert (found["version"], found["outcome"], found["restarts"], found["ended"]) == (
        2,
        "failed",
        0,
        found["attempts"][0]["ended"],
    )
    (attempt,) = found["attempts"]
    assert (
        attempt["plan_sha256"] == found["plan_sha256"]
        and attempt["started"] == found["started"]
        and attempt["again"] is None
    )
    assert run_json.read_plan(str(OLD), 1)[
        "ranks"
    ]  # version 1 keeps it in the run's directory alone


def test_a_version_1_record_of_a_run_that_was_not_followed_to_its_end():
    found = run_json.upgrade(
        {
            "version": 1,
            "run": RUN,
            "job": "x",
            "plan_sha256": "a" * 64,
            "started": 5.0,
            "code": {},
            "attempts": [],
        }
    )
    valid(found)
    assert found["outcome"] == "running" and [item["number"] for item in found["attempts"]] == [1]


def test_a_run_of_version_1_goes_on_as_version_2(run):
    old = json.loads((OLD / "run.json").read_text(encoding="utf-8"))
    put(
        str(run.dir),
        {
            "run.json": json.dumps(dict(old, run=RUN)),
            "plan.json": (OLD / "plan.json").read_text(),
            "attempt-1/rank-000.node1.log": "",
        },
    )
    run("started", 2, resume=POINT)
    found = run.found()
    assert [item["number"] for item in found["attempts"]] == [1, 2] and found["started"] == old[
        "started"
    ]
    assert found["attempts"][0]["verdict"] == old["attempts"][0]["verdict"]
    # the plan of the first attempt, which lay in the run's directory alone, is kept where it now
    # belongs
    assert (
        run_json.read_plan(str(run.dir), 1)
        == json.loads((OLD / "plan.json").read_text())
        != run_json.read_plan(str(run.dir), 2)
    )


def test_a_newer_record_is_left_alone(run):
    put(
        str(run.dir),
        {
            "run.json": json.dumps({"version": 3, "attempts": []}),
            "attempt-1/plan.json": json.dumps(MADE),
        },
    )
    with pytest.raises(run_json.NewerRecord):
        run("ended", 1, nodes=ended_by())
    assert run.found()["version"] == 3


# -- two at once


def test_two_who_write_at_once_lose_nothing(tmp_path):
    """Without the lock, a writer that has read before and writes later removes the attempt of the
    other one.
    """
    code = (
        "import sys; sys.path.insert(0, {!r})\n"
        "from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json as run_file\n"
        "where, first = sys.argv[1], int(sys.argv[2])\n"
        "for number in range(first, 41, 2):\n"
        "    with run_file.lock_record(where):\n"
        "        found = run_file.read(where) or run_file.new_record({!r}, 'x', 1.0)\n"
        "        run_file.write_entry(where, found, run_file.new_entry(number))\n".format(
            str(ROOT / "collections"), RUN
        )
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(first)])
        for first in (1, 2)
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert [item["number"] for item in run_json.read(str(tmp_path))["attempts"]] == list(
        range(1, 41)
    )


def test_how_often_a_job_wants_to_be_started_again(tmp_path):
    for text, limit in (
        ('{"max_restarts": 3}', 3),
        ("{}", 0),
        ("", 0),
        ('{"max_restarts": true}', 0),
        ('{"max_restarts": -1}', 0),
    ):
        put(str(tmp_path), {"job.json": text})
        assert run_json.read_restart_limit(str(tmp_path)) == limit
    assert run_json.attempt_numbers(str(tmp_path / "none")) == [] and not os.path.exists(
        tmp_path / "none"
    )


def test_a_seal_stays_within_the_run(tmp_path):
    run, outside = tmp_path / "runs" / RUN, tmp_path / "outside"
    put(outside, {"file": "x", "folder/file": "x"})
    put(run, {"attempt-1/plan.json": "{}"})
    (run / "link").symlink_to(outside)
    (run / "attempt-1" / "file").symlink_to(outside / "file")
    for path in [run / "attempt-1" / "plan.json", outside / "file", outside / "folder" / "file"]:
        path.chmod(0o644)
    outside.chmod(0o755)
    run_json.make_private(str(run))
    assert oct((run / "attempt-1" / "plan.json").stat().st_mode)[-3:] == "600"
    assert [
        oct(path.stat().st_mode)[-3:]
        for path in (outside, outside / "file", outside / "folder" / "file")
    ] == ["755", "644", "644"]
    (tmp_path / "runs" / (RUN[:-4] + "0000")).symlink_to(outside)
    for path in (outside, tmp_path / "runs" / (RUN[:-4] + "0000"), tmp_path / "runs"):
        with pytest.raises(ValueError):
            run_json.make_private(str(path))
    assert oct(outside.stat().st_mode)[-3:] == "755"
