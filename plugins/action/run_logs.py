# SPDX-License-Identifier: GPL-3.0-or-later
"""What logs.yml asks, finds, shows and follows; see library/run_logs.py for the documentation.

How lines reach the terminal: every node has one worker of Ansible, a process of its own without a
terminal, which gives what it reads to Display.display. Ansible hands that over a pipe to one thread
of the main process, which writes it out. So lines of two nodes never tear each other, what Ansible
itself prints comes between whole lines, a terminal that is slow holds the workers up instead of
filling memory, and it works under ansible-runner. A callback would be told only when a task of a
node ends or is tried again. One call takes all lines that there are, since each costs a turn of
that thread. Nobody flushes what is written into a pipe, so the callback plugin makes standard
output line-buffered.
"""

from __future__ import annotations

import os
import time

from ansible import constants as C
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.color import stringc
from ansible.utils.vars import load_extra_vars
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.config import (
    logs_options as questions,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.config import quota
from ansible_collections.trainyard.cluster.plugins.module_utils.gate import answer_gate
from ansible_collections.trainyard.cluster.plugins.module_utils.logsync import (
    archive,
    log_follower,
    log_index,
    log_receiver,
    log_view,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_choice

COLORS = (
    "cyan",
    "green",
    "yellow",
    "blue",
    "magenta",
    "bright cyan",
    "bright green",
    "bright yellow",
    "bright blue",
    "bright magenta",
)
UNIT_SECONDS = 30
# The playbook has shown what is to be seen; with -v Ansible would print the whole result besides.
QUIET = {"changed": False, "_ansible_verbose_override": True}

_PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class ActionModule(answer_gate.Gated, ActionBase):
    """One of the steps of logs.yml, by `state`. Only found, brought and followed open a connection."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        given, step = plain(self._task.args), plain(self._task.args).get("state")
        steps = {
            name[1:]: getattr(self, name)
            for name in ("_asked", "_found", "_chosen", "_brought", "_shown", "_followed")
        }
        if step not in steps:
            raise AnsibleActionFail(
                "state must be one of {}; got {!r}".format(", ".join(steps), step)
            )
        self._vars, self._given = task_vars, given
        self._asks = questions.question(plain(load_extra_vars(self._loader)))
        try:
            result.update(steps[step](), **QUIET)
        except (log_index.IndexProblem, archive.NoRun) as error:
            raise AnsibleActionFail(printable(str(error))) from error
        return result

    # --- on the controller

    def _of_site(self, name, default):
        """Return a variable of the site, which the nodes have and localhost perhaps not."""
        first = (plain(self._vars["groups"]).get("trainers") or ["localhost"])[0]
        return str(plain(self._vars["hostvars"][first].get(name)) or default)

    def _runs_dir(self):
        return os.path.join(
            _PROJECT,
            os.path.expanduser(self._of_site("trainyard_runs_dir", "runs")),
        )

    def _asked(self):
        """Refuse what cannot be answered, before a node is touched; say which nodes are to be
        asked.
        """
        run, groups = plain(load_extra_vars(self._loader)).get("run"), plain(self._vars["groups"])
        nodes = [name for group in ("trainers", "spares") for name in groups.get(group) or []]
        home = (
            archive.Home(self._runs_dir(), run) if run in archive.runs(self._runs_dir()) else None
        )
        # What a run that goes on will still write can be asked for, and is held against what came
        # home.
        sure = (
            home
            and home.plan
            and (home.over or all(isinstance(rank, int) for rank in self._asks["ranks"] or ()))
        )
        self._refuse(home, home.logs() + home.planned() if sure else None, nodes)
        known = (
            [node for node in nodes if node in home.nodes or node in (groups.get("spares") or [])]
            if home
            else nodes
        )
        return {"run": run or "", "ask": [] if home and home.over else known}

    def _refuse(self, home, logs, nodes):
        known = home.nodes if home and home.nodes else nodes
        if self._asks["node"] is not None and self._asks["node"] not in known:
            self._wrong(
                "node", "there is no {}; nodes: {}".format(self._asks["node"], ", ".join(known))
            )
        problem = (
            log_view.chosen(logs, self._asks["ranks"], self._asks["node"])[1]
            if logs is not None
            else None
        )
        if problem:
            self._wrong(None, problem)

    def _wrong(self, name, text):
        head = (
            "1 problem, nothing was touched:" if self._given["state"] == "asked" else "1 problem:"
        )
        raise AnsibleActionFail(
            printable(
                "{}\n  command line {}{}".format(head, "" if name is None else name + ": ", text),
                newlines=True,
            )
        )

    def _chosen(self):
        """Say which run it is, from what the nodes have found, else from what is at home."""
        asked = self._given["asked"]
        said = {
            name: plain(self._vars["hostvars"][name].get("logs_found") or {})
            for name in asked["ask"]
        }
        # a node that --limit leaves out was not asked
        chosen = archive.choose(
            self._runs_dir(),
            asked["run"],
            {name: found.get("status") for name, found in said.items() if found},
        )
        for note in chosen.pop("notes"):
            self._display.warning(printable(note))
        for name in chosen["silent"]:
            self._display.warning(
                f"{name} does not answer: of its logs, what came home before is shown"
            )
        return dict(chosen, follow=chosen["goes_on"] if self._asks["follow"] else [])

    @property
    def _chosen_run(self):
        return self._given["chosen"]

    def _home(self):
        return archive.Home(self._runs_dir(), self._chosen_run["run"], self._chosen_run["number"])

    def _shown(self):
        """Print the answer, the ends of the logs, or where all of them lie. Returns {offsets}: how
        far each log has been shown.
        """
        home, asks, offsets = self._home(), self._asks, {}
        logs = home.logs()
        here = {log.home for log in logs}
        every = logs + (
            [log for log in home.planned() if log.home not in here] if asks["follow"] else []
        )
        self._refuse(home, every, home.nodes)
        if home.index is None:
            home.index = {"ranks": [], "files": [], "run": home.run, "attempt": home.number}
        if asks["query"] is not None:
            lines, problem = questions.answer(home.index, asks["query"], home.secrets)
            if problem:
                raise AnsibleActionFail(printable(problem, newlines=True))
        elif (
            asks["follow"]
            or asks["lines"] is not None
            or asks["ranks"] is not None
            or asks["node"] is not None
        ):
            lines, offsets = self._ends(
                home,
                [
                    log
                    for log in log_view.chosen(every, asks["ranks"], asks["node"])[0]
                    if log.home in here
                ],
            )
        else:
            lines = [
                "run %s, attempt %d: %s"
                % (home.run, home.number, "goes on" if self._chosen_run["goes_on"] else "over"),
                "",
            ]
            lines += log_view.table(home.index, logs, home.shown)
        self._display.display("\n" + "\n".join(lines) + "\n")
        return {"offsets": offsets}

    def _ends(self, home, logs):
        """Return (the ends of logs as lines, merged where they are several, {home: where they
        end}).
        """
        found, ends = log_view.merged(
            logs,
            self._asks["lines"] or questions.LINES,
            home.zones,
            not self._chosen_run["goes_on"],
        )
        if len(logs) == 1 and not self._asks["follow"]:
            head = "%s/%s: its last %d lines, %d bytes in all" % (
                home.shown,
                logs[0].home,
                len(found),
                logs[0].bytes,
            )
            return [head, ""] + [log_view.text(line, home.secrets) for _log, line in found], ends
        view = self._view(home, logs)
        lines = [view.lines(log.label, [line])[0] for log, line in found]
        if self._asks["follow"]:
            goes_on = (
                f"following the run {home.run}; Ctrl-C ends this view and leaves the run alone"
            )
            lines += [
                "",
                goes_on if self._chosen_run["follow"] else f"the run {home.run} is over",
            ]
        return lines, ends

    @staticmethod
    def _view(home, logs):
        return log_view.View(
            logs + home.planned(),
            home.secrets,
            lambda words, number: stringc(words, COLORS[number % len(COLORS)]),
        )

    # --- on a node

    def _found(self):
        """Ask the node for the run, or for the one that holds it."""
        return {"status": self._status(self._given["asked"]["run"], 0)}

    def _status(self, run, number):
        arguments = {
            "run_id": run,
            "number": number,
            "node": self._vars["inventory_hostname"],
            "base": self._base(),
        }
        found = self._execute_module(
            module_name="trainyard.cluster.attempt_status",
            module_args=arguments,
            task_vars=self._vars,
        )
        if found.get("failed") or "status" not in found:
            raise AnsibleActionFail(
                printable(str(found.get("msg") or "attempt_status gave no status"))
            )
        status = found["status"]
        if (
            not isinstance(status, dict)
            or (status.get("found") and not run_choice.sound(status, run))
            or not isinstance(status.get("ended"), bool)
        ):
            raise AnsibleActionFail(
                "{} gave an answer about a run that is not valid".format(arguments["node"])
            )
        return status

    def _base(self):
        return self._of_site("trainyard_home", ".trainyard")

    def _brought(self):
        """Bring home what there is of a run that goes on."""
        home, node = self._home(), self._vars["inventory_hostname"]
        if self._task.check_mode:
            return {"bytes": 0}
        said = log_follower.bring(
            *self._sender(False), home.path, node, quota.Quota.of_host(self._vars, node)
        )
        if said and said["problem"]:
            self._display.warning(
                "the logs of {} did not come home to their end: {}".format(node, said["problem"])
            )
        return {"bytes": said["bytes"] if said else 0}

    def _followed(self):
        """Print this node's lines as they come, until the run has ended here."""
        home, node = self._home(), self._vars["inventory_hostname"]
        logs = (
            log_view.chosen(home.planned(), self._asks["ranks"], self._asks["node"])[0]
            or log_view.chosen(home.logs(), self._asks["ranks"], self._asks["node"])[0]
        )
        labels = {log.home: log.label for log in logs if log.node == node}
        if not labels:
            return {"lines": 0, "problem": None, "brought": False}
        view = self._view(home, logs)
        follower = log_follower.Follower(
            home.path, node, labels, self._given["offsets"],
            lambda name, raws: self._display.display("\n".join(view.lines(labels[name], raws))),
            os.path.join(C.DEFAULT_LOCAL_TMP, "ended-%s-%d" % (home.run, home.number)),
            quota.Quota.of_host(self._vars, node),
        )  # fmt: skip
        problem = follower.follow(*self._sender(True), self._over, _end_with_parent())
        if problem:
            self._display.warning(f"the logs of {node} did not come home to their end: {problem}")
        # The launcher has ended; the unit tells its peers and writes its end, and only then its
        # files stay as they are.
        deadline = time.monotonic() + UNIT_SECONDS
        while follower.brought and self._over() is False and time.monotonic() < deadline:
            time.sleep(1)
        return {"lines": follower.lines, "problem": problem, "brought": follower.brought}

    def _sender(self, follow):
        """Return (argv, spec) of what sends this node's logs."""
        attempt = "%s/runs/%s/attempt-%d" % (
            self._base(),
            self._chosen_run["run"],
            self._chosen_run["number"],
        )
        interpreter = plain(self._vars.get("ansible_python_interpreter")) or "python3"
        return log_receiver.ssh_argv(self._connection, interpreter), {
            "attempt_dir": attempt,
            "follow": follow,
        }

    def _over(self):
        """Whether the run has ended on this node; None where it does not answer."""
        try:
            return self._status(self._chosen_run["run"], self._chosen_run["number"])["ended"]
        except AnsibleConnectionFailure:
            return None


def _end_with_parent():
    """Return a function that ends this worker where its ansible-playbook was killed: it would
    follow for ever, in a session of its own.
    """
    parent = os.getppid()

    def alive():
        if os.getppid() != parent:
            os._exit(1)

    return alive
