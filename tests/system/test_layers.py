# SPDX-License-Identifier: Apache-2.0
"""Each package of the core imports only the packages named here, and nothing that a node lacks."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "plugins"
CORE = PLUGINS / "module_utils"
PREFIX = "ansible_collections.trainyard.cluster.plugins."
# module_utils: what may run on a node. Each package with the packages that it imports.
ON_NODE = {
    "agent": "logs mesh",
    "base": "",
    "gate": "",
    "checkpoints": "base",
    "inputs": "base",
    "logs": "base",
    "suites": "base",
    "attempts": "base checkpoints logs",
    "environments": "attempts base inputs",
    "mesh": "attempts base",
    "network": "agent base",
    "records": "attempts base",
    "rehearsal": "agent attempts base gate",
    "diagnosis": "attempts base gate logs",
    "plan": "base checkpoints environments suites",
    "preflight": "attempts base environments inputs mesh plan",
    "recovery": "agent attempts base checkpoints inputs mesh plan records",
    "notify": "",
    "supervision": "agent attempts base checkpoints diagnosis notify plan recovery",
    "runs": "agent attempts base checkpoints logs preflight records",
}
# plugin_utils: the controller alone. First its packages of module_utils, then of plugin_utils.
ON_CONTROLLER = {
    "base": ("base", ""),
    "checkpoints": ("base checkpoints", ""),
    "environments": ("base environments", ""),
    "gate": ("base", "agent"),
    "inputs": ("base plan suites", "plan"),
    "agent": ("", ""),
    "live": ("attempts base", "base"),
    "mesh": ("base mesh", ""),
    "plan": ("attempts base mesh plan suites", ""),
    "suites": ("logs suites", "base"),
    "config": ("base environments notify plan records suites", "base suites"),
    "preflight": ("base gate inputs plan preflight suites", "base mesh plan"),
    "network": ("base network plan", "plan preflight"),
    "start": (
        "attempts base environments plan records rehearsal suites",
        "base config network plan preflight report",
    ),
    "recovery": ("attempts base recovery", "config"),
    "conformance": ("attempts base mesh plan suites", "config inputs plan suites"),
    "logsync": ("agent attempts base logs records", "agent config gate"),
    "benchmark": ("attempts base", "base plan recovery report"),
    "drills": ("agent base", "agent base logsync"),
    "runs": (
        "attempts base checkpoints diagnosis logs plan records recovery runs suites",
        "base config live logsync plan suites",
    ),
    "report": ("attempts base logs plan records recovery", "live plan runs suites"),
    "monitor": ("attempts base notify", "config live report"),
}
ALLOWED = {f"module_utils/{name}": text for name, text in ON_NODE.items()}
ALLOWED = {
    package: {f"module_utils/{name}" for name in text.split()} for package, text in ALLOWED.items()
}
ALLOWED.update(
    {
        f"plugin_utils/{name}": {f"module_utils/{core}" for core in node.split()}
        | {f"plugin_utils/{core}" for core in controller.split()}
        for name, (node, controller) in ON_CONTROLLER.items()
    }
)
# Modules that run on nodes: each has a schema for its answers.
ON_NODES = sorted(
    path.stem
    for path in (PLUGINS / "plugin_utils" / "gate" / "answers").glob("*.yml")
    if (ROOT / "library" / path.name).with_suffix(".py").exists()
)


def imports_of(path):
    """Return [(module, names, level)] of every import of a file."""
    imports = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports += [(alias.name, [], 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports.append((node.module or "", [alias.name for alias in node.names], node.level))
    return imports


def core_imports(path):
    """Return the files of the core (module_utils and plugin_utils) that a file imports."""
    files = set()
    for module, names, level in imports_of(path):
        if level:
            parts = [*path.parents[level - 1].relative_to(PLUGINS).parts]
            parts += module.split(".") if module else []
        elif module.startswith(PREFIX):
            parts = module[len(PREFIX) :].split(".")
        else:
            continue
        for one in [parts, *([*parts, name] for name in names)]:
            target = PLUGINS.joinpath(*one)
            places = {target.with_suffix(".py")}
            if len(one) > 2:  # a package inside one, as logs/failure_catalogue
                places.add(target / "__init__.py")
            files |= {place for place in places if place.is_file()}
    return files


def package_of(path):
    """Return the package of a file; what lies below it is part of it."""
    return "/".join(path.relative_to(PLUGINS).parts[:2])


def packages():
    return {
        package_of(path)
        for tree in ("module_utils", "plugin_utils")
        for path in (PLUGINS / tree).glob("*/__init__.py")
    }


def test_every_package_is_named():
    assert packages() == set(ALLOWED)


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_a_package_imports_only_what_it_may(package):
    imported = {
        package_of(target)
        for path in (PLUGINS / package).rglob("*.py")
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


def foreign_imports(path):
    """Return {(file, library)} of everything that a file reaches beyond the standard library."""
    reached, waiting = set(), {path}
    while waiting:
        path = waiting.pop()
        reached.add(path)
        waiting |= core_imports(path) - reached
    return {
        (path.relative_to(ROOT).as_posix(), module)
        for path in reached
        for module, _names, level in imports_of(path)
        if not level and module.split(".")[0] in ("yaml", "jinja2", "jsonschema", "cryptography")
    }


@pytest.mark.parametrize("name", ON_NODES)
def test_what_a_node_reaches_imports_the_standard_library_only(name):
    assert not foreign_imports(ROOT / "library" / f"{name}.py")


@pytest.mark.parametrize("package", ["plan", "suites"])
def test_a_node_can_compile_a_plan(package):
    """A node has no PyYAML."""
    for path in (CORE / package).rglob("*.py"):
        assert not foreign_imports(path)


def test_what_may_run_on_a_node_imports_nothing_of_the_controller():
    """Ansible brings no file of plugin_utils to a node."""
    foreign = {
        path.relative_to(ROOT).as_posix()
        for path in [*CORE.rglob("*.py"), *(ROOT / "library").glob("*.py")]
        for module, _names, _level in imports_of(path)
        if "plugin_utils" in module.split(".")
    }
    assert not foreign


# What Ansible loads in its own process until the nodes have started an attempt.
UNTIL_A_START = (
    "callback.monitor",
    "callback.restart",
    "action.job_config",
    "action.node_info",
    "action.plan",
    "action.network_check",
    "action.proof",
    "action.run_record",
    "action.attempt_monitor",
)
LOAD = """
import importlib, sys
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder
_AnsibleCollectionFinder([sys.argv[1]])._install()
for name in sys.argv[2:]:
    importlib.import_module("{prefix}" + name)
catalogue = importlib.import_module("{prefix}module_utils.logs.failure_catalogue")
print("prometheus_client" in sys.modules, catalogue._compiled.cache_info().currsize)
catalogue.classify("ValueError", "x")
print(catalogue._compiled.cache_info().currsize)
"""


def test_a_start_loads_no_metrics_and_compiles_no_failure_catalogue():
    """Both take as long as one of its tasks, and a run that goes well needs the first only when it
    is followed.
    """
    program = LOAD.format(prefix=PREFIX)
    words = [sys.executable, "-c", program, str(ROOT / "collections"), *UNTIL_A_START]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "0", "1"], done.stderr
