# SPDX-License-Identifier: Apache-2.0
"""The machines themselves: identity, names, clocks, and obstacles.

`look` reads on the node, `judge` is pure.
"""

from __future__ import annotations

import glob
import hashlib
import ipaddress
import os
import platform

from ..base import unit_limits
from ..base.files import read_text
from ..base.findings import finding, named, unequal
from ..base.interpreter import node_python
from . import capacity, openssh, rsync

# Locks of dpkg, apt, rpm and dnf 5, held by fcntl() or flock(), and files in which yum, dnf and
# zypper write their pid.
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


def look(run, base, questions):
    """Return what this node shows of itself, as its training user may read it."""
    read = read_text
    available = _value_of("MemAvailable:", read("/proc/meminfo"))
    memory, rdma = None, []
    if available:
        memory = int(available.split()[0]) * 1024  # /proc/meminfo has KiB
    if os.path.isdir("/sys/class/infiniband"):
        rdma = sorted(os.listdir("/sys/class/infiniband"))
    return {
        "identity": identity(),
        "kernel": platform.release(),
        "system": _value_of("PRETTY_NAME=", read("/etc/os-release")).strip("\"'"),
        "places": capacity.places(base, ["/tmp"]),
        "shm": (capacity.places("/dev/shm", []) or [None])[0],
        "memory": memory,
        "unit": unit_limits.in_unit(run, node_python()),
        "rdma": rdma,
        "selinux": read("/sys/fs/selinux/enforce").strip() == "1",
        "locks": locks(),
        "sshd": openssh.look(),
        "rsync": rsync.look(),
    }


def _value_of(key, text):
    """Return the rest of the first line that begins with a key, or an empty text."""
    for line in text.splitlines():
        if line.startswith(key):
            return line[len(key) :]
    return ""


def identity():
    """Return what distinguishes this machine from others.

    kernel: the boot id with the namespaces of processes and network, so that containers of one host
    are machines of their own, whose boot ids are the host's. macs: hardware addresses of the
    interfaces. machine_id: a digest, since the id itself is confidential (machine-id(5)).
    """
    paths = [f"/proc/self/ns/{name}" for name in ("pid", "net")]
    namespaces = [os.readlink(path) for path in paths if os.path.exists(path)]
    macs = {read_text(path).strip() for path in glob.glob("/sys/class/net/*/address")}
    machine_id = read_text("/etc/machine-id").strip()
    if machine_id:
        machine_id = hashlib.sha256(machine_id.encode()).hexdigest()[:16]
    boot_id = read_text("/proc/sys/kernel/random/boot_id").strip()
    return {
        "kernel": " ".join([boot_id] + namespaces),
        "macs": sorted(mac for mac in macs if mac.strip("0:")),
        "machine_id": machine_id,
    }


def locks(paths=LOCKS, holders=HOLDERS, table=None):
    """Return [{path, pid, command}] of package managers at work.

    /proc/locks and the inode need no root, opening the lock would.
    """
    if table is None:
        table = read_text("/proc/locks")
    # "1: POSIX  ADVISORY  WRITE 1234 fe:00:5678 0 EOF"; a waiting one has "->" in between, an open
    # file description's has no pid (-1).
    pid_of_inode = {}
    for line in table.splitlines():
        words = line.split()
        if len(words) == 8 and words[4].lstrip("-").isdigit():
            pid_of_inode[words[5].rpartition(":")[2]] = int(words[4])
    busy = []
    for path in paths:
        if os.path.exists(path):
            inode = str(os.stat(path).st_ino)
            if inode in pid_of_inode:
                busy.append((path, pid_of_inode[inode]))
    for path in holders:
        pid = read_text(path).strip()
        if pid.isdigit() and os.path.exists("/proc/" + pid):
            busy.append((path, int(pid)))
    return [
        {"path": path, "pid": pid, "command": read_text(f"/proc/{pid}/comm").strip()}
        for path, pid in busy
    ]


def judge(nodes, facts, allowed):
    """Return findings about machines.

    allowed: see roles/preflight/defaults/main.yml. A floor that is not given is not compared.
    """
    nodes = [node for node in nodes if facts[node["name"]].get("machines")]
    facts = {node["name"]: facts[node["name"]] for node in nodes}
    findings, twins = same_machine(facts)
    findings += host_names(facts, twins, allowed.get("launcher"))
    findings += own_name(nodes, facts) + clocks(facts, allowed)
    for node in nodes:
        name = node["name"]
        state = facts[name]["machines"]
        findings += capacity.space(name, state, allowed)
        findings += capacity.unit(node, facts[name], allowed)
        findings += in_the_way(name, state)
        problem = openssh.problem(state.get("sshd"))
        if problem:
            findings.append(finding("sshd.vulnerable", *problem, name, "warn"))
        problem = rsync.problem(state.get("rsync", {}))
        if problem:
            findings.append(finding("rsync.vulnerable", *problem, name, "warn"))
    for key, label in (("system", "the operating system"), ("kernel", "the kernel")):
        values = {name: fact["machines"][key] for name, fact in facts.items()}
        findings += unequal("system.differs", label, values, level="note")
    return findings


def grouped(facts, key):
    """Return [(value, names)] of the values that several nodes have.

    key(fact) gives a value. Nodes with an empty one are left out.
    """
    groups = {}
    for name, fact in facts.items():
        if key(fact):
            groups.setdefault(key(fact), []).append(name)
    return [(value, names) for value, names in groups.items() if len(names) > 1]


def same_machine(facts):
    """Return (findings, names of nodes that are the same machine as another node).

    One kernel with the same namespaces and the same interfaces is one machine. A machine id alone
    proves nothing: clones of one image share it. A virtual machine that goes on from another's
    snapshot shares even its boot id, but not its interfaces.
    """
    findings, twins = [], set()
    for _value, names in grouped(facts, _kernel_and_macs):
        text = (
            f"{named(names)} are one machine (kernel, namespaces and interfaces are the same);"
            " every node has to be a machine of its own"
        )
        remedy = "take all of these names but one out of the inventory, or correct ansible_host"
        findings.append(finding("machine.same", text, remedy, names))
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
        findings.append(finding("machine.cloned_id", text, remedy, names, "warn"))
    return findings, twins


def _kernel_and_macs(fact):
    identity_of = fact["machines"]["identity"]
    return str([identity_of["kernel"], identity_of["macs"]])


def host_names(facts, twins, launcher):
    """Return a finding for every host name that several machines have."""
    others = {name: fact for name, fact in facts.items() if name not in twins}
    level = "warn"
    reason = "the plan goes by addresses, but logs and monitoring cannot tell them apart"
    if launcher in BY_HOST_NAME:
        level, reason = "stop", "MindSpore counts a machine's ranks by it"
    findings = []
    for value, names in grouped(others, lambda fact: fact["hostname"]):
        text = (
            f"the host name of {named(names)} is {value} on each; wanted: one of its own ({reason})"
        )
        remedy = "as root on all but one: hostnamectl set-hostname NAME, and NAME in /etc/hosts"
        findings.append(finding("name.duplicate", text, remedy, names, level))
    return findings


def own_name(nodes, facts):
    """Return findings about the addresses that a node's own name resolves to.

    Only a warning: the plan gives POD_IP and GLOO_SOCKET_IFNAME, which cure it (facts 3 and 4,
    measured). The one launcher that still resolves the name, fleetrun's legacy one, is refused by
    the plan itself. A single node's name matters to no other node.
    """
    if len(nodes) < 2:
        return []
    owner = {address: name for name, fact in facts.items() for address in _addresses(fact)}
    findings = []
    for node in nodes:
        advice = _own_name_problem(node, facts[node["name"]], owner)
        if advice:
            text, remedy = advice
            findings.append(finding("name.resolves_wrong", text, remedy, node["name"], "warn"))
    return findings


def _addresses(fact):
    """Return the addresses of a node that other nodes can reach."""
    return [item["address"] for item in fact["addresses"] if not _is_loopback(item["address"])]


def _own_name_problem(node, fact, owner):
    """Return (text, remedy) of a node whose own name leads elsewhere, or None.

    owner: {address: name of the node that has it}.
    """
    host_name, resolved = fact["hostname"], fact.get("resolves_to") or []
    addresses = _addresses(fact)
    right = (addresses or ["ADDRESS"])[0]
    if node.get("address") in addresses:
        right = node["address"]
    local = [address for address in resolved if _is_loopback(address)]
    foreign = [
        address for address in resolved if not _is_loopback(address) and address not in addresses
    ]
    if not resolved:
        return (
            f"its own name {host_name} resolves to nothing; wanted: {right}",
            f"write into its /etc/hosts: {right} {host_name}",
        )
    if local:
        wrong = local[0]
        text = (
            f"its own name {host_name} resolves to {wrong}, where no other node is; wanted:"
            f" {right}. The plan names address and interface itself"
        )
    elif foreign:
        wrong = foreign[0]
        text = (
            f"its own name {host_name} resolves to {wrong}, which is"
            f" {owner.get(wrong, 'no address of its own')}; wanted: {right}"
        )
    else:
        return None
    remedy = (
        f"in its /etc/hosts take {host_name} off the line of {wrong} and write: {right} {host_name}"
    )
    return text, remedy


def _is_loopback(address):
    return ipaddress.ip_address(address).is_loopback


def offset(fact):
    """Return (least, most) seconds that the node's clock is ahead, or None.

    The node's first look at its clock came after the controller had sent the probe, its last one
    before the answer had arrived. None stands for a node without these times.
    """
    if not all(fact.get(key) is not None for key in ("sent", "received", "time", "ended")):
        return None
    return fact["ended"] - fact["received"], fact["time"] - fact["sent"]


def clocks(facts, allowed):
    """Return findings about clocks that the duration of the probe cannot explain."""
    floors = allowed.get("clock_seconds") or {}
    offsets = {}
    for name, fact in facts.items():
        bounds = offset(fact)
        if bounds:
            offsets[name] = _certain_offset(*bounds)
    findings = []
    for name, seconds in offsets.items():
        level = _clock_level(abs(seconds), floors)
        if not level:
            continue
        direction = "behind"
        if seconds > 0:
            direction = "ahead of"
        text = (
            f"its clock is {said(abs(seconds))} {direction} the controller's; allowed"
            f" {floors[level]} s. Certificates and the times of logs and files depend on it"
        )
        # Several nodes that are all off by the same prove nothing, but the hint saves an hour.
        if len(offsets) > 1 and all(other * seconds > 0 for other in offsets.values()):
            text += (
                "; all nodes are off the same way, so the controller's own clock may be the"
                " wrong one"
            )
        remedy = (
            "as root: timedatectl set-ntp true, or start the site's NTP service; look: timedatectl"
        )
        findings.append(finding("clock.off", text, remedy, name, level))
    return findings


def _certain_offset(least, most):
    """Return the seconds of an offset that the time of the probe cannot explain."""
    if least > 0:
        return least
    return min(most, 0)


def _clock_level(seconds, floors):
    """Return the level of a clock that is off by so many seconds, or None."""
    for level in ("stop", "warn"):
        if floors.get(level) and seconds > float(floors[level]):
            return level
    return None


def said(seconds):
    """Return a time span in words."""
    if seconds >= 120:
        return f"{round(seconds / 60)} min"
    return f"{seconds:.1f} s"


def in_the_way(name, facts):
    """Return findings about working package managers, and a confining label."""
    findings = []
    for lock in facts["locks"]:
        text = (
            f"a package manager is at work: {lock['command'] or 'a process'} (pid"
            f" {int(lock['pid'])}) holds {lock['path']}; provision.yml would wait for it"
        )
        remedy = "wait for it to end; it matters to provision.yml only"
        findings.append(finding("packages.manager_busy", text, remedy, name, "warn"))
    label = facts["unit"].get("confined", "")
    selinux_type = ""
    if label.count(":") >= 2:
        selinux_type = label.split(":")[2]
    by_selinux = facts["selinux"] and selinux_type and not selinux_type.startswith("unconfined")
    if label.endswith("(enforce)") or by_selinux:
        text = f"attempts run confined as {label}; they do start"
        findings.append(finding("security.confined", text, "", name, "note"))
    return findings
