# SPDX-License-Identifier: Apache-2.0
"""Suites as tables (design, decision 5): what suites/<name>.yml says, held against
suites/schema.yml, and what follows from it for one job.

Nothing here knows a suite by name; a fifth one is a file more (docs/adding-a-suite.md). Controller
only.
"""

from __future__ import annotations

import math
import os

from ..base import text_rules, yaml_source
from ..base.yaml_source import near
from ..logs.parser import Table, TableError
from .launchers import LAUNCHERS

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.normpath(os.path.join(HERE, *[os.pardir] * 3, "playbooks", "suites"))
# Beyond this no number of epochs, iterations or samples means anything; a config may hold any.
LARGEST_NUMBER = 10**15
# What a table may leave out.
DEFAULTS = {
    "override_style": "yaml",
    "override_limits": [],
    "env": {},
    "accelerators": {},
    "distributed": None,
    "argument_keys": {},
    "resume": {},
}
DATA_DEFAULTS = {"names": {}, "overrides": {}, "keys": []}


class SuiteError(ValueError):
    """A suite's table that does not fit suites/schema.yml; the message names file, line and key."""


def names(folder=None):
    """Return the names of the known suites: the files in suites/."""
    return sorted(name[:-4] for name in os.listdir(folder or FOLDER) if name.endswith(".yml"))


def load(name, folder=None):
    """Return a suite's table with its name and with defaults for what it leaves out. Raises
    SuiteError.
    """
    shown = f"suites/{name}.yml"
    value, lines, problems = yaml_source.read(os.path.join(folder or FOLDER, name + ".yml"), shown)
    schema, _lines, wrong = yaml_source.read(os.path.join(HERE, "schema.yml"))
    problems = problems + wrong
    problems = problems or yaml_source.check(value, schema, lines, shown)
    if not problems:
        unknown = sorted(set(value["launchers"]) - set(LAUNCHERS))
        problems = (
            [
                "{}: launchers: {}; allowed: {}".format(
                    shown, ", ".join(unknown), ", ".join(sorted(LAUNCHERS))
                )
            ]
            if unknown
            else []
        )
        try:
            Table(value["logs"])
        except TableError as error:
            problems.append(f"{shown}: {error}")
    if problems:
        raise SuiteError("; ".join(str(problem) for problem in problems))
    return dict(DEFAULTS, **dict(value, name=name, data=dict(DATA_DEFAULTS, **value["data"])))


def lookup(values, dotted):
    """Return the value at a dotted path of a config (numbers index lists), or None where there is
    none.
    """
    for part in dotted.split(".") if dotted else ():
        if isinstance(values, dict) and part in values:
            values = values[part]
        elif isinstance(values, list) and part.isdigit() and int(part) < len(values):
            values = values[int(part)]
        else:
            return None
    return values if dotted else None


def merged(under, over):
    """Return the mapping `under` with `over` laid on it, key by key at every depth, as the suites
    build a config from its bases.
    """
    result = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result


def overridden(values, overrides):
    """Return a config with dotted overrides laid on it."""
    for dotted, value in overrides.items():
        for part in reversed(dotted.split(".")):
            value = {part: value}
        values = merged(values, value)
    return values


def accelerator(suite, name):
    """Return what the suite's script must be told for an accelerator: {arguments, overrides, env}."""
    return dict(
        {"arguments": [], "overrides": {}, "env": {}}, **(suite["accelerators"].get(name) or {})
    )


def settle(suite, values, given, kind, world):
    """Return (overrides, problems): all config values that the command line carries, the job's and
    the site's on top.

    values: the config chain, merged. given: the overrides of site and job. kind: accelerator.
    world: number of ranks. Where several ranks need a switch to know of each other, it is thrown;
    where somebody holds it open, that is a problem (contract D2).
    """
    overrides = dict(accelerator(suite, kind)["overrides"])
    # Where a config has an absolute path of its authors' machine, it gets one below the working
    # directory.
    places = {
        key: place
        for key, place in suite["data"]["overrides"].items()
        if os.path.isabs(str(lookup(values, key) or ""))
    }
    overrides.update(places)
    problems, rule = override_problems(suite, values, given), suite["distributed"]
    if rule and world > 1 and lookup(values, rule["key"]) is not True:
        overrides[rule["key"]] = True
    overrides.update(given)
    if rule and world > 1:
        ends = lookup(overridden(values, overrides), rule["key"])
        if ends is not True:
            text = (
                "%s is %r, so that %d ranks would train alone, each its own model; take the"
                " override out or make it true"
            )
            problems.append(text % (rule["key"], ends, world))
    return overrides, problems


def override_problems(suite, values, given):
    """Return what the suite's own script could not read of the overrides that site and job give."""
    limits, problems = suite["override_limits"], []
    for key, value in given.items():
        if "existing" in limits and not has(values, key):
            text = "the config has no key %s, and %s takes only keys that there are%s"
            problems.append(text % (key, suite["title"], near(key, known_keys(values))))
        if "no_equals" in limits and "=" in str(value):
            problems.append(
                "{}: {} cannot take a value with '=' in it; write it into the config".format(
                    key, suite["title"]
                )
            )
    return problems


def has(values, dotted):
    """Whether a config has a key, be its value null."""
    parent, _dot, last = dotted.rpartition(".")
    above = lookup(values, parent) if parent else values
    return isinstance(above, dict) and last in above


def known_keys(values, prefix=""):
    """Return every dotted key of a config."""
    found = []
    for key, value in values.items() if isinstance(values, dict) else ():
        found += [prefix + str(key)] + known_keys(value, prefix + str(key) + ".")
    return found


def argument(arguments, name):
    """Return the value of an option among a script's arguments ('--iters 8' or '--iters=8'; the
    last one counts), or None.
    """
    found = None
    for index, word in enumerate(arguments):
        if word == name and index + 1 < len(arguments):
            found = arguments[index + 1]
        elif word.startswith(name + "="):
            found = word[len(name) + 1 :]
    return found


def settings(suite, effective, arguments, overrides=()):
    """Return {epochs, iterations, batch, learning_rate, save} of a job: numbers or None, as the
    suite's script will take them.

    An option of the script beats the config (argument_keys), and an override of the same key beats
    both (paddleseg/cvlibs/config.py). What is neither a number nor, for save, a text is unknown,
    never guessed.
    """
    keys = suite["config_keys"]
    found = {
        name: lookup(effective, keys.get(name))
        for name in ("epochs", "iterations", "batch", "learning_rate", "save")
    }
    for option, name in suite["argument_keys"].items():
        value = argument(arguments, option)
        if value is not None and keys.get(name) not in overrides:
            found[name] = value
    for name in ("epochs", "iterations", "batch", "learning_rate"):
        found[name] = _number(found[name], whole=name != "learning_rate")
    found["save"] = found["save"] if isinstance(found["save"], str) and found["save"] else None
    return found


def _number(value, whole):
    """Return a number; YAML 1.1 reads 1e-3 as a text, and a script's option is one."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value) if not whole else int(str(value))
    except (TypeError, ValueError, OverflowError):
        return None
    if abs(number) > LARGEST_NUMBER or not math.isfinite(number):
        return None
    return int(number) if not whole and number == int(number) and isinstance(value, int) else number


def place(suite, name):
    """Return where below the working directory a data set appears."""
    return os.path.normpath(
        suite["data"]["names"].get(name) or suite["data"]["place"].format(name=name)
    )


def hidden(suite, data):
    """Return the directories of a code tree that links lie over at every start, so that the
    training never sees them; data: the data sets' names.
    """
    return sorted(set(suite["redirects"]) | {place(suite, name) for name in data})


def data_paths(suite, effective, arguments):
    """Return [(config key, path)]: the files and directories that the config says the training
    reads, relative to its working directory.
    """
    found = []
    for entry in suite["data"]["keys"]:
        if entry.get("only_with") and not set(entry["only_with"]) & set(arguments):
            continue
        root = lookup(effective, entry.get("root"))
        root = root if isinstance(root, str) else ""
        if entry.get("root") and root:
            found.append((entry["root"], os.path.normpath(root)))
        for key in entry.get("paths") or []:
            value = lookup(effective, key)
            for path in value if isinstance(value, list) else [value]:
                if isinstance(path, str) and path:
                    found.append((key, os.path.normpath(os.path.join(root, path))))
    return list(dict.fromkeys(found))


def wanted_data(suite, effective, arguments, data, exists=os.path.exists, code=()):
    """Return (names, problems): the site's data sets that this config reads, and what it reads that
    no data set holds.

    data: {data set's name: directory on the controller}. A config that names no data takes all that
    the site has. code: the code tree's files, which may hold a small list or dictionary themselves.
    """
    places = {place(suite, name): name for name in data}
    paths, used, problems = data_paths(suite, effective, arguments), set(), []
    for key, path in paths:
        owner = max(
            (p for p in places if path == p or path.startswith(p + "/")), key=len, default=None
        )
        if owner is None and any(file == path or file.startswith(path + "/") for file in code):
            continue
        if owner is None:
            inside = [places[p] for p in places if p.startswith(path + "/") or path == "."]
            used.update(inside)
            if not inside:
                problems.append(_nowhere(suite, key, path, places))
            continue
        used.add(places[owner])
        there = os.path.normpath(os.path.join(data[places[owner]], os.path.relpath(path, owner)))
        if not exists(there):
            problems.append(
                f"{key}: {path} is not in the data set '{places[owner]}': no {there} on the"
                " controller"
            )
    names = sorted(used) if paths else sorted(data)
    taken = sorted(place(suite, name) for name in names)
    for one, other in [(a, b) for a in taken for b in taken if b.startswith(a + "/")]:
        text = (
            "the data sets '%s' and '%s' would lie one inside the other (%s, %s); give the site one"
            " of them, or put the second into the first"
        )
        problems.append(text % (places[one], places[other], one, other))
    return names, problems


def _nowhere(suite, key, path, places):
    """Say that a config reads what no data set of the site holds, and what the site would have to
    say.
    """
    shown = ", ".join(f"{places[p]} as {p}" for p in sorted(places)) or "none"
    if os.path.isabs(path):
        remedy = (
            f"override {key} with a path below the working directory, where the site's data sets"
            " appear"
        )
    else:
        pattern = suite["data"]["place"].split("{name}")[0]
        rest = path[len(pattern) :] if path.startswith(pattern) else ""
        name = rest.split("/")[0] if rest and ("/" in rest or "." not in rest) else None
        name = name or next(
            (n for n, p in suite["data"]["names"].items() if path == p or path.startswith(p + "/")),
            "NAME",
        )
        remedy = "say where it is: trainyard_suites.{}.data.{}.path{}".format(
            suite["name"],
            name,
            near(path, places),
        )
    return (
        f"{key}: the config reads {path}, which no data set of the site holds (it has {shown});"
        f" {remedy}"
    )


def save_problem(suite, folder):
    """Say why checkpoints cannot be saved where the config says, or return None; folder: as the
    config has it, or None.
    """
    if folder is None:
        return None
    path, key = (
        os.path.normpath(folder),
        suite["config_keys"].get("save") or "the folder to save to",
    )
    if text_rules.problem(folder):
        return f"{key}: {text_rules.problem(folder)}"
    data = suite["data"]["place"].split("{name}")[0].strip("/")
    # Nothing expands ~ and $ in a config, and whoever writes them means another place.
    outside = (
        os.path.isabs(path) or path in (".", "..") or path.startswith(("../", "~")) or "$" in path
    )
    if outside or (path + "/").startswith(data + "/"):
        return (
            f"{key}: {folder} is no folder of its own below the working directory, so no checkpoint"
            " would come home; say output/NAME"
        )
    return None


def resume_words(suite, path):
    """Return (arguments, overrides) with which the suite itself goes on from a checkpoint; path:
    below the working directory.
    """
    rule = suite["resume"]
    return (
        [word.format(path=path) for word in rule.get("arguments") or []],
        {key: value.format(path=path) for key, value in (rule.get("overrides") or {}).items()},
    )
