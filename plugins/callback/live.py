# SPDX-License-Identifier: GPL-3.0-or-later
"""Ansible's own output on the terminal, with a live view and a verdict at the end."""

from __future__ import annotations

DOCUMENTATION = r"""
name: live
type: stdout
short_description: Ansible's default output with a live view of the training
description:
  - While an attempt is followed, shows how the run and its nodes are; redrawn in place on a
    terminal, a few plain lines in a pipe.
  - Under ansible-runner, whose own callback takes the place of this one,
    C(ANSIBLE_STDOUT_CALLBACK=trainyard.cluster.live) in its C(env/envvars) makes its events hold
    the plain lines; see docs/runbooks/live-view.md.
  - Without C(-v) a play or a task has a heading only if a line follows, a message of C(debug) is
    plain, and a failure comes once, after the recap, without the task's source.
  - At the very end it prints the run's summary; the last line is the verdict.
  - Ctrl-C leaves the run alone and prints how to come back to it and how to stop it.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
options:
  live:
    description: Redraw in place on a terminal; off means plain lines everywhere, as in a pipe and
      with C(-v).
    type: bool
    default: true
    env:
      - name: TRAINYARD_LIVE
"""

import os
import sys
import time

from ansible import constants as C
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base import sanitize
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import module_payload
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import (
    broken_pipe,
    interruption,
    terminal,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import (
    detach_hint,
    model,
    plain_lines,
    quiet_callback,
    screen,
    terminal_picture,
    this_command,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live.quiet_callback import module_of

printable = sanitize.printable
answer_gate.prepare()

# Of more nodes than this, not every answer is drawn at once: a picture costs about as much as the
# answers of all of them.
FEW_NODES, PAUSE_SECONDS = 8, 0.5
# Modules whose arguments or results hold the plan, and in it the site's and the job's environment:
# -v and -vvv must not print a secret of it.
HOLD_SECRETS = (
    "attempt",
    "job_inputs",
    "plan",
    "proof",
    "job_config",
    "node_replacement",
    "resume_decision",
    "run_choice",
    "run_info",
    "run_record",
    "stop_summary",
)


def _of_controller(result):
    """Return whether a task ran on the controller.

    A node's answer must not replace the verdict.
    """
    return "localhost" in (result.task.delegate_to, result.host.get_name())


class CallbackModule(quiet_callback.QuietCallback):
    """Ansible's output with a live view, a summary and help after Ctrl-C."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "trainyard.cluster.live"

    def __init__(self):
        super().__init__()
        terminal.install()
        if hasattr(sys.stdout, "reconfigure"):
            # Display does not flush. A reader of a pipe gets every line when it is printed.
            sys.stdout.reconfigure(line_buffering=True)
        self._watch, self._ticker = model.Watch(), plain_lines.Ticker()
        self._picture, self._summary = terminal_picture.Picture(self._display), []
        self._pid, self._following, self._secrets = os.getpid(), None, sanitize.Secrets((), ())
        self._unshown = set()  # nodes whose status could not be shown
        self._recorded = 0  # the attempt that the summary is about, 0 for none
        interruption.at_end(self._detached)
        terminal.set_broken_pipe_handler(self._end_unread)

    # --- live view

    def _in_place(self):
        # ansible-runner's callback inherits from this one, and has a pseudo-terminal whose bytes
        # become events.
        return (
            self.CALLBACK_NAME == "trainyard.cluster.live"
            and self.get_option("live")
            and self._display.verbosity == 0
            and sys.stdout.isatty()
            and os.environ.get("TERM", "dumb") != "dumb"
        )

    def _show(self, name, status, last=False):
        """Show a node's status.

        A status that cannot be shown costs that node's line and nothing else.
        """
        try:
            self._show_sound(name, status, last)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            self._watch.nodes.pop(name, None)
            if name not in self._unshown:
                self._unshown.add(name)
                self._display.display(
                    printable(f"{name} gave a status that cannot be shown"), color=C.COLOR_WARN
                )

        if broken_pipe.is_broken(broken_pipe.STDOUT):
            self._end_unread()  # now, and not with the next line, which may be minutes away

    def _show_sound(self, name, status, last):
        now, self._watch.secrets = time.monotonic(), self._secrets
        if not self._watch.add(name, status, now, time.time()):
            return
        if status.get("found"):
            self._end_earlier(status.get("attempt"))
            self._following = None
            if self._goes_on() and RUN_ID.match(status["run"]):
                self._following = status["run"]
        self._print_play_heading()
        if not self._in_place():
            for text, style in self._ticker.lines(self._watch, name, now):
                self._display.display(
                    printable(text, limit=4000), color=terminal_picture.COLOURS.get(style)
                )
            return
        self._picture.due = True
        few_nodes = len(self._watch.order()) <= FEW_NODES
        if last or few_nodes or now - self._picture.when >= PAUSE_SECONDS:
            self._draw()

    def _goes_on(self):
        return any(not known["ended"] for known in self._watch.known())

    def _draw(self):
        for text in self._ticker.head(self._watch):
            self._display.display(text)
        look = self._picture.look()
        self._picture.draw(screen.picture(self._watch, time.monotonic(), look), look)

    def _leave(self):
        """Leave the last picture above the output of the task that begins."""
        if self._picture.due and self._watch.nodes:
            self._draw()
        self._picture.leave()

    def _status_of(self, result):
        """Return the status that a task returned, as plain data, or None."""
        if module_of(result) != "attempt_monitor":
            return None
        status = result.result.get("status")
        if not isinstance(status, dict):
            return None
        return plain({key: status[key] for key in status if key in model.KEEP})

    def v2_runner_retry(self, result):
        status = self._status_of(result)
        if status:
            self._show(result.host.get_name(), status)
        else:
            super().v2_runner_retry(result)

    def v2_runner_on_ok(self, result):
        status = self._status_of(result)
        if status:
            self._show(result.host.get_name(), status, last=True)
            return
        if _of_controller(result) and result.result.get("summary") and "verdict" in result.result:
            self._set_summary(result.result["summary"])
            self._recorded, self._following = result.result.get("attempt") or 0, None
        if module_of(result) == "attempt":
            stopped = result.result.get("stopped")
            if isinstance(stopped, (list, tuple)) and self._following in stopped:
                self._following = None  # stop.yml has just ended it
        self._keep_table(result)
        self._spare_secrets(result)
        super().v2_runner_on_ok(result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._keep_table(result)
        self._spare_secrets(result)
        super().v2_runner_on_failed(result, ignore_errors)

    def _dump_results(
        self, result, indent=None, sort_keys=True, keep_invocation=False, serialize=True
    ):
        """Return what Ansible shows of a result, safe for a terminal.

        However verbose it is, it has no secret of the plan and nothing that a terminal would obey.
        """
        # What a preflight refuses is in its message, for people.
        shown = {key: result[key] for key in result if key not in ("stops", "refused", "codes")}
        text = super()._dump_results(shown, indent, sort_keys, keep_invocation, serialize)
        if not isinstance(text, str):
            return text
        return printable(text, *self._secrets, limit=len(text) + 1, newlines=True)

    def v2_runner_on_unreachable(self, result):
        self._watch.lose(result.host.get_name())
        super().v2_runner_on_unreachable(result)

    def _spare_secrets(self, result):
        """Keep the plan's secrets out of the output of this task and of all later ones."""
        if module_of(result) == "plan" and isinstance(result.result.get("plan"), dict):
            self._secrets = sanitize.secrets_of(plain(result.result["plan"]))
            terminal.set_secrets(self._secrets)
        if module_of(result) in HOLD_SECRETS:
            result.result["_ansible_verbose_override"] = True
            result.result.pop("invocation", None)

    def _end_earlier(self, attempt):
        """Print the summary of an earlier attempt before the live view of the next one.

        resume.yml collects an attempt that nobody has followed, and then starts its own.
        """
        if self._recorded and isinstance(attempt, int) and attempt > self._recorded:
            for line in [*self._summary, ""]:
                self._display.display(line)
            self._summary, self._recorded = [], 0

    def _set_summary(self, lines):
        commands = this_command.command_line()
        self._summary = [
            commands.complete(printable(line, *self._secrets)) for line in plain(lines)
        ]

    def _keep_table(self, result):
        """Keep the lines of a check for the end, and the path of a run's report.

        The findings of check.yml and the table of runs.yml are shown at the very end. The report
        comes before the verdict.
        """
        tables = ("findings_report", "run_list")
        if module_of(result) in tables and isinstance(result.result.get("lines"), list):
            self._set_summary(result.result.pop("lines"))
        if module_of(result) == "run_record" and _of_controller(result):
            self._replace_line(str(result.result.get("line") or ""))
        if module_of(result) == "run_report" and self._summary:
            path = str(result.result.get("report") or "none")
            relative = os.path.relpath(path)
            if path != "none" and not relative.startswith(".."):
                path = relative
            self._summary.insert(self._place_of_report(), printable("report       " + path))

    def _replace_line(self, line):
        """Replace the summary's line that begins with the same word, as `checkpoint`."""
        for place, known in enumerate(self._summary):
            if line and known.split(" ")[0] == line.split(" ")[0]:
                self._summary[place] = printable(line, *self._secrets)

    def _place_of_report(self):
        """Return the place of the report's path: after the run record, or before the verdict."""
        for place, line in enumerate(self._summary):
            if line.startswith("run record "):
                return place + 1
        return -1

    def v2_playbook_on_play_start(self, play):
        self._leave()
        super().v2_playbook_on_play_start(play)

    def v2_playbook_on_task_start(self, task, is_conditional):
        """Build the task's payload once for all its workers, which are forked after this."""
        module_payload.prepare(task.action)
        super().v2_playbook_on_task_start(task, is_conditional)

    def _task_start(self, task, prefix=None):
        self._leave()
        super()._task_start(task, prefix=prefix)

    # --- the end

    def v2_playbook_on_no_hosts_matched(self):
        """Print nothing for a play without hosts.

        It is a step that is not needed, and Ansible's 'skipping: no hosts matched' would only
        worry.
        """

    def v2_playbook_on_stats(self, stats):
        self._leave()
        super().v2_playbook_on_stats(stats)
        self.show_problems(known=self._summary)
        lines = self._summary
        if lines and not lines[0]:
            lines = lines[1:]  # the recap ends with an empty line
        for line in lines:
            self._display.display(line)

    def _detached(self):
        """Print how to come back to a run that still goes on.

        That is after Ctrl-C, or any other end of this process.
        """
        if os.getpid() != self._pid:
            return
        self.show_problems()  # those of a command that was ended before its recap
        if not self._following:
            return
        self._leave()
        self._write_hint(sys.stdout)

    def _write_hint(self, stream):
        text = detach_hint.describe_detached_run(self._following, this_command.command_line())
        stream.write(text)
        stream.flush()

    def _end_unread(self):
        """End as with Ctrl-C if nobody reads the output. A run that is followed goes on."""
        if broken_pipe.is_broken(broken_pipe.STDERR):
            broken_pipe.silence(broken_pipe.STDERR)
        if not broken_pipe.is_broken(broken_pipe.STDOUT):
            return
        broken_pipe.silence(broken_pipe.STDOUT)
        if self._following:
            self._write_hint(sys.stderr)
            self._following = None
        interruption.interrupt()
