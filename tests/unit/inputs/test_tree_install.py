# SPDX-License-Identifier: Apache-2.0
"""Trees on a node: verified, switched in by one rename, read-only, and repaired after an
interruption; seen by a look.
"""

from __future__ import annotations

import os
import shutil

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import read_json
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    tree_install,
    tree_state,
)
from core_support import modes, put

FILES = {"tools/train.py": "print(1)\n", "configs/a.yml": "epoch: 1\n", "run.sh": "#!/bin/sh\n"}


@pytest.fixture
def source(tmp_path):
    """The controller's tree, its manifest and digest."""
    root = put(tmp_path / "source", FILES)
    os.chmod(os.path.join(root, "run.sh"), 0o755)
    os.symlink("tools", os.path.join(root, "bin"))
    entries = manifest.scan(root)
    return root, entries, manifest.digest(entries)


@pytest.fixture
def base(tmp_path):
    """A node's product directory."""
    path = tmp_path / "node" / ".trainyard"
    path.mkdir(parents=True)
    return str(path)


def send(base, source):
    """What rsync does: copy the tree to the staging place; return (final, staging)."""
    root, _entries, digest = source
    final, staging = tree_install.tree_paths(base, "code", digest)
    shutil.copytree(
        root,
        staging,
        symlinks=True,
        dirs_exist_ok=True,
        ignore=lambda folder, names: [n for n in names if n == "bin"],
    )
    if not os.path.lexists(os.path.join(staging, "bin")):
        os.symlink("tools", os.path.join(staging, "bin"))
    return final, staging


def test_a_good_tree_is_switched_in_and_read_only(base, source):
    _root, entries, digest = source
    final, staging = send(base, source)
    tree_install.switch_in(base, "code", digest, entries)
    assert (
        not os.path.exists(staging)
        and manifest.digest(manifest.scan(final)) == digest
        and final == os.path.join(base, "code", digest[:16])
    )
    assert all(mode & 0o222 == 0 for mode in modes(final).values())
    # the probe needs one lstat a file: nothing is read again
    assert set(read_json(final + ".scan.json")) == set(FILES)
    assert tree_state.look(base, "code", digest) == {
        "ok": True,
        "present": True,
        "differences": [],
    }


@pytest.mark.parametrize("paths", [["run.sh"], []])
def test_a_file_that_was_linked_is_not_read_again_where_that_is_noted(
    base, source, tmp_path, monkeypatch, paths
):
    """A link changes the inode's time of change (ctime)."""
    final, _staging = send(base, source)
    tree_install.switch_in(base, "code", source[2], source[1])
    os.link(os.path.join(final, "run.sh"), tmp_path / "link")
    tree_install.renew_records(final, paths)
    read, real = [], manifest.file_sha256
    monkeypatch.setattr(manifest, "file_sha256", lambda path: read.append(path) or real(path))
    assert tree_state.look(base, "code", source[2])["ok"]
    assert [os.path.basename(path) for path in read] == ([] if paths else ["run.sh"])


@pytest.mark.parametrize(
    "harm, words",
    [
        ({"tools/train.py": "print(2)\n"}, "tools/train.py: other content in the same 9 bytes"),
        ({"configs/a.yml": None}, "configs/a.yml: missing"),
    ],
)
def test_a_tree_that_arrives_changed_leaves_the_old_one_usable(base, source, harm, words):
    _root, entries, digest = source
    final, staging = send(base, source)
    tree_install.switch_in(base, "code", digest, entries)
    send(base, source)
    for name, text in harm.items():
        os.unlink(os.path.join(staging, name))
        if text:
            put(staging, {name: text})
    with pytest.raises(tree_install.TreeError, match="code arrived changed") as error:
        tree_install.switch_in(base, "code", digest, entries)
    assert words in str(error.value)
    assert tree_state.look(base, "code", digest)["ok"] and os.path.isdir(
        staging
    )  # a repeat sends only what is wrong
    send(base, source)
    tree_install.switch_in(base, "code", digest, entries)
    assert tree_state.look(base, "code", digest)["ok"] and not os.path.exists(staging)


def test_an_interrupted_sync_is_repaired(base, source):
    _root, entries, digest = source
    _final, staging = tree_install.tree_paths(base, "code", digest)
    put(staging, {"tools/train.py": "pri", "tools/.train.py.Xy12": "p", "left/over": "1"})
    os.symlink("nowhere", os.path.join(staging, "dangling"))
    with pytest.raises(tree_install.TreeError, match="missing"):
        tree_install.switch_in(base, "code", digest, entries)
    final, _staging = send(base, source)
    tree_install.switch_in(base, "code", digest, entries)
    assert manifest.scan(final) == entries


def test_nothing_was_sent(base):
    with pytest.raises(tree_install.TreeError, match="nothing was sent"):
        tree_install.switch_in(base, "code", "0" * 64, {})


def test_a_copy_that_was_changed_on_the_node_is_seen_named_and_replaced(base, source):
    _root, entries, digest = source
    final, _staging = send(base, source)
    tree_install.switch_in(base, "code", digest, entries)
    os.chmod(final, 0o700)
    os.chmod(os.path.join(final, "run.sh"), 0o755)
    put(final, {"run.sh": "#!/bin/SH\n", "extra": "x"})
    state = tree_state.look(base, "code", digest)
    assert state == {
        "ok": False,
        "present": True,
        "differences": ["extra: extra file", "run.sh: other content in the same 10 bytes"],
    }
    send(base, source)
    tree_install.switch_in(base, "code", digest, entries)
    assert (
        tree_state.look(base, "code", digest)["ok"]
        and os.listdir(os.path.join(base, "code")).count(digest[:16]) == 1
    )
    assert [name for name in os.listdir(os.path.join(base, "code")) if ".old-" in name] == []


def test_a_tree_that_is_not_there(base):
    assert tree_state.look(base, "data", "0" * 64) == {
        "ok": False,
        "present": False,
        "differences": [],
    }


def test_a_tree_whose_manifest_was_lost_still_differs(base, source):
    _root, entries, digest = source
    final, _staging = send(base, source)
    tree_install.switch_in(base, "code", digest, entries)
    os.unlink(final + ".manifest.json")
    assert tree_state.look(base, "code", digest)["ok"]
    os.chmod(final, 0o700)
    put(final, {"extra": "x"})
    assert not tree_state.look(base, "code", digest)["ok"]


def test_a_live_tree_keeps_its_files_while_it_is_replaced(base, source):
    """A training that has a file open, or another digest's tree, never sees a change (decision 9)."""
    root, entries, digest = source
    final, _staging = send(base, source)
    tree_install.switch_in(base, "code", digest, entries)
    with open(os.path.join(final, "tools/train.py"), encoding="ascii") as running:
        put(root, {"tools/train.py": "print(3)\n"})
        other = manifest.scan(root)
        newer, _staging = send(base, (root, other, manifest.digest(other)))
        tree_install.switch_in(base, "code", manifest.digest(other), other)
        assert running.read() == "print(1)\n" and newer != final
    assert manifest.scan(final) == entries and manifest.scan(newer) == other


def test_write_bits_come_and_go(tmp_path):
    root = put(tmp_path / "t", {"a/b": "1"})
    put(tmp_path, {"outside": "2"})
    os.symlink(str(tmp_path / "outside"), os.path.join(root, "link"))
    before = os.stat(str(tmp_path / "outside")).st_mode
    tree_install.protect(root)
    assert (
        all(mode & 0o222 == 0 for mode in modes(root).values())
        and os.stat(str(tmp_path / "outside")).st_mode == before
    )
    tree_install.open_folders(root)
    assert {mode & 0o200 for name, mode in modes(root).items() if name in ("", ".")} == {0o200}
    tree_install.remove(root)
    assert not os.path.exists(root) and os.path.exists(str(tmp_path / "outside"))


def test_a_second_sync_cannot_change_what_is_being_verified(base, source, monkeypatch):
    _root, entries, digest = source
    _final, staging = send(base, source)
    seen, scan = [], manifest.scan
    monkeypatch.setattr(
        tree_install.manifest,
        "scan",
        lambda root, *rest: seen.append(modes(root)) or scan(root, *rest),
    )
    os.unlink(os.path.join(staging, "configs", "a.yml"))
    with pytest.raises(tree_install.TreeError):
        tree_install.switch_in(base, "code", digest, entries)
    assert seen and all(
        mode & 0o222 == 0 for name, mode in seen[0].items() if name not in ("", ".")
    )
    folders = [folder for folder, _folders, _names in os.walk(staging)]
    assert all(os.stat(folder).st_mode & 0o200 for folder in folders), (
        "a repeat of the sync could not write"
    )
    send(base, source)
    tree_install.switch_in(base, "code", digest, entries)
