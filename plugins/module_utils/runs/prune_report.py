# SPDX-License-Identifier: Apache-2.0
"""What pruning would free, or has freed, in lines for people. Pure."""

from __future__ import annotations

from ..base.processes import age
from ..records.prune_rules import HOME, begun

MANY = 40  # runs and entries that are listed; the rest is counted


def size(count):
    """Return a number of bytes as words: 512 B, 1.5 MiB, 23 GiB."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return "%d %s" % (value, unit) if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def rule_text(rule):
    """Return a rule as a sentence."""
    if rule["run"]:
        return "the run {} goes".format(rule["run"])
    parts = (
        ["that are not among the newest %d of their job" % rule["keep"]]
        if rule["keep"] is not None
        else []
    )
    parts += (
        ["that began more than {} ago".format(age(rule["older_than"]))]
        if rule["older_than"] is not None
        else []
    )
    return "runs go {}".format(" and ".join(parts))


def _first(lines, what):
    return lines[:MANY] + (
        ["  and %d more %s" % (len(lines) - MANY, what)] if len(lines) > MANY else []
    )


def sizes_of(looks, chosen):
    """Return {place: (bytes of the runs that are chosen there, bytes of all)} of the places that
    answered.
    """
    found = {}
    for place, look in looks.items():
        if look is not None:
            by_name = {run["run"]: run["bytes"] for run in look["runs"]}
            found[place] = (
                sum(by_name[name] for name in chosen.get(place, ()) if name in by_name),
                look["bytes"],
            )
    return found


def plan_lines(rule, looks, decided, now, silent=()):
    """Return what would go, place by place and run by run, what stays all the same and why, and
    what is left because nobody understands it.

    silent: places that were asked and did not answer.
    """
    lines = [f"rule: {rule_text(rule)}"]
    entries = {
        (place, run["run"]): run
        for place, look in looks.items()
        if look is not None
        for run in look["runs"]
    }
    names = sorted({name for runs in decided["remove"].values() for name in runs})
    rows = []
    for name in names:
        where = [place for place in decided["remove"] if name in decided["remove"][place]]
        each = ", ".join(
            "{} {}".format(place, size(entries[place, name]["bytes"])) for place in where
        )
        rows.append("  %-44s %-8s ago  %s" % (name, age(max(0, now - begun(name))), each))
    lines += ["goes:"] + _first(rows, "runs") if rows else ["nothing goes"]
    for place, (part, whole) in sizes_of(looks, decided["remove"]).items():
        count = len(decided["remove"].get(place, ()))
        lines.append(
            "  %s: %d of %d runs, %s of %s"
            % (place, count, len(looks[place]["runs"]), size(part), size(whole))
        )
    kept = [
        "  {} on {} {}".format(item["run"], ", ".join(item["places"]), item["why"])
        for item in decided["stay"]
    ]
    lines += ["stays, although the rule would let it go:"] + _first(kept, "runs") if kept else []
    odd = [
        "  {}: {} {}".format(place, item["name"], item["why"])
        for place, look in looks.items()
        if look
        for item in look["strange"]
    ]
    lines += (
        ["left alone, because it is no run's directory:"] + _first(odd, "entries") if odd else []
    )
    half = [
        f"  {place}: {name}" for place, look in looks.items() if look for name in look["unfinished"]
    ]
    lines += (
        ["left by a removal that was interrupted, goes too:"] + _first(half, "entries")
        if half
        else []
    )
    if decided["foreign"]:
        lines.append("%d runs of other sites stay" % len(decided["foreign"]))
    unasked = [place for place, look in looks.items() if look is None and place not in silent]
    lines += ["not asked, because of --limit: {}".format(", ".join(unasked))] if unasked else []
    lines += [f"{place} did not answer; nothing of it goes" for place in silent]
    return lines + [
        "code, data, weights and environments on the nodes stay; the next training of the same"
        " needs them"
    ]


def last_line(looks, decided, done, confirmed, silent=()):
    """Return the end in one line. done: {place: what prune_look.remove returned}; {} where nothing
    was removed.
    """
    missing = "; no answer from {}".format(", ".join(silent)) if silent else ""
    if not confirmed:
        parts = sizes_of(looks, decided["remove"])
        total, names = (
            sum(part for part, _whole in parts.values()),
            {name for runs in decided["remove"].values() for name in runs},
        )
        half = any(look["unfinished"] for look in looks.values() if look)
        if not names and not half:
            return "NOTHING to remove" + missing
        each = ", ".join(f"{place} {size(part)}" for place, (part, _whole) in parts.items())
        return "WOULD REMOVE %d run%s and free %s (%s); nothing was done, -e confirm=true does it%s" % (
            len(names), "" if len(names) == 1 else "s", size(total), each, missing,
        )  # fmt: skip
    names = {name for result in done.values() for name in result["removed"]}
    each = ", ".join("{} {}".format(place, size(result["freed"])) for place, result in done.items())
    wrong = sum(len(result["problems"]) for result in done.values())
    text = "REMOVED %d run%s, %s freed (%s)" % (
        len(names),
        "" if len(names) == 1 else "s",
        size(sum(r["freed"] for r in done.values())),
        each or HOME,
    )
    return text + ("; %d not, see above" % wrong if wrong else "") + missing
