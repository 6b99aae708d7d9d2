# SPDX-License-Identifier: GPL-3.0-or-later
"""Hold the product against its contract in the controller's process; see library/conform.py for the
documentation.
"""

from __future__ import annotations

import os
import subprocess
import sys

from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.conformance import runner
from ansible_collections.trainyard.cluster.plugins.module_utils.conformance import (
    site_checks as sites,
)

PROGRAM_SECONDS = 300
# The playbook shows what is to be seen; with -v Ansible would print the whole result besides.
QUIET = {"_ansible_verbose_override": True}


class ActionModule(ActionBase):
    """The tables and schemas that a job is read with lie beside the core, where a module that was
    sent elsewhere could not see them.
    """

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        given, project = (
            plain(self._task.args),
            os.path.dirname(os.path.abspath(task_vars["playbook_dir"])),
        )
        names, hostvars = plain(task_vars["groups"]).get("trainers") or [], task_vars["hostvars"]
        if not names:
            raise AnsibleActionFail("the group trainers is missing or empty")
        site = str(plain(hostvars[names[0]].get("trainyard_site")) or "site")
        runs_dir = os.path.join(
            project,
            os.path.expanduser(str(plain(hostvars[names[0]].get("trainyard_runs_dir")) or "runs")),
        )
        try:
            ask = boolean(given.get("ask", True))
        except TypeError as error:
            raise AnsibleActionFail(
                "whether the machines are asked (site=) must be true or false; got {!r}".format(
                    given["ask"]
                )
            ) from error
        if given["state"] == "witnesses":
            return {"changed": False, "runs": sites.witnesses(runs_dir, site, names)}
        if given["state"] != "checked":
            raise AnsibleActionFail(
                "state must be witnesses or checked; got {!r}".format(given["state"])
            )
        answers = {
            name: sites.answer(
                *(plain(hostvars[name].get(given.get(key))) for key in ("proof", "facts", "plans"))
            )
            for name in names
        }
        lines = runner.examine(
            project,
            sites.Site(names, answers, runs_dir, site) if ask else None,
            lambda name, arguments: self._execute_module(
                module_name="trainyard.cluster." + name, module_args=arguments, task_vars=task_vars
            ),
            lambda words: run_program(words, project),
        )
        report, verdict = os.path.join(runs_dir, "conform.json"), runner.verdict(lines)
        if not self._task.check_mode:
            os.makedirs(runs_dir, mode=0o700, exist_ok=True)
            manifest.write_json(report, {"version": 1, "verdict": verdict, "lines": lines})
        summary = runner.table(lines) + [
            "",
            f"everything that was rendered and compared: {report}",
            verdict["text"],
        ]
        return {
            "changed": False,
            "lines": lines,
            "verdict": verdict,
            "summary": summary,
            "details": runner.details(lines),
            **QUIET,
        }


def run_program(words, project):
    """Run Python with words in the product's directory; return what it prints."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MOLECULE_", "ANSIBLE_"))
    }
    environment.update(
        PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
        NO_COLOR="1",
        PY_COLORS="0",
    )
    done = subprocess.run(
        [sys.executable, *words], cwd=project, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, timeout=PROGRAM_SECONDS,
    )  # fmt: skip
    return (done.stdout if done.returncode == 0 else done.stderr).decode("utf-8", "replace")
