# SPDX-License-Identifier: Apache-2.0
"""What `npu-smi info` says of Ascend devices: count, model, health, memory, processes. Not run on
Ascend hardware.

It prints tables for people, which differ from release to release: one chip or two a card, Chip
alone or Chip and Phy-ID, with and without a last column of processes. So nothing is taken by its
place in a line: a row of a card has a health word in its second cell, a row of its chip a bus
address, a row of a process a number. Whatever is neither is passed over. Layouts: outputs of
releases 23.0 to 26.0 in issues of vllm-project/vllm-ascend and others.
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
    """Return {tool, error, devices, processes} as devices.ask_nvidia does; a device has health (OK,
    Warning, Alarm, Critical, UNKNOWN) besides.
    """
    result = {"tool": "npu-smi", "error": "", "cuda": None, "devices": [], "processes": []}
    for tool in ("npu-smi", DRIVER_TOOL):
        code, out, err = run(["timeout", str(LIMIT_S), tool, "info"])
        if code not in (126, 127):
            break
    if code in (126, 127):
        return dict(result, error="it is not installed, or may not be run")
    if code == 124:
        return dict(result, error="no answer within %d s" % LIMIT_S)
    devices, found = parse(out)
    if code or not devices:
        return dict(
            result,
            error=printable(" ".join((err or out).split()), limit=300)
            or "exit code %d without a word" % code,
        )
    result["devices"] = devices
    for item in found:
        told = processes.describe(item["pid"]) or dict.fromkeys(
            ("uid", "user", "age_s", "rss_mib", "run", "attempt")
        )
        result["processes"].append(dict(item, **told))
    return result


def parse(text):
    """Return (devices, processes) of the tables. A device's index counts the chips in their order,
    as ASCEND_RT_VISIBLE_DEVICES does, or is its Phy-ID.
    """
    match = _VERSION.search(text)
    driver = match and match.group(1)
    devices, found, card, places = [], [], None, {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        first = cells[0].split()
        if len(cells) < 3 or not first or not first[0].isdigit():
            continue
        if _BUS.match(cells[1]) and card:
            amounts = _AMOUNTS.findall(cells[2])
            # Memory-Usage is the host side's on most; HBM-Usage, where there is one, comes last.
            used, total = (int(number) for number in amounts[-1]) if amounts else (None, None)
            index = first[1] if len(first) > 1 else str(len(devices))
            places[(card["npu"], first[0])] = index
            devices.append(
                dict(
                    _NOTHING,
                    index=index,
                    uuid=cells[1],
                    name=card["name"],
                    driver=driver,
                    memory_total=total,
                    memory_used=used,
                    health=card["health"],
                )
            )
        elif cells[1].isdigit():
            pid, memory = int(cells[1]), re.match(r"\d+", cells[3]) if len(cells) > 3 else None
            chip = first[1] if len(first) > 1 else "0"
            found.append(
                {
                    "device": places.get((first[0], chip)),
                    "pid": pid,
                    "command": printable(cells[2], limit=processes.COMMAND),
                    "memory": int(memory.group()) if memory else None,
                }
            )
        elif len(first) > 1 and re.match(r"[A-Za-z]+\Z", cells[1]):
            card = {"npu": first[0], "name": " ".join(first[1:]), "health": cells[1]}
    return devices, found
