# SPDX-License-Identifier: Apache-2.0
"""Whom the role runtime lets through a node's firewall, and what it reads of its own chain, what it
takes back.

The rules of iptables themselves are proven on real nodes (molecule/hostile).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from core_support import ROOT, collection

# `iptables --list-rules trainyard-installed` of a Debian 12 node, iptables v1.8.9 (nf_tables).
LISTED = """-N trainyard-installed
-A trainyard-installed -s 198.51.100.151/32 -p tcp -m comment --comment "trainyard installed" -j ACCEPT
-A trainyard-installed -s 10.0.0.0/24 -p tcp -m comment --comment "trainyard installed" -j ACCEPT
-A trainyard-installed -s 198.51.100.151/32 -p udp -m comment --comment "trainyard installed" -j ACCEPT
-A trainyard-installed -s 10.0.0.0/24 -p udp -m comment --comment "trainyard installed" -j ACCEPT
"""


def rendered(name, **known):
    """Return a private variable of the role as Ansible renders it."""
    values = yaml.safe_load((ROOT / "roles/runtime/vars/main.yml").read_text())
    variables = {
        key: trust_as_template(value) if isinstance(value, str) else value
        for key, value in values.items()
    }
    return Templar(loader=DataLoader(), variables={**variables, **known}).template(variables[name])


def test_peers_are_the_addresses_of_the_training_network():
    hosts = {
        "node1": {
            "inventory_hostname": "node1",
            "ansible_host": "192.0.2.1",
            "trainyard_address": "10.0.0.1",
        },
        "node2": {"inventory_hostname": "node2", "ansible_host": "192.0.2.2"},
        "node3": {"inventory_hostname": "node3", "ansible_host": "gpu3.example"},
        "10.0.0.4": {"inventory_hostname": "10.0.0.4"},
    }
    known = {"groups": {"trainers": list(hosts)}, "hostvars": hosts}
    assert rendered("__runtime_firewall_peers", **known) == [
        "10.0.0.1",
        "10.0.0.4",
        "192.0.2.2",
        "gpu3.example",
    ]
    assert rendered("__runtime_firewall_nameless", **known) == ["gpu3.example"]


def test_our_chain_is_read_as_the_peers_it_was_filled_with():
    known = {"__runtime_firewall_chain_read": {"stdout": LISTED, "rc": 0}}
    assert sorted(rendered("__runtime_firewall_chain_peers", **known)) == [
        "10.0.0.0/24",
        "198.51.100.151",
    ]
    assert rendered("__runtime_firewall_chain_peers", __runtime_firewall_chain_read={"rc": 1}) == []


def test_a_chains_name_fits():
    assert (
        len(rendered("__runtime_firewall_chain", trainyard_site="a-site-with-a-very-long-name"))
        <= 28
    )


# A stand-in for a collection's module: what it was told stands in a file, one line a call.
STAND_IN = """#!/usr/bin/python
import os
from ansible.module_utils.basic import AnsibleModule

module = AnsibleModule({name: {} for name in %r})
gone = module.params.get("delete") == "True" or module.params.get("state") == "disabled"
with open(os.environ["RULES"], "a") as handle:
    handle.write(("- " if gone else "+ ") + %r %% module.params + "\\n")
module.exit_json(changed=True)
"""
STAND_INS = {
    "community/general/plugins/modules/ufw.py": (
        ["rule", "from_ip", "proto", "comment", "delete"],
        "ufw %(rule)s %(from_ip)s %(proto)s",
    ),
    "ansible/posix/plugins/modules/firewalld.py": (
        ["rich_rule", "zone", "permanent", "immediate", "offline", "state"],
        "firewalld %(rich_rule)s",
    ),
}


def told(tmp_path, record, steps, good=True):
    """Run the role's own tasks on this machine, one step after the other; return what the firewalls
    were told.
    """
    for name, (arguments, rule) in STAND_INS.items():
        path = tmp_path / "collections/ansible_collections" / name
        path.parent.mkdir(parents=True)
        path.write_text(STAND_IN % (arguments, rule))
    # The module as it is, but for the folder of the records: root's own lies in /var/lib.
    source = (ROOT / "library/firewall_record.py").read_text()
    words = "root_records.Records(given[{}])".format('"site"')
    assert source.count(words) == 1
    mine = "root_records.Records(given['site'], %r, %d)" % (
        str(tmp_path / "trainyard"),
        os.getuid(),
    )
    collections = collection(tmp_path, {"firewall_record": source.replace(words, mine)})
    folder = tmp_path / "trainyard/site"
    folder.mkdir(parents=True)
    (folder / "firewall.json").write_text(record if isinstance(record, str) else json.dumps(record))
    tasks = [
        {
            "ansible.builtin.include_role": {
                "name": "runtime",
                "tasks_from": tasks_from,
                "rolespec_validate": False,
            },
            "vars": dict(known),
        }
        for tasks_from, known in steps
    ]
    known = {"ansible_become": False, "ansible_python_interpreter": sys.executable}
    (tmp_path / "play.yml").write_text(
        yaml.safe_dump(
            [{"hosts": "localhost", "gather_facts": False, "vars": known, "tasks": tasks}]
        )
    )
    environment = dict(
        os.environ,
        RULES=str(tmp_path / "rules"),
        ANSIBLE_COLLECTIONS_PATH=collections,
    )
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        "-i",
        "localhost,",
        "-c",
        "local",
        str(tmp_path / "play.yml"),
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode == 0) is good, done.stdout + done.stderr
    return (tmp_path / "rules").read_text().splitlines() if (tmp_path / "rules").exists() else []


def test_what_is_no_longer_wanted_is_taken_back(tmp_path):
    stood = {"tool": "ufw", "peers": ["10.0.0.1", "10.0.0.2"], "zone": ""}
    known = {"__runtime_firewall_peers": ["10.0.0.1"]}
    steps = [
        ("firewall", dict(known, runtime_firewall="ufw")),  # a node has left
        ("firewall", dict(known, runtime_firewall="firewalld")),  # the node has another firewall
        ("firewall_close", {}),
    ]
    ufw = "%s ufw allow %s %s"
    rich = '%s firewalld rule family="ipv4" source address="10.0.0.1" protocol value="%s" accept'
    assert told(tmp_path, stood, steps) == [
        *(ufw % ("-", "10.0.0.2", kind) for kind in ("tcp", "udp")),
        *(ufw % ("+", "10.0.0.1", kind) for kind in ("tcp", "udp")),
        *(ufw % ("-", "10.0.0.1", kind) for kind in ("tcp", "udp")),
        *(rich % ("+", kind) for kind in ("tcp", "udp")),
        *(rich % ("-", kind) for kind in ("tcp", "udp")),
    ]
    assert not (tmp_path / "trainyard").exists()


@pytest.mark.parametrize(
    "record",
    [
        {"tool": "ufw", "peers": ["0.0.0.0/0"], "zone": ""},
        {"tool": "../../../tmp/evil", "peers": ["10.0.0.1"], "zone": ""},
        {"tool": "ufw", "peers": ["10.0.0.1"], "zone": "", "more": "{{ lookup('pipe', 'id') }}"},
        {"tool": "firewalld", "peers": ["10.0.0.1"], "zone": 'x" accept'},
        "no JSON",
    ],
)
def test_a_record_that_root_did_not_write_changes_no_rule(tmp_path, record):
    step = ("firewall_close", {})
    if "peers" in record and "10.0.0.1" in record["peers"]:
        step = ("firewall", {"__runtime_firewall_peers": ["10.0.0.2"], "runtime_firewall": "ufw"})
    assert told(tmp_path, record, [step], good=False) == []
    assert (tmp_path / "trainyard/site/firewall.json").exists()


def test_a_chain_of_ours_is_filled_anew_and_goes_when_another_tool_is_asked_for():
    kept = {"record": {"peers": ["10.0.0.1", "10.0.0.2"], "tool": "iptables", "zone": ""}}
    known = {
        "__runtime_firewall_rules": kept,
        "__runtime_firewall_peers": ["10.0.0.1"],
        "runtime_firewall_zone": "",
    }
    assert (
        rendered("__runtime_firewall_gone", __runtime_firewall_tool="iptables", **known)["peers"]
        == []
    )
    assert rendered("__runtime_firewall_gone", __runtime_firewall_tool="ufw", **known)["peers"] == [
        "10.0.0.1",
        "10.0.0.2",
    ]


def test_a_site_that_asks_for_no_firewall_any_more_has_it_closed():
    tasks = yaml.safe_load((ROOT / "roles/runtime/tasks/system.yml").read_text())
    asked = {
        str((task.get("ansible.builtin.include_tasks") or {}).get("file")): task.get("when")
        for task in tasks
        if "apply" in str(task)
    }
    assert asked["firewall.yml"] == "runtime_firewall != 'none'"
    assert asked["firewall_close.yml"] == [
        "runtime_firewall == 'none'",
        "'firewall' in __runtime_system.records",
    ]


def test_a_locked_package_manager_is_told_from_other_refusals():
    words = rendered("__runtime_lock_words")
    for text in (
        "Could not get lock /var/lib/dpkg/lock-frontend",
        "Failed to lock apt for exclusive operation",
        "dnf lockfile is held by 77",
    ):
        assert re.search(words, text), text
    for text in (
        "the download was blocked by a proxy",
        "Release file is not valid yet (check the clock)",
        "no package libblockdev",
    ):
        assert not re.search(words, text), text
