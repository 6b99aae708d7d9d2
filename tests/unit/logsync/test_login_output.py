# SPDX-License-Identifier: Apache-2.0
"""What a login shell prints, read from real commands in bounded time and memory."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import login_output


@pytest.mark.parametrize(
    "script, text",
    [
        ("true", ""),
        ("echo hello", "hello"),
        ("echo hello; exit 3", "hello"),
        ("echo hello >&2", ""),
        ("printf '\\n\\n'", ""),
    ],
)
def test_the_standard_output_counts_alone(script, text):
    assert login_output.read_from(["sh", "-c", script]) == text


def test_an_endless_output_is_cut_and_a_silent_command_is_ended():
    begun = time.monotonic()
    assert login_output.read_from(["yes"]) == ("y\n" * 2048).strip()
    assert login_output.read_from(["sleep", "600"], seconds=0.2) == ""
    assert login_output.read_from(["/no/such/program"]) == ""
    assert time.monotonic() - begun < 30


def test_a_connection_of_another_kind_is_not_asked():
    assert login_output.read(SimpleNamespace(transport="local")) == ""


def test_the_command_is_that_of_rsyncs_connection(monkeypatch):
    words = ["printf", "%s %s %s", "-o X"]
    monkeypatch.setattr(
        login_output.log_receiver, "ssh_command", lambda connection: (words, "node1")
    )
    assert login_output.read(SimpleNamespace(transport="ssh")) == "-o X node1 true"
