# SPDX-License-Identifier: Apache-2.0
"""Results that tasks registered on several hosts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def results_of(
    hosts: Iterable[str],
    hostvars: Mapping[str, Mapping[str, Any]],
    variable: str,
    key: str = "",
    default: Any = None,
) -> dict[str, Any]:
    """Return {host: registered result}, in the order of the hosts.

    variable: the registered name. key: returns this key of the result instead of all of it. A host
    without the variable, or without the key, has the default. It is left out if the default is
    None.
    """
    results = {host: _read(hostvars[host], variable, key, default) for host in hosts}
    return {host: result for host, result in results.items() if result is not None}


def _read(variables: Mapping[str, Any], variable: str, key: str, default: Any) -> Any:
    """Return a host's result, its key, or the default."""
    result = variables.get(variable)
    if key:
        result = dict(result or {}).get(key)
    if result is None:
        return default
    return result
