# SPDX-License-Identifier: Apache-2.0
"""The network's proof on one node: the listener's unit (netprobe.py), and what is connected from here (nettries.py).

Functions take `run`, a callable like AnsibleModule.run_command, and the user's runtime directory, so that they are tested without Ansible.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil

from ansible.module_utils.trainyard import netprobe, nettries, ring

# Not trainyard-*: a check holds no node, and `stop` has nothing to do with it.
UNITS = "yardcheck-*.service"
ID = re.compile(r"^[0-9a-z]{1,32}\Z")
START_SECONDS = 15


class ProofError(Exception):
    """A listener that cannot be started; the message is for the user."""


def unit_of(number):
    """Return the unit's name; raises ProofError for an id that is none."""
    if not ID.match(number):
        raise ProofError("%r is no id of a check" % number)
    return "yardcheck-%s.service" % number


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


def asked(runtime, number, **word):
    """Return what the listener of a check answers on its own node; raises OSError where there is none."""
    spec = {"id": number, "node": "", "address": ""}
    call = nettries.Call(spec, control_of(runtime, number), 0)
    try:
        call.ask(do="hello", id=number, **{"from": ""})
        return call.ask(**word)
    finally:
        call.close()


def control_of(runtime, number):
    """Return where the listener of a check is spoken to on its own node."""
    return os.path.join(runtime, unit_of(number)[: -len(".service")], "control")


def earlier(run):
    """Return the units of other checks that are still there: whoever started them was interrupted, or goes on at the same time."""
    code, out, err = run(["systemctl", "--user", "list-units", "--all", "--plain", "--no-legend", "--full", UNITS])
    if code:
        raise ProofError(
            "the user's systemd does not answer (%s); run playbooks/provision.yml once" % (err.strip() or "exit code %d" % code)
        )
    return [line.split()[0] for line in out.splitlines() if line.split()]


def start_argv(directory, unit, seconds):
    """Return the systemd-run command of the listener. RuntimeMaxSec ends it also where nobody comes back."""
    properties = [
        "Type=notify",
        "KillMode=control-group",
        "TimeoutStartSec=%d" % START_SECONDS,
        "TimeoutStopSec=2",
        "RuntimeMaxSec=%d" % seconds,
        "RuntimeDirectory=%s" % os.path.basename(directory),
        "RuntimeDirectoryMode=0700",
        "StandardOutput=null",
    ]
    argv = ["systemd-run", "--user", "--quiet", "--collect", "--unit=%s" % unit, "--description=Trainyard network check"]
    program = ["/usr/bin/python3", "-I", os.path.join(directory, "netprobe.py"), directory]
    return argv + [word for prop in properties for word in ("--property", prop)] + program


def listening(run, runtime, given):
    """Start the listener; return what listens, and what the node's interface and RDMA devices are."""
    unit = unit_of(given["id"])
    directory = os.path.join(runtime, unit[: -len(".service")])
    old = earlier(run)
    if old:
        run(["systemctl", "--user", "stop"] + old)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    spec = {key: given[key] for key in ("id", "node", "address", "ports")}
    spec["expected"] = [name for name in given["nodes"] if given["node"] in ring.targets(given["nodes"], name, given["matrix"])]
    with open(os.path.join(directory, "spec.json"), "w", encoding="utf-8") as handle:
        json.dump(spec, handle)
    with open(os.path.join(directory, "netprobe.py"), "w", encoding="utf-8") as handle:
        handle.write(importlib.import_module(netprobe.__name__).__loader__.get_source(netprobe.__name__))
    code, _out, err = run(start_argv(directory, unit, given["seconds"]))
    if code:
        shutil.rmtree(directory, ignore_errors=True)
        raise ProofError("the listener did not start: %s; see: journalctl --user -u %s" % (err.strip(), unit))
    book = asked(runtime, given["id"], do="ports")
    return {
        "listening": book,
        "hcas": hcas(),
        "interface": {"name": given["interface"], "mtu": nettries.mtu_of(given["interface"])},
    }


def connected(run, runtime, given):
    """Try every way from this node; return nettries.proven's findings beside what listens here."""
    names, node = given["nodes"], given["node"]
    targets = ring.targets(names, node, given["matrix"])
    spec = {
        "id": given["id"], "node": node, "address": given["address"], "interface": given["interface"], "targets": targets,
        "rounds": ring.rounds(names, node, given["matrix"]), "first": names[0], "count": len(names), "depth": given["depth"],
        "control": control_of(runtime, given["id"]),
    }  # fmt: skip
    book = {name: said["listening"] for name, said in given["book"].items() if said.get("listening")}
    found = nettries.proven(spec, book)
    # Whether every listener that expects this node has seen it through, so that nobody has to end them.
    complete = book.keys() >= set(targets) | {node} and found["through"] == sorted(targets)
    return dict(
        found, complete=complete, own={key: given["book"].get(node, {}).get(key) for key in ("listening", "hcas", "interface", "msg")}
    )


def closed(run, runtime, given):
    """End the listener; return who came, where it was still there."""
    try:
        said = asked(runtime, given["id"], do="close")
    except (OSError, ValueError):
        said = {}
    run(["systemctl", "--user", "stop", unit_of(given["id"])])
    run(["systemctl", "--user", "reset-failed", unit_of(given["id"])])
    return {"closed": said}


STATES = {"listening": listening, "connected": connected, "closed": closed}
