# SPDX-License-Identifier: Apache-2.0
"""stop_summary: the end of a stop on all nodes in words, nothing hidden."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs.stop_summary import (
    is_sound,
    summarize_stop,
)
from core_support import RUN

OTHER = RUN.replace("ppyoloe", "other")
DONE = {"stopped": [RUN], "ended": [], "left": [], "occupied": [], "noted": []}
GONE = {"unreachable": True, "msg": "Connection timed out"}


@pytest.mark.parametrize(
    "results, found, members, outcome, words",
    [
        (
            {"node1": DONE, "node2": DONE},
            {},
            ["node1", "node2"],
            "stopped",
            f"STOPPED {RUN} on node1, node2",
        ),
        ({"node1": dict(DONE, stopped=[])}, {}, ["node1"], "nothing", "NOTHING TO STOP"),
        (
            {"node1": DONE, "node2": {"skipped": True}},
            {"node2": GONE},
            ["node1", "node2"],
            "problems",
            "NO ANSWER from node2",
        ),
        (
            {"node1": DONE, "node2": GONE},
            {},
            ["node1", "node2"],
            "problems",
            f"when it answers again: ansible-playbook playbooks/stop.yml -e run={RUN}",
        ),
        ({"node1": DONE, "node3": GONE}, {}, ["node1"], "stopped", f"STOPPED {RUN} on node1"),
        ({"node1": dict(DONE, left=[7])}, {}, ["node1"], "problems", "NOT STOPPED on node1"),
        (
            {"node1": {"failed": True, "msg": "does not stop"}},
            {},
            ["node1"],
            "problems",
            "NOT STOPPED on node1",
        ),
        (
            {"node1": {}},
            {"node1": {"failed": True, "msg": "no manager"}},
            ["node1"],
            "problems",
            "NOT STOPPED on node1",
        ),
        (
            {"node1": dict(DONE, stopped=[], noted=[RUN])},
            {},
            ["node1"],
            "nothing",
            "a start or restart of it that is under way gives up",
        ),
    ],
)
def test_nothing_is_hidden(run_action, results, found, members, outcome, words):
    told = run_action(
        "stop_summary",
        {"run_id": RUN, "results": results, "found": found, "members": members},
    )
    assert (
        told["verdict"]["outcome"] == outcome
        and words in told["verdict"]["text"]
        and told["summary"][-1] == told["verdict"]["text"]
    )
    assert len(told["summary"]) == len(results) + 2


def test_whose_restart_gives_up_is_named_where_nobody_named_a_run():
    said = {"node1": dict(DONE, stopped=[], noted=[RUN, OTHER])}
    verdict = summarize_stop(said, {}, "", ["node1"])["verdict"]
    held, waiting = verdict["text"].split("; ")
    assert verdict["outcome"] == "nothing" and held.startswith("NOTHING TO STOP: no run ")
    assert f" of {', '.join(sorted((RUN, OTHER)))} that " in waiting
    assert "restart" in waiting and waiting.endswith(" gives up")


@pytest.mark.parametrize(
    "state, named", [("failed", True), ("lost", True), ("completed", False), ("stopped", False)]
)
def test_without_a_name_a_run_that_may_wait_for_its_restart_elsewhere_is_named(state, named):
    found = {
        "node1": {"status": {"found": True, "run": RUN, "state": state}},
        "node2": GONE,
        "node3": {"status": {"found": False}},
    }
    nothing = {node: dict(DONE, stopped=[]) for node in ("node1", "node3")}
    text = summarize_stop(nothing, found, "", ["node1"])["verdict"]["text"]
    assert (
        text.startswith("NOTHING TO STOP") and ("playbooks/stop.yml -e run=" + RUN in text) is named
    )
    assert "restart" not in summarize_stop(nothing, found, RUN, ["node1"])["verdict"]["text"]


def test_what_is_shown_obeys_no_terminal():
    said = dict(DONE, ended=[{"pid": 1, "signal": "KILL", "command": "x\x1b]0;y"}])
    assert "\x1b" not in "".join(summarize_stop({"node1": said}, {}, "", ["node1"])["summary"])


@pytest.mark.parametrize(
    "lie",
    [
        {"noted": "x"},
        {"stopped": [5]},
        {"stopped": "x"},
        {"ended": [{"pid": 1}]},
        {"ended": ["x"]},
        {"occupied": [{"own": True}]},
        {"occupied": [None]},
        {"left": None},
    ],
)
def test_an_answer_of_another_shape_is_no_stop(lie):
    sound = {
        "stopped": ["r"],
        "ended": [{"pid": 1, "signal": "TERM", "command": "x"}],
        "left": [],
        "occupied": [],
        "noted": None,
    }
    assert is_sound(sound) and not is_sound(dict(sound, **lie))
