# SPDX-License-Identifier: Apache-2.0
"""Errors of YAML in a site's files, with file and line.

Ansible reads these files before any plugin of the product. Its message about a file that is not
YAML has neither the file nor the line, so the command reads the files first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from .product import shown_path

_ENDINGS = ("", ".yml", ".yaml", ".json")
_VAULT = "$ANSIBLE_VAULT"


class _Loader(yaml.SafeLoader):
    """Reads what Ansible reads: `!vault` and `!unsafe` are values like any other."""


def _any_value(loader: _Loader, _suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    return None


_Loader.add_multi_constructor("!", _any_value)


def syntax_problems(inventory: Path) -> list[str]:
    """Return one line for each file of a site that is not YAML: file, line, column, reason."""
    problems = []
    for path in site_files(inventory):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            problems.append(f"{shown_path(path)}: is not UTF-8: byte {error.start}")
            continue
        except OSError as error:
            problems.append(f"{shown_path(path)}: cannot be read: {error.strerror}")
            continue
        if not text.startswith(_VAULT):
            problems += _problems_of(path, text)
    return problems


def site_files(inventory: Path) -> list[Path]:
    """Return the YAML files that Ansible reads for an inventory, in order."""
    if inventory.is_dir():
        folder = inventory
        files = [path for path in sorted(folder.iterdir()) if _is_yaml_inventory(path)]
    else:
        folder = inventory.parent
        files = [inventory] if _is_yaml_inventory(inventory) else []
    for name in ("group_vars", "host_vars"):
        for parent, _folders, names in os.walk(folder / name):
            paths = [Path(parent, file) for file in sorted(names)]
            files += [path for path in paths if _is_variable_file(path)]
    return files


def _is_yaml_inventory(path: Path) -> bool:
    """Return whether a file is an inventory that is written in YAML: no program, no INI."""
    if not path.is_file() or os.access(path, os.X_OK):
        return False
    return path.suffix in (".yml", ".yaml", ".json")


def _is_variable_file(path: Path) -> bool:
    """Return whether Ansible reads a file below group_vars or host_vars."""
    return path.suffix in _ENDINGS and not path.name.startswith(".") and path.name[-1] != "~"


def _problems_of(path: Path, text: str) -> list[str]:
    """Return the problem of a file's text, if it has one."""
    try:
        yaml.load(text, Loader=_Loader)  # _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        return [_describe(path, error)]
    except yaml.YAMLError as error:
        return [f"{shown_path(path)}: is not YAML: {error}"]
    return []


def _describe(path: Path, error: yaml.MarkedYAMLError) -> str:
    """Return what a parser says of a place in a file, in one line."""
    place = shown_path(path)
    mark = error.problem_mark or error.context_mark
    column = ""
    if mark is not None:
        place += f":{mark.line + 1}"
        column = f" (column {mark.column + 1})"
    reason = error.problem or error.context or "unreadable"
    begun = ""
    if error.context and error.context_mark is not None:
        begun = f", {error.context} that begins in line {error.context_mark.line + 1}"
    return f"{place}: is not YAML: {reason}{column}{begun}"
