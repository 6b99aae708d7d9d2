# SPDX-License-Identifier: Apache-2.0
"""Row of the benchmarks about many nodes that run a job: what the controller pays for each of its
commands.

The nodes are Docker nodes with systemd of their own, so give --nodes 64. Each has one rank, a
stand-in that writes one line per second and trains nothing. All nodes share the machine, so the
figures are the controller's own: its processor time and its most memory. A command's
processes are counted with it, but for those that no process of it waits for.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import time

import rig as rigs
import starts

SECONDS = 90  # of a rank, so that the commands about a running job find it running
PYTHON = f"{rigs.HOME}/bench-env/bin/python"
HEAD = ("nodes", "command", "seconds", "CPU s here", "CPU ms here per node", "MB of memory here")
STARTED = re.compile(r"^run \S+, job ", re.MULTILINE)


class Command:
    """A command of this machine. name: of its output's file below a folder."""

    def __init__(self, folder, name, argv, environment=None):
        self.path, self.name, self._begun = folder / f"{name}.txt", name, time.monotonic()
        self._log = open(self.path, "wb")  # until end()
        self.process = subprocess.Popen(
            list(map(str, argv)),
            cwd=rigs.PROJECT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def text(self):
        """Return the output up to now."""
        return self.path.read_text(errors="replace")

    def end(self, fine=""):
        """Wait for its end, and return {seconds, processor, memory}.

        fine: what the output of one that fails has to hold. Raises rigs.Failure.
        """
        _pid, status, used = os.wait4(self.process.pid, 0)
        self.process.returncode = code = os.waitstatus_to_exitcode(status)
        self._log.close()
        if code and not (fine and fine in self.text()):
            raise rigs.Failure(f"{self.name}: {code}\n{self.text()[-4000:]}")
        found = {
            "seconds": time.monotonic() - self._begun,
            "processor": used.ru_utime + used.ru_stime,
            "memory": used.ru_maxrss / 1024,
        }
        print(f"  {self.name}: {json.dumps(found)}", flush=True)
        return found


class Site:
    """The nodes, each with one stand-in of a device. count: how many take part."""

    def __init__(self, rig, count):
        self.rig, self.count = rig, count
        suite = {"code": {"path": str(starts.STUB)}, "environment": {"python": PYTHON}}
        site = {
            "trainyard_accelerator": "ascend",
            "trainyard_devices": 1,
            "trainyard_suites": {"mindocr": suite},
        }
        job = {
            "suite": "mindocr",
            "launcher": "rank_table",
            "config": "configs/given.yaml",
            "env": {"BENCH_RATE": 1, "BENCH_SECONDS": SECONDS},
        }
        path = rig.folder / "scale.yml"
        path.write_text(json.dumps(job))
        self.words = ["-e", json.dumps(site)]
        self.job = ["-e", f"config={path}", "-e", f"nodes={count}", "-e", "rehearse=false"]

    def play(self, name, verb, *words):
        """Start a playbook."""
        argv = ["ansible-playbook", "-i", self.rig.inventory, f"playbooks/{verb}.yml"]
        return Command(self.rig.folder, f"{name}-{self.count}", [*argv, *self.words, *words])

    def ping(self):
        """Start Ansible's module ping on the nodes."""
        hosts = ",".join(self.rig.names[: self.count])
        argv = ["ansible", "-i", self.rig.inventory, hosts, "-m", "ansible.builtin.ping"]
        return Command(self.rig.folder, f"ping-{self.count}", argv)


# A rank that ends with exit code 0 and has trained nothing is no success.
NOTHING_TRAINED = "UNKNOWN: every rank ended with exit code 0"


def measure(site):
    """Return {command: {seconds, processor, memory}} for a number of nodes."""
    found = {"ping": site.ping().end()}
    site.play("first", "check", *site.job).end()  # the first check of a site proves more
    found["check.yml"] = site.play("check", "check", *site.job).end()
    train = _start(site, "train")
    found["status.yml, while it runs"] = site.play("status", "status").end()
    found[f"train.yml, {SECONDS} s of ranks"] = train.end(NOTHING_TRAINED)
    found["logs.yml, after the end"] = site.play("logs", "logs").end()
    train = _start(site, "train-stop")
    found["stop.yml"] = site.play("stop", "stop").end()
    train.end("STOPPED")
    return found


def _start(site, name):
    """Start train.yml, and return its command when the run has started."""
    train, begun = site.play(name, "train", *site.job), time.monotonic()
    while not STARTED.search(train.text()):
        if train.process.poll() is not None or time.monotonic() - begun > 900:
            raise rigs.Failure(train.text()[-4000:])
        time.sleep(0.5)
    return train


def table(found):
    """Return the Markdown lines of {nodes: {command: figures}}."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + " --- |" * len(HEAD)]
    for nodes, commands in found.items():
        for name, figures in commands.items():
            cells = [
                str(nodes),
                name,
                f"{figures['seconds']:.1f}",
                f"{figures['processor']:.1f}",
                f"{1000 * figures['processor'] / nodes:.0f}",
                f"{figures['memory']:.0f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def scale(rig, rounds, counts=(8, 32, 64)):
    """Commands about a job on as many nodes: medians of the rounds."""
    starts.put_ascend_tools(rig, 1)
    rig.pdsh(rig.count, "python3 -m venv --without-pip bench-env")
    for node in range(rig.count):
        rig.root(node, "loginctl enable-linger trainer")
    found = {}
    for count in (one for one in counts if one <= rig.count):
        measured = [measure(Site(rig, count)) for _round in range(rounds)]
        found[count] = {
            name: {key: statistics.median(one[name][key] for one in measured) for key in figures}
            for name, figures in measured[0].items()
        }
    return {"nodes": found, "table": table(found)}


ROWS = {"scale": scale}
