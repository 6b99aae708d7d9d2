# SPDX-License-Identifier: Apache-2.0
"""Weights of candidates: how much evidence of a kind says that a failure began there."""

from __future__ import annotations

PRIMARY = 100
LAUNCHER = 95
OOM = 90
KILLED = 80
DOUBTFUL = 70
LAUNCHER_LATER = 62
TERMINATED = 61
SILENT = 60
DECIDES = 60  # from this weight on a candidate is named as the beginning of the failure
LATE = 40
SHARED = 30
SECONDARY = 20
STOPPED = 5
