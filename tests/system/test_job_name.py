# SPDX-License-Identifier: Apache-2.0
"""A job file may have any name: its run is planned, followed, shown, kept and removed as any other
run.
"""

from __future__ import annotations

import hashlib
import json
import shutil

import jsonschema
import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    status,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as plans
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import history, prune_scan
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import (
    controller_runs,
    plan_directory,
    record_attempt,
)
from core_support import ROOT, RUN, attempt_files, compiled, put

NAMES = ("a+b", "检测", "my job (1)", "det=1,é", "-x", "..", "模" * 83, "x" * 251)
CONFIGS = ROOT / "playbooks" / "configs"


def gated(module, fields, **given):
    """Return an answer as it comes through JSON and the gate."""
    return answer_gate.validate(module, json.loads(json.dumps(dict(fields, changed=False))), given)


@pytest.fixture(params=NAMES)
def made(request, tmp_path):
    """Return (name, job, plan) of a job file with that name, as the product reads and compiles
    it.
    """
    name = request.param
    shutil.copy(CONFIGS / "ppyoloe.yml", tmp_path / f"{name}.yml")
    path, shown, said = jobs.find_job(f"./{name}.yml", str(CONFIGS), str(tmp_path))
    job, problems = jobs.read_job(path, shown)
    assert not said and not problems and job["name"] == name
    return name, job, compiled(count=2, devices=1, job=job)


def test_the_answers_about_a_run_pass_the_gate_whatever_its_job_is_called(made, tmp_path):
    name, _job, plan = made
    config = "configs/{}/{}.yml".format("c" * 150, "d" * 150)
    attempt_files(
        tmp_path, dict(plan, site="s" * 200, job=dict(plan["job"], config=config)), "node1"
    )
    found = status.read_status(lambda _argv: (0, "active\n", ""), str(tmp_path), RUN, 1, "node1")
    shown = gated("attempt_monitor", {"status": found}, run_id=RUN, number=1, node="node1")[
        "status"
    ]
    assert (shown["found"], shown["job"]) == (True, name)
    past = gated(
        "run_history_info",
        {"history": history.read_history(str(tmp_path), RUN, "node1")},
        run_id=RUN,
        node="node1",
    )
    assert [item["number"] for item in past["history"]["attempts"]] == [1]
    found = prune_scan.scan_runs(
        str(tmp_path / "runs"), lambda run: prune_scan.describe_node_run(str(tmp_path), run, {})
    )
    (kept,) = gated("runs_info", {"look": found})["look"]["runs"]
    assert (kept["job"], kept["odd"]) == (f"{name}/paddledetection/{config}", "")


def test_the_controller_records_and_recognises_a_run_whatever_its_job_is_called(made, tmp_path):
    name, job, plan = made
    text = plans.canonical_bytes(plan)
    given = {
        "runs_dir": str(tmp_path / "home"), "run_id": RUN, "number": 1, "job": job,
        "plan": text.decode(), "code_diff": "", "code": {},
        "plan_sha256": hashlib.sha256(text).hexdigest(),
    }  # fmt: skip
    run_dir = record_attempt.record_start(given)["run_dir"]
    schema = yaml.safe_load((ROOT / "docs/schemas/run.yml").read_text(encoding="utf-8"))
    jsonschema.validate(run_json.read(run_dir), schema)
    assert run_json.read(run_dir)["job"] == name
    assert (
        controller_runs.describe_run(str(tmp_path / "home"), RUN, {})["job"].split("/")[0] == name
    )
    # Another controller takes both files from the nodes.
    assert (
        plan_directory.read_plan(text, given["plan_sha256"], ["node1", "node2"])["job"]["name"]
        == name
    )
    assert plan_directory.read_job(json.dumps(job).encode())["name"] == name
    other = attempt_dir.attempt_dir(str(tmp_path), RUN, 1)
    put(other, {f".incoming/{node}/{key}": value for node in ("node1", "node2") for key, value in {
        "plan.json": text.decode(), "job.json": json.dumps(job)}.items()})  # fmt: skip
    assert plan_directory.take(
        other, dict.fromkeys(("node1", "node2"), given["plan_sha256"]), ["node1", "node2"]
    ) == (True, [])


@pytest.mark.parametrize("name", ["", "a/b", "a\nb", "a\x1b[2J", "x" * 256])
def test_a_plan_of_a_node_names_a_job_as_a_file_can_be_named(name):
    plan = compiled(count=2, devices=1)
    text = plans.canonical_bytes(dict(plan, job=dict(plan["job"], name=name)))
    with pytest.raises(plan_directory.PlanProblem):
        plan_directory.read_plan(text, hashlib.sha256(text).hexdigest(), ["node1", "node2"])


def test_a_job_file_without_a_name_is_refused(tmp_path):
    shutil.copy(CONFIGS / "ppyoloe.yml", tmp_path / ".yml")
    for config in ("./.yml", ".yml", str(tmp_path / ".yml")):
        assert jobs.find_job(config, str(CONFIGS), str(tmp_path))[2]
