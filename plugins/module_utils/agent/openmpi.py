# SPDX-License-Identifier: Apache-2.0
"""Open MPI's daemons inside the attempt's units.

mpirun asks for a daemon on a peer, and the peer's own unit starts it. mpirun starts its daemons
(orted) by a remote shell. Over plain SSH they would run in a login session, outside the attempt's
unit, and outlive its stop. So mpirun is given this program as its remote shell, and the unit of
every other node runs it as well and waits.

    agent.pyz openmpi rsh ATTEMPT NODE HOST WORDS...
        on node 0, started by mpirun: have HOST start the daemon that WORDS describe
    door(ATTEMPT, WORDS)
        on the peer, over SSH (peer_gate.py): hand the words to the attempt's unit, wait for the
        daemon's end
    agent.pyz openmpi daemon
        on the peer, inside the unit, in work/: wait for the words, start the daemon
    agent.pyz openmpi rank COMMAND...
        a rank: run COMMAND with the environment and the log of the plan, end as it ends
    sweep(ATTEMPT)
        after the unit's end (attempt_end.py): remove what killed daemons and ranks have left in
        /tmp and /dev/shm
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

from .attempt_files import read_json

# Below the attempt's directory. It is always used by a relative path, since an address of a socket
# has no more than 107 bytes.
SOCKET = "daemon.sock"
UNIT_SECONDS = 60  # the units of all nodes start at once, but not at the same moment
ORDER_SECONDS = 180
HOLD_SECONDS = 0.5
SSH_FAILED, NOT_YET = 255, "Permission denied"
# A peer writes the output of ssh: its longest line, and the part that is kept back at the most.
LINE_BYTES, KEPT_CHARACTERS = 4096, 65536
SETTING = "OMPI_MCA_"
RANK_COMMAND = "python3 -I ../agent.pyz openmpi rank"
# The settings that mpirun (Open MPI 4.0 and 4.1) gives a daemon, with the pattern of each value.
# Any other setting loads libraries or starts programs, so it has to stand in the accepted plan.
_URI = (
    r"[0-9]{1,20}\.[0-9]{1,10}"
    r"(?:;tcp://[0-9.,]{1,600}:[0-9]{1,5}|;tcp6://\[[0-9A-Fa-f:,\]\[]{1,600}\]:[0-9]{1,5}){1,4}"
)
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


def rsh(attempt, node, host, orted_argv):
    """Have the gate of a peer start the daemon, and return the daemon's exit code."""
    nodes = read_json(attempt, "plan.json")["nodes"]
    record = read_json(attempt, "attempt.json")
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
    # mpirun expects a shell: it joins and quotes its words. Here no shell gets to see them.
    remote = ["door", str(record["attempt"]), *shlex.split(" ".join(orted_argv))]
    argv = [
        "ssh",
        "-F",
        record.get("mesh") or os.devnull,
        peer["name"],
        " ".join(shlex.quote(word) for word in remote),
    ]
    deadline = time.monotonic() + UNIT_SECONDS
    while True:
        code, refusal = call_door(argv)
        # A peer whose start is under way does not accept a login yet.
        if code != SSH_FAILED or NOT_YET not in refusal or time.monotonic() >= deadline:
            sys.stderr.write(refusal)
            return code
        time.sleep(0.5)


def call_door(argv):
    """Run ssh to its end and return its exit code and the refusal of the login.

    The refusal is kept back. Other lines go to stderr at once.
    """
    call, refusal = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE), ""
    for line in iter(lambda: call.stderr.readline(LINE_BYTES), b""):
        text = line.decode("utf-8", "replace")
        if NOT_YET in text and len(refusal) < KEPT_CHARACTERS:
            refusal += text
        else:
            sys.stderr.write(text)
            sys.stderr.flush()
    return call.wait(), refusal


def door(attempt, orted_argv):
    """Hand the words to the attempt's unit on this node, as soon as it listens.

    Return the daemon's exit code.
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
                    f"the attempt's unit does not listen within {int(UNIT_SECONDS)} s:"
                    f" {error.strerror}"
                )
            time.sleep(0.1)
    with call, call.makefile("rw", encoding="utf-8") as stream:
        stream.write(json.dumps(orted_argv) + "\n")
        stream.flush()
        line = stream.readline()
    if not line:
        return refuse("the attempt's unit ended before its daemon")
    answer = json.loads(line)
    if answer["refused"]:
        return refuse(answer["refused"])
    return answer["exit_code"]


def daemon():
    """Start mpirun's daemon inside the unit and return its exit code.

    Wait for mpirun's words first. The daemon is a child of this process.
    """
    listener = socket.socket(socket.AF_UNIX)
    os.chdir(os.pardir)
    umask = os.umask(0o177)  # no other user can open the socket, from its first moment on
    listener.bind(SOCKET)
    os.umask(umask)
    os.chdir("work")
    listener.listen(1)
    listener.settimeout(ORDER_SECONDS)
    try:
        call, _address = listener.accept()
    except socket.timeout:
        return refuse(
            f"mpirun on node 0 did not ask for this node's daemon within {int(ORDER_SECONDS)} s"
        )
    listener.close()  # one daemon, one order
    call.settimeout(None)
    with call, call.makefile("rw", encoding="utf-8") as stream:
        line = stream.readline()
        if not line.endswith("\n"):  # the door, or the connection that carries it, ended first
            return refuse(
                "mpirun on node 0 asked for this node's daemon, but the request broke off"
            )
        orted_argv = json.loads(line)
        problem, code = daemon_problem(orted_argv), 1
        if problem:
            refuse(problem)
        else:
            code = subprocess.call(daemon_argv(orted_argv), stdin=subprocess.DEVNULL)
            if code < 0:  # a signal, as a shell tells it
                code = 128 - code
        try:
            stream.write(json.dumps({"refused": problem, "exit_code": code}) + "\n")
            stream.flush()
        except OSError:  # mpirun does not always wait for the end of its daemons
            pass
    return code


def order_problem(plan, caller, node, orted_argv):
    """Return the reason why a caller's words are refused on a node, or None.

    They are accepted where they are mpirun's for this accepted plan.
    """
    if plan["launcher"].get("kind") != "first":
        return "the plan of this attempt does not start its ranks by mpirun"
    names = [item["name"] for item in plan["nodes"]]
    if node not in names[1:] or caller != names[0]:
        return "only the plan's first node asks the others for a daemon"
    return settings_problem(orted_argv, plan, node)


def settings_problem(orted_argv, plan, node):
    """Return the reason why words are not mpirun's for its daemon, or None.

    They are mpirun's where each setting has a value of its pattern or of the plan.
    """
    if (
        not isinstance(orted_argv, list)
        or not all(isinstance(word, str) for word in orted_argv)
        or orted_argv[:1] != ["orted"]
    ):
        return (
            f"mpirun's daemon is orted, found on the plan's PATH; asked for was: {orted_argv!r}."
            " An Open MPI that was built with a prefix of its own asks like this: install the"
            " distribution's (Debian: openmpi-bin) on every node, and take the other off that PATH"
        )
    planned = planned_settings(plan, node)
    rest = orted_argv[1:]
    while rest:
        option, name, value = (rest + ["", ""])[:3]
        fits = name in SETTINGS and re.fullmatch(SETTINGS[name], value) is not None
        if (
            option not in ("-mca", "--mca")
            or len(rest) < 3
            or not (fits or (name, value) in planned)
        ):
            setting = " ".join(rest[:3])
            return (
                f"orted's words are not those of this plan: {setting!r}; a setting of your own"
                " belongs into the job's env as OMPI_MCA_<name>"
            )
        rest = rest[3:]
    return None


def planned_settings(plan, node):
    """Return {(name, value)} of Open MPI's settings in the plan's environment.

    They are those of the first node and of this one.
    """
    names = (node, plan["nodes"][0]["name"])
    environments = [plan.get("env") or {}]
    environments += [item.get("env") or {} for item in plan["nodes"] if item["name"] in names]
    return {
        (name[len(SETTING) :], str(value))
        for environment in environments
        for name, value in environment.items()
        if name.startswith(SETTING)
    }


def daemon_problem(orted_argv):
    """Return the reason why the unit refuses these words, or None.

    It accepts those of the installed orted. The working directory is work/.
    """
    attempt = os.path.abspath(os.pardir)
    try:
        plan, node = read_json(attempt, "plan.json"), read_json(attempt, "attempt.json")["node"]
    except (OSError, ValueError, KeyError) as error:
        return f"the attempt's plan cannot be read: {error}"
    problem = settings_problem(orted_argv, plan, node)
    if problem:
        return problem
    if shutil.which("orted") is None:
        return f"orted is not installed (Debian: openmpi-bin); PATH is {os.environ.get('PATH')}"
    return None


def daemon_argv(orted_argv):
    """Return the words without mpirun's own remote shell.

    Its path is node 0's, and a daemon on this node starts no other one.
    """
    argv = list(orted_argv)
    while "plm_rsh_agent" in argv:
        index = argv.index("plm_rsh_agent")
        del argv[index - 1 : index + 2]
    return argv


def rank(command):
    """Run the command as a rank and end as it does.

    The working directory is the attempt's work/, wherever that is on this node.
    """
    attempt = os.path.abspath(os.pardir)
    ranks = read_json(attempt, "plan.json")["ranks"]
    remember(attempt)
    number = os.environ["OMPI_COMM_WORLD_RANK"]
    planned = next(item for item in ranks if str(item["rank"]) == number)
    environment = dict(os.environ, TRAINYARD_RANK=number, **planned["env"])
    if "MS_ROLE" in planned["env"]:
        # MindSpore takes this for "MPI does the collectives", which its CPU build cannot (facts).
        environment.pop("OMPI_COMMAND", None)
    # Each rank has a file of its own on its own node. The output that mpirun gathers on the first
    # node's console is mixed and may be cut off by its end.
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
    """Note the directory of this job's daemon, for sweep.

    Each rank of a node notes the same.
    """
    folder = os.environ.get("OMPI_MCA_orte_jobfam_session_dir")
    job = os.environ.get("OMPI_MCA_ess_base_jobid")
    if folder and job:
        path = os.path.join(attempt, "mpi.json")
        part = f"{path}.{os.getpid()}"
        with open(part, "w", encoding="utf-8") as handle:
            json.dump({"folder": folder, "job": int(job)}, handle)
        os.replace(part, path)


def sweep(attempt, memory="/dev/shm"):
    """Remove the daemon's directory and the ranks' shared memory, and return 0.

    Daemon and ranks do so themselves unless they were killed.
    """
    note = read_json(attempt, "mpi.json")
    if re.match(r"^ompi\..+/(pid|jf)\.[0-9]+$", "/".join(note["folder"].split("/")[-2:])):
        shutil.rmtree(note["folder"], ignore_errors=True)
    segment = re.compile(rf"^vader_segment\..+\.{os.getuid()}\.{note['job']:x}\.[0-9]+$")
    for name in filter(segment.match, os.listdir(memory)):
        os.unlink(os.path.join(memory, name))
    return 0


def refuse(reason):
    """Print the reason of a refusal and return the exit code."""
    print(f"trainyard: {reason}", file=sys.stderr, flush=True)
    return 1


def main(arguments):
    """Dispatch one of the three commands."""
    verb, rest = arguments[0], arguments[1:]
    if verb == "rsh":
        return rsh(rest[0], rest[1], rest[2], rest[3:])
    if verb == "daemon":
        return daemon()
    if verb == "rank":
        return rank(rest)
    raise SystemExit(__doc__)
