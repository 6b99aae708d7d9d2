# SPDX-License-Identifier: Apache-2.0
"""Which phase a training is in, by its ranks' own log lines, and whether it has been there for too
long. Pure; shipped beside guard.py.

rendezvous   no rank was started yet, or one looks for its peers: from its first word about them to
the word that it has them first_step   from there to the first step line. Where a suite says nothing
of its peers, both count as one, with both budgets step         from one step line to the next
evaluation   from the suite's word that one has begun, or from what it follows, to the next line of
another kind; a log that grows is a sign of life checkpoint   from what one follows, to the next
line of another kind; a log that grows is a sign of life

teardown     from the end of whoever prints, or of the neighbour's part, to the end of this node's
part; each rank that ends is a sign of life

What comes after an epoch's last step, a saved checkpoint or an evaluation is not said: there the
budget of what may come holds. Times are of the monotonic clock, seconds; clocks that are set forth
or back do not matter.
"""

from __future__ import annotations

import re

PHASES = ("rendezvous", "first_step", "step", "evaluation", "checkpoint")
# Words about peers as phases.py has them (sources there), and what else Paddle 3 says of its store.
SEEKS = (
    "The server starts to listen|Retry to connect to|Waiting for the state of the"
    " connection|Connect\\] Connection \\d|create libuv server"
)
FOUND = (
    "Successfully connected to|distributed strategy initialized|comm group\\(s\\) create"
    " successfully|Cluster is successfully initialized|communication group on the device side"
)
_WORDS = ("starts to listen", "Retry to connect", "Waiting for the state", "Connect] Connection", "create libuv server",
          "Successfully connected", "strategy initialized", "create successfully", "successfully initialized", "on the device side")  # fmt: skip
# A default budget grows with the pace that the lines show: so many times the longest wait for one
# of them.
PATIENCE = 3
# What a default budget is at the least before there are two lines: a suite may print every
# thousandth step.
UNKNOWN = 1800
LINE = 8192  # bytes of a line that are looked at, as in logs.py
LAST = 300  # characters of the last line that are kept


def texts(value):
    """Return a list of the texts in a table's entry, which may be one text, a list or missing."""
    return (
        [value]
        if isinstance(value, str)
        else [item for item in value or () if isinstance(item, str)]
    )


class Words:
    """A suite's `logs` table as far as phases need it: what kind a line is. Raises re.error where a
    pattern is none.
    """

    def __init__(self, logs, words):
        """logs: plan["suite"]["logs"]. words: plan["script"], which say whether the training
        evaluates at all.
        """
        step, evaluation, saved = (
            (logs or {}).get(key) or {} for key in ("step", "evaluation", "saved")
        )
        self.step = [re.compile(text) for text in texts(step.get("line"))]
        self.evaluation = [re.compile(text) for text in texts(evaluation.get("lines"))]
        self.saved = [re.compile(text) for text in texts(saved.get("lines"))]
        self.begins = texts(evaluation.get("begins"))
        self.seeks, self.found = re.compile(SEEKS), re.compile(FOUND)
        only_with = texts(evaluation.get("only_with"))
        self.evaluates = bool(self.evaluation) and (
            not only_with or bool(set(only_with) & set(words))
        )
        self.first_printer = step.get("ranks") == "first"
        self.counts_from = (step.get("first") or {}).get("step", 1)
        used = [
            section
            for section, patterns in (
                (step, self.step),
                (evaluation, self.evaluation),
                (saved, self.saved),
            )
            if patterns
        ]
        literals = (
            [word for section in used for word in texts(section.get("has"))]
            + self.begins
            + list(_WORDS)
        )
        # Most of a log is of no interest, and it may have 50,000 lines a second.
        whole = all(section.get("has") for section in used)
        self.gate = (
            re.compile("|".join(re.escape(word) for word in literals).encode())
            if whole
            else re.compile(b"")
        )

    def kind(self, line):
        """Return (kind, groups) of a line: step, epoch (one line for all its steps), evaluation,
        saved, begins, found, seeks or None.
        """
        for kind, patterns in (
            ("step", self.step),
            ("evaluation", self.evaluation),
            ("saved", self.saved),
        ):
            for index, pattern in enumerate(patterns):
                match = pattern.search(line)
                if match:
                    return "epoch" if kind == "step" and index else kind, match.groupdict()
        if any(word in line for word in self.begins):
            return "begins", {}
        return (
            "found" if self.found.search(line) else "seeks" if self.seeks.search(line) else None
        ), {}

    def ends_epoch(self, groups):
        """Whether a step line is an epoch's last, or the training's last, as far as it says so."""
        number = {key: int(value) for key, value in groups.items() if value and value.isdigit()}
        if "total_steps" in number:
            return number.get("global_step", number.get("step", -1)) >= number["total_steps"]
        return (
            "step" in number
            and "steps" in number
            and number["step"] >= number["steps"] - 1 + self.counts_from
        )


class Reading:
    """The lines of one growing log: `take` gets what was appended, in any pieces, and returns the
    lines that matter.
    """

    def __init__(self, words, rest=b""):
        self.words, self.rest = words, rest

    def take(self, chunk):
        """Return [(kind, groups, line)] of the whole lines; a progress bar redraws its line after
        each CR, and may never end it.
        """
        block = self.rest + chunk.replace(b"\0", b"")
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        self.rest, found = block[end:][:LINE], []
        if self.words.gate.search(block[:end]):
            for raw in re.split(rb"[\r\n]+", block[:end]):
                if self.words.gate.search(raw):
                    line = raw[:LINE].decode("utf-8", "replace")
                    kind, groups = self.words.kind(line)
                    found += [(kind, groups, line)] if kind else []
        if any(word.encode() in self.rest for word in self.words.begins):
            found.append(("begins", {}, self.rest.decode("utf-8", "replace")))
        return found


class Phases:
    """The phase of a training and since when; `stalled` says when it has been too long without a
    sign of life.
    """

    KEPT = (
        "phase",
        "since",
        "begun",
        "joint",
        "lines",
        "longest",
        "last_step",
        "last_line",
        "over",
    )

    def __init__(self, budgets, words, now):
        """budgets: plan["watchdog"]. now: monotonic seconds at the attempt's start."""
        self.budgets, self.words = budgets, words
        self.phase, self.since, self.begun, self.joint, self.over = (
            "rendezvous",
            now,
            False,
            False,
            False,
        )
        self.lines, self.longest, self.last_step, self.last_line = 0, 0.0, None, None

    def _enter(self, phase, now):
        self.phase, self.since, self.joint = phase, now, False

    def started(self):
        """A rank was started. What it says of its peers, if anything, comes later."""
        if not self.begun and self.phase == "rendezvous":
            self.phase, self.joint = "first_step", True
        self.begun = True

    def take(self, kind, groups, line, now):
        """Take a line of a rank's log in."""
        early = self.phase in ("rendezvous", "first_step")
        if kind in ("seeks", "found"):
            if early and (kind == "found" or self.joint or not self.begun):
                self.begun = True
                self._enter("first_step" if kind == "found" else "rendezvous", now)
            return
        self.last_line = line.strip()[:LAST]
        if kind in ("step", "epoch"):
            self.longest, self.lines = max(self.longest, now - self.since), self.lines + 1
            self.last_step = {
                key: value
                for key, value in groups.items()
                if value and key in ("epoch", "step", "steps", "global_step", "total_steps")
            }
            after = "evaluation" if self.words.evaluates else "checkpoint"
            self._enter(after if kind == "epoch" or self.words.ends_epoch(groups) else "step", now)
        elif kind == "saved":
            self._enter("evaluation" if self.words.evaluates else "checkpoint", now)
        elif not early or kind == "evaluation":
            self._enter("checkpoint" if kind == "evaluation" else "evaluation", now)

    def grew(self, now):
        """A log grew by lines that say nothing of the phase: where nothing else is said for long,
        that is a sign of life.
        """
        if self.phase in ("evaluation", "checkpoint"):
            self.since = now

    def spare(self, seconds):
        """Leave a time out of the reckoning in which nobody could look: the guard itself stood
        still, or lines went by unread.
        """
        self.since += seconds

    def limit(self):
        """Return (seconds that the present phase may take without a sign of life, or None; its
        name).
        """
        budgets, given = self.budgets, self.budgets.get("set") or ()
        if self.joint:
            both = [budgets.get("rendezvous"), budgets.get("first_step")]
            return (None if None in both else sum(both)), "first_step"
        budget = budgets.get(self.phase)
        if self.phase == "step" and budget and "step" not in given and "checkpoint" in given:
            # most suites save after a step line and say so afterwards
            budget = max(budget, budgets.get("checkpoint") or 0)
        if budget is None or not self.lines or self.phase in given:
            return budget, self.phase
        # Nobody has said how long this takes here, and how often the suite prints is not known
        # before the second line.
        return max(budget, PATIENCE * self.longest, UNKNOWN if self.lines < 2 else 0), self.phase

    def stalled(self, now):
        """Return {phase, budget, seconds, step, last_line} where the budget is spent, else None."""
        budget, phase = self.limit()
        if self.over or budget is None or now - self.since <= budget:
            return None
        return {
            "phase": phase,
            "budget": budget,
            "seconds": round(now - self.since, 1),
            "step": self.last_step,
            "last_line": self.last_line,
        }

    def kept(self):
        """Return what a guard that is started again needs."""
        return {key: getattr(self, key) for key in self.KEPT}

    def again(self, kept):
        """Go on from what an earlier guard of this attempt kept."""
        for key in self.KEPT:
            setattr(self, key, kept[key])


class Teardown:
    """The end of a training: whoever prints has ended, well or the attempt would be over, and says
    nothing more of those that have not.
    """

    def __init__(self, budgets, far):
        """budgets: plan["watchdog"]. far: whether rank 0 may still evaluate elsewhere when this
        node is judged.
        """
        times = [budgets.get("checkpoint")] + ([budgets.get("evaluation")] if far else [])
        self.budget = None if None in times else sum(times)
        self.since, self.ended = None, None

    def look(self, parted, ended, now):
        """Take in whether whoever prints has ended (parted), and how many ranks here have."""
        if not parted:
            self.since = None
        elif self.since is None or ended != self.ended:
            self.since = now
        self.ended = ended

    def spare(self, seconds):
        """Leave a time out of the reckoning in which nobody could look."""
        self.since = None if self.since is None else self.since + seconds

    def stalled(self, now):
        """Return {phase, budget, seconds} where the budget is spent, else None."""
        if self.since is None or self.budget is None or now - self.since <= self.budget:
            return None
        return {
            "phase": "teardown",
            "budget": self.budget,
            "seconds": round(now - self.since, 1),
            "step": None,
            "last_line": None,
        }
