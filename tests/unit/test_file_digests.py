# SPDX-License-Identifier: Apache-2.0
"""The file_digests module: patterns, missing folders, copies that differ."""

from __future__ import annotations

import os

import file_digests as module
import pytest
from core_support import put


@pytest.fixture
def folder(tmp_path):
    """A folder of checkpoints."""
    return put(
        tmp_path,
        {"model_final.pdparams": "abc", "model_final.pdopt": "d", "best_model.pdparams": "e", "0.pdparams": "f", "sub/model_final.x": "g"},
    )


def test_only_files_that_fit_a_pattern(run_module, folder):
    result = run_module(module, {"path": folder, "patterns": ["model_final.*", "best_model.*"]}, check=True)
    assert sorted(result["files"]) == ["best_model.pdparams", "model_final.pdopt", "model_final.pdparams"] and result["changed"] is False
    assert result["files"]["model_final.pdparams"] == ["f", 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"]


def test_a_missing_folder_has_no_files(run_module, folder):
    assert run_module(module, {"path": folder + "/none", "patterns": ["*"]})["files"] == {}


@pytest.mark.parametrize(
    "harm, words",
    [
        ({}, None),
        ({"not expected": "x"}, None),
        ({"model_final.pdparams": "abX"}, "model_final.pdparams: other content in the same 3 bytes"),
        ({"model_final.pdparams": "ab"}, "model_final.pdparams: 2 bytes instead of 3"),
        ({"model_final.pdparams": None}, "model_final.pdparams: missing"),
    ],
)
def test_copies_are_held_against_what_was_expected(run_module, folder, harm, words):
    expected = run_module(module, {"path": folder, "patterns": ["model_final.*"]})["files"]
    for name, text in harm.items():
        if text is None:
            os.unlink(os.path.join(folder, name))
        else:
            put(folder, {name: text})
    result = run_module(module, {"path": folder, "patterns": ["*"], "expected": expected})
    assert result.get("failed", False) == bool(words) and (words is None or words in result["msg"])
