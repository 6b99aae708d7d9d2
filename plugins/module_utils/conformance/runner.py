# SPDX-License-Identifier: Apache-2.0
"""Hold the product against what the documents promise (contract.yml): every line is executed or
compared now, and says what was found.

A line whose check cannot be made does not hold. A line about real machines that nobody asked for
(site=false) is neither: it is not proven. Controller only.
"""

from __future__ import annotations

import os
import tempfile

import yaml

from ..base.sanitize import printable
from . import (
    commands,
    figures,
    machines,
    mindspore,
    product,
)
from .findings_check import Findings
from .fixtures import Broken, Ground

CONTRACT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "contract.yml")
PARTS = (commands, machines, figures, mindspore, product)
CHECKS = {name: check for part in PARTS for name, check in part.CHECKS.items()}
STATES = {True: "holds", False: "FAILS", None: "not asked"}


def load(path=CONTRACT):
    """Return the promises and the documents' data; every line knows its id and its document."""
    with open(path, encoding="utf-8") as handle:
        contract = yaml.safe_load(handle)
    for name, line in contract["promises"].items():
        line.update(id=name, document=contract["documents"][name[0]])
    return contract


def examine(project, site=None, run_module=None, run_program=None, only=None):
    """Check every line; return [{id, document, promise, holds, evidence, rendered, compared}].

    project: the product's directory. site: conform_site.Site, or None where the machines are not
    asked. run_module(name, arguments) runs a module on the controller, run_program(words) Python
    with these words, and returns what it prints. only: ids, for a look at some lines.
    """
    contract, lines = load(), []
    missing = sorted(set(contract["promises"]) ^ set(CHECKS))
    if missing:
        raise ValueError("contract.yml and the checks differ in {}".format(", ".join(missing)))
    with tempfile.TemporaryDirectory(prefix="trainyard-conform-") as scratch:
        ground = Ground(project, contract, os.path.realpath(scratch), site, run_module, run_program)
        for name, line in contract["promises"].items():
            if only is None or name in only:
                lines.append(checked(ground, line))
    return lines


def checked(ground, line):
    """Return one line's result."""
    found = Findings()
    try:
        CHECKS[line["id"]](ground, line, found)
    except Broken as error:
        found.true("the product takes what the document says", False, error)
    except Exception as error:  # whatever keeps a check from being made, the line is not proven, and the others are still checked
        found.true("the check", False, f"{type(error).__name__}: {error}")
    holds, evidence = found.holds(), found.short()
    if holds and line.get("site") and ground.site is None:
        holds, evidence = None, "not proven (site=false); here: " + evidence
    return {
        "id": line["id"],
        "document": line["document"]["title"],
        "promise": line["promise"],
        "holds": holds,
        "evidence": printable(evidence),
        "rendered": found.rendered,
        "compared": found.compared,
    }


def table(lines):
    """Return the lines for people: one a promise, and below it the command that was rendered, where
    there is one.
    """
    width = max(len(line["promise"]) for line in lines)
    rows = ["%-4s %-9s  %-*s  %s" % ("id", "", width, "promise", "evidence")]
    for line in lines:
        rows.append(
            "%-4s %-9s  %-*s  %s"
            % (line["id"], STATES[line["holds"]], width, line["promise"], line["evidence"])
        )
        rows += [
            "                 {}: {}".format(*item) for item in list(line["rendered"].items())[:1]
        ]
    return [row.rstrip() for row in rows]


def verdict(lines):
    """Return {outcome, text}: what is true of all lines together."""
    count = {state: [line["id"] for line in lines if line["holds"] is state] for state in STATES}
    compared = sum(len(line["compared"]) for line in lines)
    text = "%d of %d promises hold (%d comparisons made)" % (len(count[True]), len(lines), compared)
    text += "; not asked, not proven: {}".format(", ".join(count[None])) if count[None] else ""
    text += "; NOT HELD: {}".format(", ".join(count[False])) if count[False] else ""
    return {"outcome": "failed" if count[False] else "completed", "text": text}


def details(lines):
    """Return everything that was rendered and compared, in lines for people."""
    rows = []
    for line in lines:
        rows.append(
            "{} ({}) {}: {}".format(
                line["id"], line["document"], STATES[line["holds"]], line["promise"]
            )
        )
        rows += ["  {}: {}".format(*item) for item in line["rendered"].items()]
        rows += [
            "  {} {}".format("=" if entry["same"] else "DIFFERS", printable(entry["what"]))
            for entry in line["compared"]
        ]
    return rows
