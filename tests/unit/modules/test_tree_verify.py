# SPDX-License-Identifier: Apache-2.0
"""tree_verify: every byte is read, of a shared place on one node."""

from __future__ import annotations

import os

import tree_verify
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import tree_install
from core_support import put


def test_one_node_reads_what_all_nodes_share(run_module, tmp_path):
    data = put(tmp_path / "data", {"a": "x"})
    place = {"key": "data/coco", "path": data, "placement": "shared"}
    names = ["node1", "node2"]
    given = {"base": str(tmp_path / "base"), "nodes": names, "places": [place]}
    first, second = (run_module(tree_verify, dict(given, node=name)) for name in names)
    assert sorted(first["places"]) == ["data/coco"] and second["places"] == {}
    assert first["places"]["data/coco"]["content"] and not first["changed"]


def test_a_tree_that_was_changed_is_not_whole(run_module, tmp_path):
    source = put(tmp_path / "source", {"train.py": "print(1)"})
    entries = manifest.scan(source)
    digest = manifest.digest(entries)
    base = str(tmp_path / "base")
    place, staging = tree_install.tree_paths(base, "code", digest)
    put(staging, {"train.py": "print(1)"})
    tree_install.switch_in(base, "code", digest, entries)
    given = {"base": base, "trees": [{"kind": "code", "digest": digest}]}
    key = f"code/{digest[:16]}"
    assert run_module(tree_verify, given)["trees"][key]["ok"] is True
    os.chmod(os.path.join(place, "train.py"), 0o644)
    put(place, {"train.py": "print(2)"})
    assert run_module(tree_verify, given)["trees"][key]["ok"] is False
