# SPDX-License-Identifier: GPL-3.0-or-later
"""Base class of the action plugins that do their work in the controller's process.

Such a plugin asks no node and sends nothing. It runs in a forked worker, so it leaves the working
directory, the umask and every other state of the process alone.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.parameters import remove_values
from ansible.module_utils.common.yaml import yaml_load
from ansible.plugins.action import ActionBase
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import CodedError
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain

Arguments = dict[str, Any]
Result = dict[str, Any]


# What the documentation of an option says of its values.
OPTION_KEYS = ("type", "elements", "required", "default", "choices")


def arguments_of(documentation: str, secrets: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Return the argument spec that a module's documentation describes.

    documentation: YAML, as in DOCUMENTATION of library/*.py. secrets: the options whose values no
    result and no log may show.
    """
    options = yaml_load(documentation).get("options") or {}
    arguments = _spec_of(options)
    for name in secrets:
        arguments[name]["no_log"] = True
    return arguments


def _spec_of(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the argument spec of documented options."""
    arguments = {}
    for name, option in options.items():
        spec = {key: option[key] for key in OPTION_KEYS if key in option}
        if "suboptions" in option:
            spec["options"] = _spec_of(option["suboptions"])
        arguments[name] = spec
    return arguments


class ActionFailed(Exception):
    """Ends an action with a message, and with further fields of its result."""

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message)
        self.result: Result = {"failed": True, "msg": message, **more}


class ControllerAction(ActionBase):
    """Validate the arguments, call `execute`, and return a task's result."""

    TRANSFERS_FILES = False
    _requires_connection = False

    # As AnsibleModule takes them. arguments_of reads them from the module's documentation.
    ARGUMENTS: Mapping[str, Mapping[str, Any]] = {}
    REQUIRED_IF: Sequence[tuple[Any, ...]] = ()
    # Paths that are not made absolute: they may be a node's, or the name of a library.
    PATHS_AS_GIVEN: Sequence[str] = ()
    # Further exceptions of `execute`, beside CodedError, whose message is for the user.
    FAILURES: tuple[type[Exception], ...] = ()

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> Result:
        """Return the task's result, of the types that a module's JSON has."""
        result = super().run(tmp, task_vars)
        self.task_vars: dict[str, Any] = task_vars or {}
        self._warnings: list[str] = []
        secrets: set[str] = set()
        try:
            arguments = self._read_arguments(secrets)
            result.update(self.execute(arguments))
        except ActionFailed as error:
            result.update(error.result)
        except CodedError as error:
            result.update(failed=True, msg=self.describe(error), code=error.code)
        except self.FAILURES as error:
            result.update(failed=True, msg=self.describe(error))
        if self._warnings:
            result["warnings"] = self._warnings
        if secrets:
            result = remove_values(result, secrets)
        return _as_json(plain(result))

    @abstractmethod
    def execute(self, arguments: Arguments) -> Result:
        """Return the result's fields for valid arguments."""

    def describe(self, error: Exception) -> str:
        """Return the message of a failure that is one of FAILURES."""
        return printable(str(error), newlines=True)

    def host_value(self, name: str, key: str, default: Any = None) -> Any:
        """Return a variable of a host as plain data, the default where it has none."""
        value = plain(self.task_vars["hostvars"][name].get(key))
        if value is None:
            return default
        return value

    def group(self, name: str) -> list[str]:
        """Return the names of a group's hosts, [] where there is no such group."""
        return plain(self.task_vars["groups"]).get(name) or []

    @property
    def check_mode(self) -> bool:
        """True if nothing may be changed."""
        return bool(self._task.check_mode)

    def warn(self, text: str) -> None:
        """Show a warning, and keep it in the result."""
        self._warnings.append(text)

    def fail(self, message: str, **more: Any) -> NoReturn:
        """End the task with a message, and with further fields of its result."""
        raise ActionFailed(message, **more)

    def _read_arguments(self, secrets: set[str]) -> Arguments:
        """Return the valid arguments, paths absolute. Add what no result may show to `secrets`."""
        secrets |= self._secrets_of(plain(self._task.args))
        try:
            _validation, validated = self.validate_argument_spec(  # type: ignore[no-untyped-call]
                argument_spec=self.ARGUMENTS, required_if=self.REQUIRED_IF
            )
        except AnsibleActionFail as error:
            self.fail(error.message)
        arguments = _as_json(plain(validated))
        for name, option in self.ARGUMENTS.items():
            is_path = "path" in (option.get("type"), option.get("elements"))
            if is_path and name not in self.PATHS_AS_GIVEN:
                arguments[name] = self._absolute(arguments[name])
        return arguments

    def _secrets_of(self, arguments: Arguments) -> set[str]:
        """Return the texts in arguments that are marked with no_log."""
        marked = [arguments.get(name) for name in self.ARGUMENTS if self._is_marked(name)]
        return {text for value in marked for text in _texts_of(value)}

    def _is_marked(self, name: str) -> bool:
        return bool(self.ARGUMENTS[name].get("no_log"))

    def _absolute(self, value: Any) -> Any:
        """Return paths as a module on localhost had them: below the playbook's directory."""
        if isinstance(value, list):
            return [self._absolute(one) for one in value]
        return os.path.join(self._loader.get_basedir(), value) if value else value


def _as_json(value: Any) -> Any:
    """Return a value as JSON carries it to a module and back: keys are texts, dates too."""
    return json.loads(json.dumps(value, default=_text_of))


def _text_of(value: Any) -> str:
    """Return a value that JSON lacks, such as a date, as a text."""
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _texts_of(value: Any) -> set[str]:
    """Return the texts inside a value that are not empty."""
    if isinstance(value, str):
        return {value} - {""}
    if isinstance(value, Mapping):
        return {text for item in value.values() for text in _texts_of(item)}
    if isinstance(value, Sequence):
        return {text for item in value for text in _texts_of(item)}
    return set()
