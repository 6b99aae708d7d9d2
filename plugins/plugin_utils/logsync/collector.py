# SPDX-License-Identifier: Apache-2.0
"""Installation of fetched logs in a run's directory on the controller.

The files' digests are compared with those of their node, then the files get their final names and
the index of ranks is written. No byte is lost. A file that does not match stays where the fetch put
it. A file here whose node has another one by now is kept as <home>.1, .2, ...
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import update_file
from ansible_collections.trainyard.cluster.plugins.module_utils.base.safe_open import (
    open_below,
    open_root,
    parent_of,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable

from ..config import quota
from . import rank_index
from .rank_index import Json
from .stream_lock import Busy, Lock

INCOMING = ".incoming"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")
_DIGEST = re.compile(r"^[0-9a-f]{64}$")
LARGEST = 1 << 50  # bytes that no log has


Sizes = dict[str, dict[str, int]]  # {node: {file: bytes}}


class Digest(NamedTuple):
    """A file's size and digests. prefix_sha256: of as many bytes as its node reported."""

    bytes: int
    sha256: str
    prefix_sha256: str


@dataclass
class Installation:
    """What became of one fetched file, or of all files of a node."""

    changed: bool = False
    problem: str | None = None
    record: Json | None = None


class RequestError(Exception):
    """The request itself is wrong.

    Nothing was touched.
    """


def check_entries(nodes: Sequence[Json]) -> None:
    """Refuse names that could leave the run's directory, and two files with one name.

    Raise RequestError with every problem.
    """
    problems: list[str] = []
    homes: dict[str, str] = {}
    for entry in nodes:
        problems += _problems(entry, homes)
    if problems:
        raise RequestError("; ".join(problems))


def make_entries(results: Mapping[str, Json], running: bool) -> list[Json]:
    """Return the nodes' entries. The inventory names the node, never its answer.

    results: {node: what rank_logs_info returned}. running: the attempt goes on, so its files are
    left alone.
    """
    entries = []
    for node, result in results.items():
        entry = {key: result.get(key) for key in ("utc_offset", "files", "ranks")}
        if running:
            entry.update(files=[], goes_on=True)
        entries.append(dict(entry, node=node))
    return entries


def split_entries(nodes: Sequence[Json]) -> tuple[list[Json], dict[str, str]]:
    """Return (the entries that are sound, {node: why its entry is refused}).

    A wrong answer of one node costs no other node its logs. A node gives only files that bear its
    own name, so that it takes no other node's path.
    """
    sound: list[Json] = []
    refused: dict[str, str] = {}
    homes: dict[str, str] = {}
    for entry in nodes:
        problems = _problems(entry, dict(homes), own=True)
        if problems:
            refused[str(entry.get("node"))[:100]] = printable("; ".join(problems[:5]), limit=1000)
            continue
        homes.update({item["home"]: entry["node"] for item in entry["files"]})
        sound.append(entry)
    return sound, refused


def _problems(entry: Json, homes: dict[str, str], own: bool = False) -> list[str]:
    """Return the problems of one node's entry.

    homes: {name on the controller: node} of the entries before it. This entry's are added. own:
    refuse files that do not bear the node's own name.
    """
    node, problems = str(entry.get("node")), []
    if not _NAME.match(node):
        problems.append(f"{ascii(node)} cannot be a node's name")
    if not all(_is_list_of_mappings(entry.get(key)) for key in ("files", "ranks")):
        return [
            *problems,
            f"{node}: no lists `files` and `ranks`; give what rank_logs_info returned",
        ]
    own_names = None
    if own:
        own_names = safe_names.at_home(node)
    for item in entry["files"]:
        problems += [f"{node}: {problem}" for problem in _file_problems(item, homes, own_names)]
        homes.setdefault(str(item.get("home")), node)
    return problems


def _is_list_of_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _file_problems(
    item: Json, homes: dict[str, str], own_names: re.Pattern[str] | None
) -> list[str]:
    """Return the problems of one file.

    own_names: the pattern of permitted names, None for any.
    """
    problems = []
    name, home = item.get("file"), str(item.get("home"))
    problem = safe_names.problem(name)
    if problem:
        problems.append(f"the name {ascii(name)[:200]} {problem}")
    if not _NAME.match(home) or (own_names and not own_names.fullmatch(home)):
        problems.append(f"{ascii(home)[:200]} cannot be a file's name")
    if home in homes:
        problems.append(f"{home} is also the name of a file of {homes[home]}")
    if not _is_size(item.get("bytes")) or not _DIGEST.match(str(item.get("sha256"))):
        problems.append(
            f"{ascii(name)[:200]}: the node gave no size and sha256 (rank_logs_info with"
            " digest: true does)"
        )
    return problems


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST


def digests_below(root: int, path: str, size: int) -> Digest | None:
    """Return (bytes, sha256 of the file, sha256 of its first `size` bytes) of a file.

    root: descriptor of the directory that the path is relative to. None where it is not a regular
    file.
    """
    try:
        descriptor = open_below(root, path)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        whole, prefix, done = hashlib.sha256(), hashlib.sha256(), 0
        while True:
            chunk = handle.read(1 << 20)
            if not chunk:
                return Digest(done, whole.hexdigest(), prefix.hexdigest())
            whole.update(chunk)
            prefix.update(chunk[: max(0, size - done)])
            done += len(chunk)


def digests(path: str, size: int) -> Digest | None:
    """Return `digests_below` for a path of our own."""
    try:
        root = open_root(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return None
    try:
        return digests_below(root, os.path.basename(path), size)
    finally:
        os.close(root)


def describe_difference(digest: Digest | None, item: Json) -> str | None:
    """Return the reason why a file differs from the node's, or None.

    digest: as digests_below returns it. A file that grew since must begin with what the node
    reported.
    """
    if digest is None:
        return "was not copied"
    if digest.prefix_sha256 == item["sha256"]:
        return None
    return (
        f"here {digest.bytes} bytes, sha256 {digest.sha256};"
        f" on the node {item['bytes']} bytes, sha256 {item['sha256']}"
    )


def _incoming(node: str, item: Json) -> str:
    """Return the path that a node's file is fetched to, below the run's directory."""
    return f"{INCOMING}/{node}/{item['file']}"


def find_missing(
    run_dir: str, nodes: Sequence[Json], bounds: quota.Quota, write: bool = True
) -> tuple[Sizes, Sizes]:
    """Return (sizes, left) of the files that differ from their node's.

    sizes: {node: {file: bytes}} to fetch. left: {node: {file: bytes}} that a bound leaves on the
    node. bounds: quota.Quota. The smallest files come first, so that one log without end does not
    cost the others.
    """
    check_entries(nodes)
    if write:
        make_private(run_dir)
    sizes: Sizes = {entry["node"]: {} for entry in nodes}
    left: Sizes = {entry["node"]: {} for entry in nodes}
    root: int | None = None
    if os.path.isdir(run_dir):
        root = open_root(run_dir)
    try:
        for entry in nodes:
            result = (sizes[entry["node"]], left[entry["node"]])
            _find_missing_of(root, run_dir, entry, bounds, result, write)
    finally:
        if root is not None:
            os.close(root)
    return sizes, left


def _find_missing_of(
    root: int | None,
    run_dir: str,
    entry: Json,
    bounds: quota.Quota,
    result: tuple[dict[str, int], dict[str, int]],
    write: bool,
) -> None:
    """Fill result, (sizes, left), for one node.

    root: None where the directory is missing.
    """
    node, (sizes, left) = entry["node"], result
    used, count = quota.measure_usage(os.path.dirname(os.path.abspath(run_dir)), node)
    for item in sorted(entry["files"], key=lambda item: item["bytes"]):
        local = None
        if root is not None:
            local = digests_below(root, item["home"], item["bytes"])
        if describe_difference(local, item) is None:
            continue
        more, new_files = item["bytes"], 1
        if local is not None:
            more, new_files = max(0, item["bytes"] - local.bytes), 0
        if used + more > bounds.bytes or count + new_files > bounds.files:
            left[item["file"]] = item["bytes"]
            continue
        used, count = used + more, count + new_files
        sizes[item["file"]] = item["bytes"]
        if write and root is not None:
            _prepare_incoming(root, node, item, local is not None)


def _prepare_incoming(root: int, node: str, item: Json, exists: bool) -> None:
    """Make the directory for a fetch, and link the part that is here into it."""
    with parent_of(root, _incoming(node, item), make=True) as (folder, name):
        if not exists:
            return
        # Another process that collects the same may have linked it.
        with contextlib.suppress(FileExistsError):
            os.link(item["home"], name, src_dir_fd=root, dst_dir_fd=folder, follow_symlinks=False)


def install_file(root: int, node: str, item: Json, write: bool) -> Installation:
    """Install one fetched file.

    root: descriptor of the run's directory.
    """
    incoming, home = _incoming(node, item), item["home"]
    fetched = digests_below(root, incoming, item["bytes"])
    here = digests_below(root, home, item["bytes"])
    if describe_difference(fetched, item) is not None and describe_difference(here, item) is None:
        if write:
            _remove_part(root, incoming, home, fetched)
        fetched = None
    installed = fetched or here
    problem = describe_difference(installed, item)
    if problem is not None or installed is None:
        return Installation(problem=problem)
    try:
        move, digest, kept = _decide_move(root, incoming, home, fetched, here)
    except quota.QuotaError as error:
        return Installation(problem=str(error))
    changed = move or not _is_private(root, home)
    if write and move:
        _make_private_file(root, incoming)
        if kept is not None:
            os.link(home, kept, src_dir_fd=root, dst_dir_fd=root, follow_symlinks=False)
        with parent_of(root, incoming) as (folder, name):
            os.replace(name, home, src_dir_fd=folder, dst_dir_fd=root)
    elif write:
        _make_private_file(root, home)
        if fetched is not None:
            _unlink(root, incoming)
    return Installation(changed, record=_record(node, item["file"], home, digest))


def _decide_move(
    root: int, incoming: str, home: str, fetched: Digest | None, here: Digest | None
) -> tuple[bool, Digest, str | None]:
    """Return (move, digests of the file that stays, name for the old file).

    Two files of one name: the longer one stays if it begins with the shorter one. Otherwise the old
    one is kept under a new name. Raise QuotaError if it has too many already.
    """
    if fetched is None and here is not None:
        return False, here, None
    if fetched is None:
        raise ValueError(f"{home}: there is no file")
    if here is None:
        return True, fetched, None
    if fetched.bytes > here.bytes:
        move, continued = True, _begins_with(root, incoming, here)
    else:
        move, continued = False, _begins_with(root, home, fetched)
    if continued:
        return move, max(fetched, here), None
    return True, fetched, free_name(root, home)


def _remove_part(root: int, incoming: str, home: str, fetched: Digest | None) -> None:
    """Remove the file of an earlier fetch if it is only a part of the one here."""
    if fetched is not None and _begins_with(root, home, fetched):
        _unlink(root, incoming)


def _begins_with(root: int, path: str, part: Digest) -> bool:
    """Return whether a file begins with another one.

    part: the digests of that.
    """
    whole = digests_below(root, path, part.bytes)
    return whole is not None and whole.prefix_sha256 == part.sha256


def _is_private(root: int, home: str) -> bool:
    return stat.S_IMODE(os.stat(home, dir_fd=root, follow_symlinks=False).st_mode) == 0o600


def _make_private_file(root: int, path: str) -> None:
    with os.fdopen(open_below(root, path), "rb") as handle:
        os.fchmod(handle.fileno(), 0o600)


def _record(node: str, file: str, home: str, digest: Digest) -> Json:
    """Return the index's record of a file.

    digest: as digests_below returns it.
    """
    return {
        "node": node,
        "file": file,
        "home": home,
        "bytes": digest.bytes,
        "sha256": digest.sha256,
    }


def _unlink(root: int, path: str) -> None:
    with parent_of(root, path) as (folder, name):
        os.unlink(name, dir_fd=folder)


def make_private(path: str) -> None:
    """Make a directory, and what is missing above it, for this user alone."""
    if not os.path.isdir(path):
        make_private(os.path.dirname(os.path.abspath(path)))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)


def free_name(root: int, home: str) -> str:
    """Return the first of <home>.1, .2, ... that is free below a directory descriptor.

    Raise QuotaError where too many are taken.
    """
    for number in range(1, quota.KEPT_COPIES + 1):
        name = f"{home}.{number}"
        try:
            os.stat(name, dir_fd=root, follow_symlinks=False)
        except FileNotFoundError:
            return name
    raise quota.QuotaError(f"{home} began again more than {quota.KEPT_COPIES} times on its node")


def earlier_versions(root: int, node: str, files: Iterable[Json]) -> list[Json]:
    """Return records of the earlier versions of a node's files.

    Those were fetched before they were truncated, replaced or removed on the node. files: as the
    node has them now. A file that is gone has no name on its node any more. The old version of one
    that began again is <home>.1, .2, ...
    """
    names = {item["home"]: item["file"] for item in files}
    pattern = safe_names.at_home(node, kept=True)
    records = []
    for name in sorted(os.listdir(root)):
        match = pattern.fullmatch(name)
        if not match or name in names:
            continue
        digest = digests_below(root, name, 0)
        if digest is not None:
            records.append(_record(node, names.get(match.group("home"), ""), name, digest))
    return records


def install_files(
    run_dir: str,
    nodes: Sequence[Json],
    write: bool = True,
    seconds: float = 45,
    left: Mapping[str, Collection[str]] | None = None,
) -> Json:
    """Install every node's fetched files and write the index of ranks.

    Return {"changed", "files", "replaced", "mismatches", "index"}. `index` is what ranks.json
    holds. seconds: limit of the wait for a stream that still copies a node's logs. left: {node:
    files} that a bound leaves on their node: their absence is not a mismatch.
    """
    check_entries(nodes)
    changed = False
    files: list[Json] = []
    replaced: list[Json] = []
    mismatches: list[Json] = []
    root = open_root(run_dir)
    try:
        for entry in nodes:
            if entry.get("goes_on"):
                # The run goes on: a stream brings its logs, and they are compared once it has
                # ended.
                continue
            expected_absent = (left or {}).get(entry["node"]) or ()
            moved, records, kept, wrong = _install_node(
                root, run_dir, entry, write, seconds, expected_absent
            )
            changed = changed or moved
            files += records
            replaced += kept
            mismatches += wrong
    finally:
        os.close(root)
    index = rank_index.build_index(run_dir, nodes, files, _read_index(run_dir))
    text = json.dumps(index, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    changed = update_file(os.path.join(run_dir, rank_index.NAME), text, write=write) or changed
    if write:
        _clear(os.path.join(run_dir, INCOMING))
    return {
        "changed": changed,
        "files": files,
        "replaced": replaced,
        "mismatches": mismatches,
        "index": index,
    }


def _read_index(run_dir: str) -> Json | None:
    """Return the index of an earlier collection.

    Return None where it is missing or damaged.
    """
    try:
        return rank_index.read_index(run_dir)
    except rank_index.NewerIndex as error:
        raise RequestError(str(error)) from error
    except rank_index.IndexProblem:
        return None  # install_files writes it again


def _install_node(
    root: int, run_dir: str, entry: Json, write: bool, seconds: float, left: Collection[str]
) -> tuple[bool, list[Json], list[Json], list[Json]]:
    """Install one node's files.

    Return (changed, records, replaced, mismatches).
    """
    lock = None
    try:
        if write:
            lock = Lock(run_dir, entry["node"], seconds)
    except Busy as error:
        return False, [], [], [_mismatch(entry, item, str(error)) for item in entry["files"]]
    changed = False
    files: list[Json] = []
    mismatches: list[Json] = []
    try:
        for item in entry["files"]:
            installed = _try_install_file(root, entry["node"], item, write)
            changed = changed or installed.changed
            if installed.record is not None:
                files.append(installed.record)
            elif item["file"] not in left:
                mismatches.append(_mismatch(entry, item, installed.problem))
        old = earlier_versions(root, entry["node"], entry["files"])
    finally:
        if lock is not None:
            lock.close()
    replaced = [
        {"node": entry["node"], "file": record["file"], "kept": record["home"]}
        for record in old
        if record["file"]
    ]
    return changed, files + old, replaced, mismatches


def _try_install_file(root: int, node: str, item: Json, write: bool) -> Installation:
    """Return `install_file`, with an error of the operating system as the problem."""
    try:
        return install_file(root, node, item, write)
    except OSError as error:
        return Installation(problem=f"cannot be installed: {error.strerror or error}")


def _mismatch(entry: Json, item: Json, problem: str | None) -> Json:
    return {
        "node": entry["node"],
        "file": item["file"],
        "home": item["home"],
        "problem": problem,
    }


def _clear(incoming: str) -> None:
    """Remove the directories that have become empty.

    A file that did not match keeps its own.
    """
    for folder, _folders, _files in os.walk(incoming, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            continue
