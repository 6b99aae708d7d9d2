# SPDX-License-Identifier: Apache-2.0
"""A replacement for a lost node was not ready. A preflight or a task that failed there names it,
and no other node is named.
"""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery import replacement_failures


def chosen(nodes=("n1", "s1"), new=("s1",)):
    came = replacement_failures.Replacements()
    came.note_choice({"run": "r", "state_dir": "/x", "nodes": list(nodes), "new": list(new)})
    came.note_play()
    return came


def stop(check, *nodes):
    return {"check": check, "nodes": list(nodes)}


@pytest.mark.parametrize(
    "stops, found",
    [
        ([stop("disk", "s1")], {"s1": "not ready: disk"}),
        ([stop("disk", "s1"), stop("memory", "s1")], {"s1": "not ready: disk"}),
        # who trained until now is not given up for a full disk
        ([stop("disk", "n1")], {}),
        # what all have is the job's; a way that is cut has two ends, and one of them is new
        ([stop("plan", "n1", "s1"), stop("plan")], {}),
        ([stop("network", "n1", "s1")], {"s1": "not ready: network"}),
        ([stop("rehearsal", "n1", "s1")], {"s1": "not ready: rehearsal"}),
    ],
)
def test_whom_a_preflight_means(stops, found):
    came = chosen()
    came.note_refusal(stops)
    assert came.unready(["localhost"]) == found
    came.note_start()
    assert came.unready(["localhost"]) == {}


def test_where_all_are_new_whoever_is_named_is_meant():
    came = chosen(nodes=("s1",))
    came.note_refusal([stop("disk", "s1")])
    assert came.unready(["localhost"]) == {"s1": "not ready: disk"}


def test_whom_a_task_means():
    came = chosen(nodes=("n1", "s1", "s2"), new=("s1", "s2"))
    came.note_failure("t1", "s1", "Install the wheels")
    came.note_failure(
        "t2", "s2", "Report why nothing runs"
    )  # it ends as the first one's consequence
    assert came.unready(["s1", "s2"]) == {"s1": "not ready: Install the wheels"}
    # a failure that was recovered does not count, nor does one on an earlier node or on all nodes
    assert came.unready(["n1"]) == {}
    came.note_play()
    came.note_failure("t3", "n1", "Install the wheels")
    came.note_failure("t4", "s1", "Report why nothing runs")
    assert came.unready(["n1", "s1"]) == {}
    came.note_play()
    for name in ("n1", "s1", "s2"):
        came.note_failure("t5", name, "Bring the code")
    assert came.unready(["n1", "s1", "s2"]) == {}


def test_without_a_choice_nobody_is_meant():
    came = replacement_failures.Replacements()
    came.note_failure("t1", "n1", "x")
    came.note_refusal([stop("disk", "n1")])
    assert came.unready(["n1"]) == {}
