# SPDX-License-Identifier: Apache-2.0
"""Index of an attempt's ranks, runs/<run id>/attempt-N/ranks.json.

It is made from the nodes' answers and read at the current version. docs/ranks-json.md explains
every field. docs/schemas/ranks.yml is the same as JSON schema. The tests compare a written index
with both.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.safe_open import read_in

Json = dict[str, Any]  # the index, or one of its parts
NAME = "ranks.json"
VERSION = 2
# Of a rank's findings (evidence.py) these are kept as they are. What surrounds the first error is
# in run.json and in the log itself.
_KEPT = (
    "rank",
    "node",
    "local_rank",
    "device",
    "pid",
    "state",
    "exit_code",
    "signal",
    "observed",
    "started",
    "ended",
    "file",
    "home",
    "bytes",
    "lines",
    "sha256",
    "first_time",
    "last_time",
    "steps",
    "first_step",
    "last_step",
    "evaluation",
    "nan",
    "saved",
    "saved_count",
)
_ERROR = ("kind", "text", "line", "cause")
# States of a rank that writes nothing more (evidence.state_of).
OVER = ("done", "failed", "killed", "stopped")
MAX_BYTES = 256 << 20  # an index of 10,000 ranks has 20 MB


class IndexProblem(Exception):
    """An index that cannot be read, with a message for people."""


class NewerIndex(IndexProblem):
    """An index that a newer Trainyard has written, and that is left as it is."""


def rank_entry(findings: Json) -> Json:
    """Return one rank of the index.

    What is not known is null. findings: what a node's rank_logs_info or an index of version 1 has
    of the rank.
    """
    rank = {key: findings.get(key) for key in _KEPT}
    if rank["last_time"] is None:
        rank["last_time"] = findings.get(
            "mtime"
        )  # no line has a date, or the index is of version 1
    rank["error"] = _error_or_none(findings.get("error") or findings.get("first_error"))
    return rank


def _error_or_none(error: object) -> Json | None:
    """Return the index's fields of a rank's first error, or None."""
    if not isinstance(error, dict):
        return None
    return {key: error.get(key) for key in _ERROR}


def build_index(
    attempt_dir: str, nodes: Sequence[Json], files: Iterable[Json], before: Json | None = None
) -> Json:
    """Return the index of an attempt.

    nodes: what rank_logs_info returned for each node that answered. files: those on the controller.
    before: the index that is there. It keeps its part of the nodes that did not answer this time.
    """
    run, attempt = _names(attempt_dir)
    answering = {node["node"] for node in nodes}
    kept = {
        key: [item for item in (before or {}).get(key) or () if item.get("node") not in answering]
        for key in ("nodes", "ranks", "files")
    }
    ranks = [rank_entry(dict(rank, node=node["node"])) for node in nodes for rank in node["ranks"]]
    ranks += kept["ranks"]
    ranks.sort(key=_rank_order)
    zones = [{"node": node["node"], "utc_offset": node.get("utc_offset")} for node in nodes]
    zones += kept["nodes"]
    return {
        "version": VERSION,
        "run": run,
        "attempt": attempt,
        "nodes": sorted(zones, key=lambda item: item["node"]),
        "ranks": ranks,
        "files": sorted(list(files) + kept["files"], key=lambda item: item["home"]),
    }


def _rank_order(rank: Json) -> float:
    """Return the sort key of a rank, which puts an unknown number last."""
    if isinstance(rank["rank"], int):
        return rank["rank"]
    return float("inf")


def _names(attempt_dir: str) -> tuple[str, int | None]:
    """Return (run id, number of the attempt) of an attempt's directory.

    number: None for none.
    """
    path = os.path.abspath(attempt_dir)
    run = os.path.basename(os.path.dirname(path))
    match = re.match(r"^attempt-(\d{1,9})$", os.path.basename(path))
    if not match:
        return run, None
    return run, int(match.group(1))


def read_index(attempt_dir: str) -> Json | None:
    """Return the index on the controller as the current version has it, None for none.

    Raises IndexProblem for one that cannot be read, NewerIndex where its version is the reason.
    """
    path = os.path.join(attempt_dir, NAME)
    try:
        index = json.loads(read_in(attempt_dir, NAME, MAX_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise IndexProblem(
            f"{path} cannot be read ({error}); logs.yml writes it again from the nodes"
        ) from error
    if not isinstance(index, dict) or not all(
        _is_list_of_mappings(index.get(key)) for key in ("ranks", "files")
    ):
        raise IndexProblem(
            f"{path} has no lists `ranks` and `files`; logs.yml writes it again from the nodes"
        )
    if index.get("version") not in (1, VERSION):
        raise NewerIndex(
            f"{path} has version {index.get('version')!r}, this Trainyard reads 1 and {VERSION};"
            " use the newer one"
        )
    return _sound(upgrade_index(index, attempt_dir))


def _is_list_of_mappings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _sound(index: Json) -> Json:
    """Return an index whose entries have every key, and whose names are text.

    What is of another kind is unknown (null), or left out.
    """
    nodes = index.get("nodes")
    if not isinstance(nodes, list):
        nodes = []
    return dict(
        index,
        ranks=[_sound_rank(rank) for rank in index["ranks"] if _is_rank(rank.get("rank"))],
        nodes=[
            dict(node, utc_offset=_number_or_none(node.get("utc_offset")))
            for node in nodes
            if isinstance(node, dict) and isinstance(node.get("node"), str)
        ],
        files=[item for item in index["files"] if isinstance(item.get("home"), str)],
    )


def _sound_rank(rank: Json) -> Json:
    sound = dict(dict.fromkeys((*_KEPT, "error")), **rank)
    for key in ("node", "home", "state", "signal"):
        if not isinstance(sound[key], str):
            sound[key] = None
    for key in ("last_time", "exit_code", "bytes", "lines"):
        sound[key] = _number_or_none(sound[key])
    sound["error"] = _error_or_none(sound["error"])
    return sound


def _number_or_none(value: Any) -> float | None:
    if _is_number(value):
        return value
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 53


def _is_rank(value: object) -> bool:
    return value is None or (isinstance(value, int) and _is_number(value))


def upgrade_index(index: Json, attempt_dir: str) -> Json:
    """Return an index of any version as one of the current version.

    Version 1 has the time of a log's last write alone, and the first error whole.
    """
    if index["version"] == VERSION:
        return index
    names = sorted({str(rank.get("node")) for rank in index["ranks"]})
    nodes = [
        {"node": name, "ranks": [rank for rank in index["ranks"] if str(rank.get("node")) == name]}
        for name in names
    ]
    return build_index(attempt_dir, nodes, index["files"])


def is_complete(index: Json, plan: Json) -> bool:
    """Return whether nothing more can come of an attempt.

    Then all ranks of its plan are in the index and have ended, and every node's exit.json is here.
    """
    states = {rank.get("rank"): rank.get("state") for rank in index["ranks"]}
    ends = {item.get("node") for item in index["files"] if item.get("file") == "exit.json"}
    return all(states.get(rank["rank"]) in OVER for rank in plan["ranks"]) and all(
        node["name"] in ends for node in plan["nodes"]
    )
