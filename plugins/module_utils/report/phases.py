# SPDX-License-Identifier: Apache-2.0
"""What every rank did when: start, rendezvous, first_step, training, evaluation, checkpoint, stop;
and how far a node's clock is off. Pure.

start       the launcher starts the process, which imports and reads its config rendezvous  it looks
for its peers: from its first word about them to the last before the first step first_step  it makes
its data, network and first steps; the suite's first step line ends it training    step lines, with
evaluations and checkpoints between them stop        from its last sign of life, or from when a stop
was asked for, to the end of the process Between the last sign of life of a rank that hung and the
stop there is no phase. A suite that prints on its first rank only says nothing of the others'
steps; they go at one pace, so theirs are taken from it and marked `inferred`.
"""

from __future__ import annotations

import re

# What Paddle (tcp_utils.cc, distributed_strategy.py, topology.py) and MindSpore (tcp_comm.cc,
# cluster_context.cc, collective_manager.cc) say when a rank begins to look for its peers, and when
# it has them.
SEEKS = re.compile(
    r"The server starts to listen|Retry to connect to|Waiting for the state of the"
    r" connection|Connect\] Connection \d"
)
FOUND = re.compile(
    r"Successfully connected to|distributed strategy initialized|comm group\(s\) create"
    r" successfully|Cluster is successfully initialized"
    r"|communication group on the device side"
)
# A rank is taken to train on after its last step line for so many seconds, or for so many times the
# usual wait for the next one.
QUIET, PACES = 30.0, 5
# seconds that starting and collecting take at most, where only they say how far a clock is off
SLACK = 10.0


def ahead(bounds):
    """Seconds by which a node's clock is ahead of the controller's, 0.0 where what is known does
    not say that it differs.

    bounds: (least, most), either None. The most is close: an event on the node follows its cause on
    the controller at once.
    """
    least, most = bounds
    if most is not None and most < 0:
        return most
    if least is not None and least > 0:
        return least if most is None else max(least, most - SLACK / 4)
    return 0.0


def timeline(rank, life, signs, inferred):
    """One rank's phases, [{rank, phase, begin, end}] in order of time; `inferred: true` where the
    steps are another rank's.

    life: times in unix seconds, None where they are not known: launched (the launcher's start),
    process (the rank's), dated (its first dated line), seeks and found (the first and the last word
    about peers), step and last (the first step line, the latest step, evaluation or checkpoint),
    asked (a stop was asked for), fault (an error was said), ended, written (the log's last write);
    and pace, the seconds between step lines. signs: (begin, end, phase) of evaluations and
    checkpoints.
    """
    drawn, final, last = [], life["ended"], life["last"]
    if final is None:
        final = max((t for t in (life["written"], last) if t is not None), default=None)

    def put(phase, begin, end, copied=False):
        if begin is not None and end is not None and min(end, final) >= begin:
            drawn.append(
                dict(
                    {"rank": rank, "phase": phase, "begin": begin, "end": min(end, final)},
                    **({"inferred": True} if copied else {}),
                )
            )

    if final is None:
        return drawn
    step = life["step"] if life["step"] is not None and life["step"] <= final else None
    alive = step if last is None or step is None else max(last, step)
    turn = min(
        (
            t
            for t in (life["asked"], life["fault"])
            if t is not None and (alive is None or t >= alive)
        ),
        default=None,
    )
    seeks, over = life["seeks"], _first(step, turn, final)
    put(
        "start",
        _first(life["launched"], life["process"], life["dated"]),
        _first(seeks, life["dated"], over),
    )
    if seeks is not None:
        put("rendezvous", seeks, _first(life["found"], over))
    put(
        "first_step",
        _first(life["found"], seeks, life["dated"]),
        over,
        inferred and step is not None,
    )
    if step is not None:
        quiet = max(QUIET, PACES * (life["pace"] or 0.0))
        until = _first(turn, life["written"] if life["ended"] is None else None, alive)
        until = until if alive <= until <= alive + quiet else alive
        here = step
        for begin, end, phase in sorted(signs):
            begin, end = max(begin, here), min(end, until)
            if end >= begin:
                if begin > here:
                    put("training", here, begin, inferred)
                put(phase, begin, end)
                here = end
        if until > here:
            put("training", here, until, inferred)
    if life["ended"] is not None:
        put("stop", _first(turn, alive), life["ended"])
    return drawn


def _first(*values):
    return next((value for value in values if value is not None), None)
