#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: python_environment
short_description: Install an environment on a node from a wheelhouse, or take the fingerprint of
  the user's own Python
description:
  - Makes C(<home>/env/<digest>) with uv from wheels that already lie on the node. No network is
    used.
  - Every wheel is checked against the wheelhouse's manifest first, and the manifest against
    O(manifest_sha256), so a wheel that was damaged on the way is noticed. The next run of
    M(tree_install) then reads all of them again.
  - Afterwards the installed versions are compared with the manifest and Paddle or MindSpore is
    imported. Only then the marker C(.trainyard.json) is written. An environment without one was
    interrupted and is made again; one that is complete is not touched.
  - A lock, which uv inherits, keeps two installations apart, also where the first one's connection
    was lost.
  - With O(python) nothing is installed. Its packages are listed, Paddle or MindSpore is imported,
    and the result is kept in a marker of our own.
  - What MindSpore was built for is read from its own libraries, so that an Ascend build is
    recognised on a node without the device.
version_added: "0.1.0"
author: Trainyard
options:
  home:
    description: The product directory on the node; relative to the user's home unless absolute.
    type: str
    required: true
  digest:
    description: Name of the environment, 16 hexadecimal digits.
    type: str
    required: true
  package:
    description: The Paddle or MindSpore that it must be; checked after the installation.
    type: str
    choices: [paddlepaddle, paddlepaddle-gpu, mindspore, mindspore-ascend, mindspore-gpu]
  version:
    description: The version of the package.
    type: str
  python:
    description: Absolute path of the user's own Python. It is never modified.
    type: path
  interpreter:
    description: The Python that the environment is built from.
    type: str
    default: /usr/bin/python3
  wheelhouse:
    description: Where the wheels lie on the node. Required without O(python).
    type: path
  manifest_sha256:
    description: sha256 that the wheelhouse's manifest must have. Required without O(python).
    type: str
  keep_wheels:
    description: Whether the wheels stay on the node afterwards.
    type: bool
    default: false
  verify:
    description: How the files of an existing one are compared with their installation; V(cached)
      reads those that changed since, V(full) all.
    type: str
    choices: [cached, sample, full]
    default: cached
  wait:
    description: Seconds to wait for another installation of the same environment.
    type: int
    default: 1800
notes:
  - Supports check mode. Nothing is installed then.
  - Where the CUDA builds of Paddle come from, and that an index serves an older one silently, is
    said in docs/runbooks/provision.md.
"""

EXAMPLES = r"""
- name: Install the environment
  python_environment:
    home: .trainyard
    digest: 6a0c1f1b7d2e9c44
    package: paddlepaddle
    version: "2.6.2"
    wheelhouse: /home/trainer/.trainyard/wheels/6a0c1f1b7d2e9c44
    manifest_sha256: "{{ wheelhouse.manifest_sha256 }}"
"""

RETURN = r"""
environments:
  description: The digest and its marker, as M(python_environment_info) returns it. Empty in check
    mode where it is not there yet.
  type: dict
  returned: success
reason:
  description: Why it was (or would be) made.
  type: str
  returned: success
  sample: "absent: no /home/trainer/.trainyard/env/6a0c1f1b7d2e9c44"
seconds:
  description: Seconds each step took.
  type: dict
  returned: changed
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    environment_install,
    environment_marker,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env as core,
)


def make(params, home, target, lock):
    """Install or look, check, write the marker and return (marker, seconds of each step)."""
    seconds, started = {}, time.monotonic()

    def lap(step):
        seconds[step] = round(time.monotonic() - started - sum(seconds.values()), 2)

    if params["python"]:
        marker = environment_install.describe(params, params["python"])
    else:
        manifest = environment_install.check_wheels(params["wheelhouse"], params["manifest_sha256"])
        lap("verify")
        environment_install.install(params, home, target, manifest, lock)
        lap("install")
        marker = environment_install.describe(params, os.path.join(target, "bin", "python"), lock)
        differences = core.compare_packages(manifest["packages"], marker["packages"])
        if differences:
            raise environment_install.InstallError(
                "the installed packages are not those of the wheelhouse: " + "; ".join(differences)
            )
    environment_marker.write_marker(home, marker)
    lap("import")
    drop_wheels(params)
    return marker, seconds


def drop_wheels(params):
    """Remove the wheels from this node unless they are to stay."""
    if params["wheelhouse"] and not params["keep_wheels"]:
        environment_install.remove_wheels(params["wheelhouse"])


def ensure(params, home, check_mode):
    """Return the module's result."""
    digest = params["digest"]
    found = core.inspect_environment(home, digest, params["verify"])
    if found["state"] == "ready":
        return {"changed": False, "environments": {digest: found["marker"]}, "reason": ""}
    reason = f"{found['state']}: {found['why']}"
    if check_mode:
        return {"changed": True, "environments": {}, "reason": reason}
    os.makedirs(os.path.join(home, "env"), mode=0o700, exist_ok=True)
    with open(os.path.join(home, "env", f".{digest}.lock"), "w", encoding="utf-8") as lock:
        environment_install.wait_for_lock(lock, params["wait"], digest)
        found = core.inspect_environment(
            home, digest, params["verify"]
        )  # the previous holder of the lock may have made it
        if found["state"] == "ready":
            drop_wheels(params)
            return {"changed": False, "environments": {digest: found["marker"]}, "reason": ""}
        marker, seconds = make(params, home, os.path.join(home, "env", digest), lock)
    return {"changed": True, "environments": {digest: marker}, "reason": reason, "seconds": seconds}


def main():
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "str", "required": True},
            "digest": {"type": "str", "required": True},
            "package": {"type": "str", "choices": list(core.PACKAGES)},
            "version": {"type": "str"},
            "python": {"type": "path"},
            "interpreter": {"type": "str", "default": "/usr/bin/python3"},
            "wheelhouse": {"type": "path"},
            "manifest_sha256": {"type": "str", "no_log": False},
            "keep_wheels": {"type": "bool", "default": False},
            "verify": {"type": "str", "choices": ["cached", "sample", "full"], "default": "cached"},
            "wait": {"type": "int", "default": 1800},
        },
        required_one_of=[("python", "wheelhouse")],
        required_together=[("wheelhouse", "manifest_sha256")],
        mutually_exclusive=[("python", "wheelhouse")],
        supports_check_mode=True,
    )
    if not core.DIGEST.fullmatch(module.params["digest"]):
        module.fail_json(msg=f"digest: want 16 hexadecimal digits; got {module.params['digest']!r}")
    home = os.path.normpath(
        os.path.join(os.path.expanduser("~"), os.path.expanduser(module.params["home"]))
    )
    try:
        module.exit_json(**ensure(module.params, home, module.check_mode))
    except (environment_install.InstallError, OSError, ValueError) as error:
        module.fail_json(msg=f"{home}/env/{module.params['digest']}: {error}")


if __name__ == "__main__":
    main()
