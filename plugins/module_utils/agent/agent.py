# SPDX-License-Identifier: Apache-2.0
"""The node's side of an attempt: run the plan's command, note how every rank ends, stop the peers
when the attempt fails here.

This file is copied into the attempt's directory and is what the attempt's systemd unit executes; it
needs nothing but Python >= 3.8 and is complete in itself (mpirun alone needs openmpi.py beside it).
It supervises nothing: systemd does. It is there because a rank's real exit code is known to nobody
else (the launcher hides it, fact 6), and because the first failing node tells its peers (design,
decision 4).

    agent.py run ATTEMPT NODE       ExecStart: start the command, follow its ranks
    agent.py ended ATTEMPT NODE [CONFIG]
                                    ExecStopPost: write exit.json, tell the peers, whom ssh
                                    reaches by that configuration
    agent.py stop ATTEMPT BY UNIT [REASON]
                                    on a peer: note who stopped the attempt and why, keep
                                    evidence of a hang, and stop its unit
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time

SCAN_SECONDS = 0.25
PEER_SECONDS = 15
REMOVE_SECONDS = 30
SPARE_SECONDS = 5
RETRY_SECONDS = 1.0
NOT_YET = "Permission denied"
EVIDENCE_SECONDS = 6
SCHEDULER_SECONDS = 5
CONSOLE_BYTES = 65536
ANSWER_BYTES = 65536


def at_once(path, flags):
    """Open a file without waiting: where the training has left a pipe in its place, nobody writes
    into it.
    """
    return os.open(path, flags | os.O_NONBLOCK)


def parse(text):
    """Return what JSON says; raise ValueError also where it is nested deeper than Python reads."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_json(*path):
    """Return what a JSON file says; raise OSError or ValueError."""
    with open(os.path.join(*path), encoding="utf-8", opener=at_once) as handle:
        return parse(handle.read())


def read_plan(attempt):
    """Return the plan; raise ValueError where its bytes are not those that were planned."""
    record = read_json(attempt, "attempt.json")
    with open(os.path.join(attempt, "plan.json"), "rb", opener=at_once) as handle:
        raw = handle.read()
    found = hashlib.sha256(raw).hexdigest()
    if found != record["plan_sha256"]:
        raise ValueError(
            "plan.json has sha256 {}, planned was {}".format(found, record["plan_sha256"])
        )
    return parse(raw), record


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
    """Return the fields of /proc/<pid>/stat that follow the command's name, or None where the
    process is gone.
    """
    try:
        with open("/proc/%d/stat" % pid, "rb") as handle:
            return handle.read().rpartition(b")")[2].split()
    except OSError:
        return None


def name_of(pid):
    """Return the name of a process's program; None where the process is gone."""
    try:
        with open("/proc/%d/comm" % pid, encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
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

    A rank is a process of this attempt that carries the launcher's rank variable while its parent
    does not: the launcher has none, and a rank's own helpers (data loaders) have a parent that has
    it. msrun shows its ranks' logs by a tail that has the rank's environment.
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
        parent = (
            mine.get(int(fields[1])) if fields else None
        )  # None as well for a helper that has outlived its rank
        if (
            rank_env in values
            and parent is not None
            and rank_env not in parent
            and name_of(pid) != "tail"
        ):
            ranks[pid] = values
    return ranks


def oom_kills():
    """Return how many processes of our own control group the kernel has killed for want of memory
    so far; None where it does not tell.

    cgroup v2 has it in memory.events, for the groups below as well; v1 in memory.oom_control
    (kernel 4.13). In a container the path may be the host's, and then the group is what is mounted
    at the root.
    """
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as handle:
            groups = [line.rstrip("\n").split(":", 2) for line in handle]
    except OSError:
        return None
    for number, controllers, path in groups:
        base, name = (
            ("/sys/fs/cgroup", "memory.events")
            if number == "0"
            else ("/sys/fs/cgroup/memory", "memory.oom_control")
        )
        for place in (path, "/") if number == "0" or "memory" in controllers.split(",") else ():
            try:
                with open(f"{base}{place}/{name}", encoding="ascii") as handle:
                    return int(dict(line.split() for line in handle)["oom_kill"])
            except (OSError, KeyError, ValueError):
                continue
    return None


def raise_limits():
    """Give the training what the node allows: a unit's soft limit of open files is 1024, whatever
    its hard limit is.
    """
    for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        _soft, hard = resource.getrlimit(name)
        resource.setrlimit(name, (hard, hard))


def as_planned(planned, reported):
    """Whether reported endpoints are the planned ones; a planned port of * was left to the launcher
    (--master).
    """
    return len(planned) == len(reported) and all(
        one == other or (one.endswith(":*") and one[:-1] == other.rpartition(":")[0] + ":")
        for one, other in zip(planned, reported)
    )


class Watch:
    """The rank processes of this node: seen by scanning /proc, followed by pidfd (polled where the
    kernel or Python has none).
    """

    def __init__(self, attempt, plan, marker, by_rank):
        self.attempt, self.marker, self.by_rank = attempt, marker, by_rank
        self.rank_env, self.endpoints_env = (
            plan["launcher"]["rank_env"],
            plan["launcher"]["endpoints_env"],
        )
        self.live, self.known, self.unseen, self.failed_at = {}, set(), {}, None
        # How the launcher words a failed rank's end in its console, with the groups pid and code
        # (as subprocess has it), where it does.
        self.end_words, self.console = (
            plan["launcher"].get("end_words"),
            os.path.join(attempt, plan["launcher"].get("console") or "logs.txt"),
        )
        # On one node the launcher takes any free ports, whatever PADDLE_START_PORT says; nobody
        # else has to find them. MindSpore's and Open MPI's ranks are not told each other's
        # addresses.
        self.endpoints = (
            plan["endpoints"] if self.endpoints_env and len(plan["nodes"]) > 1 else None
        )
        self.poller = select.poll()

    def scan(self):
        """Look for ranks that have started since the last look."""
        for pid, values in find_ranks(self.marker, self.rank_env).items():
            if pid not in self.known:
                self.begin(
                    pid,
                    int(values[self.rank_env]) if values[self.rank_env].isdigit() else None,
                    values,
                )

    def begin(self, pid, rank, values):
        """Follow a rank from now on; values: the environment it was started with."""
        self.known.add(pid)
        try:
            handle = os.pidfd_open(pid)
            self.poller.register(handle, select.POLLIN)
        except (AttributeError, OSError):
            handle = None
        self.live[pid] = (rank, handle)
        local_rank = self.by_rank.get(rank, {}).get("local_rank")
        event = {
            "event": "start",
            "rank": rank,
            "local_rank": local_rank,
            "pid": pid,
            "time": time.time(),
        }
        reported = [item for item in values.get(self.endpoints_env, "").split(",") if item]
        event["endpoints_as_planned"] = self.endpoints is None or as_planned(
            self.endpoints, reported
        )
        if not event["endpoints_as_planned"]:
            event["endpoints"] = reported
        note(self.attempt, event)
        if reported and not event["endpoints_as_planned"] and self.failed_at is None:
            # Ranks that look for each other at other addresses or ports wait in silence for ever
            # (facts 1, 3).
            print(
                "trainyard: rank {} was given the endpoints {}; planned are {}".format(
                    rank, ",".join(reported), ",".join(self.endpoints)
                ),
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
            # The parent has not collected it yet, so the kernel still tells the wait status
            # (proc(5), field 52).
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
            if handle is not None:
                self.poller.unregister(handle)
                os.close(handle)
            del self.live[pid]
            if fields is None:
                self.unseen[pid] = (event, time.monotonic())
            else:
                self.end(event)
        self.ask_launcher()

    def end(self, event):
        """Note a rank's end."""
        note(self.attempt, event)
        if (event["exit_code"] or event["signal"]) and self.failed_at is None:
            self.failed_at = time.monotonic()

    def ask_launcher(self, last=False):
        """Note the ends that the launcher was quicker to collect than we to see, with what it says
        of them within a second.
        """
        if not self.unseen:
            return
        told = {}
        if self.end_words:
            with open(self.console, "rb") as handle:
                handle.seek(max(0, os.fstat(handle.fileno()).st_size - CONSOLE_BYTES))
                text = handle.read().decode("utf-8", "replace")
            told = {
                int(match.group("pid")): int(match.group("code"))
                for match in re.finditer(self.end_words, text)
            }
        for pid, (event, since) in list(self.unseen.items()):
            if pid in told:
                event["exit_code"], event["signal"] = (
                    (told[pid], None) if told[pid] >= 0 else wait_status(-told[pid])
                )
            if pid in told or last or not self.end_words or time.monotonic() - since > 1:
                del self.unseen[pid]
                self.end(event)


def log_file(attempt, name):
    """Open a log below the attempt's directory for appending; raise ValueError where the name leads
    out of it.
    """
    path = os.path.realpath(os.path.join(attempt, name))
    if not path.startswith(os.path.realpath(attempt) + os.sep):
        raise ValueError(f"the log {name} is not below the attempt's directory")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


class Launcher:
    """What this node starts for the plan: the launcher's command, or, where the launcher is of the
    kind `ranks`, every rank itself.
    """

    def __init__(self, attempt, plan, mine, ranks, environment):
        """Start it; ranks: this node's entries of plan["ranks"]. `started` holds {pid: rank} of
        ranks started here.
        """
        kind, self.started, self.processes, self.failure = plan["launcher"]["kind"], {}, [], None
        if kind == "ranks":
            for entry in ranks:
                with log_file(attempt, entry["log"]) as log:
                    process = begin(
                        *inside(
                            mine,
                            attempt,
                            plan["argv"],
                            dict(environment, **entry["env"]),
                            "-%d" % entry["rank"],
                        ),
                        log,
                    )
                self.processes.append(process)
                self.started[process.pid] = entry["rank"]
            return
        argv = mine.get("argv") or plan["argv"]
        if kind == "first":
            helper = [sys.executable, "-I", os.path.join(attempt, "openmpi.py")]
            if mine["rank"] == 0:
                # By these mpirun starts its daemons inside the peers' units instead of over plain
                # ssh, and every rank so that its end is seen. They are settings and no words of the
                # command, which stays the document's. A rank's working directory is work/ on every
                # node.
                environment = dict(
                    environment,
                    OMPI_MCA_plm_rsh_agent=" ".join(helper + ["rsh", attempt, mine["name"]]),
                    OMPI_MCA_orte_fork_agent="python3 -I ../openmpi.py rank",
                )
            else:
                argv = helper + ["daemon"]
        self.processes.append(begin(*inside(mine, attempt, argv, environment)))

    def poll(self, live):
        """Return the exit status as subprocess has it: None while anything runs, else that of the
        first failure, 0 without one.

        live: {pid: ...} of ranks whose end is not noted yet. They are left alone, because
        collecting one hides its end from Watch.
        """
        for process in self.processes:
            if process.returncode is None and process.pid not in live and process.poll():
                self.failure = self.failure or process.returncode
        return (
            (self.failure or 0)
            if all(process.returncode is not None for process in self.processes)
            else None
        )


def begin(argv, environment, log=None):
    """Start a command under the plan's environment, whole: nothing of the user's manager or login
    shell reaches it (fact 11).

    The command is looked up on the plan's own PATH. Raises OSError, and ValueError where a word or
    variable cannot be given to a process.
    """
    return subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log and subprocess.STDOUT,
    )


def container_name(marker, part=""):
    """Return the name of a container of this attempt; it holds run and attempt, as the unit's does."""
    return "trainyard-{}{}".format(marker.replace("/", "-"), part)


def inside(mine, attempt, argv, environment, part=""):
    """Return (argv, environment) of a command as this node starts it: unchanged, or in the
    container that the plan has for the node.

    The words come ready with the plan (containers.py); only the attempt's own are put in here.
    """
    container = mine.get("container")
    if not container:
        return argv, environment
    values = {
        "{work}": os.path.join(attempt, "work"),
        "{name}": container_name(environment["TRAINYARD_ATTEMPT"], part),
        "{attempt}:{attempt}": f"{attempt}:{attempt}",
        "HOME={attempt}": "HOME=" + attempt,
    }
    for folder in container.get("folders") or ():
        os.makedirs(folder, mode=0o700, exist_ok=True)
    return [values.get(word, word) for word in container["argv"]] + argv, dict(
        environment, **container["env"]
    )


def remove_containers(attempt, node):
    """Remove what the engine still holds of this attempt: Podman's record of a killed container;
    Docker's container itself, which no unit holds.
    """
    plan, record = read_plan(attempt)
    mine = next(item for item in plan["nodes"] if item["name"] == node)
    container = mine.get("container")
    if not container or not container["remove"]:
        return
    parts = ["", "-scheduler"] + [
        "-%d" % item["rank"] for item in plan["ranks"] if item["node"] == node
    ]
    names = [
        container_name("{}/{}".format(record["run"], record["attempt"]), part) for part in parts
    ]
    environment, argv = dict(container["env"], HOME=mine["home"]), container["remove"] + names
    if container["remove_apart"]:
        # Podman's processes ended with the unit. What is left is a record and a layer of files,
        # whose removal can take longer than a unit's end is given, so it gets a unit of its own.
        words = ["systemd-run", "--user", "--quiet", "--collect", "--no-block"]
        argv = (
            words + ["--setenv={}={}".format(*pair) for pair in sorted(environment.items())] + argv
        )
        environment = dict(os.environ)
    try:
        # Names that are not there are no failure to podman; docker says so and goes on to the next.
        subprocess.call(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=REMOVE_SECONDS,
        )
    except OSError as error:
        print(
            "trainyard: {} cannot be started: {}".format(container["remove"][0], error.strerror),
            flush=True,
        )


def start_all(attempt, plan, node, environment):
    """Start the scheduler where the plan has it on this node, then the launcher; return (scheduler
    or None, launcher).

    Raises OSError or ValueError.
    """
    mine = next(item for item in plan["nodes"] if item["name"] == node)
    planned, scheduler = plan.get("scheduler"), None
    if planned and planned["node"] == node:
        with log_file(attempt, planned["log"]) as log:
            scheduler = begin(
                *inside(
                    mine,
                    attempt,
                    planned["argv"],
                    dict(environment, **planned["env"]),
                    "-scheduler",
                ),
                log,
            )
    return scheduler, Launcher(
        attempt, plan, mine, [item for item in plan["ranks"] if item["node"] == node], environment
    )


def exit_event(event, status):
    """Return an event of ranks.jsonl about the end of a child; status: as subprocess gives it."""
    return {
        "event": event,
        "exit_code": status if status >= 0 else None,
        "signal": None if status >= 0 else wait_status(-status)[1],
        "time": time.time(),
    }


def run(attempt, node):
    """Run the plan's command for one node until it ends; return the exit code for systemd."""
    plan, record = read_plan(attempt)
    mine = next(item for item in plan["nodes"] if item["name"] == node)
    by_rank = {item["rank"]: item for item in plan["ranks"] if item["node"] == node}
    marker = "{}/{}".format(record["run"], record["attempt"])
    stopping = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(time.monotonic()))
    if read_stop(attempt):
        # The stop came between the start's look for its note and this unit, which it did not see
        # yet.
        print("trainyard: stopped before it began", flush=True)
        return 0
    os.chdir(os.path.join(attempt, "work"))
    raise_limits()
    killed_before = oom_kills()
    try:
        scheduler, launcher = start_all(
            attempt, plan, node, dict(plan["env"], **dict(mine["env"], TRAINYARD_ATTEMPT=marker))
        )
    except (
        OSError,
        ValueError,
    ) as error:  # ValueError: no process can be given a variable with "=" in its name, or a NUL
        what, why = (
            (error.filename, error.strerror)
            if isinstance(error, OSError)
            else ("the plan's command", error)
        )
        print(f"trainyard: {what} cannot be started: {why}", flush=True)
        note(attempt, exit_event("launcher_end", 127))
        return 127
    note(
        attempt,
        {
            "event": "launched",
            "pid": launcher.processes[0].pid,
            "time": time.time(),
            "oom_kills": killed_before,
        },
    )
    watch, scanned, ended, status, lost = (
        Watch(attempt, plan, marker, by_rank),
        0.0,
        None,
        None,
        None,
    )
    for pid, rank in launcher.started.items():
        watch.begin(pid, rank, {})
    while True:
        now = time.monotonic()
        if now - scanned >= (SCAN_SECONDS if len(watch.known) < len(by_rank) else 8 * SCAN_SECONDS):
            watch.scan()
            scanned = now
        watch.reap(100)
        status = launcher.poll(watch.live)
        if status is not None and ended is None:
            ended = time.monotonic()
            note(attempt, exit_event("launcher_end", status))
        if ended is not None and (not watch.live or time.monotonic() - ended > 1):
            break
        if (
            scheduler is not None
            and scheduler.poll() is not None
            and not stopping
            and watch.failed_at is None
        ):
            # It ends by itself when all ranks have left it; without it, those that have not wait in
            # silence.
            lost = lost or now
            if not watch.known or (scheduler.returncode and now - lost > SCHEDULER_SECONDS):
                note(attempt, exit_event("scheduler_end", scheduler.returncode))
                print(
                    "trainyard: the scheduler ended with %d; its log is %s"
                    % (scheduler.returncode, plan["scheduler"]["log"]),
                    flush=True,
                )
                watch.failed_at = now
        if (
            watch.failed_at is not None
            and not stopping
            and time.monotonic() - watch.failed_at > plan["stop"]["grace"]
        ):
            # the launcher takes up to 30 s to end the others (fact 8); systemd ends all that is in
            # the unit
            break
    watch.ask_launcher(last=True)
    if scheduler is not None and scheduler.poll() is None:
        scheduler.terminate()
    if stopping:
        return 0
    return (
        status % 256 if status is not None and watch.failed_at is None else (status or 1) % 256 or 1
    )


def ask_for_time(seconds):
    """Have systemd wait so many seconds from now for this part of the unit's end; else it has
    TimeoutStopSec as the ranks have (sd_notify(3)).
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
            line.sendto(
                b"EXTEND_TIMEOUT_USEC=%d" % int(seconds * 1e6),
                "\0" + address[1:] if address[0] == "@" else address,
            )


def stop_peers(attempt, node, config):
    """Tell every other node, all at once, to stop this attempt; return {node: 'stopped' or what ssh
    said}.
    """
    waiting, config = peers_of(attempt, node, config)
    if not config:
        return {}  # one node alone
    words = "stop {} peer".format(os.path.basename(attempt).rpartition("-")[2])
    calls, told, until = {}, {}, time.monotonic() + PEER_SECONDS
    while waiting:
        for name in waiting:
            argv = ["ssh", "-F", config, name, words]
            try:
                calls[name] = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )
            except OSError as error:
                told[name] = str(error)
        for name in [name for name in waiting if name not in told]:
            told[name] = answer_of(calls[name], until)
        # A peer whose start is under way lets nobody in yet; it has to find the note when it
        # begins.
        waiting = [
            name
            for name in waiting
            if NOT_YET in told[name] and time.monotonic() + RETRY_SECONDS < until
        ]
        time.sleep(RETRY_SECONDS if waiting else 0)
        for name in waiting:
            del told[name]
    return told


def answer_of(call, until):
    """Return 'stopped' or what ssh said of a call to a peer, waiting until a time of the monotonic
    clock at most. End an endless answer.
    """
    said, piece = b"", None
    try:
        while piece != b"":
            if not select.select([call.stdout], [], [], max(0, until - time.monotonic()))[0]:
                return "no answer within %d s" % PEER_SECONDS
            piece = os.read(call.stdout.fileno(), ANSWER_BYTES)
            said += piece
            if len(said) > ANSWER_BYTES:
                return "an answer of more than %d bytes" % ANSWER_BYTES
        code = call.wait(max(0.1, until - time.monotonic()))
        return "stopped" if code == 0 else said.decode("utf-8", "replace").strip()[-300:]
    except subprocess.TimeoutExpired:
        return "no answer within %d s" % PEER_SECONDS
    finally:
        call.kill()
        call.stdout.close()
        call.wait()


def peers_of(attempt, node, config):
    """Return (names of the other nodes, the ssh configuration that reaches them).

    The training can write plan and record of its attempt. Where they are not what the start has
    written, the credential knows the nodes as well.
    """
    try:
        plan, record = read_plan(attempt)
        config, names = config or record.get("mesh"), [item["name"] for item in plan["nodes"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        if not config:
            raise
        names = read_json(os.path.dirname(config), "machine.json")["nodes"]
    return [name for name in names if name != node], config


def carry_out(what, *arguments):
    """Call one part of an end; the others come all the same where it fails on what the training has
    left in its attempt's directory.
    """
    try:
        return what(*arguments)
    except Exception as error:
        try:
            print(f"trainyard: {what.__name__}: {type(error).__name__}: {error}", flush=True)
        except OSError:
            pass  # the console lies on a full disk
        return None


def ended(attempt, node, config=""):
    """Write exit.json from what systemd tells ($SERVICE_RESULT, $EXIT_CODE, $EXIT_STATUS:
    systemd.exec(5)); stop the peers on failure.
    """
    carry_out(ask_for_time, PEER_SECONDS + REMOVE_SECONDS + 2 * SPARE_SECONDS)
    stopped = read_stop(attempt)
    result = {
        "service_result": os.environ.get("SERVICE_RESULT"),
        "exit_code": os.environ.get("EXIT_CODE"),
        "exit_status": os.environ.get("EXIT_STATUS"),
        "time": time.time(),
        "stopped_by": stopped.get("by"),
        "stopped_from": stopped.get("from"),
        "stop_reason": stopped.get("reason"),
        "oom_kills": carry_out(oom_kills_since, attempt),
        "peers": {},
    }
    written(
        attempt, "exit.json", result
    )  # first: the peers may take a while, and this must not be lost
    carry_out(stop_guard, attempt)
    if not (stopped or (result["service_result"] == "success" and launcher_succeeded(attempt))):
        result["peers"] = carry_out(stop_peers, attempt, node, config) or {}
        written(attempt, "exit.json", result)
    carry_out(remove_containers, attempt, node)  # after the peers: an engine may take its time
    if os.path.exists(os.path.join(attempt, "mpi.json")):
        subprocess.call(
            [sys.executable, "-I", os.path.join(attempt, "openmpi.py"), "sweep", attempt]
        )
    return 0


def stop_guard(attempt):
    """End the guard of this attempt, which goes by itself unless it is stuck; nobody waits for it."""
    try:
        unit = read_json(attempt, "attempt.json")["unit"].replace("trainyard-", "yardguard-", 1)
        if os.path.exists(os.path.join(attempt, "guard.py")):
            quiet, argv = subprocess.DEVNULL, ["systemctl", "--user", "stop", "--no-block", unit]
            subprocess.call(argv, stdin=quiet, stderr=quiet, timeout=SPARE_SECONDS)
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        pass


def read_notes(attempt):
    """Return the events of ranks.jsonl; [] where they cannot be read. A line that is torn (a full
    disk) costs the others nothing.
    """
    events = []
    try:
        with open(
            os.path.join(attempt, "ranks.jsonl"), encoding="utf-8", errors="replace", opener=at_once
        ) as handle:
            for line in handle:
                try:
                    events.append(parse(line))
                except ValueError:
                    continue
    except OSError:
        pass
    return [event for event in events if isinstance(event, dict)]


def launcher_succeeded(attempt):
    """Return whether the launcher ended with exit code 0; a unit that somebody stopped from outside
    also has the result 'success'.
    """
    return any(
        event.get("event") == "launcher_end" and event.get("exit_code") == 0
        for event in read_notes(attempt)
    )


def oom_kills_since(attempt):
    """Return how many processes of our control group the kernel has killed for want of memory since
    the launcher was started, or None.
    """
    before = next(
        (
            event.get("oom_kills")
            for event in read_notes(attempt)
            if event.get("event") == "launched"
        ),
        None,
    )
    now = oom_kills()
    return None if before is None or now is None else max(0, now - before)


def read_stop(attempt):
    """Return stop.json: who asked for this attempt's end; {} where nobody did."""
    try:
        found = read_json(attempt, "stop.json")
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(attempt, name, value):
    """Write a JSON file of the attempt's directory in one step."""
    path = os.path.join(attempt, name)
    part = "%s.%d.part" % (path, os.getpid())  # several peers may tell this node the same at once
    try:
        with open(part, "w", encoding="utf-8") as handle:
            json.dump(value, handle, sort_keys=True)
        os.replace(part, path)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise


def written(attempt, name, value):
    """Write as `write` does; on a full disk go on without: peers are told and units stopped all the
    same.
    """
    try:
        write(attempt, name, value)
    except OSError as error:
        try:
            print(f"trainyard: {name} cannot be written: {error.strerror}", flush=True)
        except OSError:
            pass  # the console lies on the same disk


def keep_evidence(attempt):
    """Have guard_evidence.py, where it lies in the attempt, look at the ranks while they can still
    be asked; it has EVIDENCE_SECONDS for it.
    """
    program, quiet = os.path.join(attempt, "guard_evidence.py"), subprocess.DEVNULL
    try:
        argv = [
            sys.executable,
            "-I",
            "-B",
            program,
            attempt,
            read_json(attempt, "attempt.json")["node"],
        ]
        subprocess.run(argv, stdin=quiet, stdout=quiet, stderr=quiet, timeout=EVIDENCE_SECONDS)
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        pass  # the stop goes on without it


def stop(attempt, by, unit, reason="peer"):
    """Note that the peer `by` stopped this attempt, so that a start still under way gives up, and
    stop the unit; return its exit code.

    reason: peer (it failed there), lost (a node has vanished) or hang: then what the ranks do is
    kept first, as soon as the note is written.
    """
    os.umask(0o077)
    os.makedirs(attempt, exist_ok=True)
    if not read_stop(attempt) and not os.path.exists(os.path.join(attempt, "exit.json")):
        written(
            attempt, "stop.json", {"by": "peer", "from": by, "reason": reason, "time": time.time()}
        )
        if reason == "hang":
            keep_evidence(attempt)
    try:
        print(
            "kept", flush=True
        )  # the guard that told us waits for this word before its own node stops
    except OSError:
        pass
    environment = dict(os.environ, XDG_RUNTIME_DIR="/run/user/%d" % os.getuid())
    state = subprocess.run(
        ["systemctl", "--user", "is-active", unit], env=environment, stdout=subprocess.PIPE
    ).stdout
    if state.strip() == b"deactivating":
        # it is ending by itself and may be telling us the same at this moment: to wait for each
        # other would be a deadlock
        return 0
    # A unit that is not loaded has nothing to stop, which systemctl says with 5.
    return (
        0
        if subprocess.call(
            ["systemctl", "--user", "stop", unit], env=environment, stderr=subprocess.DEVNULL
        )
        in (0, 5)
        else 1
    )


def main(arguments):
    """Dispatch one of the three commands."""
    verb = arguments[0]
    if verb == "run":
        return run(arguments[1], arguments[2])
    if verb == "ended":
        return ended(*arguments[1:4])
    if verb == "stop":
        return stop(*arguments[1:5])
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
