# SPDX-License-Identifier: Apache-2.0
"""Containers: how the plan's command is started inside an image of the user's, as words of an
engine's command line. Pure.

Nothing of the plan changes but what stands before its command: the attempt's directory and the
trees are mounted where they are, the mesh and other runs are not. Network and shared memory are the
node's. Every variable goes in by its name, so that no value is seen in a process list. PATH is the
image's own. What the image holds is never modified and never fetched: the node's administrator
brings it.

The attempt's unit has to hold every process, so that stopping it is exact (design, decision 1).
Podman and Apptainer start theirs as children; Docker's daemon starts them elsewhere, so a Docker
container is removed by its name when the unit ends.
"""

from __future__ import annotations

import os
import re

from .python_env import normal_name

# In the order in which a node is asked for them; the forms of one engine likewise. Debian 12
# packages podman and docker.io, not apptainer.
ENGINES = {
    "podman": {
        # `disabled` leaves everything in the unit's cgroup and needs crun. Where a node is itself a
        # container that may not mount /proc anew, `shared` remains, which keeps to the unit on
        # cgroup v1 alone. container_environment tries and measures; nothing is assumed.
        "forms": {"disabled": ["--cgroups=disabled"], "shared": ["--cgroups=no-conmon", "--pid", "host"]},
        "argv": ["podman", "--cgroup-manager=cgroupfs", "run", "--rm", "--pull=never", "--name", "{name}"],
        "options": ["--network", "host", "--ipc", "host", "--userns", "keep-id", "--umask", "0077", "--ulimit", "host",
                    "--security-opt", "label=disable", "--log-driver", "none", "--workdir", "{work}"],
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
        "options": ["--network", "host", "--ipc", "host", "--security-opt", "label=disable",
                    "--log-driver", "none", "--user", "{uid}:{gid}", "--workdir", "{work}"],
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
}  # fmt: skip
TREES = ("code", "data", "weights", "checkpoints")
ATTEMPT = "{attempt}:{attempt}"
OUTSIDE = ("docker",)  # engines whose containers no unit holds
# Not handed in by name: the image's own PATH, a HOME inside what is mounted, and what the engine's
# client would itself obey.
BY_VALUE = ("HOME", "LD_LIBRARY_PATH", "LD_PRELOAD")
ASCEND_DEVICES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
ASCEND_DRIVER = "/usr/local/Ascend/driver"
_IMAGE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9._:/@+-]*")
_PATH = re.compile(r"/[A-Za-z0-9._/+@-]+")


def problems(environment, key="environment"):
    """Return what is wrong with {container: image, mounts: [...]} of a site, in words."""
    found = []
    image, mounts = environment.get("container"), environment.get("mounts") or []
    if not isinstance(image, str) or not _IMAGE.fullmatch(image):
        found.append(
            f"{key}.container: want an image's name such as registry/suite:2.6 or the path of an"
            f" image file; got {image!r}"
        )
    if not isinstance(mounts, list) or not all(
        isinstance(item, str) and _PATH.fullmatch(item) for item in mounts
    ):
        found.append(
            f"{key}.mounts: want a list of absolute paths on the nodes, each seen inside where it"
            f" is, read-only; got {mounts!r}"
        )
    for name in ("index_url", "requirements", "python"):
        if environment.get(name):
            found.append(
                f"{key}.{name}: nothing is ever installed into an image of your own; leave it out,"
                " or leave container out"
            )
    return found


def launcher_problem(kind):
    """Return why a launcher of this kind cannot start ranks in containers, or None."""
    if kind == "first":
        return (
            "mpirun starts its daemons on the nodes and not in the image; with a container use"
            " msrun, or an environment without container"
        )
    return None


def mount_words(engine, base, mounts):
    """Return what makes the attempt's directory, the trees and the site's mounts visible inside; a
    path below /dev is handed in as a device.

    The product's directory holds the keys of the mesh as well, so it is never mounted as a whole.
    """
    words = []
    for path in mounts:
        if path.startswith("/dev/") and engine != "apptainer":  # Apptainer shows all of /dev
            words += ["--device", path]
        elif not path.startswith("/dev/"):
            words += [ENGINES[engine]["mount"], f"{path}:{path}:ro"]
    for path in tree_folders(base):
        words += [ENGINES[engine]["mount"], f"{path}:{path}:ro"]
    return words + [ENGINES[engine]["mount"], ATTEMPT]


def tree_folders(base):
    """Return the directories of the trees that a training reads; they exist before a container is
    started.
    """
    return [f"{base}/{name}" for name in TREES]


def mesh_problem(home, path):
    """Return why a path may not be mounted: a training could log in to the other nodes with what
    lies below it; None where it may be.
    """
    mesh = os.path.join(home, ".trainyard/mesh")
    if (mesh + "/").startswith(os.path.normpath(path).rstrip("/") + "/") or path.startswith(
        mesh + "/"
    ):
        return (
            f"environment.mounts: {path} holds the keys of the mesh ({mesh}), which no container"
            " may have; name the directories below it"
        )
    return None


def device_words(engine, accelerator, devices):
    """Return what makes a node's accelerators visible inside. Held against the vendors' documents
    only: no such hardware was at hand.
    """
    if accelerator == "gpu":
        return list(ENGINES[engine]["gpu"])
    if accelerator != "ascend":
        return []
    words = [ENGINES[engine]["mount"], f"{ASCEND_DRIVER}:{ASCEND_DRIVER}:ro"]
    if engine != "apptainer":
        for path in [f"/dev/davinci{device}" for device in devices] + list(ASCEND_DEVICES):
            words += ["--device", path]
    return words


def entry(found, base, environment, accelerator="cpu", devices=(), mounts=()):
    """Return a node's part of the plan: {argv, env, remove}, to be used by `filled`.

    found: {engine, form, image_id, uid, gid} as container_environment measured them there. base:
    the product's directory. environment: the plan's variables for this node and the names it adds
    at the start (values of those do not matter).
    """
    engine = ENGINES[found["engine"]]
    fixed = {"{uid}": str(found["uid"]), "{gid}": str(found["gid"])}
    words = engine["argv"] + engine["forms"][found["form"]]
    for option in engine["options"]:
        for name, value in fixed.items():
            option = option.replace(name, value)
        words = words + [option]
    words += mount_words(found["engine"], base, mounts) + device_words(
        found["engine"], accelerator, devices
    )
    loader = {name: environment[name] for name in BY_VALUE[1:] if name in environment}
    if engine["variables"]:
        for name in sorted(set(environment) - set(BY_VALUE) - {"PATH"}):
            words += [engine["variables"], name]
        # Its own home would have to be mounted, and with it packages of the user's that belong to
        # another Python.
        for name, value in dict(loader, HOME="{attempt}").items():
            words += [engine["variables"], f"{name}={value}"]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
    env.update({name: "" for name in loader})
    if found["engine"] == "podman":
        # With the user's bus at hand podman moves itself out of a unit whose cgroup it takes for a
        # foreign one, and nothing would stop it.
        env["DBUS_SESSION_BUS_ADDRESS"] = "unix:path=/dev/null"
    if found["engine"] == "apptainer":
        env.update({"APPTAINERENV_" + name: value for name, value in loader.items()})
    return {
        "engine": found["engine"],
        "argv": words + [found["image_id"]],
        "env": env,
        "folders": tree_folders(base),
        "remove": engine["remove"],
        "remove_apart": engine["remove_apart"],
    }


def filled(container, work, name, argv, environment, attempt=None):
    """Return (argv, environment) that run a command inside: what is in braces is known only when an
    attempt starts. agent.py does the same.

    attempt: the directory that the command may write to; without it the one that holds work.
    """
    attempt = attempt or os.path.dirname(work)
    values = {
        "{work}": work,
        "{name}": name,
        ATTEMPT: f"{attempt}:{attempt}",
        "HOME={attempt}": "HOME=" + attempt,
    }
    return [values.get(word, word) for word in container["argv"]] + list(argv), dict(
        environment, **container["env"]
    )


def packages_of(listing):
    """Return {package: version} from [[names of *.dist-info and *.egg-info] of each directory], in
    the order of the image's Python path.
    """
    packages = {}
    for names in reversed(listing):
        for entry_name in names:
            stem = os.path.splitext(entry_name)[0]
            name, dash, version = stem.partition("-")
            if dash:
                packages[normal_name(name)] = version.split("-py")[0]
    return packages


def held(cgroups, unit):
    """Return whether a process with this /proc/<pid>/cgroup belongs to the unit."""
    return any(unit in line.split(":", 2)[-1].split("/") for line in cgroups.splitlines())


def python_problem(container, word):
    """Return why a suite that calls `word` would not meet the Python that was looked at, or None.
    container: of an environment's marker.
    """
    pythons = container["pythons"]
    if word not in pythons:
        return (
            "the image has no program {}, which the suite's command starts with; it has {}".format(
                word,
                ", ".join(sorted(pythons)) or "none",
            )
        )
    if pythons[word] != container["executable"]:
        return "in the image {} is {}, but the environment that was checked is that of {}".format(
            word,
            pythons[word],
            container["executable"],
        )
    return None
