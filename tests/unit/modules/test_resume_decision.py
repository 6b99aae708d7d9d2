# SPDX-License-Identifier: Apache-2.0
"""Whether a run can be resumed, and as which attempt: what completed or runs is refused, and nobody
starts an attempt twice.
"""

from __future__ import annotations

import base64
import json
import os

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import (
    resume_decision,
)
from core_support import ROOT, RUN, put, raises_code

REAL = ROOT / "tests/fixtures/raised/20261120-190935-raise-1b3e"
NOW = 1_000_000.0


def status(state="failed", attempt=1, nodes=("node1", "node2"), attempts=None, **changes):
    """What attempt_monitor says of the run on a node."""
    ended = state not in ("running", "stopping")
    return dict(
        {
            "found": True, "run": RUN, "attempt": attempt,
            "attempts": attempts or list(range(1, attempt + 1)), "state": state, "ended": ended,
            "nodes": list(nodes), "unit": "trainyard-%s-%d.service" % (RUN, attempt),
            "started": NOW - 90, "now": NOW, "by": "ann@desk",
        },
        **changes,
    )  # fmt: skip


VERDICT = {"outcome": "failed", "cause": "killed", "text": "x", "node": None, "rank": None}
NONE = {
    "found": False,
    "run": RUN,
    "known": ["20261119-103501-x-1f2e"],
    "attempts": [],
    "state": "none",
    "ended": True,
}


def home(*attempts, numbers=None, outcome=None):
    """What this controller knows: attempts with their outcomes, None where one has no verdict."""
    record = None
    for number, said in enumerate(attempts, 1):
        record = record or run_json.new_record(RUN, "x", 1.0)
        verdict = said and {
            "outcome": said,
            "cause": run_json.NOT_STARTED if said == "refused" else "killed",
        }
        verdict = dict(verdict, outcome="failed") if said == "refused" else verdict
        record = run_json.merge_entry(
            record, run_json.new_entry(number, verdict=verdict, ended=said and NOW - 5)
        )
    numbers = numbers if numbers is not None else list(range(1, len(attempts) + 1))
    return {
        "record": record,
        "numbers": numbers,
        "job": {"name": "x"} if record else None,
        "nodes": ["node1", "node2"],
        "first": ["node1", "node2"],
    }


def settle(here, after=0, **answers):
    return resume_decision.decide(RUN, here, answers, after, NOW)


def test_a_failed_run_goes_on_as_the_next_attempt():
    found = settle(home("failed"), node1=status(), node2=status())
    assert found == {
        "run": RUN, "mode": "start", "number": 2, "before": 1, "nodes": ["node1", "node2"],
        "places": ["node1", "node2"], "unfinished": False,
        "notes": [],
    }  # fmt: skip


def test_a_controller_that_knows_nothing_of_it():
    nothing = {"record": None, "numbers": [], "job": None, "nodes": [], "first": []}
    found = settle(nothing, node1=status(), node2=status(), node3=NONE)
    assert (found["number"], found["unfinished"], found["nodes"]) == (2, True, ["node1", "node2"])
    with raises_code(resume_decision.ResumeRefused, "resume.unknown_run") as error:
        settle(nothing, node1=NONE, node2=None)
    known, silent = str(error.value).split("; ")[1:]
    assert ": 20261119-" in known and silent.endswith(" node2")


def test_a_run_whose_nodes_are_all_gone_goes_on_from_home():
    found = settle(home("lost"), node1={}, node2=NONE, node3=NONE)
    assert (found["number"], found["nodes"]) == (2, ["node1", "node2"])


def test_an_end_that_nobody_saw_is_finished_first():
    assert settle(home(None), node1=status("lost"), node2=status())["unfinished"]
    assert not settle(home(None), node1=NONE, node2={})[
        "unfinished"
    ]  # of which nothing can be collected


@pytest.mark.parametrize(
    "answers", [{}, {"node1": status("completed"), "node2": status("completed")}]
)
def test_what_completed_is_not_resumed(answers):
    with raises_code(resume_decision.ResumeRefused, "resume.completed") as error:
        settle(home("completed"), **answers)
    assert "(attempt 1, 0:05 ago)" in str(error.value)


def test_what_completed_is_known_without_a_record_too():
    with raises_code(resume_decision.ResumeRefused, "resume.completed"):
        settle(home(None), node1=status("completed"), node2=status("completed"))
    assert settle(home(None), node1=status("completed"), node2=status("failed"))["number"] == 2
    assert (
        settle(home(None), node1=status("completed"), node2={})["number"] == 2
    )  # the other one may have failed


@pytest.mark.parametrize("state", ["running", "stopping"])
def test_what_runs_is_not_resumed_and_who_holds_it_is_said(state):
    with raises_code(resume_decision.ResumeRefused, "resume.still_running") as error:
        settle(home("failed"), node1=status(), node2=status(state))
    for words in (
        "attempt 1 holds node2",
        f"trainyard-{RUN}-1.service",
        "started 1:30 ago by ann@desk",
        "playbooks/follow.yml -e run=" + RUN,
    ):
        assert words in str(error.value), error.value


def test_no_number_is_used_twice():
    """A start that was refused leaves a directory: with stop.json alone on a node, with a note at
    home.
    """
    assert settle(home("failed"), node1=status(attempts=[1, 2]), node2=status())["number"] == 3
    assert settle(home("failed", "refused"), node1=status(), node2=status())["number"] == 3
    assert (
        settle(home("failed", None), node1=status(), node2=status())["number"] == 3
    )  # its controller died before the start


# -- two who restart the same attempt


def test_the_second_follower_follows_the_first_ones_attempt():
    found = settle(
        home("failed", None), after=1, node1=status("running", 2), node2=status("running", 2)
    )
    assert (found["mode"], found["number"], found["nodes"]) == ("follow", 2, ["node1", "node2"])
    # also where it has ended already, and on another controller
    assert (
        settle(home("failed"), after=1, node1=status("failed", 2), node2=status("failed", 2))[
            "mode"
        ]
        == "follow"
    )


def test_an_attempt_that_goes_on_whole_is_followed_again_by_the_controller_that_had_lost_it():
    running = status("running")
    found = settle(home("lost"), after=1, node1=running, node2=running)
    assert (found["mode"], found["number"], found["nodes"]) == ("follow", 1, ["node1", "node2"])
    # one that was frozen or cut off may be back with what the others have ended, and is about to
    # end it
    for other in (status("lost"), status("stopping"), {}):
        with raises_code(resume_decision.ResumePostponed, "resume.still_running"):
            settle(home("lost"), after=1, node1=running, node2=other)
    with raises_code(resume_decision.ResumeRefused, "resume.still_running"):
        settle(home("lost"), node1=running, node2=running)  # a person asks


def test_an_attempt_that_is_on_its_way_is_waited_for():
    with raises_code(resume_decision.ResumePostponed, "resume.begun_elsewhere"):
        settle(home("failed", None), after=1, node1=status(), node2=status())


def test_what_was_stopped_during_the_wait_is_not_started():
    """stop.yml leaves a note in the next attempt's place, on every node."""
    stopped = status(attempts=[1, 2], noted=[2])
    with raises_code(resume_decision.ResumeRefused, "resume.stopped"):
        settle(home("failed"), after=1, node1=stopped, node2=status())
    assert settle(home("failed"), node1=stopped, node2=status())["number"] == 3  # a person asks
    assert (
        settle(home("failed"), after=1, node1=status(noted=[1]), node2=status())["mode"] == "start"
    )  # (which follow.yml has judged)


def test_a_try_that_was_taken_back_on_the_nodes_that_had_begun_it_is_not_followed():
    taken_back = status("failed", 2, undone=True, attempts=[1, 2])
    found = settle(home("failed", "refused"), after=1, node1=taken_back, node2=status())
    assert (found["mode"], found["number"]) == ("start", 3)
    # another command's attempt that runs, or has run, is
    assert (
        settle(home("failed"), after=1, node1=status("failed", 2), node2=status("failed", 2))[
            "mode"
        ]
        == "follow"
    )


def test_a_restart_waits_for_what_is_left_of_the_old_attempt():
    """A node that was frozen answers again with attempt 1, until its guard ends that."""
    back = status("running", 1, ended=False)
    with raises_code(resume_decision.ResumePostponed, "resume.still_running"):
        settle(home("failed"), after=1, node1=status(), node2=back)
    with raises_code(resume_decision.ResumeRefused, "resume.still_running"):
        settle(home("failed"), node1=status(), node2=back)  # a person is told


def test_the_own_try_that_was_refused_is_nobody_elses_attempt():
    found = settle(
        home("failed", "refused"), after=1, node1=status(attempts=[1, 2]), node2=status()
    )
    assert (found["mode"], found["number"]) == ("start", 3)


# -- the module


def test_the_job_comes_from_home_or_from_a_node(run_action, tmp_path):
    text = base64.b64encode(b'{"name": "from the node"}').decode()
    given = {
        "runs_dir": str(tmp_path),
        "run_id": RUN,
        "answers": {"node1": status(), "node2": status()},
    }
    found = run_action("resume_decision", dict(given, job=text))
    assert (found["mode"], found["number"], found["job"]) == ("start", 2, {"name": "from the node"})
    assert "no job.json of this run" in run_action("resume_decision", given)["msg"]
    endless = base64.b64encode(b'{"name": "x"}' + b" " * (2 << 20)).decode()
    assert run_action("resume_decision", dict(given, job=endless))["failed"]
    hostile = base64.b64encode(
        b'{"name": "x", "env": {"OMP_NUM_THREADS": "1", "PYTHONPATH": "/tmp/x"}}'
    ).decode()
    refused = run_action("resume_decision", dict(given, job=hostile))
    assert refused["failed"] and "'PYTHONPATH'" in refused["msg"] and "OMP" not in refused["msg"]
    put(
        str(tmp_path / RUN),
        {"job.json": '{"name": "from home", "env": {"PYTHONPATH": "/x"}}', "attempt-1/x": ""},
    )
    assert run_action("resume_decision", dict(given, job=text))["job"]["name"] == "from home"


def test_the_code_of_every_attempt_is_given(run_action, tmp_path):
    folder = tmp_path / "runs" / RUN
    plan = json.dumps({"code": {"digest": "a" * 64}, "nodes": [{"name": "node1"}]})
    changed = json.dumps({"code": {"digest": "b" * 64}, "nodes": [{"name": "node1"}]})
    put(
        folder,
        {
            "job.json": '{"name": "x"}',
            "attempt-1/plan.json": plan,
            "attempt-2/plan.json": changed,
            "attempt-3/plan.json": changed,
            "code.diff": "-a\n+b\n",
            "attempt-2/code.diff": "",
        },
    )
    newest = {"digest": "b" * 64, "commit": "c" * 40, "dirty": None}
    record = dict(run_json.new_record(RUN, "x", 1.0), code=newest)
    for number in (1, 2, 3):
        code = newest if number == 3 else None
        entry = run_json.new_entry(number, code=code, started=NOW, ended=NOW, verdict=VERDICT)
        if number == 1:
            del entry["code"]  # an earlier release's
        run_json.write_entry(str(folder), record, entry)
    result = run_action(
        "resume_decision",
        {
            "runs_dir": str(tmp_path / "runs"),
            "run_id": RUN,
            "answers": {"node1": NONE},
            "job": [],
        },
    )
    rows = [
        (row["number"], row["digest"][0], row["commit"], row["dirty"]) for row in result["code"]
    ]
    known = ("b", "c" * 40, None)
    assert rows == [(1, "a", None, None), (2, *known), (3, *known)]
    diffs = [row["diff"] for row in result["code"]]
    assert diffs == [str(folder / "code.diff"), None, None]


def test_refusals_are_told_from_what_may_be_tried_again(run_action, tmp_path):
    given = {"runs_dir": str(tmp_path), "run_id": RUN, "answers": {"node1": status("running")}}
    assert run_action("resume_decision", given)["refused"]
    put(str(tmp_path / RUN), {"job.json": "{}", "attempt-2/x": ""})
    waits = run_action("resume_decision", dict(given, answers={"node1": status()}, after=1))
    assert waits["failed"] and not waits.get("refused")


def test_a_real_run_of_version_1_can_be_resumed(run_action, tmp_path):
    run = REAL.name
    for name in ("run.json", "plan.json"):
        put(str(tmp_path / run), {name: (REAL / name).read_text(encoding="utf-8")})
    put(str(tmp_path / run), {"job.json": json.dumps({"name": "raise"}), "attempt-1/x": ""})
    found = run_action("resume_decision", {"runs_dir": str(tmp_path), "run_id": run, "answers": {}})
    assert (found["mode"], found["number"]) == ("start", 2) and found["nodes"] == ["node1", "node2"]
    assert sorted(os.listdir(tmp_path / run)) == [
        "attempt-1",
        "job.json",
        "plan.json",
        "run.json",
    ]  # nothing was written
