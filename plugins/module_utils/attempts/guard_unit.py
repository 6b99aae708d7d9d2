# SPDX-License-Identifier: Apache-2.0
"""The unit of an attempt's guard on a node: started with the attempt, gone with it. What it does:
guard.py.

Functions take `run`, a callable like AnsibleModule.run_command. An attempt without guard.py (a
rehearsal, which has a bound of its own) has none.
"""

from __future__ import annotations

import os

PYTHON = "/usr/bin/python3"
OVER = 75  # guard.EXIT_OVER


def unit_name(unit):
    """Return the name of the unit that guards an attempt's; it does not begin as those do that hold
    a node.
    """
    return "yardguard-" + unit[len("trainyard-") :]


def argv(attempt, node, unit):
    """Return the systemd-run command that starts the guard of an attempt whose unit runs already.

    Requisite, not BindsTo: a guard that is started again must never start the attempt with it. It
    goes by itself when the attempt's unit has gone, and exit code 75 says so; what ends the attempt
    ends it as well, should it be stuck. After 3 s systemd's limit of 5 starts in 10 s is not met.
    """
    log = os.path.join(attempt, "guard.log")
    properties = [
        "Type=exec",
        f"Requisite={unit}",
        f"After={unit}",
        "Restart=always",
        "RestartSec=3",
        "RestartPreventExitStatus=%d" % OVER,
        "SuccessExitStatus=%d" % OVER,
        "KillMode=control-group",
        "TimeoutStopSec=2",
        "UMask=0077",
        f"WorkingDirectory={attempt}",
        f"StandardOutput=append:{log}",
        f"StandardError=append:{log}",
    ]
    words = [
        "systemd-run",
        "--user",
        "--quiet",
        "--collect",
        f"--unit={unit_name(unit)}",
        f"--description=Guard of {unit}",
    ]
    words += [word for prop in properties for word in ("--property", prop)]
    return words + [PYTHON, "-I", "-B", os.path.join(attempt, "guard.py"), "watch", attempt, node]


def start(run, attempt, node, unit):
    """Start the guard; return '' or, where it does not start although the attempt runs, what
    systemd said.
    """
    if not os.path.exists(os.path.join(attempt, "guard.py")):
        return ""
    code, _out, err = run(argv(attempt, node, unit))
    # An attempt may be over before its guard is there, and then Requisite does not hold.
    if not code or run(["systemctl", "--user", "is-active", unit])[1].strip() != "active":
        return ""
    return f"systemd did not start {unit_name(unit)}: {err.strip()}"


def stop(run, attempt, unit):
    """End the guard, should it still be there."""
    if os.path.exists(os.path.join(attempt, "guard.py")):
        run(["systemctl", "--user", "stop", unit_name(unit)])
