#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goodput: useful step time over wall time of one training under one seeded schedule of faults, ours, bare Paddle's and mpirun's: JSON for docs/drills.md.

Not part of CI and nothing is asserted: the figures depend on the machine. The site is one of two Docker nodes as `make drill` leaves it; for mpirun both
need Open MPI (playbooks/provision.yml -e suite=mindocr brings it).

    .venv/bin/python tests/bench/goodput.py -i INVENTORY --out FOLDER [--seed 6] [--epochs 40] [--faults 3] [--ways quiet ours bare mpirun]

The training saves after every epoch. Useful are the steps that had to be made, each once, at the pace of the way `quiet` (no fault); wall time is from the
command to the end of the last epoch. The schedule (which fault, how many seconds of training after the one before) is the same for all; its clock stands
still while nothing trains. Ours is `train.yml` with max_restarts. Bare Paddle and mpirun are restarted by this script, as fast as it can: it looks every
half second for every rank on every node, takes a silence of 20 s for a hang, as our watchdog does, ends what is left, waits for the node, copies the
newest checkpoint of rank 0 to the other node, and starts again with the suite's own -r. No person would be as quick.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bare_drill
import bare_faults

PROJECT = Path(__file__).resolve().parents[2]
KINDS = ("kill", "hang", "reboot")
SILENCE = 20
STEP = re.compile(r"Epoch: \[(\d+)\] \[\s*(\d+)/(\d+)\]")
# A shell's words for one rank of an mpirun: what Paddle's launcher would have put into its environment.
RANK = """cd %(folder)s && export PADDLE_TRAINER_ID=$OMPI_COMM_WORLD_RANK PADDLE_TRAINERS_NUM=2 PADDLE_TRAINER_ENDPOINTS=%(endpoints)s OMP_NUM_THREADS=1
export PADDLE_CURRENT_ENDPOINT=$(echo $PADDLE_TRAINER_ENDPOINTS | cut -d, -f$((OMPI_COMM_WORLD_RANK + 1))) PYTHONUNBUFFERED=1
mkdir -p log && exec $(ls -d ~/.trainyard/env/*/bin/python | head -1) %(words)s >> log/workerlog.0 2>&1"""


def job_of(epochs):
    """Return the training as a job."""
    overrides = {"epoch": epochs, "log_iter": 1, "snapshot_epoch": 1, "TrainDataset.sample_num": 32}
    job = {
        "suite": "paddledetection",
        "launcher": "paddle",
        "nodes": 2,
        "config": "configs/ppyoloe/ppyoloe_crn_s_300e_coco.yml",
        "overrides": overrides,
    }
    return dict(job, description="goodput")


def schedule(seed, count):
    """Return [(seconds of training after the fault before, kind)]."""
    chance = random.Random(seed)
    return [(round(chance.uniform(25, 60), 1), chance.choice(KINDS)) for _fault in range(count)]


class Steps:
    """The steps that were made: each (epoch, step) once, however often it was done again; and when."""

    def __init__(self):
        self.made, self.again, self.last, self.times = set(), 0, time.monotonic(), []

    def read(self, text):
        """Take in a whole log; return how many of its steps are new to us. It may have begun anew."""
        found = STEP.findall(text)
        new = [step for step in found if step not in self.made]
        if new:
            self.last = time.monotonic()
            self.times.append(self.last)
            self.made.update(new)
        return len(new)


class Faults:
    """The schedule on its way: a fault is due after so many seconds in which the training made steps."""

    def __init__(self, site, plan, do):
        self.site, self.plan, self.do, self.done, self.since, self.trained = site, list(plan), do, [], None, 0.0

    def tick(self, trains, passed):
        """passed: seconds since the last call; trains: whether it trained meanwhile."""
        self.trained += passed if trains else 0
        if self.plan and trains and self.trained >= self.plan[0][0]:
            self.trained, (_seconds, kind) = 0.0, self.plan.pop(0)
            print("  %s" % kind, flush=True)
            self.do(kind)
            self.done.append(kind)


def watch_out(site, steps, faults, over, limit, idle=lambda: None):
    """Follow a training until over() is true; return whether it was before the limit. idle() is called every half second."""
    begun = before = time.monotonic()
    while time.monotonic() - begun < limit:
        text = site.training_log()
        now = time.monotonic()
        steps.read(text)
        faults.tick(now - steps.last < 3, now - before)
        before = now
        if over(text):
            return True
        idle()
        time.sleep(0.5)
    return False


class Ours(bare_drill.Site):
    """train.yml with max_restarts."""

    def train(self, job, plan, out, limit):
        path = out / "goodput.yml"
        path.write_text(json.dumps(dict(job, max_restarts=20, watchdog={"step": "20s"})))
        argv = ["ansible-playbook", "-i", self.inventory, "playbooks/train.yml", "-e", "config=%s" % path]
        environment = dict(os.environ, ANSIBLE_CONFIG=str(PROJECT / "ansible.cfg"))
        steps, faults, begun = Steps(), Faults(self, plan, self.fault), time.monotonic()
        with open(out / "ours.txt", "wb") as log:
            process = subprocess.Popen(
                argv, cwd=PROJECT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            watch_out(self, steps, faults, lambda _text: process.poll() is not None, limit)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(60)
        return steps, faults, time.monotonic() - begun, process.returncode == 0

    def training_log(self):
        script = "cat $(ls -td /home/trainer/.trainyard/runs/*-goodput-*/attempt-* 2> /dev/null | head -1)/log/workerlog.0 2> /dev/null"
        return self.root("node1", script, check=False)

    def fault(self, kind):
        mark = "grep -lzs '^TRAINYARD_ATTEMPT=' /proc/[0-9]*/environ | xargs -r grep -lzs '^PADDLE_TRAINER_ID=' | cut -d/ -f3 | head -1"
        self.hurt(kind, mark)

    def hurt(self, kind, mark):
        """Do a fault to node2. mark: shell words that print the rank's pid."""
        if kind == "reboot":
            subprocess.run(["docker", "restart", "-t", "0", self.container("node2")], check=True, stdout=subprocess.DEVNULL, timeout=120)
        else:
            self.on("node2", "kill -%s $(%s)" % ("KILL" if kind == "kill" else "STOP", mark))


class Bare(Ours):
    """Two terminals, and a script that starts again."""

    def train(self, job, plan, out, limit):
        self.job, self.out, self.tries, self.since = job, out, 0, 0.0
        self.last = "Epoch: [%d]" % (job["overrides"]["epoch"] - 1)
        self.steps, faults = Steps(), Faults(self, plan, self.fault)
        self.kept, self.terminals = "", []
        self.prepare()
        begun = time.monotonic()
        self.start()
        try:
            done = watch_out(self, self.steps, faults, self.over, limit, self.look)
            wall = time.monotonic() - begun
        finally:
            self.end()
        return self.steps, faults, wall, done

    def training_log(self):
        return self.kept + self.log()

    def over(self, text):
        return all(terminal.process.poll() == 0 for terminal in self.terminals) and self.last in text

    def fault(self, kind):
        self.hurt(kind, bare_drill.PRELUDE % {"folder": bare_drill.FOLDER, "other": "none"} + "rank")

    def commands(self, resume):
        return [bare_faults.Terminal(node, self.bare(node, self.job, resume), time.monotonic()) for node in self.nodes]

    def start(self, resume=None):
        self.tries, self.since = self.tries + 1, time.monotonic()
        self.terminals = self.commands(resume)

    def look(self):
        """Start again where a rank is gone that was there, or nothing was said for too long."""
        if time.monotonic() - self.since < 5:
            return
        if any(terminal.process.poll() == 0 for terminal in self.terminals) and self.last in self.log():
            return  # it is at its end
        there = self.left_anywhere()
        dead = not all(there.values()) or any(terminal.process.poll() not in (None, 0) for terminal in self.terminals)
        young = time.monotonic() - self.since < 60 and self.steps.last < self.since
        if dead or (time.monotonic() - self.steps.last > SILENCE and not young):
            self.end()
            self.kept += self.log()
            self.start(self.newest())

    def end(self):
        for terminal in self.terminals:
            terminal.close()
        for node in self.nodes:
            self.up(node)
            self.clear(node)

    def newest(self):
        """Copy rank 0's newest whole checkpoint to the other node; return its stem, None without one. Whole: both files, the older one first."""
        script = "cd %s && for f in $(ls -t output/*/*.pdopt 2> /dev/null); do test -s ${f%%.pdopt}.pdparams && echo ${f%%.pdopt} && break; done; true"
        stem = self.on("node1", script % bare_drill.FOLDER)
        if not stem:
            return None
        give = [*self.ssh("node1"), "cd %s && tar -c %s.*" % (bare_drill.FOLDER, stem)]
        take = [*self.ssh("node2"), "cd %s && tar -x" % bare_drill.FOLDER]
        packed = subprocess.run(give, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=120).stdout
        subprocess.run(take, check=True, input=packed, timeout=120)
        return stem


class Mpirun(Bare):
    """One terminal: mpirun on node1 starts a rank on each node, over the mesh's SSH."""

    def commands(self, resume):
        values = {"folder": bare_drill.FOLDER, "words": self.words(self.job, resume)}
        values["endpoints"] = ",".join("%s:%d" % (address, bare_faults.PORT) for address in self.nodes.values())
        agent = "--mca plm_rsh_agent 'ssh -F /home/trainer/.trainyard/mesh/config'"
        command = "cd %s && exec mpirun -np 2 --host node1:1,node2:1 %s sh -c %s" % (bare_drill.FOLDER, agent, shlex.quote(RANK % values))
        argv = [*self.ssh("node1", "-tt"), "exec bash -lc %s" % shlex.quote(command)]
        return [bare_faults.Terminal("node1", argv, time.monotonic())]


WAYS = {"quiet": Ours, "ours": Ours, "bare": Bare, "mpirun": Mpirun}


def main():
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("-i", "--inventory", default=str(PROJECT / "molecule" / "inventory"))
    asked.add_argument("--out", type=Path)
    asked.add_argument("--seed", type=int, default=6)
    asked.add_argument("--epochs", type=int, default=40)
    asked.add_argument("--faults", type=int, default=3)
    asked.add_argument("--limit", type=float, default=1500, help="seconds that a way gets (default 1500)")
    asked.add_argument("--ways", nargs="*", default=list(WAYS))
    asked = asked.parse_args()
    os.environ["PATH"] = "%s:%s" % (Path(sys.executable).parent, os.environ["PATH"])
    out = asked.out or Path(tempfile.mkdtemp(prefix="goodput-"))
    out.mkdir(parents=True, exist_ok=True)
    bare_drill.left_in(bare_drill.FOLDER)
    kept, plan = out / "goodput.json", schedule(asked.seed, asked.faults)
    results = json.loads(kept.read_text()) if kept.exists() else {}
    for way in asked.ways:
        site = WAYS[way](asked.inventory)
        if way == "mpirun" and not all(site.root(node, "command -v mpirun", check=False) for node in site.nodes):
            print("mpirun: left out, Open MPI is not on the nodes")
            continue
        print(way, flush=True)
        steps, faults, wall, done = site.train(job_of(asked.epochs), [] if way == "quiet" else plan, out, asked.limit)
        results[way] = {"wall": round(wall, 1), "steps": len(steps.made), "completed": done, "faults": faults.done, "plan": plan}
        # From the first step to the last, so with what a checkpoint takes.
        results[way]["pace"] = round((steps.times[-1] - steps.times[0]) / max(1, len(steps.made) - 1), 3) if steps.times else None
        pace = results.get("quiet", {}).get("pace")
        results[way]["goodput"] = round(len(steps.made) * pace / wall, 3) if pace else None
        kept.write_text(json.dumps(results, indent=1))
        print(json.dumps(results[way]), flush=True)
    print(kept)


if __name__ == "__main__":
    main()
