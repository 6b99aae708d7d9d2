#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Digest some files of a directory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: file_digests
short_description: Digest the checkpoints of a directory
description:
  - Reads every byte. With O(expected), it digests the files named there and fails where one is missing or differs, naming it.
options:
  path: {description: The directory; a missing one has no files., type: path, required: true}
  folders:
    description: Folders below it; the first that has a checkpoint is taken. The default is the directory itself.
    type: list
    elements: str
    default: ["."]
  names:
    description:
      - "Checkpoints: V(latest) stands for the files latest.* and for the folder latest. Of several that fit a pattern (V(iter_*)) the newest is
        taken."
    type: list
    elements: str
    default: []
  expected: {description: "Path to [kind, size, sha256], as another call returned them.", type: dict}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Digest the final model
  file_digests:
    path: output/ppyoloe_crn_s_300e_coco
    names: [best_model, model_final]
  register: saved
"""

RETURN = r"""
folder: {description: "The folder that was taken, '' where none has a checkpoint.", type: str, returned: success}
files: {description: "Path below it to [kind, size in bytes, sha256].", type: dict, returned: success}
"""

import fnmatch
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trainyard import manifest
from ansible.module_utils.trainyard.display import printable


def checkpoint(path, name):
    """Return the paths below `path` of one checkpoint: its folder's files, or the files of that stem; of several, the newest's."""
    found = {}
    for entry in sorted(os.listdir(path)) if os.path.isdir(path) else []:
        place = os.path.join(path, entry)
        stem = entry if os.path.isdir(place) else os.path.splitext(entry)[0]
        if fnmatch.fnmatch(stem, name) and not os.path.islink(place):
            found.setdefault(stem, []).append(entry)
    if not found:
        return []
    newest = max(found.values(), key=lambda entries: max(os.stat(os.path.join(path, entry)).st_mtime_ns for entry in entries))
    files = []
    for entry in newest:
        place = os.path.join(path, entry)
        files += [entry + "/" + inner for inner in manifest.walk_files(place)] if os.path.isdir(place) else [entry]
    return files


def first_with_checkpoints(path, folders, names):
    """Return (folder, digests) of the first folder below path that has a checkpoint; ('', {}) where none has."""
    for folder in folders:
        place = os.path.join(path, folder)
        files = sorted({file for name in names for file in checkpoint(place, name)})
        if files:
            return folder, manifest.scan(place, files)
    return "", {}


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "folders": {"type": "list", "elements": "str", "default": ["."]},
            "names": {"type": "list", "elements": "str", "default": []},
            "expected": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    path, expected = module.params["path"], module.params["expected"]
    try:
        if expected is not None:
            there = [name for name in expected if os.path.isfile(os.path.join(path, name))]
            folder, found = ".", manifest.scan(path, there) if there else {}
        else:
            folder, found = first_with_checkpoints(path, module.params["folders"], module.params["names"])
    except (manifest.ManifestError, OSError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))
    if expected is not None:
        wrong = manifest.differences({name: list(entry) for name, entry in expected.items()}, found)
        if wrong:
            module.fail_json(msg="%s: differs from the node's: %s" % (module.params["path"], "; ".join(wrong)), files=found)
    module.exit_json(changed=False, folder=folder, files=found)


if __name__ == "__main__":
    main()
