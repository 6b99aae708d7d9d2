# SPDX-License-Identifier: Apache-2.0
"""Whom the role runtime lets through a node's firewall, and what it reads of its own chain; the rules themselves are proven on real nodes."""

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from core_support import ROOT

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
    variables = {key: trust_as_template(value) if isinstance(value, str) else value for key, value in values.items()}
    return Templar(loader=DataLoader(), variables={**variables, **known}).template(variables[name])


def test_peers_are_the_addresses_of_the_training_network():
    hosts = {
        "node1": {"inventory_hostname": "node1", "ansible_host": "192.0.2.1", "trainyard_address": "10.0.0.1"},
        "node2": {"inventory_hostname": "node2", "ansible_host": "192.0.2.2"},
        "node3": {"inventory_hostname": "node3", "ansible_host": "gpu3.example"},
        "10.0.0.4": {"inventory_hostname": "10.0.0.4"},
    }
    known = {"groups": {"trainers": list(hosts)}, "hostvars": hosts}
    assert rendered("__runtime_firewall_peers", **known) == ["10.0.0.1", "10.0.0.4", "192.0.2.2", "gpu3.example"]
    assert rendered("__runtime_firewall_nameless", **known) == ["gpu3.example"]


def test_our_chain_is_read_as_the_peers_it_was_filled_with():
    known = {"__runtime_firewall_chain_read": {"stdout": LISTED, "rc": 0}}
    assert sorted(rendered("__runtime_firewall_chain_peers", **known)) == ["10.0.0.0/24", "198.51.100.151"]
    assert rendered("__runtime_firewall_chain_peers", __runtime_firewall_chain_read={"rc": 1}) == []


def test_a_chains_name_fits():
    assert len(rendered("__runtime_firewall_chain", trainyard_site="a-site-with-a-very-long-name")) <= 28
