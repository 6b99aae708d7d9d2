# SPDX-License-Identifier: Apache-2.0
"""Drill of one fault.

It starts the training as a user does, injects the fault at its moment, observes the effect, undoes
the fault and checks the promises. Faults are defined in faults.yml. What was observed is judged by
fault_table.py, the promises by invariants.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_json,
    write_json,
)

from . import fault_table, invariants
from .drill_site import Watch, last_line
from .drill_steps import RUN_SECONDS, STOP_SECONDS, Steps
from .fault_table import DrillProblem, Observations, Result, Step, Verdict
from .invariants import Digests

# Seconds: until a training has come to a moment, until it has ended after a fault.
MOMENT_SECONDS, END_SECONDS = 300, 240
# Seconds for a node that was away: its guard looks for its neighbour, sees that the attempt is over
# there, and ends its own part.
FENCE_SECONDS = 40
GOES_ON_STEPS, GOES_ON_SECONDS = 2, 120
# Errors that prevent a drill, and are reported in its row.
UNFIT = (fault_table.DrillError, OSError, subprocess.SubprocessError)


class Drill(Steps):
    """The drill of one fault, with a `result` for the table."""

    # --- the course

    def execute(self) -> Result:
        """Run the drill from start to end and return the result.

        The fault is undone whatever happens.
        """
        begun = time.monotonic()
        self.say(f"{self.fault['name']}: {self.fault['injected']}")
        before, known = invariants.digest_checkpoints(self.site), self.runs()
        try:
            try:
                self.do_steps("before")
                self.main = self.start_training()
                if self.expect.get("refused"):
                    self.check_refusal(known)
                else:
                    self.inject(known)
            except UNFIT as error:
                self.add_problem("drill.not_done", str(error))
            except KeyboardInterrupt:
                if self.run:
                    self.run_verb({"verb": "stop"})
                raise
            finally:
                self.over = time.monotonic()
                self.undo()
                self.healed = time.monotonic()
            try:
                self.check(before)
            except UNFIT as error:
                self.add_problem("drill.not_done", str(error))
        finally:
            for command in self.commands:
                command.end()
            if self.watch:
                self.watch.close()
            shutil.rmtree(self.elsewhere, ignore_errors=True)  # it has the logins to the nodes
        delays = fault_table.find_delays(self.result, self.fault["budget"])
        fault_table.add_problems(self.result, delays)
        self.result["seconds"] = fault_table.seconds_between(time.monotonic(), begun)
        write_json(os.path.join(self.folder, "result.json"), self.result)
        return self.result

    def runs(self) -> set[str]:
        """Return the names of the runs on the controller."""
        if not os.path.isdir(self.site.runs_dir):
            return set()
        return set(os.listdir(self.site.runs_dir))

    def check_refusal(self, known: set[str]) -> None:
        """Check that the command starts nothing and says why."""
        end = time.monotonic() + RUN_SECONDS
        while not self.main.has_ended() and not self.runs() - known and time.monotonic() < end:
            time.sleep(0.2)
        self.result["detected"] = fault_table.seconds_between(time.monotonic(), self.main.begun)
        self.fault["budget"]["detect"] = max(60.0, self.fault["budget"]["detect"])
        fresh = sorted(self.runs() - known)
        if fresh:
            self.add_problem("drill.run_started", f"a run was started: {', '.join(fresh)}")
            self.run = fresh[0]
            self.run_verb({"verb": "stop"})
            self.run = ""
        code, text = self.main.wait(60), self.main.text()
        if code and fault_table.find_refusal(self.expect, text):
            self.result["verdict"] = "right"
        else:
            self.result["verdict"] = "wrong"
            self.add_problem(
                "drill.not_refused",
                f"the command ended with {code} and did not print {self.expect['refused']!r}:"
                f" {last_line(text)}",
            )
        refusals = (
            line.strip()
            for line in text.splitlines()
            if fault_table.find_refusal(self.expect, line)
        )
        self.result["says"] = next(refusals, "")[:300]

    def new_run(self, known: set[str]) -> str:
        """Return the run that this drill's command has started, "" before.

        Of two runs at once it is the one that owns the nodes.
        """
        mark = f"-drill_{self.fault['name']}-"
        fresh = sorted(name for name in self.runs() - known if mark in name)
        if len(fresh) > 1 or any("again" in step for step in self.fault.get("before", ())):
            units = set(self.site.list_owners().values())
            fresh = [name for name in fresh if any(name in unit for unit in units)]
        return next(iter(fresh), "")

    def inject(self, known: set[str]) -> None:
        """Wait for the run and the fault's moment, inject the fault, await the end."""
        self.await_run(known)
        if not self.run:
            raise fault_table.DrillError(f"no run was started: {last_line(self.main.text())}")
        self.result["run"] = self.run
        self.watch = Watch(self.site.nodes, self.run, self.site.base, self.fault.get("sign", ""))
        self.await_moment(self.fault["at"], self.all_over)
        self.result["reached"] = True
        steps = fault_table.largest_count(self.observer().observations(), 1, "steps")
        self.do_steps("then")
        if self.fault["at"] == "inside":
            self.since = self.fault_began(self.observer().observations()) or self.since
        if self.fault.get("goes_on"):
            self.check_progress(steps)
        else:
            self.await_end()

    def observer(self) -> Watch:
        """Return the watch of the run. Raise DrillError before the run has started."""
        if self.watch is None:
            raise fault_table.DrillError("no run was started")
        return self.watch

    def all_over(self) -> bool:
        """Return whether all commands have ended."""
        return all(command.has_ended() for command in self.commands)

    def await_run(self, known: set[str]) -> None:
        """Wait for the run of this drill's command and set `run`."""
        end = time.monotonic() + RUN_SECONDS
        while not self.run and time.monotonic() < end and not self.all_over():
            self.run = self.new_run(known)
            time.sleep(0.2)
        self.run = self.run or self.new_run(known)  # of a command that has ended since

    def do_step(self, step: Step, number: int = 1) -> None:
        """Do one step of the fault. A step `moment` waits for one of the training."""
        if "moment" in step:
            self.await_moment(step["moment"])
        else:
            super().do_step(step, number)

    def await_moment(self, moment: str, over: Callable[[], bool] = lambda: False) -> None:
        """Wait for a moment of the training. The fault begins then.

        over: whether nothing is to be waited for any more.
        """
        if not self.observer().await_value(
            lambda observations: self.find_moment(observations, moment), MOMENT_SECONDS, over
        ):
            raise fault_table.DrillError(
                f"the training did not come to {moment}: {last_line(self.main.text())}"
            )
        self.since = time.monotonic()

    def find_moment(self, observations: Observations, moment: str) -> Any:
        """Return a true value once a moment has come."""
        kind, _space, count = moment.partition(" ")
        if kind == "inside":
            return self.fault_began(observations)
        if kind == "run":
            return True
        if kind == "ranks":
            started = {
                observation["node"]
                for observation in observations
                if fault_table.attempt_part(observation, 1).get("ranks")
            }
            return started == {node.name for node in self.site.nodes}
        key = "saved"
        if kind == "step":
            key = "steps"
        return fault_table.largest_count(observations, 1, key) >= int(count)

    def fault_began(self, observations: Observations) -> float | None:
        """Return the time at which a fault inside the training began, or None."""
        node = rank = None
        if self.expect.get("node") in self.site.places:
            node = self.site.places[self.expect["node"]].name
        if self.one_rank_a_node(observations):
            ranks = {"first": 0, "last": len(self.site.nodes) - 1}
            rank = ranks.get(self.expect.get("rank"))
        return fault_table.find_begin(observations, 1, node, rank)

    def one_rank_a_node(self, observations: Observations) -> bool:
        """Return whether every node has at most one rank."""
        return all(
            len(fault_table.attempt_part(observation, 1).get("ranks") or ()) <= 1
            for observation in observations
        )

    def check_progress(self, steps: int) -> None:
        """Check that the fault has no effect, then stop the training as the user does.

        The training must make steps. steps: those that it made before the fault.
        """
        least = (
            fault_table.largest_count(self.observer().observations(), 1, "steps") + GOES_ON_STEPS
        )
        if not self.observer().await_value(
            lambda observations: fault_table.largest_count(observations, 1, "steps") >= least,
            GOES_ON_SECONDS,
        ):
            self.add_problem(
                "drill.no_progress",
                f"the training made {steps} steps before and none in {GOES_ON_SECONDS} s after it",
            )
        for step in [step for step in self.fault.get("before", ()) if "again" in step]:
            other = self.observer().await_value(
                lambda _observations: next((one for one in self.commands if one.has_ended()), None),
                RUN_SECONDS,
            )
            self.check_lost(other or self.commands[0], step["says"])
        units = self.site.list_owners().values()
        if len(units) != len(self.site.nodes) or any(self.run not in unit for unit in units):
            names = ", ".join(sorted(set(units))) or "nothing"
            self.add_problem(
                "drill.node_owner", f"the nodes are held by {names}, not by the run alone"
            )
        self.do_step({"verb": "stop"})
        self.await_commands(STOP_SECONDS)

    def await_end(self) -> None:
        """Wait for the end of the training and for its restarts, if the fault has any."""
        number = 1 + self.fault.get("restarts", 0)
        if self.fault.get("back") or number == 1:  # else the command goes on automatically
            self.await_commands(
                self.fault.get("seconds", END_SECONDS), last=not self.fault.get("back")
            )
        self.do_steps("back")
        if number > 1:
            self.await_restart(number)
            self.run_verb({"verb": "stop"})
        self.await_commands(END_SECONDS)

    def await_restart(self, number: int) -> None:
        """Wait for the first step of an attempt, and note its delay and its resume point."""
        stepped = self.observer().await_value(
            lambda observations: fault_table.find_first_step(observations, number),
            MOMENT_SECONDS,
            self.main.has_ended,
        )
        if not stepped:
            self.add_problem(
                "drill.no_restart",
                f"attempt {number} never made a step: {last_line(self.main.text())}",
            )
            return
        seconds = fault_table.seconds_between(stepped, self.since)
        self.add_note(f"the next step came {seconds} s after the fault")
        if not self.observer().await_value(lambda _observations: self.has_ended(number - 1), 60):
            self.add_problem("drill.no_record", f"the record lacks the end of attempt {number - 1}")
        ended = self.attempts().get(number - 1, {}).get("ended")
        self.result["resumed"] = fault_table.seconds_between(
            stepped - time.monotonic() + time.time(), ended
        )
        self.result["point"] = (self.attempts().get(number) or {}).get("resume")

    def has_ended(self, number: int) -> bool:
        """Return whether the run's record has the end of an attempt."""
        return bool(self.attempts().get(number, {}).get("ended"))

    def await_commands(self, seconds: float, last: bool = True) -> None:
        """Wait for the commands' own end."""
        for command in self.commands:
            if command.wait(seconds) is None and last:
                self.add_problem(
                    "drill.command_running", f"{command.verb}.yml still ran after {int(seconds)} s"
                )
                command.end()
        # What ended last on a node is seen a little later.
        self.observer().await_value(
            lambda observations: fault_table.find_stop(observations, 1, self.since), 15
        )

    # --- afterwards

    def record(self) -> dict[str, Any]:
        """Return the run's record, {} for none."""
        return read_json(os.path.join(self.site.runs_dir, self.run, "run.json")) or {}

    def attempts(self) -> dict[int, dict[str, Any]]:
        """Return {number: attempt} of the run's record."""
        return {item["number"]: item for item in self.record().get("attempts", ())}

    def verdict(self) -> Verdict:
        """Return the verdict of the first attempt, or None."""
        return (self.attempts().get(1) or {}).get("verdict")

    def check(self, before: Digests) -> None:
        """Fetch what could not be fetched before, and check the verdict and the promises.

        before: the nodes' checkpoints before the fault.
        """
        if not self.run:
            self.result["promises"] = dict.fromkeys(fault_table.PROMISES)
            self.result["promises"]["N2"] = not invariants.check_checkpoints(self.site, before)
            return
        self.check_fence()
        verdict = self.verdict()
        if self.lacks_evidence(verdict):
            self.run_verb({"verb": "follow"})
        verdict = verdict or self.verdict()
        # What a node that was away does when it is back is noted apart, see fenced().
        observations = [
            observation
            for observation in self.observer().observations()
            if observation["t"] <= self.over
        ]
        self.note_times(observations)
        places = {
            "first": (self.site.nodes[0].name, 0),
            "last": (self.site.nodes[-1].name, self.last_rank()),
        }
        self.result["verdict"], reason = fault_table.judge(self.expect, verdict, places)
        self.result["says"], self.result["named"] = (verdict or {}).get("text"), verdict
        if reason:
            self.add_problem("drill.verdict_wrong", f"verdict: {reason}")
        self.check_messages()
        numbers = sorted(self.attempts()) or [1]
        outputs = [command.output for command in self.commands]
        fresh = self.find_elsewhere()
        self.result["promises"], problems = invariants.check_all(
            self.site, self.fault, self.run, numbers, verdict, before, self.canary, outputs, fresh
        )
        fault_table.add_problems(self.result, problems)

    def lacks_evidence(self, verdict: Verdict) -> bool:
        """Return whether a node was away, or the run's record or logs are incomplete."""
        if (verdict or {}).get("unreachable"):
            return True
        if (
            any(observation.get("gone") for observation in self.observer().observations())
            or not self.attempts()
        ):
            return True
        index = os.path.join(self.site.runs_dir, self.run, "attempt-1", "ranks.json")
        return not os.path.exists(index)

    def note_times(self, observations: Observations) -> None:
        """Note the seconds to the detection of the fault, and from there to the stop."""
        detected = stopped = None
        if self.since:
            detected = fault_table.seconds_between(
                fault_table.find_detection(observations, 1, self.since), self.since
            )
        if not self.fault.get("goes_on"):
            self.result["detected"] = detected
        if self.since:
            known_since = self.since + (self.result.get("detected") or 0)
            stopped = fault_table.seconds_between(
                fault_table.find_stop(observations, 1, self.since), known_since
            )
        self.result["stopped"] = stopped

    def holds_node(self) -> bool:
        """Return whether the run still owns a node."""
        return any(self.run in unit for unit in self.site.list_owners().values())

    def check_fence(self) -> None:
        """Check that nothing of the run is left.

        A node that was away ends its part when it is back. Wait for that, and note its duration.
        """
        if not self.holds_node():
            return
        while self.holds_node():
            if time.monotonic() > self.healed + FENCE_SECONDS:
                self.add_problem(
                    "drill.node_held",
                    f"the run still held a node {FENCE_SECONDS} s after all was over;"
                    " it was stopped",
                )
                self.run_verb({"verb": "stop"})
                return
            time.sleep(0.2)
        self.result["fenced"] = fault_table.seconds_between(time.monotonic(), self.healed)
        self.add_note(f"the node that came back ended its part after {self.result['fenced']} s")

    def add_note(self, text: str) -> None:
        """Add an observation to the result."""
        earlier = self.result.get("note")
        self.result["note"] = "; ".join([*filter(None, [earlier]), text])

    def last_rank(self) -> int | None:
        """Return the first rank of the last node in the plan, None without a plan.

        A fault takes the pid of that rank. A fault can come before the watch of that node has shown
        its ranks.
        """
        path = invariants.find_plan(self.site, self.run, 1)
        if path is None:
            return None
        plan = read_json(path) or {}
        name = self.site.nodes[-1].name
        ranks = (rank["rank"] for rank in plan.get("ranks", ()) if rank["node"] == name)
        return min(ranks, default=None)

    def check_messages(self) -> None:
        """Check the run's reason and the messages of the commands."""
        reason = self.record().get("reason")
        if self.expect.get("reason") and reason != self.expect["reason"]:
            self.add_problem(
                "drill.reason_wrong",
                f"the run's reason is {reason}, wanted: {self.expect['reason']}",
            )
        message = self.expect.get("says")
        output = "\n".join(command.text() for command in self.commands)
        if message and not fault_table.find_refusal({"refused": message}, output):
            self.add_problem("drill.message_missing", f"no command printed {message!r}")

    def find_elsewhere(self) -> list[DrillProblem]:
        """Return the problems with N5: another controller must find the run.

        It has the inventory, its own login and nothing else.
        """
        command = self.start_command(
            "status", "-e", f"run={self.run}", fresh=self.make_controller()
        )
        code = command.wait(60)
        output = command.text()
        knows_run = self.run in output
        ended_well = "PLAY RECAP" in output and "no node knows" not in output
        if code == 0 and (knows_run or ended_well):
            return []
        text = f"N5: another controller's status.yml ended with {code}: {last_line(output)[:200]}"
        return [DrillProblem("drill.run_unknown", text)]


def fill_last_promise(results: Sequence[Result], closing: Callable[[], Result]) -> None:
    """Fill in N8: the same command works again after a fault.

    The next fault's own training shows it. closing() makes one more training after the last fault.
    A fault that was refused, or never came to its moment, shows nothing of the one before it.
    """
    done = [result for result in results if not result.get("skipped")]
    if not done:
        return
    last = closing()
    for index, result in enumerate(done):
        works = any(later.get("reached") for later in [*done[index + 1 :], last])
        result["promises"]["N8"] = works
        if not works:
            problems = "; ".join(last.get("problems") or ())
            text = f"N8: no training made a step after this fault: {problems}"
            fault_table.add_problems(result, [DrillProblem("drill.no_training", text)])
