# SPDX-License-Identifier: Apache-2.0
"""A pipe without a reader, on real pipes."""

from __future__ import annotations

import os

from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import broken_pipe


def test_only_a_pipe_without_a_reader_is_broken_and_then_silent(tmp_path):
    reader, writer = os.pipe()
    assert not broken_pipe.is_broken(writer)
    os.close(reader)
    assert broken_pipe.is_broken(writer)
    broken_pipe.silence(writer)
    assert os.write(writer, b"x") == 1 and not broken_pipe.is_broken(writer)
    os.close(writer)
    with open(tmp_path / "file", "wb") as file:
        assert not broken_pipe.is_broken(file.fileno())
