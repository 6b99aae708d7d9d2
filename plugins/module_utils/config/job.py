# SPDX-License-Identifier: Apache-2.0
"""Read a job and the command line as data; every problem at once, no node touched (design, decision
12). Controller only.
"""

from __future__ import annotations

import functools
import os
import re

from ..base import text_rules, yaml_source
from ..base.yaml_source import Problem, near
from ..suites import (
    suite_table,
    watchdog_budgets,
)
from ..suites.launchers import LAUNCHERS
from . import job_env

HERE = os.path.dirname(os.path.abspath(__file__))

# Names that decide how the ranks find each other, or that would let a job load other code: they
# come from the plan alone (fact 11).
RESERVED_ENV = re.compile(
    r"^(PADDLE_|FLAGS_START_PORT|FLAGS_selected|TRAINING_ROLE|POD_|GLOO_SOCKET|NCCL_SOCKET_IFNAME|CUDA_VISIBLE_DEVICES|LD_PRELOAD|LD_AUDIT"
    r"|PATH$|HOME$|USER$|PYTHONHOME|PYTHONSTARTUP|RANK|WORLD_SIZE|MS_|DEVICE_ID$|DEVICE_NUM$|OMPI_|PMIX_|ASCEND_RT_VISIBLE_DEVICES$|PORT_RANGE$|TRAINYARD_)"
)
# Every variable a site may set for the whole product; a misspelt one would otherwise be passed over
# without a word.
SITE_VARIABLES = (
    "trainyard_accelerator", "trainyard_address", "trainyard_admin_key", "trainyard_admin_user", "trainyard_cache_dir",
    "trainyard_collect_bytes", "trainyard_collect_files", "trainyard_collect_free", "trainyard_devices", "trainyard_env", "trainyard_home",
    "trainyard_host_fingerprints", "trainyard_metrics_dir", "trainyard_runs_dir", "trainyard_secret_env", "trainyard_site",
    "trainyard_start_port", "trainyard_state_dir", "trainyard_suites",
)  # fmt: skip
# How the suites' scripts are given their config file and its overrides.
OWN_FLAGS = ("-c", "--config", "-o", "--opt", "--opts")
JOB_DEFAULTS = {
    "arguments": [],
    "overrides": {},
    "nodes": "all",
    "devices": "all",
    "env": {},
    "published": [],
    "scaling": "advise",
    "max_restarts": 0,
}


# An option may be cut short as long as it is the only one that begins so (argparse, allow_abbrev).
LONG_FLAGS = tuple(flag for flag in OWN_FLAGS if flag.startswith("--"))
# What the command line may say otherwise.
OVERRIDING = (
    "nodes",
    "min_nodes",
    "devices",
    "start_port",
    "rendezvous",
    "scaling",
    "max_restarts",
)
# What read_job puts into a job beside its keys.
ADDED = ("name", "file", "lines", "from_command_line", "places")
# What of a job only people read.
FOR_PEOPLE = ("description", "source", "document", "upstream", "published")
PORTS = (10000, 20000)


@functools.lru_cache(maxsize=None)
def load_schema(name):
    """Return one of the schemas in schemas/ (job, site); the job's knows the suites and launchers
    that there are tables for.
    """
    value, _lines, problems = yaml_source.read(os.path.join(HERE, "schemas", name + ".yml"))
    if problems:
        raise ValueError("; ".join(str(p) for p in problems))
    if name == "job":
        value["properties"]["suite"] = {"enum": suite_table.names()}
        value["properties"]["launcher"] = {"enum": sorted(LAUNCHERS)}
    return value


def load_suite(name):
    """Return a suite's table from suites/<name>.yml; the name has passed the job schema."""
    return suite_table.load(name)


def shipped_jobs(folder):
    """Return the names of the jobs that ship in playbooks/configs/."""
    return (
        sorted(name[:-4] for name in os.listdir(folder) if name.endswith(".yml"))
        if os.path.isdir(folder)
        else []
    )


def find_job(config, folder, cwd):
    """Return (path, shown, problems) of the job that `-e config=...` names.

    config: a shipped job's name (no slash, '.yml' may be left out) or a path that ends in .yml to a
    job file of the user's own.
    """
    jobs = shipped_jobs(folder)
    where = "command line"
    if not isinstance(config, str) or not config.strip():
        return (
            None,
            None,
            [
                Problem(
                    where,
                    None,
                    "config",
                    "say which job: -e config=NAME, one of {}, or the path of a .yml file".format(
                        ", ".join(jobs)
                    ),
                )
            ],
        )
    if "/" not in config:
        name = config[:-4] if config.endswith(".yml") else config
        if name in jobs:
            return os.path.join(folder, name + ".yml"), f"playbooks/configs/{name}.yml", []
        if not (
            config.endswith(".yml")
            and os.path.lexists(os.path.join(cwd, config))
            and re.fullmatch(r"[\w.+-]+", config)
        ):
            return (
                None,
                None,
                [
                    Problem(
                        where,
                        None,
                        "config",
                        "no job {!r}; allowed: {}, or the path of a .yml file{}".format(
                            config, ", ".join(jobs), near(name, jobs)
                        ),
                    )
                ],
            )
    named = config.endswith(".yml") and os.path.basename(config) != ".yml"
    if not named or config.startswith("-") or not config.isprintable():
        text = "{!r} is neither the name of a job ({}) nor a path that ends in .yml".format(
            config,
            ", ".join(jobs),
        )
        return None, None, [Problem(where, None, "config", text)]
    path = os.path.join(cwd, os.path.expanduser(config))
    if not os.path.exists(path):
        text = f"no such file {path}{near(os.path.basename(config)[:-4], jobs)}"
        return None, None, [Problem(where, None, "config", text)]
    return path, config, []


def read_job(path, shown):
    """Return (job, problems): the job file's content with defaults filled in, its name and where it
    was read; no job where there is a problem.
    """
    job, problems = examine(path, shown)
    return (None if problems else job), problems


def examine(path, shown):
    """Return (job, problems) as read_job does, but with a job as long as there is a suite to judge
    it by: wrong keys are left out of it.

    So the command line and the site are judged in the same report. job["lines"] maps dotted keys to
    their lines in the file.
    """
    value, lines, problems = yaml_source.read(path, shown)
    if problems:
        return None, problems
    if not isinstance(value, dict):
        return None, [
            Problem(shown, 1, "", f"must be a mapping of keys, got a {type(value).__name__}")
        ]
    problems = yaml_source.check(value, load_schema("job"), lines, shown)
    wrong = {problem.key.split(".")[0] for problem in problems}
    sound = {key: item for key, item in value.items() if key not in wrong}
    named = (
        (("env", name), job_env.job_problem(name))
        for name in _names(value.get("env"))
        if not RESERVED_ENV.match(name)
    )
    for path_of, text in [
        *_meaning(sound, value),
        *((where, said) for where, said in named if said),
    ]:
        line = next(
            (lines[path_of[:n]] for n in range(len(path_of), 0, -1) if path_of[:n] in lines), None
        )
        problems.append(Problem(shown, line, yaml_source.dotted(path_of), text))
    wrong = {problem.key.split(".")[0] for problem in problems}
    if "suite" not in sound or "launcher" not in sound:
        return None, problems
    job = dict(
        dict(JOB_DEFAULTS, config=""),
        **{key: item for key, item in value.items() if key not in wrong - {"suite", "launcher"}},
    )
    job["name"] = os.path.basename(path)[:-4]
    job["file"] = shown
    job["lines"] = {yaml_source.dotted(key): line for key, line in lines.items() if key}
    return job, problems


def recorded(value, shown):
    """Return (job, problems) of a run's job.json: the job as it was read for the start, with what
    the command line had changed.

    It is held against the schema again: it may come from a node, or from an older Trainyard whose
    jobs had fewer keys. Variables that a job may no longer set stay in a run that began with them;
    `resuming.job_of` refuses them where the copy is a node's.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None, [Problem(shown, None, "", "is no job that was read for a run")]
    keys = {key: item for key, item in value.items() if key not in ADDED and item is not None}
    problems = yaml_source.check(keys, load_schema("job"), {}, shown)
    wrong = {problem.key.split(".")[0] for problem in problems}
    sound = {key: item for key, item in keys.items() if key not in wrong}
    problems += [
        Problem(shown, None, yaml_source.dotted(path), text) for path, text in _meaning(sound, keys)
    ]
    if problems:
        return None, problems
    lines = value.get("lines") if isinstance(value.get("lines"), dict) else {}
    # the nodes of the first attempt; a run keeps them whoever takes part later
    places = [name for name in value.get("places") or () if isinstance(name, str)]
    more = {"places": places} if places else {}
    return (
        dict(
            JOB_DEFAULTS,
            **keys,
            name=value["name"],
            file=str(value.get("file") or shown),
            lines=lines,
            **more,
        ),
        [],
    )


def _names(env):
    """Return the names of a job's environment that are texts."""
    return [name for name in env if isinstance(name, str)] if isinstance(env, dict) else []


def _meaning(sound, value):
    """Yield (key path, what is wrong) that no schema can say; sound: the keys that passed it,
    value: all of them.
    """
    for name in _names(value.get("env")):
        if RESERVED_ENV.match(name):
            yield ("env", name), "is reserved: the plan sets it; take it out"
    for key, item in sound.items():
        for where, text in text_rules.walk(item, (key,), people=key in FOR_PEOPLE):
            yield where, text
    suite = load_suite(sound["suite"]) if "suite" in sound else None
    if suite and sound.get("launcher", suite["launchers"][0]) not in suite["launchers"]:
        text = "{} cannot be started with {}; allowed: {}".format(
            suite["title"],
            sound["launcher"],
            ", ".join(suite["launchers"]),
        )
        yield ("launcher",), text
    if "launcher" in sound and "rendezvous" in sound and rendezvous_problem(sound):
        yield ("rendezvous",), rendezvous_problem(sound)
    for where, text in watchdog_budgets.problems(sound.get("watchdog")):
        yield ("watchdog", *where), text
    words = sound.get("arguments") or []
    for word in words:
        if own_flag(word):
            # The suites' scripts take each of them once: a second one would silently replace ours,
            # with everything that was checked.
            yield (
                ("arguments",),
                (
                    f"{word!r} is set by the plan; write config values under 'overrides' and the"
                    " file under 'config'"
                ),
            )
    for where, folder in save_folders(suite, words, sound.get("overrides") or {}) if suite else ():
        text = suite_table.save_problem(suite, folder) if isinstance(folder, str) else None
        if text:
            yield where, text


def own_flag(word):
    """Whether a word of the arguments is one of the plan's own options: whole, cut short (--conf),
    or with its value at its heels (-oepoch=1).
    """
    option = word.partition("=")[0]
    short = option[:2] in OWN_FLAGS and not option.startswith("--")
    return (
        short
        or option in LONG_FLAGS
        or (len(option) > 4 and any(flag.startswith(option) for flag in LONG_FLAGS))
    )


def save_folders(suite, words, overrides):
    """Return [(key path, folder)]: where a job itself says that checkpoints go, by override or by
    an option of the suite's script.
    """
    key = suite["config_keys"].get("save")
    found = [(("overrides", key), overrides[key])] if key in overrides else []
    for option, name in suite["argument_keys"].items():
        if name == "save" and suite_table.argument(words, option) is not None:
            found.append((("arguments",), suite_table.argument(words, option)))
    return found


def port_warnings(job, site):
    """Return what a user is told of a start port that is allowed and not recommended (contract B5:
    10000 to 20000).
    """
    said = job.get("start_port") or site["start_port"]
    if not isinstance(said, int) or PORTS[0] <= said <= PORTS[1]:
        return []
    key = "start_port" if job.get("start_port") else "trainyard_start_port"
    text = "%d is allowed; recommended are ports from %d to %d" % ((said,) + PORTS)
    return [Problem(place_of(job, key) if key == "start_port" else "inventory", None, key, text)]


def place_of(job, key):
    """Return where a job's value was said: 'command line', or the file with its line."""
    if key in job.get("from_command_line", ()):
        return "command line"
    line = (job.get("lines") or {}).get(key)
    return job["file"] if line is None else "%s:%d" % (job["file"], line)


def scaling_problem(job):
    """Say what is wrong with a job's `scaling`, or return None."""
    known = ("advise", "apply")
    return (
        None
        if job["scaling"] in known
        else "must be advise or apply; got {}{}".format(
            yaml_source.shown(job["scaling"]), near(job["scaling"], known)
        )
    )


def rendezvous_problem(job):
    """Say what is wrong with a job's rendezvous for its launcher, or return None."""
    wanted, known = job.get("rendezvous"), sorted(LAUNCHERS[job["launcher"]]["rendezvous"])
    if wanted is None or wanted in known:
        return None
    text = "%s has no rendezvous %s; allowed: %s%s"
    return text % (
        job["launcher"],
        yaml_source.shown(wanted),
        ", ".join(known) or "none, leave it out",
        near(wanted, known),
    )


def whole_number(name, value, problems, allow_all=True, least=1):
    """Return a command line's count as int ('-e nodes=2' is the text '2' to Ansible), or 'all';
    note a problem otherwise.
    """
    if allow_all and value == "all":
        return value
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        problems.append(
            Problem(
                "command line",
                None,
                name,
                "must be a whole number from %d up%s; got %s"
                % (least, " or 'all'" if allow_all else "", yaml_source.shown(value)),
            )
        )
        return None
    return int(text)


def command_line(extra, allowed, role_variables=()):
    """Hold the names given with -e against those a verb knows; Ansible itself takes a misspelt one
    without a word (facts, Ansible 2.19).
    """
    problems = []
    for name in sorted(extra):
        if (
            name in allowed
            or name in role_variables
            or name in SITE_VARIABLES
            or name.startswith("ansible_")
        ):
            continue
        if name == "_raw_params":  # what Ansible calls the words of -e that it could not split
            text = (
                f"words of -e that are no NAME=VALUE: {yaml_source.shown(extra[name])}; quote a value"
                " with blanks"
            )
            problems.append(Problem("command line", None, "", text))
            continue
        text = "unknown variable; allowed: {}, the site's trainyard_* variables and the roles' own{}".format(
            ", ".join(sorted(allowed)),
            near(name, set(allowed) | set(role_variables) | set(SITE_VARIABLES)),
        )
        problems.append(Problem("command line", None, name, text))
    return problems


def apply_command_line(job, extra, problems):
    """Return the job with what the command line overrides: nodes, min_nodes, devices, start_port,
    rendezvous, scaling, max_restarts.
    """
    job = dict(job)
    given = [name for name in OVERRIDING if name in extra]
    for name, check in (("rendezvous", rendezvous_problem), ("scaling", scaling_problem)):
        if name in extra:
            job[name] = extra[name]
            said = check(job)
            problems += [Problem("command line", None, name, said)] if said else []
    for name in ("nodes", "devices"):
        if name in extra:
            job[name] = whole_number(name, extra[name], problems)
    if "min_nodes" in extra:
        job["min_nodes"] = whole_number("min_nodes", extra["min_nodes"], problems, allow_all=False)
    if "max_restarts" in extra:
        said = extra["max_restarts"]
        none = str(said) == "0" and not isinstance(said, bool)
        job["max_restarts"] = (
            0 if none else whole_number("max_restarts", said, problems, allow_all=False, least=0)
        )
    if "start_port" in extra:
        port = whole_number("start_port", extra["start_port"], problems, allow_all=False)
        if port is not None and not 1024 <= port <= 65535:
            problems.append(
                Problem(
                    "command line",
                    None,
                    "start_port",
                    "must be a port from 1024 to 65535; got %d" % port,
                )
            )
            port = None
        job["start_port"] = port
    if given:
        job["from_command_line"] = given
    return job
