# SPDX-License-Identifier: Apache-2.0
"""Read a site: what the inventory says of the nodes, as plain data, with every problem at once. Controller only."""

from __future__ import annotations

import ipaddress
import re

from ansible.module_utils.trainyard import yamldata
from ansible.module_utils.trainyard.job import RESERVED_ENV, load_schema, load_suite
from ansible.module_utils.trainyard.launchers import LAUNCHERS
from ansible.module_utils.trainyard.yamldata import Problem, near

# Every variable a site may set for the whole product; a misspelt one would otherwise be passed over without a word.
SITE_VARIABLES = (
    "trainyard_accelerator", "trainyard_address", "trainyard_cache_dir", "trainyard_devices", "trainyard_env", "trainyard_home",
    "trainyard_host_fingerprints", "trainyard_runs_dir", "trainyard_site", "trainyard_start_port", "trainyard_state_dir", "trainyard_suites",
)  # fmt: skip
ACCELERATORS = ("cpu", "gpu", "ascend")
# A site may know better than the route which interface the training uses; the other reserved names are the plan's alone.
INTERFACE_ENV = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def device_ids(value):
    """Return the ids that `trainyard_devices` stands for: 8 -> ['0'..'7'], [4, 5] -> ['4', '5']. Raises ValueError."""
    if isinstance(value, bool):
        raise ValueError
    if isinstance(value, (list, tuple)):
        ids = [str(item) for item in value]
        if not ids or len(set(ids)) != len(ids) or not all(item.isdigit() for item in ids):
            raise ValueError
        return ids
    count = int(str(value))
    if count < 1:
        raise ValueError
    return [str(index) for index in range(count)]


def port_number(value, lowest, where, key, problems):
    """Return a port as int; note a problem where it is none."""
    if not isinstance(value, bool) and str(value).isdecimal() and lowest <= int(value) <= 65535:
        return int(value)
    problems.append(Problem(where, None, key, "must be a port from %d to 65535; got %r" % (lowest, value)))
    return None


def _node(name, variables, problems):
    """Return one node as the inventory describes it; where is the inventory host that a problem is about."""
    where = "inventory, host %s" % name
    for key in sorted(variables):
        if key.startswith("trainyard_") and key not in SITE_VARIABLES:
            problems.append(Problem(where, None, key, "unknown site variable%s" % near(key, SITE_VARIABLES)))
    if not re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z", name):
        problems.append(Problem(where, None, "", "an inventory name must be letters, digits, dots, dashes; rename the host"))
    accelerator = variables.get("trainyard_accelerator")
    if accelerator not in ACCELERATORS:
        text = "must be one of %s; got %r%s" % (", ".join(ACCELERATORS), accelerator, near(accelerator, ACCELERATORS))
        problems.append(Problem(where, None, "trainyard_accelerator", text))
    try:
        devices = device_ids(variables.get("trainyard_devices"))
    except (TypeError, ValueError):
        devices = []
        text = "must be the number of devices or a list of their ids; got %r" % (variables.get("trainyard_devices"),)
        problems.append(Problem(where, None, "trainyard_devices", text))
    address = variables.get("trainyard_address")
    if address is not None:
        try:
            ipaddress.ip_network(str(address), strict=False)
        except ValueError:
            problems.append(
                Problem(where, None, "trainyard_address", "must be an IP address or a network such as 10.0.0.0/24; got %r" % address)
            )
    return {
        "name": name,
        "host": str(variables.get("ansible_host", name)),
        "port": port_number(variables.get("ansible_port") or 22, 1, where, "ansible_port", problems),
        "address": None if address is None else str(address),
        "accelerator": accelerator,
        "devices": devices,
    }


def read_site(groups, hostvars):
    """Return (site, problems).

    groups: {group: [hosts]} of the inventory. hostvars: {host: {variable: value}}, templated.
    The site is {name, nodes (in rank order, contract A6), suites, env, start_port}.
    """
    problems = []
    names = list(groups.get("trainers") or [])
    if not names:
        others = [g for g in groups if g not in ("all", "ungrouped")]
        text = "the group 'trainers' is missing or empty; it lists the machines in the order of their ranks; groups found: %s%s" % (
            ", ".join(sorted(others)) or "none",
            near("trainers", others),
        )
        return None, [Problem("inventory", None, "", text)]
    nodes = [_node(name, hostvars[name], problems) for name in names]
    for field, label in (("host", "ansible_host"), ("address", "trainyard_address")):
        seen = {}
        for node in nodes:
            value = node[field] if field == "address" or not node[field] else (node[field], node["port"])
            if value is None or "/" in str(node[field]):
                continue
            if value in seen:
                problems.append(
                    Problem("inventory", None, node["name"], "has the same %s as %s: one machine under two names" % (label, seen[value]))
                )
            seen.setdefault(value, node["name"])
    first = hostvars[names[0]]
    suites = first.get("trainyard_suites") or {}
    if not isinstance(suites, dict):
        problems.append(Problem("inventory", None, "trainyard_suites", "must be a mapping of suite names; got %r" % (suites,)))
        suites = {}
    for suite, entry in suites.items():
        problems += yamldata.check(entry, load_schema("site"), {}, "inventory trainyard_suites.%s" % suite)
    env = first.get("trainyard_env") or {}
    if not isinstance(env, dict):
        problems.append(Problem("inventory", None, "trainyard_env", "must be a mapping of environment variables; got %r" % (env,)))
        env = {}
    for name in sorted(map(str, env)):
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in str(env.get(name)):
            text = "must be the name of an environment variable, with a value without NUL"
            problems.append(Problem("inventory", None, "trainyard_env.%s" % name, text))
        if RESERVED_ENV.match(name) and name not in INTERFACE_ENV:
            problems.append(Problem("inventory", None, "trainyard_env.%s" % name, "is reserved: the plan sets it; take it out"))
    site = {
        "name": str(first.get("trainyard_site") or "site"),
        "nodes": nodes,
        "suites": suites,
        "env": {str(k): str(v) for k, v in env.items()},
        "start_port": port_number(first.get("trainyard_start_port") or 17000, 1024, "inventory", "trainyard_start_port", problems),
    }
    return site, problems


def choose(job, site):
    """Return (nodes, problems): the nodes and devices this job takes of the site, the first ones in rank order."""
    problems = []
    said = {name: "command line" if name in job.get("from_command_line", ()) else job["file"] for name in ("nodes", "devices")}
    nodes = site["nodes"]
    if isinstance(job["nodes"], int):
        if job["nodes"] > len(nodes):
            problems.append(
                Problem(said["nodes"], None, "nodes", "asks for %d nodes; the site '%s' has %d" % (job["nodes"], site["name"], len(nodes)))
            )
        nodes = nodes[: job["nodes"]]
    if job["suite"] not in site["suites"]:
        known = ", ".join(sorted(site["suites"])) or "none"
        text = "the site '%s' does not say where %s comes from (trainyard_suites.%s); it knows: %s" % (
            site["name"],
            job["suite"],
            job["suite"],
            known,
        )
        problems.append(Problem("inventory", None, "trainyard_suites", text))
    else:
        problems += _environment(job, site["suites"][job["suite"]])
    chosen = []
    for node in nodes:
        devices = node["devices"]
        if isinstance(job["devices"], int):
            devices = devices[: job["devices"]]
        elif isinstance(job["devices"], list):
            devices = [str(item) for item in job["devices"]]
        wanted = job["devices"] if isinstance(job["devices"], int) else len(devices)
        missing = [item for item in devices if item not in node["devices"]]
        if missing or len(devices) < wanted:
            text = "asks for %s; %s declares the devices %s" % (job["devices"], node["name"], ", ".join(node["devices"]))
            problems.append(Problem(said["devices"], None, "devices", text))
        chosen.append(dict(node, devices=devices))
    counts = {len(node["devices"]) for node in chosen}
    if len(counts) > 1:
        # Paddle's --ips takes the local number of devices for every host (fact 17).
        counted = ", ".join("%s %d" % (node["name"], len(node["devices"])) for node in chosen)
        problems.append(
            Problem(
                "inventory",
                None,
                "trainyard_devices",
                "nodes of one job need equal numbers of devices: %s; set 'devices' in the job" % counted,
            )
        )
    elif len({tuple(node["devices"]) for node in chosen}) > 1:
        # One command runs on all of them (contract A5), and it names the devices.
        listed = "; ".join("%s %s" % (node["name"], ",".join(node["devices"])) for node in chosen)
        problems.append(
            Problem(
                "inventory", None, "trainyard_devices", "nodes of one job need the same device ids: %s; set 'devices' in the job" % listed
            )
        )
    for node in chosen if len(chosen) > 1 else ():
        if not node["address"] and (node["host"] == "localhost" or node["host"].startswith("127.")):
            text = (
                "%s is this controller itself to every node; set trainyard_address to the node's address on the training network"
                % node["host"]
            )
            problems.append(Problem("inventory, host %s" % node["name"], None, "ansible_host", text))
        if node["address"] and ipaddress.ip_network(node["address"], strict=False).is_loopback:
            text = "%s is a loopback address; no other node can reach it" % node["address"]
            problems.append(Problem("inventory, host %s" % node["name"], None, "trainyard_address", text))
    if len({node["accelerator"] for node in chosen}) > 1:
        problems.append(Problem("inventory", None, "trainyard_accelerator", "nodes of one job need the same accelerator"))
    problems += [
        _pair(job, kind) for kind in sorted({node["accelerator"] for node in chosen}) if kind not in LAUNCHERS[job["launcher"]]["devices"]
    ]
    return chosen, problems


def _environment(job, source):
    """Say that the site installs a framework for a suite that the suite does not run on; a user's own Python may name none."""
    table = load_suite(job["suite"])
    package, known = (source.get("environment") or {}).get("package"), table["environment"]["packages"]
    if package is None or package in known:
        return []
    text = "%s does not run on %r; allowed: %s; its pinned list is %s%s"
    text = text % (table["title"], package, ", ".join(known), ", ".join(table["environment"]["requirements"]), near(package, known))
    return [Problem("inventory", None, "trainyard_suites.%s.environment.package" % job["suite"], text)]


def _pair(job, accelerator):
    """Say that a launcher cannot start ranks on an accelerator, and which of the suite's launchers can."""
    able = [name for name in load_suite(job["suite"])["launchers"] if accelerator in LAUNCHERS[name]["devices"]]
    text = "%s cannot start ranks on %s; for %s there: %s" % (job["launcher"], accelerator, job["suite"], ", ".join(able) or "none")
    return Problem(job["file"], None, "launcher", text)
