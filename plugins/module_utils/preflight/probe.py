# SPDX-License-Identifier: Apache-2.0
"""What a node is and holds, read without changing anything. `run` is a callable like
AnsibleModule.run_command.
"""

from __future__ import annotations

import json
import os
import platform
import pwd
import shutil
import socket
import sys
import time

from ..attempts import (
    attempt_dir,
    mesh_credential,
    ownership,
)
from ..base import manifest
from ..inputs import paths, placement
from ..mesh.store import mesh_state
from ..plan import ascend_addresses
from . import (
    devices,
    machine,
    orphans,
    sockets,
    software,
)

# Where the plan's PATH (plan.py) leads on every node after the environment's own directory: a
# launcher is looked for there.
PLAN_PATH = "/usr/local/bin:/usr/bin:/bin"
# Program -> what a node without it is told to install (names as on Debian; provision.yml knows the
# other families').
NEEDED_PROGRAMS = {
    "rsync": "rsync",
    "ssh": "openssh-client",
    "systemd-run": "systemd",
    "ip": "iproute2",
}


def uid():
    """Return the training user's numeric id."""
    return os.getuid()


def addresses(run):
    """Return [{interface, address}] of this node, IPv4, in the kernel's order."""
    code, out, _err = run(["ip", "-json", "-4", "address", "show"])
    if code:
        return []
    found = []
    for link in json.loads(out or "[]"):
        found += [
            {"interface": link["ifname"], "address": item["local"]}
            for item in link.get("addr_info", [])
            if item.get("local")
        ]
    return found


def route_source(peers):
    """Return the address from which the first reachable route to a peer starts, or None. Nothing is
    sent: connect() on UDP only asks the route.
    """
    for peer in peers:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((peer, 9))
                return probe.getsockname()[0]
            except OSError:
                continue
    return None


def resolves_to(run, name):
    """Return the IPv4 addresses this node's own resolver gives for a name; bounded, since a dead
    name server can hang for long.
    """
    code, out, _err = run(["timeout", "5", "getent", "ahostsv4", name])
    return (
        sorted({line.split()[0] for line in out.splitlines() if line.split()}) if code == 0 else []
    )


def environments(base):
    """Return {digest: fingerprint} of the complete Python environments on this node."""
    found = {}
    folder = os.path.join(base, "env")
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        marker = manifest.read_mapping(os.path.join(folder, name, ".trainyard.json"))
        if marker and (
            marker.get("container") or os.path.exists(os.path.join(folder, name, "bin", "python"))
        ):
            found[marker["digest"]] = marker.get("fingerprint")
    return found


def containers(base):
    """Return {digest: how its image is run on this node} of the environments that are container
    images.
    """
    folder = os.path.join(base, "env")
    markers = [
        manifest.read_mapping(os.path.join(folder, name, ".trainyard.json"))
        for name in (os.listdir(folder) if os.path.isdir(folder) else [])
    ]
    return {
        marker["digest"]: marker["container"]
        for marker in markers
        if marker and marker.get("container")
    }


def tree_state(base, kind, digest, verify="cached"):
    """Return {ok, differences} of one tree on this node against the manifest that was synced with
    it.

    verify: `cached` reads what changed its inode, size or times; `sample` reads some files besides;
    `full` reads every byte. `estimate` is `cached`, and a block of some files is read besides, so
    that `rate` says how many bytes a second `full` will take (None: too few to measure).
    """
    place = os.path.join(base, kind, digest[:16])
    if not os.path.isdir(place):
        return {"ok": False, "present": False, "differences": []}
    found = manifest.scan(place, None, place + ".scan.json", fresh=verify == "full")
    if verify == "sample":
        found.update(
            {name: manifest.entry(os.path.join(place, name)) for name in manifest.sampled(found)}
        )
    more = {}
    if verify == "estimate":
        more["rate"] = paths.sample(
            place,
            [
                (name, found[name][1])
                for name in manifest.sampled(found, paths.SAMPLED, float("inf"))
            ],
        )[1]
    if manifest.digest(found) == digest:
        return dict(more, ok=True, present=True, differences=[])
    expected = manifest.read_mapping(place + ".manifest.json", manifest.TREE_BYTES)
    return dict(more, ok=False, present=True, differences=manifest.differences(expected, found))


def missing(run, user, programs=None):
    """Return what the training user's attempts need and this node lacks; provision.yml brings it.

    programs: {program: package} that the job's launcher needs besides.
    """
    places = {program: "/usr/bin:/bin:/usr/sbin:/sbin" for program in NEEDED_PROGRAMS}
    places.update(dict.fromkeys(programs or {}, PLAN_PATH))
    needed = dict(NEEDED_PROGRAMS, **(programs or {}))
    lacks = [
        package
        for program, package in sorted(needed.items())
        if not shutil.which(program, path=places[program])
    ]
    if not os.path.exists(f"/var/lib/systemd/linger/{user}"):
        lacks.append(f"lingering for {user}")
    code, _out, _err = run(["systemctl", "--user", "show", "--property=Version"])
    if code:
        lacks.append("a running systemd user manager")
    return lacks


def device_addresses(run):
    """Return ({device id: address on the training network of Ascend devices}, [problems]); see
    ascend.py.
    """
    try:
        found = ascend_addresses.read_devices(run)
    except ascend_addresses.AscendError as error:
        return {}, error.problems
    return {item["device_id"]: item["device_ip"] for item in found["devices"]}, []


def python_words(python):
    """Return which of the words that head a launcher's command are there for a Python of the user's
    own; python: its absolute path.
    """
    if not os.access(python, os.X_OK):
        return []
    place = os.path.dirname(python) + ":" + PLAN_PATH
    return [
        word
        for word in ("python", "python3", "fleetrun", "msrun")
        if shutil.which(word, path=place)
    ]


# What each subject of the check looks at; it has its key in the facts.
SUBJECTS = {
    "machines": machine,
    "devices": devices,
    "installed": software,
    "orphans": orphans,
    "placement": placement,
    "ports": sockets,
}


def run_key(run, home, base, credential):
    """Return the public key of the attempt that is about to start here, '' where it cannot be made;
    remove what ended attempts have left.

    credential: {run, number, node, look}.
    """
    # A mere look leaves nothing on a node that nobody has made ready.
    if not credential or (
        credential.get("look") and not os.path.isdir(os.path.join(home, mesh_credential.MESH))
    ):
        return ""
    run_id, number, node = credential["run"], int(credential["number"]), credential["node"]
    try:
        with attempt_dir.hold(base):
            units = {item["unit"] for item in attempt_dir.active_units(run)}
            mesh_credential.tidy(home, base, node, units, time.time())
        key = mesh_credential.make(home, run_id, number, node)
        mesh_credential.register(home, base)
    except (attempt_dir.AttemptError, mesh_credential.CredentialError, OSError):
        return ""
    return key


def look(
    run,
    base,
    trees,
    peers,
    accelerator="cpu",
    programs=None,
    python="",
    asked=None,
    credential=None,
):
    """Return the node's facts; see library/node_probe.py. asked: what the subjects of the check
    want to know; None asks for no more than a plan.

    credential: {run, number, node} of the attempt for which a key pair is made here; {} makes none.
    """
    account = pwd.getpwuid(os.getuid())
    base = os.path.join(account.pw_dir, base)
    now = time.time()
    lacks = missing(run, account.pw_name, programs)
    device_ips, device_problems = device_addresses(run) if accelerator == "ascend" else ({}, [])
    try:
        units = ownership.holders(run, base)
    except attempt_dir.AttemptError:
        units, credential = [], {}  # what still runs here is not known
    asked = asked and dict(asked, accelerator=accelerator, python=python, peers=peers, units=units)
    # every byte is read by a task of its own, which says first how long it takes
    verify = {"sample": "sample", "full": "estimate"}.get((asked or {}).get("verify"), "cached")
    subjects = (
        {name: subject.look(run, base, asked) for name, subject in SUBJECTS.items()}
        if asked
        else {}
    )
    changed = software.damaged(
        subjects.get("installed")
    )  # an environment that somebody changed is none: sync.yml makes it again
    return {
        **subjects,
        "boot": ownership.boot_mark(),
        "hostname": socket.gethostname(),
        "home": account.pw_dir,
        "base": base,
        "user": account.pw_name,
        "uid": account.pw_uid,
        "python_version": "%d.%d" % sys.version_info[:2],
        "machine": platform.machine(),
        "libc": platform.libc_ver()[1],
        "python_words": python_words(python) if python else None,
        "device_ips": device_ips,
        "device_problems": device_problems,
        "cores": len(os.sched_getaffinity(0)),
        "addresses": addresses(run),
        "route_source": route_source(peers),
        "resolves_to": resolves_to(run, socket.gethostname()),
        "missing": lacks,
        "units": units,
        "environments": {
            digest: mark for digest, mark in environments(base).items() if digest not in changed
        },
        "containers": containers(base),
        "trees": {
            "{}/{}".format(tree["kind"], tree["digest"][:16]): tree_state(
                base, tree["kind"], tree["digest"], verify
            )
            for tree in trees
        },
        "mesh": mesh_state(account.pw_dir, now),
        "run_key": run_key(run, account.pw_dir, base, credential),
        "time": now,
        # with "time" and what the action plugin adds, it bounds the clock's offset (machines.py)
        "ended": time.time(),
    }
