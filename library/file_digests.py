#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Digest some files of a directory."""

from __future__ import annotations

DOCUMENTATION = r"""
module: file_digests
short_description: Digest the files of a directory that fit patterns
description:
  - Reads every byte. With O(expected), fails where a file is missing or differs, naming it.
options:
  path: {description: The directory; a missing one has no files., type: path, required: true}
  folders:
    description: Folders below it; the first that has a fitting file is taken. The default is the directory itself.
    type: list
    elements: str
    default: ["."]
  patterns: {description: "File name patterns (C(*), C(?)); not recursive.", type: list, elements: str, required: true}
  expected: {description: "File name to [kind, size, sha256], as another call returned them.", type: dict}
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Digest the final model
  file_digests:
    path: output/ppyoloe_crn_s_300e_coco
    patterns: ["model_final.*"]
  register: saved
"""

RETURN = r"""
folder: {description: "The folder that was taken, '' where none has a fitting file.", type: str, returned: success}
files: {description: "File name to [kind, size in bytes, sha256].", type: dict, returned: success}
"""

import fnmatch
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trainyard import manifest
from ansible.module_utils.trainyard.display import printable


def digests(path, patterns):
    """Return {name: [kind, size, sha256]} of the files in path that fit one of patterns."""
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    names = [name for name in names if os.path.isfile(os.path.join(path, name)) and any(fnmatch.fnmatch(name, p) for p in patterns)]
    return manifest.scan(path, names) if names else {}


def first_with_files(path, folders, patterns):
    """Return (folder, digests) of the first folder below path that has a fitting file; ('', {}) where none has."""
    for folder in folders:
        found = digests(os.path.join(path, folder), patterns)
        if found:
            return folder, found
    return "", {}


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "folders": {"type": "list", "elements": "str", "default": ["."]},
            "patterns": {"type": "list", "elements": "str", "required": True},
            "expected": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    try:
        folder, found = first_with_files(module.params["path"], module.params["folders"], module.params["patterns"])
    except (manifest.ManifestError, OSError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))
    expected = module.params["expected"]
    if expected is not None:
        wrong = manifest.differences(
            {name: list(entry) for name, entry in expected.items()}, {n: e for n, e in found.items() if n in expected}
        )
        if wrong:
            module.fail_json(msg="%s: differs from the node's: %s" % (module.params["path"], "; ".join(wrong)), files=found)
    module.exit_json(changed=False, folder=folder, files=found)


if __name__ == "__main__":
    main()
