# SPDX-License-Identifier: Apache-2.0
"""conform's checks of the product's own shape: contract E1 to E4. Each takes the ground, its line
of contract.yml and the findings.
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


def by_roles(ground, line, found):
    """E1: train.yml's roles in their order, one task that starts on all nodes at once; on the site,
    a finished run's port and times.
    """
    plays = ground.data("playbooks", "includes", "ready.yml")
    found.same(
        "roles that make ready",
        READY,
        [role["role"] for play in plays for role in play.get("roles", ())],
    )
    kinds, train = sequence(ground)
    found.same(
        "what train.yml does before what",
        ["ready", "start", "follow"],
        [kind for kind in kinds if kind],
    )
    start = train[kinds.index("start")]
    found.same(
        "the play that starts: batches, one fails all",
        (None, True),
        (start.get("serial"), start.get("any_errors_fatal")),
    )
    document = ground.contract["documents"]["C"]
    promise = ground.contract["promises"]["B5"]["values"]
    made = ground.make(ground.job(document["job"]), document["machines"])
    found.same(
        "{} in the plan".format(promise["variable"]),
        str(promise["port"]),
        made.plan["env"].get(promise["variable"]),
    )
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(ground.path("ansible.cfg"))
    forks = int(settings.get("defaults", "forks", fallback="5"))
    wanted = max(16, len(ground.site.names) if ground.site else 0)
    found.true(
        "nodes that start at once: %d or more" % wanted,
        forks >= wanted,
        "forks = %d in ansible.cfg" % forks,
    )
    found.say("%s, then one task starts up to %d nodes at once", ", ".join(READY), forks)
    if ground.site:
        ground.site.logins(found)
        ground.site.started_together(found, promise["variable"], document["job"])


def module_collects(ground, line, found):
    """E2: the module reads real logs of two nodes, in attempts that the product prepared: every
    rank, its file's digest, its figures.
    """
    wanted = line["values"]
    machines = ground.contract["documents"]["C"]["machines"][: wanted["nodes"]]
    home = ground.home()
    made = ground.make(
        ground.job(ground.contract["documents"]["C"]["job"]),
        machines,
        devices=wanted["devices"],
        accelerator="cpu",
        home=home,
    )
    ranks, lines = [], 0
    for index, node in enumerate(made.plan["nodes"]):
        place = ground.attempt(made, index)
        sample = ground.path("tests", "samples", "logs", wanted["sample"], node["name"])
        for name in sorted(os.listdir(sample)):
            shutil.copyfile(
                os.path.join(sample, name),
                os.path.join(
                    place, "logs.txt" if name == "launch.out" else os.path.join("log", name)
                ),
            )
        result = ground.run_module(wanted["module"], {"attempt_dir": place, "node": node["name"]})
        found.true(
            "{} on {}".format(wanted["module"], node["name"]), "ranks" in result, result.get("msg")
        )
        for rank in result.get("ranks", []):
            with open(os.path.join(sample, "workerlog.%d" % rank["local_rank"]), "rb") as handle:
                raw = handle.read()
            found.same(
                "rank {}: its log's sha256".format(rank["rank"]),
                hashlib.sha256(raw).hexdigest(),
                rank["sha256"],
            )
            found.same(
                "rank {}: its name at home".format(rank["rank"]),
                "rank-%03d.%s.log" % (rank["rank"], node["name"]),
                rank["home"],
            )
            lines += rank["lines"] or 0
        ranks += result.get("ranks", [])
    count = wanted["nodes"] * wanted["devices"]
    found.same("ranks of both nodes", list(range(count)), [rank["rank"] for rank in ranks])
    step = ranks[0]["last_step"] if ranks else None
    found.true("rank 0's last loss", isinstance((step or {}).get("loss"), float), step)
    found.say(
        "%s read %d ranks, %d lines; rank 0's last loss %s",
        wanted["module"],
        len(ranks),
        lines,
        (step or {}).get("loss"),
    )


def top_level(ground, line, found):
    """E3: what lies there, what ansible.cfg names is there, which packages are pinned and
    installed.
    """
    wanted = line["values"]
    for name in wanted["files"]:
        found.true(name, os.path.isfile(ground.path(name)), "it is no file")
    for name in wanted["folders"]:
        found.true(
            name + "/",
            os.path.isdir(ground.path(name)) and os.listdir(ground.path(name)),
            "it is no directory with something in it",
        )
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(ground.path("ansible.cfg"))
    for key in ("inventory", "roles_path", "library", "collections_path", "action_plugins"):
        place = settings.get("defaults", key, fallback="").split(":")[0]
        found.true(
            f"ansible.cfg's {key}",
            place and os.path.exists(ground.path(place)),
            place or "not set",
        )
    collections = (ground.data("requirements.yml") or {}).get("collections") or []
    found.true(
        "collections in requirements.yml",
        collections and all(item.get("name") and item.get("version") for item in collections),
        collections,
    )
    pins = dict(
        re.findall(r"^([\w.-]+)==([^\s;\\]+)", ground.text("requirements.txt"), re.MULTILINE)
    )
    said = []
    for name in wanted["controller"]:
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "not installed; run: make setup"
        found.same(
            f"{name} here and in requirements.txt",
            pins.get(name, "not named in requirements.txt"),
            installed,
        )
        said.append(f"{name} {installed}")
    for name in wanted["nodes"]:
        suites = [
            document["suite"]
            for document in ground.contract["documents"].values()
            if document.get("accelerator") == "gpu"
        ]
        lacking = [
            suite for suite in suites if name not in ground.suite(suite)["environment"]["packages"]
        ]
        found.same(f"suites whose environment is not {name}", [], lacking)
    found.say(
        "%d entries; %s; %s for the nodes",
        len(wanted["files"] + wanted["folders"]),
        ", ".join(said),
        ", ".join(wanted["nodes"]),
    )


def tests_and_runbooks(ground, line, found):
    """E4: molecule itself lists the scenarios, each has checks, its nodes are Docker's; every verb
    has a runbook.
    """
    folders = [
        name
        for name in sorted(os.listdir(ground.path("molecule")))
        if os.path.isfile(ground.path("molecule", name, "molecule.yml"))
    ]
    listed = ground.run_program(["-m", "molecule", "list", "--format", "plain"])
    words = [text.split() for text in listed.splitlines()]
    found.same(
        "scenarios that `molecule list` knows",
        folders,
        sorted({item[3] for item in words if len(item) == 6}) or listed[-160:],
    )
    tests = 0
    for name in folders:
        checks = [
            function
            for file in sorted(os.listdir(ground.path("molecule", name)))
            if file.startswith("test_")
            for function in functions(ground.text("molecule", name, file))
        ]
        found.true(f"checks of {name}", checks, "none")
        tests += len(checks)
    create = ground.data("molecule", "shared", "create.yml")[0]["ansible.builtin.import_playbook"]
    roles = [
        role["role"]
        for play in ground.data("molecule", "shared", create)
        for role in play.get("roles", [])
    ]
    docker = [
        name
        for role in roles
        for name in sorted(os.listdir(ground.path("roles", role, "tasks")))
        if "community.docker.docker_container:" in ground.text("roles", role, "tasks", name)
    ]
    found.true(
        "molecule's nodes are made in Docker", docker, f"no task of {roles} makes a container"
    )
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
    found.same("verbs without a runbook", [], lost)
    links = sorted(set(re.findall(r"\]\((docs/runbooks/[^)#]+\.md)", "\n".join(rows))))
    found.same(
        "runbooks that README.md names and that are not there",
        [],
        [link for link in links if not os.path.exists(ground.path(link))],
    )
    found.say(
        "molecule lists %s with %d checks; %d verbs in %d runbooks",
        ", ".join(folders),
        tests,
        len(verbs),
        len(pages),
    )


def functions(source):
    """Return the names of a test file's test functions."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


CHECKS = {"E1": by_roles, "E2": module_collects, "E3": top_level, "E4": tests_and_runbooks}
