# SPDX-License-Identifier: Apache-2.0
"""Nodes of Debian 11, 12 and 13, and of Ubuntu where its keyring is installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from harness import ENVIRONMENT, JOBS, PROJECT, last_line

INVENTORY = Path(__file__).resolve().parent / "inventory"
CONTAINERS = "trainyard-platforms-"
UBUNTU_KEYRING = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
# Shims of pyenv under every name that Ansible looks for, where no version of pyenv has that name.
SHIMS = """
set -e
mkdir -p /opt/pyenv/shims && cd /opt/pyenv/shims
printf '#!/bin/sh\\necho "pyenv: ${0##*/}: command not found" >&2\\nexit 127\\n' > shim
chmod +x shim
for version in 3 3.8 3.9 3.10 3.11 3.12 3.13 3.14; do ln shim python$version; done
cp /etc/environment /etc/environment.before
echo PATH=/opt/pyenv/shims:/usr/local/bin:/usr/bin:/bin > /etc/environment
"""
NO_SHIMS = "mv /etc/environment.before /etc/environment; rm -r /opt/pyenv"
HIDDEN = "mv /usr/bin/python3.13 /usr/bin/.python3.13"
SHOWN = "mv /usr/bin/.python3.13 /usr/bin/python3.13"


def play(part, verb, *arguments, timeout=1500, **environment):
    """Run a playbook on one of the site's inventories; return the completed process."""
    return subprocess.run(
        [
            "ansible-playbook",
            "-i",
            str(INVENTORY / f"{part}.yml"),
            f"playbooks/{verb}.yml",
            *arguments,
        ],
        cwd=PROJECT,
        env={**ENVIRONMENT, **environment},
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def on(node, script):
    """Run a line of shell as root in a node's container; return what it prints."""
    argv = ["docker", "exec", CONTAINERS + node, "sh", "-c", script]
    return subprocess.run(argv, text=True, capture_output=True, check=True).stdout


def train(part, suite, job):
    """Provision the nodes for a suite and train on all of them."""
    done = play(part, "provision", "-e", f"suite={suite}")
    assert done.returncode == 0, done.stdout
    done = play(part, "train", "-e", f"config={JOBS}/{job}.yml")
    assert done.returncode == 0, done.stdout
    assert last_line(done.stdout).startswith("COMPLETED: 2 ranks on 2 nodes")


@pytest.fixture(scope="module")
def ubuntu():
    """Start the nodes of Ubuntu beside the others."""
    if not UBUNTU_KEYRING.exists():
        pytest.skip("no ubuntu-keyring on this machine: no base image of Ubuntu")
    done = play("every", "local")
    assert done.returncode == 0, done.stdout


def test_paddledetection_trains_on_debian_11():
    train("bullseye", "paddledetection", "short")


def test_paddleocr_trains_on_debian_13():
    train("trixie", "paddleocr", "recognition")


def test_a_paddle_without_a_wheel_is_refused_before_anything_is_installed():
    before = on("deb13a", "ls /home/trainer/.trainyard/env")
    done = play("trixie", "provision", "-e", "suite=paddledetection")
    assert done.returncode != 0
    assert "paddlepaddle==2.6.2" in done.stdout and "Python 3.13" in done.stdout, done.stdout
    assert on("deb13a", "ls /home/trainer/.trainyard/env") == before


@pytest.mark.parametrize(
    "fault, repair, words",
    [
        (SHIMS, NO_SHIMS, "pyenv: python3"),
        (HIDDEN, SHOWN, "/usr/bin/python3"),
    ],
    ids=["pyenv shim", "missing"],
)
def test_a_broken_python_is_named_with_its_own_words(fault, repair, words, tmp_path):
    on("deb13b", fault)
    try:
        # A new connection: sshd reads the environment of a login once.
        done = play(
            "trixie",
            "check",
            "-e",
            f"config={JOBS}/recognition.yml",
            ANSIBLE_SSH_CONTROL_PATH_DIR=str(tmp_path),
        )
    finally:
        on("deb13b", repair)
    assert done.returncode != 0, done.stdout
    stops = [line for line in done.stdout.splitlines() if line.startswith("STOP")]
    assert len(stops) == 1 and "deb13b" in stops[0], done.stdout
    assert "reach.python_missing" in stops[0] and words in stops[0], done.stdout


def test_the_nodes_of_three_releases_trust_each_other():
    done = play("mixed", "trust")
    assert done.returncode == 0, done.stdout
    lines = on("deb13a", "grep -c trainyard-ca /home/trainer/.ssh/authorized_keys")
    assert int(lines) == 5


def test_one_environment_for_two_pythons_is_refused():
    done = play("mixed", "provision", "-e", "suite=paddledetection")
    assert done.returncode != 0
    assert "Python 3.9 on" in done.stdout and "Python 3.13 on" in done.stdout, done.stdout


@pytest.mark.usefixtures("ubuntu")
@pytest.mark.parametrize("release", ["jammy", "noble"])
def test_paddledetection_trains_on_ubuntu(release):
    train(release, "paddledetection", "short")
