# SPDX-License-Identifier: Apache-2.0
"""Files that are read whole and replaced in one step."""

from __future__ import annotations

import os

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import files
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_json,
    write_json,
)


def test_json_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = str(tmp_path / "new" / "x.json")
    write_json(path, {"a": 1})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed here")))
    with pytest.raises(OSError, match="killed here"):
        write_json(path, {"a": 2})
    assert read_json(path) == {"a": 1} and read_json(path + ".none") is None
    assert os.listdir(tmp_path / "new") == ["x.json"]  # a full disk is not filled with halves
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_two_nodes_with_one_directory_and_equal_pids_do_not_write_into_each_others_file(
    tmp_path, monkeypatch
):
    path, sync = str(tmp_path / "x.json"), os.fsync

    def other_one_first(descriptor):
        monkeypatch.setattr(os, "fsync", sync)
        write_json(path, {"who": "the other one, with a longer text"})
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", other_one_first)
    write_json(path, {"who": "me"})
    assert read_json(path) == {"who": "me"} and os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o400])
def test_a_replaced_file_has_its_mode_whatever_the_umask(tmp_path, mode):
    path = tmp_path / "x"
    umask = os.umask(0o077)
    try:
        files.replace_file(str(path), "训练", mode)
        files.replace_file(str(path), b"\xff", mode, sync=False)
    finally:
        os.umask(umask)
    assert path.read_bytes() == b"\xff" and path.stat().st_mode & 0o777 == mode


def test_a_link_is_replaced_and_what_it_means_stays(tmp_path):
    (tmp_path / "other").write_text("other")
    (tmp_path / "x").symlink_to("other")
    files.replace_file(str(tmp_path / "x"), "new")
    assert (tmp_path / "other").read_text() == "other" and not (tmp_path / "x").is_symlink()


def test_an_equal_file_is_not_written_again(tmp_path):
    path = tmp_path / "x"
    assert files.update_file(str(path), "text", write=False) and not path.exists()
    assert files.update_file(str(path), "text") and path.stat().st_mode & 0o777 == 0o600
    before = path.stat().st_ino
    assert not files.update_file(str(path), "text") and path.stat().st_ino == before
    path.chmod(0o644)
    assert files.update_file(str(path), "text") and path.stat().st_mode & 0o777 == 0o600
    assert files.update_file(str(path), "tex") and path.read_text() == "tex"


def test_what_cannot_be_read_is_empty(tmp_path):
    (tmp_path / "x").write_bytes(b"a\xff")
    assert (
        files.read_text(tmp_path / "x") == "a\ufffd" and files.read_text(tmp_path / "x", 1) == "a"
    )
    assert files.read_text(tmp_path) == "" and files.read_bytes(tmp_path / "y") is None
    assert files.read_mapping(str(tmp_path / "x")) == {}
