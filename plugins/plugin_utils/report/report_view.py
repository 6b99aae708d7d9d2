# SPDX-License-Identifier: Apache-2.0
"""The report of one run, section by section, as text and numbers. Pure.

It turns load's dictionary into the template's view. Text from logs and nodes is made safe to
show here (sanitize.printable: secrets masked, control and bidirectional characters escaped). The
template escapes it for HTML as well.
"""

from __future__ import annotations

import re
import time
import urllib.parse
from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    MASK,
    Secrets,
    printable,
    printable_data,
    secrets_of,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import (
    format_bytes,
    format_clock,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.plan_types import Plan
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import restart_policy

from ..plan import render
from . import timeline
from .charts import (
    counted,
    curve_rows,
    curves,
    figures,
    logs_section,
    measured,
    note_of,
    number,
    unit_of,
)
from .json_values import Json, finite_number, mapping_of

Parts = list[dict[str, str | None]]  # text in pieces, each with the address that it links to

# A verdict's outcome: its badge and its tone.
OUTCOMES = {
    "completed": ("COMPLETED", "good"),
    "failed": ("FAILED", "bad"),
    "lost": ("LOST", "bad"),
    "stopped": ("STOPPED", "warn"),
}
MANY = 8  # so many curves get a colour and a line each in the legend
LOG_PLACE = re.compile(r"(?:[\w.+@-]+/)*([\w.+@-]+\.(?:log|txt|out|jsonl?))(?::(\d+))?")


def moment(seconds: object) -> str | None:
    """Return unix seconds as a date and time of UTC, or None for no time."""
    unix_time = finite_number(seconds)
    if not unix_time:
        return None
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_time))
    except (OverflowError, OSError, ValueError):
        return None  # a time that no calendar has


def href(path: str) -> str:
    """Return a path in the run's directory as a relative address.

    It is never an address with a scheme or from the root.
    """
    return "./" + urllib.parse.quote(path)


def linked(text: str, known: Collection[str], attempt: int | None = None) -> Parts:
    """Return text in parts [{text, href}], with links at the names of known logs.

    known: paths in the run's directory. attempt: the one whose logs are meant, or None.
    """
    parts: Parts = []
    end = 0
    paths = _paths_by_name(known, attempt)
    for match in LOG_PLACE.finditer(text):
        path = paths.get(match.group(1))
        if path:
            parts += [
                {"text": text[end : match.start()], "href": None},
                {"text": match.group(0), "href": href(path)},
            ]
            end = match.end()
    parts.append({"text": text[end:], "href": None})
    return [part for part in parts if part["text"]]


def _paths_by_name(known: Collection[str], attempt: int | None) -> dict[str, str]:
    """Return {file name: path}.

    An attempt's files come before those of the run.
    """
    shared: dict[str, str] = {}
    specific: dict[str, str] = {}
    for path in known:
        name = path.rpartition("/")[2]
        if attempt is None or not path.startswith("attempt-"):
            shared[name] = path
        if path.startswith(f"attempt-{attempt}/"):
            specific[name] = path
    return {**shared, **specific}


def verdict(attempt: Json, facts: Json, known: Collection[str]) -> Json:
    """Return an attempt's verdict as the page shows it.

    The keys are number, badge, tone, text, meaning, remedy, evidence, candidates, excerpts.
    attempt: one of run.json's.
    """
    entry, number_ = attempt.get("verdict") or {}, attempt.get("number")
    badge, tone = OUTCOMES.get(str(entry.get("outcome")), ("UNKNOWN", "warn"))
    meaning = None
    if tone != "good":
        meaning = entry.get("meaning")
    return {
        "number": number_,
        "badge": badge,
        "tone": tone,
        "text": linked(_verdict_text(entry, badge), known, number_),
        "meaning": meaning,
        "remedy": entry.get("remedy"),
        "evidence": [linked(str(line), known, number_) for line in entry.get("evidence") or ()],
        "candidates": [candidate(item, known, number_) for item in entry.get("candidates") or ()],
        "excerpts": [
            dict(item, href=href(f"attempt-{number_}/{item['log']}"))
            for item in facts["excerpts"]
            if item["attempt"] == number_
        ],
    }


def _verdict_text(entry: Json, badge: str) -> str:
    """Return a verdict's sentence without remedy and badge.

    The page shows these two beside it.
    """
    text = str(
        entry.get("text")
        or "nothing was recorded of how this attempt ended: it still runs, or nobody followed it to"
        " its end"
    )
    if entry.get("remedy"):
        text = re.sub(r"; remedy: .*\Z", "", text)
    if text.startswith(badge + ": "):
        text = text[len(badge) + 2 :]
    return text


def candidate(item: Json, known: Collection[str], attempt: int | None) -> Json:
    """Return one row of the candidates for the first cause."""
    end = item.get("signal")
    if not end and item.get("exit_code") is not None:
        end = f"exit code {item['exit_code']}"
    path = str(item.get("log") or "").rpartition("/")[2]
    if item.get("line"):
        path += f":{item['line']}"
    return dict(
        only([item], "rank", "node", "weight", "why")[0],
        end=end or None,
        place=linked(path, known, attempt),
    )


def plan_of(facts: Json, number: int | None) -> Json:
    """Return the plan of an attempt.

    Other attempts of a run may have run on other nodes.
    """
    return (facts.get("plans") or {}).get(number) or facts["plan"]


def story(entry: Json, run: object) -> list[tuple[str, str]]:
    """Return [(title, text)] of an attempt's resume point and its restart.

    entry: an attempt of run.json.
    """
    restart = entry.get("again") or {}
    rows = [
        ("went on from", run_json.describe_resume(entry.get("resume"), entry.get("number") or 1)),
        ("restart", restart_policy.describe(restart, "<run id>")),
    ]
    return [(name, text) for name, text in rows if text]


def rank_rows(facts: Json, attempt: Json, known: Collection[str]) -> list[Json]:
    """Return one row for each planned rank: its slot, its end, its figures, its log."""
    recorded = {rank["rank"]: rank for rank in attempt.get("ranks") or ()}
    number_ = attempt.get("number")
    return [
        _rank_row(slot, recorded.get(slot["rank"], {}), number_, known)
        for slot in plan_of(facts, number_).get("ranks") or ()
    ]


def _rank_row(slot: Json, rank: Json, attempt: int | None, known: Collection[str]) -> Json:
    """Return a rank's row.

    slot: the plan's. rank: run.json's or {}.
    """
    end = _rank_end(rank)
    path = f"attempt-{attempt}/{rank.get('home')}"
    last, seconds, log = mapping_of(rank.get("last_step")), None, None
    started, ended = finite_number(rank.get("started")), finite_number(rank.get("ended"))
    if ended and started:
        seconds = format_clock(ended - started)
    if path in known:
        log = {"href": href(path), "text": rank["home"]}
    row = {key: slot[key] for key in ("rank", "node", "local_rank", "device", "endpoint")}
    row.update(
        pid=rank.get("pid"),
        end=end or "no findings",
        tone=_rank_tone(rank, end),
        seconds=seconds,
        steps=rank.get("steps"),
        loss=number(last.get("loss")),
        speed=number(last.get("ips")),
        log=log,
    )
    return row


def _rank_end(rank: Json) -> Any:
    if rank.get("signal"):
        return rank["signal"]
    if rank.get("exit_code") is not None:
        return f"exit code {rank['exit_code']}"
    return rank.get("state")


def _rank_tone(rank: Json, end: object) -> str:
    if rank.get("exit_code") == 0:
        return "good"
    if end:
        return "bad"
    return "warn"


def environment(plan: Json) -> list[Json]:
    """Return [{name, value, nodes}]: the environment of every rank's process.

    Values of names that sound secret are masked. nodes: None for all of them.
    """
    rows = [
        {"name": name, "value": value, "nodes": None}
        for name, value in (plan.get("env") or {}).items()
    ]
    nodes = plan.get("nodes") or ()
    for name in sorted({name for node in nodes for name in node.get("env") or {}}):
        rows += _node_variable(name, nodes)
    for row in rows:
        if render.is_secret(cast(Plan, plan), row["name"]):
            row["value"] = MASK
    return sorted(rows, key=lambda row: (row["name"], row["nodes"] or ""))


def _node_variable(name: str, nodes: Sequence[Json]) -> list[Json]:
    """Return a row for each value that a variable has on the nodes."""
    owners: dict[Any, list[str]] = {}
    for node in nodes:
        if name in (node.get("env") or {}):
            owners.setdefault(node["env"][name], []).append(node["name"])
    if len(owners) == 1:
        value, names = next(iter(owners.items()))
        if len(names) == len(nodes):
            return [{"name": name, "value": value, "nodes": None}]
    return [
        {"name": name, "value": value, "nodes": ", ".join(names)} for value, names in owners.items()
    ]


def commands(plan: Json) -> list[Json]:
    """Return [{where, text}]: the executed commands, as a shell takes them."""
    kind = (plan.get("launcher") or {}).get("kind")
    rows = []
    if plan.get("argv"):
        rows.append((render.WHERE.get(str(kind), "command").rstrip(","), plan["argv"]))
    for node in plan.get("nodes") or ():
        if node.get("argv"):
            rows.append((f"on {node['name']}", node["argv"]))
        if node.get("container"):
            rows.append((f"on {node['name']}, in a container", node["container"]["argv"]))
    secrets: Secrets = secrets_of(plan)
    return [
        {
            "where": where,
            "text": printable(render.format_command(argv), *secrets, limit=render.LONGEST),
        }
        for where, argv in rows
    ]


def digests(facts: Json) -> list[tuple[str, str]]:
    """Return [(title, value)]: plan, code, data, weights and environment."""
    plan, record = facts["plan"], facts["record"]
    code = record.get("code") or {}
    rows = [
        ("plan, sha256", record.get("plan_sha256")),
        ("code, digest", (plan.get("code") or {}).get("digest")),
        ("code, commit", code.get("commit")),
        ("code, local changes", _changes_text(code)),
    ]
    for kind in ("data", "weights"):
        rows += [
            (f"{kind} {name}, digest", value)
            for name, value in sorted((plan.get(kind) or {}).items())
        ]
    rows += [
        (f"environment, {name}", value)
        for name, value in sorted((plan.get("environment") or {}).items())
    ]
    rows = [(name, _joined(value)) for name, value in rows]
    return [(name, str(value)) for name, value in rows if value not in (None, "", {})]


def _changes_text(code: Json) -> str | None:
    if "dirty" not in code:
        return None
    if code["dirty"] is None:
        return f"unknown: {code.get('reason') or 'git could not say'}"
    if code["dirty"]:
        return "yes, see code.diff"
    return "none"


def _joined(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(str(item) for item in value)
    return value


def only(items: Iterable[Json] | None, *keys: str) -> list[Json]:
    """Return rows of these keys.

    A key that a record of another version lacks has None.
    """
    return [{key: item.get(key) for key in keys} for item in items or ()]


def safe(facts: Json) -> Json:
    """Return facts with every text safe to show.

    What the run's plan calls secret is masked.
    """
    return printable_data(facts, *secrets_of(facts["plan"]))


def attempt_view(
    one: int, entry: Json, over: Json | None, facts: Json, known: Collection[str]
) -> Json:
    """Return the view of attempt number `one`.

    entry: run.json's. over: series.of_run's, or None.
    """
    rows, names = measured(over or {})
    lanes, folder_href = None, None
    if over:
        lanes = timeline.timeline(over, plan_of(facts, one).get("ranks") or ())
    folder = f"attempt-{one}/checkpoint"
    if folder in known:
        folder_href = href(folder) + "/"
    return {
        "number": one,
        "verdict": verdict(entry, facts, known),
        "story": story(entry, facts["run"]),
        "timeline": lanes,
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
        "checkpoint_place": [{"text": folder + "/", "href": folder_href}],
    }


def heading(facts: Json) -> tuple[str, list[str]]:
    """Return (the job's name, words under it)."""
    plan, record = facts["plan"], facts["record"]
    job = record.get("job") or (plan.get("job") or {}).get("name") or "run"
    launcher, site = (plan.get("launcher") or {}).get("name"), plan.get("site")
    words = [facts["run"], (plan.get("suite") or {}).get("name")]
    if launcher:
        words.append(f"by {launcher}")
    if site:
        words.append(f"site {site}")
    started = moment(record.get("started"))
    if started:
        words.append(f"started {started}")
    words.append(facts["job"].get("description"))
    return job, [word for word in words if word]


def view(facts: Json, now: float) -> Json:
    """Return all that the page of one run shows.

    facts: load.read's. now: unix seconds.
    """
    executed, facts = commands(facts["plan"]), safe(facts)
    plan, series = facts["plan"], facts["series"]
    known = {item["path"] for item in facts["files"]}
    attempts = _attempt_views(facts, known)
    drawn, (job, head) = curves(series), heading(facts)
    drawn_any = any(drawn.values())
    return {
        "kind": "run",
        "run": facts["run"],
        "title": f"{attempts[-1]['verdict']['badge']}: {job}, {facts['run']}",
        "heading": job,
        "head": head,
        "sections": _list_sections(drawn_any, any(map(_has_results, attempts))),
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
            render.format_published(row) for row in (plan.get("job") or {}).get("published") or ()
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
            dict(
                item,
                href=href(item["path"]) + "/" * item["folder"],
                size=format_bytes(item["bytes"]),
            )
            for item in facts["files"]
        ],
        "visualdl": sorted({path.rpartition("/")[0] for path in known if "vdlrecords" in path}),
        "notes": facts["notes"],
    }


def _attempt_views(facts: Json, known: Collection[str]) -> list[Json]:
    """Return the view of each attempt that is recorded, at least one."""
    entries = {entry["number"]: entry for entry in facts["record"].get("attempts") or ()}
    over = {entry["number"]: entry for entry in facts["series"].get("attempts") or ()}
    numbers = sorted(set(entries) | set(over) | set(facts["indexes"])) or [1]
    return [
        attempt_view(one, entries.get(one, {"number": one}), over.get(one), facts, known)
        for one in numbers
    ]


def _has_results(attempt: Json) -> bool:
    return bool(attempt["evaluations"] or attempt["saved"] or attempt["checkpoint"])


def _list_sections(has_curves: bool, has_results: bool) -> list[tuple[str, str]]:
    """Return [(id, title)] of the page's sections."""
    sections = [("verdict", "Verdict"), ("time", "Time line")]
    if has_curves:
        sections.append(("curves", "Curves"))
    if has_results:
        sections.append(("results", "Evaluations"))
    return [
        *sections,
        ("ranks", "Ranks"),
        ("plan", "Plan"),
        ("environment", "Environment"),
        ("files", "Logs and files"),
    ]


def main_figure(plan: Json) -> str | None:
    """Return the name of the evaluation's figure that the suite judges by."""
    return logs_section(plan, "evaluation").get("main")
