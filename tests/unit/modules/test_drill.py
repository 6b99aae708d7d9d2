# SPDX-License-Identifier: Apache-2.0
"""drill: the faults as data, what is made of looks and verdicts, the eye on a node, and every
promise that is seen to be broken.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import sys
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import drill_probe
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import verdict
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import (
    failure_catalogue,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import zipapp
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.drills import (
    drill_run,
    drill_site,
    fault_table,
    invariants,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    collector,
    log_receiver,
    log_stream,
)
from core_support import ROOT, RUN, program, put

TABLE = fault_table.load()
LEFT = fault_table.DrillProblem("drill.process_left", "N3: left")
PLACES = {"first": ("node1", 0), "last": ("node2", 1)}


# --- the faults


@pytest.mark.parametrize("name", TABLE["faults"])
def test_every_faults_job_is_one_that_the_product_reads(name, tmp_path):
    fault = TABLE["faults"][name]
    path = tmp_path / f"drill_{name}.yml"
    path.write_text(json.dumps(fault_table.make_job(TABLE["job"], fault, "drill-0123456789")))
    job, problems = jobs.read_partial_job(str(path), path.name)
    assert not problems, [str(problem) for problem in problems]
    assert (
        job["env"]["DRILL_SECRET_TOKEN"] == "drill-0123456789" and job["overrides"]["epoch"] == 400
    )
    config = ROOT / "examples" / "paddledetection" / job["config"]
    assert config.exists()


def test_a_faults_job_leaves_the_base_as_it_is_and_takes_keys_away():
    base = {"config": "c", "overrides": {"epoch": 1, "x": 2}, "watchdog": {"step": "2m"}}
    made = fault_table.make_job(base, {"job": {"config": None, "overrides": {"epoch": 3}}}, "s")
    assert made == {
        "overrides": {"epoch": 3, "x": 2},
        "watchdog": {"step": "2m"},
        "env": {"DRILL_SECRET_TOKEN": "s"},
    }
    assert base == {"config": "c", "overrides": {"epoch": 1, "x": 2}, "watchdog": {"step": "2m"}}


def test_every_cause_that_is_expected_is_one_of_the_catalogue():
    known = set(failure_catalogue.every())
    wanted = {
        cause for fault in TABLE["faults"].values() for cause in fault["expect"].get("cause", ())
    }
    assert wanted <= known, wanted - known


def test_what_is_done_to_a_node_from_outside_is_undone():
    lasting = ("iptables -I", "mv ", "mount ", "pause", "kill]", "stop,", "--memory")
    for name, fault in TABLE["faults"].items():
        done = str([fault.get(kind) for kind in ("before", "then")])
        if any(word in done for word in lasting) and name not in ("code", "rekeyed", "away"):
            assert fault.get("heal"), name


def test_a_fault_is_chosen_by_its_name_or_its_group_and_a_misspelt_one_is_refused():
    assert fault_table.select(TABLE["faults"], "kill, controller")[:2] == ["kill", "ctrl_c"]
    assert fault_table.select(TABLE["faults"], "") == list(TABLE["faults"])
    with pytest.raises(fault_table.DrillError, match="did you mean 'kill'"):
        fault_table.select(TABLE["faults"], "kil")


def test_a_fault_says_why_it_cannot_be_done_on_a_site():
    faults, verbs = TABLE["faults"], ["train", "stop", "follow", "resume"]
    assert "embedded" in fault_table.find_obstacle(
        faults["node_kill"], False, True, verbs
    ) and fault_table.find_obstacle(faults["cut"], False, True, verbs)
    assert "examples" in fault_table.find_obstacle(
        faults["raise"], True, False, verbs
    ) and fault_table.find_obstacle(faults["restart"], True, False, verbs)
    assert "resume.yml" in fault_table.find_obstacle(faults["checkpoint"], True, True, ["train"])
    assert fault_table.find_obstacle(faults["kill"], False, False, verbs) is None


def test_a_table_that_does_not_fit_its_schema_is_refused(tmp_path):
    text = (
        (ROOT / "plugins/plugin_utils/drills/faults.yml")
        .read_text()
        .replace("at: step 2", "at: breakfast", 1)
    )
    with pytest.raises(fault_table.DrillError, match="step N"):
        fault_table.load(put(str(tmp_path), {"drills.yml": text}) + "/drills.yml")


# --- seconds


def look(t, node, gone=False, **attempt):
    return {"t": t, "node": node, "gone": gone, "attempts": {} if gone else {"1": attempt}}


def test_a_dead_rank_is_known_when_a_node_has_noted_it_and_stopped_when_nobody_is_left():
    end = {"event": "end", "rank": 1, "exit_code": None, "signal": "SIGKILL"}
    looks = [
        look(1, "node1", marked=5),
        look(1, "node2", marked=5),
        look(4, "node2", marked=3, events=[end]),
        look(5, "node2", marked=0, events=[end]),
    ]
    assert (
        fault_table.find_detection(looks, 1, 2) == 4
        and fault_table.find_detection(looks[:4], 1, 5) == 5
        and fault_table.find_detection(looks[:3], 1, 5) is None
    )
    assert fault_table.find_stop(looks, 1, 2) is None, "node1 still trains"
    looks += [look(7, "node1", marked=0)]
    assert fault_table.find_stop(looks, 1, 2) == 7
    assert fault_table.find_stop([*looks, look(8, "node1", marked=1)], 1, 2) is None, (
        "one came back"
    )


def test_a_node_that_is_gone_or_silent_counts_as_none():
    looks = [
        look(1, "node1", marked=5),
        look(1, "node2", marked=5),
        look(3, "node2", gone=True),
        look(6, "node1", marked=0),
    ]
    assert fault_table.find_stop(looks, 1, 2) == 6
    # before it nobody was stopped
    assert (
        fault_table.find_stop([look(1, "node1", marked=0), look(3, "node1", marked=0)], 1, 2) == 3
    )
    frozen = [
        look(1, "node1", marked=5),
        look(1, "node2", marked=5),
        look(5, "node1", marked=0),
        look(7, "node1", marked=0),
    ]
    assert fault_table.find_stop(frozen, 1, 2) == 7


@pytest.mark.parametrize(
    "attempt",
    [
        {"exit": {"service_result": "exit-code"}},
        {"stop": {"by": "guard"}},
        {"stall": {"phase": "step"}},
        {"loss": {"node": "node2"}},
        {"events": [{"event": "end", "exit_code": 7}]},
    ],
)
def test_each_sign_of_a_fault_is_one(attempt):
    assert fault_table.has_failed(attempt)


@pytest.mark.parametrize(
    "attempt",
    [
        {},
        {"exit": {"service_result": "success"}},
        {"events": [{"event": "end", "exit_code": 0, "signal": None}]},
    ],
)
def test_a_good_end_is_no_sign(attempt):
    assert not fault_table.has_failed(attempt)


def test_a_fault_from_inside_began_with_its_sign_or_with_the_ranks_end():
    both = [{"rank": rank, "pid": rank, "alive": True} for rank in (0, 1)]
    other = [dict(both[0], alive=False), both[1]]
    assert (
        fault_table.find_begin(
            [look(1, "node2", ranks=both), look(2, "node2", ranks=other)], 1, "node2", 1
        )
        is None
    ), "that was another rank"
    assert (
        fault_table.find_begin(
            [look(1, "node2", ranks=both), look(2, "node2", ranks=other)], 1, None, None
        )
        == 2
    )
    alive, dead = [{"rank": 1, "pid": 7, "alive": True}], [{"rank": 1, "pid": 7, "alive": False}]
    assert (
        fault_table.find_begin(
            [
                look(1, "node2", ranks=alive),
                look(2, "node1", ranks=dead),
                look(3, "node2", ranks=dead),
            ],
            1,
            "node2",
            1,
        )
        == 3
    )
    assert fault_table.find_begin([look(1, "node2", ranks=alive, sign=True)], 1, "node2", 1) == 1
    assert fault_table.find_begin([look(1, "node2", ranks=alive)], 1, "node2", 1) is None
    # it was never there
    assert fault_table.find_begin([look(1, "node2", ranks=dead)], 1, "node2", 1) is None


def test_what_comes_later_than_its_budget_is_said():
    assert (
        TABLE["faults"]["hang"]["budget"] == dict(fault_table.BUDGET, detect=30)
        and TABLE["faults"]["kill"]["budget"] == fault_table.BUDGET
    )
    for shown, key in (("detected", "detect"), ("stopped", "stop"), ("resumed", "resume")):
        (late,) = fault_table.find_delays({shown: 60.1}, dict(fault_table.BUDGET, **{key: 60}))
        assert late.text.split()[0] == shown and re.findall(r"\d[\d.]*", late.text) == [
            "60.1",
            "60",
        ]
    (late,) = fault_table.find_delays({"detected": 3.0, "stopped": 11.2}, fault_table.BUDGET)
    assert late.text.split()[0] == "stopped" and re.findall(r"\d[\d.]*", late.text) == [
        "11.2",
        "10",
    ]


def test_the_page_states_the_budgets():
    page = (ROOT / "docs" / "drills.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (.*) \| (\d+) s \|$", page, re.MULTILINE)
    assert [float(limit) for _others, limit in rows] == list(fault_table.BUDGET.values())
    budgets = [fault.get("budget") or {} for fault in TABLE["faults"].values()]
    for key, (others, _limit) in zip(fault_table.BUDGET, rows):
        of_faults = {budget[key] for budget in budgets if key in budget}
        shown = {float(seconds) for seconds in re.findall(r"(\d+) s\b", others)}
        assert shown == of_faults - {fault_table.BUDGET[key]}


# --- right or wrong

EXPECT = {
    "outcome": ["failed"],
    "cause": ["killed"],
    "node": "last",
    "rank": "last",
    "signal": "SIGKILL",
}
RIGHT = {
    "outcome": "failed",
    "cause": "killed",
    "node": "node2",
    "rank": 1,
    "signal": "SIGKILL",
    "exit_code": None,
}


@pytest.mark.parametrize(
    "changes, found",
    [
        ({}, "right"),
        ({"rank": 0, "node": "node1"}, "wrong"),
        ({"rank": 0}, "wrong"),
        ({"signal": "SIGTERM"}, "wrong"),
        ({"cause": "unknown", "node": None}, "wrong"),
        ({"cause": "unknown", "rank": None}, "wrong"),
        ({"outcome": "unknown", "cause": "hang"}, "unknown"),
        ({"cause": "out_of_memory"}, "wrong"),
        ({"outcome": "completed", "node": None, "rank": None, "cause": None}, "wrong"),
        ({"cause": "unknown", "node": None, "rank": None, "signal": None}, "unknown"),
    ],
)
def test_a_verdict_is_right_wrong_or_unknown(changes, found):
    assert fault_table.judge(EXPECT, dict(RIGHT, **changes), PLACES)[0] == found


def test_a_real_verdict_is_judged():
    ranks = [{"rank": rank, "node": "node%d" % (rank + 1), "local_rank": 0} for rank in range(2)]
    nodes = {
        "node1": {"node": "node1", "unreachable": "no answer"},
        "node2": {"node": "node2", "unreachable": "no answer"},
    }
    assert (
        fault_table.judge(
            {"outcome": ["lost"], "cause": ["unreachable"]}, verdict.decide(ranks, nodes), PLACES
        )[0]
        == "right"
    )
    assert (
        fault_table.judge(dict(EXPECT, exit_code=7), dict(RIGHT, exit_code=1), PLACES)[0] == "wrong"
    )
    other = fault_table.judge(EXPECT, dict(RIGHT, node="node1", rank=0), PLACES)[1]
    assert other.split("; ") == ["node is node1, wanted: node2", "rank is 0, wanted: 1"]
    assert fault_table.judge(EXPECT, None, PLACES) == ("unknown", "there is no verdict")


# --- the table


def test_the_table_says_what_broke_and_what_was_left_out():
    good = dict.fromkeys(fault_table.PROMISES, True)
    results = [
        {
            "name": "kill",
            "injected": "a | b",
            "detected": 0.4,
            "stopped": 3.0,
            "verdict": "right",
            "says": "FAILED: \x1b[31mx",
            "promises": good,
            "problems": [],
        },
        {
            "name": "cut",
            "injected": "c",
            "verdict": "wrong",
            "promises": dict(good, N3=False),
            "problems": ["N3: left on node1: 12"],
        },
        {"name": "node_kill", "injected": "d", "skipped": "is done to containers"},
    ]
    text = fault_table.table(results)
    assert "| kill | a \\| b | 0.4 s | 3.0 s | right |" in text and "\x1b" not in text
    assert (
        fault_table.make_row(dict(results[0], goes_on=True))[2] == "goes on"
        and fault_table.make_row(results[0])[2] == "0.4 s"
    )
    assert fault_table.find_refusal(
        {"refused": "is taken"}, "port 17000 is\n  taken"
    ) and not fault_table.find_refusal({"refused": "free"}, "taken")
    assert (
        fault_table.promise_cell(dict(good, N8=None)) == "held (7 of 8 asked)"
        and fault_table.promise_cell(good) == "held"
    )
    assert (
        fault_table.seconds_between(1.0, 2.0),
        fault_table.seconds_between(2.04, 1.0),
        fault_table.seconds_between(None, 1.0),
        fault_table.seconds_between(1.0, None),
    ) == (
        0.0,
        1.0,
        None,
        None,
    )
    assert "broken: N3" in text and f"skipped: {results[2]['skipped']}" in text
    kept, known, stopped, skipped = fault_table.summarize(results).split("; ")
    assert kept.startswith("1 of 2 faults") and skipped.startswith("1 ")
    assert known.startswith("known") and re.findall(r"[\d.]+ s", known) == ["0.4 s"] * 2
    assert stopped.startswith("stopped") and re.findall(r"[\d.]+ s", stopped) == ["3.0 s"] * 2
    assert fault_table.is_kept(results[0]) and not fault_table.is_kept(results[1])


def test_n8_is_what_the_next_training_shows():
    def result(name, reached):
        return {"name": name, "promises": {}, "problems": [], "reached": reached}

    results = [
        result("kill", True),
        result("port", None),
        result("raise", True),
        result("exit", True),
    ]
    drill_run.fill_last_promise(
        [*results, {"name": "cut", "skipped": "no container"}], lambda: result("closing", True)
    )
    assert [one["promises"]["N8"] for one in results] == [True] * 4
    drill_run.fill_last_promise(
        results, lambda: dict(result("closing", None), problems=["no run was started"])
    )
    assert [one["promises"]["N8"] for one in results] == [True, True, True, False]
    assert "no run was started" in results[-1]["problems"][-1]


# --- the eye on a node


@pytest.fixture
def node_home(tmp_path):
    """A node's home with one attempt of a run: its plan, its ranks' log."""
    attempt = tmp_path / ".trainyard/runs" / RUN / "attempt-1"
    plan = {
        "ranks": [
            {"rank": 1, "log": "log/workerlog.0", "node": "node2", "local_rank": 0, "device": "0"}
        ],
        "launcher": {"rank_log": "log/workerlog.{local_rank}", "console": "logs.txt"},
        "suite": {
            "logs": {
                "step": {"line": r"Epoch: \[(?P<epoch>\d+)\]"},
                "saved": {"lines": ["Save checkpoint: (?P<path>.*)"]},
            }
        },
        "code": {"digest": "c" * 64},
        "links": {"dataset/coco": "data/d"},
    }
    files = {
        "plan.json": json.dumps(plan),
        "ranks.jsonl": json.dumps({"event": "start", "rank": 1, "pid": 4194400}) + "\n",
        "log/workerlog.0": "Epoch: [0]\nEpoch: [0]\nSave checkpoint: output\nEpo",
    }
    put(str(attempt), files)
    put(str(tmp_path / ".trainyard/code" / ("c" * 16)), {"tools/train.py": "pass\n"})
    put(str(tmp_path / ".trainyard/data/d"), {"image": "1"})
    attempt.chmod(0o700)
    return tmp_path


@pytest.fixture
def marked():
    """A process of the run."""
    process = subprocess.Popen(
        ["sleep", "600"], env={"TRAINYARD_ATTEMPT": RUN + "/1", "PATH": os.environ["PATH"]}
    )
    yield process
    process.kill()
    process.wait()


def test_the_eye_closes_when_nobody_reads_any_more(node_home):
    """Its output is taken to the end: a container's engine reads on when the one who asked is
    gone.
    """
    words = [sys.executable, "-I", "-c", zipapp.BOOT, RUN, ".trainyard", ""]
    with subprocess.Popen(
        words,
        env=dict(os.environ, HOME=str(node_home)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdin.write(zipapp.stdin_bytes("agent.drill_probe"))
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"{")
        try:
            assert process.communicate(timeout=60)[1] == b"" and process.returncode == 0
        finally:
            process.kill()


def test_the_eye_sees_steps_checkpoints_signs_and_processes(node_home, marked):
    words = [
        sys.executable,
        "-I",
        "-c",
        zipapp.BOOT,
        RUN,
        ".trainyard",
        "ValueError",
    ]
    (node_home / ".trainyard/runs" / RUN / "attempt-new").mkdir()
    later = []
    other = subprocess.Popen(
        ["sleep", "600"], env={"TRAINYARD_ATTEMPT": RUN + "0/1", "PATH": os.environ["PATH"]}
    )  # of another run
    process = subprocess.Popen(
        words,
        env=dict(os.environ, HOME=str(node_home)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        process.stdin.write(zipapp.stdin_bytes("agent.drill_probe"))
        process.stdin.flush()

        def next_look(what):
            end = time.monotonic() + 60
            while time.monotonic() < end:
                attempts = json.loads(process.stdout.readline())["attempts"]
                assert set(attempts) == {"1"}
                found = attempts["1"]
                if what(found):
                    return found
            raise AssertionError("never seen")

        # the process is between fork and exec for a moment
        found = next_look(lambda one: one["marked"] == 1)
        assert (found["steps"], found["saved"], found["sign"], found["ranks"]) == (
            2,
            1,
            False,
            [{"rank": 1, "pid": 4194400, "alive": False}],
        )
        attempt = node_home / ".trainyard/runs" / RUN / "attempt-1"
        with open(attempt / "log/workerlog.0", "a", encoding="utf-8") as handle:
            handle.write("ch: [1]\nValueError: x\n")
        found = next_look(lambda one: one["sign"])
        assert found["steps"] == 3
        (attempt / "stop.json").write_text('{"by": "user"}')
        marked.kill()
        marked.wait()
        assert next_look(lambda one: one["stop"] and not one["marked"])["stop"]["by"] == "user"
        os.truncate(attempt / "log/workerlog.0", 0)
        (attempt / "log/workerlog.0").write_text("Epoch: [2]\n")
        next_look(lambda one: one["steps"] >= 4)
        # a look comes where nothing changes, too: who says nothing does not answer
        assert select.select([process.stdout], [], [], 60)[0]
        later.append(
            subprocess.Popen(
                ["sleep", "600"], env={"TRAINYARD_ATTEMPT": RUN + "/2", "PATH": os.environ["PATH"]}
            )
        )
        end = time.monotonic() + 60
        # a process without a directory is one
        while json.loads(process.stdout.readline())["attempts"].get("2") != {"marked": 1}:
            assert time.monotonic() < end
    finally:
        for one in later:
            one.kill()
            one.wait()
        other.kill()
        other.wait()
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_the_eye_waits_for_what_is_not_there_yet_and_keeps_what_it_has_seen(node_home):
    place, sign = node_home / ".trainyard/runs" / RUN / "attempt-1", re.compile("Traceback")
    plan, log = (place / "plan.json").read_text(), place / "log/workerlog.0"
    eye, lines = drill_probe.Attempt(str(place)), log.read_text()
    (place / "plan.json").write_text(plan[:50])
    log.unlink()
    assert eye.look(sign, {}, set())["steps"] == 0
    (place / "plan.json").write_text(plan)
    assert eye.look(sign, {}, set())["steps"] == 0
    log.write_text(lines + "\nTraceback\n")
    with open(place / "ranks.jsonl", "a", encoding="utf-8") as handle:
        handle.write(
            json.dumps({"event": "end", "rank": 1, "signal": "SIGKILL"}) + "\n" + '{"event": "e'
        )
    (place / "exit.json").write_text("7")
    for _look in range(2):
        found = eye.look(sign, {"1": 3}, {4194400})
        assert (found["steps"], found["sign"], found["exit"], found["marked"]) == (
            2,
            True,
            None,
            3,
        ) and found["ranks"][0]["alive"]
        assert [event["event"] for event in found["events"]] == ["end"]


# --- the promises


class Here:
    """A node whose home is a directory of this machine."""

    def __init__(self, name, home):
        self.name, self.home, self.address, self.user, self.container = (
            name,
            str(home),
            "198.51.100.9",
            "trainer",
            None,
        )

    def inspect(self, script):
        environment = dict(os.environ, HOME=self.home)
        return subprocess.run(
            ["sh", "-c", "cd; " + script],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=False,
        ).stdout


@pytest.fixture
def ground(node_home, tmp_path):
    """A site of one such node, and the controller's runs with this one as it came home."""
    there, runs = node_home / ".trainyard/runs" / RUN / "attempt-1", tmp_path / "runs"
    home = runs / RUN / "attempt-1"
    brought = {"log/workerlog.0": "rank-001.node2.log", "ranks.jsonl": "ranks.node2.jsonl"}
    put(
        str(home),
        {
            name: (there / file).read_text()
            for file, name in [*brought.items(), ("plan.json", "plan.json")]
        },
    )
    index = {
        "files": [{"file": file, "home": name, "node": "node2"} for file, name in brought.items()]
    }
    (home / "ranks.json").write_text(json.dumps(index))
    for path in home.iterdir():
        path.chmod(0o600)
    return drill_site.Site(
        str(ROOT),
        [],
        "test",
        [Here("node2", node_home)],
        str(runs),
        ".trainyard",
        str(tmp_path / "state"),
    )


def every(ground, **changes):
    given = {
        "fault": TABLE["faults"]["kill"],
        "run": RUN,
        "numbers": [1],
        "verdict": dict(RIGHT, log=f"runs/{RUN}/attempt-1/rank-001.node2.log"),
    }
    given.update(
        {"before": {}, "canary": "drill-0123456789", "outputs": [], "fresh": []}, **changes
    )
    return invariants.check_all(ground, **given)


def named(problems):
    """Return [[code, file, node, ...]]: code, names and numbers of each problem, in order."""
    name = re.compile(r"[\w/.-]*[\d./][\w/.*-]*")
    return [[problem.code, *name.findall(problem.text)[1:]] for problem in problems]


def test_promises_that_hold(ground):
    found, problems = every(ground)
    assert problems == [] and found == dict(dict.fromkeys(fault_table.PROMISES, True), N8=None)


def test_n1_a_byte_that_is_lost_is_seen(ground, node_home):
    with open(
        node_home / ".trainyard/runs" / RUN / "attempt-1/log/workerlog.0", "a", encoding="utf-8"
    ) as handle:
        handle.write("last words\n")
    found, problems = every(ground)
    assert found["N1"] is False
    assert named(problems)[0] == [
        "drill.log_differs",
        "log/workerlog.0",
        "node2",
        "rank-001.node2.log",
    ]


def test_n1_a_byte_too_many_at_home_and_a_log_that_others_read_are_seen(ground):
    path = os.path.join(ground.runs_dir, RUN, "attempt-1/rank-001.node2.log")
    os.chmod(path, 0o640)
    assert named(invariants.check_logs(ground, RUN, 1)) == [
        ["drill.log_readable", "rank-001.node2.log"]
    ]
    os.chmod(path, 0o600)
    with open(path, "a", encoding="utf-8") as handle:
        handle.write("more\n")
    assert named(invariants.check_logs(ground, RUN, 1)) == [
        ["drill.log_differs", "log/workerlog.0", "node2", "rank-001.node2.log"]
    ]


def test_n1_a_log_that_was_never_brought_is_seen(ground, node_home):
    attempt = node_home / ".trainyard/runs" / RUN / "attempt-1"
    (attempt / "logs.txt").write_text("console\n")
    assert named(invariants.check_logs(ground, RUN, 1)) == [
        ["drill.log_missing", "logs.txt", "node2"]
    ]
    (attempt / "logs.txt").unlink()
    index = os.path.join(ground.runs_dir, RUN, "attempt-1/ranks.json")
    with open(index, "w", encoding="utf-8") as handle:
        handle.write('{"files": []}')
    assert named(invariants.check_logs(ground, RUN, 1)) == [
        ["drill.logs_missing", "node2"],
        ["drill.log_missing", "log/workerlog.0", "node2"],
        ["drill.log_missing", "ranks.jsonl", "node2"],
    ]
    os.unlink(index)
    assert named(invariants.check_logs(ground, RUN, 1)) == [
        ["drill.index_missing", "attempt-1/ranks.json"]
    ]


def test_n1_a_logs_name_is_a_name_whatever_stands_in_it(ground, node_home):
    name = "log/worker 0; rm workerlog.0"
    there, home = (
        node_home / ".trainyard/runs" / RUN / "attempt-1",
        os.path.join(ground.runs_dir, RUN, "attempt-1"),
    )
    with open(os.path.join(home, "ranks.json"), encoding="utf-8") as handle:
        index = json.load(handle)
    index["files"].append({"file": name, "home": "stray-0.node2.log", "node": "node2"})
    put(home, {"ranks.json": json.dumps(index), "stray-0.node2.log": "said"})
    os.chmod(os.path.join(home, "stray-0.node2.log"), 0o600)
    (there / name).write_text("said")
    assert invariants.check_logs(ground, RUN, 1) == []
    (there / name).write_text("Said")
    (problem,) = invariants.check_logs(ground, RUN, 1)
    assert problem.code == "drill.log_differs"
    assert problem.text.startswith(f"N1: {name} of node2 ")
    assert problem.text.endswith(" stray-0.node2.log")


WRITER = (
    "import sys; f = open(sys.argv[1], sys.argv[2], buffering=0); [(f.write(line),"
    " print(flush=True)) for line in sys.stdin.buffer]"
)


@pytest.mark.parametrize("mode", ["wb", "ab"])
def test_n1_a_log_that_was_copied_away_and_truncated_is_held_generation_by_generation(
    ground, node_home, monkeypatch, mode
):
    """mode: msrun's workers write on at their old place, behind a hole; Paddle's launcher opens for
    appending.
    """
    monkeypatch.setenv("HOME", str(node_home))
    there, home = (
        node_home / ".trainyard/runs" / RUN / "attempt-1",
        os.path.join(ground.runs_dir, RUN, "attempt-1"),
    )
    log = there / "log/workerlog.0"
    mine = os.path.join(home, "rank-001.node2.log")
    os.unlink(mine)
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(log), mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    spec = {"attempt_dir": str(there), "follow": True, "interval": 0.02}
    stream = log_stream.Stream(log_receiver.sender_argv(sys.executable), spec, home, "node2")
    stream.start()

    def write(text):
        writer.stdin.write(text)
        writer.stdin.flush()
        writer.stdout.read(1)

    try:
        write(b"before\n")
        end = time.monotonic() + 60
        while not os.path.exists(mine) or os.path.getsize(mine) < log.stat().st_size:
            assert time.monotonic() < end
            time.sleep(0.02)
        shutil.copy(log, there / "log/workerlog.0.1")
        os.truncate(log, 0)
        write(b"after\n")
        assert stream.finish(60)
    finally:
        writer.stdin.close()
        writer.wait()
        writer.stdout.close()
        stream.finish(10)
    assert log.read_bytes() == (b"\0" * 7 if mode == "wb" else b"") + b"after\n"
    brought = collector.install_files(home, [evidence.collect(str(there), "node2")])
    assert (
        not brought["mismatches"]
        and [item["file"] for item in brought["files"]].count("log/workerlog.0") == 2
    )
    assert invariants.check_logs(ground, RUN, 1) == []
    with open(mine + ".1", "r+b") as handle:  # a generation that is kept with another byte
        handle.write(b"B")
    assert named(invariants.check_logs(ground, RUN, 1)) == [
        [
            "drill.log_copy_differs",
            "rank-001.node2.log",
            "rank-001.node2.log.1",
            "log/workerlog.0.1",
            "node2",
        ]
    ]
    os.rename(mine + ".1", mine)  # the present one is lost
    first = named(invariants.check_logs(ground, RUN, 1))[0]
    assert first == ["drill.log_differs", "log/workerlog.0", "node2", "rank-001.node2.log"]


def test_n2_a_changed_checkpoint_of_an_earlier_run_is_seen(ground, node_home):
    folder = str(node_home / ".trainyard/runs/20260101-000000-old-0001/attempt-1/output")
    put(folder, {"model.pdparams": "weights", "best model;.pdparams": "more", "notes.txt": "x"})
    before = invariants.digest_checkpoints(ground)
    assert len(before["node2"]) == 2 and every(ground, before=before)[0]["N2"]
    put(folder, {"model.pdparams": "Weights"})
    assert every(ground, before=before)[0]["N2"] is False
    os.unlink(os.path.join(folder, "model.pdparams"))
    assert every(ground, before=before)[0]["N2"] is False


def test_n3_a_process_that_is_left_is_seen(ground, marked):
    assert invariants.check_leftovers(ground, RUN, 0) == [
        ("drill.process_left", "N3: left on node2: %d" % marked.pid)
    ]


def test_n3_a_unit_that_is_left_is_seen(ground, tmp_path, monkeypatch):
    program(tmp_path / "bin", "systemctl", 'echo "$6 loaded"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    assert named(invariants.check_leftovers(ground, RUN, 0)) == [
        ["drill.process_left", "node2", f"yardguard-{RUN}-*"]
    ]


def test_n4_another_plan_or_code_is_seen(ground, node_home, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(node_home / ".trainyard", other / ".trainyard")
    ground.nodes.append(Here("node3", other))
    assert invariants.check_equality(ground, RUN, 1) == []
    (problem,) = invariants.check_equality(ground, RUN + "0", 1)
    assert problem.code == "drill.plan_missing"
    (other / ".trainyard/code" / ("c" * 16) / "extra.py").write_text("")
    (other / ".trainyard/data/d/image").write_text("22")
    (other / ".trainyard/runs" / RUN / "attempt-1/plan.json").write_text("{}")
    said = invariants.check_equality(ground, RUN, 1)
    assert [problem.code for problem in said] == ["drill.plan_differs", *["drill.tree_differs"] * 2]
    assert [problem.text.split()[1] for problem in said] == [
        "plan.json",
        ".trainyard/code/" + "c" * 16,
        ".trainyard/data/d",
    ]


@pytest.mark.parametrize("lacks", ["node", "rank", "log", "signal"])
def test_n6_a_verdict_that_lacks_something_is_seen(ground, lacks):
    said = dict(RIGHT, log=f"runs/{RUN}/attempt-1/rank-001.node2.log")
    assert every(ground, verdict=dict(said, **{lacks: None}))[0]["N6"] is False
    (problem,) = every(ground, verdict=dict(said, log=said["log"] + ".9"))[1]
    assert named([problem]) == [["drill.verdict_incomplete", said["log"] + ".9"]]


@pytest.mark.parametrize(
    "name, mode",
    [("run.json", 0o600), ("attempt-1/rank-001.node2.log", 0o644), ("report.html", 0o600)],
)
def test_n7_a_secret_that_others_can_read_is_seen(ground, name, mode):
    path = os.path.join(ground.runs_dir, RUN, name)
    with open(path, "a", encoding="utf-8") as handle:
        handle.write("token drill-0123456789\n")
    os.chmod(path, mode)
    assert every(ground)[0]["N7"] is False


def test_n7_a_secret_deep_in_a_huge_file_is_seen_and_what_is_no_file_is_passed_by(ground):
    folder = os.path.join(ground.runs_dir, RUN)
    os.symlink("nowhere", os.path.join(folder, "lost"))
    os.mkfifo(os.path.join(folder, "pipe"))
    put(folder, {"empty.txt": ""})
    assert every(ground)[0]["N7"]
    with open(os.path.join(folder, "report.html"), "wb") as handle:
        handle.seek(1 << 29)  # a hole, which takes no room
        handle.write(b"token drill-0123456789")
    assert named(every(ground)[1]) == [["drill.secret_in_file", f"{RUN}/report.html"]]


def test_every_attempt_of_a_run_is_looked_at(ground):
    problems = every(ground, numbers=[1, 2])[1]
    assert named(problems) == [
        ["drill.index_missing", "attempt-2/ranks.json"],
        ["drill.plan_missing"],
    ]


def test_n7_an_attempt_that_others_may_enter_is_seen(ground, node_home, monkeypatch):
    (node_home / ".trainyard/runs" / RUN / "attempt-1").chmod(0o755)
    monkeypatch.setattr(invariants, "check_leftovers", lambda *_what: [LEFT])
    found, problems = every(ground)
    assert (found["N3"], found["N7"]) == (False, False)
    assert named(problems) == [[LEFT.code], ["drill.attempt_readable", "node2", "755"]]


def test_n7_a_secret_in_an_output_is_seen_and_one_in_a_raw_log_is_not(ground, tmp_path):
    with open(
        os.path.join(ground.runs_dir, RUN, "attempt-1/rank-001.node2.log"), "a", encoding="utf-8"
    ) as handle:
        handle.write("token drill-0123456789\n")
    output = (
        put(str(tmp_path / "out"), {"01-train.txt": "token drill-0123456789"}) + "/01-train.txt"
    )
    assert every(ground)[0]["N7"] and every(ground, outputs=[output])[0]["N7"] is False


def test_another_controller_has_what_opens_the_nodes_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MOLECULE_FILE", "of another site")
    state = put(
        str(tmp_path / "home/.local/state/trainyard/test"),
        {"id_ed25519": "key", "known_hosts": "hosts", "ca": "secret"},
    )
    ground = drill_site.Site(
        str(ROOT),
        [],
        "test",
        [Here("node1", tmp_path)],
        str(tmp_path / "runs"),
        ".trainyard",
        state,
    )
    fresh = ground.make_controller_home(str(tmp_path / "fresh"))
    there = tmp_path / "fresh/.local/state/trainyard/test"
    assert sorted(path.name for path in there.iterdir()) == ["id_ed25519", "known_hosts"]
    assert ground.environment(fresh)["HOME"] == fresh and not [
        name for name in ground.environment(fresh) if name.startswith("MOLECULE_")
    ]
