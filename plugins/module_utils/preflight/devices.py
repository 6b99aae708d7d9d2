# SPDX-License-Identifier: Apache-2.0
"""The accelerators of a node: their number, models, health and users.

On `gpu` nodes nvidia-smi describes them, on `ascend` nodes npu-smi if installed.

Sources: `nvidia-smi --help-query-gpu` and `--help-query-compute-apps` for the fields; NVIDIA's
nvml.h (nvmlClocksEventReasons) for the bits of the throttle mask; published outputs for the words
of values that a device does not have. npu-smi was never run on hardware here. See npu_smi.py.
"""

from __future__ import annotations

import re

from ..base import processes
from ..base.findings import finding, unequal
from ..base.sanitize import printable
from . import gpu_links, npu_smi

# A device that has fallen off the bus can block the tool for long. Without persistence mode a
# healthy one takes seconds to wake.
LIMIT_S = 20
# Fact -> names of its field, the newest first. A name that a driver does not know makes nvidia-smi
# refuse the whole query.
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
    "fabric": ["fabric.state"],
}
_NUMBERS = ("memory_total", "memory_used", "ecc_uncorrected", "width", "width_max")
# Power cap, application clocks and idleness are left out: a healthy device has them, too.
SLOWED = {
    0x8: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}
_UNKNOWN_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_CUDA = re.compile(r"CUDA (?:UMD )?Version\s*:\s*([0-9]+\.[0-9]+)")
# MiB of a device that counts as free: an abandoned context, or the driver's own memory.
IDLE_MIB = 1024
# Contents of a cell that name a fault, and not only a missing value.
FAULTS = ("[GPU requires reset]", "[GPU is lost]", "[Unknown Error]")
# The level of a difference or a fault (preflight_devices).
LEVELS = {"model": "stop", "driver": "warn", "ecc": "stop", "fabric": "stop", "cuda": "stop"}


def look(run, base, questions):
    """Return {kind, error, tool, devices, processes} of the node's devices.

    See ask_nvidia and npu_smi.ask for the fields. On `gpu` nodes gpu_links.look adds the links.
    questions["accelerator"]: the site's kind.
    """
    kind = questions.get("accelerator") or "cpu"
    if kind == "gpu":
        return dict(ask_nvidia(run), kind=kind, **gpu_links.look(run))
    if kind == "ascend":
        return dict(npu_smi.ask(run), kind=kind)
    return {"kind": kind, "tool": "", "error": "", "devices": [], "processes": []}


def ask_nvidia(run):
    """Return {tool, error, cuda, devices, processes} as nvidia-smi says.

    devices: [{index, uuid, name, driver, memory_total (MiB), memory_used, ecc_uncorrected,
    rows_pending, throttle, width, width_max, mig, fabric}]; None stands for what a device or its
    driver does not report. processes: [{device (index), memory (MiB)} and processes.describe].
    error: the tool's own words.
    """
    result = {"tool": "nvidia-smi", "error": "", "cuda": None, "devices": [], "processes": []}
    facts, (code, out, err) = _query_devices(run)
    if code == 0:
        result["devices"] = devices_of(out, facts)
    if not result["devices"]:
        result["error"] = _failure_reason(code, out, err)
        return result
    code, out, err = run(
        _smi(
            "--query-compute-apps=gpu_uuid,pid,process_name,used_memory",
            "--format=csv,noheader,nounits",
        )
    )
    if code:
        result["error"] = _failure_reason(code, out, err)
        return result
    indexes = {item["uuid"]: item["index"] for item in result["devices"]}
    for item in apps_of(out):
        result["processes"].append(dict(item, device=indexes.get(item.pop("uuid"))))
    code, out, _err = run(_smi())
    match = _CUDA.search(out)
    if code == 0 and match:
        result["cuda"] = match.group(1)
    return result


def _query_devices(run_command):
    """Return (facts, (code, out, err)) of the query for FIELDS.

    A field that the driver does not know is left out, or has its older name.
    """
    names_of = {fact: list(names) for fact, names in FIELDS.items()}
    while True:
        fields = {fact: names[0] for fact, names in names_of.items() if names}
        answer = run_command(
            _smi("--query-gpu=" + ",".join(fields.values()), "--format=csv,noheader,nounits")
        )
        unknown = _UNKNOWN_FIELD.search(answer[1] + answer[2])
        if not unknown or unknown.group(1) not in fields.values():
            return list(fields), answer
        for names in names_of.values():
            if names and names[0] == unknown.group(1):
                names.pop(0)


def _smi(*words):
    return ["timeout", str(LIMIT_S), "nvidia-smi"] + list(words)


def _failure_reason(code, out, err):
    """Return why the tool gave nothing, in its own words where it has any."""
    message = printable(" ".join((out + " " + err).split()), limit=300)
    if code in (126, 127):
        return "it is not installed, or may not be run"
    if code == 124:
        return f"no answer within {LIMIT_S} s"
    return message or f"exit code {code} without a word"


def devices_of(text, facts):
    """Return the devices of a CSV without header and units.

    facts: the names of its columns. Rows of another length are ignored.
    """
    devices = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(facts) and cells[0].isdigit():
            devices.append(_read_device(dict(zip(facts, cells))))
    return devices


def _read_device(cells):
    """Return one device. cells: {fact: text}."""
    device = dict.fromkeys(FIELDS)
    device["faults"] = sorted({cell for cell in cells.values() if cell in FAULTS})
    for fact, cell in cells.items():
        if known(cell):
            device[fact] = printable(cell, limit=80)
    for fact in _NUMBERS:
        device[fact] = _number(device[fact] or "")
    throttle = device["throttle"] or ""
    device["throttle"] = None
    if re.match(r"0x[0-9a-fA-F]+\Z", throttle):
        device["throttle"] = int(throttle, 16)
    return device


def _number(text):
    """Return a whole number, or None where the text is not one."""
    if text.isdigit():
        return int(text)
    return None


def known(cell):
    """Return whether a cell holds a value.

    [N/A], N/A, [Not Supported], [Unknown Error], [GPU requires reset] and the like are not values.
    """
    return bool(cell) and cell not in ("N/A", "Not Supported") and not cell.startswith("[")


def apps_of(text):
    """Return [{uuid, pid, memory, ...describe}] of the compute processes.

    A name may hold commas, so each line is read from both ends.
    """
    apps = []
    for line in text.splitlines():
        head, _comma, tail = line.partition(",")
        pid, _comma, tail = tail.partition(",")
        name, _comma, memory = tail.rpartition(",")
        if not pid.strip().isdigit():
            continue
        # In a container the driver may report the host's pids, which are not visible here. Then
        # only the name is known.
        app = processes.describe(int(pid)) or dict.fromkeys(
            ("uid", "user", "age_s", "rss_mib", "run", "attempt")
        )
        app.update(uuid=head.strip(), pid=int(pid), memory=_number(memory.strip()))
        command = "unknown to the driver"
        if known(name.strip()):
            command = printable(name.strip(), limit=processes.COMMAND)
        app.setdefault("command", command)
        apps.append(app)
    return apps


def judge(nodes, facts, allowed):
    """Return findings. allowed["devices"] changes LEVELS."""
    levels = dict(LEVELS, **(allowed.get("devices") or {}))
    findings, models, counts, drivers, cudas = [], {}, {}, {}, {}
    for node in nodes:
        name = node["name"]
        state = facts[name].get("devices") or {}
        if state.get("kind", "cpu") == "cpu":
            continue
        if state["error"]:
            findings.append(_tool_finding(name, state))
            continue
        by_index = {item["index"]: item for item in state["devices"]}
        findings += _missing_devices(node, state["tool"], by_index)
        taken = [by_index[device] for device in node["devices"] if device in by_index]
        if taken:
            models[name] = ", ".join(sorted({_model(item) for item in taken}))
            drivers[name] = taken[0]["driver"]
        counts[name] = len(by_index)
        cudas[name] = state.get("cuda")
        findings += _use_findings(node, state)
        for device in taken:
            findings += _health_findings(name, device, levels)
        findings += gpu_links.judge_node(name, state, taken, levels["fabric"])
    return findings + _differences(models, counts, drivers, cudas, levels)


def _missing_devices(node, tool, by_index):
    """Return the finding of devices that the job takes and the tool does not show."""
    missing = [device for device in node["devices"] if device not in by_index]
    if not missing:
        return []
    text = (
        f"the job takes device {', '.join(missing)}; {tool} shows {len(by_index)}:"
        f" {', '.join(by_index) or 'none'}"
    )
    remedy = (
        "take fewer (-e devices=N, or the site's trainyard_devices), or find out why the"
        " driver has lost it (dmesg)"
    )
    return [finding("devices.missing", text, remedy, node["name"])]


def _differences(models, counts, drivers, cudas, levels):
    """Return findings of what differs between the nodes. models etc.: {node: value}."""
    findings = unequal(
        "devices.model_differs",
        "the model of the devices",
        models,
        "a gang is as fast as its slowest device; choose nodes of one kind",
        levels["model"],
    )
    remedy = "only those that the job names are used"
    findings += unequal("devices.count_differs", "the number of devices", counts, remedy, "warn")
    remedy = "bring all nodes to one driver; NCCL and CUDA take the oldest for all"
    for label, versions in (("the driver's version", drivers), ("the driver's CUDA", cudas)):
        versions = {name: version for name, version in versions.items() if version}
        findings += unequal("driver.version_differs", label, versions, remedy, levels["driver"])
    return findings


def _model(device):
    if device["memory_total"]:
        return f"{device['name']} with {device['memory_total']} MiB"
    return str(device["name"])


def _tool_finding(name, state):
    """Return the finding of a node whose tool gave no answer."""
    remedy = "fix the driver; without devices the site says trainyard_accelerator: cpu"
    tool, error = state["tool"], state["error"]
    if tool == "npu-smi" and "not installed" in error:
        text = f"npu-smi: {error}, so the devices' health and processes are not known"
        remedy = "install the driver's tools for the training user"
        return finding("devices.tool_missing", text, remedy, name, "warn")
    if "Driver/library version mismatch" in error:
        remedy = (
            "the driver was updated under the running kernel module: restart the node, or load the"
            " module anew"
        )
    return finding("devices.tool_failed", f"{tool}: {error}", remedy, name)


def _use_findings(node, state):
    """Return findings of processes on the devices, and of unexplained memory."""
    findings = [_process_finding(node, item) for item in state["processes"]]
    used = {item["device"] for item in state["processes"]}
    if state["kind"] != "gpu":  # an idle Ascend device shows some 3 GiB in use
        return findings
    for device in state["devices"]:
        index = device["index"]
        if index not in node["devices"] or index in used:
            continue
        if (device["memory_used"] or 0) > IDLE_MIB:
            text = (
                f"device {index} has {int(device['memory_used'])} MiB in use and no process that"
                " can be seen"
            )
            remedy = (
                "a process of another container or a dead one can hold it: fuser -v"
                f" /dev/nvidia{index} as root shows it"
            )
            findings.append(finding("devices.memory_held", text, remedy, node["name"], "warn"))
    return findings


def _process_finding(node, process):
    """Return the finding of one process on a device."""
    # int(): the gate lets fractions through.
    memory = "memory unknown"
    if process["memory"] is not None:
        memory = f"{int(process['memory'])} MiB"
    if process["run"]:
        owner = f"the run {process['run']}"
    else:
        owner = process["user"] or "a user that is not visible here"
    text = (
        f"device {process['device']} is in use: pid {int(process['pid'])} of {owner}, {memory}:"
        f" {process['command']}"
    )
    if process["device"] is not None and process["device"] not in node["devices"]:
        text += "; the job does not take it"
        return finding("devices.other_in_use", text, "", node["name"], "note")
    remedy = (
        "it is left alone; wait for it, ask its owner, or take other devices"
        " (trainyard_devices: [ids])"
    )
    if process["run"]:
        remedy = f"ansible-playbook playbooks/stop.yml -e run={process['run']} ends it"
    return finding("devices.in_use", text, remedy, node["name"])


def _health_findings(name, device, levels):
    """Return the findings of one device that the job takes. name: of the node."""
    findings, index = [], device["index"]
    label = f"device {index} ({device['name']})"

    def add_finding(code, text, remedy, level):
        findings.append(finding(code, text, remedy, name, level))

    if device.get("health") not in (None, "OK"):
        remedy = "npu-smi info -t health -i ID names the fault"
        add_finding("devices.unhealthy", f"{label}: health is {device['health']}", remedy, "stop")
    for fault in device.get("faults") or ():
        level = "stop"
        if fault == "[Unknown Error]":
            level = "warn"
        remedy = (
            f"restart the node, or let root reset the device: nvidia-smi --gpu-reset -i {index};"
            " take it out of trainyard_devices until then"
        )
        add_finding("devices.faulty", f"{label}: nvidia-smi says {fault}", remedy, level)
    if device["ecc_uncorrected"]:
        # The counter starts anew with a reset, so nothing has repaired the fault since. What
        # computes there can be killed or wrong.
        text = (
            f"{label}: {int(device['ecc_uncorrected'])} memory errors that ECC could not correct"
            " since the last reset"
        )
        remedy = (
            f"let root drain and reset it (nvidia-smi --gpu-reset -i {index}) or take other"
            " devices; to go on: preflight_devices: {ecc: warn}"
        )
        add_finding("ecc.uncorrected", text, remedy, levels["ecc"])
    if device["rows_pending"] == "Yes":
        remedy = f"nvidia-smi --gpu-reset -i {index} as root, when nothing runs there"
        add_finding(
            "ecc.rows_pending",
            f"{label}: memory rows wait for a reset to be replaced",
            remedy,
            "warn",
        )
    reasons = [text for bit, text in sorted(SLOWED.items()) if (device["throttle"] or 0) & bit]
    if reasons:
        remedy = (
            f"look at cooling and power supply; nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {index}"
        )
        add_finding(
            "throttle.slowed", f"{label} is slowed down: {', '.join(reasons)}", remedy, "warn"
        )
    width, full_width = device["width"], device["width_max"]
    if width and full_width and width < full_width:
        remedy = (
            "an idle device may narrow it: look again under load (nvidia-smi -q -d PCIE); else seat"
            " card or riser anew"
        )
        add_finding(
            "link.narrow", f"{label}: PCIe link x{int(width)} of x{int(full_width)}", remedy, "warn"
        )
    if device["mig"] == "Enabled":
        remedy = (
            f"a rank sees one part of it at most; nvidia-smi -i {index} -mig 0 as root gives it"
            " back whole"
        )
        add_finding("devices.divided", f"{label} is divided (MIG)", remedy, "note")
    return findings
