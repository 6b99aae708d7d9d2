# SPDX-License-Identifier: Apache-2.0
"""A benchmark's figures: speed-up, efficiency, the parts of a step, and what is unknown."""

from __future__ import annotations

import dataclasses
import json

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.benchmark import (
    scaling,
    scaling_text,
)
from report_support import bring, facts_of


def training(nodes, speed, step=None, loading=None, **more):
    names = [f"node{number + 1}" for number in range(nodes)]
    return scaling.Training(
        f"run{nodes}",
        names,
        nodes,
        "completed",
        "images/s",
        speed=speed,
        step_seconds=step,
        loading_seconds=loading,
        **more,
    )


@pytest.mark.parametrize(
    ("speeds", "speed_ups", "efficiencies"),
    [
        ({1: 10, 2: 20, 4: 40}, [1, 2, 4], [1, 1, 1]),
        ({4: 30, 1: 10, 2: 15}, [1, 1.5, 3], [1, 0.75, 0.75]),
        # Without one node the smallest number counts.
        ({8: 60, 2: 20}, [1, 3], [1, 0.75]),
    ],
)
def test_speed_up_is_beside_the_fewest_nodes(speeds, speed_ups, efficiencies):
    rows = scaling.compare([training(nodes, speed) for nodes, speed in speeds.items()])
    assert [row.speed_up for row in rows] == speed_ups
    assert [row.efficiency for row in rows] == efficiencies


def test_what_a_log_does_not_say_is_unknown():
    rows = scaling.compare([training(1, None), training(2, 20.0, 1.0)])
    assert (rows[0].speed_up, rows[0].efficiency, rows[0].parts) == (None, None, {})
    assert rows[1].speed_up == 1, "the fewest nodes that have a figure"
    assert scaling.advice(rows) == [] and scaling_text.plot(rows) is None
    assert scaling_text.cells(rows[0])[4:8] == [scaling_text.NOTHING] * 4


def test_a_training_that_failed_is_compared_with_nothing():
    failed = dataclasses.replace(training(1, 2.0, 9.0), outcome="failed")
    rows = scaling.compare([failed, training(2, 10, 1.0), training(4, 20, 1.0)])
    assert [row.speed_up for row in rows] == [None, 1, 2]
    assert rows[0].parts == {} and scaling_text.cells(rows[0])[-1] == "failed"
    rows = scaling.compare([training(1, 10, 1.0), training(2, 14, 2.0), failed])
    assert len(scaling.advice(rows)) == 1


def test_a_step_is_split_by_the_training_on_the_fewest_nodes():
    one, two = training(1, 10, 1.0, 0.25), training(2, 14, 1.5, 0.25)
    rows = scaling.compare([two, one])
    assert rows[0].parts == {"compute": 0.75, "loading": 0.25}
    assert rows[1].parts == {"compute": 0.75, "loading": 0.25, "exchange": 0.5}
    # A suite that does not print the wait for data: it is in the rest.
    assert scaling.split_step(training(2, 14, 1.5), training(1, 10, 1.0)) == {
        "compute": 1.0,
        "loading": 0.0,
        "exchange": 0.5,
    }
    # By chance a step of two nodes is shorter than one of a single node.
    assert scaling.split_step(training(2, 20, 0.9, 0.25), one)["exchange"] == 0


def alone(name, step, loading=None, outcome="stopped"):
    one = training(1, 10, step, loading)
    return dataclasses.replace(one, nodes=[name], outcome=outcome)


def test_a_step_is_split_by_the_steps_of_each_node_alone():
    trainings = [training(1, 10, 1.0, 0.25), training(2, 14, 1.75, 0.25)]
    paces = [alone("node1", 1.0, 0.25), alone("node2", 1.5, 0.25), alone("node3", 9.0)]
    one, two = scaling.compare(trainings, paces)
    assert one.parts == {"compute": 0.75, "loading": 0.25}
    assert two.parts == {"compute": 1.0, "loading": 0.25, "waiting": 0.25, "exchange": 0.25}
    assert sum(two.parts.values()) == two.training.step_seconds
    (loading, waiting, exchange) = scaling.advice([one, two], scaling.own_seconds(paces))
    assert waiting.startswith("waiting takes 14%") and "node2 alone takes 1.7 times" in waiting
    # As long as one of its nodes did not train alone, all waiting is in the exchange.
    for short in (paces[:1], [paces[0], alone("node2", 1.5, outcome="failed")]):
        row = scaling.compare(trainings, short)[1]
        assert row.parts == {"compute": 0.75, "loading": 0.25, "exchange": 0.75}
    text = "\n".join(scaling_text.lines([one, two], paces))
    assert "node1 0.75 s, node2 1.25 s, node3 9 s" in text
    nobody = dataclasses.replace(paces[0], nodes=[])  # its plan is broken
    assert scaling.own_seconds([nobody]) == {}
    assert scaling.as_json([one, two], [nobody])["alone"] == []
    said = scaling.as_json([one, two], paces)["alone"]
    assert [(item["node"], item["step_seconds"]) for item in said][1] == ("node2", 1.5)


@pytest.mark.parametrize(
    ("step", "loading", "named"),
    [
        (1.5, 0.0, ["exchange"]),
        (1.6, 0.4, ["loading", "exchange"]),
        (1.05, 0.01, []),
    ],
)
def test_advice_is_for_what_takes_a_tenth_of_a_step(step, loading, named):
    rows = scaling.compare([training(1, 10, 1.0, 0.0), training(4, 30, step, loading)])
    assert [line.split()[0] for line in scaling.advice(rows)] == named
    assert scaling.advice(rows[:1]) == []


def test_the_first_fifth_is_warm_up():
    assert scaling.steady([9, 9, *[1] * 8]) == 1
    assert scaling.steady([9, 1]) == 1 and scaling.steady([None, 9]) == 9
    assert scaling.steady([]) is None and scaling.steady([None]) is None


@pytest.mark.parametrize("name", ["series/recognition", "series/evaluated", "series/msrun"])
def test_the_figures_of_a_real_run(tmp_path, name):
    run = bring(tmp_path, name)
    facts = facts_of(tmp_path, run)
    found = scaling.of_series(facts["record"], facts["plan"], facts["series"])
    assert (found.run, found.nodes) == (run, [node["name"] for node in facts["plan"]["nodes"]])
    assert found.ranks == len(facts["plan"]["ranks"]) and found.outcome == "completed"
    assert found.steps and found.speed and found.step_seconds
    # The printed speed of all ranks is their batch by the time of a step.
    assert found.whole_seconds > found.seconds >= 0
    assert (found.loading_seconds is None) == (name == "series/msrun"), "MindOCR prints no wait"
    assert found.best
    assert scaling.of_series({}, {}, {}).speed is None


def test_damaged_records_have_no_figures():
    series = {"attempts": [{"series": {}, "summed": None}, "x"], "best": {"value": "x"}}
    found = scaling.of_series({"attempts": ["x", {"verdict": 3, "started": "x"}]}, {}, series)
    assert (found.outcome, found.speed, found.seconds, found.best) == ("unknown", None, None, None)


def test_table_page_and_plot_have_the_same_rows():
    published = [{"model": "PP-YOLOE", "machines": "4x8 V100", "speed_up": 3.0}]
    rows = scaling.compare(
        [
            training(1, 10, 1.0, 0.0, seconds=3723.4),
            training(2, 20, 1.0, 0.0, seconds=61, best="bbox 0.4", published=published),
        ]
    )
    table = scaling_text.lines(rows)
    assert table[0].split()[:2] == ["nodes", "ranks"] and "1:02:03" in table[1]
    assert "2.00" in table[2] and "100%" in table[2] and "bbox 0.4" in table[2]
    assert table[3].startswith("published: model PP-YOLOE") and "speed up 3.0" in table[3]
    page = scaling_text.markdown(rows, "title")
    assert page.count("\n|") == 4 and "run2" in page
    plot = scaling_text.plot(rows)
    assert plot["line"] == plot["ideal"], "twice as fast on two nodes is on the line"
    assert [tick["text"] for tick in plot["ticks"]] == ["1", "2"]
    assert scaling_text.view(rows)["rows"] == [scaling_text.cells(row) for row in rows]
    found = json.loads(json.dumps(scaling.as_json(rows)))
    assert [row["nodes"] for row in found["rows"]] == [1, 2] and found["rows"][1]["speed_up"] == 2
