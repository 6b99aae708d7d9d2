# SPDX-License-Identifier: Apache-2.0
"""Site of the benchmarks: Docker nodes of its own, links of a limited rate, and ways to run ours
and the tools beside it.

The nodes are those of the product's own role local_cluster (playbooks/local.yml), with the
addresses 198.51.100.131 and up. Limits are set with `tc tbf` at both ends of every link, and the
rate is measured with iperf3 before anything else is. Root is needed for that, and the packages of
PEERS.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
SITE = "bench"
FIRST = 131  # the last part of node1's address; molecule's nodes begin at 101
NETWORK = "trainyard"
# Debian's packages with the tools that ours is measured beside.
PEERS = ("clustershell", "iperf3", "pdsh", "rsync")
STATE = Path.home() / ".local/state/trainyard" / SITE
SSH_WORDS = (
    "IdentitiesOnly=yes",
    "StrictHostKeyChecking=yes",
    "BatchMode=yes",
    f"UserKnownHostsFile={STATE / 'known_hosts'}",
    "GlobalKnownHostsFile=none",
)
HOME = "/home/trainer"
SHAPE = "tbf rate {:g}mbit burst 256kb latency 100ms"


class Failure(Exception):
    """A command of a benchmark that failed: its end is in the message."""


def run(argv, limit=1800, **more):
    """Run a command and return its output. Raises Failure where it does not end with 0."""
    done = subprocess.run(
        [str(word) for word in argv],
        cwd=PROJECT,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=limit,
        check=False,
        **more,
    )
    if done.returncode:
        raise Failure(f"{shlex.join(map(str, argv))}: {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def timed(function, *arguments):
    """Return (wall seconds, seconds of this machine's processors in child processes, result)."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.monotonic()
    result = function(*arguments)
    wall, now = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, result


def bring_peers():
    """Install Debian's packages of the peers, where one is missing."""
    programs = {"clustershell": "clush"}
    if all(shutil.which(programs.get(name, name)) for name in PEERS):
        return
    run(["apt-get", "install", "-y", "--no-install-recommends", *PEERS])


class Rig:
    """The nodes of the benchmarks. count: how many; at(n): the first n of them."""

    def __init__(self, folder, count):
        self.folder, self.count = Path(folder), count
        self.names = [f"node{number}" for number in range(1, count + 1)]
        self.addresses = [f"198.51.100.{FIRST + number}" for number in range(count)]
        self.inventory = self.folder / "inventory"

    def start(self):
        """Write the inventory, start the nodes, and make their mesh."""
        groups = self.inventory / "group_vars"
        groups.mkdir(parents=True, exist_ok=True)
        for name in ("all.yml", "trainers.yml"):
            text = (PROJECT / "molecule/inventory/group_vars" / name).read_text()
            text = text.replace("{{ inventory_dir | dirname | dirname }}", str(PROJECT))
            (groups / name).write_text(
                text.replace("trainyard_site: molecule", f"trainyard_site: {SITE}")
            )
        hosts = {
            name: {"ansible_host": address} for name, address in zip(self.names, self.addresses)
        }
        (self.inventory / "hosts.json").write_text(json.dumps({"trainers": {"hosts": hosts}}))
        self.play("playbooks/local.yml")
        self.play("playbooks/trust.yml")

    def stop(self):
        """Remove the nodes."""
        self.play("playbooks/local_down.yml")

    def play(self, playbook, *words, nodes=None):
        """Run a playbook. nodes: only on so many."""
        return run(
            ["ansible-playbook", "-i", self.inventory, *self._limit(nodes), playbook, *words]
        )

    def module(self, name, arguments, nodes=None):
        """Run one of Ansible's modules on the nodes, by the command `ansible`."""
        words = ["-m", name, "-a", arguments]
        return run(["ansible", "-i", self.inventory, *self._limit(nodes), "trainers", *words])

    def _limit(self, nodes):
        if nodes is None or nodes == self.count:
            return []
        return ["--limit", ",".join(["localhost", *self.names[:nodes]])]

    # --- SSH as the peers use it

    def ssh_options(self):
        """Return the words of ssh's options, without the program."""
        options = ["-i", str(STATE / "id_ed25519")]
        return [*options, *(part for word in SSH_WORDS for part in ("-o", word))]

    def ssh(self, node, command):
        """Run a line of shell on one node, as its user. node: its number from 0."""
        target = f"trainer@{self.addresses[node]}"
        return run(["ssh", *self.ssh_options(), target, command])

    def clush(self, nodes, *words):
        """Run clush for the first nodes."""
        options = ["-l", "trainer", "-f", str(max(64, nodes)), "-o", shlex.join(self.ssh_options())]
        argv = ["clush", "-S", "-q", "-u", "120", *options]
        return run([*argv, "-w", ",".join(self.addresses[:nodes]), *words])

    def pdsh(self, nodes, command):
        """Run pdsh for the first nodes."""
        environment = dict(os.environ, PDSH_SSH_ARGS_APPEND=shlex.join(self.ssh_options()))
        words = ["-R", "ssh", "-S", "-l", "trainer", "-f", str(max(64, nodes))]
        argv = ["pdsh", *words, "-w", ",".join(self.addresses[:nodes]), command]
        return run(argv, env=environment)

    def root(self, node, script):
        """Run a line of shell as root in a node's container."""
        return run(["docker", "exec", self._container(node), "sh", "-c", script])

    # --- links

    def limit_links(self, megabits):
        """Limit this machine's link to the nodes and each node's own to a rate, in Mbit/s."""
        shape = SHAPE.format(megabits).split()
        run(["tc", "qdisc", "replace", "dev", self._bridge(), "root", *shape])
        for node in range(self.count):
            self.limit_link(node, megabits)

    def limit_link(self, node, megabits):
        """Limit one node's link to a rate, in Mbit/s."""
        limit_link(self._container(node), megabits)

    def free_links(self):
        """Take the limits away."""
        bridge = ["tc", "qdisc", "del", "dev", self._bridge(), "root"]
        subprocess.run(bridge, check=False, stderr=subprocess.DEVNULL)
        for node in range(self.count):
            free_link(self._container(node))

    def rate(self, node=0):
        """Return what iperf3 measures from this machine to a node, in Mbit/s."""
        server = subprocess.Popen(
            [*self._inside(node), "iperf3", "-s", "-1"], stdout=subprocess.DEVNULL
        )
        try:
            time.sleep(0.5)
            text = run(["iperf3", "-c", self.addresses[node], "-t", "3", "-J"])
        finally:
            server.terminate()
            server.wait()
        return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e6

    def sent(self):
        """Return the bytes that this machine has sent to the nodes since it was started."""
        return self._counted("tx_bytes")

    def received(self):
        """Return the bytes that this machine has received from the nodes since it was started."""
        return self._counted("rx_bytes")

    def _counted(self, name):
        return int(Path(f"/sys/class/net/{self._bridge()}/statistics/{name}").read_text())

    def _bridge(self):
        found = json.loads(run(["docker", "network", "inspect", NETWORK]))[0]
        options = found.get("Options") or {}
        return options.get("com.docker.network.bridge.name") or "br-" + found["Id"][:12]

    def _container(self, node):
        return f"trainyard-{SITE}-{self.names[node]}"

    def _inside(self, node):
        """Return the words that run a command of this machine in a node's network."""
        return inside(self._container(node))


def inside(container):
    """Return the words that run a command of this machine in a container's network."""
    pid = run(["docker", "inspect", "-f", "{{.State.Pid}}", container]).strip()
    return ["nsenter", "-t", pid, "-n"]


def limit_link(container, megabits):
    """Limit the link of a container at both ends, in Mbit/s. A start of the container ends that."""
    shape = SHAPE.format(megabits).split()
    for end in _ends_of(container):
        run([*end, "root", *shape])


def free_link(container):
    """Take the limit of a container's link away. One that does not run has none."""
    with contextlib.suppress(Failure):
        for end in _ends_of(container, "del"):
            subprocess.run([*end, "root"], check=False, stderr=subprocess.DEVNULL)


def _ends_of(container, verb="replace"):
    """Return the beginnings of tc's commands for both ends of a container's link."""
    text = run([*inside(container), "cat", "/sys/class/net/eth0/iflink"])
    found = re.search(rf"^{int(text)}: ([^@:]+)", run(["ip", "-o", "link"]), re.MULTILINE)
    if not found:
        sys.exit(f"no end of the link of {container} on this machine")
    words = ["tc", "qdisc", verb, "dev"]
    return [*inside(container), *words, "eth0"], [*words, found[1]]
