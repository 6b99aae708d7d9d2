# SPDX-License-Identifier: Apache-2.0
"""What the command line asks for with -e, held against what each name may be, and against each other. Pure, controller only."""

from __future__ import annotations

import re

from ansible.module_utils.trainyard import texts
from ansible.module_utils.trainyard.yamldata import Problem, near, shown

YES, NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
CHOICES = {"verify": ("cached", "sample", "full")}
SWITCHES = ("rehearse", "matrix", "site")
# Two names of one thing: the verb's short one, and the role's or the site's.
SAME = (
    ("rehearse", "preflight_rehearse"), ("verify", "preflight_verify"), ("matrix", "preflight_matrix"), ("start_port", "trainyard_start_port"),
)  # fmt: skip
UNITS = ("seconds", "minutes", "hours", "days")


def switch(value):
    """Return what a switch says (True, False), or None where it says neither."""
    text = str(value).strip().lower()
    return True if text in YES else False if text in NO else None


def _refuse(name, text):
    return Problem("command line", None, name, text)


def _typed(name, value, spec):
    """Say why a role's variable cannot be what is given, or return None; spec: its entry in the role's argument specs."""
    kind, text = spec.get("type"), str(value).strip()
    if "{{" in text:
        return None
    if kind in ("int", "float"):
        fits = not isinstance(value, bool) and re.fullmatch(r"-?[0-9]{1,9}" + (r"(\.[0-9]+)?" if kind == "float" else ""), text)
        unit = name.rpartition("_")[2]
        said = "a %snumber%s" % ("whole " * (kind == "int"), " of %s, without a unit" % unit if unit in UNITS else "")
        return None if fits else "must be %s; got %s" % (said, shown(value))
    if kind == "bool":
        return None if switch(value) is not None else "must be true or false; got %s" % shown(value)
    choices = [str(choice) for choice in spec.get("choices") or []]
    return (
        "must be one of %s; got %s%s" % (", ".join(choices), shown(value), near(value, choices))
        if choices and text not in choices
        else None
    )


def values(extra, allowed, roles):
    """Return a Problem for every value that is none: not of its kind, or with characters that no command may hold.

    extra: {name: value} as given with -e. allowed: the names that the verb knows. roles: {name: spec} of the roles' public variables.
    """
    problems = []
    for name, value in sorted(extra.items()):
        said = None
        if name in SWITCHES and name in allowed:
            said = (
                None
                if switch(value) is not None
                else "must be true, false, yes or no; got %s%s" % (shown(value), near(value, YES[:2] + NO[:2]))
            )
        elif name in CHOICES and name in allowed:
            known = CHOICES[name]
            said = None if value in known else "must be one of %s; got %s%s" % (", ".join(known), shown(value), near(value, known))
        elif name in roles:
            said = _typed(name, value, roles[name])
        said = said or next((text for _path, text in texts.walk(value)), None)
        problems += [_refuse(name, said)] if said else []
    return problems


def contradictions(extra, verb, check_mode):
    """Return a Problem for what cannot be meant together; verb: the playbook's name without its ending."""
    problems = []

    def asks(name):
        return name in extra and switch(extra[name]) is True

    for short, long in SAME:
        if short in extra and long in extra and str(extra[short]).lower() != str(extra[long]).lower():
            problems.append(_refuse(short, "is given as %s, too, with another value; give one of them" % long))
    skips = [name for name in ("rehearse", "preflight_rehearse") if name in extra and switch(extra[name]) is False]
    if skips and str(extra.get("preflight_rehearsal_hours")) == "0":
        problems.append(_refuse(skips[0], "skips the rehearsal, and preflight_rehearsal_hours=0 wants it every time; give one of them"))
    if verb == "check" and check_mode:
        problems.append(_refuse("--check", "leaves check.yml nothing to prove; take it away (check.yml changes nothing on the nodes)"))
    ends = "--check ends train.yml at the plan" if verb == "train" and check_mode else "sync.yml starts nothing" if verb == "sync" else None
    for name in [name for name in ("rehearse", "matrix") if ends and asks(name)]:
        problems.append(_refuse(name, "asks for a proof, and %s; use playbooks/check.yml" % ends))
    return problems
