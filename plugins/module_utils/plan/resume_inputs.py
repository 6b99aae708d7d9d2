# SPDX-License-Identifier: Apache-2.0
"""A resume point on its way into a plan. Pure.

It becomes a tree that is copied to the nodes and arguments of the suite, unless it cannot be
resumed. A point is what resume_point_choice.choose gives. On the nodes it is the tree
checkpoints/<digest>. In the working directory it appears as resume/<digest>, so that the command
line is the same on every node.
"""

from __future__ import annotations

from ..checkpoints import finder
from ..suites import suite_table

KIND = "checkpoints"
# As many digits of a digest as name a directory on the nodes (compiler.SHORT).
SHORT = 16
# Keys of the suite's table on checkpoints that the plan takes, so that a node knows them, too.
RULE_KEYS = ("holds", "names", "instead", "last_record", "state")
# Keys of the point that the plan takes.
RECORDED_KEYS = ("attempt", "name", "digest", "epoch", "step", "lr")


def path_of(point):
    """Return the value of {path} in the suite's resume words.

    It is relative to the working directory.
    """
    return "resume/{}/{}".format(point["digest"][:SHORT], point["stem"])


def links(point):
    """Return {link: target} of a point.

    The link is a path below the working directory, the target one below the node's base.
    """
    short = point["digest"][:SHORT]
    return {f"resume/{short}": f"{KIND}/{short}"}


def completion_problem(point, suite, settings):
    """Return why a point is its training's end, or None.

    point: may be None or {}. settings: {epochs, iterations} of the config, as suite_table.settings
    gives them. A suite either does nothing then or fails (PaddleSeg: UnboundLocalError).
    """
    if not point:
        return None
    for key, unit, done in (
        ("epochs", "epoch", point["epoch"]),
        ("iterations", "iteration", point["step"]),
    ):
        last = settings.get(key)
        if last is not None and done is not None and done >= last:
            name = suite["config_keys"].get(key) or key
            return (
                f"{point['name']} of attempt {point['attempt']} has reached the last {unit}"
                f" ({done} of {last}): nothing is left to train; more of it is a new run with a"
                f" larger {name}"
            )
    return None


def resume_problem(point, suite, settings):
    """Return why a point cannot be resumed, or None.

    The training has reached its end, or the suite's table has no options for a resume.
    """
    if not suite["resume"].get("arguments") and not suite["resume"].get("overrides"):
        return (
            f"the table of {suite['title']} does not say how a training is resumed (resume:"
            " arguments or overrides)"
        )
    return completion_problem(point, suite, settings)


def compile_resume(point, suite, inputs):
    """Return a point's part of a plan, or an empty part without a point (None or {}).

    The keys are config, arguments, overrides, files, links, record and notes. inputs: as job_inputs
    gives them; with resume_config (resume_config.config_file) where overrides are not enough.
    """
    part = {
        "config": None,
        "arguments": [],
        "overrides": {},
        "files": {},
        "links": {},
        "record": None,
        "notes": [],
    }
    if not point:
        return part
    part["arguments"], part["overrides"] = suite_table.resume_options(suite, path_of(point))
    copy = inputs.get("resume_config")
    if copy:
        part["config"], part["overrides"] = copy["path"], {}
        part["files"] = {copy["path"]: copy["text"]}
    part["links"] = links(point)
    part["record"] = {key: point[key] for key in RECORDED_KEYS}
    if point["lr"] is None:
        # A constant learning rate stands in the config alone.
        part["record"]["lr"] = inputs["config"].get("learning_rate")
    part["notes"] = ["resumed from " + finder.describe_point(part["record"])]
    if point["note"]:
        part["notes"].append(point["note"])
    return part
