# SPDX-License-Identifier: Apache-2.0
"""The controller's record of a run: runs/<run id>/ with the plan as it was sent, the job, local changes of the code, and run.json at the end.

run.json (version 1): {version, run, job, plan_sha256, started, code, attempts: [{number, verdict, ranks, nodes, checkpoint, model, ended}]}; checkpoint
lists the names in the folder checkpoint/, model is what the module checkpoint found on the first node.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time

from ansible.module_utils.trainyard import manifest, verdict
from ansible.module_utils.trainyard.causes import entry_of
from ansible.module_utils.trainyard.columns import span as duration
from ansible.module_utils.trainyard.display import printable, printable_data, secrets_of
from ansible.module_utils.trainyard.plan_text import published

VERSION = 1
# A verdict's sentence with all its candidates; what a log says in it has been cut before.
LONGEST = 20_000


def _text(path, text):
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8", errors="surrogateescape") as handle:
        handle.write(text)


def started(params, check_mode=False):
    """Write what was planned; return {run_dir}. The plan's bytes are those that every node gets."""
    run_dir = os.path.join(params["runs_dir"], params["run_id"])
    if not check_mode:
        os.makedirs(run_dir, mode=0o700, exist_ok=True)
        os.mkdir(os.path.join(run_dir, "attempt-%d" % params["number"]), mode=0o700)
        _text(os.path.join(run_dir, "plan.json"), params["plan"])
        _text(os.path.join(run_dir, "code.diff"), params["code_diff"])
        manifest.write_json(os.path.join(run_dir, "job.json"), params["job"])
        record = {
            "version": VERSION,
            "run": params["run_id"],
            "job": params["job"]["name"],
            "plan_sha256": params["plan_sha256"],
            "started": time.time(),
            "code": params["code"],
            "attempts": [],
        }
        manifest.write_json(os.path.join(run_dir, "run.json"), record)
    return {"run_dir": run_dir}


def ended(params, check_mode=False):
    """Decide the verdict from what the nodes said and write run.json; return {run_dir, verdict, summary}."""
    run_dir = os.path.join(params["runs_dir"], params["run_id"])
    attempt_dir = os.path.join(run_dir, "attempt-%d" % params["number"])
    nodes = [node for node in params["nodes"] if node.get("ranks") is not None]
    plan = manifest.read_json(os.path.join(run_dir, "plan.json"))
    if not plan:
        raise ValueError("%s/plan.json is missing: no node that holds the run could be asked for it" % run_dir)
    planned = plan["ranks"]
    shown_dir = os.path.join(os.path.basename(os.path.normpath(params["runs_dir"])), params["run_id"], "attempt-%d" % params["number"])
    decided = verdict.decide(planned, nodes, shown_dir)
    mismatch = endpoint_mismatch(plan.get("endpoints"), nodes)
    if mismatch:
        found = entry_of("endpoints")
        decided = dict(decided, outcome="failed", cause="endpoints", meaning=found["meaning"], remedy=found["remedy"], text=mismatch)
    saved = sorted(os.listdir(os.path.join(attempt_dir, "checkpoint"))) if os.path.isdir(os.path.join(attempt_dir, "checkpoint")) else []
    ranks = [dict(rank, node=node["node"]) for node in nodes for rank in node["ranks"]]
    model = params.get("checkpoint") or {}
    # the nodes have masked what they said; what is put together here goes through the same once more
    decided = printable_data(untrained(decided, ranks, saved, plan) or decided, *secrets_of(plan), limit=LONGEST)
    if not check_mode:
        path = os.path.join(run_dir, "run.json")
        record = manifest.read_json(path) or {"version": VERSION, "run": params["run_id"], "attempts": []}
        entry = {
            "number": params["number"],
            "ended": time.time(),
            "verdict": decided,
            "ranks": ranks,
            "nodes": [clock_of(node) for node in nodes],
            "checkpoint": saved,
            "model": model,
            "endpoints": next((node["endpoints"] for node in nodes if node.get("endpoints")), None),
        }
        record["attempts"] = [item for item in record["attempts"] if item["number"] != params["number"]] + [entry]
        manifest.write_json(path, record)
        seal(run_dir)
    note = model.get("note") or ""
    return {"run_dir": run_dir, "verdict": decided, "summary": summary(decided, ranks, planned, nodes, shown_dir, saved, plan, note)}


def seal(folder):
    """Take from everybody else what of a run they could read: plan.json holds the environment, and what brought it may have been generous."""
    for where, _folders, names in os.walk(folder):
        for path in [where] + [os.path.join(where, name) for name in names]:
            with contextlib.suppress(FileNotFoundError):  # another terminal's stream has ended meanwhile
                mode = os.lstat(path).st_mode
                if not stat.S_ISLNK(mode) and mode & 0o077:
                    os.chmod(path, stat.S_IMODE(mode) & 0o700)


def clock_of(node):
    """Return {node, utc_offset, stopped_at}: what the node's own files do not say of its times."""
    return {"node": node["node"], "utc_offset": node.get("utc_offset"), "stopped_at": (node.get("exit") or {}).get("stopped_at")}


def endpoint_mismatch(planned, nodes):
    """Return a sentence where Paddle reported other endpoints than planned (the start port is read back, not believed; fact 1), else None."""
    for node in nodes:
        reported = node.get("endpoints")
        if planned and reported and not same_endpoints(planned, reported):
            return (
                "FAILED: the launcher on %s reports the endpoints %s, planned were %s; the start port or the addresses were not taken"
                % (node["node"], ", ".join(reported), ", ".join(planned))
            )
    return None


def same_endpoints(planned, reported):
    """Whether reported endpoints are the planned ones; a planned port of * was left to the launcher."""
    pairs = list(zip(planned, reported))
    return len(planned) == len(reported) and all(
        one == other or (one.endswith(":*") and one.rpartition(":")[0] == other.rpartition(":")[0]) for one, other in pairs
    )


def untrained(decided, ranks, saved, plan):
    """Return a verdict for a training that ended well and did nothing (PaddleOCR does with too few images for one batch), or None."""
    table = (plan.get("suite") or {}).get("logs") or {}
    did = saved or any(rank.get("last_step") or rank.get("evaluation") or rank.get("saved_count") for rank in ranks)
    if decided["outcome"] != "completed" or did or not table.get("step"):
        return None
    found = entry_of("no_step")
    text = (
        "UNKNOWN: every rank ended with exit code 0, but none printed a training step, an evaluation or a checkpoint; remedy: %s"
        % found["remedy"]
    )
    return dict(decided, outcome="unknown", cause="no_step", text=text, meaning=found["meaning"], remedy=found["remedy"])


def figure(step, key, form):
    """Return a step record's figure as text, or '-'."""
    value = (step or {}).get(key)
    return "-" if value is None else form % value


def evaluation_keys(evaluation, plan):
    """Return the names of an evaluation's figures: the suite's main one first, the others as they were printed."""
    main = (((plan.get("suite") or {}).get("logs") or {}).get("evaluation") or {}).get("main")
    names = [key for key in evaluation if key not in ("line", "epoch", "step", "global_step", "samples", main)]
    return [main] * (main in evaluation) + names[:5]


def rounded(value):
    """Return a number with four digits that count; what is none (the nodes' logs are not ours) stays as it is."""
    return "%.4g" % value if isinstance(value, (int, float)) else value


def summary(decided, ranks, planned, nodes, shown_dir, saved, plan, note=""):
    """Return the end of a run in lines; the last one is the verdict. note: what is to be known of the trained model that came home."""
    by_rank = {rank["rank"]: rank for rank in ranks}
    lines = ["", "rank  node        device  endpoint                first loss  last loss  %-12s  end" % (unit_of(plan) or "speed")]
    for item in planned:
        rank = by_rank.get(item["rank"], {})
        first, last = rank.get("first_step"), rank.get("last_step")
        end = rank.get("signal") or (
            "exit code %s" % rank["exit_code"] if rank.get("exit_code") is not None else rank.get("state", "no findings")
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
    silent = [item["rank"] for item in planned if by_rank.get(item["rank"]) and not by_rank[item["rank"]].get("last_step")]
    speed = next((rank["last_step"]["ips"] for rank in ranks if (rank.get("last_step") or {}).get("ips") is not None), None)
    if silent and speed is not None:
        # Data-parallel ranks take equal batches in the same steps, so the first rank's speed is each one's.
        text = "      (the suite prints steps on its first rank only; each of the %d ranks goes at its pace: %.2f %s in all)"
        lines.append(text % (len(planned), speed * len(planned), unit_of(plan) or ""))
    table = ((plan.get("suite") or {}).get("logs") or {}).get("step")
    if table and ranks and len(silent) == len(planned) and decided["outcome"] == "completed":
        lines.append("      (no rank printed a step: fewer iterations than the suite's log interval?)")
    evaluation = next((rank["evaluation"] for rank in ranks if rank.get("evaluation")), None)
    if evaluation:
        lines.append("evaluation   " + "  ".join("%s %s" % (key, rounded(evaluation[key])) for key in evaluation_keys(evaluation, plan)))
    for row in (plan.get("job") or {}).get("published") or []:
        # what the documents measured with this job, beside what was measured now
        lines.append("published    %s" % published(row))
    begun = [rank["started"] for rank in ranks if rank.get("started")]
    over = [rank["ended"] for rank in ranks if rank.get("ended")]
    if begun and over:
        lines.append("trained      %s from the first rank's start to the last rank's end" % duration(max(over) - min(begun)))
    endpoints = next((node["endpoints"] for node in nodes if node.get("endpoints")), None)
    if endpoints:
        same = same_endpoints(plan.get("endpoints") or [], endpoints)
        lines.append("endpoints    %s, as Paddle reports them%s" % (", ".join(endpoints), ": as planned" if same else ""))
    kept = "%s/checkpoint/ (%s)" % (shown_dir, ", ".join(saved)) if saved else "none"
    lines += [
        "checkpoint   " + "; ".join(part for part in (kept, note) if part),
        "logs         %s/rank-*.log" % shown_dir,
        "run record   %s/run.json" % os.path.dirname(shown_dir),
    ]
    lines += ["evidence     " + line for line in decided.get("evidence", []) if decided["outcome"] != "completed"]
    secrets = secrets_of(plan)
    return [printable(line, *secrets) for line in lines] + [printable(decided["text"], *secrets)]


def unit_of(plan):
    """Return the unit of the suite's speed figure, such as 'images/s'."""
    return (((plan.get("suite") or {}).get("logs") or {}).get("step") or {}).get("unit")
