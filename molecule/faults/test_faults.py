# SPDX-License-Identifier: Apache-2.0
"""drill.yml on real nodes: each of a short selection of faults is known and over within its budget, rightly told, and every promise holds."""

from __future__ import annotations

import json

import pytest
from harness import PROJECT, last_line, left_behind, playbook

# What no other scenario does; those that fail by exception, exit code or SIGKILL are failure's, faults of a start are preflight's.
FAULTS = ("hang", "restart", "controller_kill", "reboot", "cut")
# The budgets are for a machine that does nothing else.
MARGIN = 3
TIMES = {"detected": "detect", "stopped": "stop", "resumed": "resume"}


@pytest.fixture(scope="module")
def drilled():
    """The drill's results by name, and its output."""
    done = playbook("drill", "-e", "confirm=molecule", "-e", "only=%s" % ",".join(FAULTS), timeout=1500)
    print(done.stdout)
    found = json.loads((PROJECT / "runs/drill/drill.json").read_text())
    return {result["name"]: result for result in found["faults"]}, done


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_comes_out_as_promised(drilled, name):
    result = drilled[0][name]
    assert not result.get("skipped"), result
    assert [text for text in result["problems"] if "allowed are" not in text] == [], result
    assert result["verdict"] == "right" and False not in result["promises"].values() and result["promises"]["N8"], result
    assert all(result.get(key) is None or result[key] <= MARGIN * result["budget"][allowed] for key, allowed in TIMES.items()), result


def test_the_drill_says_what_came_of_it_and_leaves_nothing(drilled):
    results, done = drilled
    assert " of %d faults came out as promised" % len(FAULTS) in last_line(done.stdout), done.stdout
    assert {run: left_behind(run) for run in {result["run"] for result in results.values()}} == {
        result["run"]: {} for result in results.values()
    }


def test_without_the_sites_name_nothing_is_done():
    done = playbook("drill", "-e", "confirm=local")
    assert done.returncode != 0 and "-e confirm=molecule" in " ".join(done.stdout.split())
    assert "[node1]" not in done.stdout, "a node was asked"
