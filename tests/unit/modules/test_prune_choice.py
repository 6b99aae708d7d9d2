# SPDX-License-Identifier: Apache-2.0
"""prune_choice: the rule over what all places returned. test_run_prune.py has the rules."""

from __future__ import annotations

from unit.modules.test_run_prune import entry, place, run_id


def test_the_module_names_a_run_that_nobody_knows(run_action):
    result = run_action(
        "prune_choice",
        {
            "run": run_id(9),
            "looks": {"node1": {"look": place()}, "home": {}},
            "site": "lab",
        },
    )
    assert result["failed"] and f" knows the run {run_id(9)}" in result["msg"]


def test_a_place_that_names_what_is_no_run_chooses_nothing(run_action):
    look = dict(place(entry(2)), runs=[entry(2), dict(entry(3), run="../../x"), 7, {"run": None}])
    found = run_action(
        "prune_choice",
        {
            "site": "lab",
            "keep": "0",
            "looks": {"node1": {"look": look}, "node2": {"look": "x"}},
        },
    )
    assert found["remove"] == {"node1": [run_id(2)]}
    assert run_action("prune_choice", {"site": "lab", "run": "../../x", "looks": {}})["failed"]
