# SPDX-License-Identifier: Apache-2.0
"""checkpoint_compare: what the controller's copy of a checkpoint lacks."""

from __future__ import annotations

import hashlib

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    model_collector,
)
from core_support import put

ENTRY = ["f", 4, hashlib.sha256(b"evil").hexdigest()]


@pytest.mark.parametrize(
    "text, word", [("evil", ""), ("even", "best"), ("longer", "best"), (None, "best")]
)
def test_what_is_missing_or_differs_is_named(run_action, tmp_path, text, word):
    put(tmp_path, {"checkpoint/other": "x"} | ({"checkpoint/best": text} if text else {}))
    result = run_action("checkpoint_compare", {"path": str(tmp_path), "files": {"best": ENTRY}})
    assert result["changed"] is False and len(result["lacking"]) == (1 if word else 0)
    assert word in "".join(result["lacking"]) and result["sizes"] == {"best": ENTRY[1]}


@pytest.mark.parametrize(
    "entry",
    [
        ["x", 4, "0" * 64],
        ["f", -1, "0" * 64],
        ["f", True, "0" * 64],
        ["f", 4, "x"],
        ["f", 4],
        "f",
        None,
        ["f", 1 << 60, "0" * 64],
    ],
)
def test_an_entry_that_is_none(run_action, tmp_path, entry):
    assert (
        run_action("checkpoint_compare", {"path": str(tmp_path), "files": {"best": entry}})[
            "failed"
        ]
        is True
    )
    many = {"f%d" % number: ENTRY for number in range(model_collector.MOST_FILES + 1)}
    assert (
        run_action("checkpoint_compare", {"path": str(tmp_path), "files": many})["failed"] is True
    )
    assert (
        run_action(
            "checkpoint_compare",
            {"path": str(tmp_path), "files": {"a": ENTRY, "a/b": ENTRY}},
        )["failed"]
        is True
    )
