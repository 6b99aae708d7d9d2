# SPDX-License-Identifier: Apache-2.0
"""Ascend devices with their health and processes, as `npu-smi info` shows them.

Not run on Ascend hardware. The tool prints tables for people, which differ from release to release:
one chip or two per card, Chip alone or Chip and Phy-ID, with and without a last column of
processes. So no cell is found by its position in a line: a row of a card has a health word in its
second cell, a row of its chip a bus address, a row of a process a number. Other rows are ignored.
Layouts: outputs of releases 23.0 to 26.0 in issues of vllm-project/vllm-ascend and others.
"""

from __future__ import annotations

import re

from ..base import processes
from ..base.sanitize import printable

LIMIT_S = 20
DRIVER_TOOL = "/usr/local/bin/npu-smi"
_VERSION = re.compile(r"npu-smi\s+\S+\s+Version:\s*(\S+)")
_BUS = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-fx]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]\Z")
_AMOUNTS = re.compile(r"(\d+)\s*/\s*(\d+)")
_NOTHING = dict.fromkeys(
    ("ecc_uncorrected", "rows_pending", "throttle", "width", "width_max", "mig")
)


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
    result["devices"] = devices
    for app in apps:
        process = processes.describe(app["pid"]) or dict.fromkeys(
            ("uid", "user", "age_s", "rss_mib", "run", "attempt")
        )
        result["processes"].append(dict(app, **process))
    return result


def parse(text):
    """Return (devices, processes) of the tables.

    A device's index is its Phy-ID where there is one. Else it counts the chips in their order, as
    ASCEND_RT_VISIBLE_DEVICES does.
    """
    match = _VERSION.search(text)
    driver = match and match.group(1)
    devices, apps, card, indexes = [], [], None, {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        first = cells[0].split()
        if len(cells) < 3 or not first or not first[0].isdigit():
            continue
        if _BUS.match(cells[1]) and card:
            index = str(len(devices))
            if len(first) > 1:
                index = first[1]
            indexes[(card["npu"], first[0])] = index
            devices.append(dict(_read_chip(cells, card), index=index, driver=driver))
        elif cells[1].isdigit():
            apps.append(_read_process(cells, first, indexes))
        elif len(first) > 1 and re.match(r"[A-Za-z]+\Z", cells[1]):
            card = {"npu": first[0], "name": " ".join(first[1:]), "health": cells[1]}
    return devices, apps


def _read_chip(cells, card):
    """Return the device of a chip's row without index and driver. card: its card."""
    amounts = _AMOUNTS.findall(cells[2])
    used = total = None
    if amounts:
        # Memory-Usage is the host side's on most; HBM-Usage, where there is one, comes last.
        used, total = (int(number) for number in amounts[-1])
    return dict(
        _NOTHING,
        uuid=cells[1],
        name=card["name"],
        memory_total=total,
        memory_used=used,
        health=card["health"],
    )


def _read_process(cells, first, indexes):
    """Return the process of its row.

    first: the words of the row's first cell. indexes: {(NPU, chip): device index}.
    """
    chip, memory = "0", None
    if len(first) > 1:
        chip = first[1]
    if len(cells) > 3:
        match = re.match(r"\d+", cells[3])
        if match:
            memory = int(match.group())
    return {
        "device": indexes.get((first[0], chip)),
        "pid": int(cells[1]),
        "command": printable(cells[2], limit=processes.COMMAND),
        "memory": memory,
    }
