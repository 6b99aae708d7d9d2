# SPDX-License-Identifier: Apache-2.0
"""What a run was made of, as flat names and values by which runs are compared. Pure."""

from __future__ import annotations

import re

from ..base.sanitize import MASK, SECRET_NAME, printable, secrets_of

_BATCH = re.compile(r"\s*batch: (\d[\d,]*) a card, (\d[\d,]*) in all")
_SETTING = re.compile(r"\s*(learning rate|iterations): (\d[\d,]*(?:\.\d+)?)(?:,|$)")


def of_plan(plan, run):
    """Return {name: value}; value is text, a number, a truth value or None. What the plan or
    run.json does not hold is left out.
    """
    plan, run = _mapping(plan), _mapping(run)
    job, suite, launcher = (
        _mapping(plan.get("job")),
        _mapping(plan.get("suite")),
        _mapping(plan.get("launcher")),
    )
    environment, code = _mapping(plan.get("environment")), _mapping(plan.get("code"))
    found = {
        "suite": suite.get("name") or job.get("suite"),
        "launcher": launcher.get("name") or job.get("launcher"),
        "config": job.get("config"),
        "arguments": " ".join(str(word) for word in _list(job.get("arguments"))) or None,
        "site": plan.get("site"),
        "accelerator": plan.get("accelerator"),
        "nodes": len(_list(plan.get("nodes"))) or None,
        "ranks": len(_list(plan.get("ranks"))) or None,
        "devices": _devices(plan),
        "cores": _same(
            node.get("cores") for node in _list(plan.get("nodes")) if isinstance(node, dict)
        ),
        "code": _short(code.get("digest") or code.get("path")),
        "commit": _short(_mapping(run.get("code")).get("commit")),
        "code changed locally": _mapping(run.get("code")).get("dirty"),
        "package": environment.get("package"),
        "version": environment.get("version"),
        "environment": (
            environment.get("digest") or environment.get("path") or environment.get("image")
        ),
        "epochs": plan.get("epochs"),
    }
    for name, digest in sorted(_mapping(plan.get("data")).items()):
        found["data " + str(name)] = _short(digest)
    for name, digest in sorted(_mapping(plan.get("weights")).items()):
        found["weights " + str(name)] = _short(digest)
    # As it was planned, with what the site and the scaling changed; a job holds what its author
    # wrote.
    for key, value in sorted(_flat(_mapping(job.get("overrides")))):
        found["override " + key] = value
    for name, value in sorted(_mapping(plan.get("env")).items()):
        found["env " + str(name)] = value
    found.update(_advised(plan))
    secrets = secrets_of(plan)
    return {
        printable(key, *secrets): _shown(key, value, secrets)
        for key, value in found.items()
        if value is not None
    }


def _mapping(value):
    return value if isinstance(value, dict) else {}


def _list(value):
    return value if isinstance(value, list) else []


def _short(digest):
    return digest[:12] if isinstance(digest, str) and "/" not in digest else digest


def _same(values):
    """The one value that all have, or the distinct ones as text; None for none."""
    distinct = sorted({str(value) for value in values if value is not None})
    return ", ".join(distinct) or None


def _devices(plan):
    counts = [
        len(_list(node.get("devices")))
        for node in _list(plan.get("nodes"))
        if isinstance(node, dict)
    ]
    return _same("%d a node" % count for count in counts if count)


def _flat(value, prefix=""):
    for key, item in value.items():
        name = prefix + str(key)
        if isinstance(item, dict) and item:
            yield from _flat(item, name + ".")
        else:
            yield name, item


def _advised(plan):
    """Batch, learning rate and iterations as the plan's advice words them (scaling.py): the numbers
    the training went with.
    """
    found = {}
    for line in _list(plan.get("advice")):
        batch, setting = _BATCH.match(str(line)), _SETTING.match(str(line))
        if batch:
            found.setdefault("batch a card", _value(batch.group(1)))
            found.setdefault("batch in all", _value(batch.group(2)))
        elif setting:
            found.setdefault(setting.group(1), _value(setting.group(2)))
    return found


def _value(text):
    text = text.replace(",", "")
    return int(text) if text.isdecimal() else float(text)


def _shown(name, value, secrets):
    if SECRET_NAME.search(name) or name.partition(" ")[2] in secrets.names:
        return MASK
    return (
        value
        if isinstance(value, (bool, int, float))
        else printable(value if isinstance(value, str) else str(value), *secrets)
    )
