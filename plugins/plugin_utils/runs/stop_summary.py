# SPDX-License-Identifier: Apache-2.0
"""The end of a stop in words: each node's result, and one line that sums them up."""

from __future__ import annotations

import typing
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_choice

Answer = dict[str, Any]
Answers = dict[str, Answer]


class _NodeReport(typing.NamedTuple):
    """The result of a stop on one node."""

    node: str
    text: str
    runs: tuple[str, ...] = ()  # ids of the runs that were stopped there
    is_problem: bool = False  # something runs there still, or may
    is_silent: bool = False  # a member of the run did not answer


def summarize_stop(
    results: Answers, found: Answers, run_id: str, members: list[str]
) -> dict[str, Any]:
    """Return {summary, verdict} of every node's answer.

    The verdict is {outcome: stopped, nothing or problems, text}, its text the last line. results:
    {node: what the module returned there}. found: {node: its first answer}. It shows why there is
    no result. members: the nodes on which something of the run can be.
    """
    reports = [
        _report_node(node, result, found.get(node) or {}, node in members)
        for node, result in results.items()
    ]
    problems = [report.node for report in reports if report.is_problem]
    silent = [report.node for report in reports if report.is_silent]
    stopped = _nodes_by_run(reports)
    text = _describe_stop(stopped, _runs_in(results, "noted"), found, run_id)
    command = "ansible-playbook playbooks/stop.yml"
    if run_id or stopped:
        command += f" -e run={run_id or max(stopped)}"
    unconfirmed = _runs_in(results, "unconfirmed")
    text = _prepend_open_nodes(text, problems, silent, command)
    if unconfirmed:
        text = (
            f"NOT FINAL for {', '.join(unconfirmed)}: its nodes restart it themselves, and more"
            " than half of them have to know of the stop; those that answer train no more. Repeat"
            " it when more of them answer; if a node will not come back:"
            f" {command} -e lost=NODE; {text}"
        )
    outcome = "nothing"
    if problems or silent or unconfirmed:
        outcome = "problems"
    elif stopped:
        outcome = "stopped"
    lines = [""]
    lines += [f"{report.node:<10}  {printable(report.text, limit=2000)}" for report in reports]
    lines.append(printable(text, limit=4000))
    return {"summary": lines, "verdict": {"outcome": outcome, "text": lines[-1]}}


def _nodes_by_run(reports: list[_NodeReport]) -> dict[str, list[str]]:
    """Return {run: the nodes on which it was stopped}."""
    stopped: dict[str, list[str]] = {}
    for report in reports:
        for name in dict.fromkeys(report.runs):  # several attempts of a run may end there
            stopped.setdefault(name, []).append(report.node)
    return stopped


def _prepend_open_nodes(text: str, problems: list[str], silent: list[str], command: str) -> str:
    """Return the text, with the nodes before it where something may run."""
    if silent:
        text = (
            f"NO ANSWER from {', '.join(silent)}: what runs there goes on until its neighbours'"
            f" watch ends it; when it answers again: {command}; on the others: {text}"
        )
    if problems:
        text = (
            f"NOT STOPPED on {', '.join(problems)}: fix what is named above, then {command}; {text}"
        )
    return text


def _report_node(node: str, result: Answer, first_answer: Answer, is_member: bool) -> _NodeReport:
    """Return the report of one node.

    result: what the module returned there, or nothing. first_answer: its first answer. is_member:
    whether something of the run can be there.
    """
    answer = result
    if not result or result.get("skipped"):
        answer = first_answer
    if is_sound(answer):
        return _report_answer(node, answer)
    reason = str(answer.get("msg") or "it could not be asked").replace("Task failed: ", "")
    if not answer.get("unreachable"):
        return _NodeReport(node, f"not stopped: {reason}", is_problem=True)
    text = f"no answer: {reason}"
    if not is_member:
        text += "; it has no part in this run"
    return _NodeReport(node, text, is_silent=is_member)


def _runs_in(results: Answers, field: str) -> list[str]:
    """Return the ids of the runs in one field of the nodes' results, sorted.

    field: noted (runs whose start will give up) or unconfirmed (those whose stop may not be final).
    """
    return sorted(
        {
            name
            for result in results.values()
            if is_sound(result)
            for name in result.get(field) or ()
            if run_choice.is_run(name)
        }
    )


def _describe_stop(
    stopped: dict[str, list[str]], noted: list[str], found: Answers, run_id: str
) -> str:
    """Return the verdict's text as if all nodes had answered.

    stopped: {run: its nodes}. noted: the runs whose start or restart gives up.
    """
    runs = "; ".join(f"{name} on {', '.join(nodes)}" for name, nodes in sorted(stopped.items()))
    if runs:
        text = f"STOPPED {runs}"
    elif run_id:
        text = f"NOTHING TO STOP: nothing of {run_id} runs"
    elif noted:
        text = "NOTHING TO STOP: no run of yours holds a node"
    else:
        text = "NOTHING TO STOP: no run of yours was found" + _elsewhere(found)
    if not noted:
        return text
    names = ", ".join(noted)
    if noted == [run_id]:
        names = "it"
    return f"{text}; a start or restart of {names} that is under way gives up"


def _elsewhere(found: Answers) -> str:
    """Return words about the newest run that has failed, '' without one.

    Another controller may wait for its restart, which holds no node. Only its name can stop that.
    """
    statuses = [answer.get("status") or {} for answer in found.values()]
    failed = max(
        [
            status["run"]
            for status in statuses
            if run_choice.is_run(status.get("run")) and status.get("state") in ("failed", "lost")
        ],
        default="",
    )
    if not failed:
        return ""
    return (
        f"; should {failed} wait for its restart: ansible-playbook playbooks/stop.yml -e"
        f" run={failed}"
    )


def is_sound(answer: Answer | None) -> bool:
    """Return whether a node's answer says what a stop did there."""
    answer = answer or {}
    lists = [answer.get(key) for key in ("stopped", "ended", "left", "occupied")]
    return (
        all(isinstance(items, list) for items in lists)
        and isinstance(answer.get("noted") or [], list)
        and all(isinstance(name, str) for name in answer["stopped"])
        and all(
            isinstance(item, dict) and {"pid", "signal", "command"} <= set(item)
            for item in answer["ended"]
        )
        and all(
            isinstance(item, dict) and {"own", "text"} <= set(item) for item in answer["occupied"]
        )
    )


def _report_answer(node: str, answer: Answer) -> _NodeReport:
    """Return the report of a node that answered.

    What is left there of the run is a problem.
    """
    of_run = [item["text"] for item in answer["occupied"] if item["own"]]
    others = [item["text"] for item in answer["occupied"] if not item["own"]]
    outside = ["pid {pid} ({signal}) {command}".format(**item) for item in answer["ended"]]
    left = [f"pid {pid}" for pid in answer["left"]] + of_run
    parts = ["nothing ran"]
    if answer["stopped"]:
        parts = ["stopped " + ", ".join(dict.fromkeys(answer["stopped"]))]
    if outside:
        parts.append("ended outside of its unit: " + ", ".join(outside))
    if left:
        parts.append("still there: " + ", ".join(left))
    if others:
        parts.append("not of this run and left alone: " + ", ".join(others))
    runs = tuple(filter(run_choice.is_run, answer["stopped"]))
    return _NodeReport(node, "; ".join(parts), runs=runs, is_problem=bool(left))
