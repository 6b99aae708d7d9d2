# SPDX-License-Identifier: Apache-2.0
"""Processes of a node as /proc shows them: owner, age and run.

The module also ends the processes of a run by their mark, and no others. Every process of an
attempt carries TRAINYARD_ATTEMPT=<run>/<attempt> in the environment it was started with,
inside a container as well. The mark cannot be read of other users' processes, unless by root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import subprocess
import time

from .files import read_bytes
from .sanitize import printable

MARK = b"TRAINYARD_ATTEMPT="
_MARKED = re.compile(r"([0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4})/([0-9]+)\Z")
# Seconds between TERM and KILL as a unit has it (compiler.STOP_SECONDS), and seconds that a process
# may need after KILL to be gone.
GRACE_S = 5.0
KILLED_S = 3.0
_STEP_S = 0.1
_AGAIN_S = 0.05
COMMAND = 160


def _read(path):
    """Return the bytes of a file of /proc, b"" where the process is gone or another user's."""
    return read_bytes(path) or b""


def pids():
    """Return the pids of all processes that can be seen."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def environment_of(pid):
    """Return the environment that a process was started with as [b"name=value"].

    It is [] where it cannot be read. A process may have changed it since.
    """
    return _read(f"/proc/{pid}/environ").split(b"\0")


def pids_with_mark(name, number):
    """Return the sorted pids whose environment has exactly this mark, also the caller's.

    name: a run id, or the name of a container's trial. The processes may be in any control group.
    """
    mark = MARK + f"{name}/{number:d}".encode()
    return [pid for pid in pids() if mark in environment_of(pid)]


def mark_of(pid):
    """Return (run id, attempt) of a process, or None.

    None is also the answer where its environment cannot be read.
    """
    for item in environment_of(pid):
        if item.startswith(MARK):
            match = _MARKED.match(os.fsdecode(item[len(MARK) :]))
            return match and (match.group(1), int(match.group(2)))
    return None


def stat_of(pid):
    """Return the fields of /proc/<pid>/stat after the command's name, or []."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def start_of(pid):
    """Return the start of a process in clock ticks since boot, None for no process.

    A pid that is used again has another start. A zombie counts as no process.
    """
    fields = stat_of(pid)
    if len(fields) > 19 and fields[0] not in (b"Z", b"X"):
        return int(fields[19])
    return None


def age_of(pid):
    """Return the age of a process in seconds, None where it is gone."""
    started, uptime = start_of(pid), _read("/proc/uptime").split()
    if started is None or not uptime:
        return None
    return max(0.0, float(uptime[0]) - started / os.sysconf("SC_CLK_TCK"))


def words_of(pid):
    """Return a process's command line as words.

    It is [] for the kernel's own processes, and where it may not be read.
    """
    return [os.fsdecode(word) for word in _read(f"/proc/{pid}/cmdline").split(b"\0")[:-1]]


def user_name(uid):
    """Return a user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def describe(pid):
    """Return a process as a mapping that is safe to show, None where it is gone.

    Its keys are pid, uid, user, command, age_s, rss_mib, run and attempt. command: its words, or
    its name in brackets where they may not be read. run, attempt: None where it belongs to none, or
    cannot be read.
    """
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    seconds = age_of(pid)
    if seconds is None:
        return None
    name = _read(f"/proc/{pid}/comm").decode("utf-8", "replace").strip()
    command = " ".join(words_of(pid)) or f"[{name}]"
    run_id, attempt = mark_of(pid) or (None, None)
    return {
        "pid": pid,
        "uid": uid,
        "user": user_name(uid),
        "command": printable(command, limit=COMMAND),
        "age_s": int(seconds),
        "rss_mib": _resident_mib(pid),
        "run": run_id,
        "attempt": attempt,
    }


def _resident_mib(pid):
    pages = _read(f"/proc/{pid}/statm").split()
    if len(pages) < 2:
        return 0
    return int(pages[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def of_run(run_id, number=None):
    """Return the pids of an attempt's processes, or of all attempts' (number: None).

    The caller and the processes above it are not among them.
    """
    callers = _callers()
    return [pid for pid in pids() if _bears_mark(pid, run_id, number) and pid not in callers]


def _callers():
    """Return the pids of this process and of those above it."""
    callers, pid = set(), os.getpid()
    while pid > 1 and pid not in callers:
        callers.add(pid)
        fields = stat_of(pid)
        if len(fields) < 2:
            break
        pid = int(fields[1])
    return callers


def _bears_mark(pid, run_id, number):
    """Return whether a process belongs to an attempt, or to the run (number: None)."""
    mark = mark_of(pid)
    return bool(mark) and mark[0] == run_id and number in (None, mark[1])


def send(pid, started, run_id, number, signal_number):
    """Send a signal to a process of a run and return whether it was sent.

    started: as start_of returned it. signal_number: of the signal. The pid's handle is taken
    first and the process checked through it, so that a pid that another process has got meanwhile
    is never hit.
    Without pidfd (Python 3.8, Linux before 5.3) the check comes right before the signal.
    """
    handle = None
    try:
        handle = os.pidfd_open(pid)
    except AttributeError:
        pass
    except ProcessLookupError:
        return False
    except OSError:
        pass  # the kernel has none
    try:
        is_same = started is not None and start_of(pid) == started
        if not is_same or not _bears_mark(pid, run_id, number):
            return False
        if handle is None:
            os.kill(pid, signal_number)
        else:
            signal.pidfd_send_signal(handle, signal_number)
        return True
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)


def end(run_id, number=None, grace=GRACE_S):
    """End the processes of an attempt, or of the run (number: None), and return them.

    They get TERM, and after `grace` seconds KILL. The result is [{pid, attempt, command, signal}].
    A process that such a process starts meanwhile bears its mark and is ended with it. One that
    cannot be ended is still returned by of_run.
    """
    ended, since, empty = {}, time.monotonic(), 0
    while time.monotonic() - since < grace + KILLED_S:
        running = [pid for pid in of_run(run_id, number) if start_of(pid) is not None]
        empty += 1
        if running:
            empty = 0
        # One look is not enough: a child made after the pids were listed, by a parent that had gone
        # when it was looked at, is in none.
        if empty == 2:
            break
        name = "TERM"
        if time.monotonic() - since >= grace:
            name = "KILL"
        for pid in running:
            started = start_of(pid)
            earlier = ended.get((pid, started))
            if earlier is None or (name == "KILL" and earlier["signal"] != "KILL"):
                process = describe(pid)
                if process and send(pid, started, run_id, number, getattr(signal, f"SIG{name}")):
                    ended[(pid, started)] = {
                        "pid": process["pid"],
                        "attempt": process["attempt"],
                        "command": process["command"],
                        "signal": name,
                    }
        pause = _STEP_S if running else _AGAIN_S
        time.sleep(pause)
    return sorted(ended.values(), key=lambda item: item["pid"])


def end_group(process):
    """End a process that leads its own group, and all of the group.

    TERM comes first, so that rsync keeps a partial file where its options ask for that.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    # What rsync started may live on where rsync was killed.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
