# SPDX-License-Identifier: Apache-2.0
"""The option --wait of the verbs that start."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from trainyard import cli


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "short"], None),
        (["train", "short", "--wait"], "yes"),
        (["train", "--wait=2h", "short"], "2h"),
        (["resume", "RUN", "--wait", "30m"], "30m"),
        (["resume", "RUN", "--wait", "--check"], "yes"),
    ],
)
def test_wait_has_an_optional_limit(monkeypatch, arguments, expected):
    found = []
    monkeypatch.setattr(
        cli, "run_verb", lambda _settings, _verb, extra, *_rest: found.append(extra)
    )
    result = CliRunner().invoke(cli.cli, arguments)
    assert result.exit_code == 0, result.output
    assert found[0]["wait"] == expected
