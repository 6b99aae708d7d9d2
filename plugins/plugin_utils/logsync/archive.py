# SPDX-License-Identifier: Apache-2.0
"""Files of the runs that lie on the controller: runs, plans and indexes of ranks.

Read only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    Secrets,
    secrets_of,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_choice, run_json

from ..config.site_fields import NAME
from . import log_view, rank_index
from .rank_index import Json

_ATTEMPT = re.compile(r"^attempt-([1-9][0-9]{0,8})\Z")


def list_runs(runs_dir: str) -> list[str]:
    """Return the ids of the runs with an attempt on the controller, oldest first."""
    if not os.path.isdir(runs_dir):
        return []
    names = []
    for name in sorted(os.listdir(runs_dir)):
        path = os.path.join(runs_dir, name)
        if RUN_ID.match(name) and not os.path.islink(path) and list_attempts(path):
            names.append(name)
    return names


def list_attempts(run_dir: str) -> list[int]:
    """Return the numbers of a run's attempts on the controller, in their order."""
    if not os.path.isdir(run_dir):
        return []
    matches = map(_ATTEMPT.match, os.listdir(run_dir))
    return sorted(int(match.group(1)) for match in matches if match)


class RunNotFound(Exception):
    """No run is what was asked for.

    The message is for people.
    """


def choose_run(runs_dir: str, run: str, answers: Mapping[str, Json | None]) -> Json:
    """Return {run, number, ended, goes_on, silent, notes} of the chosen run.

    run: the id that was asked for, or ''. answers: {node: what attempt_monitor returned, or None}.
    `ended` and `goes_on`: nodes on which it is over or goes on. `ended` is empty where all of the
    run is on the controller. `silent`: nodes that did not answer. `notes`: lines about nodes with
    another opinion. Raises RunNotFound.
    """
    if run and not RUN_ID.match(run):
        raise RunNotFound(f"{run!r} is no run id")
    silent = [node for node, status in answers.items() if status is None]
    choice, local = run_choice.choose(runs_dir, list(answers), answers, run), list_runs(runs_dir)
    if not choice:
        chosen = run or (local or [""])[-1]
        if chosen not in local:
            raise RunNotFound(_no_run_text(run, answers, local, silent))
        choice = {"run": chosen, "number": None, "claimed": [], "notes": []}
    attempt = LocalAttempt(runs_dir, choice["run"], choice["number"])
    # A node that was lost and came back knows older attempts only.
    claiming = choice["claimed"]
    goes_on = [node for node in claiming if not (answers[node] or {}).get("ended")]
    ended: list[str] = []
    if not attempt.over:
        ended = [node for node in claiming if node not in goes_on]
    return {
        "run": choice["run"],
        "number": attempt.number,
        "ended": ended,
        "goes_on": goes_on,
        "silent": silent,
        "notes": choice["notes"],
    }


def _no_run_text(
    run: str, answers: Mapping[str, Json | None], local: Sequence[str], silent: Sequence[str]
) -> str:
    """Return the message that no node and no directory knows the run."""
    run_text = "any run"
    if run:
        run_text = "the run " + run
    text = f"no node knows {run_text}, and the controller has no copy"
    known = set(run_choice.known_runs(answers)) | set(local[-5:])
    if known:
        text += "; known: " + ", ".join(sorted(known, reverse=True))
    if silent:
        text += "; no answer from " + ", ".join(silent)
    return text


class LocalAttempt:
    """One attempt's files on the controller.

    A missing or damaged `plan` or `index` stands as None. Raises NewerIndex where only a
    newer Trainyard can read the index.
    """

    def __init__(self, runs_dir: str, run: str, number: int | None = None) -> None:
        run_dir = os.path.join(runs_dir, run)
        self.run, self.number = run, number or max(list_attempts(run_dir), default=1)
        folder = f"attempt-{self.number}"
        self.path = os.path.join(run_dir, folder)
        self.shown = os.path.join(os.path.basename(os.path.normpath(runs_dir)), run, folder)
        self.plan: Json | None = None
        plan = run_json.read_plan(run_dir, self.number)
        if isinstance(plan, dict) and all(
            isinstance(plan.get(k), list) for k in ("ranks", "nodes")
        ):
            self.plan = plan
        self.index: Json | None = None
        try:
            self.index = rank_index.read_index(self.path)
        except rank_index.NewerIndex:
            raise
        except rank_index.IndexProblem:
            pass  # written again where a node answers
        self.secrets: Secrets = secrets_of(self.plan)

    @property
    def nodes(self) -> list[str]:
        """Return the names of the run's nodes, in the order of the plan."""
        names: list[str] = []
        if self.plan:
            names += [node["name"] for node in self.plan["nodes"]]
        names += [rank["node"] for rank in self._indexed("ranks") if rank["node"]]
        return list(dict.fromkeys(name for name in names if NAME.match(str(name))))

    def _indexed(self, key: str) -> Sequence[Json]:
        return (self.index or {}).get(key, ())

    @property
    def over(self) -> bool:
        """Return whether everything is on the controller and nothing more can come."""
        if not self.plan or not self.index:
            return False
        return rank_index.is_complete(self.index, self.plan)

    @property
    def zones(self) -> dict[str, float]:
        """Return {node: seconds east of UTC} of the nodes that reported it."""
        return {
            node["node"]: node["utc_offset"]
            for node in self._indexed("nodes")
            if node.get("utc_offset") is not None
        }

    def logs(self) -> list[log_view.Log]:
        """Return the log_view.Log objects that are here."""
        return log_view.logs_in(self.path, self.nodes)

    def planned(self) -> list[log_view.Log]:
        """Return a Log without a file for every rank of the plan, those to come."""
        if not self.plan:
            return []
        logs = []
        for rank in self.plan["ranks"]:
            name = f"rank-{rank['rank']:03d}"
            home = f"{name}.{rank['node']}.log"
            logs.append(log_view.Log(home, name, rank["node"], os.path.join(self.path, home), 0))
        return logs
