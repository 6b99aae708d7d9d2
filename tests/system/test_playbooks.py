# SPDX-License-Identifier: Apache-2.0
"""Playbooks as a user runs them: their head, their syntax, and that what is wrong is refused before
a node is contacted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery import candidates
from core_support import ROOT, program, put

PLAYBOOKS = sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "playbooks").rglob("*.yml")
    if not {"configs", "group_vars", "suites"} & set(path.parts)
)
ANSIBLE = os.path.join(os.path.dirname(sys.executable), "ansible-playbook")
# Whoever contacts these nodes finds nobody, at once.
HOST = {
    "ansible_host": "127.0.0.1",
    "trainyard_address": "198.51.100.0/24",
    "ansible_connection": "ssh",
    "trainyard_accelerator": "cpu",
    "trainyard_devices": 1,
}
LOST_NODE = re.compile(r"unreachable[a-z, ]*: \[node")
# What the config says it reads.
COCO = {f"{part}2017/1.jpg": "x" for part in ("train", "val")}
COCO.update({f"annotations/instances_{part}2017.json": "{}" for part in ("train", "val")})
JOB = (ROOT / "playbooks" / "configs" / "ppyoloe.yml").read_text(encoding="utf-8")


def ansible(folder, *words, timeout=60, **more):
    """Run ansible-playbook in the project; return (exit code, output)."""
    environment = dict(
        os.environ,
        ANSIBLE_LOCAL_TEMP=os.path.join(folder, "tmp"),
        ANSIBLE_NOCOLOR="1",
        ANSIBLE_SSH_ARGS="-o BatchMode=yes -o ConnectTimeout=3",
        HOME=folder,
        **more,
    )
    done = subprocess.run(
        [ANSIBLE] + list(words),
        cwd=str(ROOT),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
    )
    return done.returncode, " ".join(done.stdout.decode("utf-8", "replace").split())


def site(folder, group="trainers", **changes):
    """Write an inventory of two nodes that nobody can reach, with code and data that are there;
    return its path.
    """
    suites = {
        "paddledetection": {
            "code": {"path": str(ROOT / "examples" / "paddledetection")},
            "data": {"coco": {"path": folder}},
            "overrides": {"pretrain_weights": ""},
            "environment": {"package": "paddlepaddle", "version": "2.6.2"},
        }
    }
    variables = dict(
        {
            "trainyard_suites": suites,
            "trainyard_cache_dir": os.path.join(folder, "cache"),
            "trainyard_runs_dir": os.path.join(folder, "runs"),
            "trainyard_site": "test",
        },
        **changes,
    )
    hosts = {"node1": dict(HOST, ansible_port=1), "node2": dict(HOST, ansible_port=2)}
    return (
        put(folder, {"hosts.yml": yaml.safe_dump({group: {"hosts": hosts, "vars": variables}})})
        + "/hosts.yml"
    )


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_a_playbook_is_a_verb_that_fits_a_screen(name):
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    assert (
        lines[0] == "---"
        and all(line.startswith("# ") for line in lines[1:4])
        and not lines[4].startswith("#")
    ), name
    assert len(lines) <= 60
    # The third line says what it leaves behind.
    assert lines[3].startswith("# Leaves"), name
    if not name.startswith("playbooks/includes/"):
        assert f"ansible-playbook {name}" in lines[2]


@pytest.mark.parametrize("name", PLAYBOOKS)
def test_an_import_of_a_roles_part_reads_no_argument_specs(name):
    """Ansible would read and copy the role's specs for each import, 0.3 s of a start in all, and
    then validate nothing: they are about the whole role. job_config validates role variables.
    """
    for play in yaml.safe_load((ROOT / name).read_text(encoding="utf-8")):
        for task in play.get("tasks") or []:
            role = task.get("ansible.builtin.import_role") or {}
            if "tasks_from" in role:
                assert role.get("rolespec_validate") is False, task["name"]


def test_a_start_on_a_ready_site_reads_no_role_that_it_does_not_use(tmp_path):
    """A role that a play imports is read and copied also where the play matches no host, for 15 to
    20 ms of the controller's processor each time.
    """
    code, output = ansible(
        str(tmp_path), "-i", site(str(tmp_path)), "--list-tasks", str(ROOT / "playbooks/train.yml")
    )
    assert code == 0, output
    assert set(re.findall(r"(\w+) : ", output)) == {"collect", "launch", "preflight", "report"}, (
        output
    )


def test_a_part_that_is_skipped_as_a_whole_fails_at_nothing(tmp_path):
    """resume.yml skips the start where it only follows. Then the end of a role is skipped, too, and
    Ansible templates a skipped task's delegate.
    """
    folder = str(tmp_path)
    part = {"name": "preflight", "tasks_from": "name_differences"}
    tasks = [{"import_role": part, "when": False}]
    play = {"hosts": "localhost", "gather_facts": False, "tasks": tasks}
    put(folder, {"skipped.yml": yaml.safe_dump([play])})
    code, output = ansible(folder, "-i", site(folder), os.path.join(folder, "skipped.yml"))
    assert code == 0, output


def test_syntax_of_all(tmp_path):
    code, output = ansible(
        str(tmp_path),
        "-i",
        site(str(tmp_path)),
        "--syntax-check",
        "-e",
        "config=ppyoloe.yml",
        *[name for name in PLAYBOOKS if "includes" not in name],
    )
    assert code == 0, output


# --- refused before a node is contacted

REFUSED = {
    "unknown job": (["-e", "config=ppyole"], {}, "did you mean 'ppyoloe'?"),
    "a command": (
        ["-e", '{"config": "x; rm -rf /"}'],
        {},
        "'x; rm -rf /' is neither the name of a job",
    ),
    "a path outside": (
        ["-e", "config=../../etc/passwd"],
        {},
        "'../../etc/passwd' is neither the name of a job",
    ),
    "unknown key": (
        ["-e", "config={tmp}/mine.yml"],
        {},
        "mine.yml:%d node: unknown key; allowed: arguments" % (JOB.count("\n") + 1),
    ),
    "misspelt extra variable": (
        ["-e", "config=ppyoloe.yml", "-e", "node=1"],
        {},
        (
            "command line node: unknown variable; allowed: checkpoint_every, config, detach, devices, matrix,"
            " max_restarts, min_nodes, nodes, rehearse, rendezvous, scaling, start_port, verify"
        ),
    ),
    "misspelt group": (
        ["-e", "config=ppyoloe.yml"],
        {"group": "trainer"},
        "the group 'trainers' is missing or empty",
    ),
    "limit": (
        ["-e", "config=ppyoloe.yml", "--limit", "node1"],
        {},
        (
            "command line --limit: cuts the controller off; train.yml runs on all nodes of the job"
            " and does not support --limit; use -e nodes=N or -e nodes=NAME,NAME, or remove the"
            " host from the group trainers [cli.limit_cuts_job]"
        ),
    ),
    "limit with localhost": (
        ["-e", "config=ppyoloe.yml", "--limit", "localhost,node1"],
        {},
        "--limit: cuts node2 off the 2 nodes of this job",
    ),
}
# Verbs without a job; without this, a misspelt `run` would stop every run, and a misspelt group
# would end in silence with exit code 0.
for verb, names in {"stop": "lost, run", "status": "run", "follow": "after, run"}.items():
    REFUSED[f"{verb}, misspelt variable"] = (
        ["-e", "rn=x"],
        {"verb": verb},
        f"command line rn: unknown variable; allowed: {names}",
    )
    REFUSED[f"{verb}, misspelt group"] = (
        [],
        {"verb": verb, "group": "trainer"},
        "the group 'trainers' is missing or empty",
    )
REFUSED["resume, no run"] = (
    [],
    {"verb": "resume"},
    "command line run: say which run is to go on: -e run=<run id>",
)
REFUSED["resume, misspelt variable"] = (
    ["-e", "run=20261120-103501-x-1f2e", "-e", "devics=1"],
    {"verb": "resume"},
    "command line devics: unknown variable",
)
REFUSED["resume, a job"] = (
    ["-e", "run=20261120-103501-x-1f2e", "-e", "config=ppyoloe"],
    {"verb": "resume"},
    "command line config: unknown variable",
)
REFUSED["resume, no run id"] = (
    ["-e", "run=../../x"],
    {"verb": "resume"},
    "'../../x' is no run id; it looks like",
)
REFUSED["report, misspelt variable"] = (
    ["-e", "rns=x"],
    {"verb": "report"},
    "command line rns: unknown variable; allowed: run, runs",
)
REFUSED["report, misspelt group"] = (
    [],
    {"verb": "report", "group": "trainer"},
    "the group 'trainers' is missing or empty",
)
REFUSED["report, one run to compare"] = (
    ["-e", "runs=20261120-103501-x-1f2e"],
    {"verb": "report"},
    "no report: runs takes two to 8 different run ids",
)
REFUSED["resume, limit"] = (
    ["-e", "run=20261120-103501-x-1f2e", "--limit", "node1"],
    {"verb": "resume"},
    "resume.yml runs on all nodes of the job and does not support --limit",
)
REFUSED["stop, half a gang"] = (
    ["--limit", "node1"],
    {"verb": "stop"},
    "--limit cuts node2 off; a run is stopped on all nodes or on none",
)
REFUSED["stop, a lost node that the inventory lacks"] = (
    ["-e", "lost=node2,node9"],
    {"verb": "stop"},
    "lost: the inventory has no node9; it has node1, node2",
)
REFUSED["stop, no name of a node"] = (
    ["-e", "lost=node2,"],
    {"verb": "stop"},
    "command line lost: must be names of nodes, with commas between them",
)
REFUSED["stop, no run id"] = (
    ["-e", '{"run": ""}'],
    {"verb": "stop"},
    "'' is no run id; it looks like",
)
REFUSED["stop, a path"] = (
    ["-e", "run=../../x"],
    {"verb": "stop"},
    "'../../x' is no run id; it looks like",
)
# The same commands with nothing wrong do go to the nodes, so the others' silence means something.
GOOD = {
    "good": (
        [
            "-e",
            "config=ppyoloe.yml",
            "-e",
            "nodes=2",
            "-e",
            "devices=1",
            "-e",
            "collect_checkpoint=none",
        ],
        {},
        "nothing was started: STOP node",
    ),
    "good stop": ([], {"verb": "stop"}, "NO ANSWER from node1, node2"),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Run train.yml with every input; {name: (exit code, output, folder)}."""

    def one(item):
        name, (words, changes, _said) = item
        folder = str(tmp_path_factory.mktemp(name.replace(" ", "-")))
        put(folder, {"mine.yml": JOB + "node: 1\n", **COCO})
        inventory = site(folder, changes.get("group", "trainers"))
        verb = changes.get("verb", "train")
        code, output = ansible(
            folder,
            "-i",
            inventory,
            f"playbooks/{verb}.yml",
            *[word.replace("{tmp}", folder) for word in words],
        )
        return name, (code, output, folder)

    with ThreadPoolExecutor(max_workers=max(2, os.cpu_count() or 2)) as pool:
        return dict(pool.map(one, [*REFUSED.items(), *GOOD.items()]))


@pytest.mark.parametrize("name", list(REFUSED))
def test_refused_before_a_node_is_contacted(outcomes, name):
    code, output, folder = outcomes[name]
    assert code != 0 and not LOST_NODE.search(output)
    assert REFUSED[name][2] in output, output
    assert not {"cache", "runs"} & set(os.listdir(folder))  # nothing was written


@pytest.mark.parametrize("name", list(GOOD))
def test_a_good_command_goes_to_the_nodes(outcomes, name):
    """All nodes are unreachable, and each is named with its remedy (B1)."""
    code, output, _folder = outcomes[name]
    assert code != 0 and LOST_NODE.search(output), output
    assert GOOD[name][2] in output and "Origin:" not in output and "[ERROR]" not in output
    if name == "good":
        assert output.count("reach.") == 2 and output.count("-> ") == 2, output


def test_stop_without_a_run_ends_the_restart_that_waits(tmp_path):
    """The whole way: this controller's record, a note on every node of the run, and what is said;
    twice is once.
    """
    run = "20200101-000000-waits-%04x" % (os.getpid() % 0xFFFF)
    folder, home = (
        str(tmp_path),
        {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
    )
    inventory = site(folder, **home)
    text = (tmp_path / "hosts.yml").read_text()
    (tmp_path / "hosts.yml").write_text(
        text.replace("ansible_connection: ssh", "trainyard_home: '.{{ inventory_hostname }}'")
    )
    failed = {"outcome": "failed", "cause": "killed", "text": ""}
    entry = dict(run_json.new_entry(1), ended=time.time(), verdict=failed, again={"again": True})
    record = dict(run_json.new_record(run, "job", time.time()), attempts=[entry])
    plan = {"site": "test", "nodes": [{"name": "node1"}, {"name": "node2"}]}
    put(
        folder,
        {
            f"runs/{run}/run.json": json.dumps(record),
            f"runs/{run}/attempt-1/plan.json": json.dumps(plan),
        },
    )
    tools = program(tmp_path / "tools", "systemctl", "exit 0")
    for _time in range(2):
        code, output = ansible(
            folder,
            "-i",
            inventory,
            "playbooks/stop.yml",
            PATH=tools + os.pathsep + os.environ["PATH"],
        )
        assert (
            code == 0
            and "NOTHING TO STOP: " in output
            and "yours holds a node;" in output
            and f"restart of {run} " in output
            and "gives up" in output
        ), output
    for name in ("node1", "node2"):
        note = json.loads((tmp_path / f".{name}/runs/{run}/attempt-2/stop.json").read_text())
        assert note["by"] == "user"


HERE = """---
- hosts: localhost
  gather_facts: false
  vars: {trainyard_site: x, trainyard_runs_dir: ~/runs, trainyard_state_dir: ~/state, trainyard_cache_dir: ~/cache, groups: {trainers: [localhost]}}
  tasks:
    - ansible.builtin.include_vars: {file: "{{ item }}"}
      loop: FILES
    - ansible.builtin.copy: {content: "{{ VALUES }}", dest: SAID, mode: "600"}
"""
PLACES = {
    "__launch_runs": "runs", "__collect_runs": "runs", "__report_runs": "runs",
    "__preflight_runs": "runs", "__launch_prune_runs": "runs",
    "preflight_cache_dir": "cache", "workspace_cache_dir": "cache", "runtime_cache_dir": "cache",
    "preflight_state_dir": "state",
    "__report_state_dir": "state", "__ssh_trust_ca_dir": "state/ca",
    "__ssh_trust_known_hosts": "state/known_hosts",
}  # fmt: skip


def test_a_home_in_the_sites_paths_is_the_users(tmp_path):
    """Ansible's own tests of files and the words of a command (rsync, ssh) take a ~ for a name."""
    files = [
        str(path)
        for part in ("defaults", "vars")
        for path in sorted((ROOT / "roles").glob(f"*/{part}/main.yml"))
    ]
    values = "{{{}}} | to_json".format(", ".join(f"'{name}': {name}" for name in PLACES))
    put(
        tmp_path,
        {
            "play.yml": (
                HERE.replace("FILES", json.dumps(files))
                .replace("VALUES", values)
                .replace("SAID", str(tmp_path / "said.json"))
            )
        },
    )
    code, output = ansible(
        str(tmp_path),
        "-i",
        "localhost,",
        "-c",
        "local",
        "-e",
        "ansible_python_interpreter=" + sys.executable,
        str(tmp_path / "play.yml"),
    )
    assert code == 0, output
    assert json.loads((tmp_path / "said.json").read_text()) == {
        name: str(tmp_path / place) for name, place in PLACES.items()
    }


LOOKED = {
    "node1": {
        "launch_attempt_status": {"status": {"found": True}},
        "preflight_node_owner": {"held": []},
    },
    "node2": {
        "launch_attempt_status": {
            "failed": True,
            "msg": "The module interpreter '/usr/bin/python3' was not found.",
        }
    },
    "spare1": {"launch_attempt_status": {"unreachable": True, "msg": "No route to host"}},
    "spare2": {},
}
ASKED = """---
- hosts: localhost
  gather_facts: false
  tasks:
    - ansible.builtin.include_vars: {file: VARS}
    - ansible.builtin.copy: {content: "{{ __preflight_looks | to_json }}", dest: SAID, mode: "600"}
"""


def test_why_a_node_has_not_told_how_the_run_stands_is_said(tmp_path):
    groups = {
        "trainers": {"hosts": {name: LOOKED[name] for name in ("node1", "node2")}},
        "spares": {"hosts": {name: LOOKED[name] for name in ("spare1", "spare2")}},
    }
    said = str(tmp_path / "said.json")
    play = ASKED.replace("VARS", str(ROOT / "roles/preflight/vars/main.yml")).replace("SAID", said)
    put(tmp_path, {"play.yml": play, "hosts.yml": yaml.safe_dump(groups)})
    code, output = ansible(
        str(tmp_path),
        "-i",
        str(tmp_path / "hosts.yml"),
        "-e",
        "ansible_python_interpreter=" + sys.executable,
        str(tmp_path / "play.yml"),
    )
    assert code == 0, output
    looks = json.loads((tmp_path / "said.json").read_text())
    nodes = [{"name": name} for name in LOOKED]
    found = candidates.find_obstacles(
        list(LOOKED),
        {
            "looks": looks,
            "nodes": [],
            "run_id": "r",
            "site": {"nodes": nodes, "spares": []},
            "job": {},
        },
    )
    assert sorted(found) == ["node2", "spare1", "spare2"]
    assert "interpreter '/usr/bin/python3'" in found["node2"].text
    assert "not answer" not in found["node2"].text
    assert found["spare1"].text.endswith("not answer: No route to host")
    assert "(--limit)" in found["spare2"].text
