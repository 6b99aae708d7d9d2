# SPDX-License-Identifier: Apache-2.0
"""The time line of the report: where phases are, which rank is slow and when, and where the first
fault is.
"""

from __future__ import annotations

import re

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import timeline as core

RANKS = [{"rank": rank, "node": "node%d" % (rank // 2 + 1)} for rank in range(4)]


def curve(cost, begin=0.0, points=60, slow_from=None, factor=3.0):
    """Return the steps of a rank, one per second. From slow_from on they take longer."""
    times = [begin + i for i in range(points)]
    return {
        "time": times,
        "batch_cost": [
            cost * (factor if slow_from is not None and when >= slow_from else 1) for when in times
        ],
        "ips": [],
    }


def phase(rank, name, begin, end, **more):
    return dict({"rank": rank, "phase": name, "begin": begin, "end": end}, **more)


def test_phases_lie_where_they_were_and_short_ones_can_be_seen():
    phases = [
        phase(0, "start", 100, 150),
        phase(0, "training", 150, 200),
        phase(0, "checkpoint", 180.0, 180.001),
    ]
    line = core.timeline({"begin": 100.0, "phases": phases}, RANKS[:1])
    strokes = {item["phase"]: item["path"] for item in line["lanes"][0]["strokes"]}
    assert strokes == {"start": "M0 5h500", "training": "M500 5h500", "checkpoint": "M800 5h1.5"}
    assert (
        line["seconds"] == 100
        and line["ticks"][0] == {"at": 0.0, "text": "0:00"}
        and len(line["ticks"]) <= 9
    )
    assert line["lanes"][0]["words"] == "start: 0:50, training: 0:50, checkpoint: 0.0 s"


def test_a_rank_is_slow_only_while_it_is():
    series = {rank: curve(1.0) for rank in range(3)}
    series[3] = curve(1.0, slow_from=30)
    parts = core.slow_parts(series)
    assert (
        set(parts) == {3}
        and min(begin for begin, _end, _factor in parts[3]) >= 24
        and all(factor > 2 for *_place, factor in parts[3])
    )
    attempt = {
        "begin": 0.0,
        "series": series,
        "phases": [phase(rank, "training", 0, 60) for rank in range(4)],
    }
    lanes = core.timeline(attempt, RANKS)["lanes"]
    assert [lane["behind"] for lane in lanes] == [None, None, None, "steps 3.0x the median"]
    assert lanes[3]["slow"] and not lanes[0]["slow"]


def test_the_speed_serves_where_no_step_time_is_printed():
    series = {
        rank: dict(curve(1.0), batch_cost=[None] * 60, ips=[10.0 if rank else 4.0] * 60)
        for rank in range(3)
    }
    assert set(core.slow_parts(series)) == {0}


def test_nobody_is_accused_without_others_or_for_noise():
    assert core.slow_parts({0: curve(9.0)}) == {} and core.slow_parts({}) == {}
    noisy = {rank: curve(1.0 + 0.05 * rank) for rank in range(3)}
    assert core.slow_parts(noisy) == {}
    hiccups = {rank: curve(1.0) for rank in range(4)}
    for number in range(3, 60, 7):
        hiccups[3]["batch_cost"][number] = 9.0
    assert core.slow_parts(hiccups) == {}, "a step here and there"
    rare = {
        **hiccups,
        3: {
            "time": [*range(33), 36, *range(40, 60)],
            "batch_cost": [1.0] * 33 + [9.0] + [1.0] * 20,
            "ips": [],
        },
    }
    # One step says nothing of its part of the time.
    assert core.slow_parts(rare) == {}
    two_points = {0: curve(1.0, points=2), 1: curve(9.0, points=2)}
    assert core.slow_parts(two_points) == {}


def test_who_looks_for_its_peers_late_is_named():
    phases = [phase(rank, "rendezvous", 105 if rank != 2 else 140, 150) for rank in range(4)]
    found = core.behind({"begin": 100.0, "phases": phases})
    assert set(found) == {2} and found[2].words == ["0:35 late to its peers"]
    assert (
        core.behind(
            {"begin": 100.0, "phases": [dict(item, begin=105 + item["rank"]) for item in phases]}
        )
        == {}
    )
    # Guessed from another rank.
    assert (
        core.behind({"begin": 100.0, "phases": [dict(item, inferred=True) for item in phases]})
        == {}
    )


def test_the_first_fault_is_marked_and_not_the_loudest():
    marks = [
        {"time": 160.0, "rank": 0, "node": "node1", "text": "TIMEOUT", "level": "error"},
        {"time": 150.0, "rank": 3, "node": "node2", "text": "ValueError", "level": "error"},
        {"time": 120.0, "rank": 1, "node": "node1", "text": "retries", "level": "warning"},
    ]
    line = core.timeline(
        {
            "begin": 100.0,
            "phases": [phase(rank, "training", 100, 200) for rank in range(4)],
            "marks": marks,
        },
        RANKS,
    )
    assert line["fault"] == 500.0 and [lane["faulty"] for lane in line["lanes"]] == [
        False,
        False,
        False,
        True,
    ]
    assert [mark["text"] for mark in line["marks"]] == [
        "retries",
        "ValueError",
        "TIMEOUT",
    ] and line["marks"][1]["clock"] == "0:50"


def test_a_nodes_fault_stands_on_all_its_lanes():
    marks = [
        {"time": 190.0, "rank": None, "node": "node2", "text": "did not answer", "level": "error"}
    ]
    marks.append(
        {"time": 195.0, "rank": None, "node": "node1", "text": "stop asked", "level": "info"}
    )
    line = core.timeline(
        {"begin": 100.0, "phases": [phase(0, "training", 100, 200)], "marks": marks}, RANKS
    )
    assert [lane["faulty"] for lane in line["lanes"]] == [False, False, True, True]
    assert [len(lane["marks"]) for lane in line["lanes"]] == [0, 0, 1, 1] and len(
        line["marks"]
    ) == 2


def test_thousands_of_phases_are_thinned_and_the_long_ones_stay():
    phases = []
    for number in range(5000):
        phases += [
            phase(0, "training", 10 * number, 10 * number + 9),
            phase(0, "evaluation", 10 * number + 9, 10 * number + 10),
        ]
    shown = core.thin_phases(phases, 300)
    assert (
        len(shown) <= 300
        and shown[0]["begin"] == 0
        and sum(item["end"] - item["begin"] for item in shown) > 2000
    )
    line = core.timeline(
        {"begin": 0.0, "phases": phases}, [{"rank": rank, "node": "n"} for rank in range(2000)]
    )
    assert (
        sum(len(re.findall("M", item["path"])) for item in line["lanes"][0]["strokes"])
        <= core.FEWEST
    )


def test_an_attempt_of_which_nothing_is_known_has_no_line():
    assert core.timeline({"begin": None, "phases": [], "marks": []}, RANKS) is None
    assert core.timeline({"begin": 1.0, "phases": [], "marks": []}, RANKS) is None


@pytest.mark.parametrize("seconds", [1.0, 3600.0, 86400.0, 9e6, 1e8, 1e13, 1e18])
def test_an_axis_of_any_length_has_few_ticks(seconds):
    found = core.ticks(seconds)
    assert 1 <= len(found) <= 9
    assert found[0]["at"] == 0.0 and found[-1]["at"] <= 1000.0
