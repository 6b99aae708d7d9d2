# SPDX-License-Identifier: Apache-2.0
"""A job and the command line as data, with every problem (docs/design.md, 12).

No node is touched.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import text_rules, value_text
from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import suggest
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import job_env
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import (
    suite_table,
    watchdog_budgets,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.suites.launcher_table import (
    LAUNCHERS,
)

from ..base import yaml_source
from ..base.yaml_source import Problem
from ..suites import suite_file
from .config_types import Job, Site, Suite
from .switch import parse_switch

KeyPath = tuple[Any, ...]
# (key path, text, code) of a problem.
KeyProblem = tuple[KeyPath, str, str]

HERE = os.path.dirname(os.path.abspath(__file__))

# Names that decide how the ranks find each other, or that would let a job load other code: they
# come from the plan alone (fact 11).
RESERVED_ENV = re.compile(
    r"^(PADDLE_|FLAGS_START_PORT|FLAGS_selected|TRAINING_ROLE|POD_|GLOO_SOCKET|NCCL_SOCKET_IFNAME"
    r"|CUDA_VISIBLE_DEVICES|LD_PRELOAD|LD_AUDIT|PATH$|HOME$|USER$|PYTHONHOME|PYTHONSTARTUP|RANK"
    r"|WORLD_SIZE|MS_|DEVICE_ID$|DEVICE_NUM$|OMPI_|PMIX_|ASCEND_RT_VISIBLE_DEVICES$|PORT_RANGE$"
    r"|TRAINYARD_)"
)
# Every variable a site may set for the whole product. A misspelt one would otherwise be ignored
# without a message.
SITE_VARIABLES = (
    "trainyard_accelerator",
    "trainyard_address",
    "trainyard_admin_key",
    "trainyard_admin_user",
    "trainyard_cache_dir",
    "trainyard_collect_bytes",
    "trainyard_collect_files",
    "trainyard_collect_free",
    "trainyard_devices",
    "trainyard_device_hours_per_fault",
    "trainyard_env",
    "trainyard_home",
    "trainyard_host_fingerprints",
    "trainyard_metrics_dir",
    "trainyard_notify",
    "trainyard_replica_rate",
    "trainyard_runs_dir",
    "trainyard_secret_env",
    "trainyard_site",
    "trainyard_start_port",
    "trainyard_state_dir",
    "trainyard_suites",
)
# The options that give the suites' scripts their config file and its overrides.
OWN_OPTIONS = ("-c", "--config", "-o", "--opt", "--opts")
JOB_DEFAULTS: dict[str, Any] = {
    "arguments": [],
    "overrides": {},
    "nodes": "all",
    "devices": "all",
    "env": {},
    "published": [],
    "scaling": "advise",
    "max_restarts": 0,
}
# Restarts of a run that its nodes restart, where neither job nor command line says how many.
DETACHED_RESTARTS = 3


# An option may be cut short as long as it is the only one that begins so (argparse, allow_abbrev).
LONG_OPTIONS = tuple(flag for flag in OWN_OPTIONS if flag.startswith("--"))
# Keys of a job that the command line may override.
OVERRIDING = (
    "nodes",
    "min_nodes",
    "devices",
    "start_port",
    "rendezvous",
    "scaling",
    "max_restarts",
    "detach",
    "checkpoint_every",
)
# Fields that job_config adds to a job's keys.
ADDED_KEYS = ("name", "file", "lines", "from_command_line", "places")
# Keys of a job that only people read.
FOR_PEOPLE = ("description", "source", "document", "upstream", "published")
RECOMMENDED_PORTS = (10000, 20000)


@functools.lru_cache(maxsize=None)
def load_schema(name: str) -> dict[str, Any]:
    """Return one of the schemas in schemas/ (job, site).

    The job's schema knows the suites and launchers that have a table.
    """
    value, _lines, problems = yaml_source.read(os.path.join(HERE, "schemas", name + ".yml"))
    if problems:
        raise ValueError("; ".join(str(problem) for problem in problems))
    if name == "job":
        value["properties"]["suite"] = {"enum": suite_file.names()}
        value["properties"]["launcher"] = {"enum": sorted(LAUNCHERS)}
    return value


def load_suite(name: str) -> Suite:
    """Return a suite's table from suites/<name>.yml.

    name: has passed the job schema.
    """
    return suite_file.load(name)


def shipped_jobs(folder: str) -> list[str]:
    """Return the names of the jobs that ship in playbooks/configs/."""
    if not os.path.isdir(folder):
        return []
    return sorted(name[:-4] for name in os.listdir(folder) if name.endswith(".yml"))


def find_job(config: Any, folder: str, cwd: str) -> tuple[str | None, str | None, list[Problem]]:
    """Return (path, shown, problems) of the job that `-e config=...` names.

    config: a shipped job's name (no slash, '.yml' may be left out) or a path that ends in .yml to a
    job file of the user's own.
    """
    jobs = shipped_jobs(folder)
    known = ", ".join(jobs)
    if not isinstance(config, str) or not config.strip():
        return _no_job(
            f"say which job: -e config=NAME, one of {known}, or the path of a .yml file",
            code="cli.job_missing",
        )
    if "/" not in config:
        name = config
        if config.endswith(".yml"):
            name = config[:-4]
        if name in jobs:
            return os.path.join(folder, name + ".yml"), f"playbooks/configs/{name}.yml", []
        if not _is_file_name(config, cwd):
            text = f"no job {config!r}; allowed: {known}, or the path of a .yml file"
            return _no_job(text + suggest(name, jobs), code="cli.unknown_job")
    if config.endswith(".yaml") and config.isprintable() and not config.startswith("-"):
        return _no_job(
            f"{config!r} ends in .yaml, and the name of a job file ends in .yml; rename it to"
            f" {os.path.basename(config)[:-5]}.yml",
            code="cli.bad_job_path",
        )
    is_path = config.endswith(".yml") and os.path.basename(config) != ".yml"
    if not is_path or config.startswith("-") or not config.isprintable():
        return _no_job(
            f"{config!r} is neither the name of a job ({known}) nor a path that ends in .yml",
            code="cli.bad_job_path",
        )
    path = os.path.join(cwd, os.path.expanduser(config))
    if not os.path.exists(path):
        return _no_job(
            f"no such file {path}{_suggest_file(path, jobs)}",
            code="cli.no_such_file",
        )
    return path, config, []


def _suggest_file(path: str, jobs: Sequence[str]) -> str:
    """Return the nearest name of a job for a path that leads nowhere, or ''.

    A file beside it comes first, then a shipped job.
    """
    folder, name = os.path.split(path)
    try:
        beside = sorted(entry for entry in os.listdir(folder) if entry.endswith((".yml", ".yaml")))
    except OSError:
        beside = []
    return suggest(name, beside) or suggest(name[:-4], jobs)


def _no_job(text: str, code: str) -> tuple[None, None, list[Problem]]:
    """Return what find_job returns where there is no job. text, code: of the problem."""
    return None, None, [Problem("command line", None, "config", text, code=code)]


def _is_file_name(config: str, cwd: str) -> bool:
    """Return whether a word without a slash names a job file in the working directory."""
    return (
        config.endswith(".yml")
        and os.path.lexists(os.path.join(cwd, config))
        and bool(re.fullmatch(r"[\w.+-]+", config))
    )


def read_job(path: str, shown: str) -> tuple[Job | None, list[Problem]]:
    """Return (job, problems): the job file's content, its name and where it was read.

    Missing keys have their defaults. There is no job where there is a problem.
    """
    job, problems = read_partial_job(path, shown)
    if problems:
        return None, problems
    return job, problems


def read_partial_job(path: str, shown: str) -> tuple[Job | None, list[Problem]]:
    """Return (job, problems) as read_job does, but with a job in spite of problems.

    So the command line and the site are judged in the same report. Wrong keys are left out of the
    job. Without a suite and a launcher to judge it by, no job is returned. job["lines"] maps dotted
    keys to their lines in the file.
    """
    value, lines, problems = yaml_source.read(path, shown)
    if problems:
        return None, problems
    if not isinstance(value, dict):
        text = f"must be a mapping of keys, got a {type(value).__name__}"
        return None, [Problem(shown, 1, "", text, code="value.wrong_type")]
    problems = yaml_source.validate(value, load_schema("job"), lines, shown)
    wrong = _top_keys(problems)
    valid = {key: item for key, item in value.items() if key not in wrong}
    for key_path, text, code in [*_find_conflicts(valid, value), *_env_problems(value)]:
        line = _line_of(key_path, lines)
        problems.append(Problem(shown, line, yaml_source.dotted_key(key_path), text, code=code))
    if "suite" not in valid or "launcher" not in valid:
        return None, problems
    wrong = _top_keys(problems) - {"suite", "launcher"}
    job = dict(JOB_DEFAULTS, config="")
    job.update({key: item for key, item in value.items() if key not in wrong})
    if "max_restarts" not in value:
        job["max_restarts"] = _default_restarts(job.get("detach") is True)
    job["name"] = os.path.basename(path)[:-4]
    job["file"] = shown
    job["lines"] = {yaml_source.dotted_key(key): line for key, line in lines.items() if key}
    return job, problems


def _default_restarts(is_detached: bool) -> int:
    """Return the number of restarts of a run for which nobody has given one."""
    if is_detached:
        return DETACHED_RESTARTS
    return JOB_DEFAULTS["max_restarts"]


def _top_keys(problems: Sequence[Problem]) -> set[str]:
    """Return the keys of the job's top level that have a problem."""
    return {problem.key.split(".")[0] for problem in problems}


def _line_of(key_path: KeyPath, lines: Mapping[KeyPath, int]) -> int | None:
    """Return the line of a key, else of the nearest key above it, or None."""
    for length in range(len(key_path), 0, -1):
        if key_path[:length] in lines:
            return lines[key_path[:length]]
    return None


def _env_problems(value: Mapping[str, Any]) -> Iterator[KeyProblem]:
    """Yield (key path, text, code) of the environment variables that a job may not set."""
    code = "job.forbidden_variable"
    for name in _names(value.get("env")):
        if not RESERVED_ENV.match(name):
            text = job_env.job_problem(name)
            if text:
                yield ("env", name), text, code


def read_recorded_job(value: Any, shown: str) -> tuple[Job | None, list[Problem]]:
    """Return (job, problems) of a run's job.json: the job as read for the start.

    It has what the command line had changed. It is compared with the schema again: it may come from
    a node, or from an older Trainyard whose jobs had fewer keys. Variables that a job may no longer
    set stay in a run that began with them. `resume_decision.choose_job` refuses them where the copy
    is a node's.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None, [
            Problem(shown, None, "", "is no job that was read for a run", code="job.bad_record")
        ]
    keys = {key: item for key, item in value.items() if key not in ADDED_KEYS and item is not None}
    problems = yaml_source.validate(keys, load_schema("job"), {}, shown)
    wrong = _top_keys(problems)
    valid = {key: item for key, item in keys.items() if key not in wrong}
    for path, text, code in _find_conflicts(valid, keys):
        problems.append(Problem(shown, None, yaml_source.dotted_key(path), text, code=code))
    if problems:
        return None, problems
    lines = value.get("lines")
    if not isinstance(lines, dict):
        lines = {}
    job = dict(JOB_DEFAULTS, **keys)
    job.update(name=value["name"], file=str(value.get("file") or shown), lines=lines)
    # the nodes of the first attempt; a run keeps them whichever nodes take part later
    places = [name for name in value.get("places") or () if isinstance(name, str)]
    if places:
        job["places"] = places
    return job, []


def _names(env: Any) -> list[str]:
    """Return the names of a job's environment that are texts."""
    if not isinstance(env, dict):
        return []
    return [name for name in env if isinstance(name, str)]


def _find_conflicts(valid: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[KeyProblem]:
    """Yield (key path, text, code) of the problems that no schema can describe.

    valid: the keys that passed the schema. value: all of them.
    """
    for name in _names(value.get("env")):
        if not RESERVED_ENV.match(name):
            continue
        text, code = "is reserved: the plan sets it; take it out", "job.reserved_variable"
        if job_env.FORBIDDEN_ENV.match(name):
            text, code = str(job_env.job_problem(name)), "job.forbidden_variable"
        yield ("env", name), text, code
    for key, item in valid.items():
        code = "value.bad_text"
        for key_path, text in text_rules.walk(item, (key,), people=key in FOR_PEOPLE):
            yield key_path, text, code
    suite = None
    if "suite" in valid:
        suite = load_suite(valid["suite"])
        yield from _launcher_problems(suite, valid)
    if "launcher" in valid and "rendezvous" in valid:
        reason = rendezvous_problem(valid)
        if reason:
            yield ("rendezvous",), reason, CODE_OF_OPTION["rendezvous"]
    for key_path, text in watchdog_budgets.problems(valid.get("watchdog")):
        code = "job.bad_watchdog"
        yield ("watchdog", *key_path), text, code
    arguments = valid.get("arguments") or []
    yield from _own_options(arguments)
    if suite:
        yield from _save_problems(suite, arguments, valid.get("overrides") or {})


def _own_options(arguments: Sequence[str]) -> Iterator[KeyProblem]:
    """Yield (key path, text, code) of the arguments that the plan sets itself.

    The suites' scripts take each of them once: a second one would silently replace ours, with
    everything that was checked.
    """
    for word in filter(is_own_option, arguments):
        text = (
            f"{word!r} is set by the plan; write config values under 'overrides' and the file"
            " under 'config'"
        )
        code = "job.own_option"
        yield ("arguments",), text, code


def _launcher_problems(suite: Suite, valid: Mapping[str, Any]) -> Iterator[KeyProblem]:
    """Yield (key path, text, code) of a launcher that the suite does not have."""
    code = "job.launcher_not_in_suite"
    allowed = suite["launchers"]
    launcher = valid.get("launcher", allowed[0])
    if launcher not in allowed:
        text = f"{suite['title']} cannot be started with {launcher}; allowed: {', '.join(allowed)}"
        yield ("launcher",), text, code


def _save_problems(
    suite: Suite, arguments: Sequence[str], overrides: Mapping[str, Any]
) -> Iterator[KeyProblem]:
    """Yield (key path, text, code) of folders that checkpoints may not go to."""
    code = "job.bad_save_folder"
    for key_path, folder in save_folders(suite, arguments, overrides):
        if isinstance(folder, str):
            text = suite_table.save_problem(suite, folder)
            if text:
                yield key_path, text, code


def is_own_option(word: str) -> bool:
    """Return whether a word of the arguments is one of the plan's own options.

    The option may be whole, cut short (--conf), or joined with its value (-oepoch=1).
    """
    option = word.partition("=")[0]
    short = option[:2] in OWN_OPTIONS and not option.startswith("--")
    return (
        short
        or option in LONG_OPTIONS
        or (len(option) > 4 and any(flag.startswith(option) for flag in LONG_OPTIONS))
    )


def save_folders(
    suite: Suite, words: Sequence[str], overrides: Mapping[str, Any]
) -> list[tuple[KeyPath, Any]]:
    """Return [(key path, folder)] of a job's own folders for checkpoints.

    A job gives one by an override, or by an option of the suite's script.
    """
    key = suite["config_keys"].get("save")
    folders: list[tuple[KeyPath, Any]] = []
    if key in overrides:
        folders.append((("overrides", key), overrides[key]))
    for option, name in suite["argument_keys"].items():
        if name == "save" and suite_table.option_value(words, option) is not None:
            folders.append((("arguments",), suite_table.option_value(words, option)))
    return folders


def port_warnings(job: Job, site: Site) -> list[Problem]:
    """Return a Problem for a start port that is allowed and not recommended.

    Contract B5 recommends 10000 to 20000.
    """
    port = job.get("start_port") or site["start_port"]
    lowest, highest = RECOMMENDED_PORTS
    if not isinstance(port, int) or lowest <= port <= highest:
        return []
    text = f"{port} is allowed; recommended are ports from {lowest} to {highest}"
    if job.get("start_port"):
        return [
            Problem(
                location_of(job, "start_port"),
                None,
                "start_port",
                text,
                code="job.port_not_recommended",
            )
        ]
    return [
        Problem("inventory", None, "trainyard_start_port", text, code="job.port_not_recommended")
    ]


# The code of an option of the job that names something unknown.
CODE_OF_OPTION = {"rendezvous": "job.unknown_rendezvous", "scaling": "job.unknown_scaling"}


def location_of(job: Job, key: str) -> str:
    """Return where a job's value was given: 'command line', or the file with its line."""
    if key in job.get("from_command_line", ()):
        return "command line"
    line = (job.get("lines") or {}).get(key)
    if line is None:
        return job["file"]
    return f"{job['file']}:{line}"


def scaling_problem(job: Job) -> str | None:
    """Say what is wrong with a job's `scaling`, or return None."""
    value, known = job["scaling"], ("advise", "apply")
    if value in known:
        return None
    return f"must be advise or apply; got {value_text.abbreviate(value)}{suggest(value, known)}"


def rendezvous_problem(job: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a job's rendezvous for its launcher, or return None."""
    value, known = job.get("rendezvous"), sorted(LAUNCHERS[job["launcher"]]["rendezvous"])
    if value is None or value in known:
        return None
    return (
        f"{job['launcher']} has no rendezvous {value_text.abbreviate(value)}; allowed:"
        f" {', '.join(known) or 'none, leave it out'}{suggest(value, known)}"
    )


def parse_count(
    name: str, value: Any, problems: list[Problem], allow_all: bool = True, least: int = 1
) -> Any:
    """Return a command line's count as int, or 'all', or None with a problem.

    '-e nodes=2' is the text '2' to Ansible.
    """
    if allow_all and value == "all":
        return value
    text = str(value)
    if not isinstance(value, bool) and re.fullmatch(r"[1-9][0-9]{0,5}", text):
        return int(text)
    alternative = ""
    if allow_all:
        alternative = " or 'all'"
    text = (
        f"must be a whole number from {least} up{alternative}; got {value_text.abbreviate(value)}"
    )
    problems.append(Problem("command line", None, name, text, code="value.not_a_count"))
    return None


def unknown_variables(
    extra: Mapping[str, Any], allowed: Collection[str], role_variables: Collection[str] = ()
) -> list[Problem]:
    """Return a Problem for each name given with -e that a verb does not know.

    Ansible itself takes a misspelt one without a message (facts, Ansible 2.19).
    """
    known = set(allowed) | set(role_variables) | set(SITE_VARIABLES)
    problems = []
    for name in sorted(extra):
        if name in known or name.startswith("ansible_"):
            continue
        if name == "_raw_params":  # Ansible's name for the words of -e that it could not split
            text = (
                f"words of -e that are no NAME=VALUE: {value_text.abbreviate(extra[name])}; quote a"
                " value with blanks"
            )
            problems.append(Problem("command line", None, "", text, code="cli.not_a_pair"))
            continue
        text = (
            f"unknown variable; allowed: {', '.join(sorted(allowed))}, the site's trainyard_*"
            f" variables and the roles' own{suggest(name, known)}"
        )
        problems.append(Problem("command line", None, name, text, code="cli.unknown_option"))
    return problems


def apply_command_line(job: Job, extra: Mapping[str, Any], problems: list[Problem]) -> Job:
    """Return the job with the values of the command line, and note their problems.

    The command line may give nodes, min_nodes, devices, start_port, rendezvous, scaling,
    max_restarts, detach and checkpoint_every.
    """
    job = dict(job)
    for name, find_problem in (("rendezvous", rendezvous_problem), ("scaling", scaling_problem)):
        if name in extra:
            job[name] = extra[name]
            text = find_problem(job)
            if text:
                problems.append(
                    Problem("command line", None, name, text, code=CODE_OF_OPTION[name])
                )
    if "nodes" in extra:
        job["nodes"] = _read_nodes(extra["nodes"], problems)
    if "devices" in extra:
        job["devices"] = parse_count("devices", extra["devices"], problems)
    if "min_nodes" in extra:
        job["min_nodes"] = parse_count("min_nodes", extra["min_nodes"], problems, allow_all=False)
    if "detach" in extra:
        job["detach"] = parse_switch(extra["detach"]) is True
        if "max_restarts" not in (job.get("lines") or {}):
            job["max_restarts"] = _default_restarts(job["detach"])
    if "max_restarts" in extra:
        job["max_restarts"] = _read_max_restarts(extra["max_restarts"], problems)
    if "checkpoint_every" in extra:
        job["checkpoint_every"] = extra["checkpoint_every"]  # extra_vars has checked it
    if "start_port" in extra:
        job["start_port"] = _read_start_port(extra["start_port"], problems)
    overridden = [name for name in OVERRIDING if name in extra]
    if overridden:
        job["from_command_line"] = overridden
    return job


_NUMERIC = re.compile(r"[+-]?[0-9]*[.]?[0-9]*(?:[eE][+-]?[0-9]+)?", re.ASCII)


def _read_nodes(value: Any, problems: list[Problem]) -> int | str | list[str] | None:
    """Return the number of nodes that the command line gives, 'all', their names, or None.

    Names have commas between them. Whether they are the site's is asked later. A text that was
    meant as a number is no name.
    """
    names = value
    if isinstance(value, str) and value != "all" and not _NUMERIC.fullmatch(value):
        names = [name.strip() for name in value.split(",")]
    if isinstance(names, list) and names and all(isinstance(it, str) and it for it in names):
        return [str(name) for name in names]
    return parse_count("nodes", value, problems)


def _read_max_restarts(value: Any, problems: list[Problem]) -> int | None:
    """Return the number of restarts that the command line allows, or None."""
    if str(value) == "0" and not isinstance(value, bool):
        return 0
    return parse_count("max_restarts", value, problems, allow_all=False, least=0)


def _read_start_port(value: Any, problems: list[Problem]) -> int | None:
    """Return the start port that the command line gives, or None."""
    port = parse_count("start_port", value, problems, allow_all=False)
    if port is not None and not 1024 <= port <= 65535:
        text = f"must be a port from 1024 to 65535; got {port}"
        problems.append(Problem("command line", None, "start_port", text, code="value.bad_port"))
        return None
    return port
