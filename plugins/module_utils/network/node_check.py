# SPDX-License-Identifier: Apache-2.0
"""The network's proof on one node: the listener's unit (netprobe.py), and what is connected from
here (nettries.py).

Functions take `run`, a callable like AnsibleModule.run_command, and the user's runtime directory,
so that they are tested without Ansible.
"""

from __future__ import annotations

import inspect
import json
import os
import shutil

from ..agent import netprobe
from . import (
    check_lock,
    client,
    topology,
)
from .check_lock import ProofError

START_SECONDS = 15


def hcas(folder="/sys/class/infiniband"):
    """Return [{name, port, state, rate}] of the RDMA devices, as the kernel says it."""
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        ports = os.path.join(folder, name, "ports")
        for port in sorted(os.listdir(ports)) if os.path.isdir(ports) else []:
            row = {"name": name, "port": port}
            for key in ("state", "rate", "link_layer"):
                try:
                    with open(os.path.join(ports, port, key), encoding="ascii") as handle:
                        row[key] = handle.read().strip()
                except OSError:
                    row[key] = ""
            found.append(row)
    return found


def start_argv(directory, unit, seconds):
    """Return the systemd-run command of the listener. RuntimeMaxSec ends it also where nobody comes
    back.
    """
    properties = [
        "Type=notify",
        "KillMode=control-group",
        "TimeoutStartSec=%d" % START_SECONDS,
        "TimeoutStopSec=2",
        "RuntimeMaxSec=%d" % seconds,
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
    program = ["/usr/bin/python3", "-I", os.path.join(directory, "netprobe.py"), directory]
    return argv + [word for prop in properties for word in ("--property", prop)] + program


def foreign(given, book):
    """Return the rival that holds a port of the plan on this address, or None: a check of another
    user, whom this one's systemd does not know.
    """
    spec = {"id": given["id"], "node": given["node"], "address": given["address"]}
    for port in sorted(int(port) for port in book["failed"] if port.isdigit()):
        call, made = client.attempt(spec, spec, port)
        if call:
            call.close()
        if made["why"] == "other":
            return {"id": made["text"], "seconds": made["age"]}
    return None


def listening(run, runtime, given):
    """Start the listener when it is this check's turn; return what listens, or rival, and what the
    node's interface and RDMA devices are.
    """
    unit = check_lock.unit_of(given["id"])
    directory = os.path.join(runtime, unit[: -len(".service")])
    with check_lock.turn(run, runtime, given["id"]) as rival:
        if rival:
            return {"listening": None, "rival": rival}
        os.makedirs(directory, mode=0o700, exist_ok=True)
        spec = {key: given[key] for key in ("id", "node", "address", "ports")}
        spec["expected"] = [
            name
            for name in given["nodes"]
            if given["node"] in topology.targets(given["nodes"], name, given["matrix"])
        ]
        with open(os.path.join(directory, "spec.json"), "w", encoding="utf-8") as handle:
            json.dump(spec, handle)
        with open(os.path.join(directory, "netprobe.py"), "w", encoding="utf-8") as handle:
            handle.write(inspect.getsource(netprobe))
        code, out, err = run(start_argv(directory, unit, given["seconds"]))
        try:
            book = None if code else check_lock.asked(runtime, given["id"], do="ports")
        except (OSError, ValueError) as error:
            err, book = "it does not answer: %s" % (str(error) or type(error).__name__), None
        if not book:
            shutil.rmtree(directory, ignore_errors=True)
            reason = (
                " ".join((err.strip() or out).split())
                or "systemd-run gives no reason, exit code %d" % code
            )
            raise ProofError(
                f"the listener did not start: {reason}; see: journalctl --user -u {unit}"
            )
    return {
        "listening": book,
        "rival": foreign(given, book),
        "hcas": hcas(),
        "interface": {"name": given["interface"], "mtu": client.mtu_of(given["interface"])},
    }


def offered(name, said, ports):
    """Return what is tried of a peer's listener: the plan's ports, and no more of the others than a
    listener has.
    """
    return dict(
        said,
        node=name,
        planned=[port for port in said["planned"] if port in ports],
        ephemeral=said["ephemeral"][: netprobe.SPREAD],
    )


def connected(_run, runtime, given):
    """Try every way from this node; return nettries.proven's findings beside what listens here, and
    rival where another check was met.
    """
    names, node = given["nodes"], given["node"]
    targets = topology.targets(names, node, given["matrix"])
    own = {
        key: given["book"].get(node, {}).get(key)
        for key in ("listening", "hcas", "interface", "msg")
    }
    # Between listeners of two checks there is nothing to find. A node answers for itself alone: its
    # word keeps no other from trying.
    rival = check_lock.superseded(runtime, given["id"]) or given["book"].get(node, {}).get("rival")
    if rival:
        return dict(client.NOTHING, complete=False, own=own, rival=rival)
    spec = {
        "id": given["id"], "node": node, "address": given["address"], "interface": given["interface"], "targets": targets,
        "rounds": topology.rounds(names, node, given["matrix"]), "first": names[0], "count": len(names), "depth": given["depth"],
        "control": check_lock.control_of(runtime, given["id"]),
    }  # fmt: skip
    # A listener goes by the name that the controller knows it by, whatever it says of itself.
    told = {name: said.get("listening") or {} for name, said in given["book"].items()}
    book = {
        name: offered(name, said, given["ports"])
        for name, said in told.items()
        if {"address", "planned", "ephemeral", "udp"} <= set(said)
    }
    found = client.proven(spec, book)
    # Whether every listener that expects this node has seen it through, so that nobody has to end
    # them.
    complete = book.keys() >= set(targets) | {node} and found["through"] == sorted(targets)
    return dict(
        found, complete=complete, own=own, rival=check_lock.superseded(runtime, given["id"])
    )


def closed(run, runtime, given):
    """End the listener; return who came, where it was still there, and rival, who has ended it
    otherwise.
    """
    try:
        said = check_lock.asked(runtime, given["id"], do="close")
    except (OSError, ValueError):
        said = {}
    for verb in ("stop", "reset-failed"):
        run(["systemctl", "--user", verb, check_lock.unit_of(given["id"])])
    return {"closed": said, "rival": check_lock.superseded(runtime, given["id"], forget=True)}


STATES = {"listening": listening, "connected": connected, "closed": closed}
