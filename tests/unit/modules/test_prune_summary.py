# SPDX-License-Identifier: Apache-2.0
"""prune_summary: the lines about a removal, or about what would be removed."""

from __future__ import annotations

import re

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.records import prune_rules
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import prune_report
from unit.modules.test_run_prune import NOW, entry, place, run_id

# A name and its size.
SIZE = re.compile(r"[a-z]\w* [\d.]+ [KG]?i?B")


def test_what_is_shown():
    looks = {
        "node1": place(entry(9, bytes=3 << 30), entry(1)),
        "node2": None,
        "home": place(entry(9, bytes=2048), entry(1, bytes=0), unfinished=[".pruning-x"]),
    }
    found = prune_rules.decide(prune_rules.build_rule(keep=1), looks, "lab", NOW)
    lines = prune_report.describe_choice(
        prune_rules.build_rule(keep=1), looks, found, NOW, ["node2"]
    )
    assert lines[0].startswith("rule: ") and "newest 1 of their job" in lines[0]
    assert lines[2].split()[:10] == [run_id(9), *"9 days ago".split()] + [
        *["node1", "3", "GiB,"],
        *["home", "2", "KiB"],
    ]
    text = "\n".join(lines)
    for words in (
        "node1: 1 of 2 runs, 3 GiB of 3 GiB",
        "node2 did not answer; nothing of it goes",
        "home: .pruning-x",
        "code, data, weights",
    ):
        assert words in text
    last = prune_report.verdict_line(looks, found, {}, False, ["node2"])
    removal, confirm, silent = last.split("; ")
    assert removal.startswith("WOULD REMOVE 1 run ")
    assert SIZE.findall(removal) == ["free 3 GiB", "node1 3 GiB", "home 2 KiB"]
    assert "-e confirm=true " in confirm
    assert silent == "no answer from node2"
    done = {
        "node1": {"removed": ["a"], "freed": 512, "problems": []},
        "home": {"removed": ["a", "b"], "freed": 512, "problems": ["x"]},
    }
    removal, kept = prune_report.verdict_line(looks, found, done, True).split("; ")
    assert removal.startswith("REMOVED 2 runs, 1 KiB ") and kept.startswith("1 not")
    assert SIZE.findall(removal) == ["node1 512 B", "home 512 B"]
    assert prune_report.verdict_line({}, {"remove": {}}, {}, False) == "NOTHING to remove"


@pytest.mark.parametrize(
    "done, confirmed, outcome",
    [
        ({}, False, "shown"),
        ({"node1": {"removed": ["a"], "freed": 1, "problems": []}}, True, "pruned"),
        ({"node1": {"removed": [], "freed": 0, "problems": ["x"]}}, True, "problems"),
        ({"node1": {"skipped": True}}, True, "pruned"),
    ],
)
def test_the_outcome(run_action, done, confirmed, outcome):
    looks = {"node1": {"look": place(entry(9))}, "home": {}}
    decided = {"remove": {"node1": [run_id(9)]}, "stay": [], "foreign": []}
    asked = {"keep": "0", "looks": looks, "decided": decided, "done": done, "confirmed": confirmed}
    result = run_action("prune_summary", dict(asked, asked=["node1"]))
    assert result["verdict"]["outcome"] == outcome and result["changed"] is False
    assert result["summary"][-1] == result["verdict"]["text"]
    if outcome == "problems":
        assert "not removed: node1: x" in result["summary"]
    silent = run_action("prune_summary", dict(asked, asked=["node1", "home"]))
    assert silent["verdict"]["outcome"] == "problems"
    assert "no answer from home" in silent["verdict"]["text"]
