# SPDX-License-Identifier: Apache-2.0
"""A run's figures in the files that the node exporter of Prometheus reads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import attempt_dir
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import (
    read_mapping,
    update_file,
)

from . import metrics_text

# So many runs of a site have a file in the collector's directory, the newest ones.
MOST_FILES = 100


class MetricsError(Exception):
    """The reason why a run has no figures."""


def write_metrics(
    runs_dir: str, run_id: str, directory: str | None, write: bool, warn: Callable[[str], None]
) -> dict[str, Any]:
    """Write a run's figures, and a copy to the collector's directory where there is one."""
    if not attempt_dir.RUN_ID.match(run_id):
        raise MetricsError(f"{run_id!r} is no run id")
    run_dir = os.path.join(runs_dir, run_id)
    plan = read_mapping(os.path.join(run_dir, "plan.json"))
    record = read_mapping(os.path.join(run_dir, "run.json"))
    if not record:
        raise MetricsError(
            f"{run_dir}/run.json is missing or no JSON; it is written when a run starts and when"
            " it ends"
        )
    text = metrics_text.exposition_text(plan, record)
    path = os.path.join(run_dir, metrics_text.NAME)
    changed = update_file(path, text, 0o600, write)
    if not directory:
        return {"changed": changed, "path": path, "copy": None}
    copy = os.path.join(directory, metrics_text.file_name(plan, run_id))
    try:
        changed = update_file(copy, text, 0o644, write) or changed
        if write:
            # A collector refuses a figure that two files have.
            remove_file(os.path.join(directory, metrics_text.former_name(plan, record)))
            remove_oldest(plan, directory)
    except OSError as error:
        warn(
            f"{copy}: {error.strerror}; the node exporter does not see this run, {path} has its"
            " figures"
        )
        return {"changed": changed, "path": path, "copy": None}
    return {"changed": changed, "path": path, "copy": copy}


def remove_oldest(plan: Mapping[str, Any], directory: str) -> None:
    """Remove the files of a site's oldest runs from the collector's directory."""
    names = metrics_text.run_files(plan, os.listdir(directory))
    for name in names[:-MOST_FILES]:
        remove_file(os.path.join(directory, name))


def remove_file(path: str) -> None:
    """Remove a file that may be absent."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
