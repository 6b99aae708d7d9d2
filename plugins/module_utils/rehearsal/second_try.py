# SPDX-License-Identifier: Apache-2.0
"""A second rehearsal of one node's GPUs, without traffic from GPU to GPU.

Where an IOMMU or PCI access control lies between the GPUs, or where their model has no
peer-to-peer, the first collective of one node can hang (NVIDIA's NCCL user guide, Troubleshooting,
GPU-to-GPU communication; NVIDIA/nccl issue 199). NCCL_P2P_DISABLE=1 then lets it pass through the
host's memory. A second try tells that from a firewall. Not run on such hardware.

It is for jobs of one node. The units of several nodes would have to be started again together.
"""

from __future__ import annotations

import hashlib
import json
import os

from ..attempts import attempt_dir, ownership, status
from ..base import safe_open
from . import outcome

# The largest archive of the agent that is read back (it has some hundred kB).
_ARCHIVE_BYTES = 16 << 20
# Fields of attempt.json that a start gives.
_BEGUN = ("start", "by", "boot")


def is_useful(plan, result):
    """Return whether a rehearsal may have hung because peer-to-peer does not work.

    plan: the rehearsal's plan. result: what node_rehearsal.read returned after the hang.
    """
    env = plan.get("env") or {}
    ranks = plan.get("ranks") or []
    if plan.get("accelerator") != "gpu" or len(plan.get("nodes") or []) != 1 or len(ranks) < 2:
        return False
    # The variable would not enter a container.
    if outcome.NO_PEERS in env or (plan.get("environment") or {}).get("container"):
        return False
    stages = [rank["stage"] for rank in result["ranks"]]
    return len(stages) == len(ranks) and all(stage in outcome.WAITING for stage in stages)


def prepare(attempt):
    """Return what a second start needs of the first one's directory.

    {plan, archive, begun}. Raises OSError and ValueError.
    """
    plan = status.read_json(attempt, "plan.json")
    record = status.read_json(attempt, "attempt.json")
    if not plan or not record:
        raise ValueError(attempt)
    archive = safe_open.read_file(os.path.join(attempt, attempt_dir.ARCHIVE), _ARCHIVE_BYTES)
    plan["env"] = dict(plan["env"], **{outcome.NO_PEERS: "1"})
    begun = {name: record[name] for name in _BEGUN if name in record}
    return {"plan": plan, "archive": archive, "begun": begun}


def start(run_command, base, run_id, node, prepared):
    """Start the rehearsal again, while no other attempt holds the node.

    The directory of the first one has to be removed. Raises AttemptError and OSError.
    """
    unit = attempt_dir.unit_name(run_id, outcome.NUMBER)
    place = attempt_dir.attempt_dir(base, run_id, outcome.NUMBER)
    plan = prepared["plan"]
    text = json.dumps(plan, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()

    def act():
        attempt_dir.prepare(
            place,
            text,
            digest,
            node,
            run_id,
            outcome.NUMBER,
            {attempt_dir.ARCHIVE: prepared["archive"]},
            prepared["begun"],
        )
        about = f"a second rehearsal of {run_id}"
        attempt_dir.start(run_command, place, plan, node, unit, about)

    token = prepared["begun"].get("start", "")
    ownership.run_when_free(run_command, base, run_id, outcome.NUMBER, token, node, act)
