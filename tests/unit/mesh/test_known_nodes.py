# SPDX-License-Identifier: Apache-2.0
"""Nodes of the mesh as the controller knows them: a hostile description changes nothing of what the
peers get.
"""

from __future__ import annotations

import json
import random

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh import known_nodes, ssh_config
from unit.mesh.test_primitives import CA, host_key, node

NAMES = ["node1", "node2", "node3"]
STATE = {
    "present": False, "site": "s" * 200, "digest": None, "inventory": None, "nodes": [],
    "valid_until": None, "proven": None, "stale": [],
    "authority": {}, "carried": False,
}  # fmt: skip
FOUND = {
    "ssh_directory": False,
    "mesh_directory": False,
    "replace_key": False,
    "authorized_keys_mode": "0600",
}
HOSTS = {name: "198.51.100.%d" % (11 + at) for at, name in enumerate(NAMES)}


@pytest.fixture
def controller(tmp_path):
    """Return what the controller makes of the nodes' descriptions; its known_hosts pins the hosts
    of the inventory.
    """
    pinned = tmp_path / "known_hosts"
    pinned.write_text(
        "".join(f"{host} {host_key(at + 1)}\n" for at, host in enumerate(HOSTS.values()))
    )

    def make(*said, known_hosts=None, **inventory):
        if known_hosts is not None:
            pinned.write_text(known_hosts)
        return known_nodes.merge_nodes(
            NAMES[: len(said)],
            dict({"hosts": HOSTS}, **inventory),
            said,
            [str(pinned)],
            commands.run_program,
        )

    return make


def texts_of(nodes):
    """Return everything that a compiled mesh writes on the peers, or None where it is refused."""
    mesh, problems = ssh_config.compile_mesh(nodes, "local", CA)
    if problems:
        return None
    return "\n".join(
        [mesh["known_hosts"], mesh["config"], *mesh["lines"], *mesh["principals"].values()]
    )


def test_honest_nodes_are_as_they_say(controller):
    assert controller(node(1), node(2)) == [node(1), node(2)]


HOSTILE = {
    "name": ["node1", "x\n  ProxyCommand touch /tmp/evil", "*", ""],
    "host": ["0.0.0.0/0", "*", "x\n  ProxyCommand id", "198.51.100.11"],
    "address": [
        "0.0.0.0/0",
        "0.0.0.0",
        "10.0.0.9",
        "198.51.100.11",
        "*",
        "x\n  ProxyCommand id",
        "::",
        "",
        None,
        7,
        ["198.51.100.12"],
        "a" * 9999,
    ],
    "addresses": [
        ["0.0.0.0/0"],
        ["*", "10.0.0.9", "198.51.100.11"],
        ["198.51.100.12\n"],
        "198.51.100.11",
        None,
        [None, {}],
        ["10.0.0.1"] * 9999,
    ],
    "port": [0, -1, 2222, "22\n  ProxyCommand id", None, "22", 10**9],
    "host_keys": [
        ["* " + host_key(9)],
        [host_key(9)],
        [host_key(1)],
        ["x\n* " + host_key(9)],
        [],
        None,
        "ssh-rsa x",
        [None],
    ],
    "user": ["root", "trainer\n  ProxyCommand id", "a b", "", None, ["trainer"]],
    "identity": ["x", "a\n", None, 5],
    "home": ["../../x", "x\n", None],
    "site": ["other", "x\nevil", None],
    "inventory": [["node1", "198.51.100.11", 22, ""], None, "x"],
    "problems": [["\x1b[2J\n"] * 999, "text", None],
}
CASES = [(field, value) for field, values in HOSTILE.items() for value in values]


def evil(text):
    """Whether a text gives a peer anything but the three nodes of the inventory."""
    rows = text.splitlines()
    own = {"198.51.100.11", "198.51.100.12", "198.51.100.13"}
    sources = [
        set(line.split('from="')[1].split('"')[0].split(",")) for line in rows if "from=" in line
    ]
    hosts = [line.split()[1] for line in rows if line.startswith("  HostName ")]
    keys = {
        (line.split()[0].split(",")[0], " ".join(line.split()[1:3]))
        for line in rows
        if " ssh-ed25519 " in line and "from=" not in line
    }
    return [
        *[
            word
            for word in ("ProxyCommand", "0.0.0.0", "*", "\x1b", "10.0.0.9")
            if word in text.replace("Host *\n", "")
        ],
        *[found for at, found in enumerate(sources) if found != {sorted(own)[at]}],
        *[host for host in hosts if host not in own],
        *(keys - {(name, host_key(at + 1)) for at, name in enumerate(NAMES)}),
    ]


@pytest.mark.parametrize(("field", "value"), CASES, ids=lambda item: repr(item)[:30])
def test_a_hostile_description_is_refused_or_changes_nothing(controller, field, value):
    said = dict(node(2), **{field: value})
    try:
        nodes = controller(node(1), said, node(3))
    except (TypeError, AttributeError) as error:
        pytest.fail(f"the controller's own code failed: {error}")
    assert [item["name"] for item in nodes] == NAMES and nodes[0] == node(1) and nodes[2] == node(3)
    text = texts_of(nodes)
    assert text is None or evil(text) == []
    if text is None:
        # The refusal names the node that lies.
        assert nodes[1]["problems"] or (field, value) in (
            ("site", "other"),
            ("user", "root"),
        )


def test_hostile_descriptions_by_chance(controller):
    """Several fields at once, 300 times: what the peers get is refused or that of the inventory."""
    chance, wrong = random.Random(7), 0
    for _time in range(300):
        fields = chance.sample(sorted(HOSTILE), chance.randint(1, 5))
        text = texts_of(
            controller(
                node(1),
                dict(node(2), **{field: chance.choice(HOSTILE[field]) for field in fields}),
                node(3),
            )
        )
        wrong += bool(text and evil(text))
    assert wrong == 0


@pytest.mark.parametrize("said", [None, [], "x", 5, {}])
def test_a_description_that_is_none_at_all(controller, said):
    nodes = controller(node(1), said)
    assert nodes[1]["name"] == "node2" and nodes[1]["problems"] and texts_of(nodes) is None


@pytest.mark.parametrize(
    ("wanted", "said", "address"),
    [
        ("10.1.0.7", "10.9.9.9", "10.1.0.7"),  # the inventory's own word
        ("10.1.0.0/16", "10.1.0.7", "10.1.0.7"),
        ("10.1.0.0/16", "10.9.0.7", None),
        ("10.1.0.0/16", "198.51.100.12", None),
        ("", "198.51.100.12", "198.51.100.12"),
        ("", "10.1.0.7", None),
    ],
)
def test_an_address_is_held_against_the_inventory(controller, wanted, said, address):
    found = controller(node(1), dict(node(2), address=said), addresses={"node2": wanted})[1]
    assert (found["address"] or None, bool(found["problems"])) == (address, address is None)
    # A fabric address has the keys of the same machine.
    assert found["host_keys"] == [host_key(2)]


def test_a_host_that_the_controller_cannot_resolve_leaves_the_address_to_the_node(controller):
    pinned = f"gpu-b.invalid {host_key(2)}\n198.51.100.11 {host_key(1)}\n"
    hosts = dict(HOSTS, node2="gpu-b.invalid")
    found = controller(
        node(1),
        dict(node(2), host="x", address="10.1.0.7", addresses=["10.1.0.7", "198.51.100.11"]),
        known_hosts=pinned,
        hosts=hosts,
    )
    assert (found[1]["address"], found[1]["host"], found[1]["problems"]) == (
        "10.1.0.7",
        "gpu-b.invalid",
        [],
    )
    # Another node's address is not added.
    assert found[1]["addresses"] == ["10.1.0.7"]


def test_ports_come_from_the_inventory(controller):
    assert (
        controller(node(1), dict(node(2), port=2222), ssh_ports={"node2": 2200})[1]["port"] == 2200
    )
    found = controller(node(1), dict(node(2), port=2222))[1]
    assert found["port"] == 22 and "ssh_trust_port" in found["problems"][0]


def test_only_pinned_host_keys_are_handed_on(controller):
    assert controller(node(1), dict(node(2), host_keys=[host_key(66)]))[1]["host_keys"] == [
        host_key(2)
    ]
    found = controller(node(1), node(2), known_hosts=f"198.51.100.11 {host_key(1)}\n")[1]
    assert found["host_keys"] == [] and "no host key" in found["problems"][0]


def test_behind_an_authority_of_hosts_a_node_adds_nothing_but_keys(controller):
    pinned = f"@cert-authority * {host_key(50)}\n"
    assert controller(
        node(1), dict(node(2), host_keys=["* " + host_key(9), host_key(2)]), known_hosts=pinned
    )[1]["host_keys"] == [host_key(2)]


@pytest.mark.parametrize(
    "user", ["1234567", "CORP\\alice", "first+last", "alice@corp.example", "host$", "a" * 253]
)
def test_an_account_that_a_mesh_may_have_passes_the_gate(controller, user):
    said = node(2, user=user, site="s" * 200)
    answer = {"node": said, "state": STATE, "held": {}, "found": FOUND, "changed": False}
    passed = answer_gate.validate(
        "ssh_mesh_node", json.loads(json.dumps(answer)), {"name": "node2"}
    )["node"]
    assert passed == said and controller(node(1, user=user), passed)[1]["problems"] == []


@pytest.mark.parametrize(
    "user", ["", "-oProxyCommand=id", "a b", "a\n", "a" * 300, "a$b", "a;id", "../x"]
)
def test_what_is_no_account_is_refused_by_gate_and_mesh(controller, user):
    answer = {
        "node": node(2, user=user),
        "state": STATE,
        "held": {},
        "found": FOUND,
        "changed": False,
    }
    with pytest.raises(answer_gate.InvalidAnswer, match="node.user"):
        answer_gate.validate("ssh_mesh_node", answer, {"name": "node2"})
    assert controller(node(1), node(2, user=user))[1]["problems"]


def test_a_user_is_the_inventorys(controller):
    assert controller(node(1), dict(node(2), user="root"), users={"node2": "trainer"})[1][
        "problems"
    ]
