# SPDX-License-Identifier: Apache-2.0
"""The plan's types: the keys of plan.json.

The file's schema is plugin_utils/config/schemas/plan.yml. A plan of an earlier version may lack
keys, so readers of files take `.get` for the keys that the schema does not require.
"""

from __future__ import annotations

from typing import Any, TypedDict


class _NodeBase(TypedDict):
    name: str
    rank: int  # of the node, 0 for the first one
    address: str  # on the fabric
    interface: str
    devices: list[str]  # ids that the launcher takes
    home: str  # of the training account
    base: str  # the product's directory
    user: str
    python: str  # path of the Python that trains
    cores: int
    env: dict[str, str]  # variables that differ from node to node


class PlannedNode(_NodeBase, total=False):
    """One node of a plan."""

    argv: list[str]  # where it is not the plan's
    container: dict[str, Any]  # {argv, env, remove} of an environment's image


class PlannedRank(TypedDict):
    """One rank of a plan."""

    rank: int  # global
    node: str
    local_rank: int
    device: str
    log: str  # path below the working directory
    endpoint: str  # address:port, or address:* where the launcher chooses the port
    env: dict[str, str]


class Scheduler(TypedDict):
    """A process that the first node runs beside its ranks."""

    node: str
    argv: list[str]
    env: dict[str, str]
    log: str


class PlannedPath(TypedDict):
    """An input that lies on the nodes already."""

    path: str
    placement: str  # present or shared
    digest: str | None  # of names and sizes


class ResumeRecord(TypedDict, total=False):
    """The checkpoint from which an attempt goes on."""

    attempt: int
    name: str
    digest: str
    epoch: int | None
    step: int | None
    lr: float | None
    unresumed: str  # digest of the same plan without the checkpoint


class Settings(TypedDict):
    """Numbers that the training uses, None where the suite's config does not say them."""

    batch_per_card: int | None
    batch_total: int | None
    learning_rate: float | None
    iterations: int | None


class _PlanBase(TypedDict):
    version: int
    site: str
    job: dict[str, Any]
    suite: dict[str, Any]
    launcher: dict[str, Any]
    accelerator: str  # cpu, gpu or ascend
    argv: list[str]  # of the first node
    script: list[str]  # training script and its arguments
    env: dict[str, str]  # variables that are the same on every node
    secret_env: list[str]  # names whose values are never shown
    ports: dict[str, int]  # start, count
    endpoints: list[str]
    nodes: list[PlannedNode]
    ranks: list[PlannedRank]
    code: dict[str, str]  # digest, path
    placed: dict[str, PlannedPath]
    data: dict[str, str]  # {data set: digest}
    weights: dict[str, dict[str, Any]]  # {config key: {digest, file, url, bytes}}
    links: dict[str, str]  # {path below the working directory: target}
    files: dict[str, str]  # {path below the working directory: text}
    scheduler: Scheduler | None
    environment: dict[str, Any]
    epochs: int | None
    advice: list[str]  # sentences, never parsed
    settings: Settings  # plans of an earlier version lack it
    resume: ResumeRecord | None
    notes: list[str]
    stop: dict[str, int]  # grace, timeout (seconds)
    watchdog: dict[str, Any] | None


class Plan(_PlanBase, total=False):
    """What every node executes. Its canonical bytes have the digest that names it."""

    replica: dict[str, Any]  # {node, rate in bytes a second} of the checkpoints' replica
    supervised: bool  # true where the nodes restart the run themselves
