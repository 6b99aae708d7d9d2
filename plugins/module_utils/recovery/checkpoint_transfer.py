# SPDX-License-Identifier: Apache-2.0
"""The transfer of a checkpoint to a node from one that holds it.

The source is the node's own attempt, else another node over the mesh. It runs on the node that
lacks the checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time

from ..attempts import attempt_dir
from ..base import manifest
from ..checkpoints import (
    finder,
    model_collector,
)
from ..inputs import tree_install, tree_state
from ..mesh import primitives
from . import bounded_rsync

KIND = "checkpoints"
# All copies together end before the controller gives the node up (12 h).
MOST_SECONDS = 36000
# Seconds after which a copy that no start asked for again is removed. A start comes within minutes
# after its copy has arrived.
OLD_SECONDS = 3600
_PLACE = re.compile(
    r"/runs/(?P<run>[0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4})"
    r"/attempt-(?P<number>[0-9]{1,5})/(?P<folder>[A-Za-z0-9_][A-Za-z0-9._@+=/-]{0,400})\Z"
)
_COPY = re.compile(r"[0-9a-f]{16}\Z")
_STAGED = re.compile(rf"{KIND}-[0-9a-f]{{16}}\Z")
# How ssh's own message begins where it reaches no machine.
_NO_CONNECTION = "ssh: connect to host "
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")


def source_arguments(home_dir, node, source, config=""):
    """Return the arguments of rsync that lead to a source's files.

    They lie in a directory of this node, or in another node's over the mesh. home_dir: the user's
    directory. node: this node's name. source: {source: node, path}. The gate of the other node
    serves one folder of one attempt by rsync's daemon, read-only (mesh_gate.py). config: the ssh
    configuration of the run's own credential (agent/peer_gate.py), '' for the site's. Raises
    ValueError for a place that no gate serves.
    """
    if source["source"] == node:
        return [source["path"].rstrip("/") + "/"]
    match = _PLACE.search(source["path"].rstrip("/"))
    if not match or ".." in match.group("folder").split("/") or not _NODE.match(source["source"]):
        raise ValueError(f"not a folder of an attempt: {source['path']!r}")
    verb = f"pull {match.group('number')} {match.group('folder')}"
    if not config:
        config = os.path.join(home_dir, primitives.DIRECTORY, "config")
        verb = f"pull {match.group('run')} {match.group('number')} {match.group('folder')}"
    return bounded_rsync.remote_arguments(config, source["source"], verb)


def copy_of(base, digest):
    """Return the directory of a checkpoint that was fetched. base: the product's directory."""
    return tree_install.tree_paths(base, KIND, digest)[0]


def note_links(base, digest, paths):
    """Note that files of such a copy were linked, so that the next fetch need not read them."""
    tree_install.renew_records(copy_of(base, digest), paths)


def folder_of(path):
    """Return the folder below its attempt's directory that a place of a checkpoint names, or ''."""
    match = _PLACE.search(path.rstrip("/"))
    if not match or ".." in match.group("folder").split("/"):
        return ""
    return match.group("folder")


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
            _remove_records(path)
    removed = []
    for name in names:
        path = os.path.join(folder, name)
        if (
            _COPY.match(name)
            and not os.path.islink(path)
            and now - os.stat(path).st_mtime > OLD_SECONDS
        ):
            tree_install.remove(path)
            _remove_records(path)
            removed.append(name)
    return removed


def _remove_records(path):
    """Remove what lies beside a copy that was removed."""
    for record in (tree_install.MANIFEST, tree_install.SCAN):
        with contextlib.suppress(OSError):
            os.unlink(path + record)


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


def fetch(run_command, home_dir, base, node, point, write=True, config=""):
    """Make checkpoints/<digest> of a point on this node.

    Return (changed, whether it is there, [the reasons why a source could not give it]).
    run_command: callable (argv, stdin's text or None) -> (exit code, stdout, stderr). home_dir: the
    user's directory. point: as resume_point_choice.choose gives it. The sources are tried in their
    order, the node's own first. config: see source_arguments. What arrives is compared with the
    digest, and a partial copy is completed.
    """
    digest, files = point["digest"], point["files"]
    model_collector.check_files(files)
    if digest != manifest.digest(files) or not all(
        model_collector.is_plain_path(path) for path in files
    ):
        raise ValueError("the checkpoint's digest is not that of its files")
    final, staging = tree_install.tree_paths(base, KIND, digest)
    if tree_state.look(base, KIND, digest)["ok"]:
        if write:
            os.utime(final)
        return False, True, []
    sources = _order_sources(point["sources"], node, files)
    if not write:
        return bool(sources), bool(sources), []
    remove_old_copies(lambda argv: run_command(argv, None), base, time.time())
    os.makedirs(staging, mode=0o700, exist_ok=True)
    problem = bounded_rsync.space_problem(base, staging, files)
    if problem:
        return False, False, [problem]
    is_here, problems = _copy_from(sources, home_dir, node, config, base, digest, files)
    if not is_here and not os.listdir(staging):
        shutil.rmtree(staging, ignore_errors=True)
    return is_here, is_here, problems


def _copy_from(sources, home_dir, node, config, base, digest, files):
    """Copy a checkpoint from the first source that gives it.

    Return (whether one has, [the reasons of those that have not]).
    """
    staging = tree_install.tree_paths(base, KIND, digest)[1]
    deadline = time.monotonic() + MOST_SECONDS
    problems = []
    while sources:
        source = sources.pop(0)
        # Each source has its share of the time, so that a slow one cannot take all of it.
        share = (deadline - time.monotonic()) / (len(sources) + 1)
        try:
            arguments = source_arguments(home_dir, node, source, config)
        except ValueError as error:
            problems.append(f"{source['source']}: {error}")
            continue
        if problems:
            arguments.insert(0, "--checksum")
        problem = bounded_rsync.copy(arguments, staging, files, share)
        if problem is None:
            problem = _switch_in(base, digest, files)
        if problem is None:
            return True, problems
        problems.append(f"{source['source']}: {problem}")
        if problem.startswith(_NO_CONNECTION):  # a further call would wait in vain
            sources = [other for other in sources if other["source"] != source["source"]]
    return False, problems


def _order_sources(sources, node, files):
    """Return the sources that a node can ask, its own first.

    Of its own, only those that hold the files: a call of rsync in vain takes 0.3 s.
    """
    local = [source for source in sources if source["source"] == node]
    local = [source for source in local if _holds(source["path"], files)]
    others = [source for source in sources if source["source"] not in (node, finder.CONTROLLER)]
    return local + others


def _holds(folder, files):
    """Return whether a directory of this node has all files, by their names and sizes."""
    for path, (_kind, size, _digest) in files.items():
        try:
            if os.stat(os.path.join(folder, path)).st_size != size:
                return False
        except OSError:
            return False
    return True


def _switch_in(base, digest, files):
    """Make a staged copy the checkpoint.

    Return the reason why that failed, or None.
    """
    try:
        tree_install.switch_in(base, KIND, digest, files)
    except (tree_install.TreeError, manifest.ManifestError, OSError) as error:
        return str(error)
    return None
