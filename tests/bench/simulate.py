#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Play schedules of faults against the protocol of the supervisors, and then against the protocol
with each of its guards left out.

    python tests/bench/simulate.py [--schedules 20000] [--first 0] [--mutant-schedules 3000]
                                   [--processes N] [--detached] [--stress all] [--compiled]

A failure is printed with its seed as soon as it is known. The last lines have k of n. Some guards
the tests of tests/unit/supervision notice alone. Exit code 1: a rule did not hold, or a mutant that
a schedule is known for survived.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT / "collections"), str(PROJECT / "tests/unit")]
import compiled_protocol
import supervision_support as simulator
from supervision_mutants import MUTANTS

CHUNK = 50  # schedules of one task
SHOWN = 1000  # schedules between two lines of progress
COMPARED = 20  # schedules that are played with the compiled protocol and with the plain one
_load = functools.lru_cache(maxsize=1)(simulator.load)  # compiling takes as long as a schedule
_compiled = []  # the parts of the protocol as machine code, where it was compiled


def load(mutant=None):
    """Return the parts of the protocol, with a Mutant's change or without."""
    if _compiled and not mutant:
        return _compiled[0]
    return _load(mutant)


def play(first, last, is_detached=False, stress="all", mutant=None):
    """Return (CPU seconds, [(seed, what did not hold)]) of the schedules first <= seed < last.

    A mutant's end with its first failure.
    """
    parts, failures, started = load(mutant), [], time.process_time()
    for seed in range(first, last):
        try:
            simulator.World(seed, parts, is_detached=is_detached, stress=stress).play()
        except Exception as error:
            failures.append((seed, f"{type(error).__name__}: {error}"))
            if mutant:
                break
    return time.process_time() - started, failures


def play_chunk(task):
    """Play the schedules of one task: (first, last, is_detached, stress)."""
    return play(*task)


def use_compiled():
    """Let the schedules of the whole protocol play with the compiled one."""
    compiled = compiled_protocol.compile_protocol()
    for seed in range(COMPARED):
        ends = [compiled_protocol.end_of(seed, parts) for parts in (compiled, simulator.load())]
        assert ends[0] == ends[1], f"schedule {seed} ends otherwise with the compiled protocol"
    _compiled.append(compiled)


def search(task):
    """Return (mutant's name, the first failure or None)."""
    index, most = task
    mutant = MUTANTS[index]
    _seconds, failures = play(0, most, mutant.is_detached, mutant.stress, mutant)
    return mutant.name, next(iter(failures), None)


def play_all(run_tasks, options):
    """Play the schedules of the protocol as it is. Return (CPU seconds, failures)."""
    last = options.first + options.schedules
    tasks = [
        (seed, min(seed + CHUNK, last), options.detached, options.stress)
        for seed in range(options.first, last, CHUNK)
    ]
    started, seconds, failures = time.monotonic(), 0.0, []
    for number, (used, found) in enumerate(run_tasks(play_chunk, tasks), 1):
        seconds, failures = seconds + used, failures + found
        for seed, words in found:
            print(f"schedule {seed}: {words}", flush=True)
        if number % (SHOWN // CHUNK) == 0 or number == len(tasks):
            share = number / len(tasks)
            left = (time.monotonic() - started) * (1 - share) / share / 60
            print(
                f"{min(number * CHUNK, options.schedules)} of {options.schedules} schedules, "
                f"{len(failures)} failed, {left:.0f} minutes left",
                flush=True,
            )
    return seconds, failures


def play_mutants(run_tasks, most):
    """Leave out each guard. Return (how many were noticed, how many ought to have been)."""
    known = {mutant.name for mutant in MUTANTS if mutant.seed is not None}
    caught = missed = 0
    for name, failure in run_tasks(search, [(index, most) for index in range(len(MUTANTS))]):
        caught += failure is not None
        missed += failure is None and name in known
        print(f"without the guard against {name}: {failure or 'NOT NOTICED'}", flush=True)
    return caught, missed


def main():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--schedules", type=int, default=20000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--mutant-schedules", type=int, default=3000, help="of each guard left out. 0: leave none"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--stress", choices=list(simulator.STRESSES), default="all")
    parser.add_argument("--detached", action="store_true", help="of runs that a controller began")
    parser.add_argument(
        "--compiled", action="store_true", help="the protocol is compiled first; needs a C compiler"
    )
    options = parser.parse_args()
    if options.compiled:
        use_compiled()
    started, run_tasks, missed, noticed = time.monotonic(), map, 0, ""
    if options.processes > 1:
        run_tasks = multiprocessing.get_context("fork").Pool(options.processes).imap
    seconds, failures = play_all(run_tasks, options)
    if options.mutant_schedules:
        caught, missed = play_mutants(run_tasks, options.mutant_schedules)
        noticed = f"{caught} of {len(MUTANTS)} mutants were noticed"
    for seed, words in failures:
        print(f"schedule {seed}: {words}")
    count = options.schedules
    print(f"{count - len(failures)} of {count} schedules held")
    print(f"{seconds / max(count, 1):.4f} CPU seconds per schedule")
    print(noticed or "no guard was left out")
    print(f"{time.monotonic() - started:.0f} s in {options.processes} processes")
    return int(bool(failures or missed))


if __name__ == "__main__":
    sys.exit(main())
