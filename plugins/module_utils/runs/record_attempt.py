# SPDX-License-Identifier: Apache-2.0
"""The controller's record of a run: runs/<run id>/ with the plan as it was sent, the job, local
changes of the code, and run.json.

run.json is written before every start and after every end; docs/run-json.md explains every field of
version 2, docs/schemas/run.yml is the same as JSON schema. plan.json is the newest attempt's; each
attempt has its own beside its logs.
"""

from __future__ import annotations

import contextlib
import os
import time

from ..attempts.attempt_dir import RUN_ID
from ..base import manifest
from ..base.sanitize import printable, printable_data, secrets_of
from ..base.text_layout import span as duration
from ..diagnosis import verdict
from ..logs.failure_catalogue import entry_of
from ..plan.render import published
from ..records import run_json
from ..recovery import restart_policy

# A verdict's sentence with all its candidates; what a log says in it has been cut before.
LONGEST = 20_000


def _text(path, text):
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        "w",
        encoding="utf-8",
        errors="surrogateescape",
    ) as handle:
        handle.write(text)


def _place(params):
    """Return the run's directory. Raises ValueError for what is not one."""
    if not RUN_ID.match(params["run_id"]) or not 1 <= params["number"] < 10**6:
        raise ValueError("{!r}, attempt {!r}: no run's".format(params["run_id"], params["number"]))
    run_dir = os.path.join(params["runs_dir"], params["run_id"])
    if os.path.islink(run_dir):
        raise ValueError(f"{run_dir} is a link, and not the directory of a run")
    return run_dir


def started(params, check_mode=False):
    """Write what was planned; return {run_dir}. The plan's bytes are those that every node gets.

    Raises FileExistsError where this attempt was begun already: whoever makes its directory starts
    it.
    """
    run_dir, number = _place(params), params["number"]
    if not check_mode:
        os.makedirs(run_dir, mode=0o700, exist_ok=True)
        attempt_dir = os.path.join(run_dir, "attempt-%d" % number)
        os.mkdir(attempt_dir, mode=0o700)
        with run_json.alone(run_dir):
            record = run_json.read(run_dir) or run_json.empty(
                params["run_id"], params["job"]["name"], time.time()
            )
            run_json.keep_first_plan(run_dir)
            for folder in (run_dir, attempt_dir):
                _text(os.path.join(folder, "plan.json"), params["plan"])
            # what was different at an earlier start stays known
            _text(
                os.path.join(run_dir if number == 1 else attempt_dir, "code.diff"),
                params["code_diff"],
            )
            manifest.write_json(os.path.join(run_dir, "job.json"), params["job"])
            entry = run_json.entry(
                number,
                plan_sha256=params["plan_sha256"],
                started=time.time(),
                resume=run_json.point_of(params.get("resume")),
            )
            run_json.write(run_dir, dict(record, code=params["code"]), entry)
    return {"run_dir": run_dir}


def taken(params):
    """Return what is said to whoever comes second with the same attempt."""
    return (
        "attempt %d of %s has been begun by another command; this one has started nothing. Follow"
        " it: ansible-playbook playbooks/follow.yml -e run=%s"
        % (params["number"], params["run_id"], params["run_id"])
    )


def refused(params, check_mode=False):
    """Note that an attempt was begun and started nowhere, with the reason; return {run_dir}."""
    run_dir = _place(params)
    if not check_mode:
        with run_json.alone(run_dir):
            record = run_json.read(run_dir) or run_json.empty(params["run_id"], None, time.time())
            known = run_json.known(record, params["number"])
            text = printable("FAILED: nothing was started: {}".format(params["why"]), limit=LONGEST)
            said = {
                "outcome": "failed",
                "cause": run_json.NOT_STARTED,
                "text": text,
                "node": None,
                "rank": None,
            }
            run_json.write(run_dir, record, dict(known, ended=time.time(), verdict=said))
    return {"run_dir": run_dir}


def ended(params, check_mode=False):
    """Decide the verdict from what the nodes said and write run.json; return {run_dir, run,
    attempt, verdict, summary, again}.
    """
    run_dir, number = _place(params), params["number"]
    attempt_dir = os.path.join(run_dir, "attempt-%d" % number)
    nodes = [node for node in params["nodes"] if node.get("ranks") is not None]
    plan = run_json.plan_of(run_dir, number)
    if not plan:
        raise ValueError(
            f"{run_dir}/plan.json is missing: no node that holds the run could be asked for it"
        )
    planned = plan["ranks"]
    nodes = _own(nodes, planned)
    shown_dir = os.path.join(
        os.path.basename(os.path.normpath(params["runs_dir"])),
        params["run_id"],
        "attempt-%d" % number,
    )
    decided = verdict.decide(planned, nodes, shown_dir)
    mismatch = endpoint_mismatch(plan.get("endpoints"), nodes)
    if mismatch:
        found = entry_of("endpoints")
        decided = dict(
            decided,
            outcome="failed",
            cause="endpoints",
            meaning=found["meaning"],
            remedy=found["remedy"],
            text=mismatch,
        )
    saved = (
        sorted(os.listdir(os.path.join(attempt_dir, "checkpoint")))
        if os.path.isdir(os.path.join(attempt_dir, "checkpoint"))
        else []
    )
    ranks = [dict(rank, node=node["node"]) for node in nodes for rank in node["ranks"]]
    model = params.get("checkpoint") or {}
    # the nodes have masked what they said; what is put together here goes through the same once
    # more
    decided = printable_data(
        untrained(decided, ranks, saved, plan) or decided, *secrets_of(plan), limit=LONGEST
    )
    with contextlib.nullcontext() if check_mode else run_json.alone(run_dir):
        record = run_json.read(run_dir) or run_json.empty(
            params["run_id"], (plan.get("job") or {}).get("name"), _begun(ranks)
        )
        entry = dict(
            run_json.known(record, number),
            ended=time.time(),
            verdict=decided,
            ranks=ranks,
            nodes=[clock_of(node) for node in nodes],
            checkpoint=saved,
            model=model,
            endpoints=next((node["endpoints"] for node in nodes if node.get("endpoints")), None),
        )
        limit = run_json.limit_of(run_dir)
        newest = number >= max(item["number"] for item in [entry, *record["attempts"]])
        again = (
            restart_policy.decide(
                run_json.with_entry(record, entry), limit, params.get("followed", True)
            )
            if newest
            else None
        )
        # a look at an end of long ago takes back nothing that was decided when it was new
        entry["again"] = (
            entry["again"]
            if not newest or (entry["again"] and not params.get("followed", True))
            else again
        )
        if not check_mode:
            run_json.write(run_dir, record, entry)
            if newest:
                run_json.show_plan(run_dir, number)
            run_json.seal(run_dir)
    note = model.get("note") or ""
    lines = summary(decided, ranks, planned, nodes, shown_dir, saved, plan, note)
    told = [
        ("resumed", run_json.resumed_words(entry["resume"], number)),
        ("restart", restart_policy.sentence(again, params["run_id"])),
    ]
    lines[-1:-1] = [
        printable("%-11s  %s" % (name, text), *secrets_of(plan)) for name, text in told if text
    ]
    return {
        "run_dir": run_dir,
        "run": params["run_id"],
        "attempt": number,
        "verdict": decided,
        "summary": lines,
        "again": again,
    }


def _own(nodes, planned):
    """Return what the planned nodes said, each once and of its own ranks alone: no node speaks of
    another one's.
    """
    of_node, found = {}, {}
    for rank in planned:
        of_node.setdefault(rank["node"], set()).add(rank["rank"])
    for node in nodes:
        if node.get("node") in of_node and node["node"] not in found:
            own = of_node[node["node"]]
            found[node["node"]] = dict(
                node,
                ranks=[
                    rank
                    for rank in node["ranks"]
                    if isinstance(rank, dict) and rank.get("rank") in own
                ],
            )
    return list(found.values())


def _begun(ranks):
    """When the first rank started, by its node's clock: what a controller that was not there has of
    the run's start.
    """
    return min((rank["started"] for rank in ranks if rank.get("started")), default=time.time())


def clock_of(node):
    """Return {node, utc_offset, stopped_at}: what the node's own files do not say of its times."""
    return {
        "node": node["node"],
        "utc_offset": node.get("utc_offset"),
        "stopped_at": (node.get("exit") or {}).get("stopped_at"),
    }


def endpoint_mismatch(planned, nodes):
    """Return a sentence where Paddle reported other endpoints than planned (the start port is read
    back, not believed; fact 1), else None.
    """
    for node in nodes:
        reported = node.get("endpoints")
        if planned and reported and not same_endpoints(planned, reported):
            return (
                "FAILED: the launcher on {} reports the endpoints {}, planned were {}; the start"
                " port or the addresses were not taken".format(
                    node["node"], ", ".join(reported), ", ".join(planned)
                )
            )
    return None


def same_endpoints(planned, reported):
    """Whether reported endpoints are the planned ones; a planned port of * was left to the
    launcher.
    """
    pairs = list(zip(planned, reported))
    return len(planned) == len(reported) and all(
        one == other or (one.endswith(":*") and one.rpartition(":")[0] == other.rpartition(":")[0])
        for one, other in pairs
    )


def untrained(decided, ranks, saved, plan):
    """Return a verdict for a training that ended well and did nothing (PaddleOCR does with too few
    images for one batch), or None.
    """
    table = (plan.get("suite") or {}).get("logs") or {}
    did = saved or any(
        rank.get("last_step") or rank.get("evaluation") or rank.get("saved_count") for rank in ranks
    )
    if decided["outcome"] != "completed" or did or not table.get("step"):
        return None
    found = entry_of("no_step")
    text = (
        "UNKNOWN: every rank ended with exit code 0, but none printed a training step, an"
        " evaluation or a checkpoint; remedy: {}".format(found["remedy"])
    )
    return dict(
        decided,
        outcome="unknown",
        cause="no_step",
        text=text,
        meaning=found["meaning"],
        remedy=found["remedy"],
    )


def figure(step, key, form):
    """Return a step record's figure as text, or '-'; what is not a number (the nodes' logs are not
    ours) stays as it is.
    """
    value = (step or {}).get(key)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return form % value
    return "-" if value is None else str(value)[:20]


def evaluation_keys(evaluation, plan):
    """Return the names of an evaluation's figures: the suite's main one first, the others as they
    were printed.
    """
    main = (((plan.get("suite") or {}).get("logs") or {}).get("evaluation") or {}).get("main")
    names = [
        key
        for key in evaluation
        if key not in ("line", "epoch", "step", "global_step", "samples", main)
    ]
    return [main] * (main in evaluation) + names[:5]


def rounded(value):
    """Return a number with four digits that count; what is none (the nodes' logs are not ours)
    stays as it is.
    """
    return f"{value:.4g}" if isinstance(value, (int, float)) else value


def summary(decided, ranks, planned, nodes, shown_dir, saved, plan, note=""):
    """Return the end of a run in lines; the last one is the verdict. note: what is to be known of
    the trained model that came home.
    """
    by_rank = {rank["rank"]: rank for rank in ranks}
    lines = [
        "",
        "rank  node        device  endpoint                first loss  last loss  %-12s  end"
        % (unit_of(plan) or "speed"),
    ]
    for item in planned:
        rank = by_rank.get(item["rank"], {})
        first, last = rank.get("first_step"), rank.get("last_step")
        end = rank.get("signal") or (
            "exit code {}".format(rank["exit_code"])
            if rank.get("exit_code") is not None
            else rank.get("state", "no findings")
        )
        lines.append(
            "%4d  %-10s  %-6s  %-22s  %10s  %9s  %12s  %s"
            % (
                item["rank"],
                item["node"],
                item["device"],
                item["endpoint"],
                figure(first, "loss", "%.4f"),
                figure(last, "loss", "%.4f"),
                figure(last, "ips", "%.2f"),
                end,
            )
        )
    silent = [
        item["rank"]
        for item in planned
        if by_rank.get(item["rank"]) and not by_rank[item["rank"]].get("last_step")
    ]
    speed = next(
        (
            rank["last_step"]["ips"]
            for rank in ranks
            if (rank.get("last_step") or {}).get("ips") is not None
        ),
        None,
    )
    if silent and speed is not None:
        # Data-parallel ranks take equal batches in the same steps, so the first rank's speed is
        # each one's.
        text = (
            "      (the suite prints steps on its first rank only; each of the %d ranks goes at its"
            " pace: %.2f %s in all)"
        )
        lines.append(text % (len(planned), speed * len(planned), unit_of(plan) or ""))
    table = ((plan.get("suite") or {}).get("logs") or {}).get("step")
    if table and ranks and len(silent) == len(planned) and decided["outcome"] == "completed":
        lines.append(
            "      (no rank printed a step: fewer iterations than the suite's log interval?)"
        )
    evaluation = next((rank["evaluation"] for rank in ranks if rank.get("evaluation")), None)
    if evaluation:
        lines.append(
            "evaluation   "
            + "  ".join(
                f"{key} {rounded(evaluation[key])}" for key in evaluation_keys(evaluation, plan)
            )
        )
    for row in (plan.get("job") or {}).get("published") or []:
        # what the documents measured with this job, beside what was measured now
        lines.append(f"published    {published(row)}")
    begun = [rank["started"] for rank in ranks if rank.get("started")]
    over = [rank["ended"] for rank in ranks if rank.get("ended")]
    if begun and over:
        lines.append(
            f"trained      {duration(max(over) - min(begun))} from the first rank's start to the"
            " last rank's end"
        )
    endpoints = next((node["endpoints"] for node in nodes if node.get("endpoints")), None)
    if endpoints:
        same = same_endpoints(plan.get("endpoints") or [], endpoints)
        lines.append(
            "endpoints    {}, as Paddle reports them{}".format(
                ", ".join(endpoints), ": as planned" if same else ""
            )
        )
    kept = "{}/checkpoint/ ({})".format(shown_dir, ", ".join(saved)) if saved else "none"
    lines += [
        "checkpoint   " + "; ".join(part for part in (kept, note) if part),
        f"logs         {shown_dir}/rank-*.log",
        f"run record   {os.path.dirname(shown_dir)}/run.json",
    ]
    lines += [
        "evidence     " + line
        for line in decided.get("evidence", [])
        if decided["outcome"] != "completed"
    ]
    secrets = secrets_of(plan)
    return [printable(line, *secrets) for line in lines] + [printable(decided["text"], *secrets)]


def unit_of(plan):
    """Return the unit of the suite's speed figure, such as 'images/s'."""
    return (((plan.get("suite") or {}).get("logs") or {}).get("step") or {}).get("unit")
