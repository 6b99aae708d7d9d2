#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Take the brought logs into the run's directory and write the index of ranks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rank_index
short_description: Verify brought logs and write the index of ranks
description:
  - Runs on the controller once for an attempt, after the nodes' files were brought to C(<run_dir>/.incoming/<node>/<file>).
  - Compares each file with the digest that its node reported, gives it its name in O(run_dir) with mode 0600, and writes C(ranks.json).
  - A file that grew since the node read it is compared by its first bytes, as many as the node reported.
  - A file that does not match stays in C(.incoming), all others are taken in, and the module then fails with every mismatch, naming
    node, file and both digests. Bringing again and running again repairs.
  - A file at home whose node has another one of its name by now (it was truncated or replaced there) is kept as C(<home>.1), C(.2), and so
    on, and the module warns. The index has what was kept, and what was brought of files that are gone from their node.
  - A stream that still brings a node's logs home is waited for 10 seconds; after that the node's files are mismatches.
options:
  state:
    description:
      - With V(missing), nothing is taken in. The module says what is not here as the nodes have it, and lays what is here of such a file
        where it will be brought to, so that rsync moves the rest only.
    type: str
    choices: [missing, indexed]
    default: indexed
  run_dir:
    description: The attempt's directory on the controller, C(runs/<run id>/attempt-1).
    type: path
    required: true
  nodes:
    description:
      - What M(rank_logs) returned for each node that could be asked. Of each C(node), C(utc_offset), C(files) and C(ranks) are used, the rest
        is passed over. The index keeps what it has of other nodes.
      - Where C(goes_on) is true, the run goes on there. Its files are left alone, and the index tells of its ranks only.
    type: list
    elements: dict
    required: true
attributes:
  check_mode: {support: full, description: Compares and tells what it would do.}
author: Trainyard
"""

EXAMPLES = r"""
- name: Find what is not here yet
  rank_index:
    state: missing
    run_dir: "{{ collect_run_dir }}"
    nodes: "{{ ansible_play_hosts | map('extract', hostvars, 'rank_logs') }}"
  delegate_to: localhost
  run_once: true
  register: missing

- name: Verify the logs and write the index of ranks
  rank_index:
    run_dir: "{{ collect_run_dir }}"
    nodes: "{{ ansible_play_hosts | map('extract', hostvars, 'rank_logs') }}"
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
missing: {description: "With O(state=missing), by node, the files that are to be brought, as paths in the attempt's directory.", type: dict,
  returned: with state missing}
ranks_file: {description: Path of the index., type: str, returned: with state indexed}
files:
  description: The files that match, by their names at home.
  type: list
  elements: dict
  returned: with state indexed
  contains:
    node: {description: The node it comes from., type: str}
    file: {description: Its path in the attempt's directory on the node., type: str}
    home: {description: Its name in O(run_dir)., type: str}
    bytes: {description: Its size at home., type: int}
    sha256: {description: Its digest at home., type: str}
replaced:
  description: "Files that were truncated or replaced on their node after they were brought: node, file, and kept, what is here of before."
  type: list
  elements: dict
  returned: with state indexed
mismatches: {description: "Files that are not what the node has: node, file, home, problem.", type: list, elements: dict,
  returned: with state indexed}
index: {description: "What ranks.json holds; see docs/ranks-json.md.", type: dict, returned: with state indexed}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trainyard.homecoming import HomeError, bring_home, missing


def main():
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["missing", "indexed"], "default": "indexed"},
            "run_dir": {"type": "path", "required": True},
            "nodes": {"type": "list", "elements": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    run_dir, nodes, write = module.params["run_dir"], module.params["nodes"], not module.check_mode
    try:
        if module.params["state"] == "missing":
            module.exit_json(changed=False, missing=missing(run_dir, nodes, write))
        if not os.path.isdir(run_dir):
            module.fail_json(msg=f"{run_dir} is no directory; collect makes it before the logs are brought")
        result = bring_home(run_dir, nodes, write)
    except (HomeError, OSError) as error:
        module.fail_json(msg=f"{run_dir}: {error}")
    for item in result["replaced"]:
        module.warn(f"{item['node']}: {item['file']} was truncated or replaced; what was brought before is kept as {item['kept']}")
    if result["mismatches"]:
        said = "; ".join(f"{m['node']}: {m['file']}: {m['problem']}" for m in result["mismatches"])
        module.fail_json(msg=f"logs were not brought as the nodes have them: {said}; collect again", **result)
    module.exit_json(ranks_file=os.path.join(run_dir, "ranks.json"), **result)


if __name__ == "__main__":
    main()
