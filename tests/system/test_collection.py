# SPDX-License-Identifier: Apache-2.0
"""The built collection: what its archive has, and its use from an empty project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml
from core_support import ROOT

PLUGINS = ("module_utils", "plugin_utils", "action", "callback", "filter")
TOP = {
    *("plugins", "roles", "playbooks", "meta"),
    *("README.md", "CHANGELOG.md", "LICENSE", "MANIFEST.json", "FILES.json"),
}
PROGRAMS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Build the collection, and return its archive."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, ROOT / ".config" / "collection.py", out], check=True)
    built = list(out.iterdir())
    assert [path.suffixes[-2:] for path in built] == [[".tar", ".gz"]]
    return built[0]


@pytest.fixture(scope="module")
def names(archive):
    """Return the files of the archive."""
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert [member.name for member in members if not (member.isfile() or member.isdir())] == []
    return {member.name for member in members if member.isfile()}


@pytest.fixture(scope="module")
def ansible(archive, tmp_path_factory):
    """Call it with a program of Ansible and its arguments: in an empty project where the collection
    was installed from its archive, without a network and without this project's configuration.
    """
    home = tmp_path_factory.mktemp("home")
    collections = home / "collections"
    project = home / "project"
    project.mkdir()
    # The collections that it names come with the package `ansible`.
    words = ["collection", "install", "--no-deps", "--offline", archive, "-p", collections]
    subprocess.run(
        [PROGRAMS / "ansible-galaxy", *words],
        cwd=project,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        check=True,
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    environment = {
        **kept,
        "HOME": str(home),
        "ANSIBLE_COLLECTIONS_PATH": str(collections),
        "ANSIBLE_LOCALHOST_WARNING": "False",
        "ANSIBLE_STDOUT_CALLBACK": "json",
    }

    def call(program, *arguments, playbook=""):
        (project / "play.yml").write_text(playbook)
        return subprocess.run(
            [PROGRAMS / program, *arguments],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return call


def files_below(folder, suffix=""):
    """Return the files that git tracks below the project's folder, as relative paths."""
    done = subprocess.run(
        ["git", "ls-files", "--", folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {
        Path(name).relative_to(folder).as_posix()
        for name in done.stdout.splitlines()
        if name.endswith(suffix) and (ROOT / name).is_file()
    }


@pytest.mark.parametrize(
    "folder, place", [("library", "plugins/modules"), *((f"plugins/{p}",) * 2 for p in PLUGINS)]
)
def test_the_archive_has_all_code(names, folder, place):
    source = files_below(folder, ".py")
    assert source
    assert {f"{place}/{name}" for name in source} <= names


def test_the_archive_has_the_data_that_code_reads(names):
    for folder in ("roles", "playbooks", "plugins/module_utils"):
        assert {f"{folder}/{name}" for name in files_below(folder)} - names == set()
    assert "playbooks/suites/paddledetection.yml" in names


def test_the_archive_has_nothing_else(names):
    assert {name.split("/")[0] for name in names} == TOP
    others = ("__pycache__", ".pyc", ".git", "tests/", "molecule/", ".venv", ".retry")
    assert [name for name in sorted(names) if any(part in name for part in others)] == []


def test_the_archive_says_what_it_is_and_needs(archive):
    with tarfile.open(archive) as tar:
        info = json.load(tar.extractfile("MANIFEST.json"))["collection_info"]
    assert (info["namespace"], info["name"]) == ("trainyard", "cluster")
    assert archive.name == f"trainyard-cluster-{info['version']}.tar.gz"
    assert {"ansible.posix", "community.docker"} <= info["dependencies"].keys()


def test_an_empty_project_reads_the_documentation(ansible):
    done = ansible("ansible-doc", "--json", "trainyard.cluster.plan")
    assert done.returncode == 0, done.stderr
    assert "job" in json.loads(done.stdout)["trainyard.cluster.plan"]["doc"]["options"]


def test_an_empty_project_runs_an_action_on_the_controller(ansible):
    digest = "ab" * 8
    marker = {"packages": {"numpy": "1"}, "imported": {"version": "2.6.2"}, "fingerprint": "f"}
    nodes = {name: {"environments": {digest: marker}} for name in ("node1", "node2")}
    task = {"trainyard.cluster.environment_differences": {"digest": digest, "nodes": nodes}}
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]
    done = ansible("ansible-playbook", "play.yml", playbook=json.dumps(play))
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)["plays"][0]["tasks"][0]["hosts"]["localhost"]
    assert result["fingerprint"] == "f"
    assert result["action"] == "trainyard.cluster.environment_differences"


def test_every_module_of_a_node_is_routed_to_the_gate(archive):
    with tarfile.open(archive) as tar:
        runtime = yaml.safe_load(tar.extractfile("meta/runtime.yml"))
    routed = runtime["plugin_routing"]["modules"]
    schemas = {path.stem for path in (ROOT / "plugins/plugin_utils/gate/answers").glob("*.yml")}
    own_action = {path.stem for path in (ROOT / "plugins" / "action").glob("*.py")}
    assert set(routed) == schemas - own_action - {"ansible", "common"}
    gate = {"action_plugin": "trainyard.cluster.normal"}
    assert [entry for entry in routed.values() if entry != gate] == []


# Runs the remote command here, and adds a field to the answer of a module.
LYING_SSH = """#!/bin/sh
for command; do :; done
sh -c "$command" | sed 's/"changed": false/"changed": false, "other": 1/'
"""


def test_the_gate_is_in_force_without_the_projects_configuration(ansible, tmp_path):
    ssh = tmp_path / "ssh"
    ssh.write_text(LYING_SSH)
    ssh.chmod(0o755)
    variables = {
        "ansible_connection": "ssh",
        "ansible_ssh_executable": str(ssh),
        "ansible_pipelining": True,
        "ansible_python_interpreter": sys.executable,
    }
    task = {
        "trainyard.cluster.run_history_info": {
            "base": str(tmp_path / "base"),
            "node": "node1",
            "run_id": "20260101-000000-x-0001",
        }
    }
    play = [{"hosts": "all", "gather_facts": False, "vars": variables, "tasks": [task]}]
    done = ansible("ansible-playbook", "-i", "node1,", "play.yml", playbook=json.dumps(play))
    result = json.loads(done.stdout)["plays"][0]["tasks"][0]["hosts"]["node1"]
    assert (result["failed"], result["code"]) == (True, "answer.invalid"), result
    assert result["fields"] == ["answer"]
