# SPDX-License-Identifier: Apache-2.0
"""What the controller has to know of a code tree that lies on the nodes alone: its files by name,
and the suite config with what it builds on.
"""

from __future__ import annotations

import os
import re

from ..base import git_tree, manifest, safe_open
from . import paths

# A config names the files it builds on as words with this ending; the node needs no YAML for that,
# and the controller reads them properly.
NAMED = re.compile(r"[\w./@+-]+\.ya?ml")
LARGEST, MOST = 1 << 20, 500


def texts_of(root, config, names):
    """Return {name: text} of a config and of every file that it or one of those names, itself or
    relative to its place.
    """
    found, wanted = {}, [os.path.normpath(config)]
    while wanted and len(found) < MOST:
        name = wanted.pop()
        path = os.path.join(root, name)
        if name in found or name not in names or os.path.getsize(path) > LARGEST:
            continue
        try:
            found[name] = safe_open.read_file(os.path.realpath(path), LARGEST).decode(
                "utf-8", "replace"
            )
        except OSError:
            continue
        for word in NAMED.findall(found[name]):
            wanted += [
                os.path.normpath(os.path.join(os.path.dirname(name), word)),
                os.path.normpath(word),
            ]
    return found


def commit_of(root):
    """Return (commit, whether files differ from it), (None, False) where git cannot say."""
    try:
        return git_tree.commit_of(root), git_tree.is_dirty(root)
    except git_tree.GitError:
        return None, False


def of(base, path, config, exclude):
    """Return {digest, files, bytes, names, texts, commit, dirty} of a code tree. Raises
    ManifestError for one that is not there.
    """
    if not os.path.isdir(path):
        raise manifest.ManifestError(
            f"the code is not there: {path} is no directory on this node; correct the site's"
            " code.path"
        )
    found = paths.seen(
        base, {"path": path, "placement": "present", "exclude": exclude, "verify": "content"}
    )
    if found["problem"]:
        raise manifest.ManifestError(found["problem"])
    names = sorted(
        paths.printable(name) for name, _path, info in paths.walk(path, exclude) if info is not None
    )
    commit, dirty = commit_of(path)
    return {
        "digest": found["content"],
        "files": found["files"],
        "bytes": found["bytes"],
        "names": names,
        "texts": texts_of(path, config, set(names)),
        "commit": commit,
        "dirty": dirty,
    }
