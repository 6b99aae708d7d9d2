# SPDX-License-Identifier: Apache-2.0
"""What a check of conform compared, and how a difference is said. Controller only."""

from __future__ import annotations

import json
import shlex


class Findings:
    """What a check compared, one entry a comparison; a line holds where there is at least one and
    none differs.
    """

    def __init__(self):
        self.compared, self.rendered, self.evidence = [], {}, []

    def same(self, what, expected, got):
        """Note whether a value is the expected one; return whether it is."""
        self.compared.append(
            {"what": what, "expected": expected, "got": got, "same": expected == got}
        )
        return expected == got

    def true(self, what, said, otherwise="it is not so"):
        """Note whether something is so; otherwise: what is said where it is not."""
        entry = {"what": what, "expected": True, "got": bool(said), "same": bool(said)}
        self.compared.append(entry if said else dict(entry, otherwise=str(otherwise)))
        return bool(said)

    def words(self, what, expected, got, rendered=None):
        """Compare two command lines word for word. rendered: the whole command, where only a part
        of it is compared.
        """
        self.rendered[what] = " ".join(shlex.quote(word) for word in rendered or got)
        return self.places(what, "word", expected, got)

    def places(self, what, unit, expected, got):
        """Compare two lists whose first difference is shown with its place; unit: what a place is
        called.
        """
        entry = {
            "what": what,
            "expected": list(expected),
            "got": list(got),
            "same": list(expected) == list(got),
            "unit": unit,
        }
        self.compared.append(entry)
        return entry["same"]

    def refused(self, what, problems, *needles):
        """Note whether something was refused in words that hold every needle."""
        text = "\n".join(str(problem) for problem in problems)
        missing = [needle for needle in needles if needle not in text]
        return self.true(
            what,
            problems and not missing,
            (
                "not refused"
                if not problems
                else "refused without saying {}: {}".format(", ".join(missing), text)
            ),
        )

    def say(self, text, *values):
        """Add to the short evidence, which is shown where the line holds."""
        self.evidence.append(text % values if values else text)

    def holds(self):
        """Whether every comparison held, and there was one."""
        return bool(self.compared) and all(entry["same"] for entry in self.compared)

    def short(self):
        """Return the evidence in one sentence: what was found, or the first difference."""
        if not self.compared:
            return "nothing was compared"
        wrong = next((entry for entry in self.compared if not entry["same"]), None)
        return "; ".join(self.evidence) if wrong is None else difference(wrong)


def difference(entry):
    """Say how a comparison differs; of two command lines, the first word that does."""
    expected, got = entry["expected"], entry["got"]
    if "otherwise" in entry:
        return "{}: {}".format(entry["what"], entry["otherwise"])
    for index in range(max(len(expected), len(got))) if "unit" in entry else ():
        pair = [items[index] if index < len(items) else "nothing" for items in (expected, got)]
        if pair[0] != pair[1]:
            return "%s: %s %d: expected %s, got %s" % (
                entry["what"],
                entry["unit"],
                index + 1,
                pair[0],
                pair[1],
            )
    return "{}: expected {}, got {}".format(entry["what"], shown(expected), shown(got))


def shown(value):
    """Return a value as a short text."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return text if len(text) <= 160 else text[:157] + "..."
