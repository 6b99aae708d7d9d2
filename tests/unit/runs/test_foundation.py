# SPDX-License-Identifier: Apache-2.0
"""Which of two verdicts on one attempt stays: every pair of kinds, and what each saw."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import verdict
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import message_catalogue
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import foundation
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs.foundation import Foundation


def said(code, outcome="failed", node="node2", silent=()):
    return {
        "code": f"verdict.{code}",
        "outcome": outcome,
        "node": node,
        "unreachable": list(silent),
    }


NAMED = said("named")
LOST = said("node_lost", "lost")
PAIR = said("node_lost", "failed", None)
SILENT = said("unreachable", "lost", silent=["node2"])
CUT_OFF = said("unreachable", "lost", None, ["node1", "node2"])
UNDECIDED = said("undecided", node=None)
TIED = said("tied", node=None)
RUNS_STILL = said("no_end_recorded", "unknown")
COMPLETED = said("completed", "completed", None)


@pytest.mark.parametrize(
    "earlier, later, stays",
    [
        # a node that answered does not any more
        (NAMED, SILENT, True),
        (COMPLETED, SILENT, True),
        (COMPLETED, CUT_OFF, True),
        (LOST, SILENT, True),
        (NAMED, dict(NAMED, unreachable=["node2"]), True),
        (RUNS_STILL, SILENT, False),
        (UNDECIDED, dict(NAMED, unreachable=["node2"]), False),
        # a node that was silent answers now
        (SILENT, PAIR, True),
        (SILENT, UNDECIDED, True),
        (SILENT, NAMED, False),
        (SILENT, COMPLETED, False),
        (SILENT, TIED, False),
        (SILENT, said("node_restarted", "lost"), False),
        (CUT_OFF, SILENT, False),
        (CUT_OFF, UNDECIDED, False),
        (dict(NAMED, unreachable=["node2"]), TIED, False),
        (dict(NAMED, unreachable=["node2"]), UNDECIDED, True),
        (dict(LOST, unreachable=["node2"]), PAIR, True),
        # the same nodes answer
        (NAMED, NAMED, False),
        (RUNS_STILL, NAMED, False),
        (NAMED, UNDECIDED, True),
        (LOST, PAIR, True),
        (PAIR, LOST, False),
        (UNDECIDED, PAIR, False),
        (None, UNDECIDED, False),
        ({"outcome": "failed", "text": "of an earlier version"}, UNDECIDED, False),
        (said("not_started"), RUNS_STILL, False),
    ],
)
def test_a_later_look_never_replaces_a_better_founded_verdict(earlier, later, stays):
    assert foundation.keeps(earlier, later) is stays


def test_every_verdict_has_its_place():
    """The codes that say what was decided. The others speak of the record of a verdict."""
    codes = set(message_catalogue.read_texts()["verdicts"]) - {
        "verdict.kept",
        "verdict.not_recorded",
    }
    placed = {code: foundation.foundation_of(dict(NAMED, code=code)) for code in codes}
    assert set(foundation._BY_CODE) == codes
    nothing = [code for code, place in placed.items() if place == Foundation.NOTHING]
    assert nothing == ["verdict.not_started"]


def test_a_real_verdict_without_any_answer_rests_on_nothing():
    ranks = [{"rank": n, "node": f"node{n + 1}", "local_rank": 0} for n in range(2)]
    decided = verdict.decide(ranks, [{"node": f"node{n}", "unreachable": "x"} for n in (1, 2)])
    assert foundation.foundation_of(decided) == Foundation.NOTHING
    decided = verdict.decide(ranks, [{"node": "node2", "unreachable": "x"}])
    assert foundation.foundation_of(decided) == Foundation.NOTHING


def test_findings_of_nodes_that_are_gone_stay():
    earlier = [{"node": "node1", "rank": 0, "n": 1}, {"node": "node2", "rank": 1, "n": 1}]
    later = [{"node": "node1", "rank": 0, "n": 2}]
    assert foundation.merge_by_node(earlier, later) == [earlier[1], later[0]]
