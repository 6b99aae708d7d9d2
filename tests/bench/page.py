# SPDX-License-Identifier: Apache-2.0
"""The page of the benchmarks, docs/benchmarks.md: the text between the marks of a row."""

from __future__ import annotations

import datetime
import re
import sys
from collections.abc import Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs/benchmarks.md"


def has(row):
    """Return whether the page has the marks of a row."""
    return f"<!-- bench {row}: begin -->" in PAGE.read_text()


def write(row, lines: Sequence[str]):
    """Put lines between the marks of a row."""
    text = PAGE.read_text()
    pattern = re.compile(
        rf"(<!-- bench {row}: begin -->\n).*?(<!-- bench {row}: end -->)", re.DOTALL
    )
    if not pattern.search(text):
        sys.exit(f"{PAGE} has no marks for the row {row}")
    block = "\n".join(lines)
    PAGE.write_text(pattern.sub(lambda found: f"{found[1]}{block}\n{found[2]}", text))


def show(row, head: Sequence[str], rows, rounds, written):
    """Print a table, and put it between the marks of a row.

    rows: of cells. rounds: how many were measured. written: whether the page gets it.
    """
    cells = [head, ["---"] * len(head), *rows]
    table = ["| {} |".format(" | ".join(line)) for line in cells]
    print("\n".join(table))
    if written:
        write(row, [*table, "", note(rounds)])


def note(rounds):
    """Return the line below a table. rounds: how many were measured."""
    return f"{datetime.date.today().isoformat()}, rounds: {rounds}."
