# SPDX-License-Identifier: Apache-2.0
"""A node's TCP ports: whether a server could listen on them, and who has those that are taken. Runs
on the node, which has no yaml.

Paddle's store (paddle/phi/core/distributed/store/tcp_utils.cc, tcp_listen), its --master (an
http.server) and MindSpore's scheduler (distributed/rpc/tcp/socket_operation.cc, SetSocketOptions)
all set SO_REUSEADDR, so it is set here: a connection that only waits for its end (TIME_WAIT) is in
nobody's way, unless its server did not set it.
"""

from __future__ import annotations

import errno
import os
import re
import socket

from ..base import processes

# Above the highest port that is asked for so many are looked at for the next free ones.
WINDOW = 2000
# Contract B5's recommended range; another start port is looked for there, too.
RECOMMENDED = (10000, 20000)
_PROC = "/proc/sys/net/ipv4/"
_TIME_WAIT = "06"


def try_port(port):
    """Return '' where a server can listen on a port of all addresses, else the error's name
    (EADDRINUSE, EACCES, ...).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        try:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind(("0.0.0.0", port))
        except (OSError, OverflowError) as error:
            return errno.errorcode.get(getattr(error, "errno", None), str(error))
    return ""


def sockets():
    """Return [(port, inode, uid, state)] of this node's TCP sockets as /proc/net has them
    (proc(5)); IPv6 ones take the port, too.
    """
    found = []
    for name in ("tcp", "tcp6"):
        try:
            with open("/proc/net/" + name, encoding="ascii") as handle:
                rows = handle.read().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            words = row.split()
            found.append((int(words[1].rpartition(":")[2], 16), words[9], int(words[7]), words[3]))
    return found


def holders(inodes):
    """Return {inode: pid} of sockets whose process may be looked at: this user's own, or all to
    root.
    """
    wanted_links, found = {f"socket:[{inode}]": inode for inode in inodes}, {}
    for pid in processes.pids():
        try:
            for name in os.listdir("/proc/%d/fd" % pid):
                inode = wanted_links.get(os.readlink("/proc/%d/fd/%s" % (pid, name)))
                if inode:
                    found.setdefault(inode, pid)
        except OSError:
            continue
    return found


def owners(ports, open_sockets):
    """Return {port: {uid, user, pid, command, run, waits}} of ports that are taken.

    pid and command are None of another user's, the uid where nothing shows. waits: whether there
    are but connections that wait for their end.
    """
    rows = {}
    for port, inode, uid, state in sorted(
        open_sockets, key=lambda row: row[3] != "0A"
    ):  # who listens comes first
        if port in ports and state != _TIME_WAIT:
            rows.setdefault(port, (inode, uid))
    pids = holders([inode for inode, _uid in rows.values()])
    found = {}
    for port in ports:
        inode, uid = rows.get(port, (None, None))
        told = processes.describe(pids[inode]) if inode in pids else None
        found[port] = {
            "uid": uid,
            "user": processes.user_name(uid) if uid is not None else None,
            "pid": told and told["pid"],
            "command": told and told["command"],
            "run": told and told["run"],
            "waits": inode is None and any(row[0] == port for row in open_sockets),
        }
    return found


def owner_words(item):
    """Return who has a port, in words."""
    if item["error"] == "EACCES":
        return "the training user may not listen there (net.ipv4.ip_unprivileged_port_start)"
    if item["error"] != "EADDRINUSE":
        return "it cannot be bound: {}".format(item["error"])
    if item["run"]:
        return "taken by the run {} (pid {}, {})".format(item["run"], item["pid"], item["command"])
    if item["pid"]:
        return "taken by pid {} of {}: {}".format(item["pid"], item["user"], item["command"])
    if item["waits"]:
        return (
            "connections of a server that has ended wait there for their own end (TIME_WAIT, a"
            " minute at most)"
        )
    if item["user"] is None:
        return "taken by a socket that /proc/net/tcp does not show"
    return (
        "taken by a process of {} (uid {}), whose command only that user and root can see".format(
            item["user"],
            item["uid"],
        )
    )


def number_ranges(text):
    """Return [[first, last]] of the kernel's lists: '32768\\t60999', '8080,9000-9100', ''."""
    pairs = re.findall(r"(\d+)(?:[-\t ](\d+))?", text)
    return [[int(first), int(last or first)] for first, last in pairs]


def _ranges(name):
    try:
        with open(_PROC + name, encoding="ascii") as handle:
            return number_ranges(handle.read())
    except OSError:
        return []


def look(run, base, asked):
    """Return {asked, taken, used, ephemeral, reserved} of the asked ports.

    taken: [{port, error} and what owners says]. used: other ports that sockets have, from the first
    asked one on. ephemeral: the ranges of which the kernel gives ports to connections; reserved:
    those it leaves out.
    """
    ports = [int(port) for port in asked.get("ports") or []]
    if not ports:
        return {"asked": [], "taken": [], "used": [], "ephemeral": [], "reserved": []}
    errors = {port: try_port(port) for port in ports}
    taken, now = [port for port in ports if errors[port]], sockets()
    held = owners(taken, now) if taken else {}
    low = min(ports + [RECOMMENDED[0]])
    used = {
        port
        for port, _inode, _uid, state in now
        if low <= port <= max(ports) + WINDOW and state != _TIME_WAIT
    }
    return {
        "asked": ports,
        "taken": [dict(held[port], port=port, error=errors[port]) for port in taken],
        "used": sorted(used - set(ports)),
        "ephemeral": _ranges("ip_local_port_range"),
        "reserved": _ranges("ip_local_reserved_ports"),
    }
