# SPDX-License-Identifier: Apache-2.0
"""The code of earlier attempts in the plan of a resumed run."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import code_history


def attempt(number, digest="a", commit="c", dirty=False, diff=None):
    return {
        "number": number,
        "digest": digest * 64,
        "commit": commit and commit * 40,
        "dirty": dirty,
        "diff": diff,
    }


def test_attempts_with_one_code_are_one_line():
    rows = [
        attempt(1, dirty=True, diff="runs/x/code.diff"),
        attempt(2, dirty=True),
        attempt(3, "b"),
    ]
    first, second = code_history.lines(rows)
    assert "1-2" in first and "c" * 12 in first and "runs/x/code.diff" in first
    assert " 3 " in second and "b" * 12 in second


@pytest.mark.parametrize(
    "rows, digest, codes",
    [
        ([], "a", []),
        ([attempt(1)], "a", []),
        ([attempt(1)], "b", ["code.changed"]),
        ([attempt(1, "b"), attempt(2, "a")], "a", []),
        ([attempt(1, "a"), attempt(2, "b")], "a", ["code.changed"]),
        ([attempt(1, commit=None, dirty=None)], "b", ["code.changed"]),
    ],
)
def test_a_change_since_the_newest_attempt_is_warned_of(rows, digest, codes):
    now = {"digest": digest * 64, "commit": "e" * 40, "dirty": True}
    found = code_history.judge(rows, now)
    assert [(item["code"], item["level"]) for item in found] == [(code, "warn") for code in codes]
