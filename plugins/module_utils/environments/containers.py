# SPDX-License-Identifier: Apache-2.0
"""Commands of container engines for the plan's command in a user's image.

Pure. Nothing of the plan changes but the words before its command: the attempt's directory and the
trees are mounted where they are, the mesh and other runs are not. Network and shared memory are the
node's. Every variable goes in by its name, so that no value is seen in a process list. PATH is the
image's own. The image's content is never modified and never fetched: the node's administrator
installs it.

The attempt's unit has to hold every process, so that stopping it is exact (docs/design.md, 1).
Podman and Apptainer start theirs as children. Docker's daemon starts them elsewhere, so a Docker
container is removed by its name when the unit ends.
"""

from __future__ import annotations

import os
import re

from .python_env import normal_name

# In the order in which a node is asked for them. The forms of one engine are in order, too. Debian
# 12 packages podman and docker.io, not apptainer.
ENGINES = {
    "podman": {
        # `disabled` leaves everything in the unit's cgroup and needs crun. Where a node is itself a
        # container that may not mount /proc anew, `shared` remains, which keeps to the unit on
        # cgroup v1 alone. container_environment tries and measures. Nothing is assumed.
        "forms": {
            "disabled": ["--cgroups=disabled"],
            "shared": ["--cgroups=no-conmon", "--pid", "host"],
        },
        "argv": "podman --cgroup-manager=cgroupfs run --rm --pull=never --name {name}".split(),
        "options": (
            "--network host --ipc host --userns keep-id --umask 0077 --ulimit host"
            " --security-opt label=disable --log-driver none --workdir {work}"
        ).split(),
        "mount": "--volume",
        "variables": "--env",
        "gpu": ["--device", "nvidia.com/gpu=all"],
        "remove": ["podman", "--cgroup-manager=cgroupfs", "rm", "--force", "--ignore"],
        "remove_apart": True,
        "image": ["podman", "image", "inspect", "--format", "{{.Id}}"],
        "get": "podman pull {image} (or podman load -i ARCHIVE)",
    },
    "docker": {
        # A daemon that may not raise limits (one in a container itself) refuses the first.
        "forms": {"unlimited": ["--ulimit", "memlock=-1:-1"], "plain": []},
        "argv": ["docker", "run", "--rm", "--pull", "never", "--name", "{name}"],
        "options": (
            "--network host --ipc host --security-opt label=disable --log-driver none"
            " --user {uid}:{gid} --workdir {work}"
        ).split(),
        "mount": "--volume",
        "variables": "--env",
        "gpu": ["--gpus", "all"],
        "remove": ["docker", "rm", "--force"],
        "remove_apart": False,
        "image": ["docker", "image", "inspect", "--format", "{{.Id}}"],
        "get": "docker pull {image} (or docker load -i ARCHIVE)",
    },
    "apptainer": {
        "forms": {"child": []},
        "argv": ["apptainer", "--silent", "exec"],
        "options": ["--home", "{attempt}:{attempt}", "--pwd", "{work}"],
        "mount": "--bind",
        # It hands on the whole environment, which is the plan's, and takes PATH from the image.
        "variables": None,
        "gpu": ["--nv"],
        "remove": None,
        "remove_apart": False,
        "image": None,  # the image is a file: its sha256
        "get": "apptainer pull {image} docker://IMAGE",
    },
}
TREES = ("code", "data", "weights", "checkpoints")
ATTEMPT = "{attempt}:{attempt}"
OUTSIDE = ("docker",)  # engines whose containers no unit holds
# Variables that are not handed in by name, beside the image's own PATH: a HOME inside what is
# mounted, and variables that the engine's client would itself obey.
BY_VALUE = ("HOME", "LD_LIBRARY_PATH", "LD_PRELOAD")
ASCEND_DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
ASCEND_DRIVER = "/usr/local/Ascend/driver"
_IMAGE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._:/@+-]*")
_PATH = re.compile(r"/[A-Za-z0-9._/+@-]+")


def problems(environment, key="environment"):
    """Return the problems of {container: image, mounts: [...]} of a site."""
    texts = []
    image, mounts = environment.get("container"), environment.get("mounts") or []
    if not isinstance(image, str) or not _IMAGE.fullmatch(image):
        texts.append(
            f"{key}.container: want an image's name such as registry/suite:2.6 or the path of an"
            f" image file; got {image!r}"
        )
    if not isinstance(mounts, list) or not all(
        isinstance(item, str) and _PATH.fullmatch(item) for item in mounts
    ):
        texts.append(
            f"{key}.mounts: want a list of absolute paths on the nodes, each seen inside where it"
            f" is, read-only; got {mounts!r}"
        )
    for name in ("index_url", "requirements", "python"):
        if environment.get(name):
            texts.append(
                f"{key}.{name}: nothing is ever installed into an image of your own; leave it out,"
                " or leave container out"
            )
    return texts


def launcher_problem(kind):
    """Return why a launcher of this kind cannot start ranks in containers, or None."""
    if kind == "first":
        return (
            "mpirun starts its daemons on the nodes and not in the image; with a container use"
            " msrun, or an environment without container"
        )
    return None


def mount_options(engine, base, mounts):
    """Return the options that make directories visible inside.

    They are the attempt's directory, the trees and the site's mounts. A path below /dev is handed
    in as a device. The product's directory holds the keys of the mesh as well, so it is never
    mounted as a whole.
    """
    option = ENGINES[engine]["mount"]
    argv = []
    for path in mounts:
        if path.startswith("/dev/") and engine != "apptainer":  # Apptainer shows all of /dev
            argv += ["--device", path]
        elif not path.startswith("/dev/"):
            argv += [option, f"{path}:{path}:ro"]
    for path in tree_folders(base):
        argv += [option, f"{path}:{path}:ro"]
    return argv + [option, ATTEMPT]


def tree_folders(base):
    """Return the directories of the trees that a training reads.

    They exist before a container is started.
    """
    return [f"{base}/{name}" for name in TREES]


def mesh_problem(home, path):
    """Return why a path may not be mounted, None where it may be.

    A training could log in to the other nodes with what lies below the mesh's directory.
    """
    mesh = os.path.join(home, ".trainyard/mesh")
    holds_mesh = (mesh + "/").startswith(os.path.normpath(path).rstrip("/") + "/")
    if holds_mesh or path.startswith(mesh + "/"):
        return (
            f"environment.mounts: {path} holds the keys of the mesh ({mesh}), which no container"
            " may have; name the directories below it"
        )
    return None


def device_options(engine, accelerator, devices):
    """Return the options that make a node's accelerators visible inside.

    They were compared with the vendors' documents only: no such hardware was at hand.
    """
    if accelerator == "gpu":
        return list(ENGINES[engine]["gpu"])
    if accelerator != "ascend":
        return []
    argv = [ENGINES[engine]["mount"], f"{ASCEND_DRIVER}:{ASCEND_DRIVER}:ro"]
    if engine != "apptainer":
        for path in [f"/dev/davinci{device}" for device in devices] + list(ASCEND_DEVICES):
            argv += ["--device", path]
    return argv


def plan_entry(found, base, environment, accelerator="cpu", devices=(), mounts=()):
    """Return a node's part of the plan: {argv, env, remove}, for `container_command`.

    found: {engine, form, image_id, uid, gid} as container_environment measured them there. base:
    the product's directory. environment: the plan's variables for this node and the names it adds
    at the start (values of those do not matter).
    """
    name, engine = found["engine"], ENGINES[found["engine"]]
    argv = engine["argv"] + engine["forms"][found["form"]]
    for option in engine["options"]:
        option = option.replace("{uid}", str(found["uid"])).replace("{gid}", str(found["gid"]))
        argv = argv + [option]
    argv += mount_options(name, base, mounts) + device_options(name, accelerator, devices)
    loader = {key: environment[key] for key in BY_VALUE[1:] if key in environment}
    if engine["variables"]:
        for variable in sorted(set(environment) - set(BY_VALUE) - {"PATH"}):
            argv += [engine["variables"], variable]
        # Its own home would have to be mounted, and with it packages of the user's that belong to
        # another Python.
        for variable, value in dict(loader, HOME="{attempt}").items():
            argv += [engine["variables"], f"{variable}={value}"]
    return {
        "engine": name,
        "argv": argv + [found["image_id"]],
        "env": _client_environment(name, loader),
        "folders": tree_folders(base),
        "remove": engine["remove"],
        "remove_apart": engine["remove_apart"],
    }


def _client_environment(engine, loader):
    """Return the variables of the engine's client.

    loader: the loader's variables of the plan.
    """
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
    env.update({name: "" for name in loader})
    if engine == "podman":
        # With the user's bus at hand podman moves itself out of a unit whose cgroup it takes for a
        # foreign one, and nothing would stop it.
        env["DBUS_SESSION_BUS_ADDRESS"] = "unix:path=/dev/null"
    if engine == "apptainer":
        env.update({"APPTAINERENV_" + name: value for name, value in loader.items()})
    return env


def container_command(container, work, name, argv, environment, attempt=None):
    """Return (argv, environment) that run a command inside.

    container: of `plan_entry`. Words in braces are known only when an attempt starts:
    agent/launcher.py does the same. attempt: the directory that the command may write to, by
    default the one above work.
    """
    attempt = attempt or os.path.dirname(work)
    values = {
        "{work}": work,
        "{name}": name,
        ATTEMPT: f"{attempt}:{attempt}",
        "HOME={attempt}": "HOME=" + attempt,
    }
    start = [values.get(word, word) for word in container["argv"]]
    return start + list(argv), dict(environment, **container["env"])


def parse_packages(listing):
    """Return {package: version} of the packages in an image.

    listing: [[names of *.dist-info and *.egg-info] of each directory], in the order of the image's
    Python path.
    """
    packages = {}
    for names in reversed(listing):
        for entry_name in names:
            stem = os.path.splitext(entry_name)[0]
            name, dash, version = stem.partition("-")
            if dash:
                packages[normal_name(name)] = version.split("-py")[0]
    return packages


def is_in_unit(cgroups, unit):
    """Return True if a process with this /proc/<pid>/cgroup belongs to the unit."""
    return any(unit in line.split(":", 2)[-1].split("/") for line in cgroups.splitlines())


def python_problem(container, word):
    """Return why a suite that calls `word` would not use the checked Python, or None.

    container: of an environment's marker.
    """
    pythons = container["pythons"]
    if word not in pythons:
        names = ", ".join(sorted(pythons)) or "none"
        return (
            f"the image has no program {word}, which the suite's command starts with; it has"
            f" {names}"
        )
    if pythons[word] != container["executable"]:
        return (
            f"in the image {word} is {pythons[word]}, but the environment that was checked is that"
            f" of {container['executable']}"
        )
    return None
