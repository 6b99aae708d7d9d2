# SPDX-License-Identifier: Apache-2.0
"""Where a drill takes place: the ways to its nodes, the commands as a user types them, an eye on
every node. Controller only.

What is done to a node goes over SSH as the training user, by Ansible's own words for that node; as
root and from outside only where the node is a container of the embedded site, which no broken
network and no dead sshd keeps us out of.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time

from ..agent import drill_watch
from . import fault_table

# For the shell lines of faults.yml, see its head.
PRELUDE = """export XDG_RUNTIME_DIR=/run/user/$(id -u) R=%(run)s A=%(base)s/runs/%(run)s/attempt-%(number)s OTHER=%(other)s
S=$(dirname $(ls -d %(base)s/env/*/lib/python3.*/site-packages/%(package)s 2> /dev/null | head -1) 2> /dev/null)
rank() { sed -n 's/.*"event": "start".*"pid": \\([0-9]*\\).*/\\1/p' $A/ranks.jsonl | head -n 1; }
"""
# As root in a container the home is another.
HOME = "cd /home/%(user)s; "
SSH = (
    "-o",
    "ControlMaster=no",
    "-o",
    "ControlPath=none",
    "-o",
    "ConnectTimeout=5",
    "-o",
    "ServerAliveInterval=2",
    "-o",
    "ServerAliveCountMax=3",
)


class Node:
    """One node of the site: name, address, argv of ssh up to the remote command, its container's
    name or None.
    """

    def __init__(self, name, way, site):
        self.name, self.address, self.user, self.argv = (
            name,
            way["address"],
            way["user"],
            list(way["argv"]),
        )
        self.container, self.memory = container_of(site, name, self.address)

    def ssh(self, script):
        return [self.argv[0], *SSH, *self.argv[1:], script]

    def inside(self, user, *words):
        home = [] if user == "root" else ["-e", f"HOME=/home/{user}"]
        return ["docker", "exec", "-i", "-u", user, *home, self.container, *words]

    def run(self, script, timeout=60, root=False):
        """Run a line of shell as the training user over SSH, or as root in the container; return
        what it prints. Raises DrillError.
        """
        argv = self.inside("root", "sh", "-c", script) if root else self.ssh(script)
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise fault_table.DrillError(
                "%s did not answer within %d s" % (self.name, timeout)
            ) from error
        if done.returncode:
            said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-300:]
            raise fault_table.DrillError(
                "{}: {}: {}".format(
                    self.name,
                    script.splitlines()[-1][-100:],
                    said or "exit code %d" % done.returncode,
                )
            )
        return done.stdout.decode("utf-8", "replace").strip()

    def look(self, script):
        """Run a line of shell by the way that no fault of the network cuts; return what it prints,
        '' where the node does not answer.
        """
        argv = (
            self.inside(self.user, "sh", "-c", "cd; " + script)
            if self.container
            else self.ssh(script)
        )
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

    def up(self, seconds=90):
        """Wait until the node takes logins and has its user's manager; raise DrillError where it
        does not.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if "running" in self.run(
                    "XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user is-active -q basic.target"
                    " && echo running",
                    10,
                ):
                    return
            except fault_table.DrillError:
                time.sleep(1)
        raise fault_table.DrillError("%s does not come back within %d s" % (self.name, seconds))


def container_of(site, name, address):
    """Return (container, bytes of memory) where the node is one of the embedded site on this
    machine, else (None, 0).
    """
    container = f"trainyard-{site}-{name}"
    words = [
        "docker",
        "inspect",
        "--format",
        (
            "{{.HostConfig.Memory}} {{range .NetworkSettings.Networks}}{{.IPAMConfig.IPv4Address}}"
            " {{.IPAddress}} {{end}}"
        ),
        container,
    ]
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=False,
            text=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, 0
    found = done.stdout.split()
    return (
        (container, int(found[0])) if done.returncode == 0 and address in found[1:] else (None, 0)
    )


class Command:
    """One of the product's playbooks on its way, as a user starts it: its own session, no terminal,
    its output in a file.
    """

    def __init__(self, ground, verb, words, path, fresh=None):
        argv = [os.path.join(os.path.dirname(sys.executable), "ansible-playbook"), *ground.options]
        argv += [os.path.join(ground.project, "playbooks", verb + ".yml"), *words]
        self.path, self.begun, self.verb = path, time.monotonic(), verb
        with open(path, "wb") as handle:
            self.process = subprocess.Popen(
                argv, cwd=fresh or ground.project, env=ground.environment(fresh), stdin=subprocess.DEVNULL, stdout=handle,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def text(self):
        with open(self.path, encoding="utf-8", errors="replace") as handle:
            return handle.read()

    def over(self):
        return self.process.poll() is not None

    def signal(self, name):
        """Send a signal to it and its workers, as a terminal does; KILL goes to the command alone,
        as from the kernel.
        """
        if name == "KILL":
            os.kill(self.process.pid, signal.SIGKILL)
        else:
            os.killpg(self.process.pid, getattr(signal, "SIG" + name))

    def wait(self, seconds):
        """Return the exit code; None where it still runs after so many seconds."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        """End it, if it still runs."""
        for name in ("INT", "KILL"):
            if not self.over():
                self.signal(name)
                self.wait(20)


class Ground:
    """The site of a drill.

    project: the product's directory. options: the inventory and login options of the command line.
    nodes: [Node] in the order of the ranks. runs_dir: where the controller keeps runs. base: the
    product's directory on the nodes. state_dir: the site's, on the controller.
    """

    def __init__(self, project, options, site, nodes, runs_dir, base, state_dir):
        self.project, self.options, self.site, self.nodes = project, options, site, nodes
        self.runs_dir, self.base, self.state_dir = runs_dir, base, state_dir
        self.places = {"first": nodes[0], "last": nodes[-1]}

    def environment(self, fresh=None):
        """Return a command's environment; fresh: the directory that is another controller's HOME."""
        dropped = ("ANSIBLE_", "MOLECULE_", "TRAINYARD_")
        own = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        own.update(
            ANSIBLE_CONFIG=os.path.join(self.project, "ansible.cfg"),
            ANSIBLE_NOCOLOR="1",
            NO_COLOR="1",
        )
        own["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
        return dict(own, HOME=fresh) if fresh else own

    def fresh(self, folder):
        """Make another controller's HOME: it has what opens the nodes and their host keys, and
        neither the CA's key nor any run; return it.
        """
        os.makedirs(folder, mode=0o700, exist_ok=True)
        home = os.path.expanduser("~")
        if self.state_dir.startswith(home + os.sep):
            there = os.path.join(folder, os.path.relpath(self.state_dir, home))
            os.makedirs(there, mode=0o700, exist_ok=True)
            for name in ("id_ed25519", "known_hosts"):
                if os.path.exists(os.path.join(self.state_dir, name)):
                    shutil.copy(os.path.join(self.state_dir, name), there)
        return folder

    def shell(self, node, run, number, script, root=False, timeout=120):
        """Run a line of a fault on a node."""
        other = next((one.address for one in self.nodes if one is not node), "")
        base = self.base if self.base.startswith("/") else "$HOME/" + self.base
        base = base.replace("$HOME", f"/home/{node.user}") if root else base
        values = {
            "run": run or "none",
            "base": base,
            "number": number,
            "other": other,
            "package": "pycocotools*",
        }
        return node.run(
            (HOME % {"user": node.user} if root else "") + PRELUDE % values + script, timeout, root
        )

    def holders(self):
        """Return {node: unit} of what holds the nodes now."""
        script = (
            "XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user list-units --plain --no-legend"
        )
        script += " --state=active,activating,deactivating 'trainyard-*.service'"
        return {node.name: said.split()[0] for node in self.nodes if (said := node.run(script))}

    def docker(self, words):
        values = dict(
            {place: node.container for place, node in self.places.items()},
            memory=self.places["last"].memory,
        )
        argv = ["docker", *(word.format(**values) for word in words)]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=120,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise fault_table.DrillError("docker {}: {}".format(" ".join(words), error)) from error
        if done.returncode:
            raise fault_table.DrillError(
                "docker {}: {}".format(
                    " ".join(words), done.stderr.decode("utf-8", "replace").strip()[-300:]
                )
            )


class Watch:
    """An eye on every node: looks arrive in one list, in the order of their coming. Asked anew
    where the connection ends.
    """

    def __init__(self, nodes, run, base, sign=""):
        self.looks, self._lock, self._over, self._calls = (
            [],
            threading.Lock(),
            threading.Event(),
            {},
        )
        self._threads = [
            threading.Thread(target=self._follow, args=(node, run, base, sign), daemon=True)
            for node in nodes
        ]
        for thread in self._threads:
            thread.start()

    def _add(self, node, **look):
        with self._lock:
            self.looks.append(dict(look, t=time.monotonic(), node=node.name))

    def _follow(self, node, run, base, sign):
        with open(drill_watch.__file__, "rb") as handle:
            source = handle.read()
        words = ["python3", "-I", "-c", drill_watch.BOOT, str(len(source)), run, base, sign]
        while not self._over.is_set():
            argv = (
                node.inside(node.user, *words)
                if node.container
                else node.ssh(" ".join(map(shlex.quote, words)))
            )
            call = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._calls[node.name] = call
            try:
                call.stdin.write(source)
                call.stdin.flush()
                for line in call.stdout:
                    self._add(node, **json.loads(line))
            except (OSError, ValueError):
                pass
            call.kill()
            call.wait()
            if not self._over.is_set():
                self._add(node, gone=True)
                self._over.wait(0.5)

    def seen(self):
        with self._lock:
            return list(self.looks)

    def until(self, what, seconds, give_up=lambda: False):
        """Return the first true value of what(looks); None after so many seconds, or where
        give_up() is true.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            value = what(self.seen())
            if value or give_up():
                return value
            time.sleep(0.1)
        return None

    def close(self):
        self._over.set()
        for call in self._calls.values():
            call.stdin.close()
            call.kill()
        for thread in self._threads:
            thread.join(10)


def last_line(text):
    """Return the line that says best why a command ended: the last one that names an error, else
    the last one that is not empty.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [
        line for line in lines if line.startswith(("[ERROR]", "STOP ", "FAILED: ", "fatal: "))
    ]
    return (telling or lines or ["no output"])[-1]
