# SPDX-License-Identifier: GPL-3.0-or-later
"""Connection and Python for a program on a node that a task asks several questions.

A module would begin a Python for each question.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ..agent import zipapp
from ..gate import answer_gate
from . import log_receiver


def is_ssh(connection: Any) -> bool:
    """Return whether Ansible's own login reaches the node as its training user."""
    return getattr(connection, "transport", None) == "ssh" and connection.become is None


def find_python(task_vars: Mapping[str, Any], used: str | None = None) -> str:
    """Return the node's Python: the one that a module used, the site's, or Ansible's discovery."""
    facts = task_vars.get("ansible_facts") or {}
    for known in (
        used,
        task_vars.get("ansible_python_interpreter"),
        facts.get("discovered_interpreter_python"),
    ):
        if isinstance(known, str) and answer_gate.INTERPRETER.match(known):
            return str(known)
    return "python3"


def start_argv(connection: Any, python: str, name: str) -> list[str]:
    """Return the argv that starts a program on a node. name: the program's, for `ps`.

    Unlike log_receiver.ssh_argv it has the processors as any other program, since no training goes
    on beside it.
    """
    argv, host = log_receiver.ssh_command(connection)
    return [*argv, host, shlex.join([python, "-I", "-c", zipapp.BOOT, name])]
