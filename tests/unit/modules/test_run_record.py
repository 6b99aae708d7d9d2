# SPDX-License-Identifier: Apache-2.0
"""The controller's record of a run: what is written at the start and at the end, and the end in
lines for people.
"""

from __future__ import annotations

import json
import os

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as plans
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import record_attempt, summary
from core_support import RUN, compiled, modes, put

MADE = compiled(count=2, devices=1)
STEP = {"loss": 8.857, "ips": 10.0}


def rank(number, **changes):
    """Return what rank_logs_info says of a rank that ended well."""
    return dict(
        {
            "rank": number,
            "local_rank": 0,
            "pid": 100 + number,
            "log": "log/workerlog.0",
            "exit_code": 0,
            "signal": None,
            "started": 1000.0,
            "ended": 1090.5,
            "first_step": STEP if number == 0 else None,
            "last_step": dict(STEP, loss=1.25) if number == 0 else None,
            "evaluation": None,
            "errors": [],
            "first_error": None,
            "state": "done",
        },
        **changes,
    )


def node(name, *ranks, **changes):
    return dict(
        {
            "node": name,
            "ranks": list(ranks),
            "files": [],
            "endpoints": MADE["endpoints"],
            "missing": [],
            "exit": {
                "service_result": "success",
                "exit_code": "exited",
                "exit_status": "0",
                "stopped_by": None,
            },
        },
        **changes,
    )


@pytest.fixture
def started(run_action, tmp_path):
    """A run whose start is recorded: (runs_dir, arguments for the end)."""
    runs = str(tmp_path / "runs")
    arguments = {
        "state": "started",
        "runs_dir": runs,
        "run_id": RUN,
        "job": {"name": "ppyoloe", "nodes": "all"},
        "plan": plans.canonical_bytes(MADE).decode(),
        "plan_sha256": plans.sha256(MADE),
        "code_diff": "-a\n+b\n",
        "code": {"commit": "c", "digest": "d", "dirty": None, "reason": "r", "files": 1},
    }
    assert run_action("run_record", arguments, check=True)["run_dir"] == os.path.join(
        runs, RUN
    ) and not os.path.exists(runs)
    run_action("run_record", arguments)
    return runs, {"state": "ended", "runs_dir": runs, "run_id": RUN}


def read(runs, name):
    with open(os.path.join(runs, RUN, name), encoding="utf-8") as handle:
        return handle.read()


def test_a_node_speaks_of_its_own_ranks_alone_and_once(run_action, started):
    killed = {"exit_code": None, "signal": "SIGKILL", "state": "failed"}
    lies = [
        node("node1", rank(0), rank(1, **killed)),
        node("node1", rank(0, **killed)),
        node("node9", rank(1, **killed)),
        node("node2", rank(1)),
    ]
    found = run_action("run_record", dict(started[1], nodes=lies))
    assert found["verdict"]["outcome"] == "completed"
    kept = json.loads(read(started[0], "run.json"))["attempts"][0]["ranks"]
    assert [(item["rank"], item["node"], item["signal"]) for item in kept] == [
        (0, "node1", None),
        (1, "node2", None),
    ]


@pytest.mark.parametrize("run", ["../x", RUN + " a=b", "/tmp/x"])
def test_what_is_no_run_id_gets_no_directory(run_action, tmp_path, run):
    for state in ("started", "ended", "refused"):
        given = {
            "state": state,
            "runs_dir": str(tmp_path),
            "run_id": run,
            "job": {"name": "x"},
            "plan": "{}",
            "plan_sha256": "a",
        }
        assert run_action("run_record", given)["failed"]
    assert list(tmp_path.iterdir()) == []


def test_the_start_keeps_plan_job_and_local_changes(started):
    runs, _arguments = started
    assert (
        read(runs, "plan.json") == plans.canonical_bytes(MADE).decode()
        and read(runs, "code.diff") == "-a\n+b\n"
        and json.loads(read(runs, "job.json"))["name"] == "ppyoloe"
    )
    found = json.loads(read(runs, "run.json"))
    assert (found["version"], found["run"], found["job"], found["plan_sha256"]) == (
        2,
        RUN,
        "ppyoloe",
        plans.sha256(MADE),
    )
    code = {"commit": "c", "digest": "d", "dirty": None}
    assert (found["outcome"], found["code"]) == ("running", {**code, "reason": "r", "files": 1})
    assert [(item["number"], item["code"]) for item in found["attempts"]] == [(1, code)]
    folder = os.path.join(runs, RUN)
    assert all(
        os.stat(os.path.join(folder, name)).st_mode & 0o077 == 0 for name in os.listdir(folder)
    ) and os.listdir(folder + "/attempt-1") == ["plan.json"]


def test_a_run_is_never_written_over(run_action, started):
    runs, _arguments = started
    again = {
        "state": "started",
        "runs_dir": runs,
        "run_id": RUN,
        "job": {"name": "x"},
        "plan": "{}",
        "plan_sha256": "x",
    }
    result = run_action("run_record", again)
    assert (
        result["failed"]
        and result["taken"]
        and "begun by another command" in result["msg"]
        and json.loads(read(runs, "run.json"))["job"] == "ppyoloe"
    )


def test_a_good_end(run_action, started):
    runs, arguments = started
    os.makedirs(os.path.join(runs, RUN, "attempt-1/checkpoint"))
    put(runs, {RUN + "/attempt-1/checkpoint/model_final.pdparams": ""})
    nodes = [node("node1", rank(0, evaluation={"ap": 0.25, "fps": 9.5})), node("node2", rank(1))]
    result = run_action("run_record", dict(arguments, nodes=nodes))
    text = "\n".join(result["summary"])
    assert (
        result["verdict"]["outcome"] == "completed"
        and result["summary"][-1] == result["verdict"]["text"]
    )
    for words in (
        "   0  node1       0       {}".format(MADE["endpoints"][0]),
        "8.8570     1.2500         10.00  exit code 0",
        "images/s",
        "evaluation   ap 0.25  fps 9.5",
        (
            "published    model PP-YOLOE-s, data COCO, machines 4x8 V100, one machine 39 h / 42.7"
            " %, many 13 h / 42.1 %, speed up 3.0, note C6"
        ),
        "trained      1:30 from",
        "as Paddle reports them: as planned",
        f"checkpoint   runs/{RUN}/attempt-1/checkpoint/ (model_final.pdparams)",
        f"logs         runs/{RUN}/attempt-1/rank-*.log",
        f"run record   runs/{RUN}/run.json",
        "prints steps on its first rank only",
    ):
        assert words in text, (words, text)
    attempt = json.loads(read(runs, "run.json"))["attempts"]
    assert [
        (one["number"], one["verdict"]["outcome"], one["checkpoint"], len(one["ranks"]))
        for one in attempt
    ] == [(1, "completed", ["model_final.pdparams"], 2)]
    run_action(
        "run_record", dict(arguments, nodes=nodes)
    )  # follow.yml afterwards: the same attempt, once
    assert len(json.loads(read(runs, "run.json"))["attempts"]) == 1


def test_what_the_nodes_say_of_their_clocks_is_kept(started):
    runs, arguments = started
    stopped = {"service_result": "success", "stopped_by": "user", "stopped_at": 1080.0}
    nodes = [
        node("node1", rank(0), utc_offset=28800, exit=stopped),
        node("node2", rank(1), exit=None),
    ]
    record_attempt.record_end(dict(arguments, number=1, nodes=nodes))
    with open(os.path.join(runs, RUN, "run.json"), encoding="utf-8") as handle:
        (attempt,) = json.load(handle)["attempts"]
    assert attempt["nodes"] == [
        {"node": "node1", "utc_offset": 28800, "stopped_at": 1080.0},
        {"node": "node2", "utc_offset": None, "stopped_at": None},
    ]


def test_check_mode_decides_and_writes_nothing(run_action, started):
    runs, arguments = started
    before = read(runs, "run.json")
    assert (
        run_action(
            "run_record",
            dict(arguments, nodes=[node("node1", rank(0)), node("node2", rank(1))]),
            check=True,
        )["verdict"]
        and read(runs, "run.json") == before
    )


KILLED = {"service_result": "exit-code", "exit_code": "exited", "exit_status": "1"}


def dead_second_rank():
    """Return what two nodes say after rank 1 was killed."""
    gone = {"exit_code": None, "signal": "SIGKILL"}
    stopped = dict(node("node1")["exit"], stopped_by="peer", stopped_from="node2")
    return [
        node("node1", rank(0, exit_code=None, signal="SIGTERM"), exit=stopped),
        node("node2", rank(1, **gone), exit=dict(KILLED, stopped_by=None)),
    ]


def test_a_later_look_that_sees_less_keeps_verdict_ranks_and_time(run_action, started):
    runs, arguments = started
    first = run_action("run_record", dict(arguments, nodes=dead_second_rank()))
    (before,) = json.loads(read(runs, "run.json"))["attempts"]
    later = run_action("run_record", dict(arguments, nodes=dead_second_rank()[:1], followed=False))
    (after,) = json.loads(read(runs, "run.json"))["attempts"]
    assert later["verdict"] == first["verdict"] == after["verdict"]
    assert after["ended"] == before["ended"]
    assert sorted(item["rank"] for item in after["ranks"]) == [0, 1]
    (line,) = [line for line in later["summary"] if "[verdict.kept]" in line]
    assert "LOST: node2 did not answer" in line
    assert later["summary"][-1] == first["summary"][-1]
    # and one that sees more replaces what was decided without it
    again = run_action("run_record", dict(arguments, nodes=dead_second_rank()))
    assert not [line for line in again["summary"] if "[verdict.kept]" in line]


def test_a_node_that_answers_later_is_judged_by_what_it_says(run_action, started):
    runs, arguments = started
    first = run_action("run_record", dict(arguments, nodes=dead_second_rank()[:1]))
    assert first["verdict"]["code"] == "verdict.unreachable"
    later = run_action("run_record", dict(arguments, nodes=dead_second_rank()))
    assert (later["verdict"]["code"], later["verdict"]["rank"]) == ("verdict.named", 1)
    assert json.loads(read(runs, "run.json"))["attempts"][0]["verdict"] == later["verdict"]


def test_a_verdict_that_no_disk_takes_is_shown_all_the_same(run_action, started, monkeypatch):
    runs, arguments = started
    before = read(runs, "run.json")

    def refuse(path, *_arguments, **_more):
        raise OSError(28, "No space left on device", path)

    monkeypatch.setattr(record_attempt.run_json, "write_json", refuse)
    result = run_action("run_record", dict(arguments, nodes=dead_second_rank()))
    assert result["verdict"]["rank"] == 1 and result["summary"][-1] == result["verdict"]["text"]
    (line,) = [line for line in result["summary"] if "[verdict.not_recorded]" in line]
    assert "No space left on device" in line and "follow.yml" in line
    assert result["again"] is None and read(runs, "run.json") == before


def test_the_last_line_names_the_culprit(run_action, started):
    dead = node(
        "node2",
        rank(1, exit_code=None, signal="SIGKILL"),
        exit={
            "service_result": "exit-code",
            "exit_code": "exited",
            "exit_status": "1",
            "stopped_by": None,
        },
    )
    told = node(
        "node1",
        rank(0, exit_code=None, signal="SIGTERM"),
        exit={
            "service_result": "success",
            "exit_code": "exited",
            "exit_status": "0",
            "stopped_by": "peer",
        },
    )
    result = run_action("run_record", dict(started[1], nodes=[told, dead]))
    assert (
        result["verdict"]["outcome"] == "failed"
        and "rank 1" in result["summary"][-1]
        and "node2" in result["summary"][-1]
        and "SIGKILL" in result["summary"][-1]
    )
    assert "checkpoint   none" in result["summary"]
    lines = result["summary"]
    begin = lines.index("FAILED [verdict.named, cause.killed]")
    rows = dict(line.strip().split(maxsplit=1) for line in lines[begin + 1 : -2])
    assert rows["who"] == "rank 1 on node2 (SIGKILL)" and rows["do"] == result["verdict"]["remedy"]
    assert rows["log"] == result["verdict"]["log"]
    command = f"ansible-playbook playbooks/{{}}.yml -e run={RUN}"
    assert rows["logs"] == command.format("logs") + " -e rank=1"
    assert (rows["resume"], rows["report"]) == (command.format("resume"), command.format("report"))


def test_endpoints_that_were_not_taken_fail_a_run_that_completed(run_action, started):
    """The start port is read back, not believed (fact 1)."""
    elsewhere = ["10.127.6.17:6070", "10.127.5.142:6070"]
    result = run_action(
        "run_record",
        dict(
            started[1], nodes=[node("node1", rank(0)), node("node2", rank(1), endpoints=elsewhere)]
        ),
    )
    assert (result["verdict"]["outcome"], result["verdict"]["cause"]) == ("failed", "endpoints")
    assert "node2 " in result["summary"][-1]
    assert f" endpoints {', '.join(elsewhere)}, planned were" in result["summary"][-1]


def test_a_port_that_was_left_to_the_launcher_may_be_any(started):
    assert summary.are_as_planned(["a:*", "b:17000"], ["a:35100", "b:17000"])
    for reported in (["b:35100", "b:17000"], ["a:35100", "b:17001"], ["a:35100"]):
        assert not summary.are_as_planned(["a:*", "b:17000"], reported)


def test_a_training_that_did_nothing_is_no_success(run_action, started):
    """PaddleOCR with too few images for one batch prints no step and ends with exit code 0."""
    silent = rank(0, first_step=None, last_step=None)
    result = run_action(
        "run_record", dict(started[1], nodes=[node("node1", silent), node("node2", rank(1))])
    )
    assert result["verdict"]["outcome"] == "unknown"
    assert "printed a training step" in result["summary"][-1]
    other = node("node2", rank(1))
    logged = node("node1", dict(silent, saved_count=1))
    for saved in (logged, node("node1", silent, has_checkpoint=True)):
        result = run_action("run_record", dict(started[1], nodes=[saved, other]))
        assert result["verdict"]["outcome"] == "completed"


def test_nothing_in_the_summary_moves_the_cursor(run_action, started):
    bad = rank(0, evaluation={"ap": "\x1b[31m0.1\x1b[0m"}, signal="SIG\x1b]0;title\x07")
    result = run_action(
        "run_record", dict(started[1], nodes=[node("node1", bad), node("node2", rank(1))])
    )
    assert not [
        line
        for line in result["summary"]
        if any(ord(char) < 32 or ord(char) == 127 for char in line)
    ]


def test_a_run_without_a_plan_is_said_so(run_action, tmp_path):
    result = run_action(
        "run_record", {"state": "ended", "runs_dir": str(tmp_path), "run_id": RUN, "nodes": []}
    )
    assert result["failed"] and "plan.json is missing" in result["msg"]


@pytest.mark.parametrize("missing", ["job", "plan", "plan_sha256"])
def test_a_start_needs_all_of_it(run_action, tmp_path, missing):
    arguments = {
        "state": "started",
        "runs_dir": str(tmp_path),
        "run_id": RUN,
        "job": {"name": "x"},
        "plan": "{}",
        "plan_sha256": "y",
    }
    del arguments[missing]
    assert missing in run_action("run_record", arguments)["msg"]


def test_a_model_that_is_copied_after_the_verdict_is_added_to_the_record(run_action, started):
    runs, arguments = started
    nodes = [node("node1", rank(0)), node("node2", rank(1))]
    run_action("run_record", dict(arguments, nodes=nodes))
    put(runs, {RUN + "/attempt-1/checkpoint/model_final.pdparams": ""})
    saved = {
        "wanted": "best",
        "kind": "last",
        "note": "there is no best_model (was anything evaluated?), so the last one was taken",
        "files": {},
    }
    collected = dict(arguments, state="collected", checkpoint=saved)
    result = run_action("run_record", collected)
    where = f"runs/{RUN}/attempt-1/checkpoint/ (model_final.pdparams)"
    assert result["line"] == f"checkpoint   {where}; {saved['note']}"
    assert "verdict" not in result, "nobody is told of the end a second time"
    (entry,) = json.loads(read(runs, "run.json"))["attempts"]
    assert (entry["model"], entry["checkpoint"]) == (saved, ["model_final.pdparams"])
    assert entry["verdict"]["outcome"] == "completed"
    # follow.yml later, when the first node is gone: what is known of the model stays.
    assert saved["note"] in "\n".join(
        run_action("run_record", dict(arguments, nodes=nodes[1:]))["summary"]
    )
    assert json.loads(read(runs, "run.json"))["attempts"][0]["model"] == saved
    # A later attempt's first node may not have it.
    run_action("run_record", dict(arguments, number=2, nodes=nodes))
    run_action("run_record", dict(collected, number=1, checkpoint={"kind": "", "note": "none"}))
    assert json.loads(read(runs, "run.json"))["attempts"][0]["model"] == saved


def test_nobody_else_reads_what_came_with_a_generous_mode(run_action, started):
    runs, arguments = started
    folder = os.path.join(runs, RUN)
    put(folder, {"attempt-1/checkpoint/sub/x": "", "attempt-1/rank-000.node1.log": ""})
    os.symlink("/etc/passwd", os.path.join(folder, "attempt-1", "link"))
    before = os.stat("/etc/passwd").st_mode
    os.chmod(os.path.join(folder, "plan.json"), 0o644)
    run_action(
        "run_record", dict(arguments, nodes=[node("node1", rank(0)), node("node2", rank(1))])
    )
    assert {
        name: oct(mode) for name, mode in modes(folder).items() if mode & 0o077
    } == {} and os.stat("/etc/passwd").st_mode == before


# A plan of an earlier release does not say who restarts its run.
@pytest.mark.parametrize(
    "planned, detach, decider",
    [(True, False, "nodes"), (None, True, "nodes"), (None, False, "controller")],
)
def test_the_record_says_who_began_an_attempt_and_who_restarts_it(
    run_action, started, planned, detach, decider
):
    runs, arguments = started
    job = os.path.join(runs, RUN, "job.json")
    with open(job, "w", encoding="utf-8") as handle:
        json.dump({"name": "ppyoloe", "detach": detach, "max_restarts": 3}, handle)
    killed = rank(1, exit_code=None, signal="SIGKILL", state="killed", last_step=STEP)
    ends = [("node1", rank(0)), ("node2", killed)]
    nodes = [node(*end, by_nodes=True) for end in ends]
    run_action("run_record", dict(arguments, number=1, nodes=nodes))
    plan = os.path.join(runs, RUN, "attempt-2")
    os.mkdir(plan)
    with open(os.path.join(plan, "plan.json"), "wb") as handle:
        handle.write(plans.canonical_bytes({**MADE, "supervised": planned}))
    claims = {
        2: [(True, "node3"), (True, "node3")],
        3: [(True, "node1"), (True, "node2")],
        4: [(True, "node1"), (False, None)],
    }
    for number, said in claims.items():
        nodes = [node(*end, by_nodes=by, planned_by=name) for end, (by, name) in zip(ends, said)]
        run_action("run_record", dict(arguments, number=number, nodes=nodes))
    later = [node(*ends[1], by_nodes=True, planned_by="node2")]
    run_action("run_record", dict(arguments, number=3, nodes=later))
    attempts = json.loads(read(runs, "run.json"))["attempts"]
    assert [attempt["by"] for attempt in attempts] == ["controller", "nodes", "nodes", "controller"]
    # Nodes that do not say the same are not believed.
    assert [attempt["planned_by"] for attempt in attempts] == [None, "node3", None, None]
    assert attempts[2]["again"]["again"] and attempts[2]["again"]["by"] == decider


@pytest.mark.parametrize("supervised", [True, False])
def test_the_model_of_an_attempt_that_its_nodes_follow_up_is_not_copied(
    run_action, started, supervised
):
    runs, arguments = started
    with open(os.path.join(runs, RUN, "job.json"), "w", encoding="utf-8") as handle:
        json.dump({"name": "ppyoloe", "max_restarts": 3}, handle)
    with open(os.path.join(runs, RUN, "attempt-1", "plan.json"), "wb") as handle:
        handle.write(plans.canonical_bytes({**MADE, "supervised": supervised}))
    killed = rank(1, exit_code=None, signal="SIGKILL", state="killed", last_step=STEP)
    nodes = [node("node1", rank(0)), node("node2", killed)]
    failed = run_action("run_record", dict(arguments, number=1, nodes=nodes))
    assert failed["again"]["again"] and failed["goes_on"] == supervised
    ended = run_action(
        "run_record",
        dict(arguments, number=1, nodes=[node("node1", rank(0)), node("node2", rank(1))]),
    )
    assert not ended["goes_on"]


# A node's plan says it, and may say anything.
@pytest.mark.parametrize(
    "said, resumed", [(1, 1), (2, 0), (7, 0), (0, 0), (-1, 0), ("1", 0), ("../1", 0), (True, 0)]
)
def test_the_attempt_that_one_went_on_from_is_an_earlier_one(run_action, started, said, resumed):
    runs, arguments = started
    folder = os.path.join(runs, RUN, "attempt-2")
    os.mkdir(folder)
    with open(os.path.join(folder, "plan.json"), "wb") as handle:
        point = {"attempt": said, "name": "3"}
        handle.write(plans.canonical_bytes({**MADE, "resume": point, "supervised": True}))
    nodes = [node("node1", rank(0)), node("node2", rank(1))]
    assert run_action("run_record", dict(arguments, number=2, nodes=nodes))["resumed"] == resumed
