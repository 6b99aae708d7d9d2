# SPDX-License-Identifier: Apache-2.0
"""One container, started and stopped on this node as a training is.

Whether an engine keeps its processes in the unit, whether they can be seen from the node and which
user owns what they write is measured. Nothing is assumed of an engine's version.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time

from ..attempts import attempt_dir
from ..base import processes
from ..base.files import read_text
from . import containers
from .python_env import MODULES, PACKAGES

# Until the environment of a started process is visible.
VISIBLE_SECONDS = 5
# Runs inside, as a training does: says what there is, then starts a process in a session of its
# own, which a stop has to find, and waits.
INSIDE = """
import importlib, importlib.util, json, os, platform, shutil, subprocess, sys, time
folders = ("site-packages", "dist-packages")
own = [p for p in sys.path if p.rstrip("/").rsplit("/", 1)[-1] in folders]
listing = []
for path in own:
    names = os.listdir(path) if os.path.isdir(path) else []
    listing.append([n for n in names if n.endswith((".dist-info", ".egg-info"))])
known = {n: os.path.realpath(shutil.which(n)) for n in ("python", "python3") if shutil.which(n)}
says = {"python": platform.python_version(), "paths": own, "listing": listing, "pythons": known}
says["executable"] = os.path.realpath(sys.executable)
wanted = sys.argv[1].split(",")
module = ([n for n in wanted if importlib.util.find_spec(n)] or wanted)[0]
try:
    found = importlib.import_module(module)
    says["imported"] = {"version": found.__version__}
    if module == "paddle":
        cuda = bool(found.is_compiled_with_cuda())
        built = str(found.version.cuda()) if cuda else None
        says["imported"].update(cuda=cuda, cuda_version=built, commit=found.version.commit)
    elif module == "mindspore":
        plugins = os.path.join(os.path.dirname(found.__file__), "lib", "plugin")
        names = os.listdir(plugins) if os.path.isdir(plugins) else []
        has = {"Ascend": "libmindspore_ascend", "CUDA": "libmindspore_gpu"}
        built = [k for k in sorted(has) if any(n.startswith(has[k]) for n in names)]
        says["imported"].update(targets=["CPU"] + built, commit=None)
except Exception as error:
    what = (module, type(error).__name__, error)
    says["failed"] = "%s cannot be imported in the image: %s: %s" % what
with open("probe", "w") as handle:
    handle.write("written")
sleep = [sys.executable, "-c", "import time; time.sleep(3600)"]
marked = dict(os.environ, TRAINYARD_TRIAL="inside")
subprocess.Popen(sleep, env=marked, start_new_session=True)
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
    """No training can run in the image.

    The text gives the reason for every engine.
    """


class ImageError(ContainerError):
    """The image itself is not what was asked for, whatever runs it."""


class Trial:
    """A trial of one engine and form with an image.

    run_command: runs argv and returns (exit code, output, errors). params: the module's. home: the
    product's directory. image: what the engine calls it.
    """

    def __init__(self, run_command, params, home, engine, form, image):
        self._run_command, self._params, self._home = run_command, params, home
        self._engine = engine
        self._name = f"trial-{params['digest']}"
        self._unit = self._name + ".service"
        self._container = describe_start(params, home, engine, form, image)
        self._place = None

    def run(self):
        """Return what the container says of itself.

        Raise ContainerError where a training could not be run or stopped so.
        """
        self._place = tempfile.mkdtemp(prefix=".trial-", dir=self._home)
        argv, environment = self._command()
        made = [path for path in self._container["folders"] if not os.path.isdir(path)]
        for folder in made:
            os.makedirs(folder, mode=0o700)
        try:
            self._start(argv, environment)
            answer = self._wait_for_answer()
            self._check_processes()
        finally:
            left = self._stop()
            owner = _owner_of(os.path.join(self._place, "probe"))
            shutil.rmtree(self._place, ignore_errors=True)
            for folder in made:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        if left:
            raise ContainerError(f"processes {', '.join(map(str, left))} were left after the stop")
        _check_owner(owner)
        return answer

    def _command(self):
        """Return (argv, environment) of the container's start."""
        module = ",".join(MODULES)
        if self._params["package"]:
            module = PACKAGES[self._params["package"]]["module"]
        own = {
            "HOME": os.path.expanduser("~"),
            "TRAINYARD_ATTEMPT": f"{self._name}/0",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        words = [*COMMAND, INSIDE, module]
        return containers.container_command(
            self._container, self._place, self._name, words, own, self._place
        )

    def _start(self, argv, environment):
        """Start the container in a unit of its own.

        The environment is given whole, as the agent does, so that what the user's manager has set
        is not what makes it work.
        """
        start = ["systemd-run", "--user", "--quiet", "--collect", f"--unit={self._unit}"]
        for text in (
            "Type=exec",
            "KillMode=control-group",
            "TimeoutStopSec=5",
            f"StandardOutput=append:{self._place}/said",
            f"StandardError=append:{self._place}/errors",
        ):
            start += ["--property", text]
        variables = [f"{key}={value}" for key, value in environment.items()]
        code, _out, err = self._run_command([*start, "/usr/bin/env", "-i", *variables, *argv])
        if code:
            raise ContainerError(f"systemd did not start the unit: {err.strip()}")

    def _wait_for_answer(self):
        """Return what the container says of itself. Raises ContainerError."""
        answer, deadline = None, time.monotonic() + self._params["wait"]
        while answer is None and time.monotonic() < deadline and self._is_active():
            time.sleep(0.2)
            answer = read_result(self._place)
        answer = answer or read_result(self._place)
        if answer is None:
            lines = read_text(os.path.join(self._place, "errors")).strip().splitlines()
            lines = lines or [f"no answer within {self._params['wait']} s"]
            raise ContainerError(lines[-1])
        if "failed" in answer:
            raise ImageError(answer["failed"])
        return answer

    def _is_active(self):
        _code, state, _err = self._run_command(["systemctl", "--user", "is-active", self._unit])
        return state.strip() in attempt_dir.ACTIVE

    def _check_processes(self):
        """Raise ContainerError where ranks could not be seen, or not be stopped."""
        inside = await_processes(self._name)
        if not inside:
            raise ContainerError(
                "processes inside cannot be seen from the node, so no rank's end would be known"
            )
        if self._engine in containers.OUTSIDE:
            return
        if not all(containers.is_in_unit(groups, self._unit) for groups in inside.values()):
            raise ContainerError(
                "it leaves the unit that it was started in, so a stop would leave it running"
            )

    def _stop(self):
        """Stop the unit and the container, and return the processes that it left.

        These are killed.
        """
        self._run_command(["systemctl", "--user", "stop", self._unit])
        if self._container["remove"]:
            self._run_command([*self._container["remove"], self._name])
        left = processes.pids_with_mark(self._name, 0)
        for pid in left:  # the refusal is the news; nothing of the trial stays behind for it
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


def describe_start(params, home, engine, form, image):
    """Return how a container is started, by the plan's own code."""
    found = {
        "engine": engine,
        "form": form,
        "image_id": image,
        "uid": os.getuid(),
        "gid": os.getgid(),
    }
    variables = ("TRAINYARD_ATTEMPT", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE")
    return containers.plan_entry(found, home, dict.fromkeys(variables, ""), mounts=params["mounts"])


def await_processes(run_id):
    """Return `processes_inside` of the trial as soon as there are some, {} after VISIBLE_SECONDS.

    The kernel shows the environment of a process a moment after its start.
    """
    deadline = time.monotonic() + VISIBLE_SECONDS
    groups_by_pid = processes_inside(run_id)
    while not groups_by_pid and time.monotonic() < deadline:
        time.sleep(0.05)
        groups_by_pid = processes_inside(run_id)
    return groups_by_pid


def processes_inside(run_id):
    """Return {pid: its control groups} of the trial's processes inside.

    They are found as the agent of an attempt finds ranks.
    """
    groups = {
        pid: read_text(f"/proc/{pid}/cgroup")
        for pid in processes.pids_with_mark(run_id, 0)
        if b"TRAINYARD_TRIAL=inside" in processes.environment_of(pid)
    }
    # A process that has ended meanwhile has none.
    return {pid: text for pid, text in groups.items() if text}


def read_result(place):
    """Return the container's answer, or None as long as there is no answer."""
    for line in reversed(read_text(os.path.join(place, "said")).splitlines()):
        if line.startswith("{") and line.endswith("}"):
            return json.loads(line)
    return None


def _owner_of(path):
    """Return the uid of a file, None where it is missing."""
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def _check_owner(owner):
    """Raise ContainerError where the training user does not own what the container writes."""
    if owner is None:
        raise ContainerError("what it writes is not seen on the node")
    if owner != os.getuid():
        raise ContainerError(
            f"what it writes belongs to uid {owner}, not to the training user ({os.getuid()})"
        )
