# SPDX-License-Identifier: Apache-2.0
"""Stands where a training script stands: notes when it was started, for tests/bench/starts.py."""

from __future__ import annotations

import os
import time

folder = os.path.expanduser("~/bench-launch")
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, os.environ["RANK_ID"]), "w", encoding="ascii") as note:
    note.write(f"{time.time():.6f}\n")
time.sleep(1)
