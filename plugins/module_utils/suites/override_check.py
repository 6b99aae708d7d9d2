# SPDX-License-Identifier: Apache-2.0
"""Overrides of a config that have no effect, or that the suite's script cannot read. Pure.

PaddleDetection merges any key into its config (ppdet/utils/cli.py and ppdet/core/workspace.py of
2.6 to 2.8). PaddleOCR and PaddleSeg end unless all parts of a dotted key but the last are there
(tools/program.py, merge_config; paddleseg/cvlibs/config.py, update_config_dict). MindOCR takes only
keys that are there (tools/arg_parser.py). None of them can set one entry of a list.
"""

from __future__ import annotations

import difflib

from ..base.value_text import abbreviate, suggest
from . import suite_table

# The likeness (difflib) of a misspelt and the right name, from 0 to 1. One letter of five is 0.8.
NEAR = 0.8
# The settings that every suite computes with, see config_keys of its table.
COMPUTED = ("epochs", "iterations", "batch", "learning_rate")
KINDS = ((bool, "true or false"), ((int, float), "a number"), (list, "a list"), (dict, "a mapping"))


def judge(suite, values, given, is_read=None):
    """Return (problems, warnings) of overrides. Each begins with its key.

    values: the config chain, merged. given: the overrides of site and job. is_read(name): whether
    the suite's code or configs have the name at all, None if that is not known.
    """
    problems, warnings = [], []
    for key, value in given.items():
        problem = _list_problem(suite, values, key) or _limit_problem(suite, values, key, value)
        warning = None
        if not problem and suite_table.has_key(values, key):
            problem, warning = _judge_type(suite, key, suite_table.lookup(values, key), value)
        elif not problem and key not in _read_keys(suite):
            problem, warning = _judge_name(suite, values, key, is_read)
        if problem:
            problems.append(problem)
        if warning:
            warnings.append(warning)
    return problems, warnings


def _read_keys(suite):
    """Return the keys that a suite's script reads even if a config does not have them."""
    return [*suite["config_keys"]["weights"], suite["config_keys"].get("save")]


def _list_problem(suite, values, key):
    """Say that a key leads into a list, or return None."""
    parts = key.split(".")
    for count in range(1, len(parts)):
        folder = ".".join(parts[:count])
        if isinstance(suite_table.lookup(values, folder), list):
            return (
                f"{key}: {folder} is a list in the config, and {suite['title']} cannot change one"
                f" entry of it; give the whole list as {folder}"
            )
    return None


def _limit_problem(suite, values, key, value):
    """Say what the suite's script cannot read, or return None."""
    limits = suite["override_limits"]
    parent = key.rpartition(".")[0]
    near = suggest(key, suite_table.known_keys(values))
    if "existing" in limits and not suite_table.has_key(values, key):
        text = f"the config has no key {key}, and {suite['title']} takes only keys that there are"
        return text + near
    if "parents" in limits and parent:
        if not isinstance(suite_table.lookup(values, parent), dict):
            return (
                f"{key}: the config has no {parent}, and {suite['title']} ends where a part of a"
                f" key is not there{near}"
            )
    if "no_equals" in limits and "=" in str(value):
        return (
            f"{key}: {suite['title']} cannot take a value with '=' in it; write it into the config"
        )
    return None


def _judge_name(suite, values, key, is_read):
    """Return (problem, warning) of a key that the config does not have. One of them is None."""
    known = [*suite_table.known_keys(values), *filter(None, _read_keys(suite))]
    near = suggest(key, known)
    text = f"{key}: the config has no such key"
    if is_read is not None and not is_read(key.rpartition(".")[2]):
        text = f"{text}, and nothing in the code or in its configs has that name"
        if _is_misspelt(key, known):
            return f"{text}, so it would change nothing{near}", None
        # A package of the environment may read it.
        return None, f"{text}; it changes nothing unless an installed package reads it{near}"
    return (
        None,
        f"{text}; {suite['title']} takes it all the same, and a misspelt one changes nothing{near}",
    )


def _is_misspelt(key, known):
    """Return whether the last part of a key is nearly that of a known one."""
    names = {name.rpartition(".")[2] for name in known}
    return bool(difflib.get_close_matches(key.rpartition(".")[2], names, n=1, cutoff=NEAR))


def _judge_type(suite, key, present, value):
    """Return (problem, warning) of a value for a key that the config has."""
    expected = _kind(present)
    if value is None or present is None or expected is None or _fits(present, value):
        return None, None
    text = (
        f"{key}: the config has {expected} ({abbreviate(present)}), and {abbreviate(value)} is not"
    )
    if key in [suite["config_keys"].get(name) for name in COMPUTED]:
        return text, None
    return None, text


def _kind(value):
    """Return the words for the type of a config's value, None for a text."""
    for types, words in KINDS:
        if isinstance(value, types):
            return words
    return None


def _fits(present, value):
    """Return whether a value can take the place of another. A text is read as the suites do."""
    if isinstance(present, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(present, bool) or str(value) in ("0", "1")
    if isinstance(present, (int, float)) and isinstance(value, str):
        try:
            float(value)
        except ValueError:
            return False
        return True
    if isinstance(value, str) and value[:1] in "[{":
        return isinstance(present, (list, dict))  # written as one, as the scripts' -o takes it
    return _kind(present) == _kind(value)
