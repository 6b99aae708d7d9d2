# SPDX-License-Identifier: Apache-2.0
"""Attempts and nodes that a stop is about."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import stop_target
from core_support import RUN

OTHER = "20261120-120000-other-aaaa"
SITE = ["node1", "node2", "node3", "node4"]
UNKNOWN = {"known": False, "number": 0, "nodes": [], "waiting": []}
CHOICE = {"run": RUN, "number": 2, "nodes": ["node3", "node1"], "next": 3, "claimed": ["node3"]}


def status(**changes):
    return {"found": True, "run": RUN, "ended": False, "state": "running", **changes}


def target(run=RUN, record=UNKNOWN, statuses=(), choice=CHOICE, owners=()):
    return stop_target.choose_stop_target(run, SITE, record, statuses, choice, list(owners))


def test_a_named_run_is_stopped_on_all_nodes_that_may_have_it():
    record = {"known": True, "number": 3, "nodes": ["node2"]}
    claimed = dict(CHOICE, claimed=["node3", "node4"])
    number, members, also = target(record=record, statuses=[status()], choice=claimed)
    assert number == 3
    assert members == ["node2", "node3", "node1", "node4"]
    assert also == [(RUN, 3, members)]


def test_a_record_without_nodes_counts_for_nothing():
    record = {"known": False, "number": 9, "nodes": ["node4"]}
    assert target(record=record)[:2] == (2, ["node3", "node1"])


def test_only_nodes_of_the_site_are_members():
    """A node's answer names no host."""
    lie = dict(CHOICE, nodes=["node1", "gateway"], claimed=["203.0.113.9"])
    assert target(choice=lie).members == ["node1"]


def test_a_run_that_nobody_knows_has_no_members():
    assert target(choice={}) == (1, [], [(RUN, 1, [])])


@pytest.mark.parametrize(
    ("statuses", "waits"),
    [
        ([status(ended=True, state="failed")], True),
        ([status(ended=True, state="failed"), status(ended=True, state="completed")], True),
        ([status(ended=True, state="completed")], False),
        ([status(ended=True, state="failed"), status()], False),
        ([status(ended=True, state="failed", run=OTHER)], False),
        ([status(ended=True, state="failed", found=False)], False),
        ([], False),
    ],
)
def test_an_ended_attempt_may_wait_for_its_restart(statuses, waits):
    assert stop_target.may_wait_for_restart(RUN, statuses) is waits
    assert not stop_target.may_wait_for_restart(None, [status(run=None, ended=True)])
    later = [attempt for attempt in target(statuses=statuses).also if attempt[1] == 3]
    assert later == ([(RUN, 3, ["node3", "node1"])] if waits else [])


def test_the_attempt_that_waits_comes_after_all_known_ones():
    ended = [status(ended=True, state="failed")]
    assert target(statuses=ended, choice=dict(CHOICE, next=7)).also[1][1] == 7
    record = {"known": True, "number": 9, "nodes": []}
    assert target(statuses=ended, record=record).also[1][1] == 10


def test_without_a_run_everything_that_runs_or_waits_is_stopped():
    record = dict(UNKNOWN, waiting=[(OTHER, 4, ["node2"]), (RUN, 3, ["node1"])])
    owners = [(RUN, 2, ["node1"])]
    number, members, also = target("", record, [status()], CHOICE, owners)
    assert (number, members) == (1, SITE)
    assert also == [(RUN, 2, ["node1"]), (OTHER, 4, ["node2"])]


def test_traces_of_a_run_that_no_node_knows():
    silent = {"found": False, "processes": [], "stopped": False}
    assert not stop_target.has_traces([silent, status(processes=[4711], stopped=True)])
    assert stop_target.has_traces([silent, dict(silent, processes=[4711])])
    assert stop_target.has_traces([silent, dict(silent, stopped=True)])
