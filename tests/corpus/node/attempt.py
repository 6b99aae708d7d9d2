# SPDX-License-Identifier: Apache-2.0
"""One attempt on this node, by the product's own functions and without Ansible around them:
library/attempt.py takes 3 s, this 0.3.

PYTHONPATH=lib attempt.py prepare|start|until|wait|stop|clean < SPEC        (JSON: run, node, plan,
sha256, name, has, seconds)
"""

import json
import os
import re
import subprocess
import sys
import time

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    guard_unit,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands, processes


def run(argv):
    environment = dict(os.environ, **commands.user_environment(os.getuid()), LANG="C", LC_ALL="C")
    done = subprocess.run(
        argv,
        env=environment,
        text=True,
        check=False,
        capture_output=True,
    )
    return done.returncode, done.stdout, done.stderr


def prepare(spec, place, unit):
    with open(os.path.join(os.path.dirname(__file__), attempt_dir.ARCHIVE), "rb") as handle:
        files = {attempt_dir.ARCHIVE: handle.read()}
    attempt_dir.prepare(place, spec["plan"], spec["sha256"], spec["node"], spec["run"], 1, files)


def start(spec, place, unit):
    guard_unit.has_guard = lambda _unit: False  # a failure is to take its own course
    with open(os.path.join(place, "plan.json"), encoding="utf-8") as handle:
        plan = json.load(handle)
    attempt_dir.start(
        run, place, plan, spec["node"], unit, "Trainyard run {} attempt 1".format(spec["run"])
    )


def until(spec, place, unit):
    """Wait until a file of the attempt holds a line; fail after so many seconds, or when the
    attempt has ended without it.
    """
    wanted, end = re.compile(spec["has"]), time.monotonic() + spec["seconds"]
    while True:
        over = time.monotonic() > end or os.path.exists(os.path.join(place, "exit.json"))
        try:
            with open(
                os.path.join(place, spec["name"]), encoding="utf-8", errors="replace"
            ) as handle:
                if wanted.search(handle.read()):
                    return
        except OSError:
            pass
        if over:
            sys.exit("{} never said {!r}".format(spec["name"], spec["has"]))
        time.sleep(0.1)


def wait(spec, place, unit):
    """Wait for the attempt's end; fail after so many seconds."""
    end = time.monotonic() + spec["seconds"]
    while (
        not os.path.exists(os.path.join(place, "exit.json"))
        or run(["systemctl", "--user", "is-active", unit])[1].strip() in attempt_dir.ACTIVE
    ):
        if time.monotonic() > end:
            sys.exit("it has not ended")
        time.sleep(0.3)


def stop(spec, place, unit):
    attempt_dir.stop(run, place, unit, spec["by"], spec["source"])


def clean(spec, place, unit):
    run(["systemctl", "--user", "stop", unit])
    run(["systemctl", "--user", "reset-failed", unit])
    processes.end(spec["run"], None)


def main():
    spec = json.load(sys.stdin)
    place = attempt_dir.attempt_dir(os.path.expanduser("~/.trainyard"), spec["run"], 1)
    try:
        globals()[sys.argv[1]](spec, place, attempt_dir.unit_name(spec["run"], 1))
    except attempt_dir.AttemptError as error:
        sys.exit(str(error))


main()
