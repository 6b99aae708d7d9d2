# SPDX-License-Identifier: Apache-2.0
"""run_choice: the run that a command is about; tests/unit/records has the rules of the choice."""

from __future__ import annotations

import pytest
from core_support import RUN

SITE = ["node1", "node2", "node3"]
FAKE = "20991231-000000-fake-0000"


def answer(run=RUN, **more):
    status = {"found": True, "ended": False, "run": run, "attempt": 1, "attempts": [1]}
    return {"status": dict(status, nodes=SITE, known=[run], **more)}


@pytest.fixture
def choose(run_action, tmp_path):
    def call(found, **arguments):
        asked = {"runs_dir": str(tmp_path), "members": SITE, "found": found, **arguments}
        return run_action("run_choice", asked)

    return call


def test_the_run_of_most_nodes_is_chosen_and_the_other_is_named(choose):
    found = {"node1": answer(FAKE), "node2": answer(), "node3": answer()}
    result = choose(found)
    choice = result["choice"]
    assert (choice["run"], choice["number"], choice["nodes"]) == (RUN, 1, SITE)
    assert any("node1" in line for line in result["warnings"])
    assert [RUN, 1, SITE] in result["holding"] and RUN in result["known_runs"]
    assert result["changed"] is False


def test_nodes_without_an_answer_choose_nothing(choose):
    result = choose({"node1": {"unreachable": True}, "node2": {}, "node3": "x"})
    assert result["choice"] == {} and result["known_runs"] == [] and result["holding"] == []


def test_what_cannot_be_a_run_is_refused(choose):
    refused = choose({}, run_id="../" + RUN)
    assert refused["failed"] and refused["code"] == "attempt.bad_run_id"
