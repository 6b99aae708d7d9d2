# SPDX-License-Identifier: Apache-2.0
"""What the command line asks for with -e, held against what each name may be, and against each
other. Pure, controller only.
"""

from __future__ import annotations

import re

from ..base import text_rules
from ..base.yaml_source import Problem, near, shown
from ..records import prune_rules
from . import (
    logs_options,
    role_vars,
)
from .role_vars import NO, YES, switch

CHOICES = {"verify": ("cached", "sample", "full")}
# Those that a site may set for every time, since a role takes them for its default.
DEFAULTS = ("rehearse", "verify", "matrix", "trust_accept")
SWITCHES = (
    "confirm", "follow", "list", "rehearse", "matrix", "site", "trust_accept", "rotate_ca", "replace_ca", "untrust_ca",
)  # fmt: skip
# Names of nodes; those that no inventory has any more can be taken back too.
NODES = ("node", "take_in")
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}\Z")
# Two names of one thing: the verb's short one, and the role's or the site's.
SAME = (
    ("rehearse", "preflight_rehearse"), ("verify", "preflight_verify"), ("matrix", "preflight_matrix"), ("start_port", "trainyard_start_port"),
)  # fmt: skip


def _refuse(name, text):
    return Problem("command line", None, name, text)


def values(extra, allowed, roles):
    """Return a Problem for every value that is none: not of its kind, or with characters that no
    command may hold.

    extra: {name: value} as given with -e. allowed: the names that the verb knows. roles: {name:
    spec} of the roles' public variables.
    """
    problems = []
    for name, value in sorted(extra.items()):
        # drill.yml alone has `only`; to confirm it takes the site's name, which no habit types
        said = (
            short(name, value)
            if name in allowed and not (name == "confirm" and "only" in allowed)
            else None
        )
        if said is None and name in roles:
            # a template is held where it is read, with the nodes' variables
            found = (
                []
                if "{{" in str(value) or "{%" in str(value)
                else role_vars.held(name, value, roles[name])
            )
            problems += [_refuse(key, text) for key, text in found]
            continue
        said = said or next((text for _path, text in text_rules.walk(value)), None)
        problems += [_refuse(name, said)] if said else []
    return problems


def short(name, value):
    """Say why one of the verbs' short variables cannot be what is given, or return None; they may
    stand in group_vars, too.
    """
    if name in SWITCHES and switch(value) is None:
        return f"must be true, false, yes or no; got {shown(value)}{near(value, YES[:2] + NO[:2])}"
    if name in CHOICES and value not in CHOICES[name]:
        return "must be one of {}; got {}{}".format(
            ", ".join(CHOICES[name]),
            shown(value),
            near(value, CHOICES[name]),
        )
    if name in NODES and not (isinstance(value, str) and NODE.match(value)):
        return f"must be a node's name; got {shown(value)}"
    if name in ("again", "again_try") and not str(value).isdigit():
        return f"is set by a restart and must be a whole number; got {shown(value)}"
    return logs_options.wrong(name, value) or prune_rules.wrong(name, value)


def contradictions(extra, verb, check_mode):
    """Return a Problem for what cannot be meant together; verb: the playbook's name without its
    ending.
    """
    problems = []

    def asks(name):
        return name in extra and switch(extra[name]) is True

    for short, long in SAME:
        if (
            short in extra
            and long in extra
            and str(extra[short]).lower() != str(extra[long]).lower()
        ):
            problems.append(
                _refuse(short, f"is given as {long}, too, with another value; give one of them")
            )
    skips = [
        name
        for name in ("rehearse", "preflight_rehearse")
        if name in extra and switch(extra[name]) is False
    ]
    if skips and str(extra.get("preflight_rehearsal_hours")) == "0":
        problems.append(
            _refuse(
                skips[0],
                "skips the rehearsal, and preflight_rehearsal_hours=0 wants it every time; give one"
                " of them",
            )
        )
    said = {"logs": logs_options.contradiction, "prune": prune_rules.contradiction}.get(
        verb, lambda _given: None
    )(extra)
    problems += [_refuse(*said)] if said else []
    if verb == "resume" and "run" not in extra:
        problems.append(
            _refuse(
                "run",
                "say which run is to go on: -e run=<run id>; playbooks/status.yml shows the newest",
            )
        )
    if verb == "untrust" and "node" in extra and asks("untrust_ca"):
        problems.append(
            _refuse(
                "untrust_ca",
                "forgets the authority of all nodes, and node takes one of them back; give one of"
                " them",
            )
        )
    if verb == "check" and check_mode:
        problems.append(
            _refuse(
                "--check",
                "leaves check.yml nothing to prove; take it away (check.yml changes nothing on the"
                " nodes)",
            )
        )
    ends = (
        "--check ends train.yml at the plan"
        if verb == "train" and check_mode
        else "sync.yml starts nothing"
        if verb == "sync"
        else None
    )
    for name in [name for name in ("rehearse", "matrix") if ends and asks(name)]:
        problems.append(_refuse(name, f"asks for a proof, and {ends}; use playbooks/check.yml"))
    return problems
