# SPDX-License-Identifier: Apache-2.0
"""Findings about a node's devices, its kernel's log and NCCL's RAS.

Pure. agent/device_report.py keeps the answers of the programs as they came, in devices.json. Here
they become data of a bounded size. The training can write the file, so anything may be in it.

Sources: the manual page of nvidia-smi (return code 15: the GPU has fallen off the bus) and
`--help-query-gpu`; NVIDIA's Xid catalogue; mm/oom_kill.c of Linux; NCCL, src/ras/client_support.cc,
and its page on RAS; base/npu_table.py for npu-smi. It was run on one H100 with driver 580.159.04,
whose answers are in tests/samples/devices. The rest was not run on such hardware.
"""

from __future__ import annotations

import re

from ..base import npu_table

FILE = "evidence/devices.json"
CARDS, LINES, PROCESSES, RAS_LINES = 64, 60, 256, 20
TEXT = 400
GPU_LOST = 15  # exit code of nvidia-smi
LARGEST_PID = 1 << 22  # proc(5), pid_max
_BUS = re.compile(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(?:\.[0-9A-Fa-f])?\Z")
_HANDLE = re.compile(r"device handle for (?:GPU ?)?(?:\d+: )?([0-9A-Fa-f]{4,8}:[^\s]+?): ([^\n]*)")
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]+)\): (\d{1,4})(?:, pid='?(\d{1,7}))?")
_OFF_BUS = re.compile(r"NVRM: .*?(?:GPU )?([0-9A-Fa-f]{4}:[0-9A-Fa-f:.]+): .*fallen off the bus")
_OOM = re.compile(r"oom-kill:.*\bpid=(\d{1,7})|[Oo]ut of memory: Kill(?:ed)? process (\d{1,7})")
_STAMPED = re.compile(r"([0-9]{1,10}\.[0-9]{1,9}) (.*)")
_KERNEL = re.compile(r"\S+ kernel: ")
_RAS_PROCESS = re.compile(r"Process (\d{1,7}) on node (\S{1,64}) managing GPU")
_RAS_RANK = re.compile(
    r"Rank (\d{1,6}) -- (?:GPU [\d() A-Z]+ managed by process (\d{1,7}) on node (\S{1,64}))?"
)
# Cells of nvidia-smi that name a fault and not a missing value.
_FAULTS = ("[GPU is lost]", "[GPU requires reset]")


def read_findings(report):
    """Return the findings of a devices.json's value, None where it is not one.

    moment: hang or end. error: the words of a tool that described no device. cards: the devices.
    lost: the bus addresses that the tool calls lost, None for one that it does not name. users:
    [{pid, uuid}]. kernel: {source, readable, lines}. ras: {error, named, lines}.
    """
    if not isinstance(report, dict) or not isinstance(report.get("answers"), dict):
        return None
    given = {name: _read_answer(answer) for name, answer in report["answers"].items()}
    cards, users, error = _read_devices(given.get("devices"))
    if given.get("processes"):
        users = _nvidia_users(given["processes"]["text"])
    moment, ras = "end", None
    if report.get("moment") == "hang":
        moment = "hang"
    if "ras" in given:
        ras = _read_ras(given["ras"])
    return {
        "moment": moment,
        "error": error,
        "cards": cards[:CARDS],
        "lost": _lost_buses(given.get("devices")),
        "users": users[:PROCESSES],
        "kernel": _read_kernel(given.get("kernel")),
        "ras": ras,
    }


def _read_answer(answer):
    """Return {command, code, text} of a program's answer, None without one."""
    if not isinstance(answer, dict):
        return None
    code = answer.get("code")
    if type(code) is not int:
        code = None
    texts = {key: str(answer.get(key) or "")[: 1 << 16] for key in ("command", "text")}
    return dict(texts, code=code)


def normalize_bus(text):
    """Return a PCI address as domain:bus:device in lower case, None where it is not one.

    Programs write the domain with four or eight digits, and the function or none.
    """
    match = _BUS.match(str(text))
    if not match:
        return None
    return f"{int(match.group(1) or '0', 16):04x}:{match.group(2)}:{match.group(3)}".lower()


def _read_devices(answer):
    """Return (cards, users, the words of a tool that described none)."""
    if answer is None:
        return [], [], ""
    cards, users = [], []
    if "npu-smi" in answer["command"]:
        cards, users = _npu_cards(answer["text"])
    else:
        cards = _nvidia_cards(answer["text"])
    error = ""
    if not cards:
        words = " ".join(answer["text"].split())[:TEXT]
        error = words or "no words"
        if answer["code"] is None:
            error = "no answer in time"
    return cards, users, error


def _nvidia_cards(text):
    """Return the devices of nvidia-smi's table, whose first line names the columns."""
    cards, names = [], []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if cells[0] == "index":
            names = [cell.split(" ")[0] for cell in cells]
        elif names and len(cells) == len(names) and cells[0].isdecimal():
            cards.append(_nvidia_card(dict(zip(names, cells))))
    return cards


def _nvidia_card(row):
    """Return the device of a row, {column: cell}."""
    rows = [row.get(name) for name in ("retired_pages.pending", "remapped_rows.pending")]
    waiting = "Yes" in rows or row.get("remapped_rows.failure") == "Yes"
    fault = next((cell for cell in row.values() if cell in _FAULTS), None)
    return {
        "index": row["index"][:16],
        "uuid": row.get("uuid", "")[:64],
        "bus": normalize_bus(row.get("pci.bus_id")),
        "name": row.get("name", "")[:64],
        "memory_used": _number(row.get("memory.used")),
        "memory_total": _number(row.get("memory.total")),
        "utilization": _number(row.get("utilization.gpu")),
        "ecc": _number(row.get("ecc.errors.uncorrected.volatile.total")),
        "rows_pending": waiting,
        "health": None,
        "fault": fault,
    }


def _npu_cards(text):
    """Return (devices, users) of npu-smi's tables."""
    devices, apps = npu_table.parse(text)
    cards = [
        {
            "index": device["index"][:16],
            "uuid": device["index"][:16],
            "bus": normalize_bus(device["uuid"]),
            "name": device["name"][:64],
            "memory_used": device["memory_used"],
            "memory_total": device["memory_total"],
            "utilization": device["utilization"],
            "ecc": None,
            "rows_pending": False,
            "health": device["health"][:16],
            "fault": None,
        }
        for device in devices
    ]
    users = [{"pid": _pid(str(app["pid"])), "uuid": app["device"]} for app in apps if app["device"]]
    return cards, users


def _number(text):
    """Return a whole number of a cell, None where it is not one."""
    if text and text.isdecimal() and len(text) < 10:
        return int(text)
    return None


def _pid(text):
    """Return a process id, None where the text is not one."""
    pid = _number(text)
    if pid is None or pid > LARGEST_PID:
        return None
    return pid


def _nvidia_users(text):
    """Return [{pid, uuid}] of the processes on devices."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [
        {"pid": _pid(row[1]), "uuid": row[0][:64]}
        for row in rows
        if len(row) >= 2 and _pid(row[1]) is not None
    ]


def _lost_buses(answer):
    """Return the addresses of the GPUs that nvidia-smi calls lost, [None] for one unnamed."""
    if answer is None:
        return []
    buses = [
        normalize_bus(address)
        for address, words in _HANDLE.findall(answer["text"])
        if "GPU is lost" in words
    ]
    if not buses and answer["code"] == GPU_LOST:
        return [None]
    return buses[:CARDS]


def _read_kernel(answer):
    """Return {source, readable, lines} of the kernel's log.

    A line is {time, kind, xid, bus, pid, text}. kind: xid, off_bus, oom or other.
    """
    if answer is None:
        return {"source": "", "readable": False, "lines": []}
    sources = {"journalctl": "journalctl -k", "dmesg": "dmesg"}
    source = sources.get(answer["command"].partition(" ")[0], "")
    matches = filter(None, map(_STAMPED.match, answer["text"].splitlines()))
    lines = [_kernel_line(float(match.group(1)), match.group(2)) for match in matches]
    # What repeats itself for hours leaves room for what says most.
    lines.sort(key=lambda line: (line["kind"] == "other", line["time"]))
    lines = sorted(lines[:LINES], key=lambda line: line["time"])
    is_readable = answer["code"] == 0 or bool(lines)
    return {"source": source, "readable": is_readable, "lines": lines}


def _kernel_line(time, text):
    """Return the finding of one line."""
    line = {"time": time, "kind": "other", "xid": None, "bus": None, "pid": None}
    text = _KERNEL.sub("", text, count=1)
    xid, off_bus, oom = _XID.search(text), _OFF_BUS.search(text), _OOM.search(text)
    if xid:
        line.update(kind="xid", bus=normalize_bus(xid.group(1)), xid=int(xid.group(2)))
        line["pid"] = _pid(xid.group(3))
    elif off_bus:
        line.update(kind="off_bus", bus=normalize_bus(off_bus.group(1)))
    elif oom:
        line.update(kind="oom", pid=_pid(oom.group(1) or oom.group(2)))
    return dict(line, text=text[:TEXT])


def _read_ras(answer):
    """Return {error, named, lines} of NCCL's RAS.

    named: [{how, rank, pid, address}] of the processes that it calls dead or that did not answer
    it. A rank is that of the communicator. lines: what it says of errors.
    """
    if answer is None:
        return {"error": "no answer in time", "named": [], "lines": []}
    _head, found, tail = answer["text"].partition("\nErrors\n")
    if not found:
        return {"error": " ".join(answer["text"].split())[:TEXT], "named": [], "lines": []}
    how, named = None, []
    lines = [line for line in tail.splitlines() if line.strip(" =")]
    for line in lines:
        if not line.startswith(" "):
            how = {"DEAD": "dead", "INCOMPLETE": "silent"}.get(line.split(" ")[-1])
        entry = how and _ras_entry(line.strip(), how)
        if entry and entry not in named:
            named.append(entry)
    kept = [line[:TEXT] for line in lines if line not in ("Errors", "Warnings")]
    return {"error": "", "named": named[:CARDS], "lines": kept[:RAS_LINES]}


def _ras_entry(line, how):
    """Return {how, rank, pid, address} of a line that names a process, None for another."""
    match = _RAS_PROCESS.match(line)
    if match:
        return {"how": how, "rank": None, "pid": _pid(match.group(1)), "address": match.group(2)}
    match = _RAS_RANK.match(line)
    if match:
        address = match.group(3)
        return {
            "how": how,
            "rank": int(match.group(1)),
            "pid": _pid(match.group(2)),
            "address": address,
        }
    return None
