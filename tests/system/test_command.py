# SPDX-License-Identifier: Apache-2.0
"""The command `trainyard` as a user types it, in processes of its own; no node is contacted."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import report_support
import yaml
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live.result_model import (
    VERDICT_KEYS,
    PlaybookResult,
)
from click.testing import CliRunner
from core_support import ROOT

from trainyard.cli import SHELLS, cli

COMMAND = [sys.executable, "-m", "trainyard"]
# Playbooks that no verb stands for: the demo's, and the undo of what is done once.
NO_VERB = {"local", "local_down", "unprovision", "untrust"}
# Names that no resolver knows (RFC 2606).
HOSTS = ["one.invalid", "two.invalid"]


@pytest.fixture
def type_in(tmp_path, monkeypatch):
    """Run `trainyard` with some words in an empty project, without the user's own settings."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ANSIBLE_", "TRAINYARD_"))
    }
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "HOME": str(tmp_path)}
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)

    def run(*words, **changes):
        return subprocess.run(
            [*COMMAND, *words],
            env={**environment, **changes},
            cwd=Path.cwd(),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def site(type_in):
    """A site that `init` has written, with the suite's example code and a tiny data set."""
    data = Path("coco").absolute()
    (data / "annotations").mkdir(parents=True)
    for part in ("train2017", "val2017"):
        (data / part).mkdir()
        (data / part / "1.jpg").write_bytes(b"no picture")
        (data / "annotations" / f"instances_{part}.json").write_text("{}")
    words = [
        "--data",
        f"coco={data}",
        "--suite",
        "paddledetection",
        "--accelerator",
        "cpu",
        "--devices",
        "1",
    ]
    words += ["--code", str(ROOT / "examples" / "paddledetection"), "--user", "trainer"]
    done = type_in("init", *HOSTS, *words)
    assert done.returncode == 0, done.stderr
    return Path("inventory", "mysite")


def test_every_verb_explains_itself_and_every_playbook_has_one():
    verbs = set(cli.commands)
    playbooks = {path.stem for path in (ROOT / "playbooks").glob("*.yml")}
    # Two playbooks have a verb of another name.
    named = {"runs": "ps", "benchmark": "bench"}
    assert {named.get(name, name) for name in playbooks - NO_VERB} <= verbs
    for verb in verbs:
        done = CliRunner().invoke(cli, [verb, "--help"])
        assert done.exit_code == 0 and "Usage: " in done.output


def test_a_refusal_has_its_code_and_the_exit_code_20(type_in, site):
    done = type_in("--json", "check", "no_such_job")
    assert done.returncode == 20
    result = json.loads(done.stdout)
    assert [item["codes"] for item in result["problems"]] == [["cli.unknown_job"]]
    assert result["exit_code"] == 20


def test_the_printed_line_does_the_same_in_a_shell(type_in, site, tmp_path):
    done = type_in("check", "no such", "-e", 'suite="x y"')
    line = next(line for line in done.stderr.splitlines() if line.startswith("$ "))[2:]
    assert line.startswith(f"ANSIBLE_CONFIG={ROOT}/ansible.cfg ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    again = subprocess.run(
        ["sh", "-c", line],
        env={"PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 2
    assert again.stdout == done.stdout


@pytest.mark.parametrize(
    "options, given",
    [
        (["--no-restart"], ["max_restarts=0"]),
        (["-d"], ["detach=true"]),
        (["-d", "--no-restart"], ["max_restarts=0", "detach=true"]),
    ],
)
def test_the_option_against_restarts_is_one_for_the_nodes_too(type_in, site, options, given):
    """The nodes restart a run by its job's `max_restarts`, whatever the command's environment."""
    done = type_in("train", "no_such_job", *options)
    assert done.returncode == 20
    words = shlex.split(next(line for line in done.stderr.splitlines() if line.startswith("$ ")))
    assert [word for word in words if "restart" in word.lower() or "detach" in word] == given


def test_a_site_of_init_is_valid_up_to_its_nodes(type_in, site):
    done = type_in("--json", "train", "ppyoloe", "--check")
    result = json.loads(done.stdout)
    assert done.returncode == 20, done.stderr
    assert result["unreachable"] == HOSTS, done.stderr
    # Nothing of a run is written, neither here nor in the product.
    assert not Path("runs").exists()


def test_init_overwrites_nothing(type_in, site):
    before = (site / "hosts.yml").read_text()
    assert type_in("init", "three.invalid").returncode == 20
    assert (site / "hosts.yml").read_text() == before
    other = type_in("init", "three.invalid", "--name", "other")
    assert other.returncode == 0
    hosts = yaml.safe_load(Path("inventory", "other", "hosts.yml").read_text())
    assert list(hosts["trainers"]["hosts"]) == ["three.invalid"]


@pytest.mark.parametrize(
    "words",
    [
        ["init"],
        ["init", "127.0.0.1"],
        ["init", "a.invalid", "a.invalid"],
        ["init", "a.invalid", "--name", "../x"],
        ["init", "a.invalid", "--hostfile", "h"],
        ["init", "--hostfile", "missing"],
        ["init", "--slurm"],
        ["init", "a.invalid", "--suite", "paddleocr", "--data", "x"],
        ["why", "20200101-000000-none-0000"],
        ["--site", "nowhere", "status"],
    ],
)
def test_bad_words_are_refused_before_anything_is_written(type_in, words):
    done = type_in(*words)
    assert done.returncode == 20 and "Traceback" not in done.stderr
    assert not Path("inventory").exists()


def test_a_file_of_the_site_that_is_no_yaml_is_named_with_its_line(type_in, site):
    path = site / "group_vars" / "all.yml"
    path.write_text(path.read_text() + "\tbroken: 1\n")
    lines = len(path.read_text().splitlines())
    done = type_in("check", "ppyoloe")
    assert done.returncode == 20
    assert f"{path}:{lines}: " in done.stderr


def test_why_reads_the_record_alone(type_in, site):
    run = report_support.bring(Path("runs").absolute(), "raised")
    record = json.loads(Path("runs", run, "run.json").read_text())
    done = type_in("why")
    assert done.returncode == 10, done.stderr
    verdict = record["attempts"][-1]["verdict"]
    for text in (record["run"], verdict["cause"], verdict["remedy"], "playbooks/resume.yml"):
        assert text in done.stdout
    # Log and remedy have rows of their own.
    for text in (verdict["remedy"], Path(verdict["log"]).name):
        assert text in verdict["text"] and done.stdout.count(text) == 1
    result = json.loads(type_in("--json", "why", record["run"]).stdout)
    assert set(result) == {*PlaybookResult().as_json(), "exit_code"}, "as every other verb"
    assert (result["exit_code"], result["version"], result["run"]) == (10, 1, record["run"])
    assert result["verdict"] == {key: verdict.get(key) for key in VERDICT_KEYS}
    assert type_in("why", "20200101-000000-none-0000").returncode == 20


def test_why_takes_no_earlier_attempt_for_the_newest(type_in, site):
    run = report_support.bring(Path("runs").absolute(), "raised")
    path = Path("runs", run, "run.json")
    record = json.loads(path.read_text())
    newest = record["attempts"][-1]
    record["attempts"].append({**newest, "number": newest["number"] + 1, "verdict": None})
    newest["verdict"]["text"] += "\x07"  # a training's own words
    path.write_text(json.dumps(record))
    done = type_in("why")
    assert done.returncode == 20 and f"attempt {newest['number'] + 1} of {run}" in done.stderr
    assert "\x07" not in done.stderr and newest["verdict"]["text"][:60] in done.stderr
    assert "playbooks/follow.yml" in done.stderr


def test_the_answer_of_a_question_is_all_that_is_printed(type_in, site):
    run = report_support.bring(Path("runs").absolute(), "raised")
    done = type_in("report", run)
    assert done.returncode == 0 and f"{run}/report.html" in done.stdout
    assert "PLAY" not in done.stdout
    assert "PLAY" in type_in("report", run, TRAINYARD_BRIEF="0").stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_script_is_one_of_the_shell(type_in, shell):
    script = type_in("completion", shell)
    assert script.returncode == 0
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here")
    checked = subprocess.run([program, "-n"], input=script.stdout, text=True, check=False)
    assert checked.returncode == 0


@pytest.mark.parametrize(
    "words, expected",
    [
        ("trainyard sta", "status"),
        ("trainyard train ppy", "ppyoloe"),
        ("trainyard --site my", "mysite"),
    ],
)
def test_verbs_jobs_and_sites_are_completed(type_in, site, words, expected):
    done = type_in(
        _TRAINYARD_COMPLETE="bash_complete",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split()) - 1),
    )
    assert f"plain,{expected}" in done.stdout.splitlines()
