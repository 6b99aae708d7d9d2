# SPDX-License-Identifier: Apache-2.0
"""container_environment with real processes: small programs stand in for podman and systemd, and
what they start really runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import container_environment
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.processes import pids_with_mark
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    container_trial,
    containers,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env as core,
)
from core_support import put

# Two test sessions on one machine must not take each other's processes for their own.
DIGEST = f"{os.getpid():016x}"
IMAGE = "mine/paddle:2.6.2"
# Skips its own options, as the engine would, and runs the command in the working directory that it
# was given.
PODMAN = """
import os, sys
here, words = os.path.dirname(os.path.abspath(__file__)), sys.argv[1:]
with open(here + "/podman.log", "a") as log:
    log.write(" ".join(words[:3]) + chr(10))
if "inspect" in words:
    if not os.path.exists(here + "/image"):
        sys.exit("Error: %s: image not known" % words[-1])
    print(open(here + "/image").read())
elif "run" in words:
    if os.path.exists(here + "/no-proc") and "--cgroups=disabled" in words:
        sys.exit("Error: crun: mount `proc` to `proc`: Operation not permitted")
    os.chdir(here if os.path.exists(here + "/elsewhere") else words[words.index("--workdir") + 1])
    command = words[[at for at, word in enumerate(words) if word.startswith("sha256:")][0] + 1 :]
    os.environ.update(PATH=here + "/inside:/usr/bin:/bin", PYTHONPATH=here + "/site-packages")
    os.execvp(command[0], command)
"""
SYSTEMD_RUN = """
import os, subprocess, sys
here, words = os.path.dirname(os.path.abspath(__file__)), sys.argv[1:]
files = {word.split("=")[0]: open(word.split("append:")[1], "ab") for word in words if "append:" in word}
command = [here + "/podman" if word == "podman" else word for word in words[words.index("/usr/bin/env") :]]
started = subprocess.Popen(command, stdout=files["StandardOutput"], stderr=files["StandardError"], stdin=subprocess.DEVNULL, start_new_session=True)
open(here + "/pid", "w").write(str(started.pid))
"""
SYSTEMCTL = """
import os, signal, sys, time
here, verb = os.path.dirname(os.path.abspath(__file__)), sys.argv[2]
pid = int(open(here + "/pid").read())
def alive():
    try:
        return open("/proc/%d/stat" % pid).read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
def environment_of(name):
    try:
        return open("/proc/%s/environ" % name, "rb").read().split(bytes(1))
    except OSError:
        return []
if verb == "is-active":
    print("active" if alive() else "inactive")
elif verb == "stop":
    mark = ("TRAINYARD_ATTEMPT=trial-" + sys.argv[3][6:22] + "/0").encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        words = environment_of(name)
        if mark in words and not (os.path.exists(here + "/leaves") and b"TRAINYARD_TRIAL=inside" in words):
            os.kill(int(name), signal.SIGKILL)
            # As systemd does: the stop ends after the processes. A zombie has no environment.
            end = time.monotonic() + 60
            while any(environment_of(name)) and time.monotonic() < end:
                time.sleep(0.01)
"""
PADDLE = """
__version__ = "2.6.2"
def is_compiled_with_cuda():
    return False
class version:
    commit = "c0ffee"
"""


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node with podman and an image in it; returns the folder of its programs."""
    tools = Path(put(tmp_path / "tools", {
        "image": "0a1b2c", "site-packages/paddle/__init__.py": PADDLE,
        "site-packages/paddlepaddle-2.6.2.dist-info/METADATA": "Name: paddlepaddle",
    }))  # fmt: skip
    for name, text in (("podman", PODMAN), ("systemd-run", SYSTEMD_RUN), ("systemctl", SYSTEMCTL)):
        put(tools, {name: f"#!{sys.executable}\n{text}"})
        (tools / name).chmod(0o755)
    (tools / "inside").mkdir()
    (tools / "inside" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    # The machine that tests run on may have engines of its own.
    monkeypatch.setattr(containers, "ENGINES", {"podman": containers.ENGINES["podman"]})
    yield tools
    deadline = time.monotonic() + 10  # what was killed may need a moment to be gone
    while pids_with_mark(f"trial-{DIGEST}", 0) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert pids_with_mark(f"trial-{DIGEST}", 0) == []


@pytest.fixture
def in_unit(monkeypatch):
    """Programs that stand in for systemd make no control groups."""
    monkeypatch.setattr(
        containers,
        "is_in_unit",
        lambda groups, unit: bool(groups) and unit == f"trial-{DIGEST}.service",
    )


@pytest.fixture
def arguments(tmp_path):
    return {
        "home": str(tmp_path / "home"),
        "digest": DIGEST,
        "image": IMAGE,
        "package": "paddlepaddle",
        "version": "2.6.2",
        "wait": 120,
    }


def starts(node):
    """How often a container was started."""
    path = node / "podman.log"
    return (
        sum(" run" in f" {line}" for line in path.read_text().splitlines()) if path.exists() else 0
    )


def test_an_image_is_looked_into_once(run_module, arguments, node, in_unit, tmp_path):
    result = run_module(container_environment, arguments)
    marker = result["environments"][DIGEST]
    assert result["changed"] and result["refused"] == []
    assert marker["packages"]["paddlepaddle"] == "2.6.2" and marker[
        "fingerprint"
    ] == core.fingerprint(marker["packages"])
    assert marker["imported"] == {
        "version": "2.6.2",
        "cuda": False,
        "cuda_version": None,
        "commit": "c0ffee",
    }
    inside = {
        "engine": "podman",
        "form": "disabled",
        "image": IMAGE,
        "image_id": "sha256:0a1b2c",
        "uid": os.getuid(),
    }
    assert inside.items() <= marker["container"].items()
    assert json.loads((tmp_path / "home" / "env" / DIGEST / core.MARKER).read_text()) == marker
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["env"]
    again = run_module(container_environment, arguments)
    assert (again["changed"], again["environments"][DIGEST], starts(node)) == (False, marker, 1)


def test_another_image_of_the_same_name_is_looked_into(run_module, arguments, node, in_unit):
    run_module(container_environment, arguments)
    (node / "image").write_text("ffff")
    result = run_module(container_environment, arguments)
    assert result["changed"] and result["reason"].startswith("changed")
    assert result["environments"][DIGEST]["container"]["image_id"] == "sha256:ffff"


def test_check_mode_starts_nothing(run_module, arguments, node, tmp_path):
    result = run_module(container_environment, arguments, check=True)
    assert (
        result["changed"]
        and result["environments"] == {}
        and starts(node) == 0
        and not (tmp_path / "home").exists()
    )


def test_an_absent_image_is_not_pulled_but_named(run_module, arguments, node):
    (node / "image").unlink()
    result = run_module(container_environment, arguments)
    assert result["failed"] and f"podman pull {IMAGE} " in result["msg"]
    assert "podman load -i" in result["msg"] and "training user" in result["msg"]
    assert (node / "podman.log").read_text() == "image inspect --format\n"


def test_a_node_without_an_engine_is_told_what_to_install(run_module, arguments, node):
    (node / "podman").unlink()
    result = run_module(container_environment, arguments)
    assert result["failed"] and "install podman and crun" in result["msg"]


def test_the_next_form_is_taken_where_one_cannot_run(run_module, arguments, node, in_unit):
    (node / "no-proc").touch()
    result = run_module(container_environment, arguments)
    assert result["environments"][DIGEST]["container"]["form"] == "shared"
    assert result["refused"] == [
        "podman (disabled): Error: crun: mount `proc` to `proc`: Operation not permitted"
    ]


def test_an_engine_that_leaves_the_unit_is_refused(run_module, arguments, node, tmp_path):
    result = run_module(container_environment, arguments)
    assert result["failed"] and "leaves the unit" in result["msg"]
    assert not (tmp_path / "home" / "env").exists()


def test_an_engine_that_leaves_processes_is_refused_and_they_are_ended(
    run_module, arguments, node, in_unit
):
    (node / "leaves").touch()
    result = run_module(container_environment, arguments)
    assert result["failed"] and "were left after the stop" in result["msg"]


def test_an_image_whose_files_the_node_does_not_see_is_refused(
    run_module, arguments, node, in_unit
):
    (node / "elsewhere").touch()
    result = run_module(container_environment, arguments)
    assert result["failed"] and "not seen on the node" in result["msg"]


def test_a_process_that_is_visible_late_is_waited_for(monkeypatch):
    """The kernel shows the environment of a process a moment after its start."""
    answers = [{}, {}, {7: "0::/unit"}]
    monkeypatch.setattr(container_trial, "processes_inside", lambda _run_id: answers.pop(0))
    assert container_trial.await_processes("trial-x") == {7: "0::/unit"}
    monkeypatch.setattr(container_trial, "VISIBLE_SECONDS", 0)
    monkeypatch.setattr(container_trial, "processes_inside", lambda _run_id: {})
    assert container_trial.await_processes("trial-x") == {}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"version": "3.0.0"}, "asked for 3.0.0, but what was imported is 2.6.2"),
        (
            {"package": "paddlepaddle-gpu"},
            "which is built for CUDA, but what was imported is built for CPU",
        ),
        (
            {"package": "mindspore", "version": "2.3.1"},
            "mindspore cannot be imported in the image: ModuleNotFoundError",
        ),
    ],
)
def test_another_framework_than_asked_for_is_refused_at_once(
    run_module, arguments, node, in_unit, change, words
):
    result = run_module(container_environment, dict(arguments, **change))
    assert result["failed"] and words in result["msg"] and starts(node) == 1


@pytest.mark.parametrize(
    "change, words",
    [
        ({"digest": "x"}, "16 hexadecimal digits"),
        ({"image": "--privileged"}, "want an image's name"),
        ({"mounts": ["data"]}, "absolute paths"),
    ],
)
def test_bad_arguments_are_refused(run_module, arguments, node, change, words):
    assert words in run_module(container_environment, dict(arguments, **change))["msg"]
