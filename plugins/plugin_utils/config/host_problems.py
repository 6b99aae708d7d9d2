# SPDX-License-Identifier: Apache-2.0
"""Problems of hosts that one line of the inventory has made. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings

from ..base.yaml_source import Problem


def merge(problems: Iterable[tuple[Problem, str]], names: Collection[str]) -> list[Problem]:
    """Return the problems, each line of a file once for all hosts that it is about.

    problems: (problem, host), host '' where it is about none. names: all hosts of the site. A line
    that is about all of them is a group's, and names no host.
    """
    hosts_of: dict[Problem, list[str]] = {}
    for problem, host in problems:
        known = hosts_of.setdefault(problem, [])
        if host and host not in known:
            known.append(host)
    return [_with_hosts(problem, hosts, names) for problem, hosts in hosts_of.items()]


def _with_hosts(problem: Problem, hosts: list[str], names: Collection[str]) -> Problem:
    if not hosts or problem.line is None or (len(hosts) > 1 and set(hosts) == set(names)):
        return problem
    noun = "host"
    if len(hosts) > 1:
        noun = "hosts"
    return dataclasses.replace(problem, text=f"{noun} {findings.named(hosts)}: {problem.text}")
