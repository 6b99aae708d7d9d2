# SPDX-License-Identifier: Apache-2.0
"""A rehearsal's plan, what is judged of it, and the node's side with real files and real processes
in the place of systemd's unit.
"""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
import time

import pytest
import rehearsal_wait as module
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    status,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler
from ansible_collections.trainyard.cluster.plugins.module_utils.rehearsal import (
    node_rehearsal,
    outcome,
    second_try,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from core_support import ROOT, RUN, gang

SCRIPT = (ROOT / "plugins/module_utils/agent/rehearsal_rank.py").read_text(encoding="utf-8")


def made_for(count=2, devices=1, **more):
    return compiler.compile_plan(**gang(count=count, devices=devices, **more))


def spoken(made, rank, **changes):
    """Return what a rank says in a rehearsal in which all is as planned."""
    world = len(made["ranks"])
    return dict(
        {
            "rank": rank,
            "world": world,
            "endpoint": made["endpoints"][rank],
            "endpoints": made["endpoints"],
            "stage": "ended",
            "joined_rank": rank,
            "joined_world": world,
            "sum": world * (world + 1) / 2.0,
            "bytes": 4194304,
            "seconds": 0.1,
            "bandwidth": 2.0e8 + rank,
            "convolution": 27.0,
            "backend": "gloo",
        },
        **changes,
    )


def results_of(made, **nodes):
    """Return every node's result as the module gives it; nodes: {name: changes}."""
    found = {}
    for node in made["nodes"]:
        ranks = [
            spoken(made, rank["rank"]) for rank in made["ranks"] if rank["node"] == node["name"]
        ]
        ended = {"event": "launcher_end", "exit_code": 0, "signal": None}
        found[node["name"]] = dict(
            {"ranks": ranks, "events": [ended], "hung": False, "halted": False, "seconds": 4.0,
            "console": [], "logs": {}, "transports": {},
             "refused": "", "left": "", "without_peers": None},
            **nodes.get(node["name"], {}),
        )  # fmt: skip
    return found


def judged(made, **nodes):
    return outcome.judge(made, results_of(made, **nodes), {"rehearsal_seconds": 90})


# --- the plan


@pytest.mark.parametrize("launcher", ["paddle", "fleetrun", "msrun", "mpirun", "rank_table"])
def test_only_the_script_is_another(launcher):
    suite, accelerator = {}, "gpu"
    if launcher in ("msrun", "mpirun", "rank_table"):
        suite, accelerator = (
            {"launchers": [launcher]},
            "ascend" if launcher == "rank_table" else "cpu",
        )
    arguments = gang(count=2, devices=2, accelerator=accelerator, suite=suite)
    arguments["job"]["launcher"] = launcher
    for index, fact in enumerate(arguments["facts"].values()):
        fact["device_ips"] = {
            str(number): "192.168.%d.%d" % (index, number + 1) for number in range(8)
        }
    made = compiler.compile_plan(**arguments)
    before = copy.deepcopy(made)
    found = outcome.plan_of(made, SCRIPT, 60)
    assert made == before
    assert (
        made["argv"][-len(made["script"]) :] == made["script"]
        and made["script"][0] == "tools/train.py"
    )
    for old, new in [(made, found)] + list(zip(made["nodes"], found["nodes"])):
        if old.get("argv"):
            changed = [(one, other) for one, other in zip(old["argv"], new["argv"]) if one != other]
            assert changed == [("tools/train.py", "tools/trainyard_rehearsal.py")] and len(
                old["argv"]
            ) == len(new["argv"])
    same = [key for key in made if key not in ("argv", "script", "nodes", "files", "stop")]
    assert all(found[key] == made[key] for key in same) and [n["env"] for n in found["nodes"]] == [
        n["env"] for n in made["nodes"]
    ]
    assert (
        found["files"]["tools/trainyard_rehearsal.py"] == SCRIPT
        and found["stop"]["limit"] == 60 + outcome.MARGIN
    )
    assert json.loads(found["files"]["trainyard_rehearsal/asked.json"])["framework"] == (
        "paddle" if launcher in ("paddle", "fleetrun") else "mindspore"
    )


def test_the_unit_ends_without_a_controller_and_the_trainings_does_not():
    made = made_for()
    words = attempt_dir.start_argv("/a", outcome.plan_of(made, "", 60), "node1", "u", "d")
    assert "RuntimeMaxSec=75" in words and not [
        word
        for word in attempt_dir.start_argv("/a", made, "node1", "u", "d")
        if "RuntimeMaxSec" in word
    ]


# --- the judgement


def test_all_as_planned_is_a_note():
    made = made_for()
    (found,) = judged(
        made, node1={"transports": {"NET/IB/GDRDMA": 4}}, node2={"transports": {"NET/IB/GDRDMA": 4}}
    )
    assert (found["code"], found["level"]) == ("rehearsal.passed", "note")
    for value in ("2 ranks ", " 4.0 s", "200 MB/s (gloo, eth0)"):
        assert value in found["text"]
    assert "NET/IB/GDRDMA x 8" in found["text"]
    assert " s a step" not in found["text"]


@pytest.mark.parametrize("count, seconds", [(2, "0.50"), (4, "0.75")])
def test_the_time_of_the_gradients_follows_from_the_largest_pretrained_weights(count, seconds):
    made = made_for(count)
    made["weights"] = {
        "pretrain_weights": {"digest": "a" * 64, "file": "x.pdparams", "url": "u", "bytes": 10**8},
        "teacher": {"digest": "b" * 64, "file": "y.pdparams", "url": "v", "bytes": 2 * 10**7},
        "of an older run": {"digest": "c" * 64, "file": "z.pdparams", "url": "w"},
    }
    (found,) = judged(made)
    assert "100.0 MB or more" in found["text"] and f"take {seconds} s a step" in found["text"]


def test_a_single_rank_has_no_bandwidth():
    made = made_for(count=1)
    (found,) = judged(made)
    assert found["level"] == "note" and "MB/s" not in found["text"]


@pytest.mark.parametrize("launcher", ["paddle", "fleetrun"])
def test_another_order_on_one_node(launcher):
    """Fact 3: its launcher takes node2 for rank 0; both ranks wait for each other for ever."""
    made = made_for()
    backwards = made["endpoints"][::-1]
    odd = spoken(
        made,
        0,
        endpoints=backwards,
        endpoint=backwards[0],
        stage="started",
        joined_rank=None,
        joined_world=None,
    )
    stuck = {"ranks": [spoken(made, 0, stage="imported")], "hung": True}
    found = judged(made, node1=stuck, node2={"ranks": [odd], "hung": True})
    assert [item["code"] for item in found] == [
        "rehearsal.rank_unlike_plan",
        "rehearsal.rank_twice",
    ]
    number, order = found[0]["text"].split("; rank 0 ")
    assert re.findall(r"rank (\d)", number) == ["0", "1"]
    assert "order" in order and f": {','.join(backwards)}; " in order
    assert "rank 0 is there 2 times" in found[1]["text"]
    assert found[1]["text"].endswith("on node1, node2")
    assert {item["level"] for item in found} == {"stop"} and [item["nodes"] for item in found] == [
        ["node2"],
        ["node1", "node2"],
    ]
    assert found[0]["remedy"]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"world": 1, "joined_world": 1}, "rank 1 was started as one of 1; the plan has 2 ranks"),
        ({"joined_world": 1}, "rank 1 was started as one of 1; the plan has 2 ranks"),
        ({"joined_rank": 0}, "rank 1 is rank 0 to the framework"),
        (
            {"endpoints": ["10.127.6.17:6070", "10.127.5.142:6070"]},
            "rank 1 was given other endpoints: 10.127.6.17:6070,",
        ),
        ({"sum": 2.0}, "gave 2.0 on rank 1; it must be 3"),
    ],
)
def test_a_rank_that_is_not_as_planned(changes, said):
    made = made_for()
    (found,) = judged(made, node2={"ranks": [spoken(made, 1, **changes)]})
    assert (
        found["level"] == "stop"
        and found["nodes"] == ["node2"]
        and said in found["text"]
        and found["remedy"]
    )


def test_ports_that_are_left_to_the_launcher():
    made = made_for()
    made["endpoints"] = ["10.127.6.17:*", "10.127.5.142:*"]
    results = results_of(made)
    for result in results.values():
        result["ranks"][0]["endpoints"] = ["10.127.6.17:17001", "10.127.5.142:17005"]
    assert [item["level"] for item in outcome.judge(made, results, {})] == ["note"]
    results["node2"]["ranks"][0]["endpoints"] = ["10.127.6.17:17001", "10.127.5.99:17005"]
    assert [item["level"] for item in outcome.judge(made, results, {})] == ["stop"]


def test_what_hangs_says_how_far_each_rank_came():
    made = made_for()
    stuck = {"ranks": [spoken(made, 1, stage="imported")], "hung": True, "halted": True}
    (found,) = judged(made, node1={"ranks": [], "hung": True, "halted": True}, node2=stuck)
    assert (
        found["level"] == "stop"
        and found["nodes"] == ["node1", "node2"]
        and "within 90 s" in found["text"]
    )
    assert found["code"] == "rehearsal.hung"
    assert "rank 0 (node1) never" in found["text"] and "rank 1 (node2) looks" in found["text"]
    assert "10.127.6.17 on eth0" in found["remedy"] and "firewall" in found["remedy"]


def test_slow_is_not_a_firewall_and_stops_nobody():
    made = made_for()
    (found,) = judged(made, node2={"ranks": [spoken(made, 1, stage="started")], "hung": True})
    assert "imports the framework" in found["text"] and "firewall" not in found["remedy"]
    assert "preflight_rehearsal_seconds" in found["remedy"] and found["level"] == "warn"
    done = {
        name: {"ranks": [spoken(made, rank, stage="ended")], "hung": True}
        for rank, name in enumerate(("node1", "node2"))
    }
    assert [item["level"] for item in judged(made, **done)] == ["warn"]
    done["node2"]["ranks"][0]["stage"] = "joined"
    assert [item["level"] for item in judged(made, **done)] == ["stop"]


def test_the_culprit_speaks_and_not_those_it_took_along():
    made = made_for()
    raised = {
        "ranks": [spoken(made, 1, stage="failed", error="RuntimeError: no such device")],
        "events": [],
        "logs": {"1": ["one", "two"]},
    }
    taken = {
        "ranks": [spoken(made, 0, stage="imported")],
        "halted": True,
        "events": [{"event": "end", "rank": 0, "signal": "SIGTERM"}],
    }
    (found,) = judged(made, node1=taken, node2=raised)
    assert (found["code"], found["nodes"]) == ("rehearsal.rank_failed", ["node2"])
    assert found["text"].startswith(f"rank 1 failed: {raised['ranks'][0]['error']}; ")
    assert found["text"].endswith(": one | two")


def test_a_wrong_interface_has_its_remedy():
    """Gloo's own words of a run with GLOO_SOCKET_IFNAME=nosuch0 on Paddle 2.6.2."""
    made = made_for()
    words = (
        "RuntimeError: [enforce fail at /paddle/third_party/gloo/gloo/transport/tcp/device.cc:83]"
        " ifa != nullptr. Unable to find address for: nosuch0"
    )
    (found,) = judged(made, node2={"ranks": [spoken(made, 1, stage="failed", error=words)]})
    assert "nosuch0" in found["text"] and "GLOO_SOCKET_IFNAME" in found["remedy"]


def test_a_rank_that_was_killed():
    made = made_for()
    killed = {
        "ranks": [spoken(made, 1, stage="joined")],
        "events": [{"event": "end", "rank": 1, "signal": "SIGKILL"}],
    }
    (found,) = judged(
        made, node1={"ranks": [spoken(made, 0, stage="joined")], "halted": True}, node2=killed
    )
    assert (found["code"], found["nodes"]) == ("rehearsal.rank_failed", ["node2"])
    assert "SIGKILL" in found["text"] and "in the first all-reduce" in found["text"]


def test_a_crash_after_all_was_shown_is_a_warning():
    """MindSpore's CPU build, seen under mpirun: both ranks had done all, one crashed, its launcher
    took the other along.
    """
    made = made_for()
    crashed = {"events": [{"event": "end", "rank": 1, "signal": "SIGSEGV"}]}
    for end in (
        {"event": "end", "rank": 0, "signal": "SIGTERM"},
        {"event": "launcher_end", "exit_code": 139, "signal": None},
    ):
        found = judged(made, node1={"events": [end]}, node2=crashed)
        assert [(item["level"], item["code"]) for item in found] == [
            ("note", "rehearsal.passed"),
            ("warn", "rehearsal.crashed_at_end"),
        ], found
        assert "SIGSEGV" in found[1]["text"]
    # one that was on its way still is a failure, and a wrong sum is not excused
    half = dict(crashed, ranks=[spoken(made, 1, stage="joined")])
    assert [item["level"] for item in judged(made, node1={"halted": True}, node2=half)] == ["stop"]
    wrong = dict(crashed, ranks=[spoken(made, 1, sum=5.0)])
    assert [item["level"] for item in judged(made, node2=wrong)] == ["stop"]


def test_a_launcher_that_starts_no_rank():
    made = made_for()
    end = {"event": "launcher_end", "exit_code": 127, "signal": None}
    (found,) = judged(
        made,
        node1={"ranks": [], "halted": True},
        node2={"ranks": [], "events": [end], "console": ["fleetrun: not found"]},
    )
    assert (found["code"], found["nodes"]) == ("rehearsal.launcher_failed", ["node2"])
    assert "exit code 127" in found["text"] and "fleetrun: not found" in found["text"]


def test_a_rank_that_is_missing_although_all_ended_well():
    made = made_for()
    (found,) = judged(made, node2={"ranks": [], "console": ["bye"]})
    assert (
        found["nodes"] == ["node2"]
        and found["text"].startswith("rank 1 never started")
        and "bye" in found["text"]
    )
    (found,) = judged(made, node2={"ranks": [spoken(made, 1, stage="measured")]})
    assert (found["code"], found["nodes"]) == ("rehearsal.rank_stopped", ["node2"])
    assert found["text"].startswith("rank 1 ")


def test_a_node_that_is_held_or_silent():
    made = made_for()
    (found,) = judged(
        made,
        node1={"ranks": []},
        node2={"ranks": [], "refused": "node2 is held by Trainyard run X"},
    )
    assert (
        found["nodes"] == ["node2"]
        and "node2 is held by" in found["text"]
        and "stop.yml" in found["remedy"]
    )
    results = dict(results_of(made), node2={"unreachable": True, "msg": "Connection timed out"})
    (found,) = outcome.judge(made, results, {})
    assert (
        found["nodes"] == ["node2"]
        and "Connection timed out" in found["text"]
        and found["level"] == "stop"
    )


def test_a_directory_that_stays_is_a_warning_beside_the_rest():
    made = made_for()
    found = judged(made, node2={"left": "/x: Permission denied"})
    assert [(item["level"], item["nodes"]) for item in found] == [("warn", ["node2"]), ("note", [])]


def test_check_does_not_rehearse_what_cannot_pass():
    nothing = {
        "code": [],
        "data": [],
        "weights": [],
        "environment": [],
        "trust": [],
        "provision": [],
        "network": ["node1", "node2"],
    }
    assert outcome.unfit(nothing, []) == []
    (found,) = outcome.unfit(dict(nothing, code=["node2"]), [])
    assert (
        found["level"] == "note"
        and "code on node2" in found["text"]
        and "sync.yml" in found["remedy"]
    )
    (found,) = outcome.unfit(nothing, [findings.finding("clock.off", "is an hour ahead")])
    assert (found["code"], found["level"]) == ("rehearsal.not_tried", "note")


@pytest.mark.parametrize("name", sorted(os.listdir(ROOT / "tests" / "fixtures" / "nccl")))
def test_nccls_own_words(name):
    """The lines come from public reports; each file's first line says from where and what is to be
    found in it.
    """
    text = (ROOT / "tests" / "fixtures" / "nccl" / name).read_text(encoding="utf-8")
    assert outcome.transports(text) == json.loads(text.splitlines()[0].partition(" expected ")[2])


# --- the node


class Systemd:
    """systemctl, as the node's side asks it: a unit is active until a time, or until it is
    stopped.
    """

    def __init__(self, seconds):
        self.until, self.stopped = time.monotonic() + seconds, []

    def __call__(self, argv):
        active = time.monotonic() < self.until
        if argv[2] == "stop":
            self.until, self.stopped = 0, self.stopped + [argv[3]]
        if argv[2] == "list-units":
            return 0, "", ""
        return 0, "active\n" if active else "inactive\n", ""


@pytest.fixture
def rehearsed(tmp_path):
    """A base directory with a rehearsal that has just been prepared, as attempt.py does it; returns
    (base, the attempt's directory, plan).
    """
    made = made_for(accelerator="cpu")
    base = tmp_path / "base"
    for node in made["nodes"]:
        node["base"] = str(base)
    (base / "code" / made["code"]["digest"][:16] / "tools").mkdir(parents=True)
    (base / "code" / made["code"]["digest"][:16] / "tools" / "train.py").write_text(
        "raise SystemExit(9)\n", encoding="ascii"
    )
    found = outcome.plan_of(made, SCRIPT, 60)
    text, place = (
        compiler.canonical_bytes(found).decode("ascii"),
        attempt_dir.attempt_dir(str(base), RUN, 0),
    )
    attempt_dir.prepare(place, text, compiler.sha256(found), "node2", RUN, 0, {})
    return str(base), place, found


def test_the_script_lies_beside_the_trainings_and_the_code_stays_as_it_is(rehearsed):
    _base, place, made = rehearsed
    with open(os.path.join(place, "work", made["script"][0]), encoding="utf-8") as handle:
        assert handle.read() == SCRIPT
    assert os.listdir(
        os.path.dirname(os.path.realpath(os.path.join(place, "work", "tools", "train.py")))
    ) == ["train.py"]


def test_a_rehearsal_is_no_run(rehearsed):
    base, place, _made = rehearsed
    assert attempt_dir.list_attempts(base) == [] and attempt_dir.list_rehearsals(base) == [(RUN, 0)]
    assert status.read_status(Systemd(0), base, "", 0, "node2")["found"] is False

    def held(argv):
        return (
            (0, f"{attempt_dir.unit_name(RUN, 0)} loaded active running a rehearsal\n", "")
            if "list-units" in argv
            else (0, "active", "")
        )

    assert status.read_status(held, base, "", 0, "node2")["found"] is False
    older = "20251120-103501-ppyoloe-0001"
    os.makedirs(attempt_dir.attempt_dir(base, older, 1))
    for name in ("plan.json", "attempt.json"):
        with open(os.path.join(place, name), encoding="utf-8") as source:
            text = source.read()
        with open(
            os.path.join(attempt_dir.attempt_dir(base, older, 1), name), "w", encoding="utf-8"
        ) as handle:
            handle.write(text)
    assert status.read_status(held, base, "", 0, "node2")["run"] == older


def test_read_and_removed(rehearsed):
    base, place, made = rehearsed
    other = os.path.join(base, "runs", RUN, "attempt-1")
    os.makedirs(other)
    folder = os.path.join(place, "work", "trainyard_rehearsal")
    with open(os.path.join(folder, "1-77.jsonl"), "w", encoding="ascii") as handle:
        handle.write(
            '{"stage": "started", "rank": 1, "world": 2}\n{"stage": "imported", "backend":'
            ' "gloo"}\n{"stage": "joi'
        )
    os.makedirs(os.path.join(place, "log"), exist_ok=True)
    with open(os.path.join(place, made["ranks"][1]["log"]), "w", encoding="ascii") as handle:
        handle.write("x\n" * 100 + "\x1b[31mred" + "y" * 5000 + "\n")
    found = node_rehearsal.finish(Systemd(0), base, RUN, "node2", 5, "", False)
    assert (
        found["ranks"] == [{"stage": "imported", "rank": 1, "world": 2, "backend": "gloo"}]
        and found["left"] == ""
    )
    assert (
        len(found["logs"]["1"]) == node_rehearsal.LOG_LINES
        and "\x1b" not in found["logs"]["1"][-1]
        and len(found["logs"]["1"][-1]) < 400
    )
    assert not os.path.exists(place) and os.path.isdir(other)
    os.rmdir(other)
    assert node_rehearsal.finish(Systemd(0), base, RUN, "node2", 5, "", False)["ranks"] == []


def test_what_hangs_is_stopped_and_removed(rehearsed):
    base, place, _made = rehearsed
    systemd = Systemd(60)
    began = time.monotonic()
    found = node_rehearsal.finish(systemd, base, RUN, "node2", 0.5, "", False)
    assert 0.5 <= time.monotonic() - began < 10 and found["hung"] and found["halted"]
    assert (
        systemd.stopped == [attempt_dir.unit_name(RUN, 0)]
        and not os.path.exists(place)
        and not os.path.exists(os.path.dirname(place))
    )


@pytest.mark.parametrize("refused, alone", [("held", True), ("", True)])
def test_nobody_waits_where_one_did_not_start(rehearsed, refused, alone):
    base, place, _made = rehearsed
    systemd = Systemd(60)
    found = node_rehearsal.finish(systemd, base, RUN, "node2", 60, refused, alone)
    assert (
        not found["hung"]
        and found["refused"] == refused
        and systemd.stopped == [attempt_dir.unit_name(RUN, 0)]
        and not os.path.exists(place)
    )


def test_what_an_earlier_controller_left_goes_when_it_is_old(rehearsed):
    base, _place, _made = rehearsed
    for name, age in (
        ("20261120-103501-x-0001", node_rehearsal.OLD_SECONDS + 60),
        ("20261120-103501-x-0002", 60),
    ):
        place = attempt_dir.attempt_dir(base, name, 0)
        os.makedirs(place)
        with open(os.path.join(place, "attempt.json"), "w", encoding="ascii") as handle:
            handle.write("{}")
        os.utime(place, (time.time() - age, time.time() - age))
    node_rehearsal.finish(Systemd(0), base, RUN, "node2", 1, "", False)
    assert attempt_dir.list_rehearsals(base) == [("20261120-103501-x-0002", 0)]


@pytest.mark.parametrize("held", [True, False])
def test_an_old_rehearsal_whose_unit_is_still_there_stays(rehearsed, held):
    base, place, _made = rehearsed
    os.utime(place, (time.time() - node_rehearsal.OLD_SECONDS - 60,) * 2)
    listed = f"{attempt_dir.unit_name(RUN, 0)} loaded active running a rehearsal\n" if held else ""
    assert (
        node_rehearsal.remove(
            lambda argv: (0, listed, ""), base, "20261120-103501-x-0001", time.time()
        )
        == ""
    )
    assert os.path.isdir(place) == held


def test_the_module_waits_on_a_node_without_a_manager(run_module, tmp_path, monkeypatch):
    """No systemd of a user answers here; the module says so instead of a traceback, and names the
    remedy.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    result = run_module(module, {"run_id": RUN, "node": "node1", "seconds": 1})
    assert result["failed"] and "provision.yml" in result["msg"]
    result = run_module(module, {"run_id": "../x", "node": "node1"})
    assert result["failed"] and result.get("code") == "attempt.bad_run_id"


# --- the script

PADDLE = """
class _Group:
    def init_parallel_env(self): pass
    def get_rank(self): return 1
    def get_world_size(self): return 2
    def all_reduce(self, values): {reduce}
distributed, __version__ = _Group(), "0"
def set_device(name): pass
def full(shape, value, dtype): return [value]
class _Values(list):
    def flatten(self): return self
class nn:
    class functional:
        def conv2d(image, kernels): {convolve}
"""
CONVOLVE = "return _Values([27.0 * image[0] * kernels[0]])"


@pytest.mark.parametrize(
    "reduce, stage", [("values[0] = 3.0", "ended"), ("raise RuntimeError('peer closed')", "failed")]
)
def test_a_rank_says_every_step(rehearsed, reduce, stage):
    """The real script as a process, with a framework that answers at once; the real ones are
    molecule's.
    """
    _base, place, made = rehearsed
    work = os.path.join(place, "work")
    with open(os.path.join(work, "tools", "paddle.py"), "w", encoding="ascii") as handle:
        handle.write(PADDLE.format(reduce=reduce, convolve=CONVOLVE))
    environment = {
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(made["endpoints"]),
    }
    done = subprocess.run(
        [sys.executable, made["script"][0], "-c", "x.yml"],
        cwd=work,
        env=environment,
        capture_output=True,
        check=False,
    )
    (found,) = node_rehearsal.read(place, "node2")["ranks"]
    assert (
        (done.returncode == 0) == (stage == "ended")
        and found["stage"] == stage
        and found["rank"] == 1
        and found["endpoints"] == made["endpoints"]
    )
    if stage == "failed":
        assert found["error"] == "RuntimeError: peer closed" and "sum" not in found
    else:
        assert (
            found["sum"] == found["expected"] == 3.0
            and found["bandwidth"] > 0
            and found["bytes"] == 4 << 20
            and found["convolution"] == outcome.CONVOLVED
        )


@pytest.mark.parametrize("value, told", [("nan", "nan"), ("inf", "inf"), ("-inf", "-inf")])
def test_an_all_reduce_that_gives_no_number_is_a_finding_and_no_lie(rehearsed, value, told):
    base, place, made = rehearsed
    work = os.path.join(place, "work")
    with open(os.path.join(work, "tools", "paddle.py"), "w", encoding="ascii") as handle:
        handle.write(PADDLE.format(reduce=f"values[0] = float('{value}')", convolve=CONVOLVE))
    environment = {
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(made["endpoints"]),
    }
    subprocess.run(
        [sys.executable, made["script"][0], "-c", "x.yml"],
        cwd=work,
        env=environment,
        capture_output=True,
        check=True,
    )
    result = node_rehearsal.finish(Systemd(0), base, RUN, "node2", 5, "", False)
    answer = answer_gate.validate(
        "rehearsal_wait", json.loads(json.dumps(dict(result, changed=False))), {}
    )
    assert answer["ranks"][0]["sum"] == told
    found = outcome.sums(made, {"node1": {"ranks": [spoken(made, 0)]}, "node2": answer})
    assert [(item["nodes"], item["level"]) for item in found] == [(["node2"], "stop")]
    assert f" gave {told} on rank 1" in found[0]["text"]


def test_a_line_that_no_rank_writes_hides_no_other():
    lines = ['{"stage": "started", "rank": 1}', "[" * 100_000, '{"sum": 1e999, "stage": "added"}']
    assert node_rehearsal.merged("\n".join(lines)) == {"stage": "added", "rank": 1, "sum": "inf"}


# What Paddle 2.6 raises without cuDNN (paddle/phi/backends/dynload/cudnn.cc, EnforceCUDNNLoaded),
# and what the loader of cuDNN 8's sublibraries says.
NO_CUDNN = (
    "(PreconditionNotMet) Cannot load cudnn shared library. Cannot invoke method cudnnGetVersion"
)
NO_CUDNN_PART = (
    "Could not load library libcudnn_cnn_infer.so.8. Error: libnvrtc.so: cannot open shared object"
    " file"
)


def test_a_convolution_that_raises_is_a_finding_of_its_own(rehearsed):
    _base, place, made = rehearsed
    work = os.path.join(place, "work")
    with open(os.path.join(work, "tools", "paddle.py"), "w", encoding="ascii") as handle:
        handle.write(
            PADDLE.format(reduce="values[0] = 3.0", convolve=f"raise RuntimeError({NO_CUDNN!r})")
        )
    environment = {
        "PADDLE_TRAINER_ID": "1",
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(made["endpoints"]),
    }
    subprocess.run(
        [sys.executable, made["script"][0]], cwd=work, env=environment, capture_output=True,
        check=False,
    )  # fmt: skip
    ranks = node_rehearsal.read(place, "node2")["ranks"]
    assert ranks[0]["after"] == "measured" and ranks[0]["sum"] == 3.0
    halted = {"ranks": [spoken(made, 0, stage="convolved")], "halted": True}
    (found,) = judged(made, node1=halted, node2={"ranks": ranks})
    assert (found["code"], found["level"], found["nodes"]) == (
        "rehearsal.convolution_failed",
        "stop",
        ["node2"],
    )
    assert NO_CUDNN in found["text"] and "cuDNN" in found["remedy"]


def test_a_rank_that_cudnn_aborts_and_one_that_fails_elsewhere():
    made = made_for()
    aborted = {
        "ranks": [spoken(made, 1, stage="measured")],
        "events": [{"event": "end", "rank": 1, "signal": "SIGABRT"}],
        "logs": {"1": [NO_CUDNN_PART]},
    }
    (found,) = judged(made, node1={"halted": True}, node2=aborted)
    assert found["code"] == "rehearsal.convolution_failed"
    assert "ended by SIGABRT while it computes a small convolution" in found["text"]
    assert found["text"].endswith(NO_CUDNN_PART)
    for changes in ({"after": "joined", "error": "no"}, {"after": "convolved", "error": "no"}):
        failed = {"ranks": [spoken(made, 1, stage="failed", **changes)]}
        (found,) = judged(made, node1={"halted": True}, node2=failed)
        assert found["code"] == "rehearsal.rank_failed"


@pytest.mark.parametrize("value", [26.0, "nan", None])
def test_a_convolution_that_gives_another_value_stops(value):
    made = made_for()
    (found,) = judged(made, node2={"ranks": [spoken(made, 1, convolution=value)]})
    assert (found["code"], found["level"], found["nodes"]) == (
        "rehearsal.wrong_convolution",
        "stop",
        ["node2"],
    )
    assert f"gave {value} on rank 1; it must be 27" in found["text"]


# --- GPUs that hang with direct traffic between them

# A stand-in for what cannot be had here: the all-reduce never ends while NCCL may use peer-to-peer.
HANGS = (
    "import os, time; [time.sleep(1) for _ in iter(lambda: os.environ.get('NCCL_P2P_DISABLE'),"
    " '1')]; values[0] = {sum}"
)


class GpuNode:
    """A user's systemd whose unit is the ranks' real processes, as the launcher starts them."""

    def __init__(self, place, paddle, refuses=False):
        self.place, self.paddle, self.refuses = place, paddle, refuses
        self.ranks, self.starts = [], []
        self.start()

    def start(self):
        plan = status.read_json(self.place, "plan.json")
        work = os.path.join(self.place, "work")
        with open(os.path.join(work, "tools", "paddle.py"), "w", encoding="ascii") as handle:
            handle.write(self.paddle)
        self.starts.append(plan["env"].get("NCCL_P2P_DISABLE"))
        count = len(plan["ranks"])
        for rank in range(count):
            environment = dict(
                plan["env"], PADDLE_TRAINER_ID=str(rank), PADDLE_TRAINERS_NUM=str(count)
            )
            self.ranks.append(
                subprocess.Popen(
                    [sys.executable, plan["script"][0]],
                    cwd=work,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )

    def __call__(self, argv):
        if argv[0] == "systemd-run" and any(word.startswith("--unit=trainyard") for word in argv):
            if self.refuses:
                return 1, "", "no"
            self.start()
        if argv[2] == "stop":
            self.end()
        if argv[2] == "list-units":
            return 0, "", ""
        active = any(process.poll() is None for process in self.ranks)
        return 0, "active\n" if active else "inactive\n", ""

    def end(self):
        for process in self.ranks:
            process.kill()
            process.wait()


@pytest.fixture
def gpu_node(tmp_path):
    """Return a function that prepares a rehearsal of one node's GPUs and starts it.

    It returns (node, base, plan).
    """
    nodes = []

    def begin(paddle_reduce=HANGS, devices=2, count=1, refuses=False, env=None, container=False):
        made = made_for(count=count, devices=devices, accelerator="gpu")
        made["env"].update(env or {})
        if container:
            made["environment"]["container"] = {"image": "x"}
        base = tmp_path / "base"
        for node in made["nodes"]:
            node["base"] = str(base)
        tools = base / "code" / made["code"]["digest"][:16] / "tools"
        tools.mkdir(parents=True)
        (tools / "train.py").write_text("raise SystemExit(9)\n", encoding="ascii")
        found = outcome.plan_of(made, SCRIPT, 60)
        text = compiler.canonical_bytes(found).decode("ascii")
        place = attempt_dir.attempt_dir(str(base), RUN, 0)
        archive = {attempt_dir.ARCHIVE: b"archive"}
        begun = {"start": "token", "by": "ann@here"}
        attempt_dir.prepare(place, text, compiler.sha256(found), "node1", RUN, 0, archive, begun)
        world = len(made["ranks"])
        # a stand-in of the rank's own number: each process knows the sum
        reduce = paddle_reduce.format(sum=world * (world + 1) / 2.0)
        paddle = PADDLE.replace(
            "return 1", "return int(__import__('os').environ['PADDLE_TRAINER_ID'])"
        )
        paddle = paddle.replace("return 2", f"return {world}")
        nodes.append(GpuNode(place, paddle.format(reduce=reduce, convolve=CONVOLVE), refuses))
        return nodes[-1], str(base), made

    yield begin
    for node in nodes:
        node.end()


def finished(node, base, seconds=4.0):
    result = node_rehearsal.finish(node, base, RUN, "node1", seconds, "", False)
    return answer_gate.validate(
        "rehearsal_wait", json.loads(json.dumps(dict(result, changed=False))), {}
    )


def test_gpus_that_hang_are_tried_again_without_peer_to_peer(gpu_node):
    node, base, made = gpu_node()
    answer = finished(node, base)
    assert node.starts == [None, "1"] and answer["hung"]
    assert answer["without_peers"] == {
        "hung": False,
        "ranks": [{"rank": rank, "stage": "ended", "sum": 3.0} for rank in (0, 1)],
    }
    assert not os.path.exists(node.place) and answer["left"] == ""
    (found,) = outcome.judge(made, {"node1": answer}, {"rehearsal_seconds": 4})
    assert (found["code"], found["level"], found["nodes"]) == (
        "rehearsal.hung_peer_to_peer",
        "stop",
        ["node1"],
    )
    assert "waits in the first all-reduce" in found["text"]
    assert "NCCL_P2P_DISABLE" in found["remedy"] and "firewall" not in found["remedy"]


def test_gpus_that_hang_without_peer_to_peer_too_are_no_matter_of_it(gpu_node):
    node, base, made = gpu_node("import time; time.sleep(60)")
    answer = finished(node, base, 2.0)
    assert node.starts == [None, "1"] and answer["without_peers"]["hung"]
    (found,) = outcome.judge(made, {"node1": answer}, {})
    assert found["code"] == "rehearsal.hung" and "did not help" in found["remedy"]


def test_a_second_try_that_cannot_start_leaves_the_hang_as_it_is(gpu_node):
    node, base, made = gpu_node(refuses=True)
    answer = finished(node, base, 2.0)
    assert answer["without_peers"] is None and not os.path.exists(node.place)
    (found,) = outcome.judge(made, {"node1": answer}, {})
    assert found["code"] == "rehearsal.hung" and "did not help" not in found["remedy"]


@pytest.mark.parametrize(
    "given",
    [
        {"env": {"NCCL_P2P_DISABLE": "0"}},  # the site decides
        {"container": True},  # the variable would not enter it
        {"devices": 1},
        {"count": 2},
    ],
)
def test_where_a_second_try_shows_nothing_there_is_none(gpu_node, given):
    node, base, _made = gpu_node("import time; time.sleep(60)", **given)
    assert finished(node, base, 2.0)["without_peers"] is None
    assert len(node.starts) == 1


@pytest.mark.parametrize("stage, useful", [("joined", True), ("imported", True), ("added", True),
                                           ("started", False), ("measured", False)])  # fmt: skip
def test_ranks_that_wait_for_no_other_are_not_tried_again(stage, useful):
    made = made_for(count=1, devices=2, accelerator="gpu")
    ranks = [spoken(made, 0, stage="joined"), spoken(made, 1, stage=stage)]
    assert second_try.is_useful(made, {"ranks": ranks}) is useful
    assert not second_try.is_useful(made, {"ranks": ranks[:1]})
    assert not second_try.is_useful(dict(made, accelerator="cpu"), {"ranks": ranks[:1] * 2})


@pytest.mark.parametrize("changes", [{"stage": "joined"}, {"sum": 7.0}, {"rank": 5}, {"rank": 0}])
def test_a_second_try_that_was_not_whole_says_nothing(changes):
    made = made_for(count=1, devices=2, accelerator="gpu")
    stuck = [spoken(made, rank, stage="joined") for rank in (0, 1)]
    second = [dict({"rank": rank, "stage": "ended", "sum": 3.0}) for rank in (0, 1)]
    told = {"ranks": stuck, "hung": True, "without_peers": {"hung": False, "ranks": second}}
    (found,) = judged(made, node1=told)
    assert found["code"] == "rehearsal.hung_peer_to_peer"
    second[1].update(changes)
    (found,) = judged(made, node1=told)
    assert found["code"] == "rehearsal.hung"
    whole = [{"rank": rank, "stage": "ended", "sum": 3.0} for rank in (0, 1)]
    told["without_peers"] = {"hung": True, "ranks": whole}
    (found,) = judged(made, node1=told)
    assert found["code"] == "rehearsal.hung"


def test_several_nodes_with_several_gpus_are_told_to_rehearse_one():
    made = made_for(count=2, devices=2, accelerator="gpu")
    stuck = {
        node: {"ranks": [spoken(made, rank, stage="joined") for rank in ranks], "hung": True}
        for node, ranks in (("node1", (0, 1)), ("node2", (2, 3)))
    }
    (found,) = judged(made, **stuck)
    assert "check.yml -e nodes=1" in found["remedy"] and "firewall" in found["remedy"]
    single = made_for(count=2, devices=1, accelerator="gpu")
    (found,) = judged(single, node1={"ranks": [spoken(single, 0, stage="joined")], "hung": True})
    assert "nodes=1" not in found["remedy"]
