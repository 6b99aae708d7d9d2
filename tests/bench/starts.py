# SPDX-License-Identifier: Apache-2.0
"""Rows of the benchmarks about commands: a start on a ready site, the mesh from nothing, and many
ranks at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time

import rig as rigs

JOB = "molecule/shared/jobs/short.yml"
SUITE = "paddledetection"
CODE = rigs.PROJECT / "examples/paddledetection"
DATA = os.path.expanduser("~/.cache/trainyard/data/shapes-coco")
# Task lines of Ansible's own output: one for each node and task.
TASK = re.compile(r"^TASK \[(.+?)\] \*", re.MULTILINE)
DONE = re.compile(r"^(ok|changed|skipping): \[(node\d+)\]", re.MULTILINE)


def ready(rig):
    """Bring environment, code, data and mesh to every node."""
    rig.play("playbooks/provision.yml", "-e", f"suite={SUITE}")
    rig.play("playbooks/sync.yml", "-e", f"config={JOB}", "-e", f"nodes={rig.count}")


def start(rig, nodes):
    """Begin train.yml and end it when every node has started.

    Return {seconds, tasks: the most tasks that a node had}.
    """
    words = ["-i", rig.inventory, "playbooks/train.yml", "-e", f"config={JOB}"]
    # Ansible's own output has a line for each task of each node, skipped ones too.
    environment = dict(
        os.environ,
        ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default",
        ANSIBLE_DISPLAY_SKIPPED_HOSTS="1",
    )
    begun = time.monotonic()
    process = subprocess.Popen(
        ["ansible-playbook", *map(str, words), "-e", f"nodes={nodes}"],
        cwd=rigs.PROJECT,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    tasks, started, task, text = {}, set(), "", ""
    try:
        for line in process.stdout:
            text += line
            if TASK.match(line):
                task = TASK.match(line)[1]
            done = DONE.match(line)
            if done:
                tasks[done[2]] = tasks.get(done[2], 0) + 1
                if task.endswith("Start the attempt") and done[1] != "skipping":
                    started.add(done[2])
            if len(started) == nodes:
                break
        seconds = time.monotonic() - begun
    finally:
        # Ansible can wait for ever where the signal ends a worker that is sending a result.
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            try:
                process.communicate(timeout=20)
                break
            except subprocess.TimeoutExpired:
                continue
    if len(started) != nodes:
        raise rigs.Failure(f"train.yml started on {sorted(started)} only\n{text[-4000:]}")
    rig.play("playbooks/stop.yml")
    return {"seconds": seconds, "tasks": max(tasks.values())}


def noop(rig, rounds, counts=(2, 8)):
    """`train.yml` on a ready site, until every node has started."""
    ready(rig)
    python = rig.ssh(0, "ls -d ~/.trainyard/env/*/bin/python | head -1").strip()
    words = {
        "code": str(CODE),
        "data": DATA,
        "python": python,
        "folder": f"{rigs.HOME}/bench-stock",
    }
    found = {}
    for nodes in counts:
        rows = {
            name: {"seconds": [], "tasks": []} for name in ("Trainyard", "ping", "stock playbook")
        }
        for number in range(rounds + 1):
            ours = start(rig, nodes)
            ping, _used, _text = rigs.timed(rig.module, "ansible.builtin.ping", "", nodes)
            stock, _used, _text = rigs.timed(
                lambda count=nodes: rig.play(
                    "tests/bench/playbooks/stock.yml", "-e", json.dumps(words), nodes=count
                )
            )
            if not number:
                continue  # the first round brings caches
            rows["Trainyard"]["seconds"].append(ours["seconds"])
            rows["Trainyard"]["tasks"].append(ours["tasks"])
            rows["ping"]["seconds"].append(ping)
            rows["stock playbook"]["seconds"].append(stock)
            print(f"  {nodes} nodes: {ours}, ping {ping:.1f} s, stock {stock:.1f} s", flush=True)
        found[nodes] = rows
    return {"nodes": found}


def ssh_copy_id(rig):
    """Make every node trust every other one by ssh-keygen, ssh-keyscan and ssh-copy-id."""
    rig.pdsh(
        rig.count,
        "rm -f .ssh/bench_key*; ssh-keygen -q -t ed25519 -N '' -C bench_key -f .ssh/bench_key",
    )
    scan = " ".join(["ssh-keyscan", "-t", "ed25519", *rig.addresses])
    rig.pdsh(rig.count, f"{scan} > .ssh/bench_known 2>/dev/null")
    keys = rig.folder / "keys"
    # ssh-copy-id makes a temporary file in the user's own ~/.ssh, which a new machine lacks.
    (keys / ".ssh").mkdir(parents=True, exist_ok=True, mode=0o700)
    environment = dict(os.environ, HOME=str(keys))
    for node, name in enumerate(rig.names):
        (keys / f"{name}.pub").write_text(rig.ssh(node, "cat .ssh/bench_key.pub"))
    for name in rig.names:
        for address in rig.addresses:
            options = [
                word.replace("IdentitiesOnly=yes", "IdentitiesOnly=no")
                for word in rig.ssh_options()
            ]
            rigs.run(
                [
                    "ssh-copy-id",
                    "-f",
                    "-i",
                    keys / f"{name}.pub",
                    *options[2:],
                    "-o",
                    f"IdentityFile={rigs.STATE / 'id_ed25519'}",
                    f"trainer@{address}",
                ],
                env=environment,
            )


def prove_pairs(rig):
    """Log in from every node on every other one."""
    words = (
        "-i .ssh/bench_key -o UserKnownHostsFile=.ssh/bench_known -o StrictHostKeyChecking=yes"
        " -o BatchMode=yes -o IdentitiesOnly=yes"
    )
    line = "; ".join(f"ssh {words} {address} true || exit 1" for address in rig.addresses)
    rig.pdsh(rig.count, line)


def trust(rig, rounds):
    """The mesh of all nodes from nothing, every pair proven."""
    rows = {name: {"seconds": []} for name in ("Trainyard", "ssh-copy-id")}
    for _round in range(rounds):
        rig.play("playbooks/untrust.yml")
        rows["Trainyard"]["seconds"].append(rigs.timed(rig.play, "playbooks/trust.yml")[0])
        keys = rigs.timed(ssh_copy_id, rig)[0] + rigs.timed(prove_pairs, rig)[0]
        rows["ssh-copy-id"]["seconds"].append(keys)
        rig.pdsh(rig.count, "sed -i '/bench_key/d' .ssh/authorized_keys; rm -f .ssh/bench_*")
        print({name: round(row["seconds"][-1], 1) for name, row in rows.items()}, flush=True)
    return {"nodes": {rig.count: rows}}


# --- many ranks at once

DEVICES = 8
STUB = rigs.PROJECT / "tests/bench/stub_ranks"
NOTES = "bench-launch"
# A line of shell that starts the ranks of one node, of which the first has the number %d.
RANKS = (
    "cd bench-stub && for i in 0 1 2 3 4 5 6 7; do"
    " RANK_ID=$((%s * 8 + i)) %s tools/train.py & done; wait"
)


def put_ascend_tools(rig, devices):
    """Put the stand-in for hccn_tool on the nodes, each with as many devices."""
    tool = (rigs.PROJECT / "molecule/shared/files/hccn_tool").read_text()
    for node in range(rig.count):
        table = "".join(f"{device} 192.168.{device}.{node + 1}\n" for device in range(devices))
        for path, text in (
            ("/usr/local/bin/hccn_tool", tool),
            ("/etc/trainyard-fake-hccn", table),
        ):
            rig.root(node, f"cat > {path} <<'END'\n{text}END\nchmod 755 {path}")


def ascend_site(rig, python):
    """Put a stand-in for Huawei's hccn_tool on the nodes, and return the variables of a site whose
    nodes have eight devices each.
    """
    put_ascend_tools(rig, DEVICES)
    suite = {"code": {"path": str(STUB)}, "environment": {"python": python}}
    return json.dumps(
        {
            "trainyard_accelerator": "ascend",
            "trainyard_devices": DEVICES,
            "trainyard_suites": {"mindocr": suite},
        }
    )


class Launches:
    """Ways to start eight ranks on each node. All nodes have the clock of this machine."""

    def __init__(self, rig, python):
        self.rig, self.python = rig, python
        self.site = ascend_site(rig, python)
        shell = " ".join(["ssh", *rig.ssh_options()])
        for node, address in enumerate(rig.addresses):
            target = f"trainer@{address}:bench-stub/"
            rigs.run(["rsync", "-a", "-e", shell, f"{STUB}/", target])
            rig.ssh(node, f"echo {node} > bench-node")
        self.line = RANKS % ("$(cat ~/bench-node)", python)

    def ours(self):
        words = ["-e", f"config={STUB / 'job.yml'}", "-e", f"nodes={self.rig.count}"]
        try:
            self.rig.play("playbooks/train.yml", *words, "-e", self.site, "-e", "rehearse=false")
        except rigs.Failure as error:
            # Nothing was trained, and that is no success.
            if "UNKNOWN: every rank ended with exit code 0" not in str(error):
                raise

    def pdsh(self):
        self.rig.pdsh(self.rig.count, self.line)

    def clush(self):
        self.rig.clush(self.rig.count, self.line)

    def command(self):
        words = json.dumps({"argv": ["sh", "-c", self.line]})
        self.rig.module("ansible.builtin.command", words)

    def times(self):
        """Return when each rank was started, by node."""
        texts = (self.rig.ssh(node, f"cat {NOTES}/*") for node in range(self.rig.count))
        found = [sorted(map(float, text.split())) for text in texts]
        if any(len(times) != DEVICES for times in found):
            raise rigs.Failure(f"not every rank was started: {list(map(len, found))}")
        return found


def launch(rig, rounds):
    """Eight ranks on each of eight nodes: seconds from the command to the last one, and the skew.

    skew: seconds between the nodes' first ranks. Ours does what train.yml does on a ready site
    besides, the peers start the ranks and nothing else.
    """
    rig.play("playbooks/provision.yml", "-e", f"suite={SUITE}")
    python = rig.ssh(0, "ls -d ~/.trainyard/env/*/bin/python | head -1").strip()
    ways = Launches(rig, python)
    rows = {}
    for number in range(rounds + 1):
        for name, way in (
            ("Trainyard", ways.ours),
            ("pdsh", ways.pdsh),
            ("clush", ways.clush),
            ("`ansible -m command`", ways.command),
        ):
            rig.pdsh(rig.count, f"rm -rf {NOTES}")
            begun = time.time()
            way()
            found = ways.times()
            firsts = [times[0] for times in found]
            if number:  # the first round brings code
                row = rows.setdefault(name, {"seconds": [], "skew": []})
                row["seconds"].append(max(times[-1] for times in found) - begun)
                row["skew"].append(max(firsts) - min(firsts))
                print(f"  {name}: {row['seconds'][-1]:.1f} s, {row['skew'][-1]:.2f} s", flush=True)
    return {"nodes": {rig.count: rows}}


ROWS = {"noop": noop, "trust": trust, "launch": launch}
