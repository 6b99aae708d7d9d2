#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Describe a job's inputs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: job_inputs
short_description: Describe a job's code, data and weights on the controller
description:
  - Runs on the controller. Makes the manifest of the code tree and of every data set, reads the
    suite's config chain, and fetches pretrained weights that the config names by URL, once (most
    configs do; fact 16). Each tree's manifest is kept in the cache as C(manifests/<digest>.json),
    and its list of files as C(manifests/<digest>.files) for rsync.
  - A repeat reads only files whose inode, size or times have changed.
options:
  suite:
    description: The suite's table (see C(playbooks/suites/)).
    type: dict
    required: true
  job:
    description: The job, as job_config gives it.
    type: dict
    required: true
  code:
    description: Directory of the code on the controller; with C(outline), on the nodes.
    type: path
    required: true
  placement:
    description: How the code comes to the nodes (docs/design.md, 8).
    type: str
    choices: [push, present, shared]
    default: push
  outline:
    description: What placement returned for code that lies on the nodes already; the controller
      needs no copy of it.
    type: dict
    default: {}
  unread:
    description: Why no node has given the outline of code that lies there; the nodes are looked at
      all the same, and there is no plan.
    type: str
    default: ""
  data:
    description: Data set name to directory on the controller, or to {path, placement,
      follow_links}; with V(present) or V(shared) the path is the nodes'. Without follow_links set
      to false, links that lead out of a directory on the controller travel as their contents.
    type: dict
    default: {}
  weights:
    description: "{path, placement} of a directory that holds weights under the file names of their
      URLs; they are not fetched then."
    type: dict
    default: {}
  overrides:
    description: Config values of the site; they beat the config file's, and the job's own beat
      them.
    type: dict
    default: {}
  accelerator:
    description: The accelerator of the nodes. It decides the options that the suite's script needs.
    type: str
    default: cpu
  nodes:
    description: Number of nodes.
    type: int
    default: 1
  devices:
    description: Number of devices, and so of ranks, of each node.
    type: int
    default: 1
  resume:
    description: The checkpoint that the run is resumed from, as M(resume_point_choice) returned it; empty for a
      training from the beginning.
    type: dict
    default: {}
  cache_dir:
    description: Where manifests and weights are kept.
    type: path
    required: true
attributes:
  check_mode:
    support: full
    description: Weights are not fetched in check mode.
author: Trainyard
"""

EXAMPLES = r"""
- name: Describe code, data and weights
  job_inputs:
    suite: "{{ job_suite }}"
    job: "{{ read.job }}"
    code: ~/PaddleDetection
    data: {coco: /data/coco}
    cache_dir: ~/.cache/trainyard
  register: inputs
"""

RETURN = r"""
script:
  description: The training script inside the code tree.
  type: str
  returned: success
code:
  description: digest, files (count), bytes, commit, dirty of the code tree. dirty is null where
    git cannot compare the files with the commit, and reason says why.
  type: dict
  returned: success
data:
  description: Data set name to digest.
  type: dict
  returned: success
weights:
  description: Config key to {digest, file, url}.
  type: dict
  returned: success
config:
  description: files (the config chain); epochs, iterations, batch (of one card), learning_rate and
    save (folder), or null where unknown.
  type: dict
  returned: success
overrides:
  description: "Config values that the command line carries: the suite's, the site's, the job's."
  type: dict
  returned: success
arguments:
  description: "Further words for the training script: the job's, and what scaling applies."
  type: list
  elements: str
  returned: success
advice:
  description: What this number of nodes does to batch, learning rate and iterations, in lines for
    people (see scaling.py).
  type: list
  elements: str
  returned: success
placed:
  description: key, path, placement, exclude, needs, verify of what lies on the nodes already (see
    placement.py).
  type: list
  elements: dict
  returned: success
trees:
  description: kind, digest, source directory, files and bytes of every tree that nodes need, and
    follow where the contents of its links are sent.
  type: list
  elements: dict
  returned: success
left_out:
  description: path, target (of a link), files, bytes, and more (whether not all were counted) of
    what lies in the code tree where a data set or the outputs appear at a start; it is not code.
  type: list
  elements: dict
  returned: success
remarks:
  description: Lines for people on what is not taken as it lies there.
  type: list
  elements: str
  returned: success
unread:
  description: As given; then there are trees (none) and placed (the code), and nothing else.
  type: str
  returned: where it was given
resume_config:
  description: path and text of a copy of the config that has the keys to resume by, where the
    suite's overrides cannot bring them; or null.
  type: dict
  returned: success
code_diff:
  description: Local changes against the commit.
  type: str
  returned: success
"""
