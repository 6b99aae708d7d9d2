#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a plan's settings for speed are worth: the first step and the steps of one training with the
settings of the plan, and with one of them left out or changed: a table for docs/benchmarks.md.

Not part of CI and nothing is asserted: the figures depend on the machine. The site is one of two
Docker nodes that are ready for PaddleDetection (playbooks/provision.yml -e suite=paddledetection).

.venv/bin/python tests/bench/launch_settings.py -i INVENTORY [--rounds 5] [--epochs 6] [--json FILE]
    [--write]

The ways take turns. Each begins with its two commands typed, its code, data and environment in
place. `planned` has the words and variables of our plan (suites/launcher_table.py) and its head
start. A ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import statistics
import sys
import time
from pathlib import Path

import bare_drill
import bare_faults
import goodput
import page
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import launcher_table

LIMIT = 300  # seconds that one training gets
HEAD_START = launcher_table.LAUNCHERS["paddle"]["head_start"]
FIRST_FREE, LAST_FREE = bare_faults.PORT + 1, bare_faults.PORT + 20
# What each way changes.
WAYS = {
    "planned": {},
    "no head start": {"head_start": 0},
    "a thread for each processor": {"threads": None},
    "no interface": {"interface": None},
    "`--master`": {"rendezvous": "master"},
    "a processor of its own for each node": {"bound": True},
}


def command_of(site, node, threads=1, interface="eth0", rendezvous="ips"):
    """Return the argv of a node's terminal.

    threads: OMP_NUM_THREADS, None for the library's own number. interface: for gloo, None for its
    own choice.
    """
    nodes, address = list(site.nodes), site.nodes[node]
    values = {"POD_IP": address}
    if threads:
        values["OMP_NUM_THREADS"] = threads
    if interface:
        values["GLOO_SOCKET_IFNAME"] = interface
    words = [f"--ips={','.join(site.nodes.values())}", f"--start_port={bare_faults.PORT}"]
    if rendezvous == "master":
        first = site.nodes[nodes[0]]
        words = [f"--master={first}:{bare_faults.PORT}", f"--nnodes={len(nodes)}"]
        values["PADDLE_RANK"] = nodes.index(node)
        values["PORT_RANGE"] = f"{FIRST_FREE}:{LAST_FREE}"
    given = " ".join(f"{name}={value}" for name, value in values.items())
    line = f"cd {bare_drill.FOLDER} && {bare_drill.PACKAGES}{given} exec {bare_drill.PYTHON}"
    line += " -m paddle.distributed.launch --nproc_per_node=1 "
    line += " ".join([*words, site.words(site.job)])
    return [*site.ssh(node, "-tt"), f"exec bash -lc {shlex.quote(line)}"]


def train(site, epochs, head_start=HEAD_START, bound=False, **settings):
    """Train once and return {first_step, step} in seconds."""
    site.job = goodput.job_of(epochs, every=epochs + 1)
    site.prepare()
    pins = goodput.pinned(site) if bound else contextlib.nullcontext()
    steps, terminals = goodput.Steps(), []
    with pins:
        begun = time.monotonic()
        try:
            for node in site.nodes:
                argv = command_of(site, node, **settings)
                terminals.append(bare_faults.Terminal(node, argv, begun))
                if len(terminals) == 1:
                    time.sleep(head_start)
            while not site.at_end(site.log()):
                steps.read(site.log())
                if time.monotonic() - begun > LIMIT:
                    sys.exit("\n".join(line for _second, line in terminals[0].lines[-20:]))
                time.sleep(0.05)
            steps.read(site.log())
            for terminal in terminals:
                terminal.process.wait(60)
        finally:
            for terminal in terminals:
                terminal.close()
    first, last = steps.times[0], steps.times[-1]
    return {"first_step": first - begun, "step": (last - first) / (len(steps.made) - 1)}


def describe(values):
    """Return a median with its spread, as text."""
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


def rows(found):
    """Yield (way, first step, its ratio, step, its ratio) of all rounds."""
    planned = found["planned"]
    for way, figures in found.items():
        cells = [way]
        for key in ("first_step", "step"):
            ratios = [one / other for one, other in zip(figures[key], planned[key])]
            cells += [describe(figures[key]), f"{statistics.median(ratios):.2f}"]
        yield cells


def main():
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    inventory = str(goodput.PROJECT / "molecule" / "inventory")
    asked.add_argument("-i", "--inventory", default=inventory)
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--epochs", type=int, default=6)
    asked.add_argument("--json", type=Path)
    asked.add_argument("--write", action="store_true", help="the table into docs/benchmarks.md")
    asked = asked.parse_args()
    os.environ["PATH"] = "{}:{}".format(Path(sys.executable).parent, os.environ["PATH"])
    bare_drill.left_in(bare_drill.FOLDER)
    site, found = goodput.Bare(asked.inventory), {}
    for number in range(asked.rounds + 1):
        for way, changes in WAYS.items():
            figures = train(site, asked.epochs, **changes)
            print(way, {key: round(value, 2) for key, value in figures.items()}, flush=True)
            if number:  # the first round brings caches
                for key, value in figures.items():
                    found.setdefault(way, {}).setdefault(key, []).append(value)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    head = ["settings", "first step", "ratio", "a step", "ratio"]
    page.show("settings", head, rows(found), asked.rounds, asked.write)


if __name__ == "__main__":
    main()
