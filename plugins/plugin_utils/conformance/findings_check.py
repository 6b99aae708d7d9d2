# SPDX-License-Identifier: Apache-2.0
"""Comparisons of a check of conform, and the text about a difference."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Sequence
from typing import Any, TypedDict


class _Compared(TypedDict):
    what: str
    expected: Any
    got: Any
    same: bool


class Comparison(_Compared, total=False):
    """One comparison.

    unit: the name of a place in two lists. otherwise: the text where a condition is not met.
    """

    unit: str
    otherwise: str


class Findings:
    """Comparisons of a check, one entry per comparison.

    A line holds where there is at least one and none differs.
    """

    def __init__(self) -> None:
        self.compared: list[Comparison] = []
        self.rendered: dict[str, str] = {}
        self.evidence: list[str] = []

    def same(self, label: str, expected: Any, got: Any) -> bool:
        """Note and return whether a value is the expected one."""
        self.compared.append(
            {"what": label, "expected": expected, "got": got, "same": expected == got}
        )
        return expected == got

    def true(self, label: str, condition: object, otherwise: object = "it is not so") -> bool:
        """Note and return whether something is so.

        otherwise: the text for where it is not.
        """
        entry: Comparison = {
            "what": label,
            "expected": True,
            "got": bool(condition),
            "same": bool(condition),
        }
        if not condition:
            entry["otherwise"] = str(otherwise)
        self.compared.append(entry)
        return bool(condition)

    def words(
        self,
        label: str,
        expected: Sequence[str],
        got: Sequence[str],
        rendered: Sequence[str] | None = None,
    ) -> bool:
        """Compare two command lines word for word and return whether they are equal.

        rendered: the whole command, where only a part of it is compared.
        """
        self.rendered[label] = " ".join(shlex.quote(word) for word in rendered or got)
        return self.places(label, "word", expected, got)

    def places(self, label: str, unit: str, expected: Sequence[str], got: Sequence[str]) -> bool:
        """Compare two lists and return whether they are equal.

        The first difference is shown with its place. unit: the name of a place.
        """
        entry: Comparison = {
            "what": label,
            "expected": list(expected),
            "got": list(got),
            "same": list(expected) == list(got),
            "unit": unit,
        }
        self.compared.append(entry)
        return entry["same"]

    def refused(self, label: str, problems: Sequence[object], *needles: str) -> bool:
        """Note and return whether something was refused in words that hold every needle."""
        text = "\n".join(str(problem) for problem in problems)
        missing = [needle for needle in needles if needle not in text]
        otherwise = "not refused"
        if problems:
            otherwise = f"refused without saying {', '.join(missing)}: {text}"
        return self.true(label, problems and not missing, otherwise)

    def say(self, text: str) -> None:
        """Add to the short evidence, which is shown where the line holds."""
        self.evidence.append(text)

    def holds(self) -> bool:
        """Return whether every comparison held, and there was one."""
        return bool(self.compared) and all(entry["same"] for entry in self.compared)

    def short(self) -> str:
        """Return the evidence in one sentence, or the first difference."""
        if not self.compared:
            return "nothing was compared"
        for entry in self.compared:
            if not entry["same"]:
                return difference(entry)
        return "; ".join(self.evidence)


def difference(entry: Comparison) -> str:
    """Return the text about the difference of a comparison.

    Of two command lines, it names the first word that differs.
    """
    label, expected, got = entry["what"], entry["expected"], entry["got"]
    if "otherwise" in entry:
        return f"{label}: {entry['otherwise']}"
    if "unit" in entry:
        pairs = itertools.zip_longest(expected, got, fillvalue="nothing")
        for number, (expected_item, actual) in enumerate(pairs, 1):
            if expected_item != actual:
                return f"{label}: {entry['unit']} {number}: expected {expected_item}, got {actual}"
    return f"{label}: expected {shown(expected)}, got {shown(got)}"


def shown(value: object) -> str:
    """Return a value as a short text."""
    if isinstance(value, str):
        text = value
    else:
        text = json.dumps(value, sort_keys=True, default=str)
    if len(text) > 160:
        return text[:157] + "..."
    return text
