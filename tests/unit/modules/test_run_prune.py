# SPDX-License-Identifier: Apache-2.0
"""prune: what a rule chooses, what stays whatever it says, and that a removal takes nothing else
and nothing half.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

import pytest
import run_prune as module
import runs_info
from ansible_collections.trainyard.cluster.plugins.module_utils.records import prune_rules
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import (
    prune_scan,
)
from core_support import program, put
from system.test_playbooks import ansible, site

NOW = 1_795_000_000.0
DAY = 86400


def run_id(days, job="det", digits="0000"):
    """Return the id of a run that began so many days before NOW."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime(NOW - days * DAY)) + f"-{job}-{digits}"


def entry(days, job="det", **changes):
    """Return what a place says of an ordinary run of long ago."""
    plain = {
        "run": run_id(days, job), "job": job + "/paddledetection/c.yml", "site": "lab",
        "nodes": ["node1", "node2"], "checkpoint": "",
        "completed": True, "settled": True, "ended": NOW - days * DAY + 60, "held": "", "odd": "",
        "bytes": 100,
    }  # fmt: skip
    return dict(plain, **changes)


def place(*runs, **more):
    return dict(
        {
            "runs": list(runs),
            "strange": [],
            "unfinished": [],
            "bytes": sum(run["bytes"] for run in runs),
        },
        **more,
    )


def decided(rule, **places):
    looks = dict({"node1": place(), "node2": place(), "home": place()}, **places)
    return prune_rules.decide(prune_rules.build_rule(**rule), looks, "lab", NOW)


# --- the rule


@pytest.mark.parametrize(
    "rule, gone",
    [
        ({"keep": 2}, [3, 4]),
        ({"keep": "0"}, [1, 2, 3, 4]),
        ({"keep": 9}, []),
        ({"older_than": "3d"}, [4]),
        ({"older_than": "60h"}, [3, 4]),
        ({"older_than": "1w"}, []),
        ({"keep": 1, "older_than": "60h"}, [3, 4]),
        ({"keep": 3, "older_than": "60h"}, [4]),
        ({"run": run_id(3)}, [3]),
        ({}, []),
    ],
)
def test_what_a_rule_chooses(rule, gone):
    found = decided(rule, node1=place(*[entry(days) for days in (1, 2, 3, 4)]))
    assert found["remove"].get("node1", []) == sorted(run_id(days) for days in gone)


def test_the_newest_of_every_job_and_the_same_everywhere():
    """node2 lacks the newest run; it still keeps what node1 keeps."""
    all_of_it = [entry(1), entry(2), entry(3), entry(1, "seg"), entry(5, "seg")]
    found = decided(
        {"keep": 2}, node1=place(*all_of_it), node2=place(*all_of_it[1:]), home=place(entry(1))
    )
    assert found["remove"] == {"node1": [run_id(3)], "node2": [run_id(3)]}


def test_a_node_alone_makes_no_other_place_remove_a_run():
    """It names later runs of the same job, or calls another place's runs another job's."""
    real, fake = [entry(2), entry(3)], [entry(0.1 * n) for n in (1, 2, 3)]
    found = decided({"keep": 2}, node1=place(*fake, *real), node2=place(*real), home=place(*real))
    assert set(found["remove"]) == {"node1"}
    disputed = decided(
        {"keep": 0}, node1=place(entry(2) | {"job": "other/s/c"}), node2=place(entry(2))
    )
    assert disputed["remove"] == {} and disputed["stay"][0]["why"] == prune_rules.DISPUTED
    at_home = decided(
        {"keep": 0},
        node1=place(entry(2) | {"job": "other/s/c"}),
        node2=place(entry(2)),
        home=place(entry(2)),
    )
    assert at_home["remove"] == {place: [run_id(2)] for place in ("node1", "node2", "home")}
    # one name, another config: another job
    assert (
        decided(
            {"keep": 1}, node1=place(entry(1), dict(entry(2), job="det/paddledetection/other.yml"))
        )["remove"]
        == {}
    )


@pytest.mark.parametrize("value", ["5d", "-1", "01", "", "x", True, "1e3", "٥", "5\n"])
def test_a_count_that_is_none(value):
    assert "whole number" in prune_rules.value_problem("keep", value)


@pytest.mark.parametrize(
    "value", ["30", "0d", "d", "-1d", "1.5d", "30 d", "3m", "30D", "٣d", "3d\n", "123456d"]
)
def test_an_age_that_is_none(value):
    assert "with its unit" in prune_rules.value_problem("older_than", value)


def test_a_rule_is_needed_and_a_name_is_one():
    assert (
        prune_rules.find_contradiction({"confirm": "true"})[0] == "the rule"
        and "-e keep=5" in prune_rules.find_contradiction({})[1]
    )
    assert prune_rules.find_contradiction({"run": "x", "older_than": "1d"})[0] == "run"
    assert prune_rules.find_contradiction({"keep": 1, "older_than": "1d"}) is None
    assert (
        prune_rules.value_problem("keep", 3) is None
        and prune_rules.value_problem("older_than", "8w") is None
        and prune_rules.value_problem("confirm", "x") is None
    )


# --- what stays

STAYS = {
    "a unit on one node": (
        {"held": "trainyard-x-1.service is active"},
        {},
        {},
        "is in use on node1: trainyard-x-1.service is active",
    ),
    "a process on the other": (
        {},
        {"held": "process 7 bears its mark"},
        {},
        "is in use on node2: process 7 bears its mark",
    ),
    "half understood": (
        {"odd": "holds notes.txt besides its attempts"},
        None,
        None,
        "holds notes.txt besides its attempts",
    ),
    "ended just now": (
        {"ended": NOW - 5},
        {},
        {"settled": False},
        "ended 5 s ago; its logs may be on their way home",
    ),
    "on its way": (
        {},
        {},
        {"settled": False, "begun": NOW - 4},
        "was begun, or waits for its restart, since 4 s; it may be on its way to the nodes",
    ),
}


@pytest.mark.parametrize("name", list(STAYS))
def test_what_stays_whatever_the_rule_says(name):
    one, two, home, why = STAYS[name]
    places = {
        key: place(entry(9, **value))
        for key, value in (("node1", one), ("node2", two), ("home", home))
        if value is not None
    }
    found = decided({"keep": 0}, **places)
    assert found["remove"] == {} and {item["why"] for item in found["stay"]} == {why}
    sound = {key: place(entry(9)) for key in places}
    assert sorted(decided({"keep": 0}, **sound)["remove"]) == sorted(places), "without it, it goes"


def test_what_is_over_and_recorded_goes_at_once():
    assert decided({"run": run_id(9)}, node1=place(entry(9, ended=NOW - 5)),
        home=place(entry(9, ended=None)))["remove"] == {
        "node1": [run_id(9)], "home": [run_id(9)],
    }  # fmt: skip


@pytest.mark.parametrize(
    "settled, gone",
    [(True, {"home": [run_id(9)], "node1": [run_id(9)]}), (False, {"node1": [run_id(9)]})],
)
def test_a_node_that_does_not_answer_keeps_what_it_may_be_running(settled, gone):
    found = decided(
        {"keep": 0},
        node1=place(entry(9, settled=False)),
        node2=None,
        home=place(entry(9, settled=settled, ended=None)),
    )
    assert found["remove"] == gone
    # a node whose own unit never ended says nothing about the others either
    assert (
        "node1"
        not in decided({"keep": 0}, node1=place(entry(9, ended=None)), node2=None, home=None)[
            "remove"
        ]
    )


def test_runs_of_other_sites_stay():
    found = decided(
        {"keep": 0},
        home=place(entry(9), entry(8, site="attic")),
        node1=place(entry(8, site="attic")),
    )
    assert (found["remove"], found["foreign"]) == ({"home": [run_id(9)]}, [run_id(8)])
    assert decided({"run": run_id(8)}, home=place(entry(8, site="attic")))["remove"] == {}


def test_the_last_good_checkpoint_of_every_job_stays_at_every_place():
    having = [
        entry(5, checkpoint="best_model"),
        entry(4, checkpoint="model_final"),
        entry(3),
        entry(9, "seg", checkpoint="iter_30"),
    ]
    found = decided({"keep": 0}, node1=place(*having), home=place(having[0], having[2]))
    assert found["remove"] == {"node1": [run_id(5), run_id(3)], "home": [run_id(3)]}
    said = {(item["run"], tuple(item["places"])): item["why"] for item in found["stay"]}
    assert "job det (model_final, " in said[run_id(4), ("node1",)]
    assert (run_id(5), ("home",)) in said and (run_id(9, "seg"), ("node1",)) in said


def test_a_later_one_that_did_not_complete_does_not_take_its_place():
    runs = [
        entry(5, checkpoint="best_model"),
        entry(4, checkpoint="0", completed=False),
        entry(3, checkpoint="1", completed=False),
    ]
    found = decided({"keep": 0}, node1=place(*runs))
    assert found["remove"] == {"node1": [run_id(4)]} and len(found["stay"]) == 2


def test_nowhere_is_said():
    assert (
        decided({"run": run_id(9)})["unknown"]
        and not decided({"run": run_id(9)}, node1=place(entry(9)))["unknown"]
    )


# --- what a place says


TABLE = {"folders": ["output/c"], "best": "best_model", "last": "model_final|[0-9]*"}
PLAN = {
    "job": {"name": "det", "config": "c.yml"}, "suite": {"name": "paddledetection",
    "checkpoints": TABLE}, "site": "lab",
    "nodes": [{"name": "node1"}, {"name": "node2"}], "ranks": [],
}  # fmt: skip


def lay(folder, days=9, changes=None, **more):
    """Lay out a run as a node has it below folder/runs; changes: {path below the run: text or
    None}. Returns its path.
    """
    name = run_id(days)
    files = {
        "attempt-1/plan.json": json.dumps(PLAN),
        "attempt-1/attempt.json": json.dumps({"run": name}),
        "attempt-1/exit.json": json.dumps(
            dict({"service_result": "success", "stopped_by": None, "time": NOW - 5 * DAY}, **more)
        ),
        "attempt-1/ranks.jsonl": json.dumps({"event": "launcher_end", "exit_code": 0}) + "\n",
        "attempt-1/output/c/best_model.pdparams": "weights",
        "attempt-1/log/workerlog.0": "x" * 5000,
    }
    files.update(changes or {})
    put(
        folder,
        {f"runs/{name}/{path}": text for path, text in files.items() if text is not None},
    )
    os.symlink("/usr/bin", os.path.join(folder, "runs", name, "attempt-1", "work"))
    return os.path.join(str(folder), "runs", name)


def look(folder, held=None):
    return prune_scan.scan_runs(
        os.path.join(str(folder), "runs"),
        lambda name: prune_scan.describe_node_run(str(folder), name, held or {}),
    )


def test_what_a_node_says_of_a_run(tmp_path):
    lay(tmp_path)
    found = look(tmp_path, {run_id(9): "it runs"})
    assert found["strange"] == [] and found["runs"][0]["bytes"] == found["bytes"] > 5000
    assert dict(found["runs"][0], bytes=0) == {
        "run": run_id(9), "job": "det/paddledetection/c.yml", "site": "lab",
        "nodes": ["node1", "node2"], "checkpoint": "best_model",
        "completed": True, "settled": False, "begun": None, "ended": NOW - 5 * DAY,
        "held": "it runs", "odd": "", "bytes": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes, more, key, value",
    [
        ({"attempt-1/ranks.jsonl": ""}, {}, "completed", False),
        ({}, {"stopped_by": "user"}, "completed", False),
        ({}, {"service_result": "exit-code"}, "completed", False),
        ({"attempt-1/output/c/best_model.pdparams": ""}, {}, "checkpoint", ""),
        (
            {
                "attempt-1/output/c/best_model.pdparams": "",
                "attempt-1/output/c/model_final.pdparams": "x",
            },
            {},
            "checkpoint",
            "model_final",
        ),
        (
            {"attempt-1/output/c/best_model.pdparams": "", "attempt-1/output/c/7.pdparams": "x"},
            {},
            "checkpoint",
            "7",
        ),
        ({"attempt-1/exit.json": None}, {}, "ended", None),
        ({"notes.txt": "mine"}, {}, "odd", "holds notes.txt besides its attempts"),
        ({"attempt-1/plan.json": None}, {}, "odd", "has no attempt with its plan and record"),
        ({"attempt-1/plan.json": "{"}, {}, "odd", "has no attempt with its plan and record"),
        (
            {"attempt-1/attempt.json": '{"run": "20200101-000000-other-0000"}'},
            {},
            "odd",
            "has no attempt with its plan and record",
        ),
        ({"attempt-2/stop.json": "{}"}, {}, "odd", ""),  # a start that was refused
        ({"attempt-2/plan.json": "{}"}, {}, "odd", "has no attempt with its plan and record"),
    ],
)
def test_what_is_not_as_it_should_be(tmp_path, changes, more, key, value):
    lay(tmp_path, changes=changes, **more)
    assert look(tmp_path)["runs"][0][key] == value


def keep(run, node="node1", **shown):
    """Return the files that the supervisor of a run leaves on a node."""
    place = f"runs/{run}/supervisor/{node}"
    plans = [{"nodes": ["node1"], "fresh": json.dumps(PLAN), "template": ""}]
    return {
        f"{place}/order.json": json.dumps({"run": run}),
        f"{place}/plans.json": json.dumps(plans),
        f"{place}/status.json": json.dumps(shown),
        f"{place}/supervisor.log": "a line",
    }


def test_a_run_that_its_nodes_have_kept_goes_like_any_other(tmp_path):
    lay(tmp_path)
    put(tmp_path, keep(run_id(9), is_open=False, time=NOW))
    (found,) = look(tmp_path)["runs"]
    assert (found["odd"], found["checkpoint"], found["ended"]) == ("", "best_model", NOW - 5 * DAY)
    assert removed(tmp_path, [run_id(9)])["removed"] == [run_id(9)]


@pytest.mark.parametrize("shown, ended", [({"is_open": False, "time": NOW}, NOW), ({}, None)])
def test_what_a_spare_has_of_a_run_goes_with_it(tmp_path, shown, ended):
    put(tmp_path, keep(run_id(9), "spare1", **shown))
    (found,) = look(tmp_path)["runs"]
    assert (found["odd"], found["job"], found["ended"]) == ("", "det/paddledetection/c.yml", ended)
    assert removed(tmp_path, [run_id(9)])["removed"] == [run_id(9)]


def test_a_supervisor_of_another_run_keeps_it(tmp_path):
    lay(tmp_path)
    other = json.dumps({"run": run_id(8)})
    put(tmp_path, {**keep(run_id(9)), f"runs/{run_id(9)}/supervisor/node1/order.json": other})
    assert look(tmp_path)["runs"][0]["odd"] == "holds the supervisor of another run"


@pytest.mark.parametrize(
    "name, text",
    [
        ("order.json", "{"),
        ("plans.json", "[]"),
        ("plans.json", "[3]"),
        ("plans.json", json.dumps([{"fresh": "[]"}])),
    ],
)
def test_a_supervisor_that_was_not_finished_says_nothing(tmp_path, name, text):
    put(tmp_path, {**keep(run_id(9)), f"runs/{run_id(9)}/supervisor/node1/{name}": text})
    assert look(tmp_path)["runs"][0]["odd"] == "has no attempt with its plan and record"
    lay(tmp_path)
    assert look(tmp_path)["runs"][0]["odd"] == ""


@pytest.mark.parametrize("others", [{"is_open": True}, {"is_open": False, "time": NOW - DAY}])
def test_a_directory_of_several_nodes_ends_with_the_last_of_them(tmp_path, others):
    put(tmp_path, keep(run_id(9), "node1", is_open=False, time=NOW))
    put(tmp_path, keep(run_id(9), "node2", **others))
    (found,) = look(tmp_path)["runs"]
    assert found["ended"] == (NOW if "time" in others else None)


@pytest.mark.parametrize("name", ["supervisor", "attempt-3"])
def test_a_file_in_the_place_of_a_directory_keeps_the_run_alone(tmp_path, name):
    lay(tmp_path, 9)
    lay(tmp_path, 8)
    put(tmp_path, {f"runs/{run_id(9)}/{name}": "a training wrote it"})
    odd = [run["odd"] for run in look(tmp_path)["runs"]]
    assert odd == [f"holds {name} besides its attempts", ""]
    assert removed(tmp_path, [run_id(9), run_id(8)])["removed"] == [run_id(8)]


def test_a_directory_that_cannot_be_read_keeps_the_run_alone(tmp_path, monkeypatch):
    lay(tmp_path, 9)
    lay(tmp_path, 8)
    listed = os.listdir

    def deny(path):
        if str(path).endswith(f"{run_id(9)}/attempt-1"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "listdir", deny)
    assert "Permission denied" in look(tmp_path)["runs"][0]["odd"]
    assert removed(tmp_path, [run_id(9), run_id(8)])["removed"] == [run_id(8)]


def test_a_run_whose_nodes_may_begin_an_attempt_stays(run_module, tmp_path, quiet, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    lay(tmp_path, 9)
    lay(tmp_path, 8)
    unit = f"yardsupervisor-{run_id(9)}-1-node1.service"
    put(tmp_path / "home/.config/systemd/user", {unit: "", "other.service": ""})
    given = {"folder": str(tmp_path), "names": [run_id(9), run_id(8)]}
    result = run_module(module, given)
    assert result["removed"] == [run_id(8)] and os.listdir(tmp_path / "runs") == [run_id(9)]
    (problem,) = result["problems"]
    assert problem.startswith(f"{run_id(9)} stays: its supervisor is installed here")


def test_what_is_no_runs_directory(tmp_path):
    real = lay(tmp_path)
    runs = tmp_path / "runs"
    os.symlink(real, runs / run_id(8))
    put(runs, {"conform.json": "{}", "mine/x": "", run_id(7): "a file of a run's name"})
    found = look(tmp_path)
    assert [run["run"] for run in found["runs"]] == [run_id(9)]
    assert {item["name"]: item["why"] for item in found["strange"]} == {
        run_id(8): "is a link", "conform.json": "is no directory",
            "mine": "is not named as a run is", run_id(7): "is no directory",
    }  # fmt: skip
    assert prune_scan.scan_runs(str(tmp_path / "none"), None)["runs"] == []


def test_what_is_mounted_in_a_run_keeps_it(tmp_path):
    table = put(
        tmp_path,
        {
            "mountinfo": (
                f"36 35 98:0 / /proc rw - proc proc rw\n37 35 98:0 /a {tmp_path}/runs/x\\040y/data"
                " rw - ext4 /dev/sda rw\n"
            )
        },
    )
    assert (
        prune_scan.mounted_in(str(tmp_path / "runs/x y"), table + "/mountinfo")
        == f"{tmp_path}/runs/x y/data"
    )
    assert prune_scan.mounted_in(str(tmp_path / "runs/x"), table + "/mountinfo") is None
    assert prune_scan.mounted_in(str(tmp_path), table + "/absent")
    (tmp_path / "damaged").write_text("36 35 98:0 / /proc rw - proc proc rw\n37 35\n")
    assert prune_scan.mounted_in(str(tmp_path), str(tmp_path / "damaged"))


def test_what_belongs_to_somebody_else_keeps_it(tmp_path, monkeypatch):
    folder = lay(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 4321)
    assert "belongs to" in prune_scan.measure(folder)[
        1
    ] and "belongs to" in prune_scan.entry_problem(str(tmp_path / "runs"), run_id(9))


# --- the removal


def removed(folder, names, held=None):
    runs = os.path.join(str(folder), "runs")
    return prune_scan.remove_runs(
        runs,
        names,
        lambda name: prune_scan.describe_node_run(str(folder), name, {}),
        lambda: held or {},
    )


def test_a_run_goes_with_all_that_is_in_it_and_nothing_else(tmp_path):
    outside = put(tmp_path / "outside", {"data": "x"})
    lay(tmp_path, 9)
    kept = lay(tmp_path, 8)
    os.symlink(
        outside, os.path.join(str(tmp_path), "runs", run_id(9), "attempt-1", "output", "link")
    )
    os.chmod(os.path.join(str(tmp_path), "runs", run_id(9), "attempt-1", "output", "c"), 0o500)
    size = look(tmp_path)["runs"][0]["bytes"]
    assert removed(tmp_path, [run_id(9)]) == {"removed": [run_id(9)], "freed": size, "problems": []}
    assert (
        os.listdir(tmp_path / "runs") == [run_id(8)]
        and os.path.isdir(kept)
        and os.listdir(outside) == ["data"]
        and os.path.isdir("/usr/bin")
    )


def test_what_has_changed_since_it_was_judged_stays(tmp_path):
    lay(tmp_path, 9)
    assert removed(tmp_path, [run_id(9)], {run_id(9): "it runs again"})["problems"] == [
        f"{run_id(9)} stays: it runs again"
    ]
    put(tmp_path, {f"runs/{run_id(9)}/notes.txt": "mine"})
    assert "holds notes.txt" in removed(tmp_path, [run_id(9)])["problems"][0]
    assert removed(tmp_path, [run_id(3)])["problems"] == [f"{run_id(3)} stays: is gone"]
    assert os.listdir(tmp_path / "runs") == [run_id(9)]


def test_half_of_a_removal_is_taken_for_no_run_and_finished_the_next_time(tmp_path):
    lay(tmp_path, 9)
    half = prune_scan.MARK + run_id(9)
    os.rename(tmp_path / "runs" / run_id(9), tmp_path / "runs" / half)
    put(tmp_path / "runs" / half, {"attempt-1/plan.json": "{"})
    found = look(tmp_path)
    assert (found["runs"], found["unfinished"]) == ([], [half])
    assert removed(tmp_path, [])["removed"] == [run_id(9)] and os.listdir(tmp_path / "runs") == []


@pytest.mark.parametrize("odd", [".pruning-mine", ".pruning-", ".pruning-" + run_id(9) + ".bak"])
def test_what_only_looks_like_half_of_a_removal_stays(tmp_path, odd):
    put(tmp_path, {f"runs/{odd}/x": ""})
    assert (
        look(tmp_path)["unfinished"] == []
        and removed(tmp_path, [])["removed"] == []
        and os.path.exists(tmp_path / "runs" / odd)
    )


# --- in words


# --- the module, and the verb on two "nodes" of this machine


@pytest.fixture
def quiet(tmp_path, monkeypatch):
    """A systemd that knows no unit of ours."""
    monkeypatch.setenv(
        "PATH", program(tmp_path / "bin", "systemctl", "exit 0") + ":" + os.environ["PATH"]
    )
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.mark.parametrize("check", [True, False])
def test_the_module(run_module, tmp_path, quiet, marked, check):
    lay(tmp_path, 9)
    lay(tmp_path, 8)
    marked(f"{run_id(8)}/1")
    found = run_module(runs_info, {"folder": str(tmp_path)})["look"]
    assert [bool(run["held"]) for run in found["runs"]] == [False, True]
    result = run_module(
        module,
        {"folder": str(tmp_path), "names": [run_id(9), run_id(8)]},
        check,
    )
    assert result["changed"] is True and sorted(os.listdir(tmp_path / "runs")) == (
        [run_id(9), run_id(8)] if check else [run_id(8)]
    )
    assert check or "bears its mark" in result["problems"][0]


@pytest.fixture(scope="module")
def verb(tmp_path_factory):
    """Two nodes that are directories of this machine, with one old run each, and home: verb(*words)
    -> (exit code, output, what is left).
    """
    folder = str(tmp_path_factory.mktemp("verb"))
    path = program(os.path.join(folder, "bin"), "systemctl", "exit 0") + ":" + os.environ["PATH"]
    homes = {
        "launch_home": f"{folder}/{{{{ inventory_hostname }}}}",
        "ansible_python_interpreter": sys.executable,
    }
    inventory = site(folder, trainyard_site="lab", **homes)
    text = (
        open(inventory, encoding="utf-8")
        .read()
        .replace("ansible_connection: ssh", "ansible_connection: local")
    )
    put(folder, {"hosts.yml": text})
    for node in ("node1", "node2"):
        for days, weights in ((9, ""), (8, "w")):
            lay(
                os.path.join(folder, node),
                days,
                {"attempt-1/output/c/best_model.pdparams": weights},
            )
        put(os.path.join(folder, node, "runs"), {"notes.txt": "mine"})
    for days in (9, 8):
        record = {"run": run_id(days), "attempts": [{"verdict": {"outcome": "completed"}}]}
        put(
            os.path.join(folder, "runs", run_id(days)),
            {"plan.json": json.dumps(PLAN), "run.json": json.dumps(record)},
        )

    def call(*words):
        code, output = ansible(folder, "-i", inventory, "playbooks/prune.yml", *words)
        left = {
            each: sorted(os.listdir(os.path.join(folder, each, "runs")))
            for each in ("node1", "node2")
        }
        return code, output, dict(left, home=sorted(os.listdir(os.path.join(folder, "runs"))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        patch.setenv("XDG_RUNTIME_DIR", folder)
        yield call


ALL = {
    "node1": [run_id(9), run_id(8), "notes.txt"],
    "node2": [run_id(9), run_id(8), "notes.txt"],
    "home": [run_id(9), run_id(8)],
}


def test_the_verb(verb):
    """One after the other: refused, shown, one node, all."""
    code, output, left = verb("-e", "confirm=true")
    assert code != 0 and left == ALL
    assert "the rule: is missing" in output and "-e keep=5" in output
    code, output, left = verb(
        "-e", "keep=0", "-e", "kep=1", "-e", "confirm=true", "--limit", "node1"
    )
    assert code != 0 and "command line kep: " in output and left == ALL
    for words in ([], ["-e", "confirm=true", "--check"]):
        code, output, left = verb("-e", "keep=0", *words)
        assert code == 0 and left == ALL, output
        assert "WOULD REMOVE 2 runs" in output and "-e confirm=true does it" in output
        (kept,) = re.findall(rf"{run_id(8)} on node1, node2 (.*)", output)
        assert "job det (best_model, " in kept
        assert "node1: notes.txt is" in output
    code, output, left = verb("-e", "keep=0", "-e", "confirm=true", "--limit", "node1")
    assert code == 0 and left == dict(ALL, node1=[run_id(8), "notes.txt"]), output
    assert "of --limit: node2, home" in output
    code, output, left = verb("-e", "keep=0", "-e", "confirm=true")
    assert code == 0 and left == {
        "node1": [run_id(8), "notes.txt"],
        "node2": [run_id(8), "notes.txt"],
        "home": [],
    }, output
    assert "REMOVED 2 runs" in output
    code, output, _left = verb("-e", "keep=0", "-e", "confirm=true")
    assert code == 0 and "REMOVED 0 runs" in output and "changed=0" in output
