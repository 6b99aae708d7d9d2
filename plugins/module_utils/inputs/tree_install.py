# SPDX-License-Identifier: Apache-2.0
"""Trees on a node: code, data, weights and checkpoints under their digest, switched in by one
rename and read-only from then on (decision 9).
"""

from __future__ import annotations

import os
import shutil
import stat
import time

from ..base import manifest


class TreeError(Exception):
    """A tree that did not arrive as planned; the message names the files."""


def place_of(base, kind, digest):
    """Return (final directory, staging directory) of a tree. The staging place is the same at a
    second try, so rsync goes on where it was.
    """
    return os.path.join(base, kind, digest[:16]), os.path.join(
        base, "staging", f"{kind}-{digest[:16]}"
    )


def protect(root, writable):
    """Take the write bits from every file and directory of a tree, or give the user's back; links
    are left alone.
    """
    for folder, _folders, files in os.walk(root):
        for path in [os.path.join(folder, name) for name in files] + [folder]:
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                continue
            mode = stat.S_IMODE(info.st_mode)
            wanted = mode | 0o200 if writable else mode & ~0o222
            if wanted != mode:
                os.chmod(path, wanted)


def remove(root):
    """Remove a read-only tree."""
    for folder, _folders, _files in os.walk(root):
        os.chmod(folder, 0o700)
    shutil.rmtree(root)


def switch_in(base, kind, digest, entries):
    """Hold the staged tree against its manifest and make it the final one; a differing older copy
    is replaced.

    Raises TreeError with the differing files; the staging place is kept then, so that a repeat
    sends only what is wrong.
    """
    final, staging = place_of(base, kind, digest)
    if not os.path.isdir(staging):
        raise TreeError(f"{staging}: nothing was sent")
    extra = sorted(set(manifest.walk_files(staging)) - set(entries))
    for name in extra:
        os.unlink(os.path.join(staging, name))  # left by an earlier, different try
    # Read-only before it is looked at: a second sync that is still writing cannot change what has
    # been verified.
    protect(staging, writable=False)
    os.chmod(staging, 0o700)  # moving a directory needs its own write bit
    found = manifest.scan(staging)
    if manifest.digest(found) != digest:
        protect(staging, writable=True)
        raise TreeError(
            "{} arrived changed (was it edited during the sync?): {}".format(
                kind, "; ".join(manifest.differences(entries, found))
            )
        )
    os.makedirs(os.path.dirname(final), mode=0o700, exist_ok=True)
    aside = None
    if os.path.lexists(final):
        aside = "%s.old-%d" % (final, time.time_ns())
        os.chmod(final, 0o700)
        os.rename(final, aside)
    os.rename(staging, final)
    protect(final, writable=False)
    manifest.write_json(final + ".manifest.json", entries)
    manifest.scan(final, None, final + ".scan.json")
    if aside:
        remove(aside)
