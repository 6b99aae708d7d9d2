# SPDX-License-Identifier: Apache-2.0
"""Counter of the processes that the kernel killed to free memory, by control group."""

from __future__ import annotations

from . import attempt_files


def count_kills():
    """Return the number of OOM kills in this control group so far.

    Return None where the kernel does not show it. In a container the path may be the host's, and
    then the group is what is mounted at the root.
    """
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as handle:
            groups = [line.rstrip("\n").split(":", 2) for line in handle]
    except OSError:
        return None
    for number, controllers, path in groups:
        for counter_file in counter_files(number, controllers, path):
            try:
                with open(counter_file, encoding="ascii") as handle:
                    return int(dict(line.split() for line in handle)["oom_kill"])
            except (OSError, KeyError, ValueError):
                continue
    return None


def counter_files(number, controllers, path):
    """Return the files that count OOM kills for one line of /proc/self/cgroup.

    cgroup v2 has the count in memory.events, for the groups below as well. v1 has it in
    memory.oom_control (kernel 4.13).
    """
    if number == "0":
        return [f"/sys/fs/cgroup{group}/memory.events" for group in (path, "/")]
    if "memory" in controllers.split(","):
        return [f"/sys/fs/cgroup/memory{group}/memory.oom_control" for group in (path, "/")]
    return []


def count_kills_since_start(attempt):
    """Return the number of OOM kills in this control group since the launcher's start.

    Return None where it is not known.
    """
    before, now = None, None
    for event in attempt_files.read_events(attempt):
        if event.get("event") == "launched":
            before, now = event.get("oom_kills"), count_kills()
            break
    if before is None or now is None:
        return None
    return max(0, now - before)
