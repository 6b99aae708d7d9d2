# SPDX-License-Identifier: Apache-2.0
"""Which run logs.yml is about, and what the controller has of it."""

from __future__ import annotations

import json
import shutil

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
    archive,
    rank_index,
)
from core_support import ROOT

RUN = "20261120-190935-raise-1b3e"
RAISED = ROOT / "tests/fixtures/raised" / RUN
NEWER = "20261121-000000-short-0000"


@pytest.fixture
def here(tmp_path):
    """The controller's runs, with one that is over and all there."""
    shutil.copytree(RAISED, tmp_path / "runs" / RUN)
    (tmp_path / "runs" / "conform.json").write_text("{}")
    (tmp_path / "runs" / NEWER).mkdir()  # nothing of it came home
    return tmp_path / "runs"


def status(run=RUN, ended=True, **more):
    return dict({"found": True, "run": run, "attempt": 1, "ended": ended}, **more)


NONE = {"found": False, "known": ["20261119-000000-long-0000"]}


@pytest.mark.parametrize(
    "run, answers, wanted",
    [
        # the controller has everything: nothing is to be fetched
        (RUN, {}, {"run": RUN, "number": 1, "ended": [], "goes_on": [], "silent": [], "notes": []}),
        (
            RUN,
            {"node1": status(), "node2": status()},
            {"run": RUN, "number": 1, "ended": [], "goes_on": [], "silent": [], "notes": []},
        ),
        # the newest run on the controller, if no node knows one
        (
            "",
            {"node1": NONE, "node2": None},
            {"run": RUN, "number": 1, "ended": [], "goes_on": [], "silent": ["node2"], "notes": []},
        ),
        # what the nodes know goes before what the controller has; the newer of two
        (
            "",
            {
                "node1": status(NEWER, False, attempt=2),
                "node2": status(NEWER, False, attempt=2),
                "node3": None,
            },
            {
                "run": NEWER,
                "number": 2,
                "ended": [],
                "goes_on": ["node1", "node2"],
                "silent": ["node3"],
                "notes": [],
            },
        ),
        # a node that was lost before the newest attempt, and is back: it has nothing of it
        (
            NEWER,
            {
                "node1": status(NEWER, False, attempt=2),
                "node2": status(NEWER),
                "spare1": status(NEWER, attempt=2),
            },
            {
                "run": NEWER,
                "number": 2,
                "ended": ["spare1"],
                "goes_on": ["node1"],
                "silent": [],
                "notes": [],
            },
        ),
        # over on one node and not on the other
        (
            NEWER,
            {"node1": status(NEWER, False), "node2": status(NEWER)},
            {
                "run": NEWER,
                "number": 1,
                "ended": ["node2"],
                "goes_on": ["node1"],
                "silent": [],
                "notes": [],
            },
        ),
    ],
)
def test_which_run(here, run, answers, wanted):
    assert archive.choose_run(str(here), run, answers) == wanted


@pytest.mark.parametrize(
    "run, answers, words",
    [
        (
            NEWER,
            {"node1": NONE},
            (
                f"no node knows the run {NEWER}, and the controller has no copy; known: {RUN},"
                " 20261119-000000-long-0000"
            ),
        ),
        (NEWER, {"node1": None}, "; no answer from node1"),
    ],
)
def test_no_run(here, run, answers, words):
    with pytest.raises(archive.RunNotFound, match=words):
        archive.choose_run(str(here), run, answers)


def test_nothing_at_all(tmp_path):
    with pytest.raises(archive.RunNotFound, match="no node knows any run"):
        archive.choose_run(str(tmp_path / "none"), "", {})


def test_a_log_that_is_missing_makes_it_not_all_there(here):
    index = here / RUN / "attempt-1" / "ranks.json"
    index.unlink()
    assert archive.choose_run(str(here), RUN, {"node1": status(), "node2": status()})["ended"] == [
        "node1",
        "node2",
    ]


def test_a_damaged_index_is_none_and_a_newer_one_is_refused(here):
    path = here / RUN / "attempt-1" / "ranks.json"
    text = path.read_text()
    path.write_text(text[:100])
    home = archive.LocalAttempt(str(here), RUN)
    assert home.index is None and not home.over and home.nodes == ["node1", "node2"]
    path.write_text(json.dumps(dict(json.loads(text), version=99)))
    with pytest.raises(rank_index.NewerIndex, match="has version 99"):
        archive.LocalAttempt(str(here), RUN)


def test_the_newest_attempt_counts(here):
    (here / RUN / "attempt-2").mkdir()
    (here / RUN / "attempt-10").mkdir()
    (here / RUN / "attempt-x").mkdir()
    home = archive.LocalAttempt(str(here), RUN)
    assert (home.number, home.shown, home.index, home.over) == (
        10,
        f"runs/{RUN}/attempt-10",
        None,
        False,
    )


def test_secrets_of_the_plan_are_known(here):
    path = here / RUN / "plan.json"
    plan = json.loads(path.read_text())
    plan["env"]["WANDB_API_KEY"] = "canary-value-1"
    path.write_text(json.dumps(plan))
    assert "canary-value-1" in archive.LocalAttempt(str(here), RUN).secrets.values
