# SPDX-License-Identifier: Apache-2.0
"""Row of the benchmarks about the control plane: what the controller pays for each of many
nodes.

The nodes are addresses that the kernel takes for this machine's own (a local route to the loopback
device), behind one sshd, each with a home and a machine id of its own. What they do takes this
machine's processors, too, so the figure is the controller's own processor time, and seconds are
shown beside it. Nothing is trained there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import time

import rig as rigs
import starts

PORT = 2200
MOST_ROUNDS_NODES = 64  # with more nodes there is one round
# Addresses that are reserved for benchmarks (RFC 2544). A loopback's would be refused.
NETWORK = "198.18.0.0/22"
# A node's Python, and its PATH, whatever the caller's shell has.
PYTHON, PATH = "/usr/bin/python3", "/usr/sbin:/usr/bin:/sbin:/bin"
SHELL = """#!/bin/sh
set -- $SSH_CONNECTION
export HOME={folder}/homes/$3
if [ ! -d "$HOME" ]; then
  mkdir -p "$HOME"
  printf '%032x\\n' "0x$(printf %s "$3" | sha256sum | cut -c1-15)" > "$HOME/machine-id"
fi
cd "$HOME"
export LINE="$SSH_ORIGINAL_COMMAND"
exec unshare -m sh -c 'mount --bind "$HOME/machine-id" /etc/machine-id; exec sh -c "$LINE"'
"""
CONFIG = """Port {port}
ListenAddress 0.0.0.0
AllowUsers root@{network}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/sshd.pid
ForceCommand {folder}/shell
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
UseDNS no
MaxStartups 2000
MaxSessions 50
"""


def address_of(number):
    """Return the address of a node. number: from 0."""
    return f"198.18.{number // 250}.{number % 250 + 1}"


class ManyNodes:
    """The nodes and the site. count: how many."""

    def __init__(self, folder, count):
        self.folder, self.count = folder, count
        self.inventory, self.server = folder / "inventory", None
        self.names = [f"many{number:03d}" for number in range(count)]

    def start(self):
        """Write the site, and start sshd."""
        groups = self.inventory / "group_vars"
        groups.mkdir(parents=True, exist_ok=True)
        text = (rigs.PROJECT / "molecule/inventory/group_vars/all.yml").read_text()
        text = text.replace("{{ inventory_dir | dirname | dirname }}", str(rigs.PROJECT))
        text = text.replace("trainyard_site: molecule", "trainyard_site: bench-many")
        (groups / "all.yml").write_text(text)
        for name in ("key", "host_key"):
            if not (self.folder / name).exists():
                rigs.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / name])
        key = (self.folder / "host_key.pub").read_text().split()[:2]
        known = [f"[{address_of(number)}]:{PORT} {' '.join(key)}" for number in range(self.count)]
        (self.folder / "known_hosts").write_text("\n".join(known) + "\n")
        shell = self.folder / "shell"
        shell.write_text(SHELL.format(folder=self.folder))
        shell.chmod(0o755)
        config = CONFIG.format(folder=self.folder, port=PORT, network=NETWORK)
        (self.folder / "sshd_config").write_text(config)
        (self.inventory / "hosts.json").write_text(json.dumps(self.hosts()))
        program = rigs.run([rigs.PROJECT / ".config/sshd.sh"]).split()[-1]
        os.makedirs("/run/sshd", exist_ok=True)
        argv = [program, "-D", "-e", "-f", str(self.folder / "sshd_config")]
        rigs.run(["ip", "route", "replace", "local", NETWORK, "dev", "lo"])
        environment = dict(os.environ, PATH=PATH)
        with open(self.folder / "sshd.log", "wb") as log:
            self.server = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)
        time.sleep(1)

    def hosts(self):
        """Return the inventory."""
        hosts = {
            name: {"ansible_host": address_of(number)} for number, name in enumerate(self.names)
        }
        variables = {
            "ansible_user": "root",
            "ansible_port": PORT,
            "ansible_python_interpreter": PYTHON,
            "ansible_ssh_private_key_file": str(self.folder / "key"),
            "ansible_ssh_common_args": shlex.join(self.options()),
        }
        return {"trainers": {"hosts": hosts, "vars": variables}}

    def options(self):
        """Return the words of ssh's options."""
        words = (
            "IdentitiesOnly=yes",
            "StrictHostKeyChecking=yes",
            f"UserKnownHostsFile={self.folder / 'known_hosts'}",
            "GlobalKnownHostsFile=none",
        )
        return [part for word in words for part in ("-o", word)]

    def stop(self):
        """End sshd. The homes stay in the folder of the results."""
        if self.server is not None:
            self.server.terminate()
            self.server.wait()
            rigs.run(["ip", "route", "delete", "local", NETWORK, "dev", "lo"])

    def check(self, count):
        """Run check.yml for the first nodes. They lack code and environment, so it fails."""
        words = ["-e", f"config={starts.JOB}", "-e", f"nodes={count}"]
        argv = ["ansible-playbook", "-i", self.inventory, "playbooks/check.yml", *words]
        done = subprocess.run(
            list(map(str, argv)),
            cwd=rigs.PROJECT,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        (self.folder / f"check-{count}.txt").write_text(done.stdout)
        if "UNREACHABLE" in done.stdout or "did not answer" in done.stdout:
            raise rigs.Failure(done.stdout[-4000:])

    def ping(self, count):
        """Run Ansible's module ping."""
        words = ["--limit", ",".join(self.names[:count]), "trainers"]
        rigs.run(["ansible", "-i", self.inventory, *words, "-m", "ansible.builtin.ping"])

    def pdsh(self, count):
        """Run `true` by pdsh."""
        options = ["-p", str(PORT), "-i", str(self.folder / "key"), *self.options()]
        environment = dict(os.environ, PDSH_SSH_ARGS_APPEND=shlex.join(options))
        addresses = ",".join(map(address_of, range(count)))
        argv = ["pdsh", "-R", "ssh", "-S", "-l", "root", "-f", "50", "-w", addresses, "true"]
        rigs.run(argv, env=environment)


def many_nodes(rig, rounds, counts=(8, 64, 256, 512)):
    """`check.yml` for many nodes, beside what Ansible and pdsh need to reach them at all."""
    folder = rig.folder / "many"
    folder.mkdir(exist_ok=True)
    nodes, found = ManyNodes(folder, max(counts)), {}
    with contextlib.ExitStack() as stack:
        stack.callback(nodes.stop)
        nodes.start()
        for count in counts:
            ways = {"Trainyard": nodes.check, "ping": nodes.ping, "pdsh": nodes.pdsh}
            rows = {name: {"seconds": [], "processor": [], "each": []} for name in ways}
            # A round of 256 nodes takes ten minutes.
            for _round in range(rounds if count <= MOST_ROUNDS_NODES else 1):
                for name, way in ways.items():
                    wall, used, _text = rigs.timed(way, count)
                    rows[name]["seconds"].append(wall)
                    rows[name]["processor"].append(used)
                    rows[name]["each"].append(1000 * used / count)
                    print(f"  {count} nodes, {name}: {wall:.1f} s, {used:.1f} s CPU", flush=True)
            found[count] = rows
    return {"nodes": found}


ROWS = {"control": many_nodes}
