# SPDX-License-Identifier: Apache-2.0
"""Site of a drill: nodes, commands as a user types them, a watch on every node.

A fault is injected over SSH as the training user, with Ansible's own argv for that node. Root and
access from outside exist only where the node is a container of the embedded site. No broken network
and no dead sshd keeps us out of that.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TypeVar, cast

from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_json

from ..agent import zipapp
from ..base.playbook_process import PlaybookProcess
from . import fault_table
from .fault_table import Observation, Observations

T = TypeVar("T")

# For the shell lines of faults.yml, see its head.
PRELUDE = (
    "export XDG_RUNTIME_DIR=/run/user/$(id -u) R=%(run)s"
    " A=%(base)s/runs/%(run)s/attempt-%(number)s OTHER=%(other)s\n"
    "S=$(ls -d %(base)s/env/%(environment)s/lib/python3.*/site-packages 2> /dev/null)\n"
    """rank() { sed -n 's/.*"event": "start".*"pid": \\([0-9]*\\).*/\\1/p' $A/ranks.jsonl"""
    " | head -n 1; }\n"
)
SSH = (
    *("-o", "ControlMaster=no"),
    *("-o", "ControlPath=none"),
    *("-o", "ConnectTimeout=5"),
    *("-o", "ServerAliveInterval=2"),
    *("-o", "ServerAliveCountMax=3"),
)


class Node:
    """One node of the site.

    argv: ssh up to the remote command. container: the name of its container, or None.
    """

    def __init__(self, name: str, way: Mapping[str, Any], site: str) -> None:
        self.name, self.address = name, way["address"]
        self.user, self.argv = way["user"], list(way["argv"])
        self.container, self.memory = container_of(site, name, self.address)

    def ssh_argv(self, script: str) -> list[str]:
        """Return the argv that runs a line of shell over SSH."""
        return [self.argv[0], *SSH, *self.argv[1:], script]

    def container_argv(self, user: str, *words: str) -> list[str]:
        """Return the argv that runs a command in the node's container."""
        if self.container is None:
            raise fault_table.DrillError(f"{self.name} is not a container of the demo site")
        argv = ["docker", "exec", "-i", "-u", user]
        if user != "root":
            argv += ["-e", f"HOME=/home/{user}"]
        return [*argv, self.container, *words]

    def run_command(self, script: str, timeout: float = 60, root: bool = False) -> str:
        """Run a line of shell and return its output.

        It runs as the training user over SSH, or as root in the container. Raises DrillError.
        """
        if root:
            argv = self.container_argv("root", "sh", "-c", script)
        else:
            argv = self.ssh_argv(script)
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise fault_table.DrillError(
                f"{self.name} did not answer within {int(timeout)} s"
            ) from error
        if done.returncode:
            message = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-300:]
            command = script.splitlines()[-1][-100:]
            raise fault_table.DrillError(
                f"{self.name}: {command}: {message or f'exit code {done.returncode}'}"
            )
        return done.stdout.decode("utf-8", "replace").strip()

    def inspect(self, script: str) -> str:
        """Run a line of shell over the connection that no fault of the network cuts.

        Return its output, '' where the node does not answer.
        """
        if self.container:
            argv = self.container_argv(self.user, "sh", "-c", "cd; " + script)
        else:
            argv = self.ssh_argv(script)
        try:
            return subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=120,
                check=False,
                text=True,
            ).stdout
        except subprocess.TimeoutExpired:
            return ""

    def await_login(self, seconds: float = 90) -> None:
        """Wait until the node takes logins and has its user's manager.

        Raise DrillError where it does not come back in time.
        """
        script = (
            "XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user is-active -q basic.target"
            " && echo running"
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if "running" in self.run_command(script, 10):
                    return
            except fault_table.DrillError:
                time.sleep(1)
        raise fault_table.DrillError(f"{self.name} does not come back within {int(seconds)} s")


def container_of(site: str, name: str, address: str) -> tuple[str | None, int]:
    """Return (container, bytes of memory) of a node, (None, 0) for no container.

    The container is one of the embedded site on this machine.
    """
    container = f"trainyard-{site}-{name}"
    template = (
        "{{.HostConfig.Memory}} {{range .NetworkSettings.Networks}}{{.IPAMConfig.IPv4Address}}"
        " {{.IPAddress}} {{end}}"
    )
    try:
        done = subprocess.run(
            ["docker", "inspect", "--format", template, container],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, 0
    words = done.stdout.split()
    if done.returncode == 0 and address in words[1:]:
        return container, int(words[0])
    return None, 0


class Command(PlaybookProcess):
    """One of the product's playbooks that runs as a user starts it."""

    def __init__(
        self, site: Site, verb: str, words: Sequence[str], path: str, fresh: str | None = None
    ) -> None:
        argv = [os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), *site.options]
        argv += [os.path.join(site.project, "playbooks", verb + ".yml"), *words]
        self.begun, self.verb = time.monotonic(), verb
        super().__init__(argv, site.environment(fresh), path, fresh or site.project)


class Site:
    """The site of a drill.

    project: the product's directory. options: the inventory and login options of the command line.
    nodes: [Node] in the order of the ranks. runs_dir: the controller's directory of runs. base: the
    product's directory on the nodes. state_dir: the site's, on the controller.
    """

    def __init__(
        self,
        project: str,
        options: Sequence[str],
        site: str,
        nodes: Sequence[Node],
        runs_dir: str,
        base: str,
        state_dir: str,
    ) -> None:
        self.project, self.options, self.site, self.nodes = project, options, site, nodes
        self.runs_dir, self.base, self.state_dir = runs_dir, base, state_dir
        self.places = {"first": nodes[0], "last": nodes[-1]}

    def environment(self, fresh: str | None = None) -> dict[str, str]:
        """Return a command's environment.

        fresh: the directory that is another controller's HOME.
        """
        dropped = ("ANSIBLE_", "MOLECULE_", "TRAINYARD_")
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(dropped)
        }
        variables.update(
            ANSIBLE_CONFIG=os.path.join(self.project, "ansible.cfg"),
            ANSIBLE_NOCOLOR="1",
            NO_COLOR="1",
            PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")]),
        )
        if fresh:
            variables["HOME"] = fresh
        return variables

    def make_controller_home(self, folder: str) -> str:
        """Make another controller's HOME and return it.

        It has the login key and the host keys of the nodes, but neither the CA's key nor any run.
        """
        os.makedirs(folder, mode=0o700, exist_ok=True)
        home = os.path.expanduser("~")
        if self.state_dir.startswith(home + os.sep):
            state_dir = os.path.join(folder, os.path.relpath(self.state_dir, home))
            os.makedirs(state_dir, mode=0o700, exist_ok=True)
            for name in ("id_ed25519", "known_hosts"):
                if os.path.exists(os.path.join(self.state_dir, name)):
                    shutil.copy(os.path.join(self.state_dir, name), state_dir)
        return folder

    def run_fault_line(
        self,
        node: Node,
        run: str,
        number: int,
        script: str,
        root: bool = False,
        timeout: float = 120,
    ) -> str:
        """Run a line of a fault on a node and return its output."""
        other = next((one.address for one in self.nodes if one is not node), "")
        base, change_directory = self.base, ""
        if not base.startswith("/"):
            base = "$HOME/" + base
        if root:
            # As root in a container the home is another.
            home = f"/home/{node.user}"
            base, change_directory = base.replace("$HOME", home), f"cd {home}; "
        values = {
            "run": run or "none",
            "base": base,
            "number": number,
            "other": other,
            "environment": self.read_environment(run) or "none",
        }
        return node.run_command(change_directory + PRELUDE % values + script, timeout, root)

    def read_environment(self, run: str) -> str:
        """Return the digest of the environment that a run uses, "" for none.

        A node may have the environments of several suites.
        """
        plan = read_json(os.path.join(self.runs_dir, run, "plan.json")) or {}
        return str((plan.get("environment") or {}).get("digest") or "")

    def list_owners(self) -> dict[str, str]:
        """Return {node: unit} of the attempts that own the nodes now."""
        script = (
            "XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user list-units --plain --no-legend"
            " --state=active,activating,deactivating 'trainyard-*.service'"
        )
        answers = {node.name: node.run_command(script) for node in self.nodes}
        return {name: answer.split()[0] for name, answer in answers.items() if answer}

    def run_docker(self, words: Sequence[str]) -> None:
        """Run a docker command, with the containers' names for {first} and {last}."""
        values: dict[str, Any] = {place: node.container for place, node in self.places.items()}
        values["memory"] = self.places["last"].memory
        command = " ".join(words)
        argv = ["docker", *(word.format(**values) for word in words)]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=120,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise fault_table.DrillError(f"docker {command}: {error}") from error
        if done.returncode:
            message = done.stderr.decode("utf-8", "replace").strip()[-300:]
            raise fault_table.DrillError(f"docker {command}: {message}")


class Watch:
    """Watch on every node, with one list of observations in the order of their arrival.

    Where the connection ends, it is opened again.
    """

    def __init__(self, nodes: Sequence[Node], run: str, base: str, sign: str = "") -> None:
        self.observed: list[Observation] = []
        self._calls: dict[str, subprocess.Popen[bytes]] = {}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(node, run, base, sign), daemon=True)
            for node in nodes
        ]
        for thread in self._threads:
            thread.start()

    def _add(self, node: Node, **observation: Any) -> None:
        with self._lock:
            self.observed.append(dict(observation, t=time.monotonic(), node=node.name))

    def _follow(self, node: Node, run: str, base: str, sign: str) -> None:
        words = ["python3", "-I", "-c", zipapp.BOOT, run, base, sign]
        if node.container:
            argv = node.container_argv(node.user, *words)
        else:
            argv = node.ssh_argv(" ".join(map(shlex.quote, words)))
        while not self._over.is_set():
            call = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._calls[node.name] = call
            if self._over.is_set():
                call.kill()
            try:
                stdin, stdout = cast(IO[bytes], call.stdin), cast(IO[bytes], call.stdout)
                stdin.write(zipapp.stdin_bytes("agent.drill_probe"))
                stdin.flush()
                for line in stdout:
                    self._add(node, **json.loads(line))
            except (OSError, ValueError):
                pass
            call.kill()
            call.wait()
            if not self._over.is_set():
                self._add(node, gone=True)
                self._over.wait(0.5)

    def observations(self) -> list[Observation]:
        """Return all observations up to now."""
        with self._lock:
            return list(self.observed)

    def await_value(
        self,
        read: Callable[[Observations], T],
        seconds: float,
        give_up: Callable[[], bool] = lambda: False,
    ) -> T | None:
        """Return the first true value of read(observations).

        Return None after so many seconds, and a false value where give_up() is true.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = read(self.observations())
            if value or give_up():
                return value
            time.sleep(0.1)
        return None

    def close(self) -> None:
        """End the watch on all nodes."""
        self._over.set()
        for call in list(self._calls.values()):
            call.kill()
            # A command that ended early leaves bytes in the buffer of its pipe, and to close writes
            # them.
            with contextlib.suppress(BrokenPipeError):
                cast(IO[bytes], call.stdin).close()
        for thread in self._threads:
            thread.join(10)


def last_line(text: str) -> str:
    """Return the line of an output that says best why its command ended.

    That is the last one that names an error, else the last one that is not empty.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [
        line for line in lines if line.startswith(("[ERROR]", "STOP ", "FAILED: ", "fatal: "))
    ]
    return (errors or lines or ["no output"])[-1]
