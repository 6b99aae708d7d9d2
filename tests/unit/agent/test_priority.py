# SPDX-License-Identifier: Apache-2.0
"""What runs beside a training has the processors last."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import priority

SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[1])
import priority
priority.GROUP = sys.argv[2]
priority.lower()
print(os.nice(0), os.path.exists(priority.GROUP) and open(priority.GROUP).read().split()[-1])
"""


def run(group, is_leader):
    """Return the niceness of a lowered program, and that of its group."""
    folder = os.path.dirname(priority.__file__)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, folder, group],
        start_new_session=is_leader,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.skipif(not os.path.exists(priority.GROUP), reason="a kernel without autogroups")
@pytest.mark.parametrize("is_leader", [True, False])
def test_a_program_has_the_processors_last(is_leader):
    """By niceness alone it would have its share where the kernel groups sessions."""
    with open(priority.GROUP, encoding="ascii") as handle:
        before = handle.read()
    assert run(priority.GROUP, is_leader) == [str(priority.LOWEST)] * 2
    with open(priority.GROUP, encoding="ascii") as handle:
        assert handle.read() == before  # its caller's session has its own


def test_a_kernel_without_groups_is_no_problem():
    assert run("/nowhere/autogroup", True) == [str(priority.LOWEST), "False"]


def test_a_change_that_comes_too_soon_after_another_is_made_again(tmp_path, monkeypatch):
    """The kernel permits one in 0.1 s, of all users."""
    refused = [BlockingIOError(), BlockingIOError()]

    def try_open(*which, **how):
        if refused:
            raise refused.pop()
        return open(*which, **how)

    monkeypatch.setattr(priority, "open", try_open, raising=False)
    monkeypatch.setattr(priority, "GROUP", str(tmp_path / "autogroup"))
    monkeypatch.setattr(priority.os, "setsid", lambda: None)
    monkeypatch.setattr(priority.os, "nice", lambda _more: None)
    priority.lower()
    assert (tmp_path / "autogroup").read_text() == str(priority.LOWEST)
