# SPDX-License-Identifier: Apache-2.0
"""The end of a command whose run goes on, in a real process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import interruption
from core_support import ROOT, put

STUCK = """
import signal, threading, time
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import interruption
signal.signal(signal.SIGINT, signal.SIG_IGN)
interruption.at_end(lambda: print("run goes on", flush=True))
interruption.END_SECONDS = 0.3
threading.Thread(target=interruption.interrupt).start()
time.sleep(60)
"""


def test_a_process_that_an_interrupt_does_not_end_ends_all_the_same():
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "collections")}
    command = [sys.executable, "-c", STUCK]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (interruption.INTERRUPTED, b"run goes on\n")


ACTION = """
import time
from pathlib import Path
from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import interruption

class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        folder = Path(self._task.args["folder"])
        interruption.raise_in_worker()
        (folder / "begun").touch()
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(3)  # meanwhile Ansible ends its workers
            (folder / "undone").touch()
            raise
"""
PLAY = [
    {
        "hosts": "localhost",
        "gather_facts": False,
        "tasks": [{"long": {"folder": "."}}],
    }
]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_undoes_what_it_did_after_ctrl_c(tmp_path, number):
    PLAY[0]["tasks"][0]["long"]["folder"] = str(tmp_path)
    put(tmp_path, {"play.yml": json.dumps(PLAY), "action_plugins/long.py": ACTION})
    put(tmp_path, {"library/long.py": "#!/usr/bin/python\n"})
    process = subprocess.Popen(
        [os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), tmp_path / "play.yml"],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_ACTION_PLUGINS": str(tmp_path / "action_plugins")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for name in ("begun", "undone"):
        deadline = time.monotonic() + 30
        while not (tmp_path / name).exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert (tmp_path / name).exists(), name
        if name == "begun":
            os.killpg(process.pid, number)
    process.wait(30)
