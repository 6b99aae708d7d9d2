# SPDX-License-Identifier: Apache-2.0
"""The machines themselves: which they are, names, clocks, and what stands in the way. `look` reads
on the node, `judge` is pure.
"""

from __future__ import annotations

import glob
import hashlib
import ipaddress
import os
import platform

from ..base import unit_limits
from ..base.findings import finding, named, unequal
from . import capacity, openssh, rsync

# Locks of dpkg, apt, rpm and dnf 5, held by fcntl() or flock(), and files in which yum, dnf and
# zypper write who they are.
LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
    "/var/lib/rpm/.rpm.lock",
    "/usr/lib/sysimage/rpm/.rpm.lock",
    "/run/dnf/rpmtransaction.lock",
)
HOLDERS = (
    "/run/yum.pid",
    "/run/zypp.pid",
    "/var/cache/dnf/metadata_lock.pid",
    "/var/lib/dnf/rpmdb_lock.pid",
)
# MindSpore counts the ranks of a machine by host name (mindspore/ccsrc,
# CollectiveManager::AssignLocalRank: "The host names of different physical machine should not be
# the same"); the Paddle launchers go by POD_IP, gloo and NCCL by the interface (facts 3 and 4).
BY_HOST_NAME = ("msrun", "mpirun")


def look(run, base, asked):
    """Return what this node shows of itself. Nothing is asked of it that its training user may not
    read.
    """
    shown = unit_limits.text_of
    return {
        "identity": identity(),
        "kernel": platform.release(),
        "system": next(
            (
                row[12:].strip("\"'")
                for row in shown("/etc/os-release").splitlines()
                if row.startswith("PRETTY_NAME=")
            ),
            "",
        ),
        "places": capacity.places(base, ["/tmp"]),
        "shm": (capacity.places("/dev/shm", []) or [None])[0],
        "memory": next(
            (
                int(row.split()[1]) * 1024
                for row in shown("/proc/meminfo").splitlines()
                if row.startswith("MemAvailable:")
            ),
            None,
        ),
        "unit": unit_limits.in_unit(run),
        "rdma": (
            sorted(os.listdir("/sys/class/infiniband"))
            if os.path.isdir("/sys/class/infiniband")
            else []
        ),
        "selinux": shown("/sys/fs/selinux/enforce").strip() == "1",
        "locks": locks(),
        "sshd": openssh.look(),
        "rsync": rsync.look(),
    }


def identity():
    """Return what tells this machine from others.

    kernel: the boot id with the namespaces of processes and network, so that containers of one host
    are machines of their own, whose boot ids are the host's. macs: hardware addresses of the
    interfaces. machine_id: a digest, since the id itself is confidential (machine-id(5)).
    """
    spaces = [
        os.readlink("/proc/self/ns/" + name)
        for name in ("pid", "net")
        if os.path.exists("/proc/self/ns/" + name)
    ]
    macs = {unit_limits.text_of(path).strip() for path in glob.glob("/sys/class/net/*/address")}
    number = unit_limits.text_of("/etc/machine-id").strip()
    return {
        "kernel": " ".join(
            [unit_limits.text_of("/proc/sys/kernel/random/boot_id").strip()] + spaces
        ),
        "macs": sorted(mac for mac in macs if mac.strip("0:")),
        "machine_id": hashlib.sha256(number.encode()).hexdigest()[:16] if number else "",
    }


def locks(paths=LOCKS, holders=HOLDERS, table=None):
    """Return [{path, pid, command}] of package managers at work. /proc/locks and the inode need no
    root, opening the lock would.
    """
    rows = [
        row.split()
        for row in (unit_limits.text_of("/proc/locks") if table is None else table).splitlines()
    ]
    # "1: POSIX  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"; a waiting one has "->" in between, an open
    # file description's has no pid (-1).
    held = {
        words[5].rpartition(":")[2]: int(words[4])
        for words in rows
        if len(words) == 8 and words[4].lstrip("-").isdigit()
    }
    found = []
    for path in paths:
        inode = str(os.stat(path).st_ino) if os.path.exists(path) else ""
        if inode in held:
            found.append((path, held[inode]))
    for path in holders:
        pid = unit_limits.text_of(path).strip()
        if pid.isdigit() and os.path.exists("/proc/" + pid):
            found.append((path, int(pid)))
    return [
        {"path": path, "pid": pid, "command": unit_limits.text_of("/proc/%d/comm" % pid).strip()}
        for path, pid in found
    ]


def judge(nodes, facts, allowed):
    """Return findings about machines. allowed: see roles/preflight/defaults/main.yml; a floor that
    is not given is not asked.
    """
    nodes = [node for node in nodes if facts[node["name"]].get("machines")]
    facts = {node["name"]: facts[node["name"]] for node in nodes}
    found, twins = same_machine(facts)
    found += host_names(facts, twins, allowed.get("launcher"))
    found += own_name(nodes, facts) + clocks(facts, allowed)
    for node in nodes:
        own = facts[node["name"]]["machines"]
        found += capacity.space(node["name"], own, allowed)
        found += capacity.unit(node, facts[node["name"]], allowed)
        found += in_the_way(node["name"], own)
        unsafe = openssh.problem(own.get("sshd"))
        found += [finding("sshd", *unsafe, node["name"], "warn")] if unsafe else []
        unsafe = rsync.problem(own.get("rsync", {}))
        found += [finding("rsync", *unsafe, node["name"], "warn")] if unsafe else []
    for key, what in (("system", "the operating system"), ("kernel", "the kernel")):
        values = {name: fact["machines"][key] for name, fact in facts.items()}
        found += unequal("system", what, values, level="note")
    return found


def grouped(facts, key):
    """Return [(value, names)] of the values that several nodes have; key(fact) gives one, or
    something empty.
    """
    groups = {}
    for name, fact in facts.items():
        if key(fact):
            groups.setdefault(key(fact), []).append(name)
    return [(value, names) for value, names in groups.items() if len(names) > 1]


def same_machine(facts):
    """Return (findings, names of nodes that another node is).

    One kernel with the same namespaces and the same interfaces is one machine. A machine id alone
    proves nothing: clones of one image share it, and a virtual machine that goes on from another's
    snapshot even its boot id, but not its interfaces.
    """
    found, twins = [], set()
    for _value, names in grouped(
        facts, lambda fact: str([fact["machines"]["identity"][key] for key in ("kernel", "macs")])
    ):
        text = (
            f"{named(names)} are one machine (kernel, namespaces and interfaces are the same);"
            " every node has to be a machine of its own"
        )
        found.append(
            finding(
                "machine",
                text,
                "take all of these names but one out of the inventory, or correct ansible_host",
                names,
            )
        )
        twins.update(names[1:])
    others = {name: fact for name, fact in facts.items() if name not in twins}
    for _value, names in grouped(others, lambda fact: fact["machines"]["identity"]["machine_id"]):
        text = (
            f"{named(names)} have one machine-id, though they are different machines: clones of one"
            " image, which DHCP may give one address"
        )
        remedy = (
            "as root on all but one: rm /etc/machine-id /var/lib/dbus/machine-id;"
            " systemd-machine-id-setup; reboot"
        )
        found.append(finding("machine", text, remedy, names, "warn"))
    return found, twins


def host_names(facts, twins, launcher):
    """Return a finding for every host name that several machines have."""
    others = {name: fact for name, fact in facts.items() if name not in twins}
    found = []
    for value, names in grouped(others, lambda fact: fact["hostname"]):
        stops = launcher in BY_HOST_NAME
        why = (
            "MindSpore counts a machine's ranks by it"
            if stops
            else "the plan goes by addresses, but logs and monitoring cannot tell them apart"
        )
        text = f"the host name of {named(names)} is {value} on each; wanted: one of its own ({why})"
        remedy = "as root on all but one: hostnamectl set-hostname NAME, and NAME in /etc/hosts"
        found.append(finding("name", text, remedy, names, "stop" if stops else "warn"))
    return found


def own_name(nodes, facts):
    """Return findings about what a node's own name leads to.

    Only a warning: the plan gives POD_IP and GLOO_SOCKET_IFNAME, which cure it (facts 3 and 4,
    measured); the one launcher that still asks the name, fleetrun's legacy one, is refused by the
    plan itself. Of a single node nobody else asks.
    """
    if len(nodes) < 2:
        return []
    owner = {
        item["address"]: name
        for name, fact in facts.items()
        for item in fact["addresses"]
        if not _loopback(item["address"])
    }
    found = []
    for node in nodes:
        name, fact = node["name"], facts[node["name"]]
        asked, wanted = (
            fact.get("resolves_to") or [],
            [item["address"] for item in fact["addresses"] if not _loopback(item["address"])],
        )
        loop = [address for address in asked if _loopback(address)]
        foreign = [address for address in asked if not _loopback(address) and address not in wanted]
        there = node.get("address") if node.get("address") in wanted else (wanted or ["ADDRESS"])[0]
        remedy = "in its /etc/hosts take %s off the line of %s and write: %s %s"
        if loop:
            text = (
                "its own name %s resolves to %s, where no other node is; wanted: %s. The plan names"
                " address and interface itself"
            )
            text = text % (fact["hostname"], loop[0], there)
            remedy = remedy % (fact["hostname"], loop[0], there, fact["hostname"])
        elif foreign:
            text = "its own name %s resolves to %s, which is %s; wanted: %s"
            text = text % (
                fact["hostname"],
                foreign[0],
                owner.get(foreign[0], "no address of its own"),
                there,
            )
            remedy = remedy % (fact["hostname"], foreign[0], there, fact["hostname"])
        elif not asked:
            text = "its own name {} resolves to nothing; wanted: {}".format(fact["hostname"], there)
            remedy = "write into its /etc/hosts: {} {}".format(there, fact["hostname"])
        else:
            continue
        found.append(finding("name", text, remedy, name, "warn"))
    return found


def _loopback(address):
    return ipaddress.ip_address(address).is_loopback


def offset(fact):
    """Return (least, most): between what the node's clock is ahead of the controller's, in seconds;
    None where it was not asked.

    The node's first look at its clock came after the controller had sent the probe, its last one
    before the answer was there.
    """
    if not all(fact.get(key) is not None for key in ("sent", "received", "time", "ended")):
        return None
    return fact["ended"] - fact["received"], fact["time"] - fact["sent"]


def clocks(facts, allowed):
    """Return findings about clocks: only what the time that the probe took cannot explain."""
    floors = allowed.get("clock_seconds") or {}
    spans = {name: offset(fact) for name, fact in facts.items() if offset(fact)}
    found = []
    for name, (least, most) in spans.items():
        off = least if least > 0 else most if most < 0 else 0
        level = next(
            (
                each
                for each in ("stop", "warn")
                if floors.get(each) and abs(off) > float(floors[each])
            ),
            None,
        )
        if not level:
            continue
        text = "its clock is {} {} the controller's; allowed {} s. ".format(
            said(abs(off)),
            "ahead of" if off > 0 else "behind",
            floors[level],
        )
        text += "Certificates and the times of logs and files depend on it"
        # (several nodes that are all off by the same are no proof, but a hint that saves an hour)
        if len(spans) > 1 and all(
            low > 0 and off > 0 or high < 0 and off < 0 for low, high in spans.values()
        ):
            text += (
                "; all nodes are off the same way, so the controller's own clock may be the"
                " wrong one"
            )
        found.append(
            finding(
                "clock",
                text,
                "as root: timedatectl set-ntp true, or start the site's NTP service; look:"
                " timedatectl",
                name,
                level,
            )
        )
    return found


def said(seconds):
    """Return a time span in words."""
    return "%d min" % round(seconds / 60) if seconds >= 120 else f"{seconds:.1f} s"


def in_the_way(name, own):
    """Return what may stand in the way: package managers at work, and a label that confines
    attempts.
    """
    found = []
    for lock in own["locks"]:
        text = (
            "a package manager is at work: %s (pid %d) holds %s; provision.yml would wait for it"
            % (
                lock["command"] or "somebody",
                lock["pid"],
                lock["path"],
            )
        )
        found.append(
            finding(
                "packages",
                text,
                "wait for it to end; it matters to provision.yml only",
                name,
                "warn",
            )
        )
    label = own["unit"].get("confined", "")
    selinux = label.split(":")[2] if label.count(":") >= 2 else ""
    if label.endswith("(enforce)") or (
        own["selinux"] and selinux and not selinux.startswith("unconfined")
    ):
        found.append(
            finding(
                "security", f"attempts run confined as {label}; they do start", "", name, "note"
            )
        )
    return found
