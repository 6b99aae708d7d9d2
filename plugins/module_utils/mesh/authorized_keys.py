# SPDX-License-Identifier: Apache-2.0
"""Lines of a site in authorized_keys, and the new text of the file.

No other bytes of the file change.
"""

from __future__ import annotations

import os
import re

from ..base.files import replace_file
from ..base.locks import wait_for_lock
from .primitives import (
    HOST_KEY_TYPES,
    PYTHON,
    fingerprint,
    line_pattern,
    principal,
)

_KEY = re.compile(rf"(?:^|\s)((?:{'|'.join(map(re.escape, HOST_KEY_TYPES))}) [A-Za-z0-9+/=]+) ")
_PRINCIPALS = re.compile(r'(?:^|,)principals="([^"]*)"')


def own_lines(text, site):
    """Return a site's own lines in the text of an authorized_keys."""
    pattern = re.compile(line_pattern(site))
    return [line for line in text.split("\n") if pattern.match(line)]


def run_pattern(site):
    """Return a regular expression of the lines that attempts of a site have.

    Their comment ends with run, attempt, peer and node. The group is the peer.
    """
    return re.compile(rf"^restrict,\S.* trainyard-run {re.escape(site)} \S+ \S+ (\S+) \S+$")


def _last_key(line):
    """Return the match of the key in a line, or None.

    It is the last part that looks like a key.
    """
    matches = list(_KEY.finditer(line))
    if not matches:
        return None
    return matches[-1]


def options_of(line):
    """Return the options of a line, without key and comment."""
    key = _last_key(line)
    if key:
        return line[: key.start()]
    return line


def name_interpreter(lines, python):
    """Return the site's lines whose forced command starts with this Python.

    The controller writes the lines with the system's Python, which a node may not have.
    """
    named = f'command="{PYTHON} -I '
    return [line.replace(named, f'command="{python} -I ', 1) for line in lines]


def authority_of(line):
    """Return the fingerprint of the authority that a line names, '' for none."""
    key = _last_key(line)
    if key:
        return fingerprint(key.group(1))
    return ""


def is_open(line):
    """Return True if a line gives a shell.

    Such a line is from before there was a forced command.
    """
    return 'command="' not in options_of(line)


def lets_in(line, name):
    """Return True if a line lets one of the site's certificates in by this principal."""
    match = _PRINCIPALS.search(options_of(line))
    return bool(match) and name in match.group(1).split(",")


def describe(text, site):
    """Return {count, authorities, open} of a site's own lines.

    authorities: their fingerprints, sorted. open: True if a line gives a shell.
    """
    lines = own_lines(text, site)
    authorities = sorted({authority_of(line) for line in lines} - {""})
    return {
        "count": len(lines),
        "authorities": authorities,
        "open": any(is_open(line) for line in lines),
    }


def arrange(text, site, site_lines=None, keep=True, gone=()):
    """Return (text, old): the file's new text and the number of earlier lines.

    Earlier lines are those of the site that stay in it. site_lines: the site's lines, None to add
    nothing. keep: True if earlier lines stay. They stand first, so that an attempt which began with
    them goes on with them. gone: names of nodes that were taken back. No line lets one of them in,
    nor does one that does not tell nodes apart.
    """
    current = own_lines(text, site)
    new = list(dict.fromkeys(site_lines or ()))
    old = []
    if keep or site_lines is None:
        old = [line for line in current if line not in new]
    if gone:
        names = [principal(site, node) for node in gone]
        old = [line for line in old if not _admits_any(line, names)]
    # Without lines the site leaves the node, and its attempts' keys with it.
    site_leaves = site_lines is not None and not site_lines and not keep
    removed = _lines_of_runs(text, site, gone, every_peer=site_leaves)
    if current == old + new and not removed:
        return text, len(old)
    others = [
        line
        for line in text.split("\n")
        if line not in removed and not re.match(line_pattern(site), line)
    ]
    return "\n".join(old + new + others), len(old)


def _lines_of_runs(text, site, peers, every_peer):
    """Return the lines that attempts of a site have for these peers, as a set."""
    matches = map(run_pattern(site).match, text.split("\n"))
    return {
        match.group(0) for match in matches if match and (every_peer or match.group(1) in peers)
    }


def _admits_any(line, names):
    """Return True if a line lets one of these principals in.

    It is True, too, for a line that does not tell nodes apart.
    """
    return is_open(line) or any(lets_in(line, name) for name in names)


def rewrite(path, change, mode, write=True):
    """Replace a file's text by change(text) in one step.

    Returns (text before, text after). It works under a lock on the file itself. Every writer of
    Trainyard takes this lock: the end of an attempt may meet a change of the mesh. mode: of a file
    that is not there yet. write: False to change nothing.
    """
    path = os.path.realpath(path)
    if not os.path.exists(path):
        after = change("")
        if not after or not write:
            return "", after
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, mode))
    while True:
        with open(path, "rb") as handle:
            if write:
                wait_for_lock(handle)
            opened = os.fstat(handle.fileno())
            if not os.path.exists(path) or not os.path.samestat(opened, os.stat(path)):
                continue  # another writer has replaced it while this one waited
            before = handle.read().decode("utf-8", "surrogateescape")
            after = change(before)
            if write and after != before:
                data = after.encode("utf-8", "surrogateescape")
                replace_file(path, data, opened.st_mode & 0o7777)
            return before, after
