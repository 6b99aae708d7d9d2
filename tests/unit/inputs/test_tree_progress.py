# SPDX-License-Identifier: Apache-2.0
"""tree_progress: what a long transfer shows, whatever the node answers."""

from __future__ import annotations

import os
import re
import sys
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import tree_progress

GB = 10**9
TREE = {"kind": "data", "name": "coco", "bytes": 100 * GB}
FIGURES = re.compile(r"[\d.]+ (?:[KMGT]iB/s|[KMGT]iB|B/s|B|%|s|min|h)")


@pytest.mark.parametrize(
    ("there", "before", "figures"),
    [
        (10 * GB, 9 * GB, ["9.3 GiB", "93.1 GiB", "10 %", "95.4 MiB/s", "15 min"]),
        (10 * GB, None, ["9.3 GiB", "93.1 GiB", "10 %"]),
        (10 * GB, 10 * GB, ["9.3 GiB", "93.1 GiB", "10 %", "10 s"]),
        (101 * GB, 99 * GB, ["93.1 GiB", "93.1 GiB", "100 %", "95.4 MiB/s", "0 s"]),
    ],
)
def test_how_far_a_tree_has_come(there, before, figures):
    text = tree_progress.describe(TREE, there, before, 10)
    assert text.startswith("data coco: ") and FIGURES.findall(text) == figures


def play(command, seconds=1.0, tree=TREE):
    """Return the lines that are shown while a transfer takes so long."""
    lines = []
    with tree_progress.Progress(tree, command, lines.append, interval=0.1):
        time.sleep(seconds)
    return lines


def test_the_size_on_the_node_is_shown_while_it_grows(tmp_path):
    tree = dict(TREE, bytes=1_000_000)
    path = tmp_path / "tree" / "file"
    path.parent.mkdir()
    path.write_bytes(os.urandom(500_000))
    lines = play(["du", "-sb", "--", str(path.parent)], tree=tree)
    assert lines and "(50 %)" in lines[0]


@pytest.mark.parametrize("text", ["", "x\\t", "-5\\t", "1e9\\t", "9" * 30 + "\\t", "\\033[2J 5\\t"])
def test_what_is_no_number_is_not_shown(text):
    assert play(["printf", "--", text]) == []


def test_a_short_transfer_shows_nothing_and_a_look_that_hangs_ends_with_it():
    begun = time.monotonic()
    with tree_progress.Progress(TREE, ["sleep", "60"], pytest.fail, interval=0.05) as progress:
        time.sleep(0.5)
        process = progress._process
    assert time.monotonic() - begun < 5 and process.poll() is not None
    assert play(["du", "-sb", "/"], seconds=0.01) == []


def test_a_program_that_is_missing_or_prints_for_ever_harms_nothing():
    assert play(["/no/such/program"]) == []
    endless = "import sys\nwhile True: sys.stdout.write('x' * 1000)"
    assert play([sys.executable, "-c", endless]) == []
