# SPDX-License-Identifier: Apache-2.0
"""Ansible's tagged values as Python's own types.

Libraries that look at exact types (json, jmespath, jsonschema) need that.
"""

from __future__ import annotations


def plain(value):
    """Return a value with every mapping, list, text and number of the built-in type."""
    if isinstance(value, dict) or hasattr(value, "items"):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
