# SPDX-License-Identifier: Apache-2.0
"""The hostile site as its user and its administrators see it. These are the product's verbs on a
copy of the inventory, and the state that must not change.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import yaml
from harness import ENVIRONMENT, PROJECT

HERE = Path(__file__).resolve().parent
STATE = Path.home() / ".local/state/trainyard/hostile"
NODES = {"node1": "198.51.100.161", "node2": "198.51.100.162"}
FABRIC = {"node1": "198.18.7.161", "node2": "198.18.7.162"}
HERS = "20261101-080000-hers-00a1"
JOB = ("-e", "config=molecule/shared/jobs/one_epoch.yml")

# What nobody but its owner may change, as a line of shell that prints it.
KEPT = {
    "the Python environment": (
        "find /opt/ -printf '%p %m %U %G %s %T@ %C@ %l\\n' | sort | sha256sum"
    ),
    "the data": "find /data -printf '%p %m %U %G %s %T@ %C@\\n' | sort | sha256sum",
    "the other user's home": (
        "find /home/alice ! -name steps ! -path /home/alice -printf '%p %m %U %G %s %T@ %C@\\n' |"
        " sort | sha256sum"
    ),
    "the other user's processes": "pgrep -u alice -a",
    "the system's configuration": (
        "find /etc -type f ! -name 50-trainyard.conf -exec sha256sum {} + | sort | sha256sum"
    ),
    "what others have in authorized_keys": (
        "grep -vE 'trainyard-(ca|run) hostile ' /home/trainer/.ssh/authorized_keys | sha256sum"
    ),
    "the firewall's other rules": (
        "iptables-save | grep -v -i trainyard | sed 's/\\[[0-9:]*\\]//; /^#/d' | sha256sum"
    ),
    "the packages": "sha256sum /var/lib/dpkg/status",
    "the routes": "ip -4 route",
}


def as_root(node, script):
    """Return what a line of shell prints. An administrator runs it on a node, also where other
    users are locked out.
    """
    argv = ["docker", "exec", "-i", f"trainyard-hostile-{node}", "sh", "-eu"]
    return subprocess.run(
        argv, input=script, text=True, check=True, timeout=60, stdout=subprocess.PIPE
    ).stdout.strip()


def ssh(node, script, through=True):
    """Return the completed process of a line of shell that the training user runs on a node, by way
    of the gateway or past it.
    """
    way = ["-o", "ProxyJump=gateway"] if through else ["-o", "ConnectTimeout=3"]
    argv = ["ssh", "-F", str(STATE / "ssh_config"), "-o", "BatchMode=yes", *way, NODES[node]]
    return subprocess.run(
        [*argv, script],
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )


def kept():
    """Return {(node, what): how it is} of everything that must stay as it is."""
    found = {}
    for node in NODES:
        for what, script in KEPT.items():
            found[node, what] = as_root(node, "set +e; " + script)
    return found


class Site:
    """A copy of the inventory, to which the remedies are added that the product names."""

    def __init__(self, place):
        self.inventory = place / "inventory"
        self.seconds, self.secret = [], place / "vault.password"
        self.secret.write_text("throw-away\n")
        shutil.copytree(HERE / "inventory", self.inventory)

    def _file(self, name):
        return self.inventory / "group_vars" / "trainers" / name

    def remedy(self, **variables):
        """Add variables to the trainers' own, as the message said."""
        path = self._file("remedies.yml")
        told = yaml.safe_load(path.read_text()) if path.exists() else {}
        path.write_text(yaml.safe_dump(dict(told, **variables)))

    def forget(self, name):
        """Take a variable back out."""
        told = yaml.safe_load(self._file("remedies.yml").read_text())
        self._file("remedies.yml").write_text(
            yaml.safe_dump({key: value for key, value in told.items() if key != name})
        )

    def vault(self, **variables):
        """Add variables that only the vault's password opens."""
        path = self._file("vault.yml")
        path.write_text(yaml.safe_dump(variables))
        subprocess.run(
            ["ansible-vault", "encrypt", str(path)],
            env=self.environment(),
            check=True,
            capture_output=True,
        )

    def environment(self):
        """Return the environment of the user's commands."""
        return dict(ENVIRONMENT, ANSIBLE_VAULT_PASSWORD_FILE=str(self.secret))

    def play(self, verb, *arguments, timeout=300):
        """Run a verb; return (exit code, output with its line breaks taken out)."""
        began = time.monotonic()
        done = subprocess.run(
            ["ansible-playbook", "-i", str(self.inventory), f"playbooks/{verb}.yml", *arguments],
            cwd=PROJECT,
            env=self.environment(),
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.seconds.append((verb, done.returncode, round(time.monotonic() - began, 1)))
        print("\n$ {} {}\n{}".format(verb, " ".join(arguments), done.stdout))
        return done.returncode, " ".join(done.stdout.split())
