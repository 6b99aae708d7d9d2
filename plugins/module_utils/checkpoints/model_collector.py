# SPDX-License-Identifier: Apache-2.0
"""The trained model: found on its node by the suite's table, and put in its place at home only when
every byte of it has come.

On a node nothing but regular files below the attempt's directory is read. At home a checkpoint is
brought into STAGING beside its place; a copy that was interrupted stays there, where nobody takes
it for a model, and the next one goes on from it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import shutil
import stat

from ..base import manifest, safe_names
from ..base.safe_open import (
    DIRECTORY,
    open_below,
    open_folder,
    open_root,
    parent_of,
)

WANTED = ("best", "last", "none")
PLACE, STAGING = "checkpoint", ".checkpoint.part"
MOST_FILES = 2000
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
# Plain words only: a checkpoint's file also goes from node to node, in a list of lines.
NAME = re.compile(r"[A-Za-z0-9_+@=.][A-Za-z0-9_+@=.-]*\Z")  # (safe_names bounds it)


def plain(path):
    """Whether every part of a path is a name that a checkpoint's file may have."""
    return not safe_names.problem(path) and all(NAME.match(part) for part in path.split("/"))


class CheckpointError(Exception):
    """What came is not what the node has, or cannot be put in its place; the message is for people."""


def find(attempt_dir, folders, patterns, wanted):
    """Return {wanted, kind, name, folder, files, bytes, note, passed_over} of an attempt on its
    node.

    folders: below the attempt's directory, the likeliest first. patterns: {"best": ..., "last":
    ...}: `latest` stands for the files latest.* and for the folder latest; of several that fit
    (`iter_*`, or `a|b`) the newest is taken. wanted: one of WANTED; where that one is not there,
    the other is taken and the note says so. kind: best, last or '' where nothing is taken. files:
    {path below folder: ['f', bytes, sha256]}. Raises OSError.
    """
    result = {
        "wanted": wanted,
        "kind": "",
        "name": "",
        "folder": "",
        "files": {},
        "bytes": 0,
        "note": "",
        "passed_over": [],
    }
    if wanted == "none":
        return dict(result, note="left on the nodes, as collect_checkpoint says")
    root = os.open(attempt_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for kind in [wanted] + [kind for kind in patterns if kind != wanted]:
            for folder in folders:
                name, files = _newest(root, folder, patterns[kind], result["passed_over"])
                if files:
                    entries = {path: described(root, folder + "/" + path) for path in files}
                    total = sum(entry[1] for entry in entries.values())
                    result.update(kind=kind, name=name, folder=folder, files=entries, bytes=total)
                    result["note"] = _note(patterns, wanted, kind, entries)
                    return result
    finally:
        os.close(root)
    return dict(result, note="the training has saved none")


def seen(attempt_dir, folders, patterns):
    """Return the name of the best checkpoint that is there, else of the last one, else ''; one with
    an empty file or none of it readable is none.
    """
    try:
        root = os.open(attempt_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        for kind in ("best", "last"):
            for folder in folders if patterns.get(kind) else ():
                name, files = _newest(root, folder, patterns[kind], [])
                if files and all(_size(root, folder + "/" + path) for path in files):
                    return name
    finally:
        os.close(root)
    return ""


def _size(root, path):
    try:
        with os.fdopen(open_below(root, path), "rb") as handle:
            return os.fstat(handle.fileno()).st_size
    except OSError:
        return 0


def _note(patterns, wanted, kind, entries):
    """Say what is to be known of the checkpoint that was taken, or ''."""
    said = []
    if kind != wanted:
        why = (
            " (was anything evaluated?)"
            if wanted == "best"
            else " (the training did not come to its end)"
        )
        said.append(
            "there is no {}{}, so the {} one was taken".format(
                patterns[wanted].replace("|", " or "), why, kind
            )
        )
    empty = sorted(path for path, entry in entries.items() if not entry[1])
    said += ["{} is empty".format(", ".join(empty))] if empty else []
    return "; ".join(said)


def _newest(root, folder, pattern, passed_over):
    """Return (name, paths below folder) of the newest checkpoint there that fits the pattern; ('',
    []) without one.
    """
    try:
        here = open_below(root, folder, DIRECTORY)
    except OSError:
        return "", []
    found = {}
    try:
        for entry in sorted(os.listdir(here)):
            try:
                info = os.stat(entry, dir_fd=here, follow_symlinks=False)
            except FileNotFoundError:  # a training deletes its older checkpoints
                continue
            folded = stat.S_ISDIR(info.st_mode)
            stem = entry if folded else os.path.splitext(entry)[0]
            if not any(fnmatch.fnmatchcase(stem, one) for one in pattern.split("|")):
                continue
            paths = (
                _files_of(here, entry) if folded else [entry] if stat.S_ISREG(info.st_mode) else []
            )
            sound = [path for path in paths if plain(path)]
            passed_over += [folder + "/" + path for path in set(paths) - set(sound)] + (
                [folder + "/" + entry] if not paths else []
            )
            kept = found.setdefault(stem, [0, []])
            kept[0], kept[1] = max(kept[0], info.st_mtime_ns), kept[1] + sound
    finally:
        os.close(here)
    found = {stem: kept for stem, kept in found.items() if kept[1]}
    if not found:
        return "", []
    name = max(found, key=lambda stem: (found[stem][0], stem))
    return name, sorted(found[name][1])


def _files_of(root, folder):
    """Return the paths of the regular files in a folder of a directory descriptor; links and
    everything else are left out.
    """
    paths = []
    for where, _folders, names, here in os.fwalk(folder, dir_fd=root, follow_symlinks=False):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISREG(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                    paths.append(where + "/" + name)
    return paths


def described(root, path):
    """Return ['f', bytes, sha256] of a file below a directory descriptor."""
    digest, size = hashlib.sha256(), 0
    with os.fdopen(open_below(root, path), "rb") as handle:
        for chunk in iter(lambda: handle.read(manifest.CHUNK), b""):
            digest.update(chunk)
            size += len(chunk)
    return ["f", size, digest.hexdigest()]


def check(files):
    """Raise CheckpointError where {path: ['f', bytes, sha256]} from a node is not what a checkpoint
    can be.
    """
    if not isinstance(files, dict):
        raise CheckpointError("the checkpoint is not a mapping of files")
    if len(files) > MOST_FILES:
        raise CheckpointError(
            "the checkpoint has %d files; at most %d are taken" % (len(files), MOST_FILES)
        )
    for path, entry in files.items():
        said = safe_names.problem(path)
        if said:
            raise CheckpointError(f"the name {ascii(path)[:200]} of a checkpoint's file {said}")
        whole = (
            isinstance(entry, (list, tuple))
            and len(entry) == 3
            and entry[0] == "f"
            and _is_size(entry[1])
        )
        if not whole or not isinstance(entry[2], str) or not _DIGEST.match(entry[2]):
            raise CheckpointError(f"{path}: there is no size and sha256 of it")
    folders = {
        "/".join(parts[:end])
        for parts in (path.split("/") for path in files)
        for end in range(1, len(parts))
    }
    if folders & set(files):
        raise CheckpointError(f"{sorted(folders & set(files))[0]} is a file and a folder")


def _is_size(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 50


def lacking(folder, files):
    """Return sentences that say in what a folder at home differs from files, as `find` gave them;
    [] where every one is there, whole.

    Further files are no difference: another checkpoint that was brought before stays. Raises
    CheckpointError for names that no checkpoint has.
    """
    check(files)
    expected, found = {name: list(entry) for name, entry in files.items()}, {}
    try:
        root = os.open(folder, DIRECTORY)
    except OSError:
        return manifest.differences(expected, {})
    try:
        for name, entry in expected.items():
            with contextlib.suppress(OSError):
                size = _size_of(root, name)
                # A file of another size is not read.
                found[name] = described(root, name) if size == entry[1] else ["f", size, ""]
    finally:
        os.close(root)
    return manifest.differences(expected, found)


def _size_of(root, path):
    with os.fdopen(open_below(root, path), "rb") as handle:
        return os.fstat(handle.fileno()).st_size


def take(attempt_dir, files, write=True):
    """Put the files that were brought to STAGING into PLACE, all or none; return whether that
    changes anything.

    attempt_dir: at home. Raises CheckpointError with every difference; what differs is removed, so
    that the next copy brings it anew. Nothing is changed but below the attempt's directory: no link
    that stands there is followed.
    """
    check(files)
    place, staging, fresh, old = (
        os.path.join(attempt_dir, name)
        for name in (PLACE, STAGING, ".checkpoint.new", ".checkpoint.old")
    )
    if write and not os.path.lexists(place) and os.path.isdir(old) and not os.path.islink(old):
        os.rename(old, place)  # the end of another one's exchange came between its two renames
    if not lacking(place, files):
        if write:
            _clear(staging)
        return False
    if os.path.islink(place):
        raise CheckpointError(f"{place} is a link; nothing was put there")
    wrong = lacking(staging, files)
    if wrong:
        if write:
            _drop(staging, files)
        raise CheckpointError("{}: differs from the node's: {}".format(staging, "; ".join(wrong)))
    if not write:
        return True
    _clear(fresh)
    os.mkdir(fresh, 0o700)
    root = open_root(attempt_dir)
    try:
        for name in _kept(root, files):
            _move(root, (PLACE, name), _link)
        for name in files:
            _move(root, (STAGING, name), os.rename)
    finally:
        os.close(root)
    _clear(old)
    if os.path.isdir(place):
        os.rename(place, old)
    os.rename(fresh, place)
    for done in (old, staging):
        _clear(done)
    return True


def _clear(path):
    """Remove a directory of ours, or the link that stands in its place."""
    with contextlib.suppress(OSError):
        if os.path.islink(path):
            os.unlink(path)
    shutil.rmtree(path, ignore_errors=True)


def _kept(root, files):
    """Return the regular files of the checkpoint at home that the new one does not have: another
    one that was brought before stays.
    """
    try:
        place = open_folder(root, PLACE)
    except OSError:
        return []
    try:
        return [
            path
            for path in (found[2:] for found in _files_of(place, "."))
            if path not in files and not safe_names.problem(path)
        ]
    finally:
        os.close(place)


def _link(source, target, src_dir_fd, dst_dir_fd):
    os.link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=False)


def _move(root, source, move):
    """Give a file of (folder, name) its place in the new checkpoint, through descriptors of the
    directories on the way.
    """
    folder, name = source
    with os.fdopen(open_below(root, folder + "/" + name), "rb") as handle:
        os.fchmod(handle.fileno(), 0o600)
        os.fsync(handle.fileno())
    with parent_of(root, folder + "/" + name) as (here, last), parent_of(
        root, ".checkpoint.new/" + name, make=True
    ) as (there, _last):
        move(last, last, src_dir_fd=here, dst_dir_fd=there)


def _drop(staging, files):
    """Remove from a copy what differs: rsync takes a file of the right size and time for the right
    one.
    """
    try:
        root = os.open(staging, DIRECTORY)
    except OSError:
        return
    try:
        for name in files:
            if lacking(staging, {name: files[name]}):
                with contextlib.suppress(OSError), parent_of(root, name) as (here, last):
                    os.unlink(last, dir_fd=here)
    finally:
        os.close(root)
