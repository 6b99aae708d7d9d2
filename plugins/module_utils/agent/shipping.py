# SPDX-License-Identifier: Apache-2.0
"""Send an attempt's logs from its node while they grow, each byte once. Complete in itself: it
travels to the node over standard input.

python3 -I -c BOOT      then on standard input: the length of this file and a line end, this file,
the spec as one line of JSON

Needs Python >= 3.8 and nothing else. The spec holds
    attempt_dir   the attempt's directory; a relative path starts at the user's home
    node          the node's name in the plan
    files         {file: home} beside those that plan.json names; optional
    have          {home: {"bytes", "head", "tail"}}: what is at home already; the digests are
    sha256 of its first and last min(bytes, 4096) bytes
    follow        go on until the reader closes standard input; then what is there is sent to its
    end
    interval      seconds between two looks
    last          of a file of which nothing is at home, only so many bytes at its end; optional
Standard output: frames. A frame is a line of JSON, {"file", "home", "offset", "bytes", "time"},
and so many raw bytes; or a line alone:
{"event": "truncated"|"replaced"|"gone", "file", "home", "time"}, {"event": "beat", "time"},
{"event": "end", "time", "problems"}.
"truncated" and "replaced" say that the next bytes of this file begin at offset 0 again. Times
are unix seconds of the node's clock.

Every step of a path is opened without following links, and regular files alone are read. Whole
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

BOOT = (
    "import sys; i=sys.stdin.buffer;"
    " exec(compile(i.read(int(i.readline())),'shipping.py','exec'),{'__name__':'__main__'})"
)
CHUNK = (
    256 << 10
)  # most bytes of one file in a row, so that a log of GBs does not hold the others up
EDGE = 4096
SMALL = 8 << 20
BEAT_SECONDS = 5.0
LIST_SECONDS = 2.0  # between two looks for logs that no rank of the plan owns
# a log that was renamed may still be written to by who holds it open; it is left after so long
# without a byte
QUIET_SECONDS = 1.0
REST_SECONDS = 30.0  # how long a log that still grows is read once the reader wants no more
# no log: it is written anew when the peers have been told, so it is sent when the reader wants no
# more
WHOLE = "exit.json"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}"
)  # at home; a file here has at most safe_names.PART_BYTES
_STRAY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
# What Paddle's launcher writes of its whole environment (paddle/distributed/launch/job/pod.py,
# container.py: envlog; controllers: default).
_ENVIRONMENT = re.compile(r"^(envlog\.|backup_env\.|default\..*\.log$)")


def inside(name):
    """Whether a path stays below the attempt's directory and is no dump of an environment."""
    parts = name.split("/")
    return not any(
        part in ("", ".", "..") or "\0" in part for part in parts
    ) and not _ENVIRONMENT.match(parts[-1])


def named(plan, node):
    """Return {file: home} of the logs that a plan names for one of its nodes; the names at home are
    those of evidence.py.
    """
    launcher, files = plan["launcher"], {}
    for rank in plan["ranks"]:
        if rank["node"] == node:
            log = rank.get("log") or launcher["rank_log"].replace(
                "{local_rank}", str(rank["local_rank"])
            ).replace("{rank}", str(rank["rank"]))
            files[log] = "rank-%03d.%s.log" % (rank["rank"], node)
    files[launcher.get("console") or "logs.txt"] = f"launcher.{node}.log"
    files.update(
        {name: f"{os.path.basename(name)[:-4]}.{node}.log" for name in launcher.get("logs") or ()}
    )
    return dict(files, **{"ranks.jsonl": f"ranks.{node}.jsonl", WHOLE: f"exit.{node}.json"})


def strays(plan):
    """Return (folder, pattern) of the names that logs of unplanned ranks would have; folder is ''
    for the attempt's directory itself.
    """
    folder, _slash, name = plan["launcher"]["rank_log"].rpartition("/")
    return folder, re.compile(re.sub(r"\\\{(?:local_)?rank\\\}", r"\\d{1,6}", re.escape(name)))


def edge(descriptor, begin, end):
    """Return the sha256 of the bytes [begin, end) of an open file."""
    return hashlib.sha256(os.pread(descriptor, end - begin, begin)).hexdigest()


class Log:
    """One log: the file that is open, how far it is sent, the last bytes that were."""

    def __init__(self, file, home):
        self.file, self.home = file, home
        self.descriptor, self.key, self.changed, self.gone, self.grown = (
            None,
            None,
            None,
            False,
            0.0,
        )
        self.again(0)

    def again(self, offset, tail=b""):
        self.offset, self.tail = offset, tail

    def close(self):
        os.close(self.descriptor)
        self.descriptor = None
        self.again(0)


class Sender:
    """Looks at the logs in turn and writes frames to `out`, a binary file; `spec` as above."""

    def __init__(self, spec, out):
        self.spec, self.out = spec, out
        self.root = os.open(os.path.join(os.path.expanduser("~"), spec["attempt_dir"]), _DIRECTORY)
        self.have, self.last = dict(spec.get("have") or {}), spec.get("last")
        self.logs, self.problems, self.plan, self.listed, self.said = (
            {},
            {},
            None,
            -LIST_SECONDS,
            time.monotonic(),
        )
        for file, home in (spec.get("files") or {}).items():
            self.add(file, home)

    def add(self, file, home):
        if file in self.logs or file in self.problems:
            return
        if inside(file) and _NAME.fullmatch(home):
            self.logs[file] = Log(file, home)
        else:
            self.problems[file] = (
                "not sent: it does not stay inside the attempt, or holds an environment"
            )

    def say(self, header, data=b""):
        self.out.write(json.dumps(dict(header, time=time.time())).encode("ascii") + b"\n")
        self.out.write(data)
        self.out.flush()
        self.said = time.monotonic()

    def find(self, known):
        """Take up the plan's logs, and those of ranks that it does not have."""
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
            here = self.folder(folder, known)
            try:
                names = sorted(
                    name
                    for name in os.listdir(here)
                    if pattern.fullmatch(name) and _STRAY.fullmatch(name)
                )
            finally:
                os.close(here)
        except OSError:
            return
        for name in names:
            self.add(
                f"{folder}/{name}" if folder else name,
                "stray-{}.{}.log".format(name, self.spec["node"]),
            )

    def folder(self, path, known):
        """Return a descriptor of a directory below the attempt's; `known` keeps them for one round."""
        if path in known:
            return os.dup(known[path])
        here = os.dup(self.root)
        for part in path.split("/") if path else ():
            try:
                deeper = os.open(part, _DIRECTORY, dir_fd=here)
            finally:
                os.close(here)
            here = deeper
        known[path] = os.dup(here)
        return here

    def open(self, file, known):
        """Return a descriptor of a regular file below the attempt's directory; raise OSError for
        anything else.
        """
        path, _slash, name = file.rpartition("/")
        here = self.folder(path, known)
        try:
            # Looked at before it is opened: opening a device can do something.
            if not stat.S_ISREG(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                raise OSError("not a regular file")
            found = os.open(name, _FILE, dir_fd=here)
        finally:
            os.close(here)
        if not stat.S_ISREG(os.fstat(found).st_mode):
            os.close(found)
            raise OSError("not a regular file")
        return found

    def key(self, file, known):
        """Return (device, inode) of what has this name now; None where nothing has, or where it
        cannot be looked at.
        """
        path, _slash, name = file.rpartition("/")
        try:
            here = self.folder(path, known)
            try:
                info = os.stat(name, dir_fd=here, follow_symlinks=False)
            finally:
                os.close(here)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems[file] = f"not sent: {error.strerror}"
            return None
        return info.st_dev, info.st_ino

    def event(self, kind, log):
        self.say({"event": kind, "file": log.file, "home": log.home})

    def begin(self, log, known):
        """Open a log and find out where to go on; return whether it could be opened."""
        try:
            log.descriptor = self.open(log.file, known)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.problems[log.file] = "not sent: %s" % (error.strerror or error)
            return False
        self.problems.pop(log.file, None)
        info = os.fstat(log.descriptor)
        log.key, log.gone, log.changed = (info.st_dev, info.st_ino), False, None
        have = self.have.pop(log.home, None)
        if have and have["bytes"]:
            size, near = have["bytes"], min(have["bytes"], EDGE)
            if info.st_size < size:
                self.event("truncated", log)
            elif (
                edge(log.descriptor, 0, near) != have["head"]
                or edge(log.descriptor, size - near, size) != have["tail"]
            ):
                self.event("replaced", log)
            else:
                log.again(size, os.pread(log.descriptor, near, size - near))
        elif self.last is not None and have is None and info.st_size > self.last:
            begin = info.st_size - self.last
            near = min(begin, EDGE)
            log.again(begin, os.pread(log.descriptor, near, begin - near))
        elif not info.st_size:
            self.frame(log, b"")  # an empty log is at home, too
        return True

    def frame(self, log, data):
        """Send the next bytes of a log."""
        self.say(
            {"file": log.file, "home": log.home, "offset": log.offset, "bytes": len(data)}, data
        )

    def step(self, log, known):
        """Send what one log has more, at most CHUNK; return the number of bytes."""
        key = self.key(log.file, known)
        if log.descriptor is None and (key is None or not self.begin(log, known)):
            return 0
        info = os.fstat(log.descriptor)
        if info.st_mtime_ns != log.changed or info.st_size != log.offset:
            tail = len(log.tail)
            if tail and os.pread(log.descriptor, tail, log.offset - tail) != log.tail:
                self.event("truncated", log)
                log.again(0)
                self.frame(log, b"")
            data = os.pread(log.descriptor, CHUNK, log.offset)
            if data:
                self.frame(log, data)
                log.again(log.offset + len(data), (log.tail + data[-EDGE:])[-EDGE:])
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
        """Look at every log once; return the number of bytes that were sent."""
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
        """Send until `closed(seconds)`, which waits so long at most, says that the reader wants no
        more; then to the end of what is there.
        """
        follow = self.spec.get("follow")
        while follow:
            sent = self.round()
            if time.monotonic() - self.said > BEAT_SECONDS:
                self.say({"event": "beat"})
            follow = not closed(0 if sent else self.spec.get("interval", 0.25))
        self.spec["follow"], self.listed = False, -LIST_SECONDS
        left = {
            log.file: os.fstat(log.descriptor).st_size
            for log in self.logs.values()
            if log.descriptor is not None
        }
        deadline = time.monotonic() + REST_SECONDS
        while self.round():
            if time.monotonic() > deadline and all(
                log.offset >= left.get(log.file, 0) for log in self.logs.values()
            ):
                break
        self.say(
            {
                "event": "end",
                "problems": ["{}: {}".format(*item) for item in sorted(self.problems.items())],
            }
        )


def closed(seconds):
    """Wait so long at most; return whether standard input was closed."""
    return bool(select.select([0], [], [], seconds)[0]) and not os.read(0, 4096)


def main():
    """Read the spec and send; a reader that is gone ends it in silence."""
    spec = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    try:
        Sender(spec, sys.stdout.buffer).run(closed)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), 1
        )  # nothing is flushed into the closed pipe at exit


if __name__ == "__main__":
    main()
