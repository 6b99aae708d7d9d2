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
    O(manifest_sha256), so a wheel that was damaged on the way is noticed; it is removed, so that
    the next run brings it again.
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
    description: Which Paddle or MindSpore it must be; checked after the installation.
    type: str
    choices: [paddlepaddle, paddlepaddle-gpu, mindspore, mindspore-ascend, mindspore-gpu]
  version:
    description: Which version of it.
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
    description: How the files of one that is there are held against their installation; V(cached)
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

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
import zipfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env as core,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import wheels

PATHS = """
import json, platform, site, sys
own = [p for p in sys.path if p.rstrip("/").rsplit("/", 1)[-1] in ("site-packages", "dist-packages")]
print(json.dumps({"python": platform.python_version(), "paths": own}))
"""
# What each module says of itself; the last line that is printed counts. A MindSpore wheel carries a
# library for each device it can use.
IMPORTS = {
    "paddle": (
        """
import json, paddle
cuda = bool(paddle.is_compiled_with_cuda())
built = str(paddle.version.cuda()) if cuda else None
print()
print(json.dumps({"version": paddle.__version__, "cuda": cuda, "cuda_version": built, "commit": paddle.version.commit}))
"""
    ),
    "mindspore": (
        """
import glob, json, os, mindspore
home = os.path.dirname(mindspore.__file__)
devices = {"ascend": "Ascend", "gpu": "CUDA"}
targets = ["CPU"] + [devices[name] for name in sorted(devices) if glob.glob(os.path.join(home, "lib", "plugin", "libmindspore_%s.so*" % name))]
try:
    with open(os.path.join(home, ".commit_id"), encoding="utf-8") as handle:
        commit = handle.read().split("sha1]:")[-1].split(",")[0].strip()
except OSError:
    commit = None
print()
print(json.dumps({"version": mindspore.__version__, "targets": targets, "commit": commit}))
"""
    ),
}
# Which of the modules an own Python has, without importing any.
WHICH = """
import importlib.util, sys
print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name)])
"""


class InstallError(Exception):
    """The environment could not be made; the text names the step, the cause and the remedy."""


def wait_for_lock(handle, seconds, digest):
    """Hold the lock of one environment, or say that another installation holds it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise InstallError(
                    f"another installation has been running here for {seconds} s; wait for it or"
                    " end it"
                ) from None
            time.sleep(0.5)


def run(argv, lock=None, environment=None, timeout=None):
    """Run a program with a small environment; return its standard output, or say how it ended.
    lock: a file it inherits, or None.
    """
    small = {
        "HOME": os.path.expanduser("~"),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        **(environment or {}),
    }
    try:
        done = subprocess.run(
            argv,
            env=small,
            cwd="/",
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=() if lock is None else (lock.fileno(),),
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"{argv[0]} did not end within {timeout} s") from None
    if done.returncode < 0:
        raise InstallError(
            f"{argv[0]} was ended by {signal.Signals(-done.returncode).name}; run the same command"
            " again"
        )
    if done.returncode:
        raise InstallError(
            f"{argv[0]} ended with {done.returncode}: "
            + done.stderr.decode(errors="replace").strip()[-2000:]
        )
    return done.stdout.decode(errors="replace")


def check_wheels(wheelhouse, manifest_sha256):
    """Return the manifest of the wheels that came to this node; remove what was damaged on the way
    and refuse it.
    """
    path = os.path.join(wheelhouse, wheels.MANIFEST)
    manifest = wheels.read_manifest(wheelhouse)
    if not manifest or wheels.file_sha256(path) != manifest_sha256:
        shutil.rmtree(wheelhouse, ignore_errors=True)
        raise InstallError(
            f"{path} is not the controller's; the copy was removed, run the same command again"
        )
    problems = wheels.verify(wheelhouse, manifest)
    for problem in problems:
        damaged = os.path.join(wheelhouse, problem.split(": ", 1)[0])
        if os.path.lexists(damaged):
            os.unlink(damaged)
    if problems:
        raise InstallError(
            f"damaged on the way to this node: {'; '.join(problems)}; they were removed, run the"
            " same command again"
        )
    return manifest


def unpack_uv(wheelhouse, manifest, directory):
    """Take the installer out of its wheel; return its path."""
    wheel = next(name for name in manifest["wheels"] if name.startswith(wheels.TOOLS + os.sep))
    with zipfile.ZipFile(os.path.join(wheelhouse, wheel)) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        path = os.path.join(directory, "uv")
        with archive.open(member) as source, open(path, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    os.chmod(path, 0o700)
    return path


def install(params, home, target, manifest, lock):
    """Make the environment in place (a venv cannot be moved) from checked wheels."""
    work = os.path.join(home, "wheels", ".work-" + params["digest"])
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(target, ignore_errors=True)
    os.makedirs(work, mode=0o700)
    try:
        uv = unpack_uv(params["wheelhouse"], manifest, work)
        pins = os.path.join(work, "pins.txt")
        with open(pins, "w", encoding="utf-8") as handle:
            handle.writelines(
                f"{name}=={version}\n" for name, version in sorted(manifest["packages"].items())
            )
        settings = {
            "UV_CACHE_DIR": os.path.join(work, "cache"),
            "UV_NO_CONFIG": "1",
            "UV_OFFLINE": "1",
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_NO_PROGRESS": "1",
            "UV_LINK_MODE": "hardlink",
        }
        run(
            [uv, "venv", "--quiet", "--no-project", "--python", params["interpreter"], target],
            lock,
            settings,
        )
        run(
            [
                uv,
                "pip",
                "install",
                "--quiet",
                "--python",
                os.path.join(target, "bin", "python"),
                "--no-index",
                "--find-links",
                params["wheelhouse"],
                "--no-deps",
                "--compile-bytecode",
                "--requirement",
                pins,
            ],
            lock,
            settings,
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)


def describe(params, interpreter, lock=None):
    """Return the marker of what is installed behind an interpreter, or refuse what is not what was
    asked for.
    """
    quiet = {"PYTHONDONTWRITEBYTECODE": "1"} if params["python"] else {}
    about = json.loads(run([interpreter, "-c", PATHS], lock, quiet, timeout=60))
    if params["package"]:
        module = core.PACKAGES[params["package"]]["module"]
    else:
        module = (
            run([interpreter, "-c", WHICH, *core.MODULES], lock, quiet, timeout=60).split()
            or core.MODULES
        )[0]
    try:
        imported = json.loads(
            run([interpreter, "-c", IMPORTS[module]], lock, quiet, timeout=300)
            .strip()
            .splitlines()[-1]
        )
    except InstallError as error:
        reason = str(error).strip().splitlines()[-1]
        remedy = (
            "; pin the package in a list of the environment's requirements"
            if reason.startswith("ModuleNotFoundError")
            else ""
        )
        raise InstallError(
            f"{module} cannot be imported with {interpreter}: {reason}{remedy}"
        ) from None
    wrong = core.check_import(params["package"], params["version"], imported)
    if wrong:
        raise InstallError(
            f"{wrong}; correct package, version and index_url of the environment (the vendor's"
            " index has the device builds)"
        )
    packages = core.installed_packages(about["paths"])
    return {
        "version": core.FORMAT,
        "digest": params["digest"],
        "interpreter": interpreter,
        "managed": not params["python"],
        "imported": imported,
        "packages": packages,
        "fingerprint": core.fingerprint(packages),
        **about,
    }


def write_marker(target, marker):
    """Put the marker in place at once and for good; it says that everything before it is there."""
    os.makedirs(target, mode=0o700, exist_ok=True)
    path = os.path.join(target, core.MARKER)
    with open(path + ".new", "w", encoding="utf-8") as handle:
        json.dump(marker, handle, indent=1, sort_keys=True)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(path + ".new", path)


def make(params, home, target, lock):
    """Install or look, check, write the marker; return (marker, seconds of each step)."""
    seconds, started = {}, time.monotonic()

    def lap(step):
        seconds[step] = round(time.monotonic() - started - sum(seconds.values()), 2)

    if params["python"]:
        marker = describe(params, params["python"])
    else:
        manifest = check_wheels(params["wheelhouse"], params["manifest_sha256"])
        lap("verify")
        install(params, home, target, manifest, lock)
        lap("install")
        marker = describe(params, os.path.join(target, "bin", "python"), lock)
        differences = core.compare_packages(manifest["packages"], marker["packages"])
        if differences:
            raise InstallError(
                "the installed packages are not those of the wheelhouse: " + "; ".join(differences)
            )
    write_marker(target, marker)
    lap("import")
    drop_wheels(params)
    return marker, seconds


def drop_wheels(params):
    """Remove the wheels from this node unless they are to stay."""
    if params["wheelhouse"] and not params["keep_wheels"]:
        shutil.rmtree(params["wheelhouse"], ignore_errors=True)


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
        wait_for_lock(lock, params["wait"], digest)
        found = core.inspect_environment(
            home, digest, params["verify"]
        )  # whoever held the lock may have made it
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
    except (InstallError, OSError, ValueError) as error:
        module.fail_json(msg=f"{home}/env/{module.params['digest']}: {error}")


if __name__ == "__main__":
    main()
