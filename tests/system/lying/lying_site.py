# SPDX-License-Identifier: Apache-2.0
"""A site of pretended nodes below one directory. It has a controller's home, an inventory, and what
a finished run leaves on nodes and controller.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import resource
import shutil
import venv
from pathlib import Path

import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import user_manager
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as plans
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
SAMPLE = ROOT / "tests" / "samples" / "logs" / "paddle262_failure_raise_2x1"
CONFIG = "configs/faults/raise.yml"
CODE, DATA, ENVIRONMENT = "c" * 64, "d" * 64, "e" * 64
RUN = "20261120-190935-raise-1b3e"
OTHER = "20261119-080000-other-77aa"
BEGAN = 1795201787.5
LIMITS = {"memlock": resource.RLIMIT_MEMLOCK, "nofile": resource.RLIMIT_NOFILE}
SAVED = {
    "model_final.pdparams": b"parameters " * 500,
    "model_final.pdopt": b"optimizer " * 500,
    "best_model.pdparams": b"best " * 900,
}


def names(count):
    """Return the nodes' names."""
    return ["node%d" % (n + 1) for n in range(count)]


def honest(nodes):
    """Return the node that never lies; the first and the last one may, since they are asked for
    what all have.
    """
    return nodes[len(nodes) // 2]


def address(name):
    """Return a node's address."""
    return "198.51.100.%d" % int(name[4:])


def host_key(name):
    """Return the public host key that a node has; nobody holds its other half."""
    parts = (b"ssh-ed25519", hashlib.sha256(name.encode()).digest())
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return "ssh-ed25519 " + base64.b64encode(blob).decode()


def machine(home, name):
    """Write what belongs to a node's machine: its identity, its network interface, the directory of
    its user manager.
    """
    own, number = home / ".machine", int(name[4:])
    write(own / "etc" / "machine-id", "%032x\n" % (0xFEED0000 + number), 0o444)
    write(own / "proc" / "sys" / "kernel" / "hostname", name + "\n", 0o644)
    write(
        own / "etc" / "ssh" / "ssh_host_ed25519_key.pub",
        host_key(name) + f" root@{name}\n",
        0o644,
    )
    for file, text in (
        ("address", f"02:00:00:00:00:{number:02x}"),
        ("mtu", "1500"),
        ("operstate", "up"),
        ("carrier", "1"),
        ("type", "1"),
    ):
        write(own / "sys" / "class" / "net" / "eth0" / file, text + "\n", 0o644)
    write(own / "var" / "lib" / "systemd" / "linger" / "trainer", "")
    given = user_manager.node_limits(
        {name: limit(kind) for name, kind in LIMITS.items()}, user_manager.read_text
    )
    for path, text in user_manager.dropins(os.getuid(), given).items():
        write(own / path.lstrip("/"), text, 0o644)
    (own / "run" / "user" / str(os.getuid())).mkdir(parents=True, mode=0o700)


def compiled(top, nodes, number=1):
    """Return the plan of the run as the product compiles it for these nodes."""
    found, problems = jobs.read_job(
        str(ROOT / "playbooks" / "configs" / "ppyoloe.yml"), "playbooks/configs/ppyoloe.yml"
    )
    assert not problems
    found = dict(found, name="raise", config=CONFIG, overrides={}, arguments=[])
    keys = [(name, address(name), 22, address(name)) for name in nodes]
    facts = {}
    for name in nodes:
        home = str(top / "nodes" / name)
        facts[name] = {
            "hostname": name, "home": home, "base": home + "/.trainyard", "user": "trainer",
            "uid": os.getuid(), "python_version": "3.11",
            "machine": "x86_64", "libc": "2.36", "cores": 64, "missing": [], "units": [],
            "environments": {ENVIRONMENT: "f"}, "time": 0.0,
            "addresses": [{"interface": "eth0", "address": address(name)}],
            "route_source": address(name), "resolves_to": [address(name)],
            "trees": {kind: {"ok": True, "present": True,
            "differences": []} for kind in ("code/" + CODE[:16], "data/" + DATA[:16])},
            "mesh": {"present": True, "proven": 1.0, "valid_until": 10.0**10, "nodes": nodes,
            "digest": "m",
                     "inventory": primitives.inventory_digest(keys)},
        }  # fmt: skip
    planned = [
        {
            "name": name,
            "host": address(name),
            "port": 22,
            "address": address(name),
            "accelerator": "cpu",
            "devices": ["0"],
        }
        for name in nodes
    ]
    return plans.compile_plan(
        job=found,
        site={"name": "lying", "nodes": planned, "suites": {}, "env": {}, "start_port": 17000},
        nodes=planned,
        facts=facts,
        inputs={
            "suite": jobs.load_suite("paddledetection"), "script": "tools/train.py",
            "data": {"coco": DATA}, "weights": {},
            "code": {"digest": CODE, "commit": None, "dirty": False}, "overrides": {},
            "arguments": [], "advice": [],
            "environment": {"package": "paddlepaddle", "version": "2.6.2", "digest": ENVIRONMENT},
            "config": {"files": [CONFIG], "epochs": 8},
        },
    )  # fmt: skip


def write(path, value, mode=0o600):
    """Write text, bytes or JSON below directories that are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = (
        value
        if isinstance(value, bytes)
        else (
            value.encode() if isinstance(value, str) else json.dumps(value, sort_keys=True).encode()
        )
    )
    path.write_bytes(data)
    path.chmod(mode)
    return path


def finished(top, name, nodes, plan, run, failed):
    """Write the attempt of a run that has ended as it lies on one node; on `failed` the rank
    raised, the others were stopped.
    """
    attempt = top / "nodes" / name / ".trainyard" / "runs" / run / "attempt-1"
    rank, text = nodes.index(name), plans.canonical_bytes(plan).decode("ascii")
    sample = SAMPLE / ("node2" if name == failed else "node1")
    code = 1 if name == failed else None
    begun = BEGAN + 0.01 * rank
    events = [
        {"event": "launched", "pid": 3000 + rank, "time": begun},
        {"event": "start", "rank": rank, "local_rank": 0, "pid": 3100 + rank, "time": begun + 1.5,
        "endpoints_as_planned": True},
        {"event": "end", "rank": rank, "local_rank": 0, "pid": 3100 + rank,
        "time": begun + (15 if code else 16), "exit_code": code,
         "signal": None if code else "SIGTERM"},
        {"event": "launcher_end", "exit_code": code or 143, "signal": None, "time": begun + 17},
    ]  # fmt: skip
    ending = {"exit_code": "exited", "exit_status": "1" if code else "0", "peers": {},
        "time": begun + 17.5,
              "service_result": "exit-code" if code else "success",
              "stopped_by": None if code else "peer",
              "stopped_from": None if code else failed}  # fmt: skip
    record = {"version": 1, "run": run, "attempt": 1, "node": name,
        "unit": f"trainyard-{run}-1.service", "started": begun - 1,
              "plan_sha256": plans.sha256(plan), "by": "user@controller", "start": "s" * 24,
              "boot": "b"}  # fmt: skip
    write(attempt / "plan.json", text)
    write(attempt / "attempt.json", record)
    write(attempt / "job.json", dict(plan["job"], max_restarts=0))
    write(attempt / "ranks.jsonl", "".join(json.dumps(event) + "\n" for event in events))
    write(attempt / "exit.json", ending)
    write(attempt / "log" / "workerlog.0", (sample / "workerlog.0").read_bytes())
    write(attempt / "logs.txt", (sample / "launch.out").read_bytes())
    (attempt / "work").mkdir()
    for file, data in SAVED.items() if not rank else ():
        write(attempt / "output" / "raise" / file, data)
    for folder in (attempt, attempt.parent):
        folder.chmod(0o700)


def environment(place):
    """Make a Python as a site brings its own, with stand-ins for Paddle and its launcher."""
    venv.create(place, symlinks=True)
    packages = next((place / "lib").glob("python3*")) / "site-packages"
    shutil.copytree(
        HERE / "python" / "paddle",
        packages / "paddle",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    write(
        packages / "paddlepaddle-2.6.2.dist-info" / "METADATA",
        "Metadata-Version: 2.1\nName: paddlepaddle\nVersion: 2.6.2\n",
        0o644,
    )
    source = (HERE / "python" / "fleetrun").read_text(encoding="utf-8")
    write(place / "bin" / "fleetrun", "#!{}\n{}".format(place / "bin" / "python", source), 0o755)


def limit(kind):
    """Return what this machine allows, as provision.yml takes it: the pretended nodes lack nothing
    that root would have to give.
    """
    value = resource.getrlimit(kind)[0]
    return "infinity" if value == resource.RLIM_INFINITY else str(value)


def build(top, count=2, **more):
    """Make the site below `top`, with `count` nodes and one finished run of all of them; return its
    nodes' names.
    """
    nodes = names(count)
    for folder in ("home", "runs", "lies", "node_bin", "outside"):
        (top / folder).mkdir(parents=True)
    for name in ("systemctl", "systemd-run", "loginctl", "ip", "getent", "ssh", "sudo"):
        os.symlink(HERE / "bin" / name, top / "node_bin" / name)
    (top / "bin").mkdir()
    for name in ("ssh", "ssh-keyscan"):
        os.symlink(HERE / "bin" / name, top / "bin" / name)
    write(top / "host_keys.json", {address(name): host_key(name) for name in nodes})
    shutil.copytree(
        HERE / "node_python", top / "node_python", ignore=shutil.ignore_patterns("__pycache__")
    )
    write(
        top / "nodes.json",
        dict({address(name): name for name in nodes}, **{name: name for name in nodes}),
    )
    environment(top / "python")
    hosts = {
        name: {"ansible_host": address(name), "trainyard_address": address(name)} for name in nodes
    }
    suite = {
        "code": {"path": str(HERE / "code")},
        "environment": {"python": str(top / "python" / "bin" / "python")},
    }
    variables = {
        "trainyard_site": "lying", "trainyard_accelerator": "cpu", "trainyard_devices": 1,
        "trainyard_suites": {"paddledetection": suite},
        "trainyard_state_dir": str(top / "home" / "state"),
        "trainyard_cache_dir": str(top / "home" / "cache"),
        "trainyard_runs_dir": str(top / "runs"), "launch_poll_seconds": 1,
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_user": "trainer", "trainyard_admin_user": "admin",
        **{"runtime_limit_" + name: limit(kind) for name, kind in LIMITS.items()},
    }  # fmt: skip
    variables.update(more)
    write(top / "site" / "hosts.yml", yaml.safe_dump({"trainers": {"hosts": hosts}}))
    write(top / "site" / "group_vars" / "all.yml", yaml.safe_dump(variables))
    plan = compiled(top, nodes)
    for name in nodes:
        machine(top / "nodes" / name, name)
        finished(top, name, nodes, plan, RUN, failed=honest(nodes))
    # Nothing may touch these: another run on the controller, keys, pinned hosts, canaries.
    shutil.copytree(ROOT / "tests" / "fixtures" / "raised" / RUN, top / "runs" / OTHER)
    for path in (top / "runs" / OTHER).rglob("*.json"):
        path.write_text(path.read_text().replace(RUN, OTHER))
    pinned = "".join(f"{address(name)} {host_key(name)}\n" for name in nodes)
    write(top / "home" / "state" / "known_hosts", pinned)
    for path in ("home/.ssh/id_ed25519", "home/.bashrc", "outside/canary"):
        write(top / path, f"canary of {path}\n")
    return nodes
