# SPDX-License-Identifier: Apache-2.0
"""The ansible-playbook command of a verb, complete with the inventory in use."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import sanitize

# A verb in a text, with or without the program in front of it. What has an option of its own is
# complete. A path below another directory is a file and no command.
_VERB = re.compile(
    r"(?<![\w/.~-])(?P<program>ansible-playbook (?P<options>(?:-\S+ (?:'[^']*'|\S+) )*))?"
    r"playbooks/(?P<verb>[a-z_]+)\.yml\b(?!:\d)"
)
# A playbook of the installed collection, which has no path.
_OF_COLLECTION = re.compile(r"trainyard\.cluster\.[a-z_]+\Z")
# What `trainyard` sets for its playbook and what a pasted command needs, too.
_VARIABLES = ("ANSIBLE_CONFIG", "TRAINYARD_PROJECT")


@dataclass(frozen=True)
class CommandLine:
    """How this process was started, as far as another verb needs it.

    inventories: of the command line. defaults: the configured inventories, which a command need not
    name. playbook: as it was given, '' if unknown. environ: the process's environment.
    """

    inventories: Iterable[str] = ()
    defaults: Iterable[str] = ()
    playbook: str = ""
    environ: Mapping[str, str] = field(default_factory=dict)

    def of(self, verb: str) -> str:
        """Return the command of a verb, such as 'stop', without its -e. It is safe to print."""
        return sanitize.escape(
            f"{self._variables()}ansible-playbook {self._inventory_options()}{self._path(verb)}"
        )

    def complete(self, line: str) -> str:
        """Return a text with every command in it ready to be pasted."""
        return _VERB.sub(self._replace, line)

    def _replace(self, match: re.Match[str]) -> str:
        if match["options"]:
            return match[0]
        return self.of(match["verb"])

    def _variables(self) -> str:
        """Return the variables of the environment, '' where the directory has its ansible.cfg."""
        config = self.environ.get("ANSIBLE_CONFIG")
        if not config or os.path.realpath(os.path.dirname(config)) == os.path.realpath(os.curdir):
            return ""
        return "".join(
            f"{name}={shlex.quote(self.environ[name])} "
            for name in _VARIABLES
            if self.environ.get(name)
        )

    def _inventory_options(self) -> str:
        """Return the options that name the inventories, '' where they are the configured ones."""
        default_paths = {os.path.abspath(path) for path in self.defaults}
        return "".join(
            f"-i {shlex.quote(_shorten(source))} "
            for source in self.inventories
            if os.path.abspath(source) not in default_paths
        )

    def _path(self, verb: str) -> str:
        """Return a verb's playbook, beside the one that was given."""
        if _OF_COLLECTION.match(self.playbook):
            return f"trainyard.cluster.{verb}"
        folder = os.path.dirname(self.playbook)
        if os.path.basename(folder) != "playbooks":
            folder = "playbooks"
        return shlex.quote(f"{folder}/{verb}.yml")


def complete_all(value: Any, line: CommandLine) -> Any:
    """Return plain data with the commands in its texts complete."""
    if isinstance(value, str):
        return line.complete(value)
    if isinstance(value, list):
        return [complete_all(item, line) for item in value]
    if isinstance(value, dict):
        return {key: complete_all(item, line) for key, item in value.items()}
    return value


def _shorten(source: str) -> str:
    """Return an inventory's path relative to the working directory, where it lies below it."""
    if "," in source:
        return source
    relative = os.path.relpath(source)
    if relative.startswith(".."):
        return source
    return relative
