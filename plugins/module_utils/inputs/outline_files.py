# SPDX-License-Identifier: Apache-2.0
"""Keep the outline of code that lies on the nodes, as a node described it. Controller only.

A node chooses every name and every text of an outline. The controller names the directory itself,
by the digest of the texts that came, and writes below a directory descriptor, so that no name leads
anywhere else.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil

from ..base import safe_open

SHA256 = re.compile(r"[0-9a-f]{64}\Z")
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")
# The largest suite has 6,000 files, and a config builds on a dozen others.
MOST_NAMES, LONGEST_NAME, LONGEST_PART, DEEPEST = 200_000, 4096, 255, 64
MOST_TEXTS, LARGEST_TEXT, LARGEST_TEXTS = 500, 4 << 20, 16 << 20
LARGEST_COUNT = 1 << 62
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class InvalidOutline(Exception):
    """A node's outline cannot be used; the message names the field."""


def name_problem(name):
    """Say why a text is no relative path of a file, or return None."""
    if not isinstance(name, str) or not name:
        return "is not a name"
    if len(name) > LONGEST_NAME or name.count("/") >= DEEPEST:
        return "is too long or too deep"
    if any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) <= 0xDFFF for char in name):
        return "holds a control character"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return "leads out of the tree"
        if len(part.encode()) > LONGEST_PART:
            return "is too long or too deep"
    return None


def validate(outline):
    """Return a node's outline with its own fields alone, each of the kind that it has to be. Raises
    InvalidOutline.
    """

    def refuse(field, text):
        raise InvalidOutline(f"the outline of the code is not valid: {field} {text}")

    if not isinstance(outline, dict):
        refuse("outline", "is not a mapping")
    if not (isinstance(outline.get("digest"), str) and SHA256.match(outline["digest"])):
        refuse("digest", "is not a sha256")
    for field in ("files", "bytes"):
        value = outline.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST_COUNT:
            refuse(field, "is not a count")
    names, texts, commit = outline.get("names"), outline.get("texts"), outline.get("commit")
    if not isinstance(names, list) or len(names) > MOST_NAMES:
        refuse("names", "is not a list of at most %d names" % MOST_NAMES)
    if not isinstance(texts, dict) or len(texts) > MOST_TEXTS:
        refuse("texts", "is not a mapping of at most %d files" % MOST_TEXTS)
    problem = next((said for said in map(name_problem, [*names, *texts]) if said), None)
    if problem:
        refuse("names", f"has one that {problem}")
    if set(texts) - set(names):
        refuse("texts", "has a file that is not among the names")
    sizes = [
        len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else -1
        for text in texts.values()
    ]
    if any(not 0 <= size <= LARGEST_TEXT for size in sizes) or sum(sizes) > LARGEST_TEXTS:
        refuse("texts", "has one that is no text, or is larger than a config is")
    if commit is not None and not (isinstance(commit, str) and COMMIT.match(commit)):
        refuse("commit", "is not a commit")
    if not isinstance(outline.get("dirty"), bool):
        refuse("dirty", "is not a truth value")
    return {
        key: outline[key]
        for key in ("digest", "files", "bytes", "names", "texts", "commit", "dirty")
    }


def keep(texts, cache_dir):
    """Write validated texts into a directory of their own in the cache and return its path. Raises
    InvalidOutline, OSError.
    """
    content = json.dumps(texts, sort_keys=True).encode()
    name = hashlib.sha256(content).hexdigest()
    folder = os.path.join(cache_dir, "code-configs")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    root = os.open(folder, safe_open.DIRECTORY)
    part = f".{name[:16]}-{os.urandom(8).hex()}.part"
    try:
        if _is_directory(name, root):
            return os.path.join(folder, name)
        os.mkdir(part, mode=0o700, dir_fd=root)
        here = os.open(part, safe_open.DIRECTORY, dir_fd=root)
        try:
            for path, text in sorted(texts.items()):
                _write(here, path.split("/"), text)
        finally:
            os.close(here)
        try:
            os.rename(part, name, src_dir_fd=root, dst_dir_fd=root)
        except OSError:
            if not _is_directory(name, root):  # another process may have been faster
                raise
    finally:
        os.close(root)
        shutil.rmtree(os.path.join(folder, part), ignore_errors=True)
    return os.path.join(folder, name)


def _is_directory(name, root):
    """Whether a directory of this name, and no link, lies in the directory descriptor."""
    try:
        os.close(os.open(name, safe_open.DIRECTORY, dir_fd=root))
    except FileNotFoundError:
        return False
    return True


def _write(root, parts, text):
    """Write a new file below a directory descriptor; make the directories on its way."""
    here = os.dup(root)
    try:
        for part in parts[:-1]:
            try:
                os.mkdir(part, mode=0o700, dir_fd=here)
            except FileExistsError:
                pass
            try:
                deeper = os.open(part, safe_open.DIRECTORY, dir_fd=here)
            except NotADirectoryError:
                raise InvalidOutline(
                    "the outline of the code is not valid: texts has a file that is a"
                    " directory, too"
                ) from None
            os.close(here)
            here = deeper
        try:
            found = os.open(parts[-1], NEW_FILE, 0o600, dir_fd=here)
        except FileExistsError:
            raise InvalidOutline(
                "the outline of the code is not valid: texts has a file that is a directory, too"
            ) from None
        with os.fdopen(found, "w", encoding="utf-8", errors="replace") as handle:
            handle.write(text)
    finally:
        os.close(here)
