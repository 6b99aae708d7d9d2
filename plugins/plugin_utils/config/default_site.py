# SPDX-License-Identifier: Apache-2.0
"""The site that a command means without -i: the demo site, which is seldom the wanted one."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

# Not a site of a user: it is there to be copied.
_SAMPLE = "sample"
_OPTIONS = ("-i", "--inventory", "--inventory-file")
# Options of ansible-playbook whose letters may stand together with i, as in -Ki.
_FLAGS = "bCDJkKv"


def is_chosen(argv: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Return whether a user has chosen the inventory.

    argv: the words of the command.
    """
    if environment.get("ANSIBLE_INVENTORY"):
        return True
    for word in argv[1:]:
        if word.partition("=")[0] in _OPTIONS[1:]:
            return True
        if word.startswith("-") and word[1:].lstrip(_FLAGS).startswith("i"):
            return True
    return False


def find_sites(folders: Sequence[str], default: Sequence[str]) -> list[str]:
    """Return the paths of the inventories in some folders, but for the default ones.

    folders: such as <project>/inventory. The same inventory is listed once.
    """
    left_out = {os.path.realpath(path) for path in default}
    sites: list[str] = []
    for folder in folders:
        if not os.path.isdir(folder):
            continue
        for entry in sorted(os.scandir(folder), key=lambda item: item.name):
            real = os.path.realpath(entry.path)
            if entry.is_dir() and entry.name != _SAMPLE and real not in left_out:
                left_out.add(real)
                sites.append(os.path.relpath(entry.path))
    return sites


def describe(default: Sequence[str], sites: Sequence[str]) -> str:
    """Return the sentence about a site that was not chosen.

    default: paths of the default inventory. sites: as find_sites returns them.
    """
    shown = ", ".join(os.path.relpath(path) for path in default)
    text = f"Neither -i nor ANSIBLE_INVENTORY was given, so this was about the demo site {shown}."
    if sites:
        return f"{text} Other sites here: {', '.join(f'-i {site}' for site in sites)}"
    return f"{text} There is no other site here. docs/runbooks/real-site.md shows how to write one"
