# SPDX-License-Identifier: Apache-2.0
"""Kinds of faults for the simulator of supervision_support.py, and how often each happens."""

from __future__ import annotations

import typing


class Stress(typing.NamedTuple):
    """What goes wrong in a schedule, and how often. Each of a tuple's items is as likely."""

    sizes: tuple[int, ...] = (2, 2, 3, 3, 4)  # nodes of an attempt
    losses: tuple[float, ...] = (0.0, 0.0, 0.02, 0.2)  # share of the messages
    delays: tuple[float, ...] = (0.05, 0.2, 1.0, 3.0)  # mean seconds of a message
    first: tuple[float, float] = (2.0, 15.0)  # seconds before the first fault
    every: float = 4.5  # mean seconds between two faults
    crashed: tuple[float, float] = (0.5, 20.0)  # seconds until a machine is back
    frozen: tuple[float, ...] = (1.5, 6.0, 10.0, 30.0)
    cut: tuple[float, float] = (1.5, 30.0)  # seconds of a partition
    keeps_mail: bool = False  # whether a machine that stood still gets what was sent meanwhile
    most_voters: int = 99  # the nodes after so many have no vote
    may_shrink: bool = False  # whether fewer nodes may train. Some never come back then
    faults: tuple[str, ...] = (  # methods of World
        "crash", "crash", "freeze", "freeze", "mute", "partition",
        "partition", "one_way", "kill", "kill", "wipe", "control",
    )  # fmt: skip


STRESSES = {
    "all": Stress(),
    "restarts": Stress(
        every=1.5,
        delays=(0.2, 1.0, 3.0),
        crashed=(0.1, 2.0),
        faults=("crash", "crash", "crash", "partition", "kill"),
    ),
    "cuts": Stress(
        every=2.0,
        losses=(0.02, 0.2, 0.4),
        delays=(0.05, 0.2, 1.0),
        cut=(0.5, 8.0),
        faults=("partition", "partition", "one_way", "one_way", "kill"),
    ),
    "freezes": Stress(
        every=2.5,
        delays=(0.2, 1.0, 3.0),
        frozen=(1.5, 6.0, 10.0, 20.0),
        keeps_mail=True,
        faults=("freeze", "freeze", "freeze", "kill", "mute", "partition"),
    ),
    "late": Stress(
        first=(0.5, 8.0),
        every=2.5,
        delays=(3.0, 6.0),
        cut=(0.5, 8.0),
        faults=("kill", "partition", "freeze"),
    ),
    # Nodes that come back after the verdict, which the others have agreed on without them.
    "away": Stress(
        sizes=(3, 3, 4),
        first=(10.0, 30.0),
        every=12.0,
        losses=(0.0, 0.02),
        delays=(0.05, 0.2, 1.0),
        crashed=(14.0, 30.0),
        faults=("crash", "crash", "crash", "kill"),
    ),
    # Nodes that are lost for good, with their disk or without their supervisor, and spares that
    # another run holds for a while. For detached runs.
    "losses": Stress(
        sizes=(2, 3, 3, 4),
        first=(4.0, 20.0),
        every=6.0,
        losses=(0.0, 0.02),
        delays=(0.05, 0.2, 1.0),
        crashed=(0.5, 14.0),
        cut=(1.5, 10.0),
        may_shrink=True,
        faults=(
            "destroy",
            "damage",
            "borrow",
            "borrow",
            "crash",
            "crash",
            "kill",
            "kill",
            "partition",
        ),
    ),
    "disks": Stress(
        sizes=(3, 4),
        every=2.0,
        losses=(0.0, 0.2, 0.4),
        crashed=(0.1, 5.0),
        cut=(0.5, 8.0),
        faults=("wipe", "wipe", "crash", "partition", "one_way"),
    ),
    "wishes": Stress(
        first=(0.1, 6.0),
        every=1.5,
        delays=(0.2, 1.0, 3.0, 6.0),
        crashed=(0.1, 5.0),
        cut=(0.5, 8.0),
        faults=("control", "control", "control", "crash", "partition", "kill"),
    ),
    "splits": Stress(
        first=(0.5, 8.0),
        every=5.0,
        losses=(0.0, 0.02),
        delays=(0.05, 0.2),
        cut=(6.0, 20.0),
        faults=("split",),
    ),
    "learners": Stress(
        sizes=(2, 3, 4, 7, 12),
        every=3.0,
        delays=(0.05, 0.2, 1.0),
        crashed=(0.1, 8.0),
        cut=(0.5, 12.0),
        most_voters=3,
    ),
    "shrink": Stress(
        sizes=(2, 3, 4, 5),
        every=4.0,
        delays=(0.05, 0.2, 1.0),
        crashed=(0.5, 40.0),
        cut=(1.5, 30.0),
        faults=("crash", "crash", "crash", "partition", "one_way", "freeze", "kill", "control"),
        may_shrink=True,
    ),
    "turns": Stress(
        sizes=(3, 4),
        first=(0.5, 4.0),
        every=1.0,
        delays=(0.2, 1.0),
        crashed=(0.1, 4.0),
        cut=(0.5, 4.0),
        faults=("depose", "depose", "depose", "crash", "wipe", "control"),
    ),
}
