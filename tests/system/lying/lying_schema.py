# SPDX-License-Identifier: Apache-2.0
"""Derive an answer that has every field from a module's schema. Say of each field what no accepted
answer may have there.

The values that may become a path, a host or a word are judged here by hand, not by the patterns of
the schema. So a pattern that is too wide is found.
"""

from __future__ import annotations

import json
import re

import jsonschema
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate

TEXTS = (
    "node1", "20261120-190935-raise-1b3e", "trainyard-run-1.service", "a" * 64, "a" * 16, "a" * 32,
    "/srv/data", "log/workerlog.0", "198.51.100.1",
    "3.11", "SIGTERM", "0700", "127", "code/" + "a" * 16, "SHA256:aaaa", "ssh-ed25519 " + "A" * 68,
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43,
    ".pruning-x", "best", "last", "", "lower", "12", "TERM", "02:00", "a" * 40, "Linux 6",
    "checkpoint.cut_off", "20261120-190935-raise-1b3e-" + "a" * 16, "0000:3b:00", "iommu=pt",
    ":".join(["fe80"] + 7 * ["0000"]),
)  # fmt: skip
NUMBERS = (0, 1, 7, 12, 1.5)
HEX = re.compile(r"[0-9a-f]*")


def defined(part, whole):
    """Return a part of a schema with its reference resolved, and the reference's name."""
    name = ""
    while "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        part = whole["$defs"][name]
    return part, name


def matches(value, part, whole):
    """Return whether a value matches a part of a schema."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(
        dict(part, **{"$defs": whole["$defs"]}), format_checker=checker
    ).is_valid(value)


def example(part, whole, places, path=()):
    """Return a value with everything that a part of a schema knows; add {path: (part, reference)}
    of all of it to `places`.
    """
    part, name = defined(part, whole)
    places[path] = (part, name)
    for key in ("anyOf", "allOf"):
        if key in part and "type" not in part:  # beside a type they say which texts fit
            # the branch with the most in it: a field that may be null as well is described by its
            # other form
            best = max(part[key], key=lambda one: len(str(defined(one, whole)[0])))
            value = example(best, whole, places, path)
            places[path] = (part, name or defined(best, whole)[1])
            return value
    if "const" in part or "enum" in part:
        return (
            part["const"]
            if "const" in part
            else next(value for value in part["enum"] if value is not None)
        )
    kinds = part.get("type")
    kinds = [kinds] if isinstance(kinds, str) else list(kinds or ())
    if "object" in kinds:
        found = {
            key: example(inner, whole, places, path + (key,))
            for key, inner in part.get("properties", {}).items()
        }
        more = part.get("additionalProperties")
        if isinstance(more, dict) and part.get("maxProperties") != 0:
            names = part.get("propertyNames", {})
            key = next(
                text for text in TEXTS if text and text not in found and matches(text, names, whole)
            )
            found[key] = example(more, whole, places, path + (key,))
        return found
    if "array" in kinds:
        first = part.get("prefixItems", ())
        found = [
            example(inner, whole, places, path + (number,)) for number, inner in enumerate(first)
        ]
        while "items" in part and len(found) < max(1, part.get("minItems", 0)):
            found.append(example(part["items"], whole, places, path + (len(found),)))
        return found
    pool = TEXTS if "string" in kinds else NUMBERS if kinds and "boolean" not in kinds else (True,)
    return next(value for value in pool if matches(value, part, whole))


def answer(module):
    """Return (an answer of a module that has every field, {path: (schema, reference)}); the gate
    takes it.
    """
    whole, places = answer_gate.schema(module), {}
    made = example(whole, whole, places)
    places.pop(())
    return made, places


def definitions(module):
    """Return for each field of a module's schema what says its form: fields with one reference, or
    one form, share it.
    """
    _made, places = answer(module)
    return [name or json.dumps(part, sort_keys=True) for part, name in places.values()]


def _name(text):
    return (
        text not in (".", "..")
        and "/" not in text
        and not text.startswith(("-", "~"))
        and not re.search(r"[\s*?\[\]{}$`;|&<>\"'\\]", text)
    )


def _below(text):
    return (
        not text.startswith(("/", "~"))
        and ":" not in text
        and all(part and _name(part) for part in text.split("/"))
    )


def _path(text):
    return text.startswith("/") and ".." not in text.split("/") and "\n" not in text


def _hex(size):
    return lambda text: len(text) == size and bool(HEX.fullmatch(text))


# What is compared and shown, and never part of a path or of a command: a shared home
# (mesh_compiled.home_owners), a boot's name (proofs.keys) and an address that counts where it is
# one of the node's own (plan.py, route_source).
COMPARED = (r"^[ -~]{0,256}\Z", r"^[^\x00-\x1f\x7f]{0,256}\Z", r"^[0-9A-Fa-f.:]{2,45}\Z")
# What is used as more than a number or a sentence, by the name of its definition.
RULES = {
    "name": _name, "run_id": lambda text: _name(text) and text.isascii() and 22 <= len(text) <= 90,
    "below": _below, "path": _path,
    "sha256": _hex(64), "digest": _hex(16),
    "unit": lambda text: _name(text) and text.endswith(".service") and len(text) < 160,
    "address": lambda text: bool(re.fullmatch(r"[0-9a-fA-F.:]+", text)),
    "interface": lambda text: _name(text) and len(text) <= 32,
    "endpoint": lambda text: not re.search(r"[\s/$`;|&<>]", text),
    "bus": lambda text: bool(re.fullmatch(r"[0-9a-f:]{10,14}", text)),
    "word": lambda text: bool(text) and not re.search(r"\s", text),
    "signal": lambda text: bool(re.fullmatch(r"SIG[A-Z0-9+-]+", text)),
}  # fmt: skip


def wrong(value, part, name):
    """Return why an accepted value of one field may not be there, or ''."""
    if value is None or {"const": value} in part.get("anyOf", ()):
        return ""
    if name in RULES:
        return "" if isinstance(value, str) and RULES[name](value) else f"is no {name}: {value!r}"
    if "enum" in part or "const" in part:
        return (
            ""
            if value in part.get("enum", [part.get("const")])
            else f"is not one of its words: {value!r}"
        )
    kinds = part.get("type")
    if kinds in ("integer", "number", "boolean") and (
        not isinstance(value, (int, float)) or isinstance(value, bool) != (kinds == "boolean")
    ):
        return f"is no {kinds}: {str(value)[:60]!r}"
    # a pattern of its own: no end of line, and no way upwards
    if (
        "pattern" in part
        and isinstance(value, str)
        and part["pattern"] not in COMPARED
        and ("\n" in value or ".." in value.split("/"))
    ):
        return f"has a pattern and holds {value!r}"
    return ""
