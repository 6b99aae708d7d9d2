# SPDX-License-Identifier: Apache-2.0
"""conform's checks of the product's own shape, contract E1 to E4.

Each takes the ground, its line of contract.yml and the findings.
"""

from __future__ import annotations

import ast
import configparser
import hashlib
import importlib.metadata
import os
import re
import shutil

from .fixtures import sequence

READY = ["ssh_trust", "runtime", "workspace"]


def by_roles(ground, line, findings):
    """Check E1: train.yml's roles in their order, one start on all nodes at once.

    One task starts them. On the site, also a finished run's port and times.
    """
    plays = ground.data("playbooks", "includes", "make_ready.yml")
    findings.same(
        "roles that make ready",
        READY,
        [role["role"] for play in plays for role in play.get("roles", ())],
    )
    kinds, train = sequence(ground)
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
    document = ground.contract["documents"]["C"]
    promise = ground.contract["promises"]["B5"]["values"]
    plan = ground.make(ground.job(document["job"]), document["machines"]).plan
    findings.same(
        f"{promise['variable']} in the plan",
        str(promise["port"]),
        plan["env"].get(promise["variable"]),
    )
    forks = int(_ansible_settings(ground).get("defaults", "forks", fallback="5"))
    wanted = 16
    if ground.site:
        wanted = max(wanted, len(ground.site.names))
    findings.true(
        f"nodes that start at once: {wanted} or more",
        forks >= wanted,
        f"forks = {forks} in ansible.cfg",
    )
    findings.say("%s, then one task starts up to %d nodes at once", ", ".join(READY), forks)
    if ground.site:
        ground.site.logins(findings)
        ground.site.started_together(findings, promise["variable"], document["job"])


def _ansible_settings(ground):
    """Return the product's ansible.cfg."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(ground.path("ansible.cfg"))
    return settings


def module_collects(ground, line, findings):
    """Check E2: the module reads real logs of two nodes.

    They lie in attempts that the product prepared. It finds every rank, its file's digest and its
    figures.
    """
    wanted = line["values"]
    machines = ground.contract["documents"]["C"]["machines"][: wanted["nodes"]]
    compiled = ground.make(
        ground.job(ground.contract["documents"]["C"]["job"]),
        machines,
        devices=wanted["devices"],
        accelerator="cpu",
        home=ground.home(),
    )
    ranks, lines = [], 0
    for index, node in enumerate(compiled.plan["nodes"]):
        attempt_dir = ground.attempt(compiled, index)
        sample = ground.path("tests", "samples", "logs", wanted["sample"], node["name"])
        _copy_sample(sample, attempt_dir)
        result = ground.run_module(
            wanted["module"], {"attempt_dir": attempt_dir, "node": node["name"]}
        )
        findings.true(f"{wanted['module']} on {node['name']}", "ranks" in result, result.get("msg"))
        for rank in result.get("ranks", []):
            _compare_rank(rank, node["name"], sample, findings)
            lines += rank["lines"] or 0
        ranks += result.get("ranks", [])
    count = wanted["nodes"] * wanted["devices"]
    findings.same("ranks of both nodes", list(range(count)), [rank["rank"] for rank in ranks])
    step = None
    if ranks:
        step = ranks[0]["last_step"]
    loss = (step or {}).get("loss")
    findings.true("rank 0's last loss", isinstance(loss, float), step)
    findings.say(
        "%s read %d ranks, %d lines; rank 0's last loss %s",
        wanted["module"],
        len(ranks),
        lines,
        loss,
    )


def _copy_sample(sample, attempt_dir):
    """Copy a node's sample logs into an attempt's directory."""
    for name in sorted(os.listdir(sample)):
        target = os.path.join("log", name)
        if name == "launch.out":
            target = "logs.txt"
        shutil.copyfile(os.path.join(sample, name), os.path.join(attempt_dir, target))


def _compare_rank(rank, node, sample, findings):
    """Compare what the module returned of a rank with its sample log."""
    with open(os.path.join(sample, f"workerlog.{rank['local_rank']}"), "rb") as handle:
        raw = handle.read()
    number = rank["rank"]
    findings.same(
        f"rank {number}: its log's sha256", hashlib.sha256(raw).hexdigest(), rank["sha256"]
    )
    findings.same(f"rank {number}: its name at home", f"rank-{number:03d}.{node}.log", rank["home"])


def top_level(ground, line, findings):
    """Check E3: the files are there, and the packages are pinned and installed.

    Everything that ansible.cfg names exists.
    """
    wanted = line["values"]
    for name in wanted["files"]:
        findings.true(name, os.path.isfile(ground.path(name)), "it is no file")
    for name in wanted["folders"]:
        findings.true(
            name + "/",
            os.path.isdir(ground.path(name)) and os.listdir(ground.path(name)),
            "it is no directory with something in it",
        )
    settings = _ansible_settings(ground)
    for key in ("inventory", "roles_path", "library", "collections_path", "action_plugins"):
        path = settings.get("defaults", key, fallback="").split(":")[0]
        findings.true(
            f"ansible.cfg's {key}",
            path and os.path.exists(ground.path(path)),
            path or "not set",
        )
    collections = (ground.data("requirements.yml") or {}).get("collections") or []
    findings.true(
        "collections in requirements.yml",
        collections and all(item.get("name") and item.get("version") for item in collections),
        collections,
    )
    versions = _compare_versions(ground, wanted["controller"], findings)
    _compare_node_packages(ground, wanted["nodes"], findings)
    findings.say(
        "%d entries; %s; %s for the nodes",
        len(wanted["files"] + wanted["folders"]),
        ", ".join(versions),
        ", ".join(wanted["nodes"]),
    )


# The command that installs a list of locked packages.
LOCKS = {
    "requirements.txt": "make setup",
    ".config/requirements-dev.txt": ".config/setup.sh dev",
}


def _compare_versions(ground, names, findings):
    """Compare the controller's packages with the lists that lock them.

    Return them with their versions.
    """
    pins = {path: _read_pins(ground.text(path)) for path in LOCKS}
    versions = []
    for name in names:
        path = next((path for path in LOCKS if name in pins[path]), "requirements.txt")
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = f"not installed; run: {LOCKS[path]}"
        findings.same(
            f"{name} here and in {path}",
            pins[path].get(name, f"not named in {path}"),
            installed,
        )
        versions.append(f"{name} {installed}")
    return versions


def _read_pins(text):
    """Return the version of every package that a list locks."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE))


def _compare_node_packages(ground, names, findings):
    """Check that every suite for GPUs has the nodes' packages."""
    suites = [
        document["suite"]
        for document in ground.contract["documents"].values()
        if document.get("accelerator") == "gpu"
    ]
    for name in names:
        lacking = [
            suite for suite in suites if name not in ground.suite(suite)["environment"]["packages"]
        ]
        findings.same(f"suites whose environment is not {name}", [], lacking)


def tests_and_runbooks(ground, line, findings):
    """Check E4: molecule lists the scenarios, and every verb has a runbook.

    Each scenario has checks, and its nodes are Docker's.
    """
    scenarios = [
        name
        for name in sorted(os.listdir(ground.path("molecule")))
        if os.path.isfile(ground.path("molecule", name, "molecule.yml"))
    ]
    output = ground.run_program(["-m", "molecule", "list", "--format", "plain"])
    rows = [text.split() for text in output.splitlines()]
    findings.same(
        "scenarios that `molecule list` knows",
        scenarios,
        sorted({row[3] for row in rows if len(row) == 6}) or output[-160:],
    )
    tests = 0
    for name in scenarios:
        checks = _scenario_checks(ground, name)
        findings.true(f"checks of {name}", checks, "none")
        tests += len(checks)
    _check_docker(ground, findings)
    verbs, pages = _check_runbooks(ground, findings)
    findings.say(
        "molecule lists %s with %d checks; %d verbs in %d runbooks",
        ", ".join(scenarios),
        tests,
        len(verbs),
        len(pages),
    )


def _scenario_checks(ground, scenario):
    """Return the names of a scenario's test functions."""
    names = []
    for file in sorted(os.listdir(ground.path("molecule", scenario))):
        if file.startswith("test_"):
            names += functions(ground.text("molecule", scenario, file))
    return names


def _check_docker(ground, findings):
    """Check that molecule's nodes are containers."""
    create = ground.data("molecule", "shared", "create.yml")[0]["ansible.builtin.import_playbook"]
    roles = [
        role["role"]
        for play in ground.data("molecule", "shared", create)
        for role in play.get("roles", [])
    ]
    files = [
        name
        for role in roles
        for name in sorted(os.listdir(ground.path("roles", role, "tasks")))
        if "community.docker.docker_container:" in ground.text("roles", role, "tasks", name)
    ]
    findings.true(
        "molecule's nodes are made in Docker", files, f"no task of {roles} makes a container"
    )


def _check_runbooks(ground, findings):
    """Check that every verb has a runbook and return (verbs, texts of the runbooks)."""
    pages = [
        ground.text("docs", "runbooks", name)
        for name in sorted(os.listdir(ground.path("docs", "runbooks")))
        if name.endswith(".md")
    ]
    verbs = [name for name in sorted(os.listdir(ground.path("playbooks"))) if name.endswith(".yml")]
    rows = [row for row in ground.text("README.md").splitlines() if "](docs/runbooks/" in row]
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
        [link for link in links if not os.path.exists(ground.path(link))],
    )
    return verbs, pages


def functions(source):
    """Return the names of a test file's test functions."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


CHECKS = {"E1": by_roles, "E2": module_collects, "E3": top_level, "E4": tests_and_runbooks}
