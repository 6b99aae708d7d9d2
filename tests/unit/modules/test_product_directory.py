# SPDX-License-Identifier: Apache-2.0
"""product_directory: an undo takes the product's environments, and nothing of anybody else's."""

from __future__ import annotations

import json

import product_directory
import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import tree_install

DIGEST = "0123456789abcdef"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory with a product directory and things of its owner."""
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    for name in ("env/bin/python", "wheels/mine.whl", f".trainyard/env/{DIGEST}/bin/python",
        f".trainyard/wheels/{DIGEST}/a.whl",
                 ".trainyard/runs/r/plan.json", ".trainyard/env/mine/x",
                 ".trainyard/lingering"):  # fmt: skip
        (tmp_path / "me" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "me" / name).write_text(name)
    return tmp_path / "me"


def call(capsys, **given):
    with patch_module_args(given), pytest.raises(SystemExit):
        product_directory.main()
    return json.loads(capsys.readouterr().out)


def listing(folder):
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if not path.is_dir() or path.is_symlink()
    )


def test_ours_goes_and_the_rest_stays_and_is_named(home, capsys, monkeypatch):
    tree = home / ".trainyard/wheels" / DIGEST
    for name in (tree_install.MANIFEST, tree_install.SCAN):
        tree.with_name(DIGEST + name).write_text("{}")
    tree_install.protect(tree)
    (tree.with_name(DIGEST + ".old-17") / "folder").mkdir(parents=True)
    staging = home / ".trainyard/staging"
    for name in (f"wheels-{DIGEST}", f"data-{DIGEST}"):
        (staging / name).mkdir(parents=True)
        (staging / (name + tree_install.MANIFEST)).write_text("{}")
    before = listing(home)
    assert (
        call(capsys, home=".trainyard", _ansible_check_mode=True)["changed"] is True
        and listing(home) == before
    )
    opened, open_folders = [], tree_install.open_folders
    # A test as root could remove a read-only tree, and the training user could not.
    monkeypatch.setattr(
        tree_install, "open_folders", lambda path: (opened.append(path), open_folders(path))
    )
    answer = call(capsys, home=".trainyard")
    assert str(tree) in opened
    beside = [f"wheels/{DIGEST}{name}" for name in (tree_install.MANIFEST, tree_install.SCAN)]
    ours = ["env/" + DIGEST, "wheels/" + DIGEST, *beside, f"wheels/{DIGEST}.old-17"]
    staged = f"staging/wheels-{DIGEST}"
    ours = sorted([*ours, staged, staged + tree_install.MANIFEST, "lingering"])
    assert sorted(answer["removed"]) == ours and answer["left"] == ["env/mine"]
    assert listing(home) == [
        ".trainyard/env/mine/x",
        ".trainyard/runs/r/plan.json",
        f".trainyard/staging/data-{DIGEST}.manifest.json",
        "env/bin/python",
        "wheels/mine.whl",
    ]
    assert call(capsys, home=".trainyard")["changed"] is False


@pytest.mark.parametrize("where", [".", "..", "/", "~", "~/", "", "x/..", "../.."])
def test_a_home_directory_is_not_the_products(home, capsys, where):
    (home / "env" / DIGEST).mkdir()
    before = listing(home)
    assert call(capsys, home=where)["failed"] is True
    assert listing(home) == before and (home / "env" / DIGEST).is_dir()


def test_no_link_is_followed(home, capsys):
    other = home / "other"
    (other / "env" / DIGEST).mkdir(parents=True)
    (home / "link").symlink_to(other)
    assert call(capsys, home="link")["failed"] is True and (other / "env" / DIGEST).is_dir()
    (home / "ours").mkdir()
    (home / "ours/env").symlink_to(other / "env")
    (home / "ours/wheels").mkdir()
    (home / "ours/wheels" / DIGEST).symlink_to(other)
    answer = call(capsys, home="ours")
    assert (
        answer["left"] == ["env"]
        and (home / "ours/env").is_symlink()
        and (other / "env" / DIGEST).is_dir()
    )
    assert answer["removed"] == ["wheels/" + DIGEST] and not (home / "ours/wheels").exists()


def test_a_directory_of_another_user_stays(home, capsys, monkeypatch):
    monkeypatch.setattr(product_directory.os, "geteuid", lambda: 65533)
    assert (
        call(capsys, home=".trainyard")["failed"] is True
        and (home / ".trainyard/env" / DIGEST).is_dir()
    )


def test_nothing_there_is_nothing_to_do(home, capsys):
    assert call(capsys, home="nothere") | {"invocation": None} == {
        "changed": False,
        "removed": [],
        "left": [],
        "invocation": None,
    }
