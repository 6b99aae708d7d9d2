# SPDX-License-Identifier: Apache-2.0
"""Manifests: the content of a tree as one digest and as named differences.

A manifest maps a relative path to ``[kind, size, sha256]``. kind is ``f`` (file), ``x`` (executable
file) or ``l`` (symbolic link, whose sha256 is that of its target text). Modes other than the
executable bit, owners and times are left out: they differ between machines without an effect on the
training. The same functions run on the controller and on the nodes, so equal digests mean equal
bytes.
"""

from __future__ import annotations

import hashlib
import os
import stat

from . import git_tree
from .coded_error import CodedError
from .files import read_mapping, write_json

CHUNK = 1 << 20
TREE_BYTES = 4 << 30  # of a file with one entry per file of a tree
# Links that a message names.
MOST_NAMED = 8
ALWAYS_IGNORED = (".git", "__pycache__", ".ipynb_checkpoints")


class ManifestError(CodedError):
    """A tree that is missing, unreadable, or has a name that cannot be sent."""


def file_sha256(path):
    """Return the hex sha256 of a regular file, read in chunks of 1 MiB.

    Raise OSError for all else. A pipe or a device does not block.
    """
    digest = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as handle:
        if not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        for chunk in iter(lambda: handle.read(CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def walk_files(root, ignored=ALWAYS_IGNORED, exclude=()):
    """Return the sorted relative paths of all files and links below root.

    Directories named in `ignored` are passed over. exclude: relative paths that are passed over,
    too, with all that lies below them.
    """
    paths = []
    for folder, folders, files in os.walk(root):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        passed = set(ignored) | _excluded_in(os.path.relpath(folder, root), exclude)
        folders[:] = sorted(name for name in folders if name not in passed and name not in links)
        paths.extend(
            os.path.relpath(os.path.join(folder, name), root)
            for name in files + links
            if name not in passed
        )
    return sorted(paths)


def _excluded_in(folder, exclude):
    """Return the names in one directory that `exclude` has. folder: relative to the root."""
    parents = [os.path.split(os.path.normpath(path)) for path in exclude]
    return {name for parent, name in parents if (parent or ".") == folder}


def git_files(root, exclude=()):
    """Return tracked and non-ignored files below root as git sees them (docs/design.md, 9).

    None where git cannot say: root is in no git work tree, or another account owns that tree.
    exclude: relative paths that are left out, with all that lies below them. Raises ManifestError
    where git takes too long.
    """
    try:
        names = git_tree.listed(root, exclude)
    except git_tree.GitError as error:
        if error.reason in ("late", "large"):
            raise ManifestError("inputs.git_late", str(error)) from error
        return None
    links, files = {".": False}, []
    for name in names:
        parts = name.split("/")
        # An index may hold any text as a name. A path behind a link is not a file of the tree.
        if name.startswith("/") or set(parts) & {"", ".", ".."} or set(parts) & set(ALWAYS_IGNORED):
            continue
        path = os.path.join(root, name)
        exists = os.path.lexists(path) and not _behind_link(root, os.path.dirname(name), links)
        if exists and (os.path.islink(path) or not os.path.isdir(path)):
            files.append(name)
    return sorted(set(files)) or None


def _behind_link(root, folder, known):
    """Return whether a directory of the tree, or one above it, is a link.

    known: {directory: answer} of earlier calls.
    """
    folder = folder or "."
    if folder not in known:
        above = _behind_link(root, os.path.dirname(folder), known)
        known[folder] = above or os.path.islink(os.path.join(root, folder))
    return known[folder]


def _entry(path, known, follow=False):
    """Return (entry, cache record) of one file.

    The file is not read if its inode, size and times are still those of the record `known`. follow:
    a link stands for the file that it leads to.
    """
    info = os.stat(path, follow_symlinks=follow)
    if stat.S_ISLNK(info.st_mode):
        target = os.fsencode(os.readlink(path))
        return ["l", len(target), hashlib.sha256(target).hexdigest()], None
    if not stat.S_ISREG(info.st_mode):
        raise ManifestError(
            "inputs.special_file",
            f"{path}: not a file, a directory or a link; take it out of the tree",
        )
    kind = "f"
    if info.st_mode & 0o100:
        kind = "x"
    record = [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
    if isinstance(known, list) and len(known) == 5 and known[:4] == record:
        return [kind, info.st_size, known[4]], known
    value = file_sha256(path)
    return [kind, info.st_size, value], record + [value]


def entry(path):
    """Return [kind, size, sha256] of one file, read now."""
    return _entry(path, None)[0]


def scan(root, names=None, cache=None, fresh=False, follow=False):
    """Return the manifest of a tree.

    It is {relative path: [kind, size in bytes, hex sha256]}. root: directory. names: relative paths
    to take (default: all files below root). cache: path of a JSON file that remembers digests by
    inode, size and times, so that a repeat costs one lstat per file. None reads every byte. fresh:
    read every byte whatever the cache says, and remember that. follow: a link among `names` stands
    for the file that it leads to. Raises ManifestError for a missing root or an odd file.
    """
    if not os.path.isdir(root):
        raise ManifestError("inputs.tree_missing", f"{root}: no such directory")
    known = {}
    if cache and not fresh:
        known = read_mapping(cache, TREE_BYTES)
    if names is None:
        names = walk_files(root)
    entries, records = {}, {}
    for name in names:
        _refuse_unsafe_name(name, root)
        entry, record = _entry(os.path.join(root, name), known.get(name), follow)
        entries[name] = entry
        if record:
            records[name] = record
    if cache and records != known:
        write_json(cache, records)
    return entries


def _refuse_unsafe_name(name, root):
    """Raise ManifestError for a name that cannot be sent safely."""
    if name.startswith("-") or any(
        ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF for char in name
    ):
        raise ManifestError(
            "inputs.bad_name",
            f"{name!r} in {root}: a name with a control character, with bytes that are not UTF-8,"
            " or with a leading dash cannot be sent safely; rename it",
        )


# What is done about a link that cannot be sent, if a caller knows no better.
LINK_REMEDY = "put what it means into the tree"


def link_problem(root, name):
    """Return why a link of a tree cannot be sent as a link, or None.

    A digest holds a link's text, so every node could read something else behind it.
    """
    target = os.readlink(os.path.join(root, name))
    if os.path.isabs(target):
        inside = os.path.realpath(os.path.join(root, os.path.dirname(name), target))
        base = os.path.realpath(root)
        if inside == base or inside.startswith(base.rstrip("/") + "/"):
            relative = os.path.relpath(inside, os.path.join(base, os.path.dirname(name)))
            return (
                f"is a link to {target}: it stays inside, but its absolute path is not there on a"
                f" node; make it relative: ln -sfn {relative} {os.path.join(root, name)}"
            )
        return f"is a link to {target}, outside of the tree"
    resolved = os.path.normpath(os.path.join(os.path.dirname(name), target))
    if resolved.split(os.sep)[0] == os.pardir:
        return f"is a link to {target}, outside of the tree"
    return None


def refuse_links_out(root, entries, remedy=LINK_REMEDY):
    """Raise ManifestError for the links of a tree that cannot be sent.

    All are named at once, up to eight. remedy: what the user may do.
    """
    problems = []
    for name, entry in sorted(entries.items()):
        problem = entry[0] == "l" and link_problem(root, name)
        if problem:
            problems.append(f"{name} in {root}: {problem}")
    if problems:
        more = ""
        if len(problems) > MOST_NAMED:
            more = f"; and {len(problems) - MOST_NAMED} more"
        raise ManifestError(
            "inputs.bad_link", "; ".join(problems[:MOST_NAMED]) + f"{more}; {remedy}"
        )


def sampled(entries, files=64, size=256 << 20):
    """Return names of regular files for a sample, the same ones for the same manifest.

    They are at most so many, and of so many bytes, but one at least.
    """
    chosen, total = [], 0
    candidates = [name for name in entries if entries[name][0] != "l"]
    candidates.sort(key=lambda name: hashlib.sha256(b"sample" + os.fsencode(name)).digest())
    for name in candidates:
        if len(chosen) < files and (not chosen or total + entries[name][1] <= size):
            chosen.append(name)
            total += entries[name][1]
    return chosen


def digest(entries):
    """Return the hex sha256 of a manifest, independent of its order."""
    total = hashlib.sha256()
    for name in sorted(entries):
        fields = "\0".join([os.fsencode(name).hex(), *map(str, entries[name])])
        total.update(f"{fields}\n".encode("ascii"))
    return total.hexdigest()


def differences(expected, actual, limit=20):
    """Return at most `limit` sentences, one per file that is not as expected."""
    lines = []
    for name in sorted(set(expected) | set(actual)):
        want, have = expected.get(name), actual.get(name)
        if want == have:
            continue
        if have is None:
            lines.append(f"{name}: missing")
        elif want is None:
            lines.append(f"{name}: extra file")
        elif want[0] != have[0]:
            lines.append(f"{name}: kind {have[0]} instead of {want[0]}")
        elif want[1] != have[1]:
            lines.append(f"{name}: {have[1]} bytes instead of {want[1]}")
        else:
            lines.append(f"{name}: other content in the same {want[1]} bytes")
    if len(lines) > limit:
        return [*lines[:limit], f"... and {len(lines) - limit} more"]
    return lines
