# SPDX-License-Identifier: Apache-2.0
"""Python with which the product's programs start on this node.

It is the one that executes the module: what the site's ansible_python_interpreter names, or what
Ansible discovered. So a node whose /usr/bin/python3 is too old or missing needs no change.
"""

from __future__ import annotations

import os
import re
import sys

from .coded_error import CodedError

SYSTEM_PYTHON = "/usr/bin/python3"
OLDEST = (3, 8)
# The path becomes a word of systemd units and of authorized_keys: no blank, quote, $ or %.
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@-]{1,400}\Z")


class InterpreterError(CodedError):
    """A Python that cannot start the product's programs."""


def validate_interpreter(path, version=OLDEST):
    """Return the absolute path of a Python for units and authorized_keys.

    version: its (major, minor). Raises InterpreterError.
    """
    if not isinstance(path, str) or not _PLAIN_PATH.match(path):
        raise InterpreterError(
            "node.python_path",
            f"the Python of this node, {path!r}, is not an absolute path of plain characters"
            " without blanks; set ansible_python_interpreter of this node to such a path",
        )
    if tuple(version[:2]) < OLDEST:
        raise InterpreterError(
            "node.python_old",
            f"{path} on this node is Python {version[0]}.{version[1]} and the product needs 3.8 or"
            " newer; install a newer one beside it and set ansible_python_interpreter to its path",
        )
    return path


def node_python():
    """Return the path of the Python that executes this module. Raises InterpreterError."""
    return validate_interpreter(sys.executable, sys.version_info)


def shared_python(run_command):
    """Return the Python for files that nodes with one home directory share.

    It is the system's own one where that is new enough, since its path is equal on all nodes, else
    node_python. run_command: a callable like AnsibleModule.run_command. Raises InterpreterError.
    """
    test = f"import sys; sys.exit(sys.version_info < {OLDEST!r})"
    if os.access(SYSTEM_PYTHON, os.X_OK):
        if run_command([SYSTEM_PYTHON, "-I", "-S", "-c", test])[0] == 0:
            return SYSTEM_PYTHON
    return node_python()
