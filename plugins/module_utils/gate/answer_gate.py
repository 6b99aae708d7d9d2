# SPDX-License-Identifier: Apache-2.0
"""Validate what a module on a node answered, before anything on the controller sees it. Controller
only.

A training runs as the account that Ansible logs in as, so it can rewrite every answer of a module
on its node. Each module has a schema in `gate/answers/`. An answer that does not match its
schema fails that node alone, with the field that is wrong. `Gated` is what an action plugin
inherits first: every module that the plugin runs on a node passes the gate.
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

from ..base.sanitize import escape, printable

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "answers")
# Nesting, number of values and characters of one answer. The largest honest answer (the files of
# 5,000 entries by name) has 20,000 values.
MAX_DEPTH, MAX_VALUES, MAX_CHARACTERS = 32, 1_000_000, 64 << 20
# What a schema does not bound itself.
MAX_TEXT, MAX_ITEMS = 4096, 20_000
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


class InvalidAnswer(Exception):
    """An answer does not match its schema. `problems` holds (field, text) pairs; both are safe to
    show.
    """

    def __init__(self, problems):
        self.problems = problems
        super().__init__("; ".join("{}: {}".format(*pair) for pair in problems))


class TooSlow(BaseException):
    """A module did not answer in time. No Exception, so that a connection that tries again cannot
    swallow it.
    """


def validate(module, answer, arguments):
    """Return the answer of a module on a node as the controller may use it.

    module: name without a collection. arguments: what the controller asked, as {argument: value};
    `node` is the node's name. Returns a new mapping in which control characters are escaped and
    nothing is left that Ansible would obey. Raises InvalidAnswer.
    """
    if not isinstance(answer, dict):
        raise InvalidAnswer([("answer", "is not a mapping")])
    measure(answer)
    known = definition(module)
    facts = _interpreter(answer.get("ansible_facts"))
    kept = {key: answer[key] for key in COMMON if key in answer}
    if answer.get("failed") or answer.get("skipped"):
        kept.update({key: answer[key] for key in FAILURE if key in answer})
        fields = {}
    else:
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
    if not (answer.get("failed") or answer.get("skipped")):
        _match(known, fields, arguments)
    clean = _escaped(_common(kept), newlines=True)
    clean.update(
        {
            key: value if key in known["raw"] else _escaped(value, key in FAILURE)
            for key, value in fields.items()
        }
    )
    return dict(clean, ansible_facts=facts) if facts else clean


def refusal(module, node, error):
    """Return the failed result that stands for an answer that is not valid: its fields, and at most
    60 cleaned characters of a value.
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


class Gated:
    """Let every answer of a module on a node pass the gate. An action plugin inherits this class
    before Ansible's own.
    """

    def _execute_module(self, module_name=None, module_args=None, tmp=None, task_vars=None, **more):
        if self._connection.transport == "local":
            return super()._execute_module(module_name, module_args, tmp, task_vars, **more)
        name = (module_name or self._task.action).rpartition(".")[2]
        node = self._task.delegate_to or (task_vars or {}).get("inventory_hostname") or "the node"
        arguments = dict(self._task.args if module_args is None else module_args)
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        try:
            with bounded(definition(name)["seconds"]):
                answer = super()._execute_module(module_name, module_args, tmp, task_vars, **more)
        except TooSlow as error:
            end_children(began)
            return {
                "failed": True,
                "changed": False,
                "msg": f"{node}: {name} {error}",
                "code": "answer.late",
            }
        except MemoryError:
            return refusal(
                name,
                node,
                InvalidAnswer([("answer", "takes more than %d MiB" % (MEMORY_BYTES >> 20))]),
            )
        try:
            # A module of the product leaves its work out in check mode alone; at another time
            # nobody could use what such an answer lacks.
            if (
                not (self._task.check_mode or definition(name)["drop"])
                and isinstance(answer, dict)
                and answer.get("skipped")
            ):
                raise InvalidAnswer([("skipped", "is not an answer to what was asked")])
            return validate(name, answer, arguments)
        except InvalidAnswer as error:
            return refusal(name, node, error)


def end_children(began):
    """End the child processes that started since `began` (seconds since the boot): the login that
    waits for an answer would stay for ever.
    """
    ticks = os.sysconf("SC_CLK_TCK")
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{int(name)}/stat", encoding="ascii", errors="replace") as handle:
                fields = handle.read().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid() and int(fields[19]) >= int(began * ticks):
                os.kill(int(name), signal.SIGTERM)
        except (OSError, ValueError, IndexError):
            continue  # not a process, or one that has ended


@contextlib.contextmanager
def bounded(seconds):
    """Bound the time and the memory of what is done within; raise TooSlow or MemoryError. Each task
    has a process of its own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as handle:
        used = int(handle.read().split()[0]) * resource.getpagesize()
    limit = used + MEMORY_BYTES
    if soft == resource.RLIM_INFINITY or soft > limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    own = threading.current_thread() is threading.main_thread()

    def ring(_signal, _frame):
        raise TooSlow("did not answer within %d s" % seconds)

    before = signal.signal(signal.SIGALRM, ring) if own else None
    left = signal.alarm(seconds) if own else 0
    try:
        yield
    finally:
        if own:
            signal.alarm(left)
            signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# --- schemas


@functools.lru_cache(maxsize=None)
def definition(module):
    """Return {validator, properties, drop, raw, seconds} of a module; one without a schema of its
    own keeps the common fields alone.
    """
    path = os.path.join(FOLDER, module + ".yml")
    if re.fullmatch(r"[a-z][a-z0-9_]*", module) and os.path.isfile(path):
        return _compiled(_read(path), drop=False)
    return _compiled(
        _read(os.path.join(FOLDER, "ansible.yml"))["modules"].get(module) or {}, drop=True
    )


def prepare():
    """Load schemas and validator once, in the process from which Ansible forks a worker for each
    task: 0.15 s that no task pays again.
    """
    for name in modules():
        definition(name)


def modules():
    """Return the names of the product's modules that have a schema of their own."""
    names = sorted(name[:-4] for name in os.listdir(FOLDER) if name.endswith(".yml"))
    return [name for name in names if name not in ("ansible", "common")]


def schema(module):
    """Return the completed JSON schema of a module's answer, with its definitions."""
    return definition(module)["schema"]


@functools.lru_cache(maxsize=None)
def _read(path):
    import yaml  # the controller has it; a node that gets this package does not

    with open(path, encoding="utf-8") as handle:
        return yaml.load(handle, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@functools.lru_cache(maxsize=None)
def _shared():
    return complete(_read(os.path.join(FOLDER, "common.yml")), False)


def _compiled(found, drop):
    import jsonschema

    kind = jsonschema.Draft202012Validator
    shape = {
        "type": "object",
        "properties": found.get("answer") or {},
        "optional": "all" if drop else found.get("optional") or [],
    }
    full = dict(complete(shape), **{"$defs": _shared()})
    return {
        "validator": kind(full, format_checker=kind.FORMAT_CHECKER),
        "same_as": found.get("same_as") or {},
        "schema": full,
        "properties": set(shape["properties"]),
        "drop": drop,
        "raw": frozenset(found.get("raw") or ()),
        "seconds": found.get("seconds") or SECONDS,
    }


def complete(part, is_schema=True):
    """Return a schema in which everything is closed and bounded that does not say otherwise.

    A mapping with properties takes no others, and lacks none but those named by `optional`. Texts,
    lists and mappings have a largest size.
    """
    if not is_schema:
        return {name: complete(value) for name, value in part.items()}
    result = dict(part)
    for key in ("properties", "patternProperties"):
        if key in result:
            result[key] = complete(result[key], False)
    for key in ("items", "additionalProperties", "propertyNames"):
        if isinstance(result.get(key), dict):
            result[key] = complete(result[key])
    for key in ("anyOf", "oneOf", "allOf", "prefixItems"):
        if key in result:
            result[key] = [complete(value) for value in result[key]]
    if "properties" in result:
        optional = result.pop("optional", [])
        optional = set(result["properties"] if optional == "all" else optional)
        result.setdefault(
            "required", [name for name in result["properties"] if name not in optional]
        )
        result.setdefault("additionalProperties", False)
    kinds = result.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "string" in kinds:
        result.setdefault("maxLength", MAX_TEXT)
    if "array" in kinds:
        result.setdefault("maxItems", MAX_ITEMS)
    if "object" in kinds:
        result.setdefault("maxProperties", MAX_ITEMS)
    if "integer" in kinds:
        result.setdefault("minimum", 0)
        result.setdefault("maximum", 2**63 - 1)
    return result


def _match(known, fields, arguments):
    """Raise InvalidAnswer with the first problems of the fields."""
    problems = []
    for error in known["validator"].iter_errors(fields):
        field = ".".join(_field_name(part) for part in error.absolute_path) or "answer"
        pair = (field, _reason(error))
        problems += [pair] if pair not in problems else []
        if len(problems) == PROBLEMS:
            break
    if not problems:
        problems = list(_differing(fields, known["same_as"], arguments))
    if problems:
        raise InvalidAnswer(problems)


def _differing(fields, same_as, arguments):
    """Yield a problem for each field that is not what the controller asked for; same_as: {dotted
    field: argument}.
    """
    for dotted, argument in same_as.items():
        wanted, found = arguments.get(argument), fields
        for part in dotted.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if wanted not in (None, "", 0, "0") and found is not None and str(found) != str(wanted):
            yield dotted, f"is not the {argument} that was asked for"


def _field_name(part):
    return printable(str(part), limit=60)


def _reason(error):
    """Return why a value does not match; a value is shown cleaned and cut, since it may be long and
    hostile.
    """
    value, rule = error.instance, error.validator
    if rule == "required":
        missing = sorted(set(error.validator_value) - set(value))
        return "lacks {}".format(", ".join(missing[:3]))
    if rule == "additionalProperties":
        extra = sorted(str(key) for key in set(value) - set(error.schema.get("properties", {})))
        return f"has fields that it should not have: {printable(repr(extra[0]), limit=60)}"
    if rule == "type":
        return "is not of type {}".format(
            " or ".join(
                [error.validator_value]
                if isinstance(error.validator_value, str)
                else error.validator_value
            )
        )
    shown = (
        printable(repr(value), limit=60)
        if isinstance(value, (str, int, float))
        else type(value).__name__
    )
    return f"does not match {rule}: {shown}"


# --- bounds and text


def measure(answer):
    """Raise InvalidAnswer where an answer is too deep, too large, or holds what JSON cannot: no
    recursion, so depth costs nothing.
    """
    values, characters, stack = 0, 0, [(answer, 1)]
    while stack:
        value, depth = stack.pop()
        values += 1
        if depth > MAX_DEPTH:
            raise InvalidAnswer([("answer", "is nested more than %d levels deep" % MAX_DEPTH)])
        if isinstance(value, str):
            characters += len(value)
            if not _is_unicode(value):
                raise InvalidAnswer([("answer", "holds text that is not valid Unicode")])
        elif isinstance(value, dict):
            for key, item in value.items():
                if not isinstance(key, str):
                    raise InvalidAnswer([("answer", "has a key that is not text")])
                characters += len(key)
                stack.append((item, depth + 1))
        elif isinstance(value, (list, tuple)):
            stack.extend((item, depth + 1) for item in value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise InvalidAnswer([("answer", "holds a number that is not finite")])
        elif isinstance(value, int) and abs(value) > 2**64:
            raise InvalidAnswer([("answer", "holds a number of more than 64 bits")])
        if values + len(stack) > MAX_VALUES or characters > MAX_CHARACTERS:
            raise InvalidAnswer(
                [
                    (
                        "answer",
                        "holds more than %d values or %d characters" % (MAX_VALUES, MAX_CHARACTERS),
                    )
                ]
            )


def _is_unicode(text):
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _interpreter(facts):
    """Return the interpreter that Ansible itself found on the node, as
    {discovered_interpreter_python: path}, else None.
    """
    found = facts.get("discovered_interpreter_python") if isinstance(facts, dict) else None
    if found is None:
        return None
    if not isinstance(found, str) or not INTERPRETER.match(found):
        raise InvalidAnswer(
            [("ansible_facts.discovered_interpreter_python", "is not the path of a program")]
        )
    return {"discovered_interpreter_python": found}


def _common(kept):
    """Return the fields that every answer may have, each with its own type."""
    result = {key: bool(kept[key]) for key in ("changed", "failed", "skipped") if key in kept}
    if isinstance(kept.get("rc"), int):
        result["rc"] = max(-(2**31), min(2**31, int(kept["rc"])))
    for key in ("msg", "stdout", "stderr", "module_stdout", "module_stderr"):
        if key in kept:
            result[key] = (
                kept[key]
                if isinstance(kept[key], str)
                else json.dumps(kept[key], default=str)[:MAX_TEXT]
            )
            result[key] = result[key][: 4 * MAX_TEXT]
    for key in ("stdout_lines", "stderr_lines"):
        if isinstance(kept.get(key), list):
            result[key] = [str(line)[:MAX_TEXT] for line in kept[key][:LINES]]
    warnings = kept.get("warnings")
    if isinstance(warnings, (list, tuple)) and warnings:
        result["warnings"] = [_warning(item) for item in warnings[:20]]
    if "exception" in kept and kept.get("failed"):
        result.setdefault("msg", _warning(kept["exception"]))
    return result


def _warning(item):
    """Return the text of a warning; ansible-core 2.19 has objects for them."""
    event = getattr(item, "event", None)
    return str(getattr(event, "msg", item))[:MAX_TEXT]


def _escaped(data, newlines=False):
    """Return data with control characters escaped in every text and key."""
    if isinstance(data, str):
        return escape(str(data), newlines)
    if isinstance(data, dict):
        return {escape(str(key)): _escaped(value, newlines) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_escaped(value, newlines) for value in data]
    return data
