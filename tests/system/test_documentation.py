# SPDX-License-Identifier: Apache-2.0
"""The documentation matches the code. Modules and actions are compared with their argument specs,
and roles with their defaults.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import quota
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    ControllerAction,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import proof_cache
from core_support import ROOT

MODULES = sorted(path.stem for path in (ROOT / "library").glob("*.py"))
# What an action does is only documented in library/: its argument spec is this documentation.
ACTIONS = sorted(
    name
    for name in MODULES
    if "AnsibleModule" not in (ROOT / "library" / f"{name}.py").read_text(encoding="utf-8")
)
CALLED = sorted(set(MODULES) - set(ACTIONS))
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if (path / "tasks").is_dir())
KEYS = ("type", "required", "default", "choices", "elements")


class Captured(Exception):
    """Carries what a module passes to AnsibleModule."""


def capture(*_args, **given):
    """Stand for AnsibleModule."""
    raise Captured(given)


def spec_of(name, monkeypatch):
    """Return (module, what its main passes to AnsibleModule)."""
    module = importlib.import_module(name)
    monkeypatch.setattr(module, "AnsibleModule", capture)
    with pytest.raises(Captured) as caught:
        module.main()
    return module, caught.value.args[0]


def normal(option):
    """Return the comparable part of an option, with what Ansible takes when nothing is said;
    sub-options below.
    """
    found = {key: option.get(key) for key in KEYS}
    found["type"], found["required"] = found["type"] or "str", bool(found["required"])
    found["suboptions"] = {
        name: normal(entry)
        for name, entry in (option.get("options") or option.get("suboptions") or {}).items()
    }
    return found


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_documented(name):
    documentation = yaml.safe_load(importlib.import_module(name).DOCUMENTATION)
    assert documentation["module"] == name
    assert documentation["short_description"] and documentation["author"]
    options = documentation.get("options", {})
    assert all(entry.get("description") for entry in options.values())


@pytest.mark.parametrize("name", CALLED)
def test_a_modules_documentation_is_its_argument_spec(name, monkeypatch):
    module, given = spec_of(name, monkeypatch)
    assert given.get("supports_check_mode") is True
    options = yaml.safe_load(module.DOCUMENTATION).get("options", {})
    documented = {option: normal(entry) for option, entry in options.items()}
    assert documented == {option: normal(entry) for option, entry in given["argument_spec"].items()}


@pytest.mark.parametrize("name", ACTIONS)
def test_an_actions_argument_spec_is_its_documentation(name, load_plugin):
    action = load_plugin("action", name).ActionModule
    assert issubclass(action, ControllerAction)
    options = yaml.safe_load(importlib.import_module(name).DOCUMENTATION).get("options", {})
    documented = {option: normal(entry) for option, entry in options.items()}
    assert documented == {option: normal(entry) for option, entry in action.ARGUMENTS.items()}
    for _option, _value, needed in action.REQUIRED_IF:
        assert set(needed) <= set(options)


@pytest.mark.parametrize("name", ACTIONS)
def test_the_documentation_of_an_action_has_no_code(name):
    tree = ast.parse((ROOT / "library" / f"{name}.py").read_text(encoding="utf-8"))
    names = [node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)]
    assert names == ["DOCUMENTATION", "EXAMPLES", "RETURN"]
    assert all(isinstance(node, ast.Assign | ast.Expr | ast.ImportFrom) for node in tree.body)


def tasks_in(entries):
    """Return the tasks of a list of tasks or plays, with those of blocks."""
    found = []
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict):
            found.append(entry)
            for part in ("block", "rescue", "always", "tasks", "pre_tasks", "post_tasks"):
                found += tasks_in(entry.get(part))
    return found


def calls(names):
    """Return [(file, module, arguments)] of the tasks that call one of these modules."""
    files = [*(ROOT / "playbooks").rglob("*.yml"), *(ROOT / "roles").rglob("tasks/*.yml")]
    return [
        (path.relative_to(ROOT).as_posix(), key.split(".")[-1], task[key] or {})
        for path in files
        for task in tasks_in(yaml.safe_load(path.read_text(encoding="utf-8")))
        for key in task
        if key.startswith("trainyard.cluster.") and key.split(".")[-1] in names
    ]


def test_a_task_gives_an_action_the_options_that_it_has():
    """ansible-lint checks this for modules only."""
    found = calls(ACTIONS)
    assert {name for _file, name, _arguments in found} == set(ACTIONS)
    for file, name, arguments in found:
        if not isinstance(arguments, dict):
            continue  # all of them in one expression
        documentation = yaml.safe_load(importlib.import_module(name).DOCUMENTATION)
        options = documentation.get("options", {})
        required = {option for option, entry in options.items() if entry.get("required")}
        assert required <= set(arguments) <= set(options), (file, name)


@pytest.mark.parametrize("name", MODULES)
def test_a_modules_examples_and_results_are_yaml(name):
    module = importlib.import_module(name)
    tasks = yaml.safe_load(module.EXAMPLES)
    uses = [task[name] or {} for task in tasks if name in task]
    assert uses and all(task["name"] for task in tasks)
    options = yaml.safe_load(module.DOCUMENTATION).get("options", {})
    for used in uses:
        assert set(used) <= set(options) and {
            option for option, entry in options.items() if entry.get("required")
        } <= set(used), used
    assert all(
        entry.get("description") and entry.get("type") and entry.get("returned")
        for entry in yaml.safe_load(module.RETURN).values()
    )


@pytest.mark.parametrize("name", CALLED)
def test_a_module_is_a_short_main(name):
    module = importlib.import_module(name)
    assert len(inspect.getsource(module.main).splitlines()) <= 40


@pytest.mark.parametrize("name", MODULES)
def test_a_module_has_a_test_of_its_name(name):
    folders = [ROOT / "tests" / "unit" / "modules", ROOT / "tests" / "contract"]
    assert any((folder / f"test_{name}.py").exists() for folder in folders)


def test_what_runs_on_nodes_is_read_by_the_oldest_python_they_may_have():
    """Nodes have Python 3.8 or newer (facts, 'Ansible 2.19')."""
    for path in [
        *(ROOT / "library").glob("*.py"),
        *(ROOT / "plugins" / "module_utils").rglob("*.py"),
    ]:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 8))


def load(*parts):
    """Return the content of a YAML file, or {} if it has none."""
    path = ROOT.joinpath(*parts)
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.exists() else {}


@pytest.mark.parametrize("name", ROLES)
def test_a_roles_argument_specs_hold_its_defaults(name):
    defaults = load("roles", name, "defaults", "main.yml")
    options = load("roles", name, "meta", "argument_specs.yml")["argument_specs"]["main"]["options"]
    assert {
        option: entry["default"] for option, entry in options.items() if "default" in entry
    } == defaults
    for option, entry in options.items():
        assert (
            option.startswith((name + "_", "trainyard_")) and entry["description"] and entry["type"]
        )
        assert ("default" in entry) != bool(entry.get("required")), option


@pytest.mark.parametrize("name", ROLES)
def test_a_roles_variables_are_named_by_their_audience(name):
    assert all(
        variable.startswith(name + "_") for variable in load("roles", name, "defaults", "main.yml")
    )
    private = load("roles", name, "vars", "main.yml")
    assert all(variable.startswith(f"__{name}_") for variable in private)
    lines = (
        (ROOT / "roles" / name / "defaults" / "main.yml").read_text(encoding="utf-8").splitlines()
        if load("roles", name, "defaults", "main.yml")
        else []
    )
    for block in "\n".join(lines[1:]).strip().split("\n\n"):
        assert block.strip().startswith("# "), f"{name}: no comment above {block}"


LOCKS = {
    "requirements.in": "requirements.txt",
    "requirements-dev.in": ".config/requirements-dev.txt",
}


def read_lock(path):
    pins, problems = python_env.parse_requirements(
        (ROOT / path).read_text(encoding="utf-8"), path.rsplit(".", 1)[1]
    )
    assert problems == []
    return pins


@pytest.mark.parametrize("source", LOCKS)
def test_the_controllers_lock_is_made_of_what_is_asked_for(source):
    lines = (ROOT / ".config" / source).read_text(encoding="utf-8").splitlines()
    stripped = "\n".join(line for line in lines if not line.startswith("-c "))
    asked, problems = python_env.parse_requirements(stripped, "in")
    locked = read_lock(LOCKS[source])
    assert problems == [] and len(asked) > 5
    assert {(pin["name"], pin["version"]) for pin in asked} <= {
        (pin["name"], pin["version"]) for pin in locked
    }
    assert [pin["name"] for pin in locked if not pin["hashes"]] == []


def test_the_architecture_page_names_files_that_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(
        r"`((?:playbooks|roles|library|plugins|tests|collections|molecule)/[\w./-]+)`", page
    )
    assert len(named) >= 40
    assert [path for path in sorted(set(named)) if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("tree", ["module_utils", "plugin_utils"])
def test_the_architecture_page_lists_every_package(tree):
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split(f"Under `plugins/{tree}/`", 1)[1].split("\n## ", 1)[0]
    section = section.split("Under `plugins/", 1)[0]
    packages = sorted(path.parent.name for path in (ROOT / "plugins" / tree).glob("*/__init__.py"))
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == packages


def test_each_walk_of_the_architecture_page_has_at_most_five_files():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    walks = page.split("## Eight walks", 1)[1].split("\n## ", 1)[0].split("\n### ")[1:]
    assert len(walks) == 8
    assert all(3 <= len(re.findall(r"^\d\. `", walk, re.MULTILINE)) <= 5 for walk in walks)


def test_both_locks_have_the_same_versions_and_hashes():
    pins = [{pin["name"]: pin for pin in read_lock(path)} for path in LOCKS.values()]
    common = pins[0].keys() & pins[1].keys()
    assert "ansible-core" in common
    assert [
        name
        for name in sorted(common)
        if (pins[0][name]["version"], sorted(pins[0][name]["hashes"]))
        != (pins[1][name]["version"], sorted(pins[1][name]["hashes"]))
    ] == []


def test_a_user_installs_no_test_or_linter():
    names = {pin["name"] for pin in read_lock("requirements.txt")}
    assert not names & {"pytest", "molecule", "ansible-lint", "ruff", "mypy", "selenium"}


def test_documented_defaults_are_the_constants_of_the_code(load_plugin):
    def arguments(name):
        return load_plugin("action", name).ActionModule.ARGUMENTS

    fetched = arguments("fetch_files")
    assert int(fetched["bytes"]["default"]) == quota.DEFAULT_BYTES
    assert fetched["files"]["default"] == quota.DEFAULT_FILES
    assert int(fetched["free"]["default"]) == quota.DEFAULT_FREE_BYTES
    assert arguments("ssh_mesh_config")["directory"]["default"] == primitives.DIRECTORY
    assert arguments("proof")["kind"]["choices"] == list(proof_cache.KINDS)
