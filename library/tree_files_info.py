#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Return the files of code, data or weights by name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tree_files_info
short_description: Return the files of code, data or weights by name
description:
  - Names the files of those parts in which nodes differ. M(placement_compare) chooses the nodes and
    the parts.
  - Changes nothing but its notes about files that it has read, which lie below the product's
    directory.
options:
  base:
    description: The product's directory on the node. A relative path starts at the user's home.
    type: str
    default: .trainyard
  places:
    description: "As M(job_inputs) returned them (C(placed))."
    type: list
    elements: dict
    default: []
  buckets:
    description: The numbers of the parts of each place, by the place's key.
    type: dict
    default: {}
  full:
    description: Whether every byte has been read, so that files have digests.
    type: bool
    default: false
attributes:
  check_mode: {support: full, description: Reads only.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Name the files that differ
  tree_files_info:
    places: "{{ inputs.placed }}"
    buckets: "{{ differing.buckets }}"
  register: files
"""

RETURN = r"""
places:
  description: "The files of each place by its key: entries ({name: [kind, bytes, sha256]}) and
    buckets."
  type: dict
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import paths


def main():
    module = AnsibleModule(
        argument_spec={
            "base": {"type": "str", "default": ".trainyard"},
            "places": {"type": "list", "elements": "dict", "default": []},
            "buckets": {"type": "dict", "default": {}},
            "full": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    base = os.path.join(os.path.expanduser("~"), given["base"])
    buckets = given["buckets"]
    try:
        places = {
            place["key"]: paths.list_entries(base, place, buckets[place["key"]], given["full"])
            for place in given["places"]
            if buckets.get(place["key"])
        }
    except (manifest.ManifestError, OSError) as error:
        module.fail_json(msg=printable(str(error), newlines=True))
    module.exit_json(changed=False, places=places)


if __name__ == "__main__":
    main()
