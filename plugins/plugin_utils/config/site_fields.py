# SPDX-License-Identifier: Apache-2.0
"""Values of a site: the rules for each of them. site.py puts them together."""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
from collections.abc import Collection
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import text_rules
from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import (
    abbreviate,
    suggest,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import job_env

from ..base import yaml_source
from ..base.yaml_source import Problem
from ..suites import suite_file
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
SYSTEM_DIRECTORY = re.compile(
    r"/{1,2}(run|usr|dev|((usr/)?(s?bin|lib[^/]*|include)|etc|boot|proc|sys)(/.*)?"
    r"|dev/(?!shm(/|\Z)).*)\Z"
)
# What the product writes below; none may be the file system or a home directory itself.
DIRECTORIES = ("trainyard_home", "trainyard_runs_dir", "trainyard_cache_dir", "trainyard_state_dir")


def parse_devices(value: Any) -> list[str]:
    """Return the ids that `trainyard_devices` stands for.

    8 -> ['0'..'7'], [4, 5] -> ['4', '5']. Raise ValueError.
    """
    if isinstance(value, (list, tuple)):
        ids = [str(item) for item in value]
        plain = all(re.fullmatch(r"0|[1-9][0-9]{0,3}", item) for item in ids)
        if not ids or len(set(ids)) != len(ids) or not plain:
            raise ValueError
        return ids
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise ValueError
    if int(text) > MOST_DEVICES:
        raise ValueError
    return [str(index) for index in range(int(text))]


def parse_port(
    value: Any, lowest: int, where: str, key: str, problems: list[Problem]
) -> int | None:
    """Return a port as int, or None with a problem in `problems`."""
    if (
        not isinstance(value, bool)
        and re.fullmatch(r"[1-9][0-9]{0,4}", str(value))
        and lowest <= int(value) <= 65535
    ):
        return int(value)
    text = f"must be a port from {lowest} to 65535; got {abbreviate(value)}"
    problems.append(Problem(where, None, key, text, code="value.bad_port"))
    return None


def is_own_machine(host: str) -> bool:
    """Return whether a name or an address means the machine that uses it.

    Such a one is no address for its peers.
    """
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        name = host.lower()
        return name in ("localhost", "ip6-localhost", "ip6-loopback") or name.endswith(
            (".localhost", ".localdomain")
        )
    return address.is_loopback or address.is_unspecified


def normalize_host(host: str) -> str:
    """Return a host as text to compare: equal for each spelling of an address."""
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return host.lower()


def directory_problem(value: Any, home: str, up: bool = True) -> str | None:
    """Say why the product may not keep anything at a path of the site, or return None.

    home: the user's home directory. up: it is a path of the controller, in which '..' may stand, as
    such paths often start at the inventory's directory. Else it is one of a node.
    """
    if not isinstance(value, str):
        return f"must be a path; got {abbreviate(value)}"
    problem = text_rules.problem(value)
    if problem:
        return problem
    path = "."
    if value.strip():
        path = os.path.normpath(value.replace("${HOME}", "~").replace("$HOME", "~").strip())
    own_directory = f"got {abbreviate(value)}; say a directory of its own"
    if path in ("/", "//"):
        return f"is the file system itself; {own_directory}"
    if path in (".", "..", "~", os.path.normpath(home)):
        return f"is a home or working directory itself; {own_directory}"
    if SYSTEM_DIRECTORY.match(path):
        return f"is a directory of the system; {own_directory}"
    if not up and ".." in value.split("/"):
        return f"may not lead upwards ('..'); got {abbreviate(value)}"
    if not up and value.strip().startswith(("~", "$")):
        # Modules on nodes join it with the home directory, and no shell reads it.
        return (
            "may not begin with '~' or '$'; a relative path begins at the home directory of each"
            f" node; got {abbreviate(value)}"
        )
    return None


def address_problem(value: str) -> str | None:
    """Say why a text cannot be a node's training address, or return None.

    value: an IPv4 address or a network.
    """
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        return f"must be an IP address or a network such as 10.0.0.0/24; got {abbreviate(value)}"
    if network.version != 4:
        # --ips, MASTER_ADDR and the rank table are made of IPv4 addresses (plan/compiler.py). A
        # login may well go over IPv6.
        return (
            f"must be an IPv4 address or network, which the plan is made of; got"
            f" {abbreviate(value)}; ansible_host alone may be IPv6"
        )
    if network.is_multicast or (network.is_reserved and network.prefixlen):
        return f"must be an address that one machine can have; got {abbreviate(value)}"
    return None


def read_suites(suites: Any, problems: list[Problem]) -> dict[str, Any]:
    """Return the valid part of `trainyard_suites`, and note its problems."""
    key = "trainyard_suites"
    if not isinstance(suites, dict):
        text = f"must be a mapping of suite names; got {abbreviate(suites)}"
        problems.append(Problem("inventory", None, key, text, code="value.wrong_type"))
        return {}
    known = suite_file.names()
    for suite in suites:
        if suite not in known:
            text = f"unknown suite; allowed: {', '.join(known)}{suggest(suite, known)}"
            problems.append(
                Problem("inventory", None, f"{key}.{suite}", text, code="site.unknown_suite")
            )
    entries = {}
    for suite, entry in suites.items():
        if suite in known:
            problems += _entry_problems(f"{key}.{suite}", entry)
            if isinstance(entry, dict):
                entries[suite] = entry
    return entries


def _entry_problems(key: str, entry: Any) -> list[Problem]:
    """Return the problems of one suite's entry. key: the dotted key of the entry."""
    problems = yaml_source.validate(entry, load_schema("site"), {}, "inventory")
    for path, text in text_rules.walk(entry):
        problems.append(
            Problem("inventory", None, yaml_source.dotted_key(path), text, code="value.bad_text")
        )
    code = None
    if isinstance(entry, dict):
        code = entry.get("code")
    if isinstance(code, dict) and isinstance(code.get("git"), str):
        text = git_problem(code["git"])
        if text:
            problems.append(
                Problem("inventory", None, "code.git", text, code="site.bad_git_address")
            )
    return [
        dataclasses.replace(problem, key=".".join(filter(None, (key, problem.key))))
        for problem in problems
    ]


def git_problem(url: str) -> str | None:
    """Say why a git address of the site cannot be used, or return None.

    The text does not repeat the address, which may hold a password.
    """
    problem = text_rules.problem(url)
    if problem:
        return problem
    if url.startswith("-") or "::" in url.split("/", 1)[0]:
        return "must be a path, or an https or ssh address"
    scheme, mark, rest = url.partition("://")
    login = ""
    if mark:
        login = rest.split("/", 1)[0].rpartition("@")[0]
    has_user = scheme in ("http", "https", "ftp", "ftps") and "@" in rest.partition("?")[0]
    if has_user or ":" in login:
        # git would show it in its command line, and keep it in the checkout's configuration
        return (
            "carries a login; put that into ~/.netrc of the controller (mode 0600), or into a"
            " credential helper of git, or take ssh"
        )
    return None


def read_secret_env(names: Any, problems: list[Problem]) -> list[str]:
    """Return `trainyard_secret_env` as a list of names, and note its problems."""
    if names is None:
        return []
    entries: list[Any] = []
    if isinstance(names, (list, tuple)):
        entries = list(names)
    valid = [
        str(name)
        for name in entries
        if isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
    ]
    if not isinstance(names, (list, tuple)) or len(valid) < len(entries):
        # The text does not show the value: a user who takes it for a mapping has written the
        # secrets, too.
        text = (
            "must be a list of names of environment variables, such as [WANDB_LOGIN], without their"
            " values"
        )
        problems.append(
            Problem("inventory", None, "trainyard_secret_env", text, code="site.bad_secret_names")
        )
    return sorted(set(valid))


def read_environment(
    env: Any, problems: list[Problem], secret: Collection[str] = ()
) -> dict[str, str]:
    """Return `trainyard_env` as texts, and note its problems.

    secret: the names whose values no message may show.
    """
    if not isinstance(env, dict):
        text = "must be a mapping of environment variables"
        if not secret:
            text += f"; got {abbreviate(env)}"
        problems.append(Problem("inventory", None, "trainyard_env", text, code="value.wrong_type"))
        return {}
    for name, value in env.items():
        reason = _variable_problem(name, value, secret)
        if reason:
            problems.append(
                Problem(
                    "inventory", None, f"trainyard_env.{name}", reason, code="site.bad_environment"
                )
            )
    return {str(name): str(value) for name, value in env.items()}


def _variable_problem(name: Any, value: Any, secret: Collection[str]) -> str | None:
    """Say why a variable cannot stand in `trainyard_env`, or return None."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return "must be the name of an environment variable"
    if job_env.site_problem(name):
        return job_env.site_problem(name)
    if RESERVED_ENV.match(name) and name not in INTERFACE_ENV:
        return "is reserved: the plan sets it; take it out"
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        if name in secret:
            return "must be text or a number"
        return f"must be text or a number; got {abbreviate(value)}"
    return text_rules.problem(str(value))
