# SPDX-License-Identifier: Apache-2.0
"""What a check has found, as plain data: on which nodes, what, and what helps. Pure.

A finding is {check, level, nodes, text, remedy}: check is the short name of what was looked at
(clock, disk, code, ...); level is `stop` (nothing may start), `warn` (it may, and somebody should
know) or `note`; nodes are node names, empty where it is about all; text says what was found and
what was expected; remedy what a person does about it, '' where the text says it.
"""

from __future__ import annotations

LEVELS = ("stop", "warn", "note")
# So many node names stand in a line; the rest is counted.
NAMED = 4


def finding(check, text, remedy="", nodes=(), level="stop"):
    """Return one finding; nodes: a node's name or several. Raises ValueError for a level that there
    is none of.
    """
    if level not in LEVELS:
        raise ValueError(level)
    return {
        "check": check,
        "level": level,
        "nodes": [nodes] if isinstance(nodes, str) else list(nodes),
        "text": text,
        "remedy": remedy,
    }


def stops(findings):
    """Return the findings with which nothing may start."""
    return [item for item in findings if item["level"] == "stop"]


def short(findings):
    """Return of each finding with which nothing may start what a program goes by: [{check, nodes}]."""
    return [{"check": item["check"], "nodes": item["nodes"]} for item in stops(findings)]


def named(names, limit=NAMED):
    """Return node names as text: all of a few, the first ones and a count of many."""
    names = list(names)
    return (
        ", ".join(names)
        if len(names) <= limit
        else "%s and %d more" % (", ".join(names[:limit]), len(names) - limit)
    )


def unequal(check, label, values, remedy="", level="stop"):
    """Return the finding that nodes differ in one value, or none: [finding] or [].

    label: what differs, in words. values: {node name: value that can be compared with ==}. The
    value that most nodes have is taken for the rule, and the others are named; where no value has
    more than half, all are.
    """
    groups = {}
    for name, value in values.items():
        groups.setdefault(str(value), []).append(name)
    if len(groups) < 2:
        return []
    ordered = sorted(groups.items(), key=lambda pair: -len(pair[1]))
    text = "{} differs: {}".format(
        label,
        "; ".join(f"{value} on {named(names)}" for value, names in ordered),
    )
    most = ordered[0][1]
    odd = [
        name
        for _value, names in (ordered[1:] if 2 * len(most) > len(values) else ordered)
        for name in names
    ]
    return [finding(check, text, remedy, odd, level)]


def merged(findings):
    """Return the findings with those that differ in nothing but the node taken together, the worst
    first, else in the order they came.
    """
    kept = {}
    for item in findings:
        key = (item["check"], item["level"], item["text"], item["remedy"])
        if key in kept:
            kept[key]["nodes"] += [name for name in item["nodes"] if name not in kept[key]["nodes"]]
        else:
            kept[key] = dict(item, nodes=list(item["nodes"]))
    return sorted(kept.values(), key=lambda item: LEVELS.index(item["level"]))


def lines(findings):
    """Return the findings as a table for people: level, nodes, check, what was found, and below it
    the remedy, and all nodes where many have one fault.
    """
    rows = [
        (item["level"].upper(), named(item["nodes"]) or "all nodes", item["check"], item)
        for item in merged(findings)
    ]
    wide = [max([len(row[column]) for row in rows] or [0]) for column in range(3)]
    result = []
    for level, nodes, check, item in rows:
        result.append(
            "%-*s  %-*s  %-*s  %s" % (wide[0], level, wide[1], nodes, wide[2], check, item["text"])
        )
        if len(item["nodes"]) > NAMED and item["level"] != "note":
            result.append("{}on {}".format(" " * (sum(wide) + 6), ", ".join(item["nodes"])))
        if item["remedy"]:
            result.append("{}-> {}".format(" " * (sum(wide) + 6), item["remedy"]))
    return result
