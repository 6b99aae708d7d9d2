# SPDX-License-Identifier: Apache-2.0
"""code_outline_info: digest, names and configs of a code tree."""

from __future__ import annotations

import code_outline_info
import pytest
from core_support import put


def test_the_outline_has_the_files_and_the_texts_of_the_configs(run_module, tmp_path):
    files = {"train.py": "x", "a.yml": "_BASE_: b.yml\n", "b.yml": "c: 1\n", "log/1": "x"}
    given = {
        "base": str(tmp_path / "base"),
        "path": put(tmp_path / "code", files),
        "config": "a.yml",
        "exclude": ["log"],
    }
    result = run_module(code_outline_info, given)
    outline = result["outline"]
    assert not result["changed"] and sorted(outline["texts"]) == ["a.yml", "b.yml"]
    assert "train.py" in outline["names"] and "log/1" not in outline["names"]


@pytest.mark.parametrize("lacking", ["path", "config"])
def test_the_tree_and_the_config_are_needed(run_module, tmp_path, lacking):
    given = {"path": str(tmp_path), "config": "a.yml"}
    del given[lacking]
    assert lacking in run_module(code_outline_info, given)["msg"]


def test_a_tree_that_is_not_there_is_refused(run_module, tmp_path):
    given = {"base": str(tmp_path), "path": str(tmp_path / "none"), "config": "a.yml"}
    assert run_module(code_outline_info, given)["failed"]
