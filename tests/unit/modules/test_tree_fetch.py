# SPDX-License-Identifier: Apache-2.0
"""tree_fetch: without a mesh, in check mode, and a disk that takes nothing."""

from __future__ import annotations

import os

import pytest
import tree_fetch as module
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    tree_install,
    tree_relay,
)
from core_support import put


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    found = {"kind": "data", "digest": "0" * 64, "sources": ["node1"]}
    return dict(found, stall=20, manifest_bytes=100)


def test_without_a_mesh_nobody_is_asked(run_module, given):
    result = run_module(module, given)
    assert (result["complete"], result["changed"], result["bytes"]) == (False, False, 0)


def test_check_mode_asks_nobody(run_module, given, tmp_path, monkeypatch):
    put(tmp_path / ".trainyard/mesh", {"config": ""})
    monkeypatch.setattr(tree_relay, "fetch", lambda *_given: pytest.fail("asked"))
    assert run_module(module, given, check=True)["changed"]


def test_a_node_that_cannot_keep_the_tree_fails_and_withdraws_it(
    run_module, given, tmp_path, monkeypatch
):
    put(tmp_path / ".trainyard/mesh", {"config": ""})
    base = str(tmp_path / ".trainyard")
    record = tree_install.tree_paths(base, "data", given["digest"])[1] + tree_install.MANIFEST
    put(os.path.dirname(record), {os.path.basename(record): "{}"})

    def fetch(*_given):
        raise OSError(28, "No space left on device", "/x")

    monkeypatch.setattr(tree_relay, "fetch", fetch)
    result = run_module(module, given)
    assert result["failed"] and "No space left" in result["msg"]
    assert not os.path.exists(record), "the nodes that wait for this one hear it"
