# SPDX-License-Identifier: Apache-2.0
"""Pretrained weights that a config names by a path below the working directory.

Upstream configs ship such paths for files that a user is to fetch first. Without the file the ranks
end more than a minute after the start, so it is looked for before.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table

from . import code_tree
from .sources import WEIGHT_ENDINGS


def local_paths(suite: Mapping[str, Any], effective: Mapping[str, Any]) -> dict[str, str]:
    """Return {config key: path below the working directory} of a job's pretrained weights.

    effective: the config with all overrides. URLs are left out, and so are paths of the nodes'
    own, which only a node can judge.
    """
    paths = {}
    for key in suite["config_keys"]["weights"]:
        value = suite_table.lookup(effective, key)
        if not isinstance(value, str) or not value or "://" in value:
            continue
        if not os.path.isabs(value) and not value.startswith("~"):
            paths[key] = os.path.normpath(value)
    return paths


def find(
    suite: Mapping[str, Any],
    effective: Mapping[str, Any],
    data: Mapping[str, str],
    exists: Callable[[str], bool],
    on_nodes: Collection[str],
    names: Collection[str],
    covered: Collection[str],
) -> tuple[list[str], list[str]]:
    """Return (data sets that hold weights, problems of weights that are not there).

    data: {data set: directory}. exists: whether a path in one of them exists. on_nodes: data sets
    that lie on the nodes. names: of the code's files. covered: paths of the code at which a
    training sees something else.
    """
    holders, problems = set(), []
    places = {suite_table.data_path(suite, name): name for name in data}
    code = set(code_tree.without(names, covered))
    for key, path in local_paths(suite, effective).items():
        folder = _holder(path, places)
        if folder is None:
            if not _in_code(path, code):
                problems.append(_problem(suite, key, path, _place_text(path, covered)))
            continue
        source = os.path.normpath(os.path.join(data[places[folder]], os.path.relpath(path, folder)))
        spellings = _spellings(source)
        if places[folder] in on_nodes:
            # A node is asked for one path, so only a full name can be asked for.
            spellings = [source] * source.endswith(WEIGHT_ENDINGS)
        if not spellings or any(exists(each) for each in spellings):
            holders.add(places[folder])
        else:
            text = f"is not in the data set '{places[folder]}' (no {source} on the controller)"
            problems.append(_problem(suite, key, path, text))
    return sorted(holders), problems


def _spellings(path: str) -> list[str]:
    """Return the paths that the suites try. Some add the ending themselves."""
    return [path, *(path + ending for ending in WEIGHT_ENDINGS)]


def _holder(path: str, places: Mapping[str, str]) -> str | None:
    """Return the place of the data set that a path lies in, or None."""
    folders = [folder for folder in places if path == folder or path.startswith(folder + "/")]
    return max(folders, key=len, default=None)


def _in_code(path: str, code: Collection[str]) -> bool:
    """Return whether the code has the file, or is a directory of files."""
    if any(each in code for each in _spellings(path)):
        return True
    return any(name.startswith(path + "/") for name in code)


def _place_text(path: str, covered: Collection[str]) -> str:
    for folder in covered:
        if path == folder or path.startswith(folder + "/"):
            return (
                f"lies in {folder}, where the outputs of the training are put at a start; move it"
                " to another directory of the code"
            )
    return "is neither in the code nor in a data set of the site"


def _problem(suite: Mapping[str, Any], key: str, path: str, text: str) -> str:
    off = json.dumps(suite["config_keys"].get("no_weights"))
    return (
        f"{key}: the config reads pretrained weights from {path}, which {text}; fetch the file to"
        f' there, give its URL as this override, or train without it with "{key}: {off}"'
    )
