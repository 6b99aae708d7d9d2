#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: node_system
short_description: Tell what a node's system still needs before it can train
description:
  - Reads only, as the training user. It asks the package database, systemd and the kernel, so a node that is ready is told without root.
  - A training is a unit of the training user's own systemd. That needs lingering (it lives without a login), a manager that answers, and
    limits, which come from two drop-ins; C(limits.conf) does not apply to units.
  - Only limits that the node may set go into the drop-ins. Without CAP_SYS_RESOURCE (many containers) a limit cannot be raised above the
    hard limit of process 1, so it is left as it is and reported. See setrlimit(2), systemd.exec(5) and user@.service(5).
version_added: "0.1.0"
author: Trainyard
options:
  packages:
    description: Packages a node needs, by distribution family (C(debian), C(redhat)).
    type: dict
    required: true
  memlock:
    description: Wanted locked memory in bytes, or V(infinity).
    type: str
    default: infinity
  nofile:
    description: Wanted number of open files, or V(infinity).
    type: str
    default: "1048576"
notes:
  - Supports check mode, in which it does the same.
"""

EXAMPLES = r"""
- name: See what the node needs
  node_system:
    packages:
      debian: [rsync, libgomp1]
  register: system

- name: Say it
  ansible.builtin.debug:
    msg: "{{ system.needs | default('nothing', true) }}"
"""

RETURN = r"""
needs:
  description:
    - What is missing, in words for C(when). V(packages), V(linger), V(limits) (a drop-in differs), V(manager) (the user manager does not
      answer), V(restart) (it is older than its limits and has less than it may have).
  type: list
  elements: str
  returned: success
family:
  description: V(debian), V(redhat), or empty where neither is known.
  type: str
  returned: success
missing:
  description: Packages that are not installed; programs that are not there where the family is unknown.
  type: list
  elements: str
  returned: success
user:
  description: Name of the training user.
  type: str
  returned: success
uid:
  description: Its number.
  type: int
  returned: success
dropins:
  description: Path to content of the drop-ins this node should have.
  type: dict
  returned: success
manager:
  description: What C(systemctl --user is-system-running) says, or why it cannot be asked.
  type: str
  returned: success
  sample: running
limits:
  description:
    - By limit (V(memlock) in bytes, V(nofile) a number), what is V(wanted), V(allowed) here, and V(measured) inside a unit.
    - V(-1) is no limit.
  type: dict
  returned: success
units:
  description: Active units of ours, that is, attempts that hold this node.
  type: list
  elements: str
  returned: success
"""

import os
import pwd
import re
import shutil
import subprocess

from ansible.module_utils.basic import AnsibleModule

UNLIMITED = -1
CAP_SYS_RESOURCE = 24  # capability.h; may raise hard limits
LIMITS = {"memlock": ("Max locked memory", "LimitMEMLOCK"), "nofile": ("Max open files", "LimitNOFILE")}
PROGRAMS = ("rsync", "ssh", "loginctl", "systemd-run")
HEADER = "# Written by Trainyard's provision.yml; taken away by unprovision.yml.\n"


def family_of(os_release):
    """Return debian, redhat or '' for the text of /etc/os-release."""
    words = " ".join(re.findall(r'^(?:ID|ID_LIKE)="?([^"\n]*)', os_release, re.M)).lower().split()
    if {"debian", "ubuntu"} & set(words):
        return "debian"
    return "redhat" if {"rhel", "fedora", "centos", "openeuler", "kylin", "anolis", "rocky", "almalinux"} & set(words) else ""


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
    """Return what a limit can become: all that is wanted, or no more than process 1 has (files: than the kernel's fs.nr_open)."""
    ceilings = ([] if may_raise else [hard]) + ([nr_open] if nr_open else [])
    bounded = [each for each in [wanted, *ceilings] if each != UNLIMITED]
    return min(bounded) if bounded else UNLIMITED


def less(left, right):
    """Whether a limit is lower than another."""
    return left != UNLIMITED and (right == UNLIMITED or left < right)


def dropins(uid, limits):
    """Return {path: content}: the manager's limits as far as the node allows them, and no cap on the number of tasks."""
    lines = [
        f"{LIMITS[name][1]}={'infinity' if each['wanted'] == UNLIMITED else each['wanted']}\n"
        for name, each in sorted(limits.items())
        if each["allowed"] == each["wanted"]
    ]
    return {
        f"/etc/systemd/system/user@{uid}.service.d/50-trainyard.conf": HEADER + "[Service]\nTasksMax=infinity\n" + "".join(lines),
        f"/etc/systemd/system/user-{uid}.slice.d/50-trainyard.conf": HEADER + "[Slice]\nTasksMax=infinity\n",
    }


def read(path):
    """Return a file's text, or '' where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def call(argv, timeout=20):
    """Return (exit code, output) of a program; 127 where it is missing, 124 where it hangs."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, check=False)
    except FileNotFoundError:
        return 127, f"{argv[0]} is not installed"
    except subprocess.TimeoutExpired:
        return 124, f"{argv[0]} did not answer within {timeout} s"
    return done.returncode, (done.stdout or done.stderr).decode(errors="replace").strip()


def missing_packages(family, packages, ask=call):
    """Return the packages of this family that are not installed."""
    if not family:
        return [name for name in PROGRAMS if not shutil.which(name)]
    if family == "debian":
        _, text = ask(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\\n", *packages])
        there = {line.split()[0] for line in text.splitlines() if line.endswith(" installed")}
        return [name for name in packages if name not in there]
    return [name for name in packages if ask(["rpm", "-q", "--whatprovides", name])[0] != 0]


def manager_started(uid, ask=call):
    """Return when the user manager began, in seconds since 1970, or None. Process start times count from the boot."""
    _, text = ask(["systemctl", "show", f"user@{uid}.service", "--property", "MainPID"])
    status = read(f"/proc/{text.partition('=')[2] or 0}/stat")
    boot = re.search(r"^btime (\d+)", read("/proc/stat"), re.M)
    if not status or not boot:
        return None
    return int(boot[1]) + int(status.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")


def look(params, ask=call):
    """Return what the module returns, without Ansible."""
    user = pwd.getpwuid(os.getuid())
    os.environ["XDG_RUNTIME_DIR"] = f"/run/user/{user.pw_uid}"
    family = family_of(read("/etc/os-release"))
    missing = missing_packages(family, params["packages"].get(family, []), ask)
    _, manager = ask(["systemctl", "--user", "is-system-running"])
    answers = manager in ("running", "degraded", "starting")
    _, text = ask(["systemd-run", "--user", "--wait", "--collect", "--pipe", "--quiet", "cat", "/proc/self/limits"]) if answers else (1, "")
    measured, first = hard_limits(text), hard_limits(read("/proc/1/limits"))
    may_raise = bool(int((re.search(r"CapEff:\s*(\w+)", read("/proc/1/status")) or [0, "0"])[1], 16) >> CAP_SYS_RESOURCE & 1)
    limits = {}
    for name in LIMITS:
        wanted, nr_open = number(params[name]), int(read("/proc/sys/fs/nr_open") or 0) if name == "nofile" else 0
        limits[name] = {
            "wanted": wanted,
            "allowed": allowed(wanted, first.get(name, UNLIMITED), may_raise, nr_open),
            "measured": measured.get(name),
        }
    wants = dropins(user.pw_uid, limits)
    started, newest = manager_started(user.pw_uid, ask), max((os.path.getmtime(p) for p in wants if os.path.exists(p)), default=0)
    low = any(each["measured"] is not None and less(each["measured"], each["allowed"]) for each in limits.values())
    _, units = ask(["systemctl", "--user", "list-units", "--plain", "--no-legend", "--state=active,activating,deactivating", "trainyard-*"])
    checks = {
        "packages": bool(missing),
        "linger": not os.path.exists(f"/var/lib/systemd/linger/{user.pw_name}"),
        "limits": any(read(path) != content for path, content in wants.items()),
        "manager": not answers,
        "restart": answers and low and started is not None and started < newest,
    }
    return {
        "needs": [name for name, needed in checks.items() if needed],
        "family": family,
        "missing": missing,
        "user": user.pw_name,
        "uid": user.pw_uid,
        "dropins": wants,
        "manager": manager,
        "limits": limits,
        "units": [line.split()[0] for line in units.splitlines()] if answers else [],
    }


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "required": True},
            "memlock": {"type": "str", "default": "infinity"},
            "nofile": {"type": "str", "default": "1048576"},
        },
        supports_check_mode=True,
    )
    for name in LIMITS:
        if not re.fullmatch(r"infinity|\d+", module.params[name]):
            module.fail_json(msg=f"{name}: want a number or infinity; got {module.params[name]!r}")
    module.exit_json(changed=False, **look(module.params))


if __name__ == "__main__":
    main()
