# SPDX-License-Identifier: Apache-2.0
"""Hold the roles' variables against the roles' argument specs, wherever they are set. Pure,
controller only.

Ansible holds them only where a role is imported whole; ours are imported by parts (tasks_from), and
a value that is passed over there is a guard that is off, or a traceback after every node was asked.
"""

from __future__ import annotations

import os
import re

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ..base import text_rules
from ..base.yaml_source import dotted, near, shown
from .site_fields import place_problem

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
UNITS = ("seconds", "minutes", "hours", "days")
# 0 of these would wait for nothing, or ask without end; every other number may be 0, and none may
# be negative.
FROM_ONE = (
    "launch_poll_seconds", "preflight_rehearsal_seconds", "ssh_trust_login_timeout", "ssh_trust_parallel", "ssh_trust_scan_timeout",
)  # fmt: skip
# Texts that a judge or systemd reads as numbers (systemd.exec(5): LimitMEMLOCK= takes K, M, G, T).
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
# What the product writes below; see site_values.PLACES for the site's own names of them.
PLACE = re.compile(
    r"(preflight|runtime|launch|collect|report|workspace)_(home|runs_dir|cache_dir|state_dir)\Z"
)
# Everyday words: a site may have variables of its own that begin with them.
EVERYDAY = ("collect", "launch", "report", "runtime", "workspace")


def switch(value):
    """Return what a switch says (True, False), or None where it says neither."""
    text = str(value).strip().lower()
    return True if text in YES else False if text in NO else None


def _number(name, value, kind, whole_name):
    """Say why a value is no number that the variable may be, or return None."""
    form = r"-?[0-9]{1,12}" + (r"(\.[0-9]{1,12})?" if kind == "float" else "")
    if isinstance(value, bool) or not re.fullmatch(form, str(value).strip(), re.ASCII):
        unit = whole_name.rpartition("_")[2]
        said = "a {}number{}".format(
            "whole " * (kind == "int"),
            f" of {unit}, without a unit" if unit in UNITS else "",
        )
        return f"must be {said}; got {shown(value)}"
    least = 1 if name in FROM_ONE else 0
    if float(str(value)) < least:
        return "must be {}; got {}".format("1 or more" if least else "0 or more", shown(value))
    if name.endswith("_port") and float(str(value)) > 65535:
        return f"must be a port up to 65535; got {shown(value)}"
    return None


def _single(name, value, spec, whole_name):
    """Say why a value that has no parts cannot be what is given, or return None."""
    kind, text = spec.get("type") or "str", str(value).strip()
    if kind in ("int", "float"):
        return _number(name, value, kind, whole_name)
    if kind == "bool":
        return None if switch(value) is not None else f"must be true or false; got {shown(value)}"
    if isinstance(value, (dict, list)) and kind in ("str", "path"):
        return "must be {}; got {}".format("a path" if kind == "path" else "one text", shown(value))
    choices = [str(choice) for choice in spec.get("choices") or []]
    if choices and text not in choices:
        return "must be one of {}; got {}{}".format(
            ", ".join(choices),
            shown(value),
            near(value, choices),
        )
    if name in FORMS and not re.fullmatch(FORMS[name][0], text, re.ASCII):
        return f"{FORMS[name][1]}; got {shown(value)}"
    if PLACE.match(name):
        return place_problem(value, os.path.expanduser("~"), up=not name.endswith("_home"))
    return None


def _mapping(path, value, spec, name):
    """Yield (path, text) of a mapping whose keys the spec knows."""
    options = spec.get("options")
    if not isinstance(value, dict):
        keys = " of {}".format(", ".join(options)) if options else ""
        hint = (
            f"; with -e as JSON: -e '{{\"{path[0]}\": {{...}}}}'"
            if isinstance(value, str) and len(path) == 1
            else ""
        )
        yield path, f"must be a mapping{keys}; got {shown(value)}{hint}"
        return
    for key in sorted(value if options is not None else (), key=str):
        if key not in options:
            yield (
                path + (str(key),),
                "unknown key; allowed: {}{}".format(", ".join(options), near(key, options)),
            )
        else:
            yield from _held(path + (key,), value[key], options[key], name)
    for key in [key for key in options or () if options[key].get("required") and key not in value]:
        yield path, f"the key '{key}' is missing"


def _held(path, value, spec, name):
    """Yield (path, text) of whatever is wrong with a value or a part of it."""
    kind = spec.get("type") or "str"
    if value is None:
        yield path, "is empty; give it a value, or take the line out"
    elif kind == "dict":
        yield from _mapping(path, value, spec, name)
    elif kind == "list" and isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _held(
                path + (str(index),), item, dict(spec, type=spec.get("elements") or "raw"), name
            )
    elif kind == "list" and spec.get("elements") == "dict":
        yield path, f"must be a list of mappings; got {shown(value)}"
    else:
        said = _single(name if len(path) == 1 else "", value, spec, name)
        if said:
            yield path, said


def held(name, value, spec):
    """Return [(dotted key, text)]: everything that keeps a value from being what the role wants.

    name: of the variable. value: plain data, templated. spec: its entry in the role's argument
    specs, as Ansible defines them. What is accepted here is accepted by Ansible's own validator,
    too, which reads more kindly: it makes a mapping of a text, and the role then has the text.
    """
    if spec.get("no_log"):
        return []
    found = [(dotted(path), text) for path, text in _held((name,), value, spec, name)]
    found += [(dotted((name,) + path), text) for path, text in text_rules.walk(value)]
    if not found:
        # required and default are about what is not given; here something is
        only = {
            key: item
            for key, item in spec.items()
            if key not in ("required", "default", "description")
        }
        found = [
            (name, text)
            for text in ArgumentSpecValidator({name: only}).validate({name: value}).error_messages
        ]
    return found


def unknown(name, known, roles):
    """Say that a name looks like a role's variable and is none, or return None.

    known: the names of the roles' public variables. roles: the roles' names. A name that begins
    with an everyday word counts only where what comes behind is nearly a variable's.
    """
    role = next((role for role in roles if name.lstrip("_").startswith(role + "_")), None)
    if role is None or name in known:
        return None
    if name.startswith("_"):
        return (
            "is the product's own and set by its playbooks alone; take it out"
            if name.startswith("__")
            else None
        )
    rest = name[len(role) + 1 :]
    meant = near(rest, [each[len(role) + 1 :] for each in known if each.startswith(role + "_")])
    if not meant and role in EVERYDAY:
        return None
    return "no variable of the role {}{}".format(role, meant.replace("mean '", f"mean '{role}_"))
