# SPDX-License-Identifier: Apache-2.0
"""checkpoint_candidates_info: what a run has on a node, and what is no run."""

from __future__ import annotations

import checkpoint_candidates_info as module
from core_support import RUN
from unit.modules.test_checkpoint_fetch import RULE


def test_a_node_without_the_run_has_no_checkpoint(run_module, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    asked = {"run_id": RUN, "rule": RULE}
    assert run_module(module, asked)["found"] == {"point": None, "skipped": []}


def test_what_is_no_run_is_refused(run_module):
    refused = run_module(module, {"run_id": "../../etc"})
    assert refused["code"] == "attempt.bad_run_id"
