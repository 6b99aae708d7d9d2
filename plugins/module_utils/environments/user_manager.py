# SPDX-License-Identifier: Apache-2.0
"""The training account's own systemd: the limits a node allows and the drop-ins that set them.

Used by two modules: node_system looks as the training account, training_account writes as root.
Their paths and contents follow from the account's uid and the site's limits alone.
Runs on nodes: Python >= 3.8, standard library only.
"""

from __future__ import annotations

import re
import subprocess

UNLIMITED = -1
CAP_SYS_RESOURCE = 24  # capability.h; may raise hard limits
LIMITS = {
    "memlock": ("Max locked memory", "LimitMEMLOCK"),
    "nofile": ("Max open files", "LimitNOFILE"),
}
HEADER = "# Written by Trainyard's provision.yml; taken away by unprovision.yml.\n"
LINGER = "/var/lib/systemd/linger"
# Fixed-length patterns of what root acts on. A name is one path component and no option.
ACCOUNT = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}\Z")
LOWEST_UID = 1000
HIGHEST_UID = 2**32 - 2  # 2**32 - 1 is (uid_t) -1
LIMIT = re.compile(r"(infinity|[0-9]{1,19})\Z")


def number(text):
    """Return a limit as a number; infinity and unlimited are -1."""
    return UNLIMITED if str(text) in ("infinity", "unlimited", "-1") else int(text)


def hard_limits(text):
    """Return {memlock, nofile} of the text of a process' limits file, the hard ones."""
    found = {}
    for name, (title, _) in LIMITS.items():
        row = re.search(re.escape(title) + r"\s+\S+\s+(\S+)", text)
        if row:
            found[name] = number(row[1])
    return found


def allowed(wanted, hard, may_raise, nr_open):
    """Return what a limit can become: the wanted one, or less.

    Without the right to raise it the ceiling is process 1's, and for files the kernel's fs.nr_open.
    """
    ceilings = ([] if may_raise else [hard]) + ([nr_open] if nr_open else [])
    bounded = [each for each in [wanted, *ceilings] if each != UNLIMITED]
    return min(bounded) if bounded else UNLIMITED


def less(left, right):
    """Whether a limit is lower than another."""
    return left != UNLIMITED and (right == UNLIMITED or left < right)


def read(path):
    """Return a file's text, or '' where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def node_limits(asked, read_text=read):
    """Return {limit: {wanted, allowed}} for the site's limits {memlock, nofile} on this node."""
    first = hard_limits(read_text("/proc/1/limits"))
    effective = re.search(r"CapEff:\s*(\w+)", read_text("/proc/1/status"))
    may_raise = bool(int(effective[1] if effective else "0", 16) >> CAP_SYS_RESOURCE & 1)
    found = {}
    for name in LIMITS:
        wanted = number(asked[name])
        nr_open = int(read_text("/proc/sys/fs/nr_open") or 0) if name == "nofile" else 0
        ceiling = allowed(wanted, first.get(name, UNLIMITED), may_raise, nr_open)
        found[name] = {"wanted": wanted, "allowed": ceiling}
    return found


def dropin_paths(uid):
    """Return the paths of the two drop-ins of a uid: of its manager and of its slice."""
    if isinstance(uid, bool) or not isinstance(uid, int) or not 0 <= uid <= HIGHEST_UID:
        raise ValueError("uid: want a whole number up to %d; got %r" % (HIGHEST_UID, uid))
    return (
        "/etc/systemd/system/user@%d.service.d/50-trainyard.conf" % uid,
        "/etc/systemd/system/user-%d.slice.d/50-trainyard.conf" % uid,
    )


def dropins(uid, limits):
    """Return {path: content}: the limits that the node allows, and no cap on the number of tasks."""
    lines = []
    for name, each in sorted(limits.items()):
        if each["allowed"] == each["wanted"]:
            value = "infinity" if each["wanted"] == UNLIMITED else each["wanted"]
            lines.append(f"{LIMITS[name][1]}={value}\n")
    manager, part = dropin_paths(uid)
    return {
        manager: HEADER + "[Service]\nTasksMax=infinity\n" + "".join(lines),
        part: HEADER + "[Slice]\nTasksMax=infinity\n",
    }


def call(argv, timeout=20):
    """Return (exit code, output) of a program; 127 where it is missing, 124 where it hangs."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False
        )
    except FileNotFoundError:
        return 127, f"{argv[0]} is not installed"
    except subprocess.TimeoutExpired:
        return 124, "%s did not answer within %d s" % (argv[0], timeout)
    return done.returncode, (done.stdout or done.stderr).decode(errors="replace").strip()
