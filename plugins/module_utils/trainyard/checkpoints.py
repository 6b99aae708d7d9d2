# SPDX-License-Identifier: Apache-2.0
"""The trained model: found on its node by the suite's table, and put in its place at home only when every byte of it has come.

On a node nothing but regular files below the attempt's directory is read. At home a checkpoint is brought into STAGING beside its place; a copy
that was interrupted stays there, where nobody takes it for a model, and the next one goes on from it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import re
import shutil
import stat

from ansible.module_utils.trainyard import manifest
from ansible.module_utils.trainyard.below import DIRECTORY, open_below

WANTED = ("best", "last", "none")
PLACE, STAGING = "checkpoint", ".checkpoint.part"
# What rsync's patterns and the words of its command line take for nothing but a name; ansible.posix.synchronize joins them unquoted.
NAME = re.compile(r"[A-Za-z0-9_+@=.][A-Za-z0-9_+@=.-]{0,200}\Z")


class CheckpointError(Exception):
    """What came is not what the node has, or cannot be put in its place; the message is for people."""


def find(attempt_dir, folders, patterns, wanted):
    """Return {wanted, kind, name, folder, files, bytes, note, passed_over} of an attempt on its node.

    folders: below the attempt's directory, the likeliest first. patterns: {"best": ..., "last": ...}: `latest` stands for the files latest.* and
    for the folder latest; of several that fit (`iter_*`, or `a|b`) the newest is taken. wanted: one of WANTED; where that one is not there, the other is
    taken and the note says so. kind: best, last or '' where nothing is taken. files: {path below folder: ['f', bytes, sha256]}. Raises OSError.
    """
    result = {"wanted": wanted, "kind": "", "name": "", "folder": "", "files": {}, "bytes": 0, "note": "", "passed_over": []}
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
    """Return the name of the best checkpoint that is there, else of the last one, else ''; one with an empty file or none of it readable is none."""
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
        why = " (was anything evaluated?)" if wanted == "best" else " (the training did not come to its end)"
        said.append("there is no %s%s, so the %s one was taken" % (patterns[wanted].replace("|", " or "), why, kind))
    empty = sorted(path for path, entry in entries.items() if not entry[1])
    said += ["%s is empty" % ", ".join(empty)] if empty else []
    return "; ".join(said)


def _newest(root, folder, pattern, passed_over):
    """Return (name, paths below folder) of the newest checkpoint there that fits the pattern; ('', []) without one."""
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
            paths = _files_of(here, entry) if folded else [entry] if stat.S_ISREG(info.st_mode) else []
            sound = [path for path in paths if all(NAME.match(part) for part in path.split("/"))]
            passed_over += [folder + "/" + path for path in set(paths) - set(sound)] + ([folder + "/" + entry] if not paths else [])
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
    """Return the paths of the regular files in a folder of a directory descriptor; links and everything else are left out."""
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


def lacking(folder, files):
    """Return sentences that say in what a folder at home differs from files, as `find` gave them; [] where every one is there, whole.

    Further files are no difference: another checkpoint that was brought before stays.
    """
    there = [name for name in files if os.path.isfile(os.path.join(folder, name))]
    return manifest.differences({name: list(entry) for name, entry in files.items()}, manifest.scan(folder, there) if there else {})


def take(attempt_dir, files, write=True):
    """Put the files that were brought to STAGING into PLACE, all or none; return whether that changes anything.

    attempt_dir: at home. Raises CheckpointError with every difference; what differs is removed, so that the next copy brings it anew.
    """
    place, staging, fresh, old = (os.path.join(attempt_dir, name) for name in (PLACE, STAGING, ".checkpoint.new", ".checkpoint.old"))
    if write and not os.path.lexists(place) and os.path.isdir(old):
        os.rename(old, place)  # the end of another one's exchange came between its two renames
    if not lacking(place, files):
        if write:
            shutil.rmtree(staging, ignore_errors=True)
        return False
    if os.path.islink(place):
        raise CheckpointError("%s is a link; nothing was put there" % place)
    wrong = lacking(staging, files)
    if wrong:
        if write:
            _drop(staging, files)
        raise CheckpointError("%s: differs from the node's: %s" % (staging, "; ".join(wrong)))
    if not write:
        return True
    shutil.rmtree(fresh, ignore_errors=True)
    os.mkdir(fresh, 0o700)
    if os.path.isdir(place):
        for name in manifest.walk_files(place):
            if name not in files:
                _move(os.path.join(place, name), os.path.join(fresh, name), os.link)
    for name in files:
        _move(os.path.join(staging, name), os.path.join(fresh, name), os.rename)
    shutil.rmtree(old, ignore_errors=True)
    if os.path.isdir(place):
        os.rename(place, old)
    os.rename(fresh, place)
    for done in (old, staging):
        shutil.rmtree(done, ignore_errors=True)
    return True


def _move(source, target, move):
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    with open(source, "rb") as handle:
        os.fchmod(handle.fileno(), 0o600)
        os.fsync(handle.fileno())
    move(source, target)


def _drop(staging, files):
    """Remove from a copy what differs: rsync takes a file of the right size and time for the right one."""
    for name in files:
        path = os.path.join(staging, name)
        if os.path.isfile(path) and lacking(staging, {name: files[name]}):
            os.unlink(path)
