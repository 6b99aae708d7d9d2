# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the product and two nodes, as real processes. Its playbooks train, stop, follow
and show, without SSH and without Paddle.

behave.json beside it changes what it does:
    says, code   train refuses: it prints this text and exits with this code
    steps        a rank makes no more steps
    restart      a second attempt follows the first
    linger       train does not end automatically
    ends         a rank ends at once
    stubborn     train ignores Ctrl-C
    greedy       a second train ignores the first
    verdict      changes of the verdict
    hold         a unit stays after the end
    status       the text that status prints
    dies         the last rank is killed after its third step, once `seen` exists
"""

from __future__ import annotations

import json
import os
import sys

from ansible_collections.trainyard.cluster.plugins.plugin_utils.drills import (
    drill_run,
    drill_site,
    fault_table,
)
from core_support import put

NODES = ("node1", "node2")
DIGEST = "c" * 64
RANK = """
import os, sys, time
while not os.path.exists(sys.argv[3]):  # a step takes all ranks
    time.sleep(0.02)
for step in range(1, abs(int(sys.argv[2])) + 1):
    with open(sys.argv[1], "a") as log:
        log.write("Epoch: [0] step %d\\n" % step)
    time.sleep(0.05)
if int(sys.argv[2]) < 0:
    os.kill(os.getpid(), 9)
time.sleep(0 if int(sys.argv[2]) == 0 else 600)
"""
PRODUCT = """
import glob, json, os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # as Ansible does, also where it was started in the background

book = next((word for word in sys.argv[1:] if "/playbooks/" in word), None)
TOP = os.path.dirname(os.path.dirname(book)) if book else sys.argv[3]
NODES = ("node1", "node2")
behave = json.load(open(TOP + "/behave.json"))
given = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
verb = book and os.path.basename(book)[:-4]


def base(node, run, number=1):
    return "%s/%s/.trainyard/runs/%s/attempt-%d" % (TOP, node, run, number)


def write(path, value):
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(os.open(path + "~", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as handle:
        handle.write(value if isinstance(value, str) else json.dumps(value))
    os.replace(path + "~", path)


def plan():
    ranks = [{"rank": n, "node": node, "local_rank": 0, "device": "0", "log": "log/workerlog.0"} for n, node in enumerate(NODES)]
    logs = {"step": {"line": "Epoch: .*step"}, "saved": {"lines": []}}
    launcher = {"rank_log": "log/workerlog.{local_rank}", "console": "logs.txt"}
    return {"ranks": ranks, "suite": {"logs": logs}, "launcher": launcher, "code": {"digest": "c" * 64}, "links": {}}


def unit(run):
    # what systemd and the product's agents do on the nodes
    for number in (1, 2) if behave.get("restart") else (1,):
        ranks = []
        for index, node in enumerate(NODES):
            place = base(node, run, number)
            write(place + "/plan.json", plan())
            os.chmod(place, 0o700)
            write("%s/%s/units" % (TOP, node), "trainyard-%s-%d.service" % (run, number))
            steps = 0 if behave.get("ends") else -3 if behave.get("dies") and index else behave.get("steps", 100000)
            write(place + "/log/workerlog.0", "")
            words = [sys.executable, "-c", open(TOP + "/rank.py").read(), place + "/log/workerlog.0", str(steps), "%s/go-%s-%d" % (TOP, run, number)]
            ranks.append(subprocess.Popen(words, env={"TRAINYARD_ATTEMPT": "%s/%d" % (run, number)}, start_new_session=True))
            write(place + "/ranks.jsonl", json.dumps({"event": "start", "rank": index, "pid": ranks[-1].pid}) + "\\n")
        write("%s/go-%s-%d" % (TOP, run, number), "")
        stop = base("node1", run, number) + "/stop.json"
        while not os.path.exists(stop) and all(rank.poll() is None for rank in ranks):
            time.sleep(0.05)
        first = next((index for index, rank in enumerate(ranks) if rank.poll() is not None), None)
        for index, rank in enumerate(ranks):
            ended = rank.poll()
            rank.kill()
            rank.wait()
            with open(base(NODES[index], run, number) + "/ranks.jsonl", "a") as log:
                said = {"signal": "SIGKILL"} if index == first and ended else {"exit_code": ended}
                log.write(json.dumps(dict(said, event="end", rank=index)) + "\\n")
        for node in NODES:
            write(base(node, run, number) + "/exit.json", {"service_result": "success" if os.path.exists(stop) else "exit-code"})
            os.unlink("%s/%s/units" % (TOP, node)) if not behave.get("hold") else None
        if os.path.exists(stop):
            break
    write(TOP + "/over-" + run, "")


def home(run):
    return "%s/%s" % (given.get("trainyard_runs_dir", TOP + "/runs"), run)


def collect(run):
    attempts = []
    for place in sorted(glob.glob(base("node1", run, 0)[:-1] + "*")):
        name, number = os.path.basename(place), int(place.rpartition("-")[2])
        files = []
        for index, node in enumerate(NODES):
            there = base(node, run, number)
            names = {"log/workerlog.0": "rank-%03d.%s.log" % (index, node), "ranks.jsonl": "ranks.%s.jsonl" % node}
            names["exit.json"] = "exit.%s.json" % node
            for file, here in names.items():
                write("%s/%s/%s" % (home(run), name, here), open(there + "/" + file).read())
                files.append({"node": node, "file": file, "home": here})
        write("%s/%s/plan.json" % (home(run), name), open(place + "/plan.json").read())
        write("%s/%s/ranks.json" % (home(run), name), {"files": files})
        stopped = os.path.exists(place + "/stop.json")
        verdict = {"outcome": "stopped", "cause": "stopped_by_user", "node": None, "rank": None, "text": "STOPPED: by the user"}
        if not stopped:
            log = "runs/%s/attempt-1/rank-001.node2.log" % run
            verdict = {"outcome": "failed", "cause": "killed", "node": "node2", "rank": 1, "signal": "SIGKILL", "exit_code": None}
            verdict.update(log=log, text="FAILED: rank 1 on node2 was killed")
        attempts.append({"number": number, "verdict": dict(verdict, **behave.get("verdict", {})), "ended": os.stat(place + "/exit.json").st_mtime})
    write(home(run) + "/run.json", {"attempts": attempts, "reason": "failed"})


def finished(run):
    while not os.path.exists(TOP + "/over-" + run):
        ended = base("node1", run) + "/exit.json"
        if os.path.exists(ended):
            write(home(run) + "/run.json", {"attempts": [{"number": 1, "ended": os.stat(ended).st_mtime}]})
        time.sleep(0.05)
    collect(run)


if sys.argv[1] == "unit":
    unit(sys.argv[2])
elif verb == "train":
    config = given["config"]
    run = "20260101-000000-%s-%04x" % (os.path.basename(config)[:-4], os.getpid() % 65536)
    if behave.get("stubborn"):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "says" in behave:
        print(behave["says"])
        sys.exit(behave.get("code", 1))
    try:
        os.mkdir(TOP + "/lock")
    except FileExistsError:
        print("" if behave.get("greedy") else "node1 is held by another run")
        sys.exit(0 if behave.get("greedy") else 1)
    os.makedirs(home(run))
    write(home(run) + "/plan.json", plan())
    subprocess.Popen([sys.executable, os.path.abspath(__file__), "unit", run, TOP], start_new_session=True, stdout=subprocess.DEVNULL)
    finished(run)
    while behave.get("dies") and not os.path.exists(TOP + "/seen"):
        time.sleep(0.05)
    time.sleep(600 if behave.get("linger") else 0)
    sys.exit(1)
elif verb == "stop":
    number = 2 if os.path.exists(base("node1", given["run"], 2)) else 1
    for node in NODES:
        write(base(node, given["run"], number) + "/stop.json", {"by": "user"})
        if behave.get("hold") and os.path.exists("%s/%s/units" % (TOP, node)):
            os.unlink("%s/%s/units" % (TOP, node))
    while not os.path.exists(TOP + "/over-" + given["run"]):
        time.sleep(0.05)
elif verb == "follow":
    print("here", os.environ["HOME"], os.getcwd())
    finished(given["run"])
elif verb == "status":
    print(behave.get("status", "run " + given["run"]))
    print("PLAY RECAP")
"""


class Here(drill_site.Node):
    """A node whose home is a directory of this machine, reached without SSH; units are lines of its
    file `units`.
    """

    def __init__(self, name, home, path=""):
        self.name, self.home, self.address, self.user, self.container, self.memory = (
            name,
            str(home),
            "198.51.100.9",
            "trainer",
            None,
            0,
        )
        self.path = path

    def ssh_argv(self, script):
        path = os.pathsep.join([self.path, os.environ["PATH"]]) if self.path else os.environ["PATH"]
        script = (
            "exec " + script if script.startswith("python3 ") else script
        )  # the eye ends with the connection
        return ["env", "-C", self.home, "HOME=" + self.home, "PATH=" + path, "sh", "-c", script]

    def run_command(self, script, timeout=60, root=False):
        if script.endswith("INTERRUPT"):
            raise KeyboardInterrupt
        return super().run_command(script, timeout, root)


def site(folder, **behave):
    """Lay a site with this product out; return its Ground."""
    top = str(folder)
    put(
        top,
        {
            "behave.json": json.dumps(behave),
            "rank.py": RANK,
            "state/known_hosts": "x",
            "bin/ansible-playbook": f"#!{sys.executable}\n{PRODUCT}",
        },
    )
    put(
        top,
        {
            "bin/systemctl": (
                '#!/bin/sh\ncase "$*" in *list-units*) cat "$HOME/units" 2> /dev/null;; esac;'
                " true\n"
            )
        },
    )
    for name in ("ansible-playbook", "systemctl"):
        os.chmod(f"{top}/bin/{name}", 0o755)
    for node in NODES:
        put(f"{top}/{node}/.trainyard/code/{DIGEST[:16]}", {"train.py": "pass\n"})
    nodes = [Here(node, f"{top}/{node}", top + "/bin") for node in NODES]
    return drill_site.Site(top, [], "test", nodes, top + "/runs", ".trainyard", top + "/state")


def course(ground, fault):
    """Return the Course of a fault on a site as `site` makes it."""
    fault = dict(
        fault,
        name=fault.get("name", "fault"),
        group="process",
        injected="something",
        budget=dict(fault_table.BUDGET, **fault.get("budget", {})),
    )
    return drill_run.Drill(ground, {"nodes": 2}, fault, ground.project + "/out", lambda _line: None)


def settle(ground):
    """End what a drill has left."""
    for run in os.listdir(ground.runs_dir) if os.path.isdir(ground.runs_dir) else ():
        if run.startswith("2026"):
            for number in (1, 2):
                put(
                    "%s/node1/.trainyard/runs/%s/attempt-%d" % (ground.project, run, number),
                    {"stop.json": "{}"},
                )
