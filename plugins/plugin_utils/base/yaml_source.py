# SPDX-License-Identifier: Apache-2.0
"""YAML as data: one document of plain values, with the line of every key.

Nothing in it is ever executed or templated. PyYAML comes with ansible-core, jsonschema with
requirements.txt.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import SECRET_NAME
from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import (
    abbreviate,
    cut,
    suggest,
)
from jsonschema import Draft202012Validator, ValidationError, validators
from yaml.constructor import SafeConstructor

KeyPath = tuple[Any, ...]
# {key path: its line, 1-based}.
Lines = dict[KeyPath, int]
# (key path tail, text, code) of a value that breaks a rule.
Sentence = tuple[KeyPath, str, str]

# PyYAML reads about 100 kB per second. For text that nests without end, the time grows with its
# square (measured with 6.0.3).
MAX_BYTES = 1 << 18
MAX_DEPTH = 40
# Problems of one kind, or in one file, that are worth reading. The others are counted.
MAX_PROBLEMS = 50
PLAIN_TAGS = {
    "tag:yaml.org,2002:" + kind for kind in ("map", "seq", "str", "int", "float", "bool", "null")
}

# YAML 1.1 reads 010 as 8, 1_000 as 1000 and 1:30 as 90.
ODD_NUMBER = re.compile(r"^[-+]?0[0-9xb_]|[_:]")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One problem of a file: its location, a text and a code."""

    file: str  # shown to the user
    line: int | None  # 1-based
    key: str  # dotted, or ''
    text: str  # the fault, the value, the allowed ones, and a suggestion
    code: str  # `<area>.<reason>`, see docs/messages.md

    def __str__(self) -> str:
        place = self.file
        if self.line is not None:
            place = f"{self.file}:{self.line}"
        key, text = cut(self.key, 200), self.text
        if not key:
            return f"{place}: {text}"
        if SECRET_NAME.search(key):
            # The mask would take the first word behind such a name for the secret, and leave the
            # value.
            key, text = f"[{key}]", re.sub(r"\bgot .*", "got ********", text, flags=re.DOTALL)
        return f"{place} {key}: {text}"


class RefusedError(Exception):
    """A part of a document that no job may hold: (line, text) and a code."""

    def __init__(self, line: int | None, text: str, code: str) -> None:
        super().__init__(line, text)
        self.code = code


class JobLoader(yaml.SafeLoader):
    """Loader that composes nodes, and stops at the first alias or at too deep a nest.

    A few lines of aliases can stand for more values than fit into memory.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
        if self.check_event(yaml.AliasEvent):
            raise RefusedError(
                line,
                "YAML aliases are not allowed in a job; write the value out",
                code="file.alias",
            )
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RefusedError(line, f"nests deeper than {MAX_DEPTH} levels", code="file.too_deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_SCALARS = SafeConstructor()


def _scalar_problem(node: yaml.ScalarNode) -> str | None:
    """Return the reason why a scalar is not the value that it looks like, or None."""
    kind = node.tag.rpartition(":")[2]
    if kind not in ("int", "float", "bool"):
        return None
    text = cut(node.value, 40)
    try:
        value = getattr(_SCALARS, "construct_yaml_" + kind)(node)
    except (ValueError, KeyError, IndexError, OverflowError):
        text = text or "''"
        return f"{text} cannot be read as {kind}; quote it as text"
    if kind == "float" and not math.isfinite(value):
        return f"{text} is no finite number; quote it as text"
    if kind != "bool" and ODD_NUMBER.search(node.value):
        return f"{text} is read as {value}; write plain digits, or quote it as text"
    return None


def _walk(node: yaml.Node, path: KeyPath, lines: Lines, problems: list[Problem], file: str) -> None:
    """Note the line of every key below node.

    Report duplicate keys, tags and keys that are not text.
    """
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if node.tag not in PLAIN_TAGS:
        text = f"a job is plain data; got the tag {node.tag}"
        problems.append(Problem(file, line, dotted_key(path), text, code="file.tag"))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, path + (index,), lines, problems, file)
    elif isinstance(node, yaml.ScalarNode):
        reason = _scalar_problem(node)
        if reason:
            key = dotted_key(path)
            problems.append(Problem(file, line, key, reason, code="file.unclear_value"))
    elif isinstance(node, yaml.MappingNode):
        _walk_mapping(node, path, lines, problems, file)


def _walk_mapping(
    node: yaml.MappingNode, path: KeyPath, lines: Lines, problems: list[Problem], file: str
) -> None:
    first_lines: dict[str, int] = {}  # key: its first line
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
            problems.append(
                Problem(
                    file,
                    line,
                    dotted_key(path),
                    "a key must be a plain word",
                    code="file.key_not_text",
                )
            )
            continue
        key_path = path + (key.value,)
        if key.value in first_lines:
            text = f"the key stands twice (first in line {first_lines[key.value]})"
            problems.append(Problem(file, line, dotted_key(key_path), text, code="file.key_twice"))
        first_lines.setdefault(key.value, line)
        lines[key_path] = line
        _walk(value, key_path, lines, problems, file)


def dotted_key(path: KeyPath) -> str:
    """Return a key path as text: ('env', 'A') -> 'env.A'."""
    return ".".join(str(part) for part in path)


def read(path: str, shown: str | None = None) -> tuple[Any, Lines, list[Problem]]:
    """Return (value, lines, problems) of one YAML document.

    path: the file. shown: its name in problems. lines: {key path (tuple): 1-based line}. problems:
    a list of Problem. Where there is one, the value is missing (None).
    """
    file = shown or path
    try:
        loader = JobLoader(_read_text(path))
        node = _single_node(loader)
        lines: Lines = {}
        problems: list[Problem] = []
        _walk(node, (), lines, problems, file)
        if problems:
            return None, lines, problems
        return loader.construct_document(node), lines, []
    except RefusedError as error:
        line, text = error.args
        code = error.code
    except OSError as error:
        line, text = None, f"cannot be read: {error.strerror}"
        code = "file.unreadable"
    except UnicodeDecodeError as error:
        line, text = None, f"is not UTF-8 text (byte {error.start})"
        code = "file.not_utf8"
    except yaml.MarkedYAMLError as error:
        line, text = _syntax_problem(error)
        code = "file.not_yaml"
    except (yaml.YAMLError, ValueError) as error:
        line, text = None, f"is not YAML: {' '.join(str(error).split())}"
        code = "file.not_yaml"
    return None, {}, [Problem(file, line, "", text, code=code)]


def _read_text(path: str) -> str:
    """Return a file's text, or raise _Refused where it cannot be a job."""
    if os.path.isdir(path):
        raise RefusedError(None, "is a directory; a job is one YAML file", code="file.not_a_file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise RefusedError(
            None, "is no regular file; a job is one YAML file", code="file.not_a_file"
        )
    with open(path, "rb") as handle:
        raw = handle.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise RefusedError(
            None, f"is larger than {MAX_BYTES} bytes; a job is a short text", code="file.too_large"
        )
    return raw.decode("utf-8-sig")


def _single_node(loader: yaml.SafeLoader) -> yaml.Node:
    """Return the root node of the only document, or raise RefusedError."""
    nodes = []
    while loader.check_node():
        nodes.append(loader.get_node())
    if not nodes or nodes[0] is None:
        raise RefusedError(None, "is empty", code="file.empty")
    if len(nodes) > 1:
        raise RefusedError(
            None, f"holds {len(nodes)} documents; a job is one", code="file.several_documents"
        )
    return nodes[0]


def _syntax_problem(error: yaml.MarkedYAMLError) -> tuple[int | None, str]:
    """Return (line, text) of a syntax error.

    line: None where it is unknown.
    """
    mark = error.problem_mark or error.context_mark
    if not mark:
        return None, f"is not YAML: {error.problem}"
    return mark.line + 1, f"is not YAML: {error.problem} (column {mark.column + 1})"


# The code of a value that breaks a rule of its schema, per rule. None stands for any other rule.
CODE_OF_RULE = {
    "type": "value.wrong_type",
    "enum": "value.not_allowed",
    None: "value.breaks_rule",
}


def _sentences(error: ValidationError) -> list[Sentence]:
    """Return [(key path tail, sentence, code)] of one jsonschema error."""
    if error.validator == "additionalProperties":
        return _unknown_keys(error)
    rule, argument = _rule_of(error)
    if rule == "required":
        instance: Any = error.instance
        missing = [key for key in argument if key not in instance]
        code = "value.missing_key"
        return [((), f"the key '{key}' is missing", code) for key in missing]
    code = CODE_OF_RULE.get(rule, CODE_OF_RULE[None])
    return [((), _value_sentence(error), code)]


def _schema_of(error: ValidationError) -> Mapping[str, Any]:
    """Return the part of the schema that a value breaks."""
    assert isinstance(error.schema, Mapping)
    return error.schema


def _rule_of(error: ValidationError) -> tuple[str, Any]:
    """Return (name, argument) of the rule that a value breaks."""
    return str(error.validator), error.validator_value


def _unknown_keys(error: ValidationError) -> list[Sentence]:
    """Return [(key path tail, sentence, code)] of keys that the schema does not have."""
    code = "value.unknown_key"
    allowed = sorted(_schema_of(error).get("properties", {}))
    instance: Any = error.instance
    extra = [key for key in instance if key not in allowed]
    sentences: list[Sentence] = [
        ((key,), f"unknown key; allowed: {', '.join(allowed)}{suggest(key, allowed)}", code)
        for key in extra[:MAX_PROBLEMS]
    ]
    if len(extra) > MAX_PROBLEMS:
        sentences.append(((), f"{len(extra) - MAX_PROBLEMS} more unknown keys", code))
    return sentences


def _value_sentence(error: ValidationError) -> str:
    """Return the sentence about a value that breaks a rule."""
    got = "got " + abbreviate(error.instance)
    rule, argument = _rule_of(error)
    if rule == "enum":
        allowed = ", ".join(map(str, argument))
        return f"{got}; allowed: {allowed}{suggest(error.instance, argument)}"
    description = _schema_of(error).get("description")
    if rule == "type":
        return f"{description or f'must be {argument}'}; {got} ({type(error.instance).__name__})"
    if description:
        return f"{description}; {got}"
    if len(error.message) <= 200:
        return error.message
    return f"{rule}; {got}"


@functools.lru_cache(maxsize=None)
def _validator() -> type[Any]:
    """Return the class that validates.

    To JSON schema 2.0 is an integer, but a count has to be an int.
    """
    types = Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _checker, item: isinstance(item, int) and not isinstance(item, bool)
    )
    return validators.extend(Draft202012Validator, {"uniqueItems": _unique}, type_checker=types)  # type: ignore[no-untyped-call]


def _unique(validator: Any, unique: bool, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """Yield an error where a list has an item twice.

    jsonschema's own check compares every item with every other where it cannot sort them. A long
    list would take minutes.
    """
    if not unique or not validator.is_type(instance, "array"):
        return
    if len({json.dumps(item, sort_keys=True) for item in instance}) < len(instance):
        yield ValidationError(f"{abbreviate(instance)} has an item twice")


def validate(value: Any, schema: Mapping[str, Any], lines: Lines, file: str) -> list[Problem]:
    """Return every Problem of a value that does not fit a JSON schema.

    lines: as `read` returns them, for the line of each problem's key. file: its name in problems.
    """
    errors = list(_validator()(schema).iter_errors(value))
    errors.sort(key=lambda error: [str(part) for part in error.absolute_path])
    problems = {}  # by its text: jsonschema repeats the sentence about all missing keys
    for error in errors:
        leaf = _leaf(error)
        for tail, text, code in _sentences(leaf):
            path = tuple(leaf.absolute_path) + tail
            problem = Problem(file, _nearest_line(path, lines), dotted_key(path), text, code=code)
            problems[str(problem)] = problem
    return list(problems.values())


def _leaf(error: ValidationError) -> ValidationError:
    """Return the deepest error of alternatives without a description, else the error."""
    is_choice = error.validator in ("anyOf", "oneOf")
    if is_choice and error.context and not _schema_of(error).get("description"):
        return max(error.context, key=lambda item: len(item.absolute_path))
    return error


def _nearest_line(path: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    """Return the line of a key path, or of the nearest one above it that has a line."""
    prefixes = (path[:length] for length in range(len(path), -1, -1))
    return next((lines[prefix] for prefix in prefixes if prefix in lines), None)
