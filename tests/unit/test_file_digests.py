# SPDX-License-Identifier: Apache-2.0
"""The file_digests module: checkpoints as files and as folders, the newest of several, missing folders, copies that differ."""

from __future__ import annotations

import os

import file_digests as module
import pytest
from core_support import put


@pytest.fixture
def folder(tmp_path):
    """A folder of checkpoints as PaddleDetection has them, and beside them those of PaddleSeg."""
    files = {
        "model_final.pdparams": "abc",
        "model_final.pdopt": "d",
        "best_model.pdparams": "e",
        "0.pdparams": "f",
        "sub/model_final.x": "g",
    }
    files.update({"iter_9/model.pdparams": "old", "iter_10/model.pdparams": "new", "iter_10/model.pdopt": "o"})
    put(tmp_path, files)
    os.utime(tmp_path / "iter_9", (1, 1))
    return str(tmp_path)


def test_a_stem_stands_for_its_files(run_module, folder):
    result = run_module(module, {"path": folder, "names": ["model_final", "best_model"]}, check=True)
    assert sorted(result["files"]) == ["best_model.pdparams", "model_final.pdopt", "model_final.pdparams"] and result["changed"] is False
    assert result["files"]["model_final.pdparams"] == ["f", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"]


def test_of_several_folders_the_newest(run_module, folder):
    assert sorted(run_module(module, {"path": folder, "names": ["best_model", "iter_*"]})["files"]) == [
        "best_model.pdparams",
        "iter_10/model.pdopt",
        "iter_10/model.pdparams",
    ]


def test_the_first_folder_that_has_one(run_module, folder):
    assert run_module(module, {"path": folder, "folders": ["none", "iter_10", "iter_9"], "names": ["model"]})["folder"] == "iter_10"
    assert run_module(module, {"path": folder + "/none", "names": ["*"]})["files"] == {}


@pytest.mark.parametrize(
    "harm, words",
    [
        ({}, None),
        ({"not expected": "x"}, None),
        ({"iter_10/model.pdparams": "neX"}, "iter_10/model.pdparams: other content in the same 3 bytes"),
        ({"iter_10/model.pdparams": "ne"}, "iter_10/model.pdparams: 2 bytes instead of 3"),
        ({"iter_10/model.pdparams": None}, "iter_10/model.pdparams: missing"),
    ],
)
def test_copies_are_held_against_what_was_expected(run_module, folder, harm, words):
    expected = run_module(module, {"path": folder, "names": ["iter_*"]})["files"]
    for name, text in harm.items():
        if text is None:
            os.unlink(os.path.join(folder, name))
        else:
            put(folder, {name: text})
    result = run_module(module, {"path": folder, "expected": expected})
    assert result.get("failed", False) == bool(words) and (words is None or words in result["msg"])
