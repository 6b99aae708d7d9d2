# SPDX-License-Identifier: Apache-2.0
"""The role collect against two pretended nodes, with real Ansible, real rsync and a stand-in for
ssh. The training of one node does all the harm that it can.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler
from core_support import ROOT, RUN, compiled, put

SSH = """#!%s
import os, sys
words = sys.argv[1:]
while words and words[0].startswith("-"):
    words = words[2:] if words[0] in ("-o", "-p", "-i", "-l", "-F", "-J") else words[1:]
os.environ["HOME"] = os.path.join(%r, words[0])
os.chdir(os.environ["HOME"])
os.execvp("sh", ["sh", "-c", " ".join(words[1:])])
"""
PLAN = compiled()
FOLDER = PLAN["suite"]["checkpoints"]["folders"][0]


@pytest.fixture
def site(tmp_path):
    """Two nodes that have an attempt of PLAN. collect(what={...}) returns (exit code, output). The
    attempt on the controller is `home`.
    """
    script = Path(put(tmp_path / "bin", {"ssh": SSH % (sys.executable, str(tmp_path))}), "ssh")
    script.chmod(0o755)
    made = type("Site", (), {})()
    made.home = tmp_path / "runs" / RUN / "attempt-1"
    made.node = {
        name: tmp_path / name / ".trainyard" / "runs" / RUN / "attempt-1"
        for name in ("node1", "node2")
    }
    for name, folder in made.node.items():
        put(
            folder,
            {
                "plan.json": compiler.canonical_bytes(PLAN).decode(),
                "job.json": "{}",
                "logs.txt": f"console of {name}\n",
                "exit.json": "{}",
            },
        )
        put(
            folder,
            {"log/workerlog.%d" % local: "rank %d of %s\n" % (local, name) for local in range(8)},
        )
        put(
            folder,
            {
                FOLDER + "/best_model.pdparams": "parameters",
                FOLDER + "/best_model.pdopt": "optimizer",
            },
        )

    def collect(task="main", followed=None, **more):
        status = {
            "found": True,
            "checkpoints": dict(PLAN["suite"]["checkpoints"]),
            "run": RUN,
            "attempt": 1,
        }
        hosts = {
            name: {
                "ansible_ssh_executable": str(script),
                "launch_attempt_status": {
                    "status": dict(
                        status,
                        plan_sha256=hashlib.sha256((folder / "plan.json").read_bytes()).hexdigest(),
                    )
                },
            }
            for name, folder in made.node.items()
        }
        attempt = {"run_id": RUN, "number": 1, "nodes": sorted(hosts)}
        for name, known in hosts.items():
            known["run_attempt"] = attempt
            if followed:  # {node: what its last look returned}
                known["launch_status"] = followed[name]
        last = {
            "copy": {
                "content": "{{ groups.trainyard_incomplete_nodes | default([])"
                " | map('extract', hostvars, 'collect_problems') | flatten | to_json }}",
                "dest": str(tmp_path / "incomplete"),
            }
        }
        parts = [
            {"import_role": {"name": "collect", "tasks_from": part}}
            for part in (("logs", "plan") if task == "main" else (task,))
        ]
        if task == "main":  # the model comes after the verdict, from the first node
            model = {"import_role": {"name": "collect", "tasks_from": "model"}}
            parts.append(dict(model, when="inventory_hostname == 'node1'"))
        plays = [
            {"hosts": "trainers", "tasks": parts},
            {"hosts": "localhost", "tasks": [last]},
        ]
        variables = dict(
            {"trainyard_runs_dir": str(tmp_path / "runs"), "trainyard_collect_free": 0}, **more
        )
        inventory = {
            "trainers": {"hosts": hosts, "vars": variables},
            "ungrouped": {"hosts": {"localhost": {"ansible_connection": "local"}}},
        }
        put(
            tmp_path,
            {
                "play.yml": json.dumps([dict(play, gather_facts=False) for play in plays]),
                "hosts.yml": json.dumps(inventory),
            },
        )
        words = [
            os.path.join(os.path.dirname(sys.executable), "ansible-playbook"),
            "-i",
            str(tmp_path / "hosts.yml"),
        ]
        done = subprocess.run(
            [*words, str(tmp_path / "play.yml"), "-e",
            json.dumps({"ansible_python_interpreter": sys.executable})],
            cwd=ROOT, env=dict(os.environ, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg")),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False,
        )  # fmt: skip
        noted = tmp_path / "incomplete"  # absent where the first play ended on all nodes
        return (
            done.returncode,
            done.stdout,
            json.loads(noted.read_text() if noted.exists() else "[]"),
        )

    made.collect = collect
    return made


@pytest.mark.parametrize("number", [1, 2])
def test_a_node_that_answered_with_its_end_is_not_asked_again(site, number):
    """The module could not read it any more. An answer about another attempt does not count."""
    status = {"found": True, "checkpoints": PLAN["suite"]["checkpoints"], "run": RUN}
    followed = {}
    for name, folder in site.node.items():
        logs = evidence.collect(str(folder), name)
        logs["changed"] = True  # as a node may answer
        known = {"answer": logs, "received": time.time()}
        followed[name] = {"status": dict(status, attempt=number), "logs": known}
        put(folder, {"plan.json": "{"})
    put(site.home, {"plan.json": compiler.canonical_bytes(PLAN).decode(), "../job.json": "{}"})
    code, output, incomplete = site.collect(followed=followed)
    assert ((code == 0) is (number == 1)) and incomplete == [], output
    logs = {path.name for path in site.home.glob("rank-*")}
    assert len(logs) == (16 if number == 1 else 0), output


def names(folder):
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() or path.is_symlink()
    }


def test_what_a_training_does_costs_nothing_but_its_own_excess(site, tmp_path):
    ours = compiler.canonical_bytes(PLAN).decode()
    put(site.home, {"plan.json": ours, "../job.json": '{"ours": 1}'})
    evil = site.node["node2"]
    mine = put(tmp_path / "mine", {"secret": "mine"}) + "/secret"
    put(evil, {"log/workerlog.3": "x" * (2 << 20), "log/workerlog.4": "y" * 1000})
    (evil / "log/workerlog.5").unlink()
    os.mkfifo(evil / "log/workerlog.5")
    (evil / "log/workerlog.6").unlink()
    os.symlink(mine, evil / "log/workerlog.6")
    put(evil / "log", {"a --rsh=sh -c touch$IFS/x.log": "x", "workerlog.0 --rsh=x": "x"})
    first = site.node["node1"] / FOLDER
    os.symlink(mine, first / "best_model.link")
    os.mkfifo(first / "best_model.pipe")
    put(first, {"best_model.x --rsh=touch": "x"})
    put(
        evil, {"job.json": '{"theirs": 1}'}
    )  # (a plan that differs, below: rank_logs_info goes by the node's own)
    other = copy.deepcopy(PLAN)
    other["env"]["LD_PRELOAD"] = "/tmp/x.so"
    put(evil, {"plan.json": compiler.canonical_bytes(other).decode()})
    code, said, incomplete = site.collect(
        trainyard_collect_bytes="1 MiB", trainyard_collect_files=50
    )
    assert code == 0 and incomplete == [], said
    assert (site.home / "plan.json").read_text() == ours and (
        site.home.parent / "job.json"
    ).read_text() == '{"ours": 1}'
    here = names(site.home)
    assert {
        "rank-%03d.node1.log" % rank for rank in range(8)
    } <= here and "rank-012.node2.log" in here
    assert not {"rank-011.node2.log", "rank-013.node2.log", "rank-014.node2.log"} & here
    assert "trainyard_collect_bytes" in said and "log/workerlog.3" in said
    assert (site.home / "rank-000.node1.log").read_text() == "rank 0 of node1\n"
    assert {name for name in here if name.startswith("checkpoint/")} == {
        "checkpoint/best_model.pdopt",
        "checkpoint/best_model.pdparams",
    }
    assert not any((site.home / name).is_symlink() for name in here) and not any(
        name.startswith((".incoming", ".checkpoint")) for name in here
    )
    assert sum((site.home / name).stat().st_size for name in here if ".node2." in name) <= 1 << 20


def test_a_record_that_cannot_be_written_is_named_and_costs_no_model(site):
    put(site.home.parent, {"run.json": '{"version": 99, "attempts": []}'})
    code, said, incomplete = site.collect()
    assert code == 0 and any("the trained model" in problem for problem in incomplete), said
    assert (site.home / "checkpoint" / "best_model.pdparams").read_text() == "parameters"


def test_another_controller_takes_what_the_nodes_agree_on_and_one_goes_without_where_they_do_not(
    site,
):
    code, said, _incomplete = site.collect("plan")
    assert code == 0, said
    assert json.loads((site.home / "plan.json").read_text())["endpoints"] == PLAN["endpoints"]
    assert not (site.home.parent / "job.json").exists(), "{} is no job"
    (site.home / "plan.json").unlink()
    put(site.node["node2"], {"plan.json": compiler.canonical_bytes(dict(PLAN, env={})).decode()})
    code, said, _incomplete = site.collect("plan")
    assert code == 0 and not (site.home / "plan.json").exists() and "do not agree" in said, said
