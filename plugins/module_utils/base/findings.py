# SPDX-License-Identifier: Apache-2.0
"""Findings of a check as plain data.

Pure. A finding is {check, code, level, nodes, text, remedy}. code: `<check>.<reason>`, such as
`disk.full`. It names one kind of fault and never changes. The text may. docs/messages.md lists all
codes. check: the subject, which is the part before the dot. level: `stop` (nothing may start),
`warn` (a start is allowed, and the user should know) or `note`. nodes: node names, empty where it
is about all. text: the observation and the expectation. remedy: the fix, '' where the text says it.
"""

from __future__ import annotations

from typing import Any, Dict

Finding = Dict[str, Any]
LEVELS = ("stop", "warn", "note")
# Node names that are written out in a line. The others are counted.
NAMED = 4


def finding(code, text, remedy="", nodes=(), level="stop"):
    """Return one finding.

    code: `<check>.<reason>`. nodes: a node's name or several. Raises ValueError for an unknown
    level, and for a code without a reason.
    """
    check, _dot, reason = code.partition(".")
    if level not in LEVELS:
        raise ValueError(level)
    if not check or not reason:
        raise ValueError(code)
    if isinstance(nodes, str):
        nodes = [nodes]
    return {
        "check": check,
        "code": code,
        "level": level,
        "nodes": list(nodes),
        "text": text,
        "remedy": remedy,
    }


def stops(findings):
    """Return the findings with which nothing may start."""
    return [item for item in findings if item["level"] == "stop"]


def short(findings):
    """Return [{check, nodes}] of the findings with which nothing may start.

    Programs decide by it.
    """
    return [{"check": item["check"], "nodes": item["nodes"]} for item in stops(findings)]


def code_of(item):
    """Return the code of a finding.

    A finding that an earlier version kept has none. Its check stands for it.
    """
    return item.get("code") or item["check"]


def named(names, limit=NAMED):
    """Return node names as text: all of a few, the first ones and a count of many."""
    names = list(names)
    if len(names) <= limit:
        return ", ".join(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit} more"


def unequal(code, label, values, remedy="", level="stop"):
    """Return the finding that nodes differ in one value, or []: [finding].

    label: the name of the value. values: {node name: value that can be compared with ==}. The value
    that most nodes have is taken for the rule, and the others are named. Where no value has more
    than half, all are.
    """
    groups = {}
    for name, value in values.items():
        groups.setdefault(str(value), []).append(name)
    if len(groups) < 2:
        return []
    ordered = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    parts = "; ".join(f"{value} on {named(names)}" for value, names in ordered)
    text = f"{label} differs: {parts}"
    odd_groups = ordered
    if 2 * len(ordered[0][1]) > len(values):
        odd_groups = ordered[1:]
    odd = [name for _value, names in odd_groups for name in names]
    return [finding(code, text, remedy, odd, level)]


def merged(findings):
    """Return the findings, one for all that differ in nothing but the node.

    The worst come first, else they keep their order.
    """
    by_key = {}
    for item in findings:
        key = (code_of(item), item["level"], item["text"], item["remedy"])
        if key in by_key:
            nodes = by_key[key]["nodes"]
            nodes += [name for name in item["nodes"] if name not in nodes]
        else:
            by_key[key] = dict(item, nodes=list(item["nodes"]))
    return sorted(by_key.values(), key=lambda item: LEVELS.index(item["level"]))


def lines(findings):
    """Return the findings as a table for people: level, nodes, code and text.

    Below them are the remedy, and all nodes where many have one fault.
    """
    rows = [
        (item["level"].upper(), named(item["nodes"]) or "all nodes", code_of(item), item)
        for item in merged(findings)
    ]
    widths = [max([len(row[column]) for row in rows] or [0]) for column in range(3)]
    indent = " " * (sum(widths) + 6)
    table = []
    for *cells, item in rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths)]
        table.append(f"{'  '.join(padded)}  {item['text']}")
        if len(item["nodes"]) > NAMED and item["level"] != "note":
            table.append(f"{indent}on {', '.join(item['nodes'])}")
        if item["remedy"]:
            table.append(f"{indent}-> {item['remedy']}")
    return table
