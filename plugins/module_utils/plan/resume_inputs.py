# SPDX-License-Identifier: Apache-2.0
"""A checkpoint on its way into a plan: the tree that brings it to the nodes, the words that the
suite is told, what keeps it from being resumed.

Controller only and pure. A point is what resumable.choose gives. On the nodes it is the tree
checkpoints/<digest>; in the working directory it appears as resume/<digest>, so that the command
line is the same on every node.
"""

from __future__ import annotations

import os

import yaml

from ..checkpoints import finder
from ..suites import suite_table

KIND = "checkpoints"
# As many digits of a digest as name a directory on the nodes (plan.SHORT).
SHORT = 16
# What a plan says of the suite's checkpoints, so that a node knows them without the table.
RULE = ("holds", "names", "instead", "last_record", "state")
# What the plan says of the point.
SAID = ("attempt", "name", "digest", "epoch", "step", "lr")


def path_of(point):
    """Return what {path} in the suite's resume words becomes: relative to the working directory."""
    return "resume/{}/{}".format(point["digest"][:SHORT], point["stem"])


def links(point):
    """Return the plan's link of a point: {path below the working directory: place below the node's
    base}.
    """
    short = point["digest"][:SHORT]
    return {f"resume/{short}": f"{KIND}/{short}"}


def config_file(suite, config, values, point):
    """Return {path, text} of a copy of the suite's config that has the resume keys, where overrides
    could not bring them, else None.

    Some suites take only overrides of keys that the config has (override_limits: existing). values:
    the config chain, merged. The copy lies beside the config and has the same values, without
    comments, so that whatever is relative in it stays so.
    """
    _arguments, overrides = suite_table.resume_words(suite, path_of(point))
    lacking = {key: value for key, value in overrides.items() if not suite_table.has(values, key)}
    if "existing" not in suite["override_limits"] or not lacking:
        return None
    stem, ending = os.path.splitext(config)
    text = yaml.safe_dump(
        suite_table.overridden(values, lacking), sort_keys=False, allow_unicode=False
    )
    return {
        "path": stem + ".resumed" + ending,
        "text": "# {} with {}; written for a resumed attempt\n{}".format(
            config, ", ".join(lacking), text
        ),
    }


def complete(point, suite, settings):
    """Say that a point (or None, {}) is its training's end, or return None.

    settings: {epochs, iterations} of the config, as suites.settings gives them. A suite either does
    nothing then or fails (PaddleSeg: UnboundLocalError).
    """
    for key, what in (("epochs", "epoch"), ("iterations", "iteration")) if point else ():
        last, done = settings.get(key), point["epoch" if key == "epochs" else "step"]
        if last is not None and done is not None and done >= last:
            where = suite["config_keys"].get(key) or key
            text = (
                "%s of attempt %d has reached the last %s (%d of %d): nothing is left to train;"
                " more of it is a new run with a larger %s"
            )
            return text % (point["name"], point["attempt"], what, done, last, where)
    return None


def problem(point, suite, settings):
    """Say why a point cannot be resumed, or return None: the training has reached its end
    (`complete`), or the suite knows no way.
    """
    if not suite["resume"].get("arguments") and not suite["resume"].get("overrides"):
        return (
            "the table of {} does not say how a training is resumed (resume: arguments or"
            " overrides)".format(suite["title"])
        )
    return complete(point, suite, settings)


def planned(point, suite, inputs):
    """Return what a point adds to a plan: {config, arguments, overrides, files, links, record,
    notes}; of no point (None or {}), nothing.

    inputs: as job_inputs gives them; with resume_config (see `config_file`) where overrides cannot
    say it.
    """
    if not point:
        return {
            "config": None,
            "arguments": [],
            "overrides": {},
            "files": {},
            "links": {},
            "record": None,
            "notes": [],
        }
    arguments, overrides = suite_table.resume_words(suite, path_of(point))
    copy = inputs.get("resume_config")
    rate = (
        point["lr"] if point["lr"] is not None else inputs["config"].get("learning_rate")
    )  # a constant one stands in the config alone
    record = dict({key: point[key] for key in SAID}, lr=rate)
    return {
        "config": copy and copy["path"],
        "arguments": arguments,
        "overrides": {} if copy else overrides,
        "files": {copy["path"]: copy["text"]} if copy else {},
        "links": links(point),
        "record": record,
        "notes": (
            ["resumed from " + finder.said(record)] + ([point["note"]] if point["note"] else [])
        ),
    }
