# SPDX-License-Identifier: Apache-2.0
"""Limits of a training, measured inside a unit like an attempt's.

limits.conf and a login's limits do not apply to units (facts, "Nodes in Docker"). This file is also
the program of that unit and is given to it as text. So it needs nothing but Python >= 3.8, imports
no other file of ours, and holds no dollar sign, which systemd would take for a variable.
"""

from __future__ import annotations

import inspect
import json
import os
import resource
import sys

# A unit that hangs is ended by its own manager after so many seconds. The caller gives up a little
# later.
SECONDS = 10
# As attempt_dir.start_argv starts an attempt.
PROPERTIES = ("Type=exec", "KillMode=control-group", "UMask=0077", f"RuntimeMaxSec={SECONDS}")
# The two generations of control groups (v2, v1): file with the limit, file with the use. v1 has one
# hierarchy per controller.
FILES = {
    "pids": (("pids.max", "pids.current"), ("pids.max", "pids.current")),
    "memory": (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ),
}
# The name in memory.stat of the memory that the kernel gives back before it runs out.
CACHE = ("inactive_file", "total_inactive_file")


def text_of(path, most=-1):
    """Return a file's text, '' where it cannot be read.

    most: number of characters, -1 for all.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(most)
    except OSError:
        return ""


def folders(table, root, controller):
    """Return (True for v1, directories from a process' control group up to the root).

    table: the text of /proc/<pid>/cgroup. controller: pids, memory or cpu.
    """
    rows = [row.split(":", 2) for row in table.splitlines() if row.count(":") >= 2]
    v1_paths = [row[2] for row in rows if controller in row[1].split(",")]
    path = (v1_paths or [row[2] for row in rows if row[0] == "0"] or ["/"])[0]
    top, directories = root, []
    if v1_paths:
        top = os.path.join(root, controller)
    while True:
        directories.append(os.path.join(top, path.strip("/")).rstrip("/"))
        if path in ("", "/"):
            return bool(v1_paths), directories
        path = os.path.dirname(path)


def number(text):
    """Return a limit as a number, or None for no limit.

    That is 'max', an empty text, or v1's nearly 2**63.
    """
    if text.strip().isdigit() and int(text) < 2**60:
        return int(text)
    return None


def room(table, root, controller):
    """Return the room below the tightest limit of a control group and its parents.

    None where none of them has a limit.
    """
    is_v1, directories = folders(table, root, controller)
    limit_file, use_file = FILES[controller][is_v1]
    rooms = []
    for directory in directories:
        limit = number(text_of(os.path.join(directory, limit_file)))
        if limit is not None:
            use = number(text_of(os.path.join(directory, use_file))) or 0
            if controller == "memory":
                use -= cache_of(directory, is_v1)
            rooms.append(max(0, limit - use))
    return min(rooms, default=None)


def cache_of(directory, is_v1):
    """Return the bytes of a control group that the kernel can give back."""
    total = 0
    for line in text_of(os.path.join(directory, "memory.stat")).splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == CACHE[is_v1] and words[1].isdigit():
            total += int(words[1])
    return total


def processors(table, root):
    """Return the number of processors of a control group's quota, None for no quota.

    It may be a fraction.
    """
    is_v1, directories = folders(table, root, "cpu")
    quotas = []
    for directory in directories:
        if is_v1:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [text_of(os.path.join(directory, name)).strip() for name in names]
        else:
            words = text_of(os.path.join(directory, "cpu.max")).split()
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def measured(table=None, root="/sys/fs/cgroup"):
    """Return the limits of this process.

    memlock (bytes) and nofile: [soft, hard], -1 for no limit. tasks and memory (bytes): what is
    left. cores: a quota of processors. confined: the AppArmor or SELinux label. umask.
    """
    if table is None:
        table = text_of("/proc/self/cgroup")
    mask = os.umask(0o077)
    os.umask(mask)
    tasks = [room(table, root, "pids"), resource.getrlimit(resource.RLIMIT_NPROC)[0]]
    limited = [count for count in tasks if count not in (None, resource.RLIM_INFINITY)]
    return {
        "memlock": list(resource.getrlimit(resource.RLIMIT_MEMLOCK)),
        "nofile": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "tasks": min(limited, default=-1),
        "memory": room(table, root, "memory"),
        "cores": processors(table, root),
        "confined": text_of("/proc/self/attr/current").strip("\n\0"),
        "umask": mask,
    }


def in_unit(run, python):
    """Return `measured` inside a unit of the user's own manager, or {error: text}.

    python: path of the Python that measures there, of interpreter.node_python.

    It leaves nothing behind. The unit's name differs from an attempt's (trainyard-...) and from the
    network check's (yardcheck-...), so that no program takes it for one.
    """
    # inspect finds the text also in the archive of a module.
    source = inspect.getsource(sys.modules[__name__])
    argv = [
        "timeout",
        str(SECONDS + 5),
        "systemd-run",
        "--user",
        "--wait",
        "--pipe",
        "--collect",
        "--quiet",
        f"--unit=yardlimits-{os.getpid()}",
    ]
    for item in PROPERTIES:
        argv += ["--property", item]
    code, out, err = run([*argv, python, "-I", "-S", "-c", source])
    try:
        return json.loads(out)
    except ValueError:
        return {"error": " ".join((err or out).split())[-300:] or f"exit code {code}"}


if __name__ == "__main__":
    print(json.dumps(measured()))
