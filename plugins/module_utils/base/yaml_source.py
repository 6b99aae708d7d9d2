# SPDX-License-Identifier: Apache-2.0
"""Read YAML as data: one document of plain values, with the line of every key. Nothing in it is
ever executed or templated.

Runs on the controller only (PyYAML comes with ansible-core, jsonschema with requirements.txt).
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import os
import re

import yaml
from jsonschema import Draft202012Validator, ValidationError, validators
from yaml.constructor import SafeConstructor

from .sanitize import SECRET_NAME

# PyYAML reads about 100 kB a second, and text that nests without end in a time that grows with its
# square (measured with 6.0.3).
MAX_BYTES = 1 << 18
MAX_DEPTH = 40
# So many problems of one kind, or in one file, are worth reading; the rest is counted.
MAX_PROBLEMS = 50
PLAIN_TAGS = {
    "tag:yaml.org,2002:" + kind for kind in ("map", "seq", "str", "int", "float", "bool", "null")
}

# YAML 1.1 reads 010 as 8, 1_000 as 1000 and 1:30 as 90.
ODD_NUMBER = re.compile(r"^[-+]?0[0-9xb_]|[_:]")


class Problem:
    """One thing that is wrong: where it stands, what it is, what was meant."""

    def __init__(self, file, line, key, text):
        """file: path shown to the user. line: 1-based or None. key: dotted key or ''. text: what is
        wrong, got, allowed, did you mean.
        """
        self.file, self.line, self.key, self.text = file, line, key, text

    def __str__(self):
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        key, text = self.key if len(self.key) <= 200 else self.key[:197] + "...", self.text
        if SECRET_NAME.search(key):
            # The mask would take the first word behind such a name for the secret, and leave what
            # was got.
            key, text = f"[{key}]", re.sub(r"\bgot .*", "got ********", text, flags=re.DOTALL)
        return f"{place} {key}: {text}" if key else f"{place}: {text}"


class _Refused(Exception):
    """What composing a document comes upon that no job may hold: (line, what)."""


class _Loader(yaml.SafeLoader):
    """Composes nodes, and stops at the first alias (a few lines of them can stand for more values
    than memory holds) or at too deep a nest.
    """

    depth = 0

    def compose_node(self, parent, index):
        line = self.peek_event().start_mark.line + 1
        if self.check_event(yaml.AliasEvent):
            raise _Refused(line, "YAML aliases are not allowed in a job; write the value out")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Refused(line, "nests deeper than %d levels" % MAX_DEPTH)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def shown(value):
    """Return a value as Python writes it, cut to what fits a line."""
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def near(word, words):
    """Return '; did you mean X?' for the nearest of words, or ''."""
    if len(str(word)) > 100:
        return ""
    match = difflib.get_close_matches(str(word), [str(w) for w in words], n=1, cutoff=0.6)
    return f"; did you mean '{match[0]}'?" if match else ""


_SCALARS = SafeConstructor()


def _scalar_problem(node):
    """Say why a scalar is not the value that it looks like, or return None."""
    kind = node.tag.rpartition(":")[2]
    if kind not in ("int", "float", "bool"):
        return None
    said = node.value if len(node.value) <= 40 else node.value[:37] + "..."
    try:
        value = getattr(_SCALARS, "construct_yaml_" + kind)(node)
    except (ValueError, KeyError, IndexError, OverflowError):
        return "{} cannot be read as {}; quote it as text".format(said or "''", kind)
    if kind == "float" and not math.isfinite(value):
        return f"{said} is no finite number; quote it as text"
    if kind != "bool" and ODD_NUMBER.search(node.value):
        return f"{said} is read as {value}; write plain digits, or quote it as text"
    return None


def _walk(node, path, lines, problems, file):
    """Note the line of every key below node; report duplicate keys, tags and keys that are not
    text.
    """
    lines.setdefault(path, node.start_mark.line + 1)
    if node.tag not in PLAIN_TAGS:
        problems.append(
            Problem(
                file,
                node.start_mark.line + 1,
                dotted(path),
                f"a job is plain data; got the tag {node.tag}",
            )
        )
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, path + (index,), lines, problems, file)
    elif isinstance(node, yaml.ScalarNode):
        text = _scalar_problem(node)
        if text:
            problems.append(Problem(file, node.start_mark.line + 1, dotted(path), text))
    elif isinstance(node, yaml.MappingNode):
        seen = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                problems.append(Problem(file, line, dotted(path), "a key must be a plain word"))
                continue
            if key.value in seen:
                problems.append(
                    Problem(
                        file,
                        line,
                        dotted(path + (key.value,)),
                        "the key stands twice (first in line %d)" % seen[key.value],
                    )
                )
            seen.setdefault(key.value, line)
            lines[path + (key.value,)] = line
            _walk(value, path + (key.value,), lines, problems, file)


def dotted(path):
    """Return a key path as text: ('env', 'A') -> 'env.A'."""
    return ".".join(str(part) for part in path)


def read(path, shown=None):
    """Read one YAML document as data.

    Returns (value, lines, problems): lines maps a key path (tuple) to its 1-based line, problems is
    a list of Problem. The value is None where there is a problem that leaves nothing to look at.
    """
    file = shown or path

    def refused(text, line=None):
        return None, {}, [Problem(file, line, "", text)]

    try:
        if os.path.exists(path) and not os.path.isfile(path):
            return refused(
                "is %s; a job is one YAML file"
                % ("a directory" if os.path.isdir(path) else "no regular file")
            )
        with open(path, "rb") as handle:
            raw = handle.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            return refused("is larger than %d bytes; a job is a short text" % MAX_BYTES)
        loader = _Loader(raw.decode("utf-8-sig"))
        nodes = []
        while loader.check_node():
            nodes.append(loader.get_node())
        if len(nodes) != 1:
            return refused(
                "is empty" if not nodes else "holds %d documents; a job is one" % len(nodes)
            )
        lines, problems = {}, []
        _walk(nodes[0], (), lines, problems, file)
        return (
            (None, lines, problems)
            if problems
            else (loader.construct_document(nodes[0]), lines, [])
        )
    except OSError as error:
        return refused(f"cannot be read: {error.strerror}")
    except UnicodeDecodeError as error:
        return refused("is not UTF-8 text (byte %d)" % error.start)
    except _Refused as error:
        return refused(error.args[1], error.args[0])
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = " (column %s)" % (mark.column + 1) if mark else ""
        return refused(f"is not YAML: {error.problem}{where}", mark.line + 1 if mark else None)
    except (yaml.YAMLError, ValueError) as error:
        return refused("is not YAML: {}".format(" ".join(str(error).split())))


def _words(error, options):
    """Turn one jsonschema error into (key path tail, sentence)."""
    got = "got " + shown(error.instance)
    rule = error.validator
    if rule == "additionalProperties":
        allowed = sorted(error.schema.get("properties", {}))
        extra = [key for key in error.instance if key not in allowed]
        words = [
            ((key,), "unknown key; allowed: {}{}".format(", ".join(allowed), near(key, allowed)))
            for key in extra[:MAX_PROBLEMS]
        ]
        return words + [((), "%d more unknown keys" % (len(extra) - MAX_PROBLEMS))] * (
            len(extra) > MAX_PROBLEMS
        )
    if rule == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        return [((), f"the key '{key}' is missing") for key in missing]
    if rule == "enum":
        return [
            (
                (),
                "{}; allowed: {}{}".format(
                    got,
                    ", ".join(map(str, error.validator_value)),
                    near(error.instance, error.validator_value),
                ),
            )
        ]
    said = error.schema.get("description")
    if rule == "type":
        return [
            (
                (),
                "{}; {} ({})".format(
                    said or f"must be {error.validator_value}",
                    got,
                    type(error.instance).__name__,
                ),
            )
        ]
    return [
        (
            (),
            (
                f"{said}; {got}"
                if said
                else error.message
                if len(error.message) <= 200
                else f"{rule}; {got}"
            ),
        )
    ]


@functools.lru_cache(maxsize=None)
def _validator():
    """Return the class that validates; to JSON schema 2.0 is an integer, and a count has to be an
    int.
    """
    types = Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _checker, item: isinstance(item, int) and not isinstance(item, bool)
    )
    return validators.extend(Draft202012Validator, {"uniqueItems": _unique}, type_checker=types)


def _unique(validator, wanted, instance, _schema):
    """jsonschema compares every item with every other where it cannot sort them; a long list would
    take minutes.
    """
    if (
        wanted
        and validator.is_type(instance, "array")
        and len({json.dumps(item, sort_keys=True) for item in instance}) < len(instance)
    ):
        yield ValidationError(f"{shown(instance)} has an item twice")


def check(value, schema, lines, file):
    """Hold value against a JSON schema; return every Problem, with the line of the key it is about."""
    problems = []
    for error in sorted(
        _validator()(schema).iter_errors(value),
        key=lambda e: [str(p) for p in e.absolute_path],
    ):
        leaves = [error]
        if (
            error.validator in ("anyOf", "oneOf")
            and error.context
            and not error.schema.get("description")
        ):
            leaves = [min(error.context, key=lambda e: -len(e.absolute_path))]
        for leaf in leaves:
            for tail, text in _words(leaf, schema):
                path = tuple(leaf.absolute_path) + tail
                line = next(
                    (lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), None
                )
                problems.append(Problem(file, line, dotted(path), text))
    return list(
        {str(problem): problem for problem in problems}.values()
    )  # one sentence a missing key, however many are missing
