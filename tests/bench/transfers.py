# SPDX-License-Identifier: Apache-2.0
"""Rows of the benchmarks about bytes: a large file, many small ones, a change, a verification.

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
import shutil
import statistics
import sys

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

    def send(self, folder, nodes):
        names = [str(path.relative_to(folder)) for path in folder.rglob("*.bin")]
        scan = describe.scan_cache(str(self.cache), str(folder))
        entries = manifest.scan(str(folder), names, scan)
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


def ratio(rows, ours, peer, key="seconds"):
    """Return the median of ours over the peer's, round by round."""
    pairs = zip(rows[ours][key], rows[peer][key])
    return statistics.median(one / other for one, other in pairs)


ROWS = {"fanout-big": fanout_big, "fanout-small": fanout_small, "delta": delta}
