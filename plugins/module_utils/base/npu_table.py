# SPDX-License-Identifier: Apache-2.0
"""Tables of `npu-smi info`: Ascend devices with their health, memory and processes.

Not run on Ascend hardware. The tool prints tables for people, which differ from release to release:
one chip or two per card, Chip alone or Chip and Phy-ID, with and without a last column of
processes. So no cell is found by its position in a line: a row of a card has a health word in its
second cell, a row of its chip a bus address, a row of a process a number. Other rows are ignored.
Layouts: outputs of releases 23.0 to 26.0 in issues of vllm-project/vllm-ascend and others.
"""

from __future__ import annotations

import re

from . import processes
from .sanitize import printable

_VERSION = re.compile(r"npu-smi\s+\S+\s+Version:\s*(\S+)")
_BUS = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-fx]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]\Z")
# No number of more digits: a training may have written the text.
_AMOUNTS = re.compile(r"([0-9]{1,9})\s*/\s*([0-9]{1,9})")
_USE = re.compile(r"\s*([0-9]{1,3})\s")
_PID = re.compile(r"[0-9]{1,7}\Z")
_NOTHING = dict.fromkeys(
    ("ecc_uncorrected", "rows_pending", "throttle", "width", "width_max", "mig")
)


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
        elif _PID.match(cells[1]):
            apps.append(_read_process(cells, first, indexes))
        elif len(first) > 1 and re.match(r"[A-Za-z]+\Z", cells[1]):
            card = {"npu": first[0], "name": " ".join(first[1:]), "health": cells[1]}
    return devices, apps


def _read_chip(cells, card):
    """Return the device of a chip's row without index and driver. card: its card."""
    amounts, use = _AMOUNTS.findall(cells[2]), _USE.match(cells[2])
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
        utilization=use and int(use.group(1)),
    )


def _read_process(cells, first, indexes):
    """Return the process of its row.

    first: the words of the row's first cell. indexes: {(NPU, chip): device index}.
    """
    chip, memory = "0", None
    if len(first) > 1:
        chip = first[1]
    if len(cells) > 3:
        match = re.match(r"[0-9]{1,9}", cells[3])
        if match:
            memory = int(match.group())
    return {
        "device": indexes.get((first[0], chip)),
        "pid": int(cells[1]),
        "command": printable(cells[2], limit=processes.COMMAND),
        "memory": memory,
    }
