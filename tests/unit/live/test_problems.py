# SPDX-License-Identifier: Apache-2.0
"""Failures of tasks as lines for people."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import problems


def test_each_problem_has_its_code_once():
    result = {
        "msg": "2 problems:\n  first\n  second [b.two]\n  and 1 more",
        "codes": ["a.one", "b.two"],
    }
    assert problems.describe(result) == [
        "2 problems:",
        "  first [a.one]",
        "  second [b.two]",
        "  and 1 more",
    ]


def test_a_row_of_a_table_has_its_code_once():
    table = findings.lines([findings.finding("disk.full", "full", "remove something", "node1")])
    rows = [f"  {line}" for line in table]
    result = {"msg": "\n".join(["nothing was started:", *rows]), "codes": ["disk.full"]}
    assert "\n".join(problems.describe(result)).count("disk.full") == 1


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (
            {"unreachable": True, "msg": "ssh: connect to host a port 22: Connection refused"},
            "refused",
        ),
        ({"failed": True, "msg": "The module interpreter '/x' was not found."}, "python_missing"),
        ({"failed": True, "msg": "Connection refused"}, None),
    ],
)
def test_a_node_that_cannot_be_asked_has_its_remedy(result, code):
    lines = [line for line in problems.describe(result) if line.startswith("    -> ")]
    assert [line.rpartition(" ")[2] for line in lines] == ([f"[reach.{code}]"] if code else [])


@pytest.mark.parametrize("text", ["broken", "broken [mesh.broken]"])
def test_a_message_has_its_code_once(text):
    assert problems.describe({"msg": text, "code": "mesh.broken"}) == ["broken [mesh.broken]"]
