# SPDX-License-Identifier: Apache-2.0
"""Groups of the nodes of a plan."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import (
    node_groups,
    proof_verdict,
)

PLAN = {"nodes": [{"name": "node2"}, {"name": "node1"}]}


def test_each_node_is_in_the_groups_for_what_it_lacks():
    todo = {"trust": [], "code": ["node1"], "data": ["node1"], "network": ["node1", "node2"]}
    assert node_groups.list_groups({"plan": PLAN, "todo": todo}) == {
        "node2": ["trainyard_network_nodes", "trainyard_start_nodes"],
        "node1": ["trainyard_needs_inputs", "trainyard_network_nodes", "trainyard_start_nodes"],
    }


def test_a_checkpoint_alone_is_sent_by_peers():
    todo = {"checkpoints": ["node1"], "trees": ["node1"]}
    groups = node_groups.list_groups({"plan": PLAN, "todo": todo})["node1"]
    assert groups == ["trainyard_needs_checkpoint", "trainyard_start_nodes"]


def test_a_spare_is_in_no_group_of_the_nodes():
    todo = {"code": ["node1"], "standby": ["node3", "node4"], "standby_inputs": ["node4"]}
    groups = node_groups.list_groups({"plan": PLAN, "todo": todo})
    assert groups["node3"] == ["trainyard_standby_nodes"]
    assert groups["node4"] == ["trainyard_standby_nodes", "trainyard_standby_inputs"]


def test_without_a_plan_there_are_no_groups():
    assert node_groups.list_groups({"todo": {}}) == {}


def test_a_rehearsal_that_is_skipped_is_a_note():
    assert proof_verdict.note_skipped_rehearsal([]) == []
    (note,) = proof_verdict.note_skipped_rehearsal(["node1"])
    assert (note["code"], note["level"], note["check"]) == (
        "rehearsal.not_tried",
        "note",
        "rehearsal",
    )
