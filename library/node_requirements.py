#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
module: node_requirements
short_description: Return what a node's system still needs before it can train
description:
  - Reads only, as the training user. It asks the package database, systemd and the kernel, so no
    root is needed to see that a node is ready.
  - What it says decides whether root is asked. It never decides what root writes or removes.
  - A training is a unit of the training user's own systemd. That needs lingering (it lives without
    a login), a manager that answers, and limits, which come from two drop-ins; C(limits.conf) does
    not apply to units.
  - Only limits that the node may set go into the drop-ins. Without CAP_SYS_RESOURCE (many
    containers) a limit cannot be raised above the hard limit of process 1, so it is left as it is
    and reported. See setrlimit(2), systemd.exec(5) and user@.service(5).
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
  site:
    description: Name of the site, by which its records on the node are found.
    type: str
    default: ""
  home:
    description: The product's directory; relative to the training user's home unless absolute.
    type: str
    default: ""
notes:
  - Supports check mode, in which it does the same.
"""

EXAMPLES = r"""
- name: See what the node needs
  node_requirements:
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
    - What is missing, in words for C(when). V(packages), V(linger), V(limits) (a drop-in differs),
      V(manager) (the user manager does not answer), V(restart) (it is older than its limits and has
      less than it may have).
  type: list
  elements: str
  returned: success
family:
  description: V(debian), V(redhat), or empty where neither is known.
  type: str
  returned: success
missing:
  description: Packages that are not installed; programs that are not there where the family is
    unknown.
  type: list
  elements: str
  returned: success
user:
  description: Name of the training user.
  type: str
  returned: success
records:
  description: Records of root's that this site has here, V(accounts) and V(firewall). Their
    contents are root's to read.
  type: list
  elements: str
  returned: success
notes:
  description: Notes of earlier versions in the product's directory, V(firewall.json) and
    V(lingering). They are not obeyed as root.
  type: list
  elements: str
  returned: success
manager:
  description: What C(systemctl --user is-system-running) says, or why it cannot be asked.
  type: str
  returned: success
  sample: running
limits:
  description:
    - By limit (V(memlock) in bytes, V(nofile) a number), what is V(wanted), V(allowed) here, and
      V(measured) inside a unit.
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
import sys

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.base import processes
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_text
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import root_records
from ansible_collections.trainyard.cluster.plugins.module_utils.environments.user_manager import (
    LIMIT,
    LIMITS,
    LINGER,
    dropins,
    hard_limits,
    is_lower,
    node_limits,
    run_program,
)

PROGRAMS = ("rsync", "ssh", "loginctl", "systemd-run")
# The names in ID and ID_LIKE of /etc/os-release, by family.
FAMILIES = {
    "debian": {"debian", "ubuntu"},
    "redhat": {"rhel", "fedora", "centos", "openeuler", "kylin", "anolis", "rocky", "almalinux"},
}
# Packages that only a Python before this version needs, and a version that none reaches. A virtual
# environment needs distutils before 3.10, and Debian has it as a package of its own.
ONLY_BEFORE = {"python3-distutils": (3, 10)}
NEWER = (99,)
# What earlier versions noted in the product's directory. It is reported, and never obeyed as root.
NOTES = ("firewall.json", "lingering")


def family_of(os_release):
    """Return debian, redhat or '' for the text of /etc/os-release."""
    words = " ".join(re.findall(r'^(?:ID|ID_LIKE)="?([^"\n]*)', os_release, re.M)).lower().split()
    for family, names in FAMILIES.items():
        if names & set(words):
            return family
    return ""


def missing_packages(family, packages, ask=run_program):
    """Return the packages of this family that are not installed."""
    if not family:
        return [name for name in PROGRAMS if not shutil.which(name)]
    if family == "debian":
        packages = [name for name in packages if sys.version_info < ONLY_BEFORE.get(name, NEWER)]
        _, text = ask(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\\n", *packages])
        there = {line.split()[0] for line in text.splitlines() if line.endswith(" installed")}
        return [name for name in packages if name not in there]
    return [name for name in packages if ask(["rpm", "-q", "--whatprovides", name])[0] != 0]


def manager_started(uid, ask=run_program):
    """Return when the user manager began, in seconds since 1970, or None.

    Start times of processes count from the boot.
    """
    _, text = ask(["systemctl", "show", f"user@{uid}.service", "--property", "MainPID"])
    started = processes.start_of(text.partition("=")[2] or 0)
    boot = re.search(r"^btime (\d+)", read_text("/proc/stat"), re.M)
    if started is None or not boot:
        return None
    return int(boot[1]) + started / os.sysconf("SC_CLK_TCK")


def look(params, ask=run_program):
    """Return what the module returns, without Ansible."""
    user = pwd.getpwuid(os.getuid())
    os.environ["XDG_RUNTIME_DIR"] = f"/run/user/{user.pw_uid}"
    family = family_of(read_text("/etc/os-release"))
    missing = missing_packages(family, params["packages"].get(family, []), ask)
    _, manager = ask(["systemctl", "--user", "is-system-running"])
    answers = manager in ("running", "degraded", "starting")
    limits = measured_limits(params, answers, ask)
    wanted = dropins(user.pw_uid, limits)
    checks = {
        "packages": bool(missing),
        "linger": not os.path.exists(os.path.join(LINGER, user.pw_name)),
        "limits": any(read_text(path) != content for path, content in wanted.items()),
        "manager": not answers,
        "restart": answers and needs_restart(user.pw_uid, limits, wanted, ask),
    }
    return {
        "needs": [name for name, needed in checks.items() if needed],
        "family": family,
        "missing": missing,
        "user": user.pw_name,
        "records": records_here(params.get("site")),
        "notes": notes_here(params.get("home"), user.pw_dir),
        "manager": manager,
        "limits": limits,
        "units": active_units(answers, ask),
    }


def measured_limits(params, answers, ask):
    """Return the limits of the node, with those that a unit of the user has.

    answers: the user manager does.
    """
    measured = {}
    if answers:
        words = "systemd-run --user --wait --collect --pipe --quiet cat /proc/self/limits"
        _, text = ask(words.split())
        measured = hard_limits(text)
    limits = node_limits(params, read_text)
    for name in LIMITS:
        limits[name]["measured"] = measured.get(name)
    return limits


def needs_restart(uid, limits, wanted, ask):
    """Return true if the user manager has lower limits than a new one would have.

    wanted: {path: content} of the drop-ins.
    """
    started = manager_started(uid, ask)
    newest = max((os.path.getmtime(path) for path in wanted if os.path.exists(path)), default=0)
    if started is None or started >= newest:
        return False
    return any(
        each["measured"] is not None and is_lower(each["measured"], each["allowed"])
        for each in limits.values()
    )


def records_here(site):
    """Return the names of root's records that the site has on this node."""
    if not site:
        return []
    records = root_records.Records(site)
    return [name for name in root_records.NAMES if os.path.exists(records.path(name))]


def notes_here(home, user_home):
    """Return the names of the notes of earlier versions in the product's directory."""
    if not home:
        return []
    directory = os.path.join(user_home, os.path.expanduser(home))
    return [name for name in NOTES if os.path.exists(os.path.join(directory, name))]


def active_units(answers, ask):
    """Return the active units of ours.

    answers: the user manager does.
    """
    if not answers:
        return []
    words = ["systemctl", "--user", "list-units", "--plain", "--no-legend"]
    _, units = ask([*words, "--state=active,activating,deactivating", "trainyard-*"])
    return [line.split()[0] for line in units.splitlines()]


def main():
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "dict", "required": True},
            "memlock": {"type": "str", "default": "infinity"},
            "nofile": {"type": "str", "default": "1048576"},
            "site": {"type": "str", "default": ""},
            "home": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    for name in LIMITS:
        if not LIMIT.match(module.params[name]):
            module.fail_json(msg=f"{name}: want a number or infinity; got {module.params[name]!r}")
    module.exit_json(changed=False, **look(module.params))


if __name__ == "__main__":
    main()
