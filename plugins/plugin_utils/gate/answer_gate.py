# SPDX-License-Identifier: Apache-2.0
"""Validation of a module's answer, before the controller uses it.

The module runs on a node. A training runs as the account that Ansible logs in as, so it can rewrite
every answer of a module on its node. Each module has a schema in `gate/answers/`. An answer that
does not match its schema fails that node alone, with the field that is wrong. `Gated` is what an
action plugin inherits first: every module that the plugin runs on a node passes the gate.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypedDict

from ansible_collections.trainyard.cluster.plugins.module_utils.base import processes
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import CODE
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import (
    escape,
    printable,
)

from ..agent import module_payload

if TYPE_CHECKING:
    from types import FrameType

    from ansible.plugins.action import ActionBase
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

    ModuleAction = ActionBase
else:
    ModuleAction = object

# A field and what is wrong with it.
Problem = tuple[str, str]
Schema = dict[str, Any]

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "answers")
# Nesting, number of values and characters of one answer. The largest honest answer (the files of
# 5,000 entries by name) has 20,000 values.
MAX_DEPTH, MAX_VALUES, MAX_CHARACTERS = 32, 1_000_000, 64 << 20
# Bounds of texts and lists for which a schema gives none.
MAX_TEXT, MAX_ITEMS = 4096, 20_000
# The same by JSON type, for `complete`.
BOUNDS = {
    "string": {"maxLength": MAX_TEXT},
    "array": {"maxItems": MAX_ITEMS},
    "object": {"maxProperties": MAX_ITEMS},
    "integer": {"minimum": 0, "maximum": 2**63 - 1},
}
# Address space that one answer may take beyond what the process has: an endless answer ends as an
# error of that node. Ansible takes seven times an answer's size while it reads it (measured with
# 200 MiB), and each of many nodes may send one at once.
MEMORY_BYTES = 768 << 20
# Seconds that a module may take where its schema says nothing.
SECONDS = 900
PROBLEMS = 5
# Keys that Ansible itself adds to an answer or reads from it. Ansible obeys `add_host`, `add_group`
# and `ansible_facts` of any module.
OBEYED = (
    "add_host",
    "add_group",
    "ansible_facts",
    "ansible_notify",
    "ansible_module_results",
    "results",
)
COMMON = (
    "changed",
    "failed",
    "skipped",
    "msg",
    "rc",
    "warnings",
    "exception",
    "stdout_lines",
    "stderr_lines",
)
FAILURE = ("stdout", "stderr", "module_stdout", "module_stderr")
INTERPRETER = re.compile(r"/[A-Za-z0-9._/+-]{1,250}\Z")
LINES = 200


class Definition(TypedDict):
    """How a module's answer is validated.

    same_as: {dotted field: argument} that must be equal. drop: leave out other fields instead of
    refusing them. raw: fields whose text is not escaped. seconds: the longest time of the module.
    background: a training may go on beside it, so it has the processors last.
    """

    validator: Draft202012Validator
    same_as: dict[str, str]
    schema: Schema
    properties: set[str]
    drop: bool
    raw: frozenset[str]
    seconds: int
    background: bool


class InvalidAnswer(Exception):
    """An answer does not match its schema.

    `problems` holds (field, text) pairs. Both are safe to show.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{field}: {text}" for field, text in problems))


class TooSlow(BaseException):
    """A module did not answer in time.

    It is not an Exception, so that a connection that tries again cannot swallow it.
    """


def validate(module: str, answer: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of a module on a node as the controller may use it.

    module: name without a collection. arguments: what the controller asked, as {argument: value}.
    `node` is the node's name. Returns a new mapping in which control characters are escaped and
    nothing is left that Ansible would obey. Raises InvalidAnswer.
    """
    if not isinstance(answer, dict):
        raise InvalidAnswer([("answer", "is not a mapping")])
    measure(answer)
    known = definition(module)
    facts = _interpreter(answer.get("ansible_facts"))
    common = {key: answer[key] for key in COMMON if key in answer}
    fields = {}
    if answer.get("failed") or answer.get("skipped"):
        common.update({key: answer[key] for key in (*FAILURE, "code") if key in answer})
    else:
        fields = _module_fields(known, answer)
        _match(known, fields, arguments)
    clean = _escaped(_common(common), newlines=True)
    for key, value in fields.items():
        clean[key] = value
        if key not in known["raw"]:
            clean[key] = _escaped(value, key in FAILURE)
    if facts:
        clean["ansible_facts"] = facts
    return clean


def _module_fields(known: Definition, answer: Any) -> dict[str, Any]:
    """Return the fields of an answer that are the module's own.

    known: the module's definition. Raises InvalidAnswer for a field that Ansible would obey.
    """
    fields = {
        key: value
        for key, value in answer.items()
        if key not in COMMON
        and key not in ("invocation", "ansible_facts")
        and not key.startswith("_ansible_")
    }
    if known["drop"]:
        # Ansible's own module: what is not read is not kept.
        fields = {key: value for key, value in fields.items() if key in known["properties"]}
    obeyed = sorted(key for key in OBEYED if key in fields)
    if obeyed:
        raise InvalidAnswer([(obeyed[0], "is not a field of this module")])
    return fields


def refusal(module: str, node: str, error: Exception) -> dict[str, Any]:
    """Return the failed result that stands for an answer that is not valid.

    It names the fields, and at most 60 cleaned characters of a value.
    """
    text = f"{node} gave an answer of {module} that is not valid: {error}"
    remedy = (
        "A program of the training account may have changed it. Look at that account on the node"
        " before it trains again"
    )
    return {
        "failed": True,
        "changed": False,
        "msg": f"{printable(text, limit=1000)}. {remedy}",
        "code": "answer.invalid",
        "fields": [field for field, _text in getattr(error, "problems", [])],
    }


class Gated(ModuleAction):
    """Mixin that validates every answer of a module on a node.

    An action plugin inherits this class before Ansible's own.
    """

    _is_background = False

    def _execute_module(
        self,
        module_name: str | None = None,
        module_args: dict[str, Any] | None = None,
        tmp: str | None = None,
        task_vars: dict[str, Any] | None = None,
        *rest: Any,
        **more: Any,
    ) -> dict[str, Any]:
        if self._connection.transport == "local":
            return super()._execute_module(module_name, module_args, tmp, task_vars, *rest, **more)
        name = (module_name or self._task.action).rpartition(".")[2]
        node = self._task.delegate_to or (task_vars or {}).get("inventory_hostname") or "the node"
        if module_args is None:
            arguments = dict(self._task.args)
        else:
            arguments = dict(module_args)
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._is_background = definition(name)["background"]
        try:
            with bounded(definition(name)["seconds"]):
                answer = super()._execute_module(
                    module_name, module_args, tmp, task_vars, *rest, **more
                )
        except TooSlow as error:
            end_children(began)
            return {
                "failed": True,
                "changed": False,
                "msg": f"{node}: {name} {error}",
                "code": "answer.late",
            }
        except MemoryError:
            problem = ("answer", f"takes more than {MEMORY_BYTES >> 20} MiB")
            return refusal(name, node, InvalidAnswer([problem]))
        try:
            self._refuse_skipped(name, answer)
            return validate(name, answer, arguments)
        except InvalidAnswer as error:
            return refusal(name, node, error)

    def _configure_module(
        self, module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]
    ) -> tuple[Any, str]:
        """Return a module's payload and its path. The product's modules have one of their own."""
        payload = module_payload.configured(self, module_name, module_args, task_vars)
        if payload is None:
            payload = super()._configure_module(module_name, module_args, task_vars)
        return payload

    def _low_level_execute_command(
        self, cmd: Any, sudoable: Any = True, in_data: Any = None, *rest: Any, **more: Any
    ) -> Any:
        """Run a command on the node. A module travels to it over standard input."""
        if in_data is not None and self._is_background:
            # A module's first instructions are imports, a good part of its time.
            cmd = f"nice -n 19 env {cmd}"
        execute: Any = super()._low_level_execute_command
        return execute(cmd, sudoable, in_data, *rest, **more)

    def _refuse_skipped(self, name: str, answer: Any) -> None:
        """Raise InvalidAnswer where a module of the product left its work out.

        It does so in check mode alone. At another time nothing could use what such an answer lacks.
        """
        if self._task.check_mode or definition(name)["drop"] or not isinstance(answer, dict):
            return
        if answer.get("skipped"):
            raise InvalidAnswer([("skipped", "is not an answer to what was asked")])


def end_children(began: float) -> None:
    """End the child processes that started since `began` (seconds since the boot).

    The login that waits for an answer would stay for ever.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    for pid in processes.pids():
        fields = processes.stat_of(pid)
        is_child = len(fields) > 19 and int(fields[1]) == os.getpid()
        if is_child and int(fields[19]) >= int(began * ticks):
            with contextlib.suppress(OSError):  # it has ended
                os.kill(pid, signal.SIGTERM)


@contextlib.contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """Bound the time and the memory of the block.

    seconds: the longest time. Raises TooSlow or MemoryError. Each task has a process of its own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as handle:
        used = int(handle.read().split()[0]) * resource.getpagesize()
    limit = used + MEMORY_BYTES
    if soft == resource.RLIM_INFINITY or soft > limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    # Signals reach the main thread only.
    time_limit: AbstractContextManager[None] = contextlib.nullcontext()
    if threading.current_thread() is threading.main_thread():
        time_limit = _alarm(seconds)
    try:
        with time_limit:
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """Raise TooSlow in the block after so many seconds.

    An earlier alarm is restored after the block.
    """

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TooSlow(f"did not answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, ring)
    left = signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(left)
        signal.signal(signal.SIGALRM, before)


# --- schemas


@functools.lru_cache(maxsize=None)
def definition(module: str) -> Definition:
    """Return the definition of a module.

    A module without a schema of its own keeps the common fields alone.
    """
    path = os.path.join(FOLDER, module + ".yml")
    if re.fullmatch(r"[a-z][a-z0-9_]*", module) and os.path.isfile(path):
        return _compile_schema(_read(path), drop=False)
    others = _read(os.path.join(FOLDER, "ansible.yml"))["modules"]
    return _compile_schema(others.get(module) or {}, drop=True)


def prepare() -> None:
    """Load schemas and validator once, before Ansible forks workers for tasks.

    It takes 0.15 s, which no task pays again.
    """
    for name in modules():
        definition(name)


def modules() -> list[str]:
    """Return the names of the product's modules that have a schema of their own."""
    names = sorted(name[:-4] for name in os.listdir(FOLDER) if name.endswith(".yml"))
    return [name for name in names if name not in ("ansible", "common")]


def schema(module: str) -> Schema:
    """Return the completed JSON schema of a module's answer, with its definitions."""
    return definition(module)["schema"]


@functools.lru_cache(maxsize=None)
def _read(path: str) -> Any:
    """Return the data of a YAML file."""
    import yaml  # the controller has it, a node that gets this package does not

    with open(path, encoding="utf-8") as handle:
        return yaml.load(handle, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@functools.lru_cache(maxsize=None)
def _shared_definitions() -> Schema:
    """Return the completed definitions that the schemas of several modules refer to."""
    return complete(_read(os.path.join(FOLDER, "common.yml")), False)


def _compile_schema(source: Mapping[str, Any], drop: bool) -> Definition:
    """Return the definition of a module.

    See `definition`. source: the data of the module's file. drop: leave out other fields instead of
    refusing them.
    """
    import jsonschema

    optional: Any = "all"
    if not drop:
        optional = source.get("optional") or []
    properties = source.get("answer") or {}
    schema = complete({"type": "object", "properties": properties, "optional": optional})
    schema["$defs"] = _shared_definitions()
    validator = jsonschema.Draft202012Validator
    return {
        "validator": validator(schema, format_checker=validator.FORMAT_CHECKER),
        "same_as": source.get("same_as") or {},
        "schema": schema,
        "properties": set(properties),
        "drop": drop,
        "raw": frozenset(source.get("raw") or ()),
        "seconds": source.get("seconds") or SECONDS,
        "background": source.get("background") is True,
    }


def complete(part: dict[str, Any], is_schema: bool = True) -> Schema:
    """Return a schema that is closed and bounded wherever it says nothing else.

    A mapping with properties takes no others, and lacks none but those named by `optional`. Texts,
    lists and mappings have a largest size. is_schema: False for a mapping of schemas by name.
    """
    if not is_schema:
        return {name: complete(value) for name, value in part.items()}
    result = dict(part)
    _complete_parts(result)
    if "properties" in result:
        _close_properties(result)
    kinds = result.get("type", ())
    if isinstance(kinds, str):
        kinds = [kinds]
    for kind in kinds:
        for key, value in BOUNDS.get(kind, {}).items():
            result.setdefault(key, value)
    return result


def _complete_parts(schema: Schema) -> None:
    """Complete, in place, the schemas that a schema holds."""
    for key in ("properties", "patternProperties"):
        if key in schema:
            schema[key] = complete(schema[key], False)
    for key in ("items", "additionalProperties", "propertyNames"):
        if isinstance(schema.get(key), dict):
            schema[key] = complete(schema[key])
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if key in schema:
            schema[key] = [complete(value) for value in schema[key]]


def _close_properties(schema: Schema) -> None:
    """Refuse, in place, other properties, and require all but the optional ones."""
    optional = schema.pop("optional", [])
    if optional == "all":
        optional = schema["properties"]
    required = [name for name in schema["properties"] if name not in optional]
    schema.setdefault("required", required)
    schema.setdefault("additionalProperties", False)


def _match(known: Definition, fields: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Raise InvalidAnswer with the first problems of the fields."""
    problems = []
    for error in known["validator"].iter_errors(fields):
        field = ".".join(_field_name(part) for part in error.absolute_path) or "answer"
        problem = (field, _reason(error))
        if problem not in problems:
            problems.append(problem)
        if len(problems) == PROBLEMS:
            break
    if not problems:
        problems = list(_differing(fields, known["same_as"], arguments))
    if problems:
        raise InvalidAnswer(problems)


def _differing(
    fields: Mapping[str, Any], same_as: Mapping[str, str], arguments: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield a problem for each field that is not what the controller asked for.

    same_as: {dotted field: argument}.
    """
    for dotted, argument in same_as.items():
        wanted, value = arguments.get(argument), _value_at(fields, dotted)
        if wanted not in (None, "", 0, "0") and value is not None and str(value) != str(wanted):
            yield dotted, f"is not the {argument} that was asked for"


def _value_at(fields: Mapping[str, Any], dotted: str) -> Any:
    """Return the value of a dotted field, None where it is missing."""
    value: Any = fields
    for part in dotted.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def _field_name(part: object) -> str:
    """Return one part of a field's path, safe to show."""
    return printable(str(part), limit=60)


def _reason(error: ValidationError) -> str:
    """Return why a value does not match.

    A value is shown cleaned and cut, since it may be long and hostile.
    """
    rule = error.validator
    value: Any = error.instance
    wanted: Any = error.validator_value
    schema: Any = error.schema
    if rule == "required":
        missing = sorted(set(wanted) - set(value))
        return f"lacks {', '.join(missing[:3])}"
    if rule == "additionalProperties":
        extra = sorted(str(key) for key in set(value) - set(schema.get("properties", {})))
        return f"has fields that it should not have: {printable(repr(extra[0]), limit=60)}"
    if rule == "type":
        kinds = wanted
        if isinstance(kinds, str):
            kinds = [kinds]
        return f"is not of type {' or '.join(kinds)}"
    if isinstance(value, (str, int, float)):
        return f"does not match {rule}: {printable(repr(value), limit=60)}"
    return f"does not match {rule}: {type(value).__name__}"


# --- bounds and text


def measure(answer: Any) -> None:
    """Raise InvalidAnswer for an answer that JSON cannot hold or is too large.

    Its depth is bounded, too. There is no recursion, so depth costs nothing.
    """
    values, characters, stack = 0, 0, [(answer, 1)]
    while stack:
        value, depth = stack.pop()
        values += 1
        if depth > MAX_DEPTH:
            raise InvalidAnswer([("answer", f"is nested more than {MAX_DEPTH} levels deep")])
        children, size = _contents(value)
        characters += size
        stack.extend((child, depth + 1) for child in children)
        if values + len(stack) > MAX_VALUES or characters > MAX_CHARACTERS:
            text = f"holds more than {MAX_VALUES} values or {MAX_CHARACTERS} characters"
            raise InvalidAnswer([("answer", text)])


def _contents(value: Any) -> tuple[Iterable[Any], int]:
    """Return (children, characters) of one value.

    Raises InvalidAnswer for what JSON cannot hold.
    """
    if isinstance(value, str):
        if not _is_unicode(value):
            raise InvalidAnswer([("answer", "holds text that is not valid Unicode")])
        return (), len(value)
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise InvalidAnswer([("answer", "has a key that is not text")])
        return value.values(), sum(map(len, value))
    if isinstance(value, (list, tuple)):
        return value, 0
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidAnswer([("answer", "holds a number that is not finite")])
    if isinstance(value, int) and abs(value) > 2**64:
        raise InvalidAnswer([("answer", "holds a number of more than 64 bits")])
    return (), 0


def _is_unicode(text: str) -> bool:
    """Return True if a text can be encoded."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _interpreter(facts: Any) -> dict[str, str] | None:
    """Return {discovered_interpreter_python: path}, else None.

    It is what Ansible itself found.
    """
    if not isinstance(facts, dict):
        return None
    path = facts.get("discovered_interpreter_python")
    if path is None:
        return None
    if not isinstance(path, str) or not INTERPRETER.match(path):
        raise InvalidAnswer(
            [("ansible_facts.discovered_interpreter_python", "is not the path of a program")]
        )
    return {"discovered_interpreter_python": path}


def _common(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that every answer may have, each with its own type."""
    flags = ("changed", "failed", "skipped")
    result: dict[str, Any] = {key: bool(kept[key]) for key in flags if key in kept}
    if isinstance(kept.get("rc"), int):
        result["rc"] = max(-(2**31), min(2**31, int(kept["rc"])))
    for key in ("msg", "stdout", "stderr", "module_stdout", "module_stderr"):
        if key in kept:
            result[key] = _bounded_text(kept[key])
    if isinstance(kept.get("code"), str) and CODE.match(kept["code"]):
        result["code"] = kept["code"]
    for key in ("stdout_lines", "stderr_lines"):
        if isinstance(kept.get(key), list):
            result[key] = [str(line)[:MAX_TEXT] for line in kept[key][:LINES]]
    warnings = kept.get("warnings")
    if isinstance(warnings, (list, tuple)) and warnings:
        result["warnings"] = [_warning(item) for item in warnings[:20]]
    if "exception" in kept and kept.get("failed"):
        result.setdefault("msg", _warning(kept["exception"]))
    return result


def _bounded_text(value: Any) -> str:
    """Return a text that is not too long, of any value."""
    if isinstance(value, str):
        return value[: 4 * MAX_TEXT]
    return json.dumps(value, default=str)[:MAX_TEXT]


def _warning(item: object) -> str:
    """Return the text of a warning.

    ansible-core 2.19 has objects for them.
    """
    event = getattr(item, "event", None)
    return str(getattr(event, "msg", item))[:MAX_TEXT]


def _escaped(data: Any, newlines: bool = False) -> Any:
    """Return data with control characters escaped in every text and key."""
    if isinstance(data, str):
        return escape(str(data), newlines)
    if isinstance(data, dict):
        return {escape(str(key)): _escaped(value, newlines) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_escaped(value, newlines) for value in data]
    return data
