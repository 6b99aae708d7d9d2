# SPDX-License-Identifier: Apache-2.0
"""logs_follow: what it does without a stream. The scenario logs follows real runs."""

from __future__ import annotations

import pytest
from logs_support import CHOICE, Bench


@pytest.fixture
def bench(load_plugin, monkeypatch, tmp_path):
    return Bench(load_plugin, monkeypatch, tmp_path, "logs_follow")


def test_check_mode_copies_nothing(bench):
    result = bench({"choice": CHOICE, "follow": False}, check=True)
    assert (result["bytes"], result["lines"], result["changed"]) == (0, 0, False)


def test_a_node_without_wanted_logs_is_not_followed(bench):
    result = bench({"choice": CHOICE, "offsets": {}}, rank="1")
    assert (result["lines"], result["brought"]) == (0, False)


def test_a_worker_ends_where_its_playbook_was_killed(bench, monkeypatch):
    action, ended = bench.plugin, []
    alive = action._end_with_parent()
    monkeypatch.setattr(action.os, "_exit", ended.append)
    alive()
    assert ended == []
    monkeypatch.setattr(action.os, "getppid", lambda: 1)
    alive()
    assert ended == [1]
