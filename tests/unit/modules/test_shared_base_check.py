# SPDX-License-Identifier: Apache-2.0
"""shared_base_check: two nodes with one product directory are refused with the remedy."""

from __future__ import annotations


def base(identity):
    return {"base": [identity], "nonce": {"own": "", "seen": {}}}


def test_one_directory_of_two_nodes_is_refused(run_action):
    facts = {"node1": base("a"), "node2": base("a"), "node3": base("b")}
    refused = run_action("shared_base_check", {"facts": facts})
    assert refused["failed"] and "node1" in refused["msg"] and "node3" not in refused["msg"]
    assert "trainyard_home" in refused["msg"]


def test_directories_of_their_own_pass(run_action):
    passed = run_action("shared_base_check", {"facts": {"node1": base("a"), "node2": base("b")}})
    assert passed["changed"] is False and "failed" not in passed
