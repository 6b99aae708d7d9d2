# SPDX-License-Identifier: Apache-2.0
"""The runs that this scenario's checks share: each is made once, by the first check that wants
it.
"""

from __future__ import annotations

import collections
import os
import signal

import pytest
from harness import JOBS, NODES, background, ended, events, new_run, playbook, runs, wait_for

# run: its id. text: what logs.yml -e follow=true printed, to its end. code: its exit code.
# interrupted: what it had printed when Ctrl-C ended it once.
Followed = collections.namedtuple("Followed", "run code text interrupted")


def started(before):
    """Return the id of the run that was started since, once its ranks have started on every
    node.
    """
    run = wait_for(lambda: new_run(before), 180)
    wait_for(
        lambda: all(
            any(event["event"] == "start" for event in events(node, run)) for node in NODES
        ),
        180,
    )
    return run


@pytest.fixture(scope="session")
def followed(tmp_path_factory):
    """A short training that was left with Ctrl-C, followed by logs.yml (interrupted once), and
    finished by follow.yml.
    """
    before, folder = runs(), tmp_path_factory.mktemp("followed")
    controller = background(folder / "train", "train", "-e", f"config={JOBS}/short.yml")
    run = started(before)
    os.killpg(controller.pid, signal.SIGINT)
    controller.wait(60)
    first = background(folder / "first", "logs", "-e", "follow=true")
    wait_for(lambda: "[0 node1] " in (folder / "first").read_text(), 120)
    os.killpg(first.pid, signal.SIGINT)
    first.wait(60)
    assert all(ended(node, run) is None for node in NODES), "Ctrl-C must leave the run alone"
    done = playbook("logs", "-e", "follow=true")
    finished = playbook("follow", "-e", f"run={run}")
    assert finished.returncode == 0, finished.stdout
    return Followed(run, done.returncode, done.stdout, (folder / "first").read_text())


@pytest.fixture(scope="session")
def finished(followed):
    """The id of a run that has completed."""
    return followed.run


@pytest.fixture(scope="session")
def beside(tmp_path_factory):
    """A training whose rank 1 raises an exception; train.yml follows it in one terminal and
    logs.yml in another.
    """
    before, folder = runs(), tmp_path_factory.mktemp("beside")
    controller = background(folder / "train", "train", "-e", f"config={JOBS}/raise.yml")
    run = started(before)
    done = playbook("logs", "-e", "follow=true", "-e", f"run={run}")
    assert controller.wait(240) != 0
    return Followed(run, done.returncode, done.stdout, (folder / "train").read_text())


@pytest.fixture(scope="session")
def failed(beside):
    """The id of a run that has failed: rank 1 raised an exception."""
    return beside.run
