# SPDX-License-Identifier: Apache-2.0
"""The plan: job, site and probed facts, compiled into one JSON by a pure function.

The JSON is the same on every node, byte for byte. It holds neither run id nor run directory, so
equal inputs give an equal sha256 (docs/design.md). Whatever is not in the plan does not reach a
node.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os

from ..checkpoints import replica
from ..environments import containers
from ..suites import (
    launcher_table,
    suite_table,
    watchdog_budgets,
)
from . import rank_table, resume_inputs, supervised
from .plan_bytes import canonical_bytes, sha256
from .plan_types import Plan

__all__ = ["PlanError", "canonical_bytes", "compile_plan", "sha256", "short"]
VERSION = 1
# What a plan keeps of a suite's `checkpoints`, besides the folders.
CHECKPOINT_KEYS = ("best", "last")
SHORT = 16
# After a rank's death: how long the launcher may take to end the others on its node, and how long
# the unit's processes have between TERM and KILL (seconds). Together they keep the promise that all
# is stopped within 10 s.
GRACE_SECONDS = 2
STOP_SECONDS = 5
LARGEST_PORT = 65535
# CANN's variables of the host interface by which HCCL's ranks of several nodes meet. `=` asks for a
# whole name. HCCL_IF_IP beats the other one, so both are left out where the site or the job gives
# one. Untested on hardware.
HCCL_NAMES = ("HCCL_SOCKET_IFNAME", "HCCL_IF_IP")
# Of a node's environment: set by the plan alone, whatever the site or the job gives.
_FIXED_NAMES = {"HOME", "USER", "LOGNAME", "PATH", "POD_IP"}


class PlanError(Exception):
    """A plan that cannot be made. .problems holds every reason as a sentence."""

    def __init__(self, problems):
        super().__init__("; ".join(problems))
        self.problems = problems


@dataclasses.dataclass(frozen=True)
class _Launch:
    """The launcher's part of one plan."""

    job: dict
    table: dict  # the launcher's entry in launcher_table.LAUNCHERS
    rendezvous: dict  # how several nodes find each other; for one node, what it needs alone
    accelerator: str
    python: str  # the word for Python in the suite's command
    port: int  # the first one of every node
    addresses: list  # fabric addresses in rank order
    devices: list  # of a node, the same on every node

    def values(self, index):
        """Return what {...} stands for on a node, given its rank."""
        return launcher_table.template_values(
            self.addresses, self.devices, self.python, self.port, index
        )


def short(digest):
    """Return the part of a digest that names a directory on the nodes."""
    return digest[:SHORT]


# --- nodes


def pick_address(node, facts, alone=False):
    """Return (address, interface, problem) of a node on the fabric.

    See docs/design.md, 7. The site's trainyard_address comes first: an address, or a network in
    which the address lies. Then comes ansible_host where the node really has that address, then the
    address from which the node's route to its peers starts. A node that is alone has no peer and
    takes any address that it has.
    """
    every = [(entry["address"], entry["interface"]) for entry in facts["addresses"]]
    if node["address"] is not None:
        return _address_in_network(node, every)
    usable = [(a, i) for a, i in every if not ipaddress.ip_address(a).is_loopback]
    for candidate in (node["host"], facts.get("route_source")):
        for address, interface in usable:
            if address == candidate:
                return address, interface, None
    if alone and every:
        return (usable or every)[0] + (None,)
    names = ", ".join("{} on {}".format(*pair) for pair in usable) or "none but loopback"
    problem = (
        "{}: no address of its own is ansible_host ({}) or leads to the other nodes; set"
        " trainyard_address; it has {}"
    )
    return None, None, problem.format(node["name"], node["host"], names)


def _address_in_network(node, pairs):
    """Return (address, interface, problem) of the first pair in the site's network."""
    network = ipaddress.ip_network(node["address"], strict=False)
    for address, interface in pairs:
        if ipaddress.ip_address(address) in network:
            return address, interface, None
    names = ", ".join(address for address, _interface in pairs) or "none"
    problem = "{} has no address in {} (trainyard_address); it has {}"
    return None, None, problem.format(node["name"], node["address"], names)


def compile_nodes(nodes, facts, environment, problems):
    """Return the plan's entries of the nodes, without their environment.

    A node without a usable address is noted in problems.
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
                f"{node['name']}: {address} is a loopback address; no other node can reach it;"
                " set trainyard_address"
            )
        planned.append(
            {
                "name": node["name"],
                "rank": index,
                "address": address,
                "interface": interface,
                "devices": node["devices"],
                "home": fact["home"],
                "base": fact["base"],
                "user": fact["user"],
                "python": _python_path(fact["base"], environment),
                "cores": _usable_cores(fact),
            }
        )
    return planned


def _usable_cores(fact):
    """Return how many processors a node's ranks may use at once, at least one.

    A container's or a slice's quota counts beside the node's processors: threads above it would be
    throttled.
    """
    limits = (fact.get("machines") or {}).get("unit") or {}
    return max(1, int(min(fact["cores"], limits.get("cores") or fact["cores"])))


def _python_path(base, environment):
    """Return the path of a node's Python.

    In a container the image's PATH is used instead.
    """
    if environment.get("python"):
        return environment["python"]
    return "{}/env/{}/bin/python".format(base, short(environment["digest"]))


# --- checks


def _check_nodes(job, nodes, planned, facts, count, port, problems):
    """Note everything that would make a start fail for certain."""
    problems += _duplicate_addresses(planned)
    problems += _port_problems(job, nodes, count, port)
    problems += _unequal_machines(nodes, facts)
    if job["launcher"] == "fleetrun" and nodes[0]["accelerator"] != "cpu" and len(nodes) > 1:
        problems += _unresolved_names(planned, facts)


def _duplicate_addresses(planned):
    problems, owners = [], {}
    for node in planned:
        address = node["address"]
        if address in owners:
            problems.append(
                f"{owners[address]} and {node['name']} have the same fabric address {address}"
            )
        owners.setdefault(address, node["name"])
    return problems


def _port_problems(job, nodes, count, port):
    """Return why the ports that the ranks need do not fit below the largest port."""
    problems = []
    if port + count - 1 > LARGEST_PORT:
        problems.append(
            f"start port {port} leaves no room for {count} ranks per node; choose a lower one"
            " (recommended 10000 to 20000, contract B5)"
        )
    rendezvous = {}
    if len(nodes) > 1:
        rendezvous = launcher_table.rendezvous(job["launcher"], job.get("rendezvous"))
    above = max(64, 2 * count)
    if "PORT_RANGE" in rendezvous.get("env", {}) and port + above > LARGEST_PORT:
        problems.append(
            f"start port {port} leaves no room for the {above} ports above it that ranks take with"
            " --master"
        )
    return problems


def _unequal_machines(nodes, facts):
    """Return in what the nodes differ although all of them execute the same programs."""
    problems, names = [], [node["name"] for node in nodes]
    versions = {name: facts[name]["python_version"] for name in names}
    if len(set(versions.values())) > 1:
        pairs = ", ".join("{} {}".format(*item) for item in sorted(versions.items()))
        problems.append(f"nodes have different Python versions: {pairs}")
    if len({facts[name]["machine"] for name in names}) > 1:
        problems.append("nodes have different processor architectures")
    return problems


def _unresolved_names(planned, facts):
    """Return a problem for every node whose host name leads to another address.

    The legacy launcher that --selected_gpu leads to looks its own address up by host name and reads
    no POD_IP (fact 2, 3).
    """
    problem = (
        "{}: its host name resolves to {}, not to {}; fleetrun --selected_gpu finds its rank by it:"
        " fix /etc/hosts or use launcher: paddle"
    )
    problems = []
    for node in planned:
        resolved = facts[node["name"]].get("resolves_to") or []
        if node["address"] not in resolved:
            addresses = ", ".join(resolved) or "nothing"
            problems.append(problem.format(node["name"], addresses, node["address"]))
    return problems


def container_problems(job, suite, planned, facts, environment):
    """Return why this job cannot start in the environment's image."""
    if not environment.get("container"):
        return []
    problems = [containers.launcher_problem(launcher_table.LAUNCHERS[job["launcher"]]["kind"])]
    for node in planned:
        container = (facts[node["name"]].get("containers") or {}).get(environment["digest"])
        reason = (
            "the image has not been looked at here; run ansible-playbook playbooks/provision.yml"
        )
        if container:
            reason = containers.python_problem(container, suite["python"])
        if reason:
            problems.append("{}: {}".format(node["name"], reason))
        mounts = environment.get("mounts") or []
        problems += [containers.mesh_problem(node["home"], path) for path in mounts]
    return list(dict.fromkeys(problem for problem in problems if problem))


# --- environment


def node_environment(node, count, launcher, rendezvous, values):
    """Return the variables that differ from node to node."""
    result = {
        "HOME": node["home"],
        "USER": node["user"],
        "LOGNAME": node["user"],
        "PATH": ":".join([os.path.dirname(node["python"]), "/usr/local/bin", "/usr/bin", "/bin"]),
        "OMP_NUM_THREADS": str(max(1, node["cores"] // max(1, count))),
    }
    texts = dict(launcher["node_env"], **rendezvous.get("node_env", {}))
    result.update(launcher_table.fill_texts(texts, dict(values, interface=node["interface"])))
    return result


def common_environment(job, site, suite, launcher, rendezvous, values, accelerator):
    """Return the variables that are the same on every node.

    The site's values beat those of the tables, and the job's beat both.
    """
    result = {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if accelerator == "gpu":
        # Without it NCCL prints no reason: the warnings are what the verdict reads.
        result["NCCL_DEBUG"] = "WARN"
    elif accelerator == "ascend":
        # CANN writes its reasons at the level ERROR (3, the default, which an image may change to
        # 4, none) into files, and with PRINT_TO_STDOUT=1 into none: hiascend.com, CANN's
        # environment variables, ASCEND_GLOBAL_LOG_LEVEL and ASCEND_SLOG_PRINT_TO_STDOUT. The agent
        # adds the folder of the files.
        result.update(ASCEND_GLOBAL_LOG_LEVEL="3", ASCEND_SLOG_PRINT_TO_STDOUT="0")
    visible = {}
    if accelerator in launcher.get("visible", {}):
        visible = {launcher["visible"][accelerator]: "{devices}"}
    for texts in (
        launcher["env"],
        rendezvous.get("env", {}),
        visible,
        suite["env"],
        suite_table.accelerator(suite, accelerator)["env"],
    ):
        result.update(launcher_table.fill_texts(texts, values))
    result.update(site["env"])
    result.update({key: str(value) for key, value in job["env"].items()})
    return result


# --- the plan


def compile_plan(job, site, nodes, facts, inputs) -> Plan:
    """Compile the plan.

    job: as job_config gives it. site: as read_site gives it. nodes: the chosen nodes in rank order.
    facts: {node name: what node_info returned}. inputs: {suite (table), script, code, data {name:
    digest}, weights {key: {digest, file}}, environment {digest or python}, overrides and arguments
    (of suite, site and job), config {epochs, ...}, resume (of resume_point_choice.choose, or
    None)} as the controller found them. Returns the plan. Raises PlanError with every problem.
    """
    suite, environment = inputs["suite"], inputs["environment"]
    port, count = job.get("start_port") or site["start_port"], len(nodes[0]["devices"])
    planned = _valid_nodes(job, nodes, facts, inputs, port)
    launch = _launch(job, suite, nodes, planned, port)
    launcher, accelerator = launch.table, launch.accelerator
    resumed = resume_inputs.compile_resume(inputs.get("resume"), suite, inputs)
    if resumed["record"]:
        fresh = compile_plan(job, site, nodes, facts, dict(inputs, resume=None))
        resumed["record"]["unresumed"] = sha256(fresh)
    script = _script(job, inputs, accelerator, resumed)
    values = dict(launch.values(0), fabric=fabric_network(planned))
    common = common_environment(job, site, suite, launcher, launch.rendezvous, values, accelerator)
    given = (set(site["env"]) | set(job["env"])) - _FIXED_NAMES
    _set_environments(planned, launch, given)
    argv = _set_commands(planned, launch, common, script)
    placed = compile_placed_inputs(inputs.get("placed") or [], facts[nodes[0]["name"]])
    ranks = compile_ranks(planned, launcher, launch.rendezvous, values, accelerator)
    files = compile_files(planned, launcher, values, ranks, facts)
    scheduler = _scheduler(launch, planned, values)
    if environment.get("container"):
        variables = _attempt_variables(launch, ranks, scheduler)
        mounts = (environment.get("mounts") or []) + [item["path"] for item in placed.values()]
        _set_containers(planned, facts, environment, accelerator, dict(variables, **common), mounts)
    endpoints = []
    if launcher["endpoints_env"]:
        endpoints = [rank["endpoint"] for rank in ranks]
    plan: Plan = {
        "version": VERSION,
        "site": site["name"],
        "job": _job_entry(job),
        "suite": _suite_entry(suite, job["config"], inputs["config"]),
        "launcher": _launcher_entry(job["launcher"], launcher, len(nodes)),
        "accelerator": accelerator,
        "argv": argv,
        "script": script,
        "env": common,
        # Names whose values are never shown. The values are in plan.json alone, which only its user
        # can read.
        "secret_env": site.get("secret_env") or [],
        "ports": {"start": port, "count": count},
        "endpoints": endpoints,
        "nodes": planned,
        "ranks": ranks,
        "code": {key: inputs["code"][key] for key in ("digest", "path") if inputs["code"].get(key)},
        "placed": placed,
        "data": inputs["data"],
        "weights": inputs["weights"],
        "links": dict(_links(suite, inputs, placed), **resumed["links"]),
        "files": dict(files, **resumed["files"]),
        "scheduler": scheduler,
        "environment": environment,
        "epochs": inputs["config"].get("epochs"),
        "advice": inputs["advice"],
        "settings": _settings(inputs["config"], len(ranks)),
        "resume": resumed["record"],
        "notes": _launcher_notes(launch) + resumed["notes"],
        "stop": {"grace": GRACE_SECONDS, "timeout": STOP_SECONDS},
        "watchdog": watchdog_budgets.budgets(job.get("watchdog"), suite),
    }
    _add_replica(plan, site)
    if supervised.is_supervised(job, len(nodes)):
        plan["supervised"] = True
    return plan


def _add_replica(plan, site):
    """Have the second node keep a replica of the checkpoints, where there is one and a rate.

    Other plans keep the bytes that they have had before there were replicas.
    """
    entry = replica.compile_replica(
        [node["name"] for node in plan["nodes"]], site.get("replica_rate")
    )
    if entry:
        rules = plan["suite"]["checkpoints"]
        rules["folders"] = rules["folders"] + replica.slot_folders(rules["folders"])
        plan["replica"] = entry


def _valid_nodes(job, nodes, facts, inputs, port):
    """Return the plan's entries of the nodes.

    Raises PlanError with every reason against a plan.
    """
    suite, environment, resume_point = inputs["suite"], inputs["environment"], inputs.get("resume")
    problems = []
    planned = compile_nodes(nodes, facts, environment, problems)
    _check_nodes(job, nodes, planned, facts, len(nodes[0]["devices"]), port, problems)
    problems += container_problems(job, suite, planned, facts, environment)
    if resume_point:
        reason = resume_inputs.resume_problem(resume_point, suite, inputs["config"])
        if reason:
            problems.append(reason)
    if problems:
        raise PlanError(problems)
    return planned


def _launch(job, suite, nodes, planned, port):
    """Return the launcher's part of the plan."""
    table = launcher_table.LAUNCHERS[job["launcher"]]
    rendezvous = table.get("alone", {})
    if len(nodes) > 1:
        rendezvous = launcher_table.rendezvous(job["launcher"], job.get("rendezvous"))
    return _Launch(
        job=job,
        table=table,
        rendezvous=rendezvous,
        accelerator=nodes[0]["accelerator"],
        python=suite["python"],
        port=port,
        addresses=[node["address"] for node in planned],
        devices=planned[0]["devices"],
    )


def _script(job, inputs, accelerator, resumed):
    """Return the training script and its arguments as words."""
    suite = inputs["suite"]
    weights = {
        key: "weights/{}/{}".format(short(item["digest"]), item["file"])
        for key, item in inputs["weights"].items()
    }
    overrides = dict(inputs["overrides"], **weights, **resumed["overrides"])
    return [
        inputs["script"],
        suite["config_flag"],
        resumed["config"] or job["config"],
        *inputs["arguments"],
        *suite_table.accelerator(suite, accelerator)["arguments"],
        *resumed["arguments"],
        *launcher_table.override_arguments(
            suite["override_flag"], overrides, suite["override_style"]
        ),
    ]


def _set_environments(planned, launch, given):
    """Give every node its own variables.

    given: names that the site or the job sets for all nodes. Such a value beats one that is only
    computed.
    """
    count = len(launch.devices)
    names_interface = launch.accelerator == "ascend" and len(planned) > 1
    for index, node in enumerate(planned):
        variables = node_environment(
            node, count, launch.table, launch.rendezvous, launch.values(index)
        )
        node["env"] = {name: text for name, text in variables.items() if name not in given}
        if names_interface and not given.intersection(HCCL_NAMES):
            node["env"].update(zip(HCCL_NAMES, ("=" + node["interface"], node["address"])))


def _set_commands(planned, launch, common, script):
    """Return the first node's command. Give every node that has another one its own."""
    # (mpirun passes OMPI_ variables on without being asked)
    forwarded = sorted(name for name in common if not name.startswith("OMPI_"))
    commands = []
    for index, node in enumerate(planned):
        argv = launcher_table.launcher_argv(
            launch.job["launcher"],
            launch.accelerator,
            launch.addresses,
            launch.devices,
            launch.python,
            rendezvous=launch.job.get("rendezvous"),
            port=launch.port,
            node_rank=index,
            root=node["user"] == "root",
            forward=forwarded,
        )
        commands.append(argv + script)
        if commands[index] != commands[0]:
            node["argv"] = commands[index]
    return commands[0]


def _set_containers(planned, facts, environment, accelerator, variables, mounts):
    """Give every node the command that starts its ranks in the environment's image."""
    for node in planned:
        node["container"] = containers.plan_entry(
            facts[node["name"]]["containers"][environment["digest"]],
            node["base"],
            dict(variables, **node["env"]),
            accelerator,
            node["devices"],
            list(dict.fromkeys(mounts)),
        )


def _attempt_variables(launch, ranks, scheduler):
    """Return {name: ""} of every variable that a process may get at its start.

    The engine's command names all of them, so that the agent adds no word to it.
    """
    names = ["TRAINYARD_ATTEMPT", launch.table["rank_env"]]
    if scheduler:
        names += scheduler["env"]
    for rank in ranks:
        names += rank.get("env") or {}
    return dict.fromkeys(names, "")


def _scheduler(launch, planned, values):
    """Return the process that the first node runs beside the ranks, or None."""
    entry = launch.table.get("scheduler", {}).get(launch.accelerator)
    if not entry:
        return None
    return {
        "node": planned[0]["name"],
        "argv": [word.format(**values) for word in entry["argv"]],
        "env": launcher_table.fill_texts(entry["env"], values),
        "log": entry["log"],
    }


def _links(suite, inputs, placed):
    """Return {path below the working directory: target}.

    A target is a path below the node's base, or the path of an input that lies there already.
    """
    links = {
        suite_table.data_path(suite, name): f"data/{short(digest)}"
        for name, digest in inputs["data"].items()
    }
    for item in inputs["weights"].values():
        path = "weights/{}".format(short(item["digest"]))
        links[path] = path
    for key, item in placed.items():
        if key.startswith("data/"):
            links[suite_table.data_path(suite, key[len("data/") :])] = item["path"]
    return links


def _job_entry(job):
    names = ("name", "suite", "launcher", "config", "arguments", "overrides", "published")
    return {key: job[key] for key in names}


def _settings(config, count):
    """Return the numbers that the training uses, each None where the config does not say it.

    config: as suite_table.settings gives it. count: of the ranks.
    """
    batch, total = config.get("batch"), None
    if batch:
        total = batch * count
    return {
        "batch_per_card": batch,
        "batch_total": total,
        "learning_rate": config.get("learning_rate"),
        "iterations": config.get("iterations"),
    }


def _suite_entry(suite, config, settings):
    return {
        "name": suite["name"],
        "logs": suite["logs"],
        "redirects": redirects(suite, settings),
        "resume": {
            key: suite["resume"][key] for key in resume_inputs.RULE_KEYS if key in suite["resume"]
        },
        "checkpoints": checkpoint_rules(suite, config, settings),
    }


def _launcher_entry(name, launcher, count):
    """Return the plan's description of its launcher. count: of the plan's nodes."""
    entry = {
        "name": name,
        "kind": launcher["kind"],
        "rank_log": launcher["rank_log"],
        "rank_env": launcher["rank_env"],
        "endpoints_env": launcher["endpoints_env"],
        "console": "logs.txt",
        "logs": launcher.get("logs", []),
        "end_words": launcher.get("end_words"),
    }
    if count > 1 and "head_start" in launcher:
        entry["head_start"] = launcher["head_start"]
    return entry


def _launcher_notes(launch):
    """Return the launcher's notes about the accelerator."""
    notes = launch.table.get("notes", {})
    return [notes[kind] for kind in notes if kind == launch.accelerator]


def compile_placed_inputs(placed, facts):
    """Return {key: {path, placement, digest}} of inputs that lie on the nodes already.

    digest: of names and sizes, whatever was verified besides.
    """
    places = (facts.get("placement") or {}).get("places") or {}
    return {
        item["key"]: {
            "path": item["path"],
            "placement": item["placement"],
            "digest": (places.get(item["key"]) or {}).get("listing") or None,
        }
        for item in placed
    }


def compile_ranks(planned, launcher, meeting, values, accelerator):
    """Return every rank: numbers, node, device, log, endpoint and own variables.

    With --master the launcher itself takes free ports of its range, so that only the address of an
    endpoint is known beforehand.
    """
    ranks, workers = [], launcher.get("workers", {}).get(accelerator, {})
    ports_known = "PORT_RANGE" not in meeting.get("env", {})
    for node in planned:
        for local, device in enumerate(node["devices"]):
            rank = {
                "rank": node["rank"] * values["count"] + local,
                "node": node["name"],
                "local_rank": local,
                "device": device,
            }
            rank["log"] = launcher["rank_log"].format(**rank)
            port = "*"
            if ports_known:
                port = values["port"] + local
            rank["endpoint"] = f"{node['address']}:{port}"
            rank["env"] = launcher_table.fill_texts(workers, dict(values, rank=rank["rank"]))
            ranks.append(rank)
    return ranks


def compile_files(planned, launcher, values, ranks, facts):
    """Return {path below the working directory: text} of hostfile and rank table.

    The hostfile is for Open MPI, the rank table for HCCL. The ranks get the variables that lead
    them to the rank table. Raises PlanError.
    """
    files = {}
    for name, line in launcher.get("files", {}).items():
        lines = [line.format(address=node["address"], count=values["count"]) for node in planned]
        files[name] = "".join(lines)
    if launcher.get("table"):
        table = _compile_rank_table(planned, facts)
        name = rank_table.file_name(table)
        files[name] = rank_table.text(table)
        for rank in ranks:
            rank["env"].update(rank_table.rank_environment(table, rank["rank"], "./" + name))
    return files


def _compile_rank_table(planned, facts):
    """Return the HCCL rank table of the planned nodes.

    Raises PlanError where a device has no valid address.
    """
    problems = [
        "{}: {}".format(node["name"], text)
        for node in planned
        for text in facts[node["name"]].get("device_problems") or []
    ]
    if problems:
        raise PlanError(problems)
    servers = [
        {
            "name": node["name"],
            "server_id": node["address"],
            "devices": node["devices"],
            "device_ips": facts[node["name"]].get("device_ips") or {},
        }
        for node in planned
    ]
    try:
        return rank_table.compile_table(servers)
    except rank_table.RankTableError as error:
        raise PlanError(error.problems) from error


def fabric_network(planned):
    """Return the network for Open MPI: an interface or a network address.

    It is the interface where that has one name everywhere, else the smallest network of all
    addresses. A list of single addresses does not do: Open MPI 4.1 takes a.b.c.d/32 for everything
    (docs/facts.md).
    """
    if len({node["interface"] for node in planned}) == 1:
        return planned[0]["interface"]
    network = ipaddress.ip_network(planned[0]["address"])
    while not all(ipaddress.ip_address(node["address"]) in network for node in planned):
        network = network.supernet()
    return str(network)


def checkpoint_rules(suite, config, settings):
    """Return where the suite saves its checkpoints.

    {stem} is the config file's name, {save} the folder that the config itself names.
    """
    values = {
        "stem": os.path.splitext(os.path.basename(config))[0],
        "save": os.path.normpath(settings.get("save") or "output"),
    }
    folders = [folder.format(**values) for folder in suite["checkpoints"]["folders"]]
    rules = {key: suite["checkpoints"][key] for key in CHECKPOINT_KEYS}
    return dict(rules, folders=list(dict.fromkeys(folders)))


def redirects(suite, settings):
    """Return {path below the working directory: target} of what a suite writes.

    Where the config names a folder of its own, that one is among them.
    """
    result = dict(suite["redirects"])
    if settings.get("save"):
        save = os.path.normpath(settings["save"])
        if not any(save == path or save.startswith(path + "/") for path in result):
            result[save] = save
    return result
