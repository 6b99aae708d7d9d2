# SPDX-License-Identifier: Apache-2.0
"""The packages that lie in the directories of a Python, and whether their files are those of their
installation. Reads only.

A wheel's installation leaves a directory NAME-VERSION.dist-info with RECORD, a line of path, sha256
and size for every file (packaging.python.org, "Recording installed projects"). An environment of
ours has a marker that was written last, so that a file which changed later has a later ctime:
nobody sets that back without turning the clock back. Only what is later is read and held against
RECORD.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import time
import zlib

SUFFIXES = (".dist-info", ".egg-info")
# What runs: the files that a cached look goes through, one stat each (0.006 ms a file, measured on
# the local nodes).
CODE = (".py", ".so", ".pth")
# A sampled look reads one file in so many, others every day.
SAMPLE = 20
# So much is read of a METADATA to find its version.
HEAD_BYTES = 4096
# Whoever installs writes RECORD last; a file that is younger by more than so many seconds came
# later.
INSTALL_SECONDS = 5


def normal_name(name):
    """Return the one spelling of a package name that an index compares by: 'Foo_Bar' -> 'foo-bar'
    (PEP 503).
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _version_inside(path):
    """Return the version that a package's METADATA or PKG-INFO tells, or None; for what has no
    version in its name.
    """
    for name in ("METADATA", "PKG-INFO", ""):
        try:
            with open(
                os.path.join(path, name) if name else path, encoding="utf-8", errors="replace"
            ) as handle:
                found = re.search(r"^Version: *(\S+)", handle.read(HEAD_BYTES), re.MULTILINE)
        except OSError:
            continue
        if found:
            return found.group(1)
    return None


def found(paths):
    """Return {package: {version, place (its dist-info or egg-info), site (the directory it lies
    in)}}; the first directory of paths wins.
    """
    packages = {}
    for path in reversed(paths):
        try:
            names = os.listdir(path)
        except OSError:
            continue
        for entry in sorted(names):
            stem, suffix = os.path.splitext(entry)
            if suffix not in SUFFIXES:
                continue
            name, dash, version = stem.partition("-")
            place = os.path.join(path, entry)
            version = version.split("-py")[0] if dash else _version_inside(place)
            if version:
                packages[normal_name(name)] = {"version": version, "place": place, "site": path}
    return packages


def build(package):
    """Return 12 hex digits of what RECORD says of a package's files, equal on every node with the
    same files; '' without a RECORD.

    Left out is what the installer adds and what depends on the home directory: scripts, bytecode,
    the dist-info's own files.
    """
    digest = hashlib.sha256()
    try:
        with open(
            os.path.join(package["place"], "RECORD"), encoding="utf-8", errors="replace"
        ) as handle:
            rows = [line.rstrip("\r\n") for line in handle]
    except OSError:
        return ""
    inside = os.path.basename(package["place"]) + "/"
    for row in sorted(rows):
        if not row.startswith(("../", "/", inside)) and ".pyc," not in row:
            digest.update(row.encode("utf-8") + b"\n")
    return digest.hexdigest()[:12]


def record(package):
    """Return {absolute path: (sha256 as RECORD spells it or '', bytes or None)} of a package's
    files but its bytecode.
    """
    listed = {}
    try:
        with open(
            os.path.join(package["place"], "RECORD"), encoding="utf-8", errors="replace", newline=""
        ) as handle:
            for row in csv.reader(handle):
                if len(row) == 3 and not row[0].endswith(".pyc"):
                    checksum = row[1][len("sha256=") :] if row[1].startswith("sha256=") else ""
                    path = os.path.normpath(os.path.join(package["site"], row[0]))
                    listed[path] = (checksum, int(row[2]) if row[2].isdigit() else None)
    except OSError:
        pass
    return listed


def is_code(name):
    """Whether a file's name says that it runs."""
    return name.endswith(CODE) or ".so." in name


def later(top, since):
    """Return (files looked at, [code files whose ctime is not before since], {directory: whether it
    changed since}) below a directory.

    since: nanoseconds as stat gives them. Bytecode is passed over. os.stat with a directory's
    descriptor spares the kernel the long path.
    """
    count, files, folders, stack = 0, [], {}, [top]
    while stack:
        folder = stack.pop()
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            folders[folder] = os.fstat(handle).st_mtime_ns >= since
            with os.scandir(handle) as entries:
                for entry in entries:
                    name = entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if name != "__pycache__":
                            stack.append(folder + "/" + name)
                    elif is_code(name):
                        count += 1
                        if os.stat(name, dir_fd=handle, follow_symlinks=False).st_ctime_ns >= since:
                            files.append(folder + "/" + name)
        finally:
            os.close(handle)
    return count, files, folders


def odd_ones(packages):
    """Return (files looked at, [code files whose size is not RECORD's, or that are younger than
    RECORD]): for a Python without a marker of ours.
    """
    count, odd = 0, []
    for package in packages.values():
        listed = record(package)
        written = os.stat(os.path.join(package["place"], "RECORD")).st_mtime if listed else 0
        for path, (_checksum, size) in listed.items():
            if not is_code(path):
                continue
            count += 1
            try:
                state = os.stat(path)
            except OSError:
                odd.append(path)
                continue
            if size not in (None, state.st_size) or state.st_mtime > written + INSTALL_SECONDS:
                odd.append(path)
    return count, odd


def digest(path):
    """Return (sha256 of a file as RECORD spells it, its bytes), or (None, 0) where it cannot be
    read.
    """
    hashed, size = hashlib.sha256(), 0
    try:
        with open(path, "rb") as handle:
            for block in iter(lambda: handle.read(1 << 20), b""):
                hashed.update(block)
                size += len(block)
    except OSError:
        return None, 0
    return base64.urlsafe_b64encode(hashed.digest()).rstrip(b"=").decode("ascii"), size


def _chosen(listed, verify, today):
    """Return the listed files that are read whatever their times say: all, one in SAMPLE, or none."""
    if verify == "full":
        return list(listed)
    if verify == "sample":
        return [
            path
            for path in listed
            if (zlib.crc32(path.encode("utf-8", "surrogateescape")) + today) % SAMPLE == 0
        ]
    return []


def check(paths, packages, since=None, verify="cached"):
    """Return {files, bytes, seconds, wrong}: how many files were looked at, how many bytes read,
    and {path: what it is} of those that differ.

    since: when the installation was complete, in ns (an environment of ours), or None (a Python of
    the user's own, whose RECORDs are the rule). verify: cached reads code files that changed;
    sample also one file in SAMPLE, full every file. A path in `wrong` is relative to its directory
    of packages; what it is: `missing`, `new` (in no package) or the head of its sha256 as RECORD
    spells it.
    """
    started = time.monotonic()
    suspects, folders, count = [], {}, 0
    if since is None:
        count, suspects = odd_ones(packages)
    else:
        for path in paths:
            seen, files, changed = later(path, since)
            count, suspects = count + seen, suspects + files
            folders.update(changed)
    wrong, read, late = {}, 0, sum(folders.values())
    if suspects or late or verify != "cached":
        listed = {}
        for package in packages.values():
            listed.update(record(package))
        chosen = dict.fromkeys(suspects + _chosen(listed, verify, int(time.time() // 86400)))
        # A directory that did not change lost nothing; one that was not met is gone itself, or lies
        # elsewhere (scripts).
        for path in [
            path
            for path in listed
            if since is not None and folders.get(os.path.dirname(path), True) and path not in chosen
        ]:
            if not os.path.lexists(path):
                wrong[path] = "missing"
        for path in chosen:
            if path not in listed:
                wrong[path] = "new"
                continue
            is_now, size = digest(path)
            read += size
            if is_now is None:
                wrong[path] = "missing"
            elif listed[path][0] and is_now != listed[path][0]:
                wrong[path] = is_now[:12]
        count = max(count, len(chosen))
    return {
        "files": count,
        "bytes": read,
        "seconds": round(time.monotonic() - started, 3),
        "suspects": len(suspects) + late,
        "wrong": {_short(path, paths): why for path, why in sorted(wrong.items())},
    }


def _short(path, paths):
    """Return a path without the directory of packages in front of it."""
    for top in paths:
        if path.startswith(top + "/"):
            return path[len(top) + 1 :]
    return path


def words(wrong, limit=4):
    """Return files that differ as text: the first ones and a count of the rest; wrong: as check
    returns it.
    """
    told = [
        "{}{}".format(path, f" ({why})" if why in ("missing", "new") else "")
        for path, why in wrong.items()
    ]
    return ", ".join(told[:limit]) + (
        " and %d more" % (len(told) - limit) if len(told) > limit else ""
    )


def since_of(marker):
    """Return since when an environment's files must not have changed, in ns: its marker's time, or
    that of the last look which found all well.
    """
    times = []
    for path in (marker, seen_path(marker)):
        try:
            times.append(os.stat(path).st_mtime_ns)
        except OSError:
            continue
    return max(times) if times else 0


def seen_path(marker):
    """Return the file whose time says when all was found well; it lies beside the marker."""
    return marker + ".seen"


def look(marker, paths, packages, verify="cached"):
    """Return check() of an environment of ours; marker: the path of its marker.

    Files whose times are late and that are unchanged all the same (another owner, a restored home)
    are read once: the time of that look is kept in an empty file. Its time is the file system's
    own, taken before the look, so that nothing changes in between unseen.
    """
    state = check(paths, packages, since_of(marker), verify)
    if state["wrong"] or not state["suspects"]:
        return state
    part = "%s.%d" % (seen_path(marker), os.getpid())
    try:
        with open(part, "w", encoding="utf-8"):
            pass
        again = check(paths, packages, since_of(marker), "cached")
        if not again["wrong"]:
            os.replace(part, seen_path(marker))
        else:
            os.unlink(part)
        return dict(
            again,
            bytes=state["bytes"],
            files=max(state["files"], again["files"]),
            seconds=round(state["seconds"] + again["seconds"], 3),
        )
    except (
        OSError
    ):  # a full or read-only disk: all is well, and the next look reads the same files again
        return state
