# SPDX-License-Identifier: Apache-2.0
"""The end of a command whose run goes on, in a real process."""

from __future__ import annotations

import os
import subprocess
import sys

from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import interruption
from core_support import ROOT

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
