# SPDX-License-Identifier: Apache-2.0
"""Phase of a training by its ranks' log lines, and its time limit.

The module is pure.

rendezvous   no rank was started yet, or one looks for its peers: from its first word about them to
             the word that it has them
first_step   from there to the first step line. Where a suite says nothing of its peers, both count
             as one, with both budgets
step         from one step line to the next
evaluation   from the suite's word that one has begun, or from what it follows, to the next line of
             another kind. A log that grows is a sign of life
checkpoint   from what one follows, to the next line of another kind. A log that grows is a sign of
             life
teardown     from the end of the ranks that print, or of the neighbour's part, to the end of this
             node's part. Each rank that ends is a sign of life

The logs do not say what comes after an epoch's last step, a saved checkpoint or an evaluation:
there the budget of the phase that may come applies. Times are of the monotonic clock, in seconds,
so that clocks that are set do not matter.
"""

from __future__ import annotations

import math
import re

from ..logs.rendezvous import LITERALS, PEERS_FOUND, PEERS_SOUGHT

PHASES = ("rendezvous", "first_step", "step", "evaluation", "checkpoint")
# A default budget grows with the pace that the lines show: so many times the longest wait for one
# of them.
PATIENCE = 3
# The least default budget (seconds) before there are two lines: a suite may print every thousandth
# step.
UNKNOWN = 1800
# A step's default budget by the run's own pace (docs/runbooks/watchdog.md). A file system may stand
# still for LEAST seconds.
STEPS, PERCENTILE, ENOUGH, WINDOW, LEAST = 20, 0.99, 50, 200, 30
LINE = 8192  # bytes of a line that are looked at, as in logs/parser.py
LAST = 300  # characters of the last line that are kept


def texts(value):
    """Return the texts in a table's entry as a list.

    The entry may be one text, a list or missing.
    """
    if isinstance(value, str):
        return [value]
    return [item for item in value or () if isinstance(item, str)]


def patterns_of(section, key):
    """Return the compiled patterns in a section of a suite's table."""
    return [re.compile(text) for text in texts(section.get(key))]


class Words:
    """Suite's `logs` table as far as phases need it: the kinds of lines.

    Raises re.error for a pattern that is not valid.
    """

    def __init__(self, logs, script):
        """Compile the table.

        logs: plan["suite"]["logs"]. script: plan["script"], which shows whether the training
        evaluates at all.
        """
        step, evaluation, saved = (
            (logs or {}).get(key) or {} for key in ("step", "evaluation", "saved")
        )
        self.step = patterns_of(step, "line")
        self.evaluation = patterns_of(evaluation, "lines")
        self.saved = patterns_of(saved, "lines")
        self.begins = texts(evaluation.get("begins"))
        only_with = texts(evaluation.get("only_with"))
        self.evaluates = bool(self.evaluation) and (
            not only_with or bool(set(only_with) & set(script))
        )
        self.first_printer = step.get("ranks") == "first"
        self.counts_from = (step.get("first") or {}).get("step", 1)
        # The kinds in the order in which they are tried. A step's further patterns are lines for a
        # whole epoch.
        self.kinds = [
            ("step", self.step[:1]),
            ("epoch", self.step[1:]),
            ("evaluation", self.evaluation),
            ("saved", self.saved),
        ]
        sections = [(step, self.step), (evaluation, self.evaluation), (saved, self.saved)]
        self.gate = self.build_gate([section for section, patterns in sections if patterns])

    def build_gate(self, sections):
        """Return a fast pattern that is in each line that matters.

        Most of a log does not matter, and it may have 50,000 lines per second. sections: those
        that have patterns. Where one of them has no literal words, each line may matter.
        """
        if not all(section.get("has") for section in sections):
            return re.compile(b"")
        literals = [word for section in sections for word in texts(section.get("has"))]
        literals += self.begins + list(LITERALS)
        return re.compile("|".join(re.escape(word) for word in literals).encode())

    def kind(self, line):
        """Return (kind, groups) of a line.

        The kind is step, epoch (one line for all its steps), evaluation, saved, begins, found,
        seeks or None.
        """
        for kind, patterns in self.kinds:
            for pattern in patterns:
                match = pattern.search(line)
                if match:
                    return kind, match.groupdict()
        if any(word in line for word in self.begins):
            return "begins", {}
        if PEERS_FOUND.search(line):
            return "found", {}
        if PEERS_SOUGHT.search(line):
            return "seeks", {}
        return None, {}

    def ends_epoch(self, groups):
        """Return whether a step line is an epoch's last, or the training's last.

        It is False where the line does not say so.
        """
        number = {key: int(value) for key, value in groups.items() if value and value.isdigit()}
        if "total_steps" in number:
            return number.get("global_step", number.get("step", -1)) >= number["total_steps"]
        return (
            "step" in number
            and "steps" in number
            and number["step"] >= number["steps"] - 1 + self.counts_from
        )


class Reading:
    """Lines of one growing log, from its data in any pieces."""

    def __init__(self, patterns, rest=b""):
        self.words, self.rest = patterns, rest

    def take(self, chunk):
        """Return [(kind, groups, line)] of the complete lines that matter.

        A progress bar redraws its line after each CR, and may never end it.
        """
        block = self.rest + chunk.replace(b"\0", b"")
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        self.rest, lines = block[end:][:LINE], []
        if self.words.gate.search(block[:end]):
            for raw in re.split(rb"[\r\n]+", block[:end]):
                if self.words.gate.search(raw):
                    line = raw[:LINE].decode("utf-8", "replace")
                    kind, groups = self.words.kind(line)
                    if kind:
                        lines.append((kind, groups, line))
        if any(word.encode() in self.rest for word in self.words.begins):
            lines.append(("begins", {}, self.rest.decode("utf-8", "replace")))
        return lines


class Phases:
    """Phase of a training, and the time since its latest sign of life."""

    KEPT = (
        "phase",
        "since",
        "begun",
        "joint",
        "lines",
        "longest",
        "waits",
        "slowest",
        "paused",
        "last_step",
        "last_line",
        "over",
    )

    def __init__(self, budgets, patterns, now):
        """Begin with the rendezvous.

        budgets: plan["watchdog"]. now: monotonic seconds at the attempt's start.
        """
        self.budgets, self.words = budgets, patterns
        # joint: rendezvous and first step count as one phase.
        self.phase, self.since, self.joint = "rendezvous", now, False
        self.begun, self.over = False, False
        self.lines, self.longest = 0, 0.0
        # The last waits between step lines, the longest one for what follows a step line, and
        # whether that was an evaluation or a checkpoint once.
        self.waits, self.slowest, self.paused = [], 0.0, False
        self.last_step, self.last_line = None, None

    def _enter(self, phase, now):
        self.phase, self.since, self.joint = phase, now, False

    def started(self):
        """Note that a rank was started.

        Its words about its peers come later, if at all.
        """
        if not self.begun and self.phase == "rendezvous":
            self.phase, self.joint = "first_step", True
        self.begun = True

    def take(self, kind, groups, line, now):
        """Take a line of a rank's log into account."""
        early = self.phase in ("rendezvous", "first_step")
        if kind in ("seeks", "found"):
            if early and (kind == "found" or self.joint or not self.begun):
                self._take_peers(kind, now)
            return
        self.last_line = line.strip()[:LAST]
        self._note_wait(kind, now)
        if kind in ("step", "epoch"):
            self._take_step(kind, groups, now)
        elif kind == "saved":
            self._enter(self._after_epoch(), now)
        elif kind == "evaluation":
            self._enter("checkpoint", now)
        elif not early:
            self._enter("evaluation", now)

    def _take_peers(self, kind, now):
        """Take words about peers into account."""
        self.begun = True
        if kind == "found":
            self._enter("first_step", now)
        else:
            self._enter("rendezvous", now)

    def _note_wait(self, kind, now):
        """Note how long the line after a step line was waited for."""
        if kind in ("saved", "evaluation", "begins") and self.lines:
            self.paused = True
        if self.phase == "step":
            self.slowest = max(self.slowest, now - self.since)
            if kind == "step":
                self.waits = [*self.waits[1 - WINDOW :], round(now - self.since, 3)]

    def _take_step(self, kind, groups, now):
        """Take a line of a step, or of a whole epoch, into account."""
        self.longest, self.lines = max(self.longest, now - self.since), self.lines + 1
        self.last_step = {
            key: value
            for key, value in groups.items()
            if value and key in ("epoch", "step", "steps", "global_step", "total_steps")
        }
        if kind == "epoch" or self.words.ends_epoch(groups):
            self._enter(self._after_epoch(), now)
        else:
            self._enter("step", now)

    def _after_epoch(self):
        """Return the phase that may come after an epoch's last step."""
        if self.words.evaluates:
            return "evaluation"
        return "checkpoint"

    def grew(self, now):
        """Note that a log grew by lines that do not show the phase.

        In phases without other lines that is a sign of life.
        """
        if self.phase in ("evaluation", "checkpoint"):
            self.since = now

    def spare(self, seconds):
        """Leave out a time in which the guard was frozen or did not read all lines."""
        self.since += seconds

    def limit(self):
        """Return (budget, name) of the present phase.

        The budget is the seconds that it may take without a sign of life, or None.
        """
        budgets, explicit = self.budgets, self.budgets.get("set") or ()
        if self.joint:
            return sum_budgets(budgets, ["rendezvous", "first_step"]), "first_step"
        budget = budgets.get(self.phase)
        if self.phase == "step" and budget and "step" not in explicit and "checkpoint" in explicit:
            # Most suites save after a step line and say so afterwards.
            budget = max(budget, budgets.get("checkpoint") or 0)
        if budget is None or not self.lines or self.phase in explicit:
            return budget, self.phase
        # This is a default. The time that the phase takes here is not known, nor is the interval of
        # the suite's lines before the second one.
        if self.lines < 2:
            budget = max(budget, UNKNOWN)
        budget = max(budget, PATIENCE * self.longest)
        if "checkpoint" in explicit:
            return budget, self.phase
        return min(budget, self._budget_by_pace()), self.phase

    def _budget_by_pace(self):
        """Return the seconds that a step may take by those before it, infinity where unknown."""
        if self.phase != "step" or not self.paused or len(self.waits) < ENOUGH:
            return math.inf
        waits = sorted(self.waits)
        usual = waits[math.ceil(PERCENTILE * len(waits)) - 1]
        return max(LEAST, round(STEPS * usual, 1), round(PATIENCE * self.slowest, 1))

    def left(self, now):
        """Return the seconds that are left of the present phase's budget, infinity without one."""
        budget, _phase = self.limit()
        if self.over or budget is None:
            return math.inf
        return budget - (now - self.since)

    def stalled(self, now):
        """Return {phase, budget, seconds, step, last_line} of a stall, or None.

        A phase stalls when its budget is spent.
        """
        budget, phase = self.limit()
        if self.left(now) >= 0:
            return None
        return {
            "phase": phase,
            "budget": budget,
            "seconds": round(now - self.since, 1),
            "step": self.last_step,
            "last_line": self.last_line,
        }

    def kept(self):
        """Return the state that a guard that is started again needs."""
        return {key: getattr(self, key) for key in self.KEPT}

    def again(self, state):
        """Go on from the state that an earlier guard of this attempt kept."""
        for key in self.KEPT:
            setattr(self, key, state[key])

    def learn(self, waits, slowest):
        """Begin with the pace of an earlier attempt that trained in the same way.

        waits: seconds between its last step lines. slowest: the longest one for what follows a step
        line, a checkpoint or an evaluation among them.
        """
        self.waits, self.slowest, self.paused = waits[-WINDOW:], slowest, True


def read_pace(phases):
    """Return (waits, slowest) of what a guard kept of its phases, or None.

    The training can write there. None also where the guard had not seen enough.
    """
    if not isinstance(phases, dict) or phases.get("paused") is not True:
        return None
    waits, slowest = phases.get("waits"), phases.get("slowest")
    values = [slowest]
    if isinstance(waits, list):
        values += waits
    if len(values) <= ENOUGH or not all(map(_is_duration, values)):
        return None
    return waits, slowest


def _is_duration(value):
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value < math.inf


def sum_budgets(budgets, names):
    """Return the sum of some phases' budgets, None where one has none."""
    values = [budgets.get(name) for name in names]
    if None in values:
        return None
    return sum(values)


class Teardown:
    """End of a training, from the end of the ranks that print.

    They have ended well, or the attempt would be over. No line shows the other ranks.
    """

    def __init__(self, budgets, far):
        """Compute the budget.

        budgets: plan["watchdog"]. far: whether rank 0 may still evaluate on another node when this
        node is judged.
        """
        names = ["checkpoint"]
        if far:
            names.append("evaluation")
        self.budget = sum_budgets(budgets, names)
        self.since, self.ended = None, None

    def look(self, parted, ended, now):
        """Note the state of the ranks.

        parted: the ranks that print have ended. ended: the number of ranks here that have ended.
        """
        if not parted:
            self.since = None
        elif self.since is None or ended != self.ended:
            self.since = now
        self.ended = ended

    def spare(self, seconds):
        """Leave out a time in which the guard was frozen."""
        if self.since is not None:
            self.since += seconds

    def stalled(self, now):
        """Return {phase, budget, seconds, step, last_line} of a stall, or None."""
        if self.since is None or self.budget is None or now - self.since <= self.budget:
            return None
        return {
            "phase": "teardown",
            "budget": self.budget,
            "seconds": round(now - self.since, 1),
            "step": None,
            "last_line": None,
        }
