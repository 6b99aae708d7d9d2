# SPDX-License-Identifier: Apache-2.0
"""The commands that a drill gives and the steps of its fault; see the head of faults.yml for what a
step is. Controller only.
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
    """What is done for one fault; `result` holds what the table wants of it.

    ground: drill_ground.Ground. base_job: the job that the fault changes. folder: where outputs go.
    say: called with lines for the user.
    """

    def __init__(self, ground, base_job, fault, folder, say):
        self.ground, self.fault, self.folder, self.say = ground, fault, folder, say
        self.expect, self.canary = fault["expect"], f"drill-{secrets.token_hex(12)}"
        self.commands, self.run, self.watch, self.main, self.since = [], None, None, None, None
        self.result = {key: fault.get(key) for key in ("name", "group", "injected", "goes_on")}
        self.result.update(
            problems=[], promises={}, verdict=None, reached=None, budget=fault["budget"]
        )
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.elsewhere = os.path.join(folder, "elsewhere")
        self.job = os.path.join(folder, "drill_{}.yml".format(fault["name"]))
        with open(
            os.open(self.job, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as handle:
            handle.write(
                json.dumps(fault_table.job_of(base_job, fault, self.canary), indent=1) + "\n"
            )  # JSON is YAML

    def complain(self, text):
        self.result["problems"].append(text)

    # --- commands and steps

    def command(self, verb, *words, fresh=None):
        path = os.path.join(self.folder, "%02d-%s.txt" % (len(self.commands) + 1, verb))
        self.commands.append(Command(self.ground, verb, words, path, fresh))
        return self.commands[-1]

    def train(self):
        return self.command("train", "-e", f"config={self.job}")

    def fresh(self):
        """Another controller: its own HOME and working directory, its own (empty) place for runs."""
        return self.ground.fresh(self.elsewhere)

    def verb(self, step):
        words = ["-e", f"run={self.run}"]
        if not step.get("fresh"):
            command = self.command(step["verb"], *words)
        else:
            home = self.fresh()
            command = self.command(
                step["verb"], *words, "-e", f"trainyard_runs_dir={home}/runs", fresh=home
            )
        if step.get("stays"):
            self.main = command if step["verb"] != "stop" else self.main
        elif command.wait(STOP_SECONDS) is None:
            self.complain(
                "%s.yml did not come to its end within %d s" % (step["verb"], STOP_SECONDS)
            )
            command.end()

    def step(self, step, number=1):
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
                self.complain("the controller did not end after {}".format(step["control"]))
        elif "verb" in step:
            if step["verb"] == "stop":
                self.since = time.monotonic()
            self.verb(step)
        elif "again" in step:
            again = self.train()
            if not step.get("stays"):
                again.wait(RUN_SECONDS)
                self.lost(again, step["says"])
        else:
            root = "root" in step
            ground.shell(
                ground.places[step["root" if root else "user"]], self.run, number, step["do"], root
            )

    def lost(self, command, says):
        """Of two commands for the same nodes, this one must have started nothing and say who holds
        them.
        """
        code = command.process.poll()
        if code in (None, 0) or not fault_table.find_refusal({"refused": says}, command.text()):
            self.complain(
                f"the other command ended with {code} and did not say {says!r}:"
                f" {last_line(command.text())}"
            )

    def steps(self, kind):
        for step in self.fault.get(kind, ()):
            self.step(step)

    def heal(self):
        for step in self.fault.get("heal", ()):
            try:
                self.step(step)
            except (fault_table.DrillError, OSError, subprocess.SubprocessError) as error:
                self.complain(f"not undone: {error}")
