# SPDX-License-Identifier: Apache-2.0
"""A node's TCP ports: the free ones, and the owners of the others.

Runs on the node, which has no yaml.

Paddle's store (paddle/phi/core/distributed/store/tcp_utils.cc, tcp_listen), its --master (an
http.server) and MindSpore's scheduler (distributed/rpc/tcp/socket_operation.cc, SetSocketOptions)
all set SO_REUSEADDR, so it is set here. So a connection that only waits for its end (TIME_WAIT)
does not count, unless its server did not set it.
"""

from __future__ import annotations

import errno
import os
import re
import socket

from ..base import processes

# The number of ports above the highest requested one that are looked at for the next free ones.
WINDOW = 2000
# Contract B5's recommended range; another start port is looked for there, too.
RECOMMENDED = (10000, 20000)
_PROC = "/proc/sys/net/ipv4/"
_TIME_WAIT = "06"
_LISTEN = "0A"


def try_port(port):
    """Return '' where a server can listen on a port, else the error's name.

    It listens on all addresses. The names are EADDRINUSE, EACCES, ...
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("0.0.0.0", port))
        except (OSError, OverflowError) as error:
            return errno.errorcode.get(getattr(error, "errno", None), str(error))
    return ""


def sockets():
    """Return [(port, inode, uid, state)] of this node's TCP sockets.

    /proc/net has them (proc(5)). IPv6 sockets take the port, too.
    """
    result = []
    for name in ("tcp", "tcp6"):
        try:
            with open("/proc/net/" + name, encoding="ascii") as handle:
                rows = handle.read().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            words = row.split()
            port = int(words[1].rpartition(":")[2], 16)
            result.append((port, words[9], int(words[7]), words[3]))
    return result


def holders(inodes):
    """Return {inode: pid} of sockets whose process this user may look at.

    These are the user's own processes, or all of them for root.
    """
    inode_of_link = {f"socket:[{inode}]": inode for inode in inodes}
    result = {}
    for pid in processes.pids():
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                inode = inode_of_link.get(os.readlink(f"{folder}/{name}"))
                if inode:
                    result.setdefault(inode, pid)
        except OSError:
            continue
    return result


def owners(ports, open_sockets):
    """Return {port: {uid, user, pid, command, run, waits}} of ports that are taken.

    For another user's port, pid and command are missing (None), the uid where nothing shows it.
    waits: whether there are but connections that wait for their end.
    """
    rows = {}
    listening_first = sorted(open_sockets, key=lambda row: row[3] != _LISTEN)
    for port, inode, uid, state in listening_first:
        if port in ports and state != _TIME_WAIT:
            rows.setdefault(port, (inode, uid))
    pids = holders([inode for inode, _uid in rows.values()])
    result = {}
    for port in ports:
        inode, uid = rows.get(port, (None, None))
        process, user = None, None
        if inode in pids:
            process = processes.describe(pids[inode])
        if uid is not None:
            user = processes.user_name(uid)
        result[port] = {
            "uid": uid,
            "user": user,
            "pid": process and process["pid"],
            "command": process and process["command"],
            "run": process and process["run"],
            "waits": inode is None and any(row[0] == port for row in open_sockets),
        }
    return result


def owner_words(item):
    """Return the owner of a port, in words."""
    if item["error"] == "EACCES":
        return "the training user may not listen there (net.ipv4.ip_unprivileged_port_start)"
    if item["error"] != "EADDRINUSE":
        return f"it cannot be bound: {item['error']}"
    if item["run"]:
        return f"taken by the run {item['run']} (pid {item['pid']}, {item['command']})"
    if item["pid"]:
        return f"taken by pid {item['pid']} of {item['user']}: {item['command']}"
    if item["waits"]:
        return (
            "connections of a server that has ended wait there for their own end (TIME_WAIT, a"
            " minute at most)"
        )
    if item["user"] is None:
        return "taken by a socket that /proc/net/tcp does not show"
    return (
        f"taken by a process of {item['user']} (uid {item['uid']}), whose command only that user"
        " and root can see"
    )


def number_ranges(text):
    """Return [[first, last]] of a list: '32768\\t60999', '8080,9000-9100', ''."""
    pairs = re.findall(r"(\d+)(?:[-\t ](\d+))?", text)
    return [[int(first), int(last or first)] for first, last in pairs]


def _ranges(name):
    try:
        with open(_PROC + name, encoding="ascii") as handle:
            return number_ranges(handle.read())
    except OSError:
        return []


def look(run, base, questions):
    """Return {asked, taken, used, ephemeral, reserved} of the requested ports.

    questions: {ports}. taken: [{port, error} and the fields of owners]. used: other ports that
    sockets have, from the first requested one on. ephemeral: the ranges of which the kernel
    gives ports to connections. reserved: those it leaves out.
    """
    ports = [int(port) for port in questions.get("ports") or []]
    if not ports:
        return {"asked": [], "taken": [], "used": [], "ephemeral": [], "reserved": []}
    errors = {port: try_port(port) for port in ports}
    taken, open_sockets = [port for port in ports if errors[port]], sockets()
    owner_of = {}
    if taken:
        owner_of = owners(taken, open_sockets)
    lowest = min(ports + [RECOMMENDED[0]])
    used = {
        port
        for port, _inode, _uid, state in open_sockets
        if lowest <= port <= max(ports) + WINDOW and state != _TIME_WAIT
    }
    return {
        "asked": ports,
        "taken": [dict(owner_of[port], port=port, error=errors[port]) for port in taken],
        "used": sorted(used - set(ports)),
        "ephemeral": _ranges("ip_local_port_range"),
        "reserved": _ranges("ip_local_reserved_ports"),
    }
