# SPDX-License-Identifier: Apache-2.0
"""Lines about peers: the guard and the report know the same ones, and the guard's fast pattern
leaves none of them out.
"""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import phase_watchdog
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import rendezvous
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import curves


@pytest.mark.parametrize("pattern", [rendezvous.PEERS_SOUGHT, rendezvous.PEERS_FOUND])
def test_each_alternative_has_a_literal(pattern):
    for alternative in pattern.pattern.split("|"):
        line = alternative.replace(r"\]", "]").replace(r"\d", "7").replace(r"\(s\)", "(s)")
        assert pattern.search(line), line
        assert any(literal in line for literal in rendezvous.LITERALS), line


def test_there_is_one_definition():
    assert phase_watchdog.PEERS_SOUGHT is curves.PEERS_SOUGHT is rendezvous.PEERS_SOUGHT
    assert phase_watchdog.PEERS_FOUND is curves.PEERS_FOUND is rendezvous.PEERS_FOUND
