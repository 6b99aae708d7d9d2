# SPDX-License-Identifier: Apache-2.0
"""The reason why a node gave no answer: SSH's or Python's own words, a code, the remedy. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

# How Ansible begins, where a module printed no result. The reason stands in what it printed.
_NO_RESULT = ("Module result deserialization failed", "MODULE FAILURE", "module execution failed")
# Where ssh names the node.
_ADDRESS = re.compile(
    r"(?<=connect to host )\S+(?= port)|(?<=resolve hostname )[^:\s]+"
    r"|\S+@[^:\s]+(?=: Permission denied)"
)
# So many lines of what a module printed are kept, and so many characters.
_LAST_LINES, _LAST_CHARACTERS = 3, 600


class Cause(NamedTuple):
    """A reason for no answer. code: of the finding. remedy: the fix, for the controller's user."""

    code: str
    remedy: str


_INTERPRETER = (
    "set ansible_python_interpreter for the node in the inventory to a Python 3.8 or newer, such"
    " as /usr/bin/python3.9"
)
_OTHER = Cause(
    "reach.no_answer",
    "log in by hand with the same user and key, or take the node out of the inventory",
)
_PRINTS = "its login shell prints text where a program's output belongs"
# (pattern in the words, cause). The first one that matches counts: what went wrong at a jump host
# has the other words in it, too.
_CAUSES = [
    (
        _PRINTS,
        Cause(
            "reach.login_prints",
            "print nothing for a shell without a terminal: put `case $- in *i*) ;; *) return ;;"
            " esac` before the printing line of ~/.bashrc, ~/.profile or a file in /etc/profile.d;"
            " `ssh NODE true` has to print nothing",
        ),
    ),
    (
        r"closed by UNKNOWN port|stdio forwarding failed|open failed: |jumphost loop",
        Cause(
            "reach.jump_host_failed",
            "log in to the jump host by hand, and from there to the node; the jump host stands in"
            " ansible_ssh_common_args or in your ~/.ssh/config",
        ),
    ),
    (
        r"Could not resolve hostname|Name or service not known|Temporary failure in name resolution"
        r"|nodename nor servname",
        Cause(
            "reach.name_unresolved",
            "correct ansible_host in the inventory, or give it the node's IP address",
        ),
    ),
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        Cause(
            "reach.host_key_changed",
            "compare the key on the node's own console; ansible-playbook playbooks/trust.yml says"
            " how to replace the pinned one",
        ),
    ),
    (
        r"Host key verification failed|host key is known for",
        Cause(
            "reach.host_key_unknown",
            "ansible-playbook playbooks/trust.yml shows the node's host key and pins it",
        ),
    ),
    (
        r"Permission denied|Too many authentication failures|No supported authentication methods"
        r"|Load key .*(?:invalid format|error in libcrypto)",
        Cause(
            "reach.login_refused",
            "check ansible_user and the key (ansible_ssh_private_key_file, ssh-add -l), and that"
            " the node's ~/.ssh/authorized_keys has its public part",
        ),
    ),
    (
        r"Connection refused",
        Cause(
            "reach.refused",
            "start sshd on the node, or correct ansible_host and ansible_port",
        ),
    ),
    (
        r"No route to host|Network is unreachable",
        Cause(
            "reach.no_route",
            "check ansible_host, and the network or VPN between the controller and the node",
        ),
    ),
    (
        r"timed out|Timeout",
        Cause(
            "reach.timed_out",
            "check that the node runs, ansible_host, and that no firewall drops the port of SSH",
        ),
    ),
    (
        r"Connection (?:closed|reset) by|closed by remote host",
        Cause(
            "reach.closed",
            "look at sshd's log on the node: journalctl -u ssh -u sshd",
        ),
    ),
    (
        r"future feature annotations is not defined|minimum of Python version"
        r"|Python interpreter .* version",
        Cause("reach.python_too_old", _INTERPRETER),
    ),
    (
        r"pyenv: |module interpreter .* was not found"
        r"|python[0-9.]*['\"]?: (?:command )?not found|python[0-9.]*['\"]?: No such file",
        Cause("reach.python_missing", _INTERPRETER),
    ),
]
# Causes that an answer without a result can have.
_OF_PYTHON = ("reach.python_too_old", "reach.python_missing")
_BROKEN = Cause(
    "reach.module_failed",
    "look which Python the node has: " + _INTERPRETER,
)


def is_without_result(result: Mapping[str, Any]) -> bool:
    """Return whether a module ran on a node and printed no result."""
    return str(result.get("msg") or "").removeprefix("Task failed: ").startswith(_NO_RESULT)


def is_of_python(result: Mapping[str, Any]) -> bool:
    """Return whether a node's Python is why a module did not run there."""
    text = str(result.get("msg") or "").removeprefix("Task failed: ")
    return is_without_result(result) or text.startswith("The module interpreter ")


def without_address(words: str) -> str:
    """Return a node's or SSH's words without what differs from node to node."""
    return _ADDRESS.sub("<address>", words)


def words_of(result: Mapping[str, Any]) -> str:
    """Return why a node gave no answer, in its own words, '' without any.

    result: of the task. Where a module printed no result, the reason is in what it printed.
    """
    text = str(result.get("msg") or "").strip().removeprefix("Task failed: ")
    if not is_without_result(result):
        return text
    noise = _text_before_answer(str(result.get("module_stdout") or ""))
    if noise:
        return describe_login_output(noise)
    for key in ("module_stderr", "module_stdout"):
        lines = [line.strip() for line in str(result.get(key) or "").splitlines() if line.strip()]
        # Where the connection of ssh was shared, it says at the end that it is closed.
        lines = [line for line in lines if not line.startswith("Shared connection to")]
        if lines:
            kept = lines[-_LAST_LINES:]
            # pyenv says first what is wrong, and then gives advice in more lines than are kept.
            telling = next((line for line in lines if _tells_cause(line)), kept[0])
            if telling not in kept:
                kept = [telling]
            printed = "; ".join(kept)[-_LAST_CHARACTERS:]
            return f"its Python gave no result: {printed}"
    return text


def describe_login_output(text: str) -> str:
    """Return the words for what a node's login shell prints before any program does."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{_PRINTS}: {'; '.join(lines[:_LAST_LINES])[:_LAST_CHARACTERS]}"


def _text_before_answer(printed: str) -> str:
    """Return what stands before the answer of a module, '' where there is no answer.

    Ansible passes over such lines, unless one begins as JSON does.
    """
    lines = printed.splitlines()
    for index in range(len(lines) - 1, 0, -1):
        if _is_answer(lines[index]):
            return "\n".join(lines[:index]).strip()
    return ""


def _is_answer(line: str) -> bool:
    """Return whether a line is a module's answer."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and ("invocation" in value or "changed" in value)


def _tells_cause(line: str) -> bool:
    """Return whether a line of what a module printed tells one of Python's causes."""
    return any(
        cause.code in _OF_PYTHON and re.search(pattern, line, re.IGNORECASE)
        for pattern, cause in _CAUSES
    )


def classify(words: str) -> Cause:
    """Return the cause that a node's or SSH's words tell."""
    of_module = words.startswith("its Python gave no result") or words.startswith(_NO_RESULT)
    for pattern, cause in _CAUSES:
        if of_module and cause.code not in _OF_PYTHON:
            continue
        if re.search(pattern, words, re.IGNORECASE):
            return cause
    if of_module:
        return _BROKEN
    return _OTHER
