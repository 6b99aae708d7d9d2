# SPDX-License-Identifier: Apache-2.0
"""ssh_mesh_check: every peer is logged in to, failures are named, and a proof that does not
hold any more is withdrawn.
"""

from __future__ import annotations

import json
import pwd

import pytest
import ssh_mesh_check
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives

IDENTITIES = {name: primitives.identity(f"id-{name}", name) for name in ("node1", "node2", "node3")}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with a recorded proof; the machine's account points to it."""
    account = pwd.getpwuid(0)
    monkeypatch.setattr(
        ssh_mesh_check.pwd,
        "getpwuid",
        lambda uid: pwd.struct_passwd((*account[:5], str(tmp_path), account[6])),
    )
    (tmp_path / ".trainyard" / "mesh").mkdir(parents=True)
    (tmp_path / ".trainyard" / "mesh" / "mesh.json").write_text(
        json.dumps({"version": 1, "site": "local", "proven": 7})
    )
    return tmp_path


@pytest.fixture
def answers(monkeypatch):
    """What ssh answers for each peer; the commands that were run."""
    given, ran = {}, []

    def run(argv, timeout=20):
        ran.append((argv, timeout))
        name = argv[argv.index("--") + 1]
        return given.get(name, (0, f"id-{name}\n{name}\n", ""))

    monkeypatch.setattr(commands, "run_program", run)
    return given, ran


def prove(run_module, check=False, **more):
    return run_module(
        ssh_mesh_check,
        dict(
            {"node": "node1", "nodes": ["node1", "node2", "node3"], "identities": IDENTITIES},
            **more,
        ),
        check,
    )


def recorded(home):
    return json.loads((home / ".trainyard/mesh/mesh.json").read_text())["proven"]


def test_all_peers_answer(home, answers, run_module):
    result = prove(run_module, timeout=9)
    assert (result["changed"], result["failures"], result["texts"], result["logins"]) == (
        False,
        [],
        [],
        2,
    )
    assert sorted(argv[argv.index("--") + 1] for argv, _timeout in answers[1]) == ["node2", "node3"]
    assert all(
        argv[:3] == ["ssh", "-F", f"{home}/.trainyard/mesh/config"] and timeout == 9
        for argv, timeout in answers[1]
    )
    assert recorded(home) == 7


def test_a_failure_names_the_pair_and_withdraws_the_proof(home, answers, run_module):
    answers[0]["node3"] = (
        255,
        "",
        "ssh: connect to host 198.51.100.13 port 22: Connection refused",
    )
    result = prove(run_module)
    assert [(item["from"], item["to"]) for item in result["failures"]] == [("node1", "node3")]
    (failure,) = result["failures"]
    assert "nothing listens" in failure["cause"] and "start sshd" in failure["remedy"]
    pair, remedy = result["texts"][0].split("; remedy: ")
    assert pair == f"node1 -> node3: {failure['cause']}"
    assert remedy.startswith(failure["remedy"])
    assert result["changed"] is True
    assert recorded(home) is None


def test_the_right_address_with_the_wrong_machine_is_a_failure(home, answers, run_module):
    answers[0]["node2"] = (0, "id-node3\nnode3\n", "")
    said = prove(run_module)["texts"][0]
    assert "another machine" in said and "(it says: node3)" in said


def test_a_peer_nobody_knows_is_a_failure(home, answers, run_module):
    assert prove(run_module, identities={})["failures"]


def test_a_refused_login_without_a_certificate_says_so(home, answers, run_module):
    (home / ".trainyard/mesh/id_ed25519").write_text("key")
    (home / ".trainyard/mesh/id_ed25519").chmod(0o600)
    answers[0]["node2"] = (255, "", "trainer@198.51.100.12: Permission denied (publickey).")
    assert " has no certificate" in prove(run_module)["texts"][0]


def test_check_mode_asks_and_writes_nothing(home, answers, run_module):
    answers[0]["node3"] = (255, "", "Connection refused")
    result = prove(run_module, check=True)
    assert result["failures"]
    assert result["changed"] is False
    assert recorded(home) == 7


def test_documentation_equals_the_arguments():
    options = yaml.safe_load(ssh_mesh_check.DOCUMENTATION)["options"]
    assert set(options) == set(ssh_mesh_check.SPEC)
    for name, spec in ssh_mesh_check.SPEC.items():
        assert {key: options[name].get(key) for key in ("type", "default", "required")} == {
            key: spec.get(key) for key in ("type", "default", "required")
        }
    assert set(yaml.safe_load(ssh_mesh_check.RETURN)) == {"failures", "texts", "logins", "seconds"}
