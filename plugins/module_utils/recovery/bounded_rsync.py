# SPDX-License-Identifier: Apache-2.0
"""A copy of announced files by rsync from a source that is not trusted.

A training may have changed what the source sends. It sends no more than was announced, in bounded
time, and what its rsync prints is cut.
"""

from __future__ import annotations

import calendar
import contextlib
import functools
import os
import re
import selectors
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

from ..base import processes
from ..base.commands import run_program
from ..inputs import tree_install

# Seconds without a byte after which a source that is down or stands still is given up.
SILENCE_SECONDS = 20
CONNECT_SECONDS = 5
# Seconds that every copy may take, and more where it is large.
LEAST_SECONDS = 900
LEAST_RATE = 512 << 10  # bytes a second
WAIT_SECONDS = 0.05
# AES-GCM takes less of a processor than OpenSSH's own first choice (measured: two thirds), where it
# knows AES. It is put first (^, ssh_config(5)). A node that refuses it gets the next.
CIPHERS = "Ciphers=^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
CHECK_SECONDS = 0.5
OUTPUT_BYTES = 16 << 10
# What stays free on the file system.
FREE_BYTES = 256 << 20
# The bound holds for ssh, too, which may have a file of its own to write.
LEAST_LIMIT = 1 << 20
# A list of files: what rsync prints of each (log format in rsyncd.conf(5)), and how much is read.
_ROW_FORMAT = "%M %l %n"
_TIME_FORMAT = "%Y/%m/%d-%H:%M:%S"
_ROW = re.compile(
    r"(?P<time>[0-9]{4}/[01][0-9]/[0-3][0-9]-[0-2][0-9]:[0-5][0-9]:[0-5][0-9])"
    r" (?P<bytes>[0-9]{1,18}) (?P<path>.+)\Z"
)
LISTING_BYTES = 4 << 20
VANISHED = 24  # exit code of rsync: some files were removed meanwhile
_NO_FOLDER = "chdir failed"
# Bounds the size of a file, and becomes another program, which leads a group of processes. In a
# session of its own it would lose the priority (priority.lower).
_BOUND = (
    "import os, resource, sys; most = int(sys.argv[1]); os.setpgid(0, 0);"
    " resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)); os.execvp(sys.argv[2], sys.argv[2:])"
)


def remote_arguments(config, node, verb, shared=None):
    """Return the arguments of rsync that lead to a folder which another node serves.

    config: the ssh configuration that reaches it. verb: the words for its gate, which starts
    rsync's daemon. shared: what share_connection gave, None for a connection of its own.
    """
    words = ssh_words(config)
    if shared:
        words += ["-o", f"ControlPath={shared}"]
    return [
        f"--timeout={SILENCE_SECONDS}",
        "-e",
        shlex.join(words),
        "--rsync-path=" + verb,
        f"{node}::checkpoint/",
    ]


@contextlib.contextmanager
def share_connection(config, node):
    """Give the path of a socket by which several calls use one connection to a node.

    Without the connection each call makes one of its own. config: the ssh configuration that
    reaches the node.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        path = os.path.join(folder, "ssh")
        options = ["-o", "ControlMaster=yes", "-o", f"ControlPath={path}"]
        # As a child, it counts in what the caller takes of a processor.
        process = subprocess.Popen(
            [*_bounded(LEAST_LIMIT), *ssh_words(config), *options, "-N", "--", node],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 2 * CONNECT_SECONDS
            while not os.path.exists(path) and process.poll() is None:
                if time.monotonic() > deadline:
                    break
                time.sleep(WAIT_SECONDS)
            yield path
        finally:
            processes.end_group(process)


def ssh_words(config):
    """Return the words of an ssh that asks nobody. config: the ssh configuration."""
    words = ["ssh", "-F", config, "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_SECONDS}"]
    return words + cipher_options(config)


@functools.lru_cache(maxsize=None)
def cipher_options(config):
    """Return ssh's options for a cipher that takes little of a processor.

    None of them where this ssh does not know the notation (before OpenSSH 8.1). config: the ssh
    configuration.
    """
    options = ["-o", CIPHERS]
    asked = ["ssh", "-F", config, "-G", *options, "localhost"]
    code, _out, _err = run_program(asked, CONNECT_SECONDS)
    if code == 0:
        return options
    return []


def list_files(arguments, seconds):
    """Return ({path: (bytes, modification time in unix seconds)}, failure or None) of a source.

    arguments: those of rsync for the source. Files of the folder itself and of the folders in it
    are listed. A folder that does not exist has none. seconds: that it may take at most.
    """
    argv = [
        "rsync",
        "--recursive",
        "--dry-run",
        "--times",
        "--protect-args",
        "--exclude=/*/*/",
        f"--out-format={_ROW_FORMAT}",
        *arguments,
    ]
    environment = _environment(TZ="UTC")
    with tempfile.TemporaryDirectory() as empty, tempfile.TemporaryFile() as output:
        try:
            done = subprocess.run(
                [*_bounded(LISTING_BYTES), *argv, empty],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return {}, f"no list of files within {int(seconds)} s"
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    if done.returncode in (0, VANISHED):
        return parse_listing(text), None
    if _NO_FOLDER in text:
        return {}, None
    return {}, next(filter(None, text.splitlines()), f"rsync ended with {done.returncode}")


def parse_listing(text):
    """Return {path: (bytes, modification time in unix seconds)} of what rsync lists."""
    files = {}
    for line in text.splitlines():
        match = _ROW.match(line)
        if match and not match.group("path").endswith("/"):
            with contextlib.suppress(ValueError):  # no day of a calendar
                saved = calendar.timegm(time.strptime(match.group("time"), _TIME_FORMAT))
                files[match.group("path")] = (int(match.group("bytes")), saved)
    return files


def copy(arguments, staging, files, seconds):
    """Copy files into a staging directory, and return the failure, or None.

    arguments: those of rsync for the source. files: {path: [kind, bytes, digest]}. seconds: that
    the copy may take at most, where its size would allow more. Where the source sends more than
    was announced, nothing of it is kept.
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
        return run(argv, staging, files, min(LEAST_SECONDS + sum(sizes) // LEAST_RATE, seconds))
    except Excess as error:
        tree_install.remove(staging)
        os.makedirs(staging, mode=0o700)
        return str(error)


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


def run(argv, staging, files, seconds):
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
    environment = _environment()
    with tempfile.TemporaryFile() as names:
        names.write("".join(f"{name}\n" for name in sorted(files)).encode())
        names.seek(0)
        return subprocess.Popen(
            [*_bounded(max(largest + 1, LEAST_LIMIT)), *argv],
            stdin=names,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
        )


def _bounded(most):
    """Return the words before a program that may write files of so many bytes."""
    return [sys.executable, "-I", "-c", _BOUND, str(most)]


def _environment(**variables):
    """Return the environment of rsync, which reads options from variables of its own."""
    result = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")}
    return dict(result, LC_ALL="C", **variables)


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
