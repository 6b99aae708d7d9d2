# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the tests of the check."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import gpu_links


@pytest.fixture(autouse=True)
def no_links(tmp_path_factory, monkeypatch):
    """Hide the command line and the adapters of the machine that runs the tests."""
    monkeypatch.setattr(gpu_links, "ROOT", str(tmp_path_factory.mktemp("root")))
