# SPDX-License-Identifier: Apache-2.0
"""Types of job and site, as read and validated."""

from __future__ import annotations

from typing import Any, TypedDict

from ansible_collections.trainyard.cluster.plugins.module_utils.notify.message import Channel

# A job's keys are those of schemas/job.yml, and job.ADDED_KEYS.
Job = dict[str, Any]
# A suite's keys are those of suites/schema.yml.
Suite = dict[str, Any]


class Node(TypedDict):
    """One machine of a site."""

    name: str  # in the inventory
    host: str  # name or address that the controller logs in to
    port: int | None  # of ssh
    address: str | None  # on the fabric, or the network in which that lies
    accelerator: str | None  # cpu, gpu or ascend
    devices: list[str]  # their ids


class Site(TypedDict):
    """A site: its nodes, and what it says of suites and environment."""

    name: str
    suites: dict[str, Any]  # {suite: its entry in trainyard_suites}
    env: dict[str, str]
    secret_env: list[str]  # names whose values are never shown
    start_port: int | None
    replica_rate: int  # bytes a second for the checkpoints' replica, 0 for none
    fault_hours: float  # hours of one device between two faults
    notify_from_nodes: list[Channel]  # what the nodes of a detached run tell
    nodes: list[Node]  # in rank order
    spares: list[Node]
