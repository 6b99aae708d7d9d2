# SPDX-License-Identifier: Apache-2.0
"""What a node's ranks are doing now: stacks, sockets, state; kept before a hang is ended, since
afterwards nobody can ask them.

Shipped beside guard.py and complete in itself. It only looks: no rank is stopped for it, and none
has to help.

guard_evidence.py ATTEMPT NODE        writes ATTEMPT/evidence/{stacks-<rank>.log, sockets.log,
state.json}

Stacks come from py-spy, of the attempt's environment or on the PATH. Where there is none, or the
kernel does not let it look, /proc tells each thread's name, state and where in the kernel it waits.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import time

# All of it has to fit between the budget's end and the stop (docs/runbooks/watchdog.md).
SECONDS = 4.0
STACK_BYTES = 1 << 18
THREADS = 200
FRAMES = 6
STATES = {"R": "running", "S": "asleep", "D": "waiting for a disk or a network file system", "T": "stopped by a signal",
          "t": "stopped by a debugger", "Z": "ended, and not collected by its parent", "I": "idle"}  # fmt: skip
TCP = {"01": "ESTABLISHED", "02": "SYN_SENT", "03": "SYN_RECV", "04": "FIN_WAIT1", "05": "FIN_WAIT2", "06": "TIME_WAIT", "08": "CLOSE_WAIT",
       "09": "LAST_ACK", "0A": "LISTEN", "0B": "CLOSING"}  # fmt: skip
_THREAD = re.compile(r'^Thread \S+ \([^)]*\)(?:: "(.*)")?$')
YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def read(path, size=65536):
    """Return the beginning of a file as text, '' where it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return handle.read(size).decode("utf-8", "replace")
    except OSError:
        return ""


def ranks_of(attempt, marker):
    """Return {rank: pid} of the ranks that ranks.jsonl has as started and not ended, and that bear
    the attempt's mark.
    """
    found = {}
    for line in read(os.path.join(attempt, "ranks.jsonl"), 1 << 22).splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if event.get("event") == "start":
            found[event["rank"]] = event["pid"]
        elif event.get("event") == "end" and found.get(event.get("rank")) == event.get("pid"):
            del found[event["rank"]]
    mark = "TRAINYARD_ATTEMPT=" + marker
    return {
        rank: pid
        for rank, pid in found.items()
        if rank is not None and mark in read("/proc/%d/environ" % pid, 1 << 20).split("\0")
    }


def ticks(pid):
    """Return the processor time that a process has used, in clock ticks; None where it is gone."""
    fields = read("/proc/%d/stat" % pid).rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else None


def threads_of(pid):
    """Return [{tid, comm, state, wchan, syscall}] of a process's threads as /proc shows them; wchan
    and syscall only where the kernel lets us look.
    """
    found = []
    names = sorted(
        (int(name) for name in os.listdir("/proc/%d/task" % pid) if name.isdigit()),
        key=lambda tid: (tid != pid, tid),
    )
    for tid in names[:THREADS]:
        place = "/proc/%d/task/%d/" % (pid, tid)
        fields = read(place + "stat").rpartition(")")[2].split()
        wchan, call = read(place + "wchan").strip(), read(place + "syscall").split()
        found.append({"tid": tid, "comm": read(place + "comm").strip(), "state": fields[0] if fields else "?",
                      "wchan": wchan if wchan != "0" else "", "syscall": call[0] if call else ""})  # fmt: skip
    return found


def ptrace_note():
    """Return why py-spy may not look at the ranks here and what helps, or ''."""
    scope = read(YAMA).strip()
    if scope in ("", "0") or os.geteuid() == 0 and scope != "3":
        return ""
    return (
        f"kernel.yama.ptrace_scope is {scope}, which lets no process look at another: sysctl"
        " kernel.yama.ptrace_scope=0 on this node"
    )


def spy_of(plan, node):
    """Return the path of py-spy: beside the environment's python, on the PATH or in the user's own
    programs; None where there is none.
    """
    mine = next((item for item in plan.get("nodes") or () if item.get("name") == node), {})
    places = [
        os.path.dirname(mine.get("python") or ""),
        os.environ.get("PATH", ""),
        os.path.expanduser("~/.local/bin"),
    ]
    return shutil.which("py-spy", path=os.pathsep.join(place for place in places if place))


def frames(text):
    """Return the innermost frames of the main thread in what py-spy printed, each `function
    (file:line)`; [] where it has none.
    """
    threads, name = {}, None
    for line in text.splitlines():
        match = _THREAD.match(line)
        if match:
            name = match.group(1) or ""
            threads.setdefault(name, [])
        elif name is not None and line.startswith("    "):
            threads[name].append(line.strip())
    return (threads.get("MainThread") or next(iter(threads.values()), []))[:FRAMES]


def stacks(spy, pids, until):
    """Return {rank: (what py-spy printed, why it printed nothing)} of all ranks at once."""
    calls, found = {}, {}
    for rank, pid in pids.items():
        # nonblocking: a rank that works after all is not held up
        argv = [spy, "dump", "--nonblocking", "--pid", str(pid)]
        try:
            calls[rank] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            found[rank] = "", str(error)
    for rank, call in calls.items():
        try:
            out, err = call.communicate(timeout=max(0.1, until - time.monotonic()))
            found[rank] = (
                out[:STACK_BYTES].decode("utf-8", "replace"),
                err.decode("utf-8", "replace").strip()[-400:],
            )
        except subprocess.TimeoutExpired:
            call.kill()
            found[rank] = "", "py-spy did not answer in time"
    return found


def address(text):
    """Return an address of /proc/net/tcp or tcp6 in the usual notation."""
    host, _colon, port = text.partition(":")
    words = [struct.pack("<I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return "%s:%d" % (socket.inet_ntop(family, b"".join(words)), int(port, 16))


def sockets(pids):
    """Return lines about the TCP connections of the ranks: who is connected to whom, and what waits
    to be sent or read.
    """
    table, lines = {}, []
    for name in ("tcp", "tcp6"):
        for row in read("/proc/net/" + name, 1 << 22).splitlines()[1:]:
            words = row.split()
            table[words[9]] = (
                TCP.get(words[3], words[3]),
                address(words[1]),
                address(words[2]),
                *words[4].split(":"),
            )
    for rank, pid in sorted(pids.items()):
        try:
            links = [
                os.readlink("/proc/%d/fd/%s" % (pid, name))
                for name in os.listdir("/proc/%d/fd" % pid)
            ]
        except OSError:
            continue
        for link in sorted(set(links)):
            known = table.get(link[8:-1]) if link.startswith("socket:[") else None
            if known:
                lines.append(
                    "rank %d  %-11s %s -> %s  to send %d  to read %d"
                    % (rank, *known[:3], int(known[3], 16), int(known[4], 16))
                )
    return lines


def collect(attempt, node, seconds=SECONDS):
    """Look at every rank of this node and write what there is; return the content of state.json."""
    begun, folder = time.monotonic(), os.path.join(attempt, "evidence")
    plan, record = (
        json.loads(read(os.path.join(attempt, name), 1 << 26))
        for name in ("plan.json", "attempt.json")
    )
    pids = ranks_of(attempt, "{}/{}".format(record["run"], record["attempt"]))
    before = {rank: ticks(pid) for rank, pid in pids.items()}
    os.makedirs(folder, mode=0o700, exist_ok=True)
    spy, note = spy_of(plan, node), ptrace_note()
    dumped = stacks(spy, pids, begun + seconds) if spy else {}
    time.sleep(max(0.0, min(0.5, begun + 0.5 - time.monotonic())))
    state = {
        "node": node,
        "time": time.time(),
        "load": read("/proc/loadavg").split()[:3],
        "ptrace": note,
        "spy": spy or "",
        "ranks": [],
    }
    state["memory"] = dict(
        line.split(":")[:2] for line in read("/proc/meminfo").splitlines()[:5] if ":" in line
    )
    for rank, pid in sorted(pids.items()):
        text, why = dumped.get(rank, ("", "there is no py-spy in the environment or on the PATH"))
        try:
            threads = threads_of(pid)
        except OSError:
            continue  # it has ended meanwhile
        used, had = ticks(pid), before[rank]
        share = (
            None
            if used is None or had is None
            else (used - had) / os.sysconf("SC_CLK_TCK") / max(0.1, time.monotonic() - begun)
        )
        lines = [
            "thread %(tid)d %(comm)s  state %(state)s  waits in %(wchan)s  system call %(syscall)s"
            % item
            for item in threads
        ]
        own = text or "py-spy told nothing: {}\n".format(
            "; ".join(part for part in (why, note) if part)
        )
        write(
            folder,
            "stacks-%03d.log" % rank,
            "rank %d, pid %d\n%s\n%s\n" % (rank, pid, own, "\n".join(lines)),
        )
        main = threads[0]["state"] if threads else "?"
        state["ranks"].append({"rank": rank, "pid": pid, "state": main, "state_words": STATES.get(main, main), "where": frames(text),
                               "wchan": threads[0]["wchan"] if threads else "", "cpu": None if share is None else round(share, 2),
                               "stack_from": "py-spy" if text else "proc", "why": "" if text else why})  # fmt: skip
    write(folder, "sockets.log", "\n".join(sockets(pids)) + "\n")
    write(folder, "state.json", json.dumps(state, sort_keys=True) + "\n")
    return state


def write(folder, name, text):
    """Write a file for this user alone."""
    path = os.path.join(folder, name)
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        "w",
        encoding="utf-8",
        errors="replace",
    ) as handle:
        handle.write(text)


if __name__ == "__main__":
    collect(sys.argv[1], sys.argv[2])
