# SPDX-License-Identifier: Apache-2.0
"""What the agent knows about the kernel's memory killer. It reads the counter of its control group
when the launcher starts and when it ends.
"""

from __future__ import annotations

import hashlib
import json
import os

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import (
    attempt_end,
    memory_killer,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence


def test_the_counter_is_a_number_or_not_known():
    assert memory_killer.count_kills() is None or memory_killer.count_kills() >= 0


@pytest.mark.parametrize(
    "notes, gained",
    [
        ([{"event": "launched", "oom_kills": 0}], True),
        ([{"event": "launched"}], False),
        ([], False),
    ],
)
def test_kills_are_counted_from_the_launchers_start(tmp_path, notes, gained):
    (tmp_path / "ranks.jsonl").write_text("".join(json.dumps(note) + "\n" for note in notes))
    assert memory_killer.count_kills_since_start(str(tmp_path)) == (
        memory_killer.count_kills() if gained else None
    )


def test_the_end_says_how_many_and_evidence_passes_it_on(make_attempt, monkeypatch):
    before = memory_killer.count_kills()
    if before is None:
        pytest.skip("this kernel tells no count of its memory killer")
    # As if two processes had been killed since. The counter cannot be changed here without killing
    # a process.
    launched = {"event": "launched", "oom_kills": before - 2}
    ended = {"event": "launcher_end", "exit_code": 0}
    home = make_attempt("node1", "failure_rank3_raises_2x2", events=[launched, ended])
    plan = json.dumps(
        dict(
            json.loads((home / "plan.json").read_text()),
            nodes=[{"name": "node1"}],
            stop={"grace": 1},
        )
    )
    (home / "plan.json").write_text(plan)
    (home / "attempt.json").write_text(
        json.dumps(
            {
                "plan_sha256": hashlib.sha256(plan.encode()).hexdigest(),
                "run": "r",
                "attempt": 1,
            }
        )
    )
    for name, value in (
        ("SERVICE_RESULT", "success"),
        ("EXIT_CODE", "exited"),
        ("EXIT_STATUS", "0"),
    ):
        monkeypatch.setitem(os.environ, name, value)
    assert attempt_end.finish(str(home), "node1") == 0
    assert json.loads((home / "exit.json").read_text())["oom_kills"] == 2
    assert evidence.collect(str(home), "node1")["exit"]["oom_kills"] == 2
