# SPDX-License-Identifier: Apache-2.0
"""Whether a user has chosen a site, and which ones there are."""

from __future__ import annotations

import os

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import default_site


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["-i", "x"], True),
        (["-ix"], True),
        (["-Ki", "x"], True),
        (["--inventory=x"], True),
        (["--inventory", "x"], True),
        (["-e", "i=1", "play.yml"], False),
        (["-K", "-v", "--check", "--diff"], False),
    ],
)
def test_an_option_chooses_the_site(words, chosen):
    assert default_site.is_chosen(["ansible-playbook", *words], {}) is chosen


def test_the_environment_chooses_the_site():
    assert default_site.is_chosen(["x"], {"ANSIBLE_INVENTORY": "inventory/mine"})


def test_the_sites_of_a_folder_are_listed_once_without_sample_and_default(tmp_path):
    for name in ("local", "sample", "mine", "other"):
        os.makedirs(tmp_path / "inventory" / name)
    (tmp_path / "inventory" / "notes.txt").write_text("")
    folder = str(tmp_path / "inventory")
    found = default_site.find_sites([folder, folder, "/nowhere"], [folder + "/local"])
    assert [os.path.basename(path) for path in found] == ["mine", "other"]
    text = default_site.describe([folder + "/local"], found)
    assert f"-i {found[0]}, -i {found[1]}" in text
