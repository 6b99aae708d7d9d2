# SPDX-License-Identifier: Apache-2.0
"""wheelhouse: what is asked for, which nodes lack it, and what is refused before anything is
fetched.
"""

from __future__ import annotations

import fcntl
import os
import re

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env as core,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.environments import wheelhouse
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate

NODE = {
    "python": "3.11",
    "machine": "x86_64",
    "libc": "2.36",
    "home": "/home/t/.trainyard",
    "free_bytes": 1 << 40,
    "environments": {},
}
ASKED = {"package": "paddlepaddle", "version": "2.6.2", "requirements": ["lock.txt"]}


@pytest.fixture
def arguments(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "lock.txt").write_text("numpy==1.26.4\n")
    return {
        "environment": ASKED,
        "nodes": {"node1": NODE, "node2": NODE},
        "cache_dir": str(tmp_path / "cache"),
        "files_dir": str(tmp_path / "files"),
        "project_dir": str(tmp_path),
        "uv_version": "1.0",
    }


@pytest.fixture
def provided(monkeypatch):
    """Stand in for the fetching, which environments/test_wheelhouse.py tries. Return the calls."""
    calls = []

    def provide(root, want, pip, free):
        os.makedirs(os.path.join(root, want.digest))
        with open(os.path.join(root, want.digest, "x.whl"), "w") as wheel:
            wheel.write("a wheel")
        with open(os.path.join(root, ".lock"), "a") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        calls.append(want)
        return {
            "changed": True,
            "fetched": ["x.whl"],
            "reused": 0,
            "manifest_sha256": "f" * 64,
            "wheel_bytes": 10,
            "needed_bytes": 3_000_000_000,
            "packages": want.packages,
        }

    monkeypatch.setattr(wheelhouse, "provide", provide)
    return calls


def test_check_mode_tells_what_would_be_fetched_and_writes_nothing(run_action, arguments):
    result = run_action("wheelhouse", arguments, check=True)
    assert (
        result["changed"]
        and result["missing"] == ["node1", "node2"]
        and result["fetched"] == ["numpy", "paddlepaddle"]
    )
    assert result["digest"] == core.environment_digest(ASKED, ["numpy==1.26.4"], "3.11", "x86_64")
    assert not os.path.exists(arguments["cache_dir"])


def test_the_wheels_are_a_tree_for_the_nodes(run_action, arguments, provided):
    result = run_action("wheelhouse", arguments)
    tree = result["tree"]
    assert (tree["kind"], tree["files"], tree["source"]) == ("wheels", 1, result["path"])
    kept = os.path.join(arguments["cache_dir"], "manifests", tree["digest"] + ".json")
    assert list(manifest.read_mapping(kept, 1000)) == ["x.whl"]


def test_ready_nodes_need_no_wheelhouse(run_action, arguments, provided):
    digest = core.environment_digest(ASKED, ["numpy==1.26.4"], "3.11", "x86_64")
    ready = dict(NODE, environments={digest: {}})
    result = run_action("wheelhouse", dict(arguments, nodes={"node1": ready, "node2": ready}))
    assert (result["changed"], result["missing"], result["path"], provided) == (False, [], "", [])


def test_wheels_are_for_the_oldest_c_library(run_action, arguments, provided):
    result = run_action(
        "wheelhouse", dict(arguments, nodes={"node1": NODE, "node2": dict(NODE, libc="2.9")})
    )
    assert result["changed"] and provided[0].libc == "2.9"
    assert (provided[0].python, provided[0].machine) == ("3.11", "x86_64")
    assert provided[0].packages == {"paddlepaddle": "2.6.2", "numpy": "1.26.4"}


def test_what_a_list_says_has_no_wheel_is_built(run_action, arguments, provided, tmp_path):
    (tmp_path / "files" / "lock.txt").write_text("--no-binary seqeval\nseqeval==1.2.2\n")
    run_action("wheelhouse", arguments)
    assert provided[0].from_source == ("seqeval",) and provided[0].packages["seqeval"] == "1.2.2"


def test_what_lists_lock_is_asked_for(run_action, arguments, provided, tmp_path):
    one, two = "1" * 64, "2" * 64
    (tmp_path / "files" / "lock.txt").write_text(
        f"numpy==1.26.4 --hash=sha256:{one}\nscipy==1.16.3\n"
    )
    (tmp_path / "files" / "uv.txt").write_text(f"uv==1.0 \\\n    --hash=sha256:{two}\n")
    run_action("wheelhouse", arguments)
    assert provided[0].hashes == {"numpy": [one], "uv": [two]}
    result = run_action("wheelhouse", dict(arguments, uv_version="1.1"))
    assert result["failed"] and len(provided) == 1
    assert "uv.txt: " in result["msg"] and "not pin uv 1.1" in result["msg"]


def test_unequal_pythons_are_named(run_action, arguments, provided):
    result = run_action(
        "wheelhouse",
        dict(arguments, nodes={"node1": NODE, "node2": dict(NODE, python="3.12"), "node3": NODE}),
    )
    pythons = re.findall(r"Python (\S+) on (\w+): ([^;]*)", result["msg"])
    assert result["failed"] and [
        (*python[:2], re.findall(r"node\d", python[2])) for python in pythons
    ] == [
        ("3.11", "x86_64", ["node1", "node3"]),
        ("3.12", "x86_64", ["node2"]),
    ]
    assert "runtime_interpreter" in result["msg"] and provided == []


def test_nodes_without_glibc_are_named(run_action, arguments, provided):
    result = run_action(
        "wheelhouse", dict(arguments, nodes={"node1": NODE, "node2": dict(NODE, libc="")})
    )
    assert (
        result["failed"] and result["msg"].startswith("node2: no GNU C library") and provided == []
    )


@pytest.mark.parametrize("libc", ["..", "2", "0.99999999999999", "2.36\n", "2.1000", "x"])
def test_a_node_that_tells_no_version_of_its_c_library_is_named_and_costs_nothing(
    run_action, arguments, provided, libc
):
    result = run_action(
        "wheelhouse", dict(arguments, nodes={"node1": NODE, "node2": dict(NODE, libc=libc)})
    )
    assert (
        result["failed"] and result["msg"].startswith("node2: no GNU C library") and provided == []
    )
    with pytest.raises(ValueError):
        wheelhouse.platform_tags("x86_64", libc)
    told = {"changed": False, "unusable": {}, **NODE, "libc": libc}
    with pytest.raises(answer_gate.InvalidAnswer, match="libc"):
        answer_gate.validate("python_environment_info", told, {})
    answer_gate.validate("python_environment_info", dict(told, libc="2.36"), {})


def test_every_node_without_room_is_named_with_numbers(run_action, arguments, provided):
    full = dict(NODE, free_bytes=1_200_000_000)
    result = run_action(
        "wheelhouse", dict(arguments, nodes={"node1": full, "node2": NODE, "node3": full})
    )
    assert result["failed"]
    assert [line.split(":")[0] for line in result["msg"].splitlines()] == ["node1", "node3"]
    values = [re.findall(r"[\d.]+ GB", line) for line in result["msg"].splitlines()]
    assert values == [["1.2 GB", "3.0 GB"]] * 2


def test_a_full_node_that_is_ready_is_not_refused(run_action, arguments, provided):
    digest = core.environment_digest(ASKED, ["numpy==1.26.4"], "3.11", "x86_64")
    result = run_action(
        "wheelhouse",
        dict(
            arguments,
            nodes={"node1": dict(NODE, free_bytes=0, environments={digest: {}}), "node2": NODE},
        ),
    )
    assert result["missing"] == ["node2"] and not result.get("failed")


def test_lists_that_cannot_be_read_are_all_named(run_action, arguments):
    asked = dict(ASKED, requirements=["none.txt", "./nowhere/other.txt"])
    result = run_action("wheelhouse", dict(arguments, environment=asked))
    assert result["failed"] and len(result["msg"].splitlines()) == 2
    assert "none.txt: cannot read" in result["msg"] and "No such file" in result["msg"]


def test_an_own_python_needs_no_wheels_and_may_differ_from_the_systems(
    run_action, arguments, provided
):
    nodes = {"node1": NODE, "node2": dict(NODE, python="3.12")}
    result = run_action(
        "wheelhouse", dict(arguments, environment={"python": "/opt/venv/bin/python"}, nodes=nodes)
    )
    assert (result["changed"], result["missing"], result["path"], provided) == (
        False,
        ["node1", "node2"],
        "",
        [],
    )


def test_a_bad_list_names_file_and_line(run_action, arguments, tmp_path):
    (tmp_path / "files" / "lock.txt").write_text("numpy==1.26.4\nscipy\n")
    result = run_action("wheelhouse", arguments)
    assert result["failed"] and "lock.txt:2: want name==version" in result["msg"]


def test_a_cache_that_cannot_be_written_is_named(run_action, arguments, tmp_path):
    (tmp_path / "cache").write_text("a file")
    result = run_action("wheelhouse", arguments)
    assert result["failed"] and str(tmp_path / "cache") in result["msg"]
