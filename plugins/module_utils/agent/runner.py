# SPDX-License-Identifier: Apache-2.0
"""Runner of an attempt on one node.

It runs the plan's command, notes the end of every rank, and stops the peers when the attempt fails
on this node. It supervises nothing: systemd does. It exists for two reasons. The launcher hides a
rank's real exit code, so that nothing else sees it (fact 6). The first failing node stops its peers
(docs/design.md, 4).
"""

from __future__ import annotations

import contextlib
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

from . import openmpi

# The archive with this program, in the attempt's directory.
ARCHIVE = "agent.pyz"
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


def open_nonblocking(path, flags):
    """Open a file without waiting.

    The training may have left a pipe in its place that no process writes into.
    """
    return os.open(path, flags | os.O_NONBLOCK)


def parse_json(text):
    """Return the value of a JSON text.

    Raises ValueError where it is not JSON, or is nested deeper than Python reads.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_json(*path):
    """Return the value in a JSON file, or raise OSError or ValueError."""
    with open(os.path.join(*path), encoding="utf-8", opener=open_nonblocking) as handle:
        return parse_json(handle.read())


def read_plan(attempt):
    """Return (plan, record) of an attempt, where record is attempt.json.

    Raises ValueError where the plan's bytes are not those that were planned.
    """
    record = read_json(attempt, "attempt.json")
    with open(os.path.join(attempt, "plan.json"), "rb", opener=open_nonblocking) as handle:
        raw = handle.read()
    digest = hashlib.sha256(raw).hexdigest()
    if digest != record["plan_sha256"]:
        raise ValueError(f"plan.json has sha256 {digest}, planned was {record['plan_sha256']}")
    return parse_json(raw), record


def planned_node(plan, node):
    """Return the plan's entry of a node."""
    return next(item for item in plan["nodes"] if item["name"] == node)


def planned_ranks(plan, node):
    """Return the plan's entries of a node's ranks."""
    return [item for item in plan["ranks"] if item["node"] == node]


def note(attempt, value):
    """Append one event to ranks.jsonl."""
    with open(os.path.join(attempt, "ranks.jsonl"), "a", encoding="utf-8") as handle:
        handle.write(json.dumps(value) + "\n")


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


def oom_kills():
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
        for counter_file in oom_counter_files(number, controllers, path):
            try:
                with open(counter_file, encoding="ascii") as handle:
                    return int(dict(line.split() for line in handle)["oom_kill"])
            except (OSError, KeyError, ValueError):
                continue
    return None


def oom_counter_files(number, controllers, path):
    """Return the files that count OOM kills for one line of /proc/self/cgroup.

    cgroup v2 has the count in memory.events, for the groups below as well. v1 has it in
    memory.oom_control (kernel 4.13).
    """
    if number == "0":
        return [f"/sys/fs/cgroup{group}/memory.events" for group in (path, "/")]
    if "memory" in controllers.split(","):
        return [f"/sys/fs/cgroup/memory{group}/memory.oom_control" for group in (path, "/")]
    return []


def raise_limits():
    """Raise the soft limits to the hard limits.

    The training gets what the node allows: a unit's soft limit of open files is 1024, whatever its
    hard limit is.
    """
    for name in (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK):
        _soft, hard = resource.getrlimit(name)
        resource.setrlimit(name, (hard, hard))


def as_planned(planned, reported):
    """Return whether reported endpoints are the planned ones.

    A planned port of * was left to the launcher (--master).
    """
    return len(planned) == len(reported) and all(
        one == other or (one.endswith(":*") and one[:-1] == other.rpartition(":")[0] + ":")
        for one, other in zip(planned, reported)
    )


class Watch:
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

    def reap(self, milliseconds):
        """Wait a little for a rank's end, and note each with its exit code or signal."""
        if any(handle is not None for _rank, handle in self.live.values()):
            self.poller.poll(milliseconds)
        else:
            time.sleep(milliseconds / 1000.0)
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
        note(self.attempt, event)
        if (event["exit_code"] or event["signal"]) and self.failed_at is None:
            self.failed_at = time.monotonic()

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


def open_log(attempt, name):
    """Open a log below the attempt's directory for appending.

    Raises ValueError where the name leads out of it.
    """
    path = os.path.realpath(os.path.join(attempt, name))
    if not path.startswith(os.path.realpath(attempt) + os.sep):
        raise ValueError(f"the log {name} is not below the attempt's directory")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


class Launcher:
    """Processes that this node starts for the plan.

    They are the launcher's command or, where the launcher is of the kind `ranks`, each rank itself.
    """

    def __init__(self, attempt, plan, mine, ranks, environment):
        """Start the processes.

        mine: this node's entry of plan["nodes"]. ranks: its entries of plan["ranks"]. `started` has
        {pid: rank} of the ranks started here.
        """
        self.started, self.processes, self.failure = {}, [], None
        if plan["launcher"]["kind"] == "ranks":
            self.start_ranks(attempt, plan, mine, ranks, environment)
            return
        argv = mine.get("argv") or plan["argv"]
        if plan["launcher"]["kind"] == "first":
            helper = [sys.executable, "-I", os.path.join(attempt, ARCHIVE), "openmpi"]
            if mine["rank"] == 0:
                # With these, mpirun starts its daemons inside the peers' units instead of over
                # plain ssh, and each rank so that its end is seen. They are settings, so that the
                # command stays the one of the upstream documentation. A rank's working directory is
                # work/ on every node.
                environment = dict(
                    environment,
                    OMPI_MCA_plm_rsh_agent=" ".join(helper + ["rsh", attempt, mine["name"]]),
                    OMPI_MCA_orte_fork_agent=openmpi.RANK_COMMAND,
                )
            else:
                argv = helper + ["daemon"]
        self.processes.append(start_process(*inside(mine, attempt, argv, environment)))

    def start_ranks(self, attempt, plan, mine, ranks, environment):
        """Start each rank with its own environment and log."""
        for entry in ranks:
            values = dict(environment, **entry["env"])
            with open_log(attempt, entry["log"]) as log:
                argv, values = inside(mine, attempt, plan["argv"], values, f"-{entry['rank']}")
                process = start_process(argv, values, log)
            self.processes.append(process)
            self.started[process.pid] = entry["rank"]

    def poll(self, live):
        """Return the exit status as subprocess has it, None while anything runs.

        It is that of the first failure, 0 without one. live: {pid: ...} of ranks whose end is not
        noted yet. They are left alone, because collecting one hides its end from Watch.
        """
        for process in self.processes:
            if process.returncode is None and process.pid not in live and process.poll():
                self.failure = self.failure or process.returncode
        if any(process.returncode is None for process in self.processes):
            return None
        return self.failure or 0


def start_process(argv, environment, log=None):
    """Start a command under exactly the plan's environment, and return it.

    Nothing of the user's manager or login shell reaches it (fact 11). The command is looked up on
    the plan's own PATH. Raises OSError, and ValueError where a word or variable cannot be given to
    a process.
    """
    return subprocess.Popen(
        argv,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log and subprocess.STDOUT,
    )


def container_name(marker, part=""):
    """Return the name of a container of this attempt.

    It has run and attempt in it, as the unit's name has.
    """
    return f"trainyard-{marker.replace('/', '-')}{part}"


def inside(mine, attempt, argv, environment, part=""):
    """Return (argv, environment) of a command as this node starts it.

    It is unchanged, or in the container that the plan has for the node. The words come ready with
    the plan (containers.py). Only the attempt's own are put in here.
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
    engine_argv = [values.get(word, word) for word in container["argv"]]
    return engine_argv + argv, dict(environment, **container["env"])


def remove_containers(attempt, node):
    """Remove what the container engine still has of this attempt.

    With Podman it is the record of a killed container. With Docker it is the container itself,
    because no unit has it.
    """
    plan, record = read_plan(attempt)
    mine = planned_node(plan, node)
    container = mine.get("container")
    if not container or not container["remove"]:
        return
    marker = f"{record['run']}/{record['attempt']}"
    parts = ["", "-scheduler"] + [f"-{item['rank']}" for item in planned_ranks(plan, node)]
    argv = container["remove"] + [container_name(marker, part) for part in parts]
    environment = dict(container["env"], HOME=mine["home"])
    if container["remove_apart"]:
        # Podman's processes ended with the unit. A record and a layer of files are left, whose
        # removal can take longer than a unit's end is given, so it gets a unit of its own.
        unit_argv = ["systemd-run", "--user", "--quiet", "--collect", "--no-block"]
        settings = [f"--setenv={name}={value}" for name, value in sorted(environment.items())]
        argv = unit_argv + settings + argv
        environment = dict(os.environ)
    try:
        # An absent name is not a failure to podman. docker reports it and goes on to the next.
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
            f"trainyard: {container['remove'][0]} cannot be started: {error.strerror}",
            flush=True,
        )


def start_all(attempt, plan, node, environment):
    """Start the plan's processes of this node and return (scheduler, launcher).

    The scheduler comes first, where the plan has it on this node, and it is missing (None)
    elsewhere. Raises OSError or ValueError.
    """
    mine = planned_node(plan, node)
    planned, scheduler = plan.get("scheduler"), None
    if planned and planned["node"] == node:
        values = dict(environment, **planned["env"])
        with open_log(attempt, planned["log"]) as log:
            argv, values = inside(mine, attempt, planned["argv"], values, "-scheduler")
            scheduler = start_process(argv, values, log)
    return scheduler, Launcher(attempt, plan, mine, planned_ranks(plan, node), environment)


def exit_event(event, status):
    """Return an event of ranks.jsonl about the end of a child.

    status: as subprocess gives it.
    """
    code, name = split_status(status)
    return {"event": event, "exit_code": code, "signal": name, "time": time.time()}


def run(attempt, node):
    """Run the plan's command of a node to its end and return systemd's exit code."""
    plan, record = read_plan(attempt)
    mine = planned_node(plan, node)
    marker = f"{record['run']}/{record['attempt']}"
    stop_times = []
    signal.signal(signal.SIGTERM, lambda *_: stop_times.append(time.monotonic()))
    if read_stop(attempt):
        # The stop came after the start had looked for its note, and before this unit was there to
        # be stopped.
        print("trainyard: stopped before it began", flush=True)
        return 0
    os.chdir(os.path.join(attempt, "work"))
    raise_limits()
    kills_before = oom_kills()
    try:
        node_env = dict(mine["env"], TRAINYARD_ATTEMPT=marker)
        scheduler, launcher = start_all(attempt, plan, node, dict(plan["env"], **node_env))
    except OSError as error:
        return report_failed_start(attempt, error.filename, error.strerror)
    except ValueError as error:
        # No process can be given a variable with "=" in its name, or a NUL.
        return report_failed_start(attempt, "the plan's command", error)
    note(
        attempt,
        {
            "event": "launched",
            "pid": launcher.processes[0].pid,
            "time": time.time(),
            "oom_kills": kills_before,
        },
    )
    by_rank = {item["rank"]: item for item in planned_ranks(plan, node)}
    watch = Watch(attempt, plan, marker, by_rank)
    for pid, rank in launcher.started.items():
        watch.follow(pid, rank, {})
    execution = Execution(attempt, plan, launcher, scheduler, watch)
    execution.follow(stop_times)
    if stop_times:
        return 0
    return execution.exit_code()


def report_failed_start(attempt, subject, reason):
    """Note that the command cannot be started and return the exit code for systemd."""
    print(f"trainyard: {subject} cannot be started: {reason}", flush=True)
    note(attempt, exit_event("launcher_end", 127))
    return 127


class Execution:
    """The started command of this node until its end: launcher, scheduler and ranks."""

    def __init__(self, attempt, plan, launcher, scheduler, watch):
        self.attempt, self.plan = attempt, plan
        self.launcher, self.scheduler, self.watch = launcher, scheduler, watch
        self.scanned_at = 0.0
        # The launcher's exit status and the time of its end, None while it runs.
        self.status, self.ended_at = None, None
        self.scheduler_lost_at = None

    def follow(self, stop_times):
        """Follow the command until it ends or has to be ended.

        stop_times: gets an entry with SIGTERM. From then on systemd ends the unit.
        """
        while True:
            now = time.monotonic()
            self.scan_when_due(now)
            self.watch.reap(100)
            self.poll_launcher()
            if self.has_ended():
                break
            if not stop_times:
                self.check_scheduler(now)
            if not stop_times and self.grace_is_over():
                # The launcher takes up to 30 s to end the others (fact 8). systemd ends all that is
                # in the unit.
                break
        self.watch.note_unseen_ends(last=True)
        if self.scheduler is not None and self.scheduler.poll() is None:
            self.scheduler.terminate()

    def scan_when_due(self, now):
        """Look for new ranks, more often while some are missing."""
        interval = SCAN_SECONDS
        if len(self.watch.known) >= len(self.watch.by_rank):
            interval = 8 * SCAN_SECONDS
        if now - self.scanned_at >= interval:
            self.watch.scan()
            self.scanned_at = now

    def poll_launcher(self):
        """Note the launcher's end once."""
        self.status = self.launcher.poll(self.watch.live)
        if self.status is not None and self.ended_at is None:
            self.ended_at = time.monotonic()
            note(self.attempt, exit_event("launcher_end", self.status))

    def has_ended(self):
        """Return whether the launcher has ended and its ranks have ended too.

        The ranks have a second for it.
        """
        if self.ended_at is None:
            return False
        return not self.watch.live or time.monotonic() - self.ended_at > 1

    def check_scheduler(self, now):
        """Note a scheduler that ended before its ranks as a failure.

        It ends automatically when all ranks have left it. Without it, ranks that have not left it
        wait in silence.
        """
        if self.watch.failed_at is not None:
            return
        if self.scheduler is None or self.scheduler.poll() is None:
            return
        code = self.scheduler.returncode
        self.scheduler_lost_at = self.scheduler_lost_at or now
        if not self.watch.known or (code and now - self.scheduler_lost_at > SCHEDULER_SECONDS):
            note(self.attempt, exit_event("scheduler_end", code))
            log = self.plan["scheduler"]["log"]
            print(f"trainyard: the scheduler ended with {code}; its log is {log}", flush=True)
            self.watch.failed_at = now

    def grace_is_over(self):
        """Return whether a failure is older than the plan's grace time."""
        failed_at = self.watch.failed_at
        return failed_at is not None and time.monotonic() - failed_at > self.plan["stop"]["grace"]

    def exit_code(self):
        """Return the exit code for systemd, never 0 after a failure."""
        if self.status is not None and self.watch.failed_at is None:
            return self.status % 256
        return (self.status or 1) % 256 or 1


def ask_for_time(seconds):
    """Have systemd wait so many seconds from now for this part of the unit's end.

    Without that it has TimeoutStopSec, as the ranks have (sd_notify(3)).
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        if address[0] == "@":
            address = "\0" + address[1:]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
            connection.sendto(b"EXTEND_TIMEOUT_USEC=%d" % int(seconds * 1e6), address)


def stop_peers(attempt, node, config):
    """Have all other nodes stop this attempt, all at once.

    Return {node: 'stopped' or the answer of ssh}.
    """
    waiting, config = peers_of(attempt, node, config)
    if not config:
        return {}  # a single node
    command = f"stop {os.path.basename(attempt).rpartition('-')[2]} peer"
    calls, answers, deadline = {}, {}, time.monotonic() + PEER_SECONDS
    while waiting:
        for name in waiting:
            argv = ["ssh", "-F", config, name, command]
            try:
                calls[name] = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )
            except OSError as error:
                answers[name] = str(error)
        for name in [name for name in waiting if name not in answers]:
            answers[name] = read_answer(calls[name], deadline)
        # A peer whose start is under way does not accept a login yet. It has to find the note when
        # it begins.
        waiting = [
            name
            for name in waiting
            if NOT_YET in answers[name] and time.monotonic() + RETRY_SECONDS < deadline
        ]
        if waiting:
            time.sleep(RETRY_SECONDS)
        for name in waiting:
            del answers[name]
    return answers


def read_answer(call, deadline):
    """Return 'stopped' or the answer of ssh to a call of a peer.

    Wait until the deadline (monotonic clock) at most, and end an endless answer.
    """
    answer, piece = b"", None
    try:
        while piece != b"":
            if not select.select([call.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                return f"no answer within {int(PEER_SECONDS)} s"
            piece = os.read(call.stdout.fileno(), ANSWER_BYTES)
            answer += piece
            if len(answer) > ANSWER_BYTES:
                return f"an answer of more than {ANSWER_BYTES} bytes"
        code = call.wait(max(0.1, deadline - time.monotonic()))
        if code == 0:
            return "stopped"
        return answer.decode("utf-8", "replace").strip()[-300:]
    except subprocess.TimeoutExpired:
        return f"no answer within {int(PEER_SECONDS)} s"
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


def carry_out(function, *arguments):
    """Call one part of an end and return its result.

    A part may fail on what the training has left in its attempt's directory. Then report that and
    return None, because the other parts must come all the same.
    """
    try:
        return function(*arguments)
    except Exception as error:
        print_if_possible(f"trainyard: {function.__name__}: {type(error).__name__}: {error}")
        return None


def print_if_possible(text):
    """Print to the console, which may lie on a full disk."""
    with contextlib.suppress(OSError):
        print(text, flush=True)


def ended(attempt, node, config=""):
    """Write exit.json from systemd's variables, and stop the peers on failure.

    The variables are $SERVICE_RESULT, $EXIT_CODE and $EXIT_STATUS, see systemd.exec(5).
    """
    carry_out(ask_for_time, PEER_SECONDS + REMOVE_SECONDS + 2 * SPARE_SECONDS)
    stop_note = read_stop(attempt)
    result = {
        "service_result": os.environ.get("SERVICE_RESULT"),
        "exit_code": os.environ.get("EXIT_CODE"),
        "exit_status": os.environ.get("EXIT_STATUS"),
        "time": time.time(),
        "stopped_by": stop_note.get("by"),
        "stopped_from": stop_note.get("from"),
        "stop_reason": stop_note.get("reason"),
        "oom_kills": carry_out(oom_kills_since, attempt),
        "peers": {},
    }
    # First of all: the peers may take a while, and this must not be lost.
    write_if_possible(attempt, "exit.json", result)
    carry_out(stop_guard, attempt)
    if not (stop_note or (result["service_result"] == "success" and launcher_succeeded(attempt))):
        result["peers"] = carry_out(stop_peers, attempt, node, config) or {}
        write_if_possible(attempt, "exit.json", result)
    carry_out(remove_containers, attempt, node)  # after the peers: an engine may take its time
    if os.path.exists(os.path.join(attempt, "mpi.json")):
        carry_out(openmpi.sweep, attempt)
    return 0


def stop_guard(attempt):
    """End the guard of this attempt without waiting for it.

    It ends automatically unless it is stuck.
    """
    try:
        record = read_json(attempt, "attempt.json")
        if record["attempt"]:  # a rehearsal has no guard
            unit = record["unit"].replace("trainyard-", "yardguard-", 1)
            argv = ["systemctl", "--user", "stop", "--no-block", unit]
            subprocess.call(
                argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=SPARE_SECONDS
            )
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        pass


def read_notes(attempt):
    """Return the events of ranks.jsonl, [] where they cannot be read.

    A line that is torn (a full disk) does not affect the others.
    """
    events = []
    path = os.path.join(attempt, "ranks.jsonl")
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_nonblocking) as handle:
            for line in handle:
                try:
                    events.append(parse_json(line))
                except ValueError:
                    continue
    except OSError:
        pass
    return [event for event in events if is_event(event)]


def is_event(value):
    """Return whether a line of ranks.jsonl is an event.

    A training can write the file, so rank and pid may be anything.
    """
    return isinstance(value, dict) and all(
        value.get(key) is None or type(value[key]) is int for key in ("rank", "pid")
    )


def launcher_succeeded(attempt):
    """Return whether the launcher ended with exit code 0.

    A unit that was stopped from outside has the result 'success' as well.
    """
    return any(
        event.get("event") == "launcher_end" and event.get("exit_code") == 0
        for event in read_notes(attempt)
    )


def oom_kills_since(attempt):
    """Return the number of OOM kills in this control group since the launcher's start.

    Return None where it is not known.
    """
    before, now = None, None
    for event in read_notes(attempt):
        if event.get("event") == "launched":
            before, now = event.get("oom_kills"), oom_kills()
            break
    if before is None or now is None:
        return None
    return max(0, now - before)


def read_stop(attempt):
    """Return stop.json, which names the origin of this attempt's stop, else {}."""
    try:
        value = read_json(attempt, "stop.json")
    except (OSError, ValueError):
        return {}
    if not isinstance(value, dict):
        return {}
    return value


def write(attempt, name, value):
    """Write a JSON file of the attempt's directory in one step."""
    path = os.path.join(attempt, name)
    part = f"{path}.{os.getpid()}.part"  # several peers may stop this node at once
    try:
        with open(part, "w", encoding="utf-8") as handle:
            json.dump(value, handle, sort_keys=True)
        os.replace(part, path)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise


def write_if_possible(attempt, name, value):
    """Write as `write` does, but go on without the file on a full disk.

    Peers and units are stopped all the same.
    """
    try:
        write(attempt, name, value)
    except OSError as error:
        print_if_possible(f"trainyard: {name} cannot be written: {error.strerror}")


def keep_evidence(attempt):
    """Write the stacks of the ranks while they still run, within EVIDENCE_SECONDS."""
    program = os.path.join(attempt, ARCHIVE)
    try:
        node = read_json(attempt, "attempt.json")["node"]
        subprocess.run(
            [sys.executable, "-I", program, "stacks", attempt, node],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=EVIDENCE_SECONDS,
        )
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        pass  # the stop goes on without it


def stop(attempt, by, unit, reason="peer"):
    """Stop the unit for the peer `by`, and return the exit code.

    Note first that the peer stopped this attempt, so that a start that is still under way gives up.
    reason: peer (it failed there), lost (a node has vanished) or hang. After a hang the ranks'
    state is kept first, as soon as the note is written.
    """
    os.umask(0o077)
    os.makedirs(attempt, exist_ok=True)
    if not read_stop(attempt) and not os.path.exists(os.path.join(attempt, "exit.json")):
        stop_note = {"by": "peer", "from": by, "reason": reason, "time": time.time()}
        write_if_possible(attempt, "stop.json", stop_note)
        if reason == "hang":
            keep_evidence(attempt)
    # The guard that called this node waits for this word before its own node stops.
    print_if_possible("kept")
    environment = dict(os.environ, XDG_RUNTIME_DIR=f"/run/user/{os.getuid()}")
    state = subprocess.run(
        ["systemctl", "--user", "is-active", unit], env=environment, stdout=subprocess.PIPE
    ).stdout
    if state.strip() == b"deactivating":
        # It is ending already and may be telling this node the same at this moment: to wait for
        # each other would be a deadlock.
        return 0
    code = subprocess.call(
        ["systemctl", "--user", "stop", unit], env=environment, stderr=subprocess.DEVNULL
    )
    # A unit that is not loaded has nothing to stop, which systemctl says with 5.
    if code in (0, 5):
        return 0
    return 1
