#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: wheelhouse
short_description: Collect an environment's wheels once, on the controller, for the nodes' Python
description:
  - Reads the environment a site asks for, computes its digest, and says which nodes do not have it
    yet.
  - Where one does not, the wheels are fetched into C(<cache_dir>/wheels/<digest>), for the nodes'
    Python, architecture and C library and not the controller's. With them comes uv, the installer
    that nodes use, so that nodes need no internet.
  - A wheelhouse whose wheels match its C(manifest.json) is used as it is, without network. It is
    built in a staging directory and renamed, so an interruption leaves none that is half full;
    wheels that are intact, here or in another wheelhouse, are not fetched again.
  - A package that the index has as source only is built here where its list says C(--no-binary
    NAME), if it holds no compiled code.
  - What its list locks with C(--hash=sha256:...) is taken with exactly such a file, from an index,
    from a cache and from an earlier wheelhouse. What no list locks is taken on first use, and
    refused by name where the same file has another content later.
  - Refuses unpinned lists, nodes with unequal Pythons and nodes without room for the environment,
    every problem at once.
  - Runs on the controller (C(delegate_to) localhost, C(run_once)). Package indexes, proxies and
    certificates are pip's own configuration.
version_added: "0.1.0"
author: Trainyard
options:
  environment:
    description: The environment that the site wants, V({package, version, index_url, requirements})
      or V({python}). See the role C(runtime).
    type: dict
    required: true
  nodes:
    description: What M(python_environment_info) returned on each node, by inventory name.
    type: dict
    required: true
  cache_dir:
    description: The controller's cache. V(~) is expanded.
    type: path
    required: true
  files_dir:
    description: Where pinned lists named without a slash lie.
    type: path
    required: true
  project_dir:
    description: What relative paths of pinned lists start from.
    type: path
    required: true
  uv_version:
    description: The version of uv that nodes install with. It does not take part in the digest. The
      role's list C(uv.txt) locks it.
    type: str
    required: true
  wait:
    description: Seconds to wait for another controller process that is building in the same cache.
    type: int
    default: 3600
requirements: [pip and packaging beside the Python that runs Ansible]
notes:
  - Which wheels fit a C library is PEP 600 (C(manylinux_X_Y) runs on glibc X.Y and newer). Older
    tags and the vendor's C(linux_*) are included.
  - Supports check mode. Nothing is fetched then.
"""

EXAMPLES = r"""
- name: Fetch the wheels that no node has yet
  wheelhouse:
    environment: {package: paddlepaddle, version: "2.6.2", requirements: [paddledetection.txt]}
    nodes: >-
      {{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars,
      '__runtime_node'))) }}
    cache_dir: ~/.cache/trainyard
    files_dir: "{{ role_path }}/files"
    project_dir: "{{ playbook_dir }}/.."
    uv_version: "0.9.11"
  delegate_to: localhost
  run_once: true
  register: wheelhouse
"""

RETURN = r"""
digest:
  description: Name of the environment, 16 hexadecimal digits.
  type: str
  returned: success
missing:
  description: Nodes without a complete, unchanged environment of this digest.
  type: list
  elements: str
  returned: success
path:
  description: The wheelhouse on the controller; empty where none is needed.
  type: str
  returned: success
tree:
  description: The wheels as M(tree_send) takes them. Left out in check mode and where none is
    needed.
  type: dict
  returned: where wheels are needed
packages:
  description: Package to version, as the pinned lists say for the nodes' Python.
  type: dict
  returned: success
manifest_sha256:
  description: sha256 of the wheelhouse's manifest; nodes check the manifest and then each wheel
    against it.
  type: str
  returned: success
fetched:
  description: Wheels that were fetched (in check mode, packages that would be).
  type: list
  elements: str
  returned: success
reused:
  description: Number of wheels that were already in the cache.
  type: int
  returned: success
wheel_bytes:
  description: Size of all wheels, bytes.
  type: int
  returned: success
needed_bytes:
  description: Room a node needs for the wheels and the environment, bytes.
  type: int
  returned: success
"""
