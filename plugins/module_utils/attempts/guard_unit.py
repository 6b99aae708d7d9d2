# SPDX-License-Identifier: Apache-2.0
"""Unit of an attempt's guard on a node.

It is started with the attempt and ends with it. Functions take `run_command`, a callable like
AnsibleModule.run_command. A rehearsal (attempt 0) has a time limit of its own and no guard.
"""

from __future__ import annotations

import os

from ..base.interpreter import node_python

ARCHIVE = "agent.pyz"
OVER = 75  # guard.EXIT_OVER


def unit_name(unit):
    """Return the name of the unit that guards an attempt's.

    It does not begin as the names of the units that hold a node.
    """
    return "yardguard-" + unit[len("trainyard-") :]


def has_guard(unit):
    """Return whether the attempt of a unit has a guard. A rehearsal has none."""
    return not unit.endswith("-0.service")


def start_argv(attempt, node, unit):
    """Return the systemd-run command that starts the guard of a running attempt.

    Requisite, not BindsTo: a guard that is started again must never start the attempt with it. The
    guard ends automatically when the attempt's unit has gone, with exit code 75. The end of the
    attempt ends a guard that is stuck. After 3 s systemd's limit of 5 starts in 10 s is not met.
    """
    log = os.path.join(attempt, "guard.log")
    properties = [
        "Type=exec",
        f"Requisite={unit}",
        f"After={unit}",
        "Restart=always",
        "RestartSec=3",
        f"RestartPreventExitStatus={OVER}",
        f"SuccessExitStatus={OVER}",
        "KillMode=control-group",
        "TimeoutStopSec=2",
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
        f"--description=Guard of {unit}",
    ]
    systemd_run += [word for prop in properties for word in ("--property", prop)]
    guard = [node_python(), "-I", os.path.join(attempt, ARCHIVE), "guard", attempt, node]
    return systemd_run + guard


def start(run_command, attempt, node, unit):
    """Start the guard and return '' or a problem.

    The problem is systemd's message, where the guard does not start although the attempt runs.
    """
    if not has_guard(unit):
        return ""
    code, _out, err = run_command(start_argv(attempt, node, unit))
    # An attempt may be over before its guard is there, and then Requisite does not hold.
    if not code or run_command(["systemctl", "--user", "is-active", unit])[1].strip() != "active":
        return ""
    return f"systemd did not start {unit_name(unit)}: {err.strip()}"


def stop(run_command, unit):
    """End the guard, should it still be there."""
    if has_guard(unit):
        run_command(["systemctl", "--user", "stop", unit_name(unit)])
