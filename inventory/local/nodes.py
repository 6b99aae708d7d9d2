#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inventory of the embedded site: how many nodes it has, their names and their addresses."""

from __future__ import annotations

import ipaddress
import json
import os
import sys
from pathlib import Path

FIRST = ipaddress.ip_address("198.51.100.11")
MOST = 90  # addresses .11 to .100; molecule's nodes begin at .101


def wanted() -> int:
    """TRAINYARD_LOCAL_NODES, else what the last `make demo` recorded, else two."""
    recorded = Path.home() / ".local/state/trainyard/local/nodes"  # trainyard_state_dir
    text = os.environ.get("TRAINYARD_LOCAL_NODES") or (
        recorded.read_text() if recorded.exists() else "2"
    )
    if not (text.strip().isdecimal() and 1 <= int(text) <= MOST):
        sys.exit(
            f"TRAINYARD_LOCAL_NODES (or {recorded}): want a whole number from 1 to {MOST}, got"
            f" {text.strip()!r}"
        )
    return int(text)


hosts = {f"node{n}": {"ansible_host": str(FIRST + n - 1)} for n in range(1, wanted() + 1)}
print(json.dumps({"trainers": {"hosts": list(hosts)}, "_meta": {"hostvars": hosts}}, indent=2))
