# SPDX-License-Identifier: GPL-3.0-or-later
"""Variables of the inventory's hosts, with the file and line that each was set in.

Ansible keeps the origin of a value as a tag on it. This is the one place that reads these tags.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from ansible._internal._datatag._tags import Origin
from ansible.errors import AnsibleError
from ansible.parsing.vault import EncryptedString
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain

from ..base.yaml_source import Problem
from . import extra_vars, job, role_vars, ssh_policy

Place = tuple[str, "int | None"]
# Of the product, with files that set variables.
OWN_FOLDERS = ("roles", "playbooks/includes/group_vars")
COMMAND_LINE: Place = ("command line", None)
# How Jinja names a variable that nobody has set.
_UNDEFINED = re.compile(r"'(\w+)' is undefined")


def raw_of(hostvars: Any, name: str) -> Mapping[str, Any]:
    """Return a host's variables as they were written, before any templating."""
    if hasattr(hostvars, "raw_get"):
        return hostvars.raw_get(name)
    return hostvars[name]


def origin_of(variables: Mapping[str, Any], key: str) -> Place | None:
    """Return (file, line) of the innermost part of a dotted key with a known origin, or None."""
    origin, value = None, variables
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            break
        # A switch and an empty value carry no origin. Their name does.
        name = next((name for name in value if name == part), part)
        value = value[part]
        origin = Origin.get_tag(value) or Origin.get_tag(name) or origin
    if not origin:
        return None
    if origin.path:
        return os.path.relpath(origin.path), origin.line_num or None
    if "-e" in (origin.description or ""):
        return COMMAND_LINE
    return None


def is_written(value: Any, name: Any, project: str) -> bool:
    """Return true if the site's people wrote a value.

    What our own roles and playbooks set or register lies among a host's variables, too.
    """
    origin = Origin.get_tag(value) or Origin.get_tag(name)
    if not origin or not (origin.path or origin.description):
        return False
    own = [os.path.join(project, folder, "") for folder in OWN_FOLDERS]
    return not str(origin.path).startswith(tuple(own))


def is_vaulted(value: Any) -> bool:
    """Return true if a value came out of a vault: alone, or with its whole file."""
    if isinstance(value, EncryptedString):
        return True
    origin = Origin.get_tag(value)
    if not origin or not origin.path:
        return False
    with open(origin.path, "rb") as handle:
        return handle.read(14) == b"$ANSIBLE_VAULT"


class HostVariables:
    """hostvars as plain data, one host at a time.

    A site of hundreds is not templated more than once. `problems` holds the variables that cannot
    be templated. extra: the variables of the command line.
    """

    def __init__(self, hostvars: Any, extra: Collection[str] = ()) -> None:
        self.problems: list[Problem] = []
        self._hostvars, self._extra = hostvars, extra
        self._known: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Return the site's variables of a host.

        A misspelt name of the command line is reported once, not once per host.
        """
        keys = [key for key in self._variables(name)[0] if self._is_of_site(key)]
        return self._values(name, keys)

    def _variables(self, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Return a host's variables as they were written, and templated on access.

        An unknown host has none.
        """
        if name not in self._known:
            try:
                self._known[name] = raw_of(self._hostvars, name), self._hostvars[name]
            except KeyError:
                self._known[name] = {}, {}
        return self._known[name]

    def _is_of_site(self, key: str) -> bool:
        if not key.startswith("trainyard_") and key not in ("ansible_host", "ansible_port"):
            return False
        return key not in self._extra or key in job.SITE_VARIABLES or key.startswith("ansible_")

    def _values(self, name: str, keys: Iterable[str]) -> dict[str, Any]:
        (raw, variables), result = self._variables(name), {}
        for key in keys:
            try:
                result[str(key)] = plain(variables[key])
            except AnsibleError as error:
                self.problems.append(self._template_problem(raw, name, key, error))
        return result

    def _template_problem(
        self, raw: Mapping[str, Any], name: str, key: str, error: AnsibleError
    ) -> Problem:
        reason = str(error).splitlines()[0]
        missing = _UNDEFINED.search(reason)
        if missing and missing[1] in job.SITE_VARIABLES:
            reason += f"; set {missing[1]} as inventory/sample/group_vars/all.yml does"
        return Problem(
            *self._place(raw, name, key),
            str(key),
            f"cannot be templated: {reason}",
            code="site.bad_template",
        )

    def _place(self, raw: Mapping[str, Any], name: str, key: str) -> Place:
        """Return (file, line) of where a host's variable was set."""
        if key in self._extra:
            return COMMAND_LINE
        return origin_of(raw, key) or (f"inventory, host {name}", None)

    def role_problems(
        self, name: str, specs: Mapping[str, Any], folders: list[str], project: str
    ) -> Iterator[Problem]:
        """Yield a Problem for each role variable of a host that is unknown or has a wrong value.

        specs: the public role variables. folders: the roles' names.
        """
        raw = self._variables(name)[0]
        for own in list(raw):
            key = str(own)
            if key not in self._extra:
                text = role_vars.unknown_problem(key, specs, folders)
                if text and is_written(raw[key], own, project):
                    yield Problem(
                        *self._place(raw, name, key), key, text, code="role.unknown_variable"
                    )
            yield from self._value_problems(name, key, specs.get(key))

    def _value_problems(
        self, name: str, key: str, spec: Mapping[str, Any] | None
    ) -> Iterator[Problem]:
        """Yield a Problem for each wrong part of a role variable's value.

        spec: its argument spec, or None.
        """
        raw, variables = self._variables(name)
        own = key not in self._extra
        in_spec = not key.startswith("trainyard_") and (own or "{" in str(raw[key]))
        if spec is None:
            in_spec = False
        if not in_spec and not (own and key in extra_vars.DEFAULTS):
            return
        try:
            value = plain(variables[key])
        except AnsibleError as error:
            # A group's variable may need what only nodes have, and the embedded site's what only
            # its own playbook has.
            if name != "localhost" and not key.startswith("local_cluster_"):
                yield self._template_problem(raw, name, key, error)
            return
        findings: list[tuple[str, str | None]] = [(key, extra_vars.value_problem(key, value))]
        if spec is not None and in_spec:
            findings = [*role_vars.value_problems(key, value, spec)]
        for dotted, text in findings:
            if text:
                yield Problem(
                    *self._place_of_part(raw, name, key, dotted),
                    dotted,
                    text,
                    code="role.wrong_value",
                )

    def _place_of_part(self, raw: Mapping[str, Any], name: str, key: str, dotted: str) -> Place:
        """Return a variable's file, with the line of one part of its value where it has one."""
        file, line = self._place(raw, name, key)
        origin = origin_of(raw, dotted)
        if line and origin:
            line = origin[1]
        return file, line

    def account_problems(self, names: Iterable[str]) -> list[Problem]:
        """Return a Problem for each training account that provision.yml cannot use as root.

        The same one is reported once.
        """
        problems: dict[str, Problem] = {}
        for name in names:
            raw = self._variables(name)[0]
            key = next((key for key in ("ansible_ssh_user", "ansible_user") if key in raw), None)
            if key is None:
                continue
            value, text = self._values(name, [key]).get(key), None
            if value not in (None, ""):
                text = ssh_policy.account_problem(value)
            if text:
                problem = Problem(*self._place(raw, name, key), key, text, code="login.bad_account")
                problems.setdefault(str(problem), problem)
        return list(problems.values())

    def unheard_problems(self, name: str, judged: Iterable[str]) -> Iterator[Problem]:
        """Yield a Problem for each variable of a node that differs from the controller's.

        judged: the variables that are read on the controller alone.
        """
        raw, own = self._variables(name)[0], self._variables("localhost")[0]
        for key in judged:
            if key in raw and (key not in own or _untemplated(own[key]) != _untemplated(raw[key])):
                text = (
                    "is read on the controller alone, and holds for all nodes; set it in"
                    " group_vars/all.yml"
                )
                yield Problem(*self._place(raw, name, key), key, text, code="site.node_variable")

    def login(self, name: str) -> dict[str, dict[str, Any]]:
        """Return how a host is logged in to, as ssh_policy.problems takes it.

        A password is never templated.
        """
        raw = self._variables(name)[0]
        return {
            str(key): self._login_variable(raw, name, key)
            for key in raw
            if ssh_policy.is_login_variable(key)
        }

    def _login_variable(self, raw: Mapping[str, Any], name: str, key: str) -> dict[str, Any]:
        origin: Any = origin_of(raw, key) or (None, None)
        if key in self._extra:
            origin = COMMAND_LINE
        value = None
        if not ssh_policy.SECRET.match(key):
            value = self._values(name, [key]).get(key)
        return {
            "value": value,
            "raw": _raw_text(raw[key]),
            "hidden": is_vaulted(raw[key]),
            "file": origin[0],
            "line": origin[1],
        }


def _untemplated(value: Any) -> str:
    """Return a value as text, to be compared. Nothing is templated and nothing decrypted."""
    return str(plain(value))


def _raw_text(value: Any) -> str:
    """Return a text as it was written, the type's name of any other value, '' of none."""
    if isinstance(value, str):
        return str(value)
    if value is None:
        return ""
    return str(type(value))
