# SPDX-License-Identifier: Apache-2.0
"""The verdict as a block: it names who the verdict names, and no one else."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs.verdict_block import block
from core_support import RUN

DECIDED = {"outcome": "failed", "code": "verdict.tied", "cause": "unknown", "remedy": "read both"}


def candidate(rank, node, **more):
    return dict({"rank": rank, "node": node, "log": f"runs/x/{node}.log", "line": 7}, **more)


def rows(decided):
    """Return [(label, text)] of the block's rows."""
    return [
        (line[2:13].strip(), line[13:]) for line in block(decided, RUN) if line.startswith("  ")
    ]


def test_candidates_are_listed_where_no_rank_is_named():
    both = [candidate(0, "node1"), candidate(None, "node2", line=None)]
    found = rows(dict(DECIDED, candidates=both))
    assert [text for label, text in found if label == "maybe"] == [
        "rank 0 on node1: runs/x/node1.log:7",
        "node2: runs/x/node2.log",
    ]
    assert not any(label == "log" or "rank=" in text for label, text in found)


def test_a_node_without_an_answer_is_asked_again_and_nobody_is_accused():
    lost = {"outcome": "lost", "code": "verdict.unreachable", "cause": "unreachable"}
    found = rows(dict(lost, unreachable=["node2"], candidates=[candidate(0, "node1")]))
    assert found[0] == ("logs", f"ansible-playbook playbooks/logs.yml -e run={RUN}")
    assert found[1] == ("ask again", f"ansible-playbook playbooks/follow.yml -e run={RUN}")


def test_a_run_that_its_nodes_restart_is_followed_and_not_resumed():
    lines = block(DECIDED, RUN, goes_on=True)
    assert [line[2:13].strip() for line in lines if "-e run" in line] == [
        "logs",
        "follow",
        "stop",
        "report",
    ]


def test_a_run_that_completed_has_no_block():
    assert block(dict(DECIDED, outcome="completed"), RUN) == []
