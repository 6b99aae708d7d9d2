# SPDX-License-Identifier: Apache-2.0
"""Calls to the other nodes of an attempt to stop it, and the stop that a peer asks for."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

from . import attempt_files, device_report, systemd

PEER_SECONDS = 15
RETRY_SECONDS = 1.0
NOT_YET = "Permission denied"
ANSWER_BYTES = 65536
EVIDENCE_SECONDS = 6


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
        plan, record = attempt_files.read_plan(attempt)
        config, names = config or record.get("mesh"), [item["name"] for item in plan["nodes"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        if not config:
            raise
        names = attempt_files.read_json(os.path.dirname(config), "machine.json")["nodes"]
    return [name for name in names if name != node], config


def keep_evidence(attempt):
    """Write what the devices and the ranks show while these still run.

    Both take EVIDENCE_SECONDS at most, and are looked at together.
    """
    report = device_report.start(attempt, "hang")
    dump_stacks(attempt)
    device_report.await_end(report)


def dump_stacks(attempt):
    """Write the stacks of the ranks while they still run, within EVIDENCE_SECONDS."""
    program = os.path.join(attempt, attempt_files.ARCHIVE)
    try:
        node = attempt_files.read_json(attempt, "attempt.json")["node"]
        subprocess.run(
            [sys.executable, "-I", program, "stacks", attempt, node],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=EVIDENCE_SECONDS,
        )
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        pass  # the stop goes on without it


def stop_for_peer(attempt, by, unit, reason="peer"):
    """Stop the unit for the peer `by`, and return the exit code.

    Note first that the peer stopped this attempt, so that a start that is still under way gives up.
    reason: peer (it failed there), lost (a node has vanished) or hang. After a hang the ranks'
    state is kept first, as soon as the note is written.
    """
    os.umask(0o077)
    os.makedirs(attempt, exist_ok=True)
    if not attempt_files.read_stop(attempt) and not os.path.exists(
        os.path.join(attempt, "exit.json")
    ):
        stop_note = {"by": "peer", "from": by, "reason": reason, "time": time.time()}
        attempt_files.write_if_possible(attempt, "stop.json", stop_note)
        if reason == "hang":
            keep_evidence(attempt)
    # The guard that called this node waits for this word before its own node stops.
    attempt_files.print_if_possible("kept")
    environment = systemd.manager_environment()
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
