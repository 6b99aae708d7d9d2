# SPDX-License-Identifier: Apache-2.0
"""The command line with which a run goes on.

It is the one that ended, with resume.yml in the place of its playbook. The arguments are taken
apart by Ansible's own parser and put together again, so that every way of writing an option is
understood. Of the variables given with -e, what names the job and the run goes, because the run's
record holds it. The user's role variables stay.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import yaml
from ansible.cli.playbook import PlaybookCLI
from ansible.parsing.splitter import split_args
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID

# What the record of the run holds, and what is asked of one start only.
DROPPED = frozenset(
    (
        "config",
        "run",
        "nodes",
        "min_nodes",
        "devices",
        "start_port",
        "rendezvous",
        "scaling",
        "max_restarts",
        "detach",
        "checkpoint_every",
        "verify",
        "matrix",
    )
) | {
    "again",
    "again_try",
    "after",
}
# They end a playbook before its end, or begin it in the middle.
_NOT_KEPT = frozenset(
    (
        "args",
        "extra_vars",
        "start_at_task",
        "step",
        "listhosts",
        "listtasks",
        "listtags",
        "syntax",
        "check",
    )
)
# A password that was typed is gone with the process that asked for it.
ASKING = {"ask_pass": "-k", "become_ask_pass": "-K", "ask_vault_pass": "--ask-vault-pass"}


class CommandRefused(Exception):
    """The command cannot be repeated automatically.

    The message is for people.
    """


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, list[argparse.Action]]:
    """Return (the namespace of a command line, the parser's actions).

    argv: as sys.argv. Raises CommandRefused.
    """
    cli = PlaybookCLI(list(argv))
    cli.init_parser()
    parser = cli.parser
    assert parser is not None  # init_parser has made it
    try:
        return parser.parse_args(list(argv[1:])), parser._actions
    except SystemExit as error:
        raise CommandRefused("the command line cannot be taken apart") from error


def keep_variables(word: str, dropped: Set[str] = DROPPED) -> str:
    """Return the part of one -e that stays, '' for none.

    A file (@...) stays as it is: it may be encrypted, and resume.yml knows what to leave out.
    """
    if word.startswith("@"):
        return word
    if word[:1] in "[{":
        try:
            value = yaml.safe_load(word)
        except yaml.YAMLError:
            return word
        if not isinstance(value, dict) or not dropped & set(value):
            return word
        rest = {name: item for name, item in value.items() if name not in dropped}
        if not rest:
            return ""
        return json.dumps(rest)
    return " ".join(pair for pair in split_args(word) if pair.partition("=")[0] not in dropped)


def build(
    argv: Sequence[str],
    playbook: str,
    run: str,
    after: int,
    tries: int = 1,
    variable: str = "again",
) -> list[str]:
    """Return the arguments of the follow-up command, without the program's own.

    argv: as sys.argv. playbook: path of resume.yml or follow.yml. run: its id. after: the attempt's
    number that has ended. tries: which try of its restart it is. variable: by which the playbook
    learns of that attempt. Raises CommandRefused.
    """
    if not RUN_ID.match(run):
        raise CommandRefused(f"{run!r} is no run id")
    variables: dict[str, Any] = {"run": run, variable: int(after)}
    if tries > 1:
        variables["again_try"] = int(tries)
    return rebuild(argv, playbook, DROPPED, variables)


def rebuild(
    argv: Sequence[str], playbook: str, dropped: Set[str], variables: Mapping[str, Any]
) -> list[str]:
    """Return the arguments of another playbook with the options of this command.

    argv: as sys.argv. dropped: variables of -e that do not stay. variables: further ones. Raises
    CommandRefused.
    """
    options, actions = parse(argv)
    refuse_passwords(options)
    arguments = []
    for action in actions:
        value = getattr(options, action.dest, None)
        if action.option_strings and action.dest not in _NOT_KEPT:
            if value is not None and value != action.default:
                arguments += _write_option(action, value)
    for word in options.extra_vars or ():
        rest = keep_variables(word, dropped)
        if rest:
            arguments += ["-e", rest]
    # One argument of JSON: no part of a value becomes a variable of its own.
    return [playbook, *arguments, "-e", json.dumps(variables)]


def refuse_passwords(options: argparse.Namespace) -> None:
    """Raise CommandRefused for a command that asks for a password."""
    asking = [option for name, option in ASKING.items() if getattr(options, name, False)]
    # (ansible/parsing/vault and cli/__init__.py: label@source, and these sources are no files)
    asking += [
        f"--vault-id {word}"
        for word in getattr(options, "vault_ids", None) or ()
        if word.rpartition("@")[2] in ("prompt", "prompt_ask_vault_pass")
    ]
    if asking:
        raise CommandRefused(
            f"{', '.join(asking)} asks for a password, and no person is there to type it again"
        )


def _write_option(action: argparse.Action, value: Any) -> list[str]:
    """Return an option with its value as arguments."""
    flag = next(
        (option for option in action.option_strings if option.startswith("--")),
        action.option_strings[0],
    )
    if action.nargs == 0:
        count = 1
        if isinstance(value, int) and not isinstance(value, bool):
            count = value - (action.default or 0)
        return [flag] * count
    defaults = _listed(action.default, ())
    return [f"{flag}={item}" for item in _listed(value, [value]) if item not in defaults]


def _listed(value: Any, other: Sequence[Any]) -> Sequence[Any]:
    """Return a value that is a list or tuple, else the other one."""
    if isinstance(value, (list, tuple)):
        return value
    return other


def read_restart(extra_vars: Iterable[str]) -> dict[str, Any] | None:
    """Return {run, after, tries} of a follow-up command, else None.

    extra_vars: the arguments given with -e.
    """
    variables: dict[str, str] = {}
    for word in extra_vars:
        values = _read_variables(word)
        variables.update(
            {name: str(values[name]) for name in ("run", "again", "again_try") if name in values}
        )
    if not _is_number(variables.get("again", "")) or not RUN_ID.match(variables.get("run", "")):
        return None
    tries = 1
    if _is_number(variables.get("again_try", "")):
        tries = int(variables["again_try"])
    return {"run": variables["run"], "after": int(variables["again"]), "tries": tries}


def _is_number(text: str) -> bool:
    """Return whether a text is a number of an attempt or a try."""
    return bool(re.fullmatch("[0-9]{1,6}", text))


def _read_variables(word: str) -> dict[str, Any]:
    """Return the variables of one -e, {} where JSON or YAML holds none."""
    if word[:1] != "{":
        name, _equals, value = word.partition("=")
        return {name: value}
    try:
        value = yaml.safe_load(word)
    except yaml.YAMLError:
        return {}
    if not isinstance(value, dict):
        return {}
    return value


def program() -> list[str]:
    """Return the arguments before the options with which this process was started.

    They are the interpreter and the script.
    """
    return [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]]


def playbook_beside(path: str, name: str) -> str:
    """Return the path of another playbook, as the user wrote the playbook that ended."""
    return os.path.join(os.path.dirname(path), name)
