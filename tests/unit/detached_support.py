# SPDX-License-Identifier: Apache-2.0
"""A run that its nodes keep: its order, a checkpoint's description, and calls over a relay."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from ansible_collections.trainyard.cluster.plugins.module_utils.agent import relay
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    ownership,
    supervisor_order,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from core_support import RUN

NODES = ["node1", "node2", "node3"]
# What sshd and the gate do: lead the caller to a socket.
CALL = "import sys; sys.path[:0] = [{0!r}]; import relay; sys.exit(relay.relay({1!r}, {2!r}))"


def order_of(folder, node="node1", **changes):
    """Return the Order of a node, whose directories lie below a folder."""
    fields = {
        "version": supervisor_order.VERSION,
        "run": RUN,
        "site": "test",
        "node": node,
        "base": str(folder),
        "home": str(folder),
        "nodes": NODES,
        "spares": [],
        "first": 1,
        "mesh": "config",
        "max_restarts": 3,
        "point": None,
        "start": "token",
        "boot": ownership.boot_mark(),
        "until": time.clock_gettime(time.CLOCK_BOOTTIME) + 30.0,
        "notify": [],
    }
    fields.update(changes)
    fields.setdefault("voters", [*fields["nodes"], *fields["spares"]])
    return supervisor_order.Order(**fields)


def plans_of(nodes, fresh, template=""):
    """Return plans.json of a run without spares."""
    return json.dumps([{"nodes": nodes, "fresh": fresh, "template": template}])


def point_of(**changes):
    """Return a checkpoint as a node's finder describes it."""
    files = {"4.pdopt": ["f", 3, "1" * 64], "4.pdparams": ["f", 5, "2" * 64]}
    point = {
        "attempt": 1,
        "name": "4",
        "stem": "4",
        "path": f"/home/trainer/.trainyard/runs/{RUN}/attempt-1/output/ppyoloe",
        "instead": False,
        "saved": 1000.5,
        "epoch": 5,
        "step": 60,
        "lr": 0.01,
        "first": "node1",
        "files": files,
        "bytes": 8,
        "digest": manifest.digest(files),
        "source": "node1",
        "note": "",
    }
    return dict(point, **changes)


def call_of(path, caller):
    """Return the command that leads a caller to the supervisor at a socket."""
    folder = str(Path(relay.__file__).parent)
    return [sys.executable, "-I", "-c", CALL.format(folder, str(path), caller)]


def wait_for(condition, step, seconds=10.0):
    """Call step() until condition() holds. Fail the test after some seconds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come about in time"
        step()
