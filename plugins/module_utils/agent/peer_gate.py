# SPDX-License-Identifier: Apache-2.0
"""Gate of a run: the one program that the keys of an attempt can start on a node.

It has five verbs and executes nothing that a caller sends. sshd starts it by the forced command of
a line in authorized_keys, which names run, attempt and caller (attempts/mesh_credential.py). The
words of a caller are read as in the gate of the site (mesh/mesh_gate.py).

    agent.pyz gate RUN ATTEMPT PEER     a peer with the key of that attempt, as long as it lasts
        stop N REASON                   note the caller and its reason, keep evidence of a hang,
                                        stop its unit
        beat N                          print every two seconds the attempt's state here
        pull N FOLDER --server --daemon .
                                        serve a folder of the attempt's checkpoints to rsync,
                                        read-only
        talk N          lead the peer's supervisor to the one of this node
        door N WORDS...                 start Open MPI's daemon inside its unit, where the
                                        accepted plan says mpirun
                                        N is ATTEMPT, or 0: the rehearsal before it. Where the
                                        nodes restart the run themselves, it is any attempt
"""

from __future__ import annotations

import os
import sys
import time

from ..mesh.mesh_gate import (
    DAEMON,
    FOLDER,
    NODE,
    NUMBER,
    REFUSED,
    RUN_ID,
    Refused,
    folder_in_attempt,
    identity,
    match,
    read_json,
    serve,
    split,
)
from . import attempt_files, heartbeat, openmpi, peers, priority, relay

REASONS = ("peer", "lost", "hang")
WANT = f"want: stop N {'|'.join(REASONS)}, beat N, pull N FOLDER, talk N, or door N WORDS"
PLAN_SECONDS = 60


def own_machine(credential, run, number):
    """Return what the start noted for this machine: {node, base, nodes}.

    credential: the directory of this attempt's credential, which has this program. Several machines
    may share the home directory. Raises Refused where nothing was noted.
    """
    folder = os.path.dirname(credential)
    expected = {"identity": identity(), "run": run, "number": number}
    for name in sorted(os.listdir(folder)):
        machine = read_json(os.path.join(folder, name, "machine.json"))
        if isinstance(machine, dict) and all(
            machine.get(key) == value for key, value in expected.items()
        ):
            return machine
    raise Refused("the attempt is not on this machine")


def wait_for_plan(attempt):
    """Return the accepted plan of an attempt, whose start may be under way.

    Raises Refused where it is missing after PLAN_SECONDS.
    """
    until = time.monotonic() + PLAN_SECONDS
    while True:
        try:
            return attempt_files.read_plan(attempt)[0]
        except (OSError, ValueError, KeyError, TypeError) as error:
            if time.monotonic() >= until or os.path.exists(os.path.join(attempt, "stop.json")):
                raise Refused("the attempt has no plan here") from error
            time.sleep(0.2)


def answer_call(credential, run, number, peer, words):
    """Carry out a call that came with the key of an attempt and return the exit code."""
    if len(words) < 2:
        raise Refused(WANT)
    verb, attempt_number = words[0], match(NUMBER, words[1], "an attempt")
    machine = own_machine(credential, run, number)
    check_caller(machine, number, attempt_number, peer)
    attempt = os.path.join(machine["base"], "runs", run, f"attempt-{attempt_number}")
    unit = f"trainyard-{run}-{attempt_number}.service"
    if verb == "stop" and len(words) == 3 and words[2] in REASONS:
        return peers.stop_for_peer(attempt, peer, unit, words[2])
    if verb == "beat" and len(words) == 2:
        return heartbeat.main(attempt, unit)
    if verb == "pull" and len(words) == 6 and words[3:] == DAEMON:
        return pull(machine["base"], run, attempt_number, words[2], unit)
    if verb == "talk" and len(words) == 2:
        return talk(machine, run, peer)
    if verb == "door" and len(words) > 2:
        problem = openmpi.order_problem(wait_for_plan(attempt), peer, machine["node"], words[2:])
        if problem:
            raise Refused(problem)
        return openmpi.door(attempt, words[2:])
    raise Refused(WANT)


def check_caller(machine, number, attempt_number, peer):
    """Raise Refused for a caller that is no peer, or an attempt that the key is not for.

    number: of the attempt that the key was made for. attempt_number: as text, of the one asked for.
    The nodes of a supervised run begin later attempts with the same key.
    """
    if attempt_number not in (str(number), "0") and not machine.get("supervised"):
        raise Refused(f"this key is for attempt {number}")
    if peer not in machine["nodes"] or peer == machine["node"]:
        raise Refused(f"{peer} is not a peer in this run")


def talk(machine, run, peer):
    """Lead a peer's supervisor to the one of this node, and return the exit code."""
    if not machine.get("supervised"):
        raise Refused("this run has no supervisors")
    return relay.relay(relay.socket_path(run, machine["node"]), peer)


def pull(base, run, attempt_number, folder, unit):
    """Serve a folder of the attempt's checkpoints, and return the exit code.

    unit: the attempt's. While it runs, the training has the processors first. After its end, a
    start of the next attempt waits for the files.
    """
    path = folder_in_attempt(base, run, attempt_number, match(FOLDER, folder, "a folder"))
    if not path:
        raise Refused("no such folder of checkpoints is here")
    if heartbeat.may_run(heartbeat.Unit(unit).state()):
        priority.lower()
    return serve(path)


def main(arguments, credential):
    """Dispatch a call and return the exit code.

    arguments: those of the line in authorized_keys, which no caller can change. credential: the
    directory of the attempt's credential.
    """
    os.umask(0o077)
    try:
        words = split(os.environ.get("SSH_ORIGINAL_COMMAND", ""))
        if len(arguments) == 3:
            run = match(RUN_ID, arguments[0], "a run")
            number = int(match(NUMBER, arguments[1], "an attempt"))
            peer = match(NODE, arguments[2], "a node")
            return answer_call(credential, run, number, peer, words)
    except Refused as refusal:
        print(f"trainyard: refused: {refusal}", file=sys.stderr, flush=True)
        return REFUSED
    raise SystemExit(__doc__)
