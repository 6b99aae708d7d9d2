# SPDX-License-Identifier: Apache-2.0
"""Manifests: any difference between two trees is seen, named, and seen again through the cache."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from core_support import put

FILES = {"a.txt": "abcd", "sub/b.txt": "efgh", "sub/deep/c": ""}


def tree(folder):
    """Return a directory with three files, one of them executable, and a link."""
    put(folder, FILES)
    os.chmod(os.path.join(str(folder), "sub/b.txt"), 0o755)
    os.symlink("a.txt", os.path.join(str(folder), "link"))
    return str(folder)


def test_a_scan_describes_every_file(tmp_path):
    found = manifest.scan(tree(tmp_path))
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert {name: entry[:2] for name, entry in found.items()} == {
        "a.txt": ["f", 4],
        "link": ["l", 5],
        "sub/b.txt": ["x", 4],
        "sub/deep/c": ["f", 0],
    }
    assert (
        found["sub/deep/c"][2] == empty
        and found["a.txt"][2] == "88d4266fd4e6338d13b845fcf289579d209c897823b9217da3e161936f031589"
    )


def replace(name, text):
    def act(root):
        with open(os.path.join(root, name), "w", encoding="ascii") as handle:
            handle.write(text)

    return act


def relink(target):
    def act(root):
        os.unlink(os.path.join(root, "link"))
        os.symlink(target, os.path.join(root, "link"))

    return act


@pytest.mark.parametrize(
    "act, sentence",
    [
        (replace("a.txt", "abcX"), "a.txt: other content in the same 4 bytes"),
        (replace("a.txt", "abcde"), "a.txt: 5 bytes instead of 4"),
        (replace("new", "x"), "new: extra file"),
        (lambda root: os.unlink(os.path.join(root, "a.txt")), "a.txt: missing"),
        (lambda root: os.chmod(os.path.join(root, "a.txt"), 0o755), "a.txt: kind x instead of f"),
        (
            lambda root: os.chmod(os.path.join(root, "sub/b.txt"), 0o644),
            "sub/b.txt: kind f instead of x",
        ),
        (relink("sub/b"), "link: other content in the same 5 bytes"),
        (relink("sub/deep"), "link: 8 bytes instead of 5"),
        (
            lambda root: (os.unlink(os.path.join(root, "link")), replace("link", "abcd")(root)),
            "link: kind f instead of l",
        ),
    ],
    ids=[
        "byte",
        "size",
        "extra",
        "missing",
        "made executable",
        "no longer executable",
        "link",
        "link to a folder",
        "link became a file",
    ],
)
@pytest.mark.parametrize("cached", [False, True])
def test_every_difference_is_seen_and_named(tmp_path, act, sentence, cached):
    root, cache = tree(tmp_path / "tree"), str(tmp_path / "cache.json") if cached else None
    before = manifest.scan(root, None, cache)
    act(root)
    after = manifest.scan(root, None, cache)
    assert manifest.differences(before, after) == [sentence] and manifest.digest(
        before
    ) != manifest.digest(after)


@pytest.mark.parametrize(
    "act",
    [
        lambda root: os.utime(os.path.join(root, "a.txt"), (1, 1)),
        lambda root: os.chmod(os.path.join(root, "a.txt"), 0o600),
        lambda root: os.makedirs(os.path.join(root, "empty")),
        lambda root: put(
            root, {"sub/__pycache__/x.pyc": "1", ".git/config": "2", ".ipynb_checkpoints/n": "3"}
        ),
    ],
    ids=["time", "mode", "empty folder", "bytecode and git"],
)
def test_what_makes_no_difference(tmp_path, act):
    root = tree(tmp_path)
    before = manifest.digest(manifest.scan(root))
    act(root)
    assert manifest.digest(manifest.scan(root)) == before


def test_the_digest_is_of_the_whole_and_not_of_the_order():
    entries = {"a": ["f", 1, "0" * 64], "b": ["f", 1, "1" * 64]}
    assert manifest.digest(entries) == manifest.digest(dict(reversed(list(entries.items()))))
    swapped = {"a": entries["b"], "b": entries["a"]}
    assert (
        len(
            {
                manifest.digest(item)
                for item in (entries, swapped, {}, {"a": entries["a"]}, {"a\x00f": entries["a"]})
            }
        )
        == 5
    )


def test_differences_are_cut_to_a_bearable_number():
    lines = manifest.differences({}, {"f%02d" % n: ["f", 0, ""] for n in range(25)}, limit=3)
    assert lines == ["f00: extra file", "f01: extra file", "f02: extra file", "... and 22 more"]


# --- the cache


def test_the_cache_spares_reading_and_never_lies(tmp_path, monkeypatch):
    root, cache = tree(tmp_path / "tree"), str(tmp_path / "cache.json")
    read = []
    real = manifest.file_sha256
    monkeypatch.setattr(
        manifest, "file_sha256", lambda path: read.append(os.path.basename(path)) or real(path)
    )
    first = manifest.scan(root, None, cache)
    assert sorted(read) == ["a.txt", "b.txt", "c"] and os.stat(cache).st_mode & 0o777 == 0o600
    del read[:]
    assert manifest.scan(root, None, cache) == first and read == []
    os.utime(os.path.join(root, "a.txt"), (1, 1))  # touched, same content
    assert manifest.scan(root, None, cache) == first and read == ["a.txt"]
    del read[:]
    info = os.stat(os.path.join(root, "a.txt"))
    replace("a.txt", "WXYZ")(
        root
    )  # other content, same size, and the time put back: only ctime tells
    os.utime(os.path.join(root, "a.txt"), ns=(info.st_atime_ns, info.st_mtime_ns))
    assert manifest.scan(root, None, cache) != first and read == ["a.txt"]
    os.unlink(os.path.join(root, "a.txt"))
    assert "a.txt" not in manifest.scan(root, None, cache)
    with open(cache, encoding="ascii") as handle:
        assert "a.txt" not in json.load(handle)


@pytest.mark.parametrize("kept", ["{half", "[1]", '"x"', "3", '{"a.txt": 3, "sub/b.txt": "x"}'])
def test_a_broken_cache_is_no_cache(tmp_path, kept):
    root = tree(tmp_path / "tree")
    put(tmp_path, {"cache.json": kept})
    assert manifest.scan(root, None, str(tmp_path / "cache.json")) == manifest.scan(root)


# --- refused


@pytest.mark.parametrize(
    "name, words",
    [
        ("a\nb", "control character"),
        ("a\rb", "control character"),
        ("a\udcff", "not UTF-8"),
        ("-rf", "leading dash"),
    ],
)
def test_a_name_that_cannot_be_sent(tmp_path, name, words):
    put(tmp_path, {name: "x"})
    with pytest.raises(manifest.ManifestError, match=words):
        manifest.scan(str(tmp_path))


def test_what_is_no_file(tmp_path):
    os.mkfifo(str(tmp_path / "pipe"))
    with pytest.raises(manifest.ManifestError, match="pipe: not a file, a directory or a link"):
        manifest.scan(str(tmp_path))
    with pytest.raises(manifest.ManifestError, match="no such directory"):
        manifest.scan(str(tmp_path / "none"))


# --- git


def git(root, *words):
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(root),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    argv = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.org"] + list(
        words
    )
    return subprocess.run(argv, env=environment, check=True, capture_output=True).stdout.decode()


def test_git_lists_tracked_and_new_files_and_leaves_ignored_ones(tmp_path):
    put(
        tmp_path,
        {
            "kept.py": "1",
            "gone.py": "2",
            "sub/x.py": "3",
            ".gitignore": "*.pdparams\noutput/\n",
            "big.pdparams": "4",
            "output/log": "5",
            "sub/__pycache__/x.pyc": "6",
            "um\u00e4ut/\u4e2d.py": "7",
        },
    )
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "kept.py", "gone.py", ".gitignore", "sub/x.py")
    git(tmp_path, "add", "-f", "sub/__pycache__/x.pyc")
    git(tmp_path, "commit", "-qm", "x")
    os.unlink(str(tmp_path / "gone.py"))
    put(tmp_path, {"new.py": "8"})
    os.symlink("sub", str(tmp_path / "folder-link"))
    expected = [
        ".gitignore",
        "folder-link",
        "kept.py",
        "new.py",
        "sub/x.py",
        "um\u00e4ut/\u4e2d.py",
    ]
    assert manifest.git_files(str(tmp_path)) == expected
    assert manifest.git_files(str(tmp_path / "sub")) == ["x.py"]
    # what is listed here is what a node finds when exactly these files have arrived
    assert sorted(manifest.scan(str(tmp_path), manifest.git_files(str(tmp_path)))) == expected


def test_outside_git_there_is_no_listing(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert manifest.git_files(str(tmp_path)) is None


@pytest.mark.parametrize(
    "target, inside",
    [("a/b", True), ("../x", True), ("/etc/passwd", False), ("../../x", False), ("..", True)],
)
def test_a_link_that_leads_out_of_the_tree_is_refused(tmp_path, target, inside):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(target)
    entries = {"folder/link": ["l", 1, "x"], "file": ["f", 1, "x"]}
    if inside:
        manifest.refuse_links_out(str(tmp_path), entries)
    else:
        with pytest.raises(manifest.ManifestError, match="folder/link .*outside of the tree"):
            manifest.refuse_links_out(str(tmp_path), entries)
