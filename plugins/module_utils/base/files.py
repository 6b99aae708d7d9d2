# SPDX-License-Identifier: Apache-2.0
"""Files of our own: read them whole, and replace them in one step."""

from __future__ import annotations

import contextlib
import json
import os
import stat

from . import safe_open

RECORD_BYTES = 64 << 20  # of a plan or a run's record: one of 10,000 ranks has 20 MB


def read_bytes(path):
    """Return a file's bytes, None where it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError:
        return None


def read_text(path, most=-1):
    """Return a file's text, '' where it cannot be read.

    Bytes that are not UTF-8 are replaced. most: number of characters, -1 for all.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(most)
    except OSError:
        return ""


def read_json(path, limit=RECORD_BYTES):
    """Return a JSON file's content, or None where it cannot be read.

    It must be a regular file of at most `limit` bytes with JSON in it.
    """
    try:
        return json.loads(safe_open.read_file(path, limit).decode("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def read_mapping(path, limit=RECORD_BYTES):
    """Return a JSON file's mapping, {} where it is missing or has other content.

    It is for caches, which may be lost.
    """
    content = read_json(path, limit)
    if isinstance(content, dict):
        return content
    return {}


def write_json(path, value):
    """Replace a file of mode 0600 by a value as JSON. Its directory is made where it is missing."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    replace_file(path, json.dumps(value, sort_keys=True))


def replace_file(path, content, mode=0o600, sync=True):
    """Replace a file in one step: a reader sees the old content or the new one, never half of it.

    Nor do two writers mix their halves. content: bytes, or text that becomes UTF-8. mode: of the
    new file, whatever the umask. sync: wait until the content is on the disk, so that a crash of
    the machine leaves the old file or the new one. Raises OSError, and leaves the old file then.
    """
    if isinstance(content, str):
        content = content.encode("utf-8")
    # Machines and containers that share a directory may have equal names and pids.
    part = f"{path}.{os.urandom(8).hex()}.part"
    try:
        # The content of a private file is at no time open to others.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
            if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
                os.fchmod(descriptor, mode)
            handle.flush()
            if sync:
                os.fsync(descriptor)
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def update_file(path, text, mode=0o600, write=True):
    """Bring a file to a text and a mode, and return whether it was different.

    write: False to change nothing. Raises OSError.
    """
    if _has_text(path, text, mode):
        return False
    if write:
        replace_file(path, text, mode, sync=False)
    return True


def _has_text(path, text, mode):
    try:
        data = text.encode("utf-8")
        with safe_open.open_file(path) as handle:
            same_mode = stat.S_IMODE(os.fstat(handle.fileno()).st_mode) == mode
            return same_mode and handle.read(len(data) + 1) == data
    except (OSError, ValueError):
        return False
