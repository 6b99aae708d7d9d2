# SPDX-License-Identifier: Apache-2.0
"""Replica of rank 0's newest checkpoint on another node of the run.

It lies in the attempt's directory there, in one of two slots. The slots are folders of checkpoints
in the plan, so that a resume finds a replica as it finds a checkpoint (checkpoints/finder.py).
recovery/checkpoint_replicator.py makes it while the training goes on. A checkpoint that this node
got for a restart becomes one as well (keep).
"""

from __future__ import annotations

import contextlib
import os
import shutil

from . import finder, model_collector, validate

FOLDER = "replica"
# The one keeps what is complete while the other is written.
SLOTS = (f"{FOLDER}/a", f"{FOLDER}/b")
STAGING = f"{FOLDER}/new"
# The same for a checkpoint that is here already: the replicator may be writing to the other one.
KEEPING = f"{FOLDER}/kept"
# From the start of a run, or from such a checkpoint, to the replicator's next look: the share of a
# copy of 120 MB, since the cost of the first copy is not known before it is made.
FIRST_SECONDS = 100


def compile_replica(names, rate):
    """Return {node, rate} of a plan's replica, None where none is made.

    names: the nodes in rank order. rate: bytes a second that a copy may take, 0 for no replica.
    """
    if len(names) < 2 or not rate:
        return None
    return {"node": names[1], "rate": rate}


def slot_folders(folders):
    """Return the folders of the slots below an attempt's directory.

    folders: those that the suite saves to.
    """
    return [f"{slot}/{folder}" for slot in SLOTS for folder in folders]


def saved_folders(folders):
    """Return the folders of a plan that the suite saves to."""
    return [folder for folder in folders if not folder.startswith(FOLDER + "/")]


def choose_newest(listings, rule):
    """Return (folder, name, files) of the likeliest complete checkpoint, or None.

    listings: {folder: {path: (bytes, modification time in unix seconds)}}, the likeliest folder
    first. rule: the suite table's `resume`. files: as in the listing. What is complete by names and
    times may still be written: compare the listing after a copy with that before it.
    """
    rows = []
    for folder, listing in listings.items():
        times = {
            path: saved * 10**9
            for path, (_bytes, saved) in listing.items()
            if model_collector.is_plain_path(path) and not path.endswith(finder.UNFINISHED)
        }
        rows += [
            (folder, row) for row in finder.sort_candidates(finder.group_files(times, rule), rule)
        ]
    rows.sort(key=lambda row: (row[1][0], -row[1][1]))
    for folder, (_instead, _saved, name, times) in rows:
        try:
            finder.refuse_incomplete(finder.wanted_files(rule, name), times)
        except validate.BrokenFile:
            continue
        return folder, name, {path: listings[folder][path] for path in times}
    return None


def find_slot(attempt, folder, files):
    """Return the slot that holds these files already, or None.

    Files are the same by name, size and time of saving in seconds, as rsync compares them.
    """
    for slot in SLOTS:
        place = os.path.join(attempt, slot, folder)
        if all(_is_same(os.path.join(place, path), *files[path]) for path in files):
            return slot
    return None


def _is_same(path, size, saved):
    """Return whether a file has this size and time of saving."""
    try:
        info = os.lstat(path)
    except OSError:
        return False
    return (info.st_size, int(info.st_mtime)) == (size, saved)


def free_slot(attempt):
    """Return the slot that the next replica takes: an empty one, else the older one."""
    return min(SLOTS, key=lambda slot: _made(os.path.join(attempt, slot)))


def keep(attempt, folder, source, paths):
    """Make files of this node a replica of an attempt. Return its slot, None where it has them.

    attempt: its directory here. folder: of checkpoints, below it. source: the directory of the
    files, on the same file system: they are linked and not copied. paths: below the source. Raises
    OSError.
    """
    root = os.path.join(attempt, KEEPING)
    infos = {path: os.lstat(os.path.join(source, path)) for path in paths}
    files = {path: (info.st_size, int(info.st_mtime)) for path, info in infos.items()}
    if find_slot(attempt, folder, files):
        return None
    shutil.rmtree(root, ignore_errors=True)
    try:
        for path in paths:
            place = os.path.join(root, folder, path)
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            os.link(os.path.join(source, path), place, follow_symlinks=False)
        slot = free_slot(attempt)
        shutil.rmtree(os.path.join(attempt, slot), ignore_errors=True)
        os.rename(root, os.path.join(attempt, slot))
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(root, ignore_errors=True)
    return slot


def _made(path):
    """Return when a slot was filled, in ns, 0 for an empty one."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return 0
