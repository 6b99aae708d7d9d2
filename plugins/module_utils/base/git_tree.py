# SPDX-License-Identifier: Apache-2.0
"""Questions to git about a work tree that run nothing from its configuration.

A repository's configuration can name programs: a file system monitor, hooks, filters, diff drivers,
transports. Git runs them for every user. A tree that another account owns is not asked about at
all: git itself refuses it, and no `safe.directory` is given here. Filters are the one kind that no
switch turns off. So those of the repository are replaced by the ones that the user or the system
configured, or by nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading

# Seconds and bytes of one question. A tree of 100,000 files on a cold network disk answers in a
# minute.
SECONDS, LARGEST = 180, 64 << 20
MOST_FILTERS = 64
# Variables of this process's environment that git may see.
KEPT_ENV = (
    "HOME",
    "PATH",
    "XDG_CONFIG_HOME",
    "TMPDIR",
    "GIT_CEILING_DIRECTORIES",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
)
# No lazy fetch of a partial clone, no question at the terminal, no transport, no lock on another
# user's index.
SET_ENV = {
    "LC_ALL": "C",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
}
SETTINGS = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "safe.bareRepository=explicit",
)
# Git would ask each submodule by a process of its own, which reads the submodule's configuration.
NO_SUBMODULES = "--ignore-submodules=dirty"
PLAIN_DIFF = ("--no-ext-diff", "--no-textconv", "--no-color", "--submodule=short", NO_SUBMODULES)


class GitError(Exception):
    """Git gave no answer.

    `reason` is failed, foreign (another account owns the tree), late or large. `detail` is git's
    own first line about it, or ''.
    """

    def __init__(self, reason, text, detail=""):
        super().__init__(text)
        self.reason = reason
        self.detail = detail


def ask(root, words, more=(), limit=LARGEST, seconds=SECONDS):
    """Return git's output for a question about the work tree around root.

    words: git's arguments. more: further settings. limit: bytes. Raises GitError.
    """
    argv = ["git", "--no-pager", "-C", root]
    for setting in (*SETTINGS, *more):
        argv += ["-c", setting]
    environment = {name: os.environ[name] for name in KEPT_ENV if name in os.environ}
    try:
        process = subprocess.Popen(
            [*argv, *words],
            env=dict(environment, **SET_ENV),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise GitError("failed", f"git cannot be run: {error.strerror}") from error
    errors, late = [], threading.Event()

    def end():
        late.set()
        _kill(process)

    # Two pipes, read at the same time, so that neither fills up.
    reader = threading.Thread(target=lambda: errors.append(_drain(process.stderr)), daemon=True)
    timer = threading.Timer(seconds, end)
    reader.start()
    timer.start()
    try:
        output = process.stdout.read(limit + 1)
        large = len(output) > limit
        if large:
            _kill(process)
        process.wait()
    finally:
        timer.cancel()
        _kill(process)
        reader.join(5)
        process.stdout.close()
    if late.is_set():
        raise GitError("late", f"git did not answer within {int(seconds)} s in {root}")
    if large:
        raise GitError("large", f"git answered with more than {limit} bytes in {root}")
    if process.returncode:
        message = (errors or [b""])[0]
        raise GitError(_refusal(message), f"git refuses {root}", _first_line(message))
    return output


def _refusal(errors):
    """Return the reason of a refusal, from git's standard error."""
    text = errors.decode("utf-8", "replace")
    if "dubious ownership" in text or "is owned by someone else" in text:
        return "foreign"
    return "failed"


def _first_line(errors):
    """Return the first line of git's standard error as text, cut to 200 characters."""
    lines = errors.decode("utf-8", "replace").strip().splitlines() or [""]
    return "".join(char for char in lines[0][:200] if char.isprintable())


def _drain(stream):
    """Return the first 8 KiB of a stream and read the rest away."""
    first = stream.read(8192)
    while stream.read(65536):
        pass
    stream.close()
    return first


def _kill(process):
    """End git with all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def harmless_filters(root):
    """Return the settings that replace the repository's own filters.

    They give the user's and the system's filters instead. Raises GitError.
    """
    names = _filters(root)
    if not names:
        return []
    if len(names) > MOST_FILTERS or any("=" in name for name in names):
        raise GitError(
            "failed", f"the configuration of {root} has filters that cannot be switched off"
        )
    trusted = dict(_filters(root, "--system"), **_filters(root, "--global"))
    settings = []
    for key in sorted(names):
        # An empty `process` would hide a `clean` of the user's, so only what is set is replaced.
        replacement = ""
        if key.endswith(".required"):
            replacement = "false"
        settings.append(f"{key}={trusted.get(key, replacement)}")
    return settings


def _filters(root, *scope):
    """Return {key: value} of the filters in git's configuration, or in one scope."""
    try:
        output = ask(
            root,
            ["config", "--includes", "-z", *scope, "--get-regexp", r"^filter\..*\."],
            limit=1 << 20,
        )
    except GitError as error:
        if error.reason != "failed":
            raise
        return {}  # git fails where nothing matches, and where a scope has no file
    pairs = [item.partition(b"\n")[::2] for item in output.split(b"\0") if item]
    return {os.fsdecode(key): os.fsdecode(value) for key, value in pairs}


def commit_of(root):
    """Return the commit that is checked out.

    Raises GitError.
    """
    output = ask(root, ["rev-parse", "--verify", "HEAD^{commit}"], limit=4096)
    commit = output.decode("ascii", "replace").strip()
    if len(commit) not in (40, 64) or set(commit) - set("0123456789abcdef"):
        raise GitError("failed", f"git names no commit in {root}")
    return commit


def paths_without(exclude):
    """Return the words that ask git for all paths below the root but some.

    exclude: relative paths. What lies at one of them or below it is left out.
    """
    return ["--", ".", *(f":(exclude,literal){path}" for path in exclude)]


def is_dirty(root, exclude=()):
    """Return whether files below root differ from the commit, or are not in it.

    exclude: see `paths_without`. Raises GitError.
    """
    # Of an untracked directory that holds an excluded one, the files have to be asked for.
    untracked_files = "--untracked-files=" + ("all" if exclude else "normal")
    arguments = ["status", "--porcelain", untracked_files, NO_SUBMODULES]
    arguments += paths_without(exclude)
    try:
        return bool(ask(root, arguments, harmless_filters(root)))
    except GitError as error:
        if error.reason == "large":
            return True
        raise


def diff_of(root, limit=LARGEST, exclude=()):
    """Return the local changes below root as a patch.

    exclude: see `paths_without`. Raises GitError.
    """
    arguments = ["diff", *PLAIN_DIFF, "--binary", "HEAD", *paths_without(exclude)]
    return ask(root, arguments, harmless_filters(root), limit)


def untracked(root, exclude=()):
    """Return whether git neither tracks nor ignores a file below root.

    exclude: see `paths_without`. Raises GitError.
    """
    arguments = ["ls-files", "--others", "--exclude-standard", *paths_without(exclude)]
    try:
        return bool(ask(root, arguments))
    except GitError as error:
        if error.reason == "large":
            return True
        raise


def listed(root, exclude=(), only=None, limit=LARGEST):
    """Return the names below root that git tracks or does not ignore, as text.

    exclude: see `paths_without`. only: one relative path, for what lies at it or below. limit:
    bytes of all names. Raises GitError.
    """
    arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    paths = paths_without(exclude)
    if only is not None:
        paths = ["--", f":(literal){only}"]
    output = ask(root, [*arguments, *paths], limit=limit)
    return [os.fsdecode(name) for name in output.split(b"\0") if name]
