# SPDX-License-Identifier: Apache-2.0
"""The attempt that is collected next, of a run that its nodes restart themselves.

Nobody may have followed the earlier ones. They are collected one after the other, so that the
record has the logs and the verdict of each.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_choice, run_json


def choose(
    runs_dir: str, choice: dict[str, Any], answers: Iterable[dict[str, Any]], after: int
) -> dict[str, Any]:
    """Return the choice with the number of the oldest attempt without a verdict here.

    choice: of run_choice.choose, with the newest attempt. answers: the nodes' statuses. after: the
    attempt that was collected last. An attempt counts where more than half of the nodes have it. A
    run that a controller restarts keeps its choice. The result's `later` says whether the nodes
    have begun another attempt after the one chosen.
    """
    claims = [
        status
        for status in answers
        if run_choice.is_sound(status, choice["run"]) and status.get("supervised")
    ]
    count = collections.Counter(number for status in claims for number in set(status["attempts"]))
    record = run_json.read(os.path.join(runs_dir, choice["run"])) or {"attempts": []}
    waiting = [
        number
        for number, nodes in sorted(count.items())
        if after < number < choice["number"]
        and 2 * nodes > len(claims)
        and not run_json.attempt_entry(record, number)["verdict"]
    ]
    number = (waiting or [choice["number"]])[0]
    return dict(choice, number=number, later=bool(waiting))
