# SPDX-License-Identifier: Apache-2.0
"""The module ssh_mesh_config: one mesh from all nodes, or every problem at once."""

from __future__ import annotations

import time

import pytest
import ssh_mesh_config
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives
from unit.mesh.test_primitives import CA, host_key, node


@pytest.fixture
def given(tmp_path):
    """Return what the module is called with for nodes that describe themselves so; their host keys
    are pinned on the controller.
    """

    def make(*nodes, **more):
        names = [f"node{at + 1}" for at in range(len(nodes))]
        pinned = tmp_path / "known_hosts"
        pinned.write_text(
            "".join(f"198.51.100.{11 + at} {host_key(1 + at)}\n" for at in range(len(nodes)))
        )
        hosts = {name: f"198.51.100.{11 + at}" for at, name in enumerate(names)}
        return dict(
            {
                "nodes": list(nodes),
                "names": names,
                "inventory": {"hosts": hosts},
                "known_hosts": [str(pinned)],
                "site": "local",
            },
            **more,
        )

    return make


def test_a_mesh(run_action, given):
    result = run_action("ssh_mesh_config", given(node(1), node(2), ca_public_key=CA))
    assert result["changed"] is False
    assert result["nodes"] == ["node1", "node2"]
    assert [line.split()[-3:] for line in result["lines"]] == [
        ["trainyard-ca", "local", "node1"],
        ["trainyard-ca", "local", "node2"],
    ]
    assert result["pattern"] == primitives.line_pattern("local")
    assert result["ready"] is False
    assert set(yaml.safe_load(ssh_mesh_config.RETURN)) <= set(result)


def test_ready_only_when_all_nodes_are(run_action, given):
    arguments = given(node(1), node(2), ca_public_key=CA)
    made = run_action("ssh_mesh_config", arguments)
    state = {
        "proven": 1,
        "digest": made["digest"],
        "inventory": made["inventory"],
        "nodes": made["nodes"],
        "valid_until": int(time.time()) + 7 * 86400,
    }
    assert run_action("ssh_mesh_config", dict(arguments, states=[state, state]))["ready"] is True
    assert run_action("ssh_mesh_config", dict(arguments, states=[state]))["ready"] is False
    assert (
        run_action("ssh_mesh_config", dict(arguments, states=[state, dict(state, proven=None)]))[
            "ready"
        ]
        is False
    )
    assert (
        run_action(
            "ssh_mesh_config",
            dict(arguments, states=[state, state], validity="+9d", renew_before="+8d"),
        )["ready"]
        is False
    )


def test_every_problem_is_in_one_message(run_action, given):
    result = run_action(
        "ssh_mesh_config",
        given(node(1, problems=["has no ssh"]), node(2, address="127.0.0.1"), validity="x"),
    )
    assert result["failed"] is True
    for words in ("node1: has no ssh", "node2: states the address 127.0.0.1", "want a span"):
        assert words in result["msg"]


def test_consent_is_passed_on(run_action, given):
    arguments = given(node(1, home="a"), node(2, home="a"))
    assert "its home directory" in run_action("ssh_mesh_config", arguments)["msg"]
    assert run_action("ssh_mesh_config", dict(arguments, shared_home=True))["owners"] == {
        "node1": "node1",
        "node2": "node1",
    }


def test_a_node_that_has_not_described_itself_ends_it(run_action, given):
    assert (
        run_action("ssh_mesh_config", dict(given(node(1), node(2)), nodes=[node(1)]))["failed"]
        is True
    )
