# SPDX-License-Identifier: Apache-2.0
"""A template into which a node has put a checkpoint is the plan that the compiler makes from it."""

from __future__ import annotations

import copy
import functools
import json

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import (
    compiler,
    next_plan,
    plan_bytes,
    supervised,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.plan import resume_config
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file
from core_support import ROOT, job_of
from unit.modules.test_plan import module_arguments
from unit.plan.test_plan_digest import shipped_gang

CONFIGS = ROOT / "playbooks" / "configs"
JOBS = sorted(jobs.shipped_jobs(str(CONFIGS)))
ACCELERATORS = {"mpirun": "ascend", "rank_table": "ascend"}
# Names as the suites write them (playbooks/suites, `resume.names` and `resume.instead`).
NAMES = {
    "mindocr": ["train_resume"],
    "paddledetection": ["3", "model_final", "best_model"],
    "paddleocr": ["latest", "iter_epoch_12", "best_accuracy"],
    "paddleseg": ["iter_2000"],
}
PROGRESS = [
    {"attempt": 1, "epoch": 1, "step": None, "lr": None},
    {"attempt": 23, "epoch": 12, "step": 1, "lr": 0.00125},
    {"attempt": 2, "epoch": None, "step": 2000, "lr": 1e-05},
]


def points_of(suite):
    """Return points as a node's finder describes them, with what no plan takes."""
    points, names = [], NAMES[suite]
    for number, progress in enumerate(PROGRESS):
        name, digest = names[number % len(names)], f"{number}abcdef9" * 8
        more = {"path": "/x/output", "saved": 1.0, "files": {}, "source": "node2"}
        points.append(dict(progress, name=name, stem=name, digest=digest, note="", **more))
    return points


@functools.lru_cache(maxsize=None)
def given_of(name, count):
    """Return compile_plan's arguments for a shipped job, and the merged config."""
    given, values = shipped_gang(name, count, learning_rate=0.002)
    given["site"]["replica_rate"] = 10**8
    return given, values


def compile_from(name, count, point, **changes):
    """Return the plan that resumes from a point, as the controller compiles it."""
    given, values = given_of(name, count)
    inputs = dict(given["inputs"], **changes)
    file = resume_config.config_file(inputs["suite"], given["job"]["config"], values, point)
    return compiler.compile_plan(
        **dict(given, inputs=dict(inputs, resume=point, resume_config=file))
    )


def fill(template, point):
    return plan_bytes.canonical_bytes(next_plan.fill(template, point))


def suite_of(name):
    return given_of(name, 1)[0]["inputs"]["suite"]["name"]


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("name", JOBS)
def test_a_filled_template_is_the_compiled_plan(name, count):
    template = compile_from(name, count, next_plan.PLACEHOLDER)
    for point in points_of(suite_of(name)):
        expected = plan_bytes.canonical_bytes(compile_from(name, count, point))
        assert fill(template, point) == expected, point


def test_every_suite_that_can_resume_is_compared():
    resumable = {suite for suite in suite_file.names() if suite_file.load(suite).get("resume")}
    assert {suite_of(name) for name in JOBS} == resumable == set(NAMES)


def test_a_copy_of_the_config_is_compared_too():
    """MindOCR takes no override of a key that its config lacks."""
    files = compile_from("mindocr_crnn", 2, points_of("mindocr")[0])["files"]
    assert [path for path in files if path.endswith(".resumed.yaml")]


@pytest.mark.parametrize("name", ["crnn_chinese", "mindocr_crnn", "pp_liteseg", "ppyoloe"])
def test_nothing_of_the_template_is_left_and_it_stays_as_it_is(name):
    template = compile_from(name, 4, next_plan.PLACEHOLDER)
    before = copy.deepcopy(template)
    text = fill(template, points_of(suite_of(name))[1]).decode("ascii")
    assert template == before
    for part in (next_plan.PLACEHOLDER["stem"], next_plan.PLACEHOLDER["digest"][:12]):
        assert part in plan_bytes.canonical_bytes(before).decode("ascii") and part not in text


@pytest.mark.parametrize("rate", [None, 0.002])
def test_a_constant_rate_is_the_configs(rate):
    config = {"files": [], "epochs": 300, "learning_rate": rate}
    template = compile_from("ppyoloe", 2, next_plan.PLACEHOLDER, config=config)
    for point in points_of("paddledetection"):
        made = next_plan.fill(template, point)
        assert made == compile_from("ppyoloe", 2, point, config=config)
        assert made["resume"]["lr"] == (point["lr"] or rate)


def test_notes_of_the_launcher_stay():
    template = compile_from("ppyoloe", 2, next_plan.PLACEHOLDER)
    template["notes"].insert(0, "of the launcher")
    notes = next_plan.fill(template, points_of("paddledetection")[1])["notes"]
    assert notes[0] == "of the launcher" and notes[1].startswith(
        "resumed from model_final of attempt 23"
    )


def test_the_controller_gives_the_nodes_both_plans(run_action):
    given = module_arguments(job=job_of(detach=True, max_restarts=3))
    supervise = json.loads(run_action("plan", given)["supervise"])
    assert supervise["max_restarts"] == 3 and supervise["point"] == {}
    (plans,) = supervise["plans"]
    assert plans["nodes"] == ["node1", "node2"] and supervise["spares"] == []
    assert plans["fresh"] == run_action("plan", given)["text"]
    for point in points_of("paddledetection"):
        resumed = run_action("plan", dict(given, resume=point))
        filled = fill(json.loads(plans["template"]), point).decode("ascii")
        assert filled == resumed["text"]
        assert json.loads(resumed["supervise"]) == dict(supervise, point=point)


@pytest.mark.parametrize(
    "job, expected", [({"detach": True}, True), ({"max_restarts": 1}, True), ({}, False)]
)
def test_the_nodes_restart_a_run_that_wants_restarts(run_action, job, expected):
    made = run_action("plan", module_arguments(job=job_of(**job)))
    assert bool(made["supervise"]) is expected
    assert made["plan"].get("supervised", False) is expected


def test_more_nodes_than_agree_on_a_restart_are_named(run_action, monkeypatch):
    monkeypatch.setattr(supervised, "MOST_NODES", 1)
    made = run_action("plan", module_arguments(job=job_of(max_restarts=1)))
    codes = [finding["code"] for finding in made["findings"]]
    assert "job.too_many_to_supervise" in codes and not made["supervise"]


@pytest.mark.parametrize(
    "name, config, done",
    [("ppyoloe", {"epochs": 300}, {"epoch": 300}), ("pp_liteseg", {"iterations": 9}, {"step": 9})],
)
def test_a_point_that_is_the_end_is_filled_in_nowhere(name, config, done):
    config = {"files": [], "epochs": None, "learning_rate": None, **config}
    template = compile_from(name, 2, next_plan.PLACEHOLDER, config=config)
    end = dict(points_of(suite_of(name))[0], **{"epoch": None, "step": None, **done})
    with pytest.raises(compiler.PlanError):
        compile_from(name, 2, end, config=config)
    with pytest.raises(ValueError):
        next_plan.fill(template, end)


@pytest.mark.parametrize("key", ["name", "stem"])
@pytest.mark.parametrize("name", ["a b", "a: b", "a #b", '"', "{x}", "é", "$(id)", "*", ""])
def test_a_name_that_no_suite_writes_is_filled_in_nowhere(key, name):
    template = compile_from("ppyoloe", 2, next_plan.PLACEHOLDER)
    with pytest.raises(ValueError):
        next_plan.fill(template, dict(points_of("paddledetection")[0], **{key: name}))
