# SPDX-License-Identifier: Apache-2.0
"""Find what Ansible loses while it reads an inventory: a host that stands twice becomes one,
without a word (measured with 2.19). Controller only.
"""

from __future__ import annotations

import os
import re

import yaml

from ..base.yaml_source import MAX_BYTES, Problem, _Loader, _Refused

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


def files(sources):
    """Return the inventory files that a command line's sources mean; executables, which Ansible
    runs instead, are left out.
    """
    found = []
    for source in sources:
        if os.path.isdir(source):
            names = sorted(
                name
                for name in os.listdir(source)
                if not name.startswith(".") and not name.endswith(IGNORED)
            )
            found += [
                os.path.join(source, name)
                for name in names
                if name not in ("group_vars", "host_vars")
            ]
        else:
            found.append(source)
    return [path for path in found if os.path.isfile(path) and not os.access(path, os.X_OK)]


def _yaml_twice(text, lines, file):
    """Return a Problem for every key that a mapping of a YAML inventory holds twice."""
    try:
        node = _Loader(text).get_single_node()
    except (yaml.YAMLError, _Refused, ValueError):
        return []  # Ansible says it, in its own words
    found, queue = [], [node]
    while queue:
        node = queue.pop()
        if isinstance(node, yaml.SequenceNode):
            queue += node.value
        elif isinstance(node, yaml.MappingNode):
            seen = {}
            for key, value in node.value:
                queue.append(value)
                line = key.start_mark.line + 1
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    text = (
                        "stands twice (first in line %d); Ansible takes the last one alone"
                        % seen[key.value]
                    )
                    found.append(Problem(file, line, key.value, text))
                elif isinstance(key, yaml.ScalarNode):
                    seen[key.value] = line
    return found


def _ini_twice(text, lines, file):
    """Return a Problem for every host that a group of an INI inventory lists twice."""
    found, group, seen = [], "ungrouped", {}
    for number, line in enumerate(lines, 1):
        section = SECTION.match(line.strip())
        if section:
            group = None if section.group(2) else section.group(1)
            continue
        words = line.split("#")[0].split(";")[0].split()
        if not words or group is None:
            continue
        if (group, words[0]) in seen:
            said = "stands twice in [%s] (first in line %d); Ansible makes one host of both" % (
                group,
                seen[group, words[0]],
            )
            found.append(Problem(file, number, words[0], said))
        seen.setdefault((group, words[0]), number)
    return found


def twice(sources):
    """Return a Problem for every host, or other key, that stands twice in the inventory; sources:
    what -i or ansible.cfg names.
    """
    found = []
    for source in sources:
        names = (
            [name.strip() for name in source.split(",") if name.strip()] if "," in source else []
        )
        for name in sorted({name for name in names if names.count(name) > 1}):
            found.append(Problem("command line", None, "-i", f"lists the host {name} twice"))
    for path in files([source for source in sources if "," not in source]):
        with open(path, "rb") as handle:
            text = handle.read(MAX_BYTES).decode("utf-8-sig", "replace")
        look = _yaml_twice if path.endswith((".yml", ".yaml", ".json")) else _ini_twice
        found += look(text, text.splitlines(), os.path.relpath(path))
    return found
