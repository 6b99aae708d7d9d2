# SPDX-License-Identifier: Apache-2.0
"""Sender of an attempt's logs from its node, while they grow, each byte once.

It travels to the node over standard input (stdin_boot.py), so that it is the sender of the
controller that asks, whatever program the attempt was started by. Standard input goes on with the
spec as one line of JSON:
    attempt_dir   the attempt's directory; a relative path starts at the user's home
    node          the node's name in the plan
    files         {file: home} beside those that plan.json names; optional
    have          {home: {"bytes", "head", "tail"}}: the files on the controller; the digests are
                  sha256 of the first and last min(bytes, 4096) bytes
    follow        go on until the reader closes standard input, then send all files to their end
    interval      seconds between two rounds
    last          of a file that the controller does not have, only so many bytes at its end;
                  optional
`home` is a file's name on the controller.

Standard output is one stream of zlib. It has frames, and is flushed after each. A frame is a line
of JSON, {"file", "home", "offset", "bytes", "time"}, and so many raw bytes, or a line alone:
{"event": "truncated"|"replaced"|"gone", "file", "home", "time"}, {"event": "beat", "time"},
{"event": "end", "time", "problems"}.
"truncated" and "replaced" mean that the next bytes of this file begin at offset 0 again. Times are
unix seconds of the node's clock.

Each step of a path is opened without following links, and only regular files are read. Whole
environments are never sent.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import select
import stat
import sys
import time
import zlib

# Most bytes of one file in a row, so that a log of GBs does not delay the others.
CHUNK = 256 << 10
EDGE = 4096
SMALL = 8 << 20
LEVEL = 1  # of zlib. A higher one takes twice the time.
BEAT_SECONDS = 5.0
LIST_SECONDS = 2.0  # between two searches for logs that no rank of the plan owns
# A process that has a renamed log open may still write to it. The log is left after so long without
# a byte.
QUIET_SECONDS = 1.0
REST_SECONDS = 30.0  # for a log that still grows after the reader has closed standard input
# It is not a log: it is written anew when the peers have been called. So it is sent after the
# reader has closed standard input.
WHOLE = "exit.json"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# On the controller. A file on the node has at most safe_names.PART_BYTES.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_STRAY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
# Files into which Paddle's launcher writes its whole environment: envlog in
# paddle/distributed/launch/job/pod.py and container.py, default in its controllers.
_ENVIRONMENT = re.compile(r"^(envlog\.|backup_env\.|default\..*\.log$)")


def inside(name):
    """Return whether a path may be sent.

    It stays below the attempt's directory and is not a dump of an environment.
    """
    parts = name.split("/")
    return not any(
        part in ("", ".", "..") or "\0" in part for part in parts
    ) and not _ENVIRONMENT.match(parts[-1])


def named(plan, node):
    """Return {file: home} of the logs that a plan names for one of its nodes.

    The names on the controller are those of evidence.py.
    """
    launcher, files = plan["launcher"], {}
    for rank in plan["ranks"]:
        if rank["node"] == node:
            log = rank.get("log")
            if not log:
                log = launcher["rank_log"].replace("{local_rank}", str(rank["local_rank"]))
                log = log.replace("{rank}", str(rank["rank"]))
            files[log] = f"rank-{rank['rank']:03d}.{node}.log"
    files[launcher.get("console") or "logs.txt"] = f"launcher.{node}.log"
    for name in launcher.get("logs") or ():
        files[name] = f"{os.path.basename(name)[:-4]}.{node}.log"
    return dict(files, **{"ranks.jsonl": f"ranks.{node}.jsonl", WHOLE: f"exit.{node}.json"})


def strays(plan):
    """Return (folder, pattern) of the names that logs of unplanned ranks would have.

    The folder is '' for the attempt's directory itself.
    """
    folder, _slash, name = plan["launcher"]["rank_log"].rpartition("/")
    return folder, re.compile(re.sub(r"\\\{(?:local_)?rank\\\}", r"\\d{1,6}", re.escape(name)))


def edge(descriptor, begin, end):
    """Return the sha256 of the bytes [begin, end) of an open file."""
    return hashlib.sha256(os.pread(descriptor, end - begin, begin)).hexdigest()


class Log:
    """One log: its open file, the offset of the next bytes, and the edges of those sent."""

    def __init__(self, file, home):
        self.file, self.home = file, home
        # The open file, its device and inode, and its modification time at the last look.
        self.descriptor, self.key, self.changed = None, None, None
        # gone: the file has no name any more. grown: the time of its latest bytes.
        self.gone, self.grown = False, 0.0
        self.seek(0)

    def seek(self, offset, head=b"", tail=b""):
        """Go on at an offset.

        head, tail: the first and the last bytes before it, where they are known.
        """
        self.offset, self.head, self.tail = offset, head, tail

    def close(self):
        """Close the file, so that the next one of this name is sent from its beginning."""
        os.close(self.descriptor)
        self.descriptor = None
        self.seek(0)


class Compressed:
    """A stream of zlib into a binary file."""

    def __init__(self, out):
        self.out, self.stream = out, zlib.compressobj(LEVEL)

    def write(self, data):
        """Write bytes."""
        self.out.write(self.stream.compress(data))

    def flush(self):
        """Let all that was written be read."""
        self.out.write(self.stream.flush(zlib.Z_SYNC_FLUSH))
        self.out.flush()


class Sender:
    """Reader of the logs in turn, which writes frames to `out`, a binary file."""

    def __init__(self, spec, out):
        """Open the attempt's directory, or raise OSError.

        spec: as the module says.
        """
        self.spec, self.out = spec, out
        self.root = os.open(os.path.join(os.path.expanduser("~"), spec["attempt_dir"]), _DIRECTORY)
        self.have, self.last = dict(spec.get("have") or {}), spec.get("last")
        self.logs, self.problems, self.plan = {}, {}, None
        self.listed, self.sent_at = -LIST_SECONDS, time.monotonic()
        for file, home in (spec.get("files") or {}).items():
            self.add(file, home)

    def add(self, file, home):
        """Send a file from now on, where it may be sent.

        home: its name on the controller.
        """
        if file in self.logs or file in self.problems:
            return
        if inside(file) and _NAME.fullmatch(home):
            self.logs[file] = Log(file, home)
        else:
            self.problems[file] = (
                "not sent: it does not stay inside the attempt, or holds an environment"
            )

    def send(self, header, data=b""):
        """Write a line of JSON and raw bytes."""
        self.out.write(json.dumps(dict(header, time=time.time())).encode("ascii") + b"\n")
        self.out.write(data)
        self.out.flush()
        self.sent_at = time.monotonic()

    def find(self, known):
        """Add the plan's logs, and those of ranks that the plan does not have."""
        if time.monotonic() - self.listed < LIST_SECONDS:
            return
        self.listed = time.monotonic()
        if self.plan is None:
            try:
                with os.fdopen(self.open("plan.json", known), "rb") as handle:
                    self.plan = json.loads(handle.read(SMALL).decode("utf-8"))
            except (OSError, ValueError, RecursionError):
                return
            for file, home in named(self.plan, self.spec["node"]).items():
                self.add(file, home)
        folder, pattern = strays(self.plan)
        try:
            descriptor = self.folder(folder, known)
            try:
                names = sorted(os.listdir(descriptor))
            finally:
                os.close(descriptor)
        except OSError:
            return
        for name in names:
            if pattern.fullmatch(name) and _STRAY.fullmatch(name):
                path = name
                if folder:
                    path = f"{folder}/{name}"
                self.add(path, f"stray-{name}.{self.spec['node']}.log")

    def folder(self, path, known):
        """Return a descriptor of a directory below the attempt's.

        known: {path: descriptor}, which keeps the directories for one round.
        """
        if path in known:
            return os.dup(known[path])
        descriptor = os.dup(self.root)
        parts = []
        if path:
            parts = path.split("/")
        for part in parts:
            try:
                deeper = os.open(part, _DIRECTORY, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = deeper
        known[path] = os.dup(descriptor)
        return descriptor

    def open(self, file, known):
        """Return a descriptor of a regular file below the attempt's directory.

        Raises OSError for anything else.
        """
        path, _slash, name = file.rpartition("/")
        folder = self.folder(path, known)
        try:
            # The type is checked before the file is opened: opening a device can do something.
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                raise OSError("not a regular file")
            descriptor = os.open(name, _FILE, dir_fd=folder)
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError("not a regular file")
        return descriptor

    def key(self, file, known):
        """Return (device, inode) of the file that has this name now.

        Return None where it is missing or cannot be looked at.
        """
        path, _slash, name = file.rpartition("/")
        try:
            folder = self.folder(path, known)
            try:
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            finally:
                os.close(folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems[file] = f"not sent: {error.strerror}"
            return None
        return info.st_dev, info.st_ino

    def event(self, kind, log):
        """Send an event of a log."""
        self.send({"event": kind, "file": log.file, "home": log.home})

    def begin(self, log, known):
        """Open a log, find the offset to go on at, and return whether that worked."""
        try:
            log.descriptor = self.open(log.file, known)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.problems[log.file] = f"not sent: {error.strerror or error}"
            return False
        self.problems.pop(log.file, None)
        info = os.fstat(log.descriptor)
        log.key, log.gone, log.changed = (info.st_dev, info.st_ino), False, None
        have = self.have.pop(log.home, None)
        if have and have["bytes"]:
            self.compare(log, info.st_size, have)
        elif self.last is not None and have is None and info.st_size > self.last:
            self.go_on(log, info.st_size - self.last)
        elif not info.st_size:
            self.frame(log, b"")  # an empty log is sent, too
        return True

    def compare(self, log, size, have):
        """Compare a log with the controller's file, and go on at its end if they match."""
        edge_bytes = min(have["bytes"], EDGE)
        if size < have["bytes"]:
            self.event("truncated", log)
        elif (
            edge(log.descriptor, 0, edge_bytes) != have["head"]
            or edge(log.descriptor, have["bytes"] - edge_bytes, have["bytes"]) != have["tail"]
        ):
            self.event("replaced", log)
        else:
            self.go_on(log, have["bytes"])

    @staticmethod
    def go_on(log, offset):
        """Go on at an offset of an open log, with the bytes before it as its edges."""
        edge_bytes = min(offset, EDGE)
        head = os.pread(log.descriptor, edge_bytes, 0)
        log.seek(offset, head, os.pread(log.descriptor, edge_bytes, offset - edge_bytes))

    @staticmethod
    def began_again(log):
        """Return whether the bytes that were sent are not in an open log any more."""
        head = os.pread(log.descriptor, len(log.head), 0)
        tail = os.pread(log.descriptor, len(log.tail), log.offset - len(log.tail))
        return (head, tail) != (log.head, log.tail)

    def frame(self, log, data):
        """Send the next bytes of a log."""
        self.send(
            {"file": log.file, "home": log.home, "offset": log.offset, "bytes": len(data)}, data
        )

    def step(self, log, known):
        """Send the next bytes of one log, at most CHUNK, and return their number."""
        key = self.key(log.file, known)
        if log.descriptor is None and (key is None or not self.begin(log, known)):
            return 0
        info = os.fstat(log.descriptor)
        if info.st_mtime_ns != log.changed or info.st_size != log.offset:
            data = os.pread(log.descriptor, CHUNK, log.offset)
            # Compared after the read: a log that is truncated and grows again meanwhile would
            # otherwise be sent as the continuation of its old content.
            if self.began_again(log):
                self.event("truncated", log)
                log.seek(0)
                self.frame(log, b"")
                data = os.pread(log.descriptor, CHUNK, 0)
            if data:
                self.frame(log, data)
                head = (log.head + data[:EDGE])[:EDGE]
                log.seek(log.offset + len(data), head, (log.tail + data[-EDGE:])[-EDGE:])
                log.grown = time.monotonic()
                return len(data)
            log.changed = info.st_mtime_ns
        if key is None and not log.gone:
            log.gone = True
            self.event("gone", log)
        if (
            key is not None
            and key != log.key
            and (not self.spec.get("follow") or time.monotonic() - log.grown > QUIET_SECONDS)
        ):
            self.event("replaced", log)
            log.close()
            return 1  # there is more to come of this name
        return 0

    def round(self):
        """Look at each log once and return the number of bytes that were sent."""
        known = {}
        try:
            self.find(known)
            logs = [
                log
                for log in self.logs.values()
                if log.file != WHOLE or not self.spec.get("follow")
            ]
            return sum([self.step(log, known) for log in logs])
        finally:
            for descriptor in known.values():
                os.close(descriptor)

    def run(self, closed):
        """Send until the reader closes standard input, then to the end of each file.

        closed(seconds) waits so long at most, and returns whether standard input was closed.
        """
        following = self.spec.get("follow")
        while following:
            wait = self.spec.get("interval", 0.25)
            if self.round():
                wait = 0
            if time.monotonic() - self.sent_at > BEAT_SECONDS:
                self.send({"event": "beat"})
            following = not closed(wait)
        self.spec["follow"], self.listed = False, -LIST_SECONDS
        sizes = {
            log.file: os.fstat(log.descriptor).st_size
            for log in self.logs.values()
            if log.descriptor is not None
        }
        deadline = time.monotonic() + REST_SECONDS
        while self.round():
            complete = all(log.offset >= sizes.get(log.file, 0) for log in self.logs.values())
            if complete and time.monotonic() > deadline:
                break
        problems = [f"{file}: {problem}" for file, problem in sorted(self.problems.items())]
        self.send({"event": "end", "problems": problems})


def closed(seconds):
    """Wait so long at most and return whether standard input was closed."""
    return bool(select.select([0], [], [], seconds)[0]) and not os.read(0, 4096)


def main():
    """Read the spec and send.

    A reader that has gone ends it in silence.
    """
    spec = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    try:
        Sender(spec, Compressed(sys.stdout.buffer)).run(closed)
    except BrokenPipeError:
        # Nothing is flushed into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
