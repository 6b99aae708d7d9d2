# SPDX-License-Identifier: Apache-2.0
"""Every run leaves its report, and it tells of real runs what happened; opened in a browser where
there is one.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys

import pytest
from harness import NODES, PROJECT, last_line, playbook

sys.path.append(str(PROJECT / "tests" / "unit"))
BROWSER = shutil.which("chromium"), shutil.which("chromedriver")


def page(run):
    """Return (path, text) of a run's report."""
    path = PROJECT / "runs" / run / "report.html"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return path, path.read_text(encoding="utf-8")


def charts(text):
    """Return what the charts are drawn from."""
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def test_a_failed_run_leaves_its_report_before_the_verdict(beside):
    _path, text = page(beside.run)
    assert f"report       runs/{beside.run}/report.html" in beside.interrupted and last_line(
        beside.interrupted
    ).startswith("FAILED: rank 1 on node2")
    assert (
        "raised ValueError: image 000000012.jpg is truncated" in text
        and 'class="hit"' in text
        and "first fault" in text
    )
    assert './attempt-1/rank-001.node2.log"' in text and all(
        "rank %d on %s" % (rank, node) in text for rank, node in enumerate(NODES)
    )
    assert charts(text)["curves"][0]["loss"], "rank 0 had printed a loss"


def test_a_completed_run_has_curves_evaluation_and_every_phase(finished):
    _path, text = page(finished)
    drawn = charts(text)
    assert (
        len(drawn["curves"][0]["loss"]) > 5
        and drawn["sums"]
        and drawn["evaluations"][0]["figures"]["ap"]
    )
    assert all(
        f'class="p-{phase}' in text
        for phase in ("start", "rendezvous", "first_step", "training", "evaluation", "stop")
    )
    assert "COMPLETED" in text and "first fault" not in text


def test_runs_are_laid_side_by_side(finished, failed):
    done = playbook("report", "-e", f"runs={finished},{failed}")
    assert done.returncode == 0, done.stdout
    path = next(word for word in done.stdout.split() if "/compare-" in word)
    try:
        with open(path, encoding="utf-8") as handle:
            text = handle.read()
        assert f'./{finished}/report.html"' in text and f'./{failed}/report.html"' in text
        assert {curve["run"] for curve in charts(text)["curves"]} == {
            finished,
            failed,
        } and "configs/faults/raise.yml" in text
    finally:
        os.unlink(path)


@pytest.mark.skipif(
    not all(BROWSER) and not os.environ.get("TRAINYARD_BROWSER"),
    reason="no chromium and chromedriver here; .config/browser.sh as root",
)
def test_a_browser_has_nothing_to_say_of_it(finished, failed):
    from browser_support import Browser

    browser = Browser(*BROWSER)
    try:
        for run in (finished, failed):
            browser.open(page(run)[0], width=390)
            assert browser.run("return document.documentElement.scrollWidth") <= 390
            assert [one for one in browser.all("canvas") if one.is_displayed()]
            assert browser.console() == [] and all(
                address.endswith("/report.html") for address in browser.asked()
            )
    finally:
        browser.driver.quit()
