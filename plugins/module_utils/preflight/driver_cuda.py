# SPDX-License-Identifier: Apache-2.0
"""The CUDA of a node's driver, compared with the CUDA that its framework was built for.

Source: NVIDIA's CUDA Compatibility guide. A driver runs what was built for an older CUDA. From
CUDA 11 on it also runs what was built for a later minor release of its own major one, but for
features that need the newer driver. Untested on hardware.
"""

from __future__ import annotations

import re

from ..base.findings import finding

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})(?![0-9])")
_RUNTIME = re.compile(r"nvidia[-_]cuda[-_]runtime(?:[-_]cu\d+)?\Z")
# Minor-version compatibility begins here.
FIRST_COMPATIBLE = 11


def wheel_cuda(state):
    """Return (text, (major, minor)) of an environment's CUDA, or None where it is not known.

    Paddle's own file comes first. state: of software.look.
    """
    paddle = (state.get("frameworks") or {}).get("paddle") or {}
    candidates = [("Paddle", paddle.get("cuda"))]
    for name, version in sorted((state.get("packages") or {}).items()):
        if _RUNTIME.match(name.lower()):
            candidates.append((name, version))
    for name, text in candidates:
        version = parse(text)
        if version:
            return f"{name} is built for CUDA {version[0]}.{version[1]}", version
    return None


def parse(text):
    """Return (major, minor) of a version, or None."""
    match = _VERSION.match(str(text or ""))
    if not match:
        return None
    return int(match.group(1)), int(match.group(2))


def judge(nodes, facts, states, level):
    """Return findings of drivers that are too old for the framework.

    states: {node: state of its environment}. level: of a driver that cannot run it.
    """
    findings = []
    for node in nodes:
        name = node["name"]
        driver = parse((facts[name].get("devices") or {}).get("cuda"))
        wheel = wheel_cuda(states.get(name) or {})
        if node["accelerator"] != "gpu" or not driver or not wheel or driver >= wheel[1]:
            continue
        words, version = wheel
        text = f"the driver runs CUDA up to {driver[0]}.{driver[1]}, and {words}"
        remedy = (
            f"update the driver to one with CUDA {version[0]}.{version[1]} or later, or install the"
            f" framework's build for CUDA {driver[0]}"
        )
        if driver[0] == version[0] >= FIRST_COMPATIBLE:
            text += "; most of it works (minor-version compatibility), new features may not"
            findings.append(finding("driver.cuda_minor_older", text, remedy, name, "warn"))
            continue
        text += "; CUDA ends with error 35, driver version is insufficient"
        remedy += "; with NVIDIA's forward compatibility packages: preflight_devices: {cuda: warn}"
        findings.append(finding("driver.cuda_too_old", text, remedy, name, level))
    return findings
