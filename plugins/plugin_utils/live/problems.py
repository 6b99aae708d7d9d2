# SPDX-License-Identifier: Apache-2.0
"""Failures of tasks as lines for people: each cause once, with its nodes. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings

from ..base import connection_failure

# Words that Ansible puts before a message, and that say nothing.
_PREFIXES = ("Task failed: ", "Action failed: ", "Module failed: ")
# Ansible's modules whose message is written by us.
_SPEAKING = ("fail", "assert")
# What a command or a crashed module printed, in the order in which it is shown.
_PRINTED = ("module_stderr", "module_stdout", "stderr", "stdout")
# A finding in a table, see findings.lines.
_ROW = re.compile(r"  (?:STOP|WARN|NOTE) ")
# So many of its lines, and so many names of nodes, are shown.
_LAST_LINES, _NODES = 20, 16
# Ansible's message about a loop. Each failed item has its own message.
_LOOP_MESSAGE = "One or more items failed"


class _Failure(NamedTuple):
    """The failure of one task, on one node or more.

    nodes: names, [] is the controller. task: '' where the message stands for itself. lines: as the
    first node gave them. common: the lines without a node's address.
    """

    nodes: list[str]
    task: str
    lines: list[str]
    common: list[str]


class Problems:
    """The failures of a command, in the order of their arrival."""

    def __init__(self) -> None:
        self._failures: list[_Failure] = []

    def add(
        self, node: str | None, address: str, action: str, task: str, result: Mapping[str, Any]
    ) -> None:
        """Add a failure.

        node: its name, None is the controller. address: of the node, '' if unknown. action: name of
        the module. task: name of the task. result: as plain data, of the task or of one item.
        """
        lines = describe(result)
        common = lines
        if address:
            common = [line.replace(address, "<address>") for line in lines]
        if action.split(".")[-1] in _SPEAKING or action.startswith("trainyard.cluster."):
            task = ""
        for known in self._failures:
            if known.task == task and known.common == common and bool(known.nodes) == bool(node):
                if node and node not in known.nodes:
                    known.nodes.append(node)
                return
        nodes = []
        if node:
            nodes = [node]
        self._failures.append(_Failure(nodes, task, lines, common))

    def lines(self, known: Collection[str] = ()) -> list[str]:
        """Return the failures as lines, without those that consist of a line in `known`."""
        return [
            line
            for failure in self._failures
            if not (len(failure.lines) == 1 and failure.lines[0] in known)
            for line in _lines_of(failure)
        ]

    def clear(self) -> None:
        """Forget the failures that were shown."""
        self._failures.clear()


def describe(result: Mapping[str, Any]) -> list[str]:
    """Return the message of a failed result, and what its program printed, as lines."""
    if "censored" in result:
        return [str(result["censored"])]
    message = result.get("msg")
    if isinstance(message, (list, tuple)):
        lines = [str(line) for line in message]
    else:
        lines = _without_prefix(str(message or "no message")).strip().splitlines()
    return [*_with_codes(lines, result), *_printed_lines(result), *_remedy_lines(result)]


def is_of_loop(result: Mapping[str, Any]) -> bool:
    """Return whether a result only says that items of a loop have failed."""
    return "results" in result and str(result.get("msg", "")).startswith(_LOOP_MESSAGE)


def _without_prefix(message: str) -> str:
    for prefix in _PREFIXES:
        message = message.removeprefix(prefix)
    return message


def _with_codes(lines: list[str], result: Mapping[str, Any]) -> list[str]:
    """Return the lines with their message codes.

    The code of a message stands in its first line. Several problems have a line each, indented by
    two, and the codes in the same order. A line that has its code already stays as it is.
    """
    code, codes = result.get("code"), result.get("codes")
    if isinstance(code, str) and "." in code and lines and f"[{code}]" not in lines[0]:
        return [f"{lines[0]} [{code}]", *lines[1:]]
    if not isinstance(codes, (list, tuple)):
        return lines
    remaining = iter(codes)
    return [_with_next_code(line, remaining) for line in lines]


def _with_next_code(line: str, codes: Iterator[Any]) -> str:
    # The rows of a table have their codes, and a row's remedy is indented further.
    if not line.startswith("  ") or line.startswith("   ") or _ROW.match(line):
        return line
    code = next(codes, None)
    if not code or f"[{code}]" in line:
        return line
    return f"{line} [{code}]"


def _remedy_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the remedy for a node that cannot be asked, in a list."""
    words = connection_failure.words_of(result)
    if not (result.get("unreachable") or connection_failure.is_of_python(result)):
        return []
    cause = connection_failure.classify(words)
    return [f"    -> {cause.remedy} [{cause.code}]"]


def _printed_lines(result: Mapping[str, Any]) -> list[str]:
    """Return exit code and last lines of what a program printed, indented."""
    lines = []
    if isinstance(result.get("rc"), int):
        lines.append(f"    exit code {result['rc']}")
    for key in _PRINTED:
        value = result.get(key)
        if isinstance(value, str) and value.strip():
            lines += [f"    {line}" for line in value.strip().splitlines()[-_LAST_LINES:]]
    return lines


def _lines_of(failure: _Failure) -> list[str]:
    lines = failure.lines
    if len(failure.nodes) > 1:
        lines = failure.common
    first = lines[0]
    if failure.task:
        first = f"{failure.task}: {first}"
    if failure.nodes:
        # A node's text must not look like a line of ours.
        lines = [f"    {line.lstrip()}" for line in lines]
        first = f"{findings.named(sorted(failure.nodes), _NODES)}: {first}"
    return [first, *lines[1:]]
