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

from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest

from . import fault_table, invariants
from .drill_site import Watch, last_line
from .drill_steps import RUN_SECONDS, STOP_SECONDS, Steps

# Seconds: until a training has come to a moment, until it has ended after a fault.
MOMENT_SECONDS, END_SECONDS = 300, 240
# Seconds for a node that was away: its guard looks for its neighbour, sees that the attempt is over
# there, and ends its own part.
FENCE_SECONDS = 40
GOES_ON_STEPS, GOES_ON_SECONDS = 2, 120
# Errors that prevent a drill, and are reported in its row.
UNFIT = (fault_table.DrillError, OSError, subprocess.SubprocessError)


class Course(Steps):
    """The drill of one fault, with a `result` for the table."""

    # --- the course

    def go(self):
        """Run the drill from start to end and return the result.

        The fault is undone whatever happens.
        """
        begun = time.monotonic()
        self.say(f"{self.fault['name']}: {self.fault['injected']}")
        before, known = invariants.earlier(self.ground), self.runs()
        try:
            try:
                self.steps("before")
                self.main = self.train()
                if self.expect.get("refused"):
                    self.refused(known)
                else:
                    self.live(known)
            except UNFIT as error:
                self.complain(str(error))
            except KeyboardInterrupt:
                if self.run:
                    self.verb({"verb": "stop"})
                raise
            finally:
                self.over = time.monotonic()
                self.heal()
                self.healed = time.monotonic()
            try:
                self.finish(before)
            except UNFIT as error:
                self.complain(str(error))
        finally:
            for command in self.commands:
                command.end()
            if self.watch:
                self.watch.close()
            shutil.rmtree(self.elsewhere, ignore_errors=True)  # it has the logins to the nodes
        self.result["problems"] += fault_table.over(self.result, self.fault["budget"])
        self.result["seconds"] = fault_table.seconds(time.monotonic(), begun)
        manifest.write_json(os.path.join(self.folder, "result.json"), self.result)
        return self.result

    def runs(self):
        """Return the names of the runs on the controller."""
        if not os.path.isdir(self.ground.runs_dir):
            return set()
        return set(os.listdir(self.ground.runs_dir))

    def refused(self, known):
        """Check that the command starts nothing and says why."""
        end = time.monotonic() + RUN_SECONDS
        while not self.main.over() and not self.runs() - known and time.monotonic() < end:
            time.sleep(0.2)
        self.result["detected"] = fault_table.seconds(time.monotonic(), self.main.begun)
        self.fault["budget"]["detect"] = max(60.0, self.fault["budget"]["detect"])
        fresh = sorted(self.runs() - known)
        if fresh:
            self.complain(f"a run was started: {', '.join(fresh)}")
            self.run = fresh[0]
            self.verb({"verb": "stop"})
            self.run = None
        code, text = self.main.wait(60), self.main.text()
        if code and fault_table.find_refusal(self.expect, text):
            self.result["verdict"] = "right"
        else:
            self.result["verdict"] = "wrong"
            self.complain(
                f"the command ended with {code} and did not say {self.expect['refused']!r}:"
                f" {last_line(text)}"
            )
        refusals = (
            line.strip()
            for line in text.splitlines()
            if fault_table.find_refusal(self.expect, line)
        )
        self.result["says"] = next(refusals, "")[:300]

    def new_run(self, known):
        """Return the run that this drill's command has started, None before.

        Of two runs at once it is the one that owns the nodes.
        """
        mark = f"-drill_{self.fault['name']}-"
        fresh = sorted(name for name in self.runs() - known if mark in name)
        if len(fresh) > 1 or any("again" in step for step in self.fault.get("before", ())):
            units = set(self.ground.holders().values())
            fresh = [name for name in fresh if any(name in unit for unit in units)]
        return next(iter(fresh), None)

    def live(self, known):
        """Wait for the run and the fault's moment, inject the fault, await the end."""
        self.await_run(known)
        if not self.run:
            raise fault_table.DrillError(f"no run was started: {last_line(self.main.text())}")
        self.result["run"] = self.run
        self.watch = Watch(
            self.ground.nodes, self.run, self.ground.base, self.fault.get("sign", "")
        )
        if not self.watch.until(self.moment, MOMENT_SECONDS, self.all_over):
            raise fault_table.DrillError(
                f"the training did not come to {self.fault['at']}: {last_line(self.main.text())}"
            )
        self.result["reached"] = True
        self.since = time.monotonic()
        steps = fault_table.newest(self.watch.seen(), 1, "steps")
        self.steps("then")
        if self.fault["at"] == "inside":
            self.since = self.moment(self.watch.seen())
        if self.fault.get("goes_on"):
            self.goes_on(steps)
        else:
            self.ends()

    def all_over(self):
        """Return whether all commands have ended."""
        return all(command.over() for command in self.commands)

    def await_run(self, known):
        """Wait for the run of this drill's command and set `run`, None for none."""
        end = time.monotonic() + RUN_SECONDS
        while not self.run and time.monotonic() < end and not self.all_over():
            self.run = self.new_run(known)
            time.sleep(0.2)
        self.run = self.run or self.new_run(known)  # of a command that has ended since

    def moment(self, looks):
        """Return a true value once the fault's moment has come."""
        kind, _space, count = self.fault["at"].partition(" ")
        if kind == "inside":
            return self.fault_began(looks)
        if kind == "run":
            return True
        if kind == "ranks":
            started = {
                look["node"] for look in looks if fault_table.of_attempt(look, 1).get("ranks")
            }
            return started == {node.name for node in self.ground.nodes}
        key = "saved"
        if kind == "step":
            key = "steps"
        return fault_table.newest(looks, 1, key) >= int(count)

    def fault_began(self, looks):
        """Return the time at which a fault inside the training began, or None."""
        machine = self.ground.places.get(self.expect.get("node"))
        rank = None
        if self.one_rank_a_node(looks):
            ranks = {"first": 0, "last": len(self.ground.nodes) - 1}
            rank = ranks.get(self.expect.get("rank"))
        return fault_table.began(looks, 1, machine and machine.name, rank)

    def one_rank_a_node(self, looks):
        """Return whether every node has at most one rank."""
        return all(len(fault_table.of_attempt(look, 1).get("ranks") or ()) <= 1 for look in looks)

    def goes_on(self, steps):
        """Check that the fault has no effect, then stop the training as the user does.

        The training must make steps. steps: those that it made before the fault.
        """
        wanted = fault_table.newest(self.watch.seen(), 1, "steps") + GOES_ON_STEPS
        if not self.watch.until(
            lambda looks: fault_table.newest(looks, 1, "steps") >= wanted, GOES_ON_SECONDS
        ):
            self.complain(
                f"the training made {steps} steps before and none in {GOES_ON_SECONDS} s after it"
            )
        for step in [step for step in self.fault.get("before", ()) if "again" in step]:
            other = self.watch.until(
                lambda _looks: next((one for one in self.commands if one.over()), None), RUN_SECONDS
            )
            self.lost(other or self.commands[0], step["says"])
        units = self.ground.holders().values()
        if len(units) != len(self.ground.nodes) or any(self.run not in unit for unit in units):
            names = ", ".join(sorted(set(units))) or "nothing"
            self.complain(f"the nodes are held by {names}, not by the run alone")
        self.step({"verb": "stop"})
        self.end(STOP_SECONDS)

    def ends(self):
        """Wait for the end of the training and for its restarts, if the fault has any."""
        number = 1 + self.fault.get("restarts", 0)
        if self.fault.get("back") or number == 1:  # else the command goes on automatically
            self.end(self.fault.get("seconds", END_SECONDS), last=not self.fault.get("back"))
        self.steps("back")
        if number > 1:
            self.await_restart(number)
            self.verb({"verb": "stop"})
        self.end(END_SECONDS)

    def await_restart(self, number):
        """Wait for the first step of an attempt, and note its delay and its resume point."""
        if not self.watch.until(
            lambda looks: fault_table.first_step(looks, number), MOMENT_SECONDS, self.main.over
        ):
            self.complain(f"attempt {number} never made a step: {last_line(self.main.text())}")
            return
        ended = self.attempts().get(number - 1, {}).get("ended")
        stepped = fault_table.first_step(self.watch.seen(), number)
        self.result["resumed"] = fault_table.seconds(
            stepped - time.monotonic() + time.time(), ended
        )
        self.result["point"] = (self.attempts().get(number) or {}).get("resume")

    def end(self, seconds, last=True):
        """Wait for the commands' own end."""
        for command in self.commands:
            if command.wait(seconds) is None and last:
                self.complain(f"{command.verb}.yml still ran after {int(seconds)} s")
                command.end()
        # What ended last on a node is seen a little later.
        self.watch.until(lambda looks: fault_table.stopped(looks, 1, self.since), 15)

    # --- afterwards

    def record(self):
        """Return the run's record, {} for none."""
        return manifest.read_json(os.path.join(self.ground.runs_dir, self.run, "run.json")) or {}

    def attempts(self):
        """Return {number: attempt} of the run's record."""
        return {item["number"]: item for item in self.record().get("attempts", ())}

    def verdict(self):
        """Return the verdict of the first attempt, or None."""
        return (self.attempts().get(1) or {}).get("verdict")

    def finish(self, before):
        """Fetch what could not be fetched before, and check the verdict and the promises.

        before: the nodes' checkpoints before the fault.
        """
        if not self.run:
            self.result["promises"] = dict.fromkeys(fault_table.PROMISES)
            self.result["promises"]["N2"] = not invariants.checkpoints(self.ground, before)
            return
        self.fenced()
        verdict = self.verdict()
        if self.lacks_evidence(verdict):
            self.verb({"verb": "follow"})
        verdict = verdict or self.verdict()
        # What a node that was away does when it is back is noted apart, see fenced().
        looks = [look for look in self.watch.seen() if look["t"] <= self.over]
        self.note_times(looks)
        places = {
            "first": (self.ground.nodes[0].name, 0),
            "last": (self.ground.nodes[-1].name, self.last_rank(looks)),
        }
        self.result["verdict"], reason = fault_table.judge(self.expect, verdict, places)
        self.result["says"], self.result["named"] = (verdict or {}).get("text"), verdict
        if reason:
            self.complain(f"verdict: {reason}")
        self.words()
        numbers = sorted(self.attempts()) or [1]
        outputs = [command.path for command in self.commands]
        fresh = self.status()
        self.result["promises"], problems = invariants.every(
            self.ground, self.fault, self.run, numbers, verdict, before, self.canary, outputs, fresh
        )
        self.result["problems"] += problems

    def lacks_evidence(self, verdict):
        """Return whether a node was away, or the run's record or logs are incomplete."""
        if (verdict or {}).get("unreachable"):
            return True
        if any(look.get("gone") for look in self.watch.seen()) or not self.attempts():
            return True
        index = os.path.join(self.ground.runs_dir, self.run, "attempt-1", "ranks.json")
        return not os.path.exists(index)

    def note_times(self, looks):
        """Note the seconds to the detection of the fault, and from there to the stop."""
        detected = stopped = None
        if self.since:
            detected = fault_table.seconds(fault_table.detected(looks, 1, self.since), self.since)
        if not self.fault.get("goes_on"):
            self.result["detected"] = detected
        if self.since:
            known_since = self.since + (self.result.get("detected") or 0)
            stopped = fault_table.seconds(fault_table.stopped(looks, 1, self.since), known_since)
        self.result["stopped"] = stopped

    def holds_node(self):
        """Return whether the run still owns a node."""
        return any(self.run in unit for unit in self.ground.holders().values())

    def fenced(self):
        """Check that nothing of the run is left.

        A node that was away ends its part when it is back. Wait for that, and note its duration.
        """
        if not self.holds_node():
            return
        while self.holds_node():
            if time.monotonic() > self.healed + FENCE_SECONDS:
                self.complain(
                    f"the run still held a node {FENCE_SECONDS} s after all was over;"
                    " it was stopped"
                )
                self.verb({"verb": "stop"})
                return
            time.sleep(0.2)
        self.result["fenced"] = fault_table.seconds(time.monotonic(), self.healed)
        self.result["note"] = (
            f"the node that came back ended its part after {self.result['fenced']:.1f} s"
        )

    def last_rank(self, looks):
        """Return the first rank of the last node, whose pid a fault takes."""
        ranks = [
            entry["rank"]
            for look in looks
            if look["node"] == self.ground.nodes[-1].name
            for entry in fault_table.of_attempt(look, 1).get("ranks") or ()
        ]
        return min(ranks, default=None)

    def words(self):
        """Check the run's reason and the messages of the commands."""
        reason = self.record().get("reason")
        if self.expect.get("reason") and reason != self.expect["reason"]:
            self.complain(f"the run's reason is {reason}, wanted: {self.expect['reason']}")
        message = self.expect.get("says")
        output = "\n".join(command.text() for command in self.commands)
        if message and not fault_table.find_refusal({"refused": message}, output):
            self.complain(f"no command said {message!r}")

    def status(self):
        """Return the problems with N5: another controller must find the run.

        It has the inventory, its own login and nothing else.
        """
        command = self.command("status", "-e", f"run={self.run}", fresh=self.fresh())
        code = command.wait(60)
        output = command.text()
        knows_run = self.run in output
        ended_well = "PLAY RECAP" in output and "no node knows" not in output
        if code == 0 and (knows_run or ended_well):
            return []
        return [f"N5: another controller's status.yml ended with {code}: {last_line(output)[:200]}"]


def chain(results, closing):
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
            result["problems"].append(
                f"N8: no training came to its steps after this fault: {problems}"
            )
