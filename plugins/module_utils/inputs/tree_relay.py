# SPDX-License-Identifier: Apache-2.0
"""Reception of a tree from another node of the site, while that one still receives it.

So a tree goes from node to node as through a chain, and leaves the controller once. The sender is
mesh/tree_sender.py on the other node, behind its gate (verb `tree`). Its docstring has the frames.
It is not trusted: the manifest has to have the digest that the controller asks for, no file becomes
larger than the manifest says, and a file with other content is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import selectors
import subprocess
import threading
import time

from ..base import manifest
from ..base.files import read_mapping, write_json
from ..base.sanitize import printable
from . import source_choice, tree_install, tree_reuse

# Seconds without a frame after which a source counts as dead. A live one sends a beat every 2 s.
SILENCE_SECONDS = 6
# Bytes that have to come, or a file that has to be finished, within the seconds of `stall`.
LEAST_BYTES = 64 << 10
# Instead of `stall`, of a source that is tried while another one is known to work.
TRIAL_PATIENCE_SECONDS = 2 * source_choice.TRIAL_SECONDS
CONNECT_SECONDS = 5
# Seconds in which a source has to read what is asked for.
REQUEST_SECONDS = 120
LINE_BYTES = 4096
MESSAGE = 400
CHUNK = 1 << 20
WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class SourceFailed(Exception):
    """A source that cannot give the tree, or not to its end. The message says why."""


class SourceLeft(SourceFailed):
    """A source that is left for another one, since it is slow. That is no failure of it."""


class OtherContent(SourceFailed):
    """A file that has not the digest of the manifest. It is not kept."""


class ContentOfSeveral(OtherContent):
    """The same of a file whose beginning came from another source. None of them is blamed."""


def ssh_argv(config, node, kind, digest):
    """Return the command that asks a node of the mesh for a tree. config: of the mesh's ssh."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"]
    return ["ssh", "-F", config, *options, node, "tree", kind, digest[:16]]


def order_key(path):
    """Return the key by which rsync sorts a path: files of a folder come before its folders."""
    *folders, name = os.fsencode(path).split(b"/")
    return [*((1, folder) for folder in folders), (0, name)]


def begin(base, kind, digest, entries):
    """Make the staging directory of a tree, with its manifest beside it, for others to ask for.

    Return the sorted paths of the manifest that are missing there. What other trees of this node
    have of it is taken from them.
    """
    if not tree_install.is_manifest_of(entries, digest):
        raise tree_install.TreeError("the manifest is not that of the digest")
    staging = tree_install.tree_paths(base, kind, digest)[1]
    os.makedirs(staging, mode=0o700, exist_ok=True)
    with tree_install.hold(base, kind, digest):
        write_json(staging + tree_install.MANIFEST, entries)
        tree_install.open_folders(staging)  # an earlier try may have ended when it was read-only
        known = tree_reuse.adopt(base, kind, digest, entries)
    return sorted(set(entries) - set(known))


def give_up(base, kind, digest):
    """Tell those who ask this node that the tree will not come."""
    staging = tree_install.tree_paths(base, kind, digest)[1]
    with contextlib.suppress(FileNotFoundError):
        os.unlink(staging + tree_install.MANIFEST)


def fetch(base, kind, digest, argvs, stall, most):
    """Receive a tree into its staging directory.

    Return (whether it is complete, [why a source did not give it], bytes received). argvs: {node:
    the command that reaches its gate}, in the order in which they are tried. A slow one is left for
    a faster one (source_choice.py). What came from one is not asked for again. stall: seconds after
    which a source without progress is left. most: bytes
    of the manifest. Raises OSError where this node cannot keep it, and TreeError.
    """
    problems, received, again, begun = [], 0, set(), None
    choice = source_choice.SourceChoice(argvs)
    with tree_install.hold(base, kind, digest):
        while choice.node is not None:
            node, patience = choice.node, stall
            if choice.is_comparing():
                patience = min(stall, TRIAL_PATIENCE_SECONDS)
            receiver = Receiver(base, kind, digest, patience, most, choice.leaves)
            receiver.begun = begun
            try:
                receiver.receive(argvs[node])
            except SourceLeft:
                pass  # the choice has named another one
            except SourceFailed as error:
                problems.append(f"{node}: {error}")
                # What was here before may have been wrong, or what that node has not verified yet.
                if isinstance(error, ContentOfSeveral):
                    pass
                elif isinstance(error, OtherContent) and node not in again:
                    again.add(node)
                else:
                    choice.fail()
            finally:
                received += receiver.received
                receiver.close()
                begun = receiver.begun
            if receiver.is_complete():
                return True, problems, received
    return False, problems, received


class Frames:
    """Lines and bytes that a source sends, in bounded time."""

    def __init__(self, process):
        self.process, self.data = process, b""
        self.selector = selectors.DefaultSelector()
        self.selector.register(process.stdout, selectors.EVENT_READ)

    def _fill(self):
        if not self.selector.select(SILENCE_SECONDS):
            raise SourceFailed(f"nothing for {SILENCE_SECONDS} s")
        chunk = os.read(self.process.stdout.fileno(), CHUNK)
        if not chunk:
            raise SourceFailed("ended")
        self.data += chunk

    def line(self):
        """Return the next line as a mapping."""
        while b"\n" not in self.data:
            if len(self.data) > LINE_BYTES:
                raise SourceFailed("sends no frames")
            self._fill()
        text, self.data = self.data.split(b"\n", 1)
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SourceFailed("sends no frames") from error
        if not isinstance(header, dict):
            raise SourceFailed("sends no frames")
        return header

    def take(self, count):
        """Yield so many bytes, in parts."""
        while count:
            if not self.data:
                self._fill()
            part, self.data = self.data[:count], self.data[count:]
            count -= len(part)
            yield part


class Receiver:
    """One try to receive a tree from one source.

    leaves: whether this source is left for another one, from its bytes per second and the bytes
    that are missing.
    """

    def __init__(self, base, kind, digest, stall, most, leaves):
        self.base, self.kind, self.digest = base, kind, digest
        self.stall, self.most, self.leaves = stall, most, leaves
        self.staging = tree_install.tree_paths(base, kind, digest)[1]
        self.cache = self.staging + tree_install.SCAN
        # {path: record} of the files that are here and verified.
        self.known = read_mapping(self.cache, manifest.TREE_BYTES)
        self.entries, self.missing = {}, None
        self.received, self.wanted = 0, 0  # bytes
        # When the present trial of this source began, and the bytes that had come before it.
        self.trial = None
        # The file that grows: its path, descriptor, size so far, and sha256 so far.
        self.path, self.descriptor, self.size, self.sum = None, None, 0, None
        # The same (path, size, sha256) of the file that grew when the source before was left.
        self.begun = None
        self.has_foreign_part = False

    def is_complete(self):
        """Return whether every file of the manifest is here."""
        return self.missing is not None and not self.missing

    def close(self):
        """Remember what was verified, so that nothing reads it again."""
        self.begun = None
        if self.descriptor is not None:
            self.begun = (self.path, self.size, self.sum)
            os.close(self.descriptor)
            self.descriptor = None
        write_json(self.cache, self.known)

    def receive(self, argv):
        """Receive all that is missing from the source that a command reaches."""
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._receive(process, Frames(process))
        except (SourceFailed, BrokenPipeError) as error:
            lines = _last_words(process)
            text = printable(": ".join([str(error), *lines[-1:]]), limit=MESSAGE)
            kind = SourceFailed
            if isinstance(error, SourceFailed):
                kind = type(error)
            raise kind(text) from error
        finally:
            process.kill()
            for stream in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):  # what was not sent is lost
                    stream.close()
            process.wait()

    def _receive(self, process, frames):
        self._take_manifest(frames)
        wanted = self._wanted()
        if self.missing:
            self._ask(process, wanted)
        last, before = time.monotonic(), (self.received, len(self.missing))
        while self.missing:
            self._take_frame(frames, wanted)
            now = time.monotonic()
            if self.received - before[0] >= LEAST_BYTES or len(self.missing) != before[1]:
                last, before = now, (self.received, len(self.missing))
            elif now - last > self.stall:
                raise SourceFailed(f"no progress for {self.stall} s")
            self._judge_rate(now)

    def _take_frame(self, frames, wanted):
        """Take the next frame: bytes of a file, or a beat."""
        header = frames.line()
        if "gone" in header:
            raise SourceFailed("has given it up")
        if "beat" in header:
            return
        index, count = header.get("file"), header.get("bytes")
        if not (_is_count(index) and _is_count(count) and count and index < len(wanted)):
            raise SourceFailed("sends no frames")
        self._take_file(*wanted[index], frames, count)

    def _judge_rate(self, now):
        """Leave the source after a trial in which it was slow.

        A trial begins with the first bytes: before them the source may read its files.
        """
        if self.trial is None and not self.received:
            return
        begun, at_first = self.trial or (now, self.received)
        if now - begun >= source_choice.TRIAL_SECONDS:
            rate = (self.received - at_first) / (now - begun)
            if self.leaves(rate, self.wanted - self.received):
                raise SourceLeft("slower than another one may be")
            begun, at_first = now, self.received
        self.trial = begun, at_first

    def _ask(self, process, wanted):
        """Send the list of what is wanted."""
        request = [
            [path, self.entries[path][0], offset, self.entries[path][1]] for path, offset in wanted
        ]
        timer = threading.Timer(REQUEST_SECONDS, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps({"files": request}).encode() + b"\n")
            process.stdin.flush()
        finally:
            timer.cancel()

    def _take_manifest(self, frames):
        """Take the manifest, the source's first frame, and keep it for those who ask this node."""
        header, since = frames.line(), time.monotonic()
        while "beat" in header and time.monotonic() - since < self.stall:
            header = frames.line()
        count = header.get("manifest")
        if not _is_count(count) or count > self.most:
            raise SourceFailed("sends no manifest")
        try:
            entries = json.loads(b"".join(frames.take(count)))
        except (ValueError, RecursionError) as error:
            raise SourceFailed("sends no manifest") from error
        if not tree_install.is_manifest_of(entries, self.digest):
            raise SourceFailed("sends the manifest of another tree")
        self.entries = entries
        os.makedirs(self.staging, mode=0o700, exist_ok=True)
        write_json(self.staging + tree_install.MANIFEST, entries)
        tree_install.open_folders(self.staging)  # as in begin
        self.known = tree_reuse.adopt(self.base, self.kind, self.digest, entries)

    def _wanted(self):
        """Return [(path, offset)] of what is missing, in the order in which it arrives.

        Empty files are made here: nobody sends them.
        """
        wanted = []
        for path in sorted(self.entries, key=order_key):
            offset = self._held(path)
            if offset is not None:
                wanted.append((path, offset))
        self.missing = {path for path, _offset in wanted}
        self.wanted = sum(self.entries[path][1] - offset for path, offset in wanted)
        for path, _offset in wanted:
            kind, size, _sum = self.entries[path]
            if kind != "l" and not size:
                self._open(path, 0)
                self._finish()
        return wanted

    def _held(self, path):
        """Return how many bytes of a file are here, None where all of them are."""
        kind, size, digest = self.entries[path]
        place = os.path.join(self.staging, path)
        try:
            info = os.lstat(place)
        except OSError:
            return 0
        if kind == "l":
            if os.path.islink(place) and manifest.entry(place) == self.entries[path]:
                return None
        elif not os.path.islink(place) and os.path.isfile(place):
            record = [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns, digest]
            if self.known.get(path) == record:
                return None
            if info.st_size < size:
                return info.st_size
            if info.st_size == size and manifest.file_sha256(place) == digest:
                self._record(path, place)
                return None
        os.unlink(place)
        return 0

    def _take_file(self, path, offset, frames, count):
        """Take one frame of a file. offset: at which its first frame goes on."""
        kind, size, digest = self.entries[path]
        if path not in self.missing:
            raise SourceFailed(f"sends too much of {path}")
        if self.path not in (None, path):
            raise SourceFailed(f"sends {path} before the end of {self.path}")
        if kind == "l":
            target = b"".join(frames.take(min(count, LINE_BYTES)))
            if hashlib.sha256(target).hexdigest() != digest:
                raise SourceFailed(f"sends another link for {path}")
            place = os.path.join(self.staging, path)
            os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
            os.symlink(target, place)
            self.missing.discard(path)
            return
        if self.path is None:
            self._open(path, offset)
        if self.size + count > size:
            raise SourceFailed(f"sends too much of {path}")
        for part in frames.take(count):
            _write(self.descriptor, part)
            self.sum.update(part)
            self.size += len(part)
            self.received += len(part)
        if self.size == size:
            self._finish()

    def _open(self, path, offset):
        """Open a file of the staging directory, with what is there of it."""
        place = os.path.join(self.staging, path)
        os.makedirs(os.path.dirname(place), mode=0o700, exist_ok=True)
        self.sum = hashlib.sha256()
        with contextlib.suppress(FileNotFoundError):
            os.chmod(place, 0o600)  # an earlier try may have made it read-only
        self.has_foreign_part = bool(offset)
        if self.begun and self.begun[:2] == (path, offset):
            self.sum = self.begun[2]
        elif offset:
            with open(place, "rb") as handle:
                for chunk in iter(lambda: handle.read(CHUNK), b""):
                    self.sum.update(chunk)
        self.descriptor = os.open(place, WRITE, 0o600)
        os.lseek(self.descriptor, offset, os.SEEK_SET)
        self.path, self.size = path, offset

    def _finish(self):
        """Close the file that has all its bytes, and keep it if they are the right ones."""
        path, place = self.path, os.path.join(self.staging, self.path)
        kind, _size, digest = self.entries[path]
        os.fchmod(self.descriptor, {"x": 0o555}.get(kind, 0o444))
        os.close(self.descriptor)
        self.descriptor, self.path = None, None
        if self.sum.hexdigest() != digest:
            os.unlink(place)
            text = f"sends other content of {path}"
            if self.has_foreign_part:
                raise ContentOfSeveral(text)
            raise OtherContent(text)
        self._record(path, place)
        self.missing.discard(path)

    def _record(self, path, place):
        """Remember the digest of a verified file by its inode, size and times."""
        info = os.lstat(place)
        record = [info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns]
        self.known[path] = [*record, self.entries[path][2]]


def _last_words(process):
    """End a process and return the lines that it has printed as errors, the first ones alone."""
    process.kill()
    if not select.select([process.stderr], [], [], 1)[0]:
        return []
    return process.stderr.read1(LINE_BYTES).decode("utf-8", "replace").strip().splitlines()


def _write(descriptor, data):
    """Write all bytes. Raises OSError, such as on a full disk."""
    while data:
        data = data[os.write(descriptor, data) :]


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
