# SPDX-License-Identifier: Apache-2.0
"""The module mesh_compile: one mesh from all nodes, or every problem at once."""

from __future__ import annotations

import time

import mesh_compile
import yaml
from ansible.module_utils.trainyard import mesh
from test_mesh import CA, node


def test_a_mesh(run_module):
    result = run_module(mesh_compile, {"nodes": [node(1), node(2)], "site": "local", "ca_public_key": CA})
    assert result["changed"] is False
    assert result["nodes"] == ["node1", "node2"]
    assert result["line"].endswith("trainyard-ca local")
    assert result["pattern"] == mesh.line_pattern("local")
    assert result["ready"] is False
    assert set(yaml.safe_load(mesh_compile.RETURN)) <= set(result)


def test_ready_only_when_all_nodes_are(run_module):
    given = {"nodes": [node(1), node(2)], "site": "local", "ca_public_key": CA}
    made = run_module(mesh_compile, given)
    state = {
        "proven": 1,
        "digest": made["digest"],
        "inventory": made["inventory"],
        "nodes": made["nodes"],
        "valid_until": int(time.time()) + 7 * 86400,
    }
    assert run_module(mesh_compile, dict(given, states=[state, state]))["ready"] is True
    assert run_module(mesh_compile, dict(given, states=[state]))["ready"] is False
    assert run_module(mesh_compile, dict(given, states=[state, dict(state, proven=None)]))["ready"] is False
    assert run_module(mesh_compile, dict(given, states=[state, state], validity="+9d", renew_before="+8d"))["ready"] is False


def test_every_problem_is_in_one_message(run_module):
    result = run_module(
        mesh_compile, {"nodes": [node(1, problems=["has no ssh"]), node(2, address="127.0.0.1")], "site": "local", "validity": "x"}
    )
    assert result["failed"] is True
    for words in ("node1: has no ssh", "node2: 127.0.0.1 reaches the node itself only", "want a span"):
        assert words in result["msg"]


def test_consent_is_passed_on(run_module):
    given = {"nodes": [node(1, home="a"), node(2, home="a")], "site": "local"}
    assert "shares its home directory" in run_module(mesh_compile, given)["msg"]
    assert run_module(mesh_compile, dict(given, shared_home=True))["owners"] == {"node1": "node1", "node2": "node1"}


def test_documentation_equals_the_arguments():
    options = yaml.safe_load(mesh_compile.DOCUMENTATION)["options"]
    assert set(options) == set(mesh_compile.SPEC)
    for name, spec in mesh_compile.SPEC.items():
        for key in ("type", "default", "required"):
            assert options[name].get(key) == spec.get(key), name
