# SPDX-License-Identifier: Apache-2.0
"""Problems of the variables that the command line gives with -e."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import text_rules
from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import (
    abbreviate,
    suggest,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.records import prune_rules

from ..base.yaml_source import Problem
from . import logs_options, role_vars, wait_option
from .switch import NO, YES, parse_switch

CHOICES = {"verify": ("cached", "sample", "full")}
# Those that a site may set for every time, since a role takes them for its default.
DEFAULTS = ("rehearse", "verify", "matrix", "trust_accept")
SWITCHES = (
    "confirm",
    "detach",
    "follow",
    "list",
    "rehearse",
    "matrix",
    "site",
    "trust_accept",
    "rotate_ca",
    "replace_ca",
    "untrust_ca",
)
TIMES = {"wait": wait_option.value_problem, "checkpoint_every": wait_option.time_problem}
# Names of nodes; those that no inventory has any more can be taken back too.
NODE_VARIABLES = ("node", "take_in")
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}\Z")
# Two names of one thing: the verb's short one, and the role's or the site's.
SYNONYMS = (
    ("rehearse", "preflight_rehearse"),
    ("verify", "preflight_verify"),
    ("matrix", "preflight_matrix"),
    ("start_port", "trainyard_start_port"),
)


def _problem(name: str, text: str, code: str) -> Problem:
    """Return a Problem of a variable of the command line."""
    return Problem("command line", None, name, text, code=code)


def validate(
    extra: Mapping[str, Any], allowed: Collection[str], roles: Mapping[str, Mapping[str, Any]]
) -> list[Problem]:
    """Return a Problem for every value that is invalid.

    Invalid is a value of the wrong kind, or one with characters that no command may hold.

    extra: {name: value} as given with -e. allowed: the names that the verb knows. roles: {name:
    spec} of the roles' public variables.
    """
    problems = []
    for name, value in sorted(extra.items()):
        text = None
        # Only drill.yml has `only`. To confirm it takes the site's name, which no habit types.
        if name in allowed and not (name == "confirm" and "only" in allowed):
            text = value_problem(name, value)
        if text is None and name in roles:
            # A template is checked where it is read, with the nodes' variables.
            if "{{" not in str(value) and "{%" not in str(value):
                for key, problem in role_vars.value_problems(name, value, roles[name]):
                    problems.append(_problem(key, problem, code="role.wrong_value"))
            continue
        text = text or next((problem for _path, problem in text_rules.walk(value)), None)
        if text:
            problems.append(_problem(name, text, code="cli.wrong_value"))
    return problems


def value_problem(name: str, value: Any) -> str | None:
    """Say why a value is invalid for a verb's short variable, or return None.

    These variables may stand in group_vars, too.
    """
    if name in SWITCHES and parse_switch(value) is None:
        suggestion = suggest(value, YES[:2] + NO[:2])
        return f"must be true, false, yes or no; got {abbreviate(value)}{suggestion}"
    if name in CHOICES and value not in CHOICES[name]:
        allowed = ", ".join(CHOICES[name])
        return f"must be one of {allowed}; got {abbreviate(value)}{suggest(value, CHOICES[name])}"
    if name in NODE_VARIABLES or name == "lost":
        return _node_problem(name, value)
    if name in ("again", "again_try") and not str(value).isdigit():
        return f"is set by a restart and must be a whole number; got {abbreviate(value)}"
    if name == "most" and not re.match(r"[1-9][0-9]{0,3}\Z", str(value)):
        return f"must be a whole number from 1 to 9999; got {abbreviate(value)}"
    if name in TIMES:
        return TIMES[name](value)
    return logs_options.value_problem(name, value) or prune_rules.value_problem(name, value)


def _node_problem(name: str, value: Any) -> str | None:
    """Say why a value names no node, or return None. Only `lost` may name several."""
    if name == "lost":
        if not all(map(NODE_NAME.match, str(value).split(","))):
            return f"must be names of nodes, with commas between them; got {abbreviate(value)}"
    elif not (isinstance(value, str) and NODE_NAME.match(value)):
        return f"must be a node's name; got {abbreviate(value)}"
    return None


def conflicts(extra: Mapping[str, Any], verb: str, check_mode: bool) -> list[Problem]:
    """Return a Problem for each pair of variables that contradict each other.

    extra: {name: value} as given with -e. verb: the playbook's name without its ending. check_mode:
    whether Ansible has --check.
    """
    problems = _double_names(extra) + _rehearsal_conflicts(extra)
    if "wait" in extra and verb in ("check", "sync"):
        text = f"is for a start, and {verb}.yml starts nothing; take it away"
        problems.append(_problem("wait", text, code="cli.contradiction"))
    if verb == "logs":
        problems += _conflict_list(logs_options.conflict(extra))
    elif verb == "prune":
        problems += _conflict_list(prune_rules.find_contradiction(extra))
    elif verb == "resume" and "run" not in extra:
        text = (
            "say which run is to go on: -e run=<run id>; ansible-playbook playbooks/status.yml"
            " shows the newest"
        )
        problems.append(_problem("run", text, code="cli.run_missing"))
    elif verb == "untrust" and "node" in extra and _is_on(extra, "untrust_ca"):
        text = (
            "forgets the authority of all nodes, and node takes one of them back; give one of them"
        )
        problems.append(_problem("untrust_ca", text, code="cli.contradiction"))
    elif verb == "check" and check_mode:
        text = (
            "leaves check.yml nothing to prove; take it away (check.yml changes nothing on the"
            " nodes)"
        )
        problems.append(_problem("--check", text, code="cli.nothing_to_prove"))
    elif verb == "train" and check_mode:
        problems += _useless_proofs(extra, "--check ends train.yml at the plan")
    elif verb == "sync":
        problems += _useless_proofs(extra, "sync.yml starts nothing")
    return problems


def _is_on(extra: Mapping[str, Any], name: str) -> bool:
    """Return whether the command line switches a variable on."""
    return name in extra and parse_switch(extra[name]) is True


def _conflict_list(problem: tuple[str, str] | None) -> list[Problem]:
    """Return a list of the Problem for (name, text), or an empty list for None."""
    if not problem:
        return []
    name, text = problem
    return [_problem(name, text, code="cli.contradiction")]


def _double_names(extra: Mapping[str, Any]) -> list[Problem]:
    """Return a Problem for each variable with two names and two values."""
    problems = []
    for name, long_name in SYNONYMS:
        if name not in extra or long_name not in extra:
            continue
        if str(extra[name]).lower() != str(extra[long_name]).lower():
            text = f"is given as {long_name}, too, with another value; give one of them"
            problems.append(_problem(name, text, code="cli.contradiction"))
    return problems


def _rehearsal_conflicts(extra: Mapping[str, Any]) -> list[Problem]:
    """Return a Problem where a rehearsal is both skipped and demanded."""
    if str(extra.get("preflight_rehearsal_hours")) != "0":
        return []
    for name in ("rehearse", "preflight_rehearse"):
        if name in extra and parse_switch(extra[name]) is False:
            text = (
                "skips the rehearsal, and preflight_rehearsal_hours=0 wants it every time; give one"
                " of them"
            )
            return [_problem(name, text, code="cli.contradiction")]
    return []


def _useless_proofs(extra: Mapping[str, Any], reason: str) -> list[Problem]:
    """Return a Problem for each proof that is asked of a verb that ends before it."""
    return [
        _problem(
            name,
            f"asks for a proof, and {reason}; use ansible-playbook playbooks/check.yml",
            code="cli.nothing_to_prove",
        )
        for name in ("rehearse", "matrix")
        if _is_on(extra, name)
    ]
