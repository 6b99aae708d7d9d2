# SPDX-License-Identifier: Apache-2.0
"""The filter verification_times; tests/unit/modules/test_placement.py has the rates."""

from __future__ import annotations

import re

import yaml
from ansible.parsing.dataloader import DataLoader

FACTS = """
placement: {places: {data/coco: {bytes: 6}}}
trees: {data/dddddddddddddddd: {present: true, rate: 3.0}}
"""
TREES = "[{kind: data, name: x, digest: dddddddddddddddddddd, bytes: 6}]"


def test_values_as_ansible_hands_them_over(load_plugin):
    plugin = load_plugin("filter", "verification_times")
    estimate = plugin.FilterModule().filters()["verification_times"]
    lines = estimate(DataLoader().load(FACTS), "node1", DataLoader().load(TREES))
    assert re.fullmatch(
        r"node1: reads \d+ B of data/coco, about \d+ s at .*, as data x was read", lines[0]
    )
    assert re.fullmatch(r"node1: reads \d+ B of data x, about 2 s at .*, as a sample .*", lines[1])
    assert {type(line) for line in lines} == {str}
    assumed = estimate(DataLoader().load(FACTS), "node1", [])
    assert re.fullmatch(r"node1: .* of data/coco, .*/s, assumed: .*", assumed[0])


def test_it_is_documented(root):
    text = (root / "plugins" / "filter" / "verification_times.yml").read_text()
    assert yaml.safe_load(text)["DOCUMENTATION"]["name"] == "verification_times"
