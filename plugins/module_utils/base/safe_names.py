# SPDX-License-Identifier: Apache-2.0
"""The one rule for file names from a node.

Pure. A name is a path that stays below a directory, with plain parts of bounded length.
"""

from __future__ import annotations

import re

PART_BYTES = 200
PATH_BYTES = 1000
DEPTH = 16
_STEM = r"(?:rank-\d{1,9}|stray-[A-Za-z0-9._-]{1,200}|[A-Za-z0-9_-]{1,60})"
_ANY_NODE = "[A-Za-z0-9][A-Za-z0-9._-]*"


class UnsafeName(ValueError):
    """A name from a node that is used nowhere, with a message that is safe to show."""


def part_problem(part):
    """Return the reason why one part of a path cannot be used, or None."""
    if not isinstance(part, str) or not part:
        return "is empty"
    if part in (".", "..") or "/" in part:
        return "does not stay below its directory"
    if part.startswith("-"):
        return "begins with a dash"
    if not part.isprintable():
        return "holds a control character or bytes that are not UTF-8"
    if len(part.encode("utf-8", "surrogateescape")) > PART_BYTES:
        return f"is longer than {PART_BYTES} bytes"
    return None


def problem(path):
    """Return the reason why a relative path from a node cannot be used, or None."""
    if not isinstance(path, str):
        return "is not a text"
    if path.startswith("/"):
        return "is absolute"
    if len(path) > PATH_BYTES or len(path.encode("utf-8", "surrogatepass")) > PATH_BYTES:
        return f"is longer than {PATH_BYTES} bytes"
    parts = path.split("/")
    if len(parts) > DEPTH:
        return f"has more than {DEPTH} parts"
    return next((reason for reason in map(part_problem, parts) if reason), None)


def check(path):
    """Return a relative path from a node, or raise UnsafeName where it is refused."""
    reason = problem(path)
    if reason:
        raise UnsafeName(f"the name {ascii(path)[:200]} {reason}")
    return path


def at_home(node, kept=False):
    """Return the pattern of a node's file names in an attempt's directory.

    The directory is the one on the controller. The pattern's groups are home and node. node: None
    for any. kept: also copies of a file that began again on its node, <home>.1, .2, ...
    """
    node_pattern = _ANY_NODE
    if node:
        node_pattern = re.escape(node)
    pattern = rf"(?P<home>{_STEM}\.(?P<node>{node_pattern})\.(?:log|jsonl|json))"
    if kept:
        pattern += r"(?:\.\d{1,4})?"
    return re.compile(pattern)
