# SPDX-License-Identifier: Apache-2.0
"""Report of a node's devices and its kernel's log, when an attempt hangs or has ended badly.

    agent.pyz devices ATTEMPT NODE MOMENT     MOMENT: hang (the ranks run) or end

It writes ATTEMPT/evidence/devices.json, which attempts/device_findings.py reads. A driver that
hangs holds a program so that SIGKILL does not end it. So each program has a thread, none is waited
for, and the report is a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time

from . import attempt_files

NAME = "evidence/devices.json"
ANSWER_SECONDS, SECONDS = 4.0, 5.0  # for an answer, and for all of them
TEXT_BYTES, LINE_BYTES = 1 << 16, 400
FIELDS = (
    "index,uuid,pci.bus_id,name,memory.used,memory.total,utilization.gpu,"
    "ecc.errors.uncorrected.volatile.total"
)
# An older driver refuses these.
MORE_FIELDS = ",retired_pages.pending,remapped_rows.pending,remapped_rows.failure"
KERNEL = re.compile(
    rb"\[? *([0-9]+\.[0-9]+)\]? ?(.*(?:NVRM|Xid|mlx[45]_|EDAC|Hardware Error|oom-kill"
    rb"|[Oo]ut of memory|Memory failure|I/O error"
    rb"|(?:EXT4-fs|XFS|nvme).*(?i:error|corrupt|shut|timeout|reset|abort)).*)"
)


def ask(*argv, keep=lambda line: line):
    """Return {command, code, text} of a program's answer.

    keep(line) returns what is kept of a line. code: None without an end, also where the answer is
    longer than what is kept.
    """
    answer = {"command": " ".join(argv), "code": None, "text": ""}
    deadline = time.monotonic() + ANSWER_SECONDS
    try:
        call = subprocess.Popen(
            argv, env=dict(os.environ, LC_ALL="C"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        return dict(answer, code=127, text=error.strerror)
    kept, rest, piece = b"", b"", b"-"
    while (
        piece
        and len(kept) < TEXT_BYTES
        and select.select([call.stdout], [], [], max(0, deadline - time.monotonic()))[0]
    ):
        piece = os.read(call.stdout.fileno(), TEXT_BYTES)
        *lines, rest = (rest[-TEXT_BYTES:] + (piece or b"\n")).split(b"\n")
        for line in filter(None, map(keep, lines)):
            if len(kept) < TEXT_BYTES:
                kept += line[:LINE_BYTES] + b"\n"
    with contextlib.suppress(subprocess.TimeoutExpired):
        answer["code"] = call.wait(0.1 + (not piece))
    call.kill()
    return dict(answer, text=kept.decode("utf-8", "replace"))


def ask_nvidia():
    """Return nvidia-smi's answer about every device."""
    words = "nvidia-smi", "--format=csv,nounits", "--query-gpu=" + FIELDS
    answer = ask(*words[:2], words[2] + MORE_FIELDS)
    if "is not a valid field" in answer["text"]:
        answer = ask(*words)
    return answer


def ask_npu():
    """Return npu-smi's answer, also where only the driver's folder has the tool."""
    answer = ask("npu-smi", "info")
    if answer["code"] == 127:
        answer = ask("/usr/local/bin/npu-smi", "info")
    return answer


def ask_kernel(since):
    """Return the lines about faults in the kernel's log, each with its unix time.

    A user may read the journal, the ring buffer (kernel.dmesg_restrict) or neither.
    """

    def keep(line, offset=0.0):
        match = KERNEL.match(line)
        if match and float(match.group(1)) + offset >= since:
            return b"%.6f %s" % (float(match.group(1)) + offset, match.group(2))

    options = "-kqo", "short-unix", "--no-pager", f"--since=@{since:.0f}"
    answer = ask("journalctl", *options, keep=keep)
    if answer["code"] or not answer["text"]:
        booted = time.time() - time.monotonic()
        answer = ask("dmesg", keep=lambda line: keep(line, booted))
    return answer


def ask_ras(address):
    """Return the answer of NCCL's RAS, which a rank of this node serves."""
    answer = {"command": "NCCL RAS " + address, "code": 1, "text": ""}
    host, _colon, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), port), ANSWER_SECONDS) as connection:
            connection.sendall(b"TIMEOUT 3\nVERBOSE STATUS\n")
            while len(answer["text"]) < TEXT_BYTES:
                piece = connection.recv(TEXT_BYTES)
                answer["text"] += piece.decode("utf-8", "replace")
                if not piece:
                    return dict(answer, code=0)
    except (OSError, ValueError) as error:
        answer["text"] += str(error)
    return answer


def questions(plan, environment, moment, since):
    """Return {name: (function that gets an answer, *arguments)} for a plan's accelerator."""
    asked = {"kernel": (ask_kernel, since)}
    if plan.get("accelerator") == "gpu":
        apps = "--query-compute-apps=gpu_uuid,pid,used_memory"
        asked.update(
            devices=(ask_nvidia,), processes=(ask, "nvidia-smi", "--format=csv,nounits", apps)
        )
        if moment == "hang":
            asked["ras"] = ask_ras, environment.get("NCCL_RAS_ADDR", "127.0.0.1:28028")
    elif plan.get("accelerator") == "ascend":
        asked["devices"] = (ask_npu,)
    return asked


def collect(attempt, node, moment):
    """Write the report. Each answer writes it anew, so that none waits for another."""
    os.umask(0o077)
    plan, record = attempt_files.read_plan(attempt)
    environment = dict(plan["env"], **attempt_files.planned_node(plan, node)["env"])
    asked = questions(plan, environment, moment, record["started"])
    report = {"time": time.time(), "moment": moment, "answers": dict.fromkeys(asked)}
    lock = threading.Lock()

    def answer(name, question, *arguments):
        value = question(*arguments)
        with lock:
            report["answers"][name] = value
            attempt_files.write_json(attempt, NAME, report)

    os.makedirs(os.path.join(attempt, "evidence"), exist_ok=True)
    attempt_files.write_json(attempt, NAME, report)
    deadline = time.monotonic() + SECONDS
    threads = [
        threading.Thread(target=answer, args=(name, *words), daemon=True)
        for name, words in asked.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    with lock:
        os._exit(0)


def start(attempt, moment):
    """Start the report and return (its process, the time by which it has to end), or None.

    A node is asked once. A rehearsal keeps nothing.
    """
    record = attempt_files.read_mapping(attempt, "attempt.json")
    if not record.get("attempt") or os.path.exists(os.path.join(attempt, NAME)):
        return None
    program = os.path.join(attempt, attempt_files.ARCHIVE)
    argv = [sys.executable, "-I", program, "devices", attempt, str(record.get("node")), moment]
    null = subprocess.DEVNULL
    call = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)
    return call, time.monotonic() + SECONDS + 1


def await_end(report):
    """Wait for a report until its time is over, and end it."""
    if report:
        with contextlib.suppress(subprocess.TimeoutExpired):
            report[0].wait(max(0, report[1] - time.monotonic()))
        report[0].kill()
