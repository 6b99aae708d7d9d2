# SPDX-License-Identifier: Apache-2.0
"""Take brought logs into a run's directory on the controller: compare digests, give them their names, write the index of ranks.

No byte is lost: what does not match stays where it was brought; a file at home whose node has another one by now is kept as <home>.1, .2, ...
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile

from ansible.module_utils.trainyard import ranks as rank_index
from ansible.module_utils.trainyard.stream_lock import Busy, Lock

INCOMING = ".incoming"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")
_DIGEST = re.compile(r"^[0-9a-f]{64}$")
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class HomeError(Exception):
    """The request itself is wrong; nothing was touched."""


def check(nodes):
    """Refuse names that could leave the run's directory, and two files with one name; raise HomeError with every problem."""
    problems, homes = [], {}
    for entry in nodes:
        node = str(entry.get("node"))
        if not _NAME.match(node):
            problems.append(f"{node!r} cannot be a node's name")
        if not all(isinstance(entry.get(key), list) and all(isinstance(v, dict) for v in entry[key]) for key in ("files", "ranks")):
            problems.append(f"{node}: no lists `files` and `ranks`; give what rank_logs returned")
            continue
        for item in entry["files"]:
            name, home = str(item.get("file")), str(item.get("home"))
            if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
                problems.append(f"{node}: {name!r} does not stay inside the attempt")
            if not _NAME.match(home):
                problems.append(f"{node}: {home!r} cannot be a file's name")
            if home in homes:
                problems.append(f"{node}: {home} is also the name of a file of {homes[home]}")
            if not isinstance(item.get("bytes"), int) or not _DIGEST.match(str(item.get("sha256"))):
                problems.append(f"{node}: {name}: the node gave no size and sha256 (rank_logs with digest: true does)")
            homes.setdefault(home, node)
    if problems:
        raise HomeError("; ".join(problems))


def digests(path, size):
    """(bytes, sha256 of the whole file, sha256 of its first `size` bytes), or None where it is no regular file."""
    try:
        descriptor = os.open(path, _OPEN)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        whole, prefix, done = hashlib.sha256(), hashlib.sha256(), 0
        while True:
            chunk = handle.read(1 << 20)
            if not chunk:
                return done, whole.hexdigest(), prefix.hexdigest()
            whole.update(chunk)
            prefix.update(chunk[: max(0, size - done)])
            done += len(chunk)


def judge(found, item):
    """Why a file is not what the node has, or None. A file that grew since must begin with what the node reported."""
    if found is None:
        return "was not brought"
    size, whole, prefix = found
    if prefix == item["sha256"]:
        return None
    return f"here {size} bytes, sha256 {whole}; on the node {item['bytes']} bytes, sha256 {item['sha256']}"


def _places(run_dir, node, item):
    return os.path.join(run_dir, INCOMING, node, *item["file"].split("/")), os.path.join(run_dir, item["home"])


def missing(run_dir, nodes, write=True):
    """Return {node: [file]} of what is to be brought: all that is not here as its node has it.

    What is here of such a file already is laid where it is brought to, as a second name of the same file, so that rsync moves the rest only.
    """
    check(nodes)
    if write:
        make_private(run_dir)
    wanted = {}
    for entry in nodes:
        wanted[entry["node"]] = []
        for item in entry["files"]:
            incoming, home = _places(run_dir, entry["node"], item)
            found = digests(home, item["bytes"])
            if judge(found, item) is None:
                continue
            wanted[entry["node"]].append(item["file"])
            if write:
                make_private(os.path.dirname(incoming))
                if found is not None:
                    with contextlib.suppress(FileExistsError):  # somebody else who collects the same has laid it there
                        os.link(home, incoming)
    return wanted


def take(run_dir, node, item, write):
    """Bring one file home. Returns (changed, problem, record); `problem` is text or None."""
    incoming, home = _places(run_dir, node, item)
    brought, here = digests(incoming, item["bytes"]), digests(home, item["bytes"])
    if judge(brought, item) is not None and judge(here, item) is None:
        if brought is not None and write and digests(home, brought[0])[2] == brought[1]:
            os.unlink(incoming)  # a part of it, of an earlier time
        brought = None
    found, kept = brought if brought is not None else here, None
    problem = judge(found, item)
    if problem is not None:
        return False, problem, None
    move = brought is not None
    if move and here is not None:
        # A file of that name is here already: the longer one stays, when it begins with the shorter one.
        longer, shorter = (incoming, here) if brought[0] > here[0] else (home, brought)
        if digests(longer, shorter[0])[2] == shorter[1]:
            move, found = longer == incoming, max(brought, here)
        else:
            kept = free_name(run_dir, item["home"])
    mode = not move and stat.S_IMODE(os.stat(home).st_mode) != 0o600
    if write:
        os.chmod(incoming if move else home, 0o600)
        if kept is not None:
            os.link(home, os.path.join(run_dir, kept))
        if move:
            os.replace(incoming, home)
        elif brought is not None:
            os.unlink(incoming)
    record = {"node": node, "file": item["file"], "home": item["home"], "bytes": found[0], "sha256": found[1]}
    return move or mode, None, record


def make_private(path):
    """Make a directory, and what is missing above it, for this user alone."""
    if not os.path.isdir(path):
        make_private(os.path.dirname(os.path.abspath(path)))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass


def free_name(directory, home):
    """Return the first of <home>.1, .2, ... that is not taken in the directory."""
    number = 1
    while os.path.lexists(os.path.join(directory, "%s.%d" % (home, number))):
        number += 1
    return "%s.%d" % (home, number)


def earlier(run_dir, node, files):
    """Records of what was brought of a node's files before they were truncated, replaced or removed there; `files`: as the node has them.

    A file that is gone has no name on its node any more. What was kept of one that began again is <home>.1, .2, ...
    """
    names = {item["home"]: item["file"] for item in files}
    mine = re.compile(r"((?:rank-\d+|stray-[A-Za-z0-9._-]+|[A-Za-z0-9_-]+)\.%s\.(?:log|jsonl|json))(?:\.\d+)?" % re.escape(node))
    records = []
    for name in sorted(os.listdir(run_dir)):
        match = mine.fullmatch(name)
        found = digests(os.path.join(run_dir, name), 0) if match and name not in names else None
        if found is not None:
            records.append({"node": node, "file": names.get(match.group(1), ""), "home": name, "bytes": found[0], "sha256": found[1]})
    return records


def bring_home(run_dir, nodes, write=True, seconds=45):
    """Take every node's files in. Returns {"changed", "files", "replaced", "mismatches", "index"}; `index` is what ranks.json holds.

    seconds: how long a stream that still brings a node's logs is waited for.
    """
    check(nodes)
    changed, files, replaced, mismatches = False, [], [], []
    for entry in nodes:
        name = {"node": entry["node"]}
        if entry.get("goes_on"):
            continue  # the run goes on: its logs come home by a stream, and are compared once it has ended
        try:
            lock = Lock(run_dir, entry["node"], seconds) if write else None
        except Busy as error:
            mismatches += [dict(name, file=item["file"], home=item["home"], problem=str(error)) for item in entry["files"]]
            continue
        for item in entry["files"]:
            moved, problem, record = take(run_dir, entry["node"], item, write)
            changed = changed or moved
            if problem is not None:
                mismatches.append(dict(name, file=item["file"], home=item["home"], problem=problem))
                continue
            files.append(record)
        old = earlier(run_dir, entry["node"], entry["files"])
        replaced += [dict(name, file=record["file"], kept=record["home"]) for record in old if record["file"]]
        files += old
        if lock is not None:
            lock.close()
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
    return {"changed": changed, "files": files, "replaced": replaced, "mismatches": mismatches, "index": index}


def put(path, text, write=True):
    """Write a file whole or not at all, mode 0600; returns whether it was different."""
    try:
        with open(path, encoding="utf-8") as handle:
            if handle.read() == text and stat.S_IMODE(os.fstat(handle.fileno()).st_mode) == 0o600:
                return False
    except (OSError, ValueError):
        pass
    if write:
        descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".ranks.")  # made with mode 0600
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
