# SPDX-License-Identifier: Apache-2.0
"""The rules for plain scalars give what PyYAML gives."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.suites.plain_scalar import (
    is_plain_text,
)
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

PARTS = [
    *("a", "b.c", "1", "0", "09", "0x1f", "0b1", "1_0", "1:30", "12:30:45.", ".5", "1.", "1e5"),
    *(".", "1.0e+5", "-", "--", "---", "...", "+", "~", "null", "Null", "yes", "No", "on", "OFF"),
    *("y", "true", "2020-01-02", "2020-1-2T1:02:03Z", "2020-01-02 03:04:05 +1", "<<", "=", "inf"),
    *(".inf", ".NaN", " ", "  ", "\t", "\n", ":", ": ", "#", " #", ",", "?", "? ", "[", "]", "{"),
    *("}", "&a", "*a", "!t", "|", ">", "'", '"', "%", "@", "`", "\\", "/", "é", "\ufeff", "\xa0"),
    *("\x85", "\x00", "\u2028", "\ud800", "\x1b", "\U0001f600", "configs/a.yml", "$", "_"),
    *("é: x", "a:b", "a#b"),
]  # fmt: skip


def read_by_pyyaml(text):
    try:
        return yaml.safe_load(f"[{text}]") == [text] and yaml.safe_load(text) == text
    except (yaml.YAMLError, ValueError):
        return False


@pytest.mark.parametrize("text", PARTS)
def test_each_part(text):
    assert is_plain_text(text) == read_by_pyyaml(text)


@pytest.mark.parametrize("first", PARTS)
def test_each_pair(first):
    for second in PARTS:
        text = first + second
        assert is_plain_text(text) == read_by_pyyaml(text), repr(text)


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.lists(st.sampled_from(PARTS), max_size=4).map("".join), st.text(max_size=20)))
@example("1_:30")
@example("0o17")
def test_any_text(text):
    # Two words with a line separator between them are plain to PyYAML. text_rules refuses it.
    assume("\u2028" not in text and "\u2029" not in text)
    assert is_plain_text(text) == (bool(text) and read_by_pyyaml(text))
