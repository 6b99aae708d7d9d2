# SPDX-License-Identifier: Apache-2.0
"""What a node has room for: disks, shared memory, memory, processors, and the limits of a unit.
`places` reads on the node, the rest is pure.
"""

from __future__ import annotations

import os

from ..base.findings import finding

MIB = 2**20
UNLIMITED = -1
# What the product writes below its directory; each may be a file system of its own.
FOLDERS = ("", "env", "code", "data", "weights", "checkpoints", "runs")


def places(base, others):
    """Return [{path, free, size (bytes), inodes_free, inodes, read_only, writable}], one entry a
    file system, of what is written below base and of others.
    """
    found, seen = [], set()
    for path in [os.path.join(base, name).rstrip("/") for name in FOLDERS] + others:
        while (
            not os.path.exists(path) and os.path.dirname(path) != path
        ):  # not there yet: what will hold it
            path = os.path.dirname(path)
        device = os.stat(path).st_dev
        if device not in seen:
            seen.add(device)
            state = os.statvfs(path)
            found.append(
                {
                    "path": path,
                    "free": state.f_bavail * state.f_frsize,
                    "size": state.f_blocks * state.f_frsize,
                    "inodes_free": state.f_favail,
                    "inodes": state.f_files,
                    "read_only": bool(state.f_flag & os.ST_RDONLY),
                    "writable": os.access(path, os.W_OK),
                }
            )
    return found


def floored(check, name, have, floors, text, remedy):
    """Return a finding where `have` is below a floor, or none. floors: {stop, warn}, each of which
    may be missing. text: what was found.
    """
    for level in ("stop", "warn"):
        floor = float((floors or {}).get(level) or 0)
        if have is not None and have < floor:
            return [finding(check, "%s; wanted at least %d" % (text, floor), remedy, name, level)]
    return []


def space(name, own, allowed):
    """Return findings about disks, inodes and shared memory."""
    found = []
    for place in own["places"]:
        path, key = place["path"], "tmp_mib" if place["path"] == "/tmp" else "disk_mib"
        if place["read_only"] or not place["writable"]:
            why = (
                "is on a file system that is mounted read-only"
                if place["read_only"]
                else "cannot be written by the training user"
            )
            remedy = (
                f"as root: mount -o remount,rw $(findmnt -nT {path} -o TARGET); look into dmesg"
                " first"
                if place["read_only"]
                else f"ls -ld {path}"
            )
            found.append(finding("disk", f"{path} {why}", remedy, name))
            continue
        free = place["free"] // MIB
        text = "%s has %d MiB free of %d" % (path, free, place["size"] // MIB)
        found += floored(
            "disk",
            name,
            free,
            allowed.get(key),
            text,
            f"look: du -xh --max-depth=2 {path} | sort -h | tail",
        )
        if place["inodes"]:  # btrfs and some network file systems have no fixed number
            text = "%s has %d inodes free of %d" % (path, place["inodes_free"], place["inodes"])
            found += floored(
                "inodes",
                name,
                place["inodes_free"],
                allowed.get("inodes"),
                text,
                f"remove many small files; look: df -i {path}",
            )
    shm = own.get("shm")
    if shm:
        free = shm["free"] // MIB
        text = "/dev/shm, in which data loaders hand batches over, has %d MiB free of %d" % (
            free,
            shm["size"] // MIB,
        )
        remedy = (
            "as root: mount -o remount,size=8G /dev/shm; a container: --shm-size=8g; left-overs of"
            " dead runs: ls -l /dev/shm"
        )
        found += floored("shm", name, free, allowed.get("shm_mib"), text, remedy)
    return found


def unit(node, fact, allowed):
    """Return findings about what a unit of the training user may hold, and of memory and processors
    there.
    """
    name, own, ranks = node["name"], fact["machines"], len(node["devices"])
    inside = own["unit"]
    if "error" in inside:
        if "a running systemd user manager" in fact.get("missing", ()):
            return []  # said once, by what makes the node ready
        text = "a unit of {} does not run, so no attempt would: {}".format(
            fact["user"],
            inside["error"],
        )
        hint = (
            "; SELinux is enforcing there: as root, ausearch -m avc -ts recent"
            if own["selinux"]
            else ""
        )
        return [
            finding(
                "unit",
                text,
                f"on the node: systemctl --user status; playbooks/provision.yml sets it up{hint}",
                name,
            )
        ]
    provision = "playbooks/provision.yml raises it where the node may"
    found = memlock(node, own, allowed.get("memlock"), provision)
    for key, value, what in (
        ("nofile", inside["nofile"][0], "open files"),
        ("tasks", inside["tasks"], "more processes and threads"),
    ):
        text = "a unit of %s may have %d %s" % (fact["user"], value, what)
        found += floored(
            "limits",
            name,
            None if value == UNLIMITED else value,
            {"stop": allowed.get(key)},
            text,
            provision,
        )
    rooms = [value for value in (own["memory"], inside["memory"]) if value is not None]
    if rooms and allowed.get("memory_mib"):
        free = min(rooms) // MIB
        text = "%d MiB of memory are left for %d rank%s" % (free, ranks, "s" if ranks > 1 else "")
        floors = {level: float(floor) * ranks for level, floor in allowed["memory_mib"].items()}
        found += floored(
            "memory",
            name,
            free,
            floors,
            text,
            "look: ps -eo rss,user,comm --sort=-rss | head; or fewer devices a node",
        )
    cores = min([fact["cores"]] + [value for value in (inside["cores"],) if value])
    wanted = float((allowed.get("rank_cores") or {}).get(node["accelerator"]) or 0) * ranks
    if cores < wanted:
        text = (
            "%g processors for %d ranks and their data loaders; wanted at least %g: ranks that wait"
            " for each other spin"
            % (
                cores,
                ranks,
                wanted,
            )
        )
        found.append(
            finding(
                "cores",
                text,
                "fewer devices a node (-e devices=N), or a node with more processors",
                name,
                "warn",
            )
        )
    return found


def memlock(node, own, floor, remedy):
    """Return a finding about locked memory.

    RDMA registers its buffers in it: with a RDMA device and a limit, NCCL ends with "ibv_reg_mr
    failed" or the like (NCCL user guide, troubleshooting), so floor 'auto' asks for no limit there,
    and warns where an accelerator may get one. A number or 'infinity' is asked of all.
    """
    have = own["unit"]["memlock"][0]
    level = "stop"
    if str(floor) == "auto":
        if node["accelerator"] == "cpu":
            return []
        floor, level = "infinity", "stop" if own["rdma"] else "warn"
    if floor is None or have == UNLIMITED or (str(floor) != "infinity" and have >= int(floor)):
        return []
    text = "a unit may lock %d KiB of memory; wanted %s: RDMA needs it" % (
        have // 1024,
        "no limit" if str(floor) == "infinity" else f"{floor} bytes",
    )
    return [
        finding(
            "limits",
            text + (" ({})".format(", ".join(own["rdma"][:4])) if own["rdma"] else ""),
            remedy,
            node["name"],
            level,
        )
    ]
