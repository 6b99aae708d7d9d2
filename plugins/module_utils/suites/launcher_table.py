# SPDX-License-Identifier: Apache-2.0
"""Launchers as a table: the commands that start the ranks, as documented.

An entry holds
    kind            each: the command runs on every node.
                    first: on the first node, which starts daemons inside the other nodes' units.
                    ranks: there is no launcher, the node's agent starts the script once per rank.
    argv, script    the command before, and between, the devices and the training script;
                    words with {...} are filled from the plan
    rendezvous      how several nodes find each other, by the name of the switch; the first is the
                    default. One node has none (A1, B2, C1)
    alone           env of a single node
    devices         the words for the devices, by accelerator; an accelerator that is not here
                    cannot be used
    env, node_env   variables of every node's ranks; those that differ from node to node
    files           texts below the working directory, one line per node
    table           whether the nodes' HCCL rank table is written there and named to every rank
    workers         further variables of every rank, by accelerator
    scheduler       a process that the first node runs beside the ranks, by accelerator:
                    argv, env, log
    programs        programs that the nodes' systems must have besides: program to package (names as
                    on Debian)
    visible         the variable that says which devices the ranks may take, by accelerator
    rank_log        the log of a rank, below the attempt's directory
    rank_env        the variable that only a rank has, not its helpers
    endpoints_env   the variable in which ranks report the peers they use, or None
    logs            further logs that the controller fetches
    head_start      seconds that every node but the first waits before it starts its command
    end_words       the launcher's words for a failed rank's end on its console: a pattern with the
                    groups pid and code
    notes           notes for the user, by accelerator
Words {...}: python, ips, devices, count (ranks per node), world (all ranks), nodes, node_rank,
rank, address, first_address, master, port, fabric.
"""

from __future__ import annotations

import ast
import json
from typing import Any

from .plain_scalar import is_plain_text

_PADDLE = {
    "kind": "each",
    "script": [],
    "rank_log": "log/workerlog.{local_rank}",
    "rank_env": "PADDLE_TRAINER_ID",
    "endpoints_env": "PADDLE_TRAINER_ENDPOINTS",
    # A rank that asks for rank 0's store too early asks again after 3 s (fact 18).
    "head_start": 1.5,
    # FLAGS_START_PORT is what the upstream documentation names (B5, C4); the present launcher reads
    # the other one (fact 1).
    "env": {"FLAGS_START_PORT": "{port}", "PADDLE_START_PORT": "{port}"},
    # Facts 3 and 4: the launcher and gloo find a node's address by its host name otherwise.
    "node_env": {
        "POD_IP": "{address}",
        "GLOO_SOCKET_IFNAME": "{interface}",
        "NCCL_SOCKET_IFNAME": "{interface}",
    },
}
_MINDSPORE = {
    "endpoints_env": None,
    "env": {},
    "node_env": {"GLOO_SOCKET_IFNAME": "{interface}", "NCCL_SOCKET_IFNAME": "{interface}"},
}

# As variables, so that the command stays the documented one. No binding: Open MPI's default pins a
# rank with its data loaders to one core.
_MCA = {
    "plm": "rsh",
    "plm_rsh_no_tree_spawn": "1",
    "orte_leave_session_attached": "1",
    "hwloc_base_binding_policy": "none",
}
# mindspore/parallel/cluster/process_entity/_api.py: the variables that msrun gives its workers. Any
# other start has to give them, too.
_WORKER = {
    "MS_ROLE": "MS_WORKER",
    "MS_WORKER_NUM": "{world}",
    "MS_SCHED_HOST": "{first_address}",
    "MS_SCHED_PORT": "{port}",
    "MS_NODE_ID": "{rank}",
}
_SCHEDULER = {
    "argv": ["{python}", "-c", "import mindspore.communication; mindspore.communication.init()"],
    "env": dict(
        {name: text for name, text in _WORKER.items() if name != "MS_NODE_ID"}, MS_ROLE="MS_SCHED"
    ),
    "log": "log/scheduler.log",
}

LAUNCHERS: dict[str, Any] = {
    "paddle": dict(
        _PADDLE,
        argv=["{python}", "-m", "paddle.distributed.launch", "--log_dir=./log/"],
        rendezvous={
            "ips": {"argv": ["--ips={ips}"]},
            # paddle/distributed/launch/controllers/master.py: without a rank of its own a node gets
            # one in the order of arrival, and ports come from PORT_RANGE (context/node.py). So both
            # are given. The master itself listens on the start port.
            "master": {
                "argv": ["--master={master}", "--nnodes={nodes}"],
                "env": {"PORT_RANGE": "{first_free}:{last_free}"},
                "node_env": {"PADDLE_RANK": "{node_rank}"},
            },
        },
        devices={"gpu": ["--gpus", "{devices}"], "cpu": ["--nproc_per_node={count}"]},
        notes={
            "cpu": ("--nproc_per_node replaces the documented --gpus, which needs a CUDA build"),
        },
    ),
    # With --selected_gpu, fleetrun falls back to Paddle's legacy launcher (fact 2). That one
    # refuses several CPU nodes, so a CPU site gets the equivalent form of the present launcher. The
    # log directory is ./log by default in both.
    "fleetrun": dict(
        _PADDLE,
        argv=["fleetrun"],
        rendezvous={"ips": {"argv": ["--ips={ips}"]}},
        devices={"gpu": ["--selected_gpu", "{devices}"], "cpu": ["--nproc_per_node={count}"]},
        notes={
            "cpu": (
                "fleetrun --selected_gpu is the documented form (C1, C2) and needs a CUDA build: on"
                " a CPU build it refuses several nodes (docs/facts.md, 2); the equivalent"
                " --nproc_per_node is used"
            ),
        },
    ),
    # mindspore/parallel/cluster/process_entity/_api.py (2.7): the node that owns master_addr starts
    # the scheduler, so that is the first node's. Without --node_rank the ranks follow the order of
    # arrival. The word python must be bare: msrun knows no path of one.
    "msrun": dict(
        _MINDSPORE,
        kind="each",
        argv=[
            "msrun",
            "--worker_num={world}",
            "--local_worker_num={count}",
            "--master_addr={first_address}",
            "--master_port={port}",
            "--node_rank={node_rank}",
            "--log_dir=./log",
            "--join=True",
            "--cluster_time_out=300",
        ],
        script=[],
        rendezvous={},
        devices={"ascend": [], "gpu": [], "cpu": []},
        visible={"gpu": "CUDA_VISIBLE_DEVICES", "ascend": "ASCEND_RT_VISIBLE_DEVICES"},
        # msrun polls without a pause, so it often collects a dead rank before any other process can
        # see its end. Then msrun's own words are the only source.
        end_words=r"Worker process (?P<pid>\d+) exit with exception\. Error code: (?P<code>-?\d+)",
        rank_log="log/worker_{rank}.log",
        rank_env="MS_NODE_ID",
        logs=["log/scheduler.log"],
    ),
    # Open MPI 4.1, measured (docs/facts.md). The word mpirun must be bare: a path of it would make
    # shell text for the other nodes. --wdir: every daemon stands in its own attempt, which may have
    # another path there. Variables go by name, and only those that are equal everywhere. The
    # daemons run inside the attempt's unit on each node and have that node's environment already.
    "mpirun": dict(
        _MINDSPORE,
        kind="first",
        argv=["mpirun"],
        root=["--allow-run-as-root"],
        script=["{python}"],
        rendezvous={
            "hostfile": {
                "argv": ["--hostfile", "hostfile", "--wdir", "/proc/self/cwd"],
                "env": {
                    "OMPI_MCA_oob_tcp_if_include": "{fabric}",
                    "OMPI_MCA_btl_tcp_if_include": "{fabric}",
                },
                "forward": "-x",
            },
        },
        alone={"env": {"OMPI_MCA_orte_default_hostfile": "hostfile"}},
        devices={kind: ["-n", "{world}"] for kind in ("ascend", "gpu", "cpu")},
        env={"OMPI_MCA_" + name: text for name, text in _MCA.items()},
        files={"hostfile": "{address} slots={count}\n"},
        workers={"cpu": _WORKER},
        scheduler={"cpu": _SCHEDULER},
        logs=["log/scheduler.log"],
        visible={"gpu": "CUDA_VISIBLE_DEVICES", "ascend": "ASCEND_RT_VISIBLE_DEVICES"},
        programs={"mpirun": "openmpi-bin"},
        rank_log="log/rank_{rank}.log",
        # Open MPI's own OMPI_COMM_WORLD_RANK is in the program that starts the rank, too, and
        # mpirun collects that one before another process can look.
        rank_env="TRAINYARD_RANK",
        notes={
            "cpu": (
                "MindSpore's CPU build takes no part in MPI, so the ranks that mpirun starts get"
                " the variables of its own cluster, and a scheduler runs beside them"
                " (docs/facts.md)"
            ),
        },
    ),
    # Contract D7: the documented script starts one process per device. Every rank's log is kept,
    # not the first's alone.
    "rank_table": dict(
        _MINDSPORE,
        kind="ranks",
        argv=["{python}", "-u"],
        script=[],
        rendezvous={},
        devices={"ascend": []},
        table=True,
        rank_log="log/rank_{rank}/train.log",
        rank_env="RANK_ID",
        notes={
            "ascend": (
                "this launcher has not been run on Ascend hardware: the rank table is only"
                " compared with the documented one (D4-D7)"
            ),
        },
    ),
}


def launcher_argv(name, accelerator, addresses, devices, python="python", **more):
    """Return the launcher's part of the command line as a list of words.

    name: launcher. accelerator: cpu, gpu or ascend. addresses: fabric addresses in rank order. One
    address is the single-machine form, which has no rendezvous (contract A1, C1). devices: device
    ids of a node, the same on every node. more: rendezvous (a key of the launcher's table), port,
    node_rank, root (whether the training user is root), forward (names of variables that a remote
    rank is to get).
    """
    entry = LAUNCHERS[name]
    argv = list(entry["argv"])
    if more.get("root"):
        argv += entry.get("root", [])
    if len(addresses) > 1:
        switch = rendezvous(name, more.get("rendezvous"))
        argv += switch.get("argv", [])
        if switch.get("forward"):
            for variable in more.get("forward", ()):
                argv += [switch["forward"], variable]
    argv += entry["devices"][accelerator] + entry["script"]
    values = template_values(addresses, devices, python, more.get("port"), more.get("node_rank", 0))
    return [word.format(**values) for word in argv]


def template_values(addresses, devices, python, port, node_rank):
    """Return the values of {...} in a launcher's words."""
    port = port or 0
    world = len(addresses) * len(devices)
    return {
        "python": python,
        "ips": ",".join(addresses),
        "devices": ",".join(devices),
        "count": len(devices),
        "world": world,
        "nodes": len(addresses),
        "node_rank": node_rank,
        "address": addresses[node_rank],
        "first_address": addresses[0],
        "master": f"{addresses[0]}:{port}",
        "port": port,
        "first_free": port + 1,
        "last_free": port + max(64, 2 * len(devices)),
    }


def rendezvous(name, wanted=None):
    """Return the launcher's rendezvous: the entry of a switch, or the first one.

    Raise KeyError for an unknown switch.
    """
    switches = LAUNCHERS[name]["rendezvous"]
    if wanted:
        return switches[wanted]
    return next(iter(switches.values()), {})


def fill_texts(texts, values):
    """Return a mapping of texts with their {...} filled."""
    return {key: text.format(**values) for key, text in texts.items()}


def override_arguments(flag, overrides, style="yaml"):
    """Return config overrides as the suites' `-o key=value ...` takes them.

    An empty mapping gives nothing. style: how the suite reads the right-hand side, as yaml or as a
    python literal.
    """
    if not overrides:
        return []
    as_text = {"yaml": override_text, "python": python_text}[style]
    return [flag] + [f"{key}={as_text(value)}" for key, value in overrides.items()]


def python_text(value):
    """Return a value as a Python literal on one line.

    A text that is not a literal stays bare, since the suites take it for a text.
    """
    if not isinstance(value, str):
        return repr(value)
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value
    return repr(value)


def override_text(value):
    """Return a value as YAML text on one line, as most suites parse an override."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, dict):
        items = [f"{override_text(key)}: {override_text(item)}" for key, item in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(override_text(item) for item in value)}]"
    if isinstance(value, float) and "." not in str(value):
        return str(value).replace("e", ".0e")  # to YAML 1e-05 is a text, 1.0e-05 a number
    if not isinstance(value, str):
        return str(value)
    # `key=` is how the suites' documents write an empty value.
    if not value or is_plain_text(value):
        return value
    return json.dumps(value, ensure_ascii=False)
