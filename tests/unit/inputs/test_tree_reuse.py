# SPDX-License-Identifier: Apache-2.0
"""A new tree takes the files that another tree of the node has, as hard links, and no others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import (
    tree_install,
    tree_relay,
    tree_reuse,
    tree_state,
)
from core_support import put

KIND = "data"
FILES = {"a/1": "one", "a/2": "two", "b": "three", "run.sh": "#!/bin/sh\n", "empty": ""}


class Node:
    """A node's product directory, and trees that a controller sends there."""

    def __init__(self, folder):
        self.base, self.folder, self.count = str(folder / "node"), folder, 0

    def tree(self, **changes):
        """Return (root, manifest, digest) of a tree on the controller. None leaves a file out."""
        self.count += 1
        files = {name: text for name, text in {**FILES, **changes}.items() if text is not None}
        root = put(self.folder / f"source{self.count}", files)
        if "run.sh" in files:
            os.chmod(os.path.join(root, "run.sh"), 0o755)
        os.symlink("b", os.path.join(root, "link"))
        entries = manifest.scan(root)
        return root, entries, manifest.digest(entries)

    def install(self, tree):
        """Bring a tree, and return (what was missing before, its place)."""
        root, entries, digest = tree
        missing = tree_relay.begin(self.base, KIND, digest, entries)
        final, staging = tree_install.tree_paths(self.base, KIND, digest)
        for path in missing:
            os.makedirs(os.path.dirname(os.path.join(staging, path)), exist_ok=True)
            shutil.copy2(
                os.path.join(root, path), os.path.join(staging, path), follow_symlinks=False
            )
        tree_install.switch_in(self.base, KIND, digest)
        return missing, final


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def inode(*parts):
    return os.lstat(os.path.join(*parts)).st_ino


def test_an_unchanged_file_is_linked_and_no_file_is_read_again(node, monkeypatch):
    first, second = node.tree(), node.tree(b="3", new="4")
    missing, old = node.install(first)
    assert missing == sorted(first[1])
    read = []
    before = manifest.file_sha256
    monkeypatch.setattr(manifest, "file_sha256", lambda path: read.append(path) or before(path))
    missing, new = node.install(second)
    assert missing == ["b", "link", "new"]
    assert inode(old, "a/1") == inode(new, "a/1") and inode(old, "b") != inode(new, "b")
    for digest in (first[2], second[2]):
        assert tree_state.look(node.base, KIND, digest)["ok"]
    assert sorted(map(os.path.basename, read)) == ["b", "new"]
    # Removing the old one leaves the new one, and nothing of it is read again.
    read.clear()
    tree_install.remove(old)
    assert tree_state.look(node.base, KIND, second[2])["ok"] and read == []


def change(path, text, times=False):
    info = os.stat(path)
    os.chmod(path, 0o644)
    Path(path).write_text(text)
    if times:
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    os.chmod(path, 0o444)


@pytest.mark.parametrize("times", [False, True])
def test_a_file_that_was_changed_on_the_node_is_sent(node, times):
    first, second = node.tree(), node.tree(new="4")
    _missing, old = node.install(first)
    change(os.path.join(old, "a/1"), "ONE", times)
    missing, _new = node.install(second)
    assert missing == ["a/1", "link", "new"]
    assert tree_state.look(node.base, KIND, second[2])["ok"]


def test_a_file_with_another_kind_is_sent(node):
    node.install(node.tree())
    root, _entries, _digest = node.tree(new="4")
    os.chmod(os.path.join(root, "run.sh"), 0o644)
    entries = manifest.scan(root)
    assert node.install((root, entries, manifest.digest(entries)))[0] == ["link", "new", "run.sh"]


def test_the_good_files_of_a_damaged_copy_are_kept(node):
    tree = node.tree()
    _missing, old = node.install(tree)
    os.chmod(old, 0o700)
    change(os.path.join(old, "b"), "THREE")
    os.unlink(os.path.join(old, "empty"))
    missing, _new = node.install(tree)
    assert missing == ["b", "empty", "link"] and tree_state.look(node.base, KIND, tree[2])["ok"]


def test_a_repair_believes_no_record(node):
    """A disk may change bytes without a time. Another tree that shares the file has a record of it
    that still fits.
    """
    first, second = node.tree(), node.tree(new="4")
    for tree in (first, second):
        _missing, place = node.install(tree)
    path = os.path.join(place, "a/1")
    records = {}
    for tree in (first, second):
        name = tree_install.tree_paths(node.base, KIND, tree[2])[0] + tree_install.SCAN
        records[name] = json.loads(Path(name).read_text())
    change(path, "ONE", times=True)
    for name, known in records.items():  # as if nothing had changed but the content
        known["a/1"][3] = os.stat(path).st_ctime_ns
        Path(name).write_text(json.dumps(known))
    assert "a/1" in node.install(second)[0]


def test_a_file_that_another_link_has_touched_is_read_and_linked(node):
    first, second, third = node.tree(), node.tree(new="4"), node.tree(new="5")
    places = [node.install(tree)[1] for tree in (first, second)]
    os.unlink(os.path.join(places[1] + tree_install.SCAN))
    shutil.copy(places[0] + tree_install.SCAN, places[1] + tree_install.SCAN)
    os.link(os.path.join(places[1], "b"), node.folder / "elsewhere")  # another time of change
    assert node.install(third)[0] == ["link", "new"]


def test_nothing_is_written_through_a_link_that_is_not_known_to_be_right(node):
    first, second = node.tree(), node.tree(new="4")
    _missing, old = node.install(first)
    staging = tree_install.tree_paths(node.base, KIND, second[2])[1]
    os.makedirs(staging)
    os.link(os.path.join(old, "b"), os.path.join(staging, "b"))
    change(os.path.join(old, "b"), "thr")
    tree_relay.begin(node.base, KIND, second[2], second[1])
    assert not os.path.exists(os.path.join(staging, "b"))


def test_a_link_in_the_place_of_a_file_is_not_taken(node, tmp_path):
    first, second = node.tree(), node.tree(new="4")
    _missing, old = node.install(first)
    os.chmod(old, 0o700)
    os.rename(os.path.join(old, "b"), tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", os.path.join(old, "b"))
    assert "b" in node.install(second)[0]


def test_a_record_that_was_forged_is_noticed_by_its_inode(node):
    """A training may write beside the trees. A record holds for the inode that it names."""
    first, second = node.tree(), node.tree(b="3333")
    _missing, old = node.install(first)
    records = json.loads(Path(old + tree_install.SCAN).read_text())
    records["b"][4] = second[1]["b"][2]
    Path(old + tree_install.SCAN).write_text(json.dumps(records))
    missing, _new = node.install(second)
    assert "b" in missing, "its size is another one"


def test_without_room_for_links_the_file_is_sent(node, monkeypatch):
    node.install(node.tree())

    def link(*_given, **_more):
        raise OSError(31, "Too many links")

    monkeypatch.setattr(os, "link", link)
    second = node.tree(new="4")
    assert node.install(second)[0] == sorted(second[1])


def test_the_newest_trees_are_looked_at(node):
    for number in range(tree_reuse.MOST_TREES + 2):
        node.install(node.tree(**{"a/1": f"text {number}", "b": None}))
    missing, _place = node.install(node.tree(**{"a/1": "text 0"}))
    assert missing == ["a/1", "b", "link"], "the oldest are passed over"
