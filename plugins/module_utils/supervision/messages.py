# SPDX-License-Identifier: Apache-2.0
"""Check of a peer's message before the protocol takes it. A peer is not trusted.

A member can still lie about itself, and so harm its own run. It cannot bring values that the
protocol would not understand.
"""

from __future__ import annotations

import typing

from .raft import MOST_ENTRIES

_COUNT = "count"
_FIELDS = {
    "ask_vote": {"term": _COUNT, "last_index": _COUNT, "last_term": _COUNT},
    "vote": {"term": _COUNT, "granted": bool},
    "append": {
        "term": _COUNT,
        "prev_index": _COUNT,
        "prev_term": _COUNT,
        "commit": _COUNT,
        "round": _COUNT,
        "entries": list,
    },
    "appended": {"term": _COUNT, "success": bool, "match": _COUNT, "round": _COUNT},
    "ask_lease": {"nonce": _COUNT, "report": list, "over": _COUNT},
    "lease": {"nonce": _COUNT, "attempt": _COUNT},
    "request": {"value": dict},
}
_VALUES = {
    "plan": {"generation": _COUNT, "attempt": _COUNT, "members": list, "step": _COUNT, "by": str},
    "supersede": {"attempt": _COUNT},
    "ended": {"attempt": _COUNT, "node": str},
    "checkpoint": {"attempt": _COUNT, "step": _COUNT},
    "done": {"attempt": _COUNT},
    "verdict": {
        "attempt": _COUNT,
        "again": bool,
        "delay": float,
        "verdict": dict,
        "decision": dict,
    },
    "left": {"attempt": _COUNT, "step": _COUNT},
    "stop": {"generation": _COUNT},
}
# What a peer may ask the leader for. The leader makes the other entries itself. None opens a run
# again: a controller's resume begins a log of its own.
_REQUESTS = ("stop",)
# Fields that may be missing.
_OPTIONAL = {
    "checkpoint": {"point"},
    "left": {"point"},
    "verdict": {"trained", "saved", "resume", "newer", "instead", "failed", "broken"},
}
_REPORT = (_COUNT, bool, bool, bool, _COUNT)


def is_valid(message: typing.Any, nodes: typing.Collection[str]) -> bool:
    """Return whether a message has the fields and types of its kind. nodes: of the run."""
    if not isinstance(message, dict) or not _has_fields(message, _FIELDS):
        return False
    if message["kind"] == "ask_lease":
        return _is_report(message["report"])
    if message["kind"] == "request":
        return message["value"].get("kind") in _REQUESTS and _is_value(message["value"], nodes)
    if message["kind"] == "append":
        entries = message["entries"]
        return len(entries) <= MOST_ENTRIES and all(_is_entry(entry, nodes) for entry in entries)
    return True


def _has_fields(value: dict[str, typing.Any], table: typing.Mapping[str, typing.Any]) -> bool:
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in table:
        return False
    return all(_has_type(value.get(name), wanted) for name, wanted in table[kind].items())


def _has_type(value: typing.Any, wanted: typing.Any) -> bool:
    if wanted == _COUNT:
        return type(value) is int and 0 <= value < 1 << 62
    if wanted is float:
        return type(value) in (int, float) and 0 <= value < 1 << 20
    return type(value) is wanted


def _is_report(report: list[typing.Any]) -> bool:
    """Return whether a list has the fields of a Report (supervisor.py)."""
    if len(report) != len(_REPORT) + 3 or type(report[-1]) is not bool:
        return False
    plain = all(_has_type(value, wanted) for value, wanted in zip(report, _REPORT))
    return plain and all(
        value is None or type(value) is dict for value in report[len(_REPORT) : -1]
    )


def _is_entry(entry: typing.Any, nodes: typing.Collection[str]) -> bool:
    if not isinstance(entry, list) or len(entry) != 2 or not _has_type(entry[0], _COUNT):
        return False
    return entry[1] is None or _is_value(entry[1], nodes)


def _is_value(value: typing.Any, nodes: typing.Collection[str]) -> bool:
    if not isinstance(value, dict) or not _has_fields(value, _VALUES):
        return False
    kind = value["kind"]
    if not set(value) <= {"kind", *_VALUES[kind], *_OPTIONAL.get(kind, ())}:
        return False
    return _names_nodes(value, nodes) and _has_sound_parts(value)


def _names_nodes(value: dict[str, typing.Any], nodes: typing.Collection[str]) -> bool:
    """Return whether every node that an entry names is one of the run.

    nodes: those of the first attempt, and the spares.
    """
    if value["kind"] == "plan" and not value["members"]:
        return False
    lists = [value.get(key, []) for key in ("members", "failed", "broken")]
    if not all(isinstance(names, list) for names in lists):
        return False
    named = [name for names in lists for name in names]
    named += [value[key] for key in ("node", "by") if key in value]
    return all(isinstance(node, str) and node in nodes for node in named)


def _has_sound_parts(value: dict[str, typing.Any]) -> bool:
    """Return whether the mappings inside an entry have their form."""
    flat = [value.get(key) for key in ("verdict", "decision", "resume")]
    others, point = [value.get(key) for key in ("newer", "instead")], value.get("point")
    if not all(other is None or _is_checkpoint(other) for other in others):
        return False
    return all(map(_is_flat, flat)) and (point is None or type(point) is dict)


def _is_flat(value: typing.Any) -> bool:
    """Return whether a value is None or a mapping of plain values."""
    plain = (str, int, float, bool, type(None))
    if value is None:
        return True
    return type(value) is dict and all(type(item) in plain for item in value.values())


def _is_checkpoint(value: typing.Any) -> bool:
    """Return whether a value has the step and the description of a checkpoint, or None for it."""
    if type(value) is not dict or set(value) != {"step", "point"}:
        return False
    is_point = value["point"] is None or type(value["point"]) is dict
    return is_point and _has_type(value["step"], _COUNT)
