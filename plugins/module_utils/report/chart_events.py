# SPDX-License-Identifier: Apache-2.0
"""The moments of an attempt that a time line points at: first errors, losses that are no number,
kills, stops, nodes that were lost. Pure.
"""

from __future__ import annotations


def marks_of(attempt, scans, lives):
    """[{time, rank, node, text, level}] in order of time; level is error, warning or info.
    `verdict: true`: what the verdict names.
    """
    verdict = attempt.record.get("verdict")
    verdict = verdict if isinstance(verdict, dict) else {}
    marks = []

    def put(when, rank, node, text, level):
        named = (
            {"verdict": True}
            if level != "info" and node == verdict.get("node") and rank == verdict.get("rank")
            else {}
        )
        marks.append(
            dict({"time": when, "rank": rank, "node": node, "text": text, "level": level}, **named)
        )

    for rank, life in lives.items():
        known, node = attempt.known(rank), attempt.where[rank]
        curve = scans[rank][0] if rank in scans else None
        error = known.get("first_error") or known.get("error")
        if isinstance(error, dict):
            said = (
                "{}: {}".format(error.get("kind"), error.get("text"))
                if error.get("text")
                else str(error.get("kind"))
            )
            passed = error.get("handled") or error.get("survived")
            put(
                life["said"],
                rank,
                node,
                said[:300],
                "error" if error.get("grade") == "primary" and not passed else "warning",
            )
        if curve is not None and curve.nan:
            put(curve.nan_at, rank, node, "the loss is {}".format(curve.nan.get("loss")), "warning")
        signal, code = known.get("signal"), known.get("exit_code")
        alone = life["asked"] is None or (
            life["ended"] is not None and life["ended"] < life["asked"]
        )
        if signal and alone:
            put(
                life["ended"],
                rank,
                node,
                f"killed by {signal}",
                "warning" if isinstance(error, dict) else "error",
            )
        elif code and not isinstance(error, dict):
            put(
                life["ended"],
                rank,
                node,
                f"ended with exit code {code}",
                "error" if alone else "info",
            )
    for node, unit in attempt.units.items():
        asked = next(
            (
                life["asked"]
                for rank, life in lives.items()
                if attempt.where[rank] == node and life["asked"] is not None
            ),
            None,
        )
        if unit.get("stopped_by"):
            who = (
                "{} ({})".format(unit["stopped_by"], unit["stopped_from"])
                if unit.get("stopped_from")
                else str(unit["stopped_by"])
            )
            put(asked, None, node, f"stop asked by {who}", "info")
        elif unit and unit.get("service_result") not in (None, "success", "exit-code"):
            end = unit.get("time")
            end = end - attempt.ahead[node] if isinstance(end, (int, float)) else None
            put(end, None, node, "the unit ended with {}".format(unit["service_result"]), "error")
    gone, ended = verdict.get("unreachable"), attempt.record.get("ended")
    for node in gone if isinstance(gone, list) else ():
        put(
            ended if isinstance(ended, (int, float)) else None,
            None,
            str(node),
            "did not answer",
            "error",
        )
    return sorted(marks, key=lambda mark: (mark["time"] is None, mark["time"] or 0.0))


def said_at(error, written, ended, ahead):
    """When a rank said an error, by the controller's clock; None where nothing tells.

    Paddle's handler prints a time. Else it is the log's last write, which no later end of the
    process precedes. `written` is by the node's clock, which is `ahead` seconds off; `ended` is
    corrected.
    """
    said = error.get("time")
    if isinstance(said, (int, float)):
        return said - ahead
    return min(
        (t for t in (None if written is None else written - ahead, ended) if t is not None),
        default=None,
    )
