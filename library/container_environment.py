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
    how to bring it.
  - Starts one container as a training is started, in a transient unit of the user's own systemd,
    and there lists the Python packages and imports the framework. While it runs it is looked for as
    a rank is looked for, and its control group is read; then the unit is stopped, and any process
    that is left is a reason to refuse the engine.
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
    description: Which framework it must hold.
    type: str
  version:
    description: Which version of it.
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

import contextlib
import hashlib
import json
import os
import shutil
import signal
import tempfile
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import containers
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env as core,
)

# Runs inside, as a training does: says what there is, then starts a process in a session of its
# own, which a stop has to find, and waits.
INSIDE = """
import importlib, importlib.util, json, os, platform, shutil, subprocess, sys, time
own = [p for p in sys.path if p.rstrip("/").rsplit("/", 1)[-1] in ("site-packages", "dist-packages")]
listing = [[n for n in (os.listdir(p) if os.path.isdir(p) else []) if n.endswith((".dist-info", ".egg-info"))] for p in own]
known = {n: os.path.realpath(shutil.which(n)) for n in ("python", "python3") if shutil.which(n)}
says = {"python": platform.python_version(), "paths": own, "listing": listing, "pythons": known, "executable": os.path.realpath(sys.executable)}
wanted = sys.argv[1].split(",")
module = ([n for n in wanted if importlib.util.find_spec(n)] or wanted)[0]
try:
    found = importlib.import_module(module)
    says["imported"] = {"version": found.__version__}
    if module == "paddle":
        cuda = bool(found.is_compiled_with_cuda())
        says["imported"].update(cuda=cuda, cuda_version=str(found.version.cuda()) if cuda else None, commit=found.version.commit)
    elif module == "mindspore":
        plugins = os.path.join(os.path.dirname(found.__file__), "lib", "plugin")
        names = os.listdir(plugins) if os.path.isdir(plugins) else []
        has = {"Ascend": "libmindspore_ascend", "CUDA": "libmindspore_gpu"}
        says["imported"].update(targets=["CPU"] + [k for k in sorted(has) if any(n.startswith(has[k]) for n in names)], commit=None)
except Exception as error:
    says["failed"] = "%s cannot be imported in the image: %s: %s" % (module, type(error).__name__, error)
with open("probe", "w") as handle:
    handle.write("written")
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], env=dict(os.environ, TRAINYARD_TRIAL="inside"), start_new_session=True)
print("\\n" + json.dumps(says), flush=True)
time.sleep(3600)
"""
# The image decides where its Python is; `python` is what most suites call.
COMMAND = [
    "sh",
    "-c",
    (
        'p=$(command -v python || command -v python3) || { echo "the image has no python" >&2; exit'
        ' 127; }; exec "$p" -c "$0" "$1"'
    ),
]


class ContainerError(Exception):
    """No training can run in the image; the text says why, for every engine."""


class ImageError(ContainerError):
    """The image itself is not what was asked for, whatever runs it."""


def find_image(run, image):
    """Return ([(engine, image id)] that have the image, [why the others have not])."""
    have, without = [], []
    for name, engine in containers.ENGINES.items():
        if not shutil.which(name):
            continue
        if engine["image"] is None:
            if os.path.isfile(image):
                with open(image, "rb") as handle:
                    digest = hashlib.sha256()
                    for block in iter(lambda: handle.read(1 << 20), b""):
                        digest.update(block)
                have.append((name, "sha256:" + digest.hexdigest()))
            else:
                without.append(
                    f"{name}: no file {image}; get it with {engine['get'].format(image=image)}"
                )
            continue
        code, out, err = run([*engine["image"], image])
        words = out.split()
        if code == 0 and words:
            have.append(
                (name, words[0] if words[0].startswith("sha256:") else "sha256:" + words[0])
            )
        else:
            said = (err.strip().splitlines() or ["no answer"])[-1]
            without.append(
                f"{name}: {said}; get it with {engine['get'].format(image=image)}, as the training"
                " user"
            )
    if not have and not without:
        without.append(
            f"no {', '.join(containers.ENGINES)} is installed here; install podman and crun, uidmap"
            " (packages), or use another environment"
        )
    return have, without


def trial_entry(params, home, engine, form, image):
    """Return how a container is started, by the plan's own code."""
    found = {
        "engine": engine,
        "form": form,
        "image_id": image,
        "uid": os.getuid(),
        "gid": os.getgid(),
    }
    return containers.entry(
        found,
        home,
        {"TRAINYARD_ATTEMPT": "", "PYTHONUNBUFFERED": "", "PYTHONDONTWRITEBYTECODE": ""},
        mounts=params["mounts"],
    )


def processes(run_id):
    """Return {pid: its control groups} of the trial's processes inside, as the agent of an attempt
    finds ranks.
    """
    found = {}
    for pid in attempt_dir.processes_of(run_id, 0):
        try:
            with open(f"/proc/{pid}/environ", "rb") as handle:
                inside = b"TRAINYARD_TRIAL=inside" in handle.read().split(b"\0")
            with open(f"/proc/{pid}/cgroup", encoding="utf-8") as handle:
                groups = handle.read()
        except OSError:
            continue
        if inside:
            found[pid] = groups
    return found


def read_answer(place):
    """Return what the container said of itself, or None as long as it has not."""
    for line in reversed(read(place, "said").splitlines()):
        if line.startswith("{") and line.endswith("}"):
            return json.loads(line)
    return None


def read(place, name):
    """Return a file's text; '' where it is not there."""
    try:
        with open(os.path.join(place, name), encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def trial(run, params, home, engine, form, image):
    """Run one container in a unit, stop it and return what it said; raise ContainerError where a
    training could not be run or stopped so.
    """
    name = f"trial-{params['digest']}"
    unit = name + ".service"
    container = trial_entry(params, home, engine, form, image)
    module = (
        core.PACKAGES[params["package"]]["module"] if params["package"] else ",".join(core.MODULES)
    )
    own = {
        "HOME": os.path.expanduser("~"),
        "TRAINYARD_ATTEMPT": f"{name}/0",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    place = tempfile.mkdtemp(prefix=".trial-", dir=home)
    argv, environment = containers.filled(
        container, place, name, [*COMMAND, INSIDE, module], own, place
    )
    made = [folder for folder in container["folders"] if not os.path.isdir(folder)]
    for folder in made:
        os.makedirs(folder, mode=0o700)
    start = ["systemd-run", "--user", "--quiet", "--collect", f"--unit={unit}"]
    for text in (
        "Type=exec",
        "KillMode=control-group",
        "TimeoutStopSec=5",
        f"StandardOutput=append:{place}/said",
        f"StandardError=append:{place}/errors",
    ):
        start += ["--property", text]
    # The environment is given whole, as the agent does, so that what the user's manager has set is
    # not what makes it work.
    start += [
        "/usr/bin/env",
        "-i",
        *[f"{key}={value}" for key, value in environment.items()],
        *argv,
    ]
    try:
        code, _out, err = run(start)
        if code:
            raise ContainerError(f"systemd did not start the unit: {err.strip()}")
        says, deadline = None, time.monotonic() + params["wait"]
        while (
            says is None
            and time.monotonic() < deadline
            and run(["systemctl", "--user", "is-active", unit])[1].strip() in attempt_dir.ACTIVE
        ):
            time.sleep(0.2)
            says = read_answer(place)
        says = says or read_answer(place)
        if says is None:
            raise ContainerError(
                (
                    read(place, "errors").strip().splitlines()
                    or [f"no answer within {params['wait']} s"]
                )[-1]
            )
        if "failed" in says:
            raise ImageError(says["failed"])
        inside = processes(name)
        if not inside:
            raise ContainerError(
                "processes inside cannot be seen from the node, so no rank's end would be known"
            )
        if engine not in containers.OUTSIDE and not all(
            containers.held(groups, unit) for groups in inside.values()
        ):
            raise ContainerError(
                "it leaves the unit that it was started in, so a stop would leave it running"
            )
    finally:
        run(["systemctl", "--user", "stop", unit])
        if container["remove"]:
            run([*container["remove"], name])
        left = attempt_dir.processes_of(name, 0)
        for pid in left:  # the refusal is the news; nothing of the trial stays behind for it
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        owner = (
            os.stat(os.path.join(place, "probe")).st_uid
            if os.path.exists(os.path.join(place, "probe"))
            else None
        )
        shutil.rmtree(place, ignore_errors=True)
        for folder in made:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    if left:
        raise ContainerError(f"processes {', '.join(map(str, left))} were left after the stop")
    if owner != os.getuid():
        raise ContainerError(
            "what it writes "
            + (
                "is not seen on the node"
                if owner is None
                else f"belongs to uid {owner}, not to the training user ({os.getuid()})"
            )
        )
    return says


def describe(params, says, engine, form, image):
    """Return the environment's marker, or refuse a framework that is not what was asked for."""
    wrong = core.check_import(params["package"], params["version"], says["imported"])
    if wrong:
        raise ImageError(f"{wrong}; correct package and version of the environment, or its image")
    packages = containers.packages_of(says["listing"])
    return {
        "version": core.FORMAT,
        "digest": params["digest"],
        "interpreter": says["executable"],
        "managed": False,
        "python": says["python"],
        "paths": says["paths"],
        "imported": says["imported"],
        "packages": packages,
        "fingerprint": core.fingerprint(packages),
        "container": {
            "engine": engine,
            "form": form,
            "image": params["image"],
            "image_id": params["image"] if containers.ENGINES[engine]["image"] is None else image,
            "image_sha256": image,
            "uid": os.getuid(),
            "gid": os.getgid(),
            "pythons": says["pythons"],
            "executable": says["executable"],
        },
    }


def try_all(run, params, home, have):
    """Return (marker, refused) of the first engine and form in which a training can run."""
    refused = []
    for engine, image in have:
        for form in containers.ENGINES[engine]["forms"]:
            try:
                given = params["image"] if containers.ENGINES[engine]["image"] is None else image
                return (
                    describe(
                        params, trial(run, params, home, engine, form, given), engine, form, image
                    ),
                    refused,
                )
            except ImageError:
                raise
            except ContainerError as error:
                refused.append(f"{engine} ({form}): {error}")
    raise ContainerError("; ".join(refused))


def read_marker(home, params):
    """Return the marker that is here already, or None."""
    try:
        marker = json.loads(
            read(os.path.join(home, "env", params["digest"]), core.MARKER) or "null"
        )
    except (ValueError, RecursionError):
        return None
    return (
        marker
        if isinstance(marker, dict)
        and marker.get("version") == core.FORMAT
        and marker.get("container")
        else None
    )


def write_marker(home, marker):
    """Put the marker in place at once."""
    target = os.path.join(home, "env", marker["digest"])
    os.makedirs(target, mode=0o700, exist_ok=True)
    path = os.path.join(target, core.MARKER)
    with open(path + ".new", "w", encoding="utf-8") as handle:
        json.dump(marker, handle, indent=1, sort_keys=True)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(path + ".new", path)


def ensure(run, params, home, check_mode):
    """Return the module's result."""
    have, without = find_image(run, params["image"])
    if not have:
        raise ContainerError("; ".join(without))
    marker = read_marker(home, params)
    known = marker and (marker["container"]["engine"], marker["container"]["image_sha256"])
    if known in have:
        return {"changed": False, "environments": {params["digest"]: marker}, "reason": ""}
    reason = (
        "changed: the image is another one"
        if marker
        else "absent: nobody has looked into the image here"
    )
    if check_mode:
        return {"changed": True, "environments": {}, "reason": reason}
    os.makedirs(home, mode=0o700, exist_ok=True)
    marker, refused = try_all(run, params, home, have)
    write_marker(home, marker)
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

    def run(argv):
        return module.run_command(
            argv, environ_update=dict(attempt_dir.user_environment(os.getuid()), LC_ALL="C.UTF-8")
        )

    try:
        module.exit_json(**ensure(run, params, home, module.check_mode))
    except (ContainerError, OSError, ValueError) as error:
        module.fail_json(msg=printable(f"{params['image']}: {error}", newlines=True))


if __name__ == "__main__":
    main()
