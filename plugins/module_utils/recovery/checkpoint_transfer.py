# SPDX-License-Identifier: Apache-2.0
"""The transfer of a checkpoint to a node from one that holds it.

The source is the node's own attempt, else another node over the mesh. It runs on the node that
lacks the checkpoint. The source is not trusted: a training there may have changed what it sends. It
sends no more than was announced, in bounded time, and what its rsync prints is cut.
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
# Seconds without a byte after which a source that is down or stands still is given up.
SILENCE_SECONDS = 20
CONNECT_SECONDS = 5
# Seconds that every copy may take, and more where it is large. All of them together end before the
# controller gives the node up (12 h).
LEAST_SECONDS = 900
LEAST_RATE = 512 << 10  # bytes a second
MOST_SECONDS = 36000
CHECK_SECONDS = 0.5
OUTPUT_BYTES = 16 << 10
# What stays free on the file system.
FREE_BYTES = 256 << 20
# The bound holds for ssh, too, which may have a file of its own to write.
LEAST_LIMIT = 1 << 20
# Bounds the size of a file, and becomes rsync.
_BOUND = (
    "import os, resource, sys; most = int(sys.argv[1]);"
    " resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)); os.execvp(sys.argv[2], sys.argv[2:])"
)
# Seconds after which a copy that no start asked for again is removed. A start comes within minutes
# after its copy has arrived.
OLD_SECONDS = 3600
_PLACE = re.compile(
    r"/runs/(?P<run>[0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4})"
    r"/attempt-(?P<number>[0-9]{1,5})/(?P<folder>[A-Za-z0-9_][A-Za-z0-9._@+=/-]{0,400})\Z"
)
_COPY = re.compile(r"[0-9a-f]{16}\Z")
_STAGED = re.compile(rf"{KIND}-[0-9a-f]{{16}}\Z")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")


def source_arguments(home_dir, node, source):
    """Return the arguments of rsync that lead to a source's files.

    They lie in a directory of this node, or in another node's over the mesh. home_dir: the user's
    directory. node: this node's name. source: {source: node, path}. The gate of the other node
    serves one folder of one attempt by rsync's daemon, read-only (mesh_gate.py). Raises ValueError
    for a place that no gate serves.
    """
    if source["source"] == node:
        return [source["path"].rstrip("/") + "/"]
    match = _PLACE.search(source["path"].rstrip("/"))
    if not match or ".." in match.group("folder").split("/") or not _NODE.match(source["source"]):
        raise ValueError(f"not a folder of an attempt: {source['path']!r}")
    config = os.path.join(home_dir, primitives.DIRECTORY, "config")
    shell = f"ssh -F {config} -o BatchMode=yes -o ConnectTimeout={CONNECT_SECONDS}"
    verb = f"pull {match.group('run')} {match.group('number')} {match.group('folder')}"
    return [
        f"--timeout={SILENCE_SECONDS}",
        "-e",
        shell,
        "--rsync-path=" + verb,
        f"{source['source']}::checkpoint/",
    ]


def remove_old_copies(run_command, base, now):
    """Remove copies of checkpoints that no start has asked for lately.

    Return their names. Nothing is removed while an attempt holds this node. They are copies: what a
    training saved lies in its attempt. Every restart brings another one, and they are as large as
    the model. run_command: as in attempt_dir. now: unix seconds.
    """
    folder, staging = os.path.join(base, KIND), os.path.join(base, "staging")
    names, staged = _list_names(folder), _list_names(staging)
    try:
        if not (names or staged) or attempt_dir.active_units(run_command):
            return []
    except attempt_dir.AttemptError:
        return []
    for name in staged:
        path = os.path.join(staging, name)
        if (
            _STAGED.match(name)
            and not os.path.islink(path)
            and now - last_change(path) > OLD_SECONDS
        ):
            tree_install.remove(path)
    removed = []
    for name in names:
        path = os.path.join(folder, name)
        if (
            _COPY.match(name)
            and not os.path.islink(path)
            and now - os.stat(path).st_mtime > OLD_SECONDS
        ):
            tree_install.remove(path)
            for record in (".manifest.json", ".scan.json"):
                with contextlib.suppress(OSError):
                    os.unlink(path + record)
            removed.append(name)
    return removed


def _list_names(folder):
    """Return the names in a directory, sorted, [] for none."""
    if not os.path.isdir(folder):
        return []
    return sorted(os.listdir(folder))


def last_change(folder):
    """Return the time when anything in a directory changed last, in unix seconds.

    rsync sets the times of files, but not this one (ctime).
    """
    newest = os.lstat(folder).st_ctime
    for parent, folders, names in os.walk(folder):
        for name in names + folders:
            with contextlib.suppress(OSError):
                newest = max(newest, os.lstat(os.path.join(parent, name)).st_ctime)
    return newest


def list_sizes(folder):
    """Return {path below the folder: bytes} of everything but directories."""
    sizes = {}
    for parent, _folders, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                sizes[os.path.relpath(path, folder)] = os.lstat(path).st_size
    return sizes


def is_excess(staging, files):
    """Return whether more lies in a staging directory than was announced.

    files: {path: [kind, bytes, digest]}. rsync writes a file under another name first. So one more
    file is allowed, as large as the largest.
    """
    sizes = list_sizes(staging)
    announced = {name: entry[1] for name, entry in files.items()}
    largest, total = max(announced.values()), sum(announced.values())
    return (
        any(size > announced.get(name, largest) for name, size in sizes.items())
        or sum(sizes.values()) > total + largest
        or len(sizes) > len(files) + 1
    )


def run_rsync(argv, staging, files, seconds):
    """Run rsync into a staging directory.

    Return its failure, or None. argv: the command. files: {path: [kind, bytes, digest]}. seconds:
    that it may take at most. Raises Excess where the source sends more than was announced.
    """
    deadline = time.monotonic() + seconds
    process = _start_bounded(argv, files)
    try:
        output = _read_output(process, staging, files, deadline)
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return f"did not send the checkpoint within {int(seconds)} s"
    finally:
        processes.end_group(process)
    _check_excess(staging, files)
    if not process.returncode:
        return None
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines()]
    return next(filter(None, lines), f"rsync ended with {process.returncode}")


def _start_bounded(argv, files):
    """Start rsync with the list of files as its input.

    No file becomes larger than the largest.
    """
    largest = max(entry[1] for entry in files.values())
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")
    }
    environment["LC_ALL"] = "C"
    with tempfile.TemporaryFile() as names:
        names.write("".join(f"{name}\n" for name in sorted(files)).encode())
        names.seek(0)
        return subprocess.Popen(
            [sys.executable, "-I", "-c", _BOUND, str(max(largest + 1, LEAST_LIMIT)), *argv],
            stdin=names,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _read_output(process, staging, files, deadline):
    """Return the first bytes that rsync prints until it closes its output.

    Raises Excess where the source sends too much, and subprocess.TimeoutExpired after the deadline.
    """
    output = b""
    with process.stdout, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        last_check = time.monotonic()
        while True:
            ready, now = selector.select(CHECK_SECONDS), time.monotonic()
            if now > deadline:
                raise subprocess.TimeoutExpired(process.args, deadline)
            if now - last_check >= CHECK_SECONDS:
                last_check = now
                _check_excess(staging, files)
            if ready:
                chunk = os.read(process.stdout.fileno(), OUTPUT_BYTES)
                if not chunk:
                    return output
                output = (output + chunk)[:OUTPUT_BYTES]


def _check_excess(staging, files):
    """Raise Excess where more has arrived than was announced."""
    if is_excess(staging, files):
        raise Excess("sends more than was announced")


class Excess(Exception):
    """A source sends more than was announced.

    Nothing of it is kept.
    """


def space_problem(base, staging, files):
    """Return the reason why a checkpoint does not fit on the file system, or None.

    Its sizes come from other nodes.
    """
    missing = sum(entry[1] for entry in files.values()) - sum(list_sizes(staging).values())
    free = shutil.disk_usage(base).free
    if missing <= 0 or free - missing >= FREE_BYTES:
        return None
    return (
        f"the checkpoint takes {missing >> 20} MiB more, and {free >> 20} MiB are free;"
        f" {FREE_BYTES >> 20} MiB have to stay so"
    )


def fetch(run_command, home_dir, base, node, point, write=True):
    """Make checkpoints/<digest> of a point on this node.

    Return (changed, whether it is there, [the reasons why a source could not give it]).
    run_command: callable (argv, stdin's text or None) -> (exit code, stdout, stderr). home_dir: the
    user's directory. point: as resume_point_choice.choose gives it. The sources are tried in their
    order, the node's own first. What arrives is compared with the digest, and a partial copy is
    completed.
    """
    digest, files = point["digest"], point["files"]
    model_collector.check_files(files)
    if digest != manifest.digest(files) or not all(
        model_collector.is_plain_path(path) for path in files
    ):
        raise ValueError("the checkpoint's digest is not that of its files")
    final, staging = tree_install.tree_paths(base, KIND, digest)
    if probe.tree_state(base, KIND, digest)["ok"]:
        if write:
            os.utime(final)
        return False, True, []
    sources = _order_sources(point["sources"], node)
    if not write:
        return bool(sources), bool(sources), []
    remove_old_copies(lambda argv: run_command(argv, None), base, time.time())
    os.makedirs(staging, mode=0o700, exist_ok=True)
    problem = space_problem(base, staging, files)
    if problem:
        return False, False, [problem]
    deadline = time.monotonic() + MOST_SECONDS
    problems = []
    for index, source in enumerate(sources):
        # Each source has its share of the time, so that a slow one cannot take all of it.
        share = (deadline - time.monotonic()) / (len(sources) - index)
        try:
            arguments = source_arguments(home_dir, node, source)
        except ValueError as error:
            problems.append(f"{source['source']}: {error}")
            continue
        if problems:
            arguments.insert(0, "--checksum")
        problem = _fetch(arguments, staging, files, share)
        if problem is None:
            problem = _switch_in(base, digest, files)
        if problem is None:
            return True, True, problems
        problems.append(f"{source['source']}: {problem}")
    if not os.listdir(staging):
        shutil.rmtree(staging, ignore_errors=True)
    return False, False, problems


def _order_sources(sources, node):
    """Return the sources that a node can ask, its own first."""
    local = [source for source in sources if source["source"] == node]
    others = [source for source in sources if source["source"] not in (node, finder.CONTROLLER)]
    return local + others


def _fetch(arguments, staging, files, share):
    """Copy a checkpoint into a staging directory.

    Return its failure, or None. arguments: those of rsync for this source. share: seconds that it
    may take at most.
    """
    sizes = [entry[1] for entry in files.values()]
    argv = [
        "rsync",
        "--times",
        "--partial",
        "--protect-args",
        "--chmod=F600,D700",
        "--files-from=-",
        f"--max-size={max(sizes)}",
        *arguments,
        staging + "/",
    ]
    try:
        return run_rsync(argv, staging, files, min(LEAST_SECONDS + sum(sizes) // LEAST_RATE, share))
    except Excess as error:
        tree_install.remove(staging)
        os.makedirs(staging, mode=0o700)
        return str(error)


def _switch_in(base, digest, files):
    """Make a staged copy the checkpoint.

    Return the reason why that failed, or None.
    """
    try:
        tree_install.switch_in(base, KIND, digest, files)
    except (tree_install.TreeError, manifest.ManifestError, OSError) as error:
        return str(error)
    return None
