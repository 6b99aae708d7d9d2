# SPDX-License-Identifier: Apache-2.0
"""A directory or file of the user's on a node, described without writing there.

The description has names and sizes, a sample or every byte, and the file system.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import stat
import time

from ..base import manifest
from ..base.files import read_mapping, read_text, write_json
from ..base.mounts import mount_of

# File systems that one kernel alone has mounted; any other may be seen by several machines at once.
LOCAL = (
    *("aufs", "bcachefs", "btrfs", "devtmpfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs"),
    *("fuseblk", "iso9660", "jfs", "overlay", "ramfs", "reiserfs", "rootfs", "squashfs", "tmpfs"),
    *("vfat", "xfs", "zfs"),
)
# Levels above a directory that count in telling it apart: a product directory may lie two levels
# below a shared home.
ABOVE = 3
BUCKETS = 256
DIGITS = 8
# A sample reads so many files, and of each one block of so many bytes. The files and blocks are the
# same on every node, since they follow from the names.
SAMPLED_FILES, BLOCK_BYTES = 64, 1 << 20
# Bytes per second, assumed of a disk of which nothing was read yet.
ASSUMED_BYTES_PER_SECOND = 200 << 20
# Entries that one node shows by name.
MOST_ENTRIES = 5000
# Unreadable files that are named.
_MOST_UNREADABLE = 20


def printable_name(name):
    """Return a file name of any bytes as text for JSON and a terminal."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


# --- file systems


def nearest_existing(path):
    """Return (existing, rest) of a path.

    existing: the path itself or its nearest ancestor that exists. rest: the path from there. Links
    are resolved.
    """
    real, rest = os.path.realpath(path), ""
    while not os.path.exists(real) and real != "/":
        real, rest = _parent(real, rest)
    return real, rest


def _parent(real, rest):
    """Return (the parent directory, the rest of the way from there)."""
    folder, name = os.path.split(real)
    if rest:
        name = os.path.join(name, rest)
    return folder, name


def identity(path, mountinfo=None, kernel=None):
    """Return ids of a directory or file, which need not exist yet.

    Two nodes with one id in common see the very same one. One kernel knows a directory by device
    and inode (nodes that are containers of one machine). Several machines know one on a network
    file system by its type, the exported path without the server's name (it may have several
    addresses) and the inode.
    """
    real, rest = nearest_existing(path)
    if mountinfo is None:
        mountinfo = read_text("/proc/self/mountinfo")
    boot = kernel or read_text("/proc/sys/kernel/random/boot_id").strip()
    ids, mount = [], mount_of(real, mountinfo)
    point, root = mount[:2]
    kind, source = mount[2:]
    # One node may look before the directory is made and another one after it, so the directories
    # above it count with the rest of the way.
    for _level in range(ABOVE + 1):
        info = os.stat(real)
        ids.append(("kernel", boot, info.st_dev, info.st_ino, rest))
        if kind and kind not in LOCAL:
            parts = [source.rpartition(":")[2], root, os.path.relpath(real, point)]
            exported = os.path.normpath("/".join(parts))
            ids.append(("network", kind, exported, info.st_ino, rest))
        if real in ("/", point) or mount_of(os.path.dirname(real), mountinfo) != mount:
            break
        real, rest = _parent(real, rest)
    return [hashlib.sha256(repr(item).encode()).hexdigest()[:16] for item in ids]


def filesystem(path):
    """Return type, source and mount point of a path's file system as text."""
    mount = mount_of(nearest_existing(path)[0], read_text("/proc/self/mountinfo"))
    point, kind, source = mount[0], mount[2], mount[3]
    return f"{kind} of {source} at {point}"


# --- entries


def walk(path, exclude=()):
    """Yield (name, full path, stat or None) of every file, links followed.

    Left out are byte code, lost+found, `exclude` and everything that manifests leave out. None
    stands for an entry that cannot be read: a broken link, a directory that the user may not enter.
    """
    if not os.path.isdir(path):
        yield os.path.basename(path), path, os.stat(path)
        return
    info = os.stat(path)
    stack = [(path, "", ((info.st_dev, info.st_ino),))]
    while stack:
        folder, above, ancestors = stack.pop()
        try:
            with os.scandir(folder) as handle:
                listing = list(handle)
        except OSError:
            yield above, folder, None
            continue
        for entry in listing:
            name = above + entry.name
            if _is_left_out(entry.name, name, exclude):
                continue
            try:
                info = entry.stat()
            except OSError:
                yield name, entry.path, None
                continue
            inode = (info.st_dev, info.st_ino)
            if not stat.S_ISDIR(info.st_mode):
                yield name, entry.path, info
            elif inode not in ancestors:  # a link to its own ancestor would never end
                stack.append((entry.path, name + "/", ancestors + (inode,)))


def _is_left_out(last, name, exclude):
    """Return whether `walk` passes an entry by. last: the last part of its name."""
    if name == "lost+found" or name in exclude:
        return True
    return last in manifest.ALWAYS_IGNORED or last.endswith(".pyc")


def bucket(name):
    """Return the number of the part of a place that a name belongs to, 0 to 255.

    Differing parts lead to differing files without sending every name.
    """
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[0]


def differing_buckets(one, other):
    """Return the numbers of the parts in which two places differ.

    one, other: `buckets` of what `describe_path` returned.
    """
    return [
        n
        for n in range(BUCKETS)
        if one[n * DIGITS : (n + 1) * DIGITS] != other[n * DIGITS : (n + 1) * DIGITS]
    ]


class EntryDigest:
    """A digest of entries in any order, as a whole and in parts, in constant memory."""

    def __init__(self):
        self.parts = [0] * BUCKETS

    def add(self, name, words):
        """Add one entry."""
        text = "{}\0{}".format(os.fsencode(name).hex(), "\0".join(str(word) for word in words))
        self.parts[bucket(printable_name(name))] += int(
            hashlib.sha256(text.encode()).hexdigest(), 16
        )

    def _part_digests(self):
        return [hashlib.sha256(b"%x" % part).hexdigest() for part in self.parts]

    def digest(self):
        """Return the digest of all entries."""
        return hashlib.sha256("".join(self._part_digests()).encode()).hexdigest()

    def buckets(self):
        """Return the digests of the parts, in a row."""
        return "".join(digest[:DIGITS] for digest in self._part_digests())


def digest_cache(cache, fresh):
    """Return (read, close) of a cache of digests.

    read(name, path, stat) gives a file's sha256, close() writes the cache. The cache knows a file
    by device, inode, size and times. fresh: read every byte, whatever the cache has.
    """
    known, records = {}, {}
    if not fresh:
        known = read_mapping(cache, manifest.TREE_BYTES)

    def read(name, path, info):
        state = [info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
        key = printable_name(name)
        record = known.get(key)
        if not (isinstance(record, list) and len(record) == 6 and record[:5] == state):
            record = state + [manifest.file_sha256(path)]
        records[key] = record
        return record[5]

    def close():
        if records != known:
            write_json(cache, records)

    return read, close


def entries(path, exclude, content, buckets=None):
    """Yield (name, [kind, size, content]) of every file.

    content: callable (name, path, stat) -> text, or None where names and sizes are enough. wanted:
    bucket numbers, or None for all.
    """
    for name, full, info in walk(path, exclude):
        if buckets is not None and bucket(printable_name(name)) not in buckets:
            continue
        if info is None:
            yield name, ["unreadable", 0, ""]
        elif not stat.S_ISREG(info.st_mode):
            yield name, ["other", 0, ""]
        elif not content:
            yield name, ["file", info.st_size, ""]
        else:
            try:
                yield name, ["file", info.st_size, content(name, full, info)]
            except OSError:
                yield name, ["unreadable", 0, ""]


def cache_path(base, path):
    """Return the path of the cache with the digests of a place's files.

    It lies below the product's directory.
    """
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:16] + ".json"
    return os.path.join(base, "placement", name)


def read_sample(path, names):
    """Return ({name: sha256 of one block}, bytes per second or None).

    The page cache is passed by where the kernel permits it. names: [(name, size in bytes)].
    """
    digests, size, begin = {}, 0, time.monotonic()
    is_folder = os.path.isdir(path)
    for name, length in names:
        full = path
        if is_folder:
            full = os.path.join(path, name)
        offset = int(hashlib.sha256(os.fsencode(name)).hexdigest(), 16) % max(
            1, length - BLOCK_BYTES
        )
        try:
            with open(full, "rb", buffering=0) as handle:
                os.posix_fadvise(handle.fileno(), offset, BLOCK_BYTES, os.POSIX_FADV_DONTNEED)
                handle.seek(offset)
                block = handle.read(BLOCK_BYTES)
        except OSError:
            digests[printable_name(name)] = "unreadable"
            continue
        digests[printable_name(name)] = hashlib.sha256(block).hexdigest()[:16]
        size += len(block)
    seconds = time.monotonic() - begin
    if size < BLOCK_BYTES or seconds <= 0:
        return digests, None
    return digests, size / seconds


class _SampleChoice:
    """The files that a sample reads: those whose names have the smallest digests."""

    def __init__(self):
        self.heap = []

    def offer(self, name, size):
        """Take a file into the choice where its digest is small enough."""
        digest = hashlib.sha256(b"sample" + os.fsencode(name)).digest()
        row = (bytes(255 - byte for byte in digest), name, size)
        if len(self.heap) < SAMPLED_FILES:
            heapq.heappush(self.heap, row)
        else:
            heapq.heappushpop(self.heap, row)

    def files(self):
        """Return [(name, size in bytes)], sorted."""
        return sorted((name, size) for _order, name, size in self.heap)


def describe_path(base, place, verify="cached", top_only=False):
    """Return a description of a place of this node.

    See placement.py for the place. verify: `cached` (names and sizes; content of a small place, by
    a cache), `sample` (blocks of some files besides), `full` (every byte). top_only: only the
    directory's own entries, since another node reads the shared rest. The result's `listing`,
    `content` (or None) and `sample` (or None) are equal where the copies are. problem is '' or the
    reason why there is nothing.
    """
    path = place["path"]
    result = {
        "path": path,
        "placement": place["placement"],
        "problem": _problem(path),
        "identity": [],
        "filesystem": "",
        "lacks": [],
        "unreadable": [],
        "files": 0,
        "bytes": 0,
        "top": "",
        "listing": "",
        "content": None,
        "sample": None,
        "buckets": "",
        "rate": None,
    }
    if result["problem"]:
        return result
    exclude = place.get("exclude") or ()
    result["identity"] = identity(path)
    result["filesystem"] = filesystem(path)
    result["lacks"] = [item for item in place.get("needs") or [] if not os.path.exists(item)]
    result["top"] = _top_digest(path, exclude)
    if top_only:
        return result
    full = verify == "full"
    read, close = _content_reader(base, place, full, fresh=full)
    choice = _add_contents(result, path, exclude, read)
    close()
    _add_unreadable(result, path, choice)
    if verify == "sample" or (verify == "estimate" and choice):
        blocks, result["rate"] = read_sample(path, choice)
        if verify == "sample":
            result["sample"] = blocks
    return result


def _problem(path):
    """Return why a place cannot be described, or ''."""
    if not os.path.lexists(path):
        return f"{path} is not there"
    if not os.path.exists(path):
        return f"{path} is a link to nothing"
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
        return f"{path} cannot be read by the training user"
    return ""


def _top_digest(path, exclude):
    """Return the digest of the names directly in a directory, or of a file's name."""
    names = [os.path.basename(path)]
    if os.path.isdir(path):
        names = sorted(os.listdir(path))
    text = "\0".join(printable_name(name) for name in names if name not in exclude)
    return hashlib.sha256(text.encode()).hexdigest()


def _content_reader(base, place, full, fresh):
    """Return (read or None, close) of the files of a place.

    fresh: as in `digest_cache`. full: read contents although the place wants names and sizes only.
    """
    if full or place.get("verify") == "content":
        return digest_cache(cache_path(base, place["path"]), fresh)
    return None, lambda: None


def _add_contents(result, path, exclude, read):
    """Add counts and digests of all files to a place's description.

    Returns the files for a sample.
    """
    names, contents, choice = EntryDigest(), EntryDigest(), _SampleChoice()
    for name, (kind, size, text) in entries(path, exclude, read):
        names.add(name, [kind, size])
        contents.add(name, [kind, size, text])
        result["files"] += 1
        result["bytes"] += size
        if kind == "unreadable":
            result["unreadable"].append(printable_name(name))
        elif kind == "file":
            choice.offer(name, size)
    result["listing"], result["buckets"] = names.digest(), names.buckets()
    if read:
        result["content"], result["buckets"] = contents.digest(), contents.buckets()
    return choice.files()


def _add_unreadable(result, path, choice):
    """Add the files of a sample that the user may not read to a place's description."""
    folder = path
    if not os.path.isdir(path):
        folder = os.path.dirname(path)
    for name, _size in choice:
        if not os.access(os.path.join(folder, name), os.R_OK):
            result["unreadable"].append(printable_name(name))
    result["unreadable"] = sorted(set(result["unreadable"]))[:_MOST_UNREADABLE]


def list_entries(base, place, buckets, full=False):
    """Return {entries, buckets}: the files of the wanted parts.

    entries: {name: [kind, size, content]}. Only whole parts are shown, and not too many.
    """
    read, _close = _content_reader(base, place, full, fresh=False)
    parts = {}
    for name, entry in entries(place["path"], place.get("exclude") or (), read, set(buckets)):
        parts.setdefault(bucket(printable_name(name)), {})[printable_name(name)] = entry
    result, numbers = {}, []
    for number in sorted(buckets):
        part = parts.get(number, {})
        if numbers and len(result) + len(part) > MOST_ENTRIES:
            break
        result.update(part)
        numbers.append(number)
    return {"entries": result, "buckets": numbers}
