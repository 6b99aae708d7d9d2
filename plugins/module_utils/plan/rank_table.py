# SPDX-License-Identifier: Apache-2.0
"""The rank table of a training on Ascend (contract D4-D7, D9).

It is compiled from the nodes' answers, validated, named and written as upstream does. Rules and
names are those of hccl_tools.py and merge_hccl.py (mindspore-ai/models, utils/hccl_tools): devices
of a server follow one another, inside 0-3, inside 4-7, or all eight; several servers are merged in
order with ranks counted through. That 1, 2, 4 or 8 of a server's devices take part, and equally
many of each, is HCCL's own rule for the Atlas training series. Nothing here has run on Ascend
hardware.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re

VERSION, STATUS, HOST_NIC_IP = "1.0", "completed", "reserve"
TABLE_KEYS = ("version", "server_count", "server_list", "status")
SERVER_KEYS = ("server_id", "device", "host_nic_ip")
DEVICE_KEYS = ("device_id", "device_ip", "rank_id")
COUNTS = (1, 2, 4, 8)
PER_SERVER = 8
GROUP = 4  # devices 0-3 and 4-7 are two networks; only all eight together span both
# The one loopback address that is accepted, in a table of one server: the upstream documentation's
# own example has it, and no rank connects to it.
DOCUMENTED_LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class RankTableError(Exception):
    """Nodes or a file without a valid rank table.

    .problems holds every reason as a sentence.
    """

    def __init__(self, problems):
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def compile_table(nodes):
    """Return the table of nodes.

    nodes: in the order of the ranks, each {name, server_id (its address), devices (ids in order),
    device_ips ({device id: address})}. Raises RankTableError with every problem, under the nodes'
    names.
    """
    servers, rank = [], 0
    for node in nodes:
        addresses = {
            str(device): address for device, address in (node.get("device_ips") or {}).items()
        }
        devices = []
        for device in node.get("devices") or []:
            name = str(device)
            address = str(addresses.get(name) or "")
            devices.append({"device_id": name, "device_ip": address, "rank_id": str(rank)})
            rank += 1
        server_id = str(node.get("server_id") or "")
        servers.append({"server_id": server_id, "device": devices, "host_nic_ip": HOST_NIC_IP})
    table = {
        "version": VERSION,
        "server_count": str(len(servers)),
        "server_list": servers,
        "status": STATUS,
    }
    problems = validate(table, [str(node["name"]) for node in nodes])
    if problems:
        raise RankTableError(problems)
    return table


def text(table):
    """Return the table as the JSON text that hccl_tools.py writes.

    It has four spaces of indentation and no line end after the last brace.
    """
    return json.dumps(table, indent=4)


def file_name(table):
    """Return the table's file name.

    hccl_tools.py names the table of one server so, and merge_hccl.py that of several.
    """
    servers = table["server_list"]
    ranks = sum(len(server["device"]) for server in servers)
    if len(servers) > 1:
        return f"hccl_{len(servers)}s_{ranks}p.json"
    devices = "".join(device["device_id"] for device in servers[0]["device"])
    return f"hccl_{ranks}p_{devices}_{servers[0]['server_id']}.json"


def rank_environment(table, rank, path):
    """Return the variables of one rank's process as texts, in D7's order.

    DEVICE_NUM counts the devices of the rank's own server, RANK_SIZE those of all. On several
    servers SERVER_ID is the server's index in the list, as in upstream's scripts for several
    machines. MindSpore reads the table, RANK_ID, DEVICE_ID and RANK_SIZE. The other two are for the
    user's scripts. Raises RankTableError for a rank that is not in the table.
    """
    servers = table["server_list"]
    matches = [
        (index, device)
        for index, server in enumerate(servers)
        for device in server["device"]
        if device["rank_id"] == str(rank)
    ]
    if not matches:
        raise RankTableError([f"the rank table has no rank {rank}"])
    index, device = matches[0]
    size = sum(len(server["device"]) for server in servers)
    environment = {
        "DEVICE_NUM": str(len(servers[index]["device"])),
        "RANK_SIZE": str(size),
        "RANK_TABLE_FILE": str(path),
    }
    if len(servers) > 1:
        environment["SERVER_ID"] = str(index)
    return dict(environment, DEVICE_ID=device["device_id"], RANK_ID=device["rank_id"])


def parse(content):
    """Return the value of a user's table text.

    Raises RankTableError where it is not JSON or has a key twice.
    """
    doubled = []

    def pairs(items):
        """Return an object, and note the keys that it has twice."""
        names = [name for name, _value in items]
        doubled.extend(sorted({name for name in names if names.count(name) > 1}))
        return dict(items)

    try:
        table = json.loads(content, object_pairs_hook=pairs)
    except RecursionError:
        raise RankTableError(["it is nested too deeply for a rank table"]) from None
    except ValueError as error:
        raise RankTableError([f"it is no JSON: {error}"]) from None
    if doubled:
        raise RankTableError(
            [f"the key {_shown(name)} stands twice in one place" for name in doubled]
        )
    return table


def advice(table):
    """Return what a user should know of a valid table, as sentences."""
    servers = table["server_list"]
    if len(servers) < 2 or len(servers[0]["device"]) == PER_SERVER:
        return []
    return [
        f"{len(servers)} servers with {len(servers[0]['device'])} devices each: HCCL takes 1, 2, 4"
        " or 8 of every server, MindSpore's tutorial only speaks of 8"
    ]


def differences(table, expected):
    """Return how a valid table differs from the one of the nodes, as sentences."""
    if len(table["server_list"]) != len(expected["server_list"]):
        return [
            f"it has {table['server_count']} servers, the nodes make {expected['server_count']}"
        ]
    result = []
    for index, (server, node) in enumerate(zip(table["server_list"], expected["server_list"])):
        if server["server_id"] != node["server_id"]:
            result.append(
                f"server {index} is {server['server_id']}, the node of this rank is"
                f" {node['server_id']}"
            )
        result += _device_differences(server, node)
    return result


def _device_differences(server, node):
    """Return how a server's devices differ from its node's, as sentences."""
    result, name = [], server["server_id"]
    table_ips = {device["device_id"]: device["device_ip"] for device in server["device"]}
    node_ips = {device["device_id"]: device["device_ip"] for device in node["device"]}
    if list(table_ips) != list(node_ips):
        result.append(
            f"{name} has the devices {', '.join(table_ips)}, its node {', '.join(node_ips)}"
        )
    for device, address in table_ips.items():
        if device in node_ips and address != node_ips[device]:
            result.append(f"{name} device {device} is {address}, its node says {node_ips[device]}")
    return result


def usable_ipv4(value):
    """Return whether a text is an IPv4 address that can be reached from elsewhere.

    It must have its usual spelling.
    """
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:
        return False
    # Python before 3.9.5 takes 192.168.1.010 for 192.168.1.10; others read it as octal.
    if str(address) != value or address.is_loopback or address.is_unspecified:
        return False
    return not address.is_multicast and not address.is_reserved


def validate(table, names=None):
    """Return every problem of a table as a sentence.

    A table without one is valid for HCCL. table: any value, as read from a file. names: of the
    servers in messages, in their order (default: index and server_id).
    """
    if not isinstance(table, dict):
        keys = ", ".join(TABLE_KEYS)
        return [f"the table is {_shown(table)}; wanted an object with {keys}"]
    problems = _keys(table, TABLE_KEYS, "the table")
    problems += _constant(table, "version", VERSION, "the table")
    problems += _constant(table, "status", STATUS, "the table")
    servers = table.get("server_list", [])
    if not isinstance(servers, list) or (not servers and "server_list" in table):
        return problems + [
            f"server_list is {_shown(servers)}; wanted a list with at least one server"
        ]
    problems += _constant(table, "server_count", str(len(servers)), "the table")
    if not names:
        names = [_server_name(index, server) for index, server in enumerate(servers)]
    state = {"rank": 0, "addresses": {}, "miscounted": False, "server_ids": {}, "counts": {}}
    for index, server in enumerate(servers):
        problems += _server(server, names[index], len(servers), state)
    counts = state["counts"]
    if len(set(counts.values())) > 1:
        pairs = ", ".join(f"{name} {count}" for name, count in counts.items())
        problems.append(f"every server must bring equally many devices; got {pairs}")
    return problems


def _server(server, name, count, state):
    """Return the problems of one server.

    count: of all servers. state: over all servers, the next rank, the owners of device_ips and
    server_ids, the numbers of devices, and whether a rank_id was wrong.
    """
    if not isinstance(server, dict):
        keys = ", ".join(SERVER_KEYS)
        return [f"{name} is {_shown(server)}; wanted an object with {keys}"]
    problems = _keys(server, SERVER_KEYS, name)
    problems += _constant(server, "host_nic_ip", HOST_NIC_IP, name)
    problems += _server_id(server, name, count, state["server_ids"])
    devices = server.get("device", [])
    if not isinstance(devices, list) or (not devices and "device" in server):
        return problems + [
            f"{name}: device is {_shown(devices)}; wanted a list with at least one device"
        ]
    state["counts"][name] = len(devices)
    return problems + _devices(devices, name, state)


def _devices(devices, server, state):
    """Return the problems of one server's devices.

    server: its name. state: see `_server`.
    """
    problems, numbers = [], []
    for index, device in enumerate(devices):
        rank = str(state["rank"])
        state["rank"] += 1
        if not isinstance(device, dict):
            keys = ", ".join(DEVICE_KEYS)
            problems.append(
                f"{server}: device[{index}] is {_shown(device)}; wanted an object with {keys}"
            )
            continue
        number = _bare(device.get("device_id", f"[{index}]"))
        name = f"{server} device {number}"
        problems += _keys(device, DEVICE_KEYS, name)
        if re.fullmatch(f"[0-{PER_SERVER - 1}]", _text_of(device, "device_id")):
            numbers.append(int(device["device_id"]))
        elif "device_id" in device:
            value = _shown(device["device_id"])
            problems.append(f'{server}: device_id is {value}; wanted a text "0" to "7"')
        problems += _device_ip(device, name, state["addresses"])
        if "rank_id" in device and device["rank_id"] != rank and not state["miscounted"]:
            state["miscounted"] = True  # every one after it would be named too
            problems.append(
                f'{name}: rank_id is {_shown(device["rank_id"])}; wanted the text "{rank}": ranks'
                " count from 0 through all servers in their order"
            )
    if len(numbers) == len(devices):
        problems += _order(numbers, server)
    return problems


def _order(numbers, server):
    """Return the problems of the choice of a server's devices. server: its name."""
    problems = []
    text = ", ".join(str(number) for number in numbers)
    if len(numbers) not in COUNTS:
        problems.append(
            f"{server}: HCCL takes 1, 2, 4 or 8 devices of a server; got {len(numbers)} ({text})"
        )
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        problems.append(f"{server}: devices must follow one another in rising order; got {text}")
    elif numbers[0] < GROUP <= numbers[-1] and len(numbers) != PER_SERVER:
        problems.append(
            f"{server}: devices 0-3 and 4-7 are separate networks: all in one of them, or all"
            f" eight; got {text}"
        )
    return problems


def _device_ip(device, name, owners):
    """Return the problem of a device's address, if any, and note its owner."""
    if "device_ip" not in device:
        return []
    value = device["device_ip"]
    if value == "":
        number = _bare(device.get("device_id", "N"))
        return [
            f"{name} has no address; on the node, as root: hccn_tool -i {number} -ip -s address"
            " ADDRESS netmask MASK"
        ]
    if not isinstance(value, str) or not usable_ipv4(value):
        return [
            f"{name}: device_ip is {_shown(value)}; wanted an IPv4 address that other devices reach"
        ]
    if value in owners:
        return [f"{name}: device_ip {value} is that of {owners[value]} too"]
    owners[value] = name
    return []


def _server_id(server, name, count, owners):
    """Return the problems of a server's id, and note its owner. count: of all servers."""
    if "server_id" not in server:
        return []
    value = server["server_id"]
    if not _is_server_id(value):
        return [
            f"{name}: server_id is {_shown(value)}; wanted the server's IPv4 address or a plain"
            " name"
        ]
    is_loopback = "localhost" in value.lower().split(".")
    if _is_ipv4(value):
        is_loopback = ipaddress.IPv4Address(value).is_loopback
    problems = []
    if is_loopback and (count > 1 or value != DOCUMENTED_LOOPBACK):
        problems.append(
            f"{name}: server_id {value} is a loopback address, the same on every machine; wanted"
            " the server's own"
        )
    elif not is_loopback and _is_ipv4(value) and not usable_ipv4(value):
        problems.append(
            f"{name}: server_id {value} is an address that no machine can have; wanted the server's"
            " own"
        )
    if value in owners:
        problems.append(f"{name}: server_id {value} is that of {owners[value]} too")
    owners.setdefault(value, name)
    return problems


def _is_server_id(value):
    """Return whether a value is a plain name.

    One of digits and dots must be an address.
    """
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        return False
    return not re.fullmatch(r"[0-9.]+", value) or _is_ipv4(value)


def _keys(value, known, name):
    """Return the missing and the unknown keys of an object as problems."""
    problems = [f"{name}: {key} is missing" for key in known if key not in value]
    for key in value:
        if key not in known:
            hint = ""
            near = difflib.get_close_matches(str(key), known, n=1)
            if near:
                hint = f"; did you mean '{near[0]}'?"
            problems.append(f"{name}: unknown key {_shown(key)}{hint}")
    return problems


def _constant(value, key, expected, name):
    """Return a problem where a key has another value than the wanted text."""
    if key not in value or value[key] == expected:
        return []
    return [f'{name}: {key} is {_shown(value[key])}; wanted the text "{expected}"']


def _is_ipv4(value):
    try:
        return str(ipaddress.IPv4Address(value)) == value
    except ValueError:
        return False


def _server_name(index, server):
    """Return the name of a file's server for messages."""
    name = f"server_list[{index}]"
    if isinstance(server, dict) and _NAME.fullmatch(_text_of(server, "server_id")):
        name += f" ({server['server_id']})"
    return name


def _text_of(value, key):
    if isinstance(value.get(key), str):
        return value[key]
    return ""


def _bare(value):
    """Return a value without the quotes of a harmless text."""
    if isinstance(value, str) and re.fullmatch(r"[\w.\[\]-]{1,40}", value, re.ASCII):
        return value
    return _shown(value)


def _shown(value):
    """Return any value as one short line of plain ASCII."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = ascii(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return text
