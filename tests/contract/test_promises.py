# SPDX-License-Identifier: Apache-2.0
"""Every line of the contract holds for the product in this tree, one test per line.

playbooks/conform.yml makes the same checks on a user's machine and adds the site's nodes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import rank_logs_info
from ansible_collections.trainyard.cluster.plugins.plugin_utils.conformance import runner
from core_support import ROOT

PROMISES = runner.load()["promises"]


@pytest.mark.parametrize("name", PROMISES)
def test_promise_holds(name, run_module):
    (line,) = runner.examine(
        str(ROOT),
        run_module=lambda _module, arguments: run_module(rank_logs_info, arguments),
        only=[name],
    )
    differing = [entry for entry in line["compared"] if not entry["same"]]
    assert differing == [], line["evidence"]
    # Without the site's nodes a line about them is not proven.
    assert line["holds"] is (None if PROMISES[name].get("site") else True)


def test_the_page_lists_every_line():
    page = (ROOT / "docs" / "contract.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| ([A-E]\d+) \| \S", page, re.MULTILINE) == list(PROMISES)


def test_molecule_knows_every_scenario():
    """E4, the part that needs molecule: users need not install it."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MOLECULE_", "ANSIBLE_"))
    }
    environment.update(NO_COLOR="1", PY_COLORS="0")
    listed = subprocess.run(
        [sys.executable, "-m", "molecule", "list", "--format", "plain"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert listed.returncode == 0, listed.stderr
    rows = [line.split() for line in listed.stdout.splitlines()]
    scenarios = {path.parent.name for path in ROOT.glob("molecule/*/molecule.yml")}
    assert {row[3] for row in rows if len(row) == 6} == scenarios != set()
