# SPDX-License-Identifier: Apache-2.0
"""The node's side of an attempt: run the plan's command, note how every rank ends, stop the peers when the attempt fails here.

This file is copied into the attempt's directory and is what the attempt's systemd unit executes; it needs nothing but Python >= 3.8 and is
complete in itself. It supervises nothing: systemd does. It is there because a rank's real exit code is known to nobody else (the launcher
hides it, fact 6), and because the first failing node tells its peers (design, decision 4).

    agent.py run ATTEMPT NODE       ExecStart: start the command, follow its ranks
    agent.py ended ATTEMPT NODE     ExecStopPost: write exit.json, tell the peers
    agent.py stop ATTEMPT BY        on a peer: note who stopped the attempt and stop its unit
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import select
import shlex
import signal
import subprocess
import sys
import time

SCAN_SECONDS = 0.25
PEER_SECONDS = 15


def read_plan(attempt):
    """Return the plan; raise ValueError where its bytes are not those that were planned."""
    with open(os.path.join(attempt, "attempt.json"), encoding="utf-8") as handle:
        record = json.load(handle)
    with open(os.path.join(attempt, "plan.json"), "rb") as handle:
        raw = handle.read()
    found = hashlib.sha256(raw).hexdigest()
    if found != record["plan_sha256"]:
        raise ValueError("plan.json has sha256 %s, planned was %s" % (found, record["plan_sha256"]))
    return json.loads(raw), record


def note(attempt, value):
    """Append one event to ranks.jsonl."""
    with open(os.path.join(attempt, "ranks.jsonl"), "a", encoding="utf-8") as handle:
        handle.write(json.dumps(value) + "\n")


def wait_status(status):
    """Return (exit code, signal name) of a wait status; one of them is None."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return None, signal.Signals(number).name
        except ValueError:
            return None, "SIG%d" % number
    return os.WEXITSTATUS(status), None


def stat_fields(pid):
    """Return the fields of /proc/<pid>/stat that follow the command's name, or None where the process is gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as handle:
            return handle.read().rpartition(b")")[2].split()
    except OSError:
        return None


def environment_of(pid):
    """Return a process's environment as it was started with; {} where it cannot be read."""
    try:
        with open("/proc/%d/environ" % pid, "rb") as handle:
            pairs = (item.partition(b"=") for item in handle.read().split(b"\0") if b"=" in item)
            return {os.fsdecode(key): os.fsdecode(value) for key, _eq, value in pairs}
    except OSError:
        return {}


def find_ranks(marker, rank_env):
    """Return {pid: environment} of this attempt's rank processes.

    A rank is a process of this attempt that carries the launcher's rank variable while its parent does not: the launcher has none, and a
    rank's own helpers (data loaders) have a parent that has it.
    """
    mine = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            values = environment_of(int(name))
            if values.get("TRAINYARD_ATTEMPT") == marker:
                mine[int(name)] = values
    ranks = {}
    for pid, values in mine.items():
        fields = stat_fields(pid)
        parent = mine.get(int(fields[1])) if fields else None  # None as well for a helper that has outlived its rank
        if rank_env in values and parent is not None and rank_env not in parent:
            ranks[pid] = values
    return ranks


def raise_limits():
    """Give the training what the node allows: a unit's soft limit of open files is 1024, whatever its hard limit is."""
    for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        _soft, hard = resource.getrlimit(name)
        resource.setrlimit(name, (hard, hard))


class Watch:
    """The rank processes of this node: seen by scanning /proc, followed by pidfd (polled where the kernel or Python has none)."""

    def __init__(self, attempt, plan, marker, by_rank):
        self.attempt, self.marker, self.by_rank = attempt, marker, by_rank
        self.rank_env, self.endpoints_env = plan["launcher"]["rank_env"], plan["launcher"]["endpoints_env"]
        self.live, self.known, self.failed_at, self.checked_ports = {}, set(), None, False
        # On one node the launcher takes any free ports, whatever PADDLE_START_PORT says; nobody else has to find them.
        self.endpoints = plan["endpoints"] if len(plan["nodes"]) > 1 else None
        self.poller = select.poll()

    def scan(self):
        """Look for ranks that have started since the last look."""
        for pid, values in find_ranks(self.marker, self.rank_env).items():
            if pid in self.known:
                continue
            self.known.add(pid)
            rank = int(values[self.rank_env]) if values[self.rank_env].isdigit() else None
            planned = self.by_rank.get(rank, {})
            try:
                handle = os.pidfd_open(pid)
                self.poller.register(handle, select.POLLIN)
            except (AttributeError, OSError):
                handle = None
            self.live[pid] = (rank, handle)
            event = {"event": "start", "rank": rank, "local_rank": planned.get("local_rank"), "pid": pid, "time": time.time()}
            reported = [item for item in values.get(self.endpoints_env, "").split(",") if item]
            event["endpoints_as_planned"] = self.endpoints in (None, reported)
            if not event["endpoints_as_planned"]:
                event["endpoints"] = reported
            note(self.attempt, event)
            if reported and not event["endpoints_as_planned"] and self.failed_at is None:
                # Ranks that look for each other at other addresses or ports wait in silence for ever (facts 1, 3).
                print(
                    "trainyard: rank %s was given the endpoints %s; planned are %s" % (rank, ",".join(reported), ",".join(self.endpoints)),
                    flush=True,
                )
                self.failed_at = time.monotonic()

    def reap(self, milliseconds):
        """Wait a little for a rank to end; note every end with its real exit code or signal."""
        if any(handle is not None for _rank, handle in self.live.values()):
            self.poller.poll(milliseconds)
        else:
            time.sleep(milliseconds / 1000.0)
        for pid, (rank, handle) in list(self.live.items()):
            fields = stat_fields(pid)
            if fields is not None and fields[0] not in (b"Z", b"X"):
                continue
            # The parent has not collected it yet, so the kernel still tells the wait status (proc(5), field 52).
            code, name = wait_status(int(fields[49])) if fields is not None else (None, None)
            event = {
                "event": "end",
                "rank": rank,
                "local_rank": self.by_rank.get(rank, {}).get("local_rank"),
                "pid": pid,
                "time": time.time(),
                "exit_code": code,
                "signal": name,
            }
            note(self.attempt, event)
            if handle is not None:
                self.poller.unregister(handle)
                os.close(handle)
            del self.live[pid]
            if (code or name) and self.failed_at is None:
                self.failed_at = time.monotonic()


def run(attempt, node):
    """Run the plan's command for one node until it ends; return the exit code for systemd."""
    plan, record = read_plan(attempt)
    mine = next(item for item in plan["nodes"] if item["name"] == node)
    by_rank = {item["rank"]: item for item in plan["ranks"] if item["node"] == node}
    marker = "%s/%s" % (record["run"], record["attempt"])
    environment = dict(plan["env"], **mine["env"])
    environment["TRAINYARD_ATTEMPT"] = marker
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(time.monotonic()))
    os.chdir(os.path.join(attempt, "work"))
    raise_limits()
    # The environment is the plan's, whole: nothing that the user's manager or login shell has set reaches the training (fact 11).
    # The command is looked up on the plan's own PATH.
    try:
        launcher = subprocess.Popen(plan["argv"], env=environment, stdin=subprocess.DEVNULL)
    except OSError as error:
        print("trainyard: %s cannot be started: %s" % (plan["argv"][0], error.strerror), flush=True)
        note(attempt, {"event": "launcher_end", "exit_code": 127, "signal": None, "time": time.time()})
        return 127
    note(attempt, {"event": "launched", "pid": launcher.pid, "time": time.time()})
    watch, scanned, ended = Watch(attempt, plan, marker, by_rank), 0.0, None
    while True:
        now = time.monotonic()
        if now - scanned >= (SCAN_SECONDS if len(watch.known) < len(by_rank) else 8 * SCAN_SECONDS):
            watch.scan()
            scanned = now
        watch.reap(100)
        status = launcher.poll()
        if status is not None and ended is None:
            ended = time.monotonic()
            note(
                attempt,
                {
                    "event": "launcher_end",
                    "exit_code": status if status >= 0 else None,
                    "signal": None if status >= 0 else wait_status(-status)[1],
                    "time": time.time(),
                },
            )
        if ended is not None and (not watch.live or time.monotonic() - ended > 1):
            break
        if watch.failed_at is not None and not stopping and time.monotonic() - watch.failed_at > plan["stop"]["grace"]:
            break  # the launcher takes up to 30 s to end the others (fact 8); systemd ends all that is in the unit
    if stopping:
        return 0
    return (
        (launcher.returncode % 256 or 0)
        if launcher.returncode is not None and watch.failed_at is None
        else (launcher.returncode or 1) % 256 or 1
    )


def stop_peers(plan, node, attempt, record):
    """Tell every other node, all at once, to stop this attempt; return {node: 'stopped' or what ssh said}."""
    mine = next(item for item in plan["nodes"] if item["name"] == node)
    with open(os.path.abspath(__file__), "rb") as handle:
        source = handle.read()
    calls = {}
    for peer in plan["nodes"]:
        if peer["name"] == node:
            continue
        there = "%s/runs/%s/attempt-%d" % (peer["base"], record["run"], record["attempt"])
        # The peer may not have its copy of this file yet, so it gets it on standard input.
        remote = ["/usr/bin/env", "python3", "-I", "-", "stop", there, node, record["unit"]]
        argv = ["ssh", "-F", "%s/mesh/config" % mine["base"], peer["name"], " ".join(shlex.quote(word) for word in remote)]
        try:
            calls[peer["name"]] = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError as error:
            calls[peer["name"]] = error
    told = {}
    for name, call in calls.items():
        if isinstance(call, OSError):
            told[name] = str(call)
            continue
        try:
            said, _none = call.communicate(source, timeout=PEER_SECONDS)
            told[name] = "stopped" if call.returncode == 0 else said.decode("utf-8", "replace").strip()[-300:]
        except subprocess.TimeoutExpired:
            call.kill()
            told[name] = "no answer within %d s" % PEER_SECONDS
    return told


def ended(attempt, node):
    """Write exit.json from what systemd tells ($SERVICE_RESULT, $EXIT_CODE, $EXIT_STATUS: systemd.exec(5)); stop the peers on failure."""
    stopped = read_stop(attempt)
    result = {
        "service_result": os.environ.get("SERVICE_RESULT"),
        "exit_code": os.environ.get("EXIT_CODE"),
        "exit_status": os.environ.get("EXIT_STATUS"),
        "time": time.time(),
        "stopped_by": stopped.get("by"),
        "stopped_from": stopped.get("from"),
        "peers": {},
    }
    write(attempt, "exit.json", result)  # first: the peers may take a while, and this must not be lost
    if stopped or (result["service_result"] == "success" and launcher_succeeded(attempt)):
        return 0
    plan, record = read_plan(attempt)
    result["peers"] = stop_peers(plan, node, attempt, record)
    write(attempt, "exit.json", result)
    return 0


def launcher_succeeded(attempt):
    """Return whether the launcher ended with exit code 0; a unit that somebody stopped from outside also has the result 'success'."""
    try:
        with open(os.path.join(attempt, "ranks.jsonl"), encoding="utf-8") as handle:
            return any(event.get("event") == "launcher_end" and event.get("exit_code") == 0 for event in map(json.loads, handle))
    except (OSError, ValueError):
        return False


def read_stop(attempt):
    """Return stop.json: who asked for this attempt's end; {} where nobody did."""
    try:
        with open(os.path.join(attempt, "stop.json"), encoding="utf-8") as handle:
            return json.load(handle)
    except (OSError, ValueError):
        return {}


def write(attempt, name, value):
    """Write a JSON file of the attempt's directory in one step."""
    path = os.path.join(attempt, name)
    with open(path + ".part", "w", encoding="utf-8") as handle:
        json.dump(value, handle, sort_keys=True)
    os.replace(path + ".part", path)


def stop(attempt, by, unit):
    """Note that the peer `by` stopped this attempt, so that a start still under way gives up, and stop the unit; return its exit code."""
    os.umask(0o077)
    os.makedirs(attempt, exist_ok=True)
    if not read_stop(attempt) and not os.path.exists(os.path.join(attempt, "exit.json")):
        write(attempt, "stop.json", {"by": "peer", "from": by, "time": time.time()})
    environment = dict(os.environ, XDG_RUNTIME_DIR="/run/user/%d" % os.getuid())
    # A unit that is not loaded has nothing to stop, which systemctl says with 5.
    return 0 if subprocess.call(["systemctl", "--user", "stop", unit], env=environment, stderr=subprocess.DEVNULL) in (0, 5) else 1


def main(arguments):
    """Dispatch one of the three commands."""
    verb = arguments[0]
    if verb == "run":
        return run(arguments[1], arguments[2])
    if verb == "ended":
        return ended(arguments[1], arguments[2])
    if verb == "stop":
        return stop(arguments[1], arguments[2], arguments[3])
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
