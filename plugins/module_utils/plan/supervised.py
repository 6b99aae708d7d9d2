# SPDX-License-Identifier: Apache-2.0
"""Runs that their nodes restart themselves."""

from __future__ import annotations

# Runs on more nodes were never simulated.
MOST_NODES = 64


def is_wanted(job):
    """Return whether a job asks for a run that restarts itself."""
    return bool(job.get("detach") or job.get("max_restarts"))


def is_supervised(job, count):
    """Return whether the nodes restart a job's run on so many nodes. Else a controller does."""
    return is_wanted(job) and count <= MOST_NODES
