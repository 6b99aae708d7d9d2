# SPDX-License-Identifier: Apache-2.0
"""One fault on its way: start the training as a user does, do the fault at its moment, see what
comes of it, put all right, hold the promises.

Controller only. What a fault is stands in faults.yml; what was seen is judged by drills.py; the
promises are drill_promises.py's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from ..base import manifest
from . import (
    fault_table,
    invariants,
)
from .drill_site import Watch, last_line
from .drill_steps import RUN_SECONDS, STOP_SECONDS, Steps

# Seconds: until a training has come to a moment, until it has ended after a fault.
MOMENT_SECONDS, END_SECONDS = 300, 240
# Seconds that a node gets which was away: its guard looks for its neighbour, finds the attempt over
# there, and ends its own part.
FENCE_SECONDS = 40
GOES_ON_STEPS, GOES_ON_SECONDS = 2, 120
# What keeps a drill from being made, and is said in its row.
UNFIT = (fault_table.DrillError, OSError, subprocess.SubprocessError)


class Course(Steps):
    """The drill of one fault; `result` holds what the table wants of it."""

    # --- the course

    def go(self):
        """Do it from start to end; return the result. What was done is undone whatever happens."""
        begun = time.monotonic()
        self.say("{}: {}".format(self.fault["name"], self.fault["injected"]))
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
            shutil.rmtree(self.elsewhere, ignore_errors=True)  # it holds what opens the nodes
        late = fault_table.over(self.result, self.fault["budget"])
        self.result["problems"] += late
        self.result["seconds"] = fault_table.seconds(time.monotonic(), begun)
        manifest.write_json(os.path.join(self.folder, "result.json"), self.result)
        return self.result

    def runs(self):
        return (
            set(os.listdir(self.ground.runs_dir)) if os.path.isdir(self.ground.runs_dir) else set()
        )

    def refused(self, known):
        """The command must start nothing, and say why."""
        end = time.monotonic() + RUN_SECONDS
        while not self.main.over() and not self.runs() - known and time.monotonic() < end:
            time.sleep(0.2)
        self.result["detected"] = fault_table.seconds(time.monotonic(), self.main.begun)
        self.fault["budget"]["detect"] = max(60.0, self.fault["budget"]["detect"])
        fresh = sorted(self.runs() - known)
        if fresh:
            self.complain("a run was started: {}".format(", ".join(fresh)))
            self.run = fresh[0]
            self.verb({"verb": "stop"})
            self.run = None
        code, text = self.main.wait(60), self.main.text()
        said = fault_table.find_refusal(self.expect, text)
        self.result["verdict"] = "right" if code and said else "wrong"
        if self.result["verdict"] == "wrong":
            self.complain(
                "the command ended with {} and did not say {!r}: {}".format(
                    code, self.expect["refused"], last_line(text)
                )
            )
        self.result["says"] = next(
            (
                line.strip()
                for line in text.splitlines()
                if fault_table.find_refusal(self.expect, line)
            ),
            "",
        )[:300]

    def new_run(self, known):
        """Return the run that this drill's command has started: of two at once, the one that holds
        the nodes. None before.
        """
        fresh = sorted(
            name for name in self.runs() - known if "-drill_{}-".format(self.fault["name"]) in name
        )
        if len(fresh) > 1 or any("again" in step for step in self.fault.get("before", ())):
            units = set(self.ground.holders().values())
            fresh = [name for name in fresh if any(name in unit for unit in units)]
        return fresh[0] if fresh else None

    def live(self, known):
        end = time.monotonic() + RUN_SECONDS
        while (
            not self.run
            and time.monotonic() < end
            and not all(command.over() for command in self.commands)
        ):
            self.run = self.new_run(known)
            time.sleep(0.2)
        self.run = self.run or self.new_run(known)  # of a command that has ended since
        if not self.run:
            raise fault_table.DrillError(f"no run was started: {last_line(self.main.text())}")
        self.result["run"] = self.run
        self.watch = Watch(
            self.ground.nodes, self.run, self.ground.base, self.fault.get("sign", "")
        )
        if not self.watch.until(
            self.moment, MOMENT_SECONDS, lambda: all(command.over() for command in self.commands)
        ):
            raise fault_table.DrillError(
                "the training did not come to {}: {}".format(
                    self.fault["at"], last_line(self.main.text())
                )
            )
        self.result["reached"] = True
        inside, self.since = self.fault["at"] == "inside", time.monotonic()
        steps = fault_table.newest(self.watch.seen(), 1, "steps")
        self.steps("then")
        if inside:
            self.since = self.moment(self.watch.seen())
        if self.fault.get("goes_on"):
            self.goes_on(steps)
        else:
            self.ends()

    def moment(self, looks):
        """Return what is true once the fault's moment has come."""
        kind, _space, count = self.fault["at"].partition(" ")
        if kind == "inside":
            place = self.ground.places.get(self.expect.get("node"))
            ranks = {"first": 0, "last": len(self.ground.nodes) - 1}
            return fault_table.began(
                looks,
                1,
                place and place.name,
                ranks.get(self.expect.get("rank")) if self.one_rank_a_node(looks) else None,
            )
        if kind == "run":
            return True
        if kind == "ranks":
            return {
                look["node"] for look in looks if fault_table.of_attempt(look, 1).get("ranks")
            } == {node.name for node in self.ground.nodes}
        return fault_table.newest(looks, 1, "steps" if kind == "step" else "saved") >= int(count)

    def one_rank_a_node(self, looks):
        return all(len(fault_table.of_attempt(look, 1).get("ranks") or ()) <= 1 for look in looks)

    def goes_on(self, steps):
        """Nothing may have happened: the training makes steps; then the user stops it."""
        wanted = fault_table.newest(self.watch.seen(), 1, "steps") + GOES_ON_STEPS
        if not self.watch.until(
            lambda looks: fault_table.newest(looks, 1, "steps") >= wanted, GOES_ON_SECONDS
        ):
            self.complain(
                "the training made %d steps before and none in %d s after it"
                % (steps, GOES_ON_SECONDS)
            )
        for step in [step for step in self.fault.get("before", ()) if "again" in step]:
            other = self.watch.until(
                lambda _looks: next((one for one in self.commands if one.over()), None), RUN_SECONDS
            )
            self.lost(other or self.commands[0], step["says"])
        held = self.ground.holders()
        if len(held) != len(self.ground.nodes) or any(
            self.run not in unit for unit in held.values()
        ):
            self.complain(
                "the nodes are held by %s, not by the run alone"
                % (", ".join(sorted(set(held.values()))) or "nothing")
            )
        self.step({"verb": "stop"})
        self.end(STOP_SECONDS)

    def ends(self):
        number = 1 + self.fault.get("restarts", 0)
        if self.fault.get("back") or number == 1:  # else the command goes on by itself
            self.end(self.fault.get("seconds", END_SECONDS), last=not self.fault.get("back"))
        self.steps("back")
        if number > 1:
            if self.watch.until(
                lambda looks: fault_table.first_step(looks, number), MOMENT_SECONDS, self.main.over
            ):
                ended = self.attempts().get(number - 1, {}).get("ended")
                stepped = fault_table.first_step(self.watch.seen(), number)
                self.result["resumed"] = fault_table.seconds(
                    stepped - time.monotonic() + time.time(), ended
                )
                self.result["point"] = (self.attempts().get(number) or {}).get("resume")
            else:
                self.complain(
                    "attempt %d never made a step: %s" % (number, last_line(self.main.text()))
                )
            self.verb({"verb": "stop"})
        self.end(END_SECONDS)

    def end(self, seconds, last=True):
        """Wait for the commands' own end."""
        for command in self.commands:
            if command.wait(seconds) is None and last:
                self.complain("%s.yml still ran after %d s" % (command.verb, seconds))
                command.end()
        # what ended last on a node is seen a little later
        self.watch.until(lambda looks: fault_table.stopped(looks, 1, self.since), 15)

    # --- afterwards

    def attempts(self):
        record = manifest.read_json(os.path.join(self.ground.runs_dir, self.run, "run.json")) or {}
        return {item["number"]: item for item in record.get("attempts", ())}

    def finish(self, before):
        """Bring home what could not be brought before, and hold the verdict and the promises."""
        if not self.run:
            self.result["promises"] = dict(
                dict.fromkeys(fault_table.PROMISES),
                **{"N2": not invariants.checkpoints(self.ground, before)},
            )
            return
        self.fenced()
        home = os.path.join(self.ground.runs_dir, self.run, "attempt-1")
        verdict = (self.attempts().get(1) or {}).get("verdict")
        away = (verdict or {}).get("unreachable") or any(
            look.get("gone") for look in self.watch.seen()
        )
        if away or not self.attempts() or not os.path.exists(os.path.join(home, "ranks.json")):
            self.verb({"verb": "follow"})
        verdict = verdict or (self.attempts().get(1) or {}).get("verdict")
        # what a node that was away does when it is back is told by itself, see fenced()
        looks = [look for look in self.watch.seen() if look["t"] <= self.over]
        if not self.fault.get("goes_on"):
            self.result["detected"] = (
                fault_table.seconds(fault_table.detected(looks, 1, self.since), self.since)
                if self.since
                else None
            )
        done = fault_table.stopped(looks, 1, self.since) if self.since else None
        known = self.since + (self.result.get("detected") or 0) if self.since else None
        self.result["stopped"] = fault_table.seconds(done, known)
        places = {
            "first": (self.ground.nodes[0].name, 0),
            "last": (self.ground.nodes[-1].name, self.last_rank(looks)),
        }
        self.result["verdict"], why = fault_table.judge(self.expect, verdict, places)
        self.result["says"], self.result["named"] = (verdict or {}).get("text"), verdict
        if why:
            self.complain(f"verdict: {why}")
        self.words()
        numbers = sorted(self.attempts()) or [1]
        outputs = [command.path for command in self.commands]
        fresh = self.status()
        self.result["promises"], problems = invariants.every(
            self.ground, self.fault, self.run, numbers, verdict, before, self.canary, outputs, fresh
        )
        self.result["problems"] += problems

    def fenced(self):
        """Nothing of the run may be left; a node that was away ends its part when it is back: wait
        for that, and note how long it took.
        """

        def held():
            return any(self.run in unit for unit in self.ground.holders().values())

        if not held():
            return
        while held():
            if time.monotonic() > self.healed + FENCE_SECONDS:
                self.complain(
                    "the run still held a node %d s after all was over; it was stopped"
                    % FENCE_SECONDS
                )
                self.verb({"verb": "stop"})
                return
            time.sleep(0.2)
        self.result["fenced"] = fault_table.seconds(time.monotonic(), self.healed)
        self.result["note"] = (
            "the node that came back ended its part by itself after {:.1f} s".format(
                self.result["fenced"]
            )
        )

    def last_rank(self, looks):
        """Return the first rank of the last node: the one whose pid a fault takes."""
        ranks = [
            entry["rank"]
            for look in looks
            if look["node"] == self.ground.nodes[-1].name
            for entry in fault_table.of_attempt(look, 1).get("ranks") or ()
        ]
        return min(ranks) if ranks else None

    def words(self):
        """Hold what the run's record and the commands are to say besides."""
        record = manifest.read_json(os.path.join(self.ground.runs_dir, self.run, "run.json")) or {}
        if self.expect.get("reason") and record.get("reason") != self.expect["reason"]:
            self.complain(
                "the run's reason is {}, wanted: {}".format(
                    record.get("reason"), self.expect["reason"]
                )
            )
        said = "\n".join(command.text() for command in self.commands)
        if self.expect.get("says") and not fault_table.find_refusal(
            {"refused": self.expect["says"]}, said
        ):
            self.complain("no command said {!r}".format(self.expect["says"]))

    def status(self):
        """N5: another controller, with the inventory and its own way in and nothing else, must find
        the run; return what is wrong.
        """
        home = self.fresh()
        command = self.command("status", "-e", f"run={self.run}", fresh=home)
        code = command.wait(60)
        found = (
            code == 0
            and self.run in command.text()
            or code == 0
            and "PLAY RECAP" in command.text()
            and "no node knows" not in command.text()
        )
        return (
            []
            if found
            else [
                f"N5: another controller's status.yml ended with {code}:"
                f" {last_line(command.text())[:200]}"
            ]
        )


def chain(results, closing):
    """Fill in N8: the same command again works after a fault, which the next fault's own training
    shows; closing() does one more after the last.

    A fault that was refused, or never came to its moment, shows nothing of the one before it.
    """
    done = [result for result in results if not result.get("skipped")]
    if not done:
        return
    after = closing()
    for index, result in enumerate(done):
        shown = next((later for later in done[index + 1 :] + [after] if later.get("reached")), None)
        result["promises"]["N8"] = shown is not None
        if shown is None:
            result["problems"].append(
                "N8: no training came to its steps after this fault: {}".format(
                    "; ".join(after.get("problems") or ())
                )
            )
