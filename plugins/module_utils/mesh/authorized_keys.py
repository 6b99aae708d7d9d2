# SPDX-License-Identifier: Apache-2.0
"""A site's own lines in authorized_keys: which authorities they name, and the new text of the file.
Nobody else's bytes change.
"""

from __future__ import annotations

import fcntl
import os
import re

from .primitives import (
    HOST_KEY_TYPES,
    fingerprint,
    line_pattern,
    principal,
)

_KEY = re.compile(
    r"(?:^|\s)((?:{}) [A-Za-z0-9+/=]+) ".format(
        "|".join(re.escape(kind) for kind in HOST_KEY_TYPES)
    )
)
_PRINCIPALS = re.compile(r'(?:^|,)principals="([^"]*)"')


def own_lines(text, site):
    """Return a site's own lines in the text of an authorized_keys."""
    pattern = re.compile(line_pattern(site))
    return [line for line in text.split("\n") if pattern.match(line)]


def run_pattern(site):
    """Return a regular expression of the lines that attempts of a site have: their comment ends
    with run, attempt, peer and node.
    """
    return re.compile(rf"^restrict,\S.* trainyard-run {re.escape(site)} \S+ \S+ (\S+) \S+$")


def options_of(line):
    """Return the options of a line, without key and comment."""
    found = list(_KEY.finditer(line))
    return line[: found[-1].start()] if found else line


def authority_of(line):
    """Return the fingerprint of the authority that a line names, '' where it names none."""
    found = list(_KEY.finditer(line))
    return fingerprint(found[-1].group(1)) if found else ""


def is_open(line):
    """Return whether a line gives a shell: it is from before there was a forced command."""
    return 'command="' not in options_of(line)


def lets_in(line, name):
    """Return whether a line lets one of the site's certificates in by this principal."""
    match = _PRINCIPALS.search(options_of(line))
    return bool(match) and name in match.group(1).split(",")


def describe(text, site):
    """Return {count, authorities, open} of a site's own lines: how many, the authorities'
    fingerprints, and whether one gives a shell.
    """
    lines = own_lines(text, site)
    authorities = sorted({authority_of(line) for line in lines} - {""})
    return {
        "count": len(lines),
        "authorities": authorities,
        "open": any(is_open(line) for line in lines),
    }


def arrange(text, site, wanted=None, keep=True, gone=()):
    """Return (text, old): the new text of the file and how many earlier lines of the site stay in
    it.

    wanted: the site's lines, None to add nothing. keep: whether earlier lines stay; they stand
    first, so that an attempt which began with them goes on with them. gone: names of nodes that
    were taken back. No line lets one of them in, nor does one that does not tell nodes apart.
    """
    own = own_lines(text, site)
    names = [principal(site, node) for node in gone]

    def goes(line):
        return bool(names) and (is_open(line) or any(lets_in(line, name) for name in names))

    new = list(dict.fromkeys(wanted or ()))
    old = [line for line in own if line not in new and (keep or wanted is None) and not goes(line)]
    of_runs = [match for match in map(run_pattern(site).match, text.split("\n")) if match]
    over = (
        wanted is not None and not wanted and not keep
    )  # the site leaves the node, and its attempts' keys with it
    lost = {match.group(0) for match in of_runs if over or match.group(1) in gone}
    if own == old + new and not lost:
        return text, len(old)
    others = [
        line
        for line in text.split("\n")
        if line not in lost and not re.match(line_pattern(site), line)
    ]
    return "\n".join(old + new + others), len(old)


def rewrite(path, change, mode, write=True):
    """Replace a file's text by change(text) in one step, under a lock on the file itself; return
    (text before, text after).

    Every writer of Trainyard holds this lock: the end of an attempt may meet a change of the mesh.
    mode: of a file that is not there yet.
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
                fcntl.flock(handle, fcntl.LOCK_EX)
            held = os.fstat(handle.fileno())
            if not os.path.exists(path) or not os.path.samestat(held, os.stat(path)):
                continue  # another writer has replaced it while this one waited
            before = handle.read().decode("utf-8", "surrogateescape")
            after = change(before)
            if write and after != before:
                part = "%s.%d.part" % (path, os.getpid())
                with os.fdopen(
                    os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
                ) as out:
                    out.write(after.encode("utf-8", "surrogateescape"))
                    out.flush()
                    os.fsync(out.fileno())
                os.chmod(part, held.st_mode & 0o7777)
                os.replace(part, path)
            return before, after
