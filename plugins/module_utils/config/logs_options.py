# SPDX-License-Identifier: Apache-2.0
"""What logs.yml is asked on the command line: held against what each name may be, and the answer
that jmespath finds. Pure, controller only.
"""

from __future__ import annotations

import json
import re

from ..base.sanitize import printable
from ..base.yaml_source import near, shown
from .role_vars import switch

try:
    import jmespath
except ImportError:  # the other verbs do without it
    jmespath = None

NAMES = ("run", "rank", "node", "lines", "follow", "query")
LINES = 20  # of each log, where the command line does not say
MOST_LINES = 100_000
ANSWER = 100_000  # characters of one line of an answer
_RANKS = re.compile(r"[0-9]{1,6}(,[0-9]{1,6})*", re.ASCII)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,99}", re.ASCII)


def wrong(name, value):
    """Say why a value cannot be what is given for one of NAMES, or return None. Numbers may be
    text, as -e gives them.
    """
    text = str(value)
    if name == "lines" and not (_whole(value) and 1 <= int(text) <= MOST_LINES):
        return "must be a whole number from 1 to %d; got %s" % (MOST_LINES, shown(value))
    if name == "rank" and (
        isinstance(value, (bool, float)) or not (_RANKS.fullmatch(text) or _NAME.fullmatch(text))
    ):
        return (
            "must be a rank's whole number, several with commas, launcher or scheduler; got"
            f" {shown(value)}"
        )
    if name == "node" and not isinstance(value, str):
        return f"must be a node's name; got {shown(value)}"
    return expression_problem(value) if name == "query" else None


def _whole(value):
    return not isinstance(value, bool) and bool(re.fullmatch(r"[0-9]{1,9}", str(value), re.ASCII))


def contradiction(extra):
    """Return (name, text) of what cannot be meant together, or None."""
    shows = [name for name in ("rank", "node", "lines") if name in extra]
    if "query" in extra and switch(extra.get("follow", False)):
        return (
            "query",
            "is answered once, and follow=true goes on until the run ends; give one of them",
        )
    if "query" in extra and shows:
        return (
            shows[0],
            (
                "chooses lines to show, and query asks the index of ranks; put it into the"
                " expression, as ranks[?rank==`3`]"
            ),
        )
    return None


def question(extra):
    """Return what is asked as plain values: ranks ([int], [name] or None for every rank), node,
    lines (None: not given), follow, query.
    """
    ranks = str(extra["rank"]) if "rank" in extra else None
    if ranks is not None:
        ranks = [int(word) for word in ranks.split(",")] if _RANKS.fullmatch(ranks) else [ranks]
    return {
        "ranks": ranks,
        "node": extra.get("node"),
        "lines": int(extra["lines"]) if "lines" in extra else None,
        "follow": bool(switch(extra.get("follow", False))),
        "query": extra.get("query"),
    }


def expression_problem(expression):
    """Say in jmespath's words why an expression can never be answered, or return None. It is not
    searched with: that comes with the index.
    """
    if not isinstance(expression, str):
        return f"must be a jmespath expression as text; got {shown(expression)}"
    if jmespath is None:
        return (
            "needs the Python package jmespath on the controller: pip install -r requirements.txt"
        )
    try:
        parsed = jmespath.compile(expression).parsed
        for node in _nodes(parsed):
            if node["type"] == "function_expression":
                _call(node["value"], len(node["children"]))
    except jmespath.exceptions.JMESPathError as error:
        return _words(error)
    except RecursionError:
        return "is nested too deeply"
    return None


def _words(error):
    """Return jmespath's words in one line; where it points to a character below the expression, say
    which.
    """
    first, _break, rest = str(error).strip().partition("\n")
    column = len(rest.rpartition("\n")[2]) - 1 if rest.endswith("^") else None
    return "is no jmespath expression: {}{}".format(
        first.rstrip(":"),
        " at character %d" % column if column else "",
    )


def _nodes(parsed):
    """Yield every node of a parsed expression."""
    waiting = [parsed]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in node.get("children", ()) if isinstance(child, dict)]


def _call(name, given):
    """Raise what jmespath raises where a function is called that it does not have, or with another
    number of arguments; it would say so later.
    """
    known = jmespath.functions.Functions.FUNCTION_TABLE
    if name not in known:
        raise jmespath.exceptions.UnknownFunctionError(
            f"Unknown function: {name}(){near(name, known)}"
        )
    signature = known[name]["signature"]
    wanted, endless = len(signature), bool(signature) and bool(signature[-1].get("variadic"))
    if endless and given < wanted:
        raise jmespath.exceptions.VariadictArityError(wanted, given, name)
    if not endless and given != wanted:
        raise jmespath.exceptions.ArityError(wanted, given, name)


def answer(index, expression, secrets=((), ())):
    """Return (lines, problem): the answer as JSON, safe to show, an item a line, or why there is
    none.

    secrets: names and values that must not be shown, as display.secrets_of has them.
    """
    try:
        found = jmespath.search(expression, index)
        lines = (
            [json.dumps(item, ensure_ascii=False) for item in found]
            if isinstance(found, list)
            else []
        )
        lines = lines or json.dumps(found, ensure_ascii=False, indent=1).split("\n")
    except (
        jmespath.exceptions.JMESPathError,
        TypeError,
        ValueError,
    ) as error:  # a text compared with a number, a slice of step 0
        return [], f"the index of ranks cannot answer: {str(error).strip()}"
    if found is None or found == []:
        lines += ["# " + text for text in _unknown(index, expression)]
    return [printable(line, *secrets, limit=ANSWER) for line in lines], None


def _unknown(index, expression):
    """Yield a sentence for every name in the expression that stands nowhere in the index: jmespath
    finds nothing there, without a word.
    """
    known, waiting = set(), [index]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            known.update(value)
        waiting += (
            list(value.values())
            if isinstance(value, dict)
            else value
            if isinstance(value, list)
            else []
        )
    fields = {
        node["value"]
        for node in _nodes(jmespath.compile(expression).parsed)
        if node["type"] == "field"
    }
    for field in sorted(fields - known):
        yield f"the index has no field {field}{near(field, known)}"
