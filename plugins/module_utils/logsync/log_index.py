# SPDX-License-Identifier: Apache-2.0
"""The index of an attempt's ranks, runs/<run id>/attempt-N/ranks.json: made from what the nodes
found, read at today's version.

docs/ranks-json.md explains every field; docs/schemas/ranks.yml is the same as JSON schema, and the tests
hold what is written against both.
"""

from __future__ import annotations

import json
import os
import re

from ..base.safe_open import read_in

NAME = "ranks.json"
VERSION = 2
# Of a rank's findings (evidence.py) these are kept as they are. What surrounds the first error is
# in run.json and in the log itself.
_KEPT = (
    "rank", "node", "local_rank", "device", "pid", "state", "exit_code", "signal", "observed", "started", "ended",
    "file", "home", "bytes", "lines", "sha256", "first_time", "last_time",
    "steps", "first_step", "last_step", "evaluation", "nan", "saved", "saved_count",
)  # fmt: skip
_ERROR = ("kind", "text", "line", "cause")
# How a rank is that writes nothing more (evidence.state_of).
OVER = ("done", "failed", "killed", "stopped")
MAX_BYTES = 256 << 20  # an index of 10,000 ranks has 20 MB


class IndexProblem(Exception):
    """An index that cannot be read; the message is for people."""


class NewerIndex(IndexProblem):
    """An index that a newer Trainyard has written; it is left as it is."""


def entry(found):
    """One rank of the index, from what a node's rank_logs or an index of version 1 says of it; what
    is not known is null.
    """
    rank = {key: found.get(key) for key in _KEPT}
    if rank["last_time"] is None:
        rank["last_time"] = found.get("mtime")  # no line has a date, or the index is of version 1
    error = found.get("error") or found.get("first_error")
    rank["error"] = {key: error.get(key) for key in _ERROR} if isinstance(error, dict) else None
    return rank


def make(attempt_dir, nodes, files, before=None):
    """The index of an attempt.

    nodes: what rank_logs said of each node that was asked. files: those that are at home. before:
    the index that is there; it keeps its part of the nodes that were not asked this time.
    """
    run, attempt = _names(attempt_dir)
    asked = {node["node"] for node in nodes}
    kept = {
        key: [item for item in (before or {}).get(key) or () if item.get("node") not in asked]
        for key in ("nodes", "ranks", "files")
    }
    ranks = [
        entry(dict(rank, node=node["node"])) for node in nodes for rank in node["ranks"]
    ] + kept["ranks"]
    ranks.sort(key=lambda rank: rank["rank"] if isinstance(rank["rank"], int) else float("inf"))
    zones = [{"node": node["node"], "utc_offset": node.get("utc_offset")} for node in nodes] + kept[
        "nodes"
    ]
    return {
        "version": VERSION,
        "run": run,
        "attempt": attempt,
        "nodes": sorted(zones, key=lambda item: item["node"]),
        "ranks": ranks,
        "files": sorted(list(files) + kept["files"], key=lambda item: item["home"]),
    }


def _names(attempt_dir):
    path = os.path.abspath(attempt_dir)
    number = re.match(r"^attempt-(\d{1,9})$", os.path.basename(path))
    return os.path.basename(os.path.dirname(path)), int(number.group(1)) if number else None


def read(attempt_dir):
    """The index at home as today's version has it; None where there is none.

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
    parts = [index.get(key) for key in ("ranks", "files")] if isinstance(index, dict) else [None]
    if not all(
        isinstance(part, list) and all(isinstance(item, dict) for item in part) for part in parts
    ):
        raise IndexProblem(
            f"{path} has no lists `ranks` and `files`; logs.yml writes it again from the nodes"
        )
    if index.get("version") not in (1, VERSION):
        raise NewerIndex(
            f"{path} has version {index.get('version')!r}, this Trainyard reads 1 and {VERSION};"
            " use the newer one"
        )
    return _sound(upgraded(index, attempt_dir))


def _sound(index):
    """An index whose entries have every key, and whose names are text: what is of another kind is
    unknown (null), or left out.
    """
    ranks = [
        dict(dict.fromkeys((*_KEPT, "error")), **rank)
        for rank in index["ranks"]
        if _is_rank(rank.get("rank"))
    ]
    for rank in ranks:
        for key in ("node", "home", "state", "signal"):
            rank[key] = rank[key] if isinstance(rank[key], str) else None
        for key in ("last_time", "exit_code", "bytes", "lines"):
            rank[key] = rank[key] if _is_number(rank[key]) else None
        rank["error"] = (
            {key: rank["error"].get(key) for key in _ERROR}
            if isinstance(rank["error"], dict)
            else None
        )
    nodes = index.get("nodes") if isinstance(index.get("nodes"), list) else []
    nodes = [node for node in nodes if isinstance(node, dict) and isinstance(node.get("node"), str)]
    nodes = [
        dict(
            node, utc_offset=node.get("utc_offset") if _is_number(node.get("utc_offset")) else None
        )
        for node in nodes
    ]
    return dict(
        index,
        ranks=ranks,
        nodes=nodes,
        files=[item for item in index["files"] if isinstance(item.get("home"), str)],
    )


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 53


def _is_rank(value):
    return value is None or (isinstance(value, int) and _is_number(value))


def upgraded(index, attempt_dir):
    """An index of any version as one of today's. Version 1 has the time of a log's last write
    alone, and the first error whole.
    """
    if index["version"] == VERSION:
        return index
    names = sorted({str(rank.get("node")) for rank in index["ranks"]})
    nodes = [
        {"node": name, "ranks": [rank for rank in index["ranks"] if str(rank.get("node")) == name]}
        for name in names
    ]
    return make(attempt_dir, nodes, index["files"])


def over(index, plan):
    """Whether nothing more can come of an attempt: all ranks of its plan are at home and have
    ended, and how every node's unit ended, too.
    """
    states = {rank.get("rank"): rank.get("state") for rank in index["ranks"]}
    ends = {item.get("node") for item in index["files"] if item.get("file") == "exit.json"}
    return all(states.get(rank["rank"]) in OVER for rank in plan["ranks"]) and all(
        node["name"] in ends for node in plan["nodes"]
    )
