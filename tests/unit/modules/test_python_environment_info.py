# SPDX-License-Identifier: Apache-2.0
"""python_environment_info: what a node says about its Python and its environments."""

from __future__ import annotations

import json
import os
import sys

import python_environment_info
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env as core,
)


def put(home, digest, complete):
    packages = home / "env" / digest / "lib"
    (packages / "numpy-1.0.dist-info").mkdir(parents=True)
    if complete:
        (home / "env" / digest / core.MARKER).write_text(
            json.dumps(
                {
                    "version": 1,
                    "digest": digest,
                    "interpreter": sys.executable,
                    "paths": [str(packages)],
                    "packages": {"numpy": "1.0"},
                }
            )
        )


def test_environments_are_told_apart(run_module, tmp_path):
    put(tmp_path, "a" * 16, True)
    put(tmp_path, "b" * 16, False)
    (tmp_path / "env" / f".{'a' * 16}.lock").touch()
    (tmp_path / "env" / "mine").mkdir()
    result = run_module(
        python_environment_info, {"home": str(tmp_path), "interpreter": sys.executable}
    )
    assert not result["changed"] and list(result["environments"]) == ["a" * 16]
    assert list(result["unusable"]) == ["b" * 16] and result["unusable"]["b" * 16].startswith(
        "incomplete: "
    )
    assert result["python"] == ".".join(map(str, sys.version_info[:2]))


def test_a_fresh_node_has_nothing_and_nothing_is_made(run_module, tmp_path):
    home = tmp_path / "not" / "there"
    result = run_module(
        python_environment_info, {"home": str(home), "interpreter": sys.executable}, check=True
    )
    assert (
        (result["environments"], result["unusable"]) == ({}, {})
        and result["free_bytes"] > 0
        and not home.parent.exists()
    )


def test_a_relative_home_starts_from_the_users(monkeypatch):
    monkeypatch.setenv("HOME", "/home/t")
    assert python_environment_info.product_directory(".trainyard") == "/home/t/.trainyard"
    assert python_environment_info.product_directory("~/x") == "/home/t/x"
    assert python_environment_info.product_directory("/scratch/t") == "/scratch/t"


def test_a_missing_interpreter_is_named(run_module, tmp_path):
    result = run_module(
        python_environment_info, {"home": str(tmp_path), "interpreter": "/no/such/python3.11"}
    )
    assert (
        result["failed"]
        and "/no/such/python3.11 cannot" in result["msg"]
        and "runtime_interpreter" in result["msg"]
    )


def test_an_interpreter_that_fails_is_named(run_module, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 3\n")
    os.chmod(broken, 0o755)
    assert (
        "runtime_interpreter"
        in run_module(python_environment_info, {"home": str(tmp_path), "interpreter": str(broken)})[
            "msg"
        ]
    )
