# SPDX-License-Identifier: Apache-2.0
"""State of a tree on a node: whether its files are those of its digest."""

from __future__ import annotations

import os

from ..base import manifest
from ..base.files import read_mapping
from . import paths as places


def look(base, kind, digest, verify="cached"):
    """Return {ok, present, differences} of a tree, compared with its manifest.

    The manifest was synced with the tree. verify: `cached` reads files whose inode, size or times
    changed. `sample` also reads some other files. `full` reads every byte. `estimate` is `cached`,
    and also reads a block of some files, so that `rate` says how many bytes per second `full` will
    take (None: too few to measure).
    """
    path = os.path.join(base, kind, digest[:16])
    if not os.path.isdir(path):
        return {"ok": False, "present": False, "differences": []}
    entries = manifest.scan(path, None, path + ".scan.json", fresh=verify == "full")
    if verify == "sample":
        for name in manifest.sampled(entries):
            entries[name] = manifest.entry(os.path.join(path, name))
    more = {}
    if verify == "estimate":
        names = manifest.sampled(entries, places.SAMPLED_FILES, float("inf"))
        more["rate"] = places.read_sample(path, [(name, entries[name][1]) for name in names])[1]
    if manifest.digest(entries) == digest:
        return dict(more, ok=True, present=True, differences=[])
    expected = read_mapping(path + ".manifest.json", manifest.TREE_BYTES)
    return dict(more, ok=False, present=True, differences=manifest.differences(expected, entries))
