#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Put the tables of a drill into docs/drills.md, between its marks: drill.json's, bare.json's,
goodput.json's and log_stress.py's.

.venv/bin/python tests/bench/drill_page.py --drill runs/drill/drill.json [--bare FOLDER/bare.json]
[--goodput FOLDER/goodput.json] [--linked FOLDER/goodput.json] [--logs FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "collections"))
from ansible_collections.trainyard.cluster.plugins.plugin_utils.drills import fault_table

PAGE = PROJECT / "docs" / "drills.md"
BARE_HEAD = [
    "fault",
    "ours: known, all stopped after",
    "bare: first error after",
    "bare: both commands ended after",
    "bare: left when closed",
    "bare: what it says first",
]
LOG_HEAD = [
    "case",
    "written",
    "received",
    "lines",
    "seconds",
    "most memory: sender, receiver",
    "delay p50, p99",
    "same on controller and node",
]
WAY_HEAD = [
    "way",
    "steps",
    "first to last step",
    "steps made again",
    "seconds of a step",
    "processor seconds of a step",
    "goodput of that",
    "goodput from the command",
    "faults that it met",
    "came to its end",
]
RECOVERY_HEAD = ["fault", "way", "no rank left after", "ranks again after", "next step after"]


def read(path):
    return json.loads(Path(path).read_text()) if path and Path(path).exists() else None


def lines(head, rows):
    return (
        "\n".join(
            "| {} |".format(" | ".join(fault_table.cell(part) for part in row))
            for row in [head, ["---"] * len(head), *rows]
        )
        + "\n"
    )


def shown(value):
    return "–" if value is None else f"{value:.1f} s"


def bare_rows(ours, bare):
    """Yield the rows of the faults that were done to both."""
    by_name = {result["name"]: result for result in ours or ()}
    for name, found in bare.items():
        mine = by_name.get(name) or {}
        if found.get("note"):
            yield [name, "–", found["note"], "–", "–", "–"]
            continue
        ended = (
            shown(found["ended"])
            if found["ended"] is not None
            else "not in {:.0f} s".format(found["limit"])
        )
        first = shown(found["first_error"]) if found["first_error"] is not None else "none"
        known = (
            "goes on"
            if mine.get("goes_on")
            else "{}, {}".format(shown(mine.get("detected")), shown(mine.get("stopped")))
        )
        yield [
            name,
            known,
            first,
            ended + (" (%d more steps)" % found["went_on"] if found["went_on"] > 1 else ""),
            found["left"],
            found["said"] or "nothing",
        ]


def spread(values, form="{:.2f}"):
    """Return the median of the values that are known, with the least and the most, as text."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    texts = [form.format(value) for value in (statistics.median(known), min(known), max(known))]
    return texts[0] if len(known) == 1 else "{} ({} to {})".format(*texts)


def way_rows(rounds):
    """Yield the row of each way. rounds: [{way: result}]."""
    for way in rounds[0]:
        found = [results[way] for results in rounds if way in results]
        yield [
            way,
            found[0]["steps"],
            spread([one["stretch"] for one in found], "{:.1f}") + " s",
            spread([one.get("again") for one in found], "{:.0f}"),
            spread([one.get("step") for one in found]),
            spread([one.get("work") for one in found], "{:.3f}"),
            spread([one["between"] for one in found]),
            spread([one["goodput"] for one in found]),
            ", ".join(found[0]["faults"]) or "none",
            "%d of %d" % (sum(one["completed"] for one in found), len(found)),
        ]


def recovery_rows(rounds):
    """Yield the seconds of each fault in parts, a row for each way."""
    by_fault = {}
    for results in rounds:
        for way, found in results.items():
            for row in found["recoveries"]:
                by_fault.setdefault((row["kind"], way), []).append(row)
    for (kind, way), rows in sorted(by_fault.items()):
        parts = [
            spread([row.get(part) for row in rows], "{:.1f}")
            for part in ("ended", "started", "step")
        ]
        yield [kind, way, *(f"{part} s" for part in parts)]


def log_rows(cases):
    for found in cases:
        delay = found.get("delay_ms") or {}
        yield [
            found["case"],
            "%.1f MB" % (found["written"] / 1e6),
            "%.1f MB" % (found["wire"] / 1e6),
            found["lines"],
            found["seconds"],
            (
                "{:.1f}, {:.1f} MB".format(found["sender_kib"] / 1024, found["receiver_kib"] / 1024)
                if found["sender_kib"]
                else "-, %.1f MB" % (found["receiver_kib"] / 1024)
            ),
            "%d, %d ms" % (delay["p50"], delay["p99"]) if delay else "–",
            "yes" if found["equal"] and found["whole"] else "no",
        ]


def main():
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument(
        "--drill", default=str(PROJECT / "runs/drill/drill.json"), help="'' leaves the table"
    )
    asked.add_argument("--bare")
    asked.add_argument("--goodput")
    asked.add_argument("--linked", help="of goodput.py --link")
    asked.add_argument("--logs")
    asked.add_argument("--page", type=Path, default=PAGE)
    asked = asked.parse_args()
    ours, bare, ways, logs = (
        read(asked.drill),
        read(asked.bare),
        read(asked.goodput),
        read(asked.logs),
    )
    if ours is None and asked.drill:
        sys.exit(f"{asked.drill}: there is no drill's result; make one with playbooks/drill.yml")
    parts, ours = {}, (ours or {}).get("faults")
    if ours:
        parts["drill"] = "%s\n%s. %s, %d processors.\n" % (
            fault_table.table(ours),
            fault_table.summarize(ours),
            datetime.date.today().isoformat(),
            os.cpu_count(),
        )
    parts["bare"] = lines(BARE_HEAD, bare_rows(ours, bare)) if bare else None
    for name, found in (("goodput", ways), ("linked", read(asked.linked))):
        parts[name] = None
        if found:
            recoveries = lines(RECOVERY_HEAD, recovery_rows(found))
            parts[name] = lines(WAY_HEAD, way_rows(found)) + "\n" + recoveries
    parts["logs"] = lines(LOG_HEAD, log_rows(logs)) if logs else None
    text = asked.page.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        if part:
            text = text.partition(begin)[0] + begin + part + end + text.partition(end)[2]
    asked.page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
