# SPDX-License-Identifier: Apache-2.0
"""The probe: what a node is and holds, read without changing anything, also where a node lacks the
very programs it asks.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
import sys
from types import SimpleNamespace

import node_info as module
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import probe
from core_support import compiled, modes, program, put

IP = json.dumps(
    [
        {"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}]},
        {"ifname": "down0", "addr_info": []},
        {"ifname": "none0"},
        {"ifname": "ib0", "addr_info": [{"local": "10.0.0.5"}, {"local": "10.0.0.6"}]},
    ]
)


def answer(code=0, out="", err=""):
    """Return a `run` that answers every call alike."""
    return lambda argv: (code, out, err)


def test_addresses_in_the_kernels_order():
    assert probe.addresses(answer(0, IP)) == [
        {"interface": "lo", "address": "127.0.0.1"},
        {"interface": "ib0", "address": "10.0.0.5"},
        {"interface": "ib0", "address": "10.0.0.6"},
    ]
    assert probe.addresses(answer(1)) == [] and probe.addresses(answer(0, "")) == []


def test_names_are_asked_of_the_nodes_own_resolver_in_bounded_time():
    asked = []
    listing = "10.0.0.5 STREAM h\n10.0.0.5 DGRAM\n127.0.1.1 STREAM\n\n"
    assert probe.resolves_to(lambda argv: asked.append(argv) or (0, listing, ""), "h") == [
        "10.0.0.5",
        "127.0.1.1",
    ]
    assert (
        asked == [["timeout", "5", "getent", "ahostsv4", "h"]]
        and probe.resolves_to(answer(124, "10.0.0.5 x"), "h") == []
    )


def test_the_route_to_the_first_peer_that_can_be_routed_to():
    assert probe.route_source(["256.0.0.1", "127.0.0.1"]) == "127.0.0.1"
    assert probe.route_source([]) is None and probe.route_source(["no such host name"]) is None


def test_what_a_python_of_the_users_own_has_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "PLAN_PATH", str(tmp_path / "none"))
    program(tmp_path, "python3.11", "true")
    program(tmp_path, "python3", "true")
    assert probe.python_words(str(tmp_path / "python3.11")) == ["python3"]
    assert probe.python_words(str(tmp_path / "gone")) == []


@pytest.mark.parametrize(
    "lacking, words",
    [("rsync", "rsync"), ("ssh", "openssh-client"), ("systemd-run", "systemd"), ("ip", "iproute2")],
)
def test_a_missing_program_is_named_by_its_package(monkeypatch, lacking, words):
    monkeypatch.setattr(
        shutil, "which", lambda name, path=None: None if name == lacking else "/usr/bin/" + name
    )
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    assert probe.missing(answer(), "me") == [words]


@pytest.mark.parametrize(
    "place, lacks", [("/usr/local/bin", []), ("/usr/bin", []), ("/usr/sbin", ["openmpi-bin"])]
)
def test_a_launcher_is_looked_for_where_the_plan_finds_it(monkeypatch, place, lacks):
    here = dict.fromkeys(
        probe.NEEDED_PROGRAMS, "/usr/sbin"
    )  # what the node's own tools need is the system's
    here["mpirun"] = place
    monkeypatch.setattr(
        shutil, "which", lambda name, path: here[name] if here[name] in path.split(":") else None
    )
    monkeypatch.setattr(os.path, "exists", lambda path: True)
    assert probe.missing(answer(), "me", {"mpirun": "openmpi-bin"}) == lacks
    path = compiled(count=1, devices=1)["nodes"][0]["env"]["PATH"]
    assert path.split(":", 1)[1] == probe.PLAN_PATH


def test_lingering_and_a_user_manager_are_needed(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: "/usr/bin/" + name)
    monkeypatch.setattr(os.path, "exists", lambda path: path != "/var/lib/systemd/linger/me")
    assert probe.missing(answer(1), "me") == ["lingering for me", "a running systemd user manager"]


def test_only_complete_environments_count(tmp_path):
    whole, half = (json.dumps({"digest": digit * 64, "fingerprint": "f"}) for digit in "dh")
    put(
        tmp_path,
        {
            "env/a/.trainyard.json": whole,
            "env/a/bin/python": "",
            "env/half/.trainyard.json": half,
            "env/unmarked/bin/python": "",
        },
    )
    assert (
        probe.environments(str(tmp_path)) == {"d" * 64: "f"}
        and probe.environments(str(tmp_path / "none")) == {}
    )


@pytest.fixture
def base(tmp_path):
    """A node that holds a tree."""
    root = put(tmp_path / "base", {"code/x/tools/train.py": "1"})
    entries = manifest.scan(os.path.join(root, "code/x"))
    digest = manifest.digest(entries)
    os.rename(os.path.join(root, "code/x"), os.path.join(root, "code", digest[:16]))
    return root, digest


def test_module_tells_everything_and_changes_nothing(run_module, base, tmp_path, monkeypatch):
    root, digest = base
    unit = "trainyard-20261120-103501-ppyoloe-1f2e-1.service"
    tools = program(
        tmp_path / "bin",
        "systemctl",
        f'case "$2" in list-units) echo "{unit} loaded active running Trainyard run X";; esac',
    )
    program(tools, "ip", f"echo '{IP}'")
    program(tools, "getent", 'echo "10.0.0.5 STREAM $2"')
    monkeypatch.setenv("PATH", tools + os.pathsep + os.environ["PATH"])
    facts = run_module(
        module,
        {
            "base": root,
            "trees": [{"kind": "code", "digest": digest}, {"kind": "data", "digest": "0" * 64}],
            "peers": ["127.0.0.1"],
        },
        check=True,
    )["facts"]
    account = pwd.getpwuid(os.getuid())
    assert {
        key: facts[key] for key in ("hostname", "home", "base", "user", "uid", "python_version")
    } == {
        "hostname": socket.gethostname(),
        "home": account.pw_dir,
        "base": root,
        "user": account.pw_name,
        "uid": account.pw_uid,
        "python_version": "%d.%d" % sys.version_info[:2],
    }
    assert (
        facts["addresses"] == probe.addresses(answer(0, IP))
        and facts["route_source"] == "127.0.0.1"
        and facts["resolves_to"] == ["10.0.0.5"]
    )
    held = {"unit": unit, "state": "active", "description": "Trainyard run X"}
    assert [{key: item[key] for key in held} for item in facts["units"]] == [held] and facts[
        "units"
    ][0]["mine"]
    assert facts["trees"] == {
        "code/" + digest[:16]: {"ok": True, "present": True, "differences": []},
        "data/" + "0" * 16: {"ok": False, "present": False, "differences": []},
    }
    assert (
        facts["environments"] == {}
        and facts["cores"] >= 1
        and facts["mesh"]["present"] in (True, False)
    )
    # the cache of digests is the only thing it may leave
    assert [name for name in modes(root) if "." not in name.strip(".")] and not [
        name for name in modes(root) if name.startswith(("env", "staging", "runs"))
    ]


def test_module_on_a_bare_node_names_what_is_missing(run_module, tmp_path, monkeypatch):
    """No ip, no getent, no systemctl: the answer is still a list of what provision.yml has to
    bring.
    """
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    # AnsibleModule looks in the system's sbin folders, too
    monkeypatch.setattr(
        module.AnsibleModule,
        "run_command",
        lambda *_args, **more: (
            (_ for _ in ()).throw(FileNotFoundError(2, "No such file", "systemctl"))
            if more.get("handle_exceptions") is False
            else pytest.fail("would end the module")
        ),
    )
    facts = run_module(module, {"base": str(tmp_path)})["facts"]
    assert (
        "a running systemd user manager" in facts["missing"]
        and facts["addresses"] == []
        and facts["units"] == []
        and facts["resolves_to"] == []
    )


@pytest.mark.parametrize("answer", [{"facts": {}}, {"failed": True, "msg": "x"}])
def test_what_a_login_prints_is_asked_where_a_node_answered(load_plugin, monkeypatch, answer):
    plugin = load_plugin("action", "node_info")
    monkeypatch.setattr(plugin.login_output, "read", lambda connection: f"hello {connection.host}")
    task = SimpleNamespace(args={}, async_val=0, check_mode=False, action="node_info")
    connection = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp"), host="node1")
    action = plugin.ActionModule(task, connection, None, None, None)
    monkeypatch.setattr(action, "_execute_module", lambda **_arguments: dict(answer))
    result = action.run(task_vars={"inventory_hostname": "node1"})
    assert result.get("facts", {}).get("login") == ("hello node1" if "facts" in answer else None)
