# SPDX-License-Identifier: Apache-2.0
"""ssh_mesh_node: what a node says of itself, and the record it keeps of a proven mesh."""

from __future__ import annotations

import json
import pwd

import pytest
import ssh_mesh_node
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import (
    node_description,
    store,
)

AUTHORITY = {"fingerprint": "SHA256:" + 43 * "x", "by": "alice@desk", "since": 1}
TOLD = {
    "site": "local",
    "nodes": ["node1", "node2"],
    "digest": "d",
    "inventory": "i",
    "authority": AUTHORITY,
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    account = pwd.getpwuid(0)
    monkeypatch.setattr(
        ssh_mesh_node.pwd,
        "getpwuid",
        lambda uid: pwd.struct_passwd((*account[:5], str(tmp_path), account[6])),
    )
    monkeypatch.setattr(commands, "run_program", lambda argv, timeout=20: (0, "[]", ""))
    return tmp_path


def test_a_fresh_home(home, run_module):
    result = run_module(ssh_mesh_node, {"name": "node1", "host": "198.51.100.11"})
    assert result["changed"] is False
    assert result["state"]["present"] is False
    assert result["found"] == {
        "ssh_directory": False,
        "mesh_directory": False,
        "replace_key": False,
        "authorized_keys_mode": "0600",
    }
    assert result["node"]["inventory"] == ["node1", "198.51.100.11", 22, ""]
    assert list(home.iterdir()) == []


def test_what_is_there_already(home, run_module):
    (home / ".ssh").mkdir()
    (home / ".ssh/authorized_keys").write_text("")
    (home / ".ssh/authorized_keys").chmod(0o644)
    place = home / ".trainyard/mesh"
    place.mkdir(parents=True, mode=0o700)
    (place / "id_ed25519").write_text("key")
    (place / "id_ed25519").chmod(0o640)
    (place / "mesh.json").write_text('{"version": 1, "site": "lab"}')
    result = run_module(ssh_mesh_node, {"name": "node1"})
    assert result["found"] == {
        "ssh_directory": True,
        "mesh_directory": True,
        "replace_key": True,
        "authorized_keys_mode": "0644",
    }
    assert result["node"]["site"] == "lab"
    place.chmod(0o755)
    assert run_module(ssh_mesh_node, {"name": "node1"})["found"]["mesh_directory"] is False


def test_the_record_is_written_once(home, run_module):
    (home / ".trainyard/mesh").mkdir(parents=True, mode=0o700)
    arguments = {"name": "node1", "record": TOLD}
    assert run_module(ssh_mesh_node, arguments, check=True)["changed"] is True
    assert not (home / ".trainyard/mesh/mesh.json").exists()
    assert run_module(ssh_mesh_node, arguments)["changed"] is True
    record = json.loads((home / ".trainyard/mesh/mesh.json").read_text())
    assert (record["site"], record["nodes"], record["digest"], record["inventory"]) == (
        "local",
        ["node1", "node2"],
        "d",
        "i",
    )
    assert record["proven"] > 0
    assert record["identity"] == store.own_identity()
    assert run_module(ssh_mesh_node, arguments)["changed"] is False
    assert (
        run_module(ssh_mesh_node, dict(arguments, record=dict(TOLD, digest="e")))["changed"] is True
    )


def test_a_shared_home_belongs_to_no_single_machine(home, run_module, monkeypatch):
    (home / ".trainyard/mesh").mkdir(parents=True)
    monkeypatch.setattr(node_description, "shared_home", lambda *arguments: "some nfs")
    run_module(ssh_mesh_node, {"name": "node1", "record": TOLD})
    assert json.loads((home / ".trainyard/mesh/mesh.json").read_text())["identity"] == ""


def test_documentation_equals_the_arguments():
    options = yaml.safe_load(ssh_mesh_node.DOCUMENTATION)["options"]
    assert set(options) == set(ssh_mesh_node.SPEC)
    for name, spec in ssh_mesh_node.SPEC.items():
        for key in ("type", "default", "required"):
            assert options[name].get(key) == spec.get(key), name
    assert set(options["record"]["suboptions"]) == set(ssh_mesh_node.SPEC["record"]["options"])
