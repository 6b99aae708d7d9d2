# SPDX-License-Identifier: Apache-2.0
"""The links of a node's GPUs: NVSwitch fabric, peer-to-peer, and RDMA adapters.

Not run on such hardware. Sources: NVIDIA's nvml.h (nvmlGpuFabricState_t) and the query field
fabric.state for the words of the fabric; the Fabric Manager User Guide for the service; NCCL's
troubleshooting guide (PCI access control) for the IOMMU; NVIDIA/nccl-tests issue 117 for GPUs
without peer-to-peer; the kernel's Documentation/ABI/stable/sysfs-class-infiniband for adapters.
"""

from __future__ import annotations

import glob
import os
import re

from ..base.files import read_text
from ..base.findings import finding

# Tests lay out a directory of their own.
ROOT = "/"
SERVICE = "nvidia-fabricmanager"
SERVICE_LIMIT_S = 5
# States in which CUDA answers with error 802. N/A and Not Supported mean a GPU without a fabric.
NOT_READY = ("Not Started", "In Progress")
# A stopped service. Others (activating, reloading) change at any moment.
STOPPED = ("inactive", "failed")
# Bounds of what is read of adapters. A port of a usual adapter has 16 to 256 GIDs.
MOST_ADAPTERS = 64
MOST_PORTS = 4
MOST_GIDS = 256
_ATTRIBUTE = 128
_IOMMU = re.compile(r"(?:intel_iommu|amd_iommu|iommu|iommu\.passthrough)=[A-Za-z0-9_,.-]{1,64}\Z")
_GID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){7}\Z")
# The driver offers them no peer-to-peer. The 3090 is left out: with a bridge it has it.
_NO_PEERS = re.compile(r"\bGeForce RTX 40[0-9]{2}\b")


def look(run, root=None):
    """Return {iommu, fabric_manager, adapters} of a node with GPUs.

    iommu: words of the kernel's command line. fabric_manager: the service's state where the node
    has an NVSwitch and the service, else ''. adapters: see read_adapters.
    """
    root = root or ROOT
    words = read_text(os.path.join(root, "proc/cmdline"), 4096).split()
    return {
        "iommu": [word for word in words if _IOMMU.match(word)][:8],
        "fabric_manager": _service_state(run, root),
        "adapters": read_adapters(os.path.join(root, "sys/class/infiniband")),
    }


def _service_state(run, root):
    """Return the state of the fabric manager's service, '' where it is not known."""
    if not glob.glob(os.path.join(root, "dev/nvidia-nvswitch[0-9]*")):
        return ""
    code, out, _err = run(
        ["timeout", str(SERVICE_LIMIT_S), "systemctl", "show", SERVICE]
        + ["--property=LoadState", "--property=ActiveState"]
    )
    values = dict(line.partition("=")[::2] for line in out.splitlines())
    state = values.get("ActiveState", "")
    if code or values.get("LoadState") != "loaded" or not re.match(r"[a-z-]{1,32}\Z", state):
        return ""
    return state


def read_adapters(folder):
    """Return [{name, port, state, link_layer, listed, gids}] of the RDMA ports.

    listed: the number of entries of the port's table of GIDs. gids: {index: {gid, type, ndev}} of
    those that hold one.
    """
    rows = []
    for name in _entries(folder)[:MOST_ADAPTERS]:
        ports = os.path.join(folder, name, "ports")
        for port in _entries(ports)[:MOST_PORTS]:
            path = os.path.join(ports, port)
            row = {"name": name, "port": port}
            for key in ("state", "link_layer"):
                row[key] = _attribute(os.path.join(path, key))
            rows.append(dict(row, **_read_gids(path)))
    return rows


def _read_gids(path):
    """Return {listed, gids} of a port's directory."""
    indexes = sorted(int(name) for name in _entries(os.path.join(path, "gids")) if name.isdigit())
    gids = {}
    for index in indexes[:MOST_GIDS]:
        gid = _attribute(os.path.join(path, "gids", str(index)))
        if _GID.match(gid) and gid.strip("0:"):
            # The kernel refuses to read the attributes of an empty entry.
            gids[str(index)] = {
                "gid": gid,
                "type": _attribute(os.path.join(path, "gid_attrs", "types", str(index))),
                "ndev": _attribute(os.path.join(path, "gid_attrs", "ndevs", str(index))),
            }
    return {"listed": len(indexes), "gids": gids}


def _entries(folder):
    """Return the sorted names in a folder, [] where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _attribute(path):
    return read_text(path, _ATTRIBUTE).strip()


# --- on the controller


def judge_node(name, state, taken, level):
    """Return the findings about the links of one node's GPUs.

    state: of devices.look. taken: the devices that the job takes. level: of a fabric that is not
    ready.
    """
    fabrics = {device["index"]: fabric_state(device.get("fabric")) for device in taken}
    return _fabric_findings(name, state, fabrics, level) + _peer_findings(
        name, state, taken, fabrics
    )


def fabric_state(cell):
    """Return the state of a cell of fabric.state. Some releases begin it with its name."""
    return re.sub(r"\Astate\s+", "", cell or "")


def _fabric_findings(name, state, fabrics, level):
    """Return findings about the fabric. fabrics: {device index: state}."""
    remedy = (
        f"as root: systemctl enable --now {SERVICE} (of the driver's own version); right after a"
        " boot wait a minute; look: nvidia-smi -q | grep -A2 Fabric"
    )
    waiting = {index: text for index, text in fabrics.items() if text in NOT_READY}
    if waiting:
        devices = ", ".join(waiting)
        states = ", ".join(sorted(set(waiting.values())))
        text = (
            f"the NVSwitch fabric of device {devices} is {states}; wanted: Completed. Until then"
            " CUDA ends with error 802, system not yet initialized"
        )
        return [finding("devices.fabric_not_ready", text, remedy, name, level)]
    # Before Hopper a GPU does not say the state of its fabric.
    if fabrics and not any(fabrics.values()) and state.get("fabric_manager") in STOPPED:
        text = (
            f"the node has an NVSwitch, and its {SERVICE} is {state['fabric_manager']}; CUDA can"
            " end with error 802, system not yet initialized"
        )
        return [finding("devices.fabric_manager_stopped", text, remedy, name, "warn")]
    return []


def _peer_findings(name, state, taken, fabrics):
    """Return notes of what keeps the GPUs of one node from reaching each other directly."""
    findings = []
    if len(taken) < 2:
        return findings
    remedy = (
        "if the ranks of one node hang at their first step: NCCL_P2P_DISABLE=1 in the job's env"
    )
    words = state.get("iommu") or []
    joined = all(text == "Completed" for text in fabrics.values())
    if _translates(words) and not joined:
        text = (
            f"the kernel was started with {' '.join(words)}: an IOMMU that translates can slow down"
            " or hang traffic between GPUs over PCIe"
        )
        advice = f"{remedy}; for good: iommu=pt, or the IOMMU and ACS off in the firmware"
        findings.append(finding("devices.peers_through_iommu", text, advice, name, "note"))
    models = sorted({str(item["name"]) for item in taken if _NO_PEERS.search(str(item["name"]))})
    if models:
        text = f"{', '.join(models)}: the driver offers no peer-to-peer between these GPUs"
        findings.append(finding("devices.no_peers", text, remedy, name, "note"))
    return findings


def _translates(words):
    """Return whether words of the kernel's command line turn a translating IOMMU on."""
    options = {}
    for word in words:
        key, _equals, value = word.partition("=")
        options.setdefault(key, set()).update(value.split(","))
    turned_on = any("on" in options.get(key, ()) for key in ("intel_iommu", "amd_iommu"))
    passes = "pt" in options.get("iommu", ()) or "1" in options.get("iommu.passthrough", ())
    return turned_on and not passes
