# SPDX-License-Identifier: Apache-2.0
"""Sender of a tree (code, data, wheels): the second program of the mesh on a node.

The gate of the site (mesh_gate.py) starts it in its own place, for a call that it has checked. It
lies beside the gate, is bound to the proof of the mesh as that is, and is one file that needs
nothing but Python >= 3.8. It is not part of the gate, since a run carries the gate's functions to
the nodes and no tree.

    tree_sender.py KIND NAME BASE...    KIND and NAME of the tree, the product's directories here

Frames: a line of JSON and so many raw bytes. The first one is {"manifest": BYTES}. Then the caller
sends one line, {"files": [[path, kind, offset, size]]}, and gets {"file": INDEX, "bytes": BYTES} in
the order of its list, each file in one or more frames. {"beat": 0} says that nothing has arrived
for a while, {"gone": 0} that this node has given the tree up.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import sys
import time

REFUSED = 77  # the same as the gate's
MANIFEST = ".manifest.json"
CHUNK = 256 << 10  # bytes of one frame at most
# Seconds between two looks for more bytes, and between two for files that rsync still writes. After
# so many without one a beat is sent, and after so many this program gives up.
LOOK_SECONDS, LIST_SECONDS, BEAT_SECONDS, MOST_SECONDS = 0.02, 0.1, 2.0, 7200
# A caller may read a damaged copy of the whole tree before it asks for what it lacks.
REQUEST_SECONDS = 1800
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Refused(Exception):
    """A request that is not carried out. The message goes to the caller."""


class TreeSender:
    """Sender of a tree that lies on this node, or that arrives here at this moment.

    bases: the product's directories. out: where frames go.
    """

    def __init__(self, bases, kind, name, out):
        # While a tree arrives it is in the first place, and later in the second.
        self.places = [os.path.join(base, "staging", f"{kind}-{name}") for base in bases]
        self.places += [os.path.join(base, kind, name) for base in bases]
        self.out, self.begun = out, False
        self.told, self.listed = time.monotonic(), 0.0

    def frame(self, header, data=b""):
        """Write one frame."""
        self.out.write(json.dumps(header).encode() + b"\n" + data)
        self.out.flush()
        self.told = time.monotonic()

    def await_value(self, look):
        """Return the first value of look() that is not None, and beat meanwhile.

        It is False where this node gives the tree up after its manifest was sent.
        """
        begun = time.monotonic()
        while True:
            value = look()
            if value is None and self.begun and self.is_gone():
                value = False
            if value is not None:
                return value
            time.sleep(LOOK_SECONDS)
            now = time.monotonic()
            if now - begun > MOST_SECONDS:
                raise Refused("nothing has come for too long")
            if now - self.told >= BEAT_SECONDS:
                self.frame({"beat": 0})

    def send(self, requests):
        """Send the manifest, and then what a caller lists. requests: where its line comes from."""
        data = self.await_value(self.manifest)
        self.frame({"manifest": len(data)}, data)
        self.begun = True
        for index, entry in enumerate(read_request(requests, len(data))):
            if not self.send_file(index, *entry):
                self.frame({"gone": 0})
                break
        return 0

    def place(self):
        """Return the tree's place on this node, None where it is not here.

        A tree that is repaired is not read from the damaged copy.
        """
        return next(filter(os.path.isdir, self.places), None)

    def manifest(self):
        """Return the bytes of the tree's manifest, or None where it is not here."""
        with contextlib.suppress(OSError, TypeError), open(self.place() + MANIFEST, "rb") as handle:
            return handle.read()
        return None

    def is_gone(self):
        """Return whether this node has given the tree up."""
        place = self.place()
        return not (place and os.path.exists(place + MANIFEST))

    def folder(self, path, stack):
        """Return (open directory, name) of a file of the tree. No link is followed.

        stack: closes what is opened. Raises OSError where the directory is not here.
        """
        *folders, name = path.split("/")
        directory = os.open(self.place() or "", DIRECTORY)
        stack.callback(os.close, directory)
        for folder in folders:
            directory = os.open(folder, DIRECTORY, dir_fd=directory)
            stack.callback(os.close, directory)
        return directory, name

    def link(self, path):
        """Return the target of a link of the tree, or None where it is not here."""
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            directory, name = self.folder(path, stack)
            return os.fsencode(os.readlink(name, dir_fd=directory))
        return None

    def grown(self, path, offset, size):
        """Return an open file that has more bytes than `offset`, or None.

        size: the bytes that it will have. A large one is read while rsync still writes it, under
        the name that rsync gives it until its end.
        """
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            directory, name = self.folder(path, stack)
            names, now = [name], time.monotonic()
            if size > CHUNK and now - self.listed > LIST_SECONDS:
                self.listed = now
                growing = re.compile(re.escape(f".{name}.") + r"[A-Za-z0-9]{6}\Z")
                names += [other for other in os.listdir(directory) if growing.match(other)]
            for each in names:
                with contextlib.suppress(OSError):
                    descriptor = os.open(each, FILE, dir_fd=directory)
                    if os.fstat(descriptor).st_size > offset:
                        return descriptor
                    os.close(descriptor)
        return None

    def send_file(self, index, path, kind, offset, size):
        """Send the bytes of a file from an offset to its size, and return False if it is gone."""
        if kind == "l":
            target = self.await_value(functools.partial(self.link, path))
            if target is not False:
                self.frame({"file": index, "bytes": len(target)}, target)
            return target is not False
        while offset < size:
            look = functools.partial(self.grown, path, offset, size)
            descriptor = self.await_value(look)
            if descriptor is False:
                return False
            try:
                data = os.pread(descriptor, min(CHUNK, size - offset), offset)
                while data:
                    self.frame({"file": index, "bytes": len(data)}, data)
                    offset += len(data)
                    data = os.pread(descriptor, min(CHUNK, size - offset), offset)
            finally:
                os.close(descriptor)
        return True


def read_request(requests, most):
    """Return [(path, kind, offset, size)] of a caller's line.

    most: bytes of the manifest; the list is shorter. Raises Refused for another line.
    """
    signal.alarm(REQUEST_SECONDS)  # ends this process
    line = requests.readline(most + CHUNK)
    signal.alarm(0)
    try:
        files = json.loads(line)["files"]
        entries = [(path, kind, int(offset), int(size)) for path, kind, offset, size in files]
        bad = [path for path, *_rest in entries if {"", ".", ".."} & set(path.split("/"))]
    except (
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise Refused("not a list of files") from error
    if bad or any("\0" in path or offset < 0 for path, _kind, offset, _size in entries):
        raise Refused("not a path below a tree")
    return entries


def main(arguments):
    """Send the tree of the arguments KIND NAME BASE... to standard output."""
    kind, name, *bases = arguments
    with contextlib.suppress(OSError):
        os.nice(10)  # a training may have the node
    try:
        return TreeSender(bases, kind, name, sys.stdout.buffer).send(sys.stdin.buffer)
    except Refused as refusal:
        print(f"trainyard: refused: {refusal}", file=sys.stderr, flush=True)
        return REFUSED


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        os._exit(0)
