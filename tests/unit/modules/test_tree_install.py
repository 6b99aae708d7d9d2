# SPDX-License-Identifier: Apache-2.0
"""The tree module: probed, placed, idempotent, --check."""

from __future__ import annotations

import os
import shutil

import pytest
import tree_install as module
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from core_support import put


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Arguments for a tree on a node whose home is empty, and the tree on the controller."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = put(tmp_path / "source", {"tools/train.py": "x"})
    entries = manifest.scan(root)
    return root, entries, {"kind": "code", "digest": manifest.digest(entries)}


def test_probed_then_placed_then_nothing(run_module, given, tmp_path):
    root, entries, arguments = given
    assert (
        run_module(module, dict(arguments, state="probed"), check=True)["ok"] is False
        and not (tmp_path / "home").exists()
    )
    found = run_module(module, dict(arguments, state="probed"))
    assert (found["ok"], found["changed"]) == (False, False) and found["place"] == str(
        tmp_path / "home/.trainyard/code" / arguments["digest"][:16]
    )
    assert os.path.isdir(os.path.dirname(found["staging"]))  # rsync makes one level only
    shutil.copytree(root, found["staging"], dirs_exist_ok=True)
    assert run_module(module, dict(arguments, state="placed", manifest=entries), check=True)[
        "changed"
    ] is True and os.path.isdir(found["staging"])
    placed = run_module(module, dict(arguments, state="placed", manifest=entries))
    assert (placed["ok"], placed["changed"]) == (True, True) and manifest.scan(
        placed["place"]
    ) == entries
    assert run_module(module, dict(arguments, state="placed", manifest=entries))["changed"] is False
    assert run_module(module, dict(arguments, state="probed"))["ok"] is True


def test_a_tree_that_arrived_changed_fails_by_name(run_module, given):
    _root, entries, arguments = given
    put(run_module(module, dict(arguments, state="probed"))["staging"], {"tools/train.py": "y"})
    result = run_module(module, dict(arguments, state="placed", manifest=entries))
    assert result["failed"] and "tools/train.py: other content" in result["msg"]
    assert "same 1 bytes" in result["msg"]


@pytest.mark.parametrize(
    "change, words",
    [
        ({"state": "begun"}, "manifest"),
        ({"kind": "logs", "state": "probed"}, "value of kind must be one of: code, data, weights"),
    ],
)
def test_arguments_are_checked(run_module, given, change, words):
    result = run_module(module, dict(given[2], **change))
    assert result["failed"] and words in result["msg"]


def test_what_is_missing_is_returned_in_ranges(run_module, given, tmp_path):
    root, _entries, arguments = given
    put(root, {name: name for name in "abcdx"})
    entries = manifest.scan(root)
    arguments = {"kind": "code", "digest": manifest.digest(entries)}
    begun = dict(arguments, state="begun", manifest=entries)
    assert run_module(module, begun)["missing"] == [[0, 5]]
    staging = run_module(module, dict(arguments, state="probed"))["staging"]
    shutil.copytree(root, staging, dirs_exist_ok=True)
    assert run_module(module, dict(arguments, state="placed"))["ok"]
    put(root, {"b": "B", "tools/train.py": "y"})
    entries = manifest.scan(root)
    begun = {"kind": "code", "digest": manifest.digest(entries), "state": "begun"}
    assert run_module(module, dict(begun, manifest=entries))["missing"] == [[1, 1], [4, 4]]
