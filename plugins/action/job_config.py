# SPDX-License-Identifier: GPL-3.0-or-later
"""Read job, site and command line on the controller.

See library/job_config.py for the documentation.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import secrets
import sys
import time
from collections.abc import Collection
from typing import Any

import yaml
from ansible import constants as C
from ansible import context
from ansible.inventory.manager import InventoryManager
from ansible.parsing.splitter import parse_kv
from ansible.plugins.loader import connection_loader
from ansible.utils.vars import load_extra_vars
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import suggest
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import software
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table
from ansible_collections.trainyard.cluster.plugins.module_utils.suites.launcher_table import (
    LAUNCHERS,
)
from ansible_collections.trainyard.cluster.plugins.modules.job_config import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import project
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base.yaml_source import (
    Problem,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import (
    default_site,
    duplicate_hosts,
    extra_vars,
    host_problems,
    spares,
    ssh_policy,
    switch,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import site as sites
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config.config_types import (
    Job,
    Node,
    Site,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config.inventory_origin import (
    HostVariables,
    origin_of,
    raw_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import (
    controller_programs,
    ports,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import standby

# The variable that job_config itself reads, for every verb that reads a job.
COMMON = ("config",)
# So many problems are shown. The others are counted.
MOST = 100
# Areas of codes whose problems are about the site.
OF_SITE = ("site.", "login.", "role.", "job.too_many_nodes", "job.unknown_node")
LOGIN_SETTINGS = (
    "host_key_checking",
    "ssh_args",
    "ssh_common_args",
    "ssh_extra_args",
    "private_key_file",
)

Problems = list[Problem]
Setting = tuple[str, str, Any]


class ActionModule(ControllerAction):
    """Read and judge everything in the controller's process. No connection is opened."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Return the job and the site, or fail with every problem of them."""
        self._arguments, self._resumed = arguments, arguments["resumed"] or {}
        variables = plain(load_extra_vars(self._loader))
        ignored = set(arguments["ignored"])
        self._extra = {name: value for name, value in variables.items() if name not in ignored}
        self._allowed = set(arguments["extra"])
        has_config = "config" in self._task.args
        if has_config:
            self._allowed |= set(COMMON)
        self._roles = role_variables(project.PRODUCT)
        self._hosts = HostVariables(self.task_vars["hostvars"], self._extra)
        problems = self._command_line_problems() + self._controller_problems()
        site, site_problems = self._read_site()
        site_problems += self._role_problems(site)
        if has_config or self._resumed:
            return self._read_job(site, problems, site_problems)
        problems += self._name_problems(site) + site_problems + self._hosts.problems
        self._refuse(problems, site)
        warnings = _texts(controller_programs.warnings(verb()))
        return {"changed": False, "project": project.project_dir(), "warnings": warnings}

    # --- the job

    def _read_job(self, site: Site | None, problems: Problems, site_problems: Problems) -> Result:
        """Return what the verb goes on with, or fail with every problem."""
        job, job_problems = self._find_job()
        problems = problems + job_problems + site_problems
        if site and not self._resumed:  # a run that was started under such names goes on
            problems += self._located(sites.confusable_names(site), site)
        if job:
            job = jobs.apply_command_line(job, self._extra, problems)
        nodes: list[Node] = []
        forwarded: list[Any] = []
        if job and site:
            nodes, node_problems = self._choose_nodes(job, site)
            problems += node_problems
            logins = {node["name"]: self._hosts.login(node["name"]) for node in nodes}
            problems += ssh_policy.local_connection_problems(
                logins, context.CLIARGS.get("connection")
            )
            forwarded = ssh_policy.forwarding_notes(logins, settings())
        self._refuse(problems + self._hosts.problems, site)
        assert job and site, "where one of them is missing, a problem says why"
        return self._describe(job, site, nodes, forwarded)

    def _find_job(self) -> tuple[Job | None, Problems]:
        """Return (job, problems): of a run's record, or of the file that the command line names."""
        if self._resumed:
            file = f"runs/{self._resumed['run']}/job.json"
            return jobs.read_recorded_job(self._resumed["job"], file)
        folder = os.path.join(project.PRODUCT, "playbooks", "configs")
        path, shown, problems = jobs.find_job(self._arguments["config"], folder, os.getcwd())
        if path and shown:
            return jobs.read_partial_job(path, shown)
        return None, problems

    def _choose_nodes(self, job: Job, site: Site) -> tuple[list[Node], Problems]:
        """Return (nodes, problems) of a job, and note the nodes of the first attempt in the job.

        A run that goes on has its nodes, however many trainers there are now. The nodes of a later
        attempt are chosen afterwards (recovery/node_replacement.py).
        """
        resumed_names = self._resumed.get("nodes") or ()
        names = [
            node["name"] for node in site["nodes"] + site["spares"] if node["name"] in resumed_names
        ]
        nodes, problems = sites.select_nodes(job, site, self._arguments["members"] or names or None)
        places = self._resumed.get("places") or [node["name"] for node in nodes]
        job.setdefault("places", places)
        return nodes, self._located(problems, site) + self._limit_problems(nodes)

    def _describe(
        self,
        job: Job,
        site: Site,
        nodes: list[Node],
        forwarded: list[Any],
    ) -> Result:
        """Return the result for a job and a site without problems."""
        launcher: Any = LAUNCHERS[job["launcher"]]
        source, suite = site["suites"][job["suite"]], jobs.load_suite(job["suite"])
        return {
            "changed": False,
            # The environment may hold secrets, and -v would show them.
            "_ansible_verbose_override": True,
            "job": job,
            "site": site,
            "nodes": nodes,
            "names": [node["name"] for node in nodes],
            "spares": standby.candidates(job, site, nodes),
            "suite": suite,
            "source": sites.resolve_paths(source, project.project_dir()),
            "programs": launcher.get("programs", {}),
            "ports": ports.ports_to_probe(job, site, nodes),
            "hidden": suite_table.linked_folders(suite, source.get("data") or {}),
            "environments": software.possible_digests(
                source["environment"], project.project_dir(), project.PRODUCT
            ),
            "run": self._resumed.get("run") or new_run_id(job["name"]),
            "number": self._resumed.get("number") or 1,
            # Two commands that go on with one run must not take each other's checks of the network
            # for their own.
            "token": secrets.token_hex(6),
            "project": project.project_dir(),
            "warnings": _texts(
                [
                    *jobs.port_warnings(job, site),
                    *spares.device_notes(site["nodes"], site["spares"]),
                    *forwarded,
                    *controller_programs.warnings(verb()),
                ]
            ),
        }

    # --- the site

    def _read_site(self) -> tuple[Site | None, Problems]:
        """Return (site, problems): the nodes, and how they are logged in to."""
        site, problems = sites.read_site(plain(self.task_vars["groups"]), self._hosts)
        problems = self._located(problems, site)
        problems += duplicate_hosts.find_duplicates(list(context.CLIARGS.get("inventory") or ()))
        if site:
            problems += self._login_problems(site)
        return site, problems

    def _login_problems(self, site: Site) -> Problems:
        names = [node["name"] for node in site["nodes"] + site["spares"]]
        logins = {name: self._hosts.login(name) for name in names}
        entries = list(settings())
        if not self._asks_nodes():  # becoming another user is refused all the same
            logins = {name: _only(login, ssh_policy.BECOME) for name, login in logins.items()}
            entries = [entry for entry in entries if entry[1] == "become"]
        if not self._arguments["administrator"]:
            logins = {name: _without(login, ssh_policy.ADMIN_KEY) for name, login in logins.items()}
        problems = ssh_policy.problems(logins, entries)
        if self._arguments["administrator"]:
            problems += self._hosts.account_problems(logins)
        return problems

    def _asks_nodes(self) -> bool:
        """Return whether the verb will ask a node anything, so that the logins matter."""
        if not self._arguments["logins"]:
            return False
        if "site" not in self._allowed:
            return True
        return switch.parse_switch(self._extra.get("site", True)) is not False

    def _role_problems(self, site: Site | None) -> Problems:
        """Compare the roles' variables of nodes and controller with the roles' argument specs."""
        names = []
        if site:
            names = [node["name"] for node in site["nodes"] + site["spares"]]
        folders = sorted(os.listdir(os.path.join(project.PRODUCT, "roles")))
        problems: Problems = []
        for name in [*names, "localhost"]:
            problems += self._hosts.role_problems(name, self._roles, folders, project.PRODUCT)
        # The controller judges. What only nodes have would be passed over without a word.
        judged = [name for name in self._roles if self._is_judged_here(name)]
        for name in names:
            problems += self._hosts.unheard_problems(name, judged)
        return problems

    def _is_judged_here(self, name: str) -> bool:
        if not name.startswith("preflight_") or name == "preflight_home":
            return False
        return name not in self._extra

    def _located(self, problems: Problems, site: Site | None) -> Problems:
        """Give the inventory's problems the file and line that Ansible knows for them."""
        located = []
        for problem in problems:
            host = ""
            if problem.file.startswith("inventory"):
                host = problem.file.partition(", host ")[2]
                problem = self._locate(problem, site)
            located.append((problem, host))
        names: list[str] = []
        if site:
            names = [node["name"] for node in site["nodes"] + site["spares"]]
        return host_problems.merge(located, names)

    def _locate(self, problem: Problem, site: Site | None) -> Problem:
        if problem.key.partition(".")[0] in self._extra:
            return dataclasses.replace(problem, file="command line", line=None)
        if site:
            host = problem.file.partition(", host ")[2]
            raw = raw_of(self.task_vars["hostvars"], host or site["nodes"][0]["name"])
            origin = origin_of(raw, problem.key)
            if origin:
                file, line = origin
                return dataclasses.replace(problem, file=file, line=line)
        return problem

    # --- the command line

    def _command_line_problems(self) -> Problems:
        names = (self._extra, self._allowed, self._roles)
        problems = jobs.unknown_variables(*names) + extra_vars.validate(*names)
        problems += extra_vars.conflicts(self._extra, verb(), self.check_mode)
        return problems + duplicate_values()

    def _name_problems(self, site: Site | None) -> Problems:
        """Return the problems of the names of a run and of a suite."""
        problems = []
        run, suite = self._given("run"), self._given("suite")
        if run is not None and not RUN_ID.match(str(run)):
            text = (
                f"{run!r} is no run id; it looks like 20261120-103501-ppyoloe-1f2e, and"
                " ansible-playbook playbooks/status.yml shows it"
            )
            problems.append(Problem("command line", None, "run", text, code="cli.bad_run"))
        if suite is not None and site and suite not in site["suites"]:
            known = sorted(site["suites"])
            text = (
                f"{suite!r} does not stand in trainyard_suites; allowed:"
                f" {', '.join(known)}{suggest(suite, known)}"
            )
            problems.append(Problem("command line", None, "suite", text, code="site.unknown_suite"))
        return problems

    def _given(self, name: str) -> Any:
        """Return a variable of the command line that this verb takes, or None."""
        if name not in self._allowed or name not in self._extra:
            return None
        value = self._extra[name]
        if value is None:
            return "None"
        return value

    def _limit_problems(self, nodes: list[Node]) -> Problems:
        """Refuse a --limit that cuts a node off: a gang runs whole or not at all."""
        subset = context.CLIARGS.get("subset")
        if not subset:
            return []
        inventory = InventoryManager(
            loader=self._loader, sources=list(context.CLIARGS["inventory"])
        )
        inventory.subset(subset)
        hosts_of_limit = {host.name for host in inventory.get_hosts("all")}
        lost = [node["name"] for node in nodes if node["name"] not in hosts_of_limit]
        if not lost:
            return []
        cut = f"cuts {', '.join(lost)} off the {len(nodes)} nodes of this job"
        return [_limit_problem(cut)]

    def _controller_problems(self) -> Problems:
        """Refuse a --limit that cuts the controller off, where all nodes take part.

        Then no play on localhost has a host, so the nodes' first play asks for this.
        """
        subset = context.CLIARGS.get("subset")
        if not subset or not self._arguments["whole"]:
            return []
        inventory = InventoryManager(
            loader=self._loader, sources=list(context.CLIARGS["inventory"])
        )
        inventory.subset(subset)
        if inventory.get_hosts("localhost"):
            return []
        return [_limit_problem("cuts the controller off")]

    def _refuse(self, problems: Problems, site: Site | None) -> None:
        """Fail with every problem, if there is one. Secret values are masked."""
        if not problems:
            return
        code_of_line: dict[str, str] = {}
        for problem in problems:
            if site and problem.key.rpartition(".")[2] in site["secret_env"]:
                text = re.sub(r"\bgot .*", "got ********", problem.text, flags=re.DOTALL)
                problem = dataclasses.replace(problem, text=text)
            code_of_line.setdefault("  " + printable(str(problem)), problem.code)
        lines = list(code_of_line)
        noun = "problem"
        if len(lines) > 1:
            noun = "problems"
        shown = [f"{len(lines)} {noun}, nothing was touched:", *lines[:MOST]]
        if len(lines) > MOST:
            shown.append(f"  and {len(lines) - MOST} more")
        if any(problem.code.startswith(OF_SITE) for problem in problems):
            shown += _default_site_lines()
        self.fail("\n".join(shown), codes=list(code_of_line.values())[:MOST])


def _limit_problem(effect: str) -> Problem:
    """Return the problem of a --limit with such an effect on a verb that runs on all nodes."""
    remedy = "-e nodes=N or -e nodes=NAME,NAME, or remove the host from the group trainers"
    if verb() == "resume":
        remedy = "-e run=RUN alone; the run's nodes are found without it"
    text = (
        f"{effect}; {verb()}.yml runs on all nodes of the job and does not support --limit; use"
        f" {remedy}"
    )
    return Problem("command line", None, "--limit", text, code="cli.limit_cuts_job")


def _default_site_lines() -> list[str]:
    """Return [the sentence about a site that the user has not chosen], or []."""
    default = list(C.config.get_config_value("DEFAULT_HOST_LIST"))
    is_default = list(context.CLIARGS.get("inventory") or ()) == default
    if not is_default or default_site.is_chosen(sys.argv, os.environ):
        return []
    folders = [os.path.join(folder, "inventory") for folder in (project.PRODUCT, os.getcwd())]
    return [default_site.describe(default, default_site.find_sites(folders, default))]


def _texts(warnings: Collection[Any]) -> list[str]:
    return [printable(str(warning)) for warning in warnings]


def _only(login: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: entry for name, entry in login.items() if name == key}


def _without(login: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: entry for name, entry in login.items() if name != key}


def new_run_id(job_name: str) -> str:
    """Return the id of a new run.

    A job file of the user's own may have any name. A run's is part of paths and of the unit's name.
    """
    name = re.sub(r"[^A-Za-z0-9_.]", "_", job_name)[:64]
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{moment}-{name}-{secrets.token_hex(2)}"


def verb() -> str:
    """Return the playbook's name without its ending: the user's command."""
    playbooks = list(context.CLIARGS.get("args") or ()) or [""]
    return os.path.splitext(os.path.basename(playbooks[0]))[0]


def duplicate_values() -> Problems:
    """Return a Problem for each name that has two values. Ansible takes the last one silently."""
    first: dict[str, Any] = {}
    problems = []
    for words in context.CLIARGS.get("extra_vars") or ():
        if words[:1] in ("@", "[", "{"):
            continue
        for name, value in parse_kv(words).items():
            if first.setdefault(name, value) != value:
                text = f"is given twice: {str(first[name])!r} and {str(value)!r}"
                problems.append(Problem("command line", None, name, text, code="cli.contradiction"))
    return problems


def role_variables(project: str) -> dict[str, Any]:
    """Return {name: spec} of all public role variables, from the roles' argument specs.

    They may be given with -e, too. They are the product's own files. Ansible's loader would copy
    each of them, which takes ten times as long.
    """
    variables: dict[str, Any] = {}
    reader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in glob.glob(os.path.join(project, "roles", "*", "meta", "argument_specs.yml")):
        with open(path, encoding="utf-8") as handle:
            specs = yaml.load(handle, Loader=reader)["argument_specs"]
        for entry in specs.values():
            variables.update(entry.get("options") or {})
    return variables


def settings() -> list[Setting]:
    """Return [(where, name, value)] of the settings of every login.

    They are from Ansible's configuration, environment and command line.
    """
    connection_loader.get("ssh", class_only=True)  # makes its settings known
    entries = [_login_setting(name) for name in LOGIN_SETTINGS]
    value, origin = C.config.get_config_value_and_origin("DEFAULT_BECOME")
    if context.CLIARGS.get("become"):
        return [*entries, ("command line", "become", True)]
    return [*entries, (str(origin), "become", plain(value))]


def _login_setting(name: str) -> Setting:
    value, origin = C.config.get_config_value_and_origin(
        name, plugin_type="connection", plugin_name="ssh"
    )
    if str(origin).startswith("cli:"):
        return "command line", name, plain(value)
    return str(origin), name, plain(value)
