# SPDX-License-Identifier: Apache-2.0
"""The command line with which a run goes on: the one that ended, with resume.yml in the place of
its playbook. Controller only.

The words are taken apart by Ansible's own parser and put together again, so that every way of
writing an option is understood. Of the variables given with -e, what names the job and the run
goes, because the run's record holds it; the user's role variables stay.
"""

from __future__ import annotations

import json
import os
import re
import sys

import yaml
from ansible.cli.playbook import PlaybookCLI
from ansible.parsing.splitter import split_args

from ..attempts.attempt_dir import RUN_ID

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
        "verify",
        "matrix",
    )
) | {
    "again",
    "again_try",
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


class NotAgain(Exception):
    """The command cannot be given again by itself; the message is for people."""


def parsed(argv):
    """Return (the namespace of a command line as it was written, the parser's actions)."""
    cli = PlaybookCLI(list(argv))
    cli.init_parser()
    try:
        return cli.parser.parse_args(list(argv[1:])), cli.parser._actions
    except SystemExit as error:
        raise NotAgain("the command line cannot be taken apart") from error


def kept_variables(word):
    """Return what stays of one -e, '' where nothing does. A file (@...) stays as it is: it may be
    encrypted, and resume.yml knows what to leave out.
    """
    if word.startswith("@"):
        return word
    if word[:1] in "[{":
        try:
            value = yaml.safe_load(word)
        except yaml.YAMLError:
            return word
        if not isinstance(value, dict) or not DROPPED & set(value):
            return word
        value = {name: item for name, item in value.items() if name not in DROPPED}
        return json.dumps(value) if value else ""
    return " ".join(pair for pair in split_args(word) if pair.partition("=")[0] not in DROPPED)


def resumed(argv, playbook, run, after, tries=1):
    """Return the words of the follow-up command, without the program's own.

    argv: as sys.argv. playbook: path of resume.yml. after: the attempt's number that has ended.
    tries: which try of its restart it is. Raises NotAgain.
    """
    given, actions = parsed(argv)
    asking = [option for name, option in ASKING.items() if getattr(given, name, False)]
    # (ansible/parsing/vault and cli/__init__.py: label@source, and these sources are no files)
    prompts = [
        word
        for word in getattr(given, "vault_ids", None) or ()
        if word.rpartition("@")[2] in ("prompt", "prompt_ask_vault_pass")
    ]
    asking += [f"--vault-id {word}" for word in prompts]
    if asking:
        raise NotAgain(
            "{} asks for a password, and nobody is there to type it again".format(", ".join(asking))
        )
    words = []
    for action in actions:
        value = getattr(given, action.dest, None)
        if (
            not action.option_strings
            or action.dest in _NOT_KEPT
            or value is None
            or value == action.default
        ):
            continue
        words += _written(action, value)
    for word in given.extra_vars or ():
        kept = kept_variables(word)
        words += ["-e", kept] if kept else []
    if not RUN_ID.match(run):
        raise NotAgain(f"{run!r} is no run id")
    # One argument of JSON: no part of a value becomes a variable of its own.
    own = {"run": run, "again": int(after), **({"again_try": int(tries)} if tries > 1 else {})}
    return [playbook, *words, "-e", json.dumps(own)]


def _written(action, value):
    """Return an option with its value as words."""
    flag = next(
        (option for option in action.option_strings if option.startswith("--")),
        action.option_strings[0],
    )
    if action.nargs == 0:
        is_count = isinstance(value, int) and not isinstance(value, bool)
        return [flag] * ((value - (action.default or 0)) if is_count else 1)
    values = value if isinstance(value, (list, tuple)) else [value]
    given = [
        item
        for item in values
        if item not in (action.default if isinstance(action.default, (list, tuple)) else ())
    ]
    return [f"{flag}={item}" for item in given]


def of_restart(extra_vars):
    """Return {run, after, tries} of a command that is itself such a follow-up, else None.
    extra_vars: the words given with -e.
    """
    found = {}
    for word in extra_vars:
        named = _mapping(word) if word[:1] == "{" else dict([word.partition("=")[::2]])
        found.update(
            {name: str(named[name]) for name in ("run", "again", "again_try") if name in named}
        )
    if not re.fullmatch("[0-9]{1,6}", found.get("again", "")) or not RUN_ID.match(
        found.get("run", "")
    ):
        return None
    tries = found.get("again_try", "1")
    return {
        "run": found["run"],
        "after": int(found["again"]),
        "tries": int(tries) if re.fullmatch("[0-9]{1,6}", tries) else 1,
    }


def _mapping(word):
    """Return the variables of a word of JSON or YAML, {} where it holds none."""
    try:
        value = yaml.safe_load(word)
    except yaml.YAMLError:
        return {}
    return value if isinstance(value, dict) else {}


def program():
    """Return the words before the options with which this process was started: the interpreter and
    the script.
    """
    return [sys.executable, *sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]]


def playbook_beside(path):
    """Return where resume.yml lies, as the user wrote the playbook that ended."""
    return os.path.join(os.path.dirname(path), "resume.yml")
