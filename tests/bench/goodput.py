#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goodput: useful step time over wall time of one training under one seeded schedule of faults,
ours with and without a controller, bare Paddle's and mpirun's: JSON for docs/drills.md.

Not part of CI and nothing is asserted: the figures depend on the machine. The site is one of two
Docker nodes as `make drill` leaves it; for mpirun both need Open MPI (playbooks/provision.yml -e
suite=mindocr brings it).

.venv/bin/python tests/bench/goodput.py -i INVENTORY --out FOLDER [--seed 6] [--epochs 56] [--every 1]
[--faults 3] [--rounds 1] [--pin] [--batch 4] [--link MBIT] [--ways quiet ours detached bare mpirun]

Each round has a schedule of its own, of the next seed. The training saves after every epoch, or after
so many (--every). Useful are the steps that had to be made, each once, at the
pace of the way `quiet`, bare Paddle without a fault; wall time is from the command to the last
step, `whole` to the end of the command. The schedule (which fault, how many new steps after the one
before) is the same for all. So a fault comes equally long after a save in each way. `stretch` is
from the first step to the last: what comes before and after is of the start and of the end. Ours is
`train.yml` with max_restarts, and `detached` the same with detach=true, so that nothing follows it.
Its processes on this machine run only where nothing else wants the processor, since a controller of a
real site shares none with a node. What it does on the nodes has the usual priority.
Bare Paddle and mpirun are restarted by this script, as fast as it can: it looks every half second
for every rank on every node, takes a silence of 20 s for a hang, as our watchdog does, ends what is
left, waits for the node, copies the newest checkpoint of rank 0 to the other node (the one before,
where a start from it made no step), and starts again with the suite's own -r. No person would be as
quick.

`recoveries` has for each fault the seconds from it until no rank was left, until each node had a
rank again, and until the next step. A node is looked at twice a second. `again` counts the steps that
were lost and made a second time; `step` is the seconds of a step outside the recoveries, where each of
them was seen to its end. `work` is the seconds of a processor that both ranks take for a step. It shows how
fast the machine was: its speed differs by a fifth from one quarter of an hour to the next. Each round
begins with another way, since a machine is not as fast all the time.

With --link the link of rank 0's node has a rate, in Mbit/s. Where the exchange over it takes longer
than the computing (--batch 1), a step takes as long on a slow machine as on a fast one, and the
processors wait, as where GPUs compute.
"""

from __future__ import annotations

import argparse
import contextlib
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
import rig

PROJECT = Path(__file__).resolve().parents[2]
KINDS = ("kill", "hang", "reboot")
GROUP = "trainyard-goodput"  # of the kernel
SILENCE = 20
BETWEEN = 20, 36  # new steps between two faults, at the least and at the most
# Seconds that a start gets for its first step.
START = 90
RUNS = "/home/trainer/.trainyard/runs/"
STEP = re.compile(r"Epoch: \[(\d+)\] \[\s*(\d+)/(\d+)\]")
# A shell's words for one rank of an mpirun: what Paddle's launcher would have put into its
# environment (controllers/collective.py of 2.6.2).
RANK = """cd %(folder)s && export PADDLE_TRAINER_ID=$OMPI_COMM_WORLD_RANK PADDLE_TRAINERS_NUM=2 PADDLE_TRAINER_ENDPOINTS=%(endpoints)s OMP_NUM_THREADS=1
export PADDLE_GLOBAL_RANK=$OMPI_COMM_WORLD_RANK PADDLE_GLOBAL_SIZE=2 PADDLE_LOCAL_RANK=0 PADDLE_RANK_IN_NODE=0 PADDLE_LOCAL_SIZE=1 PADDLE_NNODES=2
export PADDLE_CURRENT_ENDPOINT=$(echo $PADDLE_TRAINER_ENDPOINTS | cut -d, -f$((OMPI_COMM_WORLD_RANK + 1))) PADDLE_DISTRI_BACKEND=gloo
%(packages)s mkdir -p log && exec %(python)s -u %(words)s >> log/workerlog.0 2>&1"""


def job_of(epochs, every=1, batch=4):
    """Return the training as a job. every: epochs between two checkpoints. batch: images a rank."""
    overrides = {
        "epoch": epochs,
        "log_iter": 1,
        "snapshot_epoch": every,
        "TrainDataset.sample_num": 8 * batch,  # four steps
        "TrainReader.batch_size": batch,
    }
    job = {
        "suite": "paddledetection",
        "launcher": "paddle",
        "nodes": 2,
        "config": "configs/ppyoloe/ppyoloe_crn_s_300e_coco.yml",
        "overrides": overrides,
        # As the peers begin theirs. The plan would give a rank all cores of its node, and these
        # nodes share the cores of one machine.
        "env": {"OMP_NUM_THREADS": "1"},
    }
    return dict(job, description="goodput")


def schedule(seed, count):
    """Return [(new steps after the fault before, kind)]; of as many faults as there are kinds, each
    is another.
    """
    chance, kinds = random.Random(seed), []
    while len(kinds) < count:
        kinds += chance.sample(KINDS, len(KINDS))
    return [(chance.randint(*BETWEEN), kind) for kind in kinds[:count]]


class Steps:
    """The steps that were made: each (epoch, step) once, however often it was done again; and
    when.
    """

    def __init__(self):
        self.made, self.times, self.lines, self.last = set(), [], 0, float("-inf")

    def read(self, text):
        """Take in all that was logged up to now. last: when there was a step, be it one that was
        made before.
        """
        found = STEP.findall(text)
        if len(found) > self.lines:
            self.last = time.monotonic()
        self.lines = len(found)
        if not self.made.issuperset(found):
            self.times.append(time.monotonic())
            self.made.update(found)


class Work:
    """The seconds of a processor that both ranks together take for a step, as the machine is then.

    A rank that waits for the other sleeps, so a faster or slower machine changes this figure, and
    what else runs on the nodes hardly does.
    """

    def __init__(self, eyes, steps):
        self.eyes, self.steps = eyes, steps
        self.seconds, self.count, self.before = 0.0, 0, None

    def look(self):
        """Count what the ranks took since the last look that saw a new step."""
        if self.before and self.before[0] == self.steps.lines:
            return
        ranks = [eye.rank for eye in self.eyes.values()]
        taken = [eye.processor_seconds(rank) for eye, rank in zip(self.eyes.values(), ranks)]
        if None in taken:
            self.before = None
            return
        if self.before and self.before[1] == ranks:
            self.seconds += sum(taken) - self.before[2]
            self.count += self.steps.lines - self.before[0]
        self.before = self.steps.lines, ranks, sum(taken)

    def per_step(self):
        """Return the seconds for a step, None where none was seen."""
        return round(self.seconds / self.count, 4) if self.count else None


class Recoveries:
    """What became of each fault: [{kind, ended, started, step}], in seconds from the fault."""

    def __init__(self, eyes, steps):
        self.eyes, self.steps, self.rows, self.since = eyes, steps, [], 0.0
        self.work = Work(eyes, steps)

    def begin(self, kind, at):
        """Note a fault."""
        self.rows.append({"kind": kind})
        self.since = at

    def look(self, now):
        """See how far the newest fault's recovery has come."""
        self.work.look()
        if not self.rows:
            return
        row, ranks = self.rows[-1], [bool(eye.rank) for eye in self.eyes.values()]
        if "ended" not in row:
            if not any(ranks):
                row["ended"] = max(0.0, round(now - self.since, 1))
        elif "started" not in row:
            if all(ranks):
                row["started"] = round(now - self.since, 1)
        elif "step" not in row and self.steps.last > self.since + row["started"]:
            row["step"] = round(self.steps.last - self.since, 1)


class Faults:
    """The schedule on its way: a fault is due after so many steps that were not made before."""

    def __init__(self, plan, do, recoveries):
        self.plan, self.do, self.recoveries = list(plan), do, recoveries
        self.done, self.made = [], 0

    def tick(self, made, trains):
        """Do the next fault where it is due.

        made: how many steps were made, each counted once. trains: whether steps are being made.
        """
        if not (self.plan and trains) or made < self.made + self.plan[0][0]:
            return
        kind, at = self.plan[0][1], time.monotonic()
        try:
            self.do(kind)
        except subprocess.SubprocessError as error:  # the rank has just gone; the next time, then
            print(f"  {kind}: {error}", flush=True)
            return
        print(f"  {kind}", flush=True)
        self.made += self.plan.pop(0)[0]
        self.done.append(kind)
        self.recoveries.begin(kind, at)


@contextlib.contextmanager
def controller_group():
    """Let this program's own commands run only where nothing else wants the processor, and yield the
    group of the kernel that they are put into: a controller shares no processor with nodes.

    None where this user may make no such group. The niceness of a session would not do: ssh's
    connections, which do the work of a copy, have sessions of their own.
    """
    root = Path("/sys/fs/cgroup")
    for path in (root / "cpu" / GROUP / "cpu.idle", root / GROUP / "cpu.idle"):
        try:
            path.parent.mkdir(exist_ok=True)
            path.write_text("1", encoding="ascii")
        except OSError:
            continue
        try:
            yield path.parent
        finally:
            with contextlib.suppress(OSError):  # a connection of ssh may stay for a minute
                path.parent.rmdir()
        return
    print("the controller's processes have the usual priority: no group of the kernel can be made")
    yield None


def move_to(group):
    """Return what a new process does first, to be in a group of the kernel."""
    if group is None:
        return None
    return lambda: (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")


def watch_out(site, steps, faults, over, limit, idle=lambda: None):
    """Follow a training until over() is true; return whether it was before the limit. idle() is
    called every half second.
    """
    begun = time.monotonic()
    while time.monotonic() - begun < limit:
        text = site.training_log()
        now = time.monotonic()
        steps.read(text)
        faults.tick(len(steps.made), now - steps.last < 3)
        faults.recoveries.look(now)
        if over(text):
            return True
        idle()
        time.sleep(0.5)
    return False


class Ours(bare_drill.Site):
    """train.yml with max_restarts."""

    way, options, is_detached = "ours", (), False
    group = None  # of the kernel, for the commands of the controller

    def train(self, job, plan, out, limit):
        self.job = job
        path = out.resolve() / "goodput.yml"
        path.write_text(
            json.dumps(dict(job, max_restarts=20, watchdog={"step": "20s", "checkpoint": "20s"}))
        )
        playbook = ["ansible-playbook", "-i", self.inventory]
        argv = [*playbook, "playbooks/train.yml", "-e", json.dumps({"config": str(path)})]
        argv += self.options
        environment = dict(os.environ, ANSIBLE_CONFIG=str(PROJECT / "ansible.cfg"))
        self.others, self.run = set(self.runs()), None
        eyes, steps = self.eyes(RUNS), Steps()
        faults = Faults(plan, self.fault, Recoveries(eyes, steps))
        begun = time.monotonic()
        with open(out / f"{self.way}.txt", "wb") as log:
            process = subprocess.Popen(
                argv,
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=move_to(self.group),
            )
        whole = None
        try:
            watch_out(self, steps, faults, lambda text: self.has_ended(process, text), limit)
            whole, done = time.monotonic() - begun, self.at_end(self.training_log())
        finally:
            runs_on = process.poll() is None
            if runs_on:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(120)
            if runs_on or self.is_detached:
                # A run goes on without its controller; the next way needs its nodes.
                run = os.path.basename(self.run or "none")
                subprocess.run(
                    [*playbook, "playbooks/stop.yml", "-e", f"run={run}"],
                    cwd=PROJECT,
                    env=environment,
                    check=False,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    preexec_fn=move_to(self.group),
                )
        return steps, faults, begun, whole, done and process.returncode == 0

    def has_ended(self, process, text):
        """Return whether the command has ended, or the training where nothing follows it."""
        if self.is_detached:
            return process.poll() not in (None, 0) or self.at_end(text)
        return process.poll() is not None

    def at_end(self, text):
        """Whether the last step of the last epoch was made."""
        last = self.job["overrides"]["epoch"] - 1
        return any(
            int(epoch) == last and int(step) == int(steps) - 1
            for epoch, step, steps in STEP.findall(text)[-1:]
        )

    def runs(self):
        """Return the runs on node1 that trained for this script, earlier ones, too."""
        return self.eye.list(RUNS + "*-goodput-*")

    def training_log(self):
        """Return what the attempts of this run have logged on rank 0, one after the other; never
        another run's.
        """
        self.run = self.run or next((run for run in self.runs() if run not in self.others), None)
        return self.eye.read(f"{self.run}/attempt-*/log/workerlog.0") if self.run else ""

    def fault(self, kind):
        mark = (
            "grep -lzs '^TRAINYARD_ATTEMPT=%s/' /proc/[0-9]*/environ | xargs -r grep -lzs"
            " '^PADDLE_TRAINER_ID=' | cut -d/ -f3 | head -1"
        )
        self.hurt(kind, mark % os.path.basename(self.run))

    def hurt(self, kind, mark):
        """Do a fault to node2. mark: shell words that print the rank's pid."""
        if kind == "reboot":
            subprocess.run(
                ["docker", "restart", "-t", "0", self.container("node2")],
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=120,
            )
        else:
            self.on(
                "node2",
                "pid=$({}); kill -{} $pid".format(mark, "KILL" if kind == "kill" else "STOP"),
            )


class Detached(Ours):
    """train.yml with detach=true: its nodes restart the run, and nothing follows it."""

    way, options, is_detached = "detached", ("-e", "detach=true"), True


class Bare(Ours):
    """Two terminals, and a script that starts again."""

    def train(self, job, plan, out, limit):
        self.job, self.out, self.since, self.there = job, out, 0.0, False
        self.steps, self.ranks = Steps(), self.eyes()
        faults = Faults(plan, self.fault, Recoveries(self.ranks, self.steps))
        # skipped: how many of the newest checkpoints did not do, since a start from them made no
        # step.
        self.kept, self.text, self.terminals, self.skipped = "", "", [], 0
        self.prepare()
        begun = time.monotonic()
        self.start()
        try:
            done = watch_out(self, self.steps, faults, self.over, limit, self.look)
            whole = time.monotonic() - begun
        finally:
            self.end()
        return self.steps, faults, begun, whole, done

    def training_log(self):
        self.text = self.log()
        return self.kept + self.text

    def over(self, text):
        return all(terminal.process.poll() == 0 for terminal in self.terminals) and self.at_end(
            text
        )

    def fault(self, kind):
        self.hurt(
            kind, bare_drill.PRELUDE % {"folder": bare_drill.FOLDER, "other": "none"} + "rank"
        )

    def commands(self, resume):
        return [
            bare_faults.Terminal(node, self.bare(node, self.job, resume), time.monotonic())
            for node in self.nodes
        ]

    def start(self, resume=None):
        self.since, self.there = time.monotonic(), False
        self.terminals = self.commands(resume)

    def look(self):
        """Start again where a rank is gone that was there, a command has failed, or nothing was
        said for too long.
        """
        there = all(eye.rank for eye in self.ranks.values())
        dead = (self.there and not there) or any(
            terminal.process.poll() not in (None, 0) for terminal in self.terminals
        )
        self.there = self.there or there
        log = self.text
        silent = time.monotonic() - max(self.steps.last, self.since)
        young = self.steps.last < self.since
        if self.at_end(log):
            dead = False  # a rank that has made its last step may go
        if dead or silent > (START if young else SILENCE):
            self.end()
            log = self.log()
            self.skipped = 0 if STEP.search(log) else self.skipped + 1
            self.kept += log
            self.fresh_log()
            self.start(self.newest())

    def fresh_log(self):
        for node in self.nodes:
            self.on(node, f"rm -rf {bare_drill.FOLDER}/log")

    def end(self):
        for terminal in self.terminals:
            terminal.close()
        for node in self.nodes:
            self.up(node)
            self.clear(node)
        until = time.monotonic() + 20
        while any(eye.rank for eye in self.ranks.values()) and time.monotonic() < until:
            time.sleep(0.1)  # what was ended must not be taken for the next start's

    def newest(self):
        """Copy rank 0's newest checkpoint of both files to the other node; return its stem, None
        without one.
        """
        script = (
            "cd %s && for f in $(ls -t output/*/*.pdopt 2> /dev/null); do test -s"
            " ${f%%.pdopt}.pdparams && echo ${f%%.pdopt}; done; true"
        )
        stems = self.on("node1", script % bare_drill.FOLDER).split()
        if not stems:
            return None
        stem = stems[min(self.skipped, len(stems) - 1)]
        give = [*self.ssh("node1"), f"cd {bare_drill.FOLDER} && tar -c {stem}.*"]
        take = [*self.ssh("node2"), f"cd {bare_drill.FOLDER} && tar -xm"]
        packed = subprocess.run(
            give, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=120
        ).stdout
        subprocess.run(take, check=True, input=packed, timeout=120)
        return stem


class Mpirun(Bare):
    """One terminal: mpirun on node1 starts a rank on each node, over a key pair of its own, as a
    user without Trainyard would make it.
    """

    def commands(self, resume):
        values = {"folder": bare_drill.FOLDER, "words": self.words(self.job, resume)}
        values["endpoints"] = ",".join(
            "%s:%d" % (address, bare_faults.PORT) for address in self.nodes.values()
        )
        values.update(packages=bare_drill.PACKAGES, python=bare_drill.PYTHON)
        # Without --bind-to none both ranks get the first processor, which two containers of one
        # machine share.
        words = "-np 2 --bind-to none --host {}".format(
            ",".join(f"{address}:1" for address in self.nodes.values())
        )
        # The mesh has no shell for it; its known_hosts is read.
        self.on(
            "node1",
            "test -e .ssh/goodput || ssh-keygen -q -t ed25519 -N '' -C goodput -f .ssh/goodput",
        )
        key = self.on("node1", "cat .ssh/goodput.pub").strip()
        self.on(
            "node2",
            f"grep -qF '{key}' .ssh/authorized_keys || echo '{key}' >> .ssh/authorized_keys",
        )
        known = (
            "-o UserKnownHostsFile=/home/trainer/.trainyard/mesh/known_hosts -o"
            " StrictHostKeyChecking=yes -o BatchMode=yes"
        )
        words += (
            " --mca plm_rsh_agent 'ssh -i /home/trainer/.ssh/goodput -o IdentitiesOnly=yes"
            f" {known}'"
        )
        command = (
            f"cd {bare_drill.FOLDER} && exec mpirun {words} sh -c {shlex.quote(RANK % values)}"
        )
        argv = [*self.ssh("node1", "-tt"), f"exec bash -lc {shlex.quote(command)}"]
        return [bare_faults.Terminal("node1", argv, time.monotonic())]


WAYS = {"quiet": Bare, "ours": Ours, "detached": Detached, "bare": Bare, "mpirun": Mpirun}


def describe(found, plan, pace):
    """Return the result of one way.

    found: what `train` returned. pace: seconds of a step without a fault, None for the way's own.
    """
    steps, faults, begun, whole, done = found
    count, times = len(steps.made), steps.times
    wall = times[-1] - begun if done and times else whole
    result = {
        "whole": round(whole, 1),
        "steps": count,
        "completed": done,
        "faults": faults.done,
        "plan": plan,
        "recoveries": faults.recoveries.rows,
        "wall": round(wall, 1),
        "work": faults.recoveries.work.per_step(),
    }
    if count < 2:
        return dict(result, pace=None, stretch=None, goodput=None, between=None)
    stretch = times[-1] - times[0]
    rows, step = faults.recoveries.rows, None
    if done and all("step" in row for row in rows):
        # Half of the step that a fault interrupts lies before it.
        trained = stretch - sum(row["step"] for row in rows)
        step = round(trained / (steps.lines - 1 - len(rows) / 2), 3)
    # From the first step to the last, so with what a checkpoint takes.
    own = stretch / (count - 1)
    pace = pace or own
    return dict(
        result,
        again=steps.lines - count,
        step=step,
        pace=round(own, 3),
        stretch=round(stretch, 1),
        goodput=round(count * pace / wall, 3),
        between=round((count - 1) * pace / stretch, 3),
    )


def play_round(asked, ways, out, plan):
    """Train once in each way, in their order, and return {way: result}."""
    out.mkdir(parents=True, exist_ok=True)
    found, results = {}, {}
    for way in ways:
        site = WAYS[way](asked.inventory)
        if way == "mpirun" and not all(
            site.root(node, "command -v mpirun", check=False) for node in site.nodes
        ):
            print("mpirun: left out, Open MPI is not on the nodes")
            continue
        print(way, flush=True)
        given = [] if way == "quiet" else plan
        found[way] = (
            site.train(job_of(asked.epochs, asked.every, asked.batch), given, out, asked.limit),
            given,
        )
        print(json.dumps(describe(*found[way], None)), flush=True)  # its own pace, as yet
    pace = describe(*found["quiet"], None)["pace"] if "quiet" in found else None
    for way, (made, given) in found.items():
        results[way] = describe(made, given, pace)
    return results


@contextlib.contextmanager
def pinned(site):
    """Give each node a processor of its own for a while, where there are as many, and all of it.

    Docker's limit (--cpus) is a share of all processors. What a program of low priority takes beside
    the training, on another processor, is then missing to the training in the same period. On a
    machine with one processor it gets what the training leaves.
    """
    names = [site.container(node) for node in site.nodes]
    cores = os.cpu_count() or 1
    found = []
    for name in names:
        form = "{{.HostConfig.NanoCpus}} {{.HostConfig.CpusetCpus}}"
        found.append(
            subprocess.run(
                ["docker", "inspect", "-f", form, name], check=True, text=True, capture_output=True
            ).stdout.split()
        )

    def update(name, cpus, processors):
        words = ["--cpus", str(cpus), "--cpuset-cpus", processors]
        subprocess.run(["docker", "update", *words, name], check=True, stdout=subprocess.DEVNULL)

    try:
        for number, name in enumerate(names):
            update(name, cores, str(number % cores))
        yield
    finally:
        for name, (nano, *processors) in zip(names, found):
            update(name, int(nano) / 1e9, (processors or [f"0-{cores - 1}"])[0])


@contextlib.contextmanager
def linked(site, megabits):
    """Limit the link of rank 0's node for a while, in Mbit/s, None for no limit.

    The other node may be rebooted, which would end a limit of its own.
    """
    container = site.container("node1")
    if megabits is None:
        yield
        return
    rig.limit_link(container, megabits)
    try:
        yield
    finally:
        rig.free_link(container)


def main():
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("-i", "--inventory", default=str(PROJECT / "molecule" / "inventory"))
    asked.add_argument("--out", type=Path)
    asked.add_argument("--seed", type=int, default=6)
    asked.add_argument("--epochs", type=int, default=56)
    asked.add_argument("--every", type=int, default=1, help="epochs between two checkpoints")
    asked.add_argument("--faults", type=int, default=3)
    asked.add_argument("--rounds", type=int, default=1)
    asked.add_argument(
        "--limit", type=float, default=1500, help="seconds that a way gets (default 1500)"
    )
    asked.add_argument("--batch", type=int, default=4, help="images a rank takes for a step")
    asked.add_argument("--link", type=float, help="Mbit/s of the link of rank 0's node")
    asked.add_argument("--pin", action="store_true", help="a processor of its own for each node")
    asked.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    asked = asked.parse_args()
    os.environ["PATH"] = "{}:{}".format(Path(sys.executable).parent, os.environ["PATH"])
    out = asked.out or Path(tempfile.mkdtemp(prefix="goodput-"))
    bare_drill.left_in(bare_drill.FOLDER)
    rounds = []
    kept = out / "goodput.json"
    for number in range(asked.rounds):
        plan = schedule(asked.seed + number, asked.faults)
        first = number % len(asked.ways)
        ways = asked.ways[first:] + asked.ways[:first]
        site = Ours(asked.inventory)
        pins = pinned(site) if asked.pin else contextlib.nullcontext()
        with pins, linked(site, asked.link), controller_group() as Ours.group:
            rounds.append(play_round(asked, ways, out / f"round-{number + 1}", plan))
        kept.write_text(json.dumps(rounds, indent=1))
    print(kept)


if __name__ == "__main__":
    main()
