# SPDX-License-Identifier: Apache-2.0
"""Read a site: what the inventory says of the nodes, as plain data, with every problem at once.
Controller only.
"""

from __future__ import annotations

import difflib
import ipaddress
import os

from ..base.yaml_source import Problem, near, shown
from ..environments.root_records import SITE
from ..environments.user_manager import ACCOUNT
from ..suites import suite_table as suite_tables
from ..suites.launchers import LAUNCHERS
from . import quota, spares
from .job import (
    SITE_VARIABLES,
    load_suite,
    place_of,
    save_folders,
)
from .site_fields import (
    HOST,
    NAME,
    PLACES,
    address_problem,
    device_ids,
    environment,
    here,
    place_problem,
    port_number,
    same,
    secret_env,
    suite_entries,
)

ACCELERATORS = ("cpu", "gpu", "ascend")


def _node(name, variables, problems):
    """Return one node as the inventory describes it; where is the inventory host that a problem is
    about.
    """
    where = f"inventory, host {name}"

    def refuse(key, text):
        problems.append(Problem(where, None, key, text))

    for key in sorted(variables):
        if key.startswith("trainyard_") and key not in SITE_VARIABLES:
            refuse(key, f"unknown site variable{near(key, SITE_VARIABLES)}")
    if not NAME.match(name):
        refuse("", "an inventory name must be letters, digits, dots, dashes; rename the host")
    accelerator = variables.get("trainyard_accelerator")
    if accelerator not in ACCELERATORS:
        refuse(
            "trainyard_accelerator",
            "must be one of {}; got {}{}".format(
                ", ".join(ACCELERATORS), shown(accelerator), near(accelerator, ACCELERATORS)
            ),
        )
    try:
        devices = device_ids(variables.get("trainyard_devices"))
    except ValueError:
        devices = []
        refuse(
            "trainyard_devices",
            "must be the number of devices or a list of their ids; got {}".format(
                shown(variables.get("trainyard_devices"))
            ),
        )
    address = variables.get("trainyard_address")
    if address is not None:
        address = str(address)
        said = address_problem(address)
        if said:
            refuse("trainyard_address", said)
            address = None
    admin = variables.get("trainyard_admin_user")
    if admin is not None and not (isinstance(admin, str) and ACCOUNT.match(admin)):
        refuse("trainyard_admin_user", f"must be the name of an account; got {shown(admin)}")
    host = variables.get("ansible_host", name)
    if not isinstance(host, str) or (host != name and not HOST.match(host)):
        refuse("ansible_host", f"must be the name or the address of a machine; got {shown(host)}")
        host = ""
    port = variables.get("ansible_port")
    return {
        "name": name,
        "host": host,
        "port": port_number(22 if port in (None, "") else port, 1, where, "ansible_port", problems),
        "address": address,
        "accelerator": accelerator if accelerator in ACCELERATORS else None,
        "devices": devices,
    }


def read_site(groups, hostvars):
    """Return (site, problems).

    groups: {group: [hosts]} of the inventory. hostvars: {host: {variable: value}}, templated. The
    site is {name, nodes (in rank order, contract A6), spares (like nodes), suites, env, secret_env,
    start_port}.
    """
    problems = []
    names = list(groups.get("trainers") or [])
    if not names:
        others = [g for g in groups if g not in ("all", "ungrouped")]
        meant = difflib.get_close_matches("trainers", others, n=1, cutoff=0.6)
        text = (
            "the group 'trainers' is missing or empty; it lists the machines in the order of their"
            " ranks; groups found: {}{}".format(
                ", ".join(sorted(others)) or "none",
                f"; rename the group '{meant[0]}' to 'trainers'" if meant else "",
            )
        )
        return None, [Problem("inventory", None, "", text)]
    kept, said = spares.listed(groups)
    problems += said
    found = {name: hostvars[name] for name in names + kept}
    nodes, others = (
        [_node(name, found[name], problems) for name in part] for part in (names, kept)
    )
    spares.hint(problems, kept)
    problems += spares.unlike(nodes, others)
    for field, label in (("host", "ansible_host"), ("address", "trainyard_address")):
        seen = {}
        for node in nodes + others:
            if not node[field] or "/" in node[field]:
                continue
            value = (same(node[field]), node["port"] if field == "host" else None)
            if value in seen:
                problems.append(
                    Problem(
                        "inventory",
                        None,
                        node["name"],
                        f"has the same {label} as {seen[value]}: one machine under two names",
                    )
                )
            seen.setdefault(value, node["name"])
    first = found[names[0]]
    home = os.path.expanduser("~")
    for key in PLACES:
        said = (
            place_problem(first[key], home, up=key != "trainyard_home")
            if first.get(key) is not None
            else None
        )
        problems += [Problem("inventory", None, key, said)] if said else []
    problems += [
        Problem("inventory", None, key, f"{text}; got {shown(first[key])}")
        for key, text in quota.problems(first)
    ]
    name = first.get("trainyard_site")
    if name is not None and not (isinstance(name, str) and SITE.match(name)):
        text = (
            "must be letters, digits, dots, dashes, at most 128: the site's directories carry it;"
            f" got {shown(name)}"
        )
        problems.append(Problem("inventory", None, "trainyard_site", text))
    start, env, suites = (
        first.get("trainyard_start_port"),
        first.get("trainyard_env"),
        first.get("trainyard_suites"),
    )
    secret = secret_env(first.get("trainyard_secret_env"), problems)
    site = {
        "name": str(name or "site"),
        "nodes": nodes,
        "spares": others,
        "suites": suite_entries({} if suites is None else suites, problems),
        "env": environment({} if env is None else env, problems, secret),
        "secret_env": secret,
        "start_port": port_number(
            17000 if start is None else start, 1024, "inventory", "trainyard_start_port", problems
        ),
    }
    return site, problems


def confusable(site):
    """Return the problems of nodes whose logs cannot be told apart by name: `stray-x.a.b.log` is of
    a.b, and of b where there is a node b.
    """
    names = [node["name"] for node in site["nodes"] + site["spares"]]
    text = (
        "ends in .%s, the name of another node: the controller could take a log of the one for a"
        " log of the other; rename one of them"
    )
    pairs = [(long, short) for long in names for short in names if long.endswith("." + short)]
    return [Problem(f"inventory, host {long}", None, "", text % short) for long, short in pairs]


def on_controller(source, project):
    """Return what the site says of a suite with the paths of the controller made absolute: ~ is its
    user's home, a relative path starts at the project.

    A path of `present` or `shared` is the nodes' and stays as it is.
    """

    def settled(entry):
        if "path" not in entry or entry.get("placement", "push") != "push":
            return entry
        return dict(entry, path=os.path.join(project, os.path.expanduser(entry["path"])))

    more = (
        {"data": {name: settled(entry) for name, entry in source["data"].items()}}
        if source.get("data")
        else {}
    )
    if source.get("weights"):
        more["weights"] = settled(source["weights"])
    return dict(source, code=settled(source["code"]), **more)


def choose(job, site, members=None):
    """Return (nodes, problems): the nodes and devices this job takes of the site, the first ones in
    rank order.

    members: names of trainers and spares in rank order, for a run that goes on with them
    (replacing.py). A node that the site describes wrongly has no devices or no accelerator; that
    has been said, and it is compared with nothing.
    """
    problems = []
    nodes = site["nodes"]
    if members is not None:
        known = {node["name"]: node for node in nodes + site["spares"]}
        nodes = [known[name] for name in members]
    elif isinstance(job["nodes"], int):
        if job["nodes"] > len(nodes):
            text = (
                "asks for %d nodes; the site '%s' has %d: take -e nodes=%d, or list more machines"
                " in the group trainers"
            )
            text = text % (job["nodes"], site["name"], len(nodes), len(nodes))
            problems.append(Problem(place_of(job, "nodes"), None, "nodes", text))
        nodes = nodes[: job["nodes"]]
    if members is None and (job.get("min_nodes") or 0) > len(nodes):
        text = "is more than the job's %d node%s; it says with how few the run may go on" % (
            len(nodes),
            "" if len(nodes) == 1 else "s",
        )
        problems.append(Problem(place_of(job, "min_nodes"), None, "min_nodes", text))
    if job["suite"] not in site["suites"]:
        known = ", ".join(sorted(site["suites"])) or "none"
        text = "the site '{}' does not say where {} comes from (trainyard_suites.{}); it knows: {}".format(
            site["name"],
            job["suite"],
            job["suite"],
            known,
        )
        problems.append(Problem("inventory", None, "trainyard_suites", text))
    else:
        problems += _environment(job, site["suites"][job["suite"]])
        problems += _saves(job, site["suites"][job["suite"]])
    chosen = []
    for node in nodes:
        devices = node["devices"]
        if isinstance(job["devices"], int):
            devices = devices[: job["devices"]]
        elif isinstance(job["devices"], list):
            devices = [str(item) for item in job["devices"]]
        wanted = job["devices"] if isinstance(job["devices"], int) else len(devices)
        missing = [item for item in devices if item not in node["devices"]]
        if node["devices"] and (missing or len(devices) < wanted):
            text = "asks for {}; {} declares the devices {} (their ids, trainyard_devices)".format(
                shown(job["devices"]),
                node["name"],
                ", ".join(node["devices"]),
            )
            problems.append(Problem(place_of(job, "devices"), None, "devices", text))
        chosen.append(dict(node, devices=devices))
    sound = [node for node in chosen if node["devices"]]
    counts = {len(node["devices"]) for node in sound}
    if len(counts) > 1:
        # Paddle's --ips takes the local number of devices for every host (fact 17).
        counted = ", ".join("%s %d" % (node["name"], len(node["devices"])) for node in sound)
        text = (
            f"nodes of one job need equal numbers of devices: {counted}; set 'devices' in the job"
        )
        problems.append(Problem("inventory", None, "trainyard_devices", text))
    elif len({tuple(node["devices"]) for node in sound}) > 1:
        # One command runs on all of them (contract A5), and it names the devices.
        listed = "; ".join(
            "{} {}".format(node["name"], ",".join(node["devices"])) for node in sound
        )
        text = f"nodes of one job need the same device ids: {listed}; set 'devices' in the job"
        problems.append(Problem("inventory", None, "trainyard_devices", text))
    start = job.get("start_port") or site["start_port"]
    if start and counts and start + max(counts) - 1 > 65535:
        text = (
            "%d ranks of a node need the ports %d to %d; the last port is 65535; recommended 10000"
            " to 20000 (B5)"
            % (
                max(counts),
                start,
                start + max(counts) - 1,
            )
        )
        problems.append(Problem(place_of(job, "start_port"), None, "start_port", text))
    for node in chosen if len(chosen) > 1 else ():
        if not node["address"] and here(node["host"]):
            text = (
                "{} is this controller itself to every node; set trainyard_address to the node's"
                " address on the training network".format(node["host"])
            )
            problems.append(
                Problem("inventory, host {}".format(node["name"]), None, "ansible_host", text)
            )
        if node["address"] and _loopback(node["address"]):
            text = "{} is a loopback address; no other node can reach it".format(node["address"])
            problems.append(
                Problem("inventory, host {}".format(node["name"]), None, "trainyard_address", text)
            )
    kinds = sorted({node["accelerator"] for node in chosen if node["accelerator"]})
    if len(kinds) > 1:
        problems.append(
            Problem(
                "inventory",
                None,
                "trainyard_accelerator",
                "nodes of one job need the same accelerator",
            )
        )
    problems += [
        _pair(job, kind) for kind in kinds if kind not in LAUNCHERS[job["launcher"]]["devices"]
    ]
    return chosen, problems


def _loopback(address):
    network = ipaddress.ip_network(address, strict=False)
    return network.is_loopback or (
        network.num_addresses == 1 and network.network_address.is_unspecified
    )


def _saves(job, source):
    """Say that the site's own overrides send checkpoints where none would come home from."""
    table, overrides = load_suite(job["suite"]), source.get("overrides")
    found = save_folders(table, [], overrides if isinstance(overrides, dict) else {})
    said = [
        suite_tables.save_problem(table, folder)
        for _path, folder in found
        if isinstance(folder, str)
    ]
    return [
        Problem("inventory", None, "trainyard_suites.{}.overrides".format(job["suite"]), text)
        for text in said
        if text
    ]


def _environment(job, source):
    """Say that the site installs a framework for a suite that the suite does not run on; a user's
    own Python may name none.
    """
    table = load_suite(job["suite"])
    environment, known = source.get("environment"), table["environment"]["packages"]
    package = environment.get("package") if isinstance(environment, dict) else None
    if package is None or package in known:
        return []
    text = "%s does not run on %s; allowed: %s; its pinned list is %s%s"
    text = text % (
        table["title"],
        shown(package),
        ", ".join(known),
        ", ".join(table["environment"]["requirements"]),
        near(package, known),
    )
    return [
        Problem(
            "inventory", None, "trainyard_suites.{}.environment.package".format(job["suite"]), text
        )
    ]


def _pair(job, accelerator):
    """Say that a launcher cannot start ranks on an accelerator, and which of the suite's launchers
    can.
    """
    able = [
        name
        for name in load_suite(job["suite"])["launchers"]
        if accelerator in LAUNCHERS[name]["devices"]
    ]
    text = "{} cannot start ranks on {}; for {} there: {}".format(
        job["launcher"],
        accelerator,
        job["suite"],
        ", ".join(able) or "none",
    )
    return Problem(place_of(job, "launcher"), None, "launcher", text)
