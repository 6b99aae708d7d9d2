# SPDX-License-Identifier: Apache-2.0
"""Comparison of the product with the upstream documentation (contract.yml).

Every line is executed or compared now and gives its evidence. A line whose check cannot be made
does not hold. A line about real machines that were left out (site=false) is neither: it is not
proven.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Container, Sequence
from typing import TypedDict

import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable

from . import commands, figures, machines, mindspore, product
from .findings_check import Comparison, Findings
from .fixtures import Broken, Contract, Fixtures, Line, RunModule
from .site_checks import Site

CONTRACT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "contract.yml")
PARTS = (commands, machines, figures, mindspore, product)
CHECKS = {name: check for part in PARTS for name, check in part.CHECKS.items()}
STATES = {True: "holds", False: "FAILS", None: "not asked"}


class Result(TypedDict):
    """Result of one line. holds: None where the line is not proven."""

    id: str
    document: str
    promise: str
    holds: bool | None
    evidence: str
    rendered: dict[str, str]
    compared: list[Comparison]


def load(path: str = CONTRACT) -> Contract:
    """Return the promises and the documented data.

    Every line knows its id and its document.
    """
    with open(path, encoding="utf-8") as handle:
        contract: Contract = yaml.safe_load(handle)
    for name, line in contract["promises"].items():
        line.update(id=name, document=contract["documents"][name[0]])
    return contract


def examine(
    project: str,
    site: Site | None = None,
    run_module: RunModule | None = None,
    only: Container[str] | None = None,
) -> list[Result]:
    """Check every line and return the results.

    project: the product's directory. site: None where the nodes are left out. run_module(name,
    arguments) runs a module on the controller. only: ids, None for all lines. Raises ValueError
    for a line without a check.
    """
    contract = load()
    lines: list[Result] = []
    missing = sorted(set(contract["promises"]) ^ set(CHECKS))
    if missing:
        raise ValueError(f"contract.yml and the checks differ in {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="trainyard-conform-") as scratch:
        fixtures = Fixtures(project, contract, os.path.realpath(scratch), site, run_module)
        for name, line in contract["promises"].items():
            if only is None or name in only:
                lines.append(check_line(fixtures, line))
    return lines


def check_line(fixtures: Fixtures, line: Line) -> Result:
    """Check one line and return its result."""
    findings = Findings()
    try:
        CHECKS[line["id"]](fixtures, line, findings)
    except Broken as error:
        findings.true("the product accepts what upstream prints", False, error)
    # Whatever prevents a check, the line is not proven, and the others are still checked.
    except Exception as error:
        findings.true("the check", False, f"{type(error).__name__}: {error}")
    holds: bool | None = findings.holds()
    evidence = findings.short()
    if holds and line.get("site") and fixtures.site is None:
        holds, evidence = None, "not proven (site=false); here: " + evidence
    return {
        "id": line["id"],
        "document": line["document"]["title"],
        "promise": line["promise"],
        "holds": holds,
        "evidence": printable(evidence),
        "rendered": findings.rendered,
        "compared": findings.compared,
    }


def table(lines: Sequence[Result]) -> list[str]:
    """Return the table for people, one line per promise.

    Below it is the command that was rendered, where there is one.
    """
    width = max(len(line["promise"]) for line in lines)
    rows = [f"{'id':<4} {'':<9}  {'promise':<{width}}  evidence"]
    for line in lines:
        state = STATES[line["holds"]]
        rows.append(f"{line['id']:<4} {state:<9}  {line['promise']:<{width}}  {line['evidence']}")
        for label, command in list(line["rendered"].items())[:1]:
            rows.append(f"{'':<17}{label}: {command}")
    return [row.rstrip() for row in rows]


def verdict(lines: Sequence[Result]) -> dict[str, str]:
    """Return {outcome, text} of all lines together."""
    ids = {state: [line["id"] for line in lines if line["holds"] is state] for state in STATES}
    compared = sum(len(line["compared"]) for line in lines)
    text = f"{len(ids[True])} of {len(lines)} promises hold ({compared} comparisons made)"
    outcome = "completed"
    if ids[None]:
        text += f"; not asked, not proven: {', '.join(ids[None])}"
    if ids[False]:
        text += f"; NOT HELD: {', '.join(ids[False])}"
        outcome = "failed"
    return {"outcome": outcome, "text": text}


def details(lines: Sequence[Result]) -> list[str]:
    """Return everything that was rendered and compared, in lines for people."""
    marks = {True: "=", False: "DIFFERS"}
    rows = []
    for line in lines:
        state = STATES[line["holds"]]
        rows.append(f"{line['id']} ({line['document']}) {state}: {line['promise']}")
        rows += [f"  {label}: {command}" for label, command in line["rendered"].items()]
        rows += [
            f"  {marks[entry['same']]} {printable(entry['what'])}" for entry in line["compared"]
        ]
    return rows
