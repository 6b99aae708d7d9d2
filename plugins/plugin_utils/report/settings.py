# SPDX-License-Identifier: Apache-2.0
"""A run's settings as flat names and values, by which runs are compared. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    MASK,
    SECRET_NAME,
    Secrets,
    printable,
    secrets_of,
)

from .json_values import Json, mapping_of

# How report and comparison call the numbers of the plan's `settings`.
_NAMES = {
    "batch_per_card": "batch per card",
    "batch_total": "batch in total",
    "learning_rate": "learning rate",
    "iterations": "iterations",
}
# Sentences of a plan without `settings`.
_BATCH = re.compile(r"\s*batch: (\d[\d,]*) a card, (\d[\d,]*) in all")
_SETTING = re.compile(r"\s*(learning rate|iterations): (\d[\d,]*(?:\.\d+)?)(?:,|$)")


def of_plan(plan: object, run: object) -> Json:
    """Return {name: value}, without what the plan or run.json does not hold.

    A value is text, a number, a truth value or None. run: run.json's content.
    """
    plan, run = mapping_of(plan), mapping_of(run)
    # The overrides are those of the plan, with what the site and the scaling changed. A job holds
    # what its author wrote.
    overrides = mapping_of(mapping_of(plan.get("job")).get("overrides"))
    values = {
        **_job_settings(plan),
        **_site_settings(plan),
        **_code_settings(plan, run),
        **_named("data", mapping_of(plan.get("data")), _shorten),
        **_named("weights", mapping_of(plan.get("weights")), _shorten),
        **_named("override", dict(_flatten(overrides))),
        **_named("env", mapping_of(plan.get("env"))),
        **_training_settings(plan),
    }
    secrets = secrets_of(plan)
    return {
        printable(key, *secrets): _make_safe(key, value, secrets)
        for key, value in values.items()
        if value is not None
    }


def _job_settings(plan: Json) -> Json:
    """Return what is trained, and with what."""
    job, suite = mapping_of(plan.get("job")), mapping_of(plan.get("suite"))
    launcher = mapping_of(plan.get("launcher"))
    return {
        "suite": suite.get("name") or job.get("suite"),
        "launcher": launcher.get("name") or job.get("launcher"),
        "config": job.get("config"),
        "arguments": " ".join(str(word) for word in _list(job.get("arguments"))) or None,
    }


def _site_settings(plan: Json) -> Json:
    """Return where it is trained."""
    nodes = [node for node in _list(plan.get("nodes")) if isinstance(node, dict)]
    device_counts = [len(_list(node.get("devices"))) for node in nodes]
    return {
        "site": plan.get("site"),
        "accelerator": plan.get("accelerator"),
        "nodes": len(_list(plan.get("nodes"))) or None,
        "ranks": len(_list(plan.get("ranks"))) or None,
        "devices": _join_distinct(f"{count} a node" for count in device_counts if count),
        "cores": _join_distinct(node.get("cores") for node in nodes),
    }


def _dirty_text(code: Json) -> Any:
    """Return whether the code was changed locally, or "unknown" where git could not say."""
    if code.get("commit") and "dirty" in code and code["dirty"] is None:
        return "unknown"
    return code.get("dirty")


def _code_settings(plan: Json, run: Json) -> Json:
    """Return the program that trains: code, package and environment."""
    code, recorded = mapping_of(plan.get("code")), mapping_of(run.get("code"))
    environment = mapping_of(plan.get("environment"))
    return {
        "code": _shorten(code.get("digest") or code.get("path")),
        "commit": _shorten(recorded.get("commit")),
        "code changed locally": _dirty_text(recorded),
        "package": environment.get("package"),
        "version": environment.get("version"),
        "environment": (
            environment.get("digest") or environment.get("path") or environment.get("image")
        ),
        "epochs": plan.get("epochs"),
    }


def _named(
    kind: str, entries: Mapping[str, Any], convert: Callable[[Any], Any] | None = None
) -> Json:
    """Return {"<kind> <name>": value} in order of the names."""
    values: Json = {}
    for name, value in sorted(entries.items()):
        if convert:
            value = convert(value)
        values[f"{kind} {name}"] = value
    return values


def _list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return []


def _shorten(digest: Any) -> Any:
    """Return the beginning of a digest.

    A path stays as it is.
    """
    if isinstance(digest, str) and "/" not in digest:
        return digest[:12]
    return digest


def _join_distinct(values: Iterable[object]) -> str | None:
    """Return the distinct values as text, or None if there is no value."""
    distinct = sorted({str(value) for value in values if value is not None})
    return ", ".join(distinct) or None


def _flatten(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of nested mappings."""
    for key, item in value.items():
        name = prefix + str(key)
        if isinstance(item, dict) and item:
            yield from _flatten(item, name + ".")
        else:
            yield name, item


def _training_settings(plan: Json) -> Json:
    """Return batch, learning rate and iterations, the numbers that the training used."""
    numbers = plan.get("settings")
    if not isinstance(numbers, dict):
        return _advice_settings(plan)
    return {
        name: numbers[key]
        for key, name in _NAMES.items()
        if isinstance(numbers.get(key), (int, float))
    }


def _advice_settings(plan: Json) -> Json:
    """Return batch, learning rate and iterations of a plan of an earlier version.

    It has them in the sentences of its advice only.
    """
    values: Json = {}
    for line in _list(plan.get("advice")):
        batch, setting = _BATCH.match(str(line)), _SETTING.match(str(line))
        if batch:
            values.setdefault("batch per card", _parse_number(batch.group(1)))
            values.setdefault("batch in total", _parse_number(batch.group(2)))
        elif setting:
            values.setdefault(setting.group(1), _parse_number(setting.group(2)))
    return values


def _parse_number(text: str) -> float:
    text = text.replace(",", "")
    if text.isdecimal():
        return int(text)
    return float(text)


def _make_safe(name: str, value: Any, secrets: Secrets) -> Any:
    """Return a value that is safe to show."""
    if SECRET_NAME.search(name) or name.partition(" ")[2] in secrets.names:
        return MASK
    if isinstance(value, (bool, int, float)):
        return value
    return printable(str(value), *secrets)
