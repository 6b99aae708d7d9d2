# SPDX-License-Identifier: Apache-2.0
"""Installation of an environment on a node, from wheels that already lie there.

Programs get a small environment and no network. What is installed is described by its own Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import zipfile

from ..base import locks
from ..base.manifest import file_sha256
from ..inputs import tree_install
from . import python_env as core
from . import wheel_manifest

PATHS = """
import json, platform, site, sys
names = ("site-packages", "dist-packages")
own = [p for p in sys.path if p.rstrip("/").rsplit("/", 1)[-1] in names]
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
said = {"version": paddle.__version__, "cuda": cuda, "cuda_version": built}
print(json.dumps(dict(said, commit=paddle.version.commit)))
"""
    ),
    "mindspore": (
        """
import glob, json, os, mindspore
home = os.path.dirname(mindspore.__file__)
devices = {"ascend": "Ascend", "gpu": "CUDA"}
pattern = os.path.join(home, "lib", "plugin", "libmindspore_%s.so*")
targets = ["CPU"] + [devices[name] for name in sorted(devices) if glob.glob(pattern % name)]
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
    """The environment could not be made.

    The text names the step, the cause and the remedy.
    """


def wait_for_lock(handle, seconds, digest):
    """Take the lock of one environment. Raises InstallError where another installation holds it."""
    try:
        locks.wait_for_lock(handle, seconds)
    except locks.Locked:
        raise InstallError(
            f"another installation has been running here for {seconds} s; wait for it or end it"
        ) from None


def run_program(argv, lock=None, environment=None, timeout=None):
    """Run a program with a small environment and return its standard output.

    lock: a file that it inherits, or None. Raise InstallError where it fails.
    """
    small = {
        "HOME": os.path.expanduser("~"),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LC_ALL": "C.UTF-8",
        **(environment or {}),
    }
    inherited = ()
    if lock is not None:
        inherited = (lock.fileno(),)
    try:
        done = subprocess.run(
            argv,
            env=small,
            cwd="/",
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=inherited,
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
    """Return the manifest of the wheels that came to this node.

    Raises InstallError for a damaged one. The next command reads all of them again then, and sends
    what differs.
    """
    path = os.path.join(wheelhouse, wheel_manifest.MANIFEST)
    manifest = wheel_manifest.read_manifest(wheelhouse)
    problems = [f"{path} is not the controller's"]
    if manifest and file_sha256(path) == manifest_sha256:
        problems = wheel_manifest.verify(wheelhouse, manifest)
    if problems:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(wheelhouse + tree_install.SCAN)
        raise InstallError(
            f"damaged on this node: {'; '.join(problems)}; run the same command again"
        )
    return manifest


def remove_wheels(wheelhouse):
    """Remove the tree of wheels from this node, with what lies beside it."""
    if os.path.isdir(wheelhouse):
        tree_install.remove(wheelhouse)
    for name in (tree_install.MANIFEST, tree_install.SCAN):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(wheelhouse + name)


def unpack_uv(wheelhouse, manifest, directory):
    """Take the installer out of its wheel and return its path."""
    wheel = next(
        name for name in manifest["wheels"] if name.startswith(wheel_manifest.TOOLS + os.sep)
    )
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
        run_program(
            [uv, "venv", "--quiet", "--no-project", "--python", params["interpreter"], target],
            lock,
            settings,
        )
        run_program(
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
    """Return the marker of what is installed behind an interpreter.

    Raise InstallError where it is not what was asked for.
    """
    quiet = {}
    if params["python"]:
        quiet = {"PYTHONDONTWRITEBYTECODE": "1"}
    about = json.loads(run_program([interpreter, "-c", PATHS], lock, quiet, timeout=60))
    module = _framework(params, interpreter, lock, quiet)
    imported = _import_framework(module, interpreter, lock, quiet)
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


def _framework(params, interpreter, lock, environment):
    """Return the name of the module to import: the package's, or the first that is there."""
    if params["package"]:
        return core.PACKAGES[params["package"]]["module"]
    argv = [interpreter, "-c", WHICH, *core.MODULES]
    return (run_program(argv, lock, environment, timeout=60).split() or core.MODULES)[0]


def _import_framework(module, interpreter, lock, environment):
    """Return what a framework says of itself. Raises InstallError."""
    argv = [interpreter, "-c", IMPORTS[module]]
    try:
        return json.loads(
            run_program(argv, lock, environment, timeout=300).strip().splitlines()[-1]
        )
    except InstallError as error:
        reason, remedy = str(error).strip().splitlines()[-1], ""
        if reason.startswith("ModuleNotFoundError"):
            remedy = "; pin the package in a list of the environment's requirements"
        raise InstallError(
            f"{module} cannot be imported with {interpreter}: {reason}{remedy}"
        ) from None
