# SPDX-License-Identifier: Apache-2.0
"""Read a job and the command line as data; every problem at once, no node touched (design, decision 12). Controller only."""

from __future__ import annotations

import json
import os
import re

from ansible.module_utils.trainyard import suites, yamldata
from ansible.module_utils.trainyard.launchers import LAUNCHERS
from ansible.module_utils.trainyard.yamldata import Problem, near

HERE = os.path.dirname(os.path.abspath(__file__))

# Names that decide how the ranks find each other, or that would let a job load other code: they come from the plan alone (fact 11).
RESERVED_ENV = re.compile(
    r"^(PADDLE_|FLAGS_START_PORT|FLAGS_selected|TRAINING_ROLE|POD_|GLOO_SOCKET|NCCL_SOCKET_IFNAME|CUDA_VISIBLE_DEVICES|LD_PRELOAD|LD_AUDIT"
    r"|PATH$|HOME$|USER$|PYTHONHOME|PYTHONSTARTUP|RANK|WORLD_SIZE|MS_|DEVICE_ID$|DEVICE_NUM$|OMPI_|PMIX_|ASCEND_RT_VISIBLE_DEVICES$|PORT_RANGE$|TRAINYARD_)"
)
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
}


def load_schema(name):
    """Return one of the schemas in schemas/ (job, site); the job's knows the suites and launchers that there are tables for."""
    value, _lines, problems = yamldata.read(os.path.join(HERE, "schemas", name + ".yml"))
    if problems:
        raise ValueError("; ".join(str(p) for p in problems))
    if name == "job":
        value["properties"]["suite"] = {"enum": suites.names()}
        value["properties"]["launcher"] = {"enum": sorted(LAUNCHERS)}
    return value


def load_suite(name):
    """Return a suite's table from suites/<name>.yml; the name has passed the job schema."""
    return suites.load(name)


def shipped_jobs(folder):
    """Return the names of the jobs that ship in playbooks/configs/."""
    return sorted(name[:-4] for name in os.listdir(folder) if name.endswith(".yml")) if os.path.isdir(folder) else []


def find_job(config, folder, cwd):
    """Return (path, shown, problems) of the job that `-e config=...` names.

    config: a shipped job's name (no slash, '.yml' may be left out) or a path that ends in .yml to a job file of the user's own.
    """
    jobs = shipped_jobs(folder)
    where = "command line"
    if not isinstance(config, str) or not config.strip():
        return (
            None,
            None,
            [Problem(where, None, "config", "say which job: -e config=NAME, one of %s, or the path of a .yml file" % ", ".join(jobs))],
        )
    if "/" not in config:
        name = config[:-4] if config.endswith(".yml") else config
        if name in jobs:
            return os.path.join(folder, name + ".yml"), "playbooks/configs/%s.yml" % name, []
        if not (config.endswith(".yml") and os.path.lexists(os.path.join(cwd, config)) and re.fullmatch(r"[\w.+-]+", config)):
            return (
                None,
                None,
                [
                    Problem(
                        where,
                        None,
                        "config",
                        "no job %r; allowed: %s, or the path of a .yml file%s" % (config, ", ".join(jobs), near(name, jobs)),
                    )
                ],
            )
    if not config.endswith(".yml") or config.startswith("-") or not config.isprintable():
        text = "%r is neither the name of a job (%s) nor a path that ends in .yml" % (config, ", ".join(jobs))
        return None, None, [Problem(where, None, "config", text)]
    path = os.path.join(cwd, os.path.expanduser(config))
    if not os.path.exists(path):
        text = "no such file %s%s" % (path, near(os.path.basename(config)[:-4], jobs))
        return None, None, [Problem(where, None, "config", text)]
    return path, config, []


def read_job(path, shown):
    """Return (job, problems): the job file's content with defaults filled in, its name and where it was read."""
    value, lines, problems = yamldata.read(path, shown)
    if problems:
        return None, problems
    if not isinstance(value, dict):
        return None, [Problem(shown, 1, "", "must be a mapping of keys, got a %s" % type(value).__name__)]
    problems = yamldata.check(value, load_schema("job"), lines, shown)
    env = value.get("env")
    for name in env if isinstance(env, dict) else ():
        if RESERVED_ENV.match(str(name)):
            problems.append(Problem(shown, lines.get(("env", name)), "env.%s" % name, "is reserved: the plan sets it; take it out"))
    if problems:
        return None, problems
    suite = load_suite(value["suite"])
    if value["launcher"] not in suite["launchers"]:
        text = "%s cannot be started with %s; allowed: %s" % (suite["title"], value["launcher"], ", ".join(suite["launchers"]))
        return None, [Problem(shown, lines.get(("launcher",)), "launcher", text)]
    for word in value.get("arguments") or []:
        if word.partition("=")[0] in OWN_FLAGS:
            # The suites' scripts take each of them once: a second one would silently replace ours, with everything that was checked.
            text = "%r is set by the plan; write config values under 'overrides' and the file under 'config'" % word
            return None, [Problem(shown, lines.get(("arguments",)), "arguments", text)]
    if "\\u0000" in json.dumps(value):
        return None, [Problem(shown, None, "", "holds a NUL character, which no command line can")]
    meeting = rendezvous_problem(value)
    if meeting:
        return None, [Problem(shown, lines.get(("rendezvous",)), "rendezvous", meeting)]
    job = dict(JOB_DEFAULTS, **value)
    job["name"] = os.path.basename(path)[:-4]
    job["file"] = shown
    return job, []


def scaling_problem(job):
    """Say what is wrong with a job's `scaling`, or return None."""
    return None if job["scaling"] in ("advise", "apply") else "must be advise or apply; got %r" % (job["scaling"],)


def rendezvous_problem(job):
    """Say what is wrong with a job's rendezvous for its launcher, or return None."""
    wanted, known = job.get("rendezvous"), sorted(LAUNCHERS[job["launcher"]]["rendezvous"])
    if wanted is None or wanted in known:
        return None
    return "%s has no rendezvous %r; allowed: %s" % (job["launcher"], wanted, ", ".join(known) or "none, leave it out")


def whole_number(name, value, problems, allow_all=True):
    """Return a command line's count as int ('-e nodes=2' is the text '2' to Ansible), or 'all'; note a problem otherwise."""
    if allow_all and value == "all":
        return value
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        problems.append(
            Problem("command line", None, name, "must be a whole number from 1 up%s; got %r" % (" or 'all'" if allow_all else "", value))
        )
        return None
    return int(text)


def command_line(extra, allowed, role_variables=(), site_prefixes=("trainyard_", "ansible_")):
    """Hold the names given with -e against those a verb knows; Ansible itself takes a misspelt one without a word (facts, Ansible 2.19)."""
    problems = []
    for name in sorted(extra):
        if name in allowed or name in role_variables or name.startswith(site_prefixes):
            continue
        text = "unknown variable; allowed: %s, the site's trainyard_* variables and the roles' own%s" % (
            ", ".join(sorted(allowed)),
            near(name, set(allowed) | set(role_variables)),
        )
        problems.append(Problem("command line", None, name, text))
    return problems


def apply_command_line(job, extra, problems):
    """Return the job with what the command line overrides: nodes, devices, start_port, rendezvous, scaling."""
    job = dict(job)
    for name, check in (("rendezvous", rendezvous_problem), ("scaling", scaling_problem)):
        if name in extra:
            job[name] = extra[name]
            said = check(job)
            problems += [Problem("command line", None, name, said)] if said else []
    for name in ("nodes", "devices"):
        if name in extra:
            job[name] = whole_number(name, extra[name], problems)
            job["from_command_line"] = job.get("from_command_line", []) + [name]
    if "start_port" in extra:
        port = whole_number("start_port", extra["start_port"], problems, allow_all=False)
        if port is not None and not 1024 <= port <= 65535:
            problems.append(Problem("command line", None, "start_port", "must be a port from 1024 to 65535; got %d" % port))
        job["start_port"] = port
    return job
