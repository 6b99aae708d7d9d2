# SPDX-License-Identifier: Apache-2.0
"""conform's checks of the product's own shape, contract E1 to E4.

Each takes the fixtures, its line of contract.yml and the findings.
"""

from __future__ import annotations

import ast
import configparser
import hashlib
import importlib.metadata
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from .findings_check import Findings
from .fixtures import Fixtures, Line, roles_of, sequence

READY = ["ssh_trust", "runtime", "workspace"]


def by_roles(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check E1: train.yml's roles in their order, one start on all nodes at once.

    One task starts them. On the site, also a finished run's port and times.
    """
    plays = fixtures.data("playbooks", "includes", "make_ready.yml")
    findings.same(
        "roles that make ready",
        READY,
        roles_of(plays),
    )
    kinds, train = sequence(fixtures)
    findings.same(
        "what train.yml does before what",
        ["ready", "start", "follow"],
        [kind for kind in kinds if kind],
    )
    start = train[kinds.index("start")]
    findings.same(
        "the play that starts: batches, one fails all",
        (None, True),
        (start.get("serial"), start.get("any_errors_fatal")),
    )
    document = fixtures.contract["documents"]["C"]
    promise = fixtures.contract["promises"]["B5"]["values"]
    plan = fixtures.make(fixtures.job(document["job"]), document["machines"]).plan
    findings.same(
        f"{promise['variable']} in the plan",
        str(promise["port"]),
        plan["env"].get(promise["variable"]),
    )
    forks = int(_ansible_settings(fixtures).get("defaults", "forks", fallback="5"))
    least = 16
    if fixtures.site:
        least = max(least, len(fixtures.site.names))
    findings.true(
        f"nodes that start at once: {least} or more",
        forks >= least,
        f"forks = {forks} in ansible.cfg",
    )
    findings.say(f"{', '.join(READY)}, then one task starts up to {forks} nodes at once")
    if fixtures.site:
        fixtures.site.logins(findings)
        fixtures.site.started_together(findings, promise["variable"], document["job"])


def _ansible_settings(fixtures: Fixtures) -> configparser.ConfigParser:
    """Return the product's ansible.cfg."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(fixtures.path("ansible.cfg"))
    return settings


def module_collects(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check E2: the module reads real logs of two nodes.

    They lie in attempts that the product prepared. It finds every rank, its file's digest and its
    figures.
    """
    promise, run_module = line["values"], fixtures.run_module
    if run_module is None:
        findings.true(promise["module"], False, "no module can be run here")
        return
    machines = fixtures.contract["documents"]["C"]["machines"][: promise["nodes"]]
    compiled = fixtures.make(
        fixtures.job(fixtures.contract["documents"]["C"]["job"]),
        machines,
        devices=promise["devices"],
        accelerator="cpu",
        home=fixtures.home(),
    )
    ranks, lines = [], 0
    for index, node in enumerate(compiled.plan["nodes"]):
        attempt_dir = fixtures.attempt(compiled, index)
        sample = fixtures.path("tests", "samples", "logs", promise["sample"], node["name"])
        _copy_sample(sample, attempt_dir)
        result = run_module(promise["module"], {"attempt_dir": attempt_dir, "node": node["name"]})
        findings.true(
            f"{promise['module']} on {node['name']}", "ranks" in result, result.get("msg")
        )
        for rank in result.get("ranks", []):
            _compare_rank(rank, node["name"], sample, findings)
            lines += rank["lines"] or 0
        ranks += result.get("ranks", [])
    count = promise["nodes"] * promise["devices"]
    findings.same("ranks of both nodes", list(range(count)), [rank["rank"] for rank in ranks])
    step = None
    if ranks:
        step = ranks[0]["last_step"]
    loss = (step or {}).get("loss")
    findings.true("rank 0's last loss", isinstance(loss, float), step)
    findings.say(
        f"{promise['module']} read {len(ranks)} ranks, {lines} lines; rank 0's last loss {loss}"
    )


def _copy_sample(sample: str, attempt_dir: str) -> None:
    """Copy a node's sample logs into an attempt's directory."""
    for name in sorted(os.listdir(sample)):
        target = os.path.join("log", name)
        if name == "launch.out":
            target = "logs.txt"
        shutil.copyfile(os.path.join(sample, name), os.path.join(attempt_dir, target))


def _compare_rank(rank: Mapping[str, Any], node: str, sample: str, findings: Findings) -> None:
    """Compare what the module returned of a rank with its sample log."""
    with open(os.path.join(sample, f"workerlog.{rank['local_rank']}"), "rb") as handle:
        raw = handle.read()
    number = rank["rank"]
    findings.same(
        f"rank {number}: its log's sha256", hashlib.sha256(raw).hexdigest(), rank["sha256"]
    )
    findings.same(
        f"rank {number}: its name on the controller", f"rank-{number:03d}.{node}.log", rank["home"]
    )


def top_level(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check E3: the files are there, and the packages are pinned and installed.

    Everything that ansible.cfg names exists.
    """
    promise = line["values"]
    for name in promise["files"]:
        findings.true(name, os.path.isfile(fixtures.path(name)), "it is no file")
    for name in promise["folders"]:
        findings.true(
            name + "/",
            os.path.isdir(fixtures.path(name)) and os.listdir(fixtures.path(name)),
            "it is no directory with something in it",
        )
    settings = _ansible_settings(fixtures)
    for key in ("inventory", "roles_path", "library", "collections_path", "action_plugins"):
        path = settings.get("defaults", key, fallback="").split(":")[0]
        findings.true(
            f"ansible.cfg's {key}",
            path and os.path.exists(fixtures.path(path)),
            path or "not set",
        )
    collections = (fixtures.data("requirements.yml") or {}).get("collections") or []
    findings.true(
        "collections in requirements.yml",
        collections and all(item.get("name") and item.get("version") for item in collections),
        collections,
    )
    versions = _compare_versions(fixtures, promise["controller"], findings)
    _compare_node_packages(fixtures, promise["nodes"], findings)
    findings.say(
        f"{len(promise['files'] + promise['folders'])} entries; {', '.join(versions)};"
        f" {', '.join(promise['nodes'])} for the nodes"
    )


# Lists of locked packages. Users need the first one only.
USERS_LOCK, DEVELOPERS_LOCK = "requirements.txt", ".config/requirements-dev.txt"


def _compare_versions(fixtures: Fixtures, names: Sequence[str], findings: Findings) -> list[str]:
    """Compare the controller's packages with the lists that lock them.

    Return them with their versions. A package for developers need not be installed.
    """
    users = _read_pins(fixtures.text(USERS_LOCK))
    developers = _read_pins(fixtures.text(DEVELOPERS_LOCK))
    versions = []
    for name in names:
        path, locked = USERS_LOCK, users.get(name)
        if locked is None and name in developers:
            path, locked = DEVELOPERS_LOCK, developers[name]
        locked = locked or f"not locked in {path}"
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "not installed; run: make setup"
            if path == DEVELOPERS_LOCK:
                installed = locked
        findings.same(f"{name} here and in {path}", locked, installed)
        versions.append(f"{name} {installed}")
    return versions


def _read_pins(text: str) -> dict[str, str]:
    """Return the version of every package that a list locks."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE))


def _compare_node_packages(fixtures: Fixtures, names: Sequence[str], findings: Findings) -> None:
    """Check that every suite for GPUs has the nodes' packages."""
    suites = [
        document["suite"]
        for document in fixtures.contract["documents"].values()
        if document.get("accelerator") == "gpu"
    ]
    for name in names:
        lacking = [
            suite
            for suite in suites
            if name not in fixtures.suite(suite)["environment"]["packages"]
        ]
        findings.same(f"suites whose environment is not {name}", [], lacking)


def tests_and_runbooks(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check E4: every scenario has tests, and every verb has a runbook.

    The scenarios' nodes are Docker's. tests/contract asks molecule itself, since users need not
    install it.
    """
    scenarios = [
        name
        for name in sorted(os.listdir(fixtures.path("molecule")))
        if os.path.isfile(fixtures.path("molecule", name, "molecule.yml"))
    ]
    findings.true("there are scenarios", scenarios, "none in molecule/")
    tests = 0
    for name in scenarios:
        checks = _scenario_checks(fixtures, name)
        findings.true(f"checks of {name}", checks, "none")
        tests += len(checks)
    _check_docker(fixtures, findings)
    verbs, pages = _check_runbooks(fixtures, findings)
    findings.say(
        f"{tests} tests in {', '.join(scenarios)}; {len(verbs)} verbs in {len(pages)} runbooks"
    )


def _scenario_checks(fixtures: Fixtures, scenario: str) -> list[str]:
    """Return the names of a scenario's test functions."""
    names = []
    for file in sorted(os.listdir(fixtures.path("molecule", scenario))):
        if file.startswith("test_"):
            names += functions(fixtures.text("molecule", scenario, file))
    return names


def _check_docker(fixtures: Fixtures, findings: Findings) -> None:
    """Check that molecule's nodes are containers."""
    create = fixtures.data("molecule", "shared", "create.yml")[0]["ansible.builtin.import_playbook"]
    roles = [
        role["role"]
        for play in fixtures.data("molecule", "shared", create)
        for role in play.get("roles", [])
    ]
    files = [
        name
        for role in roles
        for name in sorted(os.listdir(fixtures.path("roles", role, "tasks")))
        if "community.docker.docker_container:" in fixtures.text("roles", role, "tasks", name)
    ]
    findings.true(
        "molecule's nodes are made in Docker", files, f"no task of {roles} makes a container"
    )


def _check_runbooks(fixtures: Fixtures, findings: Findings) -> tuple[list[str], list[str]]:
    """Check that every verb has a runbook and return (verbs, texts of the runbooks)."""
    pages = [
        fixtures.text("docs", "runbooks", name)
        for name in sorted(os.listdir(fixtures.path("docs", "runbooks")))
        if name.endswith(".md")
    ]
    verbs = [
        name for name in sorted(os.listdir(fixtures.path("playbooks"))) if name.endswith(".yml")
    ]
    rows = [row for row in fixtures.text("README.md").splitlines() if "](docs/runbooks/" in row]
    lost = [
        verb
        for verb in verbs
        if not any("playbooks/" + verb in page for page in pages)
        and not any(f"`{verb}`" in row for row in rows)
    ]
    findings.same("verbs without a runbook", [], lost)
    links = sorted(set(re.findall(r"\]\((docs/runbooks/[^)#]+\.md)", "\n".join(rows))))
    findings.same(
        "runbooks that README.md names and that are not there",
        [],
        [link for link in links if not os.path.exists(fixtures.path(link))],
    )
    return verbs, pages


def functions(source: str) -> list[str]:
    """Return the names of a test file's test functions."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


CHECKS = {"E1": by_roles, "E2": module_collects, "E3": top_level, "E4": tests_and_runbooks}
