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
from collections.abc import Callable

from . import fault_table
from .drill_site import Command, Site, Watch, last_line
from .fault_table import DrillProblem, Fault, Job, Result, Step

# Seconds: until a command has its run, until a stop is done, until a controller that got a signal
# has ended.
RUN_SECONDS, STOP_SECONDS, SIGNAL_SECONDS = 300, 120, 60


class Steps:
    """Actions of the drill of one fault, with a `result` for the table.

    site: drill_site.Site. base_job: the job that the fault changes. folder: the directory for
    outputs. say: called with lines for the user. main: the command that trains or follows. run:
    name of the run, "" before it starts. since: time of the fault, 0 before it.
    """

    main: Command

    def __init__(
        self, site: Site, base_job: Job, fault: Fault, folder: str, say: Callable[[str], object]
    ) -> None:
        self.site, self.fault, self.folder, self.say = site, fault, folder, say
        self.expect, self.canary = fault["expect"], f"drill-{secrets.token_hex(12)}"
        self.commands: list[Command] = []
        self.run, self.since = "", 0.0
        self.watch: Watch | None = None
        self.result: Result = {
            key: fault.get(key) for key in ("name", "group", "injected", "goes_on")
        }
        self.result.update(
            problems=[], codes=[], promises={}, verdict=None, reached=None, budget=fault["budget"]
        )
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.elsewhere = os.path.join(folder, "elsewhere")
        self.job = os.path.join(folder, f"drill_{fault['name']}.yml")
        job = fault_table.make_job(base_job, fault, self.canary)
        descriptor = os.open(self.job, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as handle:
            handle.write(json.dumps(job, indent=1) + "\n")  # JSON is YAML

    def add_problem(self, code: str, text: str) -> None:
        """Add a problem to the result."""
        fault_table.add_problems(self.result, [DrillProblem(code, text)])

    # --- commands and steps

    def start_command(self, verb: str, *words: str, fresh: str | None = None) -> Command:
        """Start a playbook and return its Command.

        words: further words of the command line. fresh: directory of another controller.
        """
        path = os.path.join(self.folder, f"{len(self.commands) + 1:02d}-{verb}.txt")
        self.commands.append(Command(self.site, verb, words, path, fresh))
        return self.commands[-1]

    def start_training(self) -> Command:
        """Start the training and return its Command."""
        return self.start_command("train", "-e", f"config={self.job}")

    def make_controller(self) -> str:
        """Return the directory of another controller.

        It has a HOME, a working directory and an (empty) directory for runs of its own.
        """
        return self.site.make_controller_home(self.elsewhere)

    def run_verb(self, step: Step) -> None:
        """Give a command about the run, and wait for its end unless the step says `stays`."""
        argv = ["-e", f"run={self.run}"]
        if not step.get("fresh"):
            command = self.start_command(step["verb"], *argv)
        else:
            directory = self.make_controller()
            argv += ["-e", f"trainyard_runs_dir={directory}/runs"]
            command = self.start_command(step["verb"], *argv, fresh=directory)
        if step.get("stays"):
            if step["verb"] != "stop":
                self.main = command
        elif command.wait(STOP_SECONDS) is None:
            self.add_problem(
                "drill.command_running",
                f"{step['verb']}.yml did not come to its end within {STOP_SECONDS} s",
            )
            command.end()

    def do_step(self, step: Step, number: int = 1) -> None:
        """Do one step of the fault, in attempt `number`."""
        site = self.site
        if "sleep" in step:
            time.sleep(step["sleep"])
        elif "docker" in step:
            site.run_docker(step["docker"])
        elif "up" in step:
            site.places[step["up"]].await_login()
        elif "control" in step:
            self.main.signal(step["control"])
            if self.main.wait(SIGNAL_SECONDS) is None:
                self.add_problem(
                    "drill.controller_running",
                    f"the controller did not end after {step['control']}",
                )
        elif "verb" in step:
            if step["verb"] == "stop":
                self.since = time.monotonic()
            self.run_verb(step)
        elif "again" in step:
            again = self.start_training()
            if not step.get("stays"):
                again.wait(RUN_SECONDS)
                self.check_lost(again, step["says"])
        elif "root" in step:
            site.run_fault_line(site.places[step["root"]], self.run, number, step["do"], True)
        else:
            site.run_fault_line(site.places[step["user"]], self.run, number, step["do"], False)

    def check_lost(self, command: Command, says: str) -> None:
        """Check that the second of two commands for the same nodes started nothing.

        It must say which run owns the nodes.
        """
        code = command.process.poll()
        if code in (None, 0) or not fault_table.find_refusal({"refused": says}, command.text()):
            self.add_problem(
                "drill.second_started",
                f"the other command ended with {code} and did not print {says!r}:"
                f" {last_line(command.text())}",
            )

    def do_steps(self, kind: str) -> None:
        """Do the fault's steps of one kind: before, then, back."""
        for step in self.fault.get(kind, ()):
            self.do_step(step)

    def undo(self) -> None:
        """Undo the fault."""
        for step in self.fault.get("heal", ()):
            try:
                self.do_step(step)
            except (fault_table.DrillError, OSError, subprocess.SubprocessError) as error:
                self.add_problem("drill.not_undone", f"not undone: {error}")
