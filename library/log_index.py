#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Verify the fetched logs of a run and write the index of ranks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: log_index
short_description: Verify fetched logs and write the index of ranks
description:
  - Runs on the controller once for an attempt, after the nodes' files were copied to
    C(<run_dir>/.incoming/<node>/<file>).
  - Compares each file with the digest that its node reported, gives it its name in O(run_dir) with
    mode 0600, and writes C(ranks.json).
  - A file that grew since the node read it is compared by its first bytes, as many as the node
    reported.
  - A file that does not match stays in C(.incoming), all others are taken in, and the module then
    fails with every mismatch, naming node, file and both digests. Another fetch and another run of
    this module repair it.
  - A file here whose node has another one of its name by now (it was truncated or replaced
    there) is kept as C(<home>.1), C(.2), and so on, and the module warns. The index has what was
    kept, and what was fetched of files that are gone from their node.
  - A stream that still copies a node's logs is waited for 10 seconds; after that the node's
    files are mismatches.
options:
  state:
    description:
      - With V(missing), nothing is taken in. The module says what is not here as the nodes have it,
        and puts what is here of such a file where it will be copied to, so that rsync moves the
        rest only.
    type: str
    choices: [missing, indexed]
    default: indexed
  run_dir:
    description: The attempt's directory on the controller, C(runs/<run id>/attempt-1).
    type: path
    required: true
  results:
    description:
      - By node, what M(rank_logs_info) returned there, for each node that answered. C(utc_offset),
        C(files) and C(ranks) are used, the rest is passed over. The index keeps what it has of
        other nodes.
    type: dict
    required: true
  running:
    description: The attempt goes on. Its files are left alone, and the index tells of its ranks
      only.
    type: bool
    default: false
  strict:
    description:
      - Fail where a node's entry is not what M(rank_logs_info) returns, or where a file is not what its
        node has. When false, the module warns, leaves out what is wrong, and returns it; the other
        nodes' logs are taken in all the same.
    type: bool
    default: true
  left:
    description: RV(left) of the call with V(missing). That these files are not here is no mismatch.
    type: dict
    default: {}
  bytes:
    description: Most bytes of one node's logs of a run, as a number or with KiB, MiB, GiB or TiB.
    type: str
    default: "21474836480"
  files:
    description: Most files of one node's logs of a run.
    type: int
    default: 2000
attributes:
  check_mode:
    support: full
    description: Compares and returns what it would do.
author: Trainyard
"""

EXAMPLES = r"""
- name: Find what is not here yet
  log_index:
    state: missing
    run_dir: "{{ collect_run_dir }}"
    results: "{{ ansible_play_hosts | trainyard.cluster.results_of(hostvars, 'collect_logs') }}"
  delegate_to: localhost
  run_once: true
  register: missing

- name: Verify the logs and write the index of ranks
  log_index:
    run_dir: "{{ collect_run_dir }}"
    results: "{{ ansible_play_hosts | trainyard.cluster.results_of(hostvars, 'collect_logs') }}"
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
missing:
  description: With O(state=missing), by node, the files to fetch, with their sizes.
  type: dict
  returned: with state missing
left:
  description: By node, the files that a bound leaves there, with their sizes.
  type: dict
  returned: with state missing
refused:
  description: With O(strict=false), by node, why its entry was left out.
  type: dict
  returned: always
problems:
  description: One text per file that does not match, and per node whose entry was left out.
  type: list
  elements: str
  returned: always
ranks_file:
  description: Path of the index.
  type: str
  returned: with state indexed
files:
  description: The files that match, by their names on the controller.
  type: list
  elements: dict
  returned: with state indexed
  contains:
    node:
      description: The node it comes from.
      type: str
    file:
      description: Its path in the attempt's directory on the node.
      type: str
    home:
      description: Its name in O(run_dir).
      type: str
    bytes:
      description: Its size on the controller.
      type: int
    sha256:
      description: Its digest on the controller.
      type: str
replaced:
  description: "Files that were truncated or replaced on their node after they were fetched: node,
    file, and kept, what is here of before."
  type: list
  elements: dict
  returned: with state indexed
mismatches:
  description: "Files that are not what the node has: node, file, home, problem."
  type: list
  elements: dict
  returned: with state indexed
index:
  description: What ranks.json holds; see docs/ranks-json.md.
  type: dict
  returned: with state indexed
"""
