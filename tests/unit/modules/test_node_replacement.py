# SPDX-License-Identifier: Apache-2.0
"""The module: what a verdict names is remembered, and who goes on is chosen by it."""

from __future__ import annotations

import os
import time

from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery import failed_nodes
from unit.recovery.test_candidates import RUN, SILENT, given

LOST = {"outcome": "failed", "cause": "node_lost", "node": "node2"}


def noted(run_action, folder, check=False, **more):
    asked = dict(
        {
            "state": "noted",
            "state_dir": str(folder),
            "run_id": RUN,
            "verdict": LOST,
            "nodes": ["node1", "node2"],
        },
        **more,
    )
    return run_action("node_replacement", asked, check=check)


def chosen(run_action, folder, check=False, **more):
    asked = given(**more)
    return run_action(
        "node_replacement", dict(asked, state="chosen", state_dir=str(folder)), check=check
    )


def test_what_a_verdict_names_is_not_chosen_at_the_next_start(run_action, tmp_path):
    assert noted(run_action, tmp_path)["noted"] == {"node2": "node_lost"}
    found = chosen(run_action, tmp_path)
    assert found["nodes"] == ["node1", "spare1"] and not found["changed"]
    taken, reason = found["lines"][0].split(": ", 1)
    assert (taken.split()[0], taken.split()[-1]) == ("spare1", "node2")
    assert reason.startswith("it failed ")
    # what whoever watches the playbook goes by, should the one that is new not be ready
    assert (found["new"], found["run"], found["state_dir"]) == (["spare1"], RUN, str(tmp_path))


def test_an_old_verdict_that_is_made_again_is_noted_at_its_own_time(run_action, tmp_path):
    then = time.time() - 7200
    noted(run_action, tmp_path, ended=then)
    assert failed_nodes.read(str(tmp_path))["node2"]["time"] == then
    assert chosen(run_action, tmp_path)["nodes"] == ["node1", "node2"]
    noted(run_action, tmp_path)
    noted(run_action, tmp_path, ended=then)  # the newer one stays
    assert chosen(run_action, tmp_path)["nodes"] == ["node1", "spare1"]


def test_check_mode_notes_nothing(run_action, tmp_path):
    noted(run_action, tmp_path, check=True)
    chosen(run_action, tmp_path, check=True, looks={"node2": SILENT})
    assert os.listdir(tmp_path) == []


def test_a_node_that_is_silent_now_is_noted_and_a_refusal_says_what_can_be_done(
    run_action, tmp_path
):
    found = chosen(
        run_action, tmp_path, looks={"node2": SILENT, "spare1": SILENT, "spare2": SILENT}
    )
    assert found["failed"] and list(failed_nodes.read(str(tmp_path))) == ["node2"]
    assert f"the run {RUN} cannot go on:" in found["msg"]
    assert "node2 is lost: " in found["msg"] and ": Connection timed out" in found["msg"]
    assert "-e min_nodes=1" in found["msg"]


def test_what_a_verdict_said_of_a_node_stays_its_cause_while_it_is_silent(run_action, tmp_path):
    noted(run_action, tmp_path, ended=time.time() - 600)
    assert chosen(run_action, tmp_path, looks={"node2": SILENT})["noted"] == {"node2": "node_lost"}
    assert failed_nodes.read(str(tmp_path))["node2"]["time"] > time.time() - 300


def test_a_memory_that_cannot_be_written_is_no_end_of_the_report(run_action, tmp_path):
    (tmp_path / "file").write_text("")
    found = noted(run_action, tmp_path / "file")
    assert not found.get("failed") and "is not remembered" in str(found["warnings"])
