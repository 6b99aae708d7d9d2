# SPDX-License-Identifier: GPL-3.0-or-later
"""Show the logs of a run. Documented in library/logs_show.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.modules.logs_show import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import logs_options
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logs_action import LogsAction
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import archive, log_view


class ActionModule(LogsAction):
    """Print the answer, the ends of the logs, or where all of them lie."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def answer(self) -> Result:
        """Return {offsets}: how far each log has been shown."""
        home, asks = self._attempt(), self._options
        offsets: dict[str, int] = {}
        logs = home.logs()
        here = {log.home for log in logs}
        every = list(logs)
        if asks["follow"]:
            every += [log for log in home.planned() if log.home not in here]
        self._refuse(home, every, home.nodes)
        if home.index is None:
            home.index = {"ranks": [], "files": [], "run": home.run, "attempt": home.number}
        if asks["query"] is not None:
            lines, problem = logs_options.answer_query(home.index, asks["query"], home.secrets)
            if problem:
                self.fail(printable(problem, newlines=True))
        elif self._wants_lines():
            chosen = log_view.select_logs(every, asks["ranks"], asks["node"])[0]
            lines, offsets = self._ends(home, [log for log in chosen if log.home in here])
        else:
            lines = self._overview(home, logs)
        self._display.display("\n" + "\n".join(lines) + "\n")
        return {"offsets": offsets}

    def _wants_lines(self) -> bool:
        if self._options["follow"]:
            return True
        return any(self._options[name] is not None for name in ("lines", "ranks", "node"))

    def _overview(self, home: archive.LocalAttempt, logs: list[Any]) -> list[str]:
        """Return the lines that name a run's logs."""
        state = "over"
        if self._choice["goes_on"]:
            state = "goes on"
        head = f"run {home.run}, attempt {home.number}: {state}"
        return [head, "", *log_view.describe_logs(home.index or {"ranks": []}, logs, home.shown)]

    def _ends(
        self, home: archive.LocalAttempt, logs: list[Any]
    ) -> tuple[list[str], dict[str, int]]:
        """Return (the ends of logs as lines, {home: where they end}).

        Lines of several logs are merged.
        """
        most, is_over = (
            self._options["lines"] or logs_options.DEFAULT_LINES,
            not self._choice["goes_on"],
        )
        found, ends = log_view.merge_lines(logs, most, home.zones, is_over)
        if len(logs) == 1 and not self._options["follow"]:
            log = logs[0]
            head = f"{home.shown}/{log.home}: its last {len(found)} lines, {log.bytes} bytes in all"
            return [
                head,
                "",
                *(log_view.format_line(line, home.secrets) for _log, line in found),
            ], ends
        view = self._view(home, logs)
        lines = [view.lines(log.label, [line])[0] for log, line in found]
        if self._options["follow"]:
            last = f"the run {home.run} is over"
            if self._choice["follow"]:
                last = (
                    f"following the run {home.run}; Ctrl-C ends this view and leaves the run alone"
                )
            lines += ["", last]
        return lines, ends
