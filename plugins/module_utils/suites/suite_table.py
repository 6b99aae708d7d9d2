# SPDX-License-Identifier: Apache-2.0
"""Meaning of a suite's table (docs/design.md, 5) for one job. Pure.

Nothing here knows a suite by name: a fifth one is one more file (docs/adding-a-suite.md).
"""

from __future__ import annotations

import math
import os

from ..base import findings, text_rules

# Beyond this no number of epochs, iterations or samples means anything; a config may hold any.
LARGEST_NUMBER = 10**15
# Keys and paths that a problem writes out. The others are counted.
NAMED = 3
# The name under which a table has the key or option for the time between two checkpoints.
SAVE_INTERVAL = "save_interval"


def lookup(values, dotted):
    """Return the value at a dotted path of a config, or None. Numbers index lists."""
    if not dotted:
        return None
    for part in dotted.split("."):
        if isinstance(values, dict) and part in values:
            values = values[part]
        elif isinstance(values, list) and part.isdigit() and int(part) < len(values):
            values = values[int(part)]
        else:
            return None
    return values


def merge(under, over):
    """Return the mapping `under` with `over` laid on it, key by key at every depth.

    The suites build a config from its bases in the same way.
    """
    result = dict(under)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            value = merge(result[key], value)
        result[key] = value
    return result


def apply_overrides(values, overrides):
    """Return a config with dotted overrides laid on it."""
    for dotted, value in overrides.items():
        for part in reversed(dotted.split(".")):
            value = {part: value}
        values = merge(values, value)
    return values


def accelerator(suite, name):
    """Return {arguments, overrides, env} of a suite for an accelerator."""
    defaults = {"arguments": [], "overrides": {}, "env": {}}
    return dict(defaults, **(suite["accelerators"].get(name) or {}))


def settle_overrides(suite, values, given, kind, world):
    """Return (overrides, problems): all config values that the command line carries.

    The job's and the site's lie on top. values: the config chain, merged. given: the overrides of
    site and job. kind: accelerator. world: number of ranks. Where several ranks need a switch to
    know of each other, it is set. Where an override keeps it off, that is a problem (contract D2).
    """
    overrides = dict(accelerator(suite, kind)["overrides"])
    # Where a config has an absolute path of its authors' machine, it gets one below the working
    # directory.
    for key, path in suite["data"]["overrides"].items():
        if os.path.isabs(str(lookup(values, key) or "")):
            overrides[key] = path
    problems = []
    rule = suite["distributed"]
    if not rule or world < 2:
        overrides.update(given)
        return overrides, problems
    if lookup(values, rule["key"]) is not True:
        overrides[rule["key"]] = True
    overrides.update(given)
    value = lookup(apply_overrides(values, overrides), rule["key"])
    if value is not True:
        problems.append(
            f"{rule['key']} is {value!r}, so that {world} ranks would train alone, each its own"
            " model; take the override out or make it true"
        )
    return overrides, problems


def has_key(values, dotted):
    """Return whether a config has a key, even if its value is null."""
    parent, _dot, last = dotted.rpartition(".")
    if parent:
        values = lookup(values, parent)
    return isinstance(values, dict) and last in values


def known_keys(values, prefix=""):
    """Return every dotted key of a config."""
    keys = []
    if isinstance(values, dict):
        for key, value in values.items():
            keys += [f"{prefix}{key}"] + known_keys(value, f"{prefix}{key}.")
    return keys


def option_value(arguments, name):
    """Return the value of an option among a script's arguments, or None.

    It may be '--iters 8' or '--iters=8'. The last one counts.
    """
    value = None
    for index, word in enumerate(arguments):
        if word == name and index + 1 < len(arguments):
            value = arguments[index + 1]
        elif word.startswith(name + "="):
            value = word[len(name) + 1 :]
    return value


def settings(suite, effective, arguments, overrides=()):
    """Return {epochs, iterations, batch, learning_rate, save_interval, save} of a job.

    They are numbers or None, as the suite's script takes them. An option of the script beats the
    config (argument_keys), and an override of the same key beats both (paddleseg/cvlibs/config.py).
    A value that is neither a number nor, for save, a text stands as None: unknown, never guessed.
    """
    keys = suite["config_keys"]
    numbers = ("epochs", "iterations", "batch", "learning_rate", SAVE_INTERVAL)
    values = {name: lookup(effective, keys.get(name)) for name in (*numbers, "save")}
    for option, name in suite["argument_keys"].items():
        value = option_value(arguments, option)
        if value is not None and keys.get(name) not in overrides:
            values[name] = value
    for name in numbers:
        values[name] = _number(values[name], whole=name != "learning_rate")
    if not isinstance(values["save"], str) or not values["save"]:
        values["save"] = None
    return values


def _number(value, whole):
    """Return a number, or None. Texts count, as YAML 1.1 reads 1e-3 as one."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        if whole:
            number = int(str(value))
        elif isinstance(value, int):
            number = value
        else:
            number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if abs(number) > LARGEST_NUMBER or not math.isfinite(number):
        return None
    return number


def data_path(suite, name):
    """Return the path below the working directory where a data set appears."""
    return os.path.normpath(
        suite["data"]["names"].get(name) or suite["data"]["place"].format(name=name)
    )


def linked_folders(suite, data):
    """Return the directories of a code tree that links replace at every start.

    The training never sees them. data: the data sets' names.
    """
    return sorted(set(suite["redirects"]) | {data_path(suite, name) for name in data})


def data_paths(suite, effective, arguments):
    """Return [(config key, path)] of the files that the training reads.

    The config names them, relative to the training's working directory.
    """
    paths = []
    for entry in suite["data"]["keys"]:
        if entry.get("only_with") and not set(entry["only_with"]) & set(arguments):
            continue
        root = lookup(effective, entry.get("root"))
        if not isinstance(root, str):
            root = ""
        if root:
            paths.append((entry["root"], os.path.normpath(root)))
        for key in entry.get("paths") or []:
            values = lookup(effective, key)
            if not isinstance(values, list):
                values = [values]
            for path in values:
                if isinstance(path, str) and path:
                    paths.append((key, os.path.normpath(os.path.join(root, path))))
    return list(dict.fromkeys(paths))


def find_data(suite, effective, arguments, data, exists=os.path.exists, code=()):
    """Return (names, problems): the site's data sets that this config reads.

    A problem is what it reads and no data set holds, once for each data set. data: {data set's
    name: directory on the controller}. A config that names no data takes all that the site has.
    code: the code tree's files, which may hold a small list or dictionary themselves.
    """
    places = {data_path(suite, name): name for name in data}
    used, lost, unknown = set(), {}, {}
    paths = data_paths(suite, effective, arguments)
    for key, path in paths:
        holder = _holder_of(path, places)
        if holder:
            name = places[holder]
            used.add(name)
            source = os.path.normpath(os.path.join(data[name], os.path.relpath(path, holder)))
            if not exists(source):
                lost.setdefault(name, []).append((key, path, source))
        elif not any(_is_below(file, path) for file in code):
            inside = [
                places[folder] for folder in places if path == "." or folder.startswith(path + "/")
            ]
            used.update(inside)
            if not inside:
                unknown.setdefault(_guess_name(suite, path) or path, []).append((key, path))
    problems = [
        _describe_lost(suite, name, data[name], entries, exists) for name, entries in lost.items()
    ]
    problems += [_describe_missing(suite, entries, places) for entries in unknown.values()]
    names = sorted(used)
    if not paths:
        names = sorted(data)
    folders = sorted(data_path(suite, name) for name in names)
    return names, problems + _nested_problems(folders, places)


def _holder_of(path, places):
    """Return the innermost place of a data set that holds a path, None if none does."""
    return max((place for place in places if _is_below(path, place)), key=len, default=None)


def _is_below(path, folder):
    """Return whether a path is a folder or lies below it."""
    return path == folder or path.startswith(folder + "/")


def _nested_problems(folders, places):
    """Return the problems of data sets that would lie one inside the other.

    folders: of the data sets that are read. places: {folder: data set's name}.
    """
    problems = []
    for outer in folders:
        for inner in folders:
            if inner.startswith(outer + "/"):
                problems.append(
                    f"the data sets '{places[outer]}' and '{places[inner]}' would lie one inside"
                    f" the other ({outer}, {inner}); give the site one of them, or put the second"
                    " into the first"
                )
    return problems


def _join(texts):
    """Return texts as one: each once, the first ones and a count of many."""
    return findings.named(dict.fromkeys(texts), NAMED)


def _describe_lost(suite, name, root, entries, exists):
    """Return the problem of what a data set of the site lacks.

    root: its directory. entries: [(config key, path, where it had to be)].
    """
    keys = _join(key for key, _path, _source in entries)
    if not exists(root):
        return (
            f"{keys}: the data set '{name}' is not there: {root} is no directory on the controller;"
            f" correct trainyard_suites.{suite['name']}.data.{name}.path"
        )
    paths = f"{_join(path for _key, path, _source in entries)} is"
    if len({path for _key, path, _source in entries}) > 1:
        paths = paths[: -len("is")] + "are"
    sources = _join(source for _key, _path, source in entries)
    return f"{keys}: {paths} not in the data set '{name}': no {sources} on the controller"


def _describe_missing(suite, entries, places):
    """Return the problem of paths that are in no data set of the site.

    The text says what is missing in the site. entries: [(config key, path)], whose first ones stand
    for the others. places: {folder: data set's name}.
    """
    key, path = entries[0]
    keys, paths = _join(key for key, _path in entries), _join(path for _key, path in entries)
    shown = ", ".join(f"{places[folder]} as {folder}" for folder in sorted(places)) or "none"
    if os.path.isabs(path):
        remedy = (
            f"override {key} with a path below the working directory, where the site's data sets"
            " appear"
        )
    else:
        remedy = (
            "say where it is:"
            f" trainyard_suites.{suite['name']}.data.{_guess_name(suite, path) or 'NAME'}.path"
        )
    return (
        f"{keys}: the config reads {paths}, which no data set of the site holds (it has {shown});"
        f" {remedy}"
    )


def _guess_name(suite, path):
    """Return the name of the data set that a path probably belongs to, or ''."""
    prefix = suite["data"]["place"].split("{name}")[0]
    if path.startswith(prefix):
        rest = path[len(prefix) :]
        name = rest.split("/")[0]
        if name and ("/" in rest or "." not in rest):
            return name
    for name, folder in suite["data"]["names"].items():
        if _is_below(path, folder):
            return name
    return ""


def save_problem(suite, folder):
    """Say why checkpoints cannot be saved where the config says, or return None.

    folder: as the config has it, or None.
    """
    if folder is None:
        return None
    path = os.path.normpath(folder)
    key = suite["config_keys"].get("save") or "the folder to save to"
    if text_rules.problem(folder):
        return f"{key}: {text_rules.problem(folder)}"
    data = suite["data"]["place"].split("{name}")[0].strip("/")
    # Nothing expands ~ and $ in a config, and a user who writes them means another place.
    outside = (
        os.path.isabs(path) or path in (".", "..") or path.startswith(("../", "~")) or "$" in path
    )
    if outside or (path + "/").startswith(data + "/"):
        return (
            f"{key}: {folder} is no folder of its own below the working directory, so no checkpoint"
            " would be copied; say output/NAME"
        )
    return None


def resume_options(suite, path):
    """Return (arguments, overrides) for a suite's resume from a checkpoint.

    path: below the working directory.
    """
    rule = suite["resume"]
    arguments = [word.format(path=path) for word in rule.get("arguments") or []]
    overrides = {
        key: value.format(path=path) for key, value in (rule.get("overrides") or {}).items()
    }
    return arguments, overrides
