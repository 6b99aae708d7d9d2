# SPDX-License-Identifier: Apache-2.0
"""The room on a node: disks, memory, processors, and the limits of a unit.

`places` reads on the node, the rest is pure.
"""

from __future__ import annotations

import os

from ..base.findings import finding

MIB = 2**20
UNLIMITED = -1
# Folders that the product writes below its directory; each may be a file system of its own.
FOLDERS = ("", "env", "code", "data", "weights", "checkpoints", "runs")


def places(base, others):
    """Return an entry per file system of the product's folders and of others.

    An entry is {path, free, size (bytes), inodes_free, inodes, read_only, writable}.
    """
    result, devices = [], set()
    for path in [os.path.join(base, name).rstrip("/") for name in FOLDERS] + others:
        # not there yet: the directory that will hold it
        while not os.path.exists(path) and os.path.dirname(path) != path:
            path = os.path.dirname(path)
        device = os.stat(path).st_dev
        if device in devices:
            continue
        devices.add(device)
        status = os.statvfs(path)
        result.append(
            {
                "path": path,
                "free": status.f_bavail * status.f_frsize,
                "size": status.f_blocks * status.f_frsize,
                "inodes_free": status.f_favail,
                "inodes": status.f_files,
                "read_only": bool(status.f_flag & os.ST_RDONLY),
                "writable": os.access(path, os.W_OK),
            }
        )
    return result


def floored(code, name, have, floors, text, remedy):
    """Return a finding where `have` is below a floor, or none.

    code: of the finding. name: of the node. floors: {stop, warn}, each of which may be missing.
    text: of the finding, without the floor.
    """
    for level in ("stop", "warn"):
        floor = float((floors or {}).get(level) or 0)
        if have is not None and have < floor:
            text = f"{text}; wanted at least {int(floor)}"
            return [finding(code, text, remedy, name, level)]
    return []


def space(name, machine, allowed):
    """Return findings about disks, inodes and shared memory."""
    findings = []
    for place in machine["places"]:
        findings += _disk_findings(name, place, allowed)
    shm = machine.get("shm")
    if shm:
        free = shm["free"] // MIB
        text = (
            f"/dev/shm, in which data loaders hand batches over, has {int(free)} MiB free of"
            f" {int(shm['size'] // MIB)}"
        )
        remedy = (
            "as root: mount -o remount,size=8G /dev/shm; a container: --shm-size=8g; left-overs of"
            " dead runs: ls -l /dev/shm"
        )
        findings += floored("shm.full", name, free, allowed.get("shm_mib"), text, remedy)
    return findings


def _disk_findings(name, place, allowed):
    """Return findings about one file system of a node, as `places` describes it."""
    path = place["path"]
    if place["read_only"]:
        text = f"{path} is on a file system that is mounted read-only"
        remedy = (
            f"as root: mount -o remount,rw $(findmnt -nT {path} -o TARGET); look into dmesg first"
        )
        return [finding("disk.read_only", text, remedy, name)]
    if not place["writable"]:
        text = f"{path} cannot be written by the training user"
        return [finding("disk.not_writable", text, f"ls -ld {path}", name)]
    floors = allowed.get("disk_mib")
    if path == "/tmp":
        floors = allowed.get("tmp_mib")
    free = place["free"] // MIB
    text = f"{path} has {int(free)} MiB free of {int(place['size'] // MIB)}"
    remedy = f"look: du -xh --max-depth=2 {path} | sort -h | tail"
    findings = floored("disk.full", name, free, floors, text, remedy)
    if place["inodes"]:  # btrfs and some network file systems have no fixed number
        text = f"{path} has {int(place['inodes_free'])} inodes free of {int(place['inodes'])}"
        remedy = f"remove many small files; look: df -i {path}"
        floors = allowed.get("inodes")
        findings += floored("inodes.exhausted", name, place["inodes_free"], floors, text, remedy)
    return findings


def unit(node, fact, allowed):
    """Return findings about a unit's limits, memory and processors."""
    name, state = node["name"], fact["machines"]
    inside = state["unit"]
    if "error" in inside:
        if "a running systemd user manager" in fact.get("missing", ()):
            return []  # reported once, by the findings of readiness
        return [_unit_failure(name, fact)]
    remedy = "ansible-playbook playbooks/provision.yml raises it where the node may"
    findings = memlock(node, state, allowed.get("memlock"), remedy)
    for key, value, label in (
        ("nofile", inside["nofile"][0], "open files"),
        ("tasks", inside["tasks"], "more processes and threads"),
    ):
        if value != UNLIMITED:
            text = f"a unit of {fact['user']} may have {int(value)} {label}"
            floors = {"stop": allowed.get(key)}
            findings += floored("limits.too_low", name, value, floors, text, remedy)
    findings += _memory_findings(node, state, allowed.get("memory_mib"))
    return findings + _core_findings(node, fact, allowed.get("rank_cores") or {})


def _unit_failure(name, fact):
    """Return the finding of a node that cannot run a unit of the training user."""
    state = fact["machines"]
    text = f"a unit of {fact['user']} does not run, so no attempt would: {state['unit']['error']}"
    remedy = (
        "on the node: systemctl --user status; ansible-playbook playbooks/provision.yml sets it up"
    )
    if state["selinux"]:
        remedy += "; SELinux is enforcing there: as root, ausearch -m avc -ts recent"
    return finding("unit.does_not_run", text, remedy, name)


def _memory_findings(node, state, floors):
    """Return findings about the memory for the ranks. floors: MiB per rank."""
    ranks = len(node["devices"])
    amounts = [value for value in (state["memory"], state["unit"]["memory"]) if value is not None]
    if not amounts or not floors:
        return []
    free = min(amounts) // MIB
    text = f"{int(free)} MiB of memory are left for {ranks} rank"
    if ranks > 1:
        text += "s"
    floors = {level: float(floor) * ranks for level, floor in floors.items()}
    remedy = "look: ps -eo rss,user,comm --sort=-rss | head; or fewer devices a node"
    return floored("memory.low", node["name"], free, floors, text, remedy)


def _core_findings(node, fact, rank_cores):
    """Return findings about processors. rank_cores: {accelerator: number per rank}."""
    ranks = len(node["devices"])
    cores = fact["cores"]
    if fact["machines"]["unit"]["cores"]:
        cores = min(cores, fact["machines"]["unit"]["cores"])
    needed = float(rank_cores.get(node["accelerator"]) or 0) * ranks
    if cores >= needed:
        return []
    text = (
        f"{cores:g} processors for {ranks} ranks and their data loaders; wanted at least"
        f" {needed:g}: ranks that wait for each other spin"
    )
    remedy = "fewer devices a node (-e devices=N), or a node with more processors"
    return [finding("cores.few", text, remedy, node["name"], "warn")]


def memlock(node, machine, floor, remedy):
    """Return a finding about locked memory.

    RDMA registers its buffers in it: with a RDMA device and a limit, NCCL ends with "ibv_reg_mr
    failed" or the like (NCCL user guide, troubleshooting). So floor 'auto' demands no limit there,
    and warns where an accelerator may get one. A number or 'infinity' is demanded of all.
    """
    limit = machine["unit"]["memlock"][0]
    level = "stop"
    if str(floor) == "auto":
        if node["accelerator"] == "cpu":
            return []
        floor = "infinity"
        if not machine["rdma"]:
            level = "warn"
    if floor is None or limit == UNLIMITED:
        return []
    demand = "no limit"
    if str(floor) != "infinity":
        if limit >= int(floor):
            return []
        demand = f"{floor} bytes"
    text = f"a unit may lock {int(limit // 1024)} KiB of memory; wanted {demand}: RDMA needs it"
    if machine["rdma"]:
        text += f" ({', '.join(machine['rdma'][:4])})"
    return [finding("limits.locked_memory", text, remedy, node["name"], level)]
