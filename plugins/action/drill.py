# SPDX-License-Identifier: GPL-3.0-or-later
"""Do faults to a real training on this site and hold what comes of them against the promises; see
library/drill.py for the documentation.
"""

from __future__ import annotations

import glob
import json
import os
import signal
import time

from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.module_utils.drills import drill_run, fault_table
from ansible_collections.trainyard.cluster.plugins.module_utils.drills import drill_site as grounds


class ActionModule(ActionBase):
    """The commands that a drill starts are ansible-playbook's own, on this controller; the nodes
    are reached by the site's connections.
    """

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        given, self._vars = plain(self._task.args), task_vars
        states = {"chosen": self._chosen, "way": self._way, "done": self._done, "told": self._told}
        if given.get("state") not in states:
            raise AnsibleActionFail(
                "state must be one of {}; got {!r}".format(", ".join(states), given.get("state"))
            )
        try:
            return states[given["state"]](given)
        except fault_table.DrillError as error:
            raise AnsibleActionFail(printable(str(error), newlines=True)) from error

    # --- what the inventory says

    def _host(self, name, key, default=None):
        value = plain(self._vars["hostvars"][name].get(key))
        return default if value is None else value

    def _names(self):
        names = plain(self._vars["groups"]).get("trainers") or []
        if len(names) < 2:
            raise AnsibleActionFail(
                "a drill takes two nodes or more; the group trainers has %d" % len(names)
            )
        return names

    def _site(self):
        return str(self._host(self._names()[0], "trainyard_site", "site"))

    def _project(self):
        return os.path.dirname(os.path.abspath(self._vars["playbook_dir"]))

    def _runs(self):
        return os.path.join(
            self._project(),
            os.path.expanduser(str(self._host(self._names()[0], "trainyard_runs_dir", "runs"))),
        )

    # --- the states

    def _chosen(self, given):
        """Name the faults that are asked for; refuse without the site's name."""
        table = fault_table.load()
        names = fault_table.select(table["faults"], given.get("only"))
        if boolean(given.get("list", False)):
            lines = fault_table.listed({name: table["faults"][name] for name in names})
            return {
                "changed": False,
                "faults": [],
                "summary": lines,
                "verdict": {"outcome": "completed"},
            }
        site = self._site()
        if str(given.get("confirm") or "") != site:
            text = (
                "this kills ranks, nodes and connections of the site %r on purpose: %d faults,"
                " about a minute each. To do it: -e confirm=%s"
            )
            raise fault_table.DrillError(text % (site, len(names), site))
        base, example = table["job"], True
        if given.get("config"):
            path, shown, problems = jobs.find_job(
                given["config"], os.path.join(self._project(), "playbooks", "configs"), os.getcwd()
            )
            job, said = jobs.examine(path, shown) if path else (None, [])
            if problems or said:
                raise fault_table.DrillError("; ".join(str(problem) for problem in problems + said))
            own = {key: job[key] for key in job if key not in ("name", "file", "lines")}
            base, example = (
                dict(own, max_restarts=0),
                False,
            )  # a fault that is to be started again says so
        return {"changed": False, "faults": names, "job": base, "example": example}

    def _way(self, given):
        """Say how this node is reached by ssh, in Ansible's own words, and what holds it."""
        connection = self._connection
        if getattr(connection, "transport", None) != "ssh":
            raise fault_table.DrillError(
                "a drill reaches its nodes by ssh; this one is reached by {}".format(
                    getattr(connection, "transport", "?")
                )
            )
        host = connection.get_option("host") or connection._play_context.remote_addr
        words = connection._build_command(
            connection.get_option("ssh_executable"), "ssh", "-T", "-o", "BatchMode=yes", host
        )
        words = [
            word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else word
            for word in words
        ]
        if getattr(connection, "sshpass_pipe", None):
            raise fault_table.DrillError(
                "a drill logs in by key; this node is reached with a password"
            )
        name, base = (
            self._vars["inventory_hostname"],
            self._vars.get("trainyard_home") or ".trainyard",
        )
        arguments = {"run_id": "", "node": name, "base": str(plain(base))}
        status = self._execute_module(
            module_name="trainyard.cluster.attempt_status",
            module_args=arguments,
            task_vars=self._vars,
        )
        if status.get("failed") or status.get("unreachable"):
            raise fault_table.DrillError(str(status.get("msg")))
        found = status["status"]
        if found.get("found") and not found["ended"]:
            raise fault_table.DrillError(
                "{} is held by the run {}; stop it first: playbooks/stop.yml -e run={}".format(
                    name, found["run"], found["run"]
                )
            )
        user = connection.get_option("remote_user") or connection._play_context.remote_user
        return {
            "changed": False,
            "way": {"argv": words, "address": str(plain(host)), "user": str(plain(user))},
        }

    def _ground(self, given):
        names, site, count = self._names(), self._site(), (given.get("job") or {}).get("nodes")
        names = names[:count] if isinstance(count, int) else names
        ways = {
            name: (plain(self._vars["hostvars"][name].get("drill_way")) or {}).get("way")
            for name in names
        }
        lost = [name for name, way in ways.items() if not way]
        if lost:
            raise fault_table.DrillError("there is no way to {}".format(", ".join(lost)))
        options = [
            word for source in context.CLIARGS.get("inventory") or () for word in ("-i", source)
        ]
        for option, key in (("--user", "remote_user"), ("--private-key", "private_key_file")):
            options += [option, context.CLIARGS[key]] if context.CLIARGS.get(key) else []
        options += [
            word
            for item in context.CLIARGS.get("vault_password_files") or ()
            for word in ("--vault-password-file", item)
        ]
        nodes = [grounds.Node(name, ways[name], site) for name in names]
        state = os.path.expanduser(
            str(self._host(names[0], "trainyard_state_dir", "~/.local/state/trainyard/" + site))
        )
        base = str(self._host(names[0], "trainyard_home", ".trainyard"))
        return grounds.Ground(self._project(), options, site, nodes, self._runs(), base, state)

    def _folder(self):
        return os.path.join(self._runs(), "drill")

    def _done(self, given):
        """Do one fault; nothing of it fails the task, so that the others are done, too."""
        ground, fault = self._ground(given), fault_table.load()["faults"][given["fault"]]
        verbs = [
            os.path.basename(path)[:-4]
            for path in glob.glob(os.path.join(self._project(), "playbooks", "*.yml"))
        ]
        why = (
            "nothing is done in check mode"
            if self._task.check_mode
            else fault_table.unfit(
                fault,
                all(node.container for node in ground.nodes),
                boolean(given.get("example", True)),
                verbs,
            )
        )
        if why:
            result = {"name": fault["name"], "injected": fault["injected"], "skipped": why}
        else:
            folder = os.path.join(self._folder(), time.strftime("%H%M%S-") + fault["name"])
            # Ctrl-C reaches a worker as TERM; what was done to a node is undone then, too.
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            result = drill_run.Course(
                ground, given["job"], fault, folder, self._display.display
            ).go()
        self._display.display(
            "   ".join(fault_table.cell(part, 100) for part in fault_table.row(result)[2:])
        )
        return {
            "changed": not why,
            "drilled": json.loads(json.dumps(result)),
            "_ansible_verbose_override": True,
        }

    def _told(self, given):
        """Prove that the last fault, too, left a site that trains (N8); write the table."""
        results = [item["drilled"] for item in given["results"] if item.get("drilled")]
        if not results:
            raise fault_table.DrillError(
                "no fault was done: {}".format(
                    next(
                        (item["msg"] for item in given["results"] if item.get("msg")),
                        "none was chosen",
                    )
                )
            )
        drill_run.chain(results, lambda: self._closing(given))
        lines = [fault_table.sums(results)]
        text = fault_table.table(results)
        os.makedirs(self._folder(), mode=0o700, exist_ok=True)
        manifest.write_json(
            os.path.join(self._folder(), "drill.json"),
            {"version": 1, "site": self._site(), "faults": results},
        )
        with open(os.path.join(self._folder(), "drill.md"), "w", encoding="utf-8") as handle:
            handle.write(f"{text}\n{lines[0]}\n")
        held = all(fault_table.held(result) for result in results if not result.get("skipped"))
        shown = [
            "  ".join(fault_table.cell(part, 70) for part in fault_table.row(result))
            for result in results
        ]
        summary = shown + [
            "table        {}".format(os.path.join(self._folder(), "drill.md")),
            lines[0],
        ]
        return {
            "changed": False,
            "summary": summary,
            "verdict": {"outcome": "completed" if held else "failed", "text": lines[0]},
            "results": results,
        }

    def _closing(self, given):
        fault = {
            "name": "closing",
            "group": "controller",
            "injected": "nothing",
            "at": "step 1",
            "goes_on": True,
            "budget": dict(fault_table.BUDGET),
        }
        fault["expect"] = {"outcome": ["stopped"]}
        folder = os.path.join(self._folder(), time.strftime("%H%M%S-") + "closing")
        return drill_run.Course(
            self._ground(given), given["job"], fault, folder, self._display.display
        ).go()
