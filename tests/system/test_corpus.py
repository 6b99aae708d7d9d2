# SPDX-License-Identifier: Apache-2.0
"""The verdict on real failures (tests/corpus): nobody is accused falsely, and no answer that was
right once is lost.
"""

from __future__ import annotations

import collections

import corpus_support as corpus
import pytest

# What was reached; it goes up with the verdict, never down.
RIGHT = 120


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """{case: (grade, why, answer, verdict)} of the whole corpus."""
    found = {}
    for case in corpus.names():
        folder, right = tmp_path_factory.mktemp("case"), corpus.answer(case)
        corpus.unpack(case, folder)
        decided = corpus.decide(folder, right["unreachable"])
        found[case] = (*corpus.grade(decided, right), right, decided)
    return found


def row(case, grade, why, right, decided):
    who = (
        "-"
        if decided["node"] is None
        else decided["node"]
        if decided["rank"] is None
        else "rank %d" % decided["rank"]
    )
    want = (
        "/".join(right["outcome"]),
        ",".join(map(str, right["ranks"] or right["nodes"])) or "-",
        "/".join(right["causes"]) or "-",
    )
    shown = "%-30s %-8s %-8s %s, %s, %s" % (
        case,
        grade,
        why,
        decided["outcome"],
        who,
        decided["cause"],
    )
    return shown if grade == "right" else shown + "   (right: {}; {}; {})".format(*want)


def test_the_verdict_is_right_and_accuses_nobody_falsely(graded):
    score = collections.Counter(grade for grade, *_rest in graded.values())
    print("\n" + "\n".join(row(case, *found) for case, found in graded.items()))
    print(
        "%d cases: %d right, %d unknown, %d false accusations"
        % (len(graded), score["right"], score["unknown"], score["wrong"])
    )
    assert [case for case, (grade, *_rest) in graded.items() if grade == "wrong"] == []
    assert score["right"] >= RIGHT


def test_the_corpus_is_broad(graded):
    answers = [right for _grade, _why, right, _decided in graded.values()]
    failed = [
        right
        for right in answers
        if "completed" not in right["outcome"] and right["outcome"] != ["stopped"]
    ]
    assert len(failed) >= 60
    assert {right["suite"] for right in failed} == {
        "paddledetection",
        "paddleocr",
        "paddleseg",
        "mindocr",
    }
    assert {right["launcher"] for right in failed} >= {"fleetrun", "paddle", "msrun", "mpirun"}
    assert {right["nodes_x_devices"] for right in failed} >= {"2x1", "2x2", "1x2"}
    assert {"import", "start", "first step", "middle", "evaluation", "checkpoint", "end"} <= {
        right["moment"] for right in failed
    }


def test_a_false_accusation_is_seen(graded):
    """The grade itself: another rank, another cause, a failure that was none."""
    right = {"outcome": ["failed"], "ranks": [1], "nodes": ["node2"], "causes": ["killed"]}
    said = {"outcome": "failed", "rank": 1, "node": "node2", "cause": "killed"}
    assert corpus.grade(said, right)[0] == "right"
    assert corpus.grade(dict(said, rank=0, node="node1"), right)[0] == "wrong"
    assert corpus.grade(dict(said, cause="disk_full"), right)[0] == "wrong"
    assert (
        corpus.grade(dict(said, outcome="completed", rank=None, node=None, cause=None), right)[0]
        == "wrong"
    )
    assert corpus.grade(dict(said, rank=None, node=None, cause="unknown"), right)[0] == "unknown"
    assert (
        corpus.grade(said, dict(right, outcome=["completed"], ranks=[], nodes=[], causes=[]))[0]
        == "wrong"
    )
