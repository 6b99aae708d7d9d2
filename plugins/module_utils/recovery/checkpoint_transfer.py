# SPDX-License-Identifier: Apache-2.0
"""Bring a checkpoint to a node from one that holds it: the node's own attempt, else another node
over the mesh. Runs on the node that lacks it.

The source is not trusted: a training there may have changed what it sends. It sends no more than
was announced, in bounded time, and what its rsync prints is cut.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import time

from ..attempts import attempt_dir
from ..base import manifest, processes
from ..checkpoints import (
    finder,
    model_collector,
)
from ..inputs import tree_install
from ..mesh import primitives
from ..preflight import probe

KIND = "checkpoints"
# A source that is down or stands still is given up after so many seconds without a byte.
SILENCE = 20
CONNECT = 5
# Every copy may take so long, and longer where it is large; all of them together end before the
# controller gives the node up (12 h).
LEAST_SECONDS = 900
LEAST_RATE = 512 << 10  # bytes a second
MOST_SECONDS = 36000
LOOK_SECONDS = 0.5
SAID_BYTES = 16 << 10
# What stays free on the file system.
FREE_BYTES = 256 << 20
# The bound holds for ssh, too, which may have a file of its own to write.
LEAST_LIMIT = 1 << 20
# Bounds the size of a file, and becomes rsync.
_BOUND = (
    "import os, resource, sys; most = int(sys.argv[1]);"
    " resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)); os.execvp(sys.argv[2], sys.argv[2:])"
)
# A copy that nobody has asked for since, seconds. A start comes within minutes after its copy was
# brought.
OLD = 3600
_PLACE = re.compile(
    r"/runs/(?P<run>[0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4})/attempt-(?P<number>[0-9]{1,5})/(?P<folder>[A-Za-z0-9_][A-Za-z0-9._@+=/-]{0,400})\Z"
)
_STAGED = re.compile(rf"{KIND}-[0-9a-f]{{16}}\Z")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")


def source_words(home, node, source):
    """Return the words of rsync that lead to a source's files: its own directory, or another node's
    over the mesh.

    The gate of the other node serves one folder of one attempt by rsync's daemon, read-only
    (mesh_gate.py). Raises ValueError for a place that no gate serves.
    """
    place = source["path"].rstrip("/") + "/"
    if source["source"] == node:
        return [place]
    match = _PLACE.search(source["path"].rstrip("/"))
    if not match or ".." in match.group("folder").split("/") or not _NODE.match(source["source"]):
        raise ValueError("not a folder of an attempt: {!r}".format(source["path"]))
    config = os.path.join(home, primitives.DIRECTORY, "config")
    shell = "ssh -F %s -o BatchMode=yes -o ConnectTimeout=%d" % (config, CONNECT)
    verb = "pull {} {} {}".format(*match.group("run", "number", "folder"))
    return [
        "--timeout=%d" % SILENCE,
        "-e",
        shell,
        "--rsync-path=" + verb,
        "{}::checkpoint/".format(source["source"]),
    ]


def tidy(run, base, now):
    """Remove copies of checkpoints that no start has asked for lately, unless an attempt holds this
    node; return their names.

    They are copies: what a training saved lies in its attempt. Every restart brings another one,
    and they are as large as the model. now: unix seconds.
    """
    folder, staging, gone = os.path.join(base, KIND), os.path.join(base, "staging"), []
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    staged = sorted(os.listdir(staging)) if os.path.isdir(staging) else []
    try:
        if not (names or staged) or attempt_dir.active_units(run):
            return []
    except attempt_dir.AttemptError:
        return []
    for name in staged:
        path = os.path.join(staging, name)
        if _STAGED.match(name) and not os.path.islink(path) and now - last_change(path) > OLD:
            tree_install.remove(path)
    for name in names:
        path = os.path.join(folder, name)
        if (
            re.match(r"[0-9a-f]{16}\Z", name)
            and not os.path.islink(path)
            and now - os.stat(path).st_mtime > OLD
        ):
            tree_install.remove(path)
            for record in (".manifest.json", ".scan.json"):
                with contextlib.suppress(OSError):
                    os.unlink(path + record)
            gone.append(name)
    return gone


def last_change(folder):
    """Return when anything in a directory changed last, in unix seconds. rsync sets the times of
    files, but not this one (ctime).
    """
    newest = os.lstat(folder).st_ctime
    for where, folders, names in os.walk(folder):
        for name in names + folders:
            with contextlib.suppress(OSError):
                newest = max(newest, os.lstat(os.path.join(where, name)).st_ctime)
    return newest


def sizes_in(folder):
    """Return {path below the folder: bytes} of everything but directories."""
    found = {}
    for where, _folders, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            with contextlib.suppress(OSError):
                found[os.path.relpath(path, folder)] = os.lstat(path).st_size
    return found


def excess(staging, files):
    """Return whether more lies in a staging directory than was announced; files: {path: [kind,
    bytes, digest]}.

    rsync writes a file under another name first. So one more file is allowed, as large as the
    largest.
    """
    found, announced = sizes_in(staging), {name: entry[1] for name, entry in files.items()}
    largest, total = max(announced.values()), sum(announced.values())
    return (
        any(size > announced.get(name, largest) for name, size in found.items())
        or sum(found.values()) > total + largest
        or len(found) > len(files) + 1
    )


def copy(argv, staging, files, seconds):
    """Run rsync into a staging directory; return None, or why it gave nothing.

    Raises Excess where the source sends more than was announced.
    """
    largest, until, said = (
        max(entry[1] for entry in files.values()),
        time.monotonic() + seconds,
        b"",
    )
    environment = dict(
        {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")},
        LC_ALL="C",
    )
    with tempfile.TemporaryFile() as names:
        names.write("".join(f"{name}\n" for name in sorted(files)).encode())
        names.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _BOUND, str(max(largest + 1, LEAST_LIMIT)), *argv],
            stdin=names, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
        )  # fmt: skip
    try:
        with process.stdout, selectors.DefaultSelector() as waiting:
            waiting.register(process.stdout, selectors.EVENT_READ)
            looked = time.monotonic()
            while True:
                ready, now = waiting.select(LOOK_SECONDS), time.monotonic()
                if now > until:
                    return "did not send the checkpoint within %d s" % seconds
                if now - looked >= LOOK_SECONDS:
                    looked = now
                    if excess(staging, files):
                        raise Excess("sends more than was announced")
                chunk = os.read(process.stdout.fileno(), SAID_BYTES) if ready else None
                if chunk == b"":
                    break
                said = (said + (chunk or b""))[:SAID_BYTES]
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return "did not send the checkpoint within %d s" % seconds
    finally:
        processes.end_group(process)
    if excess(staging, files):
        raise Excess("sends more than was announced")
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    return (
        (lines or ["rsync ended with %d" % process.returncode])[0] if process.returncode else None
    )


class Excess(Exception):
    """A source sends more than was announced; nothing of it is kept."""


def room_problem(base, staging, files):
    """Return why a checkpoint does not fit on the file system, or None. Its sizes come from other
    nodes.
    """
    lacking = sum(entry[1] for entry in files.values()) - sum(sizes_in(staging).values())
    free = shutil.disk_usage(base).free
    text = "the checkpoint takes %d MiB more, and %d MiB are free; %d MiB have to stay so"
    return (
        text % (lacking >> 20, free >> 20, FREE_BYTES >> 20)
        if lacking > 0 and free - lacking < FREE_BYTES
        else None
    )


def bring(run, home, base, node, point, write=True):
    """Make checkpoints/<digest> of a point on this node; return (changed, whether it is there, [why
    a source could not give it]).

    run: callable (argv, stdin's text or None) -> (exit code, stdout, stderr). home: the user's.
    point: as resumable.choose gives it. The sources are tried in their order, the node's own first;
    what arrives is held against the digest, and a partial copy is gone on with.
    """
    digest, files, said = point["digest"], point["files"], []
    model_collector.check(files)
    if digest != manifest.digest(files) or not all(model_collector.plain(path) for path in files):
        raise ValueError("the checkpoint's digest is not that of its files")
    final, staging = tree_install.place_of(base, KIND, digest)
    if probe.tree_state(base, KIND, digest)["ok"]:
        if write:
            os.utime(final)
        return False, True, said
    own = [source for source in point["sources"] if source["source"] == node]
    sources = own + [
        source for source in point["sources"] if source["source"] not in (node, finder.HOME)
    ]
    if not write:
        return bool(sources), bool(sources), said
    tidy(lambda words: run(words, None), base, time.time())
    os.makedirs(staging, mode=0o700, exist_ok=True)
    problem = room_problem(base, staging, files)
    if problem:
        return False, False, [problem]
    largest, until = max(entry[1] for entry in files.values()), time.monotonic() + MOST_SECONDS
    wanted = LEAST_SECONDS + sum(entry[1] for entry in files.values()) // LEAST_RATE
    for at, source in enumerate(sources):
        try:
            words = source_words(home, node, source)
        except ValueError as error:
            said.append("{}: {}".format(source["source"], error))
            continue
        argv = [
            "rsync",
            "--times",
            "--partial",
            "--protect-args",
            *(["--checksum"] if said else []),
            "--chmod=F600,D700",
            "--files-from=-",
            "--max-size=%d" % largest,
            *words,
            staging + "/",
        ]
        # Each source has its share of the time, so that a slow one cannot take all of it.
        share = (until - time.monotonic()) / (len(sources) - at)
        try:
            problem = copy(argv, staging, files, min(wanted, share))
        except Excess as error:
            tree_install.remove(staging)
            os.makedirs(staging, mode=0o700)
            problem = str(error)
        if problem:
            said.append("{}: {}".format(source["source"], problem))
            continue
        try:
            tree_install.switch_in(base, KIND, digest, files)
            return True, True, said
        except (tree_install.TreeError, manifest.ManifestError, OSError) as error:
            said.append("{}: {}".format(source["source"], error))
    if not os.listdir(staging):
        shutil.rmtree(staging, ignore_errors=True)
    return False, False, said
