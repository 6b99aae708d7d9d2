# SPDX-License-Identifier: Apache-2.0
"""The questions that logs.yml takes, and their answers by jmespath."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import (
    abbreviate,
    suggest,
)

from .switch import parse_switch

try:
    import jmespath  # type: ignore[import-untyped]
except ImportError:  # the other verbs do without it
    jmespath = None

NAMES = ("run", "rank", "node", "lines", "follow", "query")
DEFAULT_LINES = 20  # of each log, where the command line does not say
MOST_LINES = 100_000
LONGEST_ANSWER_LINE = 100_000  # characters of one line of an answer
_RANKS = re.compile(r"[0-9]{1,6}(,[0-9]{1,6})*", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}", re.ASCII)


def value_problem(name: str, value: Any) -> str | None:
    """Say why a value is invalid for one of NAMES, or return None.

    Numbers may be text, as -e gives them.
    """
    if name == "lines" and not (_is_whole(value) and 1 <= int(str(value)) <= MOST_LINES):
        return f"must be a whole number from 1 to {MOST_LINES}; got {abbreviate(value)}"
    if name == "rank" and not _is_rank(value):
        return (
            "must be a rank's whole number, several with commas, launcher or scheduler; got"
            f" {abbreviate(value)}"
        )
    if name == "node" and not isinstance(value, str):
        return f"must be a node's name; got {abbreviate(value)}"
    if name == "query":
        return expression_problem(value)
    return None


def _is_rank(value: Any) -> bool:
    """Return whether a value names ranks, or a process beside them."""
    if isinstance(value, (bool, float)):
        return False
    return bool(_RANKS.fullmatch(str(value)) or _NAME.fullmatch(str(value)))


def _is_whole(value: Any) -> bool:
    return not isinstance(value, bool) and bool(re.fullmatch(r"[0-9]{1,9}", str(value), re.ASCII))


def conflict(extra: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (name, text) of variables that contradict each other, or None."""
    if "query" not in extra:
        return None
    if parse_switch(extra.get("follow", False)):
        text = "is answered once, and follow=true goes on until the run ends; give one of them"
        return "query", text
    for name in ("rank", "node", "lines"):
        if name in extra:
            text = (
                "chooses lines to show, and query asks the index of ranks; put it into the"
                " expression, as ranks[?rank==`3`]"
            )
            return name, text
    return None


def parse_options(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the question as plain values.

    They are ranks ([int], [name] or None for every rank), node, lines (None: not given), follow and
    query.
    """
    ranks: list[Any] | None = None
    lines = None
    if "rank" in extra:
        text = str(extra["rank"])
        ranks = [text]
        if _RANKS.fullmatch(text):
            ranks = [int(word) for word in text.split(",")]
    if "lines" in extra:
        lines = int(extra["lines"])
    return {
        "ranks": ranks,
        "node": extra.get("node"),
        "lines": lines,
        "follow": bool(parse_switch(extra.get("follow", False))),
        "query": extra.get("query"),
    }


def expression_problem(expression: Any) -> str | None:
    """Say in jmespath's words why an expression can never be answered, or return None.

    No search takes place: it needs the index, which does not exist yet.
    """
    if not isinstance(expression, str):
        return f"must be a jmespath expression as text; got {abbreviate(expression)}"
    if jmespath is None:
        return (
            "needs the Python package jmespath on the controller: pip install -r requirements.txt"
        )
    try:
        parsed = jmespath.compile(expression).parsed
        for node in _nodes(parsed):
            if node["type"] == "function_expression":
                _check_call(node["value"], len(node["children"]))
    except jmespath.exceptions.JMESPathError as error:
        return _describe(error)
    except RecursionError:
        return "is nested too deeply"
    return None


def _describe(error: Exception) -> str:
    """Return jmespath's message in one line.

    Where jmespath points to a character below the expression, name its position.
    """
    first, _break, rest = str(error).strip().partition("\n")
    text = f"is no jmespath expression: {first.rstrip(':')}"
    if rest.endswith("^"):
        column = len(rest.rpartition("\n")[2]) - 1
        if column:
            text += f" at character {column}"
    return text


def _nodes(parsed: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield every node of a parsed expression."""
    queue = [parsed]
    while queue:
        node = queue.pop()
        yield node
        queue += [child for child in node.get("children", ()) if isinstance(child, dict)]


def _check_call(name: str, count: int) -> None:
    """Raise jmespath's error for an unknown function, or a wrong number of arguments.

    jmespath itself would raise it only in the search.
    """
    known = jmespath.functions.Functions.FUNCTION_TABLE
    if name not in known:
        raise jmespath.exceptions.UnknownFunctionError(
            f"Unknown function: {name}(){suggest(name, known)}"
        )
    signature = known[name]["signature"]
    expected = len(signature)
    variadic = bool(signature) and bool(signature[-1].get("variadic"))
    if variadic and count < expected:
        raise jmespath.exceptions.VariadictArityError(expected, count, name)
    if not variadic and count != expected:
        raise jmespath.exceptions.ArityError(expected, count, name)


def answer_query(
    index: Any, expression: str, secrets: tuple[Any, Any] = ((), ())
) -> tuple[list[str], str | None]:
    """Return (lines, problem): the answer as JSON, or the reason for its absence.

    The lines are safe to show. secrets: names and values that must not be shown, as
    sanitize.secrets_of has them.
    """
    lines = []
    try:
        result = jmespath.search(expression, index)
        if isinstance(result, list):
            lines = [json.dumps(item, ensure_ascii=False) for item in result]
        lines = lines or json.dumps(result, ensure_ascii=False, indent=1).split("\n")
    except (
        jmespath.exceptions.JMESPathError,
        TypeError,
        ValueError,
    ) as error:  # a text compared with a number, a slice of step 0
        return [], f"the index of ranks cannot answer: {str(error).strip()}"
    if result is None or result == []:
        lines += ["# " + text for text in _unknown_fields(index, expression)]
    return [printable(line, *secrets, limit=LONGEST_ANSWER_LINE) for line in lines], None


def _unknown_fields(index: Any, expression: str) -> Iterator[str]:
    """Yield a sentence for every name of the expression that the index lacks.

    jmespath finds nothing there, and gives no message.
    """
    known: set[str] = set()
    queue = [index]
    while queue:
        value = queue.pop()
        if isinstance(value, dict):
            known.update(value)
            queue += list(value.values())
        elif isinstance(value, list):
            queue += value
    fields = {
        node["value"]
        for node in _nodes(jmespath.compile(expression).parsed)
        if node["type"] == "field"
    }
    for field in sorted(fields - known):
        yield f"the index has no field {field}{suggest(field, known)}"
