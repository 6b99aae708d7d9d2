# SPDX-License-Identifier: Apache-2.0
"""Unit of the replicator on the one node of an attempt that keeps a replica.

It is started with the attempt and ends with it. An attempt without it trains all the same.
Functions take `run_command`, a callable like AnsibleModule.run_command.
"""

from __future__ import annotations

import os

from ..base.interpreter import node_python

ARCHIVE = "replicator.pyz"


def unit_name(unit):
    """Return the name of the replicator's unit of an attempt's.

    It does not begin as the names of the units that hold a node.
    """
    return "yardreplica-" + unit[len("trainyard-") :]


def start_argv(attempt, unit):
    """Return the systemd-run command that starts the replicator of a running attempt.

    Requisite, not BindsTo: a replicator that is started again must never start the attempt with it.
    It ends after the attempt's end. The training has the processors and the disk first.
    """
    log = os.path.join(attempt, "replica.log")
    properties = [
        "Type=exec",
        f"Requisite={unit}",
        f"After={unit}",
        "Restart=on-failure",
        "RestartSec=30",
        "KillMode=control-group",
        "TimeoutStopSec=2",
        "Nice=19",
        "IOSchedulingClass=idle",
        "UMask=0077",
        f"WorkingDirectory={attempt}",
        f"StandardOutput=append:{log}",
        f"StandardError=append:{log}",
    ]
    systemd_run = [
        "systemd-run",
        "--user",
        "--quiet",
        "--collect",
        f"--unit={unit_name(unit)}",
        f"--description=Replica of the checkpoints of {unit}",
    ]
    systemd_run += [word for prop in properties for word in ("--property", prop)]
    return [*systemd_run, node_python(), "-I", os.path.join(attempt, ARCHIVE), attempt]


def start(run_command, attempt, unit):
    """Start the replicator where its archive has arrived, and return '' or systemd's problem."""
    if not os.path.exists(os.path.join(attempt, ARCHIVE)):
        return ""
    code, _out, err = run_command(start_argv(attempt, unit))
    if not code:
        return ""
    return f"systemd did not start {unit_name(unit)}: {err.strip()}"


def stop(run_command, attempt, unit):
    """End the replicator of an attempt that has one."""
    if os.path.exists(os.path.join(attempt, ARCHIVE)):
        run_command(["systemctl", "--user", "stop", unit_name(unit)])
