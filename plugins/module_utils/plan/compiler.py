# SPDX-License-Identifier: Apache-2.0
"""The plan: job x site x probed facts, compiled by a pure function into one JSON that is the same,
byte for byte, on every node.

Run id and run directory are no part of it, so equal inputs give an equal sha256 (design, "plan").
Whatever is not in the plan does not reach a node.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os

from ..environments import containers
from ..suites import (
    launchers,
    suite_table,
    watchdog_budgets,
)
from . import rank_table, resume_inputs

VERSION = 1
SHORT = 16
# After a rank's death: how long the launcher may take to end the others on its node, and how long
# the unit's processes have between TERM and KILL (seconds). Together they keep the promise that all
# is stopped within 10 s.
GRACE_SECONDS = 2
STOP_SECONDS = 5


class PlanError(Exception):
    """A plan that cannot be made; .problems holds every reason as a sentence."""

    def __init__(self, problems):
        super().__init__("; ".join(problems))
        self.problems = problems


def canonical(plan):
    """Return the plan's bytes: sorted keys, no spaces, one line. The sha256 of these bytes is the
    plan's digest.
    """
    return json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode(
        "ascii"
    )


def sha256(plan):
    """Return the plan's digest (hex)."""
    return hashlib.sha256(canonical(plan)).hexdigest()


def short(digest):
    """Return the part of a digest that names a directory on the nodes."""
    return digest[:SHORT]


def pick_address(node, facts, alone=False):
    """Return (address, interface, problem): where the node is on the fabric (design, decision 7).

    The site's trainyard_address (an address, or a network the address lies in) comes first, then
    ansible_host where the node really has that address, then the address from which the node's
    route to its peers starts. A node that is alone has no peer and takes any of its own.
    """
    own = [(entry["address"], entry["interface"]) for entry in facts["addresses"]]
    usable = [(a, i) for a, i in own if not ipaddress.ip_address(a).is_loopback]
    wanted = node["address"]
    if wanted is not None:
        network = ipaddress.ip_network(wanted, strict=False)
        inside = [(a, i) for a, i in own if ipaddress.ip_address(a) in network]
        if inside:
            return inside[0] + (None,)
        return (
            None,
            None,
            "{} has no address in {} (trainyard_address); it has {}".format(
                node["name"], wanted, ", ".join(a for a, _i in own) or "none"
            ),
        )
    for candidate in (node["host"], facts.get("route_source")):
        match = [(a, i) for a, i in usable if a == candidate]
        if match:
            return match[0] + (None,)
    if alone and own:
        return (usable or own)[0] + (None,)
    text = (
        "%s: no address of its own is ansible_host (%s) or leads to the other nodes; set"
        " trainyard_address; it has %s"
    )
    return (
        None,
        None,
        text
        % (
            node["name"],
            node["host"],
            ", ".join("{} on {}".format(*pair) for pair in usable) or "none but loopback",
        ),
    )


def node_environment(node, count, launcher, rendezvous, values):
    """Return what differs from node to node in the environment: the address, the interface, where
    home and the Python environment are.
    """
    home = node["home"]
    result = {
        "HOME": home,
        "USER": node["user"],
        "LOGNAME": node["user"],
        "PATH": ":".join([os.path.dirname(node["python"]), "/usr/local/bin", "/usr/bin", "/bin"]),
        "OMP_NUM_THREADS": str(max(1, node["cores"] // max(1, count))),
    }
    texts = dict(launcher["node_env"], **rendezvous.get("node_env", {}))
    result.update(launchers.filled(texts, dict(values, interface=node["interface"])))
    return result


def common_environment(job, site, suite, launcher, rendezvous, values, accelerator):
    """Return what is the same everywhere; the site's values beat the tables', the job's beat both."""
    result = {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    visible = (
        {launcher["visible"][accelerator]: "{devices}"}
        if accelerator in launcher.get("visible", {})
        else {}
    )
    for texts in (
        launcher["env"],
        rendezvous.get("env", {}),
        visible,
        suite["env"],
        suite_table.accelerator(suite, accelerator)["env"],
    ):
        result.update(launchers.filled(texts, values))
    result.update(site["env"])
    result.update({key: str(value) for key, value in job["env"].items()})
    return result


def planned_nodes(nodes, facts, environment, problems):
    """Return the plan's entries of the nodes, without their environment; what cannot be placed is
    noted in problems.
    """
    planned = []
    for index, node in enumerate(nodes):
        fact = facts[node["name"]]
        address, interface, problem = pick_address(node, fact, alone=len(nodes) == 1)
        if problem:
            problems.append(problem)
            continue
        if len(nodes) > 1 and ipaddress.ip_address(address).is_loopback:
            problems.append(
                "{}: {} is a loopback address; no other node can reach it; set trainyard_address".format(
                    node["name"], address
                )
            )
        base = fact["base"]
        # (in a container the image's PATH is used, and this is not)
        python = (
            environment["python"]
            if environment.get("python")
            else "{}/env/{}/bin/python".format(base, short(environment["digest"]))
        )
        planned.append(
            {
                "name": node["name"],
                "rank": index,
                "address": address,
                "interface": interface,
                "devices": node["devices"],
                "home": fact["home"],
                "base": base,
                "user": fact["user"],
                "python": python,
                "cores": fact["cores"],
            }
        )
    return planned


def compile_plan(job, site, nodes, facts, inputs):
    """Compile the plan.

    job: as read_job gives it. site: as read_site gives it. nodes: the chosen nodes in rank order.
    facts: {node name: what node_probe returned}. inputs: {suite (table), script, code, data {name:
    digest}, weights {key: {digest, file}}, environment {digest or python}, overrides and arguments
    (of suite, site and job), config {epochs, ...}, resume (a point of resumable.choose, or None)}
    as the controller found them. Returns the plan; raises PlanError with every problem.
    """
    problems = []
    suite, port, environment = (
        inputs["suite"],
        job.get("start_port") or site["start_port"],
        inputs["environment"],
    )
    count, accelerator = len(nodes[0]["devices"]), nodes[0]["accelerator"]
    planned = planned_nodes(nodes, facts, environment, problems)
    _check_nodes(job, nodes, planned, facts, count, port, problems)
    problems += container_problems(job, suite, planned, facts, environment)
    problems += [
        text
        for text in [
            inputs.get("resume")
            and resume_inputs.problem(inputs["resume"], suite, inputs["config"])
        ]
        if text
    ]
    if problems:
        raise PlanError(problems)
    launcher = launchers.LAUNCHERS[job["launcher"]]
    meeting = (
        launchers.rendezvous(job["launcher"], job.get("rendezvous"))
        if len(nodes) > 1
        else launcher.get("alone", {})
    )
    addresses, devices = [node["address"] for node in planned], planned[0]["devices"]
    resumed = resume_inputs.planned(inputs.get("resume"), suite, inputs)
    if resumed["record"]:
        resumed["record"]["unresumed"] = sha256(
            compile_plan(job, site, nodes, facts, dict(inputs, resume=None))
        )
    script = [inputs["script"], suite["config_flag"], resumed["config"] or job["config"]] + inputs[
        "arguments"
    ]
    script += suite_table.accelerator(suite, accelerator)["arguments"] + resumed["arguments"]
    weights = {
        key: "weights/{}/{}".format(short(item["digest"]), item["file"])
        for key, item in inputs["weights"].items()
    }
    script += launchers.override_words(
        suite["override_flag"],
        dict(inputs["overrides"], **weights, **resumed["overrides"]),
        suite["override_style"],
    )
    first = dict(
        launchers.values_of(addresses, devices, suite["python"], port, 0), fabric=fabric(planned)
    )
    common = common_environment(job, site, suite, launcher, meeting, first, accelerator)
    forwarded = sorted(
        name for name in common if not name.startswith("OMPI_")
    )  # mpirun passes those on by itself
    commands = []
    for index, node in enumerate(planned):
        values = launchers.values_of(addresses, devices, suite["python"], port, index)
        node["env"] = node_environment(node, count, launcher, meeting, values)
        # a value that the site or the job gives for all nodes beats one that is only reckoned
        for name in set(node["env"]) & (set(site["env"]) | set(job["env"])) - {
            "HOME",
            "USER",
            "LOGNAME",
            "PATH",
            "POD_IP",
        }:
            del node["env"][name]
        commands.append(
            launchers.launcher_argv(
                job["launcher"], accelerator, addresses, devices, suite["python"],
                rendezvous=job.get("rendezvous"), port=port, node_rank=index, root=node["user"] == "root", forward=forwarded,
            ) + script
        )  # fmt: skip
        if commands[index] != commands[0]:
            node["argv"] = commands[index]
    links = {
        suite_table.place(suite, name): f"data/{short(digest)}"
        for name, digest in inputs["data"].items()
    }
    links.update(
        {
            "weights/{}".format(short(item["digest"])): "weights/{}".format(short(item["digest"]))
            for item in inputs["weights"].values()
        }
    )
    placed = planned_places(inputs.get("placed") or [], facts[nodes[0]["name"]])
    links.update(
        {
            suite_table.place(suite, key[len("data/") :]): item["path"]
            for key, item in placed.items()
            if key.startswith("data/")
        }
    )
    ranks = planned_ranks(planned, launcher, meeting, first, accelerator)
    links.update(resumed["links"])
    files = dict(planned_files(planned, launcher, first, ranks, facts), **resumed["files"])
    scheduler = launcher.get("scheduler", {}).get(accelerator)
    scheduled = launchers.filled(scheduler["env"], first) if scheduler else {}
    for node in planned if environment.get("container") else []:
        # Every name that a process may be given, so that the agent adds no word to the engine's
        # command.
        names = (
            ["TRAINYARD_ATTEMPT", launcher["rank_env"]]
            + list(scheduled)
            + [name for rank in ranks for name in rank.get("env") or {}]
        )
        node["container"] = containers.entry(
            facts[node["name"]]["containers"][environment["digest"]], node["base"],
            dict(dict.fromkeys(names, ""), **dict(common, **node["env"])), accelerator, node["devices"],
            list(dict.fromkeys((environment.get("mounts") or []) + [item["path"] for item in placed.values()])),
        )  # fmt: skip
    return {
        "version": VERSION,
        "site": site["name"],
        "job": {key: job[key] for key in ("name", "suite", "launcher", "config", "arguments", "overrides", "published")},
        "suite": {"name": suite["name"], "logs": suite["logs"], "redirects": redirects(suite, inputs["config"]),
                  "resume": {key: suite["resume"][key] for key in resume_inputs.RULE if key in suite["resume"]},
                  "checkpoints": checkpoints(suite, job["config"], inputs["config"])},
        "launcher": dict({key: launcher[key] for key in ("kind", "rank_log", "rank_env", "endpoints_env")}, name=job["launcher"],
                         console="logs.txt", logs=launcher.get("logs", []), end_words=launcher.get("end_words")),
        "accelerator": accelerator,
        "argv": commands[0],
        "script": script,
        "env": common,
        # names whose values nobody is shown; the values are in plan.json alone, which only its user
        # reads
        "secret_env": site.get("secret_env") or [],
        "ports": {"start": port, "count": count},
        "endpoints": [rank["endpoint"] for rank in ranks] if launcher["endpoints_env"] else [],
        "nodes": planned,
        "ranks": ranks,
        "code": {key: inputs["code"][key] for key in ("digest", "path") if inputs["code"].get(key)},
        "placed": placed,
        "data": inputs["data"],
        "weights": inputs["weights"],
        "links": links,
        "files": files,
        "scheduler": scheduler and {"node": planned[0]["name"], "argv": [word.format(**first) for word in scheduler["argv"]],
                                    "env": launchers.filled(scheduler["env"], first), "log": scheduler["log"]},
        "environment": environment,
        "epochs": inputs["config"].get("epochs"),
        "advice": inputs["advice"],
        "resume": resumed["record"],
        "notes": ([launcher["notes"][accelerator]] if accelerator in launcher.get("notes", {}) else []) + resumed["notes"],
        "stop": {"grace": GRACE_SECONDS, "timeout": STOP_SECONDS},
        "watchdog": watchdog_budgets.budgets(job.get("watchdog"), suite),
    }  # fmt: skip


def planned_places(placed, facts):
    """Return {key: {path, placement, digest}} of what lies on the nodes already; digest: of names
    and sizes, whatever was verified besides.
    """
    seen = (facts.get("placement") or {}).get("places") or {}
    return {
        item["key"]: {
            "path": item["path"],
            "placement": item["placement"],
            "digest": (seen.get(item["key"]) or {}).get("listing") or None,
        }
        for item in placed
    }


def container_problems(job, suite, planned, facts, environment):
    """Return why this job cannot start in the environment's image."""
    if not environment.get("container"):
        return []
    problems = [containers.launcher_problem(launchers.LAUNCHERS[job["launcher"]]["kind"])]
    for node in planned:
        found = (facts[node["name"]].get("containers") or {}).get(environment["digest"])
        reason = (
            containers.python_problem(found, suite["python"])
            if found
            else "the image has not been looked at here; run playbooks/provision.yml"
        )
        problems.append(reason and "{}: {}".format(node["name"], reason))
        problems += [
            containers.mesh_problem(node["home"], path) for path in environment.get("mounts") or []
        ]
    return list(dict.fromkeys(problem for problem in problems if problem))


def planned_ranks(planned, launcher, meeting, values, accelerator):
    """Return every rank of the plan: global and local number, node, device, log, endpoint, and what
    it alone gets in its environment.

    With --master the launcher itself takes free ports of its range, so that only the address of an
    endpoint is known beforehand.
    """
    ranks, workers = [], launcher.get("workers", {}).get(accelerator, {})
    for node in planned:
        for local, device in enumerate(node["devices"]):
            rank = {
                "rank": node["rank"] * values["count"] + local,
                "node": node["name"],
                "local_rank": local,
                "device": device,
            }
            rank["log"] = launcher["rank_log"].format(**rank)
            known = (
                "%d" % (values["port"] + local)
                if "PORT_RANGE" not in meeting.get("env", {})
                else "*"
            )
            rank["endpoint"] = "{}:{}".format(node["address"], known)
            rank["env"] = launchers.filled(workers, dict(values, rank=rank["rank"]))
            ranks.append(rank)
    return ranks


def planned_files(planned, launcher, values, ranks, facts):
    """Return {path below the working directory: text}: Open MPI's hostfile, the HCCL rank table,
    which its ranks are told of.
    """
    files = {
        name: "".join(
            line.format(address=node["address"], count=values["count"]) for node in planned
        )
        for name, line in launcher.get("files", {}).items()
    }
    if launcher.get("table"):
        silent = [
            "{}: {}".format(node["name"], text)
            for node in planned
            for text in facts[node["name"]].get("device_problems") or []
        ]
        if silent:
            raise PlanError(silent)
        servers = [
            {"name": node["name"], "server_id": node["address"], "devices": node["devices"], "device_ips": facts[node["name"]].get("device_ips") or {}}
            for node in planned
        ]  # fmt: skip
        try:
            table = rank_table.compile_table(servers)
        except rank_table.RankTableError as error:
            raise PlanError(error.problems) from error
        name = rank_table.file_name(table)
        files[name] = rank_table.text(table)
        for rank in ranks:
            rank["env"].update(rank_table.rank_environment(table, rank["rank"], "./" + name))
    return files


def fabric(planned):
    """Return what tells Open MPI its network: the interface where it has one name everywhere, else
    the smallest network of all addresses.

    A list of single addresses does not do: Open MPI 4.1 takes a.b.c.d/32 for everything
    (docs/facts.md).
    """
    if len({node["interface"] for node in planned}) == 1:
        return planned[0]["interface"]
    network = ipaddress.ip_network(planned[0]["address"])
    while not all(ipaddress.ip_address(node["address"]) in network for node in planned):
        network = network.supernet()
    return str(network)


def checkpoints(suite, config, settings):
    """Return where the suite saves: {stem} is the config file's name, {save} the folder that the
    config itself names.
    """
    values = {
        "stem": os.path.splitext(os.path.basename(config))[0],
        "save": os.path.normpath(settings.get("save") or "output"),
    }
    folders = [folder.format(**values) for folder in suite["checkpoints"]["folders"]]
    return dict(suite["checkpoints"], folders=list(dict.fromkeys(folders)))


def redirects(suite, settings):
    """Return what is written below the working directory and where it goes; where the config names
    a folder of its own, that one, too.
    """
    result = dict(suite["redirects"])
    save = os.path.normpath(settings["save"]) if settings.get("save") else None
    if save and not any(save == path or save.startswith(path + "/") for path in result):
        result[save] = save
    return result


def _check_nodes(job, nodes, planned, facts, count, port, problems):
    """Note what no start could survive: two nodes with one address or one machine id, ports past
    the end, a legacy launcher that asks DNS.
    """
    for field, what in (("address", "fabric address"),):
        seen = {}
        for node in planned:
            if node[field] in seen:
                problems.append(
                    "{} and {} have the same {} {}".format(
                        seen[node[field]], node["name"], what, node[field]
                    )
                )
            seen.setdefault(node[field], node["name"])
    if port + count - 1 > 65535:
        problems.append(
            "start port %d leaves no room for %d ranks a node; choose a lower one (recommended"
            " 10000 to 20000, contract B5)" % (port, count)
        )
    meeting = launchers.rendezvous(job["launcher"], job.get("rendezvous")) if len(nodes) > 1 else {}
    if "PORT_RANGE" in meeting.get("env", {}) and port + max(64, 2 * count) > 65535:
        problems.append(
            "start port %d leaves no room for the %d ports above it that ranks take with --master"
            % (port, max(64, 2 * count))
        )
    pythons = {name: facts[name]["python_version"] for name in (node["name"] for node in nodes)}
    if len(set(pythons.values())) > 1:
        problems.append(
            "nodes have different Python versions: {}".format(
                ", ".join("{} {}".format(*item) for item in sorted(pythons.items()))
            )
        )
    if len({facts[node["name"]]["machine"] for node in nodes}) > 1:
        problems.append("nodes have different processor architectures")
    if job["launcher"] == "fleetrun" and nodes[0]["accelerator"] != "cpu" and len(nodes) > 1:
        for node in planned:
            resolved = facts[node["name"]].get("resolves_to") or []
            if node["address"] not in resolved:
                # The legacy launcher that --selected_gpu leads to looks its own address up by host
                # name and reads no POD_IP (fact 2, 3).
                text = (
                    "%s: its host name resolves to %s, not to %s; fleetrun --selected_gpu finds its"
                    " rank by it: mend /etc/hosts or use launcher: paddle"
                )
                problems.append(
                    text % (node["name"], ", ".join(resolved) or "nothing", node["address"])
                )
