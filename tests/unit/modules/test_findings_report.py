# SPDX-License-Identifier: Apache-2.0
"""The end of check.yml: one table, and a failure where something keeps a training from starting."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import finding


@pytest.mark.parametrize("level, fails", [("stop", True), ("warn", False), ("note", False)])
def test_the_table_is_shown_and_only_a_stop_fails(run_action, level, fails):
    result = run_action(
        "findings_report",
        {"findings": [finding("clock.off", "is 31 s ahead\x1b[2J", "start NTP", "node1", level)]},
    )
    assert bool(result.get("failed")) == fails
    assert result["lines"][-1].startswith("NOT READY: 1 finding" if fails else "READY: ")
    assert (
        any("node1" in line and "is 31 s ahead" in line for line in result["lines"])
        and "start NTP" in result["lines"][1]
    )
    assert "\x1b" not in str(result)


def test_nothing_found_is_said(run_action):
    (line,) = run_action("findings_report", {"findings": []})["lines"]
    assert line.startswith("READY: nothing ")
