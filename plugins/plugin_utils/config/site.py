# SPDX-License-Identifier: Apache-2.0
"""Site: the inventory's nodes as plain data, with every problem at once."""

from __future__ import annotations

import contextlib
import difflib
import ipaddress
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.module_utils.base.value_text import (
    abbreviate,
    suggest,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.environments.root_records import (
    SITE,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.environments.user_manager import (
    ACCOUNT,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import (
    suite_table as suite_tables,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.suites.launcher_table import (
    LAUNCHERS,
)

from ..base.yaml_source import Problem
from . import notify_fields, quota, spares
from .config_types import Job, Node, Site
from .job import SITE_VARIABLES, load_suite, location_of, save_folders
from .site_fields import (
    DIRECTORIES,
    HOST,
    NAME,
    address_problem,
    directory_problem,
    is_own_machine,
    normalize_host,
    parse_devices,
    parse_port,
    read_environment,
    read_secret_env,
    read_suites,
)

ACCELERATORS = ("cpu", "gpu", "ascend")
SSH_PORT = 22
DEFAULT_START_PORT = 17000
LAST_PORT = 65535
DEFAULT_REPLICA_RATE = 20 << 20
# 1,024 GPUs had a failure about every 8 hours (A. Kokolis et al., Revisiting Reliability in
# Large-Scale Machine Learning Research Clusters, 2024).
DEFAULT_FAULT_HOURS, MOST_FAULT_HOURS = 8000.0, 10**7
LEAST_REPLICA_RATE = 1 << 10  # the unit of rsync's limit


def _inventory_problem(key: str, text: str, host: str | None = None, *, code: str) -> Problem:
    """Return a Problem of the inventory, or of one of its hosts."""
    where = "inventory"
    if host is not None:
        where = f"inventory, host {host}"
    return Problem(where, None, key, text, code=code)


class _NodeReader:
    """The variables of one inventory host, with the problems of those that are wrong."""

    def __init__(self, name: str, variables: Mapping[str, Any], problems: list[Problem]) -> None:
        self.name = name
        self.variables = variables
        self.problems = problems

    def refuse(self, key: str, text: str, code: str) -> None:
        """Note a problem of one variable of the host."""
        self.problems.append(_inventory_problem(key, text, self.name, code=code))

    def check_names(self) -> None:
        """Note unknown variables, and a host name that the product cannot use."""
        for key in sorted(self.variables):
            if key.startswith("trainyard_") and key not in SITE_VARIABLES:
                self.refuse(
                    key,
                    f"unknown site variable{suggest(key, SITE_VARIABLES)}",
                    code="site.unknown_variable",
                )
        if not NAME.match(self.name):
            self.refuse(
                "",
                "an inventory name must be letters, digits, dots, dashes; rename the host",
                code="site.bad_host_name",
            )

    def accelerator(self) -> str | None:
        """Return the kind of the accelerators, or None."""
        value = self.variables.get("trainyard_accelerator")
        if value in ACCELERATORS:
            return value
        allowed = ", ".join(ACCELERATORS)
        text = f"must be one of {allowed}; got {abbreviate(value)}{suggest(value, ACCELERATORS)}"
        self.refuse("trainyard_accelerator", text, code="site.unknown_accelerator")
        return None

    def devices(self) -> list[str]:
        """Return the device ids, or an empty list."""
        value = self.variables.get("trainyard_devices")
        try:
            return parse_devices(value)
        except ValueError:
            text = f"must be the number of devices or a list of their ids; got {abbreviate(value)}"
            self.refuse("trainyard_devices", text, code="site.bad_devices")
            return []

    def address(self) -> str | None:
        """Return the address on the training network, or None."""
        value = self.variables.get("trainyard_address")
        if value is None:
            return None
        problem = address_problem(str(value))
        if problem:
            self.refuse("trainyard_address", problem, code="site.bad_address")
            return None
        return str(value)

    def check_admin_user(self) -> None:
        """Note an administrator's account whose name is not one."""
        value = self.variables.get("trainyard_admin_user")
        if value is not None and not (isinstance(value, str) and ACCOUNT.match(value)):
            text = f"must be the name of an account; got {abbreviate(value)}"
            self.refuse("trainyard_admin_user", text, code="site.bad_account")

    def host(self) -> str:
        """Return the name or address that the controller logs in to, or an empty text."""
        value = self.variables.get("ansible_host", self.name)
        if isinstance(value, str) and (value == self.name or HOST.match(value)):
            return value
        text = f"must be the name or the address of a machine; got {abbreviate(value)}"
        self.refuse("ansible_host", text, code="site.bad_host")
        return ""

    def port(self) -> int | None:
        """Return the port of ssh, or None."""
        value = self.variables.get("ansible_port")
        if value in (None, ""):
            value = SSH_PORT
        where = f"inventory, host {self.name}"
        return parse_port(value, 1, where, "ansible_port", self.problems)


def _read_node(name: str, variables: Mapping[str, Any], problems: list[Problem]) -> Node:
    """Return one node as the inventory describes it, and note its problems."""
    reader = _NodeReader(name, variables, problems)
    reader.check_names()
    accelerator = reader.accelerator()
    devices = reader.devices()
    address = reader.address()
    reader.check_admin_user()
    return {
        "name": name,
        "host": reader.host(),
        "port": reader.port(),
        "address": address,
        "accelerator": accelerator,
        "devices": devices,
    }


def read_site(
    groups: Mapping[str, Sequence[str]], hostvars: Any
) -> tuple[Site | None, list[Problem]]:
    """Return (site, problems).

    groups: {group: [hosts]} of the inventory. hostvars: {host: {variable: value}}, templated. The
    site is {name, nodes (in rank order, contract A6), spares (like nodes), suites, env, secret_env,
    start_port}.
    """
    names = list(groups.get("trainers") or [])
    if not names:
        return None, [_no_trainers(groups)]
    spare_names, problems = spares.read_spares(groups)
    problems = list(problems)
    variables = {name: hostvars[name] for name in names + spare_names}
    nodes = [_read_node(name, variables[name], problems) for name in names]
    spare_nodes = [_read_node(name, variables[name], problems) for name in spare_names]
    spares.add_remedy(problems, spare_names)
    problems += spares.accelerator_problems(nodes, spare_nodes)
    problems += _duplicates(nodes + spare_nodes)
    site = _read_site_variables(variables[names[0]], problems)
    return {**site, "nodes": nodes, "spares": spare_nodes}, problems


def _no_trainers(groups: Mapping[str, Sequence[str]]) -> Problem:
    """Return the Problem of an inventory without the group of nodes."""
    others = [group for group in groups if group not in ("all", "ungrouped")]
    text = (
        "the group 'trainers' is missing or empty; it lists the machines in the order of their"
        f" ranks; groups found: {', '.join(sorted(others)) or 'none'}"
    )
    ungrouped = list(groups.get("ungrouped") or [])
    if ungrouped and not others:
        text += f"; hosts without a group: {findings.named(ungrouped)}; list them below trainers"
    similar = difflib.get_close_matches("trainers", others, n=1, cutoff=0.6)
    if similar:
        text += f"; rename the group '{similar[0]}' to 'trainers'"
    return _inventory_problem("", text, code="site.no_trainers")


def _duplicates(nodes: list[Node]) -> list[Problem]:
    """Return a Problem for each node whose host or address is an earlier node's."""
    problems = []
    for field, label in (("host", "ansible_host"), ("address", "trainyard_address")):
        first_names: dict[tuple[str, int | None], str] = {}
        for node in nodes:
            host, port = node["host"], node["port"]
            if field == "address":
                host, port = node["address"] or "", None
            if not host or "/" in host:
                continue
            value = (normalize_host(host), port)
            if value in first_names:
                text = f"has the same {label} as {first_names[value]}: one machine under two names"
                problems.append(_inventory_problem(node["name"], text, code="site.machine_twice"))
            first_names.setdefault(value, node["name"])
    return problems


def _read_site_variables(variables: Mapping[str, Any], problems: list[Problem]) -> Site:
    """Return the site, its nodes still empty, and note the problems of its variables.

    variables: of the first node, whose group variables are the site's.
    """
    problems += _path_problems(variables)
    for key, text in quota.problems(variables):
        problems.append(
            _inventory_problem(
                key, f"{text}; got {abbreviate(variables[key])}", code="site.bad_quota"
            )
        )
    name = variables.get("trainyard_site")
    if name is not None and not (isinstance(name, str) and SITE.match(name)):
        text = (
            "must be letters, digits, dots, dashes, at most 128: the site's directories carry it;"
            f" got {abbreviate(name)}"
        )
        problems.append(_inventory_problem("trainyard_site", text, code="site.bad_name"))

    def variable(key: str, default: Any) -> Any:
        value = variables.get(key)
        if value is None:
            return default
        return value

    secret = read_secret_env(variables.get("trainyard_secret_env"), problems)
    channels = notify_fields.read_channels(variables.get("trainyard_notify"), problems)
    return {
        "name": str(name or "site"),
        "suites": read_suites(variable("trainyard_suites", {}), problems),
        "env": read_environment(variable("trainyard_env", {}), problems, secret),
        "secret_env": secret,
        "start_port": parse_port(
            variable("trainyard_start_port", DEFAULT_START_PORT),
            1024,
            "inventory",
            "trainyard_start_port",
            problems,
        ),
        "replica_rate": _replica_rate(variables.get("trainyard_replica_rate"), problems),
        "fault_hours": _fault_hours(variables.get("trainyard_device_hours_per_fault"), problems),
        "notify_from_nodes": [channel for channel in channels if channel["from_nodes"]],
        "nodes": [],
        "spares": [],
    }


def _replica_rate(value: Any, problems: list[Problem]) -> int:
    """Return `trainyard_replica_rate` in bytes a second, and note its problem."""
    if value is None:
        return DEFAULT_REPLICA_RATE
    key = "trainyard_replica_rate"
    try:
        rate = quota.parse_bytes(value)
    except ValueError as error:
        text = f"{error}, as bytes a second; got {abbreviate(value)}"
        problems.append(_inventory_problem(key, text, code="site.bad_replica_rate"))
        return 0
    if 0 < rate < LEAST_REPLICA_RATE:
        text = f"must be at least 1 KiB, or 0 for no replica; got {abbreviate(value)}"
        problems.append(_inventory_problem(key, text, code="site.bad_replica_rate"))
    return rate


def _fault_hours(value: Any, problems: list[Problem]) -> float:
    """Return `trainyard_device_hours_per_fault`, and note its problem."""
    if value is None:
        return DEFAULT_FAULT_HOURS
    hours = 0.0
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(value, bool):
            hours = float(value)
    if 0 < hours <= MOST_FAULT_HOURS:
        return hours
    key = "trainyard_device_hours_per_fault"
    text = f"must be a number of hours above 0, at most {MOST_FAULT_HOURS}; got {abbreviate(value)}"
    problems.append(_inventory_problem(key, text, code="site.bad_fault_hours"))
    return DEFAULT_FAULT_HOURS


def _path_problems(variables: Mapping[str, Any]) -> list[Problem]:
    """Return a Problem for each directory of the site that the product may not use."""
    problems = []
    home = os.path.expanduser("~")
    for key in DIRECTORIES:
        if variables.get(key) is None:
            continue
        text = directory_problem(variables[key], home, up=key != "trainyard_home")
        if text:
            problems.append(_inventory_problem(key, text, code="site.bad_directory"))
    return problems


def confusable_names(site: Site) -> list[Problem]:
    """Return the problems of nodes whose logs cannot be told apart by name.

    `stray-x.a.b.log` is of a.b, and of b where there is a node b.
    """
    names = [node["name"] for node in site["nodes"] + site["spares"]]
    problems = []
    for long in names:
        for short in names:
            if long.endswith("." + short):
                text = (
                    f"ends in .{short}, the name of another node: the controller could take a log"
                    " of the one for a log of the other; rename one of them"
                )
                problems.append(_inventory_problem("", text, long, code="site.confusable_names"))
    return problems


def resolve_paths(source: Mapping[str, Any], project: str) -> dict[str, Any]:
    """Return a suite's entry of the site with absolute paths of the controller.

    ~ is the home of the controller's user. A relative path starts at the project. A path of
    `present` or `shared` is the nodes' and stays as it is.
    """

    def make_absolute(entry: Mapping[str, Any]) -> Mapping[str, Any]:
        if "path" not in entry or entry.get("placement", "push") != "push":
            return entry
        return dict(entry, path=os.path.join(project, os.path.expanduser(entry["path"])))

    result = dict(source, code=make_absolute(source["code"]))
    if source.get("data"):
        result["data"] = {name: make_absolute(entry) for name, entry in source["data"].items()}
    if source.get("weights"):
        result["weights"] = make_absolute(source["weights"])
    return result


def select_nodes(
    job: Job, site: Site, members: Sequence[str] | None = None
) -> tuple[list[Node], list[Problem]]:
    """Return (nodes, problems): the nodes and devices of a job, in rank order.

    members: names of trainers and spares in rank order, for a run that goes on with them
    (recovery/node_replacement.py). A node that the site describes wrongly has no devices or no
    accelerator. Its problem is already noted, so it is compared with nothing.
    """
    nodes, problems = _select_nodes(job, site, members)
    problems += _suite_problems(job, site)
    chosen: list[Node] = [{**node, "devices": _select_devices(job, node)} for node in nodes]
    problems += _missing_device_problems(job, nodes, chosen)
    problems += _unequal_device_problems(chosen)
    problems += _port_problems(job, site, chosen)
    if len(chosen) > 1:
        problems += _address_problems(chosen)
    problems += _accelerator_problems(job, chosen)
    return chosen, problems


def _select_nodes(
    job: Job, site: Site, members: Sequence[str] | None
) -> tuple[list[Node], list[Problem]]:
    """Return (nodes, problems): the nodes of a job with all their devices."""
    nodes = site["nodes"]
    if members is not None:
        by_name = {node["name"]: node for node in nodes + site["spares"]}
        return [by_name[name] for name in members], []
    problems = []
    if isinstance(job["nodes"], list):
        problems = _name_problems(job, nodes)
        by_name = {node["name"]: node for node in nodes}
        nodes = [by_name[name] for name in dict.fromkeys(job["nodes"]) if name in by_name]
    if isinstance(job["nodes"], int):
        if job["nodes"] > len(nodes):
            text = (
                f"asks for {job['nodes']} nodes; the site '{site['name']}' has {len(nodes)}: take"
                f" -e nodes={len(nodes)}, or list more machines in the group trainers"
            )
            problems.append(
                Problem(location_of(job, "nodes"), None, "nodes", text, code="job.too_many_nodes")
            )
        nodes = nodes[: job["nodes"]]
    if (job.get("min_nodes") or 0) > len(nodes):
        plural = "s"
        if len(nodes) == 1:
            plural = ""
        text = (
            f"is more than the job's {len(nodes)} node{plural};"
            " it says with how few the run may go on"
        )
        problems.append(
            Problem(
                location_of(job, "min_nodes"),
                None,
                "min_nodes",
                text,
                code="job.min_nodes_too_high",
            )
        )
    return nodes, problems


def _name_problems(job: Job, nodes: list[Node]) -> list[Problem]:
    """Return a problem for each name among a job's nodes that is no trainer's or there twice."""
    where, known = location_of(job, "nodes"), [node["name"] for node in nodes]
    problems, counts = [], Counter(map(str, job["nodes"]))
    for name, times in counts.items():
        if name not in known:
            text = (
                f"{abbreviate(name)} is no host of the group trainers, which has"
                f" {findings.named(known)}; give a number of nodes, or names of"
                f" these{suggest(name, known)}"
            )
            problems.append(Problem(where, None, "nodes", text, code="job.unknown_node"))
        elif times > 1:
            text = f"names {name} twice; a node takes part once"
            problems.append(Problem(where, None, "nodes", text, code="job.node_twice"))
    return problems


def _suite_problems(job: Job, site: Site) -> list[Problem]:
    """Return the problems of what the site says of the job's suite."""
    suite = job["suite"]
    if suite in site["suites"]:
        source = site["suites"][suite]
        return _environment_problems(job, source) + _save_problems(job, source)
    known = ", ".join(sorted(site["suites"])) or "none"
    text = (
        f"the site '{site['name']}' does not say where {suite} comes from"
        f" (trainyard_suites.{suite}); it knows: {known}"
    )
    return [_inventory_problem("trainyard_suites", text, code="site.suite_missing")]


def _select_devices(job: Job, node: Node) -> list[str]:
    """Return the ids of the devices that a job takes of a node."""
    if isinstance(job["devices"], int):
        return node["devices"][: job["devices"]]
    if isinstance(job["devices"], list):
        return [str(item) for item in job["devices"]]
    return node["devices"]


def _missing_device_problems(job: Job, nodes: list[Node], chosen: list[Node]) -> list[Problem]:
    """Return the problems of nodes that lack some of a job's devices, one for equal nodes.

    chosen: the same nodes with the devices that the job takes of them.
    """
    names_of: dict[str, list[str]] = {}
    for node, taken in zip(nodes, chosen):
        if _lacks_devices(job, node, taken["devices"]):
            names_of.setdefault(", ".join(node["devices"]), []).append(node["name"])
    problems = []
    for declared, names in names_of.items():
        verb = "declares"
        if len(names) > 1:
            verb = "declare"
        text = (
            f"asks for {abbreviate(job['devices'])}; {findings.named(names)} {verb} the devices"
            f" {declared} (their ids, trainyard_devices)"
        )
        problems.append(
            Problem(location_of(job, "devices"), None, "devices", text, code="job.devices_missing")
        )
    return problems


def _lacks_devices(job: Job, node: Node, devices: list[str]) -> bool:
    """Return whether a node lacks some of the devices that the job takes of it."""
    count = len(devices)
    if isinstance(job["devices"], int):
        count = job["devices"]
    missing = [item for item in devices if item not in node["devices"]]
    return bool(node["devices"]) and bool(missing or len(devices) < count)


def _unequal_device_problems(nodes: list[Node]) -> list[Problem]:
    """Return the problem of nodes whose devices differ in number or in their ids."""
    described = [node for node in nodes if node["devices"]]
    if len({len(node["devices"]) for node in described}) > 1:
        # Paddle's --ips takes the local number of devices for every host (fact 17).
        counts = ", ".join(f"{node['name']} {len(node['devices'])}" for node in described)
        text = f"nodes of one job need equal numbers of devices: {counts}; set 'devices' in the job"
    elif len({tuple(node["devices"]) for node in described}) > 1:
        # One command runs on all of them (contract A5), and it names the devices.
        ids = "; ".join(f"{node['name']} {','.join(node['devices'])}" for node in described)
        text = f"nodes of one job need the same device ids: {ids}; set 'devices' in the job"
    else:
        return []
    return [_inventory_problem("trainyard_devices", text, code="site.devices_differ")]


def _port_problems(job: Job, site: Site, nodes: list[Node]) -> list[Problem]:
    """Return the problem of a start port with too few ports above it."""
    start = job.get("start_port") or site["start_port"]
    ranks = max((len(node["devices"]) for node in nodes), default=0)
    if not start or not ranks or start + ranks - 1 <= LAST_PORT:
        return []
    text = (
        f"{ranks} ranks of a node need the ports {start} to {start + ranks - 1}; the last port is"
        f" {LAST_PORT}; recommended 10000 to 20000 (B5)"
    )
    return [
        Problem(location_of(job, "start_port"), None, "start_port", text, code="job.port_too_high")
    ]


def _address_problems(nodes: list[Node]) -> list[Problem]:
    """Return the problems of nodes that their peers cannot reach."""
    problems = []
    for node in nodes:
        if not node["address"] and is_own_machine(node["host"]):
            text = (
                f"{node['host']} is this controller itself to every node; give the address in your"
                " network (`hostname -I`), as ansible_host with an SSH server on this machine, or"
                " as trainyard_address"
            )
            problems.append(
                _inventory_problem(
                    "ansible_host", text, node["name"], code="site.address_of_controller"
                )
            )
        if node["address"] and _is_loopback(node["address"]):
            text = f"{node['address']} is a loopback address; no other node can reach it"
            problems.append(
                _inventory_problem(
                    "trainyard_address", text, node["name"], code="site.loopback_address"
                )
            )
    return problems


def _is_loopback(address: str) -> bool:
    """Return whether an address or a network belongs to the machine itself."""
    network = ipaddress.ip_network(address, strict=False)
    return network.is_loopback or (
        network.num_addresses == 1 and network.network_address.is_unspecified
    )


def _accelerator_problems(job: Job, nodes: list[Node]) -> list[Problem]:
    """Return the problems of mixed accelerators, and of unusable ones."""
    problems = []
    kinds = sorted({node["accelerator"] for node in nodes if node["accelerator"]})
    if len(kinds) > 1:
        text = "nodes of one job need the same accelerator"
        problems.append(
            _inventory_problem("trainyard_accelerator", text, code="site.mixed_accelerators")
        )
    for kind in kinds:
        if kind not in LAUNCHERS[job["launcher"]]["devices"]:
            problems.append(_launcher_problem(job, kind))
    return problems


def _launcher_problem(job: Job, accelerator: str) -> Problem:
    """Return the Problem of a launcher that cannot start ranks on an accelerator.

    Its text names the launchers of the suite that can.
    """
    able = [
        name
        for name in load_suite(job["suite"])["launchers"]
        if accelerator in LAUNCHERS[name]["devices"]
    ]
    text = (
        f"{job['launcher']} cannot start ranks on {accelerator}; for {job['suite']} there:"
        f" {', '.join(able) or 'none'}"
    )
    return Problem(
        location_of(job, "launcher"),
        None,
        "launcher",
        text,
        code="job.launcher_not_for_accelerator",
    )


def _save_problems(job: Job, source: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of a site's overrides that hide checkpoints."""
    table, overrides = load_suite(job["suite"]), source.get("overrides")
    if not isinstance(overrides, dict):
        overrides = {}
    problems = []
    for _path, folder in save_folders(table, [], overrides):
        if isinstance(folder, str):
            text = suite_tables.save_problem(table, folder)
            if text:
                key = f"trainyard_suites.{job['suite']}.overrides"
                problems.append(_inventory_problem(key, text, code="site.hidden_checkpoints"))
    return problems


def _environment_problems(job: Job, source: Mapping[str, Any]) -> list[Problem]:
    """Return the problem of a framework of the site that the suite does not run on.

    A Python of the user may name no framework.
    """
    table = load_suite(job["suite"])
    allowed = table["environment"]["packages"]
    package = None
    if isinstance(source.get("environment"), dict):
        package = source["environment"].get("package")
    if package is None or package in allowed:
        return []
    text = (
        f"{table['title']} does not run on {abbreviate(package)}; allowed:"
        f" {', '.join(allowed)}; its pinned list is"
        f" {', '.join(table['environment']['requirements'])}{suggest(package, allowed)}"
    )
    return [
        _inventory_problem(
            f"trainyard_suites.{job['suite']}.environment.package",
            text,
            code="site.unknown_framework",
        )
    ]
