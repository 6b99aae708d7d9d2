#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the product beside the tools that people use today: the tables of
docs/benchmarks.md.

Not part of CI and nothing is asserted: the figures depend on the machine. `make bench` calls it, as
root, since it limits links and starts nodes of its own (rig.py).

.venv/bin/python tests/bench/benchmarks.py [--only ROW ...] [--rounds 5] [--nodes 8] [--out FOLDER]
    [--write]

Each row is measured with its peers in turns, in one run: ours, the first peer, the second, and
again. A ratio is the median of the rounds' ratios. --write puts the tables into docs/benchmarks.md,
those of the rows that were measured.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import environments
import logs
import many_nodes
import page
import rig as rigs
import scale
import starts
import transfers

ROWS = {
    **transfers.ROWS,
    **starts.ROWS,
    **environments.ROWS,
    **logs.ROWS,
    **many_nodes.ROWS,
    **scale.ROWS,
}
OURS = "Trainyard"
# Columns after the seconds.
TITLES = {
    "processor": "CPU s here",
    "each": "CPU ms here per node",
    "sent": "MB sent from here",
    "received": "MB received here",
    "tasks": "tasks per node",
    "found": "damages found",
    "held": "complete",
    "skew": "s between the nodes",
    "p50": "s late (middle)",
    "p99": "s late (99 %)",
}
# What a figure is divided by, and its form.
SCALES = {
    "each": (1, "%.0f"),
    "sent": (1e6, "%.1f"),
    "tasks": (1, "%d"),
    "found": (1, "%d"),
    "held": (1, "%d"),
    "skew": (1, "%.2f"),
    "received": (1e6, "%.1f"),
    "p50": (1, "%.2f"),
    "p99": (1, "%.2f"),
}


def spread(values, form="%.1f"):
    """Return a median with the least and the most, as text."""
    least, most = form % min(values), form % max(values)
    return f"{form % statistics.median(values)} ({least} to {most})"


def table(found):
    """Return the Markdown lines of one row's result: {nodes: {way: {seconds, ...}}}.

    A row without peers brings its own.
    """
    if "table" in found:
        return found["table"]
    keys = [
        key
        for key in TITLES
        if any(key in way for rows in found["nodes"].values() for way in rows.values())
    ]
    head = ["nodes", "way", "seconds", "ours takes", *(TITLES[key] for key in keys)]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for nodes, rows in found["nodes"].items():
        for way, figures in rows.items():
            pairs = zip(rows[OURS]["seconds"], figures["seconds"])
            times = statistics.median(one / other for one, other in pairs)
            cells = [
                str(nodes),
                way,
                spread(figures["seconds"]),
                "1" if way == OURS else f"{times:.2f} x",
            ]
            for key in keys:
                values = figures.get(key) or []
                scale, form = SCALES.get(key, (1, "%.1f"))
                cells.append(form % (statistics.median(values) / scale) if values else "-")
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def write_page(results):
    """Put each measured row's table between its marks in docs/benchmarks.md."""
    for name, found in results.items():
        note = f"{found['date']}, rounds: {found['rounds']}"
        if found.get("rate"):
            note += f", links of {found['rate']:.0f} Mbit/s (iperf3)"
        page.write(name, [*table(found), "", f"{note}."])


def main():
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    # The rows that the page has. The others are measured on request.
    shown = [row for row in ROWS if page.has(row)]
    asked.add_argument("--only", nargs="*", default=shown, choices=list(ROWS))
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--nodes", type=int, default=8)
    asked.add_argument("--out", type=Path, default=rigs.PROJECT / "runs/bench")
    asked.add_argument("--write", action="store_true")
    asked = asked.parse_args()
    os.environ["PATH"] = "{}:{}".format(Path(sys.executable).parent, os.environ["PATH"])
    asked.out.mkdir(parents=True, exist_ok=True)
    rigs.bring_peers()
    rig, results, failed = rigs.Rig(asked.out, asked.nodes), {}, []
    rig.start()
    try:
        for name in asked.only:
            print(name, flush=True)
            try:
                found = ROWS[name](rig, asked.rounds)
            except (rigs.Failure, subprocess.TimeoutExpired) as error:
                print(f"{name} failed: {error}", flush=True)
                failed.append(name)
                continue
            found.update(rounds=asked.rounds, date=datetime.date.today().isoformat())
            results[name] = found
            (asked.out / f"{name}.json").write_text(json.dumps(found, indent=1))
            print("\n".join(table(found)), flush=True)
    finally:
        rig.free_links()
        rig.stop()
    if asked.write:
        write_page(results)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
