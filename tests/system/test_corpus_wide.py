# SPDX-License-Identifier: Apache-2.0
"""The verdict where one of 32 ranks fails and 31 logs say something else (tests/corpus/wide.yml).

A sample is graded. TRAINYARD_WIDE=all grades each kind with each guilty rank, words of the peers
and clocks. TRAINYARD_WIDE=N grades about N of them.
"""

from __future__ import annotations

import collections
import os
import random

import pytest
import wide_cases as wide

SAMPLE = 280
SHARE = 0.99


def sample():
    """Return the scenes to grade: of each kind, all words and all clocks at least once."""
    scenes = list(wide.scenes())
    wanted = os.environ.get("TRAINYARD_WIDE", SAMPLE)
    if wanted == "all":
        return scenes
    random.Random("wide").shuffle(scenes)
    once = _pick(scenes, lambda scene: {scene.kind, scene.words, (scene.suite, scene.clocks)})
    pairs = _pick(
        scenes, lambda scene: {(scene.kind, scene.words, scene.suite), (scene.kind, scene.clocks)}
    )
    return list(dict.fromkeys((*once, *pairs, *scenes)))[: int(wanted)]


def _pick(scenes, marks_of):
    """Return the scenes that bring a mark which none before them has."""
    seen, picked = set(), []
    for scene in scenes:
        if marks_of(scene) - seen:
            picked.append(scene)
        seen |= marks_of(scene)
    return picked


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """[(scene, grade, why, verdict)] of the sample."""
    folder = tmp_path_factory.mktemp("wide")
    return [
        (scene, *wide.judge(folder / str(number), scene)) for number, scene in enumerate(sample())
    ]


def show(graded):
    """Print k of n for each kind, for the peers' words and for the clocks."""
    scores = collections.defaultdict(collections.Counter)
    for scene, grade, _why, _decided in graded:
        for name in (scene.kind, "peers: " + scene.words, "clocks: " + scene.clocks, "ALL"):
            scores[name][grade] += 1
    for name, score in sorted(scores.items()):
        total = sum(score.values())
        print(
            "%-34s %5d: %5d right, %4d unknown, %4d wrong"
            % (name, total, score["right"], score["unknown"], score["wrong"])
        )
    return scores["ALL"]


def test_the_guilty_rank_of_32_is_named(graded):
    print()
    score = show(graded)
    wrong = [(*scene, why, said["text"]) for scene, grade, why, said in graded if grade == "wrong"]
    print("\n".join(map(str, wrong)))
    assert wrong == []
    assert score["right"] >= SHARE * len(graded)


def test_the_sample_is_broad(graded):
    scenes = [scene for scene, *_rest in graded]
    assert {scene.kind for scene in scenes} == set(wide.KINDS)
    assert {scene.words for scene in scenes} == set(wide.WORDS)
    assert {scene.guilty // wide.LOCAL for scene in scenes} == set(range(wide.NODES))
    assert {(scene.suite, scene.clocks) for scene in scenes} == {
        (suite, clocks) for suite in wide.PLANS for clocks in wide.CLOCKS
    }


def test_each_text_has_its_source():
    for item in (*wide.KINDS.values(), *wide.WORDS.values()):
        assert item["source"], item["name"]


def test_32_ranks_are_a_few_lines(graded):
    """What many ranks say alike is one line, and every rank with an end is in one."""
    for scene, _grade, _why, decided in graded:
        assert len(decided["evidence"]) <= 24, scene
        if decided["outcome"] == "failed":
            assert len(decided["text"]) <= 4000, scene
