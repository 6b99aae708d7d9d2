# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's default output without what a person does not need.

A play or a task has a heading only if a line follows. A failure is marked where it happens, and its
message comes once, at the very end, without the source of the task. With -v everything is as in
Ansible's default callback. With TRAINYARD_BRIEF=1 there are only messages and failures.
"""

from __future__ import annotations

import os
from typing import Any

from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback.default import CallbackModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain

from . import problems, this_command
from .terminal_picture import COLOURS

# It has no annotations.
_Default: Any = CallbackModule
# Bookkeeping of a playbook: nobody waits for their results.
BOOKKEEPING = ("add_host", "group_by")
# Modules whose silent nodes a later task names, with the connection's words.
JUDGED_LATER = ("node_info", "network_check", "rehearsal_wait")
# A plan of many nodes has long commands.
LONGEST_LINE = 100_000


def module_of(result: Any) -> str:
    """Return the name of a task's module without its collection."""
    name: str = result.task.action.split(".")[-1]
    return name


class QuietCallback(_Default):  # type: ignore[misc]
    """Default output, with headings that are due and failures that are collected."""

    def __init__(self) -> None:
        super().__init__()
        self._due_play: Any = None  # its heading was not printed yet
        # What ends the command, and what the playbook goes on with.
        self._problems, self._tolerated = problems.Problems(), problems.Problems()
        self._lost_nodes: set[tuple[str, str]] = set()  # (node, reason) that were shown

    @property
    def _is_quiet(self) -> bool:
        """Return whether the output is for a person who did not ask for more."""
        return bool(self._display.verbosity == 0)

    @property
    def _is_brief(self) -> bool:
        """Return whether the output is for a person who waits for the answer of a question."""
        return self._is_quiet and os.environ.get("TRAINYARD_BRIEF") == "1"

    # --- headings

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._end_task()
        self._play, self._due_play = play, play
        if not self._is_quiet:
            self._print_play_heading()

    def _print_play_heading(self) -> None:
        play, self._due_play = self._due_play, None
        if play is not None and not self._is_brief:
            super().v2_playbook_on_play_start(play)

    def _print_task_banner(self, task: Any) -> None:
        self._print_play_heading()
        if self._is_brief:
            self._last_task_banner = task._uuid
        else:
            super()._print_task_banner(task)

    def _print_heading_of(self, result: Any) -> None:
        if self._last_task_banner != result.task._uuid:
            self._print_task_banner(result.task)

    def _task_start(self, task: Any, prefix: str | None = None) -> None:
        self._end_task()
        super()._task_start(task, prefix=prefix)
        # A task on nodes may take minutes before its first line.
        due = self._due_play
        if due is not None and list(due.hosts) != ["localhost"] and not task.run_once:
            self._print_play_heading()

    def v2_playbook_on_include(self, included_file: Any) -> None:
        if not self._is_quiet:
            super().v2_playbook_on_include(included_file)

    def v2_playbook_on_no_hosts_remaining(self) -> None:
        if not self._is_quiet:
            super().v2_playbook_on_no_hosts_remaining()

    # --- results

    def v2_runner_on_ok(self, result: Any) -> None:
        if not (self._is_quiet and self._show_plainly(result)):
            super().v2_runner_on_ok(result)

    def v2_runner_item_on_ok(self, result: Any) -> None:
        if not (self._is_quiet and self._show_plainly(result)):
            super().v2_runner_item_on_ok(result)

    def _show_plainly(self, result: Any) -> bool:
        """Show a result that needs no frame around it. Return whether that was done."""
        is_debug = module_of(result) == "debug"
        is_bookkeeping = module_of(result) in BOOKKEEPING or isinstance(result.task, TaskInclude)
        if is_bookkeeping or (self._is_brief and not is_debug):
            self._handle_warnings(result.result)
            return True
        if not is_debug:
            return False
        if "results" in result.result:  # of a loop, whose items were shown
            return True
        lines = _message_lines(result.result.get("msg"))
        if lines is None:
            return False
        if lines:
            self._print_heading_of(result)
        node = result.host.get_name()
        for line in lines:
            if not _of_all_nodes(result) and not line.startswith(node):
                line = f"{node}: {line}"
            text = printable(line, limit=LONGEST_LINE)
            self._display.display(this_command.command_line().complete(text))
        return True

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if not self._is_quiet:
            super().v2_runner_on_failed(result, ignore_errors)
            return
        self._handle_warnings(result.result)
        tolerated = ignore_errors or _is_rescued(result.task)
        if not problems.is_of_loop(result.result):
            self._note(result, plain(dict(result.result)), tolerated)
        self._mark(result, "failed", COLOURS["bad"], tolerated)

    def v2_runner_item_on_failed(self, result: Any) -> None:
        if not self._is_quiet:
            super().v2_runner_item_on_failed(result)
            return
        self._handle_warnings(result.result)
        data = plain(dict(result.result))
        data["msg"] = f"{self._get_item_label(result.result)}: {data.get('msg', 'failed')}"
        self._note(result, data, bool(result.task.ignore_errors) or _is_rescued(result.task))

    def v2_runner_on_unreachable(self, result: Any) -> None:
        if not self._is_quiet:
            super().v2_runner_on_unreachable(result)
            return
        self._handle_warnings(result.result)
        tolerated = bool(result.task.ignore_unreachable)
        shown = (result.host.get_name(), str(result.result.get("msg")))
        if not tolerated or (shown not in self._lost_nodes and not _is_judged_later(result)):
            self._note(result, plain(dict(result.result)), tolerated)
            self._lost_nodes.add(shown)
        self._mark(result, "unreachable", COLOURS["gone"], tolerated)

    def _note(self, result: Any, data: dict[str, Any], tolerated: bool) -> None:
        """Keep a failure: for the end of the task if the playbook goes on, else for the end."""
        kept = self._problems
        if tolerated:
            kept = self._tolerated
        node = None
        if not _of_all_nodes(result):
            node = result.host.get_name()
        address = str(getattr(result.host, "vars", {}).get("ansible_host") or "")
        kept.add(node, address, result.task.action, result.task.get_name(), data)

    def _mark(self, result: Any, word: str, color: str, tolerated: bool) -> None:
        """Show where a task failed. A refusal of the controller is its own mark."""
        if _of_all_nodes(result) and not tolerated:
            return
        self._print_heading_of(result)
        if tolerated:
            word += ", the playbook goes on"
        self._display.display(f"{word}: [{self.host_label(result)}]", color=color)

    # --- the ends

    def _end_task(self) -> None:
        """Show the failures of the last task that the playbook goes on with."""
        self._print_kept(self._tolerated, COLOURS["warn"])

    def show_problems(self, known: list[str] | None = None) -> None:
        """Show the failures that end the command, once, without the lines in `known`."""
        self._print_kept(self._problems, COLOURS["bad"], known or [])

    def _print_kept(
        self, kept: problems.Problems, color: str, known: list[str] | None = None
    ) -> None:
        on_stderr = self.get_option("display_failed_stderr")
        commands = this_command.command_line()
        for line in kept.lines(known or ()):
            text = commands.complete(printable(line, limit=LONGEST_LINE))
            self._display.display(text, color=color, stderr=on_stderr)
        kept.clear()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._end_task()
        if not self._is_brief:
            super().v2_playbook_on_stats(stats)


def _message_lines(message: Any) -> list[str] | None:
    """Return a debug message as lines, or None if it is data."""
    message = plain(message)
    if isinstance(message, str):
        return message.splitlines()
    if isinstance(message, list) and all(isinstance(line, str) for line in message):
        return message
    return None


def _of_all_nodes(result: Any) -> bool:
    """Return whether a result is about the whole command: the controller's, or run_once."""
    on_controller = "localhost" in (result.host.get_name(), result.task.delegate_to)
    return on_controller or bool(result.task.run_once)


def _is_judged_later(result: Any) -> bool:
    return module_of(result) in JUDGED_LATER


def _is_rescued(task: Any) -> bool:
    """Return whether a block around the task has a rescue for its failure."""
    block = getattr(task, "_parent", None)
    while block is not None:
        inside = any(item._uuid == task._uuid for item in getattr(block, "block", ()))
        if inside and getattr(block, "rescue", None):
            return True
        task, block = block, getattr(block, "_parent", None)
    return False
