# SPDX-License-Identifier: Apache-2.0
"""Other users' attempts, as any user of a machine sees them in procfs."""

from __future__ import annotations

import os

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.runs import run_states

RUN = "20261120-103501-ppyoloe-1f2e"
SLICE = "0::/user.slice/user-1001.slice/user@1001.service/app.slice"


@pytest.fixture
def proc(tmp_path):
    """Return a function that adds a process with a control group to a procfs."""

    def add(pid, group):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(group)
        return str(tmp_path)

    return add


def test_an_attempt_is_found_once_with_its_user(proc):
    for pid, tail in ((7, "\n"), (8, "/launcher\n")):
        folder = proc(pid, f"{SLICE}/trainyard-{RUN}-2.service{tail}")
    (found,) = run_states.other_users(folder, own=-1)
    assert (found["run"], found["attempt"]) == (RUN, 2)
    assert run_states.other_users(folder, own=os.getuid()) == []


@pytest.mark.parametrize(
    "group",
    [
        f"{SLICE}/trainyard-{RUN}-0.service\n",  # a rehearsal
        f"{SLICE}/trainyard-guard-{RUN}-1.service\n",
        f"{SLICE}/trainyard-../../etc-1.service\n",
        f"{SLICE}/trainyard-{'x' * 200}-1.service\n",
        f"{SLICE}/nginx.service\n",
        "",
    ],
)
def test_other_units_are_none(proc, group):
    assert run_states.other_users(proc(7, group), own=-1) == []


def test_a_process_that_ends_meanwhile_is_passed_over(tmp_path):
    (tmp_path / "7").mkdir()
    assert run_states.other_users(str(tmp_path), own=-1) == []
