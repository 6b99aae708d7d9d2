# SPDX-License-Identifier: Apache-2.0
"""Packages in a Python's directories, compared with their installation.

Nothing is changed. A wheel's installation leaves a directory NAME-VERSION.dist-info with RECORD, a
line of path, sha256 and size for every file (packaging.python.org, "Recording installed projects").
An environment of ours has a marker that was written last, so that a file which changed later has a
later ctime. That cannot be set back without turning the clock back. Only what is later is read and
compared with RECORD.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import os
import re
import time
import zlib

SUFFIXES = (".dist-info", ".egg-info")
# Files that run. A cached look goes through them, with one stat per file (0.006 ms, measured on the
# local nodes).
CODE = (".py", ".so", ".pth")
# A sampled look reads one file in so many, other ones each day.
SAMPLE = 20
# So much is read of a METADATA to find its version.
HEAD_BYTES = 4096
# An installer writes RECORD last. A file that is younger by more than so many seconds came later.
INSTALL_SECONDS = 5


def normal_name(name):
    """Return the spelling of a package name that an index compares by (PEP 503).

    'Foo_Bar' becomes 'foo-bar'.
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def _version_inside(path):
    """Return the version that a package's METADATA or PKG-INFO has, or None.

    It serves packages that have no version in their name. path: a dist-info, or an egg-info that
    may be a file.
    """
    for metadata in (os.path.join(path, "METADATA"), os.path.join(path, "PKG-INFO"), path):
        try:
            with open(metadata, encoding="utf-8", errors="replace") as handle:
                match = re.search(r"^Version: *(\S+)", handle.read(HEAD_BYTES), re.MULTILINE)
        except OSError:
            continue
        if match:
            return match.group(1)
    return None


def find_packages(paths):
    """Return {package: {version, place, site}} of the packages in these directories.

    place: its dist-info or egg-info. site: the directory it lies in. The first directory wins.
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
            metadata = os.path.join(path, entry)
            if dash:
                version = version.split("-py")[0]
            else:
                version = _version_inside(metadata)
            if version:
                package = {"version": version, "place": metadata, "site": path}
                packages[normal_name(name)] = package
    return packages


def build_digest(package):
    """Return 12 hex digits of what RECORD says of a package, '' without a RECORD.

    They are equal on every node with the same files. Left out is what the installer adds and what
    depends on the home directory: scripts, bytecode, the dist-info's own files.
    """
    digest = hashlib.sha256()
    try:
        with open(_record_path(package), encoding="utf-8", errors="replace") as handle:
            rows = [line.rstrip("\r\n") for line in handle]
    except OSError:
        return ""
    inside = os.path.basename(package["place"]) + "/"
    for row in sorted(rows):
        if not row.startswith(("../", "/", inside)) and ".pyc," not in row:
            digest.update(row.encode("utf-8") + b"\n")
    return digest.hexdigest()[:12]


def _record_path(package):
    """Return the path of a package's RECORD."""
    return os.path.join(package["place"], "RECORD")


def read_record(package):
    """Return {absolute path: (sha256, bytes)} of a package's files but its bytecode.

    The sha256 is as RECORD spells it, or ''. A size that RECORD does not have is missing (None).
    """
    listed = {}
    with contextlib.suppress(OSError):
        with open(_record_path(package), encoding="utf-8", errors="replace", newline="") as handle:
            for row in csv.reader(handle):
                if len(row) == 3 and not row[0].endswith(".pyc"):
                    path = os.path.normpath(os.path.join(package["site"], row[0]))
                    listed[path] = _read_checksum(*row[1:])
    return listed


def _read_checksum(checksum, size):
    """Return (sha256 or '', bytes or None) of the last two columns of a row of RECORD."""
    kind, _equals, value = checksum.partition("=")
    if kind != "sha256":
        value = ""
    if not size.isdigit():
        return value, None
    return value, int(size)


def is_code(name):
    """Return True if a file's name says that it runs."""
    return name.endswith(CODE) or ".so." in name


def find_later_files(top, since):
    """Return (count, files, folders) of what lies below a directory.

    count: files looked at. files: code files whose ctime is not before since. folders: {directory:
    True if it changed since}. since: nanoseconds as stat gives them. Bytecode is passed over.
    os.stat with a directory's descriptor spares the kernel the long path.
    """
    count, files, folders = 0, [], {}
    stack = [top]
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


def find_odd_files(packages):
    """Return (files looked at, odd files) of a Python of the user's own.

    Such a Python has no marker of ours. A code file is odd where its size is not RECORD's, or where
    it is younger than RECORD.
    """
    count, odd = 0, []
    for package in packages.values():
        listed = read_record(package)
        if not listed:
            continue
        latest = os.stat(_record_path(package)).st_mtime + INSTALL_SECONDS
        for path, (_checksum, size) in listed.items():
            if is_code(path):
                count += 1
                if _is_odd(path, size, latest):
                    odd.append(path)
    return count, odd


def _is_odd(path, size, latest):
    """Return True if a file is missing, has another size, or is younger than `latest`."""
    try:
        state = os.stat(path)
    except OSError:
        return True
    return size not in (None, state.st_size) or state.st_mtime > latest


def file_digest(path):
    """Return (sha256 of a file as RECORD spells it, its bytes).

    Returns (None, 0) where it cannot be read.
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


def _files_to_read(listed, verify, today):
    """Return the listed files that are read whatever their times say.

    They are all, a sample, or none.
    """
    if verify == "full":
        return list(listed)
    if verify == "sample":
        return [
            path
            for path in listed
            if (zlib.crc32(path.encode("utf-8", "surrogateescape")) + today) % SAMPLE == 0
        ]
    return []


def check_files(paths, packages, since=None, verify="cached"):
    """Return {files, bytes, seconds, suspects, wrong} of a Python's packages.

    paths: its directories of packages. files: how many were looked at. bytes: how many were read.
    wrong: {path: state} of the files that differ. A path in it is relative to its directory of
    packages. A state is `missing`, `new` (in no package) or the head of its sha256 as RECORD spells
    it.

    since: when the installation was complete, in ns (an environment of ours), or None (a Python of
    the user's own, whose RECORDs are the rule). verify: cached reads code files that changed,
    sample also one file in SAMPLE, full every file.
    """
    started = time.monotonic()
    suspects, folders, count = [], {}, 0
    if since is None:
        count, suspects = find_odd_files(packages)
    else:
        for path in paths:
            seen, files, changed = find_later_files(path, since)
            count += seen
            suspects += files
            folders.update(changed)
    wrong, read, late = {}, 0, sum(folders.values())
    if suspects or late or verify != "cached":
        listed = {}
        for package in packages.values():
            listed.update(read_record(package))
        today = int(time.time() // 86400)
        chosen = dict.fromkeys(suspects + _files_to_read(listed, verify, today))
        if since is not None:
            wrong.update(_missing_files(listed, folders, chosen))
        differing, read = _compare_digests(listed, chosen)
        wrong.update(differing)
        count = max(count, len(chosen))
    return {
        "files": count,
        "bytes": read,
        "seconds": round(time.monotonic() - started, 3),
        "suspects": len(suspects) + late,
        "wrong": {_short(path, paths): state for path, state in sorted(wrong.items())},
    }


def _missing_files(listed, folders, chosen):
    """Return {path: 'missing'} of the listed files that are gone.

    The chosen files are left out. folders: {directory: True if it changed}. A directory that did
    not change lost nothing. One that was not met is gone itself, or lies elsewhere (scripts).
    """
    missing = {}
    for path in listed:
        if path in chosen or not folders.get(os.path.dirname(path), True):
            continue
        if not os.path.lexists(path):
            missing[path] = "missing"
    return missing


def _compare_digests(listed, chosen):
    """Return ({path: state} of the chosen files that differ from RECORD, bytes read)."""
    wrong, read = {}, 0
    for path in chosen:
        if path not in listed:
            wrong[path] = "new"
            continue
        checksum, size = file_digest(path)
        read += size
        if checksum is None:
            wrong[path] = "missing"
        elif listed[path][0] not in ("", checksum):
            wrong[path] = checksum[:12]
    return wrong, read


def _short(path, paths):
    """Return a path without the directory of packages in front of it."""
    for top in paths:
        if path.startswith(top + "/"):
            return path[len(top) + 1 :]
    return path


def format_differences(wrong, limit=4):
    """Return files that differ as text: the first ones and a count of the rest.

    wrong: as check returns it.
    """
    texts = []
    for path, state in wrong.items():
        text = path
        if state in ("missing", "new"):
            text += f" ({state})"
        texts.append(text)
    text = ", ".join(texts[:limit])
    if len(texts) > limit:
        text += f" and {len(texts) - limit} more"
    return text


def since_of(marker):
    """Return since when an environment's files must not have changed, in ns.

    It is the time of its marker, or of the last look which found all well.
    """
    times = [0]
    for path in (marker, seen_path(marker)):
        with contextlib.suppress(OSError):
            times.append(os.stat(path).st_mtime_ns)
    return max(times)


def seen_path(marker):
    """Return the file whose time says when all was found well.

    It lies beside the marker.
    """
    return marker + ".seen"


def check_environment(marker, paths, packages, verify="cached"):
    """Return check() of an environment of ours.

    marker: the path of its marker. Files whose times are late and that are unchanged all the same
    (another owner, a restored home) are read once: the time of that look is kept in an empty file.
    Its time is the file system's own, taken before the look, so that nothing changes in between
    unseen.
    """
    state = check_files(paths, packages, since_of(marker), verify)
    if state["wrong"] or not state["suspects"]:
        return state
    part = f"{seen_path(marker)}.{os.getpid()}"
    try:
        with open(part, "w", encoding="utf-8"):
            pass
        again = check_files(paths, packages, since_of(marker), "cached")
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
    except OSError:
        # A full or read-only disk: all is well, and the next look reads the same files again.
        return state
