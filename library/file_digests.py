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
files: {description: "File name to [kind, size in bytes, sha256].", type: dict, returned: success}
"""

import fnmatch
import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trainyard import manifest


def digests(path, patterns):
    """Return {name: [kind, size, sha256]} of the files in path that fit one of patterns."""
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    names = [name for name in names if os.path.isfile(os.path.join(path, name)) and any(fnmatch.fnmatch(name, p) for p in patterns)]
    return manifest.scan(path, names) if names else {}


def main():
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "patterns": {"type": "list", "elements": "str", "required": True},
            "expected": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    try:
        found = digests(module.params["path"], module.params["patterns"])
    except (manifest.ManifestError, OSError) as error:
        module.fail_json(msg=str(error))
    expected = module.params["expected"]
    if expected is not None:
        wrong = manifest.differences({name: list(entry) for name, entry in expected.items()}, {n: e for n, e in found.items() if n in expected})
        if wrong:
            module.fail_json(msg="%s: differs from the node's: %s" % (module.params["path"], "; ".join(wrong)), files=found)
    module.exit_json(changed=False, files=found)


if __name__ == "__main__":
    main()
