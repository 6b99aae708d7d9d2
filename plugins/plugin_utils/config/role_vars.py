# SPDX-License-Identifier: Apache-2.0
"""Checks of the roles' variables against the roles' argument specs.

Ansible checks them only where a role is imported whole. Ours are imported by parts (tasks_from). A
value that is ignored there is a guard that is off, or a traceback after every node has answered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.trainyard.cluster.plugins.module_utils.base import text_rules
from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import (
    abbreviate,
    suggest,
)

from ..base.yaml_source import dotted_key
from .site_fields import directory_problem
from .switch import parse_switch

UNITS = ("seconds", "minutes", "hours", "days")
KIND_NOUNS = {"str": "one text", "path": "a path"}
# 0 of these would wait for nothing, or ask without end; every other number may be 0, and none may
# be negative.
FROM_ONE = (
    "launch_poll_seconds",
    "preflight_rehearsal_seconds",
    "ssh_trust_login_timeout",
    "ssh_trust_parallel",
    "ssh_trust_scan_timeout",
)
# Texts that a check or systemd reads as numbers (systemd.exec(5): LimitMEMLOCK= takes K, M, G, T).
FORMS = {
    "preflight_memlock": (
        r"auto|infinity|[0-9]{1,18}",
        "must be auto, infinity or a number of bytes",
    ),
    "runtime_limit_memlock": (
        r"infinity|[0-9]{1,18}[KMGT]?",
        "must be infinity or a number of bytes",
    ),
    "runtime_limit_nofile": (r"infinity|[0-9]{1,18}", "must be infinity or a number of files"),
}
# Directories that the product writes to; site_fields.DIRECTORIES has the site's own names of them.
DIRECTORY = re.compile(
    r"(preflight|runtime|launch|collect|report|workspace)_(home|runs_dir|cache_dir|state_dir)\Z"
)
# Everyday words: a site may have variables of its own that begin with them.
EVERYDAY = ("collect", "launch", "report", "runtime", "workspace")

OWN = "is the product's own and set by its playbooks alone; take it out"
# Variables by which the playbooks hand something to the roles and to later plays.
OF_PLAYBOOKS = (
    "attempt_nodes",
    "collect_problems",
    "fetch_nodes",
    "launch_resume_decision",
    "preflight_repair",
    "preflight_report",
    "report_before_resume",
    "report_nodes",
    "report_request",
    "run_attempt",
    "run_context",
)


def _number_problem(name: str, value: Any, kind: str, whole_name: str) -> str | None:
    """Say why a value is not a number that the variable may be, or return None.

    name: of the variable, or '' for a part of it. kind: int or float. whole_name: of the variable.
    """
    form, noun = r"-?[0-9]{1,12}", "whole number"
    if kind == "float":
        form, noun = form + r"(\.[0-9]{1,12})?", "number"
    if isinstance(value, bool) or not re.fullmatch(form, str(value).strip(), re.ASCII):
        unit = whole_name.rpartition("_")[2]
        if unit in UNITS:
            noun += f" of {unit}, without a unit"
        return f"must be a {noun}; got {abbreviate(value)}"
    number = float(str(value))
    if name in FROM_ONE and number < 1:
        return f"must be 1 or more; got {abbreviate(value)}"
    if number < 0:
        return f"must be 0 or more; got {abbreviate(value)}"
    if name.endswith("_port") and number > 65535:
        return f"must be a port up to 65535; got {abbreviate(value)}"
    return None


def _single_problem(name: str, value: Any, spec: Mapping[str, Any], whole_name: str) -> str | None:
    """Say why a value without parts is invalid, or return None."""
    kind, text = spec.get("type") or "str", str(value).strip()
    if kind in ("int", "float"):
        return _number_problem(name, value, kind, whole_name)
    if kind == "bool":
        if parse_switch(value) is None:
            return f"must be true or false; got {abbreviate(value)}"
        return None
    if isinstance(value, (dict, list)) and kind in KIND_NOUNS:
        return f"must be {KIND_NOUNS[kind]}; got {abbreviate(value)}"
    choices = [str(choice) for choice in spec.get("choices") or []]
    if choices and text not in choices:
        allowed = ", ".join(choices)
        return f"must be one of {allowed}; got {abbreviate(value)}{suggest(value, choices)}"
    if name in FORMS and not re.fullmatch(FORMS[name][0], text, re.ASCII):
        return f"{FORMS[name][1]}; got {abbreviate(value)}"
    if DIRECTORY.match(name):
        return directory_problem(value, os.path.expanduser("~"), up=not name.endswith("_home"))
    return None


def _mapping_problems(
    path: tuple[str, ...], value: Any, spec: Mapping[str, Any], name: str
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, text) of the problems of a mapping whose keys the spec knows."""
    options = spec.get("options")
    if not isinstance(value, dict):
        text = "must be a mapping"
        if options:
            text += f" of {', '.join(options)}"
        text += f"; got {abbreviate(value)}"
        if isinstance(value, str) and len(path) == 1:
            text += f"; with -e as JSON: -e '{{\"{path[0]}\": {{...}}}}'"
        yield path, text
        return
    if options is None:
        return
    for key in sorted(value, key=str):
        if key in options:
            yield from _part_problems(path + (key,), value[key], options[key], name)
        else:
            text = f"unknown key; allowed: {', '.join(options)}{suggest(key, options)}"
            yield path + (str(key),), text
    for key in options:
        if options[key].get("required") and key not in value:
            yield path, f"the key '{key}' is missing"


def _part_problems(
    path: tuple[str, ...], value: Any, spec: Mapping[str, Any], name: str
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, text) of the problems of a value or of a part of it."""
    kind = spec.get("type") or "str"
    if value is None:
        yield path, "is empty; give it a value, or take the line out"
    elif kind == "dict":
        yield from _mapping_problems(path, value, spec, name)
    elif kind == "list" and isinstance(value, (list, tuple)):
        item_spec = dict(spec, type=spec.get("elements") or "raw")
        for index, item in enumerate(value):
            yield from _part_problems(path + (str(index),), item, item_spec, name)
    elif kind == "list" and spec.get("elements") == "dict":
        yield path, f"must be a list of mappings; got {abbreviate(value)}"
    else:
        variable = ""
        if len(path) == 1:
            variable = name
        text = _single_problem(variable, value, spec, name)
        if text:
            yield path, text


def value_problems(name: str, value: Any, spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return [(dotted key, text)] of the problems of a role's variable.

    name: of the variable. value: plain data, templated. spec: its entry in the role's argument
    specs, as Ansible defines them. What is accepted here is accepted by Ansible's own validator,
    too, which is less strict: it makes a mapping of a text, and the role then has the text.
    """
    if spec.get("no_log"):
        return []
    problems = [
        (dotted_key(path), text) for path, text in _part_problems((name,), value, spec, name)
    ]
    problems += [(dotted_key((name,) + path), text) for path, text in text_rules.walk(value)]
    if problems:
        return problems
    # required and default are about a variable that is not set; this one is
    ignored = ("required", "default", "description")
    rest = {key: item for key, item in spec.items() if key not in ignored}
    result = ArgumentSpecValidator({name: rest}).validate({name: value})
    return [(name, text) for text in result.error_messages]


def unknown_problem(name: str, known: Collection[str], roles: Collection[str]) -> str | None:
    """Say that a name looks like a role's variable and is not one, or return None.

    known: the names of the roles' public variables. roles: the roles' names. A name that begins
    with an everyday word counts only where its rest is nearly a variable's.
    """
    if name in OF_PLAYBOOKS:
        return OWN
    role = next((role for role in roles if name.lstrip("_").startswith(role + "_")), None)
    if role is None or name in known:
        return None
    if name.startswith("__"):
        return OWN
    if name.startswith("_"):
        return None
    prefix = role + "_"
    others = [each[len(prefix) :] for each in known if each.startswith(prefix)]
    hint = suggest(name[len(prefix) :], others)
    if not hint and role in EVERYDAY:
        return None
    full_hint = hint.replace("mean '", f"mean '{prefix}")
    return f"no variable of the role {role}{full_hint}"
