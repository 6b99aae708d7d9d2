# SPDX-License-Identifier: Apache-2.0
"""Systemd of the training account: limits that a node allows, and drop-ins.

Two modules use it: node_requirements reads as the training account, training_account writes as
root.
Their paths and contents follow from the account's uid and the site's limits alone.
Runs on nodes: Python >= 3.8, standard library only.
"""

from __future__ import annotations

import re
import subprocess

from ..base.files import read_text

UNLIMITED = -1
CAP_SYS_RESOURCE = 24  # from capability.h: may raise hard limits
LIMITS = {
    "memlock": ("Max locked memory", "LimitMEMLOCK"),
    "nofile": ("Max open files", "LimitNOFILE"),
}
HEADER = "# Written by Trainyard's provision.yml; taken away by unprovision.yml.\n"
LINGER = "/var/lib/systemd/linger"
# Patterns of bounded length for what root acts on. A name is one path component and not an option.
ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}\Z")
LOWEST_UID = 1000
HIGHEST_UID = 2**32 - 2  # 2**32 - 1 is (uid_t) -1
LIMIT = re.compile(r"(infinity|[0-9]{1,19})\Z")


def parse_limit(text):
    """Return a limit as a number, -1 for infinity and unlimited."""
    if str(text) in ("infinity", "unlimited", "-1"):
        return UNLIMITED
    return int(text)


def hard_limits(text):
    """Return the hard limits {memlock, nofile} of the text of a process' limits file."""
    limits = {}
    for name, (title, _) in LIMITS.items():
        row = re.search(re.escape(title) + r"\s+\S+\s+(\S+)", text)
        if row:
            limits[name] = parse_limit(row[1])
    return limits


def allowed_limit(wanted, hard, may_raise, nr_open):
    """Return what a limit can become: the wanted one, or less.

    Without the right to raise it the ceiling is process 1's, and for files the kernel's fs.nr_open.
    """
    values = [wanted]
    if not may_raise:
        values.append(hard)
    if nr_open:
        values.append(nr_open)
    return min((value for value in values if value != UNLIMITED), default=UNLIMITED)


def is_lower(left, right):
    """Return True if a limit is lower than another."""
    return left != UNLIMITED and (right == UNLIMITED or left < right)


def node_limits(asked, read_text=read_text):
    """Return {limit: {wanted, allowed}} of this node.

    asked: the site's limits {memlock, nofile}.
    """
    hard = hard_limits(read_text("/proc/1/limits"))
    match = re.search(r"CapEff:\s*(\w+)", read_text("/proc/1/status"))
    may_raise = bool(match and int(match[1], 16) >> CAP_SYS_RESOURCE & 1)
    limits = {}
    for name in LIMITS:
        wanted = parse_limit(asked[name])
        nr_open = 0
        if name == "nofile":
            nr_open = int(read_text("/proc/sys/fs/nr_open") or 0)
        ceiling = allowed_limit(wanted, hard.get(name, UNLIMITED), may_raise, nr_open)
        limits[name] = {"wanted": wanted, "allowed": ceiling}
    return limits


def dropin_paths(uid):
    """Return the paths of the two drop-ins of a uid: of its manager and of its slice.

    Raises ValueError.
    """
    if isinstance(uid, bool) or not isinstance(uid, int) or not 0 <= uid <= HIGHEST_UID:
        raise ValueError(f"uid: want a whole number up to {HIGHEST_UID}; got {uid!r}")
    return (
        f"/etc/systemd/system/user@{uid}.service.d/50-trainyard.conf",
        f"/etc/systemd/system/user-{uid}.slice.d/50-trainyard.conf",
    )


def dropins(uid, limits):
    """Return {path: content} of the drop-ins.

    They set the limits that the node allows, and no cap on the number of tasks.
    """
    lines = []
    for name, limit in sorted(limits.items()):
        if limit["allowed"] == limit["wanted"]:
            value = limit["wanted"]
            if value == UNLIMITED:
                value = "infinity"
            lines.append(f"{LIMITS[name][1]}={value}\n")
    manager, user_slice = dropin_paths(uid)
    return {
        manager: HEADER + "[Service]\nTasksMax=infinity\n" + "".join(lines),
        user_slice: HEADER + "[Slice]\nTasksMax=infinity\n",
    }


def run_program(argv, timeout=20):
    """Return (exit code, output) of a program.

    The code is 127 where it is missing, 124 where it hangs.
    """
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
    except FileNotFoundError:
        return 127, f"{argv[0]} is not installed"
    except subprocess.TimeoutExpired:
        return 124, f"{argv[0]} did not answer within {int(timeout)} s"
    return done.returncode, (done.stdout or done.stderr).decode(errors="replace").strip()
