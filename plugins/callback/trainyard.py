# SPDX-License-Identifier: GPL-3.0-or-later
"""The terminal while a run is prepared, followed and ended: Ansible's own output, plus a live view
and the verdict as the last line.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: trainyard
type: stdout
short_description: Ansible's default output with a live view of the training
description:
  - While an attempt is followed, shows how the run and its nodes are; redrawn in place on a terminal, a few plain lines in a pipe.
  - Under ansible-runner, whose own callback takes the place of this one, C(ANSIBLE_STDOUT_CALLBACK=trainyard) and
    C(ANSIBLE_CALLBACK_PLUGINS=plugins/callback) in its C(env/envvars) make its events hold the plain lines; see docs/runbooks/live-view.md.
  - After the recap it prints the run's summary; the last line is the verdict.
  - Ctrl-C leaves the run alone and prints how to come back to it and how to stop it.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
options:
  live:
    description: Redraw in place on a terminal; off means plain lines everywhere, as in a pipe and with C(-v).
    type: bool
    default: true
    env:
      - name: TRAINYARD_LIVE
"""

import atexit
import os
import shlex
import shutil
import sys
import threading
import time

from ansible import constants as C
from ansible import context
from ansible.plugins.callback.default import CallbackModule as Default
from ansible.utils.color import stringc
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base import (
    sanitize,
    terminal,
    text_layout,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.module_utils.live import (
    model,
    plain_lines,
    screen,
)

printable = sanitize.printable
answer_gate.prepare()

COLOURS = {
    "good": C.COLOR_OK,
    "bad": C.COLOR_ERROR,
    "warn": C.COLOR_WARN,
    "gone": C.COLOR_UNREACHABLE,
    "quiet": C.COLOR_SKIP,
}
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
    "read_job",
    "replacement",
    "resumed_run",
    "run_record",
)


class Picture:
    """What stands on the terminal: the next picture goes over it, and it makes room before anybody
    else prints.
    """

    def __init__(self, display):
        self._display, self._lock, self._pid = display, threading.RLock(), os.getpid()
        self._stood, self.when, self.due = [], 0.0, False

    def look(self):
        """Return the terminal's size now, and whether it shows more than ASCII."""
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except (AttributeError, OSError, ValueError):
            size = (0, 0)
        size = size if all(size) else shutil.get_terminal_size((100, 24))
        encoding = str(getattr(sys.stdout, "encoding", "utf-8")).lower().replace("-", "")
        return screen.Look(
            *size, encoding == "utf8" and os.environ.get("TERM") != "linux"
        )  # the kernel's console has no such font

    def draw(self, lines, look):
        """Draw lines of (text, style) over the picture that stands."""
        if not look.utf8:
            lines = [
                [(text.encode("ascii", "replace").decode(), style) for text, style in line]
                for line in lines
            ]
        painted = [
            "".join(paint(sanitize.escape(text), COLOURS.get(style)) for text, style in line)
            for line in lines
        ]
        with self._lock:
            self._display.display = self._display_beside
            self._write(screen.repaint(self._stood, look.columns, painted))
            self._stood = [sum(text_layout.width(text) for text, _style in line) for line in lines]
            self.when, self.due = time.monotonic(), False

    def _display_beside(self, *args, **kwargs):
        """Ansible's display() while a picture stands: warnings and errors come from everywhere, not
        from callbacks alone.
        """
        if os.getpid() != self._pid:  # a worker hands it to this process
            return type(self._display).display(self._display, *args, **kwargs)
        with self._lock:
            if self._stood:
                self._write(screen.repaint(self._stood, self.look().columns, ()))
                self._stood, self.due = [], True
            return type(self._display).display(self._display, *args, **kwargs)

    def leave(self):
        """What stands there stays; never draw over other output."""
        with self._lock:
            self._stood, self.due = [], False
            self._display.__dict__.pop("display", None)

    def _write(self, text):
        sys.stdout.write(text)
        sys.stdout.flush()


def paint(text, colour):
    """Return text in a colour, where Ansible's settings and NO_COLOR (any value, no-color.org) want
    colours.
    """
    return stringc(text, colour) if colour and not os.environ.get("NO_COLOR") else text


def _of_controller(result):
    """Return whether a task ran on the controller: a node's answer must not stand in for the
    verdict.
    """
    return "localhost" in (result.task.delegate_to, result.host.get_name())


class CallbackModule(Default):
    """Ansible's default callback, with three more things to say."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "trainyard"

    def __init__(self):
        super().__init__()
        terminal.install()
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(
                line_buffering=True
            )  # Display does not flush; who reads a pipe gets every line when it is printed
        self._watch, self._ticker, self._picture, self._summary = (
            model.Watch(),
            plain_lines.Ticker(),
            Picture(self._display),
            [],
        )
        self._pid, self._following, self._secrets = os.getpid(), None, sanitize.Secrets((), ())
        self._unshown = set()  # nodes whose status could not be shown
        atexit.register(self._detached)

    # --- live view

    def _in_place(self):
        # ansible-runner's callback inherits from this one, and has a pseudo-terminal whose bytes
        # become events.
        own = self.CALLBACK_NAME == "trainyard" and self.get_option("live")
        return (
            own
            and self._display.verbosity == 0
            and sys.stdout.isatty()
            and os.environ.get("TERM", "dumb") != "dumb"
        )

    def _show(self, name, status, last=False):
        """Show how a node stands; a status that cannot be shown costs that node's line and nothing
        else.
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

    def _show_sound(self, name, status, last):
        now, self._watch.secrets = time.monotonic(), self._secrets
        if not self._watch.add(name, status, now, time.time()):
            return
        if status.get("found"):
            goes_on = any(not known["ended"] for known in self._watch.known())
            self._following = status["run"] if goes_on and RUN_ID.match(status["run"]) else None
        if self._in_place():
            self._picture.due = True
            if (
                last
                or len(self._watch.order()) <= FEW_NODES
                or now - self._picture.when >= PAUSE_SECONDS
            ):
                self._draw()
        else:
            for text, style in self._ticker.lines(self._watch, name, now):
                self._display.display(printable(text, limit=4000), color=COLOURS.get(style))

    def _draw(self):
        for text in self._ticker.head(self._watch):
            self._display.display(text)
        look = self._picture.look()
        self._picture.draw(screen.picture(self._watch, time.monotonic(), look), look)

    def _leave(self):
        """Another task begins: the last picture stays above it."""
        if self._picture.due and self._watch.nodes:
            self._draw()
        self._picture.leave()

    def _status_of(self, result):
        found = (
            result.result.get("status")
            if result.task.action.split(".")[-1] == "attempt_status"
            else None
        )
        return (
            plain({key: found[key] for key in found if key in model.KEEP})
            if isinstance(found, dict)
            else None
        )

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
            self._summary = [
                printable(line, *self._secrets) for line in plain(result.result["summary"])
            ]
            self._following = None
        stopped = (
            result.result.get("stopped") if result.task.action.split(".")[-1] == "attempt" else None
        )
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
        """Whatever Ansible shows of a result, however verbose, without what the plan calls secret
        and what a terminal would obey.
        """
        shown = {
            key: result[key] for key in result if key not in ("stops", "refused")
        }  # what a preflight refuses stands in its message, for people
        text = super()._dump_results(shown, indent, sort_keys, keep_invocation, serialize)
        return (
            printable(text, *self._secrets, limit=len(text) + 1, newlines=True)
            if isinstance(text, str)
            else text
        )

    def v2_runner_on_unreachable(self, result):
        self._watch.lose(result.host.get_name())
        super().v2_runner_on_unreachable(result)

    def _spare_secrets(self, result):
        if result.task.action.split(".")[-1] == "plan" and isinstance(
            result.result.get("plan"), dict
        ):
            self._secrets = sanitize.secrets_of(plain(result.result["plan"]))
            terminal.hide(self._secrets)
        if result.task.action.split(".")[-1] in HOLD_SECRETS:
            result.result["_ansible_verbose_override"] = True
            result.result.pop("invocation", None)

    def _keep_table(self, result):
        """What check.yml has found is said once more at the very end, as it stands in the table; a
        run's report is named before its verdict.
        """
        if result.task.action.split(".")[-1] == "check_report" and isinstance(
            result.result.get("lines"), list
        ):
            self._summary = [
                printable(line, *self._secrets) for line in plain(result.result.pop("lines"))
            ]
        if result.task.action.split(".")[-1] == "run_report" and self._summary:
            path = str(result.result.get("report") or "none")
            near = (
                path
                if path == "none" or os.path.relpath(path).startswith("..")
                else os.path.relpath(path)
            )
            self._summary.insert(-1, printable("report       " + near))

    def v2_playbook_on_play_start(self, play):
        self._leave()
        super().v2_playbook_on_play_start(play)

    def _task_start(self, task, prefix=None):
        self._leave()
        super()._task_start(task, prefix=prefix)

    # --- the end

    def v2_playbook_on_no_hosts_matched(self):
        """A play without hosts is a step that is not needed; Ansible's 'skipping: no hosts matched'
        would only worry.
        """

    def v2_playbook_on_stats(self, stats):
        self._leave()
        super().v2_playbook_on_stats(stats)
        for line in self._summary:
            self._display.display(line)

    def _detached(self):
        """After Ctrl-C (or any other end of this process) with the run still going: say how to come
        back.
        """
        if os.getpid() != self._pid or not self._following:
            return
        run = self._following
        self._leave()
        given = [
            source
            for source in context.CLIARGS.get("inventory") or ()
            if source not in [os.path.abspath(p) for p in C.DEFAULT_HOST_LIST]
        ]
        site = "".join(f"-i {shlex.quote(source)} " for source in given)
        run = shlex.quote(run)
        text = (
            "\nThe run %s goes on without this terminal."
            "\n  follow it again:  ansible-playbook %splaybooks/follow.yml -e run=%s"
            "\n  how it stands:    ansible-playbook %splaybooks/status.yml -e run=%s"
            "\n  stop it:          ansible-playbook %splaybooks/stop.yml -e run=%s\n"
        )
        sys.stdout.write(
            sanitize.escape(text % (run, site, run, site, run, site, run), newlines=True)
        )
        sys.stdout.flush()
