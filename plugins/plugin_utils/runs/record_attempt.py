# SPDX-License-Identifier: Apache-2.0
"""The controller's record of a run, in runs/<run id>/.

It holds the plan as it was sent, the job, local changes of the code, and run.json. run.json is
written before every start and after every end. docs/run-json.md explains every field of version 2,
and docs/schemas/run.yml is the same as JSON schema. plan.json is the newest attempt's. Each attempt
has its own beside its logs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.states import Outcome
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import write_json
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
    printable_data,
    secrets_of,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import own_ranks, verdict
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.failure_catalogue import (
    entry_of,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import restart_policy

from . import foundation
from .summary import Json, are_as_planned, log_table, model_line, reported_endpoints, summarize

# A verdict's sentence with all its candidates; what a log says in it has been cut before.
LONGEST = 20_000
# The remark on the model of an attempt after which the nodes restart the run. To copy it would take
# the link and the processors from the next attempt.
LEFT = "what the attempt has saved stays on the nodes, which restart the run"


def _write_text(path: str, text: str) -> None:
    """Write a text file that only its owner can read."""
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        "w",
        encoding="utf-8",
        errors="surrogateescape",
    ) as handle:
        handle.write(text)


def _run_directory(params: Json) -> str:
    """Return the run's directory.

    Raises ValueError for a path that is not one.
    """
    if not RUN_ID.match(params["run_id"]) or not 1 <= params["number"] < 10**6:
        raise ValueError(
            f"{params['run_id']!r}, attempt {params['number']!r}: not an attempt of a run"
        )
    run_dir = os.path.join(params["runs_dir"], params["run_id"])
    if os.path.islink(run_dir):
        raise ValueError(f"{run_dir} is a link, and not the directory of a run")
    return run_dir


# What an attempt's entry keeps of its code.
ATTEMPT_CODE = ("digest", "commit", "dirty")


def record_start(params: Json, check_mode: bool = False) -> dict[str, Any]:
    """Write what was planned and return {run_dir}.

    The plan's bytes are those that every node gets. Raises FileExistsError where this attempt was
    begun already: the command that makes its directory starts it.
    """
    run_dir = _run_directory(params)
    if not check_mode:
        _write_start(run_dir, params)
    return {"run_dir": run_dir}


def _write_start(run_dir: str, params: Json) -> None:
    """Write plan, job, local changes and run.json before a start."""
    number = params["number"]
    os.makedirs(run_dir, mode=0o700, exist_ok=True)
    attempt_dir = os.path.join(run_dir, f"attempt-{number}")
    os.mkdir(attempt_dir, mode=0o700)
    # what was different at an earlier start stays known
    diff_dir = attempt_dir
    if number == 1:
        diff_dir = run_dir
    with run_json.lock_record(run_dir):
        record = run_json.read(run_dir) or run_json.new_record(
            params["run_id"], params["job"]["name"], time.time()
        )
        run_json.keep_first_plan(run_dir)
        for folder in (run_dir, attempt_dir):
            _write_text(os.path.join(folder, "plan.json"), params["plan"])
        _write_text(os.path.join(diff_dir, "code.diff"), params["code_diff"])
        write_json(os.path.join(run_dir, "job.json"), params["job"])
        entry = run_json.new_entry(
            number,
            plan_sha256=params["plan_sha256"],
            code={key: value for key, value in params["code"].items() if key in ATTEMPT_CODE},
            started=time.time(),
            by="controller",
            resume=run_json.resume_entry(params.get("resume")),
        )
        run_json.write_entry(run_dir, dict(record, code=params["code"]), entry)


def describe_conflict(params: Json) -> str:
    """Return the message for a command that comes second with the same attempt."""
    return (
        f"attempt {params['number']} of {params['run_id']} has been begun by another command; this"
        " one has started nothing. Follow it: ansible-playbook playbooks/follow.yml -e"
        f" run={params['run_id']}"
    )


def record_refusal(params: Json, check_mode: bool = False) -> dict[str, Any]:
    """Note that an attempt was begun and started nowhere.

    Return {run_dir}. The reason is noted, too.
    """
    run_dir = _run_directory(params)
    if not check_mode:
        with run_json.lock_record(run_dir):
            record = run_json.read(run_dir) or run_json.new_record(
                params["run_id"], None, time.time()
            )
            known = run_json.attempt_entry(record, params["number"])
            code = "verdict.not_started"
            text = printable(f"FAILED: nothing was started: {params['why']}", limit=LONGEST)
            decided = {
                "outcome": Outcome.FAILED.value,
                "code": code,
                "cause": run_json.NOT_STARTED,
                "text": text,
                "node": None,
                "rank": None,
            }
            run_json.write_entry(run_dir, record, dict(known, ended=time.time(), verdict=decided))
    return {"run_dir": run_dir}


def record_end(params: Json, check_mode: bool = False) -> dict[str, Any]:
    """Decide the verdict from the nodes' answers and write run.json.

    Return {run_dir, run, attempt, verdict, summary, again, supervised, goes_on, resumed}. goes_on:
    whether the nodes restart the run, so that its trained model is that of a later attempt.
    resumed: the attempt that its nodes went on from, 0 for none. Raises ValueError where the plan
    is missing.
    """
    run_dir, number = _run_directory(params), params["number"]
    plan = run_json.read_plan(run_dir, number)
    if not plan:
        raise ValueError(
            f"{run_dir}/plan.json is missing: no node that holds the run could be asked for it"
        )
    answers = [
        dict(node, epochs=plan.get("epochs"))
        for node in params["nodes"]
        if node.get("ranks") is not None
    ]
    nodes = own_ranks.select(answers, plan["ranks"])
    shown_dir = _shown_dir(params)
    saved = _list_checkpoint(run_dir, number)
    ranks = [dict(rank, node=node["node"]) for node in nodes for rank in node["ranks"]]
    decided = _decide_verdict(plan, nodes, ranks, shown_dir)
    end = {
        "by": begun_by(nodes),
        "planned_by": planned_by(nodes),
        "verdict": decided,
        "ranks": ranks,
        "nodes": [clock_of(node) for node in nodes],
        "checkpoint": saved,
        "endpoints": reported_endpoints(nodes),
    }
    entry, again, problem = _write_end(run_dir, params, plan, end, check_mode)
    final = entry["verdict"]
    supervised = run_json.is_supervised(run_dir, plan)
    goes_on = supervised and bool((again or {}).get("again"))
    note = entry["model"].get("note") or (LEFT if goes_on and not saved else "")
    lines = summarize(
        final, entry["ranks"], plan["ranks"], nodes, shown_dir, saved, plan, note, goes_on
    )
    lines[-1:-1] = _restart_lines(params["run_id"], plan, entry, again, supervised)
    lines[-1:-1] = _remark_lines(decided, final, problem, params["run_id"])
    return {
        "run_dir": run_dir,
        "run": params["run_id"],
        "attempt": number,
        "verdict": final,
        "summary": lines,
        "again": again,
        "supervised": supervised,
        "goes_on": goes_on,
        "resumed": _earlier(entry["resume"], number) if supervised else 0,
    }


def _earlier(resume: Json | None, number: int) -> int:
    """Return the attempt that one went on from, 0 for none. resume: what a node's plan says."""
    attempt = (resume or {}).get("attempt")
    if type(attempt) is int and 0 < attempt < number:
        return attempt
    return 0


def record_model(params: Json, check_mode: bool = False) -> dict[str, Any]:
    """Note the trained model that was copied after the end of an attempt.

    An earlier attempt keeps what is known of its model where none was found now. Return {run_dir,
    line}: the summary's line about it. Raises OSError.
    """
    run_dir, number = _run_directory(params), params["number"]
    saved, model = _list_checkpoint(run_dir, number), params.get("checkpoint") or {}
    if not check_mode:
        with run_json.lock_record(run_dir):
            record = run_json.read(run_dir)
            if record:
                known = run_json.attempt_entry(record, number)
                is_newest = number >= max(item["number"] for item in record["attempts"])
                if is_newest or model.get("kind"):
                    entry = dict(known, checkpoint=saved, model=model or known["model"])
                    run_json.write_entry(run_dir, record, entry)
                run_json.make_private(run_dir)
    line = model_line(_shown_dir(params), saved, model.get("note"))
    secrets = secrets_of(run_json.read_plan(run_dir, number) or {})
    return {"run_dir": run_dir, "line": printable(line, *secrets)}


def _shown_dir(params: Json) -> str:
    """Return an attempt's directory as it is shown."""
    runs = os.path.basename(os.path.normpath(params["runs_dir"]))
    return os.path.join(runs, params["run_id"], f"attempt-{params['number']}")


def _list_checkpoint(run_dir: str, number: int) -> list[str]:
    """Return the names of an attempt's checkpoint files on the controller."""
    folder = os.path.join(run_dir, f"attempt-{number}", "checkpoint")
    if not os.path.isdir(folder):
        return []
    return sorted(os.listdir(folder))


def _decide_verdict(
    plan: Json, nodes: Sequence[Json], ranks: Sequence[Json], shown_dir: str
) -> dict[str, Any]:
    """Return the verdict of an attempt, with secrets masked.

    The nodes have masked their answers. What is put together here goes through the same once more.
    """
    decided = verdict.decide(plan["ranks"], nodes, shown_dir)
    mismatch = endpoint_mismatch(plan.get("endpoints"), nodes)
    if mismatch:
        cause = entry_of("endpoints")
        code = "verdict.endpoints"
        decided = dict(
            decided,
            outcome=Outcome.FAILED.value,
            code=code,
            cause="endpoints",
            meaning=cause["meaning"],
            remedy=cause["remedy"],
            text=mismatch,
        )
    has_saved = any(node.get("has_checkpoint") for node in nodes)
    decided = judge_untrained(decided, ranks, has_saved, plan) or decided
    names, values = secrets_of(plan)
    masked: dict[str, Any] = printable_data(decided, names, values, LONGEST)
    return masked


def _remark_lines(decided: Json, final: Json, problem: str, run_id: str) -> list[str]:
    """Return the summary's lines about a verdict that was kept, and a record that was not written.

    decided: the verdict of this look. final: the one that counts. problem: why run.json could not
    be written, or ''.
    """
    lines = []
    if decided is not final:
        code = "verdict.kept"
        lines.append(
            f"this look    says less than the verdict below, which stays [{code}]:"
            f" {decided['text']}"
        )
    if problem:
        code = "verdict.not_recorded"
        lines.append(
            f"not written  the record with this verdict [{code}]: {problem}; nothing is restarted;"
            " make room on the controller, then: ansible-playbook playbooks/follow.yml -e"
            f" run={run_id}"
        )
    return [printable(line, limit=LONGEST) for line in lines]


def _write_end(
    run_dir: str, params: Json, plan: Json, end: Json, check_mode: bool
) -> tuple[dict[str, Any], dict[str, Any] | None, str]:
    """Write the end of an attempt to run.json.

    Return (the attempt's entry, the decision about a restart, None for an attempt that is not the
    newest one, the reason why nothing could be written, or ''). The verdict must be shown also
    where the controller's disk is full. check_mode: whether nothing is written.
    """
    if not check_mode:
        try:
            return (*_update_end(run_dir, params, plan, end, True), "")
        except OSError as error:
            problem = f"{error.filename or run_dir}: {error.strerror or error}"
        entry, _again = _update_end(run_dir, params, plan, end, False)
        return entry, None, problem
    return (*_update_end(run_dir, params, plan, end, False), "")


def _update_end(
    run_dir: str, params: Json, plan: Json, end: Json, write: bool
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return an attempt's entry with its end, and the decision about a restart or None.

    write: whether run.json is written.
    """
    number, followed = params["number"], params.get("followed", True)
    lock: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if write:
        lock = run_json.lock_record(run_dir)
    with lock:
        record = run_json.read(run_dir) or run_json.new_record(
            params["run_id"], (plan.get("job") or {}).get("name"), _begin_of(end["ranks"])
        )
        entry = _end_entry(_with_start(run_json.attempt_entry(record, number), plan, end), end)
        again = None
        is_newest = number >= max(item["number"] for item in [entry, *record["attempts"]])
        if is_newest:
            limit = run_json.read_restart_limit(run_dir)
            again = restart_policy.decide(run_json.merge_entry(record, entry), limit, followed)
            # a look at an end of long ago takes back nothing that was decided when it was new
            if again and run_json.is_supervised(run_dir, plan):
                again["by"] = "nodes"
            if followed or not entry["again"]:
                entry["again"] = again
        if write:
            run_json.write_entry(run_dir, record, entry)
            if is_newest:
                run_json.install_plan(run_dir, number)
            run_json.make_private(run_dir)
    return entry, again


def _with_start(known: Json, plan: Json, end: Json) -> dict[str, Any]:
    """Return an attempt's entry with its start, where its nodes began it without a controller."""
    if known["started"]:
        return dict(known)
    began = min((rank["started"] for rank in end["ranks"] if rank.get("started")), default=None)
    return dict(known, started=began, resume=run_json.resume_entry(plan.get("resume")))


def _end_entry(known: Json, end: Json) -> dict[str, Any]:
    """Return an attempt's entry with what this look found.

    known: the entry so far. Its verdict stays where it is better founded, with the time at which it
    was decided, and with the findings of nodes that do not answer any more.
    """
    if known["by"]:  # the first look counts: later ones may see fewer nodes
        end = dict(end, by=known["by"], planned_by=known["planned_by"])
    if not foundation.keeps(known.get("verdict"), end["verdict"]):
        return dict(known, ended=time.time(), **end)
    merged = {key: foundation.merge_by_node(known[key], end[key]) for key in ("ranks", "nodes")}
    kept = {key: known[key] for key in ("checkpoint", "endpoints") if not end[key]}
    return dict(known, **{**end, **merged, **kept, "verdict": known["verdict"]})


def _restart_lines(
    run_id: str, plan: Json, entry: Json, again: dict[str, Any] | None, supervised: bool
) -> list[str]:
    """Return the summary's lines about the resume point and the restart of an attempt."""
    sentences = {
        "resumed": run_json.describe_resume(entry["resume"], entry["number"]),
        "restart": restart_policy.describe(again, run_id, supervised),
    }
    return [
        printable(f"{name:<11}  {text}", *secrets_of(plan))
        for name, text in sentences.items()
        if text
    ]


def _begin_of(ranks: Iterable[Json]) -> float:
    """Return the time when the first rank started, in unix seconds.

    It is by the clock of its node. It is what a controller that was not there has of the run's
    start. Without ranks it is now.
    """
    return min((rank["started"] for rank in ranks if rank.get("started")), default=time.time())


def begun_by(nodes: Sequence[Json]) -> str | None:
    """Return `nodes` where all that answer say that they began the attempt, else `controller`.

    None where no node answers.
    """
    if not nodes:
        return None
    return ("controller", "nodes")[all(node.get("by_nodes") for node in nodes)]


def planned_by(nodes: Sequence[Json]) -> str | None:
    """Return the node whose plan the nodes' attempt is, None where they do not all say the same."""
    claims = {node.get("planned_by") for node in nodes}
    if begun_by(nodes) != "nodes" or len(claims) != 1:
        return None
    return claims.pop()


def clock_of(node: Json) -> dict[str, Any]:
    """Return {node, utc_offset, stopped_at} of a node.

    The node's own files do not say these.
    """
    return {
        "node": node["node"],
        "utc_offset": node.get("utc_offset"),
        "stopped_at": (node.get("exit") or {}).get("stopped_at"),
    }


def endpoint_mismatch(planned: Sequence[str] | None, nodes: Iterable[Json]) -> str | None:
    """Return a sentence where Paddle reported other endpoints than planned, else None.

    The start port is read back, not believed (fact 1).
    """
    for node in nodes:
        reported = node.get("endpoints")
        if planned and reported and not are_as_planned(planned, reported):
            return (
                f"FAILED: the launcher on {node['node']} reports the endpoints"
                f" {', '.join(reported)}, planned were {', '.join(planned)}; the start port or the"
                " addresses were not taken"
            )
    return None


def judge_untrained(
    decided: dict[str, Any], ranks: Iterable[Json], has_saved: bool, plan: Json
) -> dict[str, Any] | None:
    """Return a verdict for a training that ended well and did nothing, or None.

    has_saved: whether a node has a checkpoint of the attempt.

    PaddleOCR does that with too few images for one batch.
    """
    did_work = has_saved or any(
        rank.get("last_step") or rank.get("evaluation") or rank.get("saved_count") for rank in ranks
    )
    if decided["outcome"] != Outcome.COMPLETED or did_work or not log_table(plan).get("step"):
        return None
    cause = entry_of("no_step")
    code = "verdict.untrained"
    text = (
        "UNKNOWN: every rank ended with exit code 0, but none printed a training step, an"
        f" evaluation or a checkpoint; remedy: {cause['remedy']}"
    )
    return dict(
        decided,
        outcome=Outcome.UNKNOWN.value,
        code=code,
        cause="no_step",
        text=text,
        meaning=cause["meaning"],
        remedy=cause["remedy"],
    )
