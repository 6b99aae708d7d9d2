# SPDX-License-Identifier: Apache-2.0
"""Files of a new tree that another tree of the same node has already.

They are hard links: both trees are read-only and never change. A file counts as unchanged if its
inode, size and times are still those of the record that was made when its digest was computed. A
link changes the inode's time of change (ctime), so the records of both trees are written anew.
"""

from __future__ import annotations

import contextlib
import os
import stat

from ..base import manifest
from ..base.files import read_mapping, write_json
from . import tree_install

# Trees that are looked at: a damaged copy of the same one, and the newest others.
MOST_TREES = 4
# The name of a link until it has replaced what was in its place.
LINKED = ".trainyard-linked"


def adopt(base, kind, digest, entries):
    """Link into the staging directory of a tree what other trees of its kind have of it.

    A damaged copy of the same tree counts, too. Then no record is believed, and each file is read
    before it is linked. Return {path: record} of all files that are there and verified, as
    manifest.scan remembers them. The staging directory has to exist.
    """
    final, staging = tree_install.tree_paths(base, kind, digest)
    is_repair = os.path.isdir(final)
    known = _verified(staging, entries)
    try:
        for tree in tree_install.list_trees(os.path.join(base, kind), final)[:MOST_TREES]:
            missing = [path for path in entries if path not in known and entries[path][0] != "l"]
            if not missing:
                break
            _link_from(tree, staging, entries, missing, known, is_repair)
    finally:
        write_json(staging + tree_install.SCAN, known)
    return known


def _verified(staging, entries):
    """Return {path: record} of the staged files whose digest is known to be the manifest's.

    A link to another tree's file that is not known to be right is removed: nothing may be written
    through it.
    """
    records = read_mapping(staging + tree_install.SCAN, manifest.TREE_BYTES)
    known = {}
    for path, entry in entries.items():
        place = os.path.join(staging, path)
        info = _regular(place)
        if info is None:
            continue
        record = records.get(path)
        if record == tree_install.record_of(info, entry[2]) and _is_entry(info, entry):
            known[path] = record
        elif info.st_nlink > 1:
            os.unlink(place)
    return known


def _link_from(tree, staging, entries, missing, known, is_repair):
    """Link what one tree has of the missing files, and add their records to known."""
    records = read_mapping(tree + tree_install.SCAN, manifest.TREE_BYTES)
    linked = {}
    try:
        for path in missing:
            record = _link(tree, staging, path, entries[path], records.get(path), is_repair)
            if record:
                linked[path] = record
    finally:
        if linked:
            known.update(linked)
            write_json(tree + tree_install.SCAN, {**records, **linked})


def _link(tree, staging, path, entry, record, is_repair):
    """Link one file into the staging directory, and return its record, None where it differs.

    record: the tree's own of it. is_repair: read the file, whatever the record says.
    """
    source, target = os.path.join(tree, path), os.path.join(staging, path)
    info = _regular(source)
    if info is None or not _is_entry(info, entry):
        return None
    own = tree_install.record_of(info, entry[2])
    # Where only the time of change differs, as after another link, the file is read.
    if not tree_install.is_record(record) or [*record[:3], record[4]] != [*own[:3], own[4]]:
        return None
    try:
        if (is_repair or record != own) and manifest.file_sha256(source) != entry[2]:
            return None
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(target + LINKED)
        os.link(source, target + LINKED, follow_symlinks=False)
        os.replace(target + LINKED, target)
    except OSError:  # too many links, or a file system without them
        return None
    new = _regular(target)
    if new is None or tree_install.record_of(new, entry[2])[:3] != own[:3]:
        return None
    return tree_install.record_of(new, entry[2])


def _regular(path):
    """Return the status of a regular file, None for anything else."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    if stat.S_ISREG(info.st_mode):
        return info
    return None


def _is_entry(info, entry):
    """Return whether a file has the kind and the size of a manifest's entry."""
    kind = "f"
    if info.st_mode & 0o100:
        kind = "x"
    return [kind, info.st_size] == entry[:2]
