# SPDX-License-Identifier: Apache-2.0
"""Stacks, sockets and state of a node's ranks.

They are kept before a hang is ended, because the ranks are gone afterwards. The module only looks:
no rank is stopped for it, and none has to help.

    agent.pyz stacks ATTEMPT NODE
        writes ATTEMPT/evidence/{stacks-<rank>.log, sockets.log, state.json}

Stacks come from py-spy, of the attempt's environment or on the PATH. Without py-spy, or where the
kernel does not permit it, /proc shows each thread's name, its state and its place in the kernel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import struct
import subprocess
import time

# All of it has to fit between the budget's end and the stop (docs/runbooks/watchdog.md).
SECONDS = 4.0
STACK_BYTES = 1 << 18
THREADS = 200
FRAMES = 6
STATES = {
    "R": "running",
    "S": "asleep",
    "D": "waiting for a disk or a network file system",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended, and not collected by its parent",
    "I": "idle",
}
TCP = {
    "01": "ESTABLISHED",
    "02": "SYN_SENT",
    "03": "SYN_RECV",
    "04": "FIN_WAIT1",
    "05": "FIN_WAIT2",
    "06": "TIME_WAIT",
    "08": "CLOSE_WAIT",
    "09": "LAST_ACK",
    "0A": "LISTEN",
    "0B": "CLOSING",
}
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
    """Return {rank: pid} of the ranks that run.

    ranks.jsonl has their start and not their end, and they have the attempt's mark in their
    environment.
    """
    pids = {}
    for line in read(os.path.join(attempt, "ranks.jsonl"), 1 << 22).splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        # A training can write the file, so a line, a rank and a pid may be any JSON.
        if not isinstance(event, dict):
            continue
        rank, pid = event.get("rank"), event.get("pid")
        if type(rank) is not int or type(pid) is not int:
            continue
        if event.get("event") == "start":
            pids[rank] = pid
        elif event.get("event") == "end" and pids.get(rank) == pid:
            del pids[rank]
    mark = "TRAINYARD_ATTEMPT=" + marker
    return {
        rank: pid
        for rank, pid in pids.items()
        if rank is not None and mark in read(f"/proc/{pid:d}/environ", 1 << 20).split("\0")
    }


def ticks(pid):
    """Return a process's processor time in clock ticks, None where it is gone."""
    fields = read(f"/proc/{pid:d}/stat").rpartition(")")[2].split()
    if len(fields) <= 12:
        return None
    return int(fields[11]) + int(fields[12])


def threads_of(pid):
    """Return [{tid, comm, state, wchan, syscall}] of a process's threads.

    The main thread is the first. wchan and syscall are known only where the kernel permits it.
    """
    tids = sorted(
        (int(name) for name in os.listdir(f"/proc/{pid:d}/task") if name.isdigit()),
        key=lambda tid: (tid != pid, tid),
    )
    return [describe_thread(pid, tid) for tid in tids[:THREADS]]


def describe_thread(pid, tid):
    """Return {tid, comm, state, wchan, syscall} of a thread as /proc shows it."""
    folder = f"/proc/{pid:d}/task/{tid}/"
    thread = {"tid": tid, "comm": "", "state": "?", "wchan": "", "syscall": ""}
    fields = read(folder + "stat").rpartition(")")[2].split()
    if fields:
        thread["state"] = fields[0]
    wchan, call = read(folder + "wchan").strip(), read(folder + "syscall").split()
    if wchan != "0":
        thread["wchan"] = wchan
    if call:
        thread["syscall"] = call[0]
    thread["comm"] = read(folder + "comm").strip()
    return thread


def ptrace_note():
    """Return the reason why py-spy may not look at the ranks, with a remedy, or ''."""
    scope = read(YAMA).strip()
    if scope in ("", "0") or os.geteuid() == 0 and scope != "3":
        return ""
    return (
        f"kernel.yama.ptrace_scope is {scope}, which lets no process look at another: sysctl"
        " kernel.yama.ptrace_scope=0 on this node"
    )


def spy_of(plan, node):
    """Return the path of py-spy, None without one.

    It is beside the environment's python, on the PATH or among the user's own programs.
    """
    mine = next((item for item in plan.get("nodes") or () if item.get("name") == node), {})
    folders = [
        os.path.dirname(mine.get("python") or ""),
        os.environ.get("PATH", ""),
        os.path.expanduser("~/.local/bin"),
    ]
    return shutil.which("py-spy", path=os.pathsep.join(folder for folder in folders if folder))


def frames(text):
    """Return the main thread's innermost frames in py-spy's output, [] without any.

    Each is `function (file:line)`.
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


def stacks(spy, pids, deadline):
    """Return {rank: (py-spy's output, its error)} of all ranks at once."""
    calls, outputs = {}, {}
    for rank, pid in pids.items():
        # nonblocking: a rank that works after all is not delayed.
        argv = [spy, "dump", "--nonblocking", "--pid", str(pid)]
        try:
            calls[rank] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            outputs[rank] = "", str(error)
    for rank, call in calls.items():
        try:
            out, err = call.communicate(timeout=max(0.1, deadline - time.monotonic()))
            outputs[rank] = (
                out[:STACK_BYTES].decode("utf-8", "replace"),
                err.decode("utf-8", "replace").strip()[-400:],
            )
        except subprocess.TimeoutExpired:
            call.kill()
            outputs[rank] = "", "py-spy did not answer in time"
    return outputs


def address(text):
    """Return an address of /proc/net/tcp or tcp6 in the usual notation."""
    host, _colon, port = text.partition(":")
    words = [struct.pack("<I", int(host[at : at + 8], 16)) for at in range(0, len(host), 8)]
    family = socket.AF_INET6
    if len(words) == 1:
        family = socket.AF_INET
    return f"{socket.inet_ntop(family, b''.join(words))}:{int(port, 16)}"


def tcp_table():
    """Return {inode: text} of this machine's TCP connections.

    The text has the state, both addresses, and the bytes to send and to read.
    """
    table = {}
    for name in ("tcp", "tcp6"):
        for row in read("/proc/net/" + name, 1 << 22).splitlines()[1:]:
            words = row.split()
            to_send, to_read = words[4].split(":")
            table[words[9]] = (
                f"{TCP.get(words[3], words[3]):<11} {address(words[1])} -> {address(words[2])}"
                f"  to send {int(to_send, 16)}  to read {int(to_read, 16)}"
            )
    return table


def sockets(pids):
    """Return lines about the TCP connections of the ranks.

    A line has the rank, the state, both addresses, and the bytes that wait to be sent or read.
    """
    table, lines = tcp_table(), []
    for rank, pid in sorted(pids.items()):
        folder = f"/proc/{pid:d}/fd"
        try:
            links = {os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
        except OSError:
            continue
        for link in sorted(links):
            if link.startswith("socket:[") and link[8:-1] in table:
                lines.append(f"rank {rank:d}  {table[link[8:-1]]}")
    return lines


def collect(attempt, node, seconds=SECONDS):
    """Write the evidence of this node's ranks and return the content of state.json.

    seconds: the time that py-spy may take.
    """
    started_at, folder = time.monotonic(), os.path.join(attempt, "evidence")
    plan, record = (
        json.loads(read(os.path.join(attempt, name), 1 << 26))
        for name in ("plan.json", "attempt.json")
    )
    pids = ranks_of(attempt, f"{record['run']}/{record['attempt']}")
    ticks_before = {rank: ticks(pid) for rank, pid in pids.items()}
    os.makedirs(folder, mode=0o700, exist_ok=True)
    spy, note, outputs = spy_of(plan, node), ptrace_note(), {}
    if spy:
        outputs = stacks(spy, pids, started_at + seconds)
    time.sleep(max(0.0, min(0.5, started_at + 0.5 - time.monotonic())))
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
    no_spy = ("", "there is no py-spy in the environment or on the PATH")
    for rank, pid in sorted(pids.items()):
        stack, problem = outputs.get(rank, no_spy)
        try:
            threads = threads_of(pid)
        except OSError:
            continue  # it has ended meanwhile
        entry = describe_rank(rank, pid, threads, stack, problem)
        entry["cpu"] = cpu_share(ticks_before[rank], ticks(pid), time.monotonic() - started_at)
        state["ranks"].append(entry)
        reasons = "; ".join(part for part in (problem, note) if part)
        stack = stack or f"py-spy told nothing: {reasons}\n"
        write_stacks(folder, entry, stack, threads)
    write(folder, "sockets.log", "\n".join(sockets(pids)) + "\n")
    write(folder, "state.json", json.dumps(state, sort_keys=True) + "\n")
    return state


def describe_rank(rank, pid, threads, stack, problem):
    """Return a rank's entry in state.json, without its use of the processor.

    stack: py-spy's output. problem: the reason for its absence.
    """
    entry = {"rank": rank, "pid": pid, "state": "?", "wchan": "", "where": frames(stack)}
    if threads:
        entry.update(state=threads[0]["state"], wchan=threads[0]["wchan"])
    entry["state_words"] = STATES.get(entry["state"], entry["state"])
    if stack:
        entry.update(stack_from="py-spy", why="")
    else:
        entry.update(stack_from="proc", why=problem)
    return entry


def cpu_share(ticks_before, ticks_now, seconds):
    """Return the used share of a processor core, None where it is not known."""
    if ticks_before is None or ticks_now is None:
        return None
    used = ticks_now - ticks_before
    return round(used / os.sysconf("SC_CLK_TCK") / max(0.1, seconds), 2)


def write_stacks(folder, entry, stack, threads):
    """Write the stack and the threads of a rank."""
    lines = [
        f"thread {item['tid']} {item['comm']}  state {item['state']}  waits in {item['wchan']}"
        f"  system call {item['syscall']}"
        for item in threads
    ]
    head, details = f"rank {entry['rank']:d}, pid {entry['pid']:d}", "\n".join(lines)
    write(folder, f"stacks-{entry['rank']:03d}.log", f"{head}\n{stack}\n{details}\n")


def write(folder, name, text):
    """Write a file for this user alone."""
    path = os.path.join(folder, name)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as handle:
        handle.write(text)
