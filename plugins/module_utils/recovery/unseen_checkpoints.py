# SPDX-License-Identifier: Apache-2.0
"""Whether a restart would go on without checkpoints that may lie on a node that says nothing, by
the controller's record of the run.
"""

from __future__ import annotations

from ..checkpoints import finder
from ..records import run_json
from . import restart_policy


def holders(run_dir, silent, point):
    """Return [(node, attempt)] of silent nodes that may hold what is newer than the point: rank 0
    of the attempt trained there.

    run_dir: the controller's record. silent: nodes that have not shown what they hold. point: as
    resumable.choose gives it, or None. An attempt whose rank 0 was asked afterwards and had saved
    nothing has nothing. Raises run_file.NewerRecord, OSError.
    """
    record, found = run_json.read(run_dir), []
    for number in run_json.numbers(run_dir):
        nodes = (run_json.plan_of(run_dir, number) or {}).get("nodes") or [{}]
        entry = run_json.known(record, number) if record else run_json.entry(number)
        first = [
            rank for rank in entry["ranks"] if isinstance(rank, dict) and rank.get("rank") == 0
        ]
        nothing = entry["reason"] == run_json.NOT_STARTED or (
            first and not restart_policy.saved({"ranks": first})
        )
        seen = point and (
            point["attempt"] > number
            or (point["attempt"] == number and point["source"] != finder.HOME)
        )
        if nodes[0].get("name") in silent and not nothing and not seen:
            found.append((nodes[0]["name"], number))
    return found


def waits(found, tries):
    """Say why a restart waits for silent nodes, or return '': its last try goes on with what there
    is, and so does a person.

    found: as `holders` gives it. tries: which try of a restart this is, 0 where a person asks.
    """
    if not found or not 0 < tries < restart_policy.TRIES:
        return ""
    where = ", ".join("%s (attempt %d)" % pair for pair in found)
    text = (
        "the newest checkpoints may lie on %s, and nothing was heard from there; the restart is"
        " tried again, and try %d goes on without"
    )
    return text % (where, restart_policy.TRIES)
