# SPDX-License-Identifier: Apache-2.0
"""Watch of the ranks on one node, which notes how each of them ends.

The launcher hides a rank's real exit code, so that nothing else sees it (fact 6).
"""

from __future__ import annotations

import os
import re
import select
import signal
import time

from . import attempt_files

CONSOLE_BYTES = 65536


def wait_status(status):
    """Return (exit code, signal name) of a wait status. One of them is missing (None)."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return None, signal.Signals(number).name
        except ValueError:
            return None, f"SIG{number}"
    return os.WEXITSTATUS(status), None


def split_status(status):
    """Return (exit code, signal name) of a status as subprocess gives it."""
    if status >= 0:
        return status, None
    return wait_status(-status)


def stat_fields(pid):
    """Return the fields of /proc/<pid>/stat that follow the command's name.

    Return None where the process is gone.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as handle:
            return handle.read().rpartition(b")")[2].split()
    except OSError:
        return None


def program_name(pid):
    """Return the name of a process's program, None where the process is gone."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
    except OSError:
        return None


def read_environment(pid):
    """Return a process's environment at its start, {} where it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as handle:
            pairs = (item.partition(b"=") for item in handle.read().split(b"\0") if b"=" in item)
            return {os.fsdecode(key): os.fsdecode(value) for key, _eq, value in pairs}
    except OSError:
        return {}


def find_ranks(marker, rank_env):
    """Return {pid: environment} of this attempt's rank processes.

    A rank is a process of this attempt that carries the launcher's rank variable while its parent
    does not. The launcher has no such variable, and a rank's own helpers (data loaders) have a
    parent that has it. msrun shows its ranks' logs by a tail that has the rank's environment.
    """
    processes = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            values = read_environment(int(name))
            if values.get("TRAINYARD_ATTEMPT") == marker:
                processes[int(name)] = values
    return {
        pid: values
        for pid, values in processes.items()
        if rank_env in values and is_rank(pid, processes, rank_env)
    }


def is_rank(pid, processes, rank_env):
    """Return whether a process with the rank variable is the rank, not its helper."""
    fields = stat_fields(pid)
    if not fields:
        return False
    parent = processes.get(int(fields[1]))
    # A helper that has outlived its rank has a parent that is not of this attempt.
    return parent is not None and rank_env not in parent and program_name(pid) != "tail"


def match_endpoints(planned, reported):
    """Return whether reported endpoints are the planned ones.

    A planned port of * was left to the launcher (--master).
    """
    return len(planned) == len(reported) and all(
        one == other or (one.endswith(":*") and one[:-1] == other.rpartition(":")[0] + ":")
        for one, other in zip(planned, reported)
    )


class RankWatch:
    """Rank processes of this node, found by scanning /proc and followed by pidfd.

    Where the kernel or Python has no pidfd, they are polled.
    """

    def __init__(self, attempt, plan, marker, by_rank):
        launcher = plan["launcher"]
        self.attempt, self.marker, self.by_rank = attempt, marker, by_rank
        self.rank_env, self.endpoints_env = launcher["rank_env"], launcher["endpoints_env"]
        self.live, self.known, self.failed_at = {}, set(), None
        # {pid: (end event, time)} of ranks whose exit status the launcher has collected.
        self.unseen = {}
        # The wording of a failed rank's end in the launcher's console, where it has one. Its groups
        # are pid and code (as subprocess has it).
        self.end_words = launcher.get("end_words")
        self.console = os.path.join(attempt, launcher.get("console") or "logs.txt")
        # On one node the launcher takes any free ports, whatever PADDLE_START_PORT says, because no
        # other node has to find them. MindSpore's and Open MPI's ranks do not get each other's
        # addresses.
        self.endpoints = None
        if self.endpoints_env and len(plan["nodes"]) > 1:
            self.endpoints = plan["endpoints"]
        self.poller = select.poll()

    def scan(self):
        """Look for ranks that have started since the last scan."""
        for pid, values in find_ranks(self.marker, self.rank_env).items():
            if pid not in self.known:
                rank = None
                if values[self.rank_env].isdigit():
                    rank = int(values[self.rank_env])
                self.follow(pid, rank, values)

    def follow(self, pid, rank, values):
        """Follow a rank from now on.

        values: the environment it was started with.
        """
        self.known.add(pid)
        try:
            handle = os.pidfd_open(pid)
            self.poller.register(handle, select.POLLIN)
        except (AttributeError, OSError):
            handle = None
        self.live[pid] = (rank, handle)
        event = self.rank_event("start", rank, pid)
        reported = [item for item in values.get(self.endpoints_env, "").split(",") if item]
        event["endpoints_as_planned"] = self.endpoints is None or match_endpoints(
            self.endpoints, reported
        )
        if not event["endpoints_as_planned"]:
            event["endpoints"] = reported
        attempt_files.append_event(self.attempt, event)
        if reported and not event["endpoints_as_planned"] and self.failed_at is None:
            # Ranks that look for each other at other addresses or ports wait in silence for ever
            # (facts 1, 3).
            print(
                f"trainyard: rank {rank} was given the endpoints {','.join(reported)};"
                f" planned are {','.join(self.endpoints)}",
                flush=True,
            )
            self.failed_at = time.monotonic()

    def rank_event(self, event, rank, pid):
        """Return the fields that each event of a rank has."""
        return {
            "event": event,
            "rank": rank,
            "local_rank": self.by_rank.get(rank, {}).get("local_rank"),
            "pid": pid,
            "time": time.time(),
        }

    def reap(self):
        """Wait a little for a rank's end, and note each with its exit code or signal."""
        if any(handle is not None for _rank, handle in self.live.values()):
            self.poller.poll(250)
        else:
            time.sleep(0.1)
        for pid, (rank, handle) in list(self.live.items()):
            fields = stat_fields(pid)
            if fields is not None and fields[0] not in (b"Z", b"X"):
                continue
            code, name = None, None
            if fields is not None:
                # The parent has not collected it yet, so the kernel still shows the wait status
                # (proc(5), field 52).
                code, name = wait_status(int(fields[49]))
            event = dict(self.rank_event("end", rank, pid), exit_code=code, signal=name)
            if handle is not None:
                self.poller.unregister(handle)
                os.close(handle)
            del self.live[pid]
            if fields is None:
                self.unseen[pid] = (event, time.monotonic())
            else:
                self.note_end(event)
        self.note_unseen_ends()

    def note_end(self, event):
        """Note a rank's end."""
        attempt_files.append_event(self.attempt, event)
        if (event["exit_code"] or event["signal"]) and self.failed_at is None:
            self.failed_at = time.monotonic()

    def have_ended(self):
        """Return whether all ranks of this node have ended."""
        return len(self.known) >= len(self.by_rank) and not self.live and not self.unseen

    def note_unseen_ends(self, last=False):
        """Note the ends that the launcher collected first.

        The console has up to a second to explain each of them. last: do not wait for it.
        """
        if not self.unseen:
            return
        codes = self.read_console_codes()
        for pid, (event, since) in list(self.unseen.items()):
            if pid in codes:
                event["exit_code"], event["signal"] = split_status(codes[pid])
            if pid in codes or last or not self.end_words or time.monotonic() - since > 1:
                del self.unseen[pid]
                self.note_end(event)

    def read_console_codes(self):
        """Return {pid: status as subprocess has it} from the end of the console."""
        if not self.end_words:
            return {}
        with open(self.console, "rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - CONSOLE_BYTES))
            text = handle.read().decode("utf-8", "replace")
        return {
            int(match.group("pid")): int(match.group("code"))
            for match in re.finditer(self.end_words, text)
        }
