# SPDX-License-Identifier: Apache-2.0
"""Which nodes take part in the next attempt of a run: rank order, spares, cool-down, fewer nodes,
and refusals in words.
"""

from __future__ import annotations

import re

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.recovery import node_replacement

NOW = 1_000_000.0
SILENT = "it does not answer"
DEAD = {"n2": f"{SILENT}: Connection timed out"}


def obstacle(text):
    """Return the obstacle of a node with this text."""
    code = "replacement.no_answer" if text.startswith(SILENT) else "replacement.node_held"
    return node_replacement.Obstacle(code, text)


def choose(
    places=("n1", "n2"),
    current=None,
    failed=None,
    unfit=None,
    spares=(),
    min_nodes=None,
    trainers=(),
    **more,
):
    """Return the choice; failed: {node: seconds ago}."""
    noted = {
        name: {"time": NOW - ago, "cause": "node_lost"} for name, ago in (failed or {}).items()
    }
    return node_replacement.choose(
        list(places),
        list(current or places),
        noted,
        {name: obstacle(text) for name, text in (unfit or {}).items()},
        list(spares),
        min_nodes,
        more.get("cooldown", 1800),
        NOW,
        list(trainers),
    )


def test_all_go_on_where_nothing_is_wrong():
    found = choose(spares=["s1"])
    assert found == {
        "nodes": ["n1", "n2"],
        "replaced": {},
        "dropped": [],
        "again": [],
        "why": [],
        "refused": [],
        "codes": [],
    }


@pytest.mark.parametrize(
    "lost, nodes",
    [("n1", ["s1", "n2", "n3"]), ("n2", ["n1", "s1", "n3"]), ("n3", ["n1", "n2", "s1"])],
)
def test_a_spare_takes_the_lost_nodes_place_in_the_order_of_the_ranks(lost, nodes):
    found = choose(("n1", "n2", "n3"), unfit={lost: "it does not answer"}, spares=["s1", "s2"])
    assert (
        found["nodes"] == nodes
        and found["replaced"] == {lost: "s1"}
        and not found["dropped"] + found["refused"]
    )
    assert found["codes"] == ["replacement.place_taken"]
    assert found["why"][0].split()[0] == "s1" and found["why"][0].endswith(f" {lost}: {SILENT}")


def test_a_spare_keeps_the_place_it_took_when_the_lost_node_is_back():
    """Its environment and trees are there, and the run works well on it."""
    assert choose(current=["n1", "s1"], spares=["s1", "s2"])["nodes"] == ["n1", "s1"]
    found = choose(current=["n1", "s1"], spares=["s1", "s2"], unfit={"s1": "it does not answer"})
    assert found["nodes"] == ["n1", "n2"] and found["replaced"] == {"s1": "n2"}
    assert len(found["why"]) == 1 and found["why"][0].endswith(": it does not answer")


def test_a_node_that_failed_is_not_chosen_before_its_cool_down_is_over():
    found = choose(failed={"n2": 100}, spares=["s1"])
    assert found["nodes"] == ["n1", "s1"] and found["replaced"] == {"n2": "s1"}
    assert len(found["why"]) == 1
    assert all(word in found["why"][0] for word in ("n2:", "100 s ago", "(node_lost)", "30 min"))
    assert choose(failed={"n2": 1801}, spares=["s1"])["nodes"] == ["n1", "n2"]
    assert choose(failed={"n2": 100}, spares=["s1"], cooldown=0)["nodes"] == ["n1", "n2"]


def test_a_spare_that_failed_lately_or_does_not_answer_is_passed_over():
    found = choose(
        unfit=dict(DEAD, s2="it is held by another run"),
        failed={"s1": 60},
        spares=["s1", "s2", "s3"],
    )
    assert found["nodes"] == ["n1", "s3"]


def test_who_failed_is_taken_again_only_where_nobody_else_is_left():
    found = choose(failed={"n2": 100})
    assert found["nodes"] == ["n1", "n2"] and found["again"] == ["n2"] and not found["replaced"]
    assert found["codes"] == ["replacement.failed_again"]
    assert all(word in found["why"][0] for word in ("n2 ", "100 s ago", "(node_lost)"))
    # with fewer nodes allowed, or with a spare, another node is left
    assert choose(failed={"n2": 100}, min_nodes=1)["nodes"] == ["n1"]
    # of two that failed, the one whose failure is the longest ago; its own place before another's
    assert choose(failed={"n2": 100, "s1": 900}, spares=["s1"])["nodes"] == ["n1", "s1"]
    assert choose(failed={"n2": 900, "s1": 100}, spares=["s1"])["nodes"] == ["n1", "n2"]
    assert choose(failed={"n1": 100, "n2": 100}, spares=["s1"])["nodes"] == ["s1", "n2"]
    assert choose(failed={"n1": 100, "n2": 90})["nodes"] == ["n1", "n2"]
    assert choose(failed={"n1": 100, "n2": 90}, min_nodes=1)["nodes"] == ["n1"]


def test_without_a_spare_the_run_goes_on_with_fewer_where_the_job_allows_it():
    found = choose(("n1", "n2", "n3"), unfit=DEAD, min_nodes=2, spares=["s1"], failed={"s1": 60})
    assert found["nodes"] == ["n1", "n3"] and found["dropped"] == ["n2"] and not found["replaced"]
    lost, spare, count = found["why"]
    assert found["codes"] == [
        "replacement.left_out",
        "replacement.cooling_down",
        "replacement.fewer_nodes",
    ]
    assert lost.startswith("n2 ") and lost.endswith(f": {DEAD['n2']}")
    assert " s1 " in spare and "60 s ago" in spare
    assert re.findall("[0-9]+", count)[:5] == ["2", "3", "3", "2", "3"]


def test_a_lost_spare_whose_trainer_failed_before_is_told_with_both_reasons():
    found = choose(
        current=["n1", "s1"],
        unfit={"s1": "it does not answer"},
        failed={"n2": 90},
        spares=["s1"],
        min_nodes=1,
    )
    assert found["nodes"] == ["n1"] and found["dropped"] == ["s1"]
    lost, before = found["why"][:2]
    assert found["codes"][:2] == ["replacement.left_out", "replacement.cooling_down"]
    assert lost.startswith("s1 ") and lost.endswith(": it does not answer")
    assert before.startswith("n2 ")
    assert all(word in before for word in ("90 s ago", "(node_lost)", "30 min"))


def test_a_run_that_lost_a_node_gets_its_places_filled_again():
    found = choose(("n1", "n2", "n3"), current=["n1", "n3"], spares=["s1"], min_nodes=1)
    assert found["nodes"] == ["n1", "n2", "n3"]
    assert found["codes"] == ["replacement.place_returned", "replacement.fewer_nodes"]
    assert found["why"][0].startswith("n2 ")
    assert re.findall("[0-9]+", found["why"][1])[:3] == ["3", "3", "2"]
    found = choose(("n1", "n2", "n3"), current=["n1", "n3"], spares=["s1"], min_nodes=1, unfit=DEAD)
    assert found["nodes"] == ["n1", "s1", "n3"]
    assert found["why"][0].startswith("s1 ") and found["why"][0].endswith(f" n2: {DEAD['n2']}")


def test_no_spare_and_too_few_nodes_is_refused_with_the_lost_and_the_remedies():
    found = choose(unfit=DEAD, trainers=["n1", "n2", "n3"])
    assert found["nodes"] == []
    needed, lost, spare, remedy = found["refused"]
    assert found["codes"][:2] == ["replacement.too_few_nodes", "replacement.no_answer"]
    assert set(found["codes"][2:]) == {"replacement.too_few_nodes"}
    assert "2 nodes" in needed and needed.endswith(": n1")
    assert lost.startswith("n2 ") and lost.endswith(f": {DEAD['n2']}")
    assert spare.endswith("no spare")
    back, listed, fewer = remedy.split("; or ")
    assert back.endswith("bring n2 back") and "such as n3," in listed
    assert "-e min_nodes=1" in fewer and "docs/runbooks/spares.md" in fewer
    found = choose(
        unfit=dict(DEAD, n1="it does not answer", s1="it is held by x"), spares=["s1"], min_nodes=1
    )
    needed, remedy = found["refused"][0], found["refused"][-1]
    assert "1 node," in needed and needed.endswith(": none")
    assert [line for line in found["refused"] if "spare s1 " in line and "held by x" in line]
    assert "min_nodes" not in remedy


def test_min_nodes_never_asks_for_more_than_the_run_had():
    assert choose(min_nodes=9)["nodes"] == ["n1", "n2"]


@pytest.mark.parametrize(
    "current, holders",
    [
        (["a", "b", "c"], ["a", "b", "c"]),
        (["a", "s", "c"], ["a", "s", "c"]),
        (["s", "t", "u"], ["s", "t", "u"]),
        (["a", "c"], ["a", None, "c"]),
        (["s", "c"], ["s", None, "c"]),
        (["a", "s"], ["a", "s", None]),
        (["s"], ["s", None, None]),
        (["c", "s"], [None, None, "c"]),
    ],
)
def test_who_holds_which_place(current, holders):
    assert node_replacement.occupants(["a", "b", "c"], current) == holders


def test_nobody_is_taken_twice_and_the_order_of_the_places_stays():
    """Every combination of three places, two spares, dead nodes and cooling nodes."""
    names = ["a", "b", "c", "s", "t"]
    for dead in range(32):
        for hot in range(32):
            unfit = {name: "gone" for bit, name in enumerate(names) if dead >> bit & 1}
            failed = {name: 10 + bit for bit, name in enumerate(names) if hot >> bit & 1}
            for least in (None, 1, 2):
                found = choose(
                    ("a", "b", "c"), unfit=unfit, failed=failed, spares=["s", "t"], min_nodes=least
                )
                nodes = found["nodes"]
                assert len(set(nodes)) == len(nodes) and not set(nodes) & set(unfit)
                own = [name for name in nodes if name in "abc"]
                assert own == sorted(own), nodes  # no trainer moves past another one
                assert bool(nodes) != bool(found["refused"]) and (
                    not nodes or len(nodes) >= (least or 3)
                )
                sound = [name for name in names if name not in unfit and name not in failed]
                assert (
                    len(set(nodes) & set(sound)) == min(3, len(sound)) or not nodes
                )  # a sound node is never passed over
                assert set(found["again"]) == set(nodes) & set(failed) and (
                    len(sound) < (least or 3) or not found["again"]
                )
