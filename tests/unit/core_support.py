# SPDX-License-Identifier: Apache-2.0
"""What several tests of the core need: a site, its nodes and facts as the product makes them, programs that record how they were called."""

from __future__ import annotations

import copy
import functools
import json
import os
from pathlib import Path

from ansible.module_utils.trainyard import job as jobs
from ansible.module_utils.trainyard import mesh
from ansible.module_utils.trainyard import plan as core

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "configs/ppyoloe/ppyoloe_crn_s_300e_coco.yml"
# The four machines of the PaddleDetection document (contract C2).
ADDRESSES = ["10.127.6.17", "10.127.5.142", "10.127.45.13", "10.127.44.151"]
CODE, DATA, ENVIRONMENT = "c" * 64, "d" * 64, "e" * 64
# Two test sessions on one machine must not take each other's processes for their own.
UNIQUE = "ppyoloe-%04x" % (os.getpid() % 65536)
RUN = "20261120-103501-" + UNIQUE


def renamed(log, kept, data):
    """Rotate a log: what it has gets another name, and a new file its own. A look in between finds one of the two, never no file."""
    new = log.with_name("new~")
    new.write_bytes(data)
    os.link(log, kept)
    os.replace(new, log)


@functools.lru_cache(maxsize=None)
def shipped():
    """Return (the shipped PP-YOLOE job, its suite's table) as the product reads them."""
    found, problems = jobs.read_job(str(ROOT / "playbooks" / "configs" / "ppyoloe.yml"), "playbooks/configs/ppyoloe.yml")
    assert not problems
    return found, jobs.load_suite("paddledetection")


def job_of(**changes):
    """Return the shipped PP-YOLOE job, changed."""
    return copy.deepcopy(dict(shipped()[0], **changes))


def fact_of(address, **changes):
    """Return what node_probe says of a ready node."""
    fact = {
        "hostname": "h", "home": "/home/trainer", "base": "/home/trainer/.trainyard", "user": "trainer", "uid": 1000,
        "python_version": "3.11", "machine": "x86_64", "libc": "2.36", "cores": 64,
        "addresses": [{"interface": "lo", "address": "127.0.0.1"}, {"interface": "eth0", "address": address}],
        "route_source": address, "resolves_to": [address], "missing": [], "units": [], "environments": {ENVIRONMENT: "f"},
        "trees": {name: {"ok": True, "present": True, "differences": []} for name in ("code/" + CODE[:16], "data/" + DATA[:16])},
        "mesh": {"present": True, "proven": 1.0, "valid_until": 10.0**10, "nodes": ["node%d" % n for n in range(1, len(ADDRESSES) + 1)], "digest": "m",
                 "inventory": mesh.inventory_digest([("node%d" % n, ADDRESSES[n - 1], 22, None) for n in range(1, len(ADDRESSES) + 1)])},
        "time": 0.0,
    }  # fmt: skip
    return dict(fact, **changes)


def gang(count=2, devices=8, accelerator="gpu", job=None, suite=None, **inputs):
    """Return compile_plan's five arguments for a site of count nodes, as keyword arguments that a test may change."""
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
            "site": {"name": "test", "nodes": nodes, "suites": {}, "env": {}, "start_port": 17000},
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
    """Write an executable shell script that a test puts first on PATH; it may use $LOG, a file beside it that is unique to it."""
    path = Path(put(folder, {name: "#!/bin/sh\nLOG=%s/%s.log\n%s\n" % (folder, name, body)}), name)
    path.chmod(0o755)
    return str(folder)


def recorded(folder, name):
    """Return the lines a program wrote to its $LOG."""
    path = Path(folder, name + ".log")
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def attempt_files(folder, made, node, number=1):
    """Write what attempts.prepare leaves for the node's agent: plan, record and the working directory; return the attempt's path."""
    attempt = Path(folder, "runs", RUN, "attempt-%d" % number)
    text = core.canonical(made).decode("ascii")
    record = {
        "version": 1,
        "run": RUN,
        "attempt": number,
        "node": node,
        "unit": "trainyard-%s-%d.service" % (RUN, number),
        "plan_sha256": core.sha256(made),
        "started": 0.0,
    }
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
