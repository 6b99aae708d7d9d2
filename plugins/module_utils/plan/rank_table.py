# SPDX-License-Identifier: Apache-2.0
"""The rank table of a training on Ascend (contract D4-D7, D9): made from what the nodes say,
checked, named and written as upstream does.

Rules and names are those of hccl_tools.py and merge_hccl.py (mindspore-ai/models,
utils/hccl_tools): devices of a server follow one another, inside 0-3, inside 4-7, or all eight;
several servers are merged in order with ranks counted through. That 1, 2, 4 or 8 of a server's
devices take part, and equally many of each, is HCCL's own rule for the Atlas training series.
Nothing here has run on Ascend hardware.
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
# The one loopback address that is let through, on a table of one server: the document's own example
# has it, and nobody connects to it.
DOCUMENTED_LOOPBACK = "127.0.0.1"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")


class RankTableError(Exception):
    """Nodes or a file that make no rank table. `problems`: every one of them as a sentence."""

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
            devices.append(
                {
                    "device_id": str(device),
                    "device_ip": str(addresses.get(str(device)) or ""),
                    "rank_id": str(rank),
                }
            )
            rank += 1
        servers.append(
            {
                "server_id": str(node.get("server_id") or ""),
                "device": devices,
                "host_nic_ip": HOST_NIC_IP,
            }
        )
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
    """Return the table as the JSON text that hccl_tools.py writes: four spaces deep, no line end
    after the last brace.
    """
    return json.dumps(table, indent=4)


def file_name(table):
    """Return the name hccl_tools.py gives the table of one server, merge_hccl.py that of several."""
    servers = table["server_list"]
    ranks = sum(len(server["device"]) for server in servers)
    if len(servers) > 1:
        return "hccl_%ds_%dp.json" % (len(servers), ranks)
    return "hccl_%dp_%s_%s.json" % (
        ranks,
        "".join(device["device_id"] for device in servers[0]["device"]),
        servers[0]["server_id"],
    )


def rank_environment(table, rank, path):
    """Return the variables of one rank's process as texts, in the document's order (D7).

    DEVICE_NUM counts the devices of the rank's own server, RANK_SIZE those of all; on several
    servers SERVER_ID is the server's place in the list, as in upstream's scripts for several
    machines. MindSpore reads the table, RANK_ID, DEVICE_ID and RANK_SIZE; the other two are for the
    user's scripts.
    """
    servers = table["server_list"]
    found = [
        (index, device)
        for index, server in enumerate(servers)
        for device in server["device"]
        if device["rank_id"] == str(rank)
    ]
    if not found:
        raise RankTableError([f"the rank table has no rank {rank}"])
    index, device = found[0]
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
    """Return the value of a user's table text. Raises RankTableError where it is no JSON or says a
    key twice.
    """
    doubled = []

    def pairs(items):
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
        "%d servers with %d devices each: HCCL takes 1, 2, 4 or 8 of every server, MindSpore's"
        " tutorial only speaks of 8" % (len(servers), len(servers[0]["device"]))
    ]


def differences(table, expected):
    """Return how a valid table differs from the one the nodes say, as sentences."""
    if len(table["server_list"]) != len(expected["server_list"]):
        return [
            "it has {} servers, the nodes make {}".format(
                table["server_count"], expected["server_count"]
            )
        ]
    found = []
    for index, (server, other) in enumerate(zip(table["server_list"], expected["server_list"])):
        if server["server_id"] != other["server_id"]:
            found.append(
                "server %d is %s, the node of this rank is %s"
                % (index, server["server_id"], other["server_id"])
            )
        mine, theirs = (
            {device["device_id"]: device["device_ip"] for device in entry["device"]}
            for entry in (server, other)
        )
        if list(mine) != list(theirs):
            found.append(
                "{} has the devices {}, its node {}".format(
                    server["server_id"], ", ".join(mine), ", ".join(theirs)
                )
            )
        for device in (
            device for device in mine if device in theirs and mine[device] != theirs[device]
        ):
            found.append(
                "{} device {} is {}, its node says {}".format(
                    server["server_id"], device, mine[device], theirs[device]
                )
            )
    return found


def usable_ipv4(value):
    """Whether a text is an IPv4 address, in its usual spelling, at which others can reach its
    owner.
    """
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:
        return False
    # Python before 3.9.5 takes 192.168.1.010 for 192.168.1.10; others read it as octal.
    return str(address) == value and not (
        address.is_loopback or address.is_unspecified or address.is_multicast or address.is_reserved
    )


def validate(table, names=None):
    """Return every problem of a table as a sentence; none means it is fit for HCCL.

    table: any value, as read from a file. names: what to call the servers, in their order (default:
    place and server_id).
    """
    if not isinstance(table, dict):
        return [
            "the table is {}; wanted an object with {}".format(_shown(table), ", ".join(TABLE_KEYS))
        ]
    problems = _keys(table, TABLE_KEYS, "the table")
    problems += _constant(table, "version", VERSION, "the table") + _constant(
        table, "status", STATUS, "the table"
    )
    servers = table.get("server_list", [])
    if not isinstance(servers, list) or (not servers and "server_list" in table):
        return problems + [
            f"server_list is {_shown(servers)}; wanted a list with at least one server"
        ]
    problems += _constant(table, "server_count", str(len(servers)), "the table")
    state = {"rank": 0, "addresses": {}, "miscounted": False}
    counts, ids = {}, {}
    for index, server in enumerate(servers):
        where = names[index] if names else _place(index, server)
        if not isinstance(server, dict):
            problems.append(
                "{} is {}; wanted an object with {}".format(
                    where, _shown(server), ", ".join(SERVER_KEYS)
                )
            )
            continue
        problems += _keys(server, SERVER_KEYS, where) + _constant(
            server, "host_nic_ip", HOST_NIC_IP, where
        )
        problems += _server_id(server, where, len(servers), ids)
        devices = server.get("device", [])
        if not isinstance(devices, list) or (not devices and "device" in server):
            problems.append(
                f"{where}: device is {_shown(devices)}; wanted a list with at least one device"
            )
            continue
        counts[where] = len(devices)
        problems += _devices(devices, where, state)
    if len(set(counts.values())) > 1:
        text_of_counts = ", ".join("%s %d" % (where, count) for where, count in counts.items())
        problems.append(f"every server must bring equally many devices; got {text_of_counts}")
    return problems


def _devices(devices, where, state):
    """Return the problems of one server's devices. state: the next rank, and whose every device_ip
    is, over all servers.
    """
    problems, numbers = [], []
    for index, device in enumerate(devices):
        expected = str(state["rank"])
        state["rank"] += 1
        if not isinstance(device, dict):
            problems.append(
                "%s: device[%d] is %s; wanted an object with %s"
                % (where, index, _shown(device), ", ".join(DEVICE_KEYS))
            )
            continue
        here = "{} device {}".format(where, _bare(device.get("device_id", "[%d]" % index)))
        problems += _keys(device, DEVICE_KEYS, here)
        if re.fullmatch("[0-%d]" % (PER_SERVER - 1), _text_of(device, "device_id")):
            numbers.append(int(device["device_id"]))
        elif "device_id" in device:
            problems.append(
                '{}: device_id is {}; wanted a text "0" to "7"'.format(
                    where, _shown(device["device_id"])
                )
            )
        problems += _device_ip(device, here, state["addresses"])
        if "rank_id" in device and device["rank_id"] != expected and not state["miscounted"]:
            state["miscounted"] = True  # every one after it would be named too
            words = (
                '%s: rank_id is %s; wanted the text "%s": ranks count from 0 through all servers in'
                " their order"
            )
            problems.append(words % (here, _shown(device["rank_id"]), expected))
    return problems + (_order(numbers, where) if len(numbers) == len(devices) else [])


def _order(numbers, where):
    """Return what is wrong with the choice of a server's devices."""
    problems = []
    said = ", ".join(str(number) for number in numbers)
    if len(numbers) not in COUNTS:
        problems.append(
            "%s: HCCL takes 1, 2, 4 or 8 devices of a server; got %d (%s)"
            % (where, len(numbers), said)
        )
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        problems.append(f"{where}: devices must follow one another in rising order; got {said}")
    elif numbers[0] < GROUP <= numbers[-1] and len(numbers) != PER_SERVER:
        problems.append(
            f"{where}: devices 0-3 and 4-7 are separate networks: all in one of them, or all eight;"
            f" got {said}"
        )
    return problems


def _device_ip(device, here, taken):
    """Return what is wrong with a device's address, and remember whose it is."""
    if "device_ip" not in device:
        return []
    value = device["device_ip"]
    if value == "":
        words = (
            "%s has no address; on the node, as root: hccn_tool -i %s -ip -s address ADDRESS"
            " netmask MASK"
        )
        return [words % (here, _bare(device.get("device_id", "N")))]
    if not isinstance(value, str) or not usable_ipv4(value):
        return [
            f"{here}: device_ip is {_shown(value)}; wanted an IPv4 address that other devices reach"
        ]
    if value in taken:
        return [f"{here}: device_ip {value} is that of {taken[value]} too"]
    taken[value] = here
    return []


def _server_id(server, where, count, ids):
    """Return what is wrong with a server's id, and remember whose it is."""
    if "server_id" not in server:
        return []
    value = server["server_id"]
    if (
        not isinstance(value, str)
        or not _NAME.fullmatch(value)
        or (re.fullmatch(r"[0-9.]+", value) and not _is_ipv4(value))
    ):
        return [
            f"{where}: server_id is {_shown(value)}; wanted the server's IPv4 address or a plain"
            " name"
        ]
    loopback = "localhost" in value.lower().split(".") or (
        _is_ipv4(value) and ipaddress.IPv4Address(value).is_loopback
    )
    problems = []
    if loopback and (count > 1 or value != DOCUMENTED_LOOPBACK):
        problems.append(
            f"{where}: server_id {value} is a loopback address, the same on every machine; wanted"
            " the server's own"
        )
    elif not loopback and _is_ipv4(value) and not usable_ipv4(value):
        problems.append(
            f"{where}: server_id {value} is an address that no machine can have; wanted the"
            " server's own"
        )
    if value in ids:
        problems.append(f"{where}: server_id {value} is that of {ids[value]} too")
    ids.setdefault(value, where)
    return problems


def _keys(value, known, where):
    """Return what is missing from an object, and what does not belong there."""
    found = [f"{where}: {key} is missing" for key in known if key not in value]
    for key in (key for key in value if key not in known):
        near = difflib.get_close_matches(str(key), known, n=1)
        found.append(
            "{}: unknown key {}{}".format(
                where, _shown(key), f"; did you mean '{near[0]}'?" if near else ""
            )
        )
    return found


def _constant(value, key, wanted, where):
    """Return a problem where a key is there and is not the wanted text."""
    if key not in value or value[key] == wanted:
        return []
    return [f'{where}: {key} is {_shown(value[key])}; wanted the text "{wanted}"']


def _is_ipv4(value):
    try:
        return str(ipaddress.IPv4Address(value)) == value
    except ValueError:
        return False


def _place(index, server):
    """Return what to call a server of a file."""
    name = _text_of(server, "server_id") if isinstance(server, dict) else ""
    return "server_list[%d]%s" % (index, f" ({name})" if _NAME.fullmatch(name) else "")


def _text_of(value, key):
    return value[key] if isinstance(value.get(key), str) else ""


def _bare(value):
    """Return a value without the quotes of a harmless text."""
    return (
        value
        if isinstance(value, str) and re.fullmatch(r"[\w.\[\]-]{1,40}", value, re.ASCII)
        else _shown(value)
    )


def _shown(value):
    """Return any value as one short line of plain ASCII."""
    try:
        said = json.dumps(value)
    except (TypeError, ValueError):
        said = ascii(value)
    return said if len(said) <= 60 else said[:57] + "..."
