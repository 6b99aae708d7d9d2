# SPDX-License-Identifier: Apache-2.0
"""environment_compare: nodes whose packages differ are named."""

from __future__ import annotations

PADDLE = {"version": "2.6.2", "cuda": False, "cuda_version": None, "commit": "c0ffee"}
DIGEST = "ab" * 8


def node(**packages):
    return {
        "environments": {DIGEST: {"packages": packages, "imported": PADDLE, "fingerprint": "f"}}
    }


def test_equal_nodes_pass(run_action):
    result = run_action(
        "environment_compare",
        {"digest": DIGEST, "nodes": {"node1": node(numpy="1"), "node2": node(numpy="1")}},
    )
    assert (result["changed"], result["fingerprint"], result["imported"]) == (False, "f", PADDLE)


def test_a_node_that_differs_is_named_with_its_package(run_action):
    nodes = {"node1": node(numpy="1"), "node2": node(numpy="1"), "node3": node(numpy="2")}
    result = run_action("environment_compare", {"digest": DIGEST, "nodes": nodes})
    assert result["failed"] and result["msg"].startswith(
        "node3 differs from node1: numpy is 2 (want 1)\n"
    )


def test_a_node_without_the_environment_is_named_outside_check_mode(run_action):
    arguments = {
        "digest": DIGEST,
        "nodes": {"node1": node(numpy="1"), "node2": {"environments": {}}},
    }
    assert "node2: no complete environment" in run_action("environment_compare", arguments)["msg"]
    assert run_action("environment_compare", arguments, check=True)["fingerprint"] == "f"
    assert (
        run_action("environment_compare", dict(arguments, nodes={"node1": {}}), check=True)[
            "fingerprint"
        ]
        == ""
    )
