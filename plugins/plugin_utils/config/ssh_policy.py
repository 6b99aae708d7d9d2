# SPDX-License-Identifier: Apache-2.0
"""Problems of the controller's logins to the nodes (docs/design.md, 6).

No password stands in clear text, a private key is private, and host keys are checked. The input is
what the inventory says, and what `stat` says of a key.
"""

from __future__ import annotations

import os
import re
import stat as modes
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import abbreviate
from ansible_collections.trainyard.cluster.plugins.module_utils.environments.user_manager import (
    ACCOUNT,
)

from ..base.yaml_source import Problem

# One variable of a host: {value (templated), raw, hidden, file, line}.
Login = Mapping[str, Any]
Hosts = Mapping[str, Mapping[str, Login]]
# (where, name, value) of Ansible's configuration or command line.
Setting = tuple[str, str, Any]
Stat = Callable[[str], os.stat_result]

SECRET = re.compile(r"ansible_(\w+_)?(pass|password|passphrase)\Z|ansible_(ssh_)?private_key\Z")
CONNECTION = "ansible_connection"
# The administrator's login: only the two verbs that become root use it, so only they need it here.
ADMIN_KEY = "trainyard_admin_key"
KEY_FILES = ("ansible_ssh_private_key_file", "ansible_private_key_file", ADMIN_KEY)
BECOME = "ansible_become"
TRUE = ("true", "yes", "on", "1", "y", "t")
SSH_ARGUMENTS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
CHECKING = (
    "ansible_host_key_checking",
    "ansible_ssh_host_key_checking",
    "ansible_paramiko_host_key_checking",
)
# Looked for in the whole text, so that an ssh inside a ProxyCommand is seen, too. ssh takes the
# names in any case, with '=' or a blank.
CHECKING_OFF = re.compile(
    r"stricthostkeychecking[\s=\"']+(no|off|false|accept-new)\b"
    r"|userknownhostsfile[\s=\"']+(/dev/null\b|none(?![\w./-]))",
    re.IGNORECASE,
)
# Features of the user's own ssh configuration that must not reach a node.
NOT_FORWARDED = ("ForwardAgent", "ForwardX11", "PermitLocalCommand")
_OPTION = re.compile(
    r"-o\s*[\"']?({})[\s=\"']+(\w+)".format("|".join(NOT_FORWARDED)), re.IGNORECASE
)
_FLAG = re.compile(r"(?:^|\s)-[AXY](?=\s|$)")
FALSE = ("false", "no", "off", "0", "n", "f")
REMEDY = "take it out and let ansible-playbook playbooks/trust.yml record the host keys"


def is_login_variable(name: str) -> bool:
    """Return whether a variable of a host belongs to the login to it."""
    known = KEY_FILES + SSH_ARGUMENTS + CHECKING + (CONNECTION, BECOME)
    return name in known or bool(SECRET.match(name))


def checking_problem(name: str, value: Any) -> str | None:
    """Say how a setting switches the check of host keys off, or return None.

    name: of a variable, or of Ansible's own setting.
    """
    if name.endswith("host_key_checking"):
        if value is False or str(value).strip().lower() in FALSE:
            return f"switches the check of host keys off; got {value}; {REMEDY}"
        return None
    match = CHECKING_OFF.search(str(value))
    if match:
        return f"switches the check of host keys off; got {match.group(0)}; {REMEDY}"
    return None


def forwarding_notes(hosts: Hosts, settings: Iterable[Setting] = ()) -> list[str]:
    """Return a line for each kind of login that may forward a user's resource.

    That is the user's own ssh agent, display or local commands. hosts, settings: as `problems`
    takes them.
    """
    defaults = {name: str(value or "") for _where, name, value in settings}
    hosts_by_option: dict[str, list[str]] = {}
    for host, variables in hosts.items():
        if CONNECTION in variables and str(variables[CONNECTION]["value"]) not in ("ssh", "smart"):
            continue
        text = _ssh_options(variables, defaults)
        # ssh takes the first value that it is given.
        options = {name.lower(): value.lower() for name, value in reversed(_OPTION.findall(text))}
        not_off = [name for name in NOT_FORWARDED if options.get(name.lower()) != "no"]
        if not_off or _FLAG.search(text):
            label = ", ".join(not_off) or "-A, -X or -Y"
            hosts_by_option.setdefault(label, []).append(host)
    return [
        f"the login to {', '.join(names[:5])} does not switch off {label}; a training there could"
        " use it. Put -o ForwardAgent=no and the like into ssh_args, as ansible.cfg does"
        for label, names in hosts_by_option.items()
    ]


def _ssh_options(variables: Mapping[str, Login], defaults: Mapping[str, str]) -> str:
    """Return the options that Ansible gives ssh for a host, as one text.

    defaults: {setting of Ansible: text}. ssh_args come first (ansible.cfg has them).
    """
    options = []
    for name in SSH_ARGUMENTS:
        if variables.get(name):
            options.append(str(variables[name]["value"] or ""))
        else:
            options.append(defaults.get(name.replace("ansible_", ""), ""))
    return " ".join(options)


def secret_problem(raw: Any, hidden: bool) -> str | None:
    """Say that a password stands in clear text, or return None. Never show it.

    raw: the value before templating. hidden: whether it came out of a vault.
    """
    if hidden or raw in (None, "") or (isinstance(raw, str) and ("{{" in raw or "{%" in raw)):
        return None
    return (
        "stands in clear text; put it into a vault (ansible-vault encrypt_string), or let Ansible"
        " ask for it (-k, -K)"
    )


def become_problem(value: Any) -> str | None:
    """Say that everything would be done as root, or return None.

    provision.yml and unprovision.yml become root automatically, for their part.
    """
    if value is True or str(value).strip().lower() in TRUE:
        return (
            "would do everything as another user; take it out: provision.yml and unprovision.yml"
            " become root by themselves, and nothing else does"
        )
    return None


def key_problem(path: str, stat: Stat = os.stat) -> str | None:
    """Say why a private key cannot be used, or return None.

    ssh itself ignores a key that others may read, and asks for a password.
    """
    path = os.path.expanduser(path)
    try:
        status = stat(path)
    except OSError as error:
        if os.path.exists(path + ".pub"):  # the private half is in an agent
            return None
        return (
            f"no private key there: {path} ({error.strerror}); the embedded site's is made by"
            " ansible-playbook -i inventory/local playbooks/local.yml"
        )
    if not modes.S_ISREG(status.st_mode):
        return f"the private key {path} is no file"
    if status.st_mode & 0o077 and not path.endswith(".pub"):
        return (
            f"the private key {path} may be read by others (mode {status.st_mode & 0o777:04o});"
            " chmod 600 it"
        )
    return None


def account_problem(name: Any) -> str | None:
    """Say why root may not be given the name of the training account, or return None.

    roles/runtime has the same pattern.
    """
    if ACCOUNT.match(str(name)):
        return None
    text = (
        "names the account that trains to tasks that run as root: at most 64 letters, digits, '_',"
        " '.', '@', '-', no digit in front"
    )
    return f"{text}; got {abbreviate(name)}"


def local_connection_problems(hosts: Hosts, usual: str | None = None) -> list[Problem]:
    """Return a Problem for every node of several that is the controller itself.

    With the connection `local` nothing is sent, and all such nodes are one machine. hosts: as
    `problems` takes them. usual: the connection of a host that names none (-c, ANSIBLE_TRANSPORT).
    """
    if len(hosts) < 2:
        return []
    unique: dict[str, Problem] = {}
    for host, variables in hosts.items():
        entry = variables.get(CONNECTION)
        if entry and entry["value"] == "local":
            file = entry.get("file") or f"inventory, host {host}"
            problem = Problem(
                file,
                entry.get("line"),
                CONNECTION,
                _local_text(f"host {host}"),
                code="login.local_connection",
            )
        elif not entry and usual == "local":
            file = "command line or configuration"
            problem = Problem(
                file, None, "connection", _local_text("every node"), code="login.local_connection"
            )
        else:
            continue
        unique.setdefault(str(problem), problem)
    return list(unique.values())


def _local_text(subject: str) -> str:
    return (
        f"'local' makes the controller itself of {subject}; a job on several nodes logs in to each"
        " of them (ssh); take it out"
    )


def problems(hosts: Hosts, settings: Iterable[Setting] = (), stat: Stat = os.stat) -> list[Problem]:
    """Return every Problem, the same one once.

    hosts: {inventory name: {variable: {value (templated), raw, hidden, file, line}}}. settings:
    [(where, name, value)] of Ansible's configuration and command line.
    """
    unique: dict[str, Problem] = {}

    def add(file: str, line: int | None, key: str, text: str | None, code: str) -> None:
        if text:
            problem = Problem(file, line, key, text, code=code)
            unique.setdefault(str(problem), problem)

    for host, variables in hosts.items():
        for name, entry in sorted(variables.items()):
            file = entry.get("file") or f"inventory, host {host}"
            add(file, entry.get("line"), name, _variable_problem(name, entry, stat), _code_of(name))
    for where, name, value in settings:
        if value not in (None, ""):
            add(where, None, name, _setting_problem(name, value, stat), _code_of(name))
    return list(unique.values())


def _code_of(name: str) -> str:
    """Return the message code of a variable or setting that is wrong."""
    code = "login.host_key_checking"
    if SECRET.match(name):
        code = "login.secret_in_clear"
    elif name in (*KEY_FILES, "private_key_file"):
        code = "login.bad_key_file"
    elif name in (BECOME, "become"):
        code = "login.become"
    return code


def _variable_problem(name: str, entry: Login, stat: Stat) -> str | None:
    """Say what is wrong with one variable of a host, or return None."""
    if SECRET.match(name):
        return secret_problem(entry["raw"], entry["hidden"])
    if name in KEY_FILES:
        if not entry["value"]:
            return None
        return key_problem(str(entry["value"]), stat)
    if name == BECOME:
        return become_problem(entry["value"])
    if name == CONNECTION:
        return None
    return checking_problem(name, entry["value"])


def _setting_problem(name: str, value: Any, stat: Stat) -> str | None:
    """Say what is wrong with one setting of Ansible, or return None."""
    if name == "private_key_file":
        return key_problem(str(value), stat)
    if name == "become":
        return become_problem(value)
    return checking_problem(name, value)
