# SPDX-License-Identifier: Apache-2.0
"""site_metrics: the nodes and runs of a site that is looked at."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.monitor import live_metrics
from prometheus_client.parser import text_string_to_metric_families
from unit.live.test_screen import status
from unit.monitor.test_live_metrics import RUN, both, read, watched

OTHER = "20261121-190935-other-1b3e"


@pytest.fixture
def arguments(tmp_path):
    (tmp_path / "collector").mkdir()
    first, second = both()
    third = status(
        "node3", run=OTHER, state="failed", ended=True, nodes=["node3"], by="eve@\x1b[2J"
    )
    third["exit"] = {"time": 777.0}
    return {
        "site": "lab",
        "nodes": ["node1", "node2", "node3", "node4", "node5"],
        "results": {
            "node1": {"status": first},
            "node2": {"status": second},
            "node3": {"status": third},
            "node4": {"unreachable": True, "msg": "ssh"},
            "node5": {"failed": True, "msg": "answer"},
        },
        "runs_dir": str(tmp_path / "runs"),
        "directory": str(tmp_path / "collector"),
    }


def site(path):
    """Return {(name without prefix, labels beside the site): value} of the site's file."""
    return {
        (
            sample.name.removeprefix("trainyard_"),
            *(v for k, v in sample.labels.items() if k != "site"),
        ): (sample.value)
        for family in text_string_to_metric_families(Path(path).read_text())
        for sample in family.samples
    }


def test_nodes_and_runs_of_a_site(run_action, arguments, tmp_path):
    done = run_action("site_metrics", arguments)
    assert done["down"] == ["node4", "node5"]
    assert done["runs"] == [RUN, OTHER] and done["active"] == [RUN]
    found = site(done["path"])
    up = {key[1]: value for key, value in found.items() if key[0] == "node_up"}
    assert up == {"node1": 1, "node2": 1, "node3": 1, "node4": 0, "node5": 0}
    assert found["node_problem", "node4", "unreachable"] == 1
    assert found["node_problem", "node5", "failed"] == 1
    assert found["node_held", "node1"] == 1 and found["node_held", "node3"] == 0
    assert "\x1b" not in Path(done["path"]).read_text()
    going = read(tmp_path / "collector" / f"trainyard-lab-{RUN}.prom")
    assert going["state", "running"] == 1 and ("followed_timestamp_seconds",) not in going
    ended = read(tmp_path / "collector" / f"trainyard-lab-{OTHER}.prom")
    assert ended["state", "failed"] == 1 and ended["end_timestamp_seconds",] == 777.0


def test_the_files_of_a_follower_and_of_an_end_are_left_alone(
    run_action, arguments, tmp_path, monkeypatch
):
    paths = [tmp_path / "collector" / f"trainyard-lab-{run}.prom" for run in (RUN, OTHER)]
    run_action("site_metrics", arguments)
    ended = paths[1].read_text() + "# by run_metrics\n"
    paths[1].write_text(ended)
    now = time.time()
    live_metrics.RunMetrics(
        arguments["runs_dir"], arguments["directory"], "lab", follows=True
    ).write(watched(*both()), 0.0, now)
    followed = paths[0].read_text()
    run_action("site_metrics", arguments)
    assert (paths[0].read_text(), paths[1].read_text()) == (followed, ended)
    monkeypatch.setattr(live_metrics, "FOLLOWED_SECONDS", 0)
    run_action("site_metrics", arguments)
    assert paths[0].read_text() != followed, "its follower is gone"


@pytest.mark.parametrize("run", ["../outside", "x", ""])
def test_a_node_names_no_file(run_action, arguments, tmp_path, run):
    arguments["results"]["node3"]["status"]["run"] = run
    done = run_action("site_metrics", arguments)
    assert "node3" in done["down"] and done["runs"] == [RUN]
    assert sorted(os.listdir(tmp_path)) == ["collector"]


@pytest.mark.parametrize("directory", ["", None, "/nonexistent/collector"])
def test_a_directory_is_needed(run_action, arguments, directory):
    arguments["directory"] = directory
    assert run_action("site_metrics", arguments)["code"] == "export.no_directory"
