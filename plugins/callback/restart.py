# SPDX-License-Identifier: GPL-3.0-or-later
"""Next attempt after one that has ended, where the run's record says so.

The callback replaces this process by follow.yml where the run's nodes have begun the next attempt,
else by resume.yml after a wait.
"""

from __future__ import annotations

DOCUMENTATION = r"""
name: restart
type: aggregate
short_description: Starts a run again after a failure of a machine or a network
description:
  - Notes what C(run_record) decided on a run's restart (job key C(max_restarts)). At the end of the
    playbook it becomes C(ansible-playbook playbooks/follow.yml) of that run with the options of
    this command, so the exit code is the last attempt's. Where the run's nodes do not restart it
    themselves, it waits and becomes C(playbooks/resume.yml).
  - A restart whose preparation fails, since a node still boots, is tried again some times. Ctrl-C
    ends the wait, and with it the restarts.
  - "Remembers a node that was to stand in for a lost one and was not ready (its preflight, what had
    to be brought): another one is tried next."
  - Nothing is started again with C(--check), nor where a password was typed (C(-k), C(-K), C(-J), a
    vault id that prompts).
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
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import restart_policy
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import terminal
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live import this_command
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery import (
    failed_nodes,
    replacement_failures,
    resume_command,
)

_PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class CallbackModule(CallbackBase):
    """Callback that starts the next command where the run's record decided so."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "trainyard.cluster.restart"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self):
        super().__init__()
        terminal.install()  # where another callback prints, this one is loaded all the same
        self._record = None  # what run_record returned of an attempt that ended
        self._newest = 0  # number of the newest attempt on a node
        self._refused, self._followed, self._complete = False, False, False
        self._starts = False  # whether this command starts the run's next attempt
        self._replacements = replacement_failures.Replacements()

    def v2_playbook_on_play_start(self, play):
        self._replacements.note_play()

    def v2_runner_on_ok(self, result):
        chosen = self._of(result, "node_replacement")
        if chosen and "new" in chosen:
            self._replacements.note_choice(chosen)
        elif self._of(result, "attempt_monitor"):
            self._replacements.note_start()
            status = self._of(result, "attempt_monitor").get("status") or {}
            self._newest = max(self._newest, *status.get("attempts") or (0,))
        self._note_record(result)

    def _note_record(self, result):
        """Note the attempt that has ended, unless this command has started a later one."""
        record = self._of(result, "run_record") or {}
        if "again" in record and "verdict" in record and RUN_ID.match(str(record.get("run"))):
            self._record = record
        mode = (self._of(result, "resume_decision") or {}).get("mode")
        self._followed = self._followed or mode == "follow"
        self._starts = self._starts or mode == "start"
        if self._starts and self._record and self._newest > self._record["attempt"]:
            self._record = None  # of an attempt before the one that this command has started

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if (self._of(result, "resume_decision") or {}).get("refused"):
            self._refused = True
        if (self._of(result, "plan") or {}).get("refused"):
            self._complete = True
        stops = (self._of(result, "plan") or self._of(result, "proof") or {}).get("stops")
        if stops:
            self._replacements.note_refusal(stops)
        elif not (ignore_errors or result.task.run_once or self._of(result, "run_record")):
            self._replacements.note_failure(
                result.task._uuid, result.host.get_name(), result.task.name or result.task.action
            )

    def v2_runner_on_unreachable(self, result):
        if self._of(result, "attempt_monitor"):
            self._replacements.note_start()
        elif not result.task.ignore_unreachable:
            self._replacements.note_failure(
                result.task._uuid, result.host.get_name(), "unreachable"
            )

    @staticmethod
    def _of(result, module):
        """Return what a task of this module returned, as plain data, or None."""
        if result.task.action.split(".")[-1] != module:
            return None
        return plain(dict(result.result))

    def v2_playbook_on_stats(self, stats):
        if context.CLIARGS.get("check"):
            return
        failed = _failed_hosts(stats)
        self._note_unready(failed)
        if not self.get_option("restart"):
            return
        if self._goes_on_by_nodes():
            self._follow(self._record["run"], self._record["attempt"])
            return
        decision = (self._record or {}).get("again") or {}
        if decision.get("again"):
            self._restart(self._record["run"], self._record["attempt"], 1, decision["delay"])
            return
        # This command may itself be a restart that came to no attempt.
        restart = resume_command.read_restart(context.CLIARGS.get("extra_vars") or ())
        if restart and self._complete:
            self._warn(
                f"{restart['run']} is not started again: as far as its newest checkpoint says,"
                " it is complete"
            )
        elif restart and failed and not self._refused and not self._decided(restart["after"]):
            self._try_once_more(restart)

    def _warn(self, message):
        """Print a message that may hold words of a node or a user."""
        self._display.display("\n" + printable(message), color=C.COLOR_WARN)

    def _try_once_more(self, restart):
        """Try once more a restart whose preparation failed, up to the number of tries."""
        run, tries = restart["run"], restart["tries"]
        delay = restart_policy.next_delay(tries)
        if delay is not None:
            self._restart(run, restart["after"], tries + 1, delay)
            return
        self._display.display(
            f"the restart of {run} was tried {tries} times and given up; {_by_hand(run)}",
            color=C.COLOR_ERROR,
        )

    def _note_unready(self, failed):
        """Remember and report the nodes that replaced a lost one and were not ready.

        A further try, automatic or by hand, takes another node.
        """
        replaced, now = self._replacements, time.time()
        for node, reason in replaced.unready(failed).items():
            message = (
                f"{node} was to stand in for a lost node of {replaced.run} and counts as failed"
                f" ({reason}): the next try takes another one, where one can be had"
            )
            try:
                failed_nodes.note(replaced.state_dir, {node: printable(reason)}, replaced.run, now)
            except OSError as error:
                message += f"; that is not remembered: {error}"
            self._warn(message)

    def _decided(self, after):
        """Return whether an attempt that this restart led to has ended in this command.

        The attempt before it counts, too, where it was followed: it had gone on after all.
        """
        if self._record is None:
            return False
        if self._followed:
            return self._record["attempt"] >= after
        return self._record["attempt"] > after

    def _goes_on_by_nodes(self):
        """Return whether the nodes have begun the next attempt, or are expected to.

        They decide by the code that has decided here.
        """
        record = self._record or {}
        again = (record.get("again") or {}).get("again")
        return bool(record.get("supervised")) and bool(again or self._newest > record["attempt"])

    def _follow(self, run, after):
        """Become the command that follows the next attempt of a run."""
        text = f"\n{run} is kept by its nodes. Ctrl-C leaves it to them"
        self._display.display(text, color=C.COLOR_WARN)
        try:
            argv = resume_command.build(
                sys.argv, self._playbook("follow"), run, after, variable="after"
            )
        except resume_command.CommandRefused as error:
            self._display.display(printable(f"{run} is not followed: {error}"), color=C.COLOR_WARN)
            return
        self._become(argv)

    def _restart(self, run, after, tries, delay):
        """Wait, then become the next command, and return only if that cannot be."""
        by_hand = _by_hand(run)
        try:
            argv = resume_command.build(sys.argv, self._playbook("resume"), run, after, tries)
        except resume_command.CommandRefused as error:
            self._display.display(
                printable(f"{run} is not started again: {error}; {by_hand}"),
                color=C.COLOR_WARN,
            )
            return
        attempt = ""
        if tries != 1:
            attempt = f", try {tries} of {restart_policy.MAX_TRIES}"
        try:
            self._display.display(
                f"\n{run} is started again in {int(delay)} s{attempt}; Ctrl-C leaves it as it is",
                color=C.COLOR_WARN,
            )
            sys.stdout.flush()  # Display does not, and the wait is long for a reader of a pipe
            time.sleep(delay)
        except KeyboardInterrupt:
            self._display.display(f"\n{run} is not started again; {by_hand}", color=C.COLOR_WARN)
            return
        self._become(argv)

    def _become(self, argv):
        """Replace this process by a command. argv: without the program."""
        self._leave()
        os.execv(sys.executable, [*resume_command.program(), *argv])

    @staticmethod
    def _playbook(name):
        """Return the path of resume.yml or follow.yml in the form of the user's playbook.

        That is the one beside the playbook that ends, else the product's own: a user's playbook may
        import ours.
        """
        playbooks = list(context.CLIARGS.get("args") or ()) or ["playbooks/train.yml"]
        beside = resume_command.playbook_beside(playbooks[0], f"{name}.yml")
        # The collection of a checkout consists of links.
        own = os.path.realpath(os.path.join(_PROJECT, "playbooks", f"{name}.yml"))
        if os.path.exists(beside) and os.path.samefile(beside, own):
            return beside
        return own

    @staticmethod
    def _leave():
        """Do what Python would do at this process's end, which never comes.

        Remove Ansible's temporary directory, and write what is not written yet.
        """
        shutil.rmtree(C.DEFAULT_LOCAL_TMP, ignore_errors=True)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for descriptor in (0, 1, 2):
            # Ansible keeps its terminal from its workers, and so from the process after it.
            os.set_inheritable(descriptor, True)


def _by_hand(run):
    """Return what a person can do instead, with the whole command."""
    return f"by hand: {this_command.command_line().of('resume')} -e run={run}"


def _failed_hosts(stats):
    """Return the hosts on which a task failed, or that could not be reached."""
    hosts = []
    for host in stats.processed:
        summary = stats.summarize(host)
        if summary["failures"] or summary["unreachable"]:
            hosts.append(host)
    return hosts
