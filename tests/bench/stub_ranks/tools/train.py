# SPDX-License-Identifier: Apache-2.0
"""Stands where a training script stands: notes when it was started, and writes a log.

For tests/bench/starts.py and tests/bench/logs.py. Variables, each 0 where it is missing: BENCH_RATE
(lines a second) for BENCH_SECONDS, each line with the time of its writing; or BENCH_BYTES at once,
and one percent more when the file ~/bench-more is there.
"""

from __future__ import annotations

import os
import sys
import time

LINE = "%.6f rank %s line %d " + "x" * 80 + "\n"


def write_steadily(rank, rate, seconds):
    """Write so many lines a second."""
    begun, done = time.time(), 0
    while time.time() - begun < seconds:
        while done < (time.time() - begun) * rate:
            sys.stdout.write(LINE % (time.time(), rank, done))
            done += 1
        sys.stdout.flush()
        time.sleep(0.05)


def write_at_once(rank, size):
    """Write so many bytes, and one percent more on request."""
    for part in (size, size // 100):
        written = 0
        while written < part:
            written += sys.stdout.write(LINE % (time.time(), rank, written))
        sys.stdout.flush()
        while not os.path.exists(os.path.expanduser("~/bench-more")):
            time.sleep(0.2)
    while os.path.exists(os.path.expanduser("~/bench-more")):
        time.sleep(0.2)


folder, own = os.path.expanduser("~/bench-launch"), os.environ["RANK_ID"]
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, own), "w", encoding="ascii") as note:
    note.write(f"{time.time():.6f}\n")
given = {name: int(os.environ.get(f"BENCH_{name}", "0")) for name in ("RATE", "SECONDS", "BYTES")}
if given["BYTES"]:
    write_at_once(own, given["BYTES"])
else:
    write_steadily(own, given["RATE"], given["SECONDS"])
time.sleep(1)
