# SPDX-License-Identifier: Apache-2.0
"""A restart: the command line that goes on, and ansible-playbook processes that really take each
other's place.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery import (
    failed_nodes,
    node_replacement,
    resume_command,
)
from core_support import ROOT, RUN, put
from system.test_playbooks import ansible

ANSIBLE = os.path.join(os.path.dirname(sys.executable), "ansible-playbook")


def words(*given, tries=1):
    """Return the follow-up of a command line as words."""
    return resume_command.build(["ansible-playbook", *given], "playbooks/resume.yml", RUN, 1, tries)


OWN = ["-e", json.dumps({"run": RUN, "again": 1})]


@pytest.mark.parametrize(
    "given, kept",
    [
        (["-e", "config=ppyoloe.yml"], []),
        (
            [
                "-e",
                "config=a.yml nodes=2 devices=1 start_port=18000 max_restarts=3",
                "-e",
                "verify=full",
            ],
            [],
        ),
        (
            ["-e", "config=a.yml collect_checkpoint=last launch_poll_seconds=1"],
            ["-e", "collect_checkpoint=last launch_poll_seconds=1"],
        ),
        (["-e", "config=a.yml x='a b' rehearse=false"], ["-e", "x='a b' rehearse=false"]),
        (
            ["-e", '{"config": "a.yml", "launch_poll_seconds": 1}'],
            ["-e", '{"launch_poll_seconds": 1}'],
        ),
        (["-e", '{"config": "a.yml"}', "-e", '{"a": {"run": 1}}'], ["-e", '{"a": {"run": 1}}']),
        (
            ["-e", "@/tmp/vars.yml"],
            ["-e", "@/tmp/vars.yml"],
        ),  # it may be a vault; resume.yml leaves out what its record holds
        (["-e", "run=x again=3", "-e", "again_try=2"], []),
        (
            ["-i", "inventory/mine", "-i", "more"],
            ["--inventory=inventory/mine", "--inventory=more"],
        ),
        (
            ["-iinventory/mine", "--forks=8", "-vv"],
            ["--verbose", "--verbose", "--inventory=inventory/mine", "--forks=8"],
        ),
        (
            ["-l", "localhost,node1", "-u", "me", "-T", "20"],
            ["--user=me", "--timeout=20", "--limit=localhost,node1"],
        ),
        (["--vault-id", "a@p1", "--vault-id", "b@p2"], ["--vault-id=a@p1", "--vault-id=b@p2"]),
        (
            ["--ssh-common-args=-o ProxyJump=x", "-c", "local"],
            ["--connection=local", "--ssh-common-args=-o ProxyJump=x"],
        ),
        (
            ["-b", "--become-user", "root", "--start-at-task", "Follow", "--step"],
            ["--become", "--become-user=root"],
        ),
    ],
)
def test_what_stays_of_a_command(given, kept):
    made = words("playbooks/train.yml", *given)
    assert made == ["playbooks/resume.yml", *kept, *OWN], made


def test_a_follow_up_of_a_follow_up_does_not_grow():
    once = words("playbooks/train.yml", "-e", "config=a.yml collect_checkpoint=none", "-f", "3")
    twice = resume_command.build(["ansible-playbook", *once], "playbooks/resume.yml", RUN, 2, 3)
    assert twice == [*once[:-1], json.dumps({"run": RUN, "again": 2, "again_try": 3})]
    assert resume_command.read_restart(
        [word for flag, word in zip(twice, twice[1:]) if flag == "-e"]
    ) == {"run": RUN, "after": 2, "tries": 3}
    assert resume_command.read_restart(["config=a.yml", "run=" + RUN]) is None
    older = [
        "config=a.yml",
        "run=" + RUN,
        "again=2",
    ]  # an older Trainyard's command that still waits
    assert resume_command.read_restart(older) == {"run": RUN, "after": 2, "tries": 1}


@pytest.mark.parametrize(
    "run", [RUN + " launch_runs_dir=/tmp/x", RUN + "\n-e x", "../" + RUN, "{{ 1 }}", ""]
)
def test_what_is_no_run_id_becomes_no_word_of_a_command(run):
    with pytest.raises(resume_command.CommandRefused):
        resume_command.build(
            ["ansible-playbook", "playbooks/train.yml"], "playbooks/resume.yml", run, 1
        )
    assert resume_command.read_restart([json.dumps({"run": run, "again": 1})]) is None


@pytest.mark.parametrize(
    "option",
    [
        "-k",
        "-K",
        "-J",
        "--ask-become-pass",
        "--vault-id=mine@prompt",
        "--vault-id=@prompt",
        "--vault-id=prompt",
    ],
)
def test_a_password_that_was_typed_cannot_be_given_again(option):
    with pytest.raises(resume_command.CommandRefused, match="password"):
        words("playbooks/train.yml", option, "-e", "config=a.yml")


# --- real processes

MODULE = """#!/usr/bin/python
import json, os
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec={"say": {"type": "dict"}}, supports_check_mode=True)
with open(%r, "a") as log:
    log.write("%%d %%s\\n" %% (os.getppid(), json.dumps(module.params["say"])))
(module.fail_json if module.params["say"].pop("fail", False) else module.exit_json)(msg="said", **module.params["say"])
"""
TASKS = """---
- hosts: localhost
  gather_facts: false
  tasks:
    - name: First
      %s:
        say: %s
    - name: Fail as report does
      ansible.builtin.fail: {msg: FAILED}
      when: %s
"""
COLLECTION = ROOT / "collections" / "ansible_collections" / "trainyard" / "cluster"
SETTINGS = "callbacks_enabled = trainyard.cluster.restart\n"
# As in an ansible.cfg from before the callbacks were used by their names in the collection.
OLD_SETTINGS = """\
callback_plugins = plugins/callback
stdout_callback = trainyard
callbacks_enabled = trainyard_again
"""
DECIDED = {
    "again": True,
    "delay": 0,
    "reason": None,
    "why": "",
    "number": 1,
    "of": 2,
    "cause": "killed",
}


def ended(attempt, again):
    """What run_record says at the end of an attempt."""
    return {
        "run": RUN,
        "attempt": attempt,
        "verdict": {"outcome": "failed" if again is not None else "completed"},
        "again": again,
    }


@pytest.fixture
def project(tmp_path):
    """A project with the callback, a module that says what it is told, and playbooks that end at
    once; call(*words) runs one.
    """

    def call(*given, train=None, resume=None, environment=None, start=False, settings=SETTINGS):
        log = tmp_path / "log"
        first, then = (
            train or ("run_record", ended(1, DECIDED), True),
            resume or ("run_record", ended(2, None), False),
        )
        put(
            str(tmp_path),
            {
                "library/run_record.py": MODULE % str(log),
                "library/resume_decision.py": MODULE % str(log),
                "library/other.py": MODULE % str(log),
                "library/plan.py": MODULE % str(log),
                "library/attempt_monitor.py": MODULE % str(log),
                "playbooks/train.yml": (
                    TASKS % (first[0], json.dumps(first[1]), str(first[2]).lower())
                ),
                "playbooks/resume.yml": (
                    TASKS % (then[0], json.dumps(then[1]), str(then[2]).lower())
                ),
                "ansible.cfg": (
                    f"[defaults]\nlibrary = library\n{settings}"
                    f"localhost_warning = False\ninterpreter_python = {sys.executable}\n"
                    "collections_path = collections\n"
                ),
            },
        )
        collection = tmp_path / "collections" / "ansible_collections" / "trainyard" / "cluster"
        if not collection.exists():
            collection.mkdir(parents=True)
            for name in ("meta", "plugins", "galaxy.yml"):
                os.symlink(COLLECTION / name, collection / name)
            os.symlink(tmp_path / "playbooks", collection / "playbooks")
            os.symlink(ROOT / "plugins", tmp_path / "plugins")
        environment = dict(
            os.environ,
            ANSIBLE_LOCAL_TEMP=str(tmp_path / "tmp"),
            HOME=str(tmp_path),
            **(environment or {}),
        )
        for name in ("ANSIBLE_CONFIG", "PYTHONUNBUFFERED"):
            environment.pop(name, None)
        process = subprocess.Popen(
            [ANSIBLE, "-i", "localhost,", "-c", "local", *given], cwd=str(tmp_path),
            env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        if start:
            return process
        output = process.communicate(timeout=120)[0]
        said = log.read_text().splitlines() if log.exists() else []
        return process.returncode, output, said

    call.tmp = tmp_path / "tmp"
    return call


def lines_until(process, words):
    """Return the lines of a command, which is ended once a line has these words."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            process.kill()
    process.communicate()
    return lines


def left(project):
    """Return the temporary directories that Ansible has left."""
    return os.listdir(project.tmp) if project.tmp.exists() else []


def test_the_last_attempts_exit_code_is_the_commands(project):
    code, output, said = project("playbooks/train.yml", "-e", "config=x other=1")
    assert code == 0 and len(said) == 2, output
    assert f"{RUN} is started again in 0 s" in output and left(project) == []
    # a process takes the place of the other, so whoever waits for it (ansible-runner, a batch
    # system) waits for the whole
    assert len({line.split()[0] for line in said}) <= 2 and output.count("PLAY RECAP") == 2


def test_an_ansible_cfg_with_the_old_names_of_the_callbacks_works(project):
    code, output, said = project("playbooks/train.yml", settings=OLD_SETTINGS)
    assert code == 0 and len(said) == 2, output
    assert f"{RUN} is started again in 0 s" in output


def test_where_the_second_fails_the_command_fails(project):
    code, output, said = project(
        "playbooks/train.yml", resume=("run_record", ended(2, dict(DECIDED, again=False)), True)
    )
    assert code == 2 and len(said) == 2, output


@pytest.mark.parametrize(
    "given, environment",
    [
        (["--check"], {}),
        ([], {"TRAINYARD_RESTART": "0"}),
    ],
)
def test_what_is_never_started_again(project, given, environment):
    code, output, said = project("playbooks/train.yml", *given, environment=environment)
    assert code == 2 and len(said) == 1 and "started again" not in output, output


def test_nothing_is_started_again_that_was_decided_so(project):
    train = ("run_record", ended(1, dict(DECIDED, again=False, reason="never")), True)
    code, output, said = project("playbooks/train.yml", train=train)
    assert code == 2 and len(said) == 1 and "started again" not in output, output


def test_a_refusal_to_resume_is_not_tried_again(project):
    resume = ("resume_decision", {"fail": True, "refused": True}, False)
    code, output, said = project("playbooks/train.yml", resume=resume)
    assert code == 2 and len(said) == 2 and output.count("is started again") == 1, output


def test_a_restart_with_nothing_left_to_train_ends_at_once(project):
    code, output, said = project(
        "playbooks/resume.yml", *OWN, resume=("plan", {"fail": True, "refused": True}, False)
    )
    assert code == 2 and len(said) == 1 and "started again in" not in output, output
    assert f"{RUN} is not started again: " in output
    assert "it is complete" in output


def test_a_restart_whose_preparation_fails_is_tried_again(project):
    """A node still boots: it is given up after some times, and only what fails before the attempt
    counts.
    """
    process = project(
        "playbooks/resume.yml", *OWN, resume=("other", {"fail": True}, False), start=True
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "is started again in 20 s, try 2 of 5" in line:
            break
    process.kill()
    process.communicate()
    assert lines and "try 2 of 5" in lines[-1], lines
    code, output, _said = project(
        "playbooks/resume.yml", *OWN, "-e", "again_try=5", resume=("other", {"fail": True}, False)
    )
    assert code == 2 and "5 times and given up" in output
    code, output, _said = project(
        "playbooks/resume.yml",
        *OWN,
        resume=("run_record", ended(2, dict(DECIDED, again=False)), True),
    )
    assert code == 2 and "started again" not in output, (
        output
    )  # that attempt ran, and its own record decides


STAND_IN = """---
- hosts: localhost
  gather_facts: false
  tasks:
    - name: Choose
      node_replacement: {say: {run: RUN, state_dir: STATE, nodes: [n1, s1], new: [s1]}}
- hosts: s1,n1
  gather_facts: false
  tasks:
    - name: Look, where it is no matter what is found
      other: {say: {fail: "{{ inventory_hostname == 's1' }}"}}
      ignore_errors: true
    - name: Look, where it is no matter who answers
      ansible.builtin.ping:
      vars: {ansible_connection: "{{ (inventory_hostname == 's1') | ternary('ssh', 'local') }}", ansible_host: 127.0.0.1, ansible_port: 1}
      ignore_unreachable: true
    - name: Do for all what fails
      other: {say: {fail: "{{ broken | default('') == 'all' }}"}}
      run_once: true
    - name: Write the record
      run_record: {say: {fail: "{{ broken | default('') == 'record' }}"}}
      when: inventory_hostname == 's1'
    - name: Install the wheels
      other: {say: {fail: "{{ inventory_hostname == broken | default('') }}"}}
    - name: Reach it
      ansible.builtin.ping:
      vars: {ansible_connection: "{{ (inventory_hostname == away | default('')) | ternary('ssh', 'local') }}", ansible_host: 127.0.0.1, ansible_port: 1}
- hosts: localhost
  gather_facts: false
  tasks:
    - name: Compile the plan
      plan: {say: {fail: "{{ broken is not defined and away is not defined }}", stops: [{check: disk, nodes: [s1]}]}}
"""


@pytest.mark.parametrize(
    "broken, noted",
    [
        (["-e", "broken=s1"], {"s1": "not ready: Install the wheels"}),
        (["-e", "away=s1"], {"s1": "not ready: unreachable"}),
        (["-e", "broken=n1"], {}),
        (["-e", "broken=all"], {}),
        (["-e", "broken=record"], {}),
        ([], {"s1": "not ready: disk"}),
        (["--check"], {}),
    ],
)
def test_who_stands_in_and_is_not_ready_is_remembered(project, tmp_path, broken, noted):
    """The next try chooses by that memory; TRAINYARD_RESTART=0 and a try by hand are no
    exception.
    """
    state = tmp_path / "state"
    put(str(tmp_path), {"library/node_replacement.py": MODULE % str(tmp_path / "log")})
    put(
        str(tmp_path),
        {"playbooks/stand_in.yml": STAND_IN.replace("RUN", RUN).replace("STATE", str(state))},
    )
    environment = {"TRAINYARD_RESTART": "0"}
    code, output, _said = project(
        "-i", "n1,s1,", "playbooks/stand_in.yml", *broken, environment=environment
    )
    assert code in (2, 4), output
    found = failed_nodes.read(str(state))
    assert {name: entry["cause"] for name, entry in found.items()} == noted, output
    assert (f"a lost node of {RUN} and" in output) == bool(noted), output
    assert ("counts as failed" in output) == bool(noted), output
    if noted:  # and so another spare is tried
        chosen = node_replacement.choose(
            ["n1", "n2"],
            ["n1", "n2"],
            found,
            {"n2": node_replacement.Obstacle("replacement.no_answer", "it does not answer")},
            ["s1", "s2"],
            None,
            1800,
            time.time(),
        )
        assert chosen["nodes"] == ["n1", "s2"]
        alone = node_replacement.choose(
            ["n1", "n2"],
            ["n1", "n2"],
            found,
            {"n2": node_replacement.Obstacle("replacement.no_answer", "it does not answer")},
            ["s1"],
            None,
            1800,
            time.time(),
        )
        assert alone["nodes"] == ["n1", "s1"] and "({})".format(noted["s1"]) in "".join(
            alone["why"]
        )


@pytest.mark.parametrize(
    "followed, tried", [({"mode": "follow"}, False), ({"mode": "start"}, True)]
)
def test_what_is_followed_again_has_its_own_decision(project, followed, tried):
    """The restart's own attempt went on after all, and then a person stopped it: nothing is tried
    again.
    """
    known = {
        "resume_decision": followed,
        "run_record": ended(1, dict(DECIDED, again=False, reason="never")),
    }
    tasks = "".join(f"    - {name}: {{say: {json.dumps(said)}}}\n" for name, said in known.items())
    path = put(
        str(project.tmp.parent),
        {
            "own/resume.yml": (
                f"- hosts: localhost\n  gather_facts: false\n  tasks:\n{tasks}    - fail:\n"
            )
        },
    )
    process = project(f"{path}/own/resume.yml", *OWN, start=True)
    lines = lines_until(process, "is started again")
    assert any("is started again" in line for line in lines) is tried, lines


@pytest.mark.parametrize("mode, follows", [("start", False), ("follow", True)])
def test_an_attempt_before_the_one_that_this_command_has_started_is_not_followed(
    project, mode, follows
):
    """resume.yml collects the attempt that was stopped, then starts the next one."""
    stopped = dict(ended(1, {"again": False}), supervised=True)
    known = {
        "resume_decision": {"mode": mode},
        "run_record": stopped,
        "attempt_monitor": {"status": {"attempts": [1, 2]}},
    }
    tasks = "".join(f"    - {name}: {{say: {json.dumps(said)}}}\n" for name, said in known.items())
    text = f"- hosts: localhost\n  gather_facts: false\n  tasks:\n{tasks}"
    path = put(str(project.tmp.parent), {"own/resume.yml": text})
    process = project(f"{path}/own/resume.yml", *OWN, start=True)
    lines = lines_until(process, "is kept by its nodes")
    assert any("is kept by its nodes" in line for line in lines) is follows, lines


STATUS = {"attempt": 1, "ended": True}


@pytest.mark.parametrize(
    ("status", "followed"),
    [
        (STATUS, False),
        ({**STATUS, "supervised": None}, False),
        ({**STATUS, "supervised": {"is_open": False}}, False),
        # Its nodes begin the next attempt as soon as enough of them are back.
        ({**STATUS, "supervised": {"is_open": True}}, True),
        ({**STATUS, "ended": False}, True),
    ],
)
def test_an_end_that_its_nodes_may_still_follow_up_is_not_late(tmp_path, status, followed):
    host = {
        "name": "node1",
        "run_attempt": {"number": 1, "nodes": ["node1", "node2"]},
        "launch_attempt_status": {"status": status},
    }
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(ROOT / "roles/report/vars/main.yml")],
        "vars": {"report_nodes": ["node1"], "report_runs_dir": str(tmp_path)},
        "tasks": [
            {"add_host": host},
            {"add_host": {**host, "name": "node2", "launch_attempt_status": {"failed": True}}},
            {"assert": {"that": f"__report_followed is {str(followed).lower()}"}},
        ],
    }
    put(tmp_path, {"followed.yml": json.dumps([play])})
    code, output = ansible(str(tmp_path), str(tmp_path / "followed.yml"))
    assert code == 0, output


def test_a_command_that_goes_on_as_follow_yml_may_have_every_option_of_a_start():
    follow, preflight = (
        yaml.safe_load((ROOT / path).read_text())
        for path in ("playbooks/follow.yml", "roles/preflight/vars/main.yml")
    )
    ignored = follow[0]["tasks"][0]["vars"]["start_options"]
    listed = re.findall(r"'(\w+)'", preflight["__preflight_extra"])
    options = {"config", *preflight["__preflight_words"], *listed} - {"run"}
    assert options == set(ignored)


def test_ctrl_c_ends_the_wait_and_the_restart(project):
    process = project(
        "playbooks/train.yml",
        train=("run_record", ended(1, dict(DECIDED, delay=600)), True),
        start=True,
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "is started again in 600 s" in line:
            break
    deadline = time.monotonic() + 60
    while (
        process.poll() is None and time.monotonic() < deadline
    ):  # (the wait begins a moment after the line)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    output = process.communicate(timeout=60)[0]
    assert process.returncode != 0 and "is not started again;" in output, lines
    assert "playbooks/resume.yml -e run=" in output, lines
