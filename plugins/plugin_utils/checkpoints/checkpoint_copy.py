# SPDX-License-Identifier: Apache-2.0
"""The copy of a checkpoint on the controller.

It is copied into STAGING beside its final place, and moved there as a whole or not at all. An
interrupted copy stays in STAGING, where it is not taken for a checkpoint, and the next one goes on
from it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest, safe_names
from ansible_collections.trainyard.cluster.plugins.module_utils.base.safe_open import (
    DIRECTORY,
    open_below,
    open_folder,
    open_root,
    parent_of,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import model_collector

STAGING = ".checkpoint.part"
# The new and the previous checkpoint while they are exchanged.
_NEW, _OLD = ".checkpoint.new", ".checkpoint.old"
# Path below the checkpoint's folder to ['f', bytes, sha256].
Files = dict[str, list[Any]]


def compare_copy(folder: str, files: Files) -> list[str]:
    """Return how a folder on the controller differs from files, as sentences.

    files: as `find` gave them. Further files are not a difference: another checkpoint that was
    copied before stays. Raises CheckpointError for names that no checkpoint has.
    """
    model_collector.check_files(files)
    expected, existing = {name: list(entry) for name, entry in files.items()}, {}
    try:
        root = os.open(folder, DIRECTORY)
    except OSError:
        return manifest.differences(expected, {})
    try:
        for name, entry in expected.items():
            with contextlib.suppress(OSError):
                existing[name] = _describe_if_equal_size(root, name, entry[1])
    finally:
        os.close(root)
    return manifest.differences(expected, existing)


def _describe_if_equal_size(root: int, path: str, size: int) -> list[Any]:
    """Return ['f', bytes, sha256] of a file. One of another size is not read."""
    actual = model_collector.file_size(root, path)
    if actual != size:
        return ["f", actual, ""]
    return model_collector.describe_file(root, path)


def install_copy(attempt_dir: str, files: Files, write: bool = True) -> bool:
    """Move the files from STAGING into model_collector.PLACE.

    Return whether that changes anything. All of them are moved or none. attempt_dir: on the
    controller. write: False only looks. Raises CheckpointError with every difference. A differing
    file is removed, so that the next copy fetches it anew. Nothing outside the attempt's directory
    is changed: no link in it is followed.
    """
    model_collector.check_files(files)
    place, staging = (
        os.path.join(attempt_dir, model_collector.PLACE),
        os.path.join(attempt_dir, STAGING),
    )
    if write:
        _finish_exchange(attempt_dir)
    if not compare_copy(place, files):
        if write:
            _clear(staging)
        return False
    if os.path.islink(place):
        raise model_collector.CheckpointError(
            "checkpoint.is_link", f"{place} is a link; nothing was put there"
        )
    differences = compare_copy(staging, files)
    if differences:
        if write:
            _drop(staging, files)
        raise model_collector.CheckpointError(
            "checkpoint.differs",
            f"{staging}: differs from the node's: {'; '.join(differences)}",
        )
    if write:
        _exchange(attempt_dir, files)
    return True


def _finish_exchange(attempt_dir: str) -> None:
    """Put the previous checkpoint back after an interrupted exchange.

    The interruption came between the two renames.
    """
    place, old = os.path.join(attempt_dir, model_collector.PLACE), os.path.join(attempt_dir, _OLD)
    if not os.path.lexists(place) and os.path.isdir(old) and not os.path.islink(old):
        os.rename(old, place)


def _exchange(attempt_dir: str, files: Files) -> None:
    """Put the new checkpoint, of the staged and the kept files, into model_collector.PLACE."""
    place, staging = (
        os.path.join(attempt_dir, model_collector.PLACE),
        os.path.join(attempt_dir, STAGING),
    )
    new, old = os.path.join(attempt_dir, _NEW), os.path.join(attempt_dir, _OLD)
    _clear(new)
    os.mkdir(new, 0o700)
    root = open_root(attempt_dir)
    try:
        for name in _kept(root, files):
            _move(root, (model_collector.PLACE, name), _link)
        for name in files:
            _move(root, (STAGING, name), os.rename)
    finally:
        os.close(root)
    _clear(old)
    if os.path.isdir(place):
        os.rename(place, old)
    os.rename(new, place)
    _clear(old)
    _clear(staging)


def _clear(path: str) -> None:
    """Remove a directory of the product, or the link that stands in its place."""
    with contextlib.suppress(OSError):
        if os.path.islink(path):
            os.unlink(path)
    shutil.rmtree(path, ignore_errors=True)


def _kept(root: int, files: Files) -> list[str]:
    """Return the regular files of the present checkpoint that the new one lacks.

    Another checkpoint that was copied before stays.
    """
    try:
        place = open_folder(root, model_collector.PLACE)
    except OSError:
        return []
    try:
        paths = [path[len("./") :] for path in model_collector.list_files(place, ".")]
    finally:
        os.close(place)
    return [path for path in paths if path not in files and not safe_names.problem(path)]


def _link(source: str, target: str, src_dir_fd: int, dst_dir_fd: int) -> None:
    os.link(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, follow_symlinks=False)


def _move(root: int, source: tuple[str, str], move: Callable[..., None]) -> None:
    """Give a file of (folder, name) its place in the new checkpoint.

    All directories on the way are held by descriptors.
    """
    path, target = "/".join(source), f"{_NEW}/{source[1]}"
    with os.fdopen(open_below(root, path), "rb") as handle:
        os.fchmod(handle.fileno(), 0o600)
        os.fsync(handle.fileno())
    with parent_of(root, path) as (old_folder, last):
        with parent_of(root, target, make=True) as (new_folder, _last):
            move(last, last, src_dir_fd=old_folder, dst_dir_fd=new_folder)


def _drop(staging: str, files: Files) -> None:
    """Remove the differing files from a copy.

    rsync takes a file of the right size and time for the right one.
    """
    try:
        root = os.open(staging, DIRECTORY)
    except OSError:
        return
    try:
        for name in files:
            if compare_copy(staging, {name: files[name]}):
                with contextlib.suppress(OSError), parent_of(root, name) as (folder, last):
                    os.unlink(last, dir_fd=folder)
    finally:
        os.close(root)
