# SPDX-License-Identifier: Apache-2.0
"""What a training may hold, measured inside a unit like an attempt's: limits.conf and a login's
limits do not apply to units (facts, "Nodes in Docker").

This file is also the program of that unit: it is given to it as text, so it needs nothing but
Python >= 3.8, is complete in itself, and holds no dollar sign, which systemd would take for a
variable.
"""

from __future__ import annotations

import json
import os
import resource

# A unit that hangs is ended by its own manager after so many seconds; whoever waits for it gives up
# a little later.
SECONDS = 10
# As attempts.start_argv starts an attempt.
PROPERTIES = ("Type=exec", "KillMode=control-group", "UMask=0077", "RuntimeMaxSec=%d" % SECONDS)
# The two generations of control groups: file with the limit, file with what is taken; v1 has a
# hierarchy a controller.
FILES = {
    "pids": (("pids.max", "pids.current"), ("pids.max", "pids.current")),
    "memory": (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ),
}
# What memory.stat calls what the kernel gives back before it runs out.
CACHE = ("inactive_file", "total_inactive_file")


def text_of(path, most=-1):
    """Return a file's text, so many characters at most where that is asked, '' where it cannot be
    read.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(most)
    except OSError:
        return ""


def folders(table, root, controller):
    """Return (whether it is v1, the directories from a process' control group up to the root) for
    one controller.

    table: the text of /proc/<pid>/cgroup.
    """
    rows = [row.split(":", 2) for row in table.splitlines() if row.count(":") >= 2]
    old = [row[2] for row in rows if controller in row[1].split(",")]
    path = (old or [row[2] for row in rows if row[0] == "0"] or ["/"])[0]
    top, found = os.path.join(root, controller) if old else root, []
    while True:
        found.append(os.path.join(top, path.strip("/")).rstrip("/"))
        if path in ("", "/"):
            return bool(old), found
        path = os.path.dirname(path)


def number(text):
    """Return a limit as a number, None where there is none: 'max', nothing at all, or v1's nearly
    2**63.
    """
    return int(text) if text.strip().isdigit() and int(text) < 2**60 else None


def room(table, root, controller):
    """Return how much is left below the tightest limit of a control group and those above it; None
    where none of them has a limit.
    """
    old, places = folders(table, root, controller)
    limit, taken = FILES[controller][old]
    left = []
    for place in places:
        most = number(text_of(os.path.join(place, limit)))
        if most is not None:
            rows = (
                [row.split() for row in text_of(os.path.join(place, "memory.stat")).splitlines()]
                if controller == "memory"
                else []
            )
            cache = [
                int(row[1])
                for row in rows
                if len(row) == 2 and row[0] == CACHE[old] and row[1].isdigit()
            ]
            left.append(
                max(0, most - (number(text_of(os.path.join(place, taken))) or 0) + sum(cache))
            )
    return min(left) if left else None


def processors(table, root):
    """Return how many processors' time a control group may take, a fraction, too; None where there
    is no quota.
    """
    old, places = folders(table, root, "cpu")
    found = []
    for place in places:
        words = text_of(os.path.join(place, "cpu.max")).split()
        if old:
            words = [
                text_of(os.path.join(place, name)).strip()
                for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            ]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            found.append(int(words[0]) / int(words[1]))
    return min(found) if found else None


def measured(table=None, root="/sys/fs/cgroup"):
    """Return what this process may hold.

    memlock (bytes) and nofile, soft and hard, -1 for no limit; tasks and memory (bytes): what is
    left; cores: a quota of processors; confined: the AppArmor or SELinux label; umask.
    """
    table = text_of("/proc/self/cgroup") if table is None else table
    mask = os.umask(0o077)
    os.umask(mask)
    tasks = [room(table, root, "pids"), resource.getrlimit(resource.RLIMIT_NPROC)[0]]
    return {
        "memlock": list(resource.getrlimit(resource.RLIMIT_MEMLOCK)),
        "nofile": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "tasks": min(
            [count for count in tasks if count not in (None, resource.RLIM_INFINITY)] or [-1]
        ),
        "memory": room(table, root, "memory"),
        "cores": processors(table, root),
        "confined": text_of("/proc/self/attr/current").strip("\n\0"),
        "umask": mask,
    }


def in_unit(run):
    """Return what `measured` says inside a unit of the user's own manager, or {error: why there is
    no such unit}; it leaves nothing behind.

    The unit's name is none of an attempt's (trainyard-...) and none of the network's proof
    (yardcheck-...), so that nobody takes it for one.
    """
    source = __spec__.loader.get_source(__name__)  # from the zip that Ansible sends, too
    argv = [
        "timeout",
        str(SECONDS + 5),
        "systemd-run",
        "--user",
        "--wait",
        "--pipe",
        "--collect",
        "--quiet",
        "--unit=yardlimits-%d" % os.getpid(),
    ]
    code, out, err = run(
        argv
        + [word for item in PROPERTIES for word in ("--property", item)]
        + ["/usr/bin/python3", "-I", "-S", "-c", source]
    )
    try:
        return json.loads(out)
    except ValueError:
        return {"error": " ".join((err or out).split())[-300:] or "exit code %d" % code}


if __name__ == "__main__":
    print(json.dumps(measured()))
