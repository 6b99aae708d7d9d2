#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Play schedules of faults against the protocol of the supervisors, and then against the protocol
with each of its guards left out.

    python tests/bench/simulate.py [--schedules 20000] [--first 0] [--mutant-schedules 3000]

The last lines have k of n. Some guards the tests of tests/unit/supervision notice alone. Exit code
1: a rule did not hold, or a mutant that a schedule is known for survived.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
import supervision_support as simulator
from supervision_mutants import MUTANTS

CHUNK = 50  # schedules of one task


def play(first, mutant=None):
    """Return [(seed, what did not hold)] of a chunk of schedules, the first one of a mutant's."""
    parts, failures = simulator.load(mutant), []
    for seed in range(first, first + CHUNK):
        try:
            simulator.World(seed, parts).play()
        except Exception as error:
            failures.append((seed, f"{type(error).__name__}: {error}"))
            if mutant:
                break
    return failures


def search(numbered):
    """Return (mutant's name, the first failure or None)."""
    index, most = numbered
    for first in range(0, most, CHUNK):
        failures = play(first, MUTANTS[index])
        if failures:
            return MUTANTS[index].name, failures[0]
    return MUTANTS[index].name, None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=20000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--mutant-schedules", type=int, default=3000)
    options = parser.parse_args()
    started, failures, caught, missed = time.monotonic(), [], 0, 0
    known = {mutant.name for mutant in MUTANTS if mutant.seed is not None}
    with multiprocessing.get_context("fork").Pool() as pool:
        firsts = range(options.first, options.first + options.schedules, CHUNK)
        for number, found in enumerate(pool.imap(play, firsts), 1):
            failures += found
            if number % 20 == 0:
                print(f"{number * CHUNK} schedules, {len(failures)} failed", flush=True)
        tasks = [(index, options.mutant_schedules) for index in range(len(MUTANTS))]
        for name, failure in pool.imap_unordered(search, tasks):
            caught += failure is not None
            missed += failure is None and name in known
            print(f"without the guard against {name}: {failure or 'NOT NOTICED'}", flush=True)
    for seed, words in failures[:20]:
        print(f"schedule {seed}: {words}")
    seconds = time.monotonic() - started
    print(f"{options.schedules - len(failures)} of {options.schedules} schedules held")
    print(f"{caught} of {len(MUTANTS)} mutants were noticed, in {seconds:.0f} s")
    return int(bool(failures or missed))


if __name__ == "__main__":
    sys.exit(main())
