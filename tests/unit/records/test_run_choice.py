# SPDX-License-Identifier: Apache-2.0
"""Which run, attempt and nodes are meant if one of the nodes lies."""

from __future__ import annotations

import json

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_choice
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import (
    resume_decision,
)
from core_support import RUN, put, raises_code

SITE = ["node1", "node2", "node3"]
FAKE = "20991231-000000-fake-0000"
OLD = "20250101-000000-old-0000"


def status(run=RUN, attempt=1, nodes=SITE, **more):
    return dict(
        {
            "found": True,
            "ended": True,
            "run": run,
            "attempt": attempt,
            "attempts": [attempt],
            "nodes": list(nodes),
        },
        **more,
    )


def chosen(tmp_path, run="", home=(), **answers):
    for name, number, nodes in home:
        plan = json.dumps({"nodes": [{"name": node} for node in nodes]})
        put(tmp_path / name, {"attempt-%d/plan.json" % number: plan})
    found = run_choice.choose(str(tmp_path), SITE, answers, run)
    return found and (found["run"], found["number"], found["nodes"], len(found["notes"]))


def test_honest_nodes_are_believed(tmp_path):
    both = {"node1": status(), "node2": status(OLD), "node3": status()}
    assert chosen(tmp_path, **both) == (RUN, 1, SITE, 0)
    assert chosen(tmp_path, node2=status(nodes=["node2"])) == (RUN, 1, ["node2"], 0)
    assert chosen(
        tmp_path, node1=status(attempt=2), node2=status(attempt=2), node3=status(attempt=1)
    ) == (RUN, 2, SITE, 0)
    assert chosen(tmp_path, node1={"found": False, "ended": True}) is None


def test_hosts_are_names_of_the_inventory_whoever_names_them(tmp_path):
    for nodes in (["localhost", "all", "node1"], ["*"], ["node1", "!node2", "~.*"]):
        assert chosen(tmp_path, node1=status(nodes=nodes)) == (RUN, 1, ["node1"], 0)


@pytest.mark.parametrize(
    "lie",
    [
        status(FAKE),
        status(attempt=9),
        status(attempt=9, nodes=["node1"]),
        status(nodes=["node1"]),
        status(nodes=["localhost", "all", "*", "!node2", "~.*", "&node1", "node1:node2", "node9"]),
        status(nodes="all"),
        status(nodes=[["node1"], None, {}]),
        status("../../x"),
        status(RUN + " a=b"),
        status(attempt=True),
        status(attempt="1"),
        status(ended="no"),
        dict(status(), found="yes"),
        [],
        "found",
    ],
)
@pytest.mark.parametrize(
    "home", [[], [(RUN, 1, SITE)]], ids=["another controller", "on the controller"]
)
def test_one_node_does_not_choose_for_the_others(tmp_path, lie, home):
    found = chosen(tmp_path, home=home, node1=lie, node2=status(), node3=status())
    assert found[:3] == (RUN, 1, SITE)
    named = isinstance(lie, dict) and (lie.get("run"), lie.get("attempt")) in ((FAKE, 1), (RUN, 9))
    assert found[3] == named


def test_the_plan_at_home_names_the_nodes(tmp_path):
    lies = {node: status(nodes=["node3"]) for node in SITE}
    assert chosen(tmp_path, home=[(RUN, 1, ["node2", "node1", "gone"])], **lies)[2] == [
        "node2",
        "node1",
    ]


def test_a_link_is_not_a_run_at_home(tmp_path):
    put(tmp_path / "elsewhere", {"attempt-1/plan.json": "{}"})
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / FAKE).symlink_to(tmp_path / "elsewhere")
    assert run_choice.controller_attempts(str(tmp_path / "runs"), FAKE) == []
    assert run_choice.controller_attempts(str(tmp_path), "elsewhere") == []


def test_a_node_alone_does_not_use_up_the_numbers():
    assert run_choice.next_number([1], {"node1": [1, 900_000], "node2": [1, 2], "node3": "x"}) == 3
    assert run_choice.next_number([], {"node1": [1, 3], "node2": [1, 3]}) == 4


def test_a_stop_of_what_holds_the_nodes_goes_to_names_of_the_inventory(tmp_path):
    answers = {
        "node1": status(FAKE, attempt=99, nodes=["localhost", "node2"], ended=False),
        "node2": status(ended=False),
        "node3": status(ended=False),
    }
    assert run_choice.running_attempts(str(tmp_path), SITE, answers) == [
        [RUN, 1, SITE],
        [FAKE, 99, ["node1"]],
    ]


# --- a run that is to go on

HOME = {
    "record": None,
    "numbers": [1],
    "job": {},
    "nodes": ["node1", "node2"],
    "first": ["node1", "node2"],
}


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(
    "liar, lie",
    [
        ("node1", status(attempt=2, nodes=["node1", "node2"], state="running", ended=False)),
        ("node3", status(attempt=2, nodes=["node3"], state="running", ended=False)),
        ("node3", {"found": False, "ended": True, "attempts": [700_000], "noted": [2]}),
    ],
)
def test_one_node_does_not_keep_a_run_from_going_on(liar, lie, after):
    answers = {
        node: status(nodes=["node1", "node2"], state="failed") for node in ("node1", "node2")
    }
    found = resume_decision.decide(RUN, HOME, dict(answers, **{liar: lie}), after, 2e9)
    assert (found["mode"], found["nodes"]) == ("start", ["node1", "node2"]) and found["number"] in (
        2,
        3,
    )


def test_the_job_is_that_of_most_nodes():
    jobs = ["eyJuYW1lIjogImEifQ==", "eyJuYW1lIjogImIifQ=="]
    assert resume_decision.choose_job({"job": None}, [jobs[0], jobs[1], jobs[1]]) == {"name": "b"}
    with raises_code(resume_decision.ResumeRefused, "resume.jobs_differ"):
        resume_decision.choose_job({"job": None}, jobs)


def test_a_lone_claim_counts_with_a_second_node_or_with_the_controllers_record():
    def said(number):
        return {
            "found": True,
            "ended": False,
            "run": RUN,
            "attempt": number,
            "nodes": ["node1", "node2", "node3"],
        }

    answers = {"node1": said(3), "node2": said(3), "node3": said(2)}
    kept, notes = run_choice.split_claims(answers, answers, [2], ["node1", "node2", "node3"])
    assert sorted(kept) == ["node1", "node2", "node3"] and notes == []
    answers["node2"] = said(2)
    kept, notes = run_choice.split_claims(answers, answers, [2], ["node1", "node2", "node3"])
    assert sorted(kept) == ["node2", "node3"] and len(notes) == 1
    kept, notes = run_choice.split_claims(answers, answers, [2, 3], ["node1", "node2", "node3"])
    assert sorted(kept) == ["node1", "node2", "node3"] and notes == []
