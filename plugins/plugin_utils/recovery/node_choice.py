# SPDX-License-Identifier: Apache-2.0
"""The nodes of the next attempt, and the memory of nodes that failed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import CodedError
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import machine_faults

from . import candidates, failed_nodes


class ReplacementRefused(CodedError):
    """A run cannot go on with the nodes that are available."""


def note_failed_nodes(
    arguments: dict[str, Any], write: bool, warn: Callable[[str], None]
) -> dict[str, Any]:
    """Note the nodes that a verdict names, at the time when they failed.

    The verdict of an old run can be made again, so that time may have passed.
    """
    causes, now = machine_faults.culprits(arguments["verdict"], arguments["nodes"]), time.time()
    if causes and write:
        ended = min(arguments["ended"] or now, now)
        try:
            failed_nodes.note(arguments["state_dir"], causes, arguments["run_id"], ended)
        except OSError as error:  # the run's end is reported all the same
            warn(f"that {', '.join(causes)} failed is not remembered: {error}")
    return {"noted": causes}


def choose_nodes(arguments: dict[str, Any], write: bool) -> dict[str, Any]:
    """Choose the nodes, and note those of the newest attempt that do not answer.

    Raises ReplacementRefused.
    """
    now, state_dir, run_id = time.time(), arguments["state_dir"], arguments["run_id"]
    silent = _silent_nodes(arguments)
    if silent and write:
        failed_nodes.note(state_dir, silent, run_id, now)
    choice = candidates.choose(arguments, failed_nodes.read(state_dir), now)
    if choice["refused"]:
        refusals = (f"  {line}" for line in choice["refused"])
        text = "\n".join([f"the run {run_id} cannot go on:", *refusals])
        raise ReplacementRefused("replacement.too_few_nodes", text)
    lines = zip(choice["why"], choice["codes"])
    return {
        **choice,
        "run": run_id,
        "state_dir": os.path.abspath(state_dir),
        "new": [name for name in choice["nodes"] if name not in arguments["nodes"]],
        "noted": silent,
        "lines": [printable(f"{line} ({code})") for line, code in lines],
    }


def _silent_nodes(arguments: dict[str, Any]) -> dict[str, str]:
    """Return the cause of each node of the newest attempt that does not answer.

    The cause that a verdict of this run gave for such a node stays, since it says more.
    """
    known = failed_nodes.read(arguments["state_dir"])
    silent = candidates.silent_nodes(arguments["looks"], arguments["nodes"])
    for name in silent:
        entry = known.get(name, {})
        if entry.get("run") == arguments["run_id"] and entry.get("cause"):
            silent[name] = entry["cause"]
    return silent
