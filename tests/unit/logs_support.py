# SPDX-License-Identifier: Apache-2.0
"""Actions of logs.yml, run without a playbook on the controller's copy of a run that failed."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

from ansible.parsing.dataloader import DataLoader
from ansible_collections.trainyard.cluster.plugins.plugin_utils import logs_action
from core_support import ROOT

RUN = "20261120-190935-raise-1b3e"
CHOICE = {"run": RUN, "number": 1, "ended": [], "goes_on": [], "silent": [], "follow": []}


class Bench:
    """Run an action: bench(arguments, option=value, ...) returns its result.

    shown: what it has printed. warned: its warnings. runs: the controller's runs, with RUN.
    """

    def __init__(self, load_plugin, monkeypatch, tmp_path, name):
        self.name, self.plugin = name, load_plugin("action", name)
        self.runs, self.shown, self.warned = tmp_path / "runs", [], []
        shutil.copytree(ROOT / "tests/fixtures/raised" / RUN, self.runs / RUN)
        self.monkeypatch = monkeypatch

    def action(self, arguments, check=False):
        task = SimpleNamespace(args=arguments, async_val=0, check_mode=check, action=self.name)
        link = SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp"), transport="local")
        action = self.plugin.ActionModule(task, link, None, DataLoader(), None, None)
        action._load_name = self.name
        action._display = SimpleNamespace(
            display=self.shown.append, warning=self.warned.append, verbosity=0
        )
        return action

    def __call__(self, arguments, check=False, answer=None, **options):
        self.monkeypatch.setattr(logs_action, "load_extra_vars", lambda loader: options)
        action = self.action(arguments, check)
        if answer is not None:
            action._execute_module = lambda **_words: answer
        variables = {"trainyard_runs_dir": str(self.runs), "trainyard_home": ".trainyard"}
        return action.run(
            task_vars={
                "inventory_hostname": "node1",
                "groups": {"trainers": ["node1", "node2"]},
                "hostvars": {"node1": variables, "node2": variables},
            }
        )
