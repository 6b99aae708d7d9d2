# SPDX-License-Identifier: Apache-2.0
"""Network check on one node: the listener's unit and the client.

They are agent/network_listener.py and client.py. Functions take `run_command`, a callable like
AnsibleModule.run_command, and the user's runtime directory, so that they are tested without
Ansible.
"""

from __future__ import annotations

import base64
import json
import os
import shutil

from ..agent import network_listener
from ..base.interpreter import node_python
from . import check_lock, client
from .check_lock import ProofError

ARCHIVE = "agent.pyz"
START_SECONDS = 15


def peers_of(names, node, matrix=False):
    """Return the nodes that one node connects to.

    They are the first node and both neighbours in the ring, so that the number of connections grows
    with the nodes only. matrix: all nodes, which finds a rule that cuts off one other pair, too.
    names: all nodes in the order of their ranks.
    """
    at = names.index(node)
    if matrix:
        return names[at + 1 :] + names[:at]
    peers = [names[(at + 1) % len(names)], names[at - 1], names[0]]
    return [name for name in dict.fromkeys(peers) if name != node]


def receivers_of(names, node, matrix=False):
    """Return the nodes that one node sends data to, in the order of the rounds.

    In every round each node sends to one node and receives from one.
    """
    at, count = names.index(node), len(names)
    if not matrix:
        count = min(2, count)
    return [names[(at + step) % len(names)] for step in range(1, count)]


def list_hcas(folder="/sys/class/infiniband"):
    """Return the RDMA devices, as the kernel says it.

    A row is {name, port, state, rate, link_layer}.
    """
    rows = []
    for name in _sorted_entries(folder):
        ports = os.path.join(folder, name, "ports")
        for port in _sorted_entries(ports):
            row = {"name": name, "port": port}
            for key in ("state", "rate", "link_layer"):
                row[key] = _read_attribute(os.path.join(ports, port, key))
            rows.append(row)
    return rows


def _sorted_entries(folder):
    """Return the sorted names in a folder, [] where there is no such folder."""
    if not os.path.isdir(folder):
        return []
    return sorted(os.listdir(folder))


def _read_attribute(path):
    """Return the text of a kernel's file, '' where it cannot be read."""
    try:
        with open(path, encoding="ascii") as handle:
            return handle.read().strip()
    except OSError:
        return ""


def start_argv(directory, unit, seconds):
    """Return the systemd-run command of the listener.

    RuntimeMaxSec ends it after `seconds`, also where the controller does not come back.
    """
    properties = [
        "Type=notify",
        "KillMode=control-group",
        f"TimeoutStartSec={START_SECONDS}",
        "TimeoutStopSec=2",
        f"RuntimeMaxSec={int(seconds)}",
        f"RuntimeDirectory={os.path.basename(directory)}",
        "RuntimeDirectoryMode=0700",
        "StandardOutput=null",
    ]
    argv = [
        "systemd-run",
        "--user",
        "--quiet",
        "--collect",
        f"--unit={unit}",
        "--description=Trainyard network check",
    ]
    program = [node_python(), "-I", os.path.join(directory, ARCHIVE), "listen", directory]
    for setting in properties:
        argv += ["--property", setting]
    return argv + program


def find_foreign_check(arguments, book):
    """Return the rival that holds a port of the plan on this address, or None.

    It is a check of another user, unknown to this user's systemd. book: the answer of this node's
    listener.
    """
    spec = {"id": arguments["id"], "node": arguments["node"], "address": arguments["address"]}
    for port in sorted(int(port) for port in book["failed"] if port.isdigit()):
        call, row = client.attempt(spec, spec, port)
        if call:
            call.close()
        if row["why"] == "other":
            return {"id": row["text"], "seconds": row["age"]}
    return None


def start_listening(run_command, runtime, arguments):
    """Start the listener when it is this check's turn.

    Returns {listening, rival, hcas, interface}, or {listening: None, rival}. arguments: those
    of the module. Raises ProofError where the listener does not start.
    """
    unit = check_lock.unit_of(arguments["id"])
    with check_lock.hold_turn(run_command, runtime, arguments["id"]) as rival:
        if rival:
            return {"listening": None, "rival": rival}
        book = _start_listener(run_command, runtime, unit, arguments)
    return {
        "listening": book,
        "rival": find_foreign_check(arguments, book),
        "hcas": list_hcas(),
        "interface": {"name": arguments["interface"], "mtu": client.mtu_of(arguments["interface"])},
    }


def _start_listener(run_command, runtime, unit, arguments):
    """Start the listener's unit and return what it says of itself. Raises ProofError."""
    directory = os.path.join(runtime, unit[: -len(".service")])
    _write_listener(directory, arguments)
    code, out, err = run_command(start_argv(directory, unit, arguments["seconds"]))
    book = None
    if not code:
        try:
            book = check_lock.ask_listener(runtime, arguments["id"], do="ports")
        except (OSError, ValueError) as error:
            err = f"it does not answer: {str(error) or type(error).__name__}"
    if not book:
        shutil.rmtree(directory, ignore_errors=True)
        reason = " ".join((err.strip() or out).split())
        reason = reason or f"systemd-run gives no reason, exit code {code}"
        raise ProofError(f"the listener did not start: {reason}; see: journalctl --user -u {unit}")
    return book


def _write_listener(directory, arguments):
    """Write the listener's program and what it needs to know into its directory."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    spec = {key: arguments[key] for key in ("id", "node", "address", "ports")}
    spec["expected"] = [
        name
        for name in arguments["nodes"]
        if arguments["node"] in peers_of(arguments["nodes"], name, arguments["matrix"])
    ]
    with open(os.path.join(directory, "spec.json"), "w", encoding="utf-8") as handle:
        json.dump(spec, handle)
    with open(os.path.join(directory, ARCHIVE), "wb") as handle:
        handle.write(base64.b64decode(arguments["agent"]))


def limit_offer(name, offer, ports):
    """Return the ports of a peer's listener to try, beside the rest of its answer.

    They are the plan's ports, and no more ephemeral ones than a listener has.
    """
    return dict(
        offer,
        node=name,
        planned=[port for port in offer["planned"] if port in ports],
        ephemeral=offer["ephemeral"][: network_listener.SPREAD],
    )


def try_links(_run, runtime, arguments):
    """Try every link from this node.

    Returns client.proven's result with complete, own (what listens here), and rival where another
    check was met. arguments: those of the module.
    """
    names, node = arguments["nodes"], arguments["node"]
    targets = peers_of(names, node, arguments["matrix"])
    described = arguments["book"].get(node, {})
    summary = {key: described.get(key) for key in ("listening", "hcas", "interface", "msg")}
    # Between listeners of two checks there is nothing to find. A node answers for itself alone: its
    # word keeps no other from trying.
    rival = check_lock.read_note(runtime, arguments["id"]) or described.get("rival")
    if rival:
        return dict(client.NOTHING, complete=False, own=summary, rival=rival)
    spec = {
        "id": arguments["id"],
        "node": node,
        "address": arguments["address"],
        "interface": arguments["interface"],
        "targets": targets,
        "rounds": receivers_of(names, node, arguments["matrix"]),
        "first": names[0],
        "count": len(names),
        "depth": arguments["depth"],
        "control": check_lock.control_of(runtime, arguments["id"]),
    }
    # A listener goes by the name that the controller knows it by, whatever it says of itself.
    book = {}
    for name, description in arguments["book"].items():
        listener = description.get("listening") or {}
        if {"address", "planned", "ephemeral", "udp"} <= set(listener):
            book[name] = limit_offer(name, listener, arguments["ports"])
    result = client.proven(spec, book)
    # With complete, every listener that expects this node has seen it through. Then the listeners
    # end without being stopped.
    complete = book.keys() >= set(targets) | {node} and result["through"] == sorted(targets)
    rival = check_lock.read_note(runtime, arguments["id"])
    return dict(result, complete=complete, own=summary, rival=rival)


def end_listening(run_command, runtime, arguments):
    """End the listener.

    Returns {closed, rival}: which peers came, where it was still there, and which check has ended
    it otherwise.
    """
    try:
        answer = check_lock.ask_listener(runtime, arguments["id"], do="close")
    except (OSError, ValueError):
        answer = {}
    for verb in ("stop", "reset-failed"):
        run_command(["systemctl", "--user", verb, check_lock.unit_of(arguments["id"])])
    return {"closed": answer, "rival": check_lock.read_note(runtime, arguments["id"], forget=True)}


STATES = {"listening": start_listening, "connected": try_links, "closed": end_listening}
