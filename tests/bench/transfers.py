# SPDX-License-Identifier: Apache-2.0
"""Rows of the benchmarks about bytes: a large file, many small ones, a change, a verification, and
a node that is not well.

Ours is what `train.yml` does with a data set: the manifest on the controller, the role workspace,
and the digest of every file on every node. Each peer sends the same files, and then `sha256sum -c`
reads every byte on every node.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import rig as rigs

sys.path.insert(0, str(rigs.PROJECT / "collections"))
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import describe

MIB = 1 << 20
RATE = 200  # Mbit/s of every link
SUMS = "bench.sha256"


def make_files(folder, count, size, seed):
    """Write files of random bytes, in folders of a hundred."""
    shutil.rmtree(folder, ignore_errors=True)
    chance = random.Random(seed)
    for number in range(count):
        path = folder / f"part{number // 100:03d}" / f"{number:06d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(size))


def write_sums(folder):
    """Write the list for `sha256sum -c` beside the files, as a peer's user would."""
    lines = []
    for path in sorted(folder.rglob("*.bin")):
        lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}")
    (folder / SUMS).write_text("\n".join(lines) + "\n")


class Ours:
    """The product: describe the tree, send it, verify it."""

    name = "Trainyard"

    def __init__(self, rig):
        self.rig, self.cache = rig, rig.folder / "cache"

    def clean(self, nodes):
        self.rig.clush(
            nodes,
            "chmod -R u+w .trainyard/data .trainyard/staging 2>/dev/null;"
            " rm -rf .trainyard/data .trainyard/staging",
        )
        shutil.rmtree(self.cache, ignore_errors=True)

    def entries(self, folder):
        """Return the manifest of the files."""
        names = [str(path.relative_to(folder)) for path in folder.rglob("*.bin")]
        scan = describe.scan_cache(str(self.cache), str(folder))
        return manifest.scan(str(folder), names, scan)

    def send(self, folder, nodes):
        entries = self.entries(folder)
        tree = describe.keep_manifest("data", "bench", str(folder), entries, str(self.cache))
        words = json.dumps({"trees": [tree], "trainyard_cache_dir": str(self.cache)})
        self.rig.play("molecule/shared/send_tree.yml", "-e", words, nodes=nodes)


class Peer:
    """A tool that copies a folder to the nodes."""

    def __init__(self, rig):
        self.rig, self.place = rig, f"{rigs.HOME}/bench-{type(self).__name__.lower()}"

    def clean(self, nodes):
        self.rig.clush(nodes, f"rm -rf {self.place}; mkdir -p {self.place}")

    def send(self, folder, nodes):
        write_sums(folder)
        self.copy(folder, nodes)
        self.rig.clush(nodes, f"cd {self.place} && sha256sum --quiet -c {SUMS}")


class Synchronize(Peer):
    """Ansible's own module for rsync."""

    name = "`ansible.posix.synchronize`"

    def copy(self, folder, nodes):
        words = f"src={folder}/ dest={self.place}/ use_ssh_args=true verify_host=true"
        self.rig.module("ansible.posix.synchronize", words, nodes)


class Copy(Peer):
    """Ansible's module copy."""

    name = "`ansible.builtin.copy`"

    def copy(self, folder, nodes):
        self.rig.module("ansible.builtin.copy", f"src={folder}/ dest={self.place}/", nodes)


class Clush(Peer):
    """ClusterShell's flat copy."""

    name = "`clush --copy`"

    def copy(self, folder, nodes):
        arrived = f"{rigs.HOME}/bench-arrived"
        self.rig.clush(nodes, "--copy", str(folder), "--dest", arrived)
        self.rig.clush(nodes, f"rm -rf {self.place}; mv {arrived} {self.place}")


class RsyncLoop(Peer):
    """What people type: rsync to one node after the other."""

    name = "`rsync` in a loop"

    def copy(self, folder, nodes):
        shell = " ".join(["ssh", *self.rig.ssh_options()])
        for address in self.rig.addresses[:nodes]:
            target = f"trainer@{address}:{self.place}/"
            rigs.run(["rsync", "-a", "-e", shell, f"{folder}/", target])


def compare(rig, way, folder, nodes, rounds, keep=False):
    """Return the figures of one way: seconds, CPU seconds and bytes sent, each a list.

    keep: whether the nodes keep what they got in the round before.
    """
    found = {"seconds": [], "processor": [], "sent": []}
    for _round in range(rounds):
        if not keep:
            way.clean(nodes)
        before = rig.sent()
        wall, used, _result = rigs.timed(way.send, folder, nodes)
        found["seconds"].append(wall)
        found["processor"].append(used)
        found["sent"].append(rig.sent() - before)
    return found


def measure_send(rig, folder, counts, ways, rounds):
    """Return {nodes: {way: figures}}, the ways in turns within each round."""
    found = {}
    for nodes in counts:
        rows = {way.name: {"seconds": [], "processor": [], "sent": []} for way in ways}
        for _round in range(rounds):
            for way in ways:
                one = compare(rig, way, folder, nodes, 1)
                for key, values in one.items():
                    rows[way.name][key] += values
                print(f"  {nodes} nodes, {way.name}: {one['seconds'][0]:.1f} s", flush=True)
        found[nodes] = rows
    return found


@contextlib.contextmanager
def limited(rig):
    """Limit the links for a while; yield the rate that iperf3 measures, in Mbit/s."""
    rig.limit_links(RATE)
    try:
        yield rig.rate()
    finally:
        rig.free_links()


def fanout_big(rig, rounds, counts=(2, 4, 8)):
    """64 MiB that cannot be compressed, to 2, 4 and 8 nodes, over links of RATE."""
    folder = rig.folder / "big"
    make_files(folder, 1, 64 * MIB, 1)
    ways = [Ours(rig), Synchronize(rig), Clush(rig), RsyncLoop(rig), Copy(rig)]
    with limited(rig) as rate:
        found = measure_send(rig, folder, counts, ways, rounds)
    return {"rate": rate, "bytes": 64 * MIB, "nodes": found}


def fanout_small(rig, rounds, counts=(8,)):
    """2,000 files, 30 MB in all. `copy` is left out: it takes a round trip a file."""
    folder = rig.folder / "small"
    make_files(folder, 2000, 15_000, 2)
    ways = [Ours(rig), Synchronize(rig), Clush(rig), RsyncLoop(rig)]
    with limited(rig) as rate:
        found = measure_send(rig, folder, counts, ways, rounds)
    return {"rate": rate, "bytes": 30_000_000, "nodes": found}


def delta(rig, rounds, nodes=8):
    """One of the 2,000 files is edited; everything else is on the nodes already."""
    folder = rig.folder / "small"
    make_files(folder, 2000, 15_000, 2)
    ways = [Ours(rig), Synchronize(rig), RsyncLoop(rig)]
    rows = {way.name: {"seconds": [], "processor": [], "sent": []} for way in ways}
    with limited(rig) as rate:
        for way in ways:
            way.clean(nodes)
            way.send(folder, nodes)
        for number in range(rounds):
            path = sorted(folder.rglob("*.bin"))[100 + number]
            path.write_bytes(os.urandom(15_000))
            for way in ways:
                for key, values in compare(rig, way, folder, nodes, 1, keep=True).items():
                    rows[way.name][key] += values
                print(f"  change, {way.name}: {rows[way.name]['seconds'][-1]:.1f} s", flush=True)
    return {"rate": rate, "bytes": 15_000, "nodes": {nodes: rows}}


# --- verification

# What a user, a disk or a training may do to a tree: shell words, run in it.
DAMAGES = {
    "a flipped byte, with the time before": (
        "t=$(stat -c %y {file}); chmod u+w {file};"
        ' printf x | dd of={file} bs=1 seek=9 conv=notrunc status=none; touch -d "$t" {file}'
    ),
    "another file": "chmod u+w {folder}; echo x > {folder}/other.bin",
    "a missing file": "chmod u+w {folder}; rm -f {file}",
    "another mode": "chmod a+x {file}",
    "a link in place of the file": (
        "chmod u+w {folder}; mv {file} /tmp/bench-aside; ln -s /tmp/bench-aside {file}"
    ),
}


class VerifiedTree:
    """A tree on the first nodes, as ours and as a plain folder, and the ways to verify it."""

    def __init__(self, rig, folder, nodes):
        self.rig, self.folder, self.nodes = rig, folder, nodes
        ours, peer = Ours(rig), RsyncLoop(rig)
        ours.clean(nodes)
        ours.send(folder, nodes)
        self.digest = describe.keep_manifest(
            "data", "bench", str(folder), ours.entries(folder), str(ours.cache)
        )["digest"]
        peer.clean(nodes)
        peer.send(folder, nodes)
        self.ours, self.plain = f".trainyard/data/{self.digest[:16]}", peer.place

    def module(self, name, **arguments):
        """Run one of our modules; return its output, whatever it says."""
        words = json.dumps({"base": ".trainyard", **arguments})
        return self.rig.module(f"trainyard.cluster.{name}", words, self.nodes)

    def cached(self):
        said = self.module("tree_install", state="probed", kind="data", digest=self.digest)
        return said.count("ok: true") == self.nodes

    def full(self):
        tree = {"kind": "data", "digest": self.digest}
        return self.module("tree_verify", trees=[tree]).count("ok: true") == self.nodes

    def rsync(self):
        shell = " ".join(["ssh", *self.rig.ssh_options()])
        same = []
        for address in self.rig.addresses[: self.nodes]:
            target = f"trainer@{address}:{self.plain}/"
            said = rigs.run(
                ["rsync", "-nac", "--delete", "-i", "-e", shell, f"{self.folder}/", target]
            )
            # The times of folders differ after each damage, and are no difference of the tree.
            lines = [line for line in said.splitlines() if not line.startswith(".d")]
            same.append(not lines)
        return all(same)

    def sums(self):
        try:
            self.rig.clush(self.nodes, f"cd {self.plain} && sha256sum --quiet -c {SUMS}")
        except rigs.Failure:
            return False
        return True

    def damage(self, words, place):
        """Do one thing to the tree on the first node."""
        file = sorted(path.relative_to(self.folder) for path in self.folder.rglob("*.bin"))[7]
        line = words.format(file=file, folder=file.parent)
        self.rig.ssh(0, f"cd {place} && {line}")

    def repair(self, place):
        """Put the first node's tree back, from a copy of the folder that was damaged."""
        self.rig.ssh(
            0,
            f"cd {place} && chmod u+w part000 && rm -rf part000"
            " && cp -a ~/bench-part000 part000 && rm -f /tmp/bench-aside",
        )


def verify(rig, rounds, nodes=2):
    """100,000 files of 10 kB on two nodes: is everything as it was sent? Then five damages."""
    folder = rig.folder / "many"
    make_files(folder, 100_000, 10_000, 3)
    tree = VerifiedTree(rig, folder, nodes)
    ways = {
        "Trainyard": (tree.cached, tree.ours),
        "Trainyard, `verify=full`": (tree.full, tree.ours),
        "`rsync -nac`, node after node": (tree.rsync, tree.plain),
        "`sha256sum -c` by clush": (tree.sums, tree.plain),
    }
    rows = {name: {"seconds": [], "processor": [], "found": []} for name in ways}
    for _round in range(rounds):
        for name, (way, _place) in ways.items():
            wall, used, same = rigs.timed(way)
            if not same:
                raise rigs.Failure(f"{name}: a difference where there is none")
            rows[name]["seconds"].append(wall)
            rows[name]["processor"].append(used)
            print(f"  {name}: {wall:.1f} s", flush=True)
    for place in (tree.ours, tree.plain):
        # The copy of a tree of ours is read-only as the tree.
        clear = "chmod -R u+w bench-part000 2>/dev/null; rm -rf bench-part000"
        rig.ssh(0, f"{clear}; cp -a {place}/part000 bench-part000")
        mine = {name: way for name, (way, its) in ways.items() if its == place}
        found = dict.fromkeys(mine, 0)
        for words in DAMAGES.values():
            rig.ssh(0, f"chmod u+w {place}")
            tree.damage(words, place)
            for name, way in mine.items():
                found[name] += not way()
            tree.repair(place)
        for name, count in found.items():
            rows[name]["found"] = [count]
            print(f"  {name}: {count} of {len(DAMAGES)} damages found", flush=True)
    return {"nodes": {nodes: rows}}


# --- a node that is not well

SICK = 3  # the fourth node


def unwell(rig, what):
    """Make the fourth node unwell during a copy, and return a function that makes it well."""
    name = f"trainyard-{rigs.SITE}-{rig.names[SICK]}"
    if what == "slow":
        rig.limit_link(SICK, RATE / 10)
        return lambda: rig.limit_link(SICK, RATE)
    thread = threading.Thread(target=freeze_when_it_arrives, args=(rig, name))
    thread.start()

    def well():
        thread.join()
        rigs.run(["docker", "unpause", name])

    return well


def freeze_when_it_arrives(rig, name):
    """Freeze a container when some MB of the file are there."""
    inside = rigs.run(["docker", "inspect", "-f", "{{.State.Pid}}", name]).strip()
    counter = Path(f"/proc/{inside}/net/dev")
    before, until = arrived_bytes(counter), time.monotonic() + 60
    while arrived_bytes(counter) - before < 8 * MIB and time.monotonic() < until:
        time.sleep(0.05)
    rigs.run(["docker", "pause", name])


def arrived_bytes(counter):
    """Return the bytes that a container's link has received."""
    line = next(line for line in counter.read_text().splitlines() if "eth0:" in line)
    return int(line.split(":")[1].split()[0])


def arrived(rig, way, folder):
    """Return how many of the other nodes hold the whole file. folder: of the controller."""
    size = sum(path.stat().st_size for path in folder.rglob("*.bin"))
    place = "~/.trainyard/{staging,data}"
    if isinstance(way, Peer):
        place = f"~/bench-arrived {way.place}"
    count = 0
    for node in range(rig.count):
        if node != SICK:
            line = f"find {place} -name '*.bin' -size {size}c 2>/dev/null | grep -c . || true"
            count += int(rig.ssh(node, f"bash -c {shlex.quote(line)}").split()[-1]) > 0
    return count


def send_in_spite(way, folder, nodes):
    """Send, and return what the command says of it, be it a failure."""
    try:
        way.send(folder, nodes)
    except rigs.Failure as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return "no end"
    return ""


def sick_node(rig, rounds):
    """64 MiB to eight nodes, of which the fourth stands still in mid-copy, or is ten times slower.

    Seconds until the command has ended; the other nodes must hold the file then.
    """
    folder = rig.folder / "big"
    make_files(folder, 1, 64 * MIB, 1)
    found = {}
    with limited(rig) as rate:
        for what in ("well", "frozen", "slow"):
            rows = {}
            for _round in range(rounds):
                for way in (Ours(rig), Clush(rig)):
                    way.clean(rig.count)
                    rig.clush(rig.count, "rm -rf bench-arrived")
                    well = unwell(rig, what) if what != "well" else lambda: None
                    try:
                        wall, used, said = rigs.timed(send_in_spite, way, folder, rig.count)
                    finally:
                        well()
                    whole = arrived(rig, way, folder)
                    row = rows.setdefault(way.name, {"seconds": [], "processor": [], "held": []})
                    row["seconds"].append(wall)
                    row["processor"].append(used)
                    row["held"].append(whole)
                    named = rig.names[SICK] in said or rig.addresses[SICK] in said
                    print(f"  {what}, {way.name}: {wall:.1f} s, {whole} of 7, named: {named}")
            found[what] = rows
    return {"rate": rate, "nodes": found}


ROWS = {
    "fanout-big": fanout_big,
    "fanout-small": fanout_small,
    "delta": delta,
    "verify": verify,
    "sick-node": sick_node,
}
