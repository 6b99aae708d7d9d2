# SPDX-License-Identifier: Apache-2.0
"""Take brought logs into a run's directory on the controller: compare digests, give them their
names, write the index of ranks.

No byte is lost: what does not match stays where it was brought; a file at home whose node has
another one by now is kept as <home>.1, .2, ...
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile

from ..base import safe_names
from ..base.safe_open import (
    open_below,
    open_file,
    open_root,
    parent_of,
)
from ..base.sanitize import printable
from ..config import quota
from . import log_index as rank_index
from .stream_lock import Busy, Lock

INCOMING = ".incoming"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")
_DIGEST = re.compile(r"^[0-9a-f]{64}$")
LARGEST = 1 << 50  # bytes that no log has


class HomeError(Exception):
    """The request itself is wrong; nothing was touched."""


def check(nodes):
    """Refuse names that could leave the run's directory, and two files with one name; raise
    HomeError with every problem.
    """
    problems, homes = [], {}
    for entry in nodes:
        problems += _problems(entry, homes)
    if problems:
        raise HomeError("; ".join(problems))


def settled(nodes):
    """Return (the entries that are sound, {node: why its entry is refused}); what one node says
    costs no other node its logs.

    A node gives files that bear its own name alone, so that it takes no other node's place.
    """
    sound, refused, homes = [], {}, {}
    for entry in nodes:
        problems = _problems(entry, dict(homes), own=True)
        if problems:
            refused[str(entry.get("node"))[:100]] = printable("; ".join(problems[:5]), limit=1000)
            continue
        homes.update({item["home"]: entry["node"] for item in entry["files"]})
        sound.append(entry)
    return sound, refused


def _problems(entry, homes, own=False):
    """Return what is wrong with one node's entry; homes: {name at home: node} of those before it,
    extended by this one's.
    """
    node, problems = str(entry.get("node")), []
    if not _NAME.match(node):
        problems.append(f"{ascii(node)} cannot be a node's name")
    if not all(
        isinstance(entry.get(key), list) and all(isinstance(v, dict) for v in entry[key])
        for key in ("files", "ranks")
    ):
        return [*problems, f"{node}: no lists `files` and `ranks`; give what rank_logs returned"]
    mine = safe_names.at_home(node)
    for item in entry["files"]:
        name, home, size = item.get("file"), str(item.get("home")), item.get("bytes")
        said = safe_names.problem(name)
        if said:
            problems.append(f"{node}: the name {ascii(name)[:200]} {said}")
        if not _NAME.match(home) or (own and not mine.fullmatch(home)):
            problems.append(f"{node}: {ascii(home)[:200]} cannot be a file's name")
        if home in homes:
            problems.append(f"{node}: {home} is also the name of a file of {homes[home]}")
        whole = isinstance(size, int) and not isinstance(size, bool) and 0 <= size < LARGEST
        if not whole or not _DIGEST.match(str(item.get("sha256"))):
            problems.append(
                f"{node}: {ascii(name)[:200]}: the node gave no size and sha256 (rank_logs with"
                " digest: true does)"
            )
        homes.setdefault(home, node)
    return problems


def digests_below(root, path, size):
    """(bytes, sha256 of the whole file, sha256 of its first `size` bytes) below a directory
    descriptor, or None where it is no regular file.
    """
    try:
        descriptor = open_below(root, path)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        whole, prefix, done = hashlib.sha256(), hashlib.sha256(), 0
        while True:
            chunk = handle.read(1 << 20)
            if not chunk:
                return done, whole.hexdigest(), prefix.hexdigest()
            whole.update(chunk)
            prefix.update(chunk[: max(0, size - done)])
            done += len(chunk)


def digests(path, size):
    """`digests_below` for a path of our own."""
    try:
        root = open_root(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return None
    try:
        return digests_below(root, os.path.basename(path), size)
    finally:
        os.close(root)


def judge(found, item):
    """Why a file is not what the node has, or None. A file that grew since must begin with what the
    node reported.
    """
    if found is None:
        return "was not brought"
    size, whole, prefix = found
    if prefix == item["sha256"]:
        return None
    return (
        f"here {size} bytes, sha256 {whole}; on the node {item['bytes']} bytes, sha256"
        f" {item['sha256']}"
    )


def _incoming(node, item):
    """Return where a node's file is brought to, below the run's directory."""
    return "{}/{}/{}".format(INCOMING, node, item["file"])


def missing(run_dir, nodes, write=True):
    """Return {node: [file]} of what is to be brought: all that is not here as its node has it.

    What is here of such a file already is laid where it is brought to, as a second name of the same
    file, so that rsync moves the rest only.
    """
    sizes, _left = lacking(run_dir, nodes, quota.Quota(LARGEST, LARGEST, 0), write)
    wanted = {entry["node"]: [item["file"] for item in entry["files"]] for entry in nodes}
    return {node: [file for file in files if file in sizes[node]] for node, files in wanted.items()}


def lacking(run_dir, nodes, bounds, write=True):
    """Return (sizes, left) of what is not here as its node has it: {node: {file: bytes}} to bring,
    {node: {file: bytes}} that a bound leaves there.

    bounds: quota.Quota. The smallest files come first, so that one log without end does not cost
    the others.
    """
    check(nodes)
    if write:
        make_private(run_dir)
    sizes, left = {entry["node"]: {} for entry in nodes}, {entry["node"]: {} for entry in nodes}
    root = open_root(run_dir) if os.path.isdir(run_dir) else None
    try:
        for entry in nodes:
            _lacking_of(
                root, run_dir, entry, bounds, (sizes[entry["node"]], left[entry["node"]]), write
            )
    finally:
        if root is not None:
            os.close(root)
    return sizes, left


def _lacking_of(root, run_dir, entry, bounds, result, write):
    node, (sizes, left) = entry["node"], result
    used, count = quota.used(os.path.dirname(os.path.abspath(run_dir)), node)
    for item in sorted(entry["files"], key=lambda item: item["bytes"]):
        found = digests_below(root, item["home"], item["bytes"]) if root is not None else None
        if judge(found, item) is None:
            continue
        more = max(0, item["bytes"] - (found[0] if found else 0))
        if used + more > bounds.bytes or count + (found is None) > bounds.files:
            left[item["file"]] = item["bytes"]
            continue
        used, count = used + more, count + (found is None)
        sizes[item["file"]] = item["bytes"]
        if not write:
            continue
        with parent_of(root, _incoming(node, item), make=True) as (folder, name):
            if found is not None:
                with contextlib.suppress(
                    FileExistsError
                ):  # another process that collects the same has laid it there
                    os.link(
                        item["home"],
                        name,
                        src_dir_fd=root,
                        dst_dir_fd=folder,
                        follow_symlinks=False,
                    )


def take(root, node, item, write):
    """Bring one file home. Returns (changed, problem, record); `problem` is text or None. root:
    descriptor of the run's directory.
    """
    incoming, home = _incoming(node, item), item["home"]
    brought, here = (
        digests_below(root, incoming, item["bytes"]),
        digests_below(root, home, item["bytes"]),
    )
    if judge(brought, item) is not None and judge(here, item) is None:
        if brought is not None and write and digests_below(root, home, brought[0])[2] == brought[1]:
            _unlink(root, incoming)  # a part of it, of an earlier time
        brought = None
    found, kept = brought if brought is not None else here, None
    problem = judge(found, item)
    if problem is not None:
        return False, problem, None
    move = brought is not None
    if move and here is not None:
        # A file of that name is here already: the longer one stays, when it begins with the shorter
        # one.
        longer, shorter = (incoming, here) if brought[0] > here[0] else (home, brought)
        if digests_below(root, longer, shorter[0])[2] == shorter[1]:
            move, found = longer == incoming, max(brought, here)
        else:
            try:
                kept = free_name(root, home)
            except quota.QuotaError as error:
                return False, str(error), None
    mode = (
        not move
        and stat.S_IMODE(os.stat(home, dir_fd=root, follow_symlinks=False).st_mode) != 0o600
    )
    if write:
        with os.fdopen(open_below(root, incoming if move else home), "rb") as handle:
            os.fchmod(handle.fileno(), 0o600)
        if kept is not None:
            os.link(home, kept, src_dir_fd=root, dst_dir_fd=root, follow_symlinks=False)
        if move:
            with parent_of(root, incoming) as (folder, name):
                os.replace(name, home, src_dir_fd=folder, dst_dir_fd=root)
        elif brought is not None:
            _unlink(root, incoming)
    record = {
        "node": node,
        "file": item["file"],
        "home": home,
        "bytes": found[0],
        "sha256": found[1],
    }
    return move or mode, None, record


def _unlink(root, path):
    with parent_of(root, path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def make_private(path):
    """Make a directory, and what is missing above it, for this user alone."""
    if not os.path.isdir(path):
        make_private(os.path.dirname(os.path.abspath(path)))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass


def free_name(root, home):
    """Return the first of <home>.1, .2, ... that is not taken below a directory descriptor; raise
    QuotaError where too many are.
    """
    for number in range(1, quota.KEPT + 1):
        name = "%s.%d" % (home, number)
        try:
            os.stat(name, dir_fd=root, follow_symlinks=False)
        except FileNotFoundError:
            return name
    raise quota.QuotaError("%s began again more than %d times on its node" % (home, quota.KEPT))


def earlier(root, node, files):
    """Records of what was brought of a node's files before they were truncated, replaced or removed
    there; `files`: as the node has them.

    A file that is gone has no name on its node any more. What was kept of one that began again is
    <home>.1, .2, ...
    """
    names = {item["home"]: item["file"] for item in files}
    mine = safe_names.at_home(node, kept=True)
    records = []
    for name in sorted(os.listdir(root)):
        match = mine.fullmatch(name)
        found = digests_below(root, name, 0) if match and name not in names else None
        if found is not None:
            records.append(
                {
                    "node": node,
                    "file": names.get(match.group("home"), ""),
                    "home": name,
                    "bytes": found[0],
                    "sha256": found[1],
                }
            )
    return records


def bring_home(run_dir, nodes, write=True, seconds=45, left=None):
    """Take every node's files in. Returns {"changed", "files", "replaced", "mismatches", "index"};
    `index` is what ranks.json holds.

    seconds: how long a stream that still brings a node's logs is waited for. left: {node: files}
    that a bound leaves on their node; that they are not here is no mismatch.
    """
    check(nodes)
    changed, files, replaced, mismatches = False, [], [], []
    root = open_root(run_dir)
    try:
        for entry in nodes:
            if entry.get("goes_on"):
                # the run goes on: its logs come home by a stream, and are compared once it has
                # ended
                continue
            moved, found, kept, wrong = _of_node(
                root, run_dir, entry, write, seconds, (left or {}).get(entry["node"]) or ()
            )
            changed, files, replaced, mismatches = (
                changed or moved,
                files + found,
                replaced + kept,
                mismatches + wrong,
            )
    finally:
        os.close(root)
    try:
        before = rank_index.read(run_dir)
    except rank_index.NewerIndex as error:
        raise HomeError(str(error)) from error
    except rank_index.IndexProblem:
        before = None  # written again, below
    index = rank_index.make(run_dir, nodes, files, before)
    text = json.dumps(index, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    changed = put(os.path.join(run_dir, rank_index.NAME), text, write) or changed
    if write:
        _clear(os.path.join(run_dir, INCOMING))
    return {
        "changed": changed,
        "files": files,
        "replaced": replaced,
        "mismatches": mismatches,
        "index": index,
    }


def _of_node(root, run_dir, entry, write, seconds, left):
    """Take one node's files in; return (changed, records, replaced, mismatches)."""
    name, changed, files, mismatches = {"node": entry["node"]}, False, [], []
    try:
        lock = Lock(run_dir, entry["node"], seconds) if write else None
    except Busy as error:
        return (
            False,
            [],
            [],
            [
                dict(name, file=item["file"], home=item["home"], problem=str(error))
                for item in entry["files"]
            ],
        )
    try:
        for item in entry["files"]:
            try:
                moved, problem, record = take(root, entry["node"], item, write)
            except OSError as error:
                moved, problem, record = (
                    False,
                    "cannot be taken in: %s" % (error.strerror or error),
                    None,
                )
            changed = changed or moved
            if record is not None:
                files.append(record)
            elif item["file"] not in left:
                mismatches.append(dict(name, file=item["file"], home=item["home"], problem=problem))
        old = earlier(root, entry["node"], entry["files"])
    finally:
        if lock is not None:
            lock.close()
    replaced = [
        dict(name, file=record["file"], kept=record["home"]) for record in old if record["file"]
    ]
    return changed, files + old, replaced, mismatches


def put(path, text, write=True):
    """Write a file whole or not at all, mode 0600; returns whether it was different."""
    try:
        with open_file(path) as handle:
            if (
                handle.read(len(text.encode()) + 1) == text.encode()
                and stat.S_IMODE(os.fstat(handle.fileno()).st_mode) == 0o600
            ):
                return False
    except (OSError, ValueError):
        pass
    if write:
        descriptor, temporary = tempfile.mkstemp(
            dir=os.path.dirname(path), prefix=".ranks."
        )  # made with mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            handle.write(text)
        os.replace(temporary, path)
    return True


def _clear(incoming):
    """Remove the directories that have become empty; what did not match keeps its own."""
    for folder, _folders, _files in os.walk(incoming, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            continue
