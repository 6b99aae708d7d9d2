# SPDX-License-Identifier: Apache-2.0
"""Which descriptions of a checkpoint a node takes from a peer that may lie."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    model_collector,
    point_check,
)
from core_support import RUN
from detached_support import point_of

ENTRY = ["f", 3, "1" * 64]
FOLDER = f"/b/runs/{RUN}/attempt-1"
LACKING = object()
WRONG = {
    "attempt": [LACKING, None, "1", True, 0, -1, 1.0, 10**6, [1], {}],
    "name": [LACKING, None, "", 4, ["4"], "a/b", "..", ".", "-r", "a\nb", "a\x1b[2J", "x" * 201],
    "stem": [LACKING, None, "", 4, ["4"], "a/b", "..", ".", "-r", "a\nb", "a\x00", "\udcff"],
    "path": [LACKING, None, "", 4, "output", f"{FOLDER}/../../x", "/", f"{FOLDER}//output"]
    + [f"{FOLDER}/", f"{FOLDER}/./x", f"{FOLDER}/a\nb", f"{FOLDER}/-e", "/" + "x/" * 20]
    + ["/" + "x" * 300, "//etc", ["/x"]],
    "instead": [LACKING, None, 0, 1, "false", []],
    "saved": [LACKING, None, "1", True, float("nan"), float("inf"), 2**53, [1]],
    "epoch": ["5", True, 5.0, 2**53, [5], {}],
    "step": ["5", False, 5.5, -(2**53), [5], {}],
    "lr": ["0.1", True, float("nan"), float("-inf"), [0.1]],
    "first": [None, 1, ["node1"]],
    "digest": [LACKING, None, "", "0" * 64, 1, ["1"]],
    "files": [LACKING, None, {}, [], "x", [["4.pdopt", ENTRY]], {"4.pdopt": None}],
}
# Each stands for all files of a checkpoint, with the digest that belongs to them.
FILES = [
    {"../x": ENTRY},
    {"/etc/passwd": ENTRY},
    {"a/../../x": ENTRY},
    {"": ENTRY},
    {".": ENTRY},
    {"a//b": ENTRY},
    {"-e": ENTRY},
    {"a b": ENTRY},
    {"a;id": ENTRY},
    {"$HOME": ENTRY},
    {"#x": ENTRY},
    {"*": ENTRY},
    {"a\nb": ENTRY},
    {"é": ENTRY},
    {"x" * 201: ENTRY},
    {"a": ENTRY, "a/b": ENTRY},
    {"a": ["l", 3, "1" * 64]},
    {"a": ["f", -1, "1" * 64]},
    {"a": ["f", True, "1" * 64]},
    {"a": ["f", 1 << 50, "1" * 64]},
    {"a": ["f", 3, "1" * 63]},
    {"a": ["f", 3, "G" * 64]},
    {"a": ["f", 3, None]},
    {"a": ["f", 3]},
    {"a": [*ENTRY, 1]},
    {"a": "f"},
]


def changed(key, value):
    """Return a sound point with one value changed or missing."""
    point = copy.deepcopy(point_of())
    point[key] = value
    if value is LACKING:
        del point[key]
    return point


@pytest.mark.parametrize(
    "change", [{}, {"epoch": None}, {"step": None}, {"lr": None}, {"lr": 1}, {"saved": 3}]
)
def test_a_sound_point_is_taken(change):
    assert point_check.point_problem(point_of(**change)) is None


def test_a_point_may_lack_what_its_suite_does_not_count():
    point = {key: value for key, value in point_of().items() if key not in ("epoch", "lr", "first")}
    assert point_check.point_problem(point) is None


@pytest.mark.parametrize("value", [None, [], "x", 1, True, {}])
def test_what_is_no_point_is_refused(value):
    assert point_check.point_problem(value)


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_value_is_refused(key):
    taken = [v for v in WRONG[key] if point_check.point_problem(changed(key, v)) is None]
    assert taken == []


@pytest.mark.parametrize("files", FILES, ids=ascii)
def test_files_that_no_checkpoint_has_are_refused(files):
    assert point_check.point_problem(point_of(files=files, digest=manifest.digest(files)))


def test_a_checkpoint_has_so_many_files_at_most():
    for count, problem in ((0, None), (1, f"{model_collector.MOST_FILES + 1} files")):
        files = {f"{number}": ENTRY for number in range(model_collector.MOST_FILES + count)}
        found = point_check.point_problem(point_of(files=files, digest=manifest.digest(files)))
        assert (found is None) if problem is None else problem in found


def test_a_digest_is_that_of_the_files():
    point = point_of(files={"4.pdopt": ENTRY})
    assert "digest" in point_check.point_problem(point)
    assert point_check.point_problem(dict(point, digest=manifest.digest(point["files"]))) is None


@pytest.mark.parametrize("point", [{"path": "/a\ud800"}, {"files": {"\ud800": ENTRY}}], ids=ascii)
def test_half_a_character_raises_nothing(point):
    assert point_check.point_problem(point_of(**point))
