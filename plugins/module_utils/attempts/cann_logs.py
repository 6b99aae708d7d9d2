# SPDX-License-Identifier: Apache-2.0
"""CANN's own logs of an attempt, below the attempt's directory.

agent/runner.py names their folder to CANN, and in a container the attempt's directory is the home.
The layout is that of "Viewing Logs (Ascend EP)" in CANN's log reference: debug/plog/plog-PID_*.log
of a process, debug/device-ID/device-PID_*.log of its device, and the same below run/.
"""

from __future__ import annotations

import os
import re

from ..base.safe_open import DIRECTORY, open_below

ROOT = "ascend/log"
FILES, FILE_BYTES, BYTES = 32, 32 << 20, 64 << 20
_FOLDER = re.compile(r"plog|device-\d{1,3}")
_LOG = re.compile(r"(?:plog|device)-\d{1,7}_(\d{1,20})\.log")


def find_logs(root, node):
    """Return [(file below the attempt, name on the controller)] of logs to fetch.

    root: a descriptor of the attempt's directory. The logs of errors come first, and of these the
    newest. What is above the bounds stays on the node.
    """
    logs = []
    for kind in ("debug", "run"):
        for folder in _list(root, f"{ROOT}/{kind}"):
            if _FOLDER.fullmatch(folder):
                logs += _logs_of(root, kind, folder)
    logs.sort(key=lambda log: (log["kind"], -int(log["date"]), log["file"]))
    chosen, total = [], 0
    for log in logs:
        total += log["bytes"]
        if len(chosen) == FILES or total > BYTES:
            break
        chosen.append((log["file"], f"{log['stem']}.{node}.log"))
    return chosen


def _logs_of(root, kind, folder):
    """Return the logs of a folder as [{kind, date, file, stem, bytes}]."""
    logs = []
    for name in _list(root, f"{ROOT}/{kind}/{folder}"):
        match, path = _LOG.fullmatch(name), f"{ROOT}/{kind}/{folder}/{name}"
        size = None
        if match:
            size = _size_of(root, path)
        if size is not None and size <= FILE_BYTES:
            log = {"kind": kind, "date": match.group(1), "file": path, "bytes": size}
            logs.append(dict(log, stem=f"cann-{kind}-{folder}-{name.partition('-')[2][:-4]}"))
    return logs


def _size_of(root, path):
    """Return the size of a regular file, None where it cannot be opened."""
    try:
        descriptor = open_below(root, path)
    except OSError:
        return None
    try:
        return os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)


def _list(root, folder):
    """Return the sorted names in a folder below the attempt, [] without it."""
    try:
        descriptor = open_below(root, folder, DIRECTORY)
    except OSError:
        return []
    try:
        return sorted(os.listdir(descriptor))
    finally:
        os.close(descriptor)
