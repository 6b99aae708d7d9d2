# SPDX-License-Identifier: Apache-2.0
"""The JSON result of a playbook: verdict, refusals, states; and no secret of the plan."""

from __future__ import annotations

import json

from ansible_collections.trainyard.cluster.plugins.plugin_utils.live.result_model import (
    PlaybookResult,
)
from unit.live.test_screen import STEP, rank, status

VERDICT = {"outcome": "failed", "code": "verdict.failed", "cause": "killed", "text": "rank 1 died"}


def test_a_verdict_comes_with_run_and_attempt():
    result = PlaybookResult()
    result.add("run_record", "localhost", {"run": "r", "attempt": 2, "verdict": VERDICT})
    result.add_failure("run_record", "localhost", {"msg": "rank 1 died", "code": "verdict.failed"})
    found = result.as_json()
    assert (found["run"], found["attempt"], found["problems"]) == ("r", 2, [])
    assert found["verdict"]["cause"] == "killed" and found["verdict"]["rank"] is None


def test_the_verdict_of_an_earlier_attempt_is_not_that_of_the_newest():
    result = PlaybookResult()
    result.add("run_record", "localhost", {"run": "r", "attempt": 1, "verdict": VERDICT})
    result.add("attempt_monitor", "node1", {"status": dict(status("node1", rank(0)), attempt=1)})
    assert result.as_json()["verdict"]
    result.add("attempt_monitor", "node1", {"status": dict(status("node1", rank(0)), attempt=2)})
    found = result.as_json()
    assert (found["attempt"], found["verdict"], found["again"]) == (2, None, None)


def test_a_refusal_has_its_codes():
    result = PlaybookResult()
    result.add_failure("job_config", "localhost", {"msg": "two", "codes": ["a.b", "c.d"]})
    result.add_failure("run_choice", "localhost", {"msg": "one", "code": "e.f"})
    result.add_failure("command", "node1", {"msg": "none"})
    assert [item["codes"] for item in result.as_json()["problems"]] == [["a.b", "c.d"], ["e.f"], []]


def test_a_step_is_one_of_any_rank():
    result = PlaybookResult()
    result.add("attempt_monitor", "node1", {"status": status("node1", rank(0))})
    assert not result.has_step()
    result.add("attempt_monitor", "node2", {"status": status("node2", rank(1, step=STEP))})
    assert result.has_step()
    assert json.loads(json.dumps(result.as_json()))["statuses"]["node2"]["ranks"][0]["rank"] == 1


def test_secrets_of_the_plan_are_masked():
    result = PlaybookResult()
    plan = {"secret_names": ["TOKEN"], "nodes": [{"env": {"TOKEN": "hunter2hunter2"}}]}
    result.add("plan", "localhost", {"plan": plan})
    verdict = dict(VERDICT, text="bad hunter2hunter2")
    result.add("run_record", "localhost", {"run": "r", "attempt": 1, "verdict": verdict})
    result.add_failure("plan", "localhost", {"msg": "saw hunter2hunter2"})
    assert "hunter2" not in json.dumps(result.as_json())
