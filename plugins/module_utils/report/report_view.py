# SPDX-License-Identifier: Apache-2.0
"""What the report of one run says, section by section, as text and numbers for the template. Pure:
report_facts' dictionary in, view out.

Text from logs and nodes is made safe to show here (display.printable: secrets masked, control and
bidirectional characters escaped); the template escapes it for HTML besides.
"""

from __future__ import annotations

import re
import time
import urllib.parse

from ..base.sanitize import MASK, printable, printable_data, secrets_of
from ..base.text_layout import span as duration
from ..plan import render
from ..records import run_json
from ..recovery import restart_policy
from . import timeline
from .charts import (
    counted,
    curve_rows,
    curves,
    figures,
    measured,
    note_of,
    number,
    unit_of,
)

# The words of a verdict's outcome and what the eye gets to see of it.
OUTCOMES = {
    "completed": ("COMPLETED", "good"),
    "failed": ("FAILED", "bad"),
    "lost": ("LOST", "bad"),
    "stopped": ("STOPPED", "warn"),
}
MANY = 8  # so many curves get a colour and a line in the legend each
LOG_PLACE = re.compile(r"(?:[\w.+@-]+/)*([\w.+@-]+\.(?:log|txt|out|jsonl?))(?::(\d+))?")


def moment(seconds):
    """Return unix seconds as a date and time of UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds)) if seconds else None


def size(count):
    """Return bytes for people, such as 12.3 kB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return "%d B" % count if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000.0


def href(path):
    """Return a path in the run's directory as a relative address; never one with a scheme or from
    the root.
    """
    return "./" + urllib.parse.quote(path)


def linked(text, known, attempt=None):
    """Return text in parts [{text, href}]: names of logs that are at home become links. known:
    paths in the run's directory.
    """
    parts, here = [], 0
    by_name = {
        path.rpartition("/")[2]: path
        for path in known
        if attempt is None or not path.startswith("attempt-")
    }
    by_name.update(
        {path.rpartition("/")[2]: path for path in known if path.startswith(f"attempt-{attempt}/")}
    )
    for match in LOG_PLACE.finditer(text):
        path = by_name.get(match.group(1))
        if path:
            parts += [
                {"text": text[here : match.start()], "href": None},
                {"text": match.group(0), "href": href(path)},
            ]
            here = match.end()
    parts.append({"text": text[here:], "href": None})
    return [part for part in parts if part["text"]]


def verdict(attempt, facts, known):
    """Return {number, badge, tone, text, meaning, remedy, evidence, candidates, excerpts} of one
    attempt of run.json.
    """
    found, here = attempt.get("verdict") or {}, attempt.get("number")
    badge, tone = OUTCOMES.get(found.get("outcome"), ("UNKNOWN", "warn"))
    text = str(
        found.get("text")
        or "nothing was recorded of how this attempt ended: it still runs, or nobody followed it to its end"
    )
    text = re.sub(r"; remedy: .*\Z", "", text) if found.get("remedy") else text
    return {
        "number": here,
        "badge": badge,
        "tone": tone,
        "text": linked(
            text[len(badge) + 2 :] if text.startswith(badge + ": ") else text, known, here
        ),
        "meaning": found.get("meaning") if tone != "good" else None,
        "remedy": found.get("remedy"),
        "evidence": [linked(str(line), known, here) for line in found.get("evidence") or ()],
        "candidates": [candidate(item, known, here) for item in found.get("candidates") or ()],
        "excerpts": [
            dict(item, href=href("attempt-%d/%s" % (here, item["log"])))
            for item in facts["excerpts"]
            if item["attempt"] == here
        ],
    }


def candidate(item, known, attempt):
    """Return one row of the candidates for the first cause."""
    end = item.get("signal") or (
        "exit code {}".format(item["exit_code"]) if item.get("exit_code") is not None else None
    )
    place = str(item.get("log") or "").rpartition("/")[2] + (
        ":{}".format(item["line"]) if item.get("line") else ""
    )
    return dict(
        only([item], "rank", "node", "weight", "why")[0],
        end=end,
        place=linked(place, known, attempt),
    )


def plan_of(facts, number):
    """Return the plan of an attempt; other attempts of a run may have run on other nodes."""
    return (facts.get("plans") or {}).get(number) or facts["plan"]


def story(entry, run):
    """Return [(what, value)]: from what an attempt of run.json went on, and whether the run was
    started again after it.
    """
    again = entry.get("again") or {}
    told = [
        ("went on from", run_json.resumed_words(entry.get("resume"), entry.get("number") or 1)),
        ("restart", restart_policy.sentence(again, "<run id>")),
    ]
    return [(name, text) for name, text in told if text]


def rank_rows(facts, attempt, known):
    """Return one row for each planned rank: where it ran, how it ended, its figures, its log."""
    told = {rank["rank"]: rank for rank in attempt.get("ranks") or ()}
    rows = []
    for item in plan_of(facts, attempt.get("number")).get("ranks") or ():
        rank = told.get(item["rank"], {})
        end = rank.get("signal") or (
            "exit code {}".format(rank["exit_code"])
            if rank.get("exit_code") is not None
            else rank.get("state")
        )
        path = "attempt-{}/{}".format(attempt.get("number"), rank.get("home"))
        last = rank.get("last_step") or {}
        rows.append(
            {
                "rank": item["rank"], "node": item["node"], "local_rank": item["local_rank"], "device": item["device"], "endpoint": item["endpoint"],
                "pid": rank.get("pid"), "end": end or "no findings", "tone": "good" if rank.get("exit_code") == 0 else "bad" if end else "warn",
                "seconds": duration(rank["ended"] - rank["started"]) if rank.get("ended") and rank.get("started") else None,
                "steps": rank.get("steps"), "loss": number(last.get("loss")), "speed": number(last.get("ips")),
                "log": {"href": href(path), "text": rank["home"]} if path in known else None,
            }
        )  # fmt: skip
    return rows


def environment(plan):
    """Return [{name, value, nodes}]: what every rank's process gets, values of names that sound
    secret masked.
    """
    rows = [
        {"name": name, "value": value, "nodes": None}
        for name, value in (plan.get("env") or {}).items()
    ]
    names = sorted({name for node in plan.get("nodes") or () for name in node.get("env") or {}})
    for name in names:
        values = {}
        for node in plan["nodes"]:
            if name in (node.get("env") or {}):
                values.setdefault(node["env"][name], []).append(node["name"])
        everywhere = len(values) == 1 and len(next(iter(values.values()))) == len(plan["nodes"])
        rows += [
            {"name": name, "value": value, "nodes": None if everywhere else ", ".join(nodes)}
            for value, nodes in values.items()
        ]
    for row in rows:
        row["value"] = MASK if render.hidden(plan, row["name"]) else row["value"]
    return sorted(rows, key=lambda row: (row["name"], row["nodes"] or ""))


def commands(plan):
    """Return [{where, text}]: what was executed, as a shell would take it."""
    kind = (plan.get("launcher") or {}).get("kind")
    rows = (
        [
            {
                "where": render.WHERE.get(kind, "command").rstrip(","),
                "text": render.command(plan["argv"]),
            }
        ]
        if plan.get("argv")
        else []
    )
    for node in plan.get("nodes") or ():
        if node.get("argv"):
            rows.append(
                {"where": "on {}".format(node["name"]), "text": render.command(node["argv"])}
            )
        if node.get("container"):
            rows.append(
                {
                    "where": "on {}, in a container".format(node["name"]),
                    "text": render.command(node["container"]["argv"]),
                }
            )
    secrets = secrets_of(plan)
    return [
        {"where": row["where"], "text": printable(row["text"], *secrets, limit=render.LONGEST)}
        for row in rows
    ]


def digests(facts):
    """Return [(what, value)] of what was run: plan, code, data, weights, environment."""
    plan, record = facts["plan"], facts["record"]
    code = record.get("code") or {}
    rows = [
        ("plan, sha256", record.get("plan_sha256")),
        ("code, digest", (plan.get("code") or {}).get("digest")),
        ("code, commit", code.get("commit")),
    ]
    rows += [
        (
            "code, local changes",
            ("yes, see code.diff" if code["dirty"] else "none") if "dirty" in code else None,
        )
    ]
    rows += [
        (f"{kind} {name}, digest", value)
        for kind in ("data", "weights")
        for name, value in sorted((plan.get(kind) or {}).items())
    ]
    rows += [
        (f"environment, {name}", value)
        for name, value in sorted((plan.get("environment") or {}).items())
    ]
    shown = [
        (name, ", ".join(str(one) for one in value) if isinstance(value, list) else value)
        for name, value in rows
    ]
    return [(name, str(value)) for name, value in shown if value not in (None, "", {})]


def only(items, *keys):
    """Return rows of these keys, None where a record of another age has none."""
    return [{key: item.get(key) for key in keys} for item in items or ()]


def safe(facts):
    """Return facts with every text safe to show, and without what the run's plan calls secret."""
    return printable_data(facts, *secrets_of(facts["plan"]))


def attempt_view(one, entry, over, facts, known):
    """Return what the page shows of one attempt. entry: run.json's, over: series.of_run's or None."""
    rows, names = measured(over or {})
    folder = "attempt-%d/checkpoint" % one
    return {
        "number": one,
        "verdict": verdict(entry, facts, known),
        "story": story(entry, facts["run"]),
        "timeline": (
            timeline.timeline(over, plan_of(facts, one).get("ranks") or ()) if over else None
        ),
        "ranks": rank_rows(facts, entry, known),
        "measures": names,
        "evaluations": [
            {
                "step": row.get("step"),
                "epoch": counted(row.get("epoch"), facts["plan"]),
                "shown": [number(row["figures"].get(name)) for name in names],
            }
            for row in rows
        ],
        "saved": only((over or {}).get("saved"), "step", "path"),
        "checkpoint": entry.get("checkpoint") or [],
        "checkpoint_place": [
            {"text": folder + "/", "href": href(folder) + "/" if folder in known else None}
        ],
    }


def heading(facts):
    """Return (the job's name, words under it)."""
    plan, record = facts["plan"], facts["record"]
    job = record.get("job") or (plan.get("job") or {}).get("name") or "run"
    launcher, site = (plan.get("launcher") or {}).get("name"), plan.get("site")
    words = [
        facts["run"],
        (plan.get("suite") or {}).get("name"),
        f"by {launcher}" if launcher else None,
        f"site {site}" if site else None,
    ]
    words += [
        "started {}".format(moment(record["started"])) if record.get("started") else None,
        facts["job"].get("description"),
    ]
    return job, [word for word in words if word]


def view(facts, now):
    """Return all that the page of one run shows; facts: report_facts.read's, now: unix seconds."""
    executed, facts = commands(facts["plan"]), safe(facts)
    plan, record, series = facts["plan"], facts["record"], facts["series"]
    known = {item["path"] for item in facts["files"]}
    entries = {attempt["number"]: attempt for attempt in record.get("attempts") or ()}
    over = {attempt["number"]: attempt for attempt in series.get("attempts") or ()}
    numbers = sorted(set(entries) | set(over) | set(facts["indexes"])) or [1]
    attempts = [
        attempt_view(one, entries.get(one, {"number": one}), over.get(one), facts, known)
        for one in numbers
    ]
    drawn, (job, head) = curves(series), heading(facts)
    drawn_any = any(drawn.values())
    results = any(
        attempt["evaluations"] or attempt["saved"] or attempt["checkpoint"] for attempt in attempts
    )
    sections = (
        [("verdict", "Verdict"), ("time", "Time line")]
        + [("curves", "Curves")] * drawn_any
        + [("results", "Evaluations")] * results
    )
    sections += [
        ("ranks", "Ranks"),
        ("plan", "Plan"),
        ("environment", "Environment"),
        ("files", "Logs and files"),
    ]
    return {
        "kind": "run",
        "run": facts["run"],
        "title": "{}: {}, {}".format(attempts[-1]["verdict"]["badge"], job, facts["run"]),
        "heading": job,
        "head": head,
        "sections": sections,
        "made": moment(now),
        "verdict": attempts[-1]["verdict"],
        "attempts": attempts,
        "figures": figures(facts, drawn),
        "curves": curve_rows(drawn),
        "data": dict(drawn, main=main_figure(plan), many=MANY),
        "data_any": drawn_any,
        "data_unit": unit_of(plan),
        "sum_note": note_of(series),
        "rank_title": "Throughput, each rank",
        "commands": executed,
        "advice": list(plan.get("notes") or ()) + list(plan.get("advice") or ()),
        "published": [
            render.published(row) for row in (plan.get("job") or {}).get("published") or ()
        ],
        "environment": environment(plan),
        "nodes": only(
            plan.get("nodes"),
            "name",
            "rank",
            "address",
            "interface",
            "devices",
            "cores",
            "user",
            "python",
        ),
        "links": sorted((plan.get("links") or {}).items()),
        "digests": digests(facts),
        "settings": list((series.get("settings") or {}).items()),
        "files": [
            dict(item, href=href(item["path"]) + "/" * item["folder"], size=size(item["bytes"]))
            for item in facts["files"]
        ],
        "visualdl": sorted({path.rpartition("/")[0] for path in known if "vdlrecords" in path}),
        "notes": facts["notes"],
    }


def main_figure(plan):
    """Return the name of the evaluation's figure that the suite judges by."""
    return (((plan.get("suite") or {}).get("logs") or {}).get("evaluation") or {}).get("main")
