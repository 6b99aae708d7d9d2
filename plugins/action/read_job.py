# SPDX-License-Identifier: GPL-3.0-or-later
"""Read job, site and command line on the controller; see library/read_job.py for the documentation."""

from __future__ import annotations

import glob
import importlib
import os
import re
import secrets
import time

import ansible.module_utils
from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.inventory.manager import InventoryManager
from ansible.plugins.action import ActionBase
from ansible.utils.vars import load_extra_vars

# ansible.cfg's module_utils is for modules; a plugin has to find the product's package by itself.
_CORE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "module_utils")
if _CORE not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_CORE)
jobs = importlib.import_module("ansible.module_utils.trainyard.job")
sites = importlib.import_module("ansible.module_utils.trainyard.site")
RUN_ID = importlib.import_module("ansible.module_utils.trainyard.attempts").RUN_ID
LAUNCHERS = importlib.import_module("ansible.module_utils.trainyard.launchers").LAUNCHERS
plain = importlib.import_module("ansible.module_utils.trainyard.plain").plain
printable = importlib.import_module("ansible.module_utils.trainyard.display").printable
Problem = importlib.import_module("ansible.module_utils.trainyard.yamldata").Problem

# What read_job itself looks at besides `config`, for every verb that reads a job.
COMMON = ("config",)


class ActionModule(ActionBase):
    """Everything is read and judged in the controller's process; no connection is opened."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        arguments = plain(self._task.args)
        project = os.path.dirname(os.path.abspath(task_vars["playbook_dir"]))
        extra = plain(load_extra_vars(self._loader))
        reads_job = "config" in arguments
        allowed = set(COMMON if reads_job else ()) | set(arguments.get("extra") or [])
        problems = jobs.command_line(extra, allowed, role_variables(project, self._loader))
        if not reads_job:
            if "run" in extra and not RUN_ID.match(str(extra["run"])):
                text = "%r is no run id; it looks like 20261120-103501-ppyoloe-1f2e, and playbooks/status.yml shows it" % (extra["run"],)
                problems.append(Problem("command line", None, "run", text))
            _site, found = sites.read_site(plain(task_vars["groups"]), _Hosts(task_vars["hostvars"]))
            self._refuse(problems + found)
            return {"changed": False, "project": project}
        path, shown, found = jobs.find_job(arguments.get("config"), os.path.join(project, "playbooks", "configs"), os.getcwd())
        problems += found
        job = None
        if path:
            job, found = jobs.read_job(path, shown)
            problems += found
        site, found = sites.read_site(plain(task_vars["groups"]), _Hosts(task_vars["hostvars"]))
        problems += found
        if job:
            job = jobs.apply_command_line(job, extra, problems)
        nodes = []
        if job and site and not problems:
            nodes, problems = sites.choose(job, site)
            problems += self._limit(nodes)
        self._refuse(problems)
        # a job file of the user's own may have any name; a run's is part of paths and of the unit's name
        name = re.sub(r"[^A-Za-z0-9_.]", "_", job["name"])[:64]
        run_id = "%s-%s-%s" % (time.strftime("%Y%m%d-%H%M%S", time.gmtime()), name, secrets.token_hex(2))
        return {
            "changed": False,
            "job": job,
            "site": site,
            "nodes": nodes,
            "suite": jobs.load_suite(job["suite"]),
            "source": site["suites"][job["suite"]],
            "programs": LAUNCHERS[job["launcher"]].get("programs", {}),
            "run": run_id,
            "project": project,
        }

    @staticmethod
    def _refuse(problems):
        if problems:
            lines = "\n".join("  " + printable(str(problem)) for problem in problems)
            raise AnsibleActionFail("%d problem%s, nothing was touched:\n%s" % (len(problems), "s" if len(problems) > 1 else "", lines))

    def _limit(self, nodes):
        """A gang runs whole or not at all: --limit must not cut a node off."""
        subset = context.CLIARGS.get("subset")
        if not subset:
            return []
        inventory = InventoryManager(loader=self._loader, sources=list(context.CLIARGS["inventory"]))
        inventory.subset(subset)
        kept = {host.name for host in inventory.get_hosts("all")}
        lost = [node["name"] for node in nodes if node["name"] not in kept]
        if not lost:
            return []
        text = "cuts %s off the %d nodes of this job; take --limit away, or ask for fewer nodes with -e nodes=N" % (
            ", ".join(lost),
            len(nodes),
        )
        return [Problem("command line", None, "--limit", text)]


def role_variables(project, loader):
    """Return the names of all public role variables, from the roles' argument specs; they may be given with -e, too."""
    names = set()
    for path in glob.glob(os.path.join(project, "roles", "*", "meta", "argument_specs.yml")):
        specs = loader.load_from_file(path)["argument_specs"]
        names.update(name for entry in specs.values() for name in entry.get("options") or {})
    return names


class _Hosts:
    """hostvars as plain data, one host at a time, so that a site of hundreds is not templated more than once."""

    def __init__(self, hostvars):
        self._hostvars = hostvars

    def __getitem__(self, name):
        found = self._hostvars[name]
        wanted = [key for key in found if key.startswith("trainyard_") or key in ("ansible_host", "ansible_port")]
        return {str(key): plain(found[key]) for key in wanted}
