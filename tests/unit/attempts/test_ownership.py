# SPDX-License-Identifier: Apache-2.0
"""Which run uses a node: own units, units of other users, two starts at once on several nodes, and
leftovers that do not block a node.
"""

from __future__ import annotations

import json
import threading
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    ownership,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.plugin_utils.plan import readiness
from core_support import RUN, compiled, gang, put

OLDER, YOUNGER = RUN.replace("103501", "103400"), RUN.replace("103501", "103600")


class Node:
    """A node of which only the units and the attempts' records count; `run` answers as systemctl
    does.
    """

    def __init__(self, base):
        self.base, self.units = str(base), set()

    def begin(self, run_id, number=1, age=1.0, **more):
        """Let an attempt hold the node."""
        unit = attempt_dir.unit_name(run_id, number)
        record = dict({"run": run_id, "attempt": number, "started": time.time() - age}, **more)
        put(
            attempt_dir.attempt_dir(self.base, run_id, number), {"attempt.json": json.dumps(record)}
        )
        self.units.add(unit)
        return unit

    def run(self, argv):
        lines = [
            f"{unit} loaded active running Trainyard run {unit[10:-10]} attempt 1"
            for unit in sorted(self.units)
        ]
        return (0, "\n".join(lines), "") if "list-units" in argv else (0, "", "")

    def start(self, run_id, start="mine", patience=0.0):
        return ownership.run_when_free(
            self.run,
            self.base,
            run_id,
            1,
            start,
            "node1",
            lambda: self.begin(run_id, start=start),
            patience,
        )


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr(
        commands, "user_environment", lambda uid: {"XDG_RUNTIME_DIR": str(tmp_path / "nowhere")}
    )
    return Node(tmp_path / "base")


def test_a_refused_start_says_who_holds_the_node_since_when(node):
    node.begin(OLDER, age=725, by="alice@desk")
    with pytest.raises(attempt_dir.AttemptError) as refused:
        node.start(RUN)
    words = str(refused.value)
    assert words.startswith("node1 ") and f" {OLDER} attempt 1 " in words
    assert f"(trainyard-{OLDER}-1.service, active)" in words and " 12 min ago (20" in words
    assert " UTC) by alice@desk;" in words
    assert f"playbooks/stop.yml -e run={OLDER}" in words
    assert node.units == {attempt_dir.unit_name(OLDER, 1)}


def test_the_plan_says_the_same_before_anything_is_brought(node):
    node.begin(RUN, age=7200, by="bob\x1b[2J@desk")
    arguments = gang()
    arguments["facts"]["node2"]["units"] = ownership.list_owners(node.run, node.base)
    found = readiness.obstacles(compiled(), arguments["facts"])
    line = next(str(item) for item in found if item.code == "ready.node_held")
    assert "\x1b" not in line and "node2 " in line
    assert f" {RUN} attempt 1 (active)" in line and " 2 h ago (" in line
    assert line.endswith(f": ansible-playbook playbooks/stop.yml -e run={RUN}")


def test_the_same_start_again_is_no_second_one_and_another_one_is_refused(node):
    node.begin(RUN, start="mine")
    assert node.start(RUN, "mine") is None
    with pytest.raises(attempt_dir.AttemptError, match="is held by"):
        node.start(RUN, "other")


def test_a_node_whose_systemd_is_silent_is_not_free(node):
    def silent(argv):
        return 1, "", "Failed to connect to bus"

    with pytest.raises(attempt_dir.AttemptError, match="does not answer"):
        ownership.run_when_free(
            silent, node.base, RUN, 1, "mine", "node1", lambda: pytest.fail("it was started"), 0.0
        )


def test_what_a_crash_leaves_on_the_disk_holds_nothing(node):
    node.begin(OLDER, age=3600, boot="another boot/1")
    node.units.clear()
    assert node.start(RUN) == attempt_dir.unit_name(RUN, 1)


# --- two starts at once


def test_the_older_run_waits_for_a_younger_one_that_gives_way(node):
    unit = node.begin(YOUNGER)
    threading.Timer(0.7, node.units.discard, [unit]).start()
    assert node.start(OLDER, patience=30.0) == attempt_dir.unit_name(OLDER, 1)


@pytest.mark.parametrize(
    "run_id, age, patience, least, most",
    [
        (YOUNGER, 1.0, 0.6, 0.5, 60),  # it has won everywhere and stays
        (YOUNGER, 3600.0, 30.0, 0, 25),  # it is no start any more
        (OLDER, 1.0, 30.0, 0, 25),  # the other one is the older: it is this start that gives way
    ],
)
def test_who_is_not_waited_for(node, run_id, age, patience, least, most):
    node.begin(run_id, age=age)
    begun = time.monotonic()
    with pytest.raises(attempt_dir.AttemptError, match="is held by"):
        node.start(RUN, patience=patience)
    assert least <= time.monotonic() - begun < most


def test_two_starts_that_met_each_other_leave_one_whole_gang(tmp_path, node):
    """Each start gets one of two nodes first. The younger one fails and releases its node. The
    older one gets both.
    """
    nodes, outcome = [node, Node(tmp_path / "second")], {}
    nodes[0].begin(OLDER, start=OLDER)
    nodes[1].begin(YOUNGER, start=YOUNGER)

    def launch(run_id, place):
        try:
            place.start(run_id, start=run_id, patience=30.0)
            outcome[run_id] = "runs"
        except attempt_dir.AttemptError as error:
            for each in nodes:  # the rescue
                if ownership.read_record(each.base, run_id, 1).get("start") == run_id:
                    each.units.discard(attempt_dir.unit_name(run_id, 1))
            outcome[run_id] = str(error)

    others = [
        threading.Thread(target=launch, args=(OLDER, nodes[1])),
        threading.Thread(target=launch, args=(YOUNGER, nodes[0])),
    ]
    for other in others:
        other.start()
    for other in others:
        other.join(90)
    assert outcome[OLDER] == "runs" and f"held by Trainyard run {OLDER}" in outcome[YOUNGER]
    assert [each.units for each in nodes] == [{attempt_dir.unit_name(OLDER, 1)}] * 2
