# SPDX-License-Identifier: Apache-2.0
"""Each package of the core imports only the packages named here, and nothing that a node lacks."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "plugins" / "module_utils"
ALLOWED = {
    "agent": set(),
    "base": set(),
    "checkpoints": {"base"},
    "environments": {"attempts", "base"},
    "gate": {"base"},
    "logs": {"base"},
    "attempts": {"base", "logs"},
    "suites": {"base", "logs"},
    "diagnosis": {"attempts", "gate", "logs"},
    "live": {"attempts", "base"},
    "mesh": {"attempts", "base"},
    "records": {"attempts", "base"},
    "rehearsal": {"agent", "attempts", "base", "gate"},
    "config": {"base", "environments", "records", "suites"},
    "plan": {"attempts", "base", "checkpoints", "environments", "mesh", "suites"},
    "inputs": {"base", "plan", "suites"},
    "logsync": {"agent", "attempts", "base", "config", "logs", "records"},
    "conformance": {"attempts", "base", "config", "inputs", "mesh", "plan", "suites"},
    "drills": {"agent", "base", "logsync"},
    "preflight": {"attempts", "base", "environments", "gate", "inputs", "mesh", "plan", "suites"},
    "network": {"agent", "base", "plan", "preflight"},
    "recovery": {
        "attempts",
        "base",
        "checkpoints",
        "config",
        "inputs",
        "mesh",
        "preflight",
        "records",
    },
    "runs": {
        "attempts",
        "base",
        "checkpoints",
        "config",
        "diagnosis",
        "logs",
        "logsync",
        "plan",
        "preflight",
        "records",
        "recovery",
        "suites",
    },
    "report": {"attempts", "base", "logs", "plan", "records", "recovery", "runs"},
}
ROOT = CORE.parents[1]
COLLECTION = "ansible_collections.trainyard.cluster.plugins.module_utils."
# Modules that run on nodes: each has a schema for its answers.
ON_NODES = sorted(
    path.stem
    for path in (CORE / "gate" / "answers").glob("*.yml")
    if (ROOT / "library" / path.name).with_suffix(".py").exists()
)


def imports_of(path):
    """Return [(module, names, level)] of every import of a file; of a file of the core as it is
    known below module_utils (`base.files`).
    """
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, [], 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.module or "", [alias.name for alias in node.names], node.level))
    return found


def core_imports(path):
    """Return the files of the core that a file imports."""
    files = set()
    for module, names, level in imports_of(path):
        if level:
            above = path.parents[level - 1].relative_to(CORE).parts
            parts = [*above, *module.split(".")] if module else list(above)
        elif module.startswith(COLLECTION):
            parts = module[len(COLLECTION) :].split(".")
        else:
            continue
        for one in [parts, *([*parts, name] for name in names)]:
            target = CORE.joinpath(*one).with_suffix(".py")
            files |= {target} if target.is_file() else set()
    return files


def packages():
    return sorted(path.name for path in CORE.iterdir() if (path / "__init__.py").is_file())


def test_every_package_is_named():
    assert packages() == sorted(ALLOWED)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_it_may(package):
    imported = {
        target.parent.name
        for path in (CORE / package).glob("*.py")
        for target in core_imports(path)
    }
    assert imported - {package} == ALLOWED[package]


def test_the_packages_have_no_cycle():
    known = {}

    def level(package, above):
        assert package not in above, [*above, package]
        if package not in known:
            known[package] = 1 + max(
                (level(lower, [*above, package]) for lower in ALLOWED[package]), default=-1
            )
        return known[package]

    assert max(level(package, []) for package in ALLOWED) <= 9


@pytest.mark.parametrize("name", ON_NODES)
def test_what_a_node_reaches_imports_the_standard_library_only(name):
    reached, waiting = set(), {ROOT / "library" / f"{name}.py"}
    while waiting:
        path = waiting.pop()
        reached.add(path)
        waiting |= core_imports(path) - reached
    foreign = {
        (path.relative_to(ROOT).as_posix(), module)
        for path in reached
        for module, _names, level in imports_of(path)
        if not level and module.split(".")[0] in ("yaml", "jinja2", "jsonschema", "cryptography")
    }
    assert not foreign


def test_what_may_run_on_a_node_imports_nothing_of_the_controller():
    """Ansible brings no file of plugin_utils to a node."""
    foreign = {
        path.relative_to(ROOT).as_posix()
        for path in [*CORE.rglob("*.py"), *(ROOT / "library").glob("*.py")]
        for module, _names, _level in imports_of(path)
        if "plugin_utils" in module.split(".")
    }
    assert not foreign
