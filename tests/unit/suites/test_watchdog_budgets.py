# SPDX-License-Identifier: Apache-2.0
"""The job's key `watchdog`: times with a unit, off as YAML reads it, and the plan's budgets."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import (
    watchdog_budgets,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from core_support import compiled, job_of, shipped


def read(tmp_path, text):
    """Return (job, problems as text) of a job with this line for its watchdog."""
    path = tmp_path / "mine.yml"
    path.write_text(
        f"suite: paddledetection\nlauncher: paddle\nconfig: configs/a.yml\nwatchdog: {text}\n",
        encoding="utf-8",
    )
    job, problems = jobs.read_job(str(path), "mine.yml")
    return job, [str(problem) for problem in problems]


@pytest.mark.parametrize("text, said", [
    ("{step: 20}",
    "mine.yml:4 watchdog.step: must be a time with its unit such as 90s, 10m or 2h, or off; got 20"),
    ("{step: 20 s}",
    "watchdog.step: must be a time with its unit such as 90s, 10m or 2h, or off; got '20 s'"),
    ("{step: on}",
    "watchdog.step: must be a time with its unit such as 90s, 10m or 2h, or off; got True"),
    ("{step: 1s}", "watchdog.step: must be from 5s to 168h, or off; got 1s"),
    ("{step: 999h}", "watchdog.step: must be from 5s to 168h, or off; got 999h"),
    ("{setp: 20s}",
    "watchdog: got 'setp'; allowed: rendezvous, first_step, step, evaluation, checkpoint; did you mean 'step'?"),
    ("10m",
    "watchdog: must be off, or a mapping of rendezvous, first_step, step, evaluation and checkpoint to times such as 10m; got '10m'"),
    ("on", "watchdog: must be off, or a mapping of"),
])  # fmt: skip
def test_what_is_no_budget_is_refused_in_words(tmp_path, text, said):
    job, problems = read(tmp_path, text)
    assert job is None and len(problems) == 1 and said in problems[0]


@pytest.mark.parametrize("text", ["off", "no", "'off'"])
def test_off_switches_all_of_it_off(tmp_path, text):
    job, problems = read(tmp_path, text)
    assert not problems
    assert watchdog_budgets.budgets(job["watchdog"], shipped()[1]) == dict(
        dict.fromkeys(watchdog_budgets.PHASES), set=sorted(watchdog_budgets.PHASES)
    )


def test_the_plan_has_every_budget_in_seconds(tmp_path):
    job, problems = read(tmp_path, "{step: 90s, evaluation: 2h, checkpoint: off}")
    assert not problems
    given = compiled(job={"watchdog": job["watchdog"]})["watchdog"]
    assert given == {
        "rendezvous": 600,
        "first_step": 1800,
        "step": 90,
        "evaluation": 7200,
        "checkpoint": None,
        "set": ["checkpoint", "evaluation", "step"],
    }
    assert "watchdog" not in job_of() and compiled()["watchdog"] == dict(
        watchdog_budgets.DEFAULTS, set=[]
    )
