# SPDX-License-Identifier: Apache-2.0
"""module_payload.py: a module of the product on a node's Python, without Ansible's library."""

from __future__ import annotations

import base64
import datetime
import io
import json
import os
import subprocess
import sys
import tempfile
import types
import zipfile

import pytest
from ansible.executor.interpreter_discovery import InterpreterDiscoveryRequiredError
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import stdin_boot
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import module_payload, zipapp
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import connection_failure

LIBRARY = zipapp.SOURCES.parents[1] / "library"
MODULES = sorted(module_payload.node_modules() - {"ansible", "common"})


def names_in(module):
    data = base64.b64decode(module_payload.encoded(str(LIBRARY / f"{module}.py")))
    return zipfile.ZipFile(io.BytesIO(data)).namelist()


def played(module, arguments, cwd, **environment):
    """Run a payload as Ansible does: a Python that reads a program, in a user's home."""
    text = module_payload.program(str(LIBRARY / f"{module}.py"), arguments)
    return subprocess.run(
        [sys.executable], input=text, capture_output=True, cwd=cwd, env=environment, timeout=60
    )


@pytest.mark.parametrize("module", MODULES)
def test_every_module_finds_its_sources_and_no_library_of_ansible(module, tmp_path):
    names = names_in(module)
    assert len(set(names)) == len(names) < 120
    ansible = [name for name in names if name.startswith("ansible/")]
    assert sorted(ansible) == [
        "ansible/__init__.py",
        "ansible/module_utils/__init__.py",
        "ansible/module_utils/basic.py",
    ]
    done = played(module, {"no_such_argument": 1}, tmp_path, HOME=str(tmp_path))
    result = json.loads(done.stdout)
    assert result["failed"] and "no_such_argument" in result["msg"], done.stderr
    assert done.returncode == 1 and done.stderr == b""


def test_a_module_answers(tmp_path):
    (tmp_path / "attempt").mkdir()
    arguments = {"path": "~/attempt", "folders": ["output"], "wanted": "none"}
    done = played("checkpoint_info", arguments, tmp_path, HOME=str(tmp_path))
    result = json.loads(done.stdout)
    assert done.returncode == 0 and result["saved"]["wanted"] == "none", done.stderr


def test_an_error_that_no_module_handles_is_a_result(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('no such thing')\n")
    text = module_payload.program(str(broken), {})
    done = subprocess.run([sys.executable], input=text, capture_output=True, timeout=60)
    result = json.loads(done.stdout)
    assert result["failed"] and "no such thing" in result["msg"] and done.returncode == 1
    assert "broken" in result["exception"] or "__main__" in result["exception"]


def test_a_source_in_the_home_is_not_taken_for_a_library(tmp_path):
    for name in ("json", "base64", "ansible"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('taken')\n")
    done = played("checkpoint_info", {"path": "/", "wanted": "none"}, tmp_path, HOME="/")
    assert json.loads(done.stdout)["saved"], done.stderr


class Action:
    """What configured() reads of an action plugin."""

    def __init__(self, **task):
        given = {"delegate_to": None, "async_val": 0, "delegate_facts": None, **task}
        self._task = types.SimpleNamespace(**given)
        self._templar = None


def test_modules_of_others_get_the_payload_of_ansible():
    variables = {"ansible_facts": {}}
    for name in ("ansible.builtin.file", "file", "trainyard.cluster.plan", "node_info"):
        assert module_payload.configured(Action(), name, {}, variables) is None
    asynchronous = Action(async_val=10)
    assert (
        module_payload.configured(asynchronous, f"trainyard.cluster.{MODULES[0]}", {}, {}) is None
    )


@pytest.fixture
def python_of(monkeypatch):
    """Have Ansible know the node's Python, or not: {address of the variables: line}."""
    found = []

    def line(_default, variables, _templar):
        facts = variables["ansible_facts"]
        if "discovered_interpreter_python" not in facts:
            raise InterpreterDiscoveryRequiredError("none", "python", "auto_silent")
        return "#!" + facts["discovered_interpreter_python"], ""

    def discover(action, interpreter_name, discovery_mode, task_vars):
        found.append((interpreter_name, discovery_mode))
        return "/usr/bin/python3.9"

    monkeypatch.setattr(module_payload.module_common, "_get_shebang", line)
    monkeypatch.setattr(module_payload, "discover_interpreter", discover)
    monkeypatch.setattr(
        module_payload, "_path_of", lambda name: str(LIBRARY / f"{name.split('.')[-1]}.py")
    )
    return found


def test_the_python_of_a_node_is_found_once(python_of):
    variables = {"ansible_facts": {}}
    for _task in range(2):
        action = Action()
        built, path = module_payload.configured(
            action, "trainyard.cluster.mesh_lines", {"site": "a"}, variables
        )
        assert built.shebang == "#!/usr/bin/python3.9" and path.endswith("mesh_lines.py")
    assert python_of == [("python", "auto_silent")]
    assert not hasattr(action, "_discovered_interpreter")


def test_the_python_of_a_delegate_is_its_own(python_of):
    delegated = {"ansible_facts": {"discovered_interpreter_python": "/opt/python"}}
    variables = {"ansible_facts": {}, "ansible_delegated_vars": {"node2": delegated}}
    built, _path = module_payload.configured(
        Action(delegate_to="node2"), "trainyard.cluster.mesh_lines", {}, variables
    )
    assert built.shebang == "#!/opt/python" and variables["ansible_facts"] == {}
    del delegated["ansible_facts"]["discovered_interpreter_python"]
    action = Action(delegate_to="node2")
    module_payload.configured(action, "trainyard.cluster.mesh_lines", {}, variables)
    # What was found on another node is no fact of this host.
    assert variables["ansible_facts"] == {} and not hasattr(action, "_discovered_interpreter_key")


def test_what_ansible_found_is_a_fact_of_the_host(python_of):
    action, variables = Action(), {"ansible_facts": {}}
    module_payload.configured(action, "trainyard.cluster.mesh_lines", {}, variables)
    assert action._discovered_interpreter_key == "discovered_interpreter_python"
    assert action._discovered_interpreter == "/usr/bin/python3.9"


def test_a_home_that_is_gone_is_left(tmp_path):
    module = tmp_path / "where.py"
    module.write_text("import json, os\nprint(json.dumps({'at': os.getcwd()}))\n")
    line = 'mkdir lost && cd lost && rmdir ../lost && exec "$0"'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable],
        input=module_payload.program(str(module), {}),
        capture_output=True,
        cwd=tmp_path,
    )
    assert json.loads(done.stdout) == {"at": "/"}, done.stderr


def test_a_python_that_is_too_old_says_so(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(stdin_boot, "LEAST_VERSION", (99, 0))
    with pytest.raises(SystemExit):
        stdin_boot.run_module(b"", "{}", "trainyard.cluster.checkpoint_info")
    result = json.loads(capsys.readouterr().out)
    assert result["failed"] and result["changed"] is False
    assert connection_failure.classify(result["msg"]).code == "reach.python_too_old"


def test_without_space_in_memory_a_file_on_the_disk_does(monkeypatch):
    tried, real = [], tempfile.TemporaryFile

    def refuse(dir=None):
        tried.append(dir)
        if dir:
            raise OSError("no space")
        return real()

    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    os.close(stdin_boot.open_in_memory())
    assert tried == ["/dev/shm", None]


def test_archives_are_built_before_the_workers_are_forked(monkeypatch):
    built = []
    monkeypatch.setattr(module_payload, "_path_of", lambda name: name)
    monkeypatch.setattr(module_payload, "encoded", built.append)
    module_payload.prepare("trainyard.cluster.tree_send")
    module_payload.prepare("trainyard.cluster.node_info")
    assert [name.rpartition(".")[2] for name in built] == [
        "tree_send",
        "tree_fetch",
        "tree_install",
        "node_info",
    ]


def test_dates_travel_as_ansible_sends_them():
    text = module_payload.program(
        str(LIBRARY / "mesh_lines.py"), {"site": datetime.date(2026, 1, 2)}
    )
    assert b'"2026-01-02"' in text
