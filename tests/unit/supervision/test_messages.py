# SPDX-License-Identifier: Apache-2.0
"""Which messages of a peer the protocol takes: those of the right fields and types alone."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision import messages, raft

NODES = ("node1", "node2", "node3")
VALUES = {
    "plan": {
        "generation": 1,
        "attempt": 2,
        "members": ["node1", "node2"],
        "step": 7,
        "by": "node3",
    },
    "supersede": {"attempt": 2},
    "ended": {"attempt": 2, "node": "node3"},
    "checkpoint": {"attempt": 2, "step": 7},
    "done": {"attempt": 2},
    "verdict": {
        "attempt": 2,
        "again": True,
        "delay": 0.5,
        "verdict": {"text": "why"},
        "decision": {"why": "so"},
    },
    "left": {"attempt": 2, "step": 9},
    "stop": {"generation": 1},
}
VALUES = {kind: dict(fields, kind=kind) for kind, fields in VALUES.items()}
REPORT = [2, True, False, False, 7, {"name": "4"}, None, True]
MESSAGES = {
    "ask_vote": {"term": 1, "last_index": 0, "last_term": 0},
    "vote": {"term": 1, "granted": True},
    "append": {
        "term": 1,
        "prev_index": 0,
        "prev_term": 0,
        "commit": 0,
        "round": 1,
        "entries": [[1, None], *([1, value] for value in VALUES.values())],
    },
    "appended": {"term": 1, "success": False, "match": 0, "round": 1},
    "ask_lease": {"nonce": 1, "report": REPORT, "over": 0},
    "lease": {"nonce": 1, "attempt": 2},
    "request": {"value": VALUES["stop"]},
}
MESSAGES = {kind: dict(fields, kind=kind) for kind, fields in MESSAGES.items()}
# What may not stand where a value of this type does. True is an int to Python, and so is 1 a bool.
WRONG = {
    int: [None, "1", True, 1.0, -1, 1 << 62, [1], {}],
    bool: [None, 0, 1, "true", [], {}],
    float: [None, "0", True, -0.5, 1 << 20, float("nan"), float("inf"), [], {}],
    str: [None, 1, "node9", "", ["node1"], {}],
    list: [None, 1, "node1", {}, True],
    dict: [None, 1, "x", [], True],
}
LACKING = object()


def is_valid(message):
    return messages.is_valid(message, NODES)


def mutate(fields):
    """Return [(field, value, fields with it)], each with one field that is wrong or missing."""
    mutants = []
    for name, value in fields.items():
        for wrong in [LACKING, *WRONG[type(value)]]:
            mutant = copy.deepcopy(fields)
            mutant[name] = wrong
            if wrong is LACKING:
                del mutant[name]
            mutants.append((name, wrong, mutant))
    return mutants


def carriers(value):
    """Return the messages that carry the value of an entry."""
    found = [dict(MESSAGES["append"], entries=[[1, None], [1, value]])]
    if value.get("kind") == "stop":
        found.append(dict(MESSAGES["request"], value=value))
    return found


def test_every_kind_has_an_example_here():
    assert set(MESSAGES) == set(messages._FIELDS) and set(VALUES) == set(messages._VALUES)


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_sound_message_is_taken(kind):
    assert is_valid(MESSAGES[kind])


@pytest.mark.parametrize("kind", VALUES)
def test_a_sound_value_is_taken(kind):
    assert all(map(is_valid, carriers(VALUES[kind])))


@pytest.mark.parametrize("kind", sorted(set(VALUES) - {"stop"}))
def test_a_peer_may_ask_for_nothing_but_a_stop(kind):
    assert not is_valid(dict(MESSAGES["request"], value=VALUES[kind]))


def test_no_peer_opens_a_run_again():
    value = {"kind": "open", "generation": 2}
    assert not is_valid(dict(MESSAGES["request"], value=value))
    assert not is_valid(dict(MESSAGES["append"], entries=[[1, value]]))


@pytest.mark.parametrize("kind", ["checkpoint", "left"])
@pytest.mark.parametrize("point", [None, {"name": "4"}])
def test_a_checkpoint_may_be_described(point, kind):
    assert all(map(is_valid, carriers(dict(VALUES[kind], point=point))))
    assert not any(map(is_valid, carriers(dict(VALUES["done"], point=point))))


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_message_with_a_wrong_field_is_refused(kind):
    taken = [(name, wrong) for name, wrong, mutant in mutate(MESSAGES[kind]) if is_valid(mutant)]
    assert taken == []


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_with_a_wrong_field_is_refused(kind):
    fields = {name: value for name, value in VALUES[kind].items() if name != "decision"}
    taken = [
        (name, wrong)
        for name, wrong, mutant in mutate(fields)
        for message in carriers(mutant)
        if is_valid(message)
    ]
    assert taken == []


@pytest.mark.parametrize("members", [["node1", "node9"], ["node1", 2], [["node1"]], [None]])
def test_members_are_nodes_of_the_run(members):
    assert not any(map(is_valid, carriers(dict(VALUES["plan"], members=members))))


@pytest.mark.parametrize("point", [1, "x", [], True, 0, ""])
def test_a_point_is_a_mapping(point):
    assert not any(map(is_valid, carriers(dict(VALUES["checkpoint"], point=point))))


@pytest.mark.parametrize("key", ["newer", "instead"])
@pytest.mark.parametrize("step", [0, 7])
@pytest.mark.parametrize("point", [None, {"name": "4"}])
def test_a_verdict_may_name_another_checkpoint(step, point, key):
    value = dict(VALUES["verdict"], **{key: {"step": step, "point": point}})
    assert all(map(is_valid, carriers(value)))


@pytest.mark.parametrize("key", ["newer", "instead"])
@pytest.mark.parametrize(
    "other",
    [1, "x", [], True, {}, {"step": 7}, {"point": None}, {"step": True, "point": None}]
    + [{"step": -1, "point": None}, {"step": 7, "point": "x"}, {"step": 7, "point": None, "x": 1}],
)
def test_another_checkpoint_has_a_step_and_a_point(other, key):
    assert not any(map(is_valid, carriers(dict(VALUES["verdict"], **{key: other}))))


def test_a_report_with_a_wrong_part_is_refused():
    taken = []
    for place, value in enumerate(REPORT):
        wrong = WRONG[type(value)] if value is not None else [1, "x", [], True]
        for part in wrong:
            report = [*REPORT[:place], part, *REPORT[place + 1 :]]
            if part is not None or place not in (5, 6):
                taken += [report] * is_valid(dict(MESSAGES["ask_lease"], report=report))
    assert taken == []
    for report in (REPORT[:-1], [*REPORT, None], []):
        assert not is_valid(dict(MESSAGES["ask_lease"], report=report))


@pytest.mark.parametrize(
    "entry", [None, [], [1], [1, None, 1], [True, None], [-1, None], ["1", None], {}, [1, "x"]]
)
def test_an_entry_has_a_term_and_a_value(entry):
    assert not is_valid(dict(MESSAGES["append"], entries=[[1, None], entry]))


def test_a_message_has_so_many_entries_at_most():
    entries = [[1, VALUES["stop"]]] * raft.MOST_ENTRIES
    assert is_valid(dict(MESSAGES["append"], entries=entries))
    assert not is_valid(dict(MESSAGES["append"], entries=[*entries, [1, None]]))


@pytest.mark.parametrize("message", [None, 1, "ask_vote", [], [MESSAGES["vote"]], {}, True])
def test_what_is_no_message_is_refused(message):
    assert not is_valid(message)


@pytest.mark.parametrize("kind", ["", "votes", "plan", "ask_vote ", None, 1, ["vote"], {}])
def test_an_unknown_kind_is_refused(kind):
    assert not is_valid(dict(MESSAGES["vote"], kind=kind))


@pytest.mark.parametrize("key", ["failed", "broken"])
def test_nodes_that_a_verdict_names_are_nodes_of_the_run(key):
    for names in (["node9"], [1], "node1", {"node1": 1}):
        assert not any(map(is_valid, carriers(dict(VALUES["verdict"], **{key: names}))))
    assert all(map(is_valid, carriers(dict(VALUES["verdict"], **{key: ["node1"]}))))


@pytest.mark.parametrize("kind", sorted(set(VALUES) - {"plan"}))
def test_members_of_a_kind_without_any_raise_nothing(kind):
    assert not any(map(is_valid, carriers(dict(VALUES[kind], members=5))))


@pytest.mark.parametrize("wrong", [LACKING, None, [], "x"])
def test_a_verdict_has_the_decision_that_is_shown(wrong):
    value = dict(VALUES["verdict"], decision=wrong)
    if wrong is LACKING:
        del value["decision"]
    assert not any(map(is_valid, carriers(value)))


@pytest.mark.parametrize(
    "change",
    [
        {"decision": {"again": []}},
        {"verdict": {"cause": {}}},
        {"resume": "x"},
        {"instead": {"step": 1}},
        {"instead": {"step": True, "point": None}},
        {"instead": {"step": 1, "point": []}},
    ],
)
def test_a_verdict_that_no_policy_reads_is_refused(change):
    sound = dict(VALUES["verdict"], instead={"step": 1, "point": None}, resume={"digest": "a"})
    assert all(map(is_valid, carriers(sound)))
    assert not any(map(is_valid, carriers(dict(sound, **change))))
