# SPDX-License-Identifier: Apache-2.0
"""The trained model on its node, and its way to the controller.

It is copied as a whole or not at all. The suite's table says which files belong to it. On a node,
only regular files below the attempt's directory are read. On the controller a checkpoint is copied
into STAGING beside its final place. An interrupted copy stays there, where it is not taken for a
model, and the next one goes on from it.
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
# The new and the previous checkpoint while they are exchanged.
_NEW, _OLD = ".checkpoint.new", ".checkpoint.old"
MOST_FILES = 2000
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
# Plain names only: a checkpoint's file also goes from node to node, in a list of lines.
NAME = re.compile(r"[A-Za-z0-9_+@=.][A-Za-z0-9_+@=.-]*\Z")  # (safe_names bounds it)


def plain(path):
    """Return whether every part of a path is a name that a checkpoint's file may have."""
    return not safe_names.problem(path) and all(NAME.match(part) for part in path.split("/"))


class CheckpointError(Exception):
    """A copy that differs from the node's files, or cannot be put in its place.

    The message is for people.
    """


def find(attempt_dir, folders, patterns, wanted):
    """Return the description of the wanted checkpoint of an attempt on its node.

    It is {wanted, kind, name, folder, files, bytes, note, passed_over}. folders: below the
    attempt's directory, the likeliest first. patterns: {"best": ..., "last": ...}: `latest` stands
    for the files latest.* and for the folder latest; of several that fit (`iter_*`, or `a|b`) the
    newest is taken. wanted: one of WANTED; where that one does not exist, the other is taken and
    the note says so. kind: best, last or '' where nothing is taken. files: {path below folder:
    ['f', bytes, sha256]}. Raises OSError.
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
    root = _open_folder(attempt_dir)
    try:
        for kind in [wanted] + [kind for kind in patterns if kind != wanted]:
            for folder in folders:
                name, paths = _newest(root, folder, patterns[kind], result["passed_over"])
                if paths:
                    files = {path: described(root, folder + "/" + path) for path in paths}
                    result.update(kind=kind, name=name, folder=folder, files=files)
                    result["bytes"] = sum(entry[1] for entry in files.values())
                    result["note"] = _note(patterns, wanted, kind, files)
                    return result
    finally:
        os.close(root)
    return dict(result, note="the training has saved none")


def seen(attempt_dir, folders, patterns):
    """Return the name of the best checkpoint, else of the last one, else ''.

    One with an empty or unreadable file does not count.
    """
    try:
        root = _open_folder(attempt_dir)
    except OSError:
        return ""
    try:
        for kind in ("best", "last"):
            if not patterns.get(kind):
                continue
            for folder in folders:
                name, paths = _newest(root, folder, patterns[kind], [])
                if paths and all(_has_content(root, folder + "/" + path) for path in paths):
                    return name
    finally:
        os.close(root)
    return ""


def _open_folder(path):
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _has_content(root, path):
    """Return whether a file is readable and not empty."""
    try:
        return _size_of(root, path) > 0
    except OSError:
        return False


def _note(patterns, wanted, kind, files):
    """Return the remarks on the checkpoint that was taken, or ''."""
    notes = []
    if kind != wanted:
        reason = "the training did not come to its end"
        if wanted == "best":
            reason = "was anything evaluated?"
        names = patterns[wanted].replace("|", " or ")
        notes.append(f"there is no {names} ({reason}), so the {kind} one was taken")
    empty = sorted(path for path, entry in files.items() if not entry[1])
    if empty:
        notes.append("{} is empty".format(", ".join(empty)))
    return "; ".join(notes)


def _newest(root, folder, pattern, passed_over):
    """Return (name, paths below folder) of the newest checkpoint of a folder.

    Its name fits the pattern. ('', []) without one. Paths that cannot be used are added to
    passed_over.
    """
    try:
        descriptor = open_below(root, folder, DIRECTORY)
    except OSError:
        return "", []
    times, files = {}, {}
    try:
        for entry in sorted(os.listdir(descriptor)):
            try:
                info = os.stat(entry, dir_fd=descriptor, follow_symlinks=False)
            except FileNotFoundError:  # a training deletes its older checkpoints
                continue
            name = _name_of(entry, info)
            if not any(fnmatch.fnmatchcase(name, part) for part in pattern.split("|")):
                continue
            paths = _entry_files(descriptor, entry, info)
            usable = [path for path in paths if plain(path)]
            passed_over += [f"{folder}/{path}" for path in paths if not plain(path)]
            if not paths:
                passed_over.append(f"{folder}/{entry}")
            files[name] = files.get(name, []) + usable
            times[name] = max(times.get(name, 0), info.st_mtime_ns)
    finally:
        os.close(descriptor)
    names = [name for name in files if files[name]]
    if not names:
        return "", []
    newest = max(names, key=lambda name: (times[name], name))
    return newest, sorted(files[newest])


def _name_of(entry, info):
    """Return the name of an entry's checkpoint: a folder's name, or a file's stem."""
    if stat.S_ISDIR(info.st_mode):
        return entry
    return os.path.splitext(entry)[0]


def _entry_files(descriptor, entry, info):
    """Return the paths of the regular files that an entry is or holds."""
    if stat.S_ISDIR(info.st_mode):
        return _files_of(descriptor, entry)
    if stat.S_ISREG(info.st_mode):
        return [entry]
    return []


def _files_of(root, folder):
    """Return the paths of the regular files in a folder of a directory descriptor.

    Links and everything else are left out.
    """
    paths = []
    for path, _folders, names, descriptor in os.fwalk(folder, dir_fd=root, follow_symlinks=False):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISREG(info.st_mode):
                    paths.append(path + "/" + name)
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
    """Raise CheckpointError where a node's files cannot be a checkpoint's.

    files: {path: ['f', bytes, sha256]}.
    """
    if not isinstance(files, dict):
        raise CheckpointError("the checkpoint is not a mapping of files")
    if len(files) > MOST_FILES:
        raise CheckpointError(
            f"the checkpoint has {len(files)} files; at most {MOST_FILES} are taken"
        )
    for path, entry in files.items():
        problem = safe_names.problem(path)
        if problem:
            raise CheckpointError(f"the name {ascii(path)[:200]} of a checkpoint's file {problem}")
        if not _is_file_entry(entry):
            raise CheckpointError(f"{path}: there is no size and sha256 of it")
    both = _folders_of(files) & set(files)
    if both:
        raise CheckpointError(f"{sorted(both)[0]} is a file and a folder")


def _is_file_entry(entry):
    """Return whether a value is ['f', bytes, sha256]."""
    if not isinstance(entry, (list, tuple)) or len(entry) != 3:
        return False
    kind, size, digest = entry
    if kind != "f" or not _is_size(size):
        return False
    return isinstance(digest, str) and bool(_DIGEST.match(digest))


def _is_size(value):
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 50


def _folders_of(paths):
    """Return all folders that lie above one of these paths."""
    folders = set()
    for path in paths:
        parts = path.split("/")
        folders.update("/".join(parts[:end]) for end in range(1, len(parts)))
    return folders


def lacking(folder, files):
    """Return how a folder on the controller differs from files, as sentences.

    files: as `find` gave them. Further files are not a difference: another checkpoint that was
    copied before stays. Raises CheckpointError for names that no checkpoint has.
    """
    check(files)
    expected, existing = {name: list(entry) for name, entry in files.items()}, {}
    try:
        root = os.open(folder, DIRECTORY)
    except OSError:
        return manifest.differences(expected, {})
    try:
        for name, entry in expected.items():
            with contextlib.suppress(OSError):
                existing[name] = _describe_if_equal_size(root, name, entry[1])
    finally:
        os.close(root)
    return manifest.differences(expected, existing)


def _describe_if_equal_size(root, path, size):
    """Return ['f', bytes, sha256] of a file; one of another size is not read."""
    actual = _size_of(root, path)
    if actual != size:
        return ["f", actual, ""]
    return described(root, path)


def _size_of(root, path):
    with os.fdopen(open_below(root, path), "rb") as handle:
        return os.fstat(handle.fileno()).st_size


def take(attempt_dir, files, write=True):
    """Move the files from STAGING into PLACE; return whether that changes anything.

    All of them are moved or none. attempt_dir: on the controller. write: False only looks. Raises
    CheckpointError with every difference; a differing file is removed, so that the next copy brings
    it anew. Nothing outside the attempt's directory is changed: no link in it is followed.
    """
    check(files)
    place, staging = os.path.join(attempt_dir, PLACE), os.path.join(attempt_dir, STAGING)
    if write:
        _finish_exchange(attempt_dir)
    if not lacking(place, files):
        if write:
            _clear(staging)
        return False
    if os.path.islink(place):
        raise CheckpointError(f"{place} is a link; nothing was put there")
    differences = lacking(staging, files)
    if differences:
        if write:
            _drop(staging, files)
        raise CheckpointError(f"{staging}: differs from the node's: {'; '.join(differences)}")
    if write:
        _exchange(attempt_dir, files)
    return True


def _finish_exchange(attempt_dir):
    """Put the previous checkpoint back after an interrupted exchange.

    The interruption came between the two renames.
    """
    place, old = os.path.join(attempt_dir, PLACE), os.path.join(attempt_dir, _OLD)
    if not os.path.lexists(place) and os.path.isdir(old) and not os.path.islink(old):
        os.rename(old, place)


def _exchange(attempt_dir, files):
    """Make the new checkpoint of the staged and the kept files and put it into PLACE."""
    place, staging = os.path.join(attempt_dir, PLACE), os.path.join(attempt_dir, STAGING)
    new, old = os.path.join(attempt_dir, _NEW), os.path.join(attempt_dir, _OLD)
    _clear(new)
    os.mkdir(new, 0o700)
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
    os.rename(new, place)
    _clear(old)
    _clear(staging)


def _clear(path):
    """Remove a directory of the product, or the link that stands in its place."""
    with contextlib.suppress(OSError):
        if os.path.islink(path):
            os.unlink(path)
    shutil.rmtree(path, ignore_errors=True)


def _kept(root, files):
    """Return the regular files of the present checkpoint that the new one lacks.

    Another checkpoint that was copied before stays.
    """
    try:
        place = open_folder(root, PLACE)
    except OSError:
        return []
    try:
        paths = [path[len("./") :] for path in _files_of(place, ".")]
    finally:
        os.close(place)
    return [path for path in paths if path not in files and not safe_names.problem(path)]


def _link(source, target, src_dir_fd, dst_dir_fd):
    os.link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=False)


def _move(root, source, move):
    """Give a file of (folder, name) its place in the new checkpoint.

    All directories on the way are held by descriptors.
    """
    path, target = "/".join(source), f"{_NEW}/{source[1]}"
    with os.fdopen(open_below(root, path), "rb") as handle:
        os.fchmod(handle.fileno(), 0o600)
        os.fsync(handle.fileno())
    with parent_of(root, path) as (old_folder, last):
        with parent_of(root, target, make=True) as (new_folder, _last):
            move(last, last, src_dir_fd=old_folder, dst_dir_fd=new_folder)


def _drop(staging, files):
    """Remove the differing files from a copy.

    rsync takes a file of the right size and time for the right one.
    """
    try:
        root = os.open(staging, DIRECTORY)
    except OSError:
        return
    try:
        for name in files:
            if lacking(staging, {name: files[name]}):
                with contextlib.suppress(OSError), parent_of(root, name) as (folder, last):
                    os.unlink(last, dir_fd=folder)
    finally:
        os.close(root)
