#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Make the report of a run, or of several runs side by side."""

from __future__ import annotations

DOCUMENTATION = r"""
module: run_report
short_description: Make the report of a run, or lay several runs side by side
description:
  - Runs on the controller and reads what is at home; no node is contacted. Writes one HTML file that needs nothing beside it and asks nobody
    for anything, mode 0600, C(<runs_dir>/<run>/report.html) or C(<runs_dir>/compare-<digest of the run ids>.html).
  - A part that cannot be read (a damaged log, say) is left out; the page and a warning name it. Fails where there is no such run.
options:
  runs_dir: {description: Where the controller keeps its runs., type: path, required: true}
  run: {description: The run; the newest one where this is empty., type: str, default: ""}
  runs: {description: Two to eight runs to be compared; not together with O(run)., type: list, elements: str, default: []}
  assets: {description: "The role's directory, which holds the page's template, style, script and chart library.", type: path, required: true}
requirements: [jinja2 on the controller; it comes with Ansible]
attributes:
  check_mode: {support: full, description: Makes the page and writes nothing.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Make the report of the newest run
  run_report:
    runs_dir: runs
    assets: "{{ role_path }}"
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
  register: made
"""

RETURN = r"""
report: {description: The page's path., type: str, returned: success}
bytes: {description: Its size., type: int, returned: success}
notes: {description: What of the run could not be read., type: list, elements: str, returned: success}
"""

import functools
import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.report import (
    load,
    prometheus,
    series,
)


def make(params):
    """Return (path, text, notes) of the page; raises report_facts.ReportError, OSError."""
    from ansible_collections.trainyard.cluster.plugins.module_utils.report import (
        html_page,
        report_view,
        run_comparison,
    )

    runs_dir, runs = (
        params["runs_dir"],
        load.wanted(params["runs_dir"], params["run"], params["runs"]),
    )
    tables = os.path.join(
        params["assets"], "..", "..", "plugins", "module_utils", "trainyard", "suites"
    )
    of_run = functools.partial(series.of_run, folder=tables if os.path.isdir(tables) else None)
    found = [load.read(runs_dir, run, of_run) for run in runs]
    view = (
        run_comparison.view(found, time.time())
        if params["runs"]
        else report_view.view(found[0], time.time())
    )
    return (
        load.page_path(runs_dir, runs),
        html_page.render(view, html_page.parts(params["assets"])),
        view["notes"],
    )


def main():
    module = AnsibleModule(
        argument_spec={
            "runs_dir": {"type": "path", "required": True},
            "run": {"type": "str", "default": ""},
            "runs": {"type": "list", "elements": "str", "default": []},
            "assets": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        path, text, notes = make(module.params)
        changed = prometheus.put(path, text, 0o600, write=not module.check_mode)
    except load.ReportError as error:
        module.fail_json(msg=f"no report: {printable(str(error))}")
    except Exception as error:  # a record of a shape that nobody thought of; in words, and no trace of what it holds
        module.fail_json(msg=f"no report: {type(error).__name__}: {printable(str(error))}")
    for note in notes:
        module.warn(f"the report is not complete: {note}")
    module.exit_json(
        changed=changed,
        report=path,
        bytes=os.path.getsize(path) if os.path.exists(path) else len(text),
        notes=notes,
    )


if __name__ == "__main__":
    main()
