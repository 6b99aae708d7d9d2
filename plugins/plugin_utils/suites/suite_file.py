# SPDX-License-Identifier: Apache-2.0
"""Suites' tables: playbooks/suites/<name>.yml, each of which fits schema.yml."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
from collections.abc import Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.logs.parser import Table, TableError
from ansible_collections.trainyard.cluster.plugins.module_utils.suites.launcher_table import (
    LAUNCHERS,
)

from ..base import yaml_source

Suite = dict[str, Any]

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.normpath(os.path.join(HERE, *[os.pardir] * 3, "playbooks", "suites"))
# The keys that a table may leave out.
DEFAULTS: dict[str, Any] = {
    "override_style": "yaml",
    "override_limits": [],
    "env": {},
    "accelerators": {},
    "distributed": None,
    "argument_keys": {},
    "resume": {},
}
DATA_DEFAULTS: dict[str, Any] = {"names": {}, "overrides": {}, "keys": []}


class SuiteError(ValueError):
    """A table that does not fit suites/schema.yml. The message names its line."""


def names(folder: str | None = None) -> list[str]:
    """Return the names of the known suites: the files in suites/."""
    return sorted(name[:-4] for name in os.listdir(folder or FOLDER) if name.endswith(".yml"))


def load(name: str, folder: str | None = None) -> Suite:
    """Return a suite's table with its name, and with defaults for missing keys.

    Raise SuiteError.
    """
    path = os.path.join(folder or FOLDER, name + ".yml")
    state = None
    with contextlib.suppress(OSError):  # _read says what is wrong
        info = os.stat(path)
        state = (info.st_ino, info.st_size, info.st_mtime_ns)
    return copy.deepcopy(_read(path, name, state))


@functools.lru_cache(maxsize=16)
def _read(path: str, name: str, _state: tuple[int, int, int] | None) -> Suite:
    """Return a suite's table. Kept for as long as the file is the same, since a start asks often.

    path: of the table. _state: of its file.
    """
    shown = f"suites/{name}.yml"
    table, lines, problems = yaml_source.read(path, shown)
    schema, _lines, schema_problems = yaml_source.read(os.path.join(HERE, "schema.yml"))
    problems = problems + schema_problems
    problems = problems or yaml_source.validate(table, schema, lines, shown)
    texts = [str(problem) for problem in problems] or _table_problems(table, shown)
    if texts:
        raise SuiteError("; ".join(texts))
    data = dict(DATA_DEFAULTS, **table["data"])
    return dict(DEFAULTS, **dict(table, name=name, data=data))


def _table_problems(table: Mapping[str, Any], shown: str) -> list[str]:
    """Return problems of a table that the schema cannot find. shown: its file."""
    problems = []
    unknown = sorted(set(table["launchers"]) - set(LAUNCHERS))
    if unknown:
        allowed = ", ".join(sorted(LAUNCHERS))
        problems.append(f"{shown}: launchers: {', '.join(unknown)}; allowed: {allowed}")
    try:
        Table(table["logs"])
    except TableError as error:
        problems.append(f"{shown}: {error}")
    return problems
