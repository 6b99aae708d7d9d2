# SPDX-License-Identifier: GPL-3.0-or-later
"""Payload of a module of the product, for a node's Python.

Ansible's own payload (AnsiballZ) has Ansible's library, which the node compiles for each task. This
one has the module, its sources of module_utils, and node_module.py in the place of Ansible's
AnsibleModule. It is a program that a Python reads from standard input, as Ansible's is.
"""

from __future__ import annotations

import base64
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.executor import module_common
from ansible.executor.interpreter_discovery import (
    InterpreterDiscoveryRequiredError,
    discover_interpreter,
)
from ansible.module_utils.common.json import Direction, get_module_encoder
from ansible.plugins.loader import module_loader

from . import zipapp

# How a module names a source of module_utils: package, names.
_IMPORT = re.compile(
    r"^from ansible_collections\.trainyard\.cluster\.plugins\.module_utils((?:\.\w+)*)"
    r" import (\([^)]*\)|.*)$",
    re.MULTILINE,
)
_OURS = "trainyard.cluster."
# Modules that an action plugin runs, beside the one that the task names.
_RUN_BY = {
    _OURS + "attempt_monitor": (_OURS + "attempt",),
    _OURS + "tree_send": (_OURS + "tree_fetch", _OURS + "tree_install"),
}
_PYTHON = "/usr/bin/python"  # by which Ansible knows that a module is one of Python
_SCHEMAS = Path(__file__).resolve().parents[1] / "gate" / "answers"
_WORD = re.compile(r"\w+")
_PLACE = "ansible_collections/trainyard/cluster/plugins/module_utils"
_BASE = "ansible/module_utils/basic.py"
# The working directory is a user's home, where a json.py may lie.
_PROGRAM = """\
import sys
sys.path[:] = [path for path in sys.path if path]
import base64
scope = {"__name__": "stdin_boot"}
exec(compile(%r, "stdin_boot.py", "exec"), scope)
scope["run_module"](base64.b64decode(%r), %r, module_fqn=%r)
"""


def prepare(name: str) -> None:
    """Build the archives of a task before Ansible forks its workers. name: of the task's module."""
    for module in (name, *_RUN_BY.get(name, ())):
        path = _path_of(module)
        if path:
            encoded(path)


def configured(
    action: Any, name: str, arguments: dict[str, Any], variables: dict[str, Any]
) -> tuple[Any, str] | None:
    """Return (payload, path) of a module as Ansible's ActionBase._configure_module does.

    action: the action plugin. None for a module of others.
    """
    path = _path_of(name)
    if path is None or action._task.async_val:
        return None
    built = module_common._BuiltModule(
        b_module_data=program(path, arguments),
        module_style="new",
        shebang=_interpreter_line(action, variables),
        serialization_profile="legacy",
    )
    return built, path


def _path_of(name: str) -> str | None:
    """Return the path of a module of the product that runs on nodes, None of another one."""
    if not name.startswith(_OURS) or name.removeprefix(_OURS) not in node_modules():
        return None
    path: str | None = module_loader.find_plugin_with_context(name, "").plugin_resolved_path
    return path


@functools.lru_cache(maxsize=None)
def node_modules() -> frozenset[str]:
    """Return the names of the product's modules that run on nodes: each has a schema."""
    return frozenset(path.stem for path in _SCHEMAS.glob("*.yml"))


def _interpreter_line(action: Any, task_vars: dict[str, Any]) -> str:
    """Return the line that names the node's Python. Ansible finds it where the site does not."""
    node, variables = action._task.delegate_to, task_vars
    if node:
        variables = task_vars["ansible_delegated_vars"][node]
    try:
        line: str = module_common._get_shebang(_PYTHON, variables, action._templar)[0]
    except InterpreterDiscoveryRequiredError as needed:
        python = discover_interpreter(
            action=action,
            interpreter_name=needed.interpreter_name,
            discovery_mode=needed.discovery_mode,
            task_vars=variables,
        )
        key = f"discovered_interpreter_{needed.interpreter_name}"
        variables["ansible_facts"][key] = python
        if not node or action._task.delegate_facts:
            # Ansible takes both into the result, so that later tasks know it.
            action._discovered_interpreter_key, action._discovered_interpreter = key, python
            task_vars["ansible_facts"][key] = python
        line = module_common._get_shebang(_PYTHON, variables, action._templar)[0]
    return line


def program(path: str, arguments: dict[str, Any]) -> bytes:
    """Return the program that runs a module with its arguments.

    path: of the module's source. Raises OSError.
    """
    boot = (zipapp.SOURCES / "agent" / "stdin_boot.py").read_text(encoding="utf-8")
    encoder = get_module_encoder("legacy", Direction.CONTROLLER_TO_MODULE)
    given = json.dumps(arguments, cls=encoder)
    name = _OURS + Path(path).stem
    return (_PROGRAM % (boot, encoded(path), given, name)).encode("ascii")


@functools.lru_cache(maxsize=64)
def encoded(path: str) -> str:
    """Return the archive of a module as base64. Once in a process, and so before its workers."""
    return base64.b64encode(zipapp.pack(_entries(Path(path)))).decode("ascii")


def _entries(path: Path) -> dict[str, bytes]:
    """Return {name in the archive: source}."""
    base = zipapp.SOURCES / "agent" / "node_module.py"
    entries = {"__main__.py": path.read_bytes(), _BASE: zipapp.stripped(base)}
    starts = list(_imports_of(path))
    for source in zipapp.reached_from(starts):
        name = source.relative_to(zipapp.SOURCES).as_posix()
        entries[f"{_PLACE}/{name}"] = zipapp.stripped(source)
    for name in list(entries):
        for folder in list(Path(name).parents)[:-1]:
            entries.setdefault(f"{folder.as_posix()}/__init__.py", b"")
    return entries


def _imports_of(path: Path) -> Iterator[Path]:
    """Yield the sources of module_utils that a module imports."""
    for package, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
        place = zipapp.SOURCES.joinpath(*package.split("."))
        for candidate in [place, *(place / word for word in _WORD.findall(names))]:
            for source in (candidate.with_suffix(".py"), candidate / "__init__.py"):
                if source.is_file():
                    yield source
