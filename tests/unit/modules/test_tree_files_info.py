# SPDX-License-Identifier: Apache-2.0
"""tree_files_info: the files of the parts that were asked for."""

from __future__ import annotations

import tree_files_info
from core_support import put


def test_files_are_named_where_they_were_asked_for(run_module, tmp_path):
    data = put(tmp_path / "data", {"a": "x", "b/c": "yy"})
    places = [
        {"key": key, "path": data, "placement": "present", "verify": "listing"}
        for key in ("data/coco", "data/other")
    ]
    given = {"base": str(tmp_path / "base"), "places": places}
    buckets = {"data/coco": list(range(256))}
    result = run_module(tree_files_info, dict(given, buckets=buckets))
    assert not result["changed"] and list(result["places"]) == ["data/coco"]
    entries = result["places"]["data/coco"]["entries"]
    assert {name: size for name, (_kind, size, _digest) in entries.items()} == {"a": 1, "b/c": 2}
    assert run_module(tree_files_info, given)["places"] == {}
