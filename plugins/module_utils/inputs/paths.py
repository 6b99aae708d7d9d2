# SPDX-License-Identifier: Apache-2.0
"""A directory or file of the user's on a node, described without writing there: names and sizes, a
sample, or every byte; and which file system it is.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import stat
import time

from ..base import manifest
from ..base.unit_limits import text_of

# File systems that one kernel alone has mounted; any other may be seen by several machines at once.
LOCAL = (
    "aufs", "bcachefs", "btrfs", "devtmpfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "fuseblk", "iso9660", "jfs", "overlay", "ramfs",
    "reiserfs", "rootfs", "squashfs", "tmpfs", "vfat", "xfs", "zfs",
)  # fmt: skip
# Directories above one that is told apart: a product directory may lie two levels below a shared
# home.
ABOVE = 3
BUCKETS = 256
DIGITS = 8
# What a sample reads: so many files, one block of each; the same ones on every node, since they
# follow from the names.
SAMPLED, BLOCK = 64, 1 << 20
# Bytes per second, taken for a disk of which nothing was read yet.
RATE = 200e6
# Entries that one node shows by name.
SHOWN = 5000


def gigabytes(size):
    """Return a size in words."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return "%d B" % size


def printable(name):
    """Return a file name of any bytes as text that JSON and a terminal can take."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


# --- which file system it is


def mount_of(real, mountinfo):
    """Return (mount point, root, type, source) of a path from the text of /proc/self/mountinfo; the
    last mount on a point is the one seen.
    """
    best = ("/", "/", "", "")
    for line in mountinfo.splitlines():
        left, _dash, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if len(fields) > 4 and len(tail) > 1:
            point = fields[4].replace("\\040", " ")
            if (real + "/").startswith(point.rstrip("/") + "/") and len(point) >= len(best[0]):
                best = (point, fields[3].replace("\\040", " "), tail[0], tail[1])
    return best


def existing(path):
    """Return (the nearest directory or file on the way to a path that exists, links resolved; the
    rest).
    """
    real, rest = os.path.realpath(path), ""
    while not os.path.exists(real) and real != "/":
        real, rest = (
            os.path.dirname(real),
            os.path.join(os.path.basename(real), rest) if rest else os.path.basename(real),
        )
    return real, rest


def identity(path, mountinfo=None, kernel=None):
    """Return ids of a directory or file, made or not: two nodes with one id in common see the very
    same one.

    One kernel knows a directory by device and inode (nodes that are containers of one machine).
    Several machines know one on a network file system by its type, the exported path without the
    server's name (it may have several addresses) and the inode.
    """
    real, rest = existing(path)
    table = mountinfo if mountinfo is not None else text_of("/proc/self/mountinfo")
    boot = kernel or text_of("/proc/sys/kernel/random/boot_id").strip()
    ids, mount = [], mount_of(real, table)
    point, root, kind, source = mount
    # One node may look before the directory is made and another one after it, so the directories
    # above it count with the rest of the way.
    for _level in range(ABOVE + 1):
        info = os.stat(real)
        ids.append(("kernel", boot, info.st_dev, info.st_ino, rest))
        if kind and kind not in LOCAL:
            below = os.path.normpath(
                "/".join([source.rpartition(":")[2], root, os.path.relpath(real, point)])
            )
            ids.append(("network", kind, below, info.st_ino, rest))
        if real in ("/", point) or mount_of(os.path.dirname(real), table) != mount:
            break
        real, rest = (
            os.path.dirname(real),
            os.path.join(os.path.basename(real), rest) if rest else os.path.basename(real),
        )
    return [hashlib.sha256(repr(item).encode()).hexdigest()[:16] for item in ids]


def filesystem(path):
    """Return type and source of the file system that a path lies on, in words."""
    point, _root, kind, source = mount_of(existing(path)[0], text_of("/proc/self/mountinfo"))
    return f"{kind} of {source} at {point}"


# --- what lies there


def walk(path, exclude=()):
    """Yield (name, full path, stat or None) of every file, links followed, but for what manifests
    leave out, byte code, lost+found, `exclude`.

    None stands for what cannot be read: a link to nothing, a directory that the user may not enter.
    """
    if not os.path.isdir(path):
        yield os.path.basename(path), path, os.stat(path)
        return
    info = os.stat(path)
    stack = [(path, "", ((info.st_dev, info.st_ino),))]
    while stack:
        folder, above, line = stack.pop()
        try:
            with os.scandir(folder) as entries:
                found = list(entries)
        except OSError:
            yield above, folder, None
            continue
        for entry in found:
            name = above + entry.name
            if (
                name == "lost+found"
                or entry.name in manifest.ALWAYS_IGNORED
                or entry.name.endswith(".pyc")
                or name in exclude
            ):
                continue
            try:
                info = entry.stat()
            except OSError:
                yield name, entry.path, None
                continue
            if not stat.S_ISDIR(info.st_mode):
                yield name, entry.path, info
            elif (
                info.st_dev,
                info.st_ino,
            ) not in line:  # a link into its own ancestors would never end
                stack.append((entry.path, name + "/", line + ((info.st_dev, info.st_ino),)))


def bucket(name):
    """Return the part of a place that a name belongs to, 0 to 255: differing parts lead to
    differing files without sending every name.
    """
    return hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[0]


def differing(one, other):
    """Return the numbers of the parts in which two places differ; one, other: `buckets` of what
    `seen` returned.
    """
    return [
        n
        for n in range(BUCKETS)
        if one[n * DIGITS : (n + 1) * DIGITS] != other[n * DIGITS : (n + 1) * DIGITS]
    ]


class Sum:
    """A digest of entries in any order, as a whole and in parts, that holds none of them in memory."""

    def __init__(self):
        self.parts = [0] * BUCKETS

    def add(self, name, words):
        """Add one entry."""
        text = "{}\0{}".format(os.fsencode(name).hex(), "\0".join(str(word) for word in words))
        self.parts[bucket(printable(name))] += int(hashlib.sha256(text.encode()).hexdigest(), 16)

    def _words(self):
        return [hashlib.sha256(b"%x" % part).hexdigest() for part in self.parts]

    def digest(self):
        """Return the digest of all."""
        return hashlib.sha256("".join(self._words()).encode()).hexdigest()

    def buckets(self):
        """Return the digests of the parts, in a row."""
        return "".join(word[:DIGITS] for word in self._words())


def reader(cache, fresh):
    """Return (read, close): read(name, path, stat) gives a file's sha256 and remembers it by
    device, inode, size and times; close keeps that.

    fresh: read every byte, whatever is remembered.
    """
    known, records = ({} if fresh else manifest.read_mapping(cache, manifest.TREE_BYTES)), {}

    def read(name, path, info):
        record = [info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
        kept = known.get(printable(name))
        records[printable(name)] = (
            kept
            if isinstance(kept, list) and len(kept) == 6 and kept[:5] == record
            else record + [manifest.file_sha256(path)]
        )
        return records[printable(name)][5]

    def close():
        if records != known:
            manifest.write_json(cache, records)

    return read, close


def entries(path, exclude, content, wanted=None):
    """Yield (name, [kind, size, content]); content(name, path, stat) -> text, or None where names
    and sizes are enough; wanted: bucket numbers.
    """
    for name, full, info in walk(path, exclude):
        if wanted is not None and bucket(printable(name)) not in wanted:
            continue
        if info is None:
            yield name, ["unreadable", 0, ""]
        elif not stat.S_ISREG(info.st_mode):
            yield name, ["other", 0, ""]
        else:
            try:
                yield name, ["file", info.st_size, content(name, full, info) if content else ""]
            except OSError:
                yield name, ["unreadable", 0, ""]


def cache_of(base, path):
    """Return the file below the product's directory that remembers what was read of a place."""
    return os.path.join(
        base, "placement", hashlib.sha256(os.fsencode(path)).hexdigest()[:16] + ".json"
    )


def sample(path, names):
    """Return ({name: sha256 of one block}, bytes per second); the page cache is passed by where the
    kernel lets it.
    """
    found, size, begun = {}, 0, time.monotonic()
    for name, length in names:
        full = os.path.join(path, name) if os.path.isdir(path) else path
        offset = int(hashlib.sha256(os.fsencode(name)).hexdigest(), 16) % max(1, length - BLOCK)
        try:
            with open(full, "rb", buffering=0) as handle:
                os.posix_fadvise(handle.fileno(), offset, BLOCK, os.POSIX_FADV_DONTNEED)
                handle.seek(offset)
                block = handle.read(BLOCK)
        except OSError:
            found[printable(name)] = "unreadable"
            continue
        found[printable(name)] = hashlib.sha256(block).hexdigest()[:16]
        size += len(block)
    seconds = time.monotonic() - begun
    return found, size / seconds if size >= BLOCK and seconds > 0 else None


def seen(base, place, verify="cached", top_only=False):
    """Return what lies at a place of this node; see placement.py for the place.

    verify: `cached` (names and sizes; content of a small place, by a cache), `sample` (blocks of
    some files besides), `full` (every byte). top_only: only the directory's own entries, since
    another node reads the shared rest. The result's `listing`, `content` (or None) and `sample` (or
    None) are equal where the copies are; problem is '' or why there is nothing.
    """
    path = place["path"]
    result = {"path": path, "placement": place["placement"], "problem": "", "identity": [], "filesystem": "", "lacks": [], "unreadable": [],
              "files": 0, "bytes": 0, "top": "", "listing": "", "content": None, "sample": None, "buckets": "", "rate": None}  # fmt: skip
    if not os.path.exists(path):
        return dict(
            result,
            problem=(
                f"{path} is not there"
                if not os.path.lexists(path)
                else f"{path} is a link to nothing"
            ),
        )
    if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
        return dict(result, problem=f"{path} cannot be read by the training user")
    result.update(identity=identity(path), filesystem=filesystem(path))
    result["lacks"] = [item for item in place.get("needs") or [] if not os.path.exists(item)]
    top = sorted(os.listdir(path)) if os.path.isdir(path) else [os.path.basename(path)]
    result["top"] = hashlib.sha256(
        "\0".join(
            printable(name) for name in top if name not in (place.get("exclude") or ())
        ).encode()
    ).hexdigest()
    if top_only:
        return result
    full, kept = verify == "full", place.get("verify") == "content"
    read, close = reader(cache_of(base, path), full) if full or kept else (None, lambda: None)
    names, contents, heap = Sum(), Sum(), []
    for name, (kind, size, text) in entries(path, place.get("exclude") or (), read):
        names.add(name, [kind, size])
        contents.add(name, [kind, size, text])
        result["files"] += 1
        result["bytes"] += size
        if kind == "unreadable":
            result["unreadable"].append(printable(name))
        elif kind == "file":
            order = hashlib.sha256(b"sample" + os.fsencode(name)).digest()
            (heapq.heappush if len(heap) < SAMPLED else heapq.heappushpop)(
                heap, (bytes(255 - byte for byte in order), name, size)
            )
    close()
    chosen = sorted((name, size) for _order, name, size in heap)
    at = path if os.path.isdir(path) else os.path.dirname(path)
    result["unreadable"] += [
        printable(name) for name, _size in chosen if not os.access(os.path.join(at, name), os.R_OK)
    ]
    result["unreadable"] = sorted(set(result["unreadable"]))[:20]
    if verify == "sample" or (verify == "estimate" and chosen):
        blocks, result["rate"] = sample(path, chosen)
        result["sample"] = blocks if verify == "sample" else None
    result.update(
        listing=names.digest(),
        content=contents.digest() if read else None,
        buckets=(contents if read else names).buckets(),
    )
    return result


def shown(base, place, wanted, full=False):
    """Return {entries: {name: [kind, size, content]}, buckets}: the files of the wanted parts by
    name, whole parts only and not too many.
    """
    kept = full or place.get("verify") == "content"
    read, close = reader(cache_of(base, place["path"]), False) if kept else (None, lambda: None)
    found = {}
    for name, entry in entries(place["path"], place.get("exclude") or (), read, set(wanted)):
        found.setdefault(bucket(printable(name)), {})[printable(name)] = entry
    result, parts = {}, []
    for number in sorted(wanted):
        if parts and len(result) + len(found.get(number, {})) > SHOWN:
            break
        result.update(found.get(number, {}))
        parts.append(number)
    return {"entries": result, "buckets": parts}
