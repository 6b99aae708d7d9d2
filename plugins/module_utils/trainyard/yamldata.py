# SPDX-License-Identifier: Apache-2.0
"""Read YAML as data: one document of plain values, with the line of every key. Nothing in it is ever executed or templated.

Runs on the controller only (PyYAML comes with ansible-core, jsonschema with requirements.txt).
"""

from __future__ import annotations

import difflib
import functools
import os
import re

import yaml

MAX_BYTES = 1 << 20
PLAIN_TAGS = {"tag:yaml.org,2002:" + kind for kind in ("map", "seq", "str", "int", "float", "bool", "null")}

# YAML 1.1 reads 010 as 8, 1_000 as 1000 and 1:30 as 90.
NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
ODD_NUMBER = re.compile(r"^[-+]?0[0-9xb_]|[_:]")


class Problem:
    """One thing that is wrong: where it stands, what it is, what was meant."""

    def __init__(self, file, line, key, text):
        """file: path shown to the user. line: 1-based or None. key: dotted key or ''. text: what is wrong, got, allowed, did you mean."""
        self.file, self.line, self.key, self.text = file, line, key, text

    def __str__(self):
        place = self.file if self.line is None else "%s:%s" % (self.file, self.line)
        return "%s %s: %s" % (place, self.key, self.text) if self.key else "%s: %s" % (place, self.text)


def near(word, words):
    """Return '; did you mean X?' for the nearest of words, or ''."""
    match = difflib.get_close_matches(str(word), [str(w) for w in words], n=1, cutoff=0.6)
    return "; did you mean '%s'?" % match[0] if match else ""


def _walk(node, path, lines, problems, file):
    """Note the line of every key below node; report duplicate keys, tags and keys that are not text."""
    lines.setdefault(path, node.start_mark.line + 1)
    if node.tag not in PLAIN_TAGS:
        problems.append(Problem(file, node.start_mark.line + 1, dotted(path), "a job is plain data; got the tag %s" % node.tag))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, path + (index,), lines, problems, file)
    elif isinstance(node, yaml.ScalarNode) and node.tag in NUMBER_TAGS and ODD_NUMBER.search(node.value):
        text = "%s is read as %s; write plain digits, or quote it as text" % (node.value, yaml.safe_load(node.value))
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
                    Problem(file, line, dotted(path + (key.value,)), "the key stands twice (first in line %d)" % seen[key.value])
                )
            seen.setdefault(key.value, line)
            lines[path + (key.value,)] = line
            _walk(value, path + (key.value,), lines, problems, file)


def dotted(path):
    """Return a key path as text: ('env', 'A') -> 'env.A'."""
    return ".".join(str(part) for part in path)


def read(path, shown=None):
    """Read one YAML document as data.

    Returns (value, lines, problems): lines maps a key path (tuple) to its 1-based line, problems is a list of Problem. The value is None
    where there is a problem that leaves nothing to look at.
    """
    file = shown or path
    if os.path.isdir(path):
        return None, {}, [Problem(file, None, "", "is a directory; a job is one YAML file")]
    try:
        with open(path, "rb") as handle:
            raw = handle.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            return None, {}, [Problem(file, None, "", "is larger than %d bytes; a job is a short text" % MAX_BYTES)]
        text = raw.decode("utf-8-sig")
        # Aliases are refused before anything is built: a few lines of them can stand for more values than memory holds.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                return (
                    None,
                    {},
                    [Problem(file, event.start_mark.line + 1, "", "YAML aliases are not allowed in a job; write the value out")],
                )
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except OSError as error:
        return None, {}, [Problem(file, None, "", "cannot be read: %s" % error.strerror)]
    except UnicodeDecodeError as error:
        return None, {}, [Problem(file, None, "", "is not UTF-8 text (byte %d)" % error.start)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        return (
            None,
            {},
            [
                Problem(
                    file,
                    mark.line + 1 if mark else None,
                    "",
                    "is not YAML: %s (column %s)" % (error.problem, mark.column + 1 if mark else "?"),
                )
            ],
        )
    except (yaml.YAMLError, RecursionError) as error:
        return None, {}, [Problem(file, None, "", "is not YAML: %s" % " ".join(str(error).split()))]
    nodes = [node for node in nodes if node is not None]
    if len(nodes) != 1:
        return None, {}, [Problem(file, None, "", "is empty" if not nodes else "holds %d documents; a job is one" % len(nodes))]
    lines, problems = {}, []
    _walk(nodes[0], (), lines, problems, file)
    if problems:
        return None, lines, problems
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        return None, lines, [Problem(file, None, "", "is not YAML: %s" % " ".join(str(error).split()))]
    return value, lines, []


def _words(error, options):
    """Turn one jsonschema error into (key path tail, sentence)."""
    got = "got %r" % (error.instance,)
    got = got if len(got) <= 120 else got[:117] + "..."
    rule = error.validator
    if rule == "additionalProperties":
        allowed = sorted(error.schema.get("properties", {}))
        extra = [key for key in error.instance if key not in allowed]
        return [((key,), "unknown key; allowed: %s%s" % (", ".join(allowed), near(key, allowed))) for key in extra]
    if rule == "required":
        missing = [key for key in error.validator_value if key not in error.instance]
        return [((), "the key '%s' is missing" % key) for key in missing]
    if rule == "enum":
        return [((), "%s; allowed: %s%s" % (got, ", ".join(map(str, error.validator_value)), near(error.instance, error.validator_value)))]
    said = error.schema.get("description")
    if rule == "type":
        return [((), "%s; %s (%s)" % (said or "must be %s" % error.validator_value, got, type(error.instance).__name__))]
    return [((), "%s; %s" % (said, got) if said else "%s" % error.message)]


@functools.lru_cache(maxsize=None)
def _validator():
    """Return the class that validates; to JSON schema 2.0 is an integer, and a count has to be an int."""
    from jsonschema import Draft202012Validator, validators

    types = Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _checker, item: isinstance(item, int) and not isinstance(item, bool)
    )
    return validators.extend(Draft202012Validator, type_checker=types)


def check(value, schema, lines, file):
    """Hold value against a JSON schema; return every Problem, with the line of the key it is about."""
    problems = []
    for error in sorted(
        _validator()(schema).iter_errors(value),
        key=lambda e: [str(p) for p in e.absolute_path],
    ):
        leaves = [error]
        if error.validator in ("anyOf", "oneOf") and error.context and not error.schema.get("description"):
            leaves = [min(error.context, key=lambda e: -len(e.absolute_path))]
        for leaf in leaves:
            for tail, text in _words(leaf, schema):
                path = tuple(leaf.absolute_path) + tail
                line = next((lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in lines), None)
                problems.append(Problem(file, line, dotted(path), text))
    return list({str(problem): problem for problem in problems}.values())  # one sentence a missing key, however many are missing
