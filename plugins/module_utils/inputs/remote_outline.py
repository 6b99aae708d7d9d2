# SPDX-License-Identifier: Apache-2.0
"""The outline of a code tree that lies on the nodes alone, for the controller.

It has the names of the files, and the suite config with the files that it builds on.
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


def read_config_texts(root, config, names):
    """Return {name: text} of a config and of every file that it builds on.

    A file names others relative to the tree or to its own folder.
    """
    texts, pending = {}, [os.path.normpath(config)]
    while pending and len(texts) < MOST:
        name = pending.pop()
        path = os.path.join(root, name)
        if name in texts or name not in names or os.path.getsize(path) > LARGEST:
            continue
        try:
            content = safe_open.read_file(os.path.realpath(path), LARGEST)
        except OSError:
            continue
        texts[name] = content.decode("utf-8", "replace")
        for word in NAMED.findall(texts[name]):
            pending.append(os.path.normpath(os.path.join(os.path.dirname(name), word)))
            pending.append(os.path.normpath(word))
    return texts


def read_commit(root, exclude=()):
    """Return (commit, whether files differ from it).

    (None, False) where git knows no commit, (commit, None) where it cannot say whether files
    differ. exclude: paths that are no code.
    """
    try:
        commit = git_tree.commit_of(root)
    except git_tree.GitError:
        return None, False
    try:
        return commit, git_tree.is_dirty(root, exclude)
    except git_tree.GitError:
        return commit, None


def describe_tree(base, path, config, exclude):
    """Return {digest, files, bytes, names, texts, commit, dirty} of a code tree.

    Raises ManifestError where there is no such tree.
    """
    if not os.path.isdir(path):
        raise manifest.ManifestError(
            "inputs.code_missing",
            f"the code is not there: {path} is no directory on this node; correct the site's"
            " code.path",
        )
    place = {"path": path, "placement": "present", "exclude": exclude, "verify": "content"}
    tree = paths.describe_path(base, place)
    if tree["problem"]:
        raise manifest.ManifestError("inputs.tree_unreadable", tree["problem"])
    names = sorted(
        paths.printable_name(name)
        for name, _path, info in paths.walk(path, exclude)
        if info is not None
    )
    commit, dirty = read_commit(path, exclude)
    return {
        "digest": tree["content"],
        "files": tree["files"],
        "bytes": tree["bytes"],
        "names": names,
        "texts": read_config_texts(path, config, set(names)),
        "commit": commit,
        "dirty": dirty,
    }
