# SPDX-License-Identifier: Apache-2.0
"""What logs.yml is asked: held before a node is touched, and answered from the index of ranks."""

from __future__ import annotations

import re

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import extra_vars
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import (
    logs_options as questions,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import archive
from core_support import ROOT

RAISED = ROOT / "tests/fixtures/raised"
RUN = "20261120-190935-raise-1b3e"
ALLOWED = {"run", "rank", "node", "lines", "follow", "query"}


def said(**extra):
    """Return what job_config says of a command line of logs.yml, as one text."""
    problems = extra_vars.validate(extra, ALLOWED, {}) + extra_vars.conflicts(extra, "logs", False)
    return "; ".join(map(str, problems))


@pytest.mark.parametrize(
    "extra",
    [
        {"rank": "3"}, {"rank": 3}, {"rank": "0,3"}, {"rank": "launcher"}, {"rank": "stray-workerlog.7"}, {"lines": "200"}, {"lines": 1},
        {"follow": "true"}, {"follow": False}, {"node": "node2"}, {"query": "ranks[?state=='failed'].[rank,node,error]"},
        {"rank": "1", "node": "node2", "lines": "5", "follow": "yes"}, {"query": "ranks", "follow": "false"},
    ],
)  # fmt: skip
def test_what_can_be_asked(extra):
    assert said(**extra) == ""


@pytest.mark.parametrize(
    "extra, words",
    [
        ({"lines": "ten"}, "lines: must be a whole number from 1 to 100000; got 'ten'"),
        ({"lines": "0"}, "lines: must be a whole number from 1"),
        ({"lines": "-5"}, "lines: must be a whole number from 1"),
        ({"lines": 2.5}, "lines: must be a whole number"),
        ({"lines": True}, "lines: must be a whole number"),
        ({"lines": "100001"}, "lines: must be a whole number"),
        (
            {"rank": "3.0"},
            (
                "rank: must be a rank's whole number, several with commas, launcher or scheduler;"
                " got '3.0'"
            ),
        ),
        ({"rank": 3.0}, "rank: must be"),
        ({"rank": True}, "rank: must be"),
        ({"rank": "1;2"}, "rank: must be"),
        ({"rank": "../x"}, "rank: must be"),
        ({"rank": [1, 2]}, "rank: must be"),
        ({"node": 3}, "node: must be a node's name"),
        ({"follow": "maybe"}, "follow: must be true, false, yes or no; got 'maybe'"),
        ({"query": 3}, "query: must be a jmespath expression as text"),
        (
            {"query": ""},
            "query: is no jmespath expression: Invalid JMESPath expression: cannot be empty",
        ),
        (
            {"query": "ranks[?"},
            (
                "query: is no jmespath expression: Invalid jmespath expression: Incomplete"
                " expression at character 8"
            ),
        ),
        ({"query": "ranks[*"}, "query: is no jmespath expression: Invalid jmespath expression"),
        (
            {"query": "ranks[?a=b]"},
            "query: is no jmespath expression: Bad jmespath expression: Unknown token '='",
        ),
        ({"query": "nofunc(@)"}, "query: is no jmespath expression: Unknown function: nofunc()"),
        ({"query": "ranks[].lenght(@)"}, "Unknown function: lenght(); did you mean 'length'?"),
        (
            {"query": "length(ranks, ranks)"},
            "Expected 1 argument for function length(), received 2",
        ),
        ({"query": "merge()"}, "Expected at least 1 argument for function merge(), received 0"),
        ({"query": "(" * 5000 + "a"}, "query: is nested too deeply"),
        ({"query": "ranks", "follow": "true"}, "query: is answered once"),
        ({"query": "ranks", "rank": "3"}, "rank: chooses lines to show"),
        ({"query": "ranks", "lines": "3"}, "lines: chooses lines to show"),
    ],
)
def test_what_is_refused_and_how(extra, words):
    assert words in said(**extra)


def test_without_jmespath_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(questions, "jmespath", None)
    assert "pip install -r requirements.txt" in said(query="ranks")
    assert said(rank="3") == ""


def test_numbers_given_as_text_are_numbers():
    given = questions.parse_options(
        {"rank": "0,3", "lines": "200", "follow": "yes", "node": "node1"}
    )
    assert given == {"ranks": [0, 3], "node": "node1", "lines": 200, "follow": True, "query": None}
    assert questions.parse_options({"rank": 3})["ranks"] == [3]
    assert questions.parse_options({"rank": "launcher"})["ranks"] == ["launcher"]
    assert questions.parse_options({}) == {
        "ranks": None,
        "node": None,
        "lines": None,
        "follow": False,
        "query": None,
    }


# -- answers
# -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index():
    return archive.LocalAttempt(str(RAISED), RUN).index


def test_the_issues_question(index):
    lines, problem = questions.answer_query(index, "ranks[?state=='failed'].[rank,node,error]")
    error = (
        '{"kind": "ValueError", "text": "image 000000012.jpg is truncated", "line": 26, "cause":'
        ' "python_exception"}'
    )
    assert (lines, problem) == ([f'[1, "node2", {error}]'], None)


def test_the_runbooks_examples_have_answers(index):
    text = (ROOT / "docs/runbooks/logs.md").read_text(encoding="utf-8")
    examples = re.findall(r"^\| `([^`]*ranks\[.*?|.*files\[.*?)` \|", text, re.MULTILINE)
    assert len(examples) >= 5
    for example in examples:
        expression = example.replace("\\|", "|")
        assert questions.expression_problem(expression) is None, expression
        lines, problem = questions.answer_query(index, expression)
        assert (
            problem is None and lines and not [line for line in lines if line.startswith("# ")]
        ), (expression, lines, problem)


def test_what_fails_with_the_values_is_said_in_jmespaths_words(index):
    lines, problem = questions.answer_query(index, "sum(ranks[].state)")
    assert lines == [] and "type for value: stopped, " in problem
    assert "In function sum()," in problem


@pytest.mark.parametrize(
    "expression",
    ["ranks[?rank>='1']", "ranks[?last_time>'2026-11-20']", "ranks[::0]", "merge(ranks[0], `1`)"],
)
def test_a_slip_that_jmespath_has_no_word_for_is_refused_all_the_same(index, expression):
    lines, problem = questions.answer_query(index, expression)
    assert (lines == []) == (problem is not None)


def test_a_field_that_does_not_exist_is_named(index):
    assert questions.answer_query(index, "ranks[].stat")[0][0] == "[]"
    (comment,) = questions.answer_query(index, "ranks[].stat")[0][1:]
    assert comment.startswith("# ") and " stat; " in comment and comment.endswith("'state'?")
    assert questions.answer_query(index, "rnks[].state")[0][0] == "null"
    assert questions.answer_query(index, "ranks[?state=='done']")[0] == ["[]"], (
        "nothing is found, and nothing is misspelt"
    )


def test_an_answer_is_safe_to_show():
    hostile = {
        "ranks": [{"error": {"text": "\x1b[31mred\u202e and hunter2secret, token=abcdef123456"}}]
    }
    (line,), _problem = questions.answer_query(
        hostile, "ranks[].error.text", ((), ("hunter2secret",))
    )
    assert (
        "\x1b" not in line
        and "\u202e" not in line
        and "hunter2" not in line
        and "abcdef" not in line
    )
    assert "red" in line
