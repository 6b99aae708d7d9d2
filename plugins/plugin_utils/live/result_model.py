# SPDX-License-Identifier: Apache-2.0
"""The result of a playbook, as one JSON object for programs. Pure.

docs/runbooks/command.md lists the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    printable,
    secrets_of,
)

from .command_line import CommandLine, complete_all
from .model import NO_SECRETS, Json, reduce_status

VERSION = 1
# The parts of a verdict that a program reads. docs/run-json.md says what they are.
VERDICT_KEYS = (
    "outcome",
    "code",
    "cause",
    "text",
    "node",
    "rank",
    "exit_code",
    "signal",
    "log",
    "line",
    "remedy",
    "unreachable",
)
# So many problems are kept, and so many characters of each.
MOST_PROBLEMS, MOST_CHARACTERS = 200, 4000


class PlaybookResult:
    """The parts of the tasks' results that a program wants.

    ended: whether the playbook came to its end. detached: 'first_step' or 'interrupted' if this
    process left a run alone. unreachable: names of nodes that gave no answer.
    """

    def __init__(self) -> None:
        self.ended = False
        self.detached: str | None = None
        self.unreachable: set[str] = set()
        self._secrets = NO_SECRETS
        self._run: str | None = None
        self._attempt: int | None = None
        self._verdict: Json | None = None
        self._again: Json | None = None
        self._report: str | None = None
        self._runs: list[Json] = []
        self._statuses: dict[str, Json] = {}
        self._problems: list[Json] = []

    def add(self, module: str, host: str, data: Mapping[str, Any]) -> None:
        """Take over what a task has returned. module: its name without the collection."""
        if module == "plan" and isinstance(data.get("plan"), dict):
            self._secrets = secrets_of(data["plan"])
        elif module == "attempt_monitor" and isinstance(data.get("status"), dict):
            self._add_status(host, data["status"])
        elif module == "run_record" and isinstance(data.get("verdict"), dict):
            self._add_verdict(data)
        elif module == "run_report" and data.get("report"):
            self._report = str(data["report"])
        elif module == "run_list":
            self._runs, self._report = data.get("runs") or [], data.get("index")

    def add_failure(self, module: str, host: str, data: Mapping[str, Any]) -> None:
        """Take over why a task has failed."""
        self.add(module, host, data)
        if module == "run_record" or len(self._problems) >= MOST_PROBLEMS:
            return  # the verdict says it
        codes = data.get("codes") or []
        if not codes and data.get("code"):
            codes = [data["code"]]
        text = printable(
            str(data.get("msg") or ""), *self._secrets, limit=MOST_CHARACTERS, newlines=True
        )
        self._problems.append({"host": host, "codes": list(codes), "text": text})

    def has_step(self) -> bool:
        """Return whether a rank of any node has printed a step."""
        return any(
            rank.get("step") for status in self._statuses.values() for rank in status["ranks"]
        )

    def as_json(self, commands: CommandLine | None = None) -> Json:
        """Return the object. A field without a value is null or empty.

        commands: of this playbook, to complete those in the texts.
        """
        commands = commands or CommandLine()
        return {
            "version": VERSION,
            "run": self._run,
            "attempt": self._attempt,
            "verdict": complete_all(self._verdict, commands),
            "again": self._again,
            "report": self._report,
            "detached": self.detached,
            "unreachable": sorted(self.unreachable),
            "problems": complete_all(self._problems, commands),
            "statuses": self._statuses,
            "runs": self._runs,
        }

    def _add_status(self, host: str, status: Mapping[str, Any]) -> None:
        reduced = reduce_status(status, self._secrets)
        self._statuses[host] = reduced
        if not reduced.get("found"):
            return
        run, attempt = reduced.get("run"), reduced.get("attempt")
        if self._verdict and isinstance(attempt, int) and attempt > (self._attempt or 0):
            self._verdict = self._again = self._report = None  # of an earlier attempt
        self._run, self._attempt = run, attempt

    def _add_verdict(self, data: Mapping[str, Any]) -> None:
        self._run, self._attempt = data.get("run"), data.get("attempt")
        verdict = {key: data["verdict"].get(key) for key in VERDICT_KEYS}
        self._verdict = {key: self._safe(value) for key, value in verdict.items()}
        self._again = dict(data.get("again") or {}) or None

    def _safe(self, value: Any) -> Any:
        """Return a value of a verdict, its texts safe to show."""
        if isinstance(value, str):
            return printable(value, *self._secrets, limit=MOST_CHARACTERS)
        if isinstance(value, list):
            return [self._safe(item) for item in value]
        return value
