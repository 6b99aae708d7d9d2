# SPDX-License-Identifier: Apache-2.0
"""Trees on a node: code, data, weights and checkpoints under their digest.

Decision 9. One rename puts a tree into its final place. From then on it is read-only.
"""

from __future__ import annotations

import os
import shutil
import stat
import time

from ..base import manifest
from ..base.files import write_json


class TreeError(Exception):
    """A tree that did not arrive as planned. The message names the files."""


def tree_paths(base, kind, digest):
    """Return (final directory, staging directory) of a tree.

    The staging directory is the same at a second try, so that rsync goes on where it was.
    """
    name = digest[:16]
    return os.path.join(base, kind, name), os.path.join(base, "staging", f"{kind}-{name}")


def protect(root, writable):
    """Make every file and directory of a tree read-only, or writable for the user.

    Links are left alone.
    """
    for folder, _folders, files in os.walk(root):
        for path in [os.path.join(folder, name) for name in files] + [folder]:
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                continue
            mode = stat.S_IMODE(info.st_mode)
            new_mode = mode & ~0o222
            if writable:
                new_mode = mode | 0o200
            if new_mode != mode:
                os.chmod(path, new_mode)


def remove(root):
    """Remove a read-only tree."""
    for folder, _folders, _files in os.walk(root):
        os.chmod(folder, 0o700)
    shutil.rmtree(root)


def switch_in(base, kind, digest, entries):
    """Compare the staged tree with its manifest and make it the final one.

    A differing older copy is replaced. Raises TreeError with the differing files. The staging
    directory is kept then, so that a repeat sends only the differing files.
    """
    final, staging = tree_paths(base, kind, digest)
    _verify(kind, digest, entries, staging)
    os.makedirs(os.path.dirname(final), mode=0o700, exist_ok=True)
    old = None
    if os.path.lexists(final):
        old = f"{final}.old-{time.time_ns()}"
        os.chmod(final, 0o700)
        os.rename(final, old)
    os.rename(staging, final)
    protect(final, writable=False)
    write_json(final + ".manifest.json", entries)
    manifest.scan(final, None, final + ".scan.json")
    if old:
        remove(old)


def _verify(kind, digest, entries, staging):
    """Make the staged tree read-only and compare it with its manifest.

    Raises TreeError with the differing files.
    """
    if not os.path.isdir(staging):
        raise TreeError(f"{staging}: nothing was sent")
    for name in set(manifest.walk_files(staging)) - set(entries):
        os.unlink(os.path.join(staging, name))  # left by an earlier, different try
    # Read-only before it is verified: a second sync that is still writing cannot change a file
    # afterwards.
    protect(staging, writable=False)
    os.chmod(staging, 0o700)  # moving a directory needs its own write bit
    staged = manifest.scan(staging)
    if manifest.digest(staged) != digest:
        protect(staging, writable=True)
        raise TreeError(
            "{} arrived changed (was it edited during the sync?): {}".format(
                kind, "; ".join(manifest.differences(entries, staged))
            )
        )
