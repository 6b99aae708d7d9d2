# SPDX-License-Identifier: Apache-2.0
"""Run a verb on a site of pretended nodes. Return what changed on the controller, which nodes were
asked, and what the terminal showed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
ANSIBLE = os.path.join(os.path.dirname(sys.executable), "ansible-playbook")
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
SECONDS = 90
BYTES = 3 << 30
# What Ansible and Python write for themselves.
OWN = ("home/.ansible", "home/.cache/pip")


@dataclasses.dataclass
class Done:
    """The end of one command."""

    code: int
    text: str
    seconds: float
    peak: int
    before: dict
    after: dict
    plays: set
    contacted: list
    told: set

    def changed(self):
        """Return the paths that are new, gone or other than before."""
        return {
            path
            for path in set(self.before) | set(self.after)
            if self.before.get(path) != self.after.get(path)
        }


def describe(path):
    """Return type, mode, owner, size, time and digest of one entry."""
    info = os.lstat(path)
    kind = stat.S_IFMT(info.st_mode)
    digest = ""
    if kind == stat.S_IFLNK:
        digest = os.readlink(path)
    elif kind == stat.S_IFREG:
        with open(path, "rb") as handle:
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
    size = 0 if kind == stat.S_IFDIR else info.st_size
    times = 0 if kind == stat.S_IFDIR else info.st_mtime_ns
    return kind, stat.S_IMODE(info.st_mode), info.st_uid, size, times, digest


def tree(top):
    """Return what lies on the controller: its home, its runs, the inventory, and what is beside all
    of it.
    """
    found = {}
    for part in ("home", "runs", "site", "outside"):
        for where, folders, files in os.walk(top / part):
            folders[:] = [
                name
                for name in folders
                if os.path.relpath(os.path.join(where, name), top) not in OWN
            ]
            for name in folders + files:
                path = os.path.join(where, name)
                found[os.path.relpath(path, top)] = describe(path)
    return found


def project():
    """Return what the product is made of, by size and time alone: nothing of it may change."""
    found = {}
    walks = [
        walk
        for part in ("ansible.cfg", "inventory", "library", "playbooks", "plugins", "roles")
        for walk in os.walk(ROOT / part)
    ]
    for where, _folders, files in walks:
        if "__pycache__" in where:
            continue
        for name in files:
            info = os.lstat(os.path.join(where, name))
            found[os.path.relpath(os.path.join(where, name), ROOT)] = (
                info.st_mode,
                info.st_size,
                info.st_mtime_ns,
            )
    return found


def lines(path):
    """Return the lines of a file that may be missing."""
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


def content(path):
    """Return the bytes of a file that may be gone by now."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def verb(top, name, *words, seconds=SECONDS, answers=False, **environment):
    """Run a playbook on the site; return how it ended."""
    for file in ("contacted", "told", "plays"):
        (top / file).unlink(missing_ok=True)
    if answers:
        (top / "answers").mkdir(exist_ok=True)
    given = {
        "PATH": "{}:{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".format(top / "bin",
        os.path.dirname(sys.executable)),
        "HOME": str(top / "home"), "LANG": "C.UTF-8", "LYING": str(top),
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_LOCAL_TEMP": str(top / "tmp"),
        "ANSIBLE_SSH_TRANSFER_METHOD": "piped", "TMPDIR": str(top / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1", "USER": "operator",
        "ANSIBLE_CALLBACK_PLUGINS": str(HERE / "callback"),
        "ANSIBLE_CALLBACKS_ENABLED": "trainyard.cluster.restart,lying_witness",
    }  # fmt: skip
    (top / "tmp").mkdir(exist_ok=True)
    before, begun = tree(top), time.monotonic()
    with open(top / "terminal", "wb") as terminal:
        process = subprocess.Popen(
            [ANSIBLE, "-i", str(top / "site" / "hosts.yml"), f"playbooks/{name}.yml", *words],
            cwd=ROOT,
            env=dict(given, **environment),
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES)),
        )
        code, peak = wait(process, seconds)
    with open(top / "terminal", "rb") as terminal:
        text = terminal.read(32 << 20).decode("utf-8", "surrogateescape")
    plays = {tuple(json.loads(line)) for line in lines(top / "plays")}
    contacted = lines(top / "contacted")
    return Done(
        code,
        text,
        time.monotonic() - begun,
        peak,
        before,
        tree(top),
        plays,
        contacted,
        set(lines(top / "told")),
    )


def wait(process, seconds):
    """Return (exit code, peak memory in bytes of any process of it); a process that does not end is
    killed, its code is 'late'.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status, used = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return process.returncode, used.ru_maxrss * 1024
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    _pid, _status, used = os.wait4(process.pid, 0)
    process.returncode = -9
    return "late", used.ru_maxrss * 1024
