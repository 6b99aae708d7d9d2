# SPDX-License-Identifier: Apache-2.0
"""Launchers as a table: how the ranks of one node are started, word for word as the documents do it.

Each entry: argv (the head), ips (only on several nodes; contract A2, B3, C2), gpu / cpu (how the devices are said), rank_log (where rank
local_rank writes, below the attempt's directory), console (the launcher's own output), rank_env (the variable that tells a rank process
from its helpers), and what the text is compared with.
"""

from __future__ import annotations

import json

import yaml

LAUNCHERS = {
    "paddle": {
        "argv": ["{python}", "-m", "paddle.distributed.launch", "--log_dir=./log/"],
        "ips": ["--ips={ips}"],
        "gpu": ["--gpus", "{devices}"],
        "cpu": ["--nproc_per_node={count}"],
        "rank_log": "log/workerlog.{local_rank}",
        "console": "logs.txt",
        "rank_env": "PADDLE_TRAINER_ID",
        "endpoints_env": "PADDLE_TRAINER_ENDPOINTS",
    },
    # With --selected_gpu, fleetrun falls back to Paddle's legacy launcher (fact 2). That one refuses several CPU nodes, so a CPU site gets
    # the equivalent form of the present launcher; the log directory is ./log by default in both.
    "fleetrun": {
        "argv": ["fleetrun"],
        "ips": ["--ips={ips}"],
        "gpu": ["--selected_gpu", "{devices}"],
        "cpu": ["--nproc_per_node={count}"],
        "rank_log": "log/workerlog.{local_rank}",
        "console": "logs.txt",
        "rank_env": "PADDLE_TRAINER_ID",
        "endpoints_env": "PADDLE_TRAINER_ENDPOINTS",
    },
}


def launcher_argv(name, accelerator, addresses, devices, python="python"):
    """Return the launcher's part of the command line as a list of words.

    name: launcher. accelerator: cpu or gpu. addresses: fabric addresses in rank order; one address is the single-machine form, which has
    no --ips (contract A1, C1). devices: device ids of a node, the same on every node.
    """
    entry = LAUNCHERS[name]
    words = list(entry["argv"])
    if len(addresses) > 1:
        words += entry["ips"]
    words += entry[accelerator]
    values = {"python": python, "ips": ",".join(addresses), "devices": ",".join(devices), "count": len(devices)}
    return [word.format(**values) for word in words]


def override_words(flag, overrides):
    """Return config overrides as the suites' `-o key=value ...` takes them; an empty mapping gives nothing."""
    if not overrides:
        return []
    return [flag] + ["%s=%s" % (key, override_text(value)) for key, value in overrides.items()]


def override_text(value):
    """Return a value as YAML text on one line, which is how the suites parse the right-hand side."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, (list, tuple)):
        return "[%s]" % ",".join(override_text(item) for item in value)
    if isinstance(value, float):
        return str(value).replace("e", ".0e") if "." not in str(value) else str(value)  # to YAML 1e-05 is a text, 1.0e-05 a number
    if not isinstance(value, str):
        return str(value)
    return value if _reads_as_text(value) else json.dumps(value, ensure_ascii=False)


def _reads_as_text(text):
    """Whether YAML takes these words for text as they stand; 'yes' and '1.0' it takes for something else, 'a, b' for two items of a list."""
    if not text:
        return True  # `key=` is how the suites' documents write an empty value
    try:
        return yaml.safe_load("[%s]" % text) == [text] and yaml.safe_load(text) == text
    except yaml.YAMLError:
        return False
