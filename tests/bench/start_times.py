#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seconds from a command to the first training step and to its end, ours beside bare Paddle's in
two SSH sessions, in turns: a table for docs/benchmarks.md.

Not part of CI and nothing is asserted: the figures depend on the machine. The site is one of two
Docker nodes that are ready for PaddleDetection (playbooks/provision.yml -e suite=paddledetection).

.venv/bin/python tests/bench/start_times.py -i INVENTORY [--rounds 5] [--json FILE] [--write]

Both train one epoch of the same job. One loop on node1 looks for the first step line ten times a
second, the same for both, and nothing else looks. Bare Paddle begins with its two commands typed
and its code, data and environment in place. Ours does what `train.yml` does on a ready site, with
all its proofs, and ends with logs, checkpoint and verdict on the controller. `supervised` is the
same with max_restarts, so that the nodes restart it. `ping` is `ansible all -m ping`, the least
that Ansible takes for this site.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bare_drill
import goodput
import page

LIMIT = 300  # seconds that one training gets
# Prints the time at which a log that is newer than this loop has its first step line.
LOOP = r"""touch /tmp/start-times; while [ -e /tmp/start-times ]; do
cd /home/trainer/.trainyard/runs
for log in *-start_times-*/attempt-1/log/workerlog.0 %s/log/workerlog.0; do
[ "$log" -nt /tmp/start-times ] && grep -qs 'Epoch: \[0\] \[ *0/' "$log" && date +%%s.%%N && exit
done; sleep 0.1; done"""


def ping(inventory):
    """Return the seconds that `ansible all -m ping` takes."""
    begun = time.monotonic()
    subprocess.run(
        ["ansible", "-i", inventory, "trainers", "-m", "ansible.builtin.ping"],
        cwd=goodput.PROJECT,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - begun


def ours(inventory, out, **keys):
    """Train by train.yml. keys: of the job, beside the bench's own."""
    path = out / "start_times.yml"
    path.write_text(json.dumps({**goodput.job_of(1), **keys}))
    argv = ["ansible-playbook", "-i", inventory, "playbooks/train.yml", "-e", f"config={path}"]
    with open(out / "ours.txt", "wb") as log:
        subprocess.run(
            argv,
            cwd=goodput.PROJECT,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=LIMIT,
        )


def supervised(inventory, out):
    """Train by train.yml with max_restarts."""
    ours(inventory, out, max_restarts=20)


def bare(inventory, _out):
    """Type the two commands of bare Paddle, and wait for their end."""
    site = goodput.Bare(inventory)
    site.job = goodput.job_of(1)
    terminals = site.commands(None)
    for terminal in terminals:
        if terminal.process.wait(LIMIT):
            sys.exit(f"bare: {terminal.node} ended with {terminal.process.returncode}")


WAYS = {"ours": ours, "supervised": supervised, "bare": bare}


def train(way, inventory, out):
    """Return {first_step, whole} of one training, in seconds from its command."""
    site = goodput.Bare(inventory)
    site.prepare()
    script = LOOP % bare_drill.FOLDER
    argv = ["docker", "exec", site.container("node1"), "sh", "-c", script]
    loop = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    time.sleep(1)
    begun, clock = time.monotonic(), time.time()
    try:
        WAYS[way](inventory, out)
        whole = time.monotonic() - begun
        first = loop.communicate(timeout=10)[0]
    finally:
        loop.kill()
        site.root("node1", "rm -f /tmp/start-times")  # ends the loop
    return {"first_step": float(first) - clock, "whole": whole}


def describe(values):
    """Return a median with its spread, as text."""
    middle = statistics.median(values)
    return f"{middle:.1f} s ({min(values):.1f} to {max(values):.1f})"


def rows(found):
    """Yield (what, ours, peer, ratio) of all rounds."""
    pairs = (
        ("first step", "ours first_step", "bare first_step"),
        ("whole job", "ours whole", "bare whole"),
        ("first step, with max_restarts", "supervised first_step", "bare first_step"),
        ("whole job, with max_restarts", "supervised whole", "bare whole"),
        ("first step, beside `ansible -m ping`", "ours first_step", "ping"),
    )
    for what, ours, peer in pairs:
        ratio = statistics.median(one / other for one, other in zip(found[ours], found[peer]))
        yield what, describe(found[ours]), describe(found[peer]), f"{ratio:.2f}"


def main():
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    inventory = str(goodput.PROJECT / "molecule" / "inventory")
    asked.add_argument("-i", "--inventory", default=inventory)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--json", type=Path)
    asked.add_argument("--write", action="store_true", help="the table into docs/benchmarks.md")
    asked = asked.parse_args()
    os.environ["PATH"] = "{}:{}".format(Path(sys.executable).parent, os.environ["PATH"])
    out = Path(tempfile.mkdtemp(prefix="start-times-"))
    bare_drill.left_in(bare_drill.FOLDER)
    found = {}
    for number in range(asked.rounds + 1):
        seconds = {"ping": ping(asked.inventory)}
        for way in WAYS:
            for name, value in train(way, asked.inventory, out).items():
                seconds[f"{way} {name}"] = value
        print(json.dumps({key: round(value, 1) for key, value in seconds.items()}), flush=True)
        if number:  # the first round brings code, data and caches
            for key, value in seconds.items():
                found.setdefault(key, []).append(value)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    head = ["what", "Trainyard", "peer", "ratio"]
    page.show("first-step", head, rows(found), asked.rounds, asked.write)


if __name__ == "__main__":
    main()
