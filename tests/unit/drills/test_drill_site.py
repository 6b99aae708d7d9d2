# SPDX-License-Identifier: Apache-2.0
"""Lines of a fault on a node."""

from __future__ import annotations

import json

from ansible_collections.trainyard.cluster.plugins.plugin_utils.drills import drill_site
from core_support import RUN, put
from drill_support import Here

OWN, OTHER = "952c04af5bd0c6f1", "07b7d5ccd074040e"


def test_a_fault_changes_the_packages_of_its_run(tmp_path):
    """A node has the environments of several suites, and only one of them is the run's."""
    for digest in (OWN, OTHER):
        packages = tmp_path / "node1/.trainyard/env" / digest / "lib/python3.11/site-packages"
        packages.mkdir(parents=True)
    plan = json.dumps({"environment": {"digest": OWN}})
    put(str(tmp_path / "runs" / RUN), {"plan.json": plan})
    node = Here("node1", tmp_path / "node1")
    site = drill_site.Site(
        str(tmp_path), [], "test", [node], str(tmp_path / "runs"), ".trainyard", str(tmp_path)
    )
    found = site.run_fault_line(node, RUN, 1, "echo $S").strip()
    assert found.endswith(f".trainyard/env/{OWN}/lib/python3.11/site-packages")
    assert site.run_fault_line(node, "", 1, "echo :$S").strip() == ":"
