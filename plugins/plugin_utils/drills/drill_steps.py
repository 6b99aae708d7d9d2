# SPDX-License-Identifier: Apache-2.0
"""Commands of a drill and steps of its fault.

The head of faults.yml explains the steps.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time

from . import fault_table
from .drill_site import Command, last_line

# Seconds: until a command has its run, until a stop is done, until a controller that got a signal
# has ended.
RUN_SECONDS, STOP_SECONDS, SIGNAL_SECONDS = 300, 120, 60


class Steps:
    """Actions of the drill of one fault, with a `result` for the table.

    ground: drill_site.Ground. base_job: the job that the fault changes. folder: the directory for
    outputs. say: called with lines for the user.
    """

    def __init__(self, ground, base_job, fault, folder, say):
        self.ground, self.fault, self.folder, self.say = ground, fault, folder, say
        self.expect, self.canary = fault["expect"], f"drill-{secrets.token_hex(12)}"
        self.commands, self.run, self.watch = [], None, None
        self.main, self.since = None, None
        self.result = {key: fault.get(key) for key in ("name", "group", "injected", "goes_on")}
        self.result.update(
            problems=[], promises={}, verdict=None, reached=None, budget=fault["budget"]
        )
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.elsewhere = os.path.join(folder, "elsewhere")
        self.job = os.path.join(folder, f"drill_{fault['name']}.yml")
        job = fault_table.job_of(base_job, fault, self.canary)
        descriptor = os.open(self.job, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as handle:
            handle.write(json.dumps(job, indent=1) + "\n")  # JSON is YAML

    def complain(self, text):
        """Add a problem to the result."""
        self.result["problems"].append(text)

    # --- commands and steps

    def command(self, verb, *words, fresh=None):
        """Start a playbook and return its Command.

        words: further words of the command line. fresh: directory of another controller.
        """
        path = os.path.join(self.folder, f"{len(self.commands) + 1:02d}-{verb}.txt")
        self.commands.append(Command(self.ground, verb, words, path, fresh))
        return self.commands[-1]

    def train(self):
        """Start the training and return its Command."""
        return self.command("train", "-e", f"config={self.job}")

    def fresh(self):
        """Return the directory of another controller.

        It has a HOME, a working directory and an (empty) directory for runs of its own.
        """
        return self.ground.fresh(self.elsewhere)

    def verb(self, step):
        """Give a command about the run, and wait for its end unless the step says `stays`."""
        argv = ["-e", f"run={self.run}"]
        if not step.get("fresh"):
            command = self.command(step["verb"], *argv)
        else:
            directory = self.fresh()
            argv += ["-e", f"trainyard_runs_dir={directory}/runs"]
            command = self.command(step["verb"], *argv, fresh=directory)
        if step.get("stays"):
            if step["verb"] != "stop":
                self.main = command
        elif command.wait(STOP_SECONDS) is None:
            self.complain(f"{step['verb']}.yml did not come to its end within {STOP_SECONDS} s")
            command.end()

    def step(self, step, number=1):
        """Do one step of the fault, in attempt `number`."""
        ground = self.ground
        if "sleep" in step:
            time.sleep(step["sleep"])
        elif "docker" in step:
            ground.docker(step["docker"])
        elif "up" in step:
            ground.places[step["up"]].up()
        elif "control" in step:
            self.main.signal(step["control"])
            if self.main.wait(SIGNAL_SECONDS) is None:
                self.complain(f"the controller did not end after {step['control']}")
        elif "verb" in step:
            if step["verb"] == "stop":
                self.since = time.monotonic()
            self.verb(step)
        elif "again" in step:
            again = self.train()
            if not step.get("stays"):
                again.wait(RUN_SECONDS)
                self.lost(again, step["says"])
        elif "root" in step:
            ground.shell(ground.places[step["root"]], self.run, number, step["do"], True)
        else:
            ground.shell(ground.places[step["user"]], self.run, number, step["do"], False)

    def lost(self, command, says):
        """Check that the second of two commands for the same nodes started nothing.

        It must say which run owns the nodes.
        """
        code = command.process.poll()
        if code in (None, 0) or not fault_table.find_refusal({"refused": says}, command.text()):
            self.complain(
                f"the other command ended with {code} and did not say {says!r}:"
                f" {last_line(command.text())}"
            )

    def steps(self, kind):
        """Do the fault's steps of one kind: before, then, back."""
        for step in self.fault.get(kind, ()):
            self.step(step)

    def heal(self):
        """Undo the fault."""
        for step in self.fault.get("heal", ()):
            try:
                self.step(step)
            except (fault_table.DrillError, OSError, subprocess.SubprocessError) as error:
                self.complain(f"not undone: {error}")
