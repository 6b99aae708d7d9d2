# SPDX-License-Identifier: Apache-2.0
"""The silent nodes that may hold newer checkpoints than the resume point.

They are found by the controller's record of the run.
"""

from __future__ import annotations

from ..checkpoints import finder
from ..records import run_json
from . import restart_policy


def find_holders(run_dir, silent, point):
    """Return [(node, attempt)] of silent nodes with newer checkpoints.

    They may hold what is newer than the point. Rank 0 of the attempt trained there. run_dir: the
    controller's record. silent: nodes that have not shown what they hold. point: as
    resume_point_choice.choose gives it, or None. An attempt whose rank 0 was asked afterwards and
    had saved nothing has nothing. Raises run_json.NewerRecord, OSError.
    """
    record = run_json.read(run_dir) or run_json.new_record(None, None, None)
    result = []
    for number in run_json.attempt_numbers(run_dir):
        nodes = (run_json.read_plan(run_dir, number) or {}).get("nodes") or [{}]
        node = nodes[0].get("name")
        saved_none = _saved_nothing(run_json.attempt_entry(record, number))
        if node in silent and not saved_none and not _is_covered(number, point):
            result.append((node, number))
    return result


def _saved_nothing(entry):
    """Return whether an attempt (run.json's entry) is known to have no checkpoint."""
    first = [rank for rank in entry["ranks"] if isinstance(rank, dict) and rank.get("rank") == 0]
    if entry["reason"] == run_json.NOT_STARTED:
        return True
    return bool(first) and not restart_policy.has_saved({"ranks": first})


def _is_covered(number, point):
    """Return whether a resume point is as new as what an attempt may have."""
    if not point:
        return False
    return point["attempt"] > number or (
        point["attempt"] == number and point["source"] != finder.CONTROLLER
    )


def describe_wait(holders, tries):
    """Return the reason why a restart waits for silent nodes, or ''.

    Its last try goes on with what there is, and so does a person. holders: as `find_holders` gives
    it. tries: which try of a restart this is, 0 where a person asks.
    """
    if not holders or not 0 < tries < restart_policy.MAX_TRIES:
        return ""
    nodes = ", ".join(f"{node} (attempt {number})" for node, number in holders)
    return (
        f"the newest checkpoints may lie on {nodes}, and nothing was heard from there; the restart"
        f" is tried again, and try {restart_policy.MAX_TRIES} goes on without"
    )
