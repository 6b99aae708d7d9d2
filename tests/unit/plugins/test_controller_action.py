# SPDX-License-Identifier: Apache-2.0
"""The base class of actions on the controller: arguments and results are what a module's were."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    ControllerAction,
)
from core_support import ROOT, RUN, put

SECRET = "Y2FuYXJ5LWluLWEtam9i"
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - trainyard.cluster.resume_decision:
        {{runs_dir: runs, run_id: {run}, answers: {{}}, job: ["{secret}"]}}
      delegate_to: localhost
      run_once: true
      become: false
      register: resumed
      ignore_errors: true
    - trainyard.cluster.log_index: {{run_dir: ~/none, results: {{}}, state: missing}}
      delegate_to: localhost
      run_once: true
      become: false
      register: index
    - debug: {{msg: "told {{{{ resumed.refused }}}} {{{{ index.missing }}}} {{{{ resumed.msg }}}}"}}
      delegate_to: localhost
      run_once: true
"""


class Echo(ControllerAction):
    """Return the arguments; fail as it is told."""

    ARGUMENTS = {
        "value": {"type": "dict", "default": {}},
        "count": {"type": "int", "default": 1},
        "state": {"type": "str", "choices": ["one", "two"]},
        "file": {"type": "path"},
        "files": {"type": "list", "elements": "path", "default": []},
        "library": {"type": "path"},
        "token": {"type": "str", "no_log": True},
    }
    REQUIRED_IF = [("state", "two", ("file",))]
    PATHS_AS_GIVEN = ("library",)
    FAILURES = (ValueError,)

    def execute(self, arguments):
        if arguments["state"] == "one":
            raise ValueError("said\x1b[2J")
        if arguments["count"] == 2:
            self.warn("two")
            self.fail("it is two", number=(2,))
        return {"changed": not self.check_mode, "given": arguments, "pair": (1, 2)}


@pytest.fixture
def echo(tmp_path):
    def call(check=False, **arguments):
        task = SimpleNamespace(args=arguments, async_val=0, check_mode=check, action="echo")
        link = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp"), transport="local")
        loader = DataLoader()
        loader.set_basedir(str(tmp_path))
        action = Echo(task, link, None, loader, None, None)
        action._load_name = "echo"
        return action.run()

    return call


def test_arguments_are_what_a_modules_json_would_hold(echo):
    tagged = DataLoader().load("{text: x, 1: [2, {deep: 2.5}], day: 2026-11-20}")
    given = echo(value=tagged, count="3")["given"]
    assert given["value"] == {"text": "x", "1": [2, {"deep": 2.5}], "day": "2026-11-20"}
    assert type(given["value"]["text"]) is str and type(given["value"]["1"][1]["deep"]) is float
    assert given["count"] == 3 and given["state"] is None
    assert isinstance(tagged["day"], datetime.date)


def test_paths_are_below_the_playbooks_directory_as_those_of_a_local_module(echo, tmp_path):
    given = echo(file="runs/x", files=["~/a", "/b", "c"], library="libpkcs.so")["given"]
    assert given["file"] == str(tmp_path / "runs/x") and given["library"] == "libpkcs.so"
    assert given["files"] == [os.path.expanduser("~/a"), "/b", str(tmp_path / "c")]
    assert echo(file="")["given"]["file"] == "" and echo()["given"]["file"] is None


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"unknown": 1}, "Unsupported parameters for (echo) module: unknown"),
        ({"count": "many"}, "count"),
        ({"state": "three"}, "value of state must be one of: one, two, got: three"),
        ({"state": "two"}, "state is two but all of the following are missing: file"),
    ],
)
def test_wrong_arguments_fail_in_the_words_of_a_module(echo, arguments, words):
    result = echo(**arguments)
    assert result["failed"] is True and words in result["msg"] and "given" not in result


def test_a_failure_keeps_its_fields_and_warnings(echo):
    assert echo(count=2) == {
        "failed": True,
        "msg": "it is two",
        "number": [2],
        "warnings": ["two"],
    }
    assert echo(state="one") == {"failed": True, "msg": "said\\x1b[2J"}


def test_a_result_is_json_and_knows_check_mode(echo):
    assert echo()["changed"] is True and echo(check=True)["changed"] is False
    assert echo()["pair"] == [1, 2] and "warnings" not in echo()


def test_what_is_marked_is_in_no_result(echo):
    result = echo(token=SECRET, value={"text": f"a {SECRET} b"})
    assert SECRET not in json.dumps(result) and "a ******** b" in json.dumps(result)
    assert SECRET not in json.dumps(echo(token=SECRET, state=SECRET))
    assert SECRET not in json.dumps(echo(token=SECRET, unknown=SECRET))


@pytest.mark.parametrize("more", [[], ["--check"]])
def test_a_task_of_an_unreachable_node_runs_on_the_controller(tmp_path, more):
    """delegate_to, run_once and become: false; -vvv shows no argument that is marked."""
    put(tmp_path, {"play.yml": PLAY.format(run=RUN, secret=SECRET)})
    words = [os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), "-vvv", *more]
    unreachable = ["-e", "ansible_ssh_executable=/bin/false", "-i", "node1,node2,"]
    done = subprocess.run(
        [*words, *unreachable, str(tmp_path / "play.yml")],
        cwd=ROOT,
        env=dict(os.environ, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"), HOME=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "told True {}" in done.stdout and SECRET not in done.stdout
    assert "AnsiballZ" not in done.stdout
