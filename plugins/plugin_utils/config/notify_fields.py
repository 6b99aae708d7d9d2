# SPDX-License-Identifier: Apache-2.0
"""The site's variable trainyard_notify: the receivers of events of runs.

An address holds a token, so no problem repeats a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.notify.message import Channel
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from ..base.yaml_source import Problem, dotted_key
from .job import load_schema

KEY = "trainyard_notify"
EVENTS = ("started", "restarted", "hung", "completed", "failed", "stopped", "lost", "unknown")
# Templates of services that sign what they are sent, or take a signature.
SIGNED = ("generic", "feishu", "dingtalk")


def read_channels(value: Any, problems: list[Problem]) -> list[Channel]:
    """Return the receivers of `trainyard_notify`, and note its problems."""
    if value is None:
        return []
    value = _with_event_key(value)
    errors = list(Draft202012Validator(load_schema("notify")).iter_errors(value))
    for error in errors:
        problems.append(_problem((KEY, *error.absolute_path), _describe(error)))
    if errors:
        return []
    channels = [_channel(index, entry) for index, entry in enumerate(value)]
    for channel in channels:
        if channel["secret"] and channel["template"] not in SIGNED:
            text = f"is of no use with the template {channel['template']}; take it out"
            problems.append(_problem((KEY, channel["index"], "secret"), text))
    return channels


def _with_event_key(value: Any) -> Any:
    """Return the value with the key `on`, which YAML 1.1 reads as true without quotes."""
    if not isinstance(value, (list, tuple)):
        return value
    entries: list[Any] = []
    for entry in value:
        if isinstance(entry, Mapping):
            entry = {_event_key(key): item for key, item in entry.items()}
        entries.append(entry)
    return entries


def _event_key(key: Any) -> Any:
    if key is True or key == "True":  # as JSON has carried it
        return "on"
    return key


def secret_texts(value: Any) -> list[str]:
    """Return the texts of `trainyard_notify` that must not be shown, also of a wrong value."""
    entries: list[Any] = []
    if isinstance(value, (list, tuple)):
        entries = [entry for entry in value if isinstance(entry, Mapping)]
    texts = [entry.get(key) for entry in entries for key in ("url", "secret")]
    return [text for text in texts if isinstance(text, str)]


def _channel(index: int, entry: Mapping[str, Any]) -> Channel:
    return {
        "index": index,
        "url": entry.get("url", ""),
        "command": list(entry.get("command", [])),
        "on": list(entry.get("on", EVENTS)),
        "template": entry.get("template", "generic"),
        "secret": entry.get("secret", ""),
        "from_nodes": bool(entry.get("from_nodes", False)),
    }


def _problem(path: tuple[Any, ...], text: str) -> Problem:
    return Problem("inventory", None, dotted_key(path), text, code="site.bad_notify")


def _describe(error: ValidationError) -> str:
    """Return what is wrong with an entry, without its value."""
    path, schema = list(error.absolute_path), error.schema
    if isinstance(schema, Mapping) and "description" in schema:
        return str(schema["description"])
    if isinstance(schema, Mapping) and "enum" in schema:
        return f"must be one of {', '.join(schema['enum'])}"
    if "url" in path:
        return "must be an http or https address without spaces"
    if "command" in path:
        return "must be a list of texts: a program and its arguments, without a shell"
    if "on" in path:
        return f"must be a list of some of {', '.join(EVENTS)}"
    return "must be a list of receivers; docs/runbooks/notify.md has examples"
