# SPDX-License-Identifier: Apache-2.0
"""Hold a site's way to its nodes against the rules of design, decision 6: no password in clear
text, a private key that is private, host keys that are checked. Pure over what the inventory says
and what `stat` says of a key. Controller only.
"""

from __future__ import annotations

import os
import re
import stat as modes

from ..base.yaml_source import Problem, shown
from ..environments.user_manager import ACCOUNT

SECRET = re.compile(r"ansible_(\w+_)?(pass|password|passphrase)\Z|ansible_(ssh_)?private_key\Z")
CONNECTION = "ansible_connection"
# Of the administrator's login: only the two verbs that become root take it, so only they need it
# here.
ADMIN_KEY = "trainyard_admin_key"
KEY_FILES = ("ansible_ssh_private_key_file", "ansible_private_key_file", ADMIN_KEY)
BECOME = "ansible_become"
TRUE = ("true", "yes", "on", "1", "y", "t")
SSH_WORDS = ("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
CHECKING = (
    "ansible_host_key_checking",
    "ansible_ssh_host_key_checking",
    "ansible_paramiko_host_key_checking",
)
# Looked for in the whole text, so that an ssh inside a ProxyCommand is seen, too; ssh takes the
# names in any case, with '=' or a blank.
OFF = re.compile(
    r"stricthostkeychecking[\s=\"']+(no|off|false|accept-new)\b|userknownhostsfile[\s=\"']+(/dev/null\b|none(?![\w./-]))",
    re.IGNORECASE,
)
# What of the user's own ssh configuration must not reach a node.
NOT_FORWARDED = ("ForwardAgent", "ForwardX11", "PermitLocalCommand")
_OPTION = re.compile(
    r"-o\s*[\"']?({})[\s=\"']+(\w+)".format("|".join(NOT_FORWARDED)), re.IGNORECASE
)
_FLAG = re.compile(r"(?:^|\s)-[AXY](?=\s|$)")
FALSE = ("false", "no", "off", "0", "n", "f")
REMEDY = "take it out and let playbooks/trust.yml record the host keys"


def wanted(name):
    """Whether a variable of a host says how it is logged in to."""
    return name in KEY_FILES + SSH_WORDS + CHECKING + (CONNECTION, BECOME) or bool(
        SECRET.match(name)
    )


def checking_problem(name, value):
    """Say how a setting switches the check of host keys off, or return None; name: of a variable or
    of Ansible's own setting.
    """
    if name.endswith("host_key_checking"):
        off = value is False or str(value).strip().lower() in FALSE
        return f"switches the check of host keys off; got {value}; {REMEDY}" if off else None
    found = OFF.search(str(value))
    return f"switches the check of host keys off; got {found.group(0)}; {REMEDY}" if found else None


def forwarding(hosts, settings=()):
    """Return a line for each way of logging in that may pass the user's own ssh agent, display or
    local commands on to a node.

    hosts, settings: as `problems` takes them. ssh takes the first value that it is given, and
    ssh_args come first (ansible.cfg has them).
    """
    usual = {name: str(value or "") for _where, name, value in settings}
    lacking = {}
    for host, variables in hosts.items():
        if CONNECTION in variables and str(variables[CONNECTION]["value"]) not in ("ssh", "smart"):
            continue
        words = []
        for name in SSH_WORDS:
            own = variables.get(name)
            words.append(
                str(own["value"] or "") if own else usual.get(name.replace("ansible_", ""), "")
            )
        text = " ".join(words)
        said = {key.lower(): value.lower() for key, value in reversed(_OPTION.findall(text))}
        open_ = [name for name in NOT_FORWARDED if said.get(name.lower()) != "no"]
        if open_ or _FLAG.search(text):
            lacking.setdefault(", ".join(open_) or "-A, -X or -Y", []).append(host)
    text = (
        "the login to %s does not switch off %s; a training there could use it. Put -o"
        " ForwardAgent=no and the like into ssh_args, as ansible.cfg does"
    )
    return [text % (", ".join(names[:5]), what) for what, names in lacking.items()]


def secret_problem(raw, hidden):
    """Say that a password stands in clear text, or return None; raw: before templating. hidden: it
    came out of a vault. Never shows it.
    """
    if hidden or raw in (None, "") or (isinstance(raw, str) and ("{{" in raw or "{%" in raw)):
        return None
    return (
        "stands in clear text; put it into a vault (ansible-vault encrypt_string), or let Ansible"
        " ask for it (-k, -K)"
    )


def become_problem(value):
    """Say that everything would be done as root, or return None: provision.yml and unprovision.yml
    become root by themselves, for their part.
    """
    if value is True or str(value).strip().lower() in TRUE:
        return (
            "would do everything as another user; take it out: provision.yml and unprovision.yml"
            " become root by themselves, and nothing else does"
        )
    return None


def key_problem(path, stat=os.stat):
    """Say why a private key cannot be used, or return None. ssh itself passes over a key that
    others may read, and asks for a password.
    """
    path = os.path.expanduser(path)
    try:
        found = stat(path)
    except OSError as error:
        if os.path.exists(path + ".pub"):  # the private half is in an agent
            return None
        return (
            f"no private key there: {path} ({error.strerror}); the embedded site's is made by"
            " playbooks/local.yml"
        )
    if not modes.S_ISREG(found.st_mode):
        return f"the private key {path} is no file"
    if found.st_mode & 0o077 and not path.endswith(".pub"):
        return (
            f"the private key {path} may be read by others (mode {found.st_mode & 0o777:04o});"
            " chmod 600 it"
        )
    return None


def account_problem(name):
    """Say why the account that trains cannot be named to what runs as root, or return None;
    roles/runtime has the same pattern.
    """
    if ACCOUNT.match(str(name)):
        return None
    text = (
        "names the account that trains to tasks that run as root: at most 64 letters, digits, '_',"
        " '.', '@', '-', no digit in front"
    )
    return f"{text}; got {shown(name)}"


def here_problems(hosts, usual=None):
    """Return a Problem for every node of several that is the controller itself: with `local`
    nothing is sent, and all of them are one machine.

    hosts: as `problems` takes them. usual: the connection of a host that names none (-c,
    ANSIBLE_TRANSPORT).
    """
    found = {}
    for host, variables in hosts.items() if len(hosts) > 1 else ():
        entry = variables.get(CONNECTION)
        if (entry["value"] if entry else usual) == "local":
            said, key = (
                (entry.get("file"), CONNECTION)
                if entry
                else ("command line or configuration", "connection")
            )
            text = (
                "'local' makes the controller itself of %s; a job on several nodes logs in to each"
                " of them (ssh); take it out"
            )
            text %= "host " + host if entry else "every node"
            problem = Problem(
                said or f"inventory, host {host}", entry.get("line") if entry else None, key, text
            )
            found.setdefault(str(problem), problem)
    return list(found.values())


def problems(hosts, settings=(), stat=os.stat):
    """Return every Problem, the same one once.

    hosts: {inventory name: {variable: {value (templated), raw, hidden, file, line}}}. settings:
    [(where, name, value)] of Ansible's configuration and command line.
    """
    found = {}

    def add(file, line, key, text):
        if text:
            problem = Problem(file, line, key, text)
            found.setdefault(str(problem), problem)

    for host, variables in hosts.items():
        for name, entry in sorted(variables.items()):
            file = entry.get("file") or f"inventory, host {host}"
            if SECRET.match(name):
                text = secret_problem(entry["raw"], entry["hidden"])
            elif name in KEY_FILES:
                text = key_problem(str(entry["value"]), stat) if entry["value"] else None
            elif name == BECOME:
                text = become_problem(entry["value"])
            else:
                text = checking_problem(name, entry["value"]) if name != CONNECTION else None
            add(file, entry.get("line"), name, text)
    for where, name, value in settings:
        if value in (None, ""):
            continue
        if name == "private_key_file":
            text = key_problem(str(value), stat)
        else:
            text = become_problem(value) if name == "become" else checking_problem(name, value)
        add(where, None, name, text)
    return list(found.values())
