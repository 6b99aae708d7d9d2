# SPDX-License-Identifier: Apache-2.0
"""resume_point_choice: the best of what all machines have found, and when a restart waits for a
node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import restart_policy
from core_support import ROOT, RUN, put
from unit.modules.test_checkpoint_fetch import RULE, TRUE


def test_the_nodes_and_the_controllers_checkpoints_are_compared(run_action, tmp_path):
    put(tmp_path / "runs" / RUN / "attempt-2" / "checkpoint", {"best_model.pdparams": "\x00"})
    asked = {"run_id": RUN, "runs_dir": str(tmp_path / "runs"), "rule": RULE}
    found = {"node1": {"point": dict(TRUE), "skipped": []}}
    chosen = run_action("resume_point_choice", dict(asked, found=found), check=True)
    assert (
        chosen["point"]["home"] == str(tmp_path / "runs" / RUN / "attempt-1" / "checkpoint")
        and chosen["point"]["source"] == "node1"
    )
    assert (
        chosen["incomplete"][0]["node"] == "home"
        and chosen["incomplete"][0]["why"] == "best_model.pdopt is missing"
        and "skipped" not in chosen
        and chosen["changed"] is False
    )
    assert run_action("resume_point_choice", dict(asked, found={}))["point"] == {}


def test_what_is_no_run_is_refused(run_action, tmp_path):
    asked = {"run_id": "../../etc", "runs_dir": str(tmp_path), "rule": RULE, "found": {}}
    assert run_action("resume_point_choice", asked)["code"] == "attempt.bad_run_id"


LONG, MANY = "n" * 300, {"%d.pdopt" % number: ["f", 1, "b" * 64] for number in range(2001)}


@pytest.mark.parametrize(
    "harm",
    [
        {"digest": "/etc/passwd"},
        {"digest": "0" * 64},
        {"files": {}},
        {"files": None},
        {"files": MANY},
        {"name": "../x"},
        {"name": "a\nb"},
        *(
            {"files": {name: ["f", 1, "b" * 64]}}
            for name in (
                "../../x",
                "/etc/x",
                "-e",
                "a b --rsh=x",
                "a\nb",
                LONG,
                "a/../b",
                "",
                "a//b",
                "\x1b[2J",
            )
        ),
        {"files": {"4.pdopt": ["f", -1, "b" * 64]}},
        {"files": {"4.pdopt": ["l", 1, "b" * 64]}},
        {"files": {"4.pdopt": "f"}},
        {"attempt": 0},
        {"attempt": "1"},
        {"attempt": True},
        {"epoch": "5"},
        {"epoch": 10**400},
        {"lr": "x"},
        {"saved": None},
        {"stem": ".."},
        {"path": "/a/../b"},
        {"path": "x"},
        {"path": None},
        {"instead": "no"},
        {"first": []},
    ],
    ids=lambda harm: "-".join(harm),
)
def test_a_point_that_cannot_be_one_is_skipped_and_the_others_count(run_action, tmp_path, harm):
    wrong = dict(TRUE, attempt=9, **{key: value for key, value in harm.items() if key != "attempt"})
    wrong.update({key: value for key, value in harm.items() if key == "attempt"})
    if (
        harm.get("files")
        and "digest" not in harm
        and all(isinstance(entry, list) for entry in wrong["files"].values())
    ):
        wrong["digest"] = manifest.digest(wrong["files"])
    asked = {
        "run_id": RUN,
        "runs_dir": str(tmp_path),
        "rule": RULE,
        "found": {
            "node2": {"point": wrong, "skipped": []},
            "node1": {"point": TRUE, "skipped": []},
        },
    }
    chosen = run_action("resume_point_choice", asked)
    assert chosen["point"]["source"] == "node1" and chosen["point"]["attempt"] == 1
    assert [row["node"] for row in chosen["incomplete"]] == ["node2"]


@pytest.mark.parametrize(
    "ranks, silent, point, waits",
    [
        (
            [],
            ["node1"],
            None,
            "node1 (attempt 1)",
        ),  # a node that was lost has said nothing of what it saved
        ([{"rank": 0, "saved_count": 3}], ["node1"], None, "node1 (attempt 1)"),
        (
            [{"rank": 0, "saved_count": 3}],
            ["node1"],
            {"attempt": 1, "source": "home"},
            "node1 (attempt 1)",
        ),
        ([{"rank": 0, "saved_count": 3}], ["node1"], {"attempt": 1, "source": "node1"}, ""),
        ([{"rank": 0, "saved_count": 3}], ["node1"], {"attempt": 2, "source": "home"}, ""),
        ([{"rank": 0, "saved_count": 0}], ["node1"], None, ""),
        ([{"rank": 0, "saved_count": 3}], ["node2"], None, ""),
    ],
)
def test_a_restart_waits_for_a_node_that_may_hold_a_newer_checkpoint(
    run_action, tmp_path, ranks, silent, point, waits
):
    run = put(
        tmp_path / RUN,
        {"attempt-1/plan.json": json.dumps({"nodes": [{"name": "node1"}, {"name": "node2"}]})},
    )
    run_json.write_entry(
        run, run_json.new_record(RUN, "a", 1.0), run_json.new_entry(1, ranks=ranks)
    )
    found = {point["source"]: {"point": dict(TRUE, **point)}} if point else {}
    asked = {
        "run_id": RUN,
        "rule": RULE,
        "runs_dir": str(tmp_path),
        "found": found,
        "silent": silent,
        "tries": 1,
    }
    said = run_action("resume_point_choice", asked)["waits"]
    assert waits in said and bool(said) == bool(waits)
    # its last try, and a person, take what there is
    assert (
        run_action("resume_point_choice", dict(asked, tries=restart_policy.MAX_TRIES))["waits"]
        == run_action("resume_point_choice", dict(asked, tries=0))["waits"]
        == ""
    )


def test_the_role_stops_a_restart_there_and_nothing_else(tmp_path):
    run = put(
        tmp_path / "runs" / RUN, {"attempt-1/plan.json": json.dumps({"nodes": [{"name": "node1"}]})}
    )
    run_json.write_entry(run, run_json.new_record(RUN, "a", 1.0), run_json.new_entry(1))
    known = {
        "preflight_read": {"suite": {"resume": RULE}, "project": "/"},
        "launch_resume_decision": {"run": RUN},
    }
    play = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "tasks": [{"import_role": {"name": "preflight", "tasks_from": "select_checkpoint"}}],
        }
    ]
    path = (
        put(
            tmp_path,
            {
                "play.yml": json.dumps(play),
                "hosts.yml": json.dumps({"trainers": {"hosts": {"node1": None}}}),
            },
        )
        + "/play.yml"
    )
    given = json.dumps(
        dict(
            known,
            preflight_runs_dir=str(tmp_path / "runs"),
            ansible_python_interpreter=sys.executable,
        )
    )
    argv = [
        os.path.join(os.path.dirname(sys.executable), "ansible-playbook"),
        "-i",
        str(tmp_path / "hosts.yml"),
        "-c",
        "local",
        path,
        "-e",
        given,
    ]
    environment = dict(os.environ, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), TRAINYARD_RESTART="0")
    codes = {}
    for words in ("again_try=5", "again=1 again_try=5", "again=1"):
        done = subprocess.run(
            [*argv, "-e", words],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        codes[words] = done.returncode
    assert (
        codes == {"again_try=5": 0, "again=1 again_try=5": 0, "again=1": 2}
        and "on node1 (attempt 1)" in done.stdout
    ), done.stdout
