# SPDX-License-Identifier: Apache-2.0
"""Rows of the benchmarks about logs: 64 ranks that write, a follower that is killed, and what a
second collection costs.

The ranks are those of stub_ranks, started by `train.yml` on eight nodes with eight devices each.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import threading
import time

import rig as rigs
import starts

RUNS = rigs.PROJECT / "runs"
STAMP = re.compile(rb"^(\d+\.\d{6}) rank ", re.MULTILINE)


def newest_run():
    """Return the directory of the newest run of the stub."""
    return max(RUNS.glob("*-job-*"), key=lambda path: path.stat().st_mtime)


class Training:
    """A training of the stub, begun by train.yml. variables: of every rank."""

    def __init__(self, rig, **variables):
        self.rig = rig
        python = rig.ssh(0, "ls -d ~/.trainyard/env/*/bin/python | head -1").strip()
        self.site = starts.ascend_site(rig, python)
        job = {
            "description": "64 ranks that write",
            "suite": "mindocr",
            "launcher": "rank_table",
            "config": "configs/given.yaml",
            "env": {name: str(value) for name, value in variables.items()},
        }
        self.job = rig.folder / "job.yml"
        self.job.write_text(json.dumps(job))
        rig.pdsh(rig.count, f"rm -rf {starts.NOTES} bench-more")

    def command(self, playbook, *words):
        """Begin a playbook and return its process."""
        argv = ["ansible-playbook", "-i", str(self.rig.inventory), f"playbooks/{playbook}.yml"]
        return subprocess.Popen(
            [*argv, *words],
            cwd=rigs.PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def start(self):
        """Begin it, wait until every rank is there, and return the process of its command."""
        words = ["-e", f"config={self.job}", "-e", f"nodes={self.rig.count}", "-e", self.site]
        process = self.command("train", *words, "-e", "rehearse=false")
        until = time.monotonic() + 180
        while time.monotonic() < until and process.poll() is None:
            said = self.rig.pdsh(self.rig.count, f"ls {starts.NOTES} 2>/dev/null | wc -l")
            if sum(int(line.split()[-1]) for line in said.splitlines()) == 8 * self.rig.count:
                return process
            time.sleep(1)
        kill(process)
        raise rigs.Failure("not every rank was started")


def kill(process):
    """End a command at once. Its workers have sessions of their own, and end at their next look."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Watch:
    """Looks at the copies of all logs and notes how late each line is.

    Only lines that are written after `since` count, a time that the caller moves on when a command
    that follows has begun to copy again.
    """

    def __init__(self, folder):
        self.folder, self.delays, self.over = folder, [], threading.Event()
        self.since = float("inf")
        self.places = {}
        self.thread = threading.Thread(target=self.follow, daemon=True)
        self.thread.start()

    def follow(self):
        while not self.over.wait(0.1):
            for path in self.folder.glob("attempt-1/rank-*.log"):
                with contextlib.suppress(OSError), path.open("rb") as handle:
                    handle.seek(self.places.get(path, 0))
                    text, now = handle.read(), time.time()
                    whole = text[: text.rfind(b"\n") + 1]
                    self.places[path] = self.places.get(path, 0) + len(whole)
                    stamps = map(float, STAMP.findall(whole))
                    self.delays += [now - stamp for stamp in stamps if stamp > self.since]

    def end(self):
        self.over.set()
        self.thread.join()


def whole(rig, run):
    """Return how many of the ranks' logs are here as the nodes have them."""
    here = {}
    for path in run.glob("attempt-1/rank-*.log"):
        here[hashlib.sha256(path.read_bytes()).hexdigest()] = path
    place = f".trainyard/runs/{run.name}/attempt-1"
    said = rig.pdsh(rig.count, f"find {place} -type f -size +10k -exec sha256sum {{}} +")
    there = [line.split()[1] for line in said.splitlines() if "log" in line]
    return sum(digest in here for digest in there)


def tail(rig, rounds):
    """64 ranks, 50 lines a second each, for 40 s; the command that follows is killed twice.

    p99: seconds from the writing of a line on a node to its copy here, of the lines that were
    written while a command followed.
    """
    rig.play("playbooks/provision.yml", "-e", f"suite={starts.SUITE}")
    row = {"seconds": [], "p50": [], "p99": [], "held": []}
    for _round in range(rounds):
        training = Training(rig, BENCH_RATE=50, BENCH_SECONDS=40)
        command = training.start()
        run = newest_run()
        watch = Watch(run)
        begun = time.monotonic()
        watch.since = time.time() + 2
        for _kill in range(2):
            time.sleep(8)
            watch.since = float("inf")
            kill(command)
            command = training.command("follow", "-e", f"run={run.name}")
            time.sleep(5)  # until it copies
            watch.since = time.time()
        command.wait(600)
        watch.end()
        row["seconds"].append(time.monotonic() - begun)
        late = sorted(watch.delays)
        row["p50"].append(late[len(late) // 2])
        row["p99"].append(late[len(late) * 99 // 100])
        row["held"].append(whole(rig, run))
        print(f"  {len(late)} lines: { ({name: row[name][-1] for name in row}) }", flush=True)
    return {"nodes": {rig.count: {"Trainyard": row}}}


class Collection:
    """Ways to bring the logs of a run that nobody follows."""

    def __init__(self, rig, run):
        self.rig, self.run, self.peer = rig, run, rig.folder / "synchronize"
        rigs.run(["rm", "-rf", str(self.peer)])
        self.peer.mkdir()

    def ours(self):
        self.rig.play("playbooks/logs.yml", "-e", f"run={self.run.name}")

    def synchronize(self):
        source = f".trainyard/runs/{self.run.name}/attempt-1/log"
        words = f"mode=pull src={source} dest={self.peer}/ use_ssh_args=true verify_host=true"
        self.rig.module("ansible.posix.synchronize", words)


def collect(rig, rounds):
    """64 logs of 1.6 MB each, from nothing, and again after one percent more was written."""
    rig.play("playbooks/provision.yml", "-e", f"suite={starts.SUITE}")
    found = {}
    for number in range(rounds):
        training = Training(rig, BENCH_BYTES=1_600_000)
        kill(training.start())
        run = newest_run()
        time.sleep(10)  # its workers have ended then
        for path in run.glob("attempt-1/*.log"):
            path.unlink()
        ways = Collection(rig, run)
        for what in ("from nothing", "one percent more"):
            turns = [
                ("Trainyard", ways.ours),
                ("`ansible.posix.synchronize`", ways.synchronize),
            ]
            if number % 2:
                turns.reverse()
            for name, way in turns:
                before = rig.received()
                wall, used, _said = rigs.timed(way)
                row = found.setdefault(what, {}).setdefault(
                    name, {"seconds": [], "processor": [], "received": []}
                )
                row["seconds"].append(wall)
                row["processor"].append(used)
                row["received"].append(rig.received() - before)
                print(f"  {what}, {name}: {wall:.1f} s, {row['received'][-1] / 1e6:.1f} MB")
            rig.pdsh(rig.count, "touch bench-more")
            time.sleep(2)
        rig.pdsh(rig.count, "rm -f bench-more")
        rig.play("playbooks/stop.yml")
    return {"nodes": found}


ROWS = {"tail": tail, "collect": collect}
