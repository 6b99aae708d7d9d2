# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter trainyard_query: JMESPath over what modules return.

Ansible's tagged values are made plain first. See trainyard_query.yml.
"""

from __future__ import annotations

from ansible.errors import AnsibleFilterError
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain

try:
    import jmespath
except ImportError:
    jmespath = None


def trainyard_query(data, expression):
    """Search data with a JMESPath expression and return the result.

    Functions such as sum and max_by look at exact types, which tagged values do not have. Raises
    AnsibleFilterError.
    """
    if jmespath is None:
        raise AnsibleFilterError(
            "trainyard_query needs the Python package jmespath on the controller: pip install -r"
            " requirements.txt"
        )
    if not isinstance(expression, str):
        raise AnsibleFilterError(
            f"trainyard_query: the expression is {type(expression).__name__}, not text"
        )
    try:
        return jmespath.search(plain(expression), plain(data))
    except jmespath.exceptions.JMESPathError as error:
        raise AnsibleFilterError(
            f"trainyard_query: {expression!r}: {str(error).strip()}"
        ) from error


class FilterModule:
    """The filters of this file."""

    def filters(self):
        """Return {name: function}."""
        return {"trainyard_query": trainyard_query}
