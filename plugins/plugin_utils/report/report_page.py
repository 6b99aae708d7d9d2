# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a run, or of several runs side by side."""

from __future__ import annotations

import functools
import os
import time
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import update_file

from ..runs import run_table
from ..suites import suite_file
from . import html_page, index_page, load, pace, report_view, run_comparison, series


def _write_index(runs_dir: str, run: str, facts: dict[str, Any], assets: str, now: float) -> None:
    """Write the page of all runs again, with this run's small curve."""
    index_page.write_curve(os.path.join(runs_dir, run), facts["series"])
    pace.write(os.path.join(runs_dir, run), facts["record"], facts["series"])
    rows = run_table.merge({}, index_page.read_records(runs_dir), [])
    index_page.write(runs_dir, "", rows, assets, now, write_file=True)


def write_page(
    runs_dir: str,
    run: str,
    runs: list[str],
    assets: str,
    write: bool,
    scaling: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the page and return its path and what of the runs could not be read.

    scaling: the section of a benchmark (benchmark/scaling_text.view). Raises load.ReportError where
    there is no such run.
    """
    run_ids = load.choose_runs(runs_dir, run, runs)
    read_series = functools.partial(series.of_run, folder=suite_file.FOLDER)
    all_facts = [load.read(runs_dir, name, read_series) for name in run_ids]
    now = time.time()
    if runs:
        view = run_comparison.view(all_facts, now, scaling)
    else:
        view = report_view.view(all_facts[0], now)
    path = load.page_path(runs_dir, run_ids)
    text = html_page.render(view, html_page.parts(assets))
    changed = update_file(path, text, 0o600, write)
    if write and len(run_ids) == 1:
        _write_index(runs_dir, run_ids[0], all_facts[0], assets, now)
    size = len(text)
    if os.path.exists(path):
        size = os.path.getsize(path)
    return {"changed": changed, "report": path, "bytes": size, "notes": view["notes"]}
