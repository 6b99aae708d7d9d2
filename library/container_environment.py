#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: container_environment
short_description: Take the fingerprint of a container image, and prove that the node can train in
  it
description:
  - Finds which engine has the image (podman, then docker, then apptainer), and the image's id.
    Nothing is pulled and nothing in the image is modified; where no engine has it, the message says
      how to install it.
  - Starts one container as a training is started, in a transient unit of the user's own systemd,
    and there lists the Python packages and imports the framework. While it runs, it is looked for
    as a rank is, and its control group is read. Then the unit is stopped. A process that is left
    is a reason to refuse the engine.
  - The result is kept as the marker of the environment (C(<home>/env/<digest>/.trainyard.json)), as
    M(python_environment) does.
  - An image that is still the one in the marker is not started again.
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
  image:
    description: Name of the image, or for apptainer the path of its file.
    type: str
    required: true
  mounts:
    description: Further paths of the node that trainings see, read-only; devices for paths below
      /dev.
    type: list
    elements: str
    default: []
  package:
    description: The framework that it must hold.
    type: str
  version:
    description: The version of the framework.
    type: str
  wait:
    description: Seconds that a container may take to start and to import the framework.
    type: int
    default: 600
notes:
  - Supports check mode. Nothing is started then.
  - docs/runbooks/environments.md says what each engine needs and what has been tried.
"""

EXAMPLES = r"""
- name: See that trainings can run in the image
  container_environment:
    home: .trainyard
    digest: 6a0c1f1b7d2e9c44
    image: mine/paddle:2.6.2
    package: paddlepaddle
"""

RETURN = r"""
environments:
  description: The digest and its marker, as M(python_environment) returns it. Empty in check mode
    where it is not there yet.
  type: dict
  returned: success
reason:
  description: Why the image was (or would be) looked at.
  type: str
  returned: success
refused:
  description: What was tried on the way and why it was not taken.
  type: list
  elements: str
  returned: changed
"""

import hashlib
import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import command_runner
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_mapping
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    container_trial,
    containers,
    environment_marker,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env as core,
)


def find_image(run, image):
    """Return ([(engine, image id)] that have the image, [why the others have not])."""
    have, without = [], []
    for name, engine in containers.ENGINES.items():
        if not shutil.which(name):
            continue
        digest, problem = _find_digest(run, engine, image)
        if digest:
            have.append((name, digest))
        else:
            without.append(f"{name}: {problem}")
    if not have and not without:
        without.append(
            f"no {', '.join(containers.ENGINES)} is installed here; install podman and crun, uidmap"
            " (packages), or use another environment"
        )
    return have, without


def _find_digest(run, engine, image):
    """Return (digest, problem) of an image that one engine may have."""
    remedy = "get it with {}".format(engine["get"].format(image=image))
    if engine["image"] is None:
        if not os.path.isfile(image):
            return None, f"no file {image}; {remedy}"
        return "sha256:" + _file_sha256(image), None
    code, out, err = run([*engine["image"], image])
    words = out.split()
    if code == 0 and words:
        if words[0].startswith("sha256:"):
            return words[0], None
        return "sha256:" + words[0], None
    message = (err.strip().splitlines() or ["no answer"])[-1]
    return None, f"{message}; {remedy}, as the training user"


def _file_sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as handle:
        for block in iter(lambda: handle.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def describe(params, answer, engine, form, image):
    """Return the environment's marker, or refuse a framework that was not asked for.

    answer: what the container says of itself.
    """
    wrong = core.check_import(params["package"], params["version"], answer["imported"])
    if wrong:
        raise container_trial.ImageError(
            f"{wrong}; correct package and version of the environment, or its image"
        )
    packages = containers.parse_packages(answer["listing"])
    return {
        "version": core.FORMAT,
        "digest": params["digest"],
        "interpreter": answer["executable"],
        "managed": False,
        "python": answer["python"],
        "paths": answer["paths"],
        "imported": answer["imported"],
        "packages": packages,
        "fingerprint": core.fingerprint(packages),
        "container": {
            "engine": engine,
            "form": form,
            "image": params["image"],
            "image_id": name_for_engine(params, engine, image),
            "image_sha256": image,
            "uid": os.getuid(),
            "gid": os.getgid(),
            "pythons": answer["pythons"],
            "executable": answer["executable"],
        },
    }


def name_for_engine(params, engine, digest):
    """Return what an engine calls the image: its digest, or the path of its file."""
    if containers.ENGINES[engine]["image"] is None:
        return params["image"]
    return digest


def try_all(run, params, home, have):
    """Return (marker, refused) of the first engine and form in which a training can run."""
    refused = []
    for engine, image in have:
        for form in containers.ENGINES[engine]["forms"]:
            name = name_for_engine(params, engine, image)
            try:
                answer = container_trial.Trial(run, params, home, engine, form, name).run()
                return describe(params, answer, engine, form, image), refused
            except container_trial.ImageError:
                raise
            except container_trial.ContainerError as error:
                refused.append(f"{engine} ({form}): {error}")
    raise container_trial.ContainerError("; ".join(refused))


def read_marker(home, params):
    """Return the marker that is here already, or None."""
    marker = read_mapping(os.path.join(home, "env", params["digest"], core.MARKER))
    if marker.get("version") != core.FORMAT:
        return None
    if not marker.get("container"):
        return None
    return marker


def ensure(run, params, home, check_mode):
    """Return the module's result."""
    have, without = find_image(run, params["image"])
    if not have:
        raise container_trial.ContainerError("; ".join(without))
    marker = read_marker(home, params)
    known = marker and (marker["container"]["engine"], marker["container"]["image_sha256"])
    if known in have:
        return {"changed": False, "environments": {params["digest"]: marker}, "reason": ""}
    reason = "absent: nobody has looked into the image here"
    if marker:
        reason = "changed: the image is another one"
    if check_mode:
        return {"changed": True, "environments": {}, "reason": reason}
    os.makedirs(home, mode=0o700, exist_ok=True)
    marker, refused = try_all(run, params, home, have)
    environment_marker.write_marker(home, marker)
    return {
        "changed": True,
        "environments": {params["digest"]: marker},
        "reason": reason,
        "refused": without + refused,
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "str", "required": True},
            "digest": {"type": "str", "required": True},
            "image": {"type": "str", "required": True},
            "mounts": {"type": "list", "elements": "str", "default": []},
            "package": {"type": "str"},
            "version": {"type": "str"},
            "wait": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    params = module.params
    problems = containers.problems(
        {"container": params["image"], "mounts": params["mounts"]}, "container_environment"
    )
    if not core.DIGEST.fullmatch(params["digest"]):
        problems.append(f"digest: want 16 hexadecimal digits; got {params['digest']!r}")
    if problems:
        module.fail_json(msg="; ".join(problems))
    home = os.path.normpath(
        os.path.join(os.path.expanduser("~"), os.path.expanduser(params["home"]))
    )

    run = command_runner(module, LC_ALL="C.UTF-8")
    try:
        module.exit_json(**ensure(run, params, home, module.check_mode))
    except (container_trial.ContainerError, OSError, ValueError) as error:
        module.fail_json(msg=printable(f"{params['image']}: {error}", newlines=True))


if __name__ == "__main__":
    main()
