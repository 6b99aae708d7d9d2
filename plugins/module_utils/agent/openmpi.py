# SPDX-License-Identifier: Apache-2.0
"""Open MPI's daemons inside the attempt's units: mpirun asks for a daemon on a peer, and the peer's
own unit starts it.

mpirun starts its daemons (orted) by a remote shell. Over plain SSH they would run in a login
session, outside the attempt's unit, and outlive its stop. So mpirun is given this file as its
remote shell, and the unit of every other node runs it as well and waits. Like agent.py, which
starts it, it is copied into the attempt's directory, needs nothing but Python >= 3.8 and is
complete in itself.

    openmpi.py rsh ATTEMPT NODE HOST WORDS...   node 0, started by mpirun: have HOST start the
    daemon that WORDS describe
    openmpi.py door ATTEMPT WORDS...            on the peer, over SSH: hand the words to the
    attempt's unit, wait for the daemon's end
    openmpi.py daemon                           on the peer, inside the unit, in work/: wait for
    the words, start the daemon
    openmpi.py rank COMMAND...                  a rank: run COMMAND with the environment and the
    log that the plan has for it, end as it ends
    openmpi.py sweep ATTEMPT                    after the unit's end: remove what killed daemons
    and ranks have left in /tmp and /dev/shm
"""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

# Below the attempt's directory; always used by a relative path, since an address of a socket holds
# no more than 107 bytes.
SOCKET = "daemon.sock"
UNIT_SECONDS = 60  # the units of all nodes start at once, but not at the same moment
ORDER_SECONDS = 180
HOLD_SECONDS = 0.5
SSH_FAILED, NOT_YET = 255, "Permission denied"
# A peer writes what ssh says: its longest line, and what is kept back of it at the most.
LINE_BYTES, KEPT_CHARACTERS = 4096, 65536
SETTING = "OMPI_MCA_"
RANK_COMMAND = "python3 -I ../openmpi.py rank"
# What mpirun (Open MPI 4.0 and 4.1) gives a daemon, with the pattern of each value. Any other
# setting loads libraries or starts programs, so it has to stand in the accepted plan.
_URI = r"[0-9]{1,20}\.[0-9]{1,10}(?:;tcp://[0-9.,]{1,600}:[0-9]{1,5}|;tcp6://\[[0-9A-Fa-f:,\]\[]{1,600}\]:[0-9]{1,5}){1,4}"
SETTINGS = {
    "ess": "env",
    "ess_base_jobid": "[0-9]{1,20}",
    "ess_base_vpid": "[0-9]{1,10}",
    "ess_base_num_procs": "[0-9]{1,10}",
    "orte_node_regex": r"[A-Za-z0-9._:,@()\[\]-]{1,4000}",
    "orte_hnp_uri": _URI,
    "orte_parent_uri": _URI,
    "plm": "rsh",
    "pmix": r"\^s1,s2,cray,isolated",
    "plm_rsh_no_tree_spawn": "1",
    "orte_leave_session_attached": "1",
    "orte_fork_agent": re.escape(RANK_COMMAND),
    "plm_rsh_agent": r"[A-Za-z0-9._/+@ -]{1,600}",  # taken out again by daemon_argv
}


def rsh(attempt, node, host, words):
    """Have the gate of a peer start the daemon there; return the daemon's exit code."""
    with open(os.path.join(attempt, "plan.json"), encoding="utf-8") as handle:
        nodes = json.load(handle)["nodes"]
    with open(os.path.join(attempt, "attempt.json"), encoding="utf-8") as handle:
        record = json.load(handle)
    peer = next(
        (
            item
            for item in nodes
            if host in (item["address"], item["name"]) and item["name"] != node
        ),
        None,
    )
    if peer is None:
        return refuse(f"mpirun wants a daemon on {host}, which is no other node of the plan")
    # mpirun speaks to a shell: it joins and quotes what it says. Here no shell gets to see it.
    remote = ["door", str(record["attempt"]), *shlex.split(" ".join(words))]
    argv = [
        "ssh",
        "-F",
        record.get("mesh") or os.devnull,
        peer["name"],
        " ".join(shlex.quote(word) for word in remote),
    ]
    until = time.monotonic() + UNIT_SECONDS
    while True:
        code, said = call_door(argv)
        # A peer whose start is under way lets nobody in yet.
        if code != SSH_FAILED or NOT_YET not in said or time.monotonic() >= until:
            sys.stderr.write(said)
            return code
        time.sleep(0.5)


def call_door(argv):
    """Run ssh until its end; return its exit code and the refusal of the login, which is kept back.
    Other lines go to stderr at once.
    """
    call, kept = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE), ""
    for line in iter(lambda: call.stderr.readline(LINE_BYTES), b""):
        text = line.decode("utf-8", "replace")
        if NOT_YET in text and len(kept) < KEPT_CHARACTERS:
            kept += text
        else:
            sys.stderr.write(text)
            sys.stderr.flush()
    return call.wait(), kept


def door(attempt, words):
    """Hand the words to the attempt's unit on this node as soon as it listens; return the daemon's
    exit code.
    """
    deadline, call = time.monotonic() + UNIT_SECONDS, socket.socket(socket.AF_UNIX)
    while True:
        if os.path.exists(os.path.join(attempt, "stop.json")):
            return refuse("the attempt was stopped")
        try:
            os.chdir(attempt)
            call.connect(SOCKET)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                return refuse(
                    "the attempt's unit does not listen within %d s: %s"
                    % (UNIT_SECONDS, error.strerror)
                )
            time.sleep(0.1)
    with call, call.makefile("rw", encoding="utf-8") as stream:
        stream.write(json.dumps(words) + "\n")
        stream.flush()
        said = stream.readline()
    if not said:
        return refuse("the attempt's unit ended before its daemon")
    answer = json.loads(said)
    return refuse(answer["refused"]) if answer["refused"] else answer["exit_code"]


def daemon():
    """Wait inside the unit for mpirun's words, start its daemon as a child and return the daemon's
    exit code.
    """
    listener = socket.socket(socket.AF_UNIX)
    os.chdir(os.pardir)
    before = os.umask(0o177)  # it is nobody else's from its first moment on
    listener.bind(SOCKET)
    os.umask(before)
    os.chdir("work")
    listener.listen(1)
    listener.settimeout(ORDER_SECONDS)
    try:
        call, _address = listener.accept()
    except socket.timeout:
        return refuse(
            "mpirun on node 0 did not ask for this node's daemon within %d s" % ORDER_SECONDS
        )
    listener.close()  # one daemon, one order
    call.settimeout(None)
    with call, call.makefile("rw", encoding="utf-8") as stream:
        said = stream.readline()
        if not said.endswith("\n"):  # the door, or the connection that carries it, ended first
            return refuse(
                "mpirun on node 0 asked for this node's daemon, but the request broke off"
            )
        words = json.loads(said)
        problem, code = daemon_problem(words), 1
        if problem:
            refuse(problem)
        else:
            status = subprocess.call(daemon_argv(words), stdin=subprocess.DEVNULL)
            code = status if status >= 0 else 128 - status
        try:
            stream.write(json.dumps({"refused": problem, "exit_code": code}) + "\n")
            stream.flush()
        except OSError:  # mpirun does not always wait for its daemons' last word
            pass
    return code


def order_problem(plan, caller, node, words):
    """Return why a caller's words are not carried out on a node; None where they are mpirun's for
    this accepted plan.
    """
    if plan["launcher"].get("kind") != "first":
        return "the plan of this attempt does not start its ranks by mpirun"
    names = [item["name"] for item in plan["nodes"]]
    if node not in names[1:] or caller != names[0]:
        return "only the plan's first node asks the others for a daemon"
    return words_problem(words, plan, node)


def words_problem(words, plan, node):
    """Return why words are not those by which mpirun starts its daemon; None where they are, each
    with a value of its pattern or of the plan.
    """
    if (
        not isinstance(words, list)
        or not all(isinstance(word, str) for word in words)
        or words[:1] != ["orted"]
    ):
        return (
            f"mpirun's daemon is orted, found on the plan's PATH; asked for was: {words!r}. An Open"
            " MPI that was built with a prefix of its own asks like this: install the"
            " distribution's (Debian: openmpi-bin) on every node, and take the other off that PATH"
        )
    planned = planned_settings(plan, node)
    rest = words[1:]
    while rest:
        option, name, value = (rest + ["", ""])[:3]
        fits = name in SETTINGS and re.fullmatch(SETTINGS[name], value) is not None
        if (
            option not in ("-mca", "--mca")
            or len(rest) < 3
            or not (fits or (name, value) in planned)
        ):
            return (
                "orted's words are not those of this plan: {!r}; a setting of your own belongs into"
                " the job's env as OMPI_MCA_<name>".format(" ".join(rest[:3]))
            )
        rest = rest[3:]
    return None


def planned_settings(plan, node):
    """Return {(name, value)} of Open MPI's settings that the plan's environment has for the first
    node or for this one.
    """
    found = set()
    for environment in [plan.get("env") or {}] + [
        item.get("env") or {}
        for item in plan["nodes"]
        if item["name"] in (node, plan["nodes"][0]["name"])
    ]:
        found |= {
            (name[len(SETTING) :], str(value))
            for name, value in environment.items()
            if name.startswith(SETTING)
        }
    return found


def daemon_problem(words):
    """Return why the unit does not carry out these words; None where they are the installed
    orted's. It is asked in work/.
    """
    attempt = os.path.abspath(os.pardir)
    try:
        with open(os.path.join(attempt, "plan.json"), encoding="utf-8") as handle:
            plan = json.load(handle)
        with open(os.path.join(attempt, "attempt.json"), encoding="utf-8") as handle:
            node = json.load(handle)["node"]
    except (OSError, ValueError, KeyError, RecursionError) as error:
        return f"the attempt's plan cannot be read: {error}"
    problem = words_problem(words, plan, node)
    if problem:
        return problem
    if shutil.which("orted") is None:
        return "orted is not installed (Debian: openmpi-bin); PATH is {}".format(
            os.environ.get("PATH")
        )
    return None


def daemon_argv(words):
    """Return the words without mpirun's own remote shell: its path is node 0's, and a daemon here
    starts no other.
    """
    kept = list(words)
    while "plm_rsh_agent" in kept:
        at = kept.index("plm_rsh_agent")
        del kept[at - 1 : at + 2]
    return kept


def rank(command):
    """Run the command as a rank and end as it does; the working directory is the attempt's work/,
    wherever that is on this node.
    """
    attempt = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(attempt, "plan.json"), encoding="utf-8") as handle:
        ranks = json.load(handle)["ranks"]
    remember(attempt)
    number = os.environ["OMPI_COMM_WORLD_RANK"]
    planned = next(item for item in ranks if str(item["rank"]) == number)
    environment = dict(os.environ, TRAINYARD_RANK=number, **planned["env"])
    if "MS_ROLE" in planned["env"]:
        # MindSpore takes this for "MPI does the collectives", which its CPU build cannot (facts).
        environment.pop("OMPI_COMMAND", None)
    # Its own file, on its own node: what mpirun brings together on the first node's console is
    # mixed and may be cut off by its end.
    path = os.path.join(attempt, planned["log"])
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            child = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    except OSError as error:
        return refuse(f"{command[0]} cannot be started: {error.strerror}")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda received, _frame: child.send_signal(received))
    # mpirun collects a dead rank at once, and with that its exit code is gone from /proc before the
    # agent has read it.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    time.sleep(HOLD_SECONDS)
    status = child.wait()
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank's own core is enough
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def remember(attempt):
    """Note where this job's daemon keeps its files, for sweep; every rank of a node notes the same."""
    folder, job = (
        os.environ.get("OMPI_MCA_orte_jobfam_session_dir"),
        os.environ.get("OMPI_MCA_ess_base_jobid"),
    )
    if folder and job:
        path = os.path.join(attempt, "mpi.json")
        with open("%s.%d" % (path, os.getpid()), "w", encoding="utf-8") as handle:
            json.dump({"folder": folder, "job": int(job)}, handle)
        os.replace("%s.%d" % (path, os.getpid()), path)


def sweep(attempt, memory="/dev/shm"):
    """Remove the daemon's directory and the ranks' shared memory; they do so themselves unless they
    were killed. Return 0.
    """
    with open(os.path.join(attempt, "mpi.json"), encoding="utf-8") as handle:
        left = json.load(handle)
    if re.match(r"^ompi\..+/(pid|jf)\.[0-9]+$", "/".join(left["folder"].split("/")[-2:])):
        shutil.rmtree(left["folder"], ignore_errors=True)
    mine = re.compile(r"^vader_segment\..+\.%d\.%x\.[0-9]+$" % (os.getuid(), left["job"]))
    for name in filter(mine.match, os.listdir(memory)):
        os.unlink(os.path.join(memory, name))
    return 0


def refuse(why):
    """Say why not; return the exit code."""
    print(f"trainyard: {why}", file=sys.stderr, flush=True)
    return 1


def main(arguments):
    """Dispatch one of the five commands."""
    verb, rest = arguments[0], arguments[1:]
    if verb == "rsh":
        return rsh(rest[0], rest[1], rest[2], rest[3:])
    if verb == "door":
        return door(rest[0], rest[1:])
    if verb == "daemon":
        return daemon()
    if verb == "rank":
        return rank(rest)
    if verb == "sweep":
        return sweep(rest[0])
    raise SystemExit(__doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
