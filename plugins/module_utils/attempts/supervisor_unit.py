# SPDX-License-Identifier: Apache-2.0
"""Unit of a run's supervisor on a node: a persistent one, which comes back with the machine.

A transient unit would vanish at a reboot. The home directory may be shared by several machines, so
the unit's name has the node's, and it starts on the machine alone that it was made on. Functions
take `run_command`, a callable like AnsibleModule.run_command.
"""

from __future__ import annotations

import contextlib
import os
import re

from ..base.interpreter import node_python

OVER = 75  # exit code after which the unit is not started again
UNITS = ".config/systemd/user"
PROGRAM = "supervisor.pyz"
# Seconds without a word until systemd ends a supervisor that stands still, and starts it again.
# Below the lease (supervision/supervisor.py).
WATCHDOG_SECONDS = 12
_NAME = re.compile(
    r"yardsupervisor-([0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4})-[0-9]+-.+\.service\Z"
)


def unit_name(unit, node):
    """Return the name of the supervisor's unit. unit: that of the first attempt."""
    return f"yardsupervisor-{unit[len('trainyard-') : -len('.service')]}-{node}.service"


def unit_path(home, unit, node):
    """Return the path of the unit's file."""
    return os.path.join(home, UNITS, unit_name(unit, node))


def unit_text(place, unit, node, machine, python):
    """Return the unit's file. machine: the machine's id."""
    log = os.path.join(place, "supervisor.log")
    return f"""\
[Unit]
Description=Supervisor of {unit} on {node}
ConditionHost={machine}
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={python} -I {place}/{PROGRAM} {place}
Restart=always
RestartSec=1
RestartPreventExitStatus={OVER}
SuccessExitStatus={OVER}
WatchdogSec={WATCHDOG_SECONDS}
KillMode=control-group
TimeoutStopSec=2
UMask=0077
WorkingDirectory={place}
StandardOutput=append:{log}
StandardError=append:{log}

[Install]
WantedBy=default.target
"""


def install(run_command, home, place, unit, node):
    """Write, enable and start the unit. Return '' or systemd's problem."""
    with open("/etc/machine-id", encoding="ascii") as handle:
        machine = handle.read().strip()
    path = unit_path(home, unit, node)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "w", encoding="utf-8") as handle:
        handle.write(unit_text(place, unit, node, machine, node_python()))
    name = unit_name(unit, node)
    for words in (["daemon-reload"], ["enable", "--quiet", name], ["start", name]):
        code, _out, err = run_command(["systemctl", "--user", *words])
        if code:
            remove(run_command, home, unit, node)
            return f"systemd did not start {name}: {err.strip()}"
    return ""


def is_installed(home, unit, node):
    """Return whether the supervisor of a run is here, whether it runs or not."""
    return os.path.exists(unit_path(home, unit, node))


def installed_runs(home):
    """Return the ids of the runs that have a supervisor here, whether it runs or not."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        names = map(_NAME.match, os.listdir(os.path.join(home, UNITS)))
        return {name.group(1) for name in names if name}
    return set()


def remove(run_command, home, unit, node):
    """Stop the supervisor and remove its unit."""
    if is_installed(home, unit, node):
        run_command(["systemctl", "--user", "stop", unit_name(unit, node)])
        forget(run_command, home, unit, node)


def forget(run_command, home, unit, node):
    """Remove the unit's file. A supervisor that runs is left alone."""
    name = unit_name(unit, node)
    run_command(["systemctl", "--user", "disable", "--quiet", name])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unit_path(home, unit, node))
    run_command(["systemctl", "--user", "daemon-reload"])
