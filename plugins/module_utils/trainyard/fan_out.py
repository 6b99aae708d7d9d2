# SPDX-License-Identifier: Apache-2.0
"""Bring a checkpoint to a node from one that holds it: the node's own attempt, else another node over the mesh. Runs on the node that lacks it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time

from ansible.module_utils.trainyard import attempts, checkpoints, manifest, mesh, probe, resumable, trees

KIND = "checkpoints"
# A source that is down or stands still is given up after so many seconds without a byte.
SILENCE = 20
CONNECT = 5
# A copy that nobody has asked for since, seconds. A start comes within minutes after its copy was brought.
OLD = 3600


def source_words(home, node, source):
    """Return the words of rsync that lead to a source's files: its own directory, or another node's over the mesh."""
    place = source["path"].rstrip("/") + "/"
    if source["source"] == node:
        return [place]
    config = os.path.join(home, mesh.DIRECTORY, "config")
    shell = "ssh -F %s -o BatchMode=yes -o ConnectTimeout=%d" % (config, CONNECT)
    return ["--timeout=%d" % SILENCE, "-e", shell, "%s:%s" % (source["source"], place)]


def tidy(run, base, now):
    """Remove copies of checkpoints that no start has asked for lately, unless an attempt holds this node; return their names.

    They are copies: what a training saved lies in its attempt. Every restart brings another one, and they are as large as the model. now: unix seconds.
    """
    folder, gone = os.path.join(base, KIND), []
    try:
        names = sorted(os.listdir(folder))
        if not names or attempts.active_units(run):
            return []
    except (OSError, attempts.AttemptError):
        return []
    for name in names:
        path = os.path.join(folder, name)
        if re.match(r"[0-9a-f]{16}\Z", name) and not os.path.islink(path) and now - os.stat(path).st_mtime > OLD:
            trees.remove(path)
            for record in (".manifest.json", ".scan.json"):
                with contextlib.suppress(OSError):
                    os.unlink(path + record)
            gone.append(name)
    return gone


def bring(run, home, base, node, point, write=True):
    """Make checkpoints/<digest> of a point on this node; return (changed, whether it is there, [why a source could not give it]).

    run: callable (argv, stdin's text or None) -> (exit code, stdout, stderr). home: the user's. point: as resumable.choose gives it. The sources are
    tried in their order, the node's own first; what arrives is held against the digest, and a partial copy is gone on with.
    """
    digest, files, said = point["digest"], point["files"], []
    checkpoints.check(files)
    if digest != manifest.digest(files) or not all(checkpoints.plain(path) for path in files):
        raise ValueError("the checkpoint's digest is not that of its files")
    final, staging = trees.place_of(base, KIND, digest)
    if probe.tree_state(base, KIND, digest)["ok"]:
        if write:
            os.utime(final)
        return False, True, said
    own = [source for source in point["sources"] if source["source"] == node]
    sources = own + [source for source in point["sources"] if source["source"] not in (node, resumable.HOME)]
    if not write:
        return bool(sources), bool(sources), said
    tidy(lambda words: run(words, None), base, time.time())
    os.makedirs(staging, mode=0o700, exist_ok=True)
    for source in sources:
        argv = [
            "rsync",
            "--times",
            "--partial",
            "--protect-args",
            *(["--checksum"] if said else []),
            "--chmod=F600,D700",
            "--files-from=-",
            *source_words(home, node, source),
            staging + "/",
        ]
        code, _out, err = run(argv, "".join("%s\n" % name for name in sorted(files)))
        if code:
            said.append("%s: %s" % (source["source"], (err.strip().splitlines() or ["rsync ended with %d" % code])[0]))
            continue
        try:
            trees.switch_in(base, KIND, digest, files)
            return True, True, said
        except (trees.TreeError, manifest.ManifestError, OSError) as error:
            said.append("%s: %s" % (source["source"], error))
    if not os.listdir(staging):
        shutil.rmtree(staging, ignore_errors=True)
    return False, False, said
