# SPDX-License-Identifier: Apache-2.0
"""Rank tables: the table of the upstream documentation byte for byte (contract D4-D7), one and many
servers, and bad tables. Each bad table is refused with its reason.
"""

from __future__ import annotations

import copy
import json
import re
import stat

import hccl_rank_table as module
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import rank_table as core

# The file of the upstream documentation, built without a JSON writer. The text around the values is
# written out here.
HEAD = """{
    "version": "1.0",
    "server_count": "1",
    "server_list": [
        {
            "server_id": "127.0.0.1",
            "device": [
"""
DEVICE = """                {
                    "device_id": "%d",
                    "device_ip": "%s",
                    "rank_id": "%d"
                }"""
TAIL = """
            ],
            "host_nic_ip": "reserve"
        }
    ],
    "status": "completed"
}"""
DOCUMENT_IPS = ["192.168.100.101", "192.168.101.101", "192.168.102.101", "192.168.103.101"]
DOCUMENT_IPS += ["192.168.100.100", "192.168.101.100", "192.168.102.100", "192.168.103.100"]
DOCUMENT = HEAD + ",\n".join(DEVICE % (n, ip, n) for n, ip in enumerate(DOCUMENT_IPS)) + TAIL


def node(number, devices=range(8), **changes):
    """Return node number with some devices, as the plan knows it."""
    ips = {
        str(device): "192.168.%d.%d" % (100 + device % 4, 2 * number + device // 4)
        for device in devices
    }
    made = {
        "name": "node%d" % number,
        "server_id": "10.0.0.%d" % number,
        "devices": [str(d) for d in devices],
        "device_ips": ips,
    }
    return dict(made, **changes)


def table(count=1, devices=range(8)):
    """Return a good table."""
    return core.compile_table([node(number + 1, devices) for number in range(count)])


def changed(path, value, count=1):
    """Return a good table of count servers in which one place was changed; a value of KeyError
    takes the key away.
    """
    made = copy.deepcopy(table(count))
    *way, last = path
    at = made
    for step in way:
        at = at[step]
    if value is KeyError:
        del at[last]
    else:
        at[last] = value
    return made


def test_the_documents_table_byte_for_byte():
    made = core.compile_table(
        [
            node(
                1,
                server_id="127.0.0.1",
                device_ips={str(n): ip for n, ip in enumerate(DOCUMENT_IPS)},
            )
        ]
    )
    assert core.text(made) == DOCUMENT
    assert (
        core.file_name(made) == "hccl_8p_01234567_127.0.0.1.json"
    )  # of the two spellings upstream, the one of the tool
    assert core.parse(DOCUMENT) == made and core.validate(json.loads(DOCUMENT)) == []


@pytest.mark.parametrize(
    "devices, name",
    [
        (range(0, 1), "hccl_1p_0_10.0.0.1.json"),
        (range(7, 8), "hccl_1p_7_10.0.0.1.json"),
        (range(1, 3), "hccl_2p_12_10.0.0.1.json"),
        (range(6, 8), "hccl_2p_67_10.0.0.1.json"),
        (range(0, 4), "hccl_4p_0123_10.0.0.1.json"),
        (range(4, 8), "hccl_4p_4567_10.0.0.1.json"),
        (range(0, 8), "hccl_8p_01234567_10.0.0.1.json"),
    ],
)
def test_one_server(devices, name):
    made = table(1, devices)
    assert core.file_name(made) == name and core.advice(made) == []
    # Ranks count from 0 whatever the first device is.
    assert [(d["device_id"], d["rank_id"]) for d in made["server_list"][0]["device"]] == [
        (str(d), str(n)) for n, d in enumerate(devices)
    ]


@pytest.mark.parametrize("count, name", [(2, "hccl_2s_16p.json"), (4, "hccl_4s_32p.json")])
def test_servers_are_merged_in_their_order_with_ranks_counted_through(count, name):
    made = core.compile_table([node(number) for number in range(count, 0, -1)])
    assert (
        core.file_name(made) == name
        and made["server_count"] == str(count)
        and core.advice(made) == []
    )
    assert [server["server_id"] for server in made["server_list"]] == [
        "10.0.0.%d" % number for number in range(count, 0, -1)
    ]
    assert [d["rank_id"] for server in made["server_list"] for d in server["device"]] == [
        str(rank) for rank in range(8 * count)
    ]


def test_fewer_than_eight_devices_of_several_servers_are_taken_with_a_word():
    assert re.findall(r"\d \w+", core.advice(table(2, range(2)))[0])[:2] == [
        "2 servers",
        "2 devices",
    ]


# -- refused: each with its reason --


DEVICE_0 = ("server_list", 0, "device", 0)
SECOND = ("server_list", 1)


def ids(*numbers):
    """Return a table whose only server has these devices."""
    made = table()
    made["server_list"][0]["device"] = [
        {"device_id": str(d), "device_ip": "192.168.1.%d" % (n + 1), "rank_id": str(n)}
        for n, d in enumerate(numbers)
    ]
    return made


def uneven():
    """Return a table whose second server has fewer devices."""
    made = table(2)
    del made["server_list"][1]["device"][4:]
    return made


@pytest.mark.parametrize(
    "bad, reason",
    [
        ([], "the table is []; wanted an object with version, server_count, server_list, status"),
        (changed(["version"], "1.2"), 'the table: version is "1.2"; wanted the text "1.0"'),
        (changed(["version"], 1.0), 'the table: version is 1.0; wanted the text "1.0"'),
        (changed(["status"], "initializing"), 'the table: status is "initializing"; wanted the text "completed"'),
        (changed(["status"], KeyError), "the table: status is missing"),
        (changed(["server_count"], "2"), 'the table: server_count is "2"; wanted the text "1"'),
        (changed(["server_count"], 1), 'the table: server_count is 1; wanted the text "1"'),
        (changed(["server_list"], []), "server_list is []; wanted a list with at least one server"),
        (changed(["server_list"], {"a": 1}), 'server_list is {"a": 1}; wanted a list'),
        (changed(["server_list", 0], "10.0.0.1"), 'server_list[0] is "10.0.0.1"; wanted an object with server_id, device, host_nic_ip'),
        (changed(["serverlist"], []), "the table: unknown key \"serverlist\"; did you mean 'server_list'?"),
        (changed(["server_list", 0, "host_nic_ip"], "eth0"), 'server_list[0] (10.0.0.1): host_nic_ip is "eth0"; wanted the text "reserve"'),
        (changed(["server_list", 0, "container_ip"], "x"), 'unknown key "container_ip"'),
        (changed(["server_list", 0, "server_id"], "10.0.0.300"), 'server_id is "10.0.0.300"; wanted the server\'s IPv4 address'),
        # it becomes part of a file name
        (changed(["server_list", 0, "server_id"], "../../etc/x"), 'server_id is "../../etc/x"; wanted'),
        (changed(["server_list", 0, "server_id"], "127.0.1.1"), "server_id 127.0.1.1 is a loopback address, the same on every machine"),
        (changed(["server_list", 0, "server_id"], "localhost"), "server_id localhost is a loopback address"),
        (changed(["server_list", 0, "server_id"], "localhost.localdomain"), "server_id localhost.localdomain is a loopback address"),
        (changed(["server_list", 0, "server_id"], "node1.LOCALHOST"), "server_id node1.LOCALHOST is a loopback address"),
        (changed(["server_list", 0, "server_id"], "0.0.0.0"), "server_id 0.0.0.0 is an address that no machine can have"),
        (changed(["server_list", 0, "server_id"], "255.255.255.255"), "server_id 255.255.255.255 is an address that no machine can have"),
        (changed([*SECOND, "server_id"], "224.0.0.1", 2), "server_list[1] (224.0.0.1): server_id 224.0.0.1 is an address that no machine"),
        (changed([*SECOND, "server_id"], "127.0.0.1", 2), "server_list[1] (127.0.0.1): server_id 127.0.0.1 is a loopback address"),
        (changed([*SECOND, "server_id"], "10.0.0.1", 2), "server_id 10.0.0.1 is that of server_list[0] (10.0.0.1) too"),
        (changed(["server_list", 0, "device"], []), "device is []; wanted a list with at least one device"),
        (changed(["server_list", 0, "device"], "0,1"), 'device is "0,1"; wanted a list'),
        (changed(DEVICE_0, "0"), 'device[0] is "0"; wanted an object with device_id, device_ip, rank_id'),
        (changed([*DEVICE_0, "device_id"], "8"), 'device_id is "8"; wanted a text "0" to "7"'),
        (changed([*DEVICE_0, "device_id"], 0), 'device_id is 0; wanted a text "0" to "7"'),
        (changed([*DEVICE_0, "device_ip"], KeyError), "device 0: device_ip is missing"),
        (changed([*DEVICE_0, "device_ip"], ""), "device 0 has no address; on the node, as root: hccn_tool -i 0 -ip -s address"),
        (changed([*DEVICE_0, "device_ip"], "192.168.100.256"), 'device 0: device_ip is "192.168.100.256"; wanted an IPv4 address'),
        (changed([*DEVICE_0, "device_ip"], "fe80::1"), 'device 0: device_ip is "fe80::1"; wanted an IPv4 address'),
        (changed([*DEVICE_0, "device_ip"], "192.168.100.010"), 'device_ip is "192.168.100.010"; wanted an IPv4 address'),
        (changed([*DEVICE_0, "device_ip"], "127.0.0.1"), 'device_ip is "127.0.0.1"; wanted an IPv4 address that other devices reach'),
        (changed([*DEVICE_0, "device_ip"], "0.0.0.0"), 'device_ip is "0.0.0.0"; wanted an IPv4 address that other devices reach'),
        (changed([*DEVICE_0, "device_ip"], "192.168.101.2"), "device 1: device_ip 192.168.101.2 is that of server_list[0] (10.0.0.1) device 0 too"),
        (changed([*SECOND, "device", 3, "device_ip"], "192.168.100.2", 2), "device 3: device_ip 192.168.100.2 is that of server_list[0]"),
        (changed([*DEVICE_0, "rank_id"], 0), 'device 0: rank_id is 0; wanted the text "0"'),
        # What an older merge_hccl.py writes (numbers), and what a join by hand forgets (both
        # servers from 0).
        (changed([*SECOND, "device", 0, "rank_id"], 8, 2), 'rank_id is 8; wanted the text "8": ranks count from 0 through all servers'),
        (changed([*SECOND, "device", 0, "rank_id"], "0", 2), 'rank_id is "0"; wanted the text "8": ranks count from 0 through all servers'),
        (ids(0, 1, 2), "HCCL takes 1, 2, 4 or 8 devices of a server; got 3 (0, 1, 2)"),
        (ids(0, 2), "devices must follow one another in rising order; got 0, 2"),
        (ids(1, 0), "devices must follow one another in rising order; got 1, 0"),
        (ids(0, 0), "devices must follow one another in rising order; got 0, 0"),
        (ids(3, 4), "devices 0-3 and 4-7 are separate networks: all in one of them, or all eight; got 3, 4"),
        (ids(2, 3, 4, 5), "devices 0-3 and 4-7 are separate networks"),
        (uneven(), "every server must bring equally many devices; got server_list[0] (10.0.0.1) 8, server_list[1] (10.0.0.2) 4"),
    ],
)  # fmt: skip
def test_a_bad_table_is_refused_with_its_reason(bad, reason):
    problems = core.validate(bad)
    assert any(reason in problem for problem in problems), problems
    assert len(problems) == 1  # nothing else is wrong with it, and one mistake is not said twice


def test_a_second_server_that_counts_from_0_again_is_one_mistake():
    made = table(2)
    for device in made["server_list"][1]["device"]:
        device["rank_id"] = device["device_id"]
    assert len(core.validate(made)) == 1


def test_every_problem_is_said_at_once():
    made = changed(["version"], "2", 2)
    made["server_list"][1]["device"][5]["device_ip"] = made["server_list"][0]["device"][0][
        "device_ip"
    ]
    made["server_list"][1]["server_id"] = "127.0.0.1"
    assert len(core.validate(made)) == 3


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "x",
        True,
        [[]],
        {"server_list": [None, 3, {"device": [None, []]}]},
        {"server_list": [{"device": 1}]},
    ],
)
def test_no_value_breaks_the_check(value):
    assert core.validate(value)


def test_what_a_file_says_cannot_drive_the_terminal():
    problems = core.validate(changed([*DEVICE_0, "device_ip"], "\x1b[2J\u202e")) + core.validate(
        {"\x1b]0;x\x07": 1}
    )
    assert problems and all(problem.isascii() and problem.isprintable() for problem in problems)


@pytest.mark.parametrize(
    "content, reason",
    [
        ("", "it is no JSON: Expecting value: line 1 column 1"),
        (DOCUMENT[:-2], "it is no JSON: Expecting ',' delimiter: line 52"),
        (DOCUMENT.replace('"status"', '"version"'), 'the key "version" stands twice in one place'),
        ("[" * 100000, "it is nested too deeply"),
    ],
)
def test_a_text_that_is_no_table(content, reason):
    with pytest.raises(core.RankTableError, match="^" + reason.replace("(", "[(]")):
        core.parse(content)


@pytest.mark.parametrize(
    "nodes, reason",
    [
        ([], "server_list is []"),
        (
            [node(1), node(2, device_ips={})],
            "node2 device 3 has no address; on the node, as root: hccn_tool -i 3 -ip -s",
        ),
        (
            [node(1, server_id="0.0.0.0")],
            "node1: server_id 0.0.0.0 is an address that no machine can have",
        ),
        (
            [node(1), node(2, server_id="127.0.1.1")],
            "node2: server_id 127.0.1.1 is a loopback address",
        ),
        (
            [node(1), node(2, server_id="10.0.0.1")],
            "node2: server_id 10.0.0.1 is that of node1 too",
        ),
        (
            [node(1), node(2, device_ips=node(1)["device_ips"])],
            "node2 device 7: device_ip 192.168.103.3 is that of node1 device 7 too",
        ),
        (
            [node(1), node(2, range(4))],
            "every server must bring equally many devices; got node1 8, node2 4",
        ),
        ([node(1, [3, 4])], "node1: devices 0-3 and 4-7 are separate networks"),
        ([node(1, server_id=None)], 'node1: server_id is ""; wanted'),
    ],
)
def test_nodes_that_make_no_table_are_named(nodes, reason):
    with pytest.raises(core.RankTableError) as caught:
        core.compile_table(nodes)
    assert any(reason in problem for problem in caught.value.problems), caught.value.problems


def test_a_servers_name_is_taken():
    """Only the names of localhost itself are refused, not a name that contains the word."""
    for name in ("node1", "node1.example.org", "localhosts", "my-localhost.example.org"):
        assert core.validate(changed(["server_list", 0, "server_id"], name)) == []


# -- the environment of a rank (D7) --


def test_the_documents_environment_of_every_rank():
    made = table()
    for rank in range(8):
        found = core.rank_environment(made, rank, "./" + core.file_name(made))
        assert list(found.items()) == [
            ("DEVICE_NUM", "8"),
            ("RANK_SIZE", "8"),
            ("RANK_TABLE_FILE", "./hccl_8p_01234567_10.0.0.1.json"),
            ("DEVICE_ID", str(rank)),
            ("RANK_ID", str(rank)),
        ]


def test_a_ranks_device_is_the_tables_and_not_its_number():
    assert core.rank_environment(table(1, range(4, 8)), 1, "t")["DEVICE_ID"] == "5"


def test_on_several_servers_a_rank_knows_its_server():
    found = core.rank_environment(table(4), 19, "/r/t.json")
    wanted = {
        "DEVICE_NUM": "8",
        "RANK_SIZE": "32",
        "RANK_TABLE_FILE": "/r/t.json",
        "SERVER_ID": "2",
        "DEVICE_ID": "3",
        "RANK_ID": "19",
    }
    assert found == wanted
    with pytest.raises(core.RankTableError, match="no rank 32"):
        core.rank_environment(table(4), 32, "t")


# -- the module --


@pytest.fixture
def document(tmp_path):
    """The table of the upstream documentation as a user's file."""
    path = tmp_path / "mine.json"
    path.write_text(DOCUMENT)
    return path


def test_the_module_makes_a_table_and_writes_nothing_by_itself(run_module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_module(module, {"nodes": [node(1), node(2)]})
    assert (
        result["table"] == table(2)
        and result["file_name"] == "hccl_2s_16p.json"
        and result["changed"] is False
    )
    assert result["text"] == core.text(table(2)) and list(tmp_path.iterdir()) == []


def test_the_module_writes_once_whole_and_for_the_user_alone(run_module, tmp_path):
    given, wanted = (
        {"nodes": [node(1)], "dest": str(tmp_path)},
        tmp_path / "hccl_8p_01234567_10.0.0.1.json",
    )
    result = run_module(module, given, check=True)
    assert (
        result["changed"]
        and result["diff"]["before"] == ""
        and result["diff"]["after"] == core.text(table())
        and not wanted.exists()
    )
    assert run_module(module, given)["dest"] == str(wanted)
    assert wanted.read_text() == core.text(table()) and stat.S_IMODE(wanted.stat().st_mode) == 0o600
    assert run_module(module, given)["changed"] is False
    wanted.chmod(0o644)
    assert (
        run_module(module, given)["changed"] is True
        and stat.S_IMODE(wanted.stat().st_mode) == 0o600
    )
    assert list(tmp_path.iterdir()) == [wanted]


def test_a_bad_table_is_not_written(run_module, tmp_path):
    result = run_module(module, {"nodes": [node(1, [3, 4])], "dest": str(tmp_path / "t.json")})
    assert (
        result["failed"]
        and "node1: " in result["msg"]
        and "devices 0-3 and 4-7" in result["msg"]
        and list(tmp_path.iterdir()) == []
    )


def test_the_module_checks_a_users_file(run_module, document):
    assert (
        run_module(module, {"path": str(document)})["file_name"]
        == "hccl_8p_01234567_127.0.0.1.json"
    )
    document.write_text(DOCUMENT.replace('"7"', '"8"').replace("completed", "x"))
    result = run_module(module, {"path": str(document)})
    assert result["failed"] and f"{document}: " in result["msg"]
    assert 'status is "x"' in result["msg"] and 'device_id is "8"' in result["msg"]
    assert "No such file" in run_module(module, {"path": str(document) + "x"})["msg"]
    document.write_bytes(b"\xff\xfe")
    assert run_module(module, {"path": str(document)})["failed"]


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({}, None),
        ({"server_id": "10.0.0.9"}, "server 0 is 127.0.0.1, the node of this rank is 10.0.0.9"),
        ({"devices": ["0", "1", "2", "3"]}, "127.0.0.1 has the devices 0, 1, 2, 3, 4, 5, 6, 7, its node 0, 1, 2, 3"),
        ({"device_ips": dict(enumerate(DOCUMENT_IPS[:7] + ["192.168.9.9"]))}, "127.0.0.1 device 7 is 192.168.103.100, its node says 192.168.9.9"),
    ],
)  # fmt: skip
def test_a_users_file_must_be_the_table_of_the_nodes(run_module, document, changes, reason):
    mine = node(
        1, server_id="127.0.0.1", device_ips={str(n): ip for n, ip in enumerate(DOCUMENT_IPS)}
    )
    result = run_module(module, {"path": str(document), "nodes": [dict(mine, **changes)]})
    assert result.get("failed", False) == bool(reason) and (
        reason is None or reason in result["msg"]
    )
    said = run_module(module, {"path": str(document), "nodes": [node(1), node(2)]})["msg"]
    assert "1 servers" in said and "the nodes make 2" in said


def test_advice_is_a_warning(run_module):
    result = run_module(module, {"nodes": [node(1, range(2)), node(2, range(2))]})
    assert result["advice"] == core.advice(table(2, range(2))) and not result.get("failed")
    assert result["warnings"] == result["advice"] != []
