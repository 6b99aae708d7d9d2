# SPDX-License-Identifier: Apache-2.0
"""The trained model on its node.

The suite's table says which files belong to it. Only regular files below the attempt's directory
are read.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import stat

from ..base import manifest, safe_names
from ..base.coded_error import CodedError
from ..base.safe_open import (
    DIRECTORY,
    open_below,
)

WANTED = ("best", "last", "none")
PLACE = "checkpoint"
MOST_FILES = 2000
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
# Plain names only: a checkpoint's file also goes from node to node, in a list of lines.
NAME = re.compile(r"[A-Za-z0-9_+@=.][A-Za-z0-9_+@=.-]*\Z")  # (safe_names bounds it)


def is_plain_path(path):
    """Return whether every part of a path is a name that a checkpoint's file may have."""
    return not safe_names.problem(path) and all(NAME.match(part) for part in path.split("/"))


class CheckpointError(CodedError):
    """Files that cannot be a checkpoint's, or a copy that cannot be installed."""


def find_checkpoint(attempt_dir, folders, patterns, wanted):
    """Return the description of the wanted checkpoint of an attempt on its node.

    It is {wanted, kind, name, folder, files, bytes, note, passed_over}. folders: below the
    attempt's directory, the likeliest first. patterns: {"best": ..., "last": ...}: `latest` stands
    for the files latest.* and for the folder latest; of several that fit (`iter_*`, or `a|b`) the
    newest is taken. wanted: one of WANTED. Where that one does not exist, the other is taken and
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
    try:
        root = _open_folder(attempt_dir)
    except FileNotFoundError:  # a spare has no directory of an attempt before it stood in
        return dict(result, note="this node was not in the attempt")
    try:
        for kind in [wanted] + [kind for kind in patterns if kind != wanted]:
            for folder in folders:
                name, paths = _newest(root, folder, patterns[kind], result["passed_over"])
                if paths:
                    files = {path: describe_file(root, folder + "/" + path) for path in paths}
                    result.update(kind=kind, name=name, folder=folder, files=files)
                    result["bytes"] = sum(entry[1] for entry in files.values())
                    result["note"] = _note(patterns, wanted, kind, files)
                    return result
    finally:
        os.close(root)
    return dict(result, note="the training has saved none")


def newest_name(attempt_dir, folders, patterns):
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
        return file_size(root, path) > 0
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
            usable = [path for path in paths if is_plain_path(path)]
            passed_over += [f"{folder}/{path}" for path in paths if not is_plain_path(path)]
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
        return list_files(descriptor, entry)
    if stat.S_ISREG(info.st_mode):
        return [entry]
    return []


def list_files(root, folder):
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


def describe_file(root, path):
    """Return ['f', bytes, sha256] of a file below a directory descriptor."""
    digest, size = hashlib.sha256(), 0
    with os.fdopen(open_below(root, path), "rb") as handle:
        for chunk in iter(lambda: handle.read(manifest.CHUNK), b""):
            digest.update(chunk)
            size += len(chunk)
    return ["f", size, digest.hexdigest()]


def check_files(files):
    """Raise CheckpointError where a node's files cannot be a checkpoint's.

    files: {path: ['f', bytes, sha256]}.
    """
    if not isinstance(files, dict):
        raise CheckpointError(
            "checkpoint.invalid_files", "the checkpoint is not a mapping of files"
        )
    if len(files) > MOST_FILES:
        raise CheckpointError(
            "checkpoint.invalid_files",
            f"the checkpoint has {len(files)} files; at most {MOST_FILES} are taken",
        )
    for path, entry in files.items():
        problem = safe_names.problem(path)
        if problem:
            raise CheckpointError(
                "checkpoint.invalid_files",
                f"the name {ascii(path)[:200]} of a checkpoint's file {problem}",
            )
        if not _is_file_entry(entry):
            raise CheckpointError(
                "checkpoint.invalid_files", f"{path}: there is no size and sha256 of it"
            )
    both = _folders_of(files) & set(files)
    if both:
        raise CheckpointError(
            "checkpoint.invalid_files", f"{sorted(both)[0]} is a file and a folder"
        )


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


def file_size(root, path):
    """Return the bytes of a regular file below a directory descriptor."""
    with os.fdopen(open_below(root, path), "rb") as handle:
        return os.fstat(handle.fileno()).st_size
