#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Play schedules of faults against the protocol of the supervisors, and then against the protocol
with each of its guards left out.

    python tests/bench/simulate.py [--schedules 20000] [--first 0] [--mutant-schedules 3000]
                                   [--processes N] [--detached] [--stress KIND] [--compiled]

The schedules are of all kinds of ROWS, in its proportion; with --detached or --stress of one kind.
A failure is printed with its seed as soon as it is known. A guard that no schedule notices is left
out of the product's modules, and the tests of tests/unit/supervision run. The last lines have k of
n. Exit code 1: a rule did not hold, or a mutant survived.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT / "collections"), str(PROJECT / "tests/unit")]
import compiled_protocol
import supervision_support as simulator
from supervision_mutants import MUTANTS

# (whether a controller begins the run, what goes wrong, how many of 200,000 schedules)
ROWS = (
    (True, "all", 50_000),
    (True, "losses", 60_000),
    (True, "away", 10_000),
    (True, "splits", 4_000),
    (False, "all", 40_000),
    (False, "restarts", 4_000),
    (False, "cuts", 4_000),
    (False, "freezes", 4_000),
    (False, "late", 4_000),
    (False, "disks", 4_000),
    (False, "wishes", 4_000),
    (False, "learners", 4_000),
    (False, "shrink", 4_000),
    (False, "turns", 4_000),
)
WHOLE = sum(count for _is_detached, _stress, count in ROWS)
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
    ranges = [(0, most)]
    if mutant.seed is not None:
        ranges.insert(0, (mutant.seed, mutant.seed + 1))
    for first, last in ranges:
        _seconds, failures = play(first, last, mutant.is_detached, mutant.stress, mutant)
        if failures:
            return mutant.name, failures[0]
    return mutant.name, None


def rows_of(options):
    """Return [(whether a controller begins the run, what goes wrong, number of schedules)]."""
    if options.detached or options.stress:
        return [(options.detached, options.stress or "all", options.schedules)]
    rows = []
    for is_detached, stress, count in ROWS:
        rows.append((is_detached, stress, max(1, count * options.schedules // WHOLE)))
    return rows


def play_all(run_tasks, options):
    """Play the schedules of the protocol as it is. Return (how many, CPU seconds, failures)."""
    tasks = []
    for is_detached, stress, count in rows_of(options):
        last = options.first + count
        for seed in range(options.first, last, CHUNK):
            tasks.append((seed, min(seed + CHUNK, last), is_detached, stress))
    whole = sum(last - first for first, last, _is_detached, _stress in tasks)
    started, seconds, failures, played = time.monotonic(), 0.0, [], 0
    for number, (task, done) in enumerate(zip(tasks, run_tasks(play_chunk, tasks)), 1):
        first, last, is_detached, stress = task
        kind = f"{'--detached ' * is_detached}--stress {stress}"
        found = [(f"{kind} --first {seed}", words) for seed, words in done[1]]
        seconds, failures, played = seconds + done[0], failures + found, played + last - first
        for which, words in found:
            print(f"schedule {which}: {words}", flush=True)
        if number % (SHOWN // CHUNK) == 0 or number == len(tasks):
            share = played / whole
            left = (time.monotonic() - started) * (1 - share) / share / 60
            print(
                f"{played} of {whole} schedules, {len(failures)} failed, {left:.0f} minutes left",
                flush=True,
            )
    return whole, seconds, failures


def fail_tests(name):
    """Return the test of tests/unit/supervision that fails with a guard left out, or None.

    name: of its mutant, '' for none.
    """
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    argv += ["tests/unit/supervision", "--ignore", "tests/unit/supervision/test_schedules.py"]
    if name:
        argv += ["-p", "supervision_mutation"]
    paths = [str(PROJECT / "tests/unit"), str(PROJECT / "collections")]
    environment = dict(os.environ, TRAINYARD_MUTANT=name, PYTHONPATH=os.pathsep.join(paths))
    done = subprocess.run(argv, cwd=PROJECT, env=environment, capture_output=True, text=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED tests/")]
    if done.returncode == 1 and failed:
        return failed[0].split(" - ")[0].removeprefix("FAILED ")
    return None


def play_mutants(run_tasks, most):
    """Leave out each guard. Return (how many a schedule noticed, how many a test, the others)."""
    tasks = [(index, most) for index in range(len(MUTANTS))]
    left = []
    for name, failure in run_tasks(search, tasks):
        if failure is None:
            left.append(name)
        else:
            print(f"without the guard against {name}: {failure}", flush=True)
    known = {mutant.name for mutant in MUTANTS if mutant.seed is not None}
    missed = [name for name in left if name in known]
    if left:
        failed = fail_tests("")
        assert not failed, f"{failed} fails with every guard in its place"
    for name, test in zip(left, run_tasks(fail_tests, left)):
        print(f"without the guard against {name}: {test or 'NOT NOTICED'}", flush=True)
        if test is None and name not in known:
            missed.append(name)
    by_schedule = len(MUTANTS) - len(left)
    return by_schedule, len(MUTANTS) - by_schedule - len(missed), missed


def main():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--schedules", type=int, default=20000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--mutant-schedules", type=int, default=3000, help="of each guard left out. 0: leave none"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--stress", choices=list(simulator.STRESSES), help="of one kind alone")
    parser.add_argument("--detached", action="store_true", help="of runs that a controller began")
    parser.add_argument(
        "--compiled", action="store_true", help="the protocol is compiled first; needs a C compiler"
    )
    options = parser.parse_args()
    if options.compiled:
        use_compiled()
    started, run_tasks, missed, noticed = time.monotonic(), map, [], ""
    if options.processes > 1:
        run_tasks = multiprocessing.get_context("fork").Pool(options.processes).imap
    count, seconds, failures = play_all(run_tasks, options)
    if options.mutant_schedules:
        seen, tested, missed = play_mutants(run_tasks, options.mutant_schedules)
        noticed = f"of {len(MUTANTS)} mutants, schedules noticed {seen}, and tests {tested}"
    for which, words in failures:
        print(f"schedule {which}: {words}")
    for name in missed:
        print(f"not noticed: {name}")
    print(f"{count - len(failures)} of {count} schedules held")
    print(f"{seconds / max(count, 1):.4f} CPU seconds per schedule")
    print(noticed or "no guard was left out")
    print(f"{time.monotonic() - started:.0f} s in {options.processes} processes")
    return int(bool(failures or missed))


if __name__ == "__main__":
    sys.exit(main())
