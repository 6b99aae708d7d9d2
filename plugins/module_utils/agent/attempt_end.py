# SPDX-License-Identifier: Apache-2.0
"""End of an attempt's unit on one node: exit.json, the peers, containers and leftovers.

systemd calls it after the unit's last process has ended, however that came (ExecStopPost).
"""

from __future__ import annotations

import os
import socket
import subprocess
import time

from . import (
    attempt_files,
    device_report,
    launcher,
    memory_killer,
    openmpi,
    peers,
    relay,
    systemd,
)

SPARE_SECONDS = 5
# The archive of the replicator, on the one node that has it.
REPLICATOR = "replicator.pyz"


def ask_for_time(seconds):
    """Have systemd wait so many seconds from now for this part of the unit's end.

    Without that it has TimeoutStopSec, as the ranks have (sd_notify(3)).
    """
    systemd.notify(b"EXTEND_TIMEOUT_USEC=%d" % int(seconds * 1e6))


def call_safely(function, *arguments):
    """Call one part of an end and return its result.

    A part may fail on what the training has left in its attempt's directory. Then report that and
    return None, because the other parts must come all the same.
    """
    try:
        return function(*arguments)
    except Exception as error:
        attempt_files.print_if_possible(
            f"trainyard: {function.__name__}: {type(error).__name__}: {error}"
        )
        return None


def finish(attempt, node, config=""):
    """Write exit.json from systemd's variables, and see that the peers stop on failure.

    The variables are $SERVICE_RESULT, $EXIT_CODE and $EXIT_STATUS, see systemd.exec(5).
    """
    seconds = peers.PEER_SECONDS + launcher.REMOVE_SECONDS + device_report.SECONDS
    call_safely(ask_for_time, seconds + 2 * SPARE_SECONDS)
    stop_note = attempt_files.read_stop(attempt)
    result = {
        "service_result": os.environ.get("SERVICE_RESULT"),
        "exit_code": os.environ.get("EXIT_CODE"),
        "exit_status": os.environ.get("EXIT_STATUS"),
        "time": time.time(),
        "stopped_by": stop_note.get("by"),
        "stopped_from": stop_note.get("from"),
        "stop_reason": stop_note.get("reason"),
        "oom_kills": call_safely(memory_killer.count_kills_since_start, attempt),
        "peers": {},
    }
    if is_swept_after_success(attempt, result, stop_note):
        result.update(service_result="success", swept=result["service_result"])
    # First of all: the peers may take a while, and this must not be lost.
    attempt_files.write_if_possible(attempt, "exit.json", result)
    call_safely(stop_companions, attempt)
    ended_well = result["service_result"] == "success" and attempt_files.launcher_succeeded(attempt)
    report = None
    if stop_note.get("by") in (None, "peer", "guard") and not (ended_well and not stop_note):
        # A process of its own, so the peers are stopped meanwhile, whatever becomes of it.
        report = call_safely(device_report.start, attempt, "end")
    is_over = stop_note or ended_well
    if not (is_over or call_safely(is_supervised, attempt, node, result)):
        result["peers"] = call_safely(peers.stop_peers, attempt, node, config) or {}
        attempt_files.write_if_possible(attempt, "exit.json", result)
    call_safely(device_report.await_end, report)
    call_safely(
        launcher.remove_containers, attempt, node
    )  # after the peers: an engine may take its time
    if os.path.exists(os.path.join(attempt, "mpi.json")):
        call_safely(openmpi.sweep, attempt)
    return 0


def is_supervised(attempt, node, result):
    """Return whether the supervisors of the run end the attempt on the other nodes.

    They have connections, and a call of this node would only delay the next attempt. The one here
    must answer, lead this attempt and have a leader. They act after this unit's end, so it must end
    soon: without a container and a report about devices. A unit that was stopped from outside may
    have been stopped together with its supervisor. A training that answers in its place has its own
    run end later: the guards of the other nodes notice that (guard.py).
    """
    plan, record = attempt_files.read_plan(attempt)
    container = attempt_files.planned_node(plan, node).get("container")
    is_slow = plan.get("accelerator") != "cpu" or container
    if is_slow or result["service_result"] != "exit-code":
        return False
    place = os.path.join(os.path.dirname(attempt), "supervisor", node)
    status = attempt_files.read_mapping(place, "status.json")
    is_led = status.get("leader") and status.get("is_open")
    if not record["attempt"] or status.get("attempt") != record["attempt"] or not is_led:
        return False
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(SPARE_SECONDS)
        link.connect(relay.socket_path(record["run"], node))
    return True


def is_swept_after_success(attempt, result, stop_note):
    """Return whether the training had ended well before systemd swept what it left behind.

    A process that outlives the launcher and ignores SIGTERM makes the unit's result `timeout`, and
    one that the kernel kills makes it `oom-kill`. $EXIT_CODE and $EXIT_STATUS are of the agent,
    which exits with 0 only after a launcher that did. A stop from outside is no success.
    """
    return (
        not stop_note
        and result["service_result"] not in (None, "success")
        and (result["exit_code"], result["exit_status"]) == ("exited", "0")
        and attempt_files.launcher_succeeded(attempt)
        and not attempt_files.failed_ranks(attempt)
    )


def stop_companions(attempt):
    """End the guard and the replicator of this attempt without waiting for them.

    They end automatically unless they are stuck.
    """
    try:
        record = attempt_files.read_json(attempt, "attempt.json")
        if record["attempt"]:  # a rehearsal has no guard
            names = ["yardguard-"]
            if os.path.exists(os.path.join(attempt, REPLICATOR)):
                names.append("yardreplica-")
            units = [record["unit"].replace("trainyard-", name, 1) for name in names]
            argv = ["systemctl", "--user", "stop", "--no-block", *units]
            subprocess.call(
                argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=SPARE_SECONDS
            )
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
        pass
