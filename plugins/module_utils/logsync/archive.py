# SPDX-License-Identifier: Apache-2.0
"""What of a run lies on the controller: which runs there are, the plan, the index of ranks.
Controller only; it reads.
"""

from __future__ import annotations

import os
import re

from ..attempts.attempt_dir import RUN_ID
from ..base.sanitize import secrets_of
from ..config.site_fields import NAME
from ..records import run_choice, run_json
from . import log_index, log_view

_ATTEMPT = re.compile(r"^attempt-([1-9][0-9]{0,8})\Z")


def runs(runs_dir):
    """Return the ids of the runs that have an attempt at home, oldest first."""
    names = sorted(os.listdir(runs_dir)) if os.path.isdir(runs_dir) else []
    names = [
        name
        for name in names
        if RUN_ID.match(name) and not os.path.islink(os.path.join(runs_dir, name))
    ]
    return [name for name in names if attempts(os.path.join(runs_dir, name))]


def attempts(run_dir):
    """Return the numbers of a run's attempts at home, in their order."""
    names = os.listdir(run_dir) if os.path.isdir(run_dir) else []
    return sorted(int(match.group(1)) for match in map(_ATTEMPT.match, names) if match)


class NoRun(Exception):
    """No run is what was asked for; the message is for people."""


def choose(runs_dir, run, answers):
    """Return {run, number, ended, goes_on, silent, notes}: which run it is, and the nodes on which
    it is over or goes on, or that did not answer.

    run: the id that was asked for, or ''. answers: {node: what attempt_status said, or None}.
    `ended` leaves out what is all at home. notes: lines about nodes that say otherwise. Raises
    NoRun.
    """
    if run and not RUN_ID.match(run):
        raise NoRun(f"{run!r} is no run id")
    silent = [node for node, status in answers.items() if status is None]
    found, at_home = run_choice.choose(runs_dir, list(answers), answers, run), runs(runs_dir)
    chosen = found["run"] if found else run or (at_home or [""])[-1]
    if not found and chosen not in at_home:
        known = set(run_choice.known_runs(answers)) | set(at_home[-5:])
        text = "no node knows {}, and it is not at home{}{}".format(
            "the run " + run if run else "any run",
            "; known: " + ", ".join(sorted(known, reverse=True)) if known else "",
            "; no answer from " + ", ".join(silent) if silent else "",
        )
        raise NoRun(text)
    home = Home(runs_dir, chosen, found and found["number"])
    # a node that was lost and came back knows older attempts only
    mine = found["claimed"] if found else []
    goes_on = [node for node in mine if not answers[node]["ended"]]
    ended = [] if home.over else [node for node in mine if node not in goes_on]
    notes = found["notes"] if found else []
    return {
        "run": chosen,
        "number": home.number,
        "ended": ended,
        "goes_on": goes_on,
        "silent": silent,
        "notes": notes,
    }


class Home:
    """One attempt at home. `plan` and `index` are None where they are not there or damaged;
    NewerIndex where only a newer Trainyard can read it.
    """

    def __init__(self, runs_dir, run, number=None):
        run_dir = os.path.join(runs_dir, run)
        self.run, self.number = run, number or max(attempts(run_dir), default=1)
        self.path = os.path.join(run_dir, "attempt-%d" % self.number)
        self.shown = os.path.join(
            os.path.basename(os.path.normpath(runs_dir)), run, "attempt-%d" % self.number
        )
        plan = run_json.plan_of(run_dir, self.number)
        self.plan = (
            plan
            if isinstance(plan, dict)
            and all(isinstance(plan.get(key), list) for key in ("ranks", "nodes"))
            else None
        )
        try:
            self.index = log_index.read(self.path)
        except log_index.NewerIndex:
            raise
        except log_index.IndexProblem:
            self.index = None  # written again where a node answers
        self.secrets = secrets_of(self.plan)

    @property
    def nodes(self):
        """Return the names of the run's nodes, in the order of the plan."""
        planned = [node["name"] for node in self.plan["nodes"]] if self.plan else []
        names = planned + [
            rank["node"] for rank in (self.index or {}).get("ranks", ()) if rank["node"]
        ]
        return list(dict.fromkeys(name for name in names if NAME.match(str(name))))

    @property
    def over(self):
        """Whether everything is at home and nothing more can come."""
        return bool(self.plan and self.index) and log_index.over(self.index, self.plan)

    @property
    def zones(self):
        """Return {node: seconds that its clock's zone is east of UTC}, of the nodes that have said
        so.
        """
        return {
            node["node"]: node["utc_offset"]
            for node in (self.index or {}).get("nodes", ())
            if node.get("utc_offset") is not None
        }

    def logs(self):
        """Return the logview.Logs that are here."""
        return log_view.logs_in(self.path, self.nodes)

    def planned(self):
        """Return a Log without a file for every rank of the plan: what there will be."""
        pairs = [
            ("rank-%03d" % rank["rank"], rank["node"])
            for rank in (self.plan or {"ranks": []})["ranks"]
        ]
        return [
            log_view.Log(
                "{}.{}.log".format(*pair),
                *pair,
                os.path.join(self.path, "{}.{}.log".format(*pair)),
                0,
            )
            for pair in pairs
        ]
