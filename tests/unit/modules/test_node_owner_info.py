# SPDX-License-Identifier: Apache-2.0
"""The quick look at a node: which run uses it, and in words why that cannot be said."""

from __future__ import annotations

import node_owner_info as module
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    ownership,
)

RUN = "20261120-103501-x-1f2e"
HELD = [
    {
        "unit": f"trainyard-{RUN}-1.service", "state": "active", "description": "Trainyard run",
        "run": RUN, "attempt": 1, "user": "trainer",
        "mine": True, "age_s": 3.5, "since": 1763634901.0, "by": "alice@desk", "start": "abc",
    }
]  # fmt: skip


def test_who_holds_the_node(run_module, monkeypatch):
    monkeypatch.setattr(
        ownership, "list_owners", lambda run, base: HELD if base.endswith("/.trainyard") else []
    )
    assert run_module(module, {}) == {
        "changed": False,
        "held": HELD,
    }


def test_a_node_whose_systemd_is_silent_is_not_free(run_module, monkeypatch):
    def refuse(_run, _base):
        raise attempt_dir.AttemptError("attempt.no_user_systemd", "systemd does not answer")

    monkeypatch.setattr(ownership, "list_owners", refuse)
    found = run_module(module, {})
    assert found["failed"] and found["msg"] == "systemd does not answer" and "held" not in found
