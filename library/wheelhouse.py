#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: wheelhouse
short_description: Collect an environment's wheels once, on the controller, for the nodes' Python
description:
  - Reads the environment a site asks for, computes its digest, and says which nodes do not have it yet.
  - Where one does not, the wheels are fetched into C(<cache_dir>/wheels/<digest>), for the nodes' Python, architecture and C library and
    not the controller's. With them comes uv, the installer that nodes use, so that nodes need no internet.
  - A wheelhouse whose wheels match its C(manifest.json) is used as it is, without network. It is built in a staging directory and renamed,
    so an interruption leaves none that is half full; wheels that are intact, here or in another wheelhouse, are not fetched again.
  - A package that the index has as source only is built here where its list says C(--no-binary NAME), if it holds no compiled code.
  - What its list locks with C(--hash=sha256:...) is taken with exactly such a file, from an index, from a cache and from an earlier wheelhouse.
    What no list locks is taken on first use, and refused by name where the same file has another content later.
  - Refuses unpinned lists, nodes with unequal Pythons and nodes without room for the environment, every problem at once.
  - Runs on the controller (C(delegate_to) localhost, C(run_once)). Package indexes, proxies and certificates are pip's own configuration.
version_added: "0.1.0"
author: Trainyard
options:
  environment:
    description: What the site asks for, V({package, version, index_url, requirements}) or V({python}). See the role C(runtime).
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
    description: Which uv nodes install with. It does not take part in the digest. The role's list C(uv.txt) locks it.
    type: str
    required: true
  wait:
    description: Seconds to wait for another controller process that is building in the same cache.
    type: int
    default: 3600
requirements:
  - pip and packaging beside the Python that runs Ansible
notes:
  - Which wheels fit a C library is PEP 600 (C(manylinux_X_Y) runs on glibc X.Y and newer).
    Older tags and the vendor's C(linux_*) are included.
  - Supports check mode. Nothing is fetched then.
"""

EXAMPLES = r"""
- name: Fetch the wheels that no node has yet
  wheelhouse:
    environment: {package: paddlepaddle, version: "2.6.2", requirements: [paddledetection.txt]}
    nodes: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, '__runtime_node'))) }}"
    cache_dir: ~/.cache/trainyard
    files_dir: "{{ role_path }}/files"
    project_dir: "{{ playbook_dir }}/.."
    uv_version: 0.9.11
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
packages:
  description: Package to version, as the pinned lists say for the nodes' Python.
  type: dict
  returned: success
manifest_sha256:
  description: sha256 of the wheelhouse's manifest; nodes check the manifest and then each wheel against it.
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

import contextlib
import os
import shutil
import sys

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env as core,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import wheels


def read_lists(asked, files_dir, project_dir):
    """Return the texts of the pinned lists, or refuse with every one that cannot be read."""
    texts, problems = [], []
    for name in asked["requirements"]:
        path = core.requirement_path(name, files_dir, project_dir)
        try:
            with open(path, encoding="utf-8") as handle:
                texts.append(handle.read())
        except (OSError, UnicodeDecodeError) as error:
            problems.append(
                f"requirements: {name}: cannot read {path}:"
                f" {getattr(error, 'strerror', None) or error}"
            )
    if problems:
        raise core.EnvironmentRefused(problems)
    return texts


def installer_hashes(files_dir, version):
    """Return the sha256 of the files of uv that may be used: those of the role's own list, which
    has to pin this version.
    """
    name = wheels.INSTALLER + ".txt"
    try:
        with open(os.path.join(files_dir, name), encoding="utf-8") as handle:
            pins, problems = core.parse_requirements(handle.read(), name)
    except FileNotFoundError:
        return []
    pin = next((pin for pin in pins if pin["name"] == wheels.INSTALLER), None)
    if problems or not pin or pin["version"] != version:
        raise core.EnvironmentRefused(
            problems or [f"{name}: does not pin {wheels.INSTALLER} {version}; compile it again"]
        )
    return pin["hashes"]


def common_python(
    nodes,
    remedy="set runtime_interpreter for the nodes that differ, for example to /usr/bin/python3.11",
):
    """Return (python, machine, libc) of all nodes, libc being the oldest; refuse nodes that differ,
    by name.
    """
    kinds = {}
    for name, node in nodes.items():
        kinds.setdefault((node["python"], node["machine"]), []).append(name)
    if len(kinds) > 1:
        found = "; ".join(
            f"Python {kind[0]} on {kind[1]}: {', '.join(names)}" for kind, names in kinds.items()
        )
        raise core.EnvironmentRefused(
            [
                f"an environment is the same on every node, but their Pythons differ ({found});"
                f" {remedy}"
            ]
        )
    without = [name for name, node in nodes.items() if not wheels.LIBC.match(node["libc"])]
    if without:
        raise core.EnvironmentRefused(
            [
                f"{', '.join(without)}: no GNU C library, and the wheels of Paddle and MindSpore"
                " need it; use a glibc distribution"
            ]
        )
    ((python, machine),) = kinds
    return python, machine, min((node["libc"] for node in nodes.values()), key=wheels.version_pair)


def check_room(nodes, missing, needed):
    """Refuse nodes without room for the environment, all of them at once, with numbers."""
    short = [
        f"{name}: {nodes[name]['home']} has {nodes[name]['free_bytes'] / 1e9:.1f} GB free, the"
        f" environment needs {needed / 1e9:.1f} GB; make room there, or set trainyard_home to a"
        " larger file system"
        for name in missing
        if nodes[name]["free_bytes"] < needed
    ]
    if short:
        raise core.EnvironmentRefused(short)


def collect(params, check_mode):
    """Do the module's work; return its result."""
    asked, nodes = core.read_environment(params["environment"]), params["nodes"]
    texts = read_lists(asked, params["files_dir"], params["project_dir"])
    python, machine, libc = (
        ("", "", "") if asked["python"] or asked["container"] else common_python(nodes)
    )
    digest = core.environment_digest(asked, texts, python, machine)
    missing = [name for name, node in nodes.items() if digest not in node["environments"]]
    result = {
        "changed": False,
        "digest": digest,
        "missing": missing,
        "path": "",
        "packages": {},
        "manifest_sha256": "",
        "fetched": [],
        "reused": 0,
        "wheel_bytes": 0,
        "needed_bytes": 0,
    }
    if asked["python"] or asked["container"]:
        return result
    result["packages"] = core.resolve(asked, texts, python, machine)
    if not missing:
        return result
    want = wheels.Wanted(
        digest=digest,
        packages=result["packages"],
        package=asked["package"],
        index_url=asked["index_url"],
        python=python,
        machine=machine,
        libc=libc,
        uv_version=params["uv_version"],
        from_source=tuple(core.from_source(texts)),
        hashes={
            **core.allowed_hashes(asked, texts, python, machine),
            wheels.INSTALLER: installer_hashes(params["files_dir"], params["uv_version"]),
        },
    )
    root = os.path.join(params["cache_dir"], "wheels")
    result["path"] = os.path.join(root, digest)
    if check_mode:
        ready = wheels.read_wheelhouse(result["path"], want) is not None
        return dict(result, changed=not ready, fetched=[] if ready else sorted(want.packages))
    with contextlib.ExitStack() as held:
        held.enter_context(wheels.locked(root, params["wait"]))
        result.update(
            wheels.provide(
                root, want, [sys.executable, "-m", "pip"], free=lambda: shutil.disk_usage(root).free
            )
        )
    check_room(nodes, missing, result["needed_bytes"])
    return result


def main():
    module = AnsibleModule(
        argument_spec={
            "environment": {"type": "dict", "required": True},
            "nodes": {"type": "dict", "required": True},
            "cache_dir": {"type": "path", "required": True},
            "files_dir": {"type": "path", "required": True},
            "project_dir": {"type": "path", "required": True},
            "uv_version": {"type": "str", "required": True},
            "wait": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**collect(module.params, module.check_mode))
    except (core.EnvironmentRefused, wheels.WheelhouseError) as error:
        module.fail_json(msg=printable(str(error), limit=8000, newlines=True))
    except OSError as error:
        module.fail_json(msg=f"the controller's cache {module.params['cache_dir']}: {error}")


if __name__ == "__main__":
    main()
