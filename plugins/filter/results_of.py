# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter results_of: what a task registered on several hosts. See results_of.yml."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import host_results


def results_of(
    hosts: Iterable[str],
    hostvars: Mapping[str, Mapping[str, Any]],
    variable: str,
    key: str = "",
    default: Any = None,
) -> dict[str, Any]:
    """Return {host: result} as plain data."""
    answers = host_results.results_of(plain(list(hosts)), hostvars, variable, key, default)
    results: dict[str, Any] = plain(answers)
    return results


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Any]:
        """Return {name: function}."""
        return {"results_of": results_of}
