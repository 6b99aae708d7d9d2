# SPDX-License-Identifier: Apache-2.0
"""Results that tasks registered on several hosts, and the filter that returns them."""

from __future__ import annotations

import yaml
from ansible.parsing.dataloader import DataLoader
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base.host_results import results_of

VARIABLES = {
    "node1": {"probe": {"facts": {"cores": 4}, "changed": False}},
    "node2": {"probe": {"unreachable": True, "msg": "No route to host"}},
    "node3": {},
    "node4": {"probe": {"facts": {}}},
}
NODES = ["node4", "node3", "node2", "node1"]


def test_results_come_in_the_order_of_the_hosts():
    assert list(results_of(NODES, VARIABLES, "probe")) == ["node4", "node2", "node1"]
    assert results_of(NODES, VARIABLES, "probe", "facts") == {"node4": {}, "node1": {"cores": 4}}


def test_a_host_without_a_result_has_the_default():
    messages = results_of(NODES, VARIABLES, "probe", "msg", "")
    assert messages == {"node4": "", "node3": "", "node2": "No route to host", "node1": ""}
    assert list(messages) == NODES


def test_false_and_zero_are_results():
    variables = {"node1": {"network": {"complete": False, "lost": 0}}}
    assert results_of(["node1"], variables, "network", "complete", True) == {"node1": False}
    assert results_of(["node1"], variables, "network", "lost") == {"node1": 0}


def test_the_filter_returns_plain_data(load_plugin, root):
    plugin = load_plugin("filter", "results_of")
    loaded = DataLoader().load("{node1: {probe: {facts: {cores: 4}}}}")
    found = plugin.FilterModule().filters()["results_of"](["node1"], loaded, "probe", "facts")
    assert found == {"node1": {"cores": 4}} and type(found["node1"]) is dict
    text = (root / "plugins" / "filter" / "results_of.yml").read_text()
    assert yaml.safe_load(text)["DOCUMENTATION"]["name"] == "results_of"
