# SPDX-License-Identifier: Apache-2.0
"""The outline of code that lies on the nodes, as a node describes it.

A node chooses every name and every text of an outline. The controller names the directory itself,
by the digest of the texts that came, and writes below a directory descriptor, so that no name leads
anywhere else.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_open

SHA256 = re.compile(r"[0-9a-f]{64}\Z")
COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?\Z")
# The largest suite has 6,000 files, and a config builds on a dozen others.
MOST_NAMES = 200_000
LONGEST_NAME, LONGEST_PART, DEEPEST = 4096, 255, 64
MOST_TEXTS, LARGEST_TEXT, LARGEST_TEXTS = 500, 4 << 20, 16 << 20
LARGEST_COUNT = 1 << 62
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class InvalidOutline(Exception):
    """A node's outline cannot be used. The message names the field."""


def name_problem(name: Any) -> str | None:
    """Return why a text is not a relative path of a file, or None."""
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


def _refuse(field: str, text: str) -> NoReturn:
    raise InvalidOutline(f"the outline of the code is not valid: {field} {text}")


def validate(outline: Any) -> dict[str, Any]:
    """Return a node's outline with its known fields alone, each of the right type.

    Raises InvalidOutline.
    """
    if not isinstance(outline, dict):
        _refuse("outline", "is not a mapping")
    if not _is_text_like(outline.get("digest"), SHA256):
        _refuse("digest", "is not a sha256")
    for field in ("files", "bytes"):
        if not _is_count(outline.get(field)):
            _refuse(field, "is not a count")
    _validate_names_and_texts(outline.get("names"), outline.get("texts"))
    commit = outline.get("commit")
    if commit is not None and not _is_text_like(commit, COMMIT):
        _refuse("commit", "is not a commit")
    # null: git on the node cannot say. The key is there all the same.
    if not isinstance(outline.get("dirty", ""), (bool, type(None))):
        _refuse("dirty", "is not a truth value or null")
    fields = ("digest", "files", "bytes", "names", "texts", "commit", "dirty")
    return {field: outline[field] for field in fields}


def _validate_names_and_texts(names: Any, texts: Any) -> None:
    if not isinstance(names, list) or len(names) > MOST_NAMES:
        _refuse("names", f"is not a list of at most {MOST_NAMES} names")
    if not isinstance(texts, dict) or len(texts) > MOST_TEXTS:
        _refuse("texts", f"is not a mapping of at most {MOST_TEXTS} files")
    for name in [*names, *texts]:
        problem = name_problem(name)
        if problem:
            _refuse("names", f"has one that {problem}")
    if set(texts) - set(names):
        _refuse("texts", "has a file that is not among the names")
    if not _are_config_texts(list(texts.values())):
        _refuse("texts", "has one that is no text, or is larger than a config is")


def _is_text_like(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and bool(pattern.match(value))


def _is_count(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return 0 <= value < LARGEST_COUNT


def _are_config_texts(values: Sequence[Any]) -> bool:
    """Return whether all values are texts that are no larger than configs are."""
    total = 0
    for value in values:
        if not isinstance(value, str):
            return False
        size = len(value.encode("utf-8", "surrogatepass"))
        if size > LARGEST_TEXT:
            return False
        total += size
    return total <= LARGEST_TEXTS


def keep_texts(texts: Mapping[str, str], cache_dir: str) -> str:
    """Write validated texts into a new directory of the cache and return its path.

    Raises InvalidOutline, OSError.
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
        descriptor = os.open(part, safe_open.DIRECTORY, dir_fd=root)
        try:
            for path, text in sorted(texts.items()):
                _write(descriptor, path.split("/"), text)
        finally:
            os.close(descriptor)
        try:
            os.rename(part, name, src_dir_fd=root, dst_dir_fd=root)
        except OSError:
            if not _is_directory(name, root):  # another process may have been faster
                raise
    finally:
        os.close(root)
        shutil.rmtree(os.path.join(folder, part), ignore_errors=True)
    return os.path.join(folder, name)


def _is_directory(name: str, root: int) -> bool:
    """Return whether a real directory of this name lies in the directory descriptor."""
    try:
        os.close(os.open(name, safe_open.DIRECTORY, dir_fd=root))
    except FileNotFoundError:
        return False
    return True


def _write(root: int, parts: Sequence[str], text: str) -> None:
    """Write a new file below a directory descriptor, with the directories above it."""
    folder = os.dup(root)
    try:
        for part in parts[:-1]:
            child = _make_folder(folder, part)
            os.close(folder)
            folder = child
        try:
            descriptor = os.open(parts[-1], NEW_FILE, 0o600, dir_fd=folder)
        except FileExistsError:
            raise _file_is_directory() from None
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as handle:
            handle.write(text)
    finally:
        os.close(folder)


def _make_folder(folder: int, name: str) -> int:
    """Make a directory unless it exists, and return its descriptor."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, mode=0o700, dir_fd=folder)
    try:
        return os.open(name, safe_open.DIRECTORY, dir_fd=folder)
    except NotADirectoryError:
        raise _file_is_directory() from None


def _file_is_directory() -> InvalidOutline:
    return InvalidOutline(
        "the outline of the code is not valid: texts has a file that is a directory, too"
    )
