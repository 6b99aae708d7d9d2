# SPDX-License-Identifier: Apache-2.0
"""The accelerators of a node: how many, which, healthy, free. On `gpu` nodes nvidia-smi says it, on
`ascend` npu-smi where there is one.

Sources: `nvidia-smi --help-query-gpu` and `--help-query-compute-apps` for the fields; NVIDIA's
nvml.h (nvmlClocksEventReasons) for the bits of the throttle mask; published outputs for how values
are worded that a device does not have. npu-smi was never run on hardware here; see npu_smi.py.
"""

from __future__ import annotations

import re

from ..base import processes
from ..base.findings import finding, unequal
from ..base.sanitize import printable
from . import npu_smi

# A device that has fallen off the bus can hold the tool for long; without persistence mode a
# healthy one takes seconds to wake.
LIMIT_S = 20
# Fact -> fields that say it, the newest name first: one that a driver does not know makes
# nvidia-smi refuse the whole question.
FIELDS = {
    "index": ["index"],
    "uuid": ["uuid"],
    "name": ["name"],
    "driver": ["driver_version"],
    "memory_total": ["memory.total"],
    "memory_used": ["memory.used"],
    "ecc_uncorrected": ["ecc.errors.uncorrected.volatile.total"],
    "rows_pending": ["remapped_rows.pending"],
    "throttle": ["clocks_event_reasons.active", "clocks_throttle_reasons.active"],
    "width": ["pcie.link.width.current"],
    "width_max": ["pcie.link.width.max"],
    "mig": ["mig.mode.current"],
}
_NUMBERS = ("memory_total", "memory_used", "ecc_uncorrected", "width", "width_max")
# Power cap, application clocks and idleness are how a healthy device works.
SLOWED = {
    0x8: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*([0-9]+\.[0-9]+)")
# A context that nobody uses any more, or a driver's own: MiB of a device that is free all the same.
IDLE_MIB = 1024
# Words in a cell that say more than that nothing is known.
FAULTS = ("[GPU requires reset]", "[GPU is lost]", "[Unknown Error]")
# What becomes of a difference or a fault (preflight_devices).
LEVELS = {"model": "stop", "driver": "warn", "ecc": "stop"}


def look(run, base, asked):
    """Return what the node's devices are, by the site's accelerator; {kind, error, tool, devices,
    processes} (see ask_nvidia, npu_smi.ask).
    """
    kind = asked.get("accelerator") or "cpu"
    if kind == "gpu":
        return dict(ask_nvidia(run), kind=kind)
    if kind == "ascend":
        return dict(npu_smi.ask(run), kind=kind)
    return {"kind": kind, "tool": "", "error": "", "devices": [], "processes": []}


def ask_nvidia(run):
    """Return {tool, error, cuda, devices, processes} as nvidia-smi says.

    devices: [{index, uuid, name, driver, memory_total (MiB), memory_used, ecc_uncorrected,
    rows_pending, throttle, width, width_max, mig}]; None stands for what a device or its driver
    does not tell. processes: [{device (index), memory (MiB)} and processes.describe]. error: the
    tool's own words.
    """
    result = {"tool": "nvidia-smi", "error": "", "cuda": None, "devices": [], "processes": []}
    wanted = {fact: list(names) for fact, names in FIELDS.items()}
    while True:
        fields = [(fact, names[0]) for fact, names in wanted.items() if names]
        code, out, err = run(
            _smi(
                "--query-gpu=" + ",".join(name for _fact, name in fields),
                "--format=csv,noheader,nounits",
            )
        )
        unknown = _UNKNOWN_FIELD.search(out + err)
        if not unknown or not any(name == unknown.group(1) for _fact, name in fields):
            break
        for names in wanted.values():
            if names and names[0] == unknown.group(1):
                names.pop(0)
    result["devices"] = devices_of(out, [fact for fact, _name in fields]) if code == 0 else []
    if not result["devices"]:
        result["error"] = _reason(code, out, err)
        return result
    code, out, err = run(
        _smi(
            "--query-compute-apps=gpu_uuid,pid,process_name,used_memory",
            "--format=csv,noheader,nounits",
        )
    )
    if code:
        result["error"] = _reason(code, out, err)
        return result
    places = {item["uuid"]: item["index"] for item in result["devices"]}
    result["processes"] = [dict(item, device=places.get(item.pop("uuid"))) for item in apps_of(out)]
    code, out, _err = run(_smi())
    match = _CUDA.search(out) if code == 0 else None
    result["cuda"] = match and match.group(1)
    return result


def _smi(*words):
    return ["timeout", str(LIMIT_S), "nvidia-smi"] + list(words)


def _reason(code, out, err):
    """Return why the tool gave nothing, in its own words where it has any."""
    said = printable(" ".join((out + " " + err).split()), limit=300)
    if code in (126, 127):
        return "it is not installed, or may not be run"
    if code == 124:
        return "no answer within %d s" % LIMIT_S
    return said or "exit code %d without a word" % code


def devices_of(text, facts):
    """Return the devices of a CSV without header and units; facts: what its columns say. Rows of
    another length are passed over.
    """
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(facts) or not cells[0].isdigit():
            continue
        row = dict.fromkeys(FIELDS)
        row["faults"] = sorted({cell for cell in cells if cell in FAULTS})
        row.update(
            {
                fact: printable(cell, limit=80) if known(cell) else None
                for fact, cell in zip(facts, cells)
            }
        )
        for fact in _NUMBERS:
            row[fact] = int(row[fact]) if row[fact] and row[fact].isdigit() else None
        row["throttle"] = (
            int(row["throttle"], 16)
            if re.match(r"0x[0-9a-fA-F]+\Z", row["throttle"] or "")
            else None
        )
        found.append(row)
    return found


def known(cell):
    """Return whether a cell holds a value: [N/A], N/A, [Not Supported], [Unknown Error], [GPU
    requires reset] and their like are none.
    """
    return bool(cell) and cell not in ("N/A", "Not Supported") and not cell.startswith("[")


def apps_of(text):
    """Return [{uuid, pid, memory, ...describe}] of the compute processes. A name may hold commas,
    so it is read from both ends.
    """
    found = []
    for line in text.splitlines():
        head, _comma, tail = line.partition(",")
        pid, _comma, tail = tail.partition(",")
        name, _comma, memory = tail.rpartition(",")
        if not pid.strip().isdigit():
            continue
        # In a container the driver may tell the host's pids, which are not to be seen; then there
        # is the name alone.
        told = processes.describe(int(pid)) or dict.fromkeys(
            ("uid", "user", "age_s", "rss_mib", "run", "attempt")
        )
        memory = memory.strip()
        told.update(
            uuid=head.strip(), pid=int(pid), memory=int(memory) if memory.isdigit() else None
        )
        told.setdefault(
            "command",
            (
                printable(name.strip(), limit=processes.COMMAND)
                if known(name.strip())
                else "unknown to the driver"
            ),
        )
        found.append(told)
    return found


def judge(nodes, facts, allowed):
    """Return findings; allowed["devices"] changes LEVELS."""
    levels = dict(LEVELS, **(allowed.get("devices") or {}))
    told = {node["name"]: facts[node["name"]].get("devices") or {} for node in nodes}
    told = {name: one for name, one in told.items() if one.get("kind", "cpu") != "cpu"}
    found, models, counts, drivers, cudas = [], {}, {}, {}, {}
    for node in nodes:
        one = told.get(node["name"])
        if one is None:
            continue
        if one["error"]:
            found.append(_silent(node["name"], one))
            continue
        mine = {item["index"]: item for item in one["devices"]}
        lacking = [device for device in node["devices"] if device not in mine]
        if lacking:
            text = "the job takes device %s; %s shows %d: %s"
            words = (", ".join(lacking), one["tool"], len(mine), ", ".join(mine) or "none")
            remedy = (
                "take fewer (-e devices=N, or the site's trainyard_devices), or find out why the"
                " driver has lost it (dmesg)"
            )
            found.append(finding("devices", text % words, remedy, node["name"]))
        taken = [mine[device] for device in node["devices"] if device in mine]
        if taken:
            models[node["name"]] = ", ".join(sorted({_model(item) for item in taken}))
        counts[node["name"]], drivers[node["name"]] = (
            len(mine),
            taken[0]["driver"] if taken else None,
        )
        cudas[node["name"]] = one.get("cuda")
        found += _busy(node, one) + [
            item for device in taken for item in _health(node["name"], device, one, levels)
        ]
    found += unequal(
        "devices",
        "the model of the devices",
        models,
        "a gang is as fast as its slowest device; choose nodes of one kind",
        levels["model"],
    )
    found += unequal(
        "devices", "the number of devices", counts, "only those that the job names are used", "warn"
    )
    remedy = "bring all nodes to one driver; NCCL and CUDA take the oldest for all"
    found += unequal(
        "driver",
        "the driver's version",
        {name: value for name, value in drivers.items() if value},
        remedy,
        levels["driver"],
    )
    found += unequal(
        "driver",
        "the driver's CUDA",
        {name: value for name, value in cudas.items() if value},
        remedy,
        levels["driver"],
    )
    return found


def _model(device):
    return (
        "{} with {} MiB".format(device["name"], device["memory_total"])
        if device["memory_total"]
        else str(device["name"])
    )


def _silent(name, one):
    remedy = "mend the driver; without devices the site says trainyard_accelerator: cpu"
    if one["tool"] == "npu-smi" and "not installed" in one["error"]:
        text = "npu-smi: {}, so the devices' health and processes are not known".format(
            one["error"]
        )
        return finding(
            "devices", text, "install the driver's tools for the training user", name, "warn"
        )
    if "Driver/library version mismatch" in one["error"]:
        remedy = (
            "the driver was updated under the running kernel module: restart the node, or load the"
            " module anew"
        )
    return finding("devices", "{}: {}".format(one["tool"], one["error"]), remedy, name)


def _busy(node, one):
    """Return what is said of processes on the devices, and of memory that no process explains."""
    found, seen = [], {item["device"] for item in one["processes"]}
    for item in one["processes"]:
        memory = "%d MiB" % item["memory"] if item["memory"] is not None else "memory unknown"
        who = (
            "of the run {}".format(item["run"])
            if item["run"]
            else "of %s" % (item["user"] or "somebody who cannot be seen from here")
        )
        text = "device %s is in use: pid %d %s, %s: %s" % (
            item["device"],
            item["pid"],
            who,
            memory,
            item["command"],
        )
        if item["device"] is not None and item["device"] not in node["devices"]:
            found.append(
                finding("devices", text + "; the job does not take it", "", node["name"], "note")
            )
            continue
        remedy = (
            "it is left alone; wait for it, ask its owner, or take other devices"
            " (trainyard_devices: [ids])"
        )
        if item["run"]:
            remedy = "playbooks/stop.yml -e run={} ends it".format(item["run"])
        found.append(finding("devices", text, remedy, node["name"]))
    for device in one["devices"]:
        # An idle Ascend device shows some 3 GiB in use.
        if (
            one["kind"] == "gpu"
            and device["index"] in node["devices"]
            and device["index"] not in seen
            and (device["memory_used"] or 0) > IDLE_MIB
        ):
            text = "device %s has %d MiB in use and no process that can be seen" % (
                device["index"],
                device["memory_used"],
            )
            remedy = (
                "a process of another container or a dead one can hold it: fuser -v /dev/nvidia{}"
                " as root shows it".format(device["index"])
            )
            found.append(finding("devices", text, remedy, node["name"], "warn"))
    return found


def _health(name, device, one, levels):
    """Return what is said of one device that the job takes."""
    found, which = [], "device {} ({})".format(device["index"], device["name"])
    if device.get("health") not in (None, "OK"):
        found.append(
            finding(
                "devices",
                "{}: health is {}".format(which, device["health"]),
                "npu-smi info -t health -i ID names the fault",
                name,
            )
        )
    for fault in device.get("faults") or ():
        level = "warn" if fault == "[Unknown Error]" else "stop"
        remedy = (
            "restart the node, or let root reset the device: nvidia-smi --gpu-reset -i %s; take it"
            " out of trainyard_devices until then"
        )
        found.append(
            finding(
                "devices",
                f"{which}: nvidia-smi says {fault}",
                remedy % device["index"],
                name,
                level,
            )
        )
    if device["ecc_uncorrected"]:
        # The counter starts anew with a reset, so the fault has not been dealt with since; what
        # computes there can be killed or wrong.
        text = "%s: %d memory errors that ECC could not correct since the last reset" % (
            which,
            device["ecc_uncorrected"],
        )
        remedy = (
            "let root drain and reset it (nvidia-smi --gpu-reset -i %s) or take other devices; to"
            " go on: preflight_devices: {ecc: warn}"
        )
        found.append(finding("ecc", text, remedy % device["index"], name, levels["ecc"]))
    if device["rows_pending"] == "Yes":
        remedy = "nvidia-smi --gpu-reset -i {} as root, when nothing runs there".format(
            device["index"]
        )
        found.append(
            finding(
                "ecc",
                f"{which}: memory rows wait for a reset to be replaced",
                remedy,
                name,
                "warn",
            )
        )
    slowed = [text for bit, text in sorted(SLOWED.items()) if (device["throttle"] or 0) & bit]
    if slowed:
        remedy = "look at cooling and power supply; nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {}".format(
            device["index"]
        )
        found.append(
            finding(
                "throttle",
                "{} is slowed down: {}".format(which, ", ".join(slowed)),
                remedy,
                name,
                "warn",
            )
        )
    if device["width"] and device["width_max"] and device["width"] < device["width_max"]:
        text = "%s: PCIe link x%d of x%d" % (which, device["width"], device["width_max"])
        remedy = (
            "an idle device may narrow it: look again under load (nvidia-smi -q -d PCIE); else seat"
            " card or riser anew"
        )
        found.append(finding("link", text, remedy, name, "warn"))
    if device["mig"] == "Enabled":
        remedy = (
            "a rank sees one part of it at most; nvidia-smi -i {} -mig 0 as root gives it back"
            " whole".format(device["index"])
        )
        found.append(finding("devices", f"{which} is divided (MIG)", remedy, name, "note"))
    return found
