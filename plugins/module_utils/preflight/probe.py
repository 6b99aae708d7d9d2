# SPDX-License-Identifier: Apache-2.0
"""The state of a node, read without changing anything.

`run` is a callable like AnsibleModule.run_command.
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
    supervisor_unit,
)
from ..base.files import read_mapping
from ..inputs import placement, tree_state
from ..mesh.store import mesh_state
from ..plan import ascend_addresses
from . import (
    devices,
    machine,
    orphans,
    sockets,
)
from . import (
    software as installed,
)

# The plan's PATH (plan/compiler.py) on every node after the environment's own directory: a launcher
# is looked for there.
PLAN_PATH = "/usr/local/bin:/usr/bin:/bin"
# Program -> its package, in the message about a node without it (names as on Debian; provision.yml
# knows the other families').
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
    result = []
    for link in json.loads(out or "[]"):
        for item in link.get("addr_info", []):
            if item.get("local"):
                result.append({"interface": link["ifname"], "address": item["local"]})
    return result


def route_source(peers):
    """Return the source address of the first reachable route to a peer, or None.

    Nothing is sent: connect() on UDP only looks up the route.
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
    """Return the IPv4 addresses that this node's own resolver gives for a name.

    The time is bounded, since a dead name server can block for long.
    """
    code, out, _err = run(["timeout", "5", "getent", "ahostsv4", name])
    if code:
        return []
    return sorted({line.split()[0] for line in out.splitlines() if line.split()})


def environments(base):
    """Return {digest: fingerprint} of the complete Python environments on this node."""
    result = {}
    for folder, marker in _environment_markers(base):
        if marker.get("container") or os.path.exists(os.path.join(folder, "bin", "python")):
            result[marker["digest"]] = marker.get("fingerprint")
    return result


def _environment_markers(base):
    """Return [(directory, marker)] of the Python environments on this node."""
    folder = os.path.join(base, "env")
    if not os.path.isdir(folder):
        return []
    result = []
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        marker = read_mapping(os.path.join(path, ".trainyard.json"))
        if marker:
            result.append((path, marker))
    return result


def containers(base):
    """Return {digest: how its image is run} of the container environments."""
    return {
        marker["digest"]: marker["container"]
        for _folder, marker in _environment_markers(base)
        if marker.get("container")
    }


def missing(run, user, programs=None):
    """Return the requirements of the training user's attempts that this node lacks.

    provision.yml installs them. programs: {program: package} that the job's launcher needs besides.
    """
    paths = {program: "/usr/bin:/bin:/usr/sbin:/sbin" for program in NEEDED_PROGRAMS}
    paths.update(dict.fromkeys(programs or {}, PLAN_PATH))
    packages = dict(NEEDED_PROGRAMS, **(programs or {}))
    result = [
        package
        for program, package in sorted(packages.items())
        if not shutil.which(program, path=paths[program])
    ]
    if not os.path.exists(f"/var/lib/systemd/linger/{user}"):
        result.append(f"lingering for {user}")
    code, _out, _err = run(["systemctl", "--user", "show", "--property=Version"])
    if code:
        result.append("a running systemd user manager")
    return result


def device_addresses(run):
    """Return ({device id: training address}, [problems]) of Ascend devices.

    See plan/ascend_addresses.py.
    """
    try:
        state = ascend_addresses.read_devices(run)
    except ascend_addresses.AscendError as error:
        return {}, error.problems
    return {item["device_id"]: item["device_ip"] for item in state["devices"]}, []


def python_words(python):
    """Return the launcher commands that a Python of the user's own has.

    python: its absolute path.
    """
    if not os.access(python, os.X_OK):
        return []
    path = os.path.dirname(python) + ":" + PLAN_PATH
    words = ("python", "python3", "fleetrun", "msrun")
    return [word for word in words if shutil.which(word, path=path)]


# The module that looks at each subject of the check; the key is that of the facts.
SUBJECTS = {
    "machines": machine,
    "devices": devices,
    "installed": installed,
    "orphans": orphans,
    "placement": placement,
    "ports": sockets,
}


def run_key(run, home, base, credential):
    """Return the public key of the next attempt, '' where it cannot be made.

    Remove what ended attempts have left. credential: {run, number, node, look}.
    """
    if not credential:
        return ""
    # A mere look leaves nothing on a node that is not provisioned.
    if credential.get("look") and not os.path.isdir(os.path.join(home, mesh_credential.MESH)):
        return ""
    run_id, number, node = credential["run"], int(credential["number"]), credential["node"]
    try:
        with attempt_dir.lock_node(base):
            units = {item["unit"] for item in attempt_dir.active_units(run)}
            mesh_credential.tidy(home, base, node, units, time.time(), supervisor_unit.is_installed)
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
    questions=None,
    credential=None,
):
    """Return the node's facts.

    See library/node_info.py. questions: those of the check's subjects. None asks for no more than a
    plan. credential: {run, number, node} of the attempt for which a key pair is made here.
    {} makes none.
    """
    account = pwd.getpwuid(os.getuid())
    base = os.path.join(account.pw_dir, base)
    now = time.time()
    lacks = missing(run, account.pw_name, programs)
    device_ips, device_problems, words = {}, [], None
    if accelerator == "ascend":
        device_ips, device_problems = device_addresses(run)
    try:
        units = ownership.list_owners(run, base)
    except attempt_dir.AttemptError:
        units, credential = [], {}  # what still runs here is not known
    subjects, verify = {}, "cached"
    if questions:
        questions = dict(
            questions, accelerator=accelerator, python=python, peers=peers, units=units
        )
        subjects = {name: subject.look(run, base, questions) for name, subject in SUBJECTS.items()}
        # every byte is read by a task of its own, which says first how long it takes
        verify = {"sample": "sample", "full": "estimate"}.get(questions.get("verify"), "cached")
    if python:
        words = python_words(python)
    return {
        **subjects,
        "boot": ownership.boot_mark(),
        "hostname": socket.gethostname(),
        "home": account.pw_dir,
        "base": base,
        "user": account.pw_name,
        "uid": account.pw_uid,
        "python_version": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "machine": platform.machine(),
        "libc": platform.libc_ver()[1],
        "python_words": words,
        "device_ips": device_ips,
        "device_problems": device_problems,
        "cores": len(os.sched_getaffinity(0)),
        "addresses": addresses(run),
        "route_source": route_source(peers),
        "resolves_to": resolves_to(run, socket.gethostname()),
        "missing": lacks,
        "units": units,
        "environments": _undamaged_environments(base, subjects.get("installed")),
        "containers": containers(base),
        "trees": {
            f"{tree['kind']}/{tree['digest'][:16]}": tree_state.look(
                base, tree["kind"], tree["digest"], verify
            )
            for tree in trees
        },
        "mesh": mesh_state(account.pw_dir, now),
        "run_key": run_key(run, account.pw_dir, base, credential),
        "time": now,
        # with "time" and what the action plugin adds, it bounds the clock's offset (machine.py)
        "ended": time.time(),
    }


def _undamaged_environments(base, software):
    """Return {digest: fingerprint} of the environments that have not changed.

    A changed one does not count: sync.yml makes it again. software: as software.look returns it,
    or None.
    """
    damaged = installed.damaged(software)
    return {
        digest: fingerprint
        for digest, fingerprint in environments(base).items()
        if digest not in damaged
    }
