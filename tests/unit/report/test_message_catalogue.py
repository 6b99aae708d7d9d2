# SPDX-License-Identifier: Apache-2.0
"""Message codes: every code in the code has meaning and fix, and the page shows them."""

from __future__ import annotations

import ast
import pathlib
import re

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import message_catalogue

ROOT = pathlib.Path(__file__).parents[3]
# Functions and classes whose first argument is a message code.
TAKE_CODE = (
    "finding",
    "unequal",
    "floored",
    "add_finding",
    "InputProblem",
    "ManifestError",
    "Obstacle",
    "DrillProblem",
    "add_problem",
    "AttemptError",
    "BrokenFile",
    "Cause",
    "CheckpointError",
    "EvidenceError",
    "ExportError",
    "InterpreterError",
    "MeshProblem",
    "MeshRefused",
    "ReplacementRefused",
    "ResumePostponed",
    "ResumeRefused",
    "SourceError",
    "_Line",
    "_Refusal",
    "_build_verdict",
    "_describe_twins",
    "_list_candidates",
    "describe_skipped",
)
# Those that take it as the argument `code`.
TAKE_KEYWORD = (
    "Problem",
    "RestartDecision",
    "RefusedError",
    "_Refused",
    "_problem",
    "_inventory_problem",
    "_no_job",
    "_refuse",
    "fail",
    "refuse",
)
CODE = re.compile(r"[a-z]+\.[a-z][a-z0-9_]*")
TEXTS = message_catalogue.read_texts()


def name_of(node):
    """Return the last part of the name that a call calls."""
    return getattr(node, "attr", getattr(node, "id", None))


def literals(node):
    """Return the texts in an expression."""
    return {
        part.value
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def elements(node):
    """Return the elements of a tuple, else a list of the node itself."""
    if isinstance(node, ast.Tuple):
        return node.elts
    return [node]


def first_element(node):
    """Return the first element of a tuple, else the node itself."""
    if isinstance(node, ast.Tuple):
        return node.elts[0]
    return node


def code_of_call(call):
    """Return the argument of a call that is a message code, or None.

    A Problem takes it by its name.
    """
    if name_of(call.func) in TAKE_CODE:
        return call.args[0]
    named = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    if name_of(call.func) == "Problem":
        assert named, call.lineno
    if not named or name_of(call.func) not in TAKE_KEYWORD:
        return None
    return named[0]


def is_code(value):
    """Return whether a value has the form of a message code."""
    return isinstance(value, str) and bool(CODE.fullmatch(value))


def codes_in(tree):
    """Return (codes, other arguments): how one module names message codes.

    A code is a literal in a call, in an assignment to `code`, at the key `code` of a mapping or in
    a table CODE_OF_...
    """
    codes, others = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            argument = code_of_call(node)
            if isinstance(argument, ast.Constant):
                codes.add(argument.value)
            elif argument is not None:
                others.append(ast.unparse(argument))
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values):
                if (
                    key is not None
                    and literals(key) == {"code"}
                    and isinstance(value, ast.Constant)
                ):
                    codes.add(value.value)
        elif isinstance(node, ast.Assign):
            target, value = first_element(node.targets[0]), node.value
            codes |= {
                item.value
                for name, item in zip(elements(node.targets[0]), elements(value))
                if name_of(name) == "code" and isinstance(item, ast.Constant)
            }
            if str(name_of(target)).startswith("CODE_OF_") and isinstance(value, ast.Dict):
                for item in value.values:
                    codes |= literals(item)
    return set(filter(is_code, codes)), others


@pytest.fixture(scope="module")
def used():
    """Return the codes that the product uses, and the files that name them otherwise."""
    found, others = set(), {}
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        codes, rest = codes_in(ast.parse(path.read_text(encoding="utf-8")))
        found |= codes
        if rest:
            others[path.name] = set(rest)
    return found, others


def test_every_code_has_an_entry_and_every_entry_is_used(used):
    entries = {code for section in TEXTS.values() for code in section}
    codes, _others = used
    # Every code has a meaning and a fix.
    assert codes - entries == set()
    # Every entry is used.
    assert entries - codes == set()


def test_no_code_is_put_together(used):
    """A code that is computed cannot be found by a search for it."""
    _codes, others = used
    assert {name for names in others.values() for name in names} <= {
        "code",
        "cause.code",
        "item.code",
        "error.code",
        "problems[0].code",
        "CODE_OF_OPTION[name]",
    }


def test_the_roles_name_only_known_codes(root):
    known = {code for section in TEXTS.values() for code in section}
    found = set()
    for path in (root / "roles").rglob("*.yml"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"^ +code: ([a-z_]+\.[a-z_]+)$", text, re.MULTILINE))
    assert found <= known


@pytest.mark.parametrize("section", sorted(TEXTS))
def test_texts_are_whole_sentences(section):
    for code, entry in TEXTS[section].items():
        assert CODE.fullmatch(code), code
        assert set(entry) - {"restart"} == {"means", "fix"}, code
        assert ("restart" in entry) == (section == "refusals"), code
        for text in (entry["means"], entry["fix"]):
            assert text.endswith(".") and ";" not in text and len(text) < 140, (code, text)


def test_a_refusal_says_whether_a_run_starts_again():
    ways = {entry["restart"] for entry in TEXTS["refusals"].values()}
    assert ways == {"yes", "no", "-"}


def test_each_kind_of_restart_class_and_each_refusal_is_explained():
    codes = set(TEXTS["restarts"])
    assert all(code.startswith("restart.") for code in codes) and "restart.decided" in codes
    assert all(code.startswith("verdict.") for code in TEXTS["verdicts"])


def test_a_cause_says_whether_a_run_starts_again():
    causes = message_catalogue.describe_causes()
    assert causes["cause.node_lost"]["restart"] == "yes"
    assert causes["cause.segfault"]["restart"] == "after a step"
    assert causes["cause.nan"]["restart"] == "no"


def test_a_cell_keeps_its_table(monkeypatch):
    table = message_catalogue._render_table({"a.b": {"means": "x | y\nz", "fix": "-"}}, ("means",))
    assert table.splitlines()[-1] == "| `a.b` | x \\| y z |"


def test_the_page_is_what_the_generator_makes(root):
    page = (root / "docs" / "messages.md").read_text(encoding="utf-8")
    assert page == message_catalogue.render_page(TEXTS), "run: make messages"
