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
  strict:
    description:
      - Fail where a node's entry is not what M(rank_logs) returns, or where a file is not what its node has. When false, the module warns, leaves out
        what is wrong, and returns it; the other nodes' logs are taken in all the same.
    type: bool
    default: true
  left:
    description: What RV(left) said with V(missing). That these files are not here is no mismatch.
    type: dict
    default: {}
  bytes: {description: "Most bytes of one node's logs of a run, as a number or with KiB, MiB, GiB or TiB.", type: str, default: "21474836480"}
  files: {description: Most files of one node's logs of a run., type: int, default: 2000}
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
missing: {description: "With O(state=missing), by node, the files that are to be brought, with their sizes.", type: dict,
  returned: with state missing}
left: {description: "By node, the files that a bound leaves there, with their sizes.", type: dict, returned: with state missing}
refused: {description: "With O(strict=false), by node, why its entry was left out.", type: dict, returned: always}
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
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.config.quota import Quota, words
from ansible_collections.trainyard.cluster.plugins.module_utils.logsync.collector import (
    HomeError,
    bring_home,
    lacking,
    settled,
)


def look(module, run_dir, nodes):
    """Return what is missing, and warn of what a bound leaves on its node."""
    params = module.params
    missing, left = lacking(
        run_dir, nodes, Quota(params["bytes"], params["files"], 0), not module.check_mode
    )
    for node, files in left.items():
        if files:
            text = (
                "%s: %d log files (%s) stay on the node: a run may bring %s and %d files of each"
                " node (trainyard_collect_bytes, _files): %s"
            )
            names = ", ".join(sorted(files)[:5]) + (", ..." if len(files) > 5 else "")
            bound = (words(Quota(params["bytes"]).bytes), params["files"])
            module.warn(
                printable(text % (node, len(files), words(sum(files.values())), *bound, names))
            )
    return {"missing": missing, "left": left}


def report(module, result, strict):
    """Warn of files that were replaced; fail, or warn, of files that do not match."""
    for item in result["replaced"]:
        module.warn(
            f"{item['node']}: {item['file']} was truncated or replaced; what was brought before is"
            f" kept as {item['kept']}"
        )
    if result["mismatches"]:
        said = "; ".join(f"{m['node']}: {m['file']}: {m['problem']}" for m in result["mismatches"])
        text = printable(
            f"logs were not brought as the nodes have them: {said}; collect again", limit=20_000
        )
        if strict:
            module.fail_json(msg=text, **result)
        module.warn(text)


ARGUMENTS = {
    "state": {"type": "str", "choices": ["missing", "indexed"], "default": "indexed"},
    "run_dir": {"type": "path", "required": True},
    "nodes": {"type": "list", "elements": "dict", "required": True},
    "strict": {"type": "bool", "default": True},
    "left": {"type": "dict", "default": {}},
    "bytes": {"type": "str", "default": "21474836480"},
    "files": {"type": "int", "default": 2000},
}


def main():
    module = AnsibleModule(
        argument_spec=ARGUMENTS,
        supports_check_mode=True,
    )
    run_dir, nodes, strict = (
        module.params["run_dir"],
        module.params["nodes"],
        module.params["strict"],
    )
    nodes, refused = (nodes, {}) if strict else settled(nodes)
    for node, why in refused.items():
        module.warn(
            f"{printable(node)}: its logs stay there, because its answer is not valid: {why}"
        )
    try:
        if module.params["state"] == "missing":
            module.exit_json(changed=False, refused=refused, **look(module, run_dir, nodes))
        if not os.path.isdir(run_dir):
            module.fail_json(
                msg=f"{run_dir} is no directory; collect makes it before the logs are brought"
            )
        result = dict(
            bring_home(run_dir, nodes, not module.check_mode, left=module.params["left"]),
            refused=refused,
        )
    except (HomeError, OSError, ValueError) as error:
        module.fail_json(msg=f"{run_dir}: {error}")
    report(module, result, strict)
    module.exit_json(ranks_file=os.path.join(run_dir, "ranks.json"), **result)


if __name__ == "__main__":
    main()
