# SPDX-License-Identifier: Apache-2.0
"""Gate of a node: the one program that its peers' keys can start here.

It has a few verbs and executes nothing that a caller sends. sshd starts it by the forced command of
a line in authorized_keys, which names the caller. The caller's own words are in
SSH_ORIGINAL_COMMAND. They are split without a shell, and every word is compared with a pattern. The
file is complete in itself and needs nothing but Python >= 3.8. The programs of an attempt lie
beside it.

    gate.py PEER                        a peer with a certificate of the site, for what a
                                        controller directs
        identify                        print this machine's id and host name
        pull RUN ATTEMPT FOLDER --server --daemon .
                                        serve a folder of checkpoints to rsync, read-only
    gate.py --run RUN ATTEMPT PEER      a peer with the key of that attempt, as long as it lasts
                                        (mesh_credential.py)
        stop N REASON                   note the caller and its reason, keep evidence of a hang,
                                        stop its unit
        beat N                          print every two seconds the attempt's state here
        door N WORDS...                 start Open MPI's daemon inside its unit, where the
                                        accepted plan says mpirun
                                        N is ATTEMPT, or 0: the rehearsal before it
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

LONGEST = 16384
REFUSED = 77
REASONS = ("peer", "lost", "hang")
IDENTITY = ("/etc/machine-id", "/proc/sys/kernel/hostname")
PLAN_SECONDS = 60
RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4}\Z")
NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,4})\Z")
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}\Z")
FOLDER = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9._@+=-]{0,120}(?:/[A-Za-z0-9_][A-Za-z0-9._@+=-]{0,120}){0,8}\Z"
)
PATH = "/usr/local/bin:/usr/bin:/bin"
# The one module of rsync's daemon that a caller can name.
MODULE = "checkpoint"
RSYNC = """\
use chroot = no
log file = /dev/null
max verbosity = 0
list = no
reverse lookup = no
numeric ids = yes
uid = {uid}
gid = {gid}
refuse options = delete remove-source-files copy-links copy-dirlinks copy-unsafe-links \
links devices specials write-devices copy-devices
[{module}]
path = {path}
read only = yes
munge symlinks = yes
"""


class Refused(Exception):
    """A call that this gate does not carry out. The message goes to the caller."""


def split(text):
    """Return the words of a caller's command.

    Raises Refused for one that is not a command of ours.
    """
    if not text or len(text) > LONGEST or not all(" " <= char <= "~" for char in text):
        raise Refused("the mesh has verbs and no shell")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Refused("the words cannot be split") from error


def match(pattern, word, what):
    """Return a word that fits its pattern.

    what: the word's name. Raises Refused for another one.
    """
    if not pattern.match(word):
        raise Refused(f"not {what}")
    return word


def read_json(path):
    """Return the content of a JSON file, {} where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return json.load(handle)
    except (OSError, ValueError, RecursionError):
        return {}


def identity():
    """Return the digest by which this machine knows its own entry in a shared home.

    It is the same as mesh_credential.identity.
    """
    parts = []
    for path in IDENTITY:
        with open(path, encoding="ascii", errors="replace") as handle:
            parts.append(handle.read().strip())
    return hashlib.sha256("\n".join([*parts, ""]).encode()).hexdigest()


def beside(name):
    """Return a program that lies beside this one.

    With -I Python does not look here automatically. Raises Refused where it is missing.
    """
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name + ".py")
    if not os.path.exists(path):
        raise Refused(f"this run does not use {name}")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- what a controller directs


def identify():
    """Print this machine's id and host name, each on a line."""
    for path in IDENTITY:
        with open(path, encoding="ascii", errors="replace") as handle:
            print(handle.read().strip(), flush=True)
    return 0


def served_folder(run, number, folder):
    """Return the folder of checkpoints that a caller may read.

    Raises Refused for any other one. It is below an attempt of this machine, and the attempt's own
    plan names it.
    """
    mesh = os.path.dirname(os.path.abspath(__file__))
    bases = read_json(os.path.join(mesh, f"bases-{identity()[:16]}.json"))
    if not isinstance(bases, list):
        bases = []
    for base in bases:
        attempt = os.path.join(str(base), "runs", run, f"attempt-{number}")
        record = read_json(os.path.join(attempt, "attempt.json"))
        plan = read_json(os.path.join(attempt, "plan.json"))
        try:
            known = record["run"] == run and str(record["attempt"]) == number
            folders = plan["suite"]["checkpoints"]["folders"]
        except (KeyError, TypeError):
            continue
        path = os.path.realpath(os.path.join(attempt, folder))
        # A link that leads elsewhere is not served.
        inside = path == os.path.join(os.path.realpath(attempt), folder)
        if known and folder in folders and inside:
            return path
    raise Refused("no such folder of checkpoints is here")


def pull(words):
    """Run rsync's daemon for one folder of checkpoints, read-only.

    rsync itself keeps what a caller asks for below that folder.
    """
    if len(words) != 6 or words[3:] != ["--server", "--daemon", "."]:
        raise Refused("want: pull RUN ATTEMPT FOLDER --server --daemon .")
    run, number = match(RUN_ID, words[0], "a run"), match(NUMBER, words[1], "an attempt")
    folder = served_folder(run, number, match(FOLDER, words[2], "a folder"))
    if "\n" in folder or "%" in folder:
        raise Refused("the folder's path cannot be served")
    environment = {
        name: os.environ[name] for name in ("SSH_CONNECTION", "SSH_CLIENT") if name in os.environ
    }
    with tempfile.NamedTemporaryFile("w", prefix="trainyard-rsyncd-", encoding="utf-8") as handle:
        handle.write(RSYNC.format(module=MODULE, path=folder, uid=os.getuid(), gid=os.getgid()))
        handle.flush()
        argv = ["rsync", "--server", "--daemon", "--config=" + handle.name, "."]
        return subprocess.call(argv, env=dict(environment, PATH=PATH, LC_ALL="C"))


def of_site(words):
    """Carry out a call that came with a certificate of the site."""
    if words == ["identify"]:
        return identify()
    if words[:1] == ["pull"]:
        return pull(words[1:])
    raise Refused("not a verb of the mesh: a certificate permits identify and pull")


# --- one attempt


def own_machine(run, number):
    """Return what the start noted for this machine: {node, base, nodes}.

    Several machines may share this home. Raises Refused where nothing was noted.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    wanted = {"identity": identity(), "run": run, "number": number}
    for name in sorted(os.listdir(folder)):
        machine = read_json(os.path.join(folder, name, "machine.json"))
        if isinstance(machine, dict) and all(
            machine.get(key) == value for key, value in wanted.items()
        ):
            return machine
    raise Refused("the attempt is not on this machine")


def wait_for_plan(agent, attempt):
    """Return the accepted plan of an attempt, whose start may be under way.

    Raises Refused where it is missing after PLAN_SECONDS.
    """
    until = time.monotonic() + PLAN_SECONDS
    while True:
        try:
            return agent.read_plan(attempt)[0]
        except (OSError, ValueError, KeyError, TypeError) as error:
            if time.monotonic() >= until or os.path.exists(os.path.join(attempt, "stop.json")):
                raise Refused("the attempt has no plan here") from error
            time.sleep(0.2)


def of_run(run, number, peer, words):
    """Carry out a call that came with the key of an attempt."""
    if len(words) < 2:
        raise Refused("not a verb of a run: stop, beat, door")
    verb, attempt_number = words[0], match(NUMBER, words[1], "an attempt")
    if attempt_number not in (str(number), "0"):
        raise Refused(f"this key is for attempt {number}")
    machine = own_machine(run, number)
    if peer not in machine["nodes"] or peer == machine["node"]:
        raise Refused(f"{peer} is not a peer in this run")
    attempt = os.path.join(machine["base"], "runs", run, f"attempt-{attempt_number}")
    unit = f"trainyard-{run}-{attempt_number}.service"
    if verb == "stop" and len(words) == 3 and words[2] in REASONS:
        return beside("agent").stop(attempt, peer, unit, words[2])
    if verb == "beat" and len(words) == 2:
        return beside("guard_beat").main(attempt, unit)
    if verb == "door" and len(words) > 2:
        openmpi = beside("openmpi")
        plan = wait_for_plan(beside("agent"), attempt)
        problem = openmpi.order_problem(plan, peer, machine["node"], words[2:])
        if problem:
            raise Refused(problem)
        return openmpi.door(attempt, words[2:])
    raise Refused(f"want: stop N {'|'.join(REASONS)}, beat N, or door N WORDS")


def main(arguments):
    """Dispatch a call.

    arguments: those of the line in authorized_keys, which no caller can change.
    """
    os.umask(0o077)
    sys.dont_write_bytecode = True
    try:
        words = split(os.environ.get("SSH_ORIGINAL_COMMAND", ""))
        if len(arguments) == 4 and arguments[0] == "--run":
            run = match(RUN_ID, arguments[1], "a run")
            number = int(match(NUMBER, arguments[2], "an attempt"))
            return of_run(run, number, match(NODE, arguments[3], "a node"), words)
        if len(arguments) == 1:
            match(NODE, arguments[0], "a node")
            return of_site(words)
    except Refused as refusal:
        print(f"trainyard: refused: {refusal}", file=sys.stderr, flush=True)
        return REFUSED
    raise SystemExit(__doc__)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        os._exit(0)
