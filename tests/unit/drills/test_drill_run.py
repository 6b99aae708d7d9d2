# SPDX-License-Identifier: Apache-2.0
"""The course of a drill from start to end. A training, a fault and its undoing run as real
processes, with every failure that may happen on the way.
"""

from __future__ import annotations

import copy
import json
import os
import re
import select
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.plugin_utils.drills import (
    drill_run,
    drill_site,
    drill_steps,
    fault_table,
    invariants,
)
from core_support import CONFIG, ROOT, RUN, program, put, recorded
from drill_support import Here, course, settle, site

KILL = {"at": "step 2", "then": [{"user": "last", "do": "kill -KILL $(rank)"}]}
KILLED = {
    "outcome": ["failed"],
    "cause": ["killed"],
    "node": "last",
    "rank": "last",
    "signal": "SIGKILL",
}
# What attempt_monitor answers on a node without an attempt.
STATUS = {"found": False, "ended": True, "state": "none", "known": [], "run": RUN}
# The same where an attempt runs.
HELD = {
    **dict.fromkeys(("lost", "by", "exit", "endpoints_reported", "epochs", "first_step", "disk")),
    **dict.fromkeys(("noted", "ranks", "endpoints", "console_tail"), []),
    **dict(found=True, ended=False, state="running", run=RUN, attempt=1, attempts=[1], begun=[1]),
    **dict(undone=False, node="node1", unit=f"trainyard-{RUN}-1.service", job="x", started=1.0),
    **dict(now=2.0, nodes=["node1"], endpoints_as_planned=True, unit_of_speed="", ranks_in_all=1),
    **dict(only_first_prints=False, checkpoints=None),
    "guard": dict.fromkeys(("phase", "budget", "quiet", "stall", "loss")),
}
STOPPED = {"outcome": ["stopped"], "cause": ["stopped_by_user"]}
GOES_ON = {"at": "step 2", "goes_on": True, "expect": STOPPED}
HELD_BY = {"again": True, "says": "held by"}
HEALED = [{"user": "first", "do": "echo healed > healed"}]
# name: (the fault, how the product behaves)
LATE = [
    {"user": place, "do": "(sleep 1; rm -f units) > /dev/null 2>&1 < /dev/null &"}
    for place in ("first", "last")
]
CASES = {
    "kill": (dict(KILL, expect=KILLED, heal=HEALED), {}),
    "later": (
        {"at": "ranks", "then": [{"moment": "step 2"}, *KILL["then"]], "expect": KILLED},
        {},
    ),
    "slow": (dict(KILL, expect=KILLED, budget={"stop": -1, "detect": -1}), {}),
    "inside": (
        dict(
            at="inside",
            sign="step 3",
            then=[{"user": "last", "do": "touch ../seen"}],
            expect=KILLED,
        ),
        {"dies": True},
    ),
    "volatile": (dict(KILL, expect=KILLED, volatile=True), {}),
    "another culprit": (dict(KILL, expect=KILLED), {"verdict": {"node": "node1", "rank": 0}}),
    "a restart": (dict(KILL, expect=KILLED, restarts=1), {"restart": True}),
    "no restart": (dict(KILL, expect=KILLED, restarts=1), {}),
    "other words": (dict(KILL, expect=dict(KILLED, reason="no_progress", says="skipped")), {}),
    "does not come back": (dict(KILL, expect=KILLED, seconds=2), {"linger": True}),
    "holds on": (dict(KILL, expect=KILLED), {"hold": True}),
    "lets go when it is back": (dict(KILL, expect=KILLED, heal=LATE), {"hold": True}),
    "unknown elsewhere": (dict(KILL, expect=KILLED), {"status": "no node knows the run"}),
    "goes on": (GOES_ON, {}),
    "ends at once": (dict(KILL, expect=KILLED, heal=HEALED), {"ends": True}),
    "no run": (dict(KILL, expect=KILLED, heal=HEALED), {"says": "first\nSTOP  no disk\nlast"}),
    "a step fails": (
        dict(GOES_ON, then=[{"user": "last", "do": "echo no such rank >&2; exit 3"}], heal=HEALED),
        {},
    ),
    "not undone": (dict(GOES_ON, heal=[{"user": "last", "do": "exit 4"}, *HEALED]), {}),
    "twice": (dict(GOES_ON, then=[HELD_BY]), {}),
    "twice and nobody minds": (dict(GOES_ON, then=[HELD_BY]), {"greedy": True}),
    "at once": (dict(GOES_ON, before=[dict(HELD_BY, stays=True)]), {}),
    "at once and nobody minds": (
        dict(GOES_ON, before=[dict(HELD_BY, stays=True)]),
        {"greedy": True},
    ),
    "another run": (
        dict(GOES_ON, then=[{"user": "last", "do": "echo trainyard-other-1.service > units"}]),
        {},
    ),
    "ctrl_c": (
        dict(GOES_ON, then=[{"control": "INT"}, {"verb": "follow", "fresh": True, "stays": True}]),
        {},
    ),
    "refused": (
        {"expect": {"refused": "17000"}, "heal": HEALED},
        {"says": "starting\nport 17000 is\n  taken"},
    ),
    "refused in other words": ({"expect": {"refused": "17000"}}, {"says": "no"}),
    "refused with exit code 0": ({"expect": {"refused": "17000"}}, {"says": "17000", "code": 0}),
    "not refused": ({"expect": {"refused": "17000"}}, {}),
    "interrupted": (dict(GOES_ON, then=[{"user": "first", "do": "INTERRUPT"}], heal=HEALED), {}),
}


@pytest.fixture(scope="module")
def drilled(tmp_path_factory):
    """{case: (result or what was raised, Course)} of all of them, several at a time: most of it is
    waiting.
    """
    sites = {
        name: site(tmp_path_factory.mktemp("drill"), **behave)
        for name, (_fault, behave) in CASES.items()
    }

    def one(name):
        made = course(sites[name], CASES[name][0])
        try:
            return name, (made.execute(), made)
        except KeyboardInterrupt as error:
            return name, (error, made)
        finally:
            settle(sites[name])

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(max_workers=6) as pool:
        patch.setattr(drill_run, "FENCE_SECONDS", 15)
        patch.setattr(
            drill_site, "sys", SimpleNamespace(executable=sites["kill"].project + "/bin/python")
        )
        yield dict(pool.map(one, CASES))


def test_a_node_that_ends_its_part_when_it_is_back_is_no_complaint(drilled):
    result, made = drilled["lets go when it is back"]
    assert "drill.node_held" not in result["codes"]
    assert result["fenced"] > 0 and result["note"]
    assert "stop" not in [command.verb for command in made.commands]


def problems_of(result, code):
    """Return the texts of the problems with a code."""
    return [
        text for text, own in zip(result["problems"], result["codes"], strict=True) if own == code
    ]


def test_a_fault_that_comes_out_as_promised(drilled):
    result, made = drilled["kill"]
    assert (
        set(result["codes"]) <= {"drill.late"}
        and result["verdict"] == "right"
        and result["reached"]
    )
    assert result["promises"] == dict(dict.fromkeys(fault_table.PROMISES, True), N8=None)
    assert (
        result["detected"] is not None
        and result["stopped"] is not None
        and result["says"] == "FAILED: rank 1 on node2 was killed"
    )
    assert open(os.path.join(made.site.nodes[0].home, "healed")).read() == "healed\n"
    assert json.load(open(os.path.join(made.folder, "result.json"))) == result
    assert (
        stat.S_IMODE(os.stat(made.folder).st_mode),
        stat.S_IMODE(os.stat(made.job).st_mode),
    ) == (0o700, 0o600)
    # It holds what opens the nodes.
    assert not os.path.exists(made.elsewhere)
    assert [command.verb for command in made.commands] == ["train", "status"]


@pytest.mark.parametrize(
    "name, codes",
    [
        ("slow", ["drill.late", "drill.late"]),
        ("another culprit", ["drill.verdict_wrong"]),
        ("no restart", ["drill.no_restart"]),
        ("other words", ["drill.reason_wrong", "drill.message_missing"]),
        ("does not come back", ["drill.command_running"]),
        ("holds on", ["drill.node_held"]),
        ("unknown elsewhere", ["drill.run_unknown"]),
        ("ends at once", ["drill.not_done"]),
        ("no run", ["drill.not_done"]),
        ("a step fails", ["drill.not_done", "drill.node_held"]),
        ("not undone", ["drill.not_undone"]),
        ("twice and nobody minds", ["drill.second_started"]),
        ("at once and nobody minds", ["drill.second_started"]),
        ("another run", ["drill.node_owner"]),
        ("refused in other words", ["drill.not_refused"]),
        ("refused with exit code 0", ["drill.not_refused"]),
        ("not refused", ["drill.run_started", "drill.not_refused"]),
    ],
)
def test_what_does_not_come_out_as_promised_is_a_problem_with_a_code(drilled, name, codes):
    result, made = drilled[name]
    assert not fault_table.is_kept(result)
    late = [] if name == "slow" else ["drill.late"]
    assert [code for code in result["codes"] if code not in late] == codes, result["problems"]
    assert (
        all(command.has_ended() for command in made.commands)
        and not invariants.check_leftovers(made.site, made.run, 0)
        if made.run
        else True
    )


@pytest.mark.parametrize(
    "name", ["inside", "a restart", "goes on", "twice", "at once", "ctrl_c", "volatile", "refused"]
)
def test_what_comes_out_as_promised_is_no_problem(drilled, name):
    result = drilled[name][0]
    assert result["verdict"] == "right" and set(result["codes"]) <= {"drill.late"}


@pytest.mark.parametrize(
    "at, count, come",
    [
        ("run", 0, True),
        ("ranks", 0, True),
        ("step 3", 2, False),
        ("step 3", 3, True),
        ("saved 1", 0, False),
        ("saved 1", 1, True),
    ],
)
def test_a_faults_moment(tmp_path, at, count, come):
    made = course(site(tmp_path), dict(KILL, at=at, expect=KILLED))
    seen = {
        "steps": count,
        "saved": count if at[:2] == "sa" else 0,
        "ranks": [{"rank": 0, "alive": True}],
    }
    looks = [{"t": 1, "node": node, "attempts": {"1": seen}} for node in ("node1", "node2")]
    assert bool(made.find_moment(looks, at)) is come
    # The other node has none yet.
    assert at != "ranks" or not made.find_moment(looks[:1], at)


def test_seconds_begin_with_the_fault_and_where_nothing_may_happen_with_the_stop(drilled):
    made = drilled["goes on"][1]
    assert made.since > next(
        look["t"]
        for look in made.watch.observed
        if fault_table.largest_count([look], 1, "steps") >= 2 + drill_run.GOES_ON_STEPS
    )
    made = drilled["inside"][1]
    assert (
        made.since == made.fault_began(made.watch.observed)
        and drilled["inside"][0]["detected"] is not None
    )


def test_a_fault_may_begin_at_a_later_moment(drilled):
    result, made = drilled["later"]
    assert result["verdict"] == "right"
    looks = [look for look in made.watch.observed if look["t"] < made.since]
    assert fault_table.largest_count(looks, 1, "steps") >= 2


def test_another_controller_follows_from_a_place_of_its_own(drilled):
    follows = [command for command in drilled["ctrl_c"][1].commands if command.verb == "follow"]
    project, elsewhere = drilled["ctrl_c"][1].site.project, drilled["ctrl_c"][1].elsewhere
    assert (
        f"here {elsewhere} {elsewhere}\n" in follows[0].text()
        and f" {project}\n" in follows[1].text()
    )


def test_what_a_fault_cannot_show_is_not_said(drilled):
    asked = {
        name: {key for key, value in drilled[name][0]["promises"].items() if value is not None}
        for name in CASES
        if name != "interrupted"
    }
    every = {"N1", "N2", "N3", "N4", "N5", "N6", "N7"}
    assert (
        asked["kill"] == every
        and asked["goes on"] == every - {"N6"}
        and asked["volatile"] == every - {"N1", "N4"}
    )
    assert asked["refused"] == asked["no run"] == {"N2"}
    assert drilled["goes on"][0].get("detected") is None and drilled["no run"][0]["reached"] is None
    assert (
        drilled["a restart"][0]["resumed"] is not None
        and "after the fault" in drilled["a restart"][0]["note"]
        and drilled["unknown elsewhere"][0]["promises"]["N5"] is False
    )


@pytest.mark.parametrize(
    "name", ["ends at once", "no run", "a step fails", "not undone", "refused", "interrupted"]
)
def test_what_was_done_is_undone_whatever_happens(drilled, name):
    result, made = drilled[name]
    assert (
        open(os.path.join(made.site.nodes[0].home, "healed"), encoding="utf-8").read() == "healed\n"
    )
    assert all(command.has_ended() for command in made.commands) and not os.path.exists(
        made.elsewhere
    )


def test_a_drill_that_is_interrupted_stops_its_run_and_ends_as_such(drilled):
    raised, made = drilled["interrupted"]
    assert isinstance(raised, KeyboardInterrupt) and [
        command.verb for command in made.commands
    ] == ["train", "stop"]
    assert (
        invariants.check_leftovers(made.site, made.run, 0) == []
        and not made.watch._threads[0].is_alive()
    )


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """Do one drill alone. Call it with a fault and the behaviour of the product."""
    made = []

    def call(fault, **behave):
        ground = site(tmp_path / str(len(made)), **behave)
        monkeypatch.setattr(
            drill_site, "sys", SimpleNamespace(executable=ground.project + "/bin/python")
        )
        made.append(course(ground, fault))
        return made[-1].execute(), made[-1]

    yield call
    for one in made:
        settle(one.site)


def test_a_training_that_stands_still_after_what_it_should_survive_is_seen(alone, monkeypatch):
    monkeypatch.setattr(drill_run, "GOES_ON_SECONDS", 1)
    result = alone(dict(GOES_ON, at="step 3"), steps=3)[0]
    [problem] = problems_of(result, "drill.no_progress")
    assert "3 steps before" in problem
    assert "none in 1 s after" in problem


def test_a_moment_that_never_comes_is_no_fault_and_the_run_is_stopped(alone, monkeypatch):
    monkeypatch.setattr(drill_run, "MOMENT_SECONDS", 1)
    result, made = alone(dict(KILL, at="saved 1", expect=KILLED))
    assert (
        result["codes"][0] == "drill.not_done"
        and result["reached"] is None
        and result["promises"]["N3"]
    )
    assert [command.verb for command in made.commands][:2] == ["train", "stop"]


def test_a_command_that_does_not_come_to_its_end_is_ended_and_said(alone, monkeypatch):
    monkeypatch.setattr(drill_steps, "STOP_SECONDS", 1)
    result, made = alone(dict(GOES_ON, then=[{"verb": "follow"}]))
    [problem] = problems_of(result, "drill.command_running")
    assert problem.startswith("follow.yml")
    assert "within 1 s" in problem and all(command.has_ended() for command in made.commands)


def test_a_controller_that_does_not_mind_is_said(alone, monkeypatch):
    monkeypatch.setattr(drill_steps, "SIGNAL_SECONDS", 1)
    result = alone(dict(GOES_ON, then=[{"control": "INT"}]), stubborn=True)[0]
    assert "drill.controller_running" in result["codes"]


def test_a_rank_is_judged_where_the_watch_of_its_node_came_too_late(alone, monkeypatch):
    """On a busy machine, the watch of the last node can start after the fault."""
    follow = drill_site.Watch._follow

    def follow_first_node(self, node, *rest):
        if node.name == "node1":
            follow(self, node, *rest)

    monkeypatch.setattr(drill_site.Watch, "_follow", follow_first_node)
    result, made = alone(dict(KILL, expect=KILLED))
    assert {look["node"] for look in made.watch.observed} == {"node1"}
    assert result["verdict"] == "right" and set(result["codes"]) <= {"drill.late"}


# --- the ground


def test_an_eye_that_is_closed_is_a_look_too_and_nobody_waits_for_what_cannot_come(tmp_path):
    node, asked = Here("node1", tmp_path), []
    node.ssh_argv = lambda _script: ["false"]
    watch = drill_site.Watch([node], "run", ".trainyard")
    try:
        assert watch.await_value(lambda looks: looks and looks[0]["gone"], 60)
        assert watch.await_value(
            lambda _looks: None, 1, lambda: asked.append(1) or True
        ) is None and asked == [1]
    finally:
        watch.close()


def test_a_watch_ends_where_the_command_ended_before_it_had_read_its_program(tmp_path, monkeypatch):
    node = Here("node1", tmp_path)
    node.ssh_argv = lambda _script: ["sleep", "0.3"]
    # More than a pipe holds, and the rest less than Python's buffer, which keeps it.
    monkeypatch.setattr(drill_site.zipapp, "stdin_bytes", lambda _entry: bytes(64 * 1024 + 100))
    watch = drill_site.Watch([node], "run", ".trainyard")
    try:
        assert watch.await_value(lambda looks: looks and looks[0]["gone"], 60)
    finally:
        watch.close()


def test_a_command_that_begins_while_the_watch_is_closed_is_ended(tmp_path, monkeypatch):
    node, begun, popen = Here("node1", tmp_path), threading.Event(), subprocess.Popen
    node.ssh_argv = lambda _script: ["sleep", "600"]

    def begin_slowly(*words, **settings):
        begun.set()
        time.sleep(1)
        return popen(*words, **settings)

    monkeypatch.setattr(drill_site.subprocess, "Popen", begin_slowly)
    watch = drill_site.Watch([node], "run", ".trainyard")
    assert begun.wait(60)
    watch.close()
    assert not any(thread.is_alive() for thread in watch._threads)


WORKER = (
    "import signal, time; signal.signal(2, signal.SIG_DFL); print('up', flush=True);"
    " time.sleep(600)"
)
PARENT = (
    "import signal, subprocess, sys; signal.signal(2, signal.SIG_DFL);p ="
    " subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE); p.stdout.readline(); print(p.pid,"
    " flush=True); p.wait()"
)


@pytest.mark.parametrize("name, ends", [("KILL", False), ("INT", True)])
def test_a_kill_is_of_the_command_alone_and_ctrl_c_of_its_workers_too(name, ends):
    command = drill_site.Command.__new__(drill_site.Command)
    words = [sys.executable, "-c", PARENT, sys.executable, "-c", WORKER]
    command.process = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    worker = os.pidfd_open(int(command.process.stdout.readline()))
    try:
        command.signal(name)
        assert command.process.wait(60) < 0
        assert bool(select.select([worker], [], [], 60 if ends else 0.2)[0]) is ends
    finally:
        if not ends:
            signal.pidfd_send_signal(worker, signal.SIGKILL)
        os.close(worker)
        command.process.stdout.close()


def test_a_step_that_fails_or_never_answers_is_an_error_and_a_look_is_not(tmp_path):
    node = Here("node1", tmp_path)
    assert node.run_command("echo yes") == "yes" and node.inspect("exit 3") == ""
    with pytest.raises(fault_table.DrillError, match="node1: cat nothing: .*No such file"):
        node.run_command("cat nothing")
    with pytest.raises(fault_table.DrillError, match="node1 did not answer within 0 s"):
        node.run_command("sleep 60", timeout=0.1)
    with pytest.raises(fault_table.DrillError, match="node1 does not come back within 0 s"):
        node.await_login(0)


def test_a_node_is_the_embedded_sites_container_only_where_its_address_is(tmp_path, monkeypatch):
    program(
        tmp_path,
        "docker",
        'case "$1" in inspect) echo "2048 198.51.100.101 ";; *) echo no such thing >&2; exit 1;;'
        " esac",
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert drill_site.container_of("local", "node1", "198.51.100.101") == (
        "trainyard-local-node1",
        2048,
    )
    assert drill_site.container_of("local", "node1", "198.51.100.9") == (None, 0)
    ground = site(tmp_path / "site")
    with pytest.raises(fault_table.DrillError, match="docker kill {last}: no such thing"):
        ground.run_docker(["kill", "{last}"])
    program(tmp_path, "docker", 'echo "$1 $4 $5" >> $LOG')
    ground.nodes[1].container = "trainyard-local-node2"
    course(ground, dict(KILL, expect=KILLED)).do_step({"root": "last", "do": "true"})
    assert recorded(tmp_path, "docker") == ["exec root trainyard-local-node2"]


def test_the_line_that_says_why_a_command_ended():
    assert (
        drill_site.last_line("fatal: [node1]: no\nFAILED: rank 1\nPLAY RECAP\n\n")
        == "FAILED: rank 1"
    )
    assert (drill_site.last_line("a\nb\n"), drill_site.last_line("")) == ("b", "no output")


# --- the action


@pytest.fixture
def act(load_plugin, tmp_path, monkeypatch):
    """Run a step of drill.yml as its task would, on a site of these nodes; status: what
    attempt_monitor says of the node.
    """
    plugin = load_plugin("action", "drill")

    def run(
        nodes=("node1", "node2"), check=False, connection=None, status=None, ways=True, **arguments
    ):
        task = SimpleNamespace(
            args=arguments, async_val=0, check_mode=check, action="drill", delegate_to=None
        )
        link = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp"), **(connection or {}))
        action = plugin.ActionModule(task, link, None, DataLoader(), None, None)
        monkeypatch.setattr(
            ActionBase, "_execute_module", lambda self, *_words, **_named: copy.deepcopy(status)
        )
        monkeypatch.setattr(
            plugin.context, "CLIARGS", {"inventory": ("hosts",), "remote_user": "someone"}
        )
        way = {"argv": ["ssh", "host"], "address": "198.51.100.9", "user": "trainer"}
        of_node = {
            "trainyard_site": "mysite",
            "trainyard_runs_dir": str(tmp_path / "runs"),
            "drill_way": {"way": way} if ways else {},
        }
        call = {
            "playbook_dir": str(ROOT / "playbooks"),
            "groups": {"trainers": list(nodes)},
            "inventory_hostname": "node1",
        }
        return action.run(task_vars=dict(call, hostvars=dict.fromkeys(nodes, of_node)))

    return run


def refused(act, words, **arguments):
    result = act(**arguments)
    assert result["failed"] and re.search(words, result["msg"], re.DOTALL), result


def test_nothing_is_chosen_without_the_sites_name(act):
    refused(
        act,
        "of the site 'mysite' on purpose: 2 faults.*-e confirm=mysite",
        state="chosen",
        only="kill,hang",
    )
    refused(act, "-e confirm=mysite", state="chosen", only="kill", confirm="local")
    assert act(state="chosen", only="kill,hang", confirm="mysite")["faults"] == ["kill", "hang"]
    listed = act(state="chosen", list="true")
    assert listed["faults"] == [] and len(listed["summary"]) == len(fault_table.load()["faults"])
    refused(
        act,
        "a drill takes two nodes or more; the group trainers has 1",
        state="chosen",
        nodes=["node1"],
    )
    refused(act, "value of state must be one of", state="do")


def test_a_job_of_ones_own_is_not_restarted_unless_the_fault_says_so(act, tmp_path):
    job = f"suite: paddledetection\nlauncher: paddle\nconfig: {CONFIG}\nnodes: 2\nmax_restarts: 5\n"
    path = put(str(tmp_path), {"mine.yml": job, "bad.yml": job + "nonsense: 1\n"})
    chosen = act(state="chosen", only="kill", confirm="mysite", config=path + "/mine.yml")
    assert (
        chosen["job"]["max_restarts"] == 0
        and chosen["example"] is False
        and "name" not in chosen["job"]
    )
    refused(act, "nowhere", state="chosen", only="kill", confirm="mysite", config="nowhere.yml")
    refused(
        act, "nonsense", state="chosen", only="kill", confirm="mysite", config=path + "/bad.yml"
    )
    assert (
        fault_table.make_job(chosen["job"], fault_table.load()["faults"]["restart"], "x")[
            "max_restarts"
        ]
        == 3
    )


@pytest.mark.parametrize(
    ("nodes", "names"),
    [("all", ["a", "b", "c"]), (None, ["a", "b", "c"]), (2, ["a", "b"]), (["c", "b"], ["c", "b"])],
)
def test_faults_are_of_the_nodes_that_the_job_takes(load_plugin, nodes, names):
    assert load_plugin("action", "drill").names_of_job(["a", "b", "c"], nodes) == names


def link(transport="ssh", **more):
    options = {"host": "198.51.100.9", "remote_user": "trainer", "ssh_executable": "ssh"}
    return dict(
        {
            "transport": transport,
            "get_option": options.get,
            "_build_command": lambda *words: list(words),
        },
        **more,
    )


def test_a_node_that_a_run_holds_is_left_alone_and_a_way_is_by_key(act):
    free, held = STATUS, HELD
    found = act(state="way", connection=link(), status={"status": free})["way"]
    assert (
        found["argv"] == ["ssh", "ssh", "-T", "-o", "BatchMode=yes", "198.51.100.9"]
        and found["user"] == "trainer"
    )
    assert act(state="way", connection=link(), status={"status": dict(held, ended=True)})
    refused(
        act,
        f"node1 is held by the run {RUN}; stop it first",
        state="way",
        connection=link(),
        status={"status": held},
    )
    refused(
        act,
        "no python",
        state="way",
        connection=link(),
        status={"failed": True, "msg": "no python"},
    )
    refused(
        act,
        "gave an answer of attempt_monitor",
        state="way",
        connection=link(),
        status={"unreachable": True, "msg": "no route"},
    )
    refused(act, "reached by local", state="way", connection=link("local"))
    refused(
        act,
        "logs in by key",
        state="way",
        connection=link(sshpass_pipe=(3, 4)),
        status={"status": free},
    )


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"status": None},
        {"status": dict(HELD, run="x; rm -rf ~")},
        {"status": dict(STATUS, ended="no")},
        {"status": STATUS, "add_host": {"host_name": "evil"}},
    ],
)
def test_an_answer_passes_the_gate_before_it_is_used(act, answer):
    """attempt_monitor runs on the node, where a training could have written its output."""
    result = act(state="way", connection=link(), status=answer)
    assert result["failed"] and "answer of attempt_monitor" in result["msg"]


def test_what_cannot_be_done_here_is_skipped(act, monkeypatch):
    monkeypatch.setattr(drill_run.Drill, "execute", lambda self: pytest.fail("done"))
    given = {"state": "done", "job": {"nodes": 2}, "example": True}
    assert "check mode" in act(check=True, fault="kill", **given)["drilled"]["skipped"]
    assert "embedded site only" in act(fault="node_kill", **given)["drilled"]["skipped"]
    monkeypatch.setattr(
        drill_site,
        "container_of",
        lambda _site, name, _address: (name, 1) if name == "node1" else (None, 0),
    )
    assert "embedded site only" in act(fault="node_kill", **given)["drilled"]["skipped"]
    assert "examples/" in act(fault="raise", **dict(given, example=False))["drilled"]["skipped"]
    refused(act, "there is no way to node1, node2", ways=False, fault="kill", **given)


def test_a_fault_is_done_where_the_job_is_and_as_the_user_logs_in(act, monkeypatch):
    made = []
    monkeypatch.setattr(
        drill_run.Drill,
        "execute",
        lambda self: made.append(self) or dict(self.result, verdict="right"),
    )
    caught = []
    monkeypatch.setattr(signal, "signal", lambda *what: caught.append(what))
    drilled = act(
        nodes=("node1", "node2", "node3"),
        state="done",
        fault="kill",
        job={"nodes": 2},
        example=True,
    )
    assert (
        drilled["drilled"]["verdict"] == "right"
        and drilled["changed"]
        and [node.name for node in made[0].site.nodes] == ["node1", "node2"]
    )
    assert made[0].site.options == ["-i", "hosts", "--user", "someone"]
    # What was done has to be undone after Ctrl-C.
    assert [number for number, _handler in caught] == [signal.SIGINT, signal.SIGTERM]


def test_the_verdict_is_that_all_held(act, monkeypatch):
    monkeypatch.setattr(drill_run.Drill, "execute", lambda self: dict(self.result, reached=True))
    good = {
        "name": "kill",
        "injected": "a",
        "verdict": "right",
        "problems": [],
        "promises": {"N1": True},
        "reached": True,
    }

    def told(*results):
        return act(
            state="told", job={"nodes": 2}, results=[{"drilled": result} for result in results]
        )

    skipped = {"name": "cut", "injected": "b", "skipped": "for a reason"}
    found = told(good, skipped)
    assert found["verdict"]["outcome"] == "completed"
    assert found["verdict"]["text"].startswith("1 of 1 faults ")
    assert found["results"][0]["promises"]["N8"] is True
    for wrong in (
        {"verdict": "wrong"},
        {"verdict": "unknown"},
        {"problems": ["late"]},
        {"promises": {"N3": False}},
    ):
        assert told(good, dict(good, **wrong))["verdict"]["outcome"] == "failed", wrong
    refused(act, "no fault was done: no way", state="told", job={}, results=[{"msg": "no way"}])
