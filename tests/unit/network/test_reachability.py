# SPDX-License-Identifier: Apache-2.0
"""Who connects to whom, and what real answers of faulty networks are judged to be
(tests/fixtures/network/README.md).
"""

from __future__ import annotations

import copy
import json

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.network import node_check
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as core
from ansible_collections.trainyard.cluster.plugins.plugin_utils.network import (
    link_quality,
    reachability,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import forced_interfaces
from core_support import ROOT, compiled, gang


def recorded(name):
    data = json.loads((ROOT / "tests" / "fixtures" / "network" / (name + ".json")).read_text())
    return data["plan"], data["results"]


def judged(name, **allowed):
    made, results = recorded(name)
    return reachability.judge(made, results, allowed)


def said(found, level="stop"):
    return [item for item in found if item["level"] == level]


# --- who connects to whom


@pytest.mark.parametrize("count", [2, 3, 4, 64])
def test_ring_and_star_are_linear_and_every_round_is_a_permutation(count):
    names = ["n%d" % number for number in range(count)]
    wanted = {name: node_check.peers_of(names, name) for name in names}
    assert all(
        name not in peers and len(set(peers)) == len(peers) <= 3 for name, peers in wanted.items()
    )
    assert all("n0" in peers for name, peers in wanted.items() if name != "n0")  # the star
    assert all(
        {names[at - 1], names[(at + 1) % count]} <= set(wanted[name])
        for at, name in enumerate(names)
    )  # the ring, both ways
    for rounds in (
        [node_check.receivers_of(names, name) for name in names],
        [node_check.receivers_of(names, name, matrix=True) for name in names],
    ):
        for turn in zip(*rounds):
            assert sorted(turn) == sorted(names) and all(
                name != to for name, to in zip(names, turn)
            )
    assert all(
        sorted(node_check.peers_of(names, name, matrix=True) + [name]) == sorted(names)
        for name in names
    )


def test_the_ports_that_ranks_meet_at():
    made = compiled(count=2, devices=8)
    assert reachability.listening_ports(made) == [17000, 17007] and reachability.meeting_ports(
        made
    ) == [17000]
    made = compiled(
        count=2, devices=2, accelerator="gpu", job={"launcher": "paddle", "rendezvous": "master"}
    )
    assert reachability.listening_ports(made) == [
        17000,
        17001,
        17064,
    ] and reachability.meeting_ports(made) == [
        17000,
        17001,
        17064,
    ]
    made["launcher"]["name"] = "mpirun"
    assert (
        reachability.meeting_ports(made) == []
    )  # Open MPI takes ephemeral ports; on CPU MindSpore's scheduler listens on the start port
    made["scheduler"] = {"node": "node1"}
    assert 17000 in reachability.meeting_ports(made)


# --- real answers


def test_a_good_network_stops_nothing_and_is_shown():
    found = judged("good")
    assert not said(found)
    notes = said(found, "note")
    assert [item["nodes"] for item in notes] == [["node1"], ["node2"], ["node3"]]
    assert {item["code"] for item in notes} == {"network.measured"}
    assert notes[0]["text"].startswith("eth0 198.51.100.131, ")
    assert all(
        part in notes[0]["text"] for part in ("MTU 1500; no HCA; ", "to node2 ", "3 nodes at once")
    )


@pytest.mark.parametrize(
    "name, words, remedy",
    [
        ("start_port_dropped",
         "nobody (tried: node2, node3) reaches node1 at 198.51.100.131, port 17000: no answer, while ping works and SSH answers; reached: 32768",
         "let TCP 17000 from 198.51.100.132, 198.51.100.133 into node1 (198.51.100.131)"),
        ("ephemeral_dropped", "reaches node2 at 198.51.100.132, ports 32768, ", "let TCP 32768-60999 from"),
        ("one_way", "node1 cannot reach node2 at 198.51.100.132, any port of it: no answer, while ping works; the other direction works",
         "let TCP 17000, 32768-60999 from 198.51.100.131 into node2"),
        ("cut_off", "node3 reaches nobody and nobody reaches it at 198.51.100.133 on eth0: no answer",
         "ip -br address show eth0"),
        ("wrong_machine", "node1 cannot reach node2 at 198.51.100.132, any port of it: another machine answers",
         "node3 answers at 198.51.100.132"),
    ],
)  # fmt: skip
def test_one_fault_is_one_finding(name, words, remedy):
    found = said(judged(name))
    assert len(found) == 1 and words in found[0]["text"] and remedy in found[0]["remedy"], (
        findings.lines(found)
    )
    assert not said(judged(name), "warn")


def test_a_black_hole_is_named_both_ways():
    found = said(judged("black_hole"))
    assert [item["code"] for item in found] == ["network.large_packets_lost"] * 2
    assert "ping -M do" in found[0]["remedy"]


def test_a_port_where_no_rank_listens_is_a_warning():
    made, results = recorded("start_port_dropped")
    made["nodes"] = made["nodes"][1:] + made["nodes"][:1]  # now node2 is the first
    found = reachability.judge(made, results, {})
    assert not said(found) and said(found, "warn")[0]["code"] == "network.port_filtered"
    assert "no rank listens" in said(found, "warn")[0]["text"]
    assert "paddle" in said(found, "warn")[0]["text"]


@pytest.mark.parametrize("why", ["large", "wrong"])
def test_what_every_port_of_a_way_has_in_common_stops_wherever_it_was_met(why):
    made, results = recorded("start_port_dropped")
    made["nodes"] = (
        made["nodes"][1:] + made["nodes"][:1]
    )  # no rank listens on the port that failed, as above
    for name in ("node2", "node3"):
        results[name]["unreached"][0].update(why=why, text="node9")
    found = reachability.judge(made, results, {})
    assert len(said(found)) == 1 and not said(found, "warn"), findings.lines(found)


@pytest.mark.parametrize(
    "why, words",
    [
        (
            "unroutable",
            (
                "on node1: ip route get 198.51.100.132; give trainyard_address a network that all"
                " nodes share; a firewall that rejects"
            ),
        ),
        (
            "stranger",
            (
                "a proxy or another program answers on the way to node2 (198.51.100.132): ss -ltnp"
                " there"
            ),
        ),
        (
            "forbidden",
            "a rule for outgoing connections on node1: nft list chain inet filter output",
        ),
        ("source", "on node1: ip -br address; then run the check again"),
    ],
)
def test_each_reason_has_its_own_remedy(why, words):
    made, results = recorded("one_way")
    for row in results["node1"]["unreached"]:
        row["why"] = why
    (found,) = said(reachability.judge(made, results, {}))
    assert found["remedy"].startswith(words) and reachability.WHY[why] in found["text"]


def test_a_node_that_reaches_nobody_though_it_is_reached_is_one_finding():
    made, results = recorded("cut_off")
    for name in ("node1", "node2"):
        results[name]["reached"]["node3"] = [row["port"] for row in results[name]["unreached"]]
        results[name]["unreached"] = []
    (found,) = said(reachability.judge(made, results, {}))
    assert (found["nodes"], found["code"]) == (["node3"], "network.outgoing_blocked")
    assert "198.51.100.133 on eth0" in found["text"]
    assert "leaves node3: " in found["remedy"] and "nft list ruleset" in found["remedy"]
    assert found["remedy"].endswith("route get 198.51.100.131")


def test_a_node_whose_ephemeral_ports_are_all_taken():
    made, results = recorded("good")
    results["node2"]["own"]["listening"]["ephemeral"] = []
    (found,) = said(reachability.judge(made, results, {}))
    assert (found["nodes"], found["code"]) == (["node2"], "network.no_ephemeral_port")
    assert "32768 and 60999" in found["text"] and "198.51.100.132" in found["text"]


def test_a_node_that_comes_with_another_address_is_warned_of():
    made, results = recorded("good")
    results["node1"]["seen_as"] = {"node2": "192.0.2.1", "node3": "192.0.2.1"}
    found = reachability.judge(made, results, {})
    (warned,) = said(found, "warn")
    assert not said(found) and warned["code"] == "network.translated"
    assert warned["text"].startswith("node1 ") and "node2, node3 as" in warned["text"]
    assert " 192.0.2.1 " in warned["text"] and warned["text"].endswith(" 198.51.100.131")
    assert "(NAT)" in warned["remedy"] and warned["nodes"] == ["node1"]


def test_a_node_that_did_not_take_part_is_named():
    made, results = recorded("good")
    results["node2"] = {
        "unreachable": True,
        "msg": "ssh: connect to host 198.51.100.132 port 22: No route to host",
    }
    results["node3"]["own"]["listening"] = None
    results["node3"]["own"]["msg"] = "the user's systemd does not answer"
    found = said(reachability.judge(made, results, {}))
    words = [(item["code"], item["nodes"], item["text"].split(": ", 1)[1]) for item in found]
    assert words[0] == ("network.no_answer", ["node2"], results["node2"]["msg"])
    assert words[1] == ("network.no_answer", ["node3"], results["node3"]["own"]["msg"])
    results["node2"] = {"msg": " \n", "module_stderr": "\n"}
    assert said(reachability.judge(made, results, {}))[0]["text"].endswith(": no reason was given")


@pytest.mark.parametrize("how", ["rival", "met"])
def test_another_check_that_two_nodes_speak_of_is_one_finding_and_nothing_else(how):
    """All that two checks do to each other: ends listeners (refused, reset), takes ports, makes
    logins fail.
    """
    made, results = recorded("start_port_dropped")
    results["node2"]["own"]["listening"]["failed"] = {"17000": "Address already in use"}
    results["node3"] = {
        "msg": "[Errno 104] Connection reset by peer",
        "rival": {"id": "5f2a", "seconds": 7},
    }
    if how == "met":
        results["node1"]["unreached"] = [
            {"to": "node2", "port": 17000, "why": "other", "text": "5f2a", "age": 7}
        ]
    else:
        results["node1"]["rival"] = {"id": "5f2a", "seconds": 7}
    found = reachability.judge(made, results, {})
    assert [(item["level"], item["code"], item["nodes"]) for item in found] == [
        ("stop", "network.other_check", ["node1", "node3"])
    ]
    assert "(5f2a), since 7 s" in found[0]["text"]
    assert found[0]["remedy"].startswith("run this one again ")
    results["node1"]["rival"] = {"id": "", "seconds": 46}
    results["node3"]["rival"]["id"] = "x\n[ok]" if how == "rival" else "5f2a"
    text = reachability.judge(made, results, {})[0]["text"]
    assert "), since 46 s" in text and ("(5f2a)" in text) is (how == "met")
    assert ("(its id is not known)" in text) is (how == "rival")


@pytest.mark.parametrize("how", ["rival", "met"])
def test_another_check_that_one_node_alone_speaks_of_is_that_nodes_trouble(how):
    made, results = recorded("start_port_dropped")
    if how == "met":
        results["node3"]["unreached"] = [
            {"to": "node2", "port": 17000, "why": "other", "text": "5f2a", "age": 7}
        ]
    else:
        results["node3"]["rival"] = {"id": "5f2a", "seconds": 7}
        results["node1"]["reached"].pop("node3")
        results["node1"]["unreached"] = [
            {"to": "node3", "port": 17000, "why": "refused", "text": ""}
        ]
    found = reachability.judge(made, results, {})
    # it may be node3 that is wrong, or node2
    assert [item["nodes"] for item in found if "5f2a" in item["text"]] == [
        ["node3"] if how == "rival" else ["node3", "node2"]
    ]
    assert said(found)
    # what the others found of each other is said all the same
    assert ["node1", "node2"] in [item["nodes"] for item in said(found)]
    assert how == "rival" or ["node2", "node3"] not in [item["nodes"] for item in found]
    assert how == "met" or [item["nodes"] for item in found if "node3" in item["nodes"]] == [
        ["node3"]
    ]


def test_another_check_that_one_node_alone_is_said_to_have_blames_none_of_those_that_say_so():
    made, results = recorded("good")
    for name in ("node1", "node3"):
        results[name]["unreached"] = [
            {"to": "node2", "port": 17000, "why": "other", "text": "5f2a", "age": 7}
        ]
    assert [item["nodes"] for item in said(reachability.judge(made, results, {}))] == [["node2"]]


def test_an_address_that_one_peer_alone_has_seen_is_about_both():
    made, results = recorded("good")
    results["node1"]["seen_as"] = {"node2": "192.0.2.1"}
    assert [item["nodes"] for item in said(reachability.judge(made, results, {}), "warn")] == [
        ["node1", "node2"]
    ]


@pytest.mark.parametrize("back", [True, False])
def test_one_peer_that_lies_leaves_no_node_cut_off(back):
    """node3 did not take part, node2 lies: node1 has but one peer left, and what fails between two
    is about both.
    """
    made, results = recorded("good")
    row = {"port": 17000, "why": "hello", "text": ""}
    results["node1"].update(reached={}, unreached=[dict(row, to="node2")])
    results["node2"].update(
        reached={} if back else {"node1": [17000]},
        unreached=[dict(row, to="node1")] if back else [],
    )
    results["node3"] = {"msg": "no answer"}
    named = [item["nodes"] for item in said(reachability.judge(made, results, {}))]
    assert ["node1"] not in named and ["node3"] in named and ["node2", "node1"] in named


# --- many nodes


def many(count):
    """Return plan and results of so many nodes, made of the recorded ones of a good network."""
    made, results = recorded("good")
    names = ["n%d" % number for number in range(1, count + 1)]
    made["nodes"] = [
        dict(made["nodes"][0], name=name, address="198.51.100.%d" % at)
        for at, name in enumerate(names, 1)
    ]
    result = results["node1"]
    row = {
        "rtt": 1e-4,
        "offset": 0.0,
        "mss": 1448,
        "path_mtu": 1500,
        "gbits": 2.0,
        "together": count,
    }
    return made, {
        name: dict(
            copy.deepcopy(result),
            edges={names[(at + 1) % count]: dict(row)},
            reached={names[(at + 1) % count]: [17000]},
            unreached=[],
            seen_as={},
        )
        for at, name in enumerate(names)
    }


def test_few_nodes_have_a_row_each_and_many_one_of_all():
    assert len(said(reachability.judge(*many(8), {}), "note")) == 8
    made, results = many(32)
    results["n3"]["edges"]["n4"].update(gbits=0.6, rtt=0.0031)
    results["n7"]["edges"]["n8"].update(gbits=None)
    results["n9"]["edges"]["n10"].update(gbits=4.0)
    del results["n11"]["edges"]["n12"]["gbits"], results["n11"]["edges"]["n12"]["together"]
    results["n11"]["edges"]["n12"]["late"] = True
    notes = said(reachability.judge(made, results, {}), "note")
    assert len(notes) == 1 and notes[0]["nodes"] == list(results)
    text = notes[0]["text"]
    assert notes[0]["code"] == "network.measured"
    assert all(
        part in text
        for part in (
            "eth0, MTU 1500, no HCA ",
            "on all 32 nodes; ",
            "30 ways, ",
            " 32 nodes at once",
            "slowest n3 to n4 0.6 ",
            "median 2, fastest 4;",
            "median 0.10 ms, ",
            "worst 3.10 ms (n3 to n4)",
            "2 of 32 ways not",
        )
    )
    assert ", 1 " in text.rpartition("2 of 32 ways")[2]


def test_unequal_nodes_are_shown_in_groups():
    made, results = many(12)
    results["n5"]["own"]["interface"] = {"name": "eth0", "mtu": 9000}
    for name in ("n6", "n7"):
        results[name]["own"]["hcas"] = [{"name": "mlx5_0", "port": "1", "state": "4: ACTIVE"}]
    text = said(reachability.judge(made, results, {}), "note")[0]["text"]
    first, second, third = text.split("; ")[:3]
    assert first.startswith("eth0, MTU 1500, no HCA ") and first.endswith(" on 9 nodes")
    assert "MTU 1500, " in second and "mlx5_0:1 " in second and second.endswith(" on n6, n7")
    assert third.endswith("MTU 9000, no HCA on n5")
    for at, name in enumerate(results):
        results[name]["own"]["interface"]["mtu"] = 1000 + at
    text = said(reachability.judge(made, results, {}), "note")[0]["text"]
    assert "; 8 more kinds on " in text and text.count("MTU") == 4


def test_a_start_port_that_cannot_be_taken():
    made, results = recorded("good")
    for name in results:
        results[name]["own"]["listening"]["failed"] = {"17000": "Address already in use"}
    found = said(reachability.judge(made, results, {}))
    assert (
        [item["nodes"] for item in found] == [["node1"]]
        and "port 17000" in found[0]["text"]
        and "Address already in use" in found[0]["text"]
    )


# --- what the ways carry


def edges(**rows):
    """Return results of nodes on one way each: {name: edge to the next}."""
    names = list(rows)
    return {
        name: {"edges": {names[(at + 1) % len(names)]: dict({"rtt": 1e-4, "offset": 0.0, "together": 3}, **row)}, "own": {"interface": {"mtu": 1500}}}
        for at, (name, row) in enumerate(rows.items())
    }  # fmt: skip


@pytest.mark.parametrize(
    "heard, allowed, level, words",
    [
        (edges(a={"gbits": 9.0}, b={"gbits": 0.5}), {"bandwidth": "1"}, "stop", "b to a: 0.5 Gbit/s; wanted at least 1"),
        (edges(a={"gbits": None}, b={"gbits": 2}), {"bandwidth": 1}, "stop", "a to b: no bandwidth could be measured"),
        (edges(a={"gbits": 9.0}, b={"gbits": 8.0}, c={"gbits": 1.0}), {}, "warn", "c to a: 1 Gbit/s, and half of all ways carry 8 or more"),
        (edges(a={"path_mtu": 1400}, b={"path_mtu": 1500}), {}, "warn",
         "a to b: packets of more than 1400 bytes are lost, and the interfaces have MTU 1500"),
        (edges(a={"path_mtu": 0}, b={"path_mtu": 1500}), {}, "note", "a to b: no UDP comes through, so the path MTU is not known"),
        (edges(a={"offset": 3600.0}, b={"offset": -3600.0}), {"clock_seconds": {"stop": 30, "warn": 2}}, "stop",
         "b's clock is 3600.0 s ahead of a's; allowed 30 s"),
        (edges(a={"offset": -3.0}, b={}), {"clock_seconds": {"stop": 30, "warn": 2}}, "warn",
         "b's clock is 3.0 s behind a's; allowed 2 s"),
    ],
)  # fmt: skip
def test_what_a_way_must_carry(heard, allowed, level, words):
    found = link_quality.judge(heard, allowed)
    assert len(found) == 1 and found[0]["level"] == level and words in found[0]["text"], (
        findings.lines(found)
    )


def test_no_floor_and_equal_ways_say_nothing():
    rows = edges(
        a={"gbits": 1.0, "path_mtu": 1500},
        b={"gbits": 0.3, "path_mtu": 1500},
        c={"gbits": 1.0, "path_mtu": 1500},
    )
    assert (
        link_quality.judge(rows, {"bandwidth": 0, "clock_seconds": {"stop": 30, "warn": 2}}) == []
    )


def test_unequal_mtu_is_a_warning():
    rows = edges(a={"path_mtu": 1500}, b={"path_mtu": 1500})
    rows["b"]["own"]["interface"]["mtu"] = 9000
    assert [
        (item["level"], "1500 on a; 9000 on b" in item["text"])
        for item in link_quality.judge(rows, {})
    ] == [("warn", True)]


# --- what the site forces


@pytest.mark.parametrize(
    "text, exact, meant",
    [
        ("eth0", True, ["eth0"]), ("eth", True, []), ("eth", False, ["eth0", "eth1"]), ("=eth", False, []), ("^eth", False, ["lo", "ib0"]),
        ("^=eth0", False, ["lo", "eth1", "ib0"]), ("ib0,eth1", False, ["eth1", "ib0"]), ("", False, []),
    ],
)  # fmt: skip
def test_interface_lists_are_read_as_nccl_reads_them(text, exact, meant):
    assert forced_interfaces.match_names(text, ["lo", "eth0", "eth1", "ib0"], exact) == meant


SECOND = {"node1": "192.168.9.1", "node2": "192.168.9.2"}


@pytest.mark.parametrize(
    "env, extra, levels",
    [
        ({}, SECOND, []),
        ({"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}, SECOND, []),
        ({"NCCL_SOCKET_IFNAME": "^docker,lo"}, SECOND, []),
        ({"GLOO_SOCKET_IFNAME": "eth9"}, SECOND, ["stop", "stop"]),
        ({"GLOO_SOCKET_IFNAME": "lo"}, SECOND, ["stop", "stop"]),
        (
            {"NCCL_SOCKET_IFNAME": "ib"},
            dict.fromkeys(SECOND, "172.17.0.1"),
            ["stop", "stop"],
        ),  # a bridge of the same address everywhere
        ({"NCCL_SOCKET_IFNAME": "ib"}, SECOND, ["warn", "warn"]),
        ({"NCCL_SOCKET_IFNAME": "ib"}, {"node1": "192.168.9.1"}, ["stop", "warn"]),
    ],
)
def test_a_forced_interface(env, extra, levels):
    arguments = gang(count=2)
    arguments["site"]["env"] = env
    for name, address in extra.items():
        arguments["facts"][name]["addresses"].append({"interface": "ib0", "address": address})
    made = core.compile_plan(**copy.deepcopy(arguments))
    assert (
        sorted(item["level"] for item in forced_interfaces.judge_forced(made, arguments["facts"]))
        == levels
    )


def test_a_forced_adapter_must_be_there_and_active():
    made = compiled(count=2)
    rows = {
        "node1": [{"name": "mlx5_0", "port": "1", "state": "4: ACTIVE"}],
        "node2": [{"name": "mlx5_0", "port": "1", "state": "1: DOWN"}],
    }
    assert forced_interfaces.judge_adapters(made, rows) == []
    made["env"]["NCCL_IB_HCA"] = "=mlx5_0:1"
    assert [item["nodes"] for item in forced_interfaces.judge_adapters(made, rows)] == [["node2"]]
    made["env"]["NCCL_IB_HCA"] = "mlx4"
    assert [
        item["nodes"] for item in forced_interfaces.judge_adapters(made, dict(rows, node2=None))
    ] == [["node1"]]
    made["env"]["NCCL_IB_DISABLE"] = "1"
    assert forced_interfaces.judge_adapters(made, rows) == []
