# SPDX-License-Identifier: Apache-2.0
"""What the gate lets through of one lying node is judged: no judge on the controller raises, and
the honest nodes' findings stay.
"""

from __future__ import annotations

import contextlib
import json

import jsonschema
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings, manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import own_ranks, verdict
from ansible_collections.trainyard.cluster.plugins.module_utils.gate import isolation
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import devices
from ansible_collections.trainyard.cluster.plugins.module_utils.records import (
    prune_rules,
    run_choice,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import (
    restart_policy,
    resume_decision,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.rehearsal import (
    outcome,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.checkpoints import (
    resume_point_choice,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    rank_index,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import checks
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery import candidates
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import (
    prune_report,
    record_attempt,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs.history_text import (
    describe_history,
)
from conftest import sample_plan
from core_support import ENVIRONMENT, RUN, gang
from system.test_lying_peers import changes, set_at
from unit.attempts.test_guard_findings import LOSS, STALL, seen
from unit.modules.test_rehearsal_wait import made_for, results_of
from unit.preflight.test_devices import Smi
from unit.preflight.test_machine import shown
from unit.recovery.test_candidates import given as members_given

HONEST, LIAR = "node1", "node2"
LEAST = 10  # lies that pass the gate; with fewer a test would prove little


def short(value, most=2):
    """Return plain data with few items in each list; what is left has every kind of field."""
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    return [short(item) for item in value[:most]] if isinstance(value, list) else value


def passing(module, where, value):
    """Yield (path, value with one lie in it) of every lie that the part `where` of a module's
    schema lets through.
    """
    whole = answer_gate.schema(module)
    part = whole
    for word in where:
        part = part["properties"][word]
    judge = jsonschema.Draft202012Validator(dict(part, **{"$defs": whole["$defs"]}))
    assert judge.is_valid(value), next(judge.iter_errors(value))
    for path, odd in changes(value):
        lied = set_at(value, path, odd)
        if judge.is_valid(lied):
            yield path, lied


def packages():
    state = {"packages": {"paddlepaddle": "2.6.2"}, "builds": {"paddlepaddle": "a"}, "want": {},
        "frameworks": {"paddle": {"version": "2.6.2"}},
             "files": 6, "bytes": 9, "seconds": 1.0, "wrong": {"paddle/nn.py": "edited"},
             "python": "3.11.2"}  # fmt: skip
    return state


def place():
    return {
        "path": "/data", "placement": "present", "problem": "", "identity": ["a" * 16],
        "filesystem": "ext4", "lacks": ["a.json"], "unreadable": [],
        "files": 2, "bytes": 9, "top": "a" * 64, "listing": "b" * 64, "content": "c" * 64,
        "sample": {"a": "ab"}, "buckets": "0f" * 1024,
        "rate": 1.5,
    }  # fmt: skip


APP = "GPU-1f2e3d4c, 4242, python train.py, 2048\n"
TAKEN = {
    "port": 17000,
    "error": "EADDRINUSE",
    "uid": 1000,
    "user": "ann",
    "pid": 7,
    "command": "x",
    "run": None,
    "waits": False,
}
PROCESS = {
    "pid": 7,
    "uid": 1,
    "user": "a",
    "command": "x",
    "age_s": 3,
    "rss_mib": 1,
    "run": RUN,
    "attempt": 1,
}


def subjects():
    """Return {subject: what an honest node says of it}, each with something that is to be found."""
    locked = [{"path": "/var/lib/dpkg/lock", "pid": 7, "command": "apt"}]
    graphics = devices.look(Smi("h100x2_ill.csv", APP), "/b", {"accelerator": "gpu"})
    graphics["processes"] = [dict(PROCESS, device="0", memory=2048)]
    return {
        "machines": dict(shown(locks=locked), identity={"kernel": "b",
        "macs": ["02:00:00:00:00:01"], "machine_id": "a" * 16}),
        "devices": graphics,
        "installed": {"environments": {ENVIRONMENT[:16]: packages()}, "own": packages(),
        "libraries": {"nccl": "2.18"}},
        "orphans": {"ours": [PROCESS], "foreign": [PROCESS],
        "more": {"ours": {RUN: 3}, "foreign": 2}},
        "placement": {"base": ["d" * 16], "nonce": {"own": "a" * 32, "seen": {HONEST: "b" * 32}},
        "places": {"data/coco": place()},
                      "summary": "e" * 64},
        "ports": {"asked": [17000], "taken": [TAKEN], "used": [17001],
        "ephemeral": [[32768, 60999]], "reserved": [[17000, 17000]]},
    }  # fmt: skip


@pytest.mark.parametrize("subject", list(subjects()))
def test_what_a_node_says_of_itself_is_judged_and_hides_nothing_of_another(subject):
    arguments = gang(count=2, devices=2)
    nodes, facts = arguments["nodes"], arguments["facts"]
    made = compiler.compile_plan(**arguments)
    honest = subjects()[subject]
    facts[HONEST][subject], facts[LIAR][subject] = honest, honest

    def own():
        found = checks.judge_plan(made, facts, {}) + checks.judge_nodes(
            nodes, facts, {"verify": "full"}
        )
        findings.lines(found)
        return {
            (item["check"], item["text"])
            for item in found
            if item["nodes"] == [HONEST] and item["level"] != "note"
        }

    def alone():
        return own() if subject != "machines" else {pair for pair in own() if pair[0] == "packages"}

    facts[LIAR].pop(subject)
    expected, count, lost = alone(), 0, {}
    assert expected
    for path, lied in passing("node_info", ("facts", subject), honest):
        count += 1
        facts[LIAR][subject] = lied
        if not alone() >= expected:
            lost[".".join(map(str, path))] = lied
    assert count > LEAST and not lost


def test_a_node_whose_facts_cannot_be_judged_is_named_and_no_other():
    arguments = gang(count=3, devices=2)
    nodes, facts = arguments["nodes"], arguments["facts"]
    for fact in facts.values():
        fact["devices"] = subjects()["devices"]
    facts[LIAR]["devices"] = dict(facts[LIAR]["devices"], devices=[{}])
    found = checks.judge_nodes(nodes, facts, {})
    assert [item["nodes"] for item in found if item["check"] == "answer"] == [[LIAR]]
    assert {name for item in found for name in item["nodes"] if item["check"] == "devices"} == {
        HONEST,
        "node3",
    }
    assert [
        item["level"] for item in checks.demote_for_sync(found) if item["check"] == "answer"
    ] == ["stop"]


def test_where_two_contradict_each_other_nobody_is_named_alone():
    def judge(names):
        if {"a", "b"} <= set(names):
            raise TypeError
        return names

    assert isolation.judge_apart(judge, ["a", "b", "c"]) == (["c"], ["a", "b"])
    assert isolation.judge_apart(
        lambda names: [1 / (name != "b") for name in names], ["a", "b", "c"]
    ) == ([1, 1], ["b"])
    assert isolation.judge_apart(lambda names: names, ["a", "b"]) == (["a", "b"], [])


def every(module, honest, judge, where=()):
    """Judge every lie about an answer that the gate lets through; assert that there were some and
    that no judge raised.
    """
    count, lost = 0, {}
    for path, lied in passing(module, where, honest):
        count += 1
        try:
            judge(lied)
        except Exception as error:
            lost[".".join(map(str, path))] = repr(error)
    print(
        "%s: %d of %d lies that the gate lets through are judged"
        % (module, count - len(lost), count)
    )
    assert count > LEAST and not lost, (count, lost)


def test_what_ranks_say_in_a_rehearsal_is_judged():
    made = made_for(2)
    results = results_of(made)
    ends = [{"event": "end", "rank": rank, "exit_code": 1, "signal": "SIGABRT"} for rank in (0, 1)]
    results[LIAR].update(
        logs={"1": ["x"]}, transports={"NET/IB": 2}, events=results[LIAR]["events"] + ends
    )
    every(
        "rehearsal_wait",
        results[LIAR],
        lambda lied: findings.lines(outcome.judge(made, dict(results, **{LIAR: lied}), {})),
    )


def test_what_gpus_say_in_a_second_rehearsal_is_judged():
    made = made_for(count=1, devices=2, accelerator="gpu")
    (result,) = results_of(made).values()
    for rank in result["ranks"]:
        rank["stage"] = "joined"
    second = [{"rank": rank, "stage": "ended", "sum": 3.0} for rank in (0, 1)]
    result.update(hung=True, without_peers={"hung": False, "ranks": second})
    every(
        "rehearsal_wait",
        result,
        lambda lied: findings.lines(outcome.judge(made, {"node1": lied}, {})),
    )


def test_a_rank_that_says_half_of_itself_is_refused_by_the_gate_and_by_the_judge():
    made = made_for(2)
    results = results_of(made)
    results[LIAR]["ranks"] = [{}]
    with pytest.raises(answer_gate.InvalidAnswer, match="ranks.0"):
        answer_gate.validate("rehearsal_wait", results[LIAR], {})
    found = outcome.judge(made, results, {})
    assert [(item["nodes"], item["level"]) for item in found] == [
        ([LIAR], "stop")
    ] and outcome.UNREADABLE in found[0]["text"]


@pytest.fixture
def found(make_attempt):
    """Results of rank_logs_info of two nodes of a run that failed, with what guards and launchers
    say besides.
    """
    events = [
        {"event": "launched", "pid": 1, "time": 1795166890.0},
        {
            "event": "start",
            "rank": 2,
            "local_rank": 0,
            "pid": 153,
            "time": 1795166900.5,
            "endpoints_as_planned": True,
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
    unit = {"exit_code": "exited", "exit_status": "250", "service_result": "exit-code",
        "time": 1795166909.0, "stopped_by": None,
            "stopped_from": None, "peers": {}}  # fmt: skip
    said = {}
    for name in (HONEST, LIAR):
        made = make_attempt(name, "failure_rank3_raises_2x2", events=events, exit=unit)
        said[name] = short(json.loads(json.dumps(evidence.collect(str(made), name))))
        said[name]["guard"] = {
            "stall": stall(name),
            "loss": dict(LOSS, node=HONEST),
            "pause": {"seconds": 20.0, "time": 1000.0},
            "seen": [seen(2), seen(3, "T", ())],
        }
        said[name]["guard"]["loss"] = None if name == HONEST else said[name]["guard"]["loss"]
    return said


def stall(name):
    return dict(STALL, by=name)


@pytest.mark.parametrize("part", ["ranks", "guard", "launcher", "exit", "files"])
def test_what_a_node_says_of_its_end_ends_in_a_verdict(found, part, tmp_path):
    planned, honest = sample_plan()["ranks"], found[LIAR]
    if part != "guard":
        honest["guard"] = {"stall": None, "loss": None, "pause": None, "seen": []}
    whole = tmp_path / "runs" / RUN / "attempt-1"
    whole.mkdir(parents=True)

    def judge(lied):
        said = own_ranks.select([found[HONEST], dict(honest, **{part: lied})], planned)
        decided = verdict.decide(planned, said, "runs/x/attempt-1")
        ended = [dict(rank, node=node["node"]) for node in said for rank in node["ranks"]]
        record_attempt.summarize(decided, ended, planned, said, "runs/x", [], {"ranks": planned})
        restart_policy.decide(
            {"attempts": [{"number": 1, "verdict": decided, "ranks": ended}], "run": RUN}, 3, True
        )
        json.dumps(rank_index.build_index(str(whole), said, []))

    every("rank_logs_info", honest[part], judge, (part,))


def test_a_node_whose_end_cannot_be_judged_hides_no_other_failure(found):
    planned = sample_plan()["ranks"]
    for name in found:
        found[name]["guard"] = {"stall": None, "loss": None, "pause": None, "seen": []}
    honest = verdict.decide(planned, found, "runs/x/attempt-1")
    assert (honest["outcome"], honest["node"], honest["unreachable"]) == ("failed", "node2", [])
    found["node1"]["ranks"][0]["first_error"] = {"kind": None}
    decided = verdict.decide(planned, found, "runs/x/attempt-1")
    assert (decided["unreachable"], {item["node"] for item in decided["candidates"]}) == (
        ["node1"],
        {"node2"},
    )
    assert [item["rank"] for item in decided["candidates"]] == [
        item["rank"] for item in honest["candidates"] if item["node"] == "node2"
    ]
    with pytest.raises(answer_gate.InvalidAnswer, match="first_error"):
        answer_gate.validate("rank_logs_info", found["node1"], {})


@pytest.mark.parametrize("lacking", ["phase", "step"])
def test_a_guard_that_tells_half_of_a_hang_is_still_heard(found, lacking):
    for name in found:
        found[name]["guard"] = {
            "stall": {key: value for key, value in stall(name).items() if key != lacking},
            "loss": None,
            "pause": None,
            "seen": [],
        }
    assert verdict.decide(sample_plan()["ranks"], found, "runs/x/attempt-1")["cause"] == "hang"


def test_what_a_node_says_of_its_past_is_told():
    attempt = {
        "number": 1, "started": 1.0, "ended": 2.0, "well": False, "by": "ann",
        "stop": {"by": "user", "from": "ann@x", "reason": None},
        "ends": [{"rank": 0, "exit_code": 1, "signal": None}],
        "resumed": {"epoch": 1, "step": 2, "name": "1"}, "nodes": [HONEST, LIAR], "epochs": 3,
        "first": {"epoch": 0},
        "log": {"epochs": [{"epoch": 0, "loss": 1.5}], "evaluations": [{"epoch": 0, "map": 0.5}],
        "saved": [{"path": "/x/0"}], "saved_count": 1,
                "steps": 4, "bytes": 9},
    }  # fmt: skip
    honest = {"history": {"run": RUN, "node": HONEST, "attempts": [attempt]}}
    lines = describe_history([honest["history"]])

    def judge(lied):
        told = describe_history([honest["history"], dict(lied["history"], node=LIAR)])
        assert len(told) >= len(lines)

    every("run_history_info", honest, judge)


def test_what_a_node_says_of_its_runs_is_judged_before_anything_is_removed():
    run = {"run": RUN, "job": "det", "site": "test", "nodes": [HONEST, LIAR], "checkpoint": "x",
        "completed": True, "settled": True, "begun": 1.0,
           "ended": 2.0, "held": "", "odd": "", "bytes": 9}  # fmt: skip
    honest = {"look": {"runs": [run, dict(run, run=RUN[:-1] + "0")],
        "strange": [{"name": "x", "why": "y"}], "unfinished": [".pruning-x"],
                       "bytes": 9}}  # fmt: skip
    rule = prune_rules.build_rule("0", "", "")

    def judge(lied):
        looks = {
            name: prune_rules.valid_scan(look["look"])
            for name, look in ((HONEST, honest), (LIAR, lied))
            if look.get("look")
        }
        decided = prune_rules.decide(rule, looks, "test", 1e9)
        prune_report.describe_choice(rule, looks, decided, 1e9)
        prune_report.verdict_line(looks, decided, {}, True)

    every("runs_info", honest, judge)


def test_what_a_node_says_of_a_checkpoint_is_judged():
    point = {"attempt": 1, "name": "0", "stem": "0", "path": "/n/0", "instead": False, "saved": 1.5,
        "epoch": 1, "step": 4, "lr": 0.001,
             "first": HONEST, "files": {"0.pdparams": ["f", 3, "0" * 64]}, "bytes": 3}  # fmt: skip
    point["digest"] = manifest.digest(point["files"])
    honest = {
        "found": {
            "point": point,
            "skipped": [
                {
                    "attempt": 1,
                    "name": "1",
                    "why": "1.pdopt is missing",
                    "code": "checkpoint.file_missing",
                }
            ],
        }
    }

    def judge(lied):
        if "found" in lied:
            best, skipped = resume_point_choice.choose(
                {HONEST: honest["found"], LIAR: lied["found"]}
            )
            assert best["digest"] and resume_point_choice.describe_choice(best, skipped)

    every("checkpoint_candidates_info", honest, judge)


def test_what_a_node_says_of_a_run_is_judged():
    status = {
        "found": True, "ended": True, "state": "failed", "run": RUN, "known": [RUN], "attempt": 1,
        "attempts": [1], "begun": [1], "noted": [1], "processes": [7],
        "stopped": False, "undone": False, "node": LIAR, "unit": f"trainyard-{RUN}-1.service",
        "plan_sha256": "a" * 64, "job": "det", "lost": None,
        "by": "ann", "started": 1.0, "now": 9.0,
        "exit": {"service_result": "exit-code", "exit_code": "exited", "exit_status": "1",
        "time": 5.0, "stopped_by": None, "stopped_from": None,
                 "peers": {}},
        "ranks": [{"rank": 1, "local_rank": 0, "pid": 7, "state": "failed", "exit_code": 1,
        "signal": None, "step": {"epoch": 1, "step": 2, "loss": 1.5},
                   "evaluation": {"map": 0.5}, "nan": None, "log_bytes": 9, "log_time": 3.0,
                   "fraction": 0.5}],
        "nodes": [HONEST, LIAR], "endpoints": ["198.51.100.1:17000"], "endpoints_as_planned": True,
        "endpoints_reported": None, "epochs": 3,
        "first_step": {"epoch": 0}, "unit_of_speed": "images/s", "accelerator": "cpu",
        "ranks_in_all": 2, "only_first_prints": True,
        "main_figure": "map", "disk": {"free": 1, "total": 2},
        "checkpoints": {"saved_count": 1, "last": "0"},
        "guard": {"phase": "step", "budget": 1.0, "quiet": 0.5, "stall": stall(LIAR),
        "loss": dict(LOSS, node=HONEST)}, "console_tail": ["x"],
    }  # fmt: skip
    honest = {
        "status": dict(status, node=HONEST, guard=dict(status["guard"], stall=None, loss=None))
    }

    def judge(lied):
        answers = {HONEST: honest["status"], LIAR: lied["status"]}
        run_choice.choose("/nowhere", [HONEST, LIAR], answers)
        run_choice.known_runs(answers)
        with contextlib.suppress(resume_decision.ResumeRefused, resume_decision.ResumePostponed):
            resume_decision.decide(
                RUN, resume_decision.read_controller_state("/nowhere", RUN), answers
            )

    every("attempt_monitor", {"status": status}, judge)


def test_what_a_node_says_of_who_holds_it_is_judged():
    unit = {"unit": f"trainyard-{RUN}-1.service", "state": "active", "description": "x", "run": RUN,
        "attempt": 1, "user": "ann", "mine": False,
            "age_s": 3.0, "since": 1.0, "by": "ann@x", "start": "s"}  # fmt: skip
    asked = members_given()

    def judge(lied):
        candidates.choose(dict(asked, looks=dict(asked["looks"], node2=lied)), {}, 1000.0)

    every("node_owner_info", {"held": [unit, dict(unit, mine=True)]}, judge)
