# SPDX-License-Identifier: Apache-2.0
"""A copy of a suite's config that resumes from a checkpoint. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.resume_inputs import path_of
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table


def config_file(
    suite: Mapping[str, Any], config: str, values: Mapping[str, Any], point: Mapping[str, Any]
) -> dict[str, str] | None:
    """Return {path, text} of a copy of the config with the resume keys, or None.

    A copy is needed where overrides could not bring the keys: some suites take only overrides of
    keys that the config has (override_limits: existing). values: the config chain, merged. The copy
    lies beside the config and has the same values, without comments, so that relative paths in it
    stay valid.
    """
    _arguments, overrides = suite_table.resume_options(suite, path_of(point))
    lacking = {
        key: value for key, value in overrides.items() if not suite_table.has_key(values, key)
    }
    if "existing" not in suite["override_limits"] or not lacking:
        return None
    stem, ending = os.path.splitext(config)
    text = yaml.safe_dump(
        suite_table.apply_overrides(values, lacking), sort_keys=False, allow_unicode=False
    )
    heading = f"# {config} with {', '.join(lacking)}; written for a resumed attempt\n"
    return {"path": stem + ".resumed" + ending, "text": heading + text}
