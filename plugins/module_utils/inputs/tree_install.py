# SPDX-License-Identifier: Apache-2.0
"""Trees on a node: code, data, weights, checkpoints and wheels under their digest.

Decision 9. One rename puts a tree into its final place. From then on it is read-only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import time

from ..base import manifest
from ..base.files import read_mapping, write_json

# What lies beside a tree, or beside its staging directory: its manifest, and the digests of files
# that were verified there, by inode, size and times.
MANIFEST, SCAN = ".manifest.json", ".scan.json"
# Beside a staging directory: held by the process that fills it, or switches it in.
LOCK = ".lock"
HOLD_SECONDS = 600
_TREE = re.compile(r"[0-9a-f]{16}\Z")


class TreeError(Exception):
    """A tree that did not arrive as planned. The message names the files."""


def tree_paths(base, kind, digest):
    """Return (final directory, staging directory) of a tree.

    The staging directory is the same at a second try, so that rsync goes on where it was.
    """
    name = digest[:16]
    return os.path.join(base, kind, name), os.path.join(base, "staging", f"{kind}-{name}")


def protect(root):
    """Make every file and directory of a tree read-only. Links are left alone."""
    for folder, _folders, files in os.walk(root):
        for path in [os.path.join(folder, name) for name in files] + [folder]:
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                continue
            mode = stat.S_IMODE(info.st_mode)
            if mode & 0o222:
                os.chmod(path, mode & ~0o222)


def open_folders(root):
    """Make every directory of a tree writable for the user.

    The files stay as they are: they may be those of another tree, too (tree_reuse.py).
    """
    for folder, _folders, _files in os.walk(root):
        os.chmod(folder, 0o700)


def is_record(value):
    """Return whether a value is what record_of returns. A program of the account may change it."""
    return isinstance(value, list) and len(value) == 5


def record_of(info, digest):
    """Return what manifest.scan remembers of a file. info: its status. digest: its sha256."""
    return [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns, digest]


def list_trees(folder, first=""):
    """Return the paths of the trees in a directory, the newest first.

    first: the path of one that comes before all others, if it is there.
    """
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            tree = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                if _TREE.match(name) and os.path.exists(tree + MANIFEST):
                    found.append((tree == first, os.stat(tree).st_ctime, tree))
    return [tree for _is_first, _time, tree in sorted(found, reverse=True)]


def remove(root):
    """Remove a read-only tree.

    The files that it shares with other trees keep their content, and get another time of change. So
    the records of those trees are written anew, else all of their files would be read again.
    """
    shared = _shared_with(root)
    open_folders(root)
    shutil.rmtree(root)
    for tree, records in shared.items():
        known = read_mapping(tree + SCAN, manifest.TREE_BYTES)
        for path, record in records.items():
            with contextlib.suppress(OSError):
                new = record_of(os.lstat(os.path.join(tree, path)), record[4])
                if new[:3] == record[:3] and known.get(path) == record:
                    known[path] = new
        write_json(tree + SCAN, known)


def renew_records(tree, paths):
    """Write the records of some files anew after a link to them, which changes their ctime.

    Else the whole tree would be read again. Only records that still hold but for that time.
    """
    known = read_mapping(tree + SCAN, manifest.TREE_BYTES)
    renewed = {}
    for path in paths:
        record = known.get(path)
        with contextlib.suppress(OSError):
            if is_record(record):
                new = record_of(os.lstat(os.path.join(tree, path)), record[4])
                if new[:3] == record[:3]:
                    renewed[path] = new
    if renewed:
        write_json(tree + SCAN, {**known, **renewed})


def _shared_with(root):
    """Return {tree: {path: record}} of the files that other trees share with this one.

    Only those whose record still holds.
    """
    inodes = {}
    for folder, _folders, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            if info.st_nlink > 1 and stat.S_ISREG(info.st_mode):
                inodes[os.path.relpath(path, root)] = info
    shared = {}
    if not inodes:
        return shared
    for tree in list_trees(os.path.dirname(root)):
        if tree == root:
            continue
        known = read_mapping(tree + SCAN, manifest.TREE_BYTES)
        records = {
            path: known[path]
            for path, info in inodes.items()
            if is_record(known.get(path)) and known[path] == record_of(info, known[path][4])
        }
        if records:
            shared[tree] = records
    return shared


@contextlib.contextmanager
def hold(base, kind, digest):
    """Hold the staging directory of a tree: no other process receives or switches in the same tree.

    Another one that does, as that of a command that was interrupted, is waited for. Raises
    TreeError after HOLD_SECONDS.
    """
    path = tree_paths(base, kind, digest)[1] + LOCK
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    until = time.monotonic() + HOLD_SECONDS
    with contextlib.ExitStack() as stack:
        while True:
            handle = stack.enter_context(open(path, "w", encoding="ascii"))
            with contextlib.suppress(BlockingIOError, FileNotFoundError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The holder before has removed the file that it held.
                if os.path.samestat(os.stat(path), os.fstat(handle.fileno())):
                    break
            handle.close()
            if time.monotonic() >= until:
                raise TreeError(f"another command brings {kind} {digest[:16]} here")
            time.sleep(0.2)
        stack.callback(os.unlink, path)
        yield


def is_manifest_of(entries, digest):
    """Return whether a value that was read or received is the manifest of a digest.

    Other values than those of a manifest can have its digest, such as a size as text.
    """
    return (
        isinstance(entries, dict)
        and all(map(_is_entry, entries.items()))
        and manifest.digest(entries) == digest
    )


def _is_entry(item):
    """Return whether (path, [kind, size, sha256]) may be an entry of a tree's manifest."""
    path, entry = item
    if {"", ".", ".."} & set(path.split("/")) or "\0" in path:
        return False
    if not isinstance(entry, list) or len(entry) != 3:
        return False
    kind, size, digest = entry
    return kind in ("f", "x", "l") and type(size) is int and size >= 0 and isinstance(digest, str)


def switch_in(base, kind, digest, entries=None):
    """Compare the staged tree with its manifest and make it the final one.

    entries: the manifest, by default the one that came with the tree. A differing older copy is
    replaced. Raises TreeError with the differing files. The staging directory is kept then, so that
    a repeat sends only the differing files. Each file is read once, and not at all where it was
    verified when it arrived (tree_relay.py).
    """
    with hold(base, kind, digest):
        _switch_in(base, kind, digest, entries)


def _switch_in(base, kind, digest, entries):
    final, staging = tree_paths(base, kind, digest)
    if entries is None:
        entries = read_mapping(staging + MANIFEST, manifest.TREE_BYTES)
        if not is_manifest_of(entries, digest):
            raise TreeError(f"{staging}: the tree's manifest was not sent")
    _verify(kind, digest, entries, staging)
    os.makedirs(os.path.dirname(final), mode=0o700, exist_ok=True)
    old = None
    if os.path.lexists(final):
        old = f"{final}.old-{time.time_ns()}"
        os.chmod(final, 0o700)
        os.rename(final, old)
    write_json(final + MANIFEST, entries)  # first: the gate serves no tree without its manifest
    os.rename(staging, final)
    with contextlib.suppress(FileNotFoundError):  # a tree of links alone has none
        os.rename(staging + SCAN, final + SCAN)
    protect(final)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(staging + MANIFEST)
    if old:
        remove(old)


def _verify(kind, digest, entries, staging):
    """Make the staged tree read-only and compare it with its manifest.

    Raises TreeError with the differing files.
    """
    if not os.path.isdir(staging):
        raise TreeError(f"{staging}: nothing was sent")
    for name in set(manifest.walk_files(staging)) - set(entries):
        os.unlink(os.path.join(staging, name))  # left by an earlier, different try
    # Read-only before it is verified: a second sync that is still writing cannot change a file
    # afterwards.
    protect(staging)
    os.chmod(staging, 0o700)  # moving a directory needs its own write bit
    staged = manifest.scan(staging, None, staging + SCAN)
    if manifest.digest(staged) != digest:
        open_folders(staging)
        raise TreeError(
            "{} arrived changed (was it edited during the sync?): {}".format(
                kind, "; ".join(manifest.differences(entries, staged))
            )
        )
