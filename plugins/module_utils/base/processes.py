# SPDX-License-Identifier: Apache-2.0
"""Processes of a node as /proc shows them: whose, since when, of which run; and ending those of a
run by their mark, and no others.

Every process of an attempt carries TRAINYARD_ATTEMPT=<run>/<attempt> in the environment it was
started with (agent.py), inside a container as well. The mark cannot be read of other users'
processes, unless by root.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import signal
import subprocess
import time

from .sanitize import printable

MARK = b"TRAINYARD_ATTEMPT="
_MARKED = re.compile(r"([0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4})/([0-9]+)\Z")
# Between TERM and KILL as a unit has it (plan.STOP_SECONDS); so long after KILL a process may need
# to be gone.
GRACE_S = 5.0
KILLED_S = 3.0
_STEP_S = 0.1
COMMAND = 160


def _read(path):
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError:  # gone, or another user's
        return b""


def read_text(path):
    """Return a file of /proc as text; '' where the process is gone or it is another user's."""
    return _read(path).decode("utf-8", "surrogateescape")


def pids():
    """Return the pids of all processes that can be seen."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def mark_of(pid):
    """Return (run id, attempt) that a process belongs to, or None; also None where its environment
    cannot be read.
    """
    for item in _read("/proc/%d/environ" % pid).split(b"\0"):
        if item.startswith(MARK):
            match = _MARKED.match(os.fsdecode(item[len(MARK) :]))
            return match and (match.group(1), int(match.group(2)))
    return None


def stat_of(pid):
    """Return the fields of /proc/<pid>/stat after the command's name, or [] where the process is
    gone.
    """
    return _read("/proc/%d/stat" % pid).rpartition(b")")[2].split()


def start_of(pid):
    """Return when a process started, in clock ticks since boot: a number that comes again has
    another; None where it is gone or a zombie.
    """
    fields = stat_of(pid)
    return int(fields[19]) if len(fields) > 19 and fields[0] not in (b"Z", b"X") else None


def age_of(pid):
    """Return for how many seconds a process has been there; None where it is gone."""
    started, uptime = start_of(pid), _read("/proc/uptime").split()
    return (
        None
        if started is None or not uptime
        else max(0.0, float(uptime[0]) - started / os.sysconf("SC_CLK_TCK"))
    )


def words_of(pid):
    """Return a process's command line as words; [] for the kernel's own and where it may not be
    read.
    """
    return [os.fsdecode(word) for word in _read("/proc/%d/cmdline" % pid).split(b"\0")[:-1]]


def user_name(uid):
    """Return a user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return "uid %d" % uid


def describe(pid):
    """Return {pid, uid, user, command, age_s, rss_mib, run, attempt} of a process, safe to show;
    None where it is gone.

    command: its words, or its name in brackets where they may not be read. run, attempt: None where
    it is of none, or cannot be read.
    """
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return None
    old = age_of(pid)
    if old is None:
        return None
    pages = _read("/proc/%d/statm" % pid).split()
    command = " ".join(words_of(pid)) or "[{}]".format(
        _read("/proc/%d/comm" % pid).decode("utf-8", "replace").strip()
    )
    run_id, attempt = mark_of(pid) or (None, None)
    return {
        "pid": pid,
        "uid": uid,
        "user": user_name(uid),
        "command": printable(command, limit=COMMAND),
        "age_s": int(old),
        "rss_mib": int(pages[1]) * os.sysconf("SC_PAGE_SIZE") >> 20 if len(pages) > 1 else 0,
        "run": run_id,
        "attempt": attempt,
    }


def age(seconds):
    """Return an age as words: 40 s, 12 min, 3 h, 2 days."""
    for limit, unit, text in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if seconds < limit:
            return "%d %s" % (seconds // unit, text)
    return "%d days" % (seconds // 86400)


def of_run(run_id, number=None):
    """Return the pids of an attempt's processes, or of all attempts' where number is None. The
    caller and those that called it are none of them.
    """
    mine, own = set(), os.getpid()
    while own > 1 and own not in mine:
        mine.add(own)
        fields = stat_of(own)
        own = int(fields[1]) if len(fields) > 1 else 0
    found = []
    for pid in pids():
        mark = mark_of(pid)
        if mark and mark[0] == run_id and number in (None, mark[1]) and pid not in mine:
            found.append(pid)
    return found


def send(pid, started, run_id, number, what):
    """Send a signal to a process of a run; return whether it was sent.

    The pid's handle is taken first and the process looked at through it, so that a number that
    another process has got meanwhile is never hit. Without pidfd (Python 3.8, Linux before 5.3) the
    look comes right before the signal.
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
        mark = mark_of(pid)
        if (
            started is None
            or start_of(pid) != started
            or not mark
            or mark[0] != run_id
            or number not in (None, mark[1])
        ):
            return False
        if handle is None:
            os.kill(pid, what)
        else:
            signal.pidfd_send_signal(handle, what)
        return True
    except OSError:
        return False
    finally:
        if handle is not None:
            os.close(handle)


def end(run_id, number=None, grace=GRACE_S):
    """End the processes of an attempt, or of all of the run's: TERM, after `grace` seconds KILL.
    Return [{pid, attempt, command, signal}].

    What such a process starts meanwhile bears its mark and is ended with it. What cannot be ended
    is still found by of_run.
    """
    known, since, empty = {}, time.monotonic(), 0
    while time.monotonic() - since < grace + KILLED_S:
        found = [pid for pid in of_run(run_id, number) if start_of(pid) is not None]
        empty = 0 if found else empty + 1
        # One look is not enough: a child made after the pids were listed, by a parent that had gone
        # when it was looked at, is in none.
        if empty == 2:
            break
        for pid in found:
            started, late = start_of(pid), time.monotonic() - since >= grace
            said = known.get((pid, started))
            if said is None or (late and said["signal"] != "KILL"):
                told = describe(pid)
                if told and send(
                    pid, started, run_id, number, signal.SIGKILL if late else signal.SIGTERM
                ):
                    known[(pid, started)] = dict(
                        {key: told[key] for key in ("pid", "attempt", "command")},
                        signal="KILL" if late else "TERM",
                    )
        time.sleep(_STEP_S)
    return sorted(known.values(), key=lambda item: item["pid"])


def end_group(process):
    """End a process that leads its own group, and all of the group: first by TERM, so that rsync
    keeps a partial file where it was asked to.
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
