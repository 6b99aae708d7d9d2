# SPDX-License-Identifier: Apache-2.0
"""The Python of a node's programs: the one that Ansible took, where units can start it."""

from __future__ import annotations

import sys

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    guard_unit,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import interpreter
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import (
    authorized_keys,
    primitives,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.network import node_check

PYTHON = "/opt/python3.9/bin/python3.9"
PLAN = {"launcher": {"console": "c"}, "stop": {"timeout": 5}}


def test_every_program_of_a_node_starts_with_the_python_of_the_module(monkeypatch):
    monkeypatch.setattr(sys, "executable", PYTHON)
    attempt = attempt_dir.start_argv("/a", PLAN, "n1", "trainyard-r-1.service", "d")
    guard = guard_unit.start_argv("/a", "n1", "trainyard-r-1.service")
    listener = node_check.start_argv("/run/x", "yardcheck-1.service", 5)
    assert [words[words.index("-I") - 1] for words in (attempt, guard, listener)] == [PYTHON] * 3
    (end,) = [word for word in attempt if word.startswith("ExecStopPost=")]
    assert end.startswith(f"ExecStopPost={PYTHON} -I ")


@pytest.mark.parametrize(
    "path", ["", None, "python3", "/opt/my python/python3", "/a'b", "/a%h", "/a$b", "/a\n"]
)
def test_a_path_that_units_would_read_otherwise_is_refused(path):
    with pytest.raises(interpreter.InterpreterError) as caught:
        interpreter.validate_interpreter(path)
    assert caught.value.code == "node.python_path"


def test_an_old_python_is_refused_by_its_version():
    with pytest.raises(interpreter.InterpreterError, match=r"3\.6") as caught:
        interpreter.validate_interpreter("/usr/bin/python3", (3, 6, 8))
    assert caught.value.code == "node.python_old"
    assert interpreter.validate_interpreter("/usr/bin/python3", (3, 8, 0)) == "/usr/bin/python3"


@pytest.mark.parametrize(("code", "python"), [(0, "/usr/bin/python3"), (1, PYTHON)])
def test_lines_of_a_home_take_the_systems_python_where_it_is_new_enough(monkeypatch, code, python):
    monkeypatch.setattr(sys, "executable", PYTHON)
    monkeypatch.setattr(interpreter.os, "access", lambda path, mode: True)
    assert interpreter.shared_python(lambda argv: (code, "", "")) == python


def test_without_a_system_python_the_lines_name_the_modules(monkeypatch):
    monkeypatch.setattr(sys, "executable", PYTHON)
    monkeypatch.setattr(interpreter, "SYSTEM_PYTHON", "/nowhere/python3")
    assert interpreter.shared_python(None) == PYTHON


def test_the_gate_in_authorized_keys_starts_with_the_nodes_python():
    line = f'cert-authority,command="{primitives.PYTHON} -I ~/gate.py n1" ssh-ed25519 AAAA c'
    (named,) = authorized_keys.name_interpreter([line], PYTHON)
    assert f'command="{PYTHON} -I ~/gate.py n1"' in named and primitives.PYTHON not in named
