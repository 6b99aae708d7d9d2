# SPDX-License-Identifier: GPL-3.0-or-later
"""Inject faults into a training on this site and check the promises.

See library/drill.py for the documentation.
"""

from __future__ import annotations

import glob
import json
import os
import time
from typing import Any

from ansible import context
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import write_json
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.modules.drill import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import interruption
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base.project import project_dir
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.drills import (
    drill_run,
    drill_site,
    fault_table,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate

STATES = ("chosen", "way", "done", "told")
# A fault after which the site is drilled once more, undisturbed.
CLOSING = {
    "name": "closing",
    "group": "controller",
    "injected": "nothing",
    "at": "step 1",
    "goes_on": True,
    "budget": dict(fault_table.BUDGET),
    "expect": {"outcome": ["stopped"]},
}


class ActionModule(answer_gate.Gated, ControllerAction):
    """Start ansible-playbook's own commands on this controller.

    The nodes are reached by the site's connections.
    """

    _requires_connection = True

    ARGUMENTS = arguments_of(DOCUMENTATION)
    REQUIRED_IF = [
        ("state", "done", ("fault", "job")),
        ("state", "told", ("results", "job")),
    ]
    FAILURES = (fault_table.DrillError,)

    def execute(self, arguments: Arguments) -> Result:
        """Run one step of drill.yml."""
        steps = {
            "chosen": self._choose_faults,
            "way": self._describe_login,
            "done": self._inject_fault,
            "told": self._summarize,
        }
        return steps[arguments["state"]](arguments)

    # --- what the inventory says

    def _names(self) -> list[str]:
        names = self.group("trainers")
        if len(names) < 2:
            self.fail(f"a drill takes two nodes or more; the group trainers has {len(names)}")
        return names

    def _of_site(self, key: str, default: str) -> str:
        return str(self.host_value(self._names()[0], key, default))

    def _site(self) -> str:
        return self._of_site("trainyard_site", "site")

    def _project(self) -> str:
        return os.path.dirname(os.path.abspath(self.task_vars["playbook_dir"]))

    def _runs(self) -> str:
        runs_dir = os.path.expanduser(self._of_site("trainyard_runs_dir", "runs"))
        return os.path.join(project_dir(), runs_dir)

    # --- the states

    def _choose_faults(self, arguments: Arguments) -> Result:
        """Name the requested faults. Refuse without the site's name."""
        table = fault_table.load()
        names = fault_table.select(table["faults"], arguments["only"])
        if arguments["list"]:
            lines = fault_table.list_faults({name: table["faults"][name] for name in names})
            verdict = {"outcome": "completed"}
            return {"changed": False, "faults": [], "summary": lines, "verdict": verdict}
        site = self._site()
        if arguments["confirm"] != site:
            raise fault_table.DrillError(
                f"this kills ranks, nodes and connections of the site {site!r} on purpose:"
                f" {len(names)} faults, about a minute each. To do it: -e confirm={site}"
            )
        base = table["job"]
        if arguments["config"]:
            base = self._read_job(arguments["config"])
        return {
            "changed": False,
            "faults": names,
            "job": base,
            "example": not arguments["config"],
        }

    def _read_job(self, config: Any) -> dict[str, Any]:
        """Return the user's job as the faults change it. Raises DrillError."""
        folder = os.path.join(self._project(), "playbooks", "configs")
        path, shown, problems = jobs.find_job(config, folder, os.getcwd())
        job: dict[str, Any] | None = None
        if path and shown:
            job, invalid = jobs.read_partial_job(path, shown)
            problems = problems + invalid
        if problems or job is None:
            raise fault_table.DrillError("; ".join(str(problem) for problem in problems))
        fields = {key: job[key] for key in job if key not in ("name", "file", "lines")}
        # A fault after which the training is to be restarted says so itself.
        return dict(fields, max_restarts=0)

    def _describe_login(self, arguments: Arguments) -> Result:
        """Return the argv of Ansible's own ssh to this node. Refuse a node that a run holds."""
        connection: Any = self._connection
        transport = getattr(connection, "transport", "?")
        if transport != "ssh":
            raise fault_table.DrillError(
                f"a drill reaches its nodes by ssh; this one is reached by {transport}"
            )
        host = connection.get_option("host") or connection._play_context.remote_addr
        argv = connection._build_command(
            connection.get_option("ssh_executable"), "ssh", "-T", "-o", "BatchMode=yes", host
        )
        if getattr(connection, "sshpass_pipe", None):
            raise fault_table.DrillError(
                "a drill logs in by key; this node is reached with a password"
            )
        self._refuse_held_node()
        user = connection.get_option("remote_user") or connection._play_context.remote_user
        way = {
            "argv": [_decode(word) for word in argv],
            "address": str(plain(host)),
            "user": str(plain(user)),
        }
        return {"changed": False, "way": way}

    def _refuse_held_node(self) -> None:
        """Raise DrillError where the node does not answer, or a run holds it."""
        name = self.task_vars["inventory_hostname"]
        base = str(plain(self.task_vars.get("trainyard_home") or ".trainyard"))
        answer = self._execute_module(
            module_name="trainyard.cluster.attempt_monitor",
            module_args={"run_id": "", "node": name, "base": base},
            task_vars=self.task_vars,
        )
        if answer.get("failed"):
            raise fault_table.DrillError(str(answer.get("msg")))
        if "status" not in answer:
            raise fault_table.DrillError(f"{name} gave no status of its attempts")
        status = answer["status"]
        if status["found"] and not status["ended"]:
            run = status["run"]
            raise fault_table.DrillError(
                f"{name} is held by the run {run}; stop it first: ansible-playbook"
                f" playbooks/stop.yml -e run={run}"
            )

    def _make_site(self, arguments: Arguments) -> drill_site.Site:
        """Return the site of a drill: its nodes, and how commands name it."""
        site = self._site()
        names = names_of_job(self._names(), (arguments["job"] or {}).get("nodes"))
        if len(names) < 2:
            raise fault_table.DrillError(
                f"a drill takes two nodes or more; the job takes {', '.join(names) or 'none'}"
            )
        ways: dict[str, Any] = {
            name: (self.host_value(name, "drill_way") or {}).get("way") for name in names
        }
        unknown = [name for name, way in ways.items() if not way]
        if unknown:
            raise fault_table.DrillError(f"there is no way to {', '.join(unknown)}")
        nodes = [drill_site.Node(name, ways[name], site) for name in names]
        state = self._of_site("trainyard_state_dir", "~/.local/state/trainyard/" + site)
        return drill_site.Site(
            self._project(),
            _command_line_options(),
            site,
            nodes,
            self._runs(),
            self._of_site("trainyard_home", ".trainyard"),
            os.path.expanduser(state),
        )

    def _folder(self) -> str:
        return os.path.join(self._runs(), "drill")

    def _inject_fault(self, arguments: Arguments) -> Result:
        """Inject one fault. It never fails the task, so that the other faults follow."""
        site, fault = self._make_site(arguments), fault_table.load()["faults"][arguments["fault"]]
        reason = self._reason_to_skip(site, fault, arguments["example"])
        if reason:
            result = {"name": fault["name"], "injected": fault["injected"], "skipped": reason}
        else:
            # What was done to a node is undone after Ctrl-C, too.
            interruption.raise_in_worker()
            result = self._run_course(site, arguments["job"], fault)
        cells = [fault_table.cell(part, 100) for part in fault_table.make_row(result)[2:]]
        self._display.display("   ".join(cells))
        return {
            "changed": not reason,
            "drilled": json.loads(json.dumps(result)),
            "_ansible_verbose_override": True,
        }

    def _reason_to_skip(
        self, site: drill_site.Site, fault: dict[str, Any], example: bool
    ) -> str | None:
        if self.check_mode:
            return "nothing is done in check mode"
        playbooks = glob.glob(os.path.join(self._project(), "playbooks", "*.yml"))
        verbs = [os.path.basename(path)[:-4] for path in playbooks]
        in_containers = all(node.container for node in site.nodes)
        return fault_table.find_obstacle(fault, in_containers, example, verbs)

    def _run_course(
        self, site: drill_site.Site, job: dict[str, Any], fault: dict[str, Any]
    ) -> dict[str, Any]:
        folder = os.path.join(self._folder(), time.strftime("%H%M%S-") + fault["name"])
        return drill_run.Drill(site, job, fault, folder, self._display.display).execute()

    def _summarize(self, arguments: Arguments) -> Result:
        """Prove that the last fault, too, left a site that trains (N8), and write the table."""
        results = [item["drilled"] for item in arguments["results"] if item.get("drilled")]
        if not results:
            messages = (item["msg"] for item in arguments["results"] if item.get("msg"))
            raise fault_table.DrillError(f"no fault was done: {next(messages, 'none was chosen')}")
        closing = dict(CLOSING, budget=dict(fault_table.BUDGET))
        drill_run.fill_last_promise(
            results, lambda: self._run_course(self._make_site(arguments), arguments["job"], closing)
        )
        total = fault_table.summarize(results)
        page = self._write_results(results, total)
        outcome = "failed"
        if all(fault_table.is_kept(result) for result in results if not result.get("skipped")):
            outcome = "completed"
        rows = [
            "  ".join(fault_table.cell(part, 70) for part in fault_table.make_row(result))
            for result in results
        ]
        return {
            "changed": False,
            "summary": [*rows, f"table        {page}", total],
            "verdict": {"outcome": outcome, "text": total},
            "results": results,
        }

    def _write_results(self, results: list[dict[str, Any]], total: str) -> str:
        """Write drill.json and drill.md. Return the path of the latter."""
        os.makedirs(self._folder(), mode=0o700, exist_ok=True)
        write_json(
            os.path.join(self._folder(), "drill.json"),
            {"version": 1, "site": self._site(), "faults": results},
        )
        path = os.path.join(self._folder(), "drill.md")
        with open(path, "w", encoding="utf-8") as handle:
            handle.write(f"{fault_table.table(results)}\n{total}\n")
        return path


def _decode(word: str | bytes) -> str:
    if isinstance(word, bytes):
        return word.decode("utf-8", "surrogateescape")
    return word


def _command_line_options() -> list[str]:
    """Return the options of this command that the started commands need, too."""
    options = []
    for source in context.CLIARGS.get("inventory") or ():
        options += ["-i", source]
    for option, key in (("--user", "remote_user"), ("--private-key", "private_key_file")):
        if context.CLIARGS.get(key):
            options += [option, context.CLIARGS[key]]
    for item in context.CLIARGS.get("vault_password_files") or ():
        options += ["--vault-password-file", item]
    return options


def names_of_job(trainers: list[str], nodes: Any) -> list[str]:
    """Return the nodes of a job in the order of its ranks. nodes: as its file says it."""
    if isinstance(nodes, int):
        return trainers[:nodes]
    if isinstance(nodes, list):
        return [name for name in nodes if name in trainers]
    return trainers
