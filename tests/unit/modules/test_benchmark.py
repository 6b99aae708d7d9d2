# SPDX-License-Identifier: Apache-2.0
"""benchmark: which numbers of nodes are trained on, what is refused, and what is written."""

from __future__ import annotations

import json
import os
import stat
import sys
from types import SimpleNamespace

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.trainyard.cluster.plugins.plugin_utils.benchmark import training_process
from report_support import Page, bring


@pytest.fixture
def act(load_plugin, tmp_path, monkeypatch):
    """Run the action for a site of as many trainers."""
    monkeypatch.setattr(sys, "argv", ["ansible-playbook", "playbooks/benchmark.yml"])

    def run(arguments, trainers=4, check=False):
        task = SimpleNamespace(args=arguments, async_val=0, check_mode=check, action="benchmark")
        link = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp"), transport="local")
        action = load_plugin("action", "benchmark").ActionModule(
            task, link, None, DataLoader(), None, None
        )
        action._load_name = "benchmark"
        names = [f"node{number + 1}" for number in range(trainers)]
        variables = {"trainyard_runs_dir": str(tmp_path)}
        return action.run(
            task_vars={
                "inventory_hostname": "localhost",
                "groups": {"trainers": names},
                "hostvars": dict.fromkeys(names, variables),
            }
        )

    return run


@pytest.fixture
def checked(monkeypatch):
    """Calls of check.yml, which ends with the exit code in `code`."""
    calls = SimpleNamespace(code=0, made=[])

    class Command:
        def __init__(self, playbook, variables, dropped, _output):
            calls.made.append((os.path.basename(playbook), variables, dropped))
            self.process = SimpleNamespace(wait=lambda: calls.code)

        def text(self):
            return "ok\n" * 2000 + "node4 is held\n" + "ok\n" * 1000

        def end(self):
            pass

    monkeypatch.setattr(training_process, "Command", Command)
    return calls


@pytest.mark.parametrize(
    ("asked", "trainers", "counts"),
    [
        ("1,2,4", 4, [1, 2, 4]),
        ("4,1,4", 4, [1, 4]),
        ("3", 4, [3]),
        ("", 6, [1, 2, 4, 6]),
        ("", 1, [1]),
        ("", 8, [1, 2, 4, 8]),
        ("", 200, [1, 4, 8, 16, 32, 64, 128, 200]),
    ],
)
def test_the_job_is_checked_on_the_largest_number_first(act, checked, asked, trainers, counts):
    found = act({"state": "chosen", "config": "x.yml", "nodes": asked}, trainers)
    assert found["counts"] == counts
    ((playbook, variables, dropped),) = checked.made
    assert (playbook, variables) == ("check.yml", {"nodes": counts[-1]})
    assert {"nodes", "minutes", "wait"} <= dropped
    assert stat.S_IMODE(os.stat(found["folder"]).st_mode) == 0o700


@pytest.mark.parametrize(
    "arguments",
    [
        {"config": ""},
        {"config": "x.yml", "nodes": "1,5"},
        {"config": "x.yml", "nodes": "0"},
        {"config": "x.yml", "nodes": "1;2"},
        {"config": "x.yml", "nodes": "all"},
        {"config": "x.yml", "minutes": -1},
        {"config": "x.yml", "minutes": 1e9},
    ],
)
def test_bad_input_is_refused_before_anything_starts(act, checked, arguments, tmp_path):
    assert act({"state": "chosen", **arguments})["failed"]
    assert checked.made == [] and os.listdir(tmp_path) == []


@pytest.mark.parametrize("option", ["-K", "--ask-vault-pass", "-e@vars.yml"])
def test_what_no_command_could_be_given_again_is_refused(
    act, checked, option, tmp_path, monkeypatch
):
    (tmp_path / "site").mkdir()
    monkeypatch.chdir(tmp_path / "site")
    (tmp_path / "site" / "vars.yml").write_text("config: x.yml\n")
    monkeypatch.setattr(sys, "argv", ["ansible-playbook", "playbooks/benchmark.yml", option])
    found = act({"state": "chosen", "config": "x.yml"})
    assert found["failed"] and checked.made == [] and os.listdir(tmp_path) == ["site"]
    (tmp_path / "site" / "vars.yml").write_text("trainyard_site: x\n")
    if option.startswith("-e"):
        assert act({"state": "chosen", "config": "x.yml"})["counts"]


def test_nothing_is_trained_where_the_check_fails(act, checked):
    checked.code = 2
    found = act({"state": "chosen", "config": "x.yml"})
    assert found["failed"] and "node4 is held" in found["msg"]


def test_check_mode_starts_nothing(act, checked, tmp_path):
    found = act({"state": "chosen", "config": "x.yml", "nodes": "1,2"}, check=True)
    assert (found["counts"], checked.made, os.listdir(tmp_path)) == ([], [], [])


def outcome(run, label, ended_well=True):
    return {
        "training": {
            "run": run,
            "label": label,
            "ended_well": ended_well,
            "text": "FAILED: x",
            "output": "out",
        }
    }


@pytest.mark.parametrize(
    ("more", "trainers", "alone"),
    [
        ({"nodes": "1,3", "minutes": 5}, 4, ["node1", "node2", "node3"]),
        ({"nodes": "1,3"}, 4, []),  # each would train the whole job
        ({"nodes": "1", "minutes": 5}, 4, []),
        ({"nodes": "17", "minutes": 5}, 20, []),
    ],
)
def test_with_a_limit_of_time_each_node_trains_alone_as_well(act, checked, more, trainers, alone):
    found = act({"state": "chosen", "config": "x.yml", **more}, trainers)
    assert found["alone"] == alone


def test_the_nodes_train_alone_at_the_same_time(act, monkeypatch, tmp_path):
    begun = []

    class Process:
        def __init__(self, command, label, job, runs, stop, minutes, say, alone):
            begun.append((command, label, minutes, alone))
            self.label = label

    def await_ends(trainings):
        assert len(trainings) == len(begun) == 2
        return [{**outcome("", one.label)["training"]} for one in trainings]

    def command(_playbook, variables, _dropped, output):
        return variables["nodes"], variables["min_nodes"], os.path.basename(output)

    monkeypatch.setattr(training_process, "Command", command)
    monkeypatch.setattr(training_process, "TrainingProcess", Process)
    monkeypatch.setattr(training_process, "await_ends", await_ends)
    asked = {"state": "alone", "config": "x.yml", "folder": str(tmp_path), "minutes": 3}
    found = act({**asked, "names": ["node1", "node2"]})
    assert begun == [
        ((["node1"], 1, "alone-1.txt"), "node1 alone", 3, "node1"),
        ((["node2"], 1, "alone-2.txt"), "node2 alone", 3, "node2"),
    ]
    assert [item["label"] for item in found["trainings"]] == ["node1 alone", "node2 alone"]


def test_trainings_that_have_begun_end_where_the_next_cannot_begin(act, monkeypatch, tmp_path):
    begun, ended = [], []

    def start(*_words):
        if begun:
            raise KeyboardInterrupt
        begun.append("node1")
        return "the first"

    monkeypatch.setattr(training_process, "Command", lambda *_words: None)
    monkeypatch.setattr(training_process, "TrainingProcess", start)
    monkeypatch.setattr(training_process, "give_all_up", ended.extend)
    asked = {"state": "alone", "config": "x.yml", "folder": str(tmp_path), "minutes": 3}
    with pytest.raises(KeyboardInterrupt):
        act({**asked, "names": ["node1", "node2"]})
    assert ended == ["the first"]


def test_table_and_page_are_written(act, tmp_path):
    runs = [bring(tmp_path, name) for name in ("series/recognition", "series/evaluated")]
    folder = tmp_path / "benchmark" / "x"
    folder.mkdir(parents=True)
    asked = {"state": "compared", "folder": str(folder)}
    alone = [outcome(runs[0], "node1 alone")["training"], outcome("", "x", False)["training"]]
    found = act({**asked, "trainings": [outcome(run, "n") for run in runs], "alone": alone})
    assert found["verdict"]["outcome"] == "completed"
    (pace,) = json.loads((folder / "benchmark.json").read_text())["alone"]
    assert pace["run"] == runs[0] and pace["step_seconds"] > 0
    rows = json.loads((folder / "benchmark.json").read_text())["rows"]
    assert sorted(row["run"] for row in rows) == sorted(runs)
    assert all(run in (folder / "benchmark.md").read_text() for run in runs)
    (page,) = tmp_path.glob("compare-*.html")
    text = Page(page.read_text(encoding="utf-8")).text
    assert "Scaling" in text and "Figures by the number of nodes" in text
    assert any(str(page) in line for line in found["summary"])
    broken = act(
        {**asked, "trainings": [outcome(runs[0], "1 node"), outcome("", "2 nodes", False)]}
    )
    assert broken["verdict"]["outcome"] == "failed" and "2 nodes" in broken["verdict"]["text"]
    nothing = act({**asked, "trainings": [outcome("", "1 node", False)]})
    assert nothing["verdict"]["outcome"] == "failed"
