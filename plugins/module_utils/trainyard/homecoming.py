# SPDX-License-Identifier: Apache-2.0
"""Take brought logs into a run's directory on the controller: compare digests, give them their names, write the index of ranks.

No byte is lost: what does not match stays where it was brought, and a file at home is replaced only by one that begins with its bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import tempfile

INCOMING = ".incoming"
VERSION = 1
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")
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


def take(run_dir, node, item, write):
    """Bring one file home. Returns (changed, problem, record); `problem` is text or None."""
    incoming = os.path.join(run_dir, INCOMING, node, *item["file"].split("/"))
    home = os.path.join(run_dir, item["home"])
    brought, kept = digests(incoming, item["bytes"]), digests(home, item["bytes"])
    found = brought if brought is not None else kept
    problem = judge(found, item)
    if problem is not None:
        return False, problem, None
    move = brought is not None
    if move and kept is not None:
        # A file of that name is here already: the longer one stays, when it begins with the shorter one.
        move = brought[0] > kept[0]
        longer, shorter, found = (incoming, kept, brought) if move else (home, brought, kept)
        if digests(longer, shorter[0])[2] != shorter[1]:
            return False, f"differs from {item['home']}, which was brought before and is kept", None
    mode = not move and stat.S_IMODE(os.stat(home).st_mode) != 0o600
    if write:
        os.chmod(incoming if move else home, 0o600)
        if move:
            os.replace(incoming, home)
        elif brought is not None:
            os.unlink(incoming)
    return move or mode, None, {"node": node, "file": item["file"], "home": item["home"], "bytes": found[0], "sha256": found[1]}


def bring_home(run_dir, nodes, write=True):
    """Take every node's files in. Returns {"changed", "files", "mismatches", "index"}; `index` is the text of ranks.json."""
    check(nodes)
    changed, files, mismatches = False, [], []
    for entry in nodes:
        for item in entry["files"]:
            moved, problem, record = take(run_dir, entry["node"], item, write)
            changed = changed or moved
            if problem is None:
                files.append(record)
            else:
                mismatches.append({"node": entry["node"], "file": item["file"], "home": item["home"], "problem": problem})
    ranks = [dict(rank) for entry in nodes for rank in entry["ranks"]]
    ranks.sort(key=lambda rank: rank["rank"] if isinstance(rank.get("rank"), int) else float("inf"))
    index = {"version": VERSION, "ranks": ranks, "files": sorted(files, key=lambda f: f["home"])}
    text = json.dumps(index, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    changed = put(os.path.join(run_dir, "ranks.json"), text, write) or changed
    if write:
        _clear(os.path.join(run_dir, INCOMING))
    return {"changed": changed, "files": files, "mismatches": mismatches, "index": index}


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
