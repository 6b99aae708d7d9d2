# SPDX-License-Identifier: Apache-2.0
"""Attempts on a node: names, the directory, the working directory of links, the unit, stopping;
without systemd.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    guard_unit,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.base.processes import pids_with_mark
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as plans
from core_support import CODE, DATA, RUN, compiled, gang, put, raises_code

UNIT = f"trainyard-{RUN}-1.service"


class Systemctl:
    """A `run` callable that answers by the words it is called with and remembers its calls."""

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    def __call__(self, argv):
        self.calls.append(argv)
        return self.answers.get(
            next((word for word in argv if word in self.answers), ""), (0, "", "")
        )


# --- names


def test_names_go_both_ways():
    assert attempt_dir.unit_name(RUN, 2) == f"trainyard-{RUN}-2.service" and attempt_dir.parse_unit(
        attempt_dir.unit_name(RUN, 2)
    ) == (RUN, 2)
    assert attempt_dir.attempt_dir("/b", RUN, 2) == f"/b/runs/{RUN}/attempt-2"
    with raises_code(attempt_dir.AttemptError, "attempt.bad_unit"):
        attempt_dir.parse_unit("sshd.service")


@pytest.mark.parametrize(
    "run_id",
    [
        "",
        "..",
        "../../etc",
        "20261120-103501-x/../../y-1f2e",
        "20261120-103501-a b-1f2e",
        "20261120-103501-ppyoloe-1f2e\n",
        "20261120-103501--1f2e",
        "20261120-103501-ppyoloe-1f2e0",
        "20261120-103501-" + "x" * 65 + "-1f2e",
    ],
)
def test_what_is_no_run_id_leads_nowhere(run_id):
    with raises_code(attempt_dir.AttemptError, "attempt.bad_run_id"):
        attempt_dir.attempt_dir("/b", run_id, 1)


def test_runs_on_a_node_oldest_first(tmp_path):
    newer = RUN.replace("20261120", "20261121")
    put(
        tmp_path,
        {
            f"runs/{newer}/attempt-1/attempt.json": "",
            f"runs/{RUN}/attempt-2/attempt.json": "",
            f"runs/{RUN}/attempt-10/attempt.json": "",
            f"runs/{RUN}/attempt-11/stop.json": "",  # a start that was refused
            f"runs/{RUN}/notes": "",
            "runs/other/attempt-1/attempt.json": "",
        },
    )
    assert attempt_dir.list_attempts(str(tmp_path)) == [(RUN, 2), (RUN, 10), (newer, 1)]
    assert attempt_dir.list_attempts(str(tmp_path / "none")) == []


# --- units


def test_units_that_hold_the_node():
    listing = "\n".join(
        [
            UNIT + " loaded active running Trainyard run X attempt 1",
            "trainyard-a-1.service loaded deactivating stop-sigterm Trainyard run Y",
            "trainyard-b-1.service loaded failed failed Trainyard run Z",
            "trainyard-c-1.service loaded inactive dead Trainyard run W",
            "",
        ]
    )
    run = Systemctl(**{"list-units": (0, listing, "")})
    assert attempt_dir.active_units(run) == [
        {"unit": UNIT, "state": "active", "description": "Trainyard run X attempt 1"},
        {
            "unit": "trainyard-a-1.service",
            "state": "deactivating",
            "description": "Trainyard run Y",
        },
    ]
    assert run.calls == [
        [
            "systemctl",
            "--user",
            "list-units",
            "--all",
            "--plain",
            "--no-legend",
            "--full",
            "trainyard-*.service",
        ]
    ]


def test_a_node_without_a_user_manager_is_told_the_remedy():
    with pytest.raises(attempt_dir.AttemptError, match=r"Failed to connect to bus.*provision.yml"):
        attempt_dir.active_units(Systemctl(**{"list-units": (1, "", "Failed to connect to bus\n")}))


def test_the_unit_is_started_with_exactly_these_words():
    made = compiled()
    assert attempt_dir.start_argv("/b/a", made, "node2", UNIT, "Trainyard run X") == [
        "systemd-run",
        "--user",
        "--quiet",
        "--collect",
        "--unit=" + UNIT,
        "--description=Trainyard run X",
        "--property",
        "Type=exec",
        "--property",
        "KillMode=control-group",
        "--property",
        "TimeoutStopSec=5",
        "--property",
        "NotifyAccess=exec",
        "--property",
        "UMask=0077",
        "--property",
        "WorkingDirectory=/b/a",
        "--property",
        "StandardOutput=append:/b/a/logs.txt",
        "--property",
        "StandardError=append:/b/a/logs.txt",
        "--property",
        f"ExecStopPost={sys.executable} -I /b/a/agent.pyz ended /b/a node2",
        sys.executable,
        "-I",
        "/b/a/agent.pyz",
        "run",
        "/b/a",
        "node2",
    ]
    assert (
        made["stop"]["grace"] + made["stop"]["timeout"] < 10
    )  # all is stopped within 10 s of a rank's death


def test_the_units_own_words_take_its_credential_back_and_name_what_reaches_the_peers():
    words = attempt_dir.start_argv(
        "/b/a",
        compiled(),
        "node2",
        UNIT,
        "Trainyard run X",
        "/h/config",
        ["/usr/bin/systemd-run", "release"],
    )
    assert [word for word in words if word.startswith("ExecStopPost=")] == [
        # first, and its own failure keeps nobody from being told
        "ExecStopPost=-/usr/bin/systemd-run release",
        f"ExecStopPost={sys.executable} -I /b/a/agent.pyz ended /b/a node2 /h/config",
    ]


def test_a_start_that_fails_says_what_systemd_said():
    run = Systemctl(**{"systemd-run": (1, "", "Unit already exists\n")})
    with pytest.raises(
        attempt_dir.AttemptError, match=f"systemd did not start {UNIT}: Unit already exists$"
    ):
        attempt_dir.start(run, "/b/a", compiled(), "node2", UNIT, "d")


# --- the working directory


@pytest.fixture
def code(tmp_path):
    """A code tree as it lies on a node, with an output folder of its own in it."""
    return put(
        tmp_path / "code",
        {
            "tools/train.py": "1",
            "configs/a.yml": "2",
            "dataset/voc/x": "3",
            "dataset/README": "4",
            "output/old": "5",
            "top": "6",
        },
    )


def test_links_stand_where_the_suite_looks_and_the_code_stays_as_it_is(code, tmp_path):
    before = sorted(str(path) for path in (tmp_path / "code").rglob("*"))
    data, output, work = (
        str(tmp_path / "data"),
        str(tmp_path / "attempt/output"),
        str(tmp_path / "attempt/work"),
    )
    put(data, {"annotations": "7"})
    os.makedirs(output)
    attempt_dir.link_tree(
        code, work, {"dataset/coco": data, "output": output, "weights/0123/deep": data}
    )
    for name in ("tools", "configs", "top", "dataset/voc", "dataset/README"):
        assert os.readlink(os.path.join(work, name)) == os.path.join(code, name)
    assert (
        os.readlink(work + "/dataset/coco") == data
        and os.readlink(work + "/output") == output
        and os.readlink(work + "/weights/0123/deep") == data
    )
    assert not os.path.islink(work + "/dataset") and not os.path.islink(work + "/weights/0123")
    put(work, {"output/model": "8", "dataset/new": "9"})
    assert (
        os.listdir(output) == ["model"]
        and sorted(str(path) for path in (tmp_path / "code").rglob("*")) == before
    )


def test_a_place_inside_a_tracked_folder_hides_only_itself(code, tmp_path):
    work = str(tmp_path / "work")
    attempt_dir.link_tree(code, work, {"dataset/voc": "/data/voc", "configs": "/data/configs"})
    assert os.readlink(work + "/dataset/voc") == "/data/voc" and os.readlink(
        work + "/dataset/README"
    ).startswith(code)
    assert os.readlink(work + "/configs") == "/data/configs"


@pytest.fixture
def node(tmp_path):
    """A node with the code tree of a plan: (attempt, arguments of prepare)."""
    base = tmp_path / ".trainyard"
    put(
        base / "code" / CODE[:16],
        {"tools/train.py": "1", "dataset/README": "2", "output/README": "3"},
    )
    arguments = gang(count=2)
    for fact in arguments["facts"].values():
        fact["base"] = str(base)
    made = plans.compile_plan(**arguments)
    attempt = attempt_dir.attempt_dir(str(base), RUN, 1)
    return attempt, {
        "plan_text": plans.canonical_bytes(made).decode(),
        "plan_sha256": plans.sha256(made),
        "node": "node2",
        "run_id": RUN,
        "number": 1,
        "files": {"agent.pyz": b"# agent\n", "job.json": b"{}"},
    }


def test_what_prepare_leaves(node):
    attempt, given = node
    assert attempt_dir.prepare(attempt, **given) == given["plan_sha256"]
    assert sorted(os.listdir(attempt)) == [
        "agent.pyz",
        "attempt.json",
        "job.json",
        "log",
        "output",
        "plan.json",
        "vdl",
        "work",
    ]
    with open(attempt + "/plan.json", encoding="ascii") as handle:
        assert handle.read() == given["plan_text"]
    with open(attempt + "/attempt.json", encoding="ascii") as handle:
        record = json.load(handle)
    assert dict(record, started=0) == {
        "version": 1,
        "run": RUN,
        "attempt": 1,
        "node": "node2",
        "unit": UNIT,
        "plan_sha256": given["plan_sha256"],
        "started": 0,
    }
    base = attempt[: attempt.index("/runs/")]
    links = {
        name: os.readlink(os.path.join(attempt, "work", name))
        for name in ("log", "output", "vdl_log_dir", "dataset/coco", "tools")
    }
    assert links == {
        "log": attempt + "/log",
        "output": attempt + "/output",
        "vdl_log_dir": attempt + "/vdl",
        "dataset/coco": base + "/data/" + DATA[:16],
        "tools": base + f"/code/{CODE[:16]}/tools",
    }
    assert os.stat(attempt).st_mode & 0o077 == 0 and all(
        os.stat(os.path.join(attempt, name)).st_mode & 0o077 == 0
        for name in ("plan.json", "agent.pyz", "attempt.json")
    )


def with_files(given, **files):
    """Return the arguments of prepare with these files in the plan."""
    text = json.dumps(dict(json.loads(given["plan_text"]), files=files))
    return dict(given, plan_text=text, plan_sha256=hashlib.sha256(text.encode()).hexdigest())


def test_the_plans_files_lie_in_the_working_directory_alone(node):
    attempt, given = node
    code = os.path.join(attempt[: attempt.index("/runs/")], "code", CODE[:16])
    put(code, {"hostfile": "of the code"})
    attempt_dir.prepare(
        attempt, **with_files(given, **{"hostfile": "10.0.0.1 slots=8\n", "tools/table.json": "{}"})
    )
    for name, text in {"hostfile": "10.0.0.1 slots=8\n", "tools/table.json": "{}"}.items():
        path = os.path.join(attempt, "work", name)
        assert (
            open(path, encoding="utf-8").read() == text
            and os.stat(path).st_mode & 0o777 == 0o600
            and not os.path.islink(path)
        )
    assert open(code + "/hostfile", encoding="utf-8").read() == "of the code" and os.listdir(
        code + "/tools"
    ) == ["train.py"]
    assert open(os.path.join(attempt, "work", "tools/train.py"), encoding="utf-8").read() == "1"


@pytest.mark.parametrize(
    "path",
    [
        "/tmp/trainyard-file",
        "../agent.pyz",
        "tools/../../plan.json",
        "a//b",
        "./a",
        "..",
        "",
        "log/x",
        "hostfile/",
    ],
)
def test_a_file_of_the_plan_anywhere_else_is_refused(node, path):
    attempt, given = node
    with raises_code(attempt_dir.AttemptError, "attempt.file_outside"):
        attempt_dir.prepare(attempt, **with_files(given, **{path: "x"}))
    assert not os.path.exists(attempt + "/attempt.json")
    if os.path.exists(attempt + "/agent.pyz"):
        assert open(attempt + "/agent.pyz", encoding="utf-8").read() == "# agent\n"


def test_what_a_start_left_that_was_cut_off_is_in_nobodys_way(node):
    attempt, given = node
    put(attempt, {"work/tools": "x", "plan.json": "{", "agent.pyz": "half"})
    assert attempt_dir.prepare(attempt, **given) == given["plan_sha256"] and os.path.islink(
        os.path.join(attempt, "work", "tools")
    )


def test_no_attempt_is_ever_reused(node):
    attempt, given = node
    attempt_dir.prepare(attempt, **given)
    with raises_code(attempt_dir.AttemptError, "attempt.exists"):
        attempt_dir.prepare(attempt, **given)


@pytest.mark.parametrize(
    "note, source",
    [({"by": "peer", "from": "node1"}, " node1"), ({"by": "user"}, " the user")],
)
def test_a_stopped_attempt_does_not_start(node, note, source):
    attempt, given = node
    put(attempt, {"stop.json": json.dumps(note)})
    with raises_code(attempt_dir.AttemptError, "attempt.stopped_early") as error:
        attempt_dir.prepare(attempt, **given)
    assert str(error.value).endswith(source)
    assert not os.path.exists(attempt + "/attempt.json")


def test_a_plan_that_arrived_changed_is_refused(node):
    attempt, given = node
    with raises_code(attempt_dir.AttemptError, "attempt.plan_changed"):
        attempt_dir.prepare(
            attempt, **dict(given, plan_text=given["plan_text"].replace("17000", "17001"))
        )
    assert not os.path.exists(attempt + "/attempt.json")


def test_a_missing_code_tree_is_named(node):
    attempt, given = node
    tree = os.path.join(attempt[: attempt.index("/runs/")], "code", CODE[:16])
    os.rename(tree, tree + ".away")
    with raises_code(attempt_dir.AttemptError, "attempt.code_missing") as error:
        attempt_dir.prepare(attempt, **given)
    assert tree in str(error.value)


# --- one at a time


def test_one_start_at_a_time_looks_at_the_node(tmp_path):
    order, inside = [], threading.Event()

    def second():
        inside.wait(5)
        with attempt_dir.lock_node(str(tmp_path)):
            order.append("second")

    other = threading.Thread(target=second)
    other.start()
    with attempt_dir.lock_node(str(tmp_path)):
        inside.set()
        other.join(0.3)
        order.append("first")
    other.join(5)
    assert order == ["first", "second"]


def test_the_lock_lies_on_the_machine_where_the_home_may_be_shared(tmp_path, monkeypatch):
    own, base = tmp_path / "run", tmp_path / "home" / ".trainyard"
    own.mkdir()
    monkeypatch.setattr(commands, "user_environment", lambda uid: {"XDG_RUNTIME_DIR": str(own)})
    with attempt_dir.lock_node(str(base)):
        assert os.listdir(own) and not base.exists()


# --- stopping


@pytest.mark.parametrize(
    "state, files, note, stops",
    [
        ("active", {}, True, True),
        ("activating", {}, True, True),
        ("inactive", {}, True, False),  # a start may be under way: it finds the note
        ("inactive", {"exit.json": "{}"}, False, False),
        ("failed", {"exit.json": "{}"}, False, False),
        ("deactivating", {"exit.json": "{}"}, True, True),
    ],
)
def test_stop(tmp_path, state, files, note, stops):
    attempt = put(tmp_path / "attempt", dict(files, x=""))
    run = Systemctl(**{"is-active": (0 if state == "active" else 3, state + "\n", "")})
    assert attempt_dir.stop(run, attempt, UNIT, "user", "ops") is stops
    assert run.calls == [["systemctl", "--user", "is-active", UNIT]] + [
        ["systemctl", "--user", "stop", UNIT]
    ] * stops + [
        ["systemctl", "--user", "stop", guard_unit.unit_name(UNIT)],
        ["systemctl", "--user", "reset-failed", UNIT],
    ]
    assert os.path.exists(attempt + "/stop.json") == note
    if note:
        with open(attempt + "/stop.json", encoding="ascii") as handle:
            said = json.load(handle)
        assert (said["by"], said["from"]) == ("user", "ops") and os.stat(
            attempt + "/stop.json"
        ).st_mode & 0o077 == 0


def test_what_runs_on_a_full_disk_is_stopped_and_no_empty_note_is_left(tmp_path, monkeypatch):
    def full(path, text):
        open(path, "w").close()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(attempt_dir, "_write", full)
    run = Systemctl(**{"is-active": (0, "active", "")})
    assert attempt_dir.stop(run, str(tmp_path), UNIT, "user", "ops") is True
    assert ["systemctl", "--user", "stop", UNIT] in run.calls and not os.path.exists(
        str(tmp_path / "stop.json")
    )


def test_the_first_word_on_who_stopped_it_stays(tmp_path):
    attempt = put(tmp_path, {"stop.json": '{"by": "peer"}'})
    attempt_dir.stop(Systemctl(**{"is-active": (0, "active", "")}), attempt, UNIT, "user", "ops")
    with open(attempt + "/stop.json", encoding="ascii") as handle:
        assert handle.read() == '{"by": "peer"}'


def test_the_note_is_there_before_the_unit_ends(tmp_path):
    seen = []
    answers = Systemctl(**{"is-active": (0, "active", "")})

    def run(argv):
        seen.append((argv[2], os.path.exists(str(tmp_path / "stop.json"))))
        return answers(argv)

    attempt_dir.stop(run, str(tmp_path), UNIT, "user", "ops")
    assert seen == [("is-active", True), ("stop", True), ("stop", True), ("reset-failed", True)]


def test_a_unit_that_does_not_stop(tmp_path):
    run = Systemctl(**{"is-active": (0, "active", ""), "stop": (1, "", "Access denied\n")})
    with raises_code(attempt_dir.AttemptError, "attempt.unit_not_stopped") as error:
        attempt_dir.stop(run, str(tmp_path), UNIT, "user", "ops")
    assert str(error.value).endswith("Access denied")


def test_processes_are_found_by_their_mark_and_no_others():
    mark = "TRAINYARD_ATTEMPT"
    argv = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(30)"]
    started = [
        subprocess.Popen(
            argv,
            env=dict(os.environ, **{mark: value}),
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for value in (RUN + "/1", RUN + "/11", RUN + "/1x")
    ]
    try:
        for process in started:
            process.stdout.read(2)
        assert (
            pids_with_mark(RUN, 1) == [started[0].pid]
            and pids_with_mark(RUN, 11) == [started[1].pid]
            and pids_with_mark(RUN, 2) == []
        )
    finally:
        for process in started:
            process.kill()
            process.communicate()
