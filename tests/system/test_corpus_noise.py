# SPDX-License-Identifier: Apache-2.0
"""The verdict on the corpus with errors in the logs that the training handled: none of them makes a
false accusation, and few hide what really happened.

A sample is graded. `make noise` (TRAINYARD_NOISE=all) grades every case with every noise at every
place, TRAINYARD_NOISE_ONE_OF=10 one in ten.
"""

from __future__ import annotations

import collections
import multiprocessing
import os

import noise_kinds
import noise_support as noise
import pytest

ONE_OF = 100
SHARE = 0.98


@pytest.fixture(scope="module")
def graded():
    """[(case, kind, place, whom, grade)] of a sample of all combinations."""
    one_of = 1 if os.environ.get("TRAINYARD_NOISE") == "all" else ONE_OF
    one_of = int(os.environ.get("TRAINYARD_NOISE_ONE_OF", one_of))
    jobs = [(name, one_of) for name in noise.corpus.names()]
    if one_of == ONE_OF:
        rows = [noise.grade_case(*job) for job in jobs]
    else:
        with multiprocessing.get_context("fork").Pool() as pool:
            rows = pool.starmap(noise.grade_case, jobs, chunksize=1)
    return [row for case in rows for row in case]


def show(graded):
    """Print k of n for each kind and for whom the noise was."""
    scores = collections.defaultdict(collections.Counter)
    for _case, kind, place, whom, grade in graded:
        family = "BLIND"
        if kind not in noise_kinds.BLIND:
            family = "FIRST" if kind in noise_kinds.FIRST else "LATER"
        for name in (kind, "in " + place, "of " + whom, family, "ALL"):
            scores[name][grade[0]] += 1
    for name, score in sorted(scores.items()):
        total = sum(score.values())
        print(
            "%-24s %5d: %5d right, %4d unknown, %4d wrong"
            % (name, total, score["right"], score["unknown"], score["wrong"])
        )
    return scores["ALL"]


def test_noise_accuses_nobody(graded):
    """A rank that is named is the one that failed, and no cause is that of the noise."""
    print()
    score = show(graded)
    wrong = [row for row in graded if row[4][0] == "wrong"]
    print("\n".join("%s %s %s %s: %s" % (*row[:4], row[4][1]) for row in wrong))
    assert wrong == []
    assert score["right"] >= SHARE * len(graded)
