# SPDX-License-Identifier: Apache-2.0
"""Order of a controller to the supervisors of a run, and the files that they keep.

The order comes with the start of an attempt over the controller's own connection, and lies in the
supervisor's directory on each node, with the archives and the plans of later attempts. No peer can
change it. So a node executes nothing but what a controller has compiled for it.
"""

from __future__ import annotations

import os
import typing

from ..base.files import read_json

NAME, WISH, STATE, STATUS = "order.json", "wish.json", "state.json", "status.json"
LEASE = "lease.json"
PLANS, JOB = "plans.json", "job.json"
AGENT, REPLICATOR, PROGRAM = "agent.pyz", "replicator.pyz", "supervisor.pyz"
VERSION = 3
# Each voter has a connection to every other node of the run. So of many nodes only a few vote.
MOST_VOTERS, VOTERS_OF_MANY = 9, 5
# With more spares there would be hundreds of teams, each with plans of its own.
MOST_SPARES = 2
# Seconds for which the first attempt trains by the controller's word alone.
GRANTED_SECONDS = 90.0


class Order(typing.NamedTuple):
    """The fields of order.json."""

    version: int
    run: str
    site: str
    node: str
    base: str  # the product's directory on this node
    home: str
    nodes: list[str]  # of the first attempt, in rank order
    spares: list[str]  # that may take the place of a lost node
    voters: list[str]  # that agree on the run's attempts: the first ones of nodes and spares
    first: int  # the attempt that the controller has started
    mesh: str  # ssh configuration of the run's credential, '' for a single node
    max_restarts: int
    point: dict | None  # the checkpoint that the first attempt began from
    start: str  # the token of the controller's start
    boot: str  # of the machine when the order came
    until: float  # seconds of CLOCK_BOOTTIME until which the first attempt is granted
    notify: list[dict]  # the site's receivers that are told from the nodes


def nodes_of(order):
    """Return the nodes that may come to train in a run, in rank order, then the spares."""
    return [*order.nodes, *order.spares]


def place_of(run_dir, node):
    """Return the directory of a node's supervisor. Nodes may share the run's directory."""
    return os.path.join(run_dir, "supervisor", node)


def read(place):
    """Return the Order of a supervisor's directory. Raises OSError, ValueError, TypeError."""
    value = read_json(os.path.join(place, NAME))
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise ValueError(f"{place}/{NAME} is not an order that this supervisor knows")
    return Order(**value)
