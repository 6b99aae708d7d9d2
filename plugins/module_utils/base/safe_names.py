# SPDX-License-Identifier: Apache-2.0
"""The one rule for file names that a node gives: paths that stay below a directory, with plain
parts of bounded length. Pure.
"""

from __future__ import annotations

import re

PART_BYTES = 200
PATH_BYTES = 1000
DEPTH = 16
_AT_HOME = r"(?P<home>(?:rank-\d{1,9}|stray-[A-Za-z0-9._-]{1,200}|[A-Za-z0-9_-]{1,60})\.(?P<node>%s)\.(?:log|jsonl|json))"


class UnsafeName(ValueError):
    """A name from a node that is used nowhere; the message is safe to show."""


def part_problem(part):
    """Return why one part of a path cannot be used, or None."""
    if not isinstance(part, str) or not part:
        return "is empty"
    if part in (".", "..") or "/" in part:
        return "does not stay below its directory"
    if part.startswith("-"):
        return "begins with a dash"
    if not part.isprintable():
        return "holds a control character or bytes that are not UTF-8"
    if len(part.encode("utf-8", "surrogateescape")) > PART_BYTES:
        return "is longer than %d bytes" % PART_BYTES
    return None


def problem(path):
    """Return why a relative path from a node cannot be used, or None."""
    if not isinstance(path, str):
        return "is not a text"
    if path.startswith("/"):
        return "is absolute"
    if len(path) > PATH_BYTES or len(path.encode("utf-8", "surrogateescape")) > PATH_BYTES:
        return "is longer than %d bytes" % PATH_BYTES
    parts = path.split("/")
    if len(parts) > DEPTH:
        return "has more than %d parts" % DEPTH
    return next((said for said in map(part_problem, parts) if said), None)


def check(path):
    """Return a relative path from a node; raise UnsafeName where the rule refuses it."""
    said = problem(path)
    if said:
        raise UnsafeName(f"the name {ascii(path)[:200]} {said}")
    return path


def at_home(node, kept=False):
    """Return the pattern of the names of a node's files in an attempt's directory at home; its
    groups are home and node.

    node: None stands for any. kept: also copies of a file that began again on its node, <home>.1,
    .2, ...
    """
    return re.compile(
        _AT_HOME % (re.escape(node) if node else "[A-Za-z0-9][A-Za-z0-9._-]*")
        + (r"(?:\.\d{1,4})?" if kept else "")
    )
