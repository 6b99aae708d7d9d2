#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The faults of playbooks/drill.yml done to bare `python -m paddle.distributed.launch`, started over SSH in two terminals: JSON for docs/drills.md.

Not part of CI and nothing is asserted: the figures depend on the machine. The site is one of two Docker nodes that is provisioned and synchronised
for PaddleDetection, as `make drill` leaves it, or by hand as bare_faults.py says:

    .venv/bin/python tests/bench/bare_drill.py -i INVENTORY --out FOLDER [--limit 120] [--only NAME ...]

The same training, the same moments and the same steps as in plugins/module_utils/trainyard/drills.yml, in a folder of this script's own on both nodes.
Noted are: the first error that a terminal shows, the end of both commands, which of both came by themselves within the limit, and the processes that
were left when the terminals were closed. What is left is then ended by pid. Faults that have no counterpart there (a controller, a resume) are left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ansible.module_utils
import bare_faults

PROJECT = Path(__file__).resolve().parents[2]
ansible.module_utils.__path__.append(str(PROJECT / "plugins" / "module_utils"))
drills = importlib.import_module("ansible.module_utils.trainyard.drills")

FOLDER = "/home/trainer/bare-drill"
# Bare Paddle has these moments, too; the others are about our controller, our checks or our logs.
FAULTS = (
    "exit", "raise", "import", "kill", "segfault", "memory", "hang", "stubborn", "nan", "node_kill", "reboot", "freeze", "cut", "away", "sshd", "connection",
)  # fmt: skip
PREPARE = """rm -rf %(folder)s && mkdir -p %(folder)s && cd %(folder)s
cp -rL $(dirname $(dirname $(ls -td ~/.trainyard/code/*/configs/ppyoloe | head -1)))/. . && chmod -R u+w . && mkdir -p dataset
rm -rf dataset/coco && ln -s $(dirname $(dirname $(ls -td ~/.trainyard/data/*/annotations/instances_train2017.json | head -1))) dataset/coco"""
# rank: the first process in our folder that has a rank's variable.
PRELUDE = """export A=%(folder)s OTHER=%(other)s S=$(dirname $(ls -d /home/trainer/.trainyard/env/*/lib/python3.*/site-packages/pycocotools* | head -1))
rank() { for one in /proc/[0-9]*; do [ "$(readlink $one/cwd)" = %(folder)s ] && tr '\\0' '\\n' < $one/environ 2> /dev/null | grep -q '^PADDLE_TRAINER_ID=' \\
  && echo ${one#/proc/} && return; done; }
"""


class Site(bare_faults.Site):
    """bare_faults.py's two nodes with a real training in the folder."""

    def prepare(self):
        for node in self.nodes:
            self.on(node, PREPARE % {"folder": FOLDER})

    def words(self, job, resume=None):
        overrides = dict(job["overrides"], use_gpu="false")
        words = "tools/train.py -c %s -o %s" % (job["config"], " ".join("%s=%s" % pair for pair in sorted(overrides.items())))
        return words + (" -r %s" % resume if resume else "")

    def bare(self, node, job, resume=None):
        """Return the argv of one terminal: a login shell, as by hand, and the documents' command."""
        command = (
            "cd %s && rm -rf log && OMP_NUM_THREADS=1 exec $(ls -d ~/.trainyard/env/*/bin/python | head -1) -m paddle.distributed.launch"
            % FOLDER
        )
        command += " --ips=%s --nproc_per_node=1 --start_port %d %s" % (
            ",".join(self.nodes.values()),
            bare_faults.PORT,
            self.words(job, resume),
        )
        return [
            *self.ssh(node, "-tt", "-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=3"),
            "exec bash -lc %s" % shlex.quote(command),
        ]

    def step(self, step):
        names = {"first": "node1", "last": "node2"}
        if "sleep" in step:
            time.sleep(step["sleep"])
        elif "docker" in step:
            containers = {place: self.container(node) for place, node in names.items()}
            asked = ["docker", "inspect", "--format", "{{.HostConfig.Memory}}", containers["last"]]
            containers["memory"] = subprocess.run(asked, check=True, text=True, stdout=subprocess.PIPE, timeout=60).stdout.strip()
            subprocess.run(
                ["docker", *(word.format(**containers) for word in step["docker"])], check=True, stdout=subprocess.DEVNULL, timeout=120
            )
        elif "up" in step:
            self.up(names[step["up"]])
        elif "user" in step or "root" in step:
            node = names[step.get("user") or step["root"]]
            other = next(address for name, address in self.nodes.items() if name != node)
            (self.on if "user" in step else self.root)(node, PRELUDE % {"folder": FOLDER, "other": other} + step["do"])

    def up(self, node):
        for _time in range(60):
            try:
                if "active" in self.on(node, "systemctl --user is-active basic.target"):
                    return
            except subprocess.SubprocessError:
                time.sleep(1)

    def log(self):
        """Return rank 0's log; '' while its node does not answer."""
        return self.root("node1", "cat %s/log/workerlog.0 2> /dev/null" % FOLDER, check=False)

    def left_anywhere(self):
        found = {}
        for node in self.nodes:
            try:
                found[node] = self.left(node)
            except subprocess.SubprocessError:
                found[node] = []  # down or frozen
        return found


def left_in(folder):
    """bare_faults.py looks for processes in its own folder; here they are in ours."""
    bare_faults.FOLDER = folder


def moment(site, fault, terminals, limit):
    """Wait until the training has come to the fault's moment; return whether it did. From inside: until the rank's log says so or the rank is gone."""
    kind, _space, count = fault["at"].partition(" ")
    end, seen = time.monotonic() + limit, False
    while time.monotonic() < end:
        text = site.log()
        there = site.left_anywhere()
        if kind in ("run", "ranks"):
            if all(len(pids) > 1 for pids in there.values()):
                return True
        elif kind == "inside":
            seen = seen or "Epoch: [" in text
            pid = subprocess.run(
                ["docker", "exec", "-u", "trainer", site.container("node2"), "sh", "-c", PRELUDE % {"folder": FOLDER, "other": ""} + "rank"],
                check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            ).stdout.strip()  # fmt: skip
            if seen and not pid:
                return True
        elif text.count("Epoch: [" if kind == "step" else "Save checkpoint: ") >= int(count):
            return True
        if all(terminal.process.poll() is not None for terminal in terminals):
            return kind == "inside"
        time.sleep(0.3)
    return False


def measure(site, job, fault, limit, out):
    """Do one fault to the bare command; return what came of it, seconds from the fault on."""
    found = {"name": fault["name"], "limit": limit}
    for node in site.nodes:
        site.quiet(node)
    for step in fault.get("before", ()):
        site.step(step)
    begun = time.monotonic()
    terminals = [bare_faults.Terminal(node, site.bare(node, job), begun) for node in site.nodes]
    try:
        if not moment(site, fault, terminals, 240):
            found["note"] = "the training did not come to its moment"
            return found
        since = time.monotonic()
        for step in fault.get("then", ()):
            if "verb" in step:  # stop.yml there: Ctrl-C in both terminals here
                since = time.monotonic()
                for terminal in terminals:
                    terminal.process.stdin.write(b"\x03")
                    terminal.process.stdin.flush()
            else:
                site.step(step)
        steps = site.log().count("Epoch: [")
        while time.monotonic() - since < limit and any(terminal.process.poll() is None for terminal in terminals):
            time.sleep(0.2)
        found["went_on"] = site.log().count("Epoch: [") - steps
        found["codes"] = {terminal.node: terminal.close() for terminal in terminals}
        ends = [getattr(terminal, "ended", None) for terminal in terminals]
        whole = all(code is not None for code in found["codes"].values())
        found["ended"] = round(max(ends) + begun - since, 1) if whole and None not in ends else None
        lines = sorted((second + begun - since, terminal.node, line) for terminal in terminals for second, line in terminal.lines)
        errors = [line for line in lines if bare_faults.ERROR.search(line[2]) and not bare_faults.HARMLESS.search(line[2]) and line[0] >= 0]
        found["first_error"] = round(errors[0][0], 1) if errors else None
        telling = [line for line in errors if re.search(r"^\w*(Error|Exception): |^ssh: |signal|SIG", line[2])] or errors
        found["said"] = "%s: %s" % telling[0][1:] if telling else ""
        time.sleep(2)
        found["left"] = sum(len(pids) for pids in site.left_anywhere().values())
    finally:
        for terminal in terminals:
            terminal.close()
            text = "".join("%7.1f  %s\n" % line for line in terminal.lines)
            (out / ("%s-%s.txt" % (fault["name"], terminal.node))).write_text(text)
        for step in fault.get("heal", ()):
            site.step(step)
        for node in site.nodes:
            site.up(node)
            site.clear(node)
    return found


def main():
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("-i", "--inventory", default=str(PROJECT / "molecule" / "inventory"))
    asked.add_argument("--out", type=Path, help="where texts and bare.json go; default: a new folder in the temporary directory")
    asked.add_argument("--limit", type=float, default=120, help="seconds that the bare command gets after the fault (default 120)")
    asked.add_argument("--only", nargs="*", help="names of faults")
    asked = asked.parse_args()
    os.environ["PATH"] = "%s:%s" % (Path(sys.executable).parent, os.environ["PATH"])
    out = asked.out or Path(tempfile.mkdtemp(prefix="bare-drill-"))
    out.mkdir(parents=True, exist_ok=True)
    left_in(FOLDER)
    site, table = Site(asked.inventory), drills.load()
    kept = out / "bare.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    site.prepare()
    try:
        for name in asked.only or FAULTS:
            fault = table["faults"][name]
            results[name] = measure(site, drills.job_of(table["job"], fault, ""), fault, asked.limit, out)
            kept.write_text(json.dumps(results, indent=1))
            print(json.dumps(results[name]), flush=True)
    finally:
        for node in site.nodes:
            site.on(node, "rm -rf %s" % FOLDER, check=False)
    print(out)


if __name__ == "__main__":
    main()
