# SPDX-License-Identifier: Apache-2.0
"""Entries that Ansible loses without a message while it reads an inventory.

A host that stands twice becomes one (measured with 2.19).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import yaml

from ..base.yaml_source import MAX_BYTES, JobLoader, Problem, RefusedError

# What Ansible passes over in an inventory directory (INVENTORY_IGNORE_EXTS), and its own folders.
IGNORED = (
    ".pyc",
    ".pyo",
    ".swp",
    ".bak",
    "~",
    ".rpm",
    ".md",
    ".txt",
    ".rst",
    ".orig",
    ".cfg",
    ".retry",
    ".csv",
)
SECTION = re.compile(r"\[([^\]:]+)(:\w+)?\]")


def inventory_files(sources: Sequence[str]) -> list[str]:
    """Return the inventory files that a command line's sources mean.

    Executables are left out: Ansible runs them instead.
    """
    paths = []
    for source in sources:
        if not os.path.isdir(source):
            paths.append(source)
            continue
        for name in sorted(os.listdir(source)):
            ignored = name.startswith(".") or name.endswith(IGNORED)
            if not ignored and name not in ("group_vars", "host_vars"):
                paths.append(os.path.join(source, name))
    return [path for path in paths if os.path.isfile(path) and not os.access(path, os.X_OK)]


def _find_yaml_duplicates(text: str, file: str) -> list[Problem]:
    """Return a Problem for every key that a mapping of a YAML inventory holds twice."""
    try:
        node = JobLoader(text).get_single_node()
    except (yaml.YAMLError, RefusedError, ValueError):
        return []  # Ansible reports it, in its own words
    problems, queue = [], [node]
    while queue:
        node = queue.pop()
        if isinstance(node, yaml.SequenceNode):
            queue += node.value
        elif isinstance(node, yaml.MappingNode):
            queue += [value for _key, value in node.value]
            problems += _find_double_keys(node, file)
    return problems


def _find_double_keys(mapping: yaml.MappingNode, file: str) -> list[Problem]:
    """Return a Problem for every key that one mapping holds twice."""
    problems: list[Problem] = []
    first_lines: dict[str, int] = {}
    for key, _value in mapping.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        line = key.start_mark.line + 1
        if key.value in first_lines:
            text = (
                f"stands twice (first in line {first_lines[key.value]}); Ansible takes the last one"
                " alone"
            )
            problems.append(Problem(file, line, key.value, text, code="file.key_twice"))
        else:
            first_lines[key.value] = line
    return problems


def _find_ini_duplicates(lines: Sequence[str], file: str) -> list[Problem]:
    """Return a Problem for every host that a group of an INI inventory lists twice."""
    problems: list[Problem] = []
    first_lines: dict[tuple[str, str], int] = {}
    group: str | None = "ungrouped"
    for number, line in enumerate(lines, 1):
        section = SECTION.match(line.strip())
        if section:
            group = section.group(1)
            if section.group(2):  # [group:vars] and [group:children] list no hosts
                group = None
            continue
        words = line.split("#")[0].split(";")[0].split()
        if not words or group is None:
            continue
        host = words[0]
        if (group, host) in first_lines:
            text = (
                f"stands twice in [{group}] (first in line {first_lines[group, host]}); Ansible"
                " makes one host of both"
            )
            problems.append(Problem(file, number, host, text, code="site.host_twice"))
        first_lines.setdefault((group, host), number)
    return problems


def find_duplicates(sources: Sequence[str]) -> list[Problem]:
    """Return a Problem for every host or key that stands twice in the inventory.

    sources: what -i or ansible.cfg names.
    """
    problems = []
    for source in sources:
        if "," not in source:
            continue
        names = [name.strip() for name in source.split(",") if name.strip()]
        for name in sorted({name for name in names if names.count(name) > 1}):
            problems.append(
                Problem(
                    "command line",
                    None,
                    "-i",
                    f"lists the host {name} twice",
                    code="site.host_twice",
                )
            )
    for path in inventory_files([source for source in sources if "," not in source]):
        with open(path, "rb") as handle:
            text = handle.read(MAX_BYTES).decode("utf-8-sig", "replace")
        shown = os.path.relpath(path)
        if path.endswith((".yml", ".yaml", ".json")):
            problems += _find_yaml_duplicates(text, shown)
        else:
            problems += _find_ini_duplicates(text.splitlines(), shown)
    return problems
