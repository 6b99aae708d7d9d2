#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: product_directory
short_description: Remove from the product's directory what provisioning made there
description:
  - Runs as the training user. Environments and wheels go, by the names that the product gives them;
    everything else stays and is named.
  - The directory must be one of its own, below no link of its own name, and belong to the user. No
    link is followed.
version_added: "0.1.0"
author: Trainyard
options:
  home:
    description: The product's directory; relative to the training user's home unless absolute.
    type: str
    default: .trainyard
notes:
  - Supports check mode.
"""

EXAMPLES = r"""
- name: Remove the environments
  product_directory:
    home: .trainyard
"""

RETURN = r"""
removed:
  description: What was removed, relative to the directory.
  type: list
  elements: str
  returned: success
left:
  description: What lies between the environments and wheels and is not the product's.
  type: list
  elements: str
  returned: success
"""

import contextlib
import os
import re
import shutil
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import tree_install

# A digest, its lock, and what an interrupted installation leaves.
OURS = {
    "env": re.compile(r"([0-9a-f]{16}|\.[0-9a-f]{16}\.lock)\Z"),
    "wheels": re.compile(
        r"([0-9a-f]{16}(\.(manifest|scan)\.json|\.old-\d+)?|\.work-[0-9a-f]{16})\Z"
    ),
    "staging": re.compile(r"wheels-[0-9a-f]{16}(\.(manifest|scan)\.json|\.lock)?\Z"),
}
# Code, data and weights arrive there too. They stay, and are not named.
SHARED = ("staging",)
NOTE = "lingering"  # of earlier versions
MOST_NAMED = 20


class NotOurs(Exception):
    """A directory that is not the product's, in words with the remedy."""


def base_of(home):
    """Return the product's directory, None where it is not there.

    Raises NotOurs where it cannot be one.
    """
    mine = os.path.expanduser("~")
    base = os.path.normpath(os.path.join(mine, os.path.expanduser(home)))
    if (os.path.realpath(mine) + "/").startswith(os.path.realpath(base).rstrip("/") + "/"):
        raise NotOurs(
            f"{base} is a home directory or above one; trainyard_home names a directory of its own"
        )
    try:
        found = os.lstat(base)
    except FileNotFoundError:
        return None
    if not stat.S_ISDIR(found.st_mode):
        raise NotOurs(
            f"{base} is a link or a file, and no link is followed; let trainyard_home name the"
            " directory itself"
        )
    if found.st_uid != os.geteuid():
        raise NotOurs(f"{base} belongs to another user (uid {found.st_uid}); nothing was removed")
    return base


def remove(path):
    """Remove a tree or a file.

    A link goes as a link. Another node with the same home may remove it at the same time.
    """

    def gone(_function, _path, problem):
        if not isinstance(problem[1], FileNotFoundError):
            raise problem[1]

    if os.path.isdir(path) and not os.path.islink(path):
        with contextlib.suppress(FileNotFoundError):
            tree_install.open_folders(path)
        shutil.rmtree(path, onerror=gone)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def clear(base, check=False):
    """Remove what is ours below the product's directory and return (removed, left)."""
    removed, left = [], []
    for folder, pattern in OURS.items():
        path = os.path.join(base, folder)
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                left.append(folder)
                continue
            names = sorted(os.listdir(path))
        except FileNotFoundError:
            continue
        for name in names:
            if not pattern.match(name):
                if folder not in SHARED:
                    left.append(os.path.join(folder, name))
                continue
            removed.append(os.path.join(folder, name))
            if not check:
                remove(os.path.join(path, name))
        if not check:
            # What is left there is named.
            with contextlib.suppress(OSError):
                os.rmdir(path)
    note = os.path.join(base, NOTE)
    if os.path.isfile(note) and not os.path.islink(note):
        removed.append(NOTE)
        if not check:
            remove(note)
    return removed, left


def main():
    module = AnsibleModule(
        argument_spec={"home": {"type": "str", "default": ".trainyard"}},
        supports_check_mode=True,
    )
    try:
        base = base_of(module.params["home"])
        removed, left = clear(base, module.check_mode) if base else ([], [])
    except (NotOurs, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(removed), removed=removed[:MOST_NAMED], left=left[:MOST_NAMED])


if __name__ == "__main__":
    main()
