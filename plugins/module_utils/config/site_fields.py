# SPDX-License-Identifier: Apache-2.0
"""Hold single values of a site against what they may be; site.py puts them together. Controller
only.
"""

from __future__ import annotations

import ipaddress
import os
import re

from ..base import text_rules, yaml_source
from ..base.yaml_source import Problem, near, shown
from ..suites import suite_table as suite_tables
from . import job_env
from .job import RESERVED_ENV, load_schema

# A site may know better than the route which interface the training uses; the other reserved names
# are the plan's alone.
INTERFACE_ENV = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
# More devices than any machine has; a list of their ids is made of the number.
MOST_DEVICES = 1024
# A name of a machine, of ~/.ssh/config, or an address; a leading dash would be an option of ssh.
HOST = re.compile(r"[A-Za-z0-9_:\[][A-Za-z0-9._:%\[\]-]*\Z")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
# Directories of the system: themselves, and all that is below where nothing of a user's lies
# (file-hierarchy(7)).
SYSTEM = re.compile(
    r"/{1,2}(run|usr|dev|((usr/)?(s?bin|lib[^/]*|include)|etc|boot|proc|sys)(/.*)?|dev/(?!shm(/|\Z)).*)\Z"
)
# What the product writes below; none may be the file system or a home directory itself.
PLACES = ("trainyard_home", "trainyard_runs_dir", "trainyard_cache_dir", "trainyard_state_dir")


def device_ids(value):
    """Return the ids that `trainyard_devices` stands for: 8 -> ['0'..'7'], [4, 5] -> ['4', '5'].
    Raises ValueError.
    """
    if isinstance(value, (list, tuple)):
        ids = [str(item) for item in value]
        plain = all(re.fullmatch(r"0|[1-9][0-9]{0,3}", item) for item in ids)
        if not ids or len(set(ids)) != len(ids) or not plain:
            raise ValueError
        return ids
    if (
        isinstance(value, bool)
        or not re.fullmatch(r"[1-9][0-9]{0,3}", str(value))
        or int(str(value)) > MOST_DEVICES
    ):
        raise ValueError
    return [str(index) for index in range(int(str(value)))]


def port_number(value, lowest, where, key, problems):
    """Return a port as int; note a problem where it is none."""
    if (
        not isinstance(value, bool)
        and re.fullmatch(r"[1-9][0-9]{0,4}", str(value))
        and lowest <= int(value) <= 65535
    ):
        return int(value)
    problems.append(
        Problem(
            where, None, key, "must be a port from %d to 65535; got %s" % (lowest, shown(value))
        )
    )
    return None


def here(host):
    """Whether a name or an address means the machine that uses it, and so is no address for its
    peers.
    """
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower() in (
            "localhost",
            "ip6-localhost",
            "ip6-loopback",
        ) or host.lower().endswith((".localhost", ".localdomain"))
    return address.is_loopback or address.is_unspecified


def same(host):
    """Return a host as text under which the same address and the same name are equal, however they
    are written.
    """
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return host.lower()


def place_problem(value, home, up=True):
    """Say why the product may not keep anything at a path that the site gives, or return None.

    home: the user's home directory. up: '..' may stand in it, as the controller's paths often start
    at the inventory's directory.
    """
    said = (
        text_rules.problem(value)
        if isinstance(value, str)
        else f"must be a path; got {shown(value)}"
    )
    if said:
        return said
    path = (
        os.path.normpath(value.replace("${HOME}", "~").replace("$HOME", "~").strip())
        if value.strip()
        else "."
    )
    if path in (".", "..", "/", "//", "~", os.path.normpath(home)):
        return "is {} itself; got {}; say a directory of its own".format(
            "the file system" if path in ("/", "//") else "a home or working directory",
            shown(value),
        )
    if SYSTEM.match(path):
        return f"is a directory of the system; got {shown(value)}; say a directory of its own"
    if not up and ".." in value.split("/"):
        return f"may not lead upwards ('..'); got {shown(value)}"
    return None


def address_problem(value):
    """Say why an address or a network cannot be a node's on the training network, or return None."""
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        return f"must be an IP address or a network such as 10.0.0.0/24; got {shown(value)}"
    if network.version != 4:
        # --ips, MASTER_ADDR and the rank table are made of IPv4 addresses (plan.py); a login may
        # well go over IPv6
        return (
            f"must be an IPv4 address or network, which the plan is made of; got {shown(value)};"
            " ansible_host alone may be IPv6"
        )
    if network.is_multicast or (network.is_reserved and network.prefixlen):
        return f"must be an address that one machine can have; got {shown(value)}"
    return None


def suite_entries(suites, problems):
    """Return the part of `trainyard_suites` that a job can be judged by; note what is wrong with
    it.
    """
    key = "trainyard_suites"
    if not isinstance(suites, dict):
        problems.append(
            Problem(
                "inventory", None, key, f"must be a mapping of suite names; got {shown(suites)}"
            )
        )
        return {}
    known = suite_tables.names()
    for suite in [suite for suite in suites if suite not in known]:
        text = "unknown suite; allowed: {}{}".format(", ".join(known), near(suite, known))
        problems.append(Problem("inventory", None, f"{key}.{suite}", text))
    for suite in [suite for suite in suites if suite in known]:
        found = yaml_source.check(suites[suite], load_schema("site"), {}, "inventory")
        found += [
            Problem("inventory", None, yaml_source.dotted(path), text)
            for path, text in text_rules.walk(suites[suite])
        ]
        code = suites[suite].get("code") if isinstance(suites[suite], dict) else None
        said = (
            git_problem(code["git"])
            if isinstance(code, dict) and isinstance(code.get("git"), str)
            else None
        )
        found += [Problem("inventory", None, "code.git", said)] if said else []
        for problem in found:
            problem.key = ".".join([key, suite] + [problem.key] * bool(problem.key))
        problems += found
    return {
        suite: entry
        for suite, entry in suites.items()
        if suite in known and isinstance(entry, dict)
    }


def git_problem(url):
    """Say why a git address of the site cannot be used, or return None; what is said does not
    repeat it.
    """
    said = text_rules.problem(url)
    if said:
        return said
    if url.startswith("-") or "::" in url.split("/", 1)[0]:
        return "must be a path, or an https or ssh address"
    scheme, mark, rest = url.partition("://")
    login = rest.split("/", 1)[0].rpartition("@")[0] if mark else ""
    if (
        scheme in ("http", "https", "ftp", "ftps") and "@" in rest.partition("?")[0]
    ) or ":" in login:
        # git would show it in its command line, and keep it in the checkout's configuration
        return (
            "carries a login; put that into ~/.netrc of the controller (mode 0600), or into a"
            " credential helper of git, or take ssh"
        )
    return None


def secret_env(names, problems):
    """Return `trainyard_secret_env` as a list of names; note what is wrong with it."""
    if names is None:
        return []
    known = names if isinstance(names, (list, tuple)) else []
    sound = [
        str(name)
        for name in known
        if isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    ]
    if not isinstance(names, (list, tuple)) or len(sound) < len(known):
        # what was got is not said: whoever takes it for a mapping has written the values, too
        text = (
            "must be a list of names of environment variables, such as [WANDB_LOGIN], without their"
            " values"
        )
        problems.append(Problem("inventory", None, "trainyard_secret_env", text))
    return sorted(set(sound))


def environment(env, problems, secret=()):
    """Return `trainyard_env` as texts; note what is wrong with it. secret: the names whose values
    are not said.
    """
    if not isinstance(env, dict):
        text = "must be a mapping of environment variables"
        problems.append(
            Problem(
                "inventory",
                None,
                "trainyard_env",
                text if secret else f"{text}; got {shown(env)}",
            )
        )
        return {}
    for name, value in env.items():
        said = None
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            said = "must be the name of an environment variable"
        elif RESERVED_ENV.match(name) and name not in INTERFACE_ENV:
            said = "is reserved: the plan sets it; take it out"
        elif job_env.site_problem(name):
            said = job_env.site_problem(name)
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            said = (
                "must be text or a number"
                if name in secret
                else f"must be text or a number; got {shown(value)}"
            )
        else:
            said = text_rules.problem(str(value))
        if said:
            problems.append(Problem("inventory", None, f"trainyard_env.{name}", said))
    return {str(k): str(v) for k, v in env.items()}
