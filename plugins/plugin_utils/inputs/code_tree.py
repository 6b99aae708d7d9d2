# SPDX-License-Identifier: Apache-2.0
"""The files of a code tree on the controller, without what links replace at every start.

A training never sees the directories of the tree at which a data set appears or into which the
suite writes: at a start a link takes each one's place. So they are not code, they do not travel,
and a new checkpoint in them does not change the code's digest.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import git_tree, manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_bytes

from .sources import Entries, GitState, SourceError, git_state

# Files of a directory that are counted, and bytes of their names. A data set has millions.
MOST_COUNTED, NAME_BYTES = 20_000, 4 << 20
LINK_REMEDY = (
    "put what it means into the tree, name it as a data set of the site"
    " (trainyard_suites.{suite}.data.NAME.path) if it is data, or say placement: present if the"
    " code lies on the nodes"
)

# {path, target (of a link, else None), files, bytes, more (whether not all were counted)} of a
# directory that is not code.
LeftOut = dict[str, Any]


def list_names(root: str, covered: Collection[str]) -> list[str]:
    """Return the names of a code tree's files (docs/design.md, 9).

    They are the files that git tracks or does not ignore. Outside git, they are all files. covered:
    the paths that are not code. Raises SourceError without a tree, and ManifestError.
    """
    if not os.path.isdir(root):
        raise SourceError(
            "inputs.code_missing",
            f"the code is not there: {root} is no directory on the controller",
        )
    names = manifest.git_files(root, covered)
    if names is None:
        names = manifest.walk_files(root, exclude=covered)
    return names


def without(names: Iterable[str], covered: Collection[str]) -> list[str]:
    """Return the names that neither are nor lie below one of the covered paths."""
    return [name for name in names if not _is_covered(name, covered)]


def _is_covered(name: str, covered: Collection[str]) -> bool:
    return any(name == path or name.startswith(path + "/") for path in covered)


def read(
    root: str, names: Sequence[str], covered: Collection[str], cache: str | None
) -> tuple[Entries, GitState | None]:
    """Return (manifest entries, git state) of the files of a code tree.

    covered: paths whose local changes are not changes of the code.
    """
    return manifest.scan(root, names, cache), git_state(root, covered)


def left_out(root: str, covered: Iterable[str]) -> list[LeftOut]:
    """Return what lies in a code tree at the covered paths, if it were code without them.

    What git ignores is not named.
    """
    found = []
    for path in sorted(set(covered)):
        names, more = _names_at(root, path)
        if not names and not more:
            continue
        full = os.path.join(root, path)
        target = None
        if os.path.islink(full):
            target = os.readlink(full)
        sizes = list(_sizes(root, names[:MOST_COUNTED]))
        found.append(
            {
                "path": path,
                "target": target,
                "files": len(sizes),
                "bytes": sum(sizes),
                "more": more or len(names) > MOST_COUNTED,
            }
        )
    return found


def _names_at(root: str, path: str) -> tuple[list[str], bool]:
    """Return (names of the files at or below a path, whether there are more)."""
    full = os.path.join(root, path)
    if not os.path.lexists(full) or _leads_away(root, path):
        return [], False
    try:
        # an index lists what is tracked, whether it is there or not
        names = git_tree.listed(root, only=path, limit=NAME_BYTES)
        return [name for name in names if os.path.lexists(os.path.join(root, name))], False
    except git_tree.GitError as error:
        if error.reason == "large":
            return [], True
    if os.path.islink(full) or not os.path.isdir(full):
        return [path], False
    names = []
    for folder, _folders, files in os.walk(full):
        names += [os.path.relpath(os.path.join(folder, name), root) for name in files]
        if len(names) > MOST_COUNTED:
            return names, True
    return names, False


def _leads_away(root: str, path: str) -> bool:
    """Return whether a directory above a path is a link."""
    parent = os.path.dirname(path)
    while parent:
        if os.path.islink(os.path.join(root, parent)):
            return True
        parent = os.path.dirname(parent)
    return False


def _sizes(root: str, names: Iterable[str]) -> Iterator[int]:
    """Yield the size in bytes of each file that is still there."""
    for name in names:
        try:
            yield os.lstat(os.path.join(root, name)).st_size
        except OSError:
            continue


def describe_left_out(found: Sequence[LeftOut]) -> list[str]:
    """Return the line that says what of a code tree is not code, or nothing."""
    if not found:
        return []
    return [
        "code: left out, since a data set or the outputs take their place at a start: "
        + ", ".join(_describe(item) for item in found)
    ]


def _describe(item: LeftOut) -> str:
    if item["target"] is not None:
        return f"{item['path']} (a link to {item['target']})"
    if not item["files"]:
        return f"{item['path']} (more than {MOST_COUNTED} files)"
    at_least = ""
    if item["more"]:
        at_least = "at least "
    unit = "files"
    if item["files"] == 1:
        unit = "file"
    return f"{item['path']} ({at_least}{item['files']} {unit}, {format_bytes(item['bytes'])})"
