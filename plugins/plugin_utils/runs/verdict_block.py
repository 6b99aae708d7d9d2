# SPDX-License-Identifier: Apache-2.0
"""A verdict as a block for people: who, which log, what to do, and the next commands. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.states import Outcome

# JSON objects: a verdict, one of its candidates.
Json = Mapping[str, Any]
# Candidates that are shown where no rank is named.
_MOST = 4


def block(decided: Json, run: str, goes_on: bool = False) -> list[str]:
    """Return the lines above the sentence of a verdict, [] where the run completed.

    decided: the verdict. run: the run's id. goes_on: whether the nodes restart the run. Each
    command is complete but for the inventory, which only the terminal knows.
    """
    if decided["outcome"] == Outcome.COMPLETED:
        return []
    codes = []
    if decided.get("code"):  # none in a verdict of an earlier version that stays
        codes.append(decided["code"])
    if decided.get("cause"):
        codes.append(f"cause.{decided['cause']}")
    lines = ["", f"{str(decided['outcome']).upper()} [{', '.join(map(str, codes))}]"]
    lines += _culprit_lines(decided)
    if decided.get("remedy"):
        lines.append(_row("do", decided["remedy"]))
    name = shlex.quote(run)
    logs = f"ansible-playbook playbooks/logs.yml -e run={name}"
    if isinstance(decided.get("rank"), int):
        logs += f" -e rank={decided['rank']}"
    lines.append(_row("logs", logs))
    if decided.get("unreachable") and not goes_on:
        lines.append(_row("ask again", f"ansible-playbook playbooks/follow.yml -e run={name}"))
    if goes_on:
        lines.append(_row("follow", f"ansible-playbook playbooks/follow.yml -e run={name}"))
        lines.append(_row("stop", f"ansible-playbook playbooks/stop.yml -e run={name}"))
    else:
        lines.append(_row("resume", f"ansible-playbook playbooks/resume.yml -e run={name}"))
    lines.append(_row("report", f"ansible-playbook playbooks/report.yml -e run={name}"))
    return [*lines, ""]


def _row(label: str, text: Any) -> str:
    return f"  {label:<11}{text}"


def _culprit_lines(decided: Json) -> list[str]:
    """Return who failed and where that stands, or the candidates where no one is named."""
    lines = []
    if decided.get("code") == "verdict.common":
        lines.append(_row("who", "several ranks alike, and this is the log of the first"))
    elif decided.get("node"):
        lines.append(_row("who", _place_of(decided)))
    elif decided.get("cause") != "unreachable" and decided["outcome"] == Outcome.FAILED:
        lines.append(_row("who", "no evidence decides"))
        for candidate in (decided.get("candidates") or ())[:_MOST]:
            log = _log_of(candidate) or "no log"
            lines.append(_row("maybe", f"{_place_of(candidate)}: {log}"))
    log = _log_of(decided)
    if log:
        lines.append(_row("log", log))
    return lines


def _place_of(entry: Json) -> str:
    """Return the rank and the node of a verdict or a candidate, and how its process ended."""
    if entry.get("rank") is None:
        return f"{entry.get('node')}"
    text = f"rank {entry['rank']} on {entry.get('node')}"
    if entry.get("signal"):
        return f"{text} ({entry['signal']})"
    if entry.get("exit_code") is not None:
        return f"{text} (exit code {entry['exit_code']})"
    return text


def _log_of(entry: Json) -> str:
    """Return path and line of a log, '' without one."""
    if not entry.get("log"):
        return ""
    if entry.get("line"):
        return f"{entry['log']}:{entry['line']}"
    return str(entry["log"])
