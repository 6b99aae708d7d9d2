# SPDX-License-Identifier: Apache-2.0
"""environment_differences: nodes whose packages differ are named."""

from __future__ import annotations

PADDLE = {"version": "2.6.2", "cuda": False, "cuda_version": None, "commit": "c0ffee"}
DIGEST = "ab" * 8


def node(**packages):
    return {
        "environments": {DIGEST: {"packages": packages, "imported": PADDLE, "fingerprint": "f"}}
    }


def test_equal_nodes_pass(run_action):
    result = run_action(
        "environment_differences",
        {"digest": DIGEST, "nodes": {"node1": node(numpy="1"), "node2": node(numpy="1")}},
    )
    assert (result["changed"], result["fingerprint"], result["imported"]) == (False, "f", PADDLE)


def test_a_node_that_differs_is_named_with_its_package(run_action):
    nodes = {"node1": node(numpy="1"), "node2": node(numpy="1"), "node3": node(numpy="2")}
    result = run_action("environment_differences", {"digest": DIGEST, "nodes": nodes})
    assert result["failed"]
    odd, values = result["msg"].splitlines()[0].split(": ")
    assert odd.split()[::3] == ["node3", "node1"] and values == "numpy is 2 (want 1)"


def test_a_node_without_the_environment_is_named_outside_check_mode(run_action):
    arguments = {
        "digest": DIGEST,
        "nodes": {"node1": node(numpy="1"), "node2": {"environments": {}}},
    }
    said = run_action("environment_differences", arguments)["msg"]
    assert "node2: no " in said and "node1: " not in said
    assert run_action("environment_differences", arguments, check=True)["fingerprint"] == "f"
    assert (
        run_action("environment_differences", dict(arguments, nodes={"node1": {}}), check=True)[
            "fingerprint"
        ]
        == ""
    )
