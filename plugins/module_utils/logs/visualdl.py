# SPDX-License-Identifier: Apache-2.0
"""Find the records that a training writes for VisualDL (PaddleDetection, PaddleSeg and PaddleOCR do
where they are told to).

VisualDL takes every file for its own whose name holds `vdlrecords` (visualdl/reader/reader.py), and
names them vdlrecords.<unix time>.log (visualdl/writer/record_writer.py). So they come home into the
attempt's directory like logs, and `visualdl --logdir` shows them from there.
"""

from __future__ import annotations

import os
import re

from ..base.safe_open import DIRECTORY, open_below

MOST = 20  # files of one node
# directories that are looked into; a training's output may hold a picture of every evaluation
FOLDERS = 500
_NAME = re.compile(r"^vdlrecords\.([A-Za-z0-9_-]{1,60})(?:\.log)?$")
_PART = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,252}$")


def records(root, folders, node):
    """[(path below the attempt, name at home)] of the records below `folders`, real directories of
    the attempt; no link is followed.

    root: descriptor of the attempt's directory. Two records of one second get different names.
    """
    found, names = [], set()
    waiting, seen = [folder for folder in folders if isinstance(folder, str)], 0
    while waiting and seen < FOLDERS and len(found) < MOST:
        folder, seen = waiting.pop(0), seen + 1
        try:
            here = open_below(root, folder, DIRECTORY)
        except OSError:
            continue
        try:
            with os.scandir(here) as entries:
                plain = [
                    entry for entry in entries if _PART.match(entry.name) and not entry.is_symlink()
                ]
                inside = sorted((entry.name, entry.is_dir()) for entry in plain)
        finally:
            os.close(here)
        for name, is_folder in inside:
            match = _NAME.match(name)
            if is_folder:
                waiting.append(f"{folder}/{name}")
            elif match and len(found) < MOST:
                stem = f"vdlrecords-{match.group(1)}"
                stem = stem if stem not in names else f"{stem}-{len(found)}"
                names.add(stem)
                found.append((f"{folder}/{name}", f"{stem}.{node}.log"))
    return found
