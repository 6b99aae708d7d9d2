# SPDX-License-Identifier: Apache-2.0
"""product_directory_info: nodes that share a directory are seen."""

from __future__ import annotations

import product_directory_info


def test_two_nodes_see_each_others_marks_in_one_directory(run_module, tmp_path):
    base = tmp_path / "base"
    names = ["node1", "node2"]
    given = {"base": str(base), "nodes": names}
    bare = run_module(product_directory_info, dict(given, node="node1"))["found"]
    assert bare["nonce"] == {"own": "", "seen": {}} and not base.exists()
    base.mkdir()
    first, second = (
        run_module(product_directory_info, dict(given, node=name))["found"] for name in names
    )
    assert second["nonce"]["seen"] == {"node1": first["nonce"]["own"]}
    assert first["base"] == second["base"]
