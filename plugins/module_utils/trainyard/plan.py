# SPDX-License-Identifier: Apache-2.0
"""The plan: job x site x probed facts, compiled by a pure function into one JSON that is the same, byte for byte, on every node.

Run id and run directory are no part of it, so equal inputs give an equal sha256 (design, "plan"). Whatever is not in the plan does not
reach a node.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os

from ansible.module_utils.trainyard.display import SECRET_NAME
from ansible.module_utils.trainyard.launchers import LAUNCHERS, launcher_argv, override_words
from ansible.module_utils.trainyard.mesh import inventory_digest

VERSION = 1
SHORT = 16
# After a rank's death: how long the launcher may take to end the others on its node, and how long the unit's processes have between
# TERM and KILL (seconds). Together they keep the promise that all is stopped within 10 s.
GRACE_SECONDS = 2
STOP_SECONDS = 5
# A run can last for weeks, and a node's certificate must outlast it: the nodes stop each other with it. As long as ssh_trust_renew_before.
CERTIFICATE_MARGIN = 20 * 86400


class PlanError(Exception):
    """A plan that cannot be made; .problems holds every reason as a sentence."""

    def __init__(self, problems):
        super().__init__("; ".join(problems))
        self.problems = problems


def canonical(plan):
    """Return the plan's bytes: sorted keys, no spaces, one line. The sha256 of these bytes is the plan's digest."""
    return json.dumps(plan, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def sha256(plan):
    """Return the plan's digest (hex)."""
    return hashlib.sha256(canonical(plan)).hexdigest()


def short(digest):
    """Return the part of a digest that names a directory on the nodes."""
    return digest[:SHORT]


def pick_address(node, facts, alone=False):
    """Return (address, interface, problem): where the node is on the fabric (design, decision 7).

    The site's trainyard_address (an address, or a network the address lies in) comes first, then ansible_host where the node really has
    that address, then the address from which the node's route to its peers starts. A node that is alone has no peer and takes any of its own.
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
            "%s has no address in %s (trainyard_address); it has %s" % (node["name"], wanted, ", ".join(a for a, _i in own) or "none"),
        )
    for candidate in (node["host"], facts.get("route_source")):
        match = [(a, i) for a, i in usable if a == candidate]
        if match:
            return match[0] + (None,)
    if alone and own:
        return (usable or own)[0] + (None,)
    text = "%s: no address of its own is ansible_host (%s) or leads to the other nodes; set trainyard_address; it has %s"
    return None, None, text % (node["name"], node["host"], ", ".join("%s on %s" % pair for pair in usable) or "none but loopback")


def node_environment(node, count):
    """Return what differs from node to node in the environment: the address, the interface, where home and the Python environment are."""
    home = node["home"]
    return {
        "HOME": home,
        "USER": node["user"],
        "LOGNAME": node["user"],
        "PATH": ":".join([os.path.dirname(node["python"]), "/usr/local/bin", "/usr/bin", "/bin"]),
        "POD_IP": node["address"],
        "GLOO_SOCKET_IFNAME": node["interface"],
        "NCCL_SOCKET_IFNAME": node["interface"],
        "OMP_NUM_THREADS": str(max(1, node["cores"] // max(1, count))),
    }


def common_environment(port, job, site):
    """Return what is the same everywhere. FLAGS_START_PORT is what the documents name (B5, C4); the present launcher reads the other (fact 1)."""
    values = {
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "FLAGS_START_PORT": str(port),
        "PADDLE_START_PORT": str(port),
    }
    values.update(site["env"])
    values.update({key: str(value) for key, value in job["env"].items()})
    return values


def compile_plan(job, site, nodes, facts, inputs):
    """Compile the plan.

    job: as read_job gives it. site: as read_site gives it. nodes: the chosen nodes in rank order. facts: {node name: what node_probe
    returned}. inputs: {suite (table), script, code, data {name: digest}, weights {key: {digest, file}}, environment {digest or python},
    config {epochs}} as the controller found them. Returns the plan; raises PlanError with every problem.
    """
    problems, planned = [], []
    suite, port = inputs["suite"], job.get("start_port") or site["start_port"]
    count = len(nodes[0]["devices"])
    for index, node in enumerate(nodes):
        fact = facts[node["name"]]
        address, interface, problem = pick_address(node, fact, alone=len(nodes) == 1)
        if problem:
            problems.append(problem)
            continue
        if len(nodes) > 1 and ipaddress.ip_address(address).is_loopback:
            problems.append("%s: %s is a loopback address; no other node can reach it; set trainyard_address" % (node["name"], address))
        base = fact["base"]
        environment = inputs["environment"]
        python = environment["python"] if environment.get("python") else "%s/env/%s/bin/python" % (base, short(environment["digest"]))
        entry = {
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
        entry["env"] = node_environment(entry, count)
        # a value that the site or the job gives for all nodes beats one that is only reckoned
        for name in set(entry["env"]) & (set(site["env"]) | set(job["env"])) - {"HOME", "USER", "LOGNAME", "PATH", "POD_IP"}:
            del entry["env"][name]
        planned.append(entry)
    _check_nodes(job, nodes, planned, facts, count, port, problems)
    if problems:
        raise PlanError(problems)
    overrides = dict(inputs.get("site_overrides") or {}, **job["overrides"])
    weights = {key: "weights/%s/%s" % (short(item["digest"]), item["file"]) for key, item in inputs["weights"].items()}
    accelerator = nodes[0]["accelerator"]
    argv = launcher_argv(job["launcher"], accelerator, [node["address"] for node in planned], planned[0]["devices"], suite["python"])
    argv += [inputs["script"], suite["config_flag"], job["config"]] + job["arguments"]
    argv += override_words(suite["override_flag"], dict(overrides, **weights))
    links = {suite["data"][name]: "data/%s" % short(digest) for name, digest in inputs["data"].items()}
    links.update({"weights/%s" % short(item["digest"]): "weights/%s" % short(item["digest"]) for item in inputs["weights"].values()})
    launcher = LAUNCHERS[job["launcher"]]
    endpoints = ["%s:%d" % (node["address"], port + local) for node in planned for local in range(count)]
    stem = os.path.splitext(os.path.basename(job["config"]))[0]
    return {
        "version": VERSION,
        "site": site["name"],
        "job": {key: job[key] for key in ("name", "suite", "launcher", "config", "arguments", "overrides", "published")},
        "suite": {"name": suite["name"], "logs": suite["logs"], "redirects": suite["redirects"],
                  "checkpoints": dict(suite["checkpoints"], folders=[folder.format(stem=stem) for folder in suite["checkpoints"]["folders"]])},
        "launcher": {"name": job["launcher"], "rank_log": launcher["rank_log"], "console": launcher["console"], "rank_env": launcher["rank_env"],
                     "endpoints_env": launcher["endpoints_env"]},
        "accelerator": accelerator,
        "argv": argv,
        "env": common_environment(port, job, site),
        "ports": {"start": port, "count": count},
        "endpoints": endpoints,
        "nodes": planned,
        "ranks": [{"rank": node["rank"] * count + local, "node": node["name"], "local_rank": local, "device": device,
                   "endpoint": "%s:%d" % (node["address"], port + local)} for node in planned for local, device in enumerate(node["devices"])],
        "code": {"digest": inputs["code"]["digest"]},
        "data": inputs["data"],
        "weights": inputs["weights"],
        "links": links,
        "environment": environment,
        "epochs": inputs["config"].get("epochs"),
        "stop": {"grace": GRACE_SECONDS, "timeout": STOP_SECONDS},
    }  # fmt: skip


def _check_nodes(job, nodes, planned, facts, count, port, problems):
    """Note what no start could survive: two nodes with one address or one machine id, ports past the end, a legacy launcher that asks DNS."""
    for field, what in (("address", "fabric address"),):
        seen = {}
        for node in planned:
            if node[field] in seen:
                problems.append("%s and %s have the same %s %s" % (seen[node[field]], node["name"], what, node[field]))
            seen.setdefault(node[field], node["name"])
    if port + count - 1 > 65535:
        problems.append(
            "start port %d leaves no room for %d ranks a node; choose a lower one (recommended 10000 to 20000, contract B5)" % (port, count)
        )
    pythons = {name: facts[name]["python_version"] for name in (node["name"] for node in nodes)}
    if len(set(pythons.values())) > 1:
        problems.append("nodes have different Python versions: %s" % ", ".join("%s %s" % item for item in sorted(pythons.items())))
    if len({facts[node["name"]]["machine"] for node in nodes}) > 1:
        problems.append("nodes have different processor architectures")
    if job["launcher"] == "fleetrun" and nodes[0]["accelerator"] != "cpu" and len(nodes) > 1:
        for node in planned:
            resolved = facts[node["name"]].get("resolves_to") or []
            if node["address"] not in resolved:
                # The legacy launcher that --selected_gpu leads to looks its own address up by host name and reads no POD_IP (fact 2, 3).
                text = "%s: its host name resolves to %s, not to %s; fleetrun --selected_gpu finds its rank by it: mend /etc/hosts or use launcher: paddle"
                problems.append(text % (node["name"], ", ".join(resolved) or "nothing", node["address"]))


def todo(plan, facts, now, site_nodes=()):
    """Return what is not ready yet: {'provision': [...], 'trust': [...], 'environment': [...], 'code': [...], 'data': [...], 'weights': [...]} of node names.

    now: unix time in seconds. site_nodes: all nodes of the site as read_site gives them; a mesh made for other addresses is made again.
    """
    names = [node["name"] for node in plan["nodes"]]
    result = {"provision": [n for n in names if facts[n]["missing"]], "trust": [], "environment": [], "code": [], "data": [], "weights": []}
    if len(names) > 1:
        mesh = [facts[name]["mesh"] or {} for name in names]
        proven = all(m.get("present") and m.get("proven") and (m.get("valid_until") or 0) >= now + CERTIFICATE_MARGIN for m in mesh)
        rows = {n["name"]: (n["name"], n["host"], n["port"], n["address"]) for n in site_nodes} if site_nodes else None
        covered = all(set(names) <= set(m.get("nodes") or []) and _same_addresses(m, rows) for m in mesh)
        if not proven or not covered or len({m.get("digest") for m in mesh}) > 1:
            result["trust"] = names  # the host keys of all go to all
    if not plan["environment"].get("python"):
        result["environment"] = [n for n in names if plan["environment"]["digest"] not in facts[n]["environments"]]
    for kind, digests in wanted_trees(plan).items():
        result[kind] = [n for n in names if any(not (facts[n]["trees"].get("%s/%s" % (kind, short(d))) or {}).get("ok") for d in digests)]
    result["trees"] = [n for n in names if n in result["code"] + result["data"] + result["weights"]]
    return result


def obstacles(plan, facts, repair=False):
    """Return a sentence with its remedy for everything that only a person can clear before a start: lacking root's part, a held node, a changed tree.

    repair: the caller is going to replace changed trees (sync.yml).
    """
    lines = []
    for node in plan["nodes"]:
        fact = facts[node["name"]]
        if fact["missing"]:
            lines.append("%s lacks %s; playbooks/provision.yml has to run first (once)" % (node["name"], ", ".join(fact["missing"])))
        other = (fact["mesh"] or {}).get("site")
        if len(plan["nodes"]) > 1 and other and other != plan["site"]:
            lines.append("%s belongs to the mesh of the site '%s'; run that site's playbooks/untrust.yml first" % (node["name"], other))
        for unit in fact["units"]:
            lines.append(
                "%s is held by %s (%s); follow it or stop it: playbooks/stop.yml" % (node["name"], unit["description"], unit["state"])
            )
    if not repair:
        remedy = "; the controller's copy is the rule: playbooks/sync.yml with the same config brings it again"
        lines += [line + remedy for line in differing_trees(plan, facts)]
    return lines


def differing_trees(plan, facts):
    """Return a sentence for every node whose copy of code, data or weights differs from the controller's, with the files by name."""
    lines = []
    for node in plan["nodes"]:
        for name, state in sorted(facts[node["name"]]["trees"].items()):
            if state["present"] and not state["ok"]:
                lines.append(
                    "%s: %s differs from the controller's: %s" % (node["name"], name, "; ".join(state["differences"]) or "unknown files")
                )
    return lines


def _same_addresses(mesh, rows):
    """Whether a mesh was made for the addresses that the inventory has now; rows: {node name: what mesh.inventory_digest takes}, or None."""
    if rows is None:
        return True
    recorded = mesh.get("nodes") or []
    return all(name in rows for name in recorded) and inventory_digest([rows[name] for name in recorded]) == mesh.get("inventory")


def wanted_trees(plan):
    """Return {'code': [digest], 'data': [digests], 'weights': [digests]}: the trees a node must hold, bit for bit."""
    return {
        "code": [plan["code"]["digest"]],
        "data": sorted(plan["data"].values()),
        "weights": sorted({w["digest"] for w in plan["weights"].values()}),
    }


def summary(plan, facts, what):
    """Return the plan as lines for people: job, exact command, rank map, environment, what is done before the start."""
    import shlex

    lines = [
        "plan %s  job %s  %d nodes x %d devices (%s)"
        % (sha256(plan)[:12], plan["job"]["name"], len(plan["nodes"]), plan["ports"]["count"], plan["accelerator"]),
        "command, the same on every node, in the code tree %s:" % short(plan["code"]["digest"]),
        "  " + " ".join(shlex.quote(word) for word in plan["argv"]),
        "environment on every node:",
    ]
    lines += ["  %s=%s" % (name, "***" if SECRET_NAME.search(name) else value) for name, value in sorted(plan["env"].items())]
    for node in plan["nodes"]:
        ranks = [str(rank["rank"]) for rank in plan["ranks"] if rank["node"] == node["name"]]
        lines.append(
            "%s: rank %s  devices %s  address %s on %s  ports %d-%d"
            % (
                node["name"],
                ",".join(ranks),
                ",".join(node["devices"]),
                node["address"],
                node["interface"],
                plan["ports"]["start"],
                plan["ports"]["start"] + plan["ports"]["count"] - 1,
            )
        )
        lines += ["  %s=%s" % item for item in sorted(node["env"].items())]
    for path, target in sorted(plan["links"].items()):
        lines.append("link %s -> %s" % (path, target))
    for kind in ("provision", "trust", "environment", "code", "data", "weights"):
        if what[kind]:
            lines.append("before the start: %s on %s" % (kind, ", ".join(what[kind])))
    lines += ["in the way: %s" % text for text in obstacles(plan, facts)]
    if not any(what.values()):
        lines.append("before the start: nothing, every node is ready")
    return lines
