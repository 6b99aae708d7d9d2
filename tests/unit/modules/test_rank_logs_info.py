# SPDX-License-Identifier: Apache-2.0
"""rank_logs_info: what the attempt directory of one node says, whatever files are in it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from types import SimpleNamespace

import pytest
import rank_logs_info
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence
from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import visualdl
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from conftest import sample_plan

FAILED = {
    "service_result": "exit-code",
    "exit_code": "exited",
    "exit_status": "250",
    "time": 1795166909.0,
    "stopped_by": None,
}
EVENTS = [
    {"event": "launched", "pid": 90, "time": 1795166899.5},
    {
        "event": "start",
        "rank": 2,
        "local_rank": 0,
        "pid": 153,
        "time": 1795166900.5,
        "endpoints_as_planned": True,
    },
    {
        "event": "start",
        "rank": 3,
        "local_rank": 1,
        "pid": 154,
        "time": 1795166900.5,
        "endpoints_as_planned": True,
    },
    {
        "event": "end",
        "rank": 3,
        "local_rank": 1,
        "pid": 154,
        "time": 1795166907.1,
        "exit_code": 1,
        "signal": None,
    },
    {
        "event": "end",
        "rank": 2,
        "local_rank": 0,
        "pid": 153,
        "time": 1795166907.6,
        "exit_code": None,
        "signal": "SIGABRT",
    },
    {"event": "launcher_end", "exit_code": 250, "signal": None, "time": 1795166908.5},
]


def read(home, node="node2", **options):
    return evidence.collect(str(home), node, **options)


def by_rank(found):
    return {rank["rank"]: rank for rank in found["ranks"]}


# -- the real failure
# ----------------------------------------------------------------------------------------------


def test_the_real_failure_with_the_agents_events(make_attempt):
    home = make_attempt("node2", "failure_rank3_raises_2x2", events=EVENTS, exit=FAILED)
    found = read(home)
    ranks = by_rank(found)
    assert sorted(ranks) == [2, 3]
    three = ranks[3]
    assert (three["local_rank"], three["device"], three["file"], three["home"]) == (
        1,
        "1",
        "log/workerlog.1",
        "rank-003.node2.log",
    )
    assert (
        three["pid"],
        three["exit_code"],
        three["signal"],
        three["observed"],
        three["state"],
    ) == (154, 1, None, "agent", "failed")
    assert (three["first_error"]["text"], three["first_error"]["line"], three["lines"]) == (
        "image 000000012.jpg is truncated",
        14,
        14,
    )
    assert (ranks[2]["signal"], ranks[2]["exit_code"], ranks[2]["state"]) == (
        "SIGABRT",
        None,
        "failed",
    )
    assert found["endpoints"] == [
        "198.51.100.11:17000",
        "198.51.100.11:17001",
        "198.51.100.12:17000",
        "198.51.100.12:17001",
    ]
    assert found["exit"]["exit_status"] == "250"
    assert found["launcher"]["exit_code"] == 250
    assert found["problems"] == []


def test_files_to_bring_home_and_never_an_environment(make_attempt):
    home = make_attempt("node2", "failure_rank3_raises_2x2", events=EVENTS, exit=FAILED)
    for name in ("envlog.0", "backup_env.0.json", "default.abcdef.log", "workerlog.0.swp"):
        (home / "log" / name).write_text("SECRET=1")
    found = read(home)
    assert {(f["file"], f["home"]) for f in found["files"]} == {
        ("log/workerlog.0", "rank-002.node2.log"),
        ("log/workerlog.1", "rank-003.node2.log"),
        ("logs.txt", "launcher.node2.log"),
        ("ranks.jsonl", "ranks.node2.jsonl"),
        ("exit.json", "exit.node2.json"),
    }
    for item in found["files"]:
        raw = (home / item["file"]).read_bytes()
        assert (item["bytes"], item["sha256"]) == (len(raw), hashlib.sha256(raw).hexdigest())


def test_the_launchers_word_fills_in_where_the_agent_saw_nothing(make_attempt):
    found = by_rank(read(make_attempt("node2", "failure_rank3_raises_2x2", exit=FAILED)))
    assert (found[2]["exit_code"], found[2]["signal"], found[2]["observed"]) == (
        None,
        "SIGABRT",
        "launcher",
    )
    assert (found[3]["exit_code"], found[3]["signal"], found[3]["observed"]) == (None, None, None)
    assert found[3]["state"] == "failed"


def test_tails_only(make_attempt):
    home = make_attempt("node2", "failure_rank3_raises_2x2", events=EVENTS)
    found = read(home, digest=False)
    three = by_rank(found)[3]
    assert (three["sha256"], three["lines"], three["steps"], three["first_step"]) == (
        None,
        None,
        None,
        None,
    )
    assert (three["first_error"]["kind"], three["first_error"]["line"]) == ("ValueError", None)
    assert all(f["sha256"] is None for f in found["files"])


def test_a_run_that_ended_well(make_attempt, root):
    suites = root / "playbooks" / "suites"
    logs = next(
        t["logs"]
        for t in (
            yaml.safe_load(p.read_text()) for p in sorted(suites.glob("paddledetection*.yml"))
        )
        if "logs" in t
    )
    plan = sample_plan(logs=logs)
    found = by_rank(
        read(
            make_attempt(
                "node1",
                "paddledetection_ppyoloe_s_2x2",
                plan=plan,
                exit={"service_result": "success", "stopped_by": None},
            ),
            "node1",
        )
    )
    assert (
        found[0]["state"],
        found[0]["steps"],
        found[0]["last_step"]["loss"],
        found[0]["saved_count"],
    ) == ("done", 8, 16.403414, 1)
    assert found[1]["state"] == "done"


def test_a_node_says_whether_it_has_a_checkpoint(make_attempt, monkeypatch):
    plan = sample_plan()
    plan["suite"] = dict(
        plan["suite"],
        checkpoints={"folders": ["output"], "best": "best_model", "last": "model_final"},
    )
    home = make_attempt("node1", plan=plan)
    assert not read(home, "node1")["has_checkpoint"]
    (home / "output").mkdir()
    (home / "output" / "model_final.pdparams").write_text("")
    assert not read(home, "node1")["has_checkpoint"], "a file without content is none"
    (home / "output" / "model_final.pdparams").write_text("x")
    assert read(home, "node1")["has_checkpoint"]

    def refuse(*_given):
        raise PermissionError(13, "Permission denied")

    # A folder of another account costs nothing else of the evidence.
    monkeypatch.setattr(evidence.model_collector, "newest_name", refuse)
    assert read(home, "node1")["has_checkpoint"] is False


def test_the_dates_of_a_log_are_unix_seconds_by_the_nodes_own_zone(make_attempt, monkeypatch):
    monkeypatch.setenv("TZ", "CST-8")
    time.tzset()
    try:
        home = make_attempt(
            "node2",
            logs={
                0: "[2026-11-20 19:17:36,145] begin\nno date\nI1121 00:00:00.500000 4602 x] end\n",
                1: "none\n",
            },
        )
        for log in (home / "log").iterdir():
            os.utime(
                log, (1795190400, 1795190400)
            )  # 2026-11-20 16:00 UTC: it says the year of the second date
        found = read(home)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found["utc_offset"] == 8 * 3600
    two, three = by_rank(found)[2], by_rank(found)[3]
    assert (two["first_time"], two["last_time"]) == (1795173456.145, 1795190400.5)
    assert (three["first_time"], three["last_time"]) == (None, None)


def test_visualdls_records_come_home_and_nothing_else_of_the_output(
    make_attempt, tmp_path, monkeypatch
):
    plan = dict(
        sample_plan(),
        suite={
            "name": "paddleseg",
            "redirects": {"log": "log", "output": "output", "vdl_log_dir": "vdl"},
        },
    )
    home = make_attempt("node1", plan=plan, logs={0: "x\n"})
    outside = tmp_path / "outside"
    for folder in (home / "output" / "pp" / "vdl", home / "vdl" / "scalar", outside):
        folder.mkdir(parents=True)
        (folder / "vdlrecords.1795183247.log").write_bytes(b"\x18\x00\0\xff" + str(folder).encode())
    (home / "output" / "model.pdparams").write_bytes(b"x")
    (home / "output" / "link").symlink_to(outside)
    (home / "output" / "vdlrecords.2.log").symlink_to(outside / "vdlrecords.1795183247.log")
    found = read(home, "node1")
    brought = {
        f["file"]: f["home"] for f in found["files"] if f["file"].split("/")[0] in ("output", "vdl")
    }
    assert brought == {
        "output/pp/vdl/vdlrecords.1795183247.log": "vdlrecords-1795183247-1.node1.log",
        "vdl/scalar/vdlrecords.1795183247.log": "vdlrecords-1795183247.node1.log",
    }
    assert not [
        f for f in read(home, "node1", digest=False)["files"] if f["home"].startswith("vdl")
    ]
    for number in range(40):
        (home / "vdl" / ("vdlrecords.%d.log" % number)).write_bytes(b"")
    assert (
        len([f for f in read(home, "node1")["files"] if f["home"].startswith("vdl")])
        == visualdl.MOST
    )
    # a training that leaves a directory for every picture does not hold up the end of the run
    monkeypatch.setattr(visualdl, "FOLDERS", 3)
    for number in range(9):
        (home / "output" / ("a%d" % number)).mkdir()
    assert "output/pp/vdl/vdlrecords.1795183247.log" not in [
        f["file"] for f in read(home, "node1")["files"]
    ]


# -- states
# --------------------------------------------------------------------------------------------------

START = {"event": "start", "rank": 2, "pid": 7, "time": 1.0}
END = {"event": "end", "rank": 2, "pid": 7, "time": 2.0}
TABLE = {"step": {"has": "step ", "line": r"step (?P<step>\d+)"}}


@pytest.mark.parametrize(
    "log, events, ended, state",
    [
        (None, [], None, "waiting"),
        (None, [START], None, "starting"),
        ("hello\n", [], None, "starting"),
        ("step 3\n", [START], None, "training"),
        ("step 3\n", [START, dict(END, exit_code=0)], None, "done"),
        (
            "step 3\n",
            [START, dict(END, exit_code=0)],
            {"stopped_by": "peer", "service_result": "success"},
            "done",
        ),
        (
            "step 3\nKilled\n",
            [START, dict(END, exit_code=0)],
            {"stopped_by": None, "service_result": "exit-code"},
            "done",
        ),
        ("step 3\nKilled\n", [START, dict(END, exit_code=None)], None, "failed"),
        ("step 3\n", [START, dict(END, exit_code=3)], None, "failed"),
        ("step 3\n", [START, dict(END, exit_code=None, signal="SIGKILL")], None, "killed"),
        ("step 3\n", [START, dict(END, exit_code=None, signal="SIGSEGV")], None, "failed"),
        (
            "step 3\n",
            [START, dict(END, exit_code=None, signal="SIGTERM")],
            {"stopped_by": "user", "service_result": "success"},
            "stopped",
        ),
        (
            "step 3\n",
            [START, dict(END, exit_code=1)],
            {"stopped_by": "peer", "service_result": "success"},
            "failed",
        ),
        ("step 3\n", [START], {"stopped_by": "peer", "service_result": "success"}, "stopped"),
        ("step 3\n", [], {"stopped_by": None, "service_result": "success"}, "done"),
        ("step 3\n", [], {"stopped_by": None, "service_result": "exit-code"}, "failed"),
        ("step 3\nKilled\n", [], {"stopped_by": None, "service_result": "success"}, "failed"),
        ("step 3\n", [START, dict(END, exit_code=1), dict(START, pid=8)], None, "training"),
        ("step 3\n", [START, dict(END, exit_code=None)], None, "done"),
    ],
)
def test_states(make_attempt, log, events, ended, state):
    home = make_attempt(
        "node2",
        plan=sample_plan(logs=TABLE),
        logs={} if log is None else {0: log},
        events=events,
        exit=ended,
    )
    assert by_rank(read(home))[2]["state"] == state


def test_events_that_are_torn_foreign_or_malformed():
    raw = b'\n{"event": "start", "ra\nnot json\n[1]\n{"event": "end", "rank": "x"}\n'
    raw += b'{"event": "end", "rank": 1, "exit_code": true, "signal": 9, "time": "now"}\n\xff\n'
    raw += (
        b"[" * 100000
        + b"\n"
        + b'{"event": "end", "rank": 0, "exit_code": 4, "time": 5}\n{"event":"end","rank":1'
    )
    found = evidence.read_events(raw)
    more = (
        b'{"event": "launched", "time": 3}\n{"event": "launched", "rank": 5, "time":'
        b' true}\n{"event": "end", "rank": 0, "exit_code": "7"}'
    )
    assert set(found["ranks"]) == {0, 1}
    assert evidence.read_events(more)["launcher"] == {"started": None}
    assert evidence.read_events(more.splitlines()[0])["launcher"] == {"started": 3.0}
    assert evidence.read_events(more)["ranks"] == {
        0: {"ended": None, "exit_code": None, "signal": None, "pid": None}
    }
    assert found["ranks"][1] == {"ended": None, "exit_code": None, "signal": "SIGKILL", "pid": None}
    assert found["ranks"][0] == {"ended": 5.0, "exit_code": 4, "signal": None, "pid": None}
    assert evidence.read_events(None) == {"ranks": {}, "launcher": {}}


def test_events_of_other_kinds_are_passed_over():
    assert evidence.read_events(b'{"event": "progress", "rank": 4, "time": 1}')["ranks"] == {}


@pytest.mark.parametrize("line", ["ap 0.5", "saved x"])
def test_an_evaluation_or_a_checkpoint_shows_training_too(make_attempt, line):
    table = {
        "evaluation": {"lines": [r"ap (?P<ap>\S+)"]},
        "saved": {"lines": [r"saved (?P<path>\S+)"]},
    }
    home = make_attempt(
        "node2", plan=sample_plan(logs=table), logs={0: line + "\n"}, events=[START]
    )
    assert by_rank(read(home))[2]["state"] == "training"


def test_a_console_by_another_name(make_attempt):
    plan = sample_plan()
    plan["launcher"]["console"] = "console.txt"
    home = make_attempt("node2", plan=plan)
    (home / "console.txt").write_text("Killed\n")
    found = read(home)
    assert [(f["file"], f["home"]) for f in found["files"]] == [
        ("console.txt", "launcher.node2.log")
    ]
    assert found["launcher"]["first_error"]["cause"] == "killed"


def test_what_the_agent_saw_beats_what_the_launcher_says(make_attempt):
    console = (
        "Container rank 0 status failed cmd ['a'] code -6 log x\nContainer rank 1 status completed"
        " cmd ['a'] code 0 log x\n"
    )
    home = make_attempt(
        "node2", events=[dict(END, exit_code=None, signal="SIGKILL")], console=console
    )
    found = by_rank(read(home))
    assert (found[2]["signal"], found[2]["observed"]) == ("SIGKILL", "agent")
    assert (found[3]["exit_code"], found[3]["signal"], found[3]["observed"]) == (
        0,
        None,
        "launcher",
    )


def test_an_old_processs_end_does_not_end_the_new_one():
    events = [START, dict(START, pid=8), dict(END, exit_code=1)]
    assert (
        evidence.read_events("\n".join(map(json.dumps, events)).encode())["ranks"][2]["ended"]
        is None
    )


@pytest.mark.parametrize(
    "value, name",
    [
        (9, "SIGKILL"),
        ("9", "SIGKILL"),
        ("KILL", "SIGKILL"),
        ("SIGKILL", "SIGKILL"),
        (None, None),
        (True, None),
        ("x;y", None),
        (99, "SIG99"),
        (1.5, None),
        ([9], None),
        ("²", None),
    ],
)
def test_signal_names(value, name):
    assert evidence.signal_name(value) == name


def test_the_time_of_a_stop_by_the_nodes_own_clock(make_attempt):
    ended = {
        "service_result": "success",
        "stopped_by": "peer",
        "stopped_from": "node1",
        "time": 9.0,
    }
    assert (
        read(make_attempt("node2", exit=ended, stop={"by": "peer", "from": "node1", "time": 4.5}))[
            "exit"
        ]["stopped_at"]
        == 4.5
    )


def test_a_stop_that_ended_nothing_is_not_told(make_attempt):
    assert (
        read(make_attempt("node2", exit={"stopped_by": None}, stop={"time": 4.5}))["exit"][
            "stopped_at"
        ]
        is None
    )


@pytest.mark.parametrize("stop", ["x", [1], {"time": "now"}, None])
def test_an_odd_stop_json(make_attempt, stop):
    assert (
        read(make_attempt("node2", exit={"stopped_by": "user"}, stop=stop))["exit"]["stopped_at"]
        is None
    )


# -- what a hostile or broken directory may hold
# -------------------------------------------------------------------


def test_no_link_is_followed(make_attempt, tmp_path):
    home = make_attempt("node2", logs={1: "fine\n"})
    secret = tmp_path / "secret"
    secret.write_text("Traceback (most recent call last):\nValueError: secret\n")
    (home / "log" / "workerlog.0").symlink_to(secret)
    (home / "logs.txt").symlink_to(secret)
    (home / "log" / "default.abc.log").symlink_to(secret)
    found = read(home)
    assert "secret" not in json.dumps(found["ranks"]) + json.dumps(found["files"]) + json.dumps(
        found["launcher"]
    )
    assert [f["file"] for f in found["files"]] == ["log/workerlog.1"]
    assert [text.split(": ")[0] for text in found["problems"]] == ["logs.txt", "log/workerlog.0"]
    assert all(text.endswith(os.strerror(errno.ELOOP)) for text in found["problems"])


def test_a_linked_log_directory_is_not_entered(make_attempt, tmp_path):
    home = make_attempt("node2")
    other = tmp_path / "other"
    other.mkdir()
    (other / "workerlog.0").write_text("hello\n")
    (home / "log").rmdir()
    (home / "log").symlink_to(other)
    found = read(home)
    assert found["files"] == []
    assert by_rank(found)[2]["bytes"] is None


@pytest.mark.parametrize(
    "template",
    [
        "../workerlog.{local_rank}",
        "/etc/passwd",
        "log/../../workerlog.0",
        "log//workerlog.{local_rank}",
        "",
        "log/./workerlog.0",
        "log/\0x",
    ],
)
def test_a_template_that_leaves_the_directory(make_attempt, template):
    plan = sample_plan()
    plan["launcher"]["rank_log"] = template
    home = make_attempt("node2", plan=plan, logs={0: "inside\n"})
    (home.parent / "workerlog.0").write_text("outside\n")
    found = read(home)
    assert found["files"] == []
    assert all(rank["file"] is None for rank in found["ranks"])


def test_a_pipe_a_directory_and_an_unreadable_file(make_attempt):
    home = make_attempt("node2")
    os.mkfifo(home / "log" / "workerlog.0")
    (home / "log" / "workerlog.1").mkdir()
    found = read(home)
    assert found["files"] == []
    assert [text.split(": ")[0] for text in found["problems"]] == [
        "log/workerlog.0",
        "log/workerlog.1",
    ]
    assert all(text.endswith("not a regular file") for text in found["problems"])


def test_logs_that_no_rank_owns_come_home_too(make_attempt):
    home = make_attempt("node2", logs={0: "a\n", 1: "b\n", 7: "c\n", "x": "d\n"})
    found = read(home)
    assert ("log/workerlog.7", "stray-workerlog.7.node2.log") in {
        (f["file"], f["home"]) for f in found["files"]
    }
    (problem,) = found["problems"]
    assert problem.startswith("log/workerlog.7: no rank")


def test_a_log_that_no_rank_owns_has_a_name_that_the_controller_takes(make_attempt):
    plan = sample_plan()
    stem = "x" * (safe_names.PART_BYTES - 3)
    plan["launcher"]["rank_log"] = f"log/{stem}.{{local_rank}}"
    plan["ranks"] = [
        {key: value for key, value in rank.items() if key != "log"} for rank in plan["ranks"]
    ]
    home = make_attempt("node2", plan=plan)
    for number in ("77", "777"):
        (home / "log" / f"{stem}.{number}").write_text("x\n")
    found = read(home)
    long = (
        "n" * 60
    )  # the name of this node is so long that even the shorter name does not fit on the controller
    (home / "plan.json").write_text(json.dumps(plan).replace('"node2"', json.dumps(long)))
    assert not any(item["home"].startswith("stray-") for item in read(home, long)["files"])
    named = [item for item in found["files"] if item["home"].startswith("stray-")]
    assert [item["home"] for item in named] == [f"stray-{stem}.77.node2.log"]
    assert (
        safe_names.at_home("node2").fullmatch(named[0]["home"])
        and safe_names.problem(named[0]["file"]) is None
    )
    assert (
        answer_gate.validate("rank_logs_info", dict(found, changed=False), {"node": "node2"})[
            "files"
        ]
        == found["files"]
    )


def test_logs_that_no_rank_owns_beside_the_plan_and_with_odd_names(make_attempt):
    plan = sample_plan()
    plan["launcher"]["rank_log"] = "worker {rank}"
    home = make_attempt("node2", plan=plan)
    (home / "worker 9").write_text("x\n")
    assert read(home)["files"] == []
    plan["launcher"]["rank_log"] = "worker_{rank}.log"
    (home / "plan.json").write_text(json.dumps(plan))
    (home / "worker_9.log").write_text("x\n")
    (home / "worker_3.log").write_text("y\n")
    (home / "worker_8.log\n").write_text(
        "a name with a line end, which log_index refuses with all others\n"
    )
    assert {f["home"] for f in read(home)["files"]} == {
        "rank-003.node2.log",
        "stray-worker_9.log.node2.log",
    }


@pytest.mark.parametrize(
    "plan, word",
    [
        ("", "plan.json"),
        ("{", "plan.json"),
        ("[]", "plan.json"),
        ("{}", "ranks"),
        ('{"ranks": "x", "launcher": {"rank_log": "log/w"}}', "no list"),
        ('{"ranks": [], "launcher": []}', "no list"),
        ('{"ranks": [1], "launcher": {"rank_log": "log/w"}}', "it has none"),
        ('{"ranks": [], "launcher": {}}', "rank_log"),
        ('{"ranks": [], "launcher": {"rank_log": "log/w"}}', "no rank on node2"),
        (
            (
                '{"ranks": [{"rank": "0", "node": "node2", "local_rank": 0}], "launcher":'
                ' {"rank_log": "log/w"}}'
            ),
            "no rank on node2",
        ),
        (
            (
                '{"ranks": [{"rank": 0, "node": "node2", "local_rank": 0}], "launcher":'
                ' {"rank_log": "l/w"}, "suite": {"logs": {"step": {"line": "("}}}}'
            ),
            "logs.step.line",
        ),
    ],
)
def test_a_plan_that_cannot_be_used(make_attempt, plan, word):
    home = make_attempt("node2")
    (home / "plan.json").write_text(plan)
    with pytest.raises(evidence.EvidenceError, match=word):
        read(home)


def test_odd_contents_never_raise(make_attempt):
    home = make_attempt("node2", logs={0: b"\0\xff" * 1000, 1: b""})
    plan = sample_plan()
    plan.update(suite=[], env=[1], nodes=[1, {"env": {"A_TOKEN": 123456}}])
    del plan["launcher"]["console"]
    (home / "logs.txt").write_text("Killed\n")
    (home / "plan.json").write_text(json.dumps(plan))
    (home / "exit.json").write_text('["x"]')
    (home / "ranks.jsonl").write_bytes(b"\xff\n{}\n" * 100)
    (home / "log" / "default.abc.log").write_bytes(
        b"environ({'A': \n[1, 2]\n['nope']\n['a:1', 2]\n('a:1',)\n5\n[]\n\xff\n"
    )
    found = read(home)
    assert (found["exit"], found["endpoints"], found["launcher"]["first_error"]["kind"]) == (
        None,
        None,
        "Killed",
    )
    assert found["ranks"][0]["lines"] == 1


def test_a_node_that_is_not_in_the_plan(make_attempt):
    with pytest.raises(evidence.EvidenceError, match="node1, node2"):
        read(make_attempt("node2"), "node9")
    with pytest.raises(evidence.EvidenceError, match="name"):
        read(make_attempt("node1"), "../node1")


# -- nothing secret is shown
# ---------------------------------------------------------------------------------------


def test_secrets_of_the_environment_are_masked_wherever_they_are_printed(make_attempt):
    environ = (
        "environ({'WANDB_API_KEY': 'quite-a-secret', 'MY_LOGIN': 'joe7', 'PWD': '/srv/some/where',"
        " 'X_TOKEN': 'true'})\n"
    )
    environ += "['198.51.100.11:17000']\n"
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n'
    text += "ValueError: login quite-a-secret as joe7 in /srv/some/where: true \x1b[31m\n"
    home = make_attempt("node2", logs={0: text})
    (home / "log" / "default.abc.log").write_text(environ)
    found = read(home, names=["MY_LOGIN"])
    whole = json.dumps(found)
    assert "quite-a-secret" not in whole
    assert "joe7" not in whole
    assert "\x1b" not in found["ranks"][0]["first_error"]["text"]
    assert (
        found["ranks"][0]["first_error"]["text"]
        == "login ******** as ******** in /srv/some/where: true \\x1b[31m"
    )
    assert found["endpoints"] == ["198.51.100.11:17000"]
    assert "PWD" not in whole
    assert (home / "log" / "workerlog.0").read_text() == text


def test_secrets_that_the_plan_holds_are_masked(make_attempt):
    plan = dict(
        sample_plan(),
        env={"HF_TOKEN": "very-secret-1"},
        nodes=[{"env": {"DB_PASSWORD": "very-secret-2"}}],
    )
    home = make_attempt(
        "node2",
        plan=plan,
        logs={0: "Traceback (most recent call last):\nValueError: very-secret-1 very-secret-2\n"},
    )
    assert "very-secret" not in json.dumps(read(home))


# -- the module
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [False, True])
def test_the_module(make_attempt, run_module, check):
    home = make_attempt("node2", "failure_rank3_raises_2x2", events=EVENTS, exit=FAILED)
    before = sorted((p.name, p.stat().st_mtime_ns) for p in home.rglob("*"))
    result = run_module(rank_logs_info, {"attempt_dir": str(home), "node": "node2"}, check)
    assert result["changed"] is False
    assert [rank["rank"] for rank in result["ranks"]] == [2, 3]
    assert sorted((p.name, p.stat().st_mtime_ns) for p in home.rglob("*")) == before


def test_the_module_says_what_is_wrong_in_words(run_module, tmp_path):
    result = run_module(rank_logs_info, {"attempt_dir": str(tmp_path / "none"), "node": "node2"})
    assert result["failed"] is True
    assert (
        "node2" in result["msg"]
        and str(tmp_path / "none") in result["msg"]
        and "exception" not in result
    )


def test_the_documentation_names_what_is_returned(make_attempt):
    documented = yaml.safe_load(rank_logs_info.RETURN)
    found = read(make_attempt("node2", "failure_rank3_raises_2x2", events=EVENTS, exit=FAILED))
    assert set(found) == set(documented)
    assert set(found["ranks"][0]) == set(documented["ranks"]["contains"])
    assert set(found["files"][0]) == set(documented["files"]["contains"])
    assert set(by_rank(found)[3]["first_error"]) == set(
        documented["ranks"]["contains"]["first_error"]["contains"]
    )


def test_it_gives_way_to_the_next_attempt(run_module, tmp_path, lowered):
    run_module(rank_logs_info, {"attempt_dir": str(tmp_path), "node": "node1"})
    assert lowered == [1]


def test_a_known_answer_has_the_nodes_clock_of_now(load_plugin, monkeypatch):
    """Nodes that ended at different times would seem to have wrong clocks."""
    plugin = load_plugin("action", "rank_logs_info")
    known = {"answer": {"node": "node1", "now": 500.0}, "received": time.time() - 20}
    args = {"attempt_dir": "/a", "node": "node1", "known": known}
    task = SimpleNamespace(args=args, async_val=0, check_mode=False, action="rank_logs_info")
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp"))
    one = plugin.ActionModule(task, connection, None, None, None)
    monkeypatch.setattr(one, "_execute_module", lambda **_given: pytest.fail("asked again"))
    result = one.run(task_vars={"inventory_hostname": "node1"})
    assert result["node"] == "node1" and result["now"] == pytest.approx(520, abs=5)
