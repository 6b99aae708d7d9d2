# SPDX-License-Identifier: Apache-2.0
"""Log lines of a rank that looks for its peers, and of one that has them.

Paddle prints them in tcp_utils.cc, its store of libuv, distributed_strategy.py and topology.py,
MindSpore in tcp_comm.cc, cluster_context.cc and collective_manager.cc.
"""

from __future__ import annotations

import re

PEERS_SOUGHT = re.compile(
    r"The server starts to listen|Retry to connect to|Waiting for the state of the"
    r" connection|Connect\] Connection \d|create libuv server"
)
PEERS_FOUND = re.compile(
    r"Successfully connected to|distributed strategy initialized|comm group\(s\) create"
    r" successfully|Cluster is successfully initialized|communication group on the device side"
)
# Each line that one of the patterns finds has one of these texts.
LITERALS = (
    "starts to listen",
    "Retry to connect",
    "Waiting for the state",
    "Connect] Connection",
    "create libuv server",
    "Successfully connected",
    "strategy initialized",
    "create successfully",
    "successfully initialized",
    "on the device side",
)
