#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a line takes from a node to the screen: logs.yml -e follow=true on real nodes, with as
many ranks as are asked for.

Not part of CI and nothing is asserted: the figures depend on the machine. The ranks are no
trainings: on every node one process, in a unit as an attempt's, writes their logs, each line with
the time of its writing. The plan is that of a run that is on the controller.

.venv/bin/python tests/bench/log_screen.py -i INVENTORY --like RUN [--ranks 64] [--seconds 60]
[--every 0.5]

Prints one line of JSON: lines that were written and that were shown, and the delay in milliseconds
from the write to the arrival in a pipe that logs.yml prints to: median, 99th of 100, longest. A
node in a container has this machine's clock; on another machine the delays hold the difference of
the clocks. What it made on the nodes and in runs/ is removed at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
RUN = "20000101-000000-log_screen-0000"
LINE = (
    "@%.6f ppdet.engine.callbacks INFO: Epoch: [0] [%d/8000] learning_rate: 0.000500 loss: 5.294779"
    " eta: 0:01:13 batch_cost: 0.58 ips: 27.4 images/s\n"
)


def on_node(node, plan, seconds, every):
    """What the unit on a node runs: every rank writes a line now and then, not in step with the
    others; then the launcher ends.
    """
    os.makedirs("log", exist_ok=True)
    mine = [rank for rank in plan["ranks"] if rank["node"] == node]
    logs = [
        open("log/workerlog.%d" % rank["local_rank"], "a", buffering=1, encoding="ascii")
        for rank in mine
    ]
    with open("ranks.jsonl", "a", buffering=1, encoding="ascii") as events:
        events.write(
            json.dumps({"event": "launched", "pid": os.getpid(), "time": time.time()}) + "\n"
        )
        for rank in mine:
            events.write(
                json.dumps(
                    {
                        "event": "start",
                        "rank": rank["rank"],
                        "pid": os.getpid(),
                        "time": time.time(),
                    }
                )
                + "\n"
            )
        begin, number = time.monotonic(), 0
        while time.monotonic() - begin < seconds:
            for log in logs:
                log.write(LINE % (time.time(), number))
                time.sleep(every / len(logs))
            number += 1
        events.write(
            json.dumps(
                {"event": "launcher_end", "exit_code": 0, "signal": None, "time": time.time()}
            )
            + "\n"
        )


def everywhere(inventory, shell):
    """Run a line of shell on every node; return what they print."""
    argv = ["ansible", "-i", inventory, "trainers", "-m", "ansible.builtin.shell", "-a", shell]
    done = subprocess.run(
        argv, cwd=PROJECT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if done.returncode:
        sys.exit(done.stdout)
    return done.stdout


def plan_of(like, ranks):
    """Return the plan of a run on the controller with this number of ranks, equally many on each
    node.
    """
    plan = json.loads((PROJECT / "runs" / like / "plan.json").read_text(encoding="utf-8"))
    nodes, first = [node["name"] for node in plan["nodes"]], plan["ranks"][0]
    each = ranks // len(nodes)
    plan["launcher"]["rank_log"] = "log/workerlog.{local_rank}"
    plan["ranks"] = [
        dict(
            first,
            rank=at * each + local,
            local_rank=local,
            node=node,
            log="log/workerlog.%d" % local,
        )
        for at, node in enumerate(nodes)
        for local in range(each)
    ]
    return plan


def start(inventory, plan, seconds, every):
    """Lay the attempt on the nodes and start its unit on each."""
    unit, here = f"trainyard-{RUN}-1.service", f".trainyard/runs/{RUN}/attempt-1"
    record = {
        "version": 1,
        "run": RUN,
        "attempt": 1,
        "node": "NODE",
        "unit": unit,
        "plan_sha256": "",
        "started": time.time(),
    }
    files = {
        "plan.json": json.dumps(plan),
        "attempt.json": json.dumps(record),
        "bench.py": Path(__file__).read_text(encoding="utf-8"),
    }
    everywhere(inventory, f"mkdir -p -m 700 {here}")
    for name, text in files.items():
        arguments = json.dumps({"content": text + " ", "dest": f"~/{here}/{name}"})
        argv = [
            "ansible",
            "-i",
            inventory,
            "trainers",
            "-m",
            "ansible.builtin.copy",
            "-a",
            arguments,
        ]
        subprocess.run(argv, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    shell = (
        "export XDG_RUNTIME_DIR=/run/user/$(id -u); cd %s && sed -i s/NODE/{{ inventory_hostname"
        " }}/ attempt.json && systemd-run --user --quiet --collect --unit=%s"
        " --working-directory=$PWD python3 bench.py --node {{ inventory_hostname }} --seconds %g"
        " --every %g"
    )
    everywhere(inventory, shell % (here, unit, seconds, every))


def follow(inventory):
    """Follow the run; return (lines that were shown, delays in seconds of those that came after the
    history).
    """
    argv = [
        "ansible-playbook",
        "-i",
        inventory,
        "playbooks/logs.yml",
        "-e",
        "run=" + RUN,
        "-e",
        "follow=true",
    ]
    with subprocess.Popen(
        argv, cwd=PROJECT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    ) as process:
        shown, delays, live, rest = 0, [], False, b""
        while data := os.read(process.stdout.fileno(), 1 << 16):
            now = time.time()
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                live = live or b"following the run" in line
                stamp = re.search(rb"@(\d+\.\d+) ", line)
                shown += bool(stamp)
                if live and stamp:
                    delays.append(now - float(stamp.group(1)))
    return shown, sorted(delays), process.returncode


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-i", dest="inventory")
    parser.add_argument("--like", metavar="RUN")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument(
        "--every", type=float, default=0.5, help="seconds between two lines of a rank"
    )
    parser.add_argument("--node", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.node:
        on_node(
            given.node,
            json.loads(Path("plan.json").read_text(encoding="utf-8")),
            given.seconds,
            given.every,
        )
        return
    home = PROJECT / "runs" / RUN
    try:
        start(given.inventory, plan_of(given.like, given.ranks), given.seconds, given.every)
        shown, delays, code = follow(given.inventory)
        written = sum(
            line.startswith("@")
            for path in home.glob("attempt-1/rank-*.log")
            for line in path.read_text().splitlines()
        )
    finally:
        everywhere(
            given.inventory,
            f"export XDG_RUNTIME_DIR=/run/user/$(id -u); systemctl --user stop trainyard-{RUN}-1"
            f" 2>/dev/null; rm -rf .trainyard/runs/{RUN}",
        )
        subprocess.run(["rm", "-rf", str(home)], check=True)
    if not delays:
        sys.exit("no line was shown; exit code %d" % code)
    figures = {
        name: round(delays[min(len(delays) - 1, int(len(delays) * part))] * 1000)
        for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1))
    }
    print(
        json.dumps(
            {
                "ranks": given.ranks,
                "lines_a_second": given.ranks / given.every,
                "written": written,
                "shown": shown,
                "delay_ms": figures,
            }
        )
    )


if __name__ == "__main__":
    main()
