# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter query: JMESPath over what modules return.

Ansible's tagged values are made plain first. See query.yml.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain

try:
    import jmespath
except ImportError:
    jmespath = None


def query(data: Any, expression: str) -> Any:
    """Search data with a JMESPath expression and return the result.

    Functions such as sum and max_by look at exact types, which tagged values do not have. Raises
    AnsibleFilterError.
    """
    if jmespath is None:
        raise AnsibleFilterError(
            "trainyard.cluster.query needs the Python package jmespath on the controller: pip"
            " install -r requirements.txt"
        )
    if not isinstance(expression, str):
        raise AnsibleFilterError(
            f"trainyard.cluster.query: the expression is {type(expression).__name__}, not text"
        )
    try:
        return jmespath.search(plain(expression), plain(data))
    except jmespath.exceptions.JMESPathError as error:
        raise AnsibleFilterError(
            f"trainyard.cluster.query: {expression!r}: {str(error).strip()}"
        ) from error


class FilterModule:
    """The filter of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return {name: function}. `trainyard_query` is the name in playbooks of version 0.1."""
        return {"query": query, "trainyard_query": query}
