# SPDX-License-Identifier: Apache-2.0
"""The code of a run's earlier attempts, compared with the code of the next one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_ranges

SHORT = 12


def lines(attempted: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each code that attempts ran with, the oldest first.

    attempted: as attempted_code.read gives it.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for row in attempted:
        key = (row["digest"], row["commit"], row["dirty"])
        groups.setdefault(key, []).append(row["number"])
    diffs = {row["number"]: row["diff"] for row in attempted}
    result = []
    for (digest, commit, dirty), numbers in groups.items():
        label = "attempt"
        if len(numbers) > 1:
            label = "attempts"
        text = describe({"digest": digest, "commit": commit, "dirty": dirty})
        diff = next((diffs[number] for number in numbers if diffs[number]), None)
        if diff:
            text += f" ({diff})"
        result.append(f"code: {label} {format_ranges(numbers)} ran with {text}")
    return result


def describe(code: Mapping[str, Any]) -> str:
    """Return commit, local changes and digest of a code as words."""
    digest = f"digest {str(code['digest'])[:SHORT]}"
    if not code.get("commit"):
        return f"{digest} (no commit is known)"
    changes = "no local changes"
    if code.get("dirty"):
        changes = "local changes"
    elif code.get("dirty") is None:
        changes = "unknown local changes"
    return f"commit {code['commit'][:SHORT]}, {changes}, {digest}"


def judge(
    attempted: Sequence[Mapping[str, Any]], code: Mapping[str, Any]
) -> list[findings.Finding]:
    """Return the warning that the code has changed since the newest attempt, or nothing.

    code: {digest, commit, dirty} of the next attempt.
    """
    if not attempted or not code.get("digest"):
        return []
    newest = attempted[-1]
    if newest["digest"] == code["digest"]:
        return []
    then, now = describe(newest), describe(code)
    text = f"the code has changed since attempt {newest['number']}: {then} then, {now} now"
    remedy = "nothing, if that is meant; else check out the earlier code"
    if newest["commit"]:
        remedy += f": git checkout {newest['commit'][:SHORT]}"
        if newest["diff"]:
            remedy += f" && git apply {newest['diff']}"
    return [findings.finding("code.changed", text, remedy, level="warn")]
