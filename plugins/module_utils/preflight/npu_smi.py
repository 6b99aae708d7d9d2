# SPDX-License-Identifier: Apache-2.0
"""Ascend devices with their health and processes, as `npu-smi info` shows them.

Not run on Ascend hardware. base/npu_table.py reads the tables.
"""

from __future__ import annotations

from ..base import processes
from ..base.npu_table import parse
from ..base.sanitize import printable

LIMIT_S = 20
DRIVER_TOOL = "/usr/local/bin/npu-smi"


def ask(run):
    """Return {tool, error, devices, processes} as devices.ask_nvidia does.

    A device also has a health (OK, Warning, Alarm, Critical, UNKNOWN).
    """
    result = {"tool": "npu-smi", "error": "", "cuda": None, "devices": [], "processes": []}
    for tool in ("npu-smi", DRIVER_TOOL):
        code, out, err = run(["timeout", str(LIMIT_S), tool, "info"])
        if code not in (126, 127):
            break
    if code in (126, 127):
        return dict(result, error="it is not installed, or may not be run")
    if code == 124:
        return dict(result, error=f"no answer within {LIMIT_S} s")
    devices, apps = parse(out)
    if code or not devices:
        message = printable(" ".join((err or out).split()), limit=300)
        return dict(result, error=message or f"exit code {code} without a word")
    result["devices"] = [
        {key: value for key, value in device.items() if key != "utilization"} for device in devices
    ]
    for app in apps:
        process = processes.describe(app["pid"]) or dict.fromkeys(
            ("uid", "user", "age_s", "rss_mib", "run", "attempt")
        )
        result["processes"].append(dict(app, **process))
    return result
