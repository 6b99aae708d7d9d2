# SPDX-License-Identifier: Apache-2.0
"""Attempts on two nodes with one rank each, made from the lines of a log.

The guilty rank's log holds the lines, and its peer says what a peer says then. tests/corpus/lines
has the cases.
"""

from __future__ import annotations

import json
from pathlib import Path

import corpus_support as corpus
import yaml

LINES = Path(__file__).resolve().parents[1] / "corpus" / "lines"
HARMLESS = LINES.with_name("harmless.yml")
ADDRESSES = ("198.51.100.131", "198.51.100.132")
STARTED = 1795211956.0
# What a rank prints that lost the other one.
LOST = (
    'Traceback (most recent call last):\n  File "tools/train.py", line 205, in <module>\n'
    "    main()\nOSError: (External) NCCL error(6), remote process exited or there was a network"
    " error.\n"
)
# What a rank prints whose own code is wrong.
FAILED = (
    'Traceback (most recent call last):\n  File "tools/train.py", line 205, in <module>\n'
    "    main()\nKeyError: 'lr'\n"
)
RANKS = [
    {
        "rank": rank,
        "local_rank": 0,
        "node": f"node{rank + 1}",
        "device": "0",
        "env": {},
        "endpoint": f"{address}:17000",
        "log": "log/workerlog.0",
    }
    for rank, address in enumerate(ADDRESSES)
]
PLAN = {
    "version": 1,
    "ranks": RANKS,
    "endpoints": [rank["endpoint"] for rank in RANKS],
    "launcher": {
        "name": "fleetrun",
        "kind": "each",
        "console": "logs.txt",
        "rank_env": "PADDLE_TRAINER_ID",
        "rank_log": "log/workerlog.{local_rank}",
        "endpoints_env": "PADDLE_TRAINER_ENDPOINTS",
        "end_words": None,
        "logs": [],
    },
    "scheduler": None,
    "suite": {"name": "paddledetection", "logs": {}},
}


def cases():
    """The cases of all files, each a mapping with the name of its file as `family`."""
    return [
        dict(case, family=path.stem)
        for path in sorted(LINES.glob("*.yml"))
        for case in yaml.safe_load(path.read_text())
    ]


def lay(folder, logs, first):
    """Lay an attempt below a folder.

    logs: of rank 0 and 1. first: the rank that ends two seconds before the other.
    """
    for rank, log in zip(RANKS, logs):
        place = folder / rank["node"]
        (place / "log").mkdir(parents=True)
        ended = STARTED + 30 + 2 * (rank["rank"] != first)
        files = {
            "plan.json": PLAN,
            "attempt.json": {"attempt": 1, "node": rank["node"], "started": STARTED, "version": 1},
            "exit.json": {
                "exit_code": "exited",
                "exit_status": "1",
                "peers": {},
                "service_result": "exit-code",
                "stopped_by": None,
                "time": ended + 1,
            },
        }
        for name, content in files.items():
            (place / name).write_text(json.dumps(content))
        child = {"rank": rank["rank"], "local_rank": 0, "pid": 100 + rank["rank"]}
        events = (
            {"event": "launched", "pid": 90, "time": STARTED + 1},
            {"event": "start", **child, "time": STARTED + 2, "endpoints_as_planned": True},
            {"event": "end", **child, "time": ended, "exit_code": 1, "signal": None},
            {"event": "launcher_end", "exit_code": 1, "signal": None, "time": ended + 0.5},
        )
        (place / "ranks.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        (place / "logs.txt").write_text("LAUNCH INFO Pod failed\n")
        (place / "log" / "workerlog.0").write_text(log)


def judge(folder, case, prefix=""):
    """Return (grade, why, verdict) of a case, its attempt laid below a folder.

    A case with `rank` has its lines in that rank's log, one without in all logs, since the
    condition is between the ranks, or since `each` rank has it. Then any of them may be named.
    prefix: what a launcher puts before each line of the guilty rank's log.
    """
    guilty = case.get("rank")
    text = "".join(f"{prefix}{line}\n" for line in case["log"].splitlines())
    logs = [text, text]
    if guilty is not None:
        logs[1 - guilty] = case.get("peer") or LOST
    ranks = []
    if case.get("each"):
        ranks = [0, 1]
    elif guilty is not None:
        ranks = [guilty]
    return _grade(folder, logs, guilty or 0, case["causes"], ranks, unknown=bool(case.get("each")))


def judge_turned(folder, case):
    """Return (grade, why, verdict) of a case in the other layout.

    The lines of one rank stand in all logs: each rank may be named, or none. The lines of all ranks
    stand in one log, and the other rank lost that one: nobody may be named.
    """
    if case.get("rank") is not None or case.get("each"):
        return _grade(folder, [case["log"]] * 2, 0, case["causes"], [0, 1], unknown=True)
    return _grade(folder, [case.get("peer") or LOST, case["log"]], 1, case["causes"], [])


def _grade(folder, logs, first, causes, ranks, unknown=False):
    lay(folder, logs, first)
    right = {
        "outcome": ["failed"],
        "ranks": ranks,
        "nodes": [],
        "causes": causes,
        "unknown": unknown or not ranks,
    }
    decided = corpus.decide(folder)
    return (*corpus.grade(decided, right), decided)
