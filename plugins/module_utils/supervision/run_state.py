# SPDX-License-Identifier: Apache-2.0
"""State of a run by the committed entries of its log: generation, attempt, members, checkpoint.

Pure. Every node applies the same entries in the same order. An entry that does not fit what came
before it changes nothing, so that a late or doubled one does no harm.

    plan        an attempt begins on some nodes from a checkpoint
    supersede   an attempt has failed, and none of its nodes gets a lease any more
    ended       one node has no process of the attempt any more
    checkpoint  the attempt has written a complete one
    done        the attempt has completed the training
    verdict     why the attempt ended, whether another one may begin, which nodes failed by a fault
                of their own, which of them are broken, the newer checkpoint that the attempt has
                left, and the older one that stands instead of one that is lost
    left        a node that came back after the verdict has found a newer checkpoint of the attempt
    stop        a person ends the run. Only a controller's open makes a next generation
    open        the next generation. Today's resume.yml begins a new log instead, and messages.py
                takes no such entry of a peer
"""

from __future__ import annotations

import typing

Json = typing.Dict[str, typing.Any]


class RunState:
    """The run after some entries of its log."""

    def __init__(self, attempt: int = 0, step: int = 0, point: Json | None = None) -> None:
        """Begin after an attempt of a controller, 0 for none, and its resume point."""
        self.generation = 1
        self.is_stopped = False
        self.is_done = False
        self.is_given_up = False  # the newest verdict permits no further attempt
        self.attempt = attempt  # the newest one, 0 before the first
        self.members: tuple[str, ...] = ()
        self.teams: dict[int, tuple[str, ...]] = {}  # {attempt: its members}, in rank order
        self.planned_by: str | None = None  # the node whose plan the newest attempt is
        self.is_superseded = True  # whether no node may train in the newest attempt
        self.ended: set[str] = set()  # members without a process of it
        self.step = step  # of the newest complete checkpoint, 0 without one
        self.point = point  # that checkpoint, as the caller describes it
        self.began_from = point  # the checkpoint that the newest attempt began from
        self.written_by = 0  # the attempt that wrote it
        self.judged = attempt  # the newest attempt that has a verdict
        self.delay = 0.0  # seconds from that verdict to the next attempt
        self.verdicts: list[Json] = []
        self.failed: list[str] = []  # nodes that failed by a fault of their own, the last one last
        self.broken: list[str] = []  # those of the newest verdict that were not only away

    def is_open(self) -> bool:
        """Return whether attempts may still begin."""
        return not (self.is_stopped or self.is_done or self.is_given_up)

    def may_train(self, node: str, attempt: int) -> bool:
        """Return whether a node may train in an attempt."""
        is_current = attempt == self.attempt and not self.is_superseded
        return is_current and self.is_open() and node in self.members

    def has_ended(self) -> bool:
        """Return whether all members of the newest attempt have said that they have ended."""
        return self.ended >= set(self.members)

    def apply(self, value: Json | None) -> bool:
        """Apply the value of a committed entry. Return whether it changed anything."""
        appliers = {
            "plan": self._apply_plan,
            "supersede": self._apply_supersede,
            "ended": self._apply_ended,
            "checkpoint": self._apply_checkpoint,
            "done": self._apply_done,
            "verdict": self._apply_verdict,
            "left": self._apply_left,
            "stop": self._apply_stop,
            "open": self._apply_open,
        }
        applier = appliers.get((value or {}).get("kind", ""))
        return bool(applier and value and applier(value))

    def _apply_plan(self, value: Json) -> bool:
        fits = (
            self.is_open()
            and self.is_superseded
            and value["generation"] == self.generation
            and value["attempt"] == self.attempt + 1
            and value["step"] == self.step
        )
        if fits:
            self.attempt, self.members = value["attempt"], tuple(value["members"])
            self.teams[self.attempt], self.planned_by = self.members, value.get("by")
            self.is_superseded, self.ended, self.began_from = False, set(), self.point
        return fits

    def _apply_supersede(self, value: Json) -> bool:
        fits = value["attempt"] == self.attempt and not self.is_superseded
        self.is_superseded = self.is_superseded or fits
        return fits

    def _apply_ended(self, value: Json) -> bool:
        fits = value["attempt"] == self.attempt and value["node"] in self.members
        if fits:
            self.ended.add(value["node"])
        return fits

    def _apply_checkpoint(self, value: Json) -> bool:
        is_current = value["attempt"] == self.attempt and not self.is_superseded
        fits = is_current and self.is_open() and value["step"] > self.step
        if fits:
            self.step, self.written_by = value["step"], self.attempt
            self.point = value.get("point")
        return fits

    def _apply_done(self, value: Json) -> bool:
        fits = value["attempt"] == self.attempt and not self.is_superseded and self.is_open()
        self.is_done = self.is_done or fits
        return fits

    def _apply_verdict(self, value: Json) -> bool:
        is_over = self.is_superseded or self.is_done
        fits = value["attempt"] == self.attempt and self.judged < self.attempt and is_over
        if fits:
            self.judged, self.delay = self.attempt, value["delay"]
            self.is_given_up = not (value["again"] or self.is_done)
            self.verdicts.append(value)
            failed = value.get("failed", [])
            self.failed = [node for node in self.failed if node not in failed] + failed
            self.broken = value.get("broken", [])
            newer, instead = value.get("newer"), value.get("instead")
            if newer and newer["step"] > self.step:
                self.step, self.point = newer["step"], newer["point"]
                self.written_by = self.attempt
            if instead and instead["step"] < self.step and self.written_by < self.attempt:
                self.step, self.point = instead["step"], instead["point"]
        return fits

    def _apply_left(self, value: Json) -> bool:
        is_judged = value["attempt"] == self.attempt == self.judged and self.is_superseded
        fits = is_judged and self.is_open() and value["step"] > self.step
        if fits:
            self.step, self.point = value["step"], value.get("point")
            self.written_by = self.attempt
        return fits

    def _apply_stop(self, value: Json) -> bool:
        fits = value["generation"] == self.generation and not self.is_stopped
        if fits:
            self.is_stopped = self.is_superseded = True
        return fits

    def _apply_open(self, value: Json) -> bool:
        fits = not self.is_open() and value["generation"] == self.generation + 1
        if fits:
            self.generation, self.is_stopped, self.is_done = value["generation"], False, False
            self.is_superseded, self.is_given_up = True, False
        return fits
