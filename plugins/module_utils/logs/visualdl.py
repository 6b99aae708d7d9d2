# SPDX-License-Identifier: Apache-2.0
"""The records that a training writes for VisualDL.

PaddleDetection, PaddleSeg and PaddleOCR write them where a config asks for it. VisualDL takes every
file for its own whose name holds `vdlrecords` (visualdl/reader/reader.py), and names them
vdlrecords.<unix time>.log (visualdl/writer/record_writer.py). So they are copied to the controller
into the attempt's directory like logs, and `visualdl --logdir` shows them from there.
"""

from __future__ import annotations

import os
import re

from ..base.safe_open import DIRECTORY, open_below

MOST = 20  # files of one node
# Directories that are searched. A training's output may hold a picture of every evaluation.
FOLDERS = 500
_NAME = re.compile(r"^vdlrecords\.([A-Za-z0-9_-]{1,60})(?:\.log)?$")
_PART = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,252}$")


def records(root, folders, node):
    """Return [(path below the attempt, name on the controller)] of the records.

    folders: paths below the attempt. Only real directories are searched: no link is followed. Two
    records of one second get different names. root: descriptor of the attempt's directory. node:
    the node's name.
    """
    rows, stems = [], set()
    waiting, count = [folder for folder in folders if isinstance(folder, str)], 0
    while waiting and count < FOLDERS and len(rows) < MOST:
        folder, count = waiting.pop(0), count + 1
        for name, is_folder in _list_folder(root, folder):
            match = _NAME.match(name)
            if is_folder:
                waiting.append(f"{folder}/{name}")
            elif match and len(rows) < MOST:
                stem = f"vdlrecords-{match.group(1)}"
                if stem in stems:
                    stem = f"{stem}-{len(rows)}"
                stems.add(stem)
                rows.append((f"{folder}/{name}", f"{stem}.{node}.log"))
    return rows


def _list_folder(root, folder):
    """Return [(name, is it a directory)] of a directory's plain entries.

    [] where the directory cannot be opened.
    """
    try:
        descriptor = open_below(root, folder, DIRECTORY)
    except OSError:
        return []
    try:
        with os.scandir(descriptor) as entries:
            return sorted(
                (entry.name, entry.is_dir())
                for entry in entries
                if _PART.match(entry.name) and not entry.is_symlink()
            )
    finally:
        os.close(descriptor)
