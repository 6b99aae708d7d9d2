# SPDX-License-Identifier: Apache-2.0
"""What several tests of the core need: a site, its nodes and facts as the product makes them,
programs that record how they were called.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import io
import json
import os
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import mesh_credential
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as core
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import zipapp
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "configs/ppyoloe/ppyoloe_crn_s_300e_coco.yml"
# The four machines of the PaddleDetection document (contract C2).
ADDRESSES = ["10.127.6.17", "10.127.5.142", "10.127.45.13", "10.127.44.151"]
CODE, DATA, ENVIRONMENT = "c" * 64, "d" * 64, "e" * 64
# Two test sessions on one machine must not take each other's processes for their own.
UNIQUE = "ppyoloe-%04x" % (os.getpid() % 65536)
RUN = "20261120-103501-" + UNIQUE


@contextlib.contextmanager
def raises_code(kind, code):
    """Expect an error of this class with this message code."""
    with pytest.raises(kind) as error:
        yield error
    assert error.value.code == code


def renamed(log, kept, data):
    """Rotate a log: what it has gets another name, and a new file its own. A look in between finds
    one of the two, never no file.
    """
    new = log.with_name("new~")
    new.write_bytes(data)
    os.link(log, kept)
    os.replace(new, log)


@functools.lru_cache(maxsize=None)
def shipped():
    """Return (the shipped PP-YOLOE job, its suite's table) as the product reads them."""
    found, problems = jobs.read_job(
        str(ROOT / "playbooks" / "configs" / "ppyoloe.yml"), "playbooks/configs/ppyoloe.yml"
    )
    assert not problems
    return found, jobs.load_suite("paddledetection")


def job_of(**changes):
    """Return the shipped PP-YOLOE job, changed."""
    return copy.deepcopy(dict(shipped()[0], **changes))


def fact_of(address, **changes):
    """Return what node_info says of a ready node."""
    fact = {
        "hostname": "h", "home": "/home/trainer", "base": "/home/trainer/.trainyard",
        "user": "trainer", "uid": 1000,
        "python_version": "3.11", "machine": "x86_64", "libc": "2.36", "cores": 64,
        "addresses": [{"interface": "lo", "address": "127.0.0.1"},
        {"interface": "eth0", "address": address}],
        "route_source": address, "resolves_to": [address], "missing": [], "units": [],
        "environments": {ENVIRONMENT: "f"},
        "trees": {name: {"ok": True, "present": True,
        "differences": []} for name in ("code/" + CODE[:16], "data/" + DATA[:16])},
        "mesh": {"present": True, "proven": 1.0, "valid_until": 10.0**10,
        "nodes": ["node%d" % n for n in range(1, len(ADDRESSES) + 1)], "digest": "m",
                 "inventory": primitives.inventory_digest([("node%d" % n, ADDRESSES[n - 1], 22,
                 None) for n in range(1, len(ADDRESSES) + 1)])},
        "time": 0.0,
    }  # fmt: skip
    return dict(fact, **changes)


def gang(count=2, devices=8, accelerator="gpu", job=None, suite=None, **inputs):
    """Return compile_plan's five arguments for a site of count nodes, as keyword arguments that a
    test may change.
    """
    nodes = [
        {
            "name": "node%d" % (n + 1),
            "host": ADDRESSES[n],
            "port": 22,
            "address": None,
            "accelerator": accelerator,
            "devices": [str(d) for d in range(devices)],
        }
        for n in range(count)
    ]
    given = {
        "suite": dict(shipped()[1], **(suite or {})),
        "script": "tools/train.py",
        "code": {"digest": CODE, "commit": None, "dirty": False},
        "data": {"coco": DATA},
        "weights": {},
        "environment": {"package": "paddlepaddle-gpu", "version": "2.6.2", "digest": ENVIRONMENT},
        "config": {"files": [CONFIG], "epochs": 300},
        "overrides": (job or {}).get("overrides", {}),
        "arguments": (job or {}).get("arguments", shipped()[0]["arguments"]),
        "advice": [],
    }
    return copy.deepcopy(
        {
            "job": job_of(**(job or {})),
            "site": {
                "name": "test",
                "nodes": nodes,
                "suites": {},
                "env": {},
                "start_port": 17000,
                "fault_hours": 8000.0,
                "notify_from_nodes": [],
            },
            "nodes": nodes,
            "facts": {"node%d" % (n + 1): fact_of(ADDRESSES[n]) for n in range(count)},
            "inputs": dict(given, **inputs),
        }
    )


def compiled(**arguments):
    """Return the plan of a gang."""
    return core.compile_plan(**gang(**arguments))


def put(folder, files):
    """Write {relative path: text} below folder; return folder."""
    for name, text in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(folder)


def program(folder, name, body):
    """Write an executable shell script that a test puts first on PATH; it may use $LOG, a file
    beside it that is unique to it.
    """
    path = Path(put(folder, {name: f"#!/bin/sh\nLOG={folder}/{name}.log\n{body}\n"}), name)
    path.chmod(0o755)
    return str(folder)


def collection(folder, modules):
    """Lay out the product's collection below a folder, with other sources for some modules:
    modules: {name: source}. Return the path for ANSIBLE_COLLECTIONS_PATH.
    """
    own = ROOT / "collections/ansible_collections/trainyard/cluster"
    top = Path(folder) / "collections/ansible_collections/trainyard/cluster"
    (top / "plugins/modules").mkdir(parents=True)
    for path in (own / "plugins").iterdir():
        if path.name != "modules":
            (top / "plugins" / path.name).symlink_to(path.resolve())
    for path in (ROOT / "library").glob("*.py"):
        if path.stem not in modules:
            (top / "plugins/modules" / path.name).symlink_to(path)
    for name, source in modules.items():
        (top / "plugins/modules" / f"{name}.py").write_text(source)
    return str(Path(folder) / "collections")


def recorded(folder, name):
    """Return the lines a program wrote to its $LOG."""
    path = Path(folder, name + ".log")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


@functools.lru_cache(maxsize=None)
def agent_archive(folder=None):
    """Return the path of agent.pyz as the controller builds it, the same for all tests of a
    session.
    """
    path = Path(folder or tempfile.mkdtemp(prefix="trainyard-agent-"), zipapp.NAME)
    path.write_bytes(zipapp.build())
    return str(path)


def patched_archive(name, old, new):
    """Return agent.pyz with another text in one of its modules."""
    with zipfile.ZipFile(io.BytesIO(zipapp.build())) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    entry = next(entry for entry in entries if entry.endswith("/" + name))
    assert old.encode() in entries[entry]
    entries[entry] = entries[entry].replace(old.encode(), new.encode())
    return zipapp.pack(entries)


def peer_key(number):
    """Return a well-formed public key that differs from the others."""
    blob = struct.pack(">I", 11) + b"ssh-ed25519" + struct.pack(">I", 32) + bytes([number]) * 32
    return "ssh-ed25519 " + base64.b64encode(blob).decode()


def trusted(home, names, node, site="test", run=RUN, number=1):
    """Put a mesh and the key pair of an attempt into a node's home; return {node: public key}, the
    own one as it was made.
    """
    line = (
        'cert-authority,restrict,principals="%s/%s",from="198.51.100.%d",command="gate" ssh-ed25519'
        " AAAA trainyard-ca %s %s\n"
    )
    put(
        Path(home, ".ssh"),
        {
            "authorized_keys": "".join(
                line % (site, name, 10 + at, site, name) for at, name in enumerate(names)
            )
        },
    )
    config = (
        "Host node2\n  HostName 198.51.100.12\nHost *\n  User trainer\n  IdentityFile ~/k\n "
        " CertificateFile ~/c\n  UserKnownHostsFile ~/h\n"
    )
    put(
        Path(home, ".trainyard/mesh"),
        {"config": config, "known_hosts": f"node2 {peer_key(200)}\n"},
    )
    own = mesh_credential.make(str(home), run, number, node)
    return {name: own if name == node else peer_key(at + 1) for at, name in enumerate(names)}


# sshd's part: the line of the caller's key starts the gate of the node that is called, as
# {folder}/<node> has it.
GATE_SSH = """
GATE={folder}/$3/.trainyard/mesh/runs/{run}/{number}/$3/agent.pyz
[ -e $GATE ] || {{ echo "trainer@$3: Permission denied (publickey)." >&2; exit 255; }}
CALLER=$(basename $(dirname $2))
cd /
exec env -i SSH_ORIGINAL_COMMAND="$4" PATH="{path}" HOME=/nowhere $KEPT {python} -I $GATE gate {run} {number} $CALLER
"""


def gate_ssh(folder, path, number=1):
    """Return the text of a program that stands in for ssh and sshd between the nodes below a
    folder.
    """
    return GATE_SSH.format(folder=folder, run=RUN, number=number, path=path, python=sys.executable)


def open_gate(folder, node, nodes, base=None, number=1):
    """Put what a start leaves of an attempt's credential into the home <folder>/<node>; return the
    path of its ssh configuration.
    """
    home = os.path.join(str(folder), node)
    place = mesh_credential.place_of(home, RUN, number, node)
    machine = {"identity": mesh_credential.identity(), "node": node,
        "base": base or os.path.join(home, ".trainyard"), "run": RUN,
               "number": number, "nodes": sorted(nodes)}  # fmt: skip
    put(place, {"machine.json": json.dumps(machine), "config": ""})
    Path(place, zipapp.NAME).write_bytes(zipapp.build())
    return os.path.join(place, "config")


def attempt_files(folder, made, node, number=1, mesh=None):
    """Write what attempts.prepare leaves for the node's agent: plan, record and the working
    directory; return the attempt's path.
    """
    attempt = Path(folder, "runs", RUN, "attempt-%d" % number)
    text = core.canonical_bytes(made).decode("ascii")
    record = {
        "version": 1,
        "run": RUN,
        "attempt": number,
        "node": node,
        "unit": "trainyard-%s-%d.service" % (RUN, number),
        "plan_sha256": core.sha256(made),
        "started": 0.0,
    }
    record.update({"mesh": mesh} if mesh else {})
    put(attempt, {"plan.json": text, "attempt.json": json.dumps(record), "work/.keep": ""})
    return str(attempt)


def modes(folder):
    """Return {relative path: permission bits} of a tree, links left out."""
    found = {}
    for where, _folders, files in os.walk(folder):
        for path in [where] + [os.path.join(where, name) for name in files]:
            if not os.path.islink(path):
                found[os.path.relpath(path, folder)] = os.stat(path).st_mode & 0o777
    return found
