# SPDX-License-Identifier: Apache-2.0
"""Collection of the wheels that the nodes lack, into the controller's cache."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.environments import python_env
from ansible_collections.trainyard.cluster.plugins.module_utils.environments.wheel_manifest import (
    INSTALLER,
)

from . import wheelhouse

Nodes = dict[str, dict[str, Any]]
DIFFERENT_PYTHONS = (
    "set runtime_interpreter for the nodes that differ, for example to /usr/bin/python3.11"
)


def collect_wheels(given: dict[str, Any], write: bool) -> dict[str, Any]:
    """Return the nodes without the environment, and fetch its wheels if there are any."""
    asked, nodes = python_env.read_environment(given["environment"]), given["nodes"]
    texts = read_lists(asked, given["files_dir"], given["project_dir"])
    is_own = bool(asked["python"] or asked["container"])
    python, machine, libc = ("", "", "")
    if not is_own:
        python, machine, libc = common_python(nodes)
    digest = python_env.environment_digest(asked, texts, python, machine)
    missing = [name for name, node in nodes.items() if digest not in node["environments"]]
    result = {
        "changed": False,
        "digest": digest,
        "missing": missing,
        "path": "",
        "packages": {},
        "manifest_sha256": "",
        "fetched": [],
        "reused": 0,
        "wheel_bytes": 0,
        "needed_bytes": 0,
    }
    if is_own:
        return result
    result["packages"] = python_env.resolve(asked, texts, python, machine)
    if not missing:
        return result
    hashes = python_env.allowed_hashes(asked, texts, python, machine)
    hashes[INSTALLER] = installer_hashes(given["files_dir"], given["uv_version"])
    want = wheelhouse.Wanted(
        digest=digest,
        packages=result["packages"],
        package=asked["package"],
        index_url=asked["index_url"],
        python=python,
        machine=machine,
        libc=libc,
        uv_version=given["uv_version"],
        from_source=tuple(python_env.source_packages(texts)),
        hashes=hashes,
    )
    root = os.path.join(given["cache_dir"], "wheels")
    result["path"] = os.path.join(root, digest)
    if not write:
        result["changed"] = wheelhouse.read_wheelhouse(result["path"], want) is None
        if result["changed"]:
            result["fetched"] = sorted(want.packages)
        return result
    with wheelhouse.lock_cache(root, given["wait"]):
        pip = [sys.executable, "-m", "pip"]
        result.update(
            wheelhouse.provide(root, want, pip, free=lambda: shutil.disk_usage(root).free)
        )
    check_room(nodes, missing, result["needed_bytes"])
    return result


def read_lists(asked: dict[str, Any], files_dir: str, project_dir: str) -> list[str]:
    """Return the texts of the pinned lists, or refuse with every one that cannot be read."""
    texts, problems = [], []
    for name in asked["requirements"]:
        path = python_env.requirement_path(name, files_dir, project_dir)
        try:
            with open(path, encoding="utf-8") as handle:
                texts.append(handle.read())
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            problems.append(f"requirements: {name}: cannot read {path}: {reason}")
    if problems:
        raise python_env.EnvironmentRefused(problems)
    return texts


def installer_hashes(files_dir: str, version: str) -> list[str]:
    """Return the sha256 of the files of uv that may be used.

    They are those of the role's own list, which has to pin this version.
    """
    name = INSTALLER + ".txt"
    try:
        with open(os.path.join(files_dir, name), encoding="utf-8") as handle:
            pins, problems = python_env.parse_requirements(handle.read(), name)
    except FileNotFoundError:
        return []
    pin = next((pin for pin in pins if pin["name"] == INSTALLER), None)
    if problems or not pin or pin["version"] != version:
        unpinned = f"{name}: does not pin {INSTALLER} {version}; compile it again"
        raise python_env.EnvironmentRefused(problems or [unpinned])
    return pin["hashes"]


def common_python(nodes: Nodes, remedy: str = DIFFERENT_PYTHONS) -> tuple[str, str, str]:
    """Return (python, machine, oldest libc) of all nodes. Refuse nodes that differ, by name."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, node in nodes.items():
        kinds.setdefault((node["python"], node["machine"]), []).append(name)
    if len(kinds) > 1:
        found = "; ".join(
            f"Python {kind[0]} on {kind[1]}: {', '.join(names)}" for kind, names in kinds.items()
        )
        raise python_env.EnvironmentRefused(
            [
                f"an environment is the same on every node, but their Pythons differ ({found});"
                f" {remedy}"
            ]
        )
    without = [name for name, node in nodes.items() if not wheelhouse.LIBC.match(node["libc"])]
    if without:
        raise python_env.EnvironmentRefused(
            [
                f"{', '.join(without)}: no GNU C library, and the wheels of Paddle and MindSpore"
                " need it; use a glibc distribution"
            ]
        )
    ((python, machine),) = kinds
    return (
        python,
        machine,
        min((node["libc"] for node in nodes.values()), key=wheelhouse.version_pair),
    )


def check_room(nodes: Nodes, missing: list[str], needed: int) -> None:
    """Refuse nodes without room for the environment, all of them at once, with numbers."""
    short = [
        f"{name}: {nodes[name]['home']} has {nodes[name]['free_bytes'] / 1e9:.1f} GB free, the"
        f" environment needs {needed / 1e9:.1f} GB; make room there, or set trainyard_home to a"
        " larger file system"
        for name in missing
        if nodes[name]["free_bytes"] < needed
    ]
    if short:
        raise python_env.EnvironmentRefused(short)
