# SPDX-License-Identifier: Apache-2.0
"""AnsibleModule on a node, as much of it as the product's modules use.

Ansible brings its own with each task: fifty sources, which the node's Python compiles each time, in
0.25 s of a processor. This class takes their place in the payload of the product's modules
(plugin_utils/agent/module_payload.py). It reads each module's arguments as Ansible's does
(tests/unit/agent/test_node_module.py compares the two), and the unit tests of the modules use it.
Nothing is masked in a result, since it does not repeat the arguments.

It imports no other source of the product, because it lies in the archive in the place of
ansible.module_utils.basic.
"""

from __future__ import annotations

import json
import os
import selectors
import shlex
import subprocess
import sys

TRUE = ("y", "yes", "on", "1", "true", "t", "1.0")
FALSE = ("n", "no", "off", "0", "false", "f", "0.0")
# Seconds after the end of a program for what its children still write.
REST_SECONDS = 1


class ArgumentError(Exception):
    """The arguments do not match the spec. The message is the result's."""


def _text(value):
    if value is None:
        return ""
    return str(value)


def _whole_number(value):
    if isinstance(value, float) and value != int(value):
        raise ValueError
    return int(value)


def _truth(value):
    word = str(value).strip().lower()
    if word not in TRUE + FALSE:
        raise ValueError
    return word in TRUE


def _list(value):
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        return value.split(",")
    if isinstance(value, (int, float)):
        return [str(value)]
    raise ValueError


def _mapping(value):
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, dict):
        raise ValueError
    return value


def _path(value):
    return os.path.expanduser(os.path.expandvars(_text(value)))


TYPES = {
    "str": _text,
    "int": _whole_number,
    "float": float,
    "bool": _truth,
    "list": _list,
    "dict": _mapping,
    "path": _path,
    "raw": lambda value: value,
}
# What an argument's spec may have. no_log is for results that repeat the arguments.
KEYS = {"type", "elements", "default", "required", "choices", "options", "no_log"}


def read_arguments(spec, given, **rules):
    """Return {name: value} of all arguments of a spec, as Ansible's AnsibleModule has them.

    given: what the task has. rules: required_if, required_one_of, required_together and
    mutually_exclusive. Raises ArgumentError, and LookupError for a spec that has other keys.
    """
    unknown = sorted(set(given) - set(spec))
    if unknown:
        raise ArgumentError("Unsupported parameters: {}".format(", ".join(unknown)))
    _check_exclusive(given, rules.get("mutually_exclusive") or ())
    defaults = {name: entry.get("default") for name, entry in spec.items()}
    present = {name for name in spec if name in given or defaults[name] is not None}
    missing = sorted(name for name in spec if spec[name].get("required") and name not in present)
    if missing:
        raise ArgumentError("missing required arguments: {}".format(", ".join(missing)))
    values = {}
    for name, entry in spec.items():
        values[name] = _read(name, entry, given.get(name, defaults[name]))
        if values[name] is None and name in given and entry.get("choices"):
            raise ArgumentError(f"{name} has no value")
    _check_together(values, present, rules)
    return values


def _read(name, entry, value):
    """Return the value of one argument, None for none."""
    if set(entry) - KEYS:
        raise LookupError(f"{name} has a key that is not known: {sorted(entry)}")
    if value is None and not entry.get("required") and entry.get("default") is None:
        return None
    value = _converted(name, entry, value)
    values = value if entry.get("type") == "list" else [value]
    if entry.get("options"):
        values[:] = [read_arguments(entry["options"], row) for row in values]
    choices = entry.get("choices")
    if choices and any(one not in choices for one in values):
        words = ", ".join(map(str, choices))
        raise ArgumentError(f"value of {name} must be one of: {words}, got: {value}")
    return value if entry.get("type") == "list" else values[0]


def _converted(name, entry, value):
    """Return the value of one argument in the type of its spec."""
    kind, of = entry.get("type", "str"), entry.get("elements")
    try:
        value = TYPES[kind](value)
        if of:
            value = [TYPES[of](item) for item in value]
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"argument '{name}' is not of type {kind} {of or ''}") from None
    return value


def _check_exclusive(given, groups):
    for group in groups:
        if len(set(given).intersection(group)) > 1:
            raise ArgumentError("parameters are mutually exclusive: {}".format("|".join(group)))


def _check_together(values, present, rules):
    """Raise ArgumentError where arguments are missing that others ask for."""
    for group in rules.get("required_one_of") or ():
        if not present.intersection(group):
            words = ", ".join(group)
            raise ArgumentError(f"one of the following is required: {words}")
    for group in rules.get("required_together") or ():
        if 0 < len(present.intersection(group)) < len(group):
            raise ArgumentError("parameters are required together: {}".format(", ".join(group)))
    for name, value, needed in rules.get("required_if") or ():
        missing = ", ".join(other for other in needed if other not in present)
        if name in present and values[name] == value and missing:
            raise ArgumentError(
                f"{name} is {value} but all of the following are missing: {missing}"
            )


class AnsibleModule:
    """A task's arguments, its programs and its result. The arguments are in sys.argv, as JSON."""

    def __init__(self, argument_spec, supports_check_mode=False, **rules):
        given = json.loads(sys.argv[1])
        self.check_mode = bool(given.get("_ansible_check_mode"))
        self._warnings = []
        given = {key: value for key, value in given.items() if not key.startswith("_ansible_")}
        try:
            self.params = read_arguments(argument_spec, given, **rules)
        except ArgumentError as error:
            self.fail_json(msg=str(error))
        if self.check_mode and not supports_check_mode:
            self.exit_json(skipped=True, msg="remote module does not support check mode")

    def warn(self, text):
        """Have Ansible show a warning."""
        self._warnings.append(text)

    def exit_json(self, **result):
        """Print the result and end the module."""
        self._print({"changed": False, **result})
        sys.exit(0)

    def fail_json(self, msg, **result):
        """Print a result that fails the task and end the module."""
        self._print({"changed": False, **result, "msg": msg, "failed": True})
        sys.exit(1)

    def _print(self, result):
        if self._warnings:
            result["warnings"] = self._warnings
        print("\n" + json.dumps(result))

    def run_command(self, argv, data=None, environ_update=None, handle_exceptions=True):
        """Run a program and return (exit code, stdout, stderr).

        data: text that it gets, with a line end. A program that cannot be run fails the task, or
        raises OSError. Children that go on after its end are not waited for.
        """
        if isinstance(argv, str):
            argv = shlex.split(argv)
        try:
            program = subprocess.Popen(
                [_path(word) for word in argv if word is not None],
                stdin=subprocess.PIPE if data else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **(environ_update or {})},
            )
            if data:
                program.stdin.write((data + "\n").encode("utf-8", "surrogateescape"))
                program.stdin.close()
        except (OSError, ValueError) as error:
            if not handle_exceptions:
                raise
            code = getattr(error, "errno", None) or 257
            self.fail_json(msg=f"Error executing command: {error}", rc=code)
        out, err = _read_outputs(program)
        return program.returncode, out, err


def _read_outputs(program):
    """Return (stdout, stderr) of a program, as text, and wait for its end."""
    parts = {program.stdout: [], program.stderr: []}
    with selectors.DefaultSelector() as selector:
        for stream in parts:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(REST_SECONDS)
            for key, _events in ready:
                piece = os.read(key.fd, 1 << 16)
                parts[key.fileobj].append(piece)
                if not piece:
                    selector.unregister(key.fileobj)
            if not ready and program.poll() is not None:
                break
    program.wait()
    for stream in parts:
        stream.close()
    return tuple(b"".join(read).decode("utf-8", "surrogateescape") for read in parts.values())
