# SPDX-License-Identifier: Apache-2.0
"""The memory of failed nodes: which node is noted. Two writers lose nothing, and a damaged file
harms nothing.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import stat

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.failure_catalogue import (
    entry_of,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import machine_faults
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery import failed_nodes

NODES = ["n1", "n2"]


@pytest.mark.parametrize(
    "verdict, named",
    [
        ({"outcome": "failed", "cause": "node_lost", "node": "n2"}, {"n2": "node_lost"}),
        (
            {"outcome": "failed", "cause": "device_error", "node": "n1", "unreachable": []},
            {"n1": "device_error"},
        ),
        (
            {"outcome": "lost", "cause": "unreachable", "node": "n2", "unreachable": ["n2"]},
            {"n2": "unreachable"},
        ),
        # a node that cannot be asked is lost, whatever else is found
        (
            {"outcome": "failed", "cause": "python_exception", "node": "n1", "unreachable": ["n2"]},
            {"n2": "unreachable"},
        ),
        # what a user wrote, what ran out, what was killed or stopped is no fault of a machine
        ({"outcome": "failed", "cause": "python_exception", "node": "n1"}, {}),
        ({"outcome": "failed", "cause": "out_of_memory", "node": "n1"}, {}),
        ({"outcome": "failed", "cause": "killed", "node": "n1"}, {}),
        # nothing shows a fault of the device
        ({"outcome": "failed", "cause": "kernel_error", "node": "n1"}, {}),
        ({"outcome": "failed", "cause": "device_assert", "node": "n1"}, {}),
        ({"outcome": "failed", "cause": "device_setting", "node": "n1"}, {}),
        ({"outcome": "failed", "cause": "nccl_cuda_error", "node": "n1"}, {}),
        ({"outcome": "failed", "cause": "hang", "node": "n1"}, {}),
        ({"outcome": "stopped", "cause": "stopped_by_user", "unreachable": ["n2"]}, {}),
        ({"outcome": "completed", "cause": None}, {}),
        # nobody answers: the controller was cut off
        (
            {"outcome": "lost", "cause": "unreachable", "node": "n1", "unreachable": ["n1", "n2"]},
            {},
        ),
    ],
)
def test_who_is_noted(verdict, named):
    assert machine_faults.culprits(verdict, NODES) == named


def test_every_cause_is_one_of_the_catalogue():
    """If a cause is renamed there, it would never be noted again."""
    assert [cause for cause in machine_faults.CAUSES if entry_of(cause)["cause"] != cause] == []


def test_what_is_noted_is_read_again_by_its_user_alone(tmp_path):
    folder = str(tmp_path / "state")
    assert failed_nodes.read(folder) == {}
    failed_nodes.note(folder, {"n1": "node_lost"}, "run1", 1000.0)
    failed_nodes.note(folder, {"n2": "unreachable"}, "run2", 2000.0)
    failed_nodes.note(folder, {"n1": "device_error"}, "run3", 3000.0)
    assert failed_nodes.read(folder) == {
        "n1": {"time": 3000.0, "cause": "device_error", "run": "run3"},
        "n2": {"time": 2000.0, "cause": "unreachable", "run": "run2"},
    }
    assert stat.S_IMODE(os.stat(failed_nodes.file_path(folder)).st_mode) == 0o600
    failed_nodes.note(folder, {"n3": "node_lost"}, "run4", 2500.0 + failed_nodes.KEPT_SECONDS)
    assert sorted(failed_nodes.read(folder)) == ["n1", "n3"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"nodes": []}',
        '{"nodes": {"n1": 3, "n2": {"time": "x"}, "n3": {"time": true}}}',
    ],
)
def test_a_damaged_memory_is_none_and_is_written_anew(tmp_path, text):
    (tmp_path / failed_nodes.NAME).write_text(text)
    assert failed_nodes.read(str(tmp_path)) == {}
    failed_nodes.note(str(tmp_path), {"n1": "node_lost"}, "run", 1.0)
    assert list(json.loads((tmp_path / failed_nodes.NAME).read_text())["nodes"]) == ["n1"]


def _notes(folder, mark):
    for number in range(20):
        failed_nodes.note(folder, {"%s%d" % (mark, number): "node_lost"}, "run", 1.0)


def test_runs_that_end_at_once_lose_no_note(tmp_path):
    writers = [
        multiprocessing.get_context("fork").Process(target=_notes, args=(str(tmp_path), mark))
        for mark in "abc"
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert len(failed_nodes.read(str(tmp_path))) == 60 and all(
        writer.exitcode == 0 for writer in writers
    )


def test_a_verdict_names_nodes_of_the_attempt_only():
    verdict = {
        "outcome": "failed",
        "cause": "device_error",
        "node": "node9",
        "unreachable": ["../x"],
    }
    assert machine_faults.culprits(verdict, ["node1", "node2"]) == {}
