# SPDX-License-Identifier: GPL-3.0-or-later
"""Start a run again after its end, where its record says so: wait, and put resume.yml in the place
of this process.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: trainyard_again
type: aggregate
short_description: Starts a run again after a failure of a machine or a network
description:
  - Notes what C(run_record) decided on a run's restart (job key C(max_restarts)). At the end of the playbook it waits and then becomes
    C(ansible-playbook playbooks/resume.yml) of that run with the options of this command, so the exit code is the last attempt's.
  - A restart whose preparation fails, since a node still boots, is tried again some times. Ctrl-C ends the wait, and with it the restarts.
  - Remembers a node that was to stand in for a lost one and was not ready (its preflight, what had to be brought): another one is tried next.
  - Nothing is started again with C(--check), nor where a password was typed (C(-k), C(-K), C(-J), a vault id that prompts).
options:
  restart:
    description: Off means that whatever the record says is left to a person.
    type: bool
    default: true
    env:
      - name: TRAINYARD_RESTART
requirements: [enabled in ansible.cfg with callbacks_enabled]
"""

import os
import shutil
import sys
import time

from ansible import constants as C
from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base import terminal
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import (
    failed_nodes,
    replacement_failures,
    restart_policy,
    resume_command,
)

_PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class CallbackModule(CallbackBase):
    """What the record says, and at the end the next command."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "trainyard_again"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        terminal.install()  # where another callback prints, this one is loaded all the same
        self._ended, self._refused, self._followed, self._complete = None, False, False, False
        self._newcomers = replacement_failures.Newcomers()

    def v2_playbook_on_play_start(self, play):
        self._newcomers.play()

    def v2_runner_on_ok(self, result):
        chosen = self._of(result, "replacement")
        if chosen and "new" in chosen:
            self._newcomers.chosen(chosen)
        elif self._of(result, "attempt_status"):
            self._newcomers.begun()
        said = self._of(result, "run_record")
        if said and "again" in said and "verdict" in said and RUN_ID.match(str(said.get("run"))):
            self._ended = said
        self._followed = (
            self._followed or (self._of(result, "resumed_run") or {}).get("mode") == "follow"
        )

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._refused = self._refused or bool(
            (self._of(result, "resumed_run") or {}).get("refused")
        )
        self._complete = self._complete or bool((self._of(result, "plan") or {}).get("refused"))
        stops = (self._of(result, "plan") or self._of(result, "proof") or {}).get("stops")
        if stops:
            self._newcomers.stopped(stops)
        elif not (ignore_errors or result.task.run_once or self._of(result, "run_record")):
            self._newcomers.failed(
                result.task._uuid, result.host.get_name(), result.task.name or result.task.action
            )

    def v2_runner_on_unreachable(self, result):
        if self._of(result, "attempt_status"):
            self._newcomers.begun()
        elif not result.task.ignore_unreachable:
            self._newcomers.failed(result.task._uuid, result.host.get_name(), "unreachable")

    @staticmethod
    def _of(result, module):
        """Return what a task of this module gave, as plain data, or None."""
        return plain(dict(result.result)) if result.task.action.split(".")[-1] == module else None

    def v2_playbook_on_stats(self, stats):
        if context.CLIARGS.get("check"):
            return
        self._note_unready(
            [
                host
                for host in stats.processed
                if any(stats.summarize(host)[kind] for kind in ("failures", "unreachable"))
            ]
        )
        if not self.get_option("restart"):
            return
        mine = resume_command.of_restart(context.CLIARGS.get("extra_vars") or ())
        decided = (self._ended or {}).get("again") or {}
        failed = any(
            stats.summarize(host)[kind]
            for host in stats.processed
            for kind in ("failures", "unreachable")
        )
        if decided.get("again"):
            self._go_on(self._ended["run"], self._ended["attempt"], 1, decided["delay"])
        elif mine and self._complete:
            text = "%s is not started again: as far as its newest checkpoint says, it is complete"
            self._display.display("\n" + printable(text % mine["run"]), color=C.COLOR_WARN)
        elif mine and failed and not self._refused and not self._decided_since(mine["after"]):
            delay = restart_policy.next_try(mine["tries"])
            if delay is None:
                text = (
                    "the restart of %s was tried %d times and given up; by hand: ansible-playbook"
                    " playbooks/resume.yml -e run=%s"
                )
                self._display.display(
                    text % (mine["run"], mine["tries"], mine["run"]), color=C.COLOR_ERROR
                )
            else:
                self._go_on(mine["run"], mine["after"], mine["tries"] + 1, delay)

    def _note_unready(self, failed):
        """Remember who took a place and was not ready for it, and say so: a further try, by itself
        or by hand, takes another node.
        """
        came, now = self._newcomers, time.time()
        for node, why in came.unready(failed).items():
            text = (
                "%s was to stand in for a lost node of %s and counts as failed (%s): the next try"
                " takes another one, where one can be had"
            )
            try:
                failed_nodes.note(came.state_dir, {node: printable(why)}, came.run, now)
            except OSError as error:
                text += f"; that is not remembered: {error}"
            self._display.display(
                "\n" + printable(text % (node, came.run, why)), color=C.COLOR_WARN
            )

    def _decided_since(self, after):
        """Whether this command saw an attempt end that its restart follows, or that very attempt
        once more, which had gone on after all.
        """
        return self._ended is not None and self._ended["attempt"] > (
            after - 1 if self._followed else after
        )

    def _go_on(self, run, after, tries, delay):
        """Wait, then become the next command; return only where that was not to be."""
        by_hand = f"by hand: ansible-playbook playbooks/resume.yml -e run={run}"
        try:
            words = resume_command.resumed(sys.argv, self._playbook(), run, after, tries)
        except resume_command.NotAgain as error:
            self._display.display(
                printable(f"{run} is not started again: {error}; {by_hand}"),
                color=C.COLOR_WARN,
            )
            return
        again = "" if tries == 1 else ", try %d of %d" % (tries, restart_policy.TRIES)
        try:
            self._display.display(
                "\n%s is started again in %d s%s; Ctrl-C leaves it as it is" % (run, delay, again),
                color=C.COLOR_WARN,
            )
            sys.stdout.flush()  # Display does not, and the wait is long for who reads a pipe
            time.sleep(delay)
        except KeyboardInterrupt:
            self._display.display(f"\n{run} is not started again; {by_hand}", color=C.COLOR_WARN)
            return
        self._leave()
        os.execv(sys.executable, [*resume_command.program(), *words])

    @staticmethod
    def _playbook():
        """Return resume.yml as the user wrote the playbook that ends, else the product's own: a
        user's playbook may import ours.
        """
        beside = resume_command.playbook_beside(
            (list(context.CLIARGS.get("args") or ()) or ["playbooks/train.yml"])[0]
        )
        own = os.path.join(_PROJECT, "playbooks", "resume.yml")
        return beside if os.path.exists(beside) and os.path.samefile(beside, own) else own

    @staticmethod
    def _leave():
        """What Python would do at this process's end, which never comes: Ansible's temporary
        directory, and what is not written yet.
        """
        shutil.rmtree(C.DEFAULT_LOCAL_TMP, ignore_errors=True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for descriptor in (0, 1, 2):
            os.set_inheritable(
                descriptor, True
            )  # Ansible keeps its terminal from its workers, and so from whoever comes after it
