#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Logs of gigabytes, 64 ranks, 50,000 lines per second, lines of megabytes and rotation, fetched
to the controller by the real sender and receiver.

Not part of CI and nothing is asserted but that the controller has what was written: the figures
depend on the machine.

    .venv/bin/python tests/bench/log_stress.py --folder FOLDER [--gigabytes 2] [--seconds 60]
    [--only size delay rate long rotation]
    .venv/bin/python tests/bench/log_stress.py --folder FOLDER --over "ssh -F CONFIG NODE"
    the node's part over SSH, below ~/log-stress there
    .venv/bin/python tests/bench/log_stress.py --folder FOLDER -i INVENTORY --json FILE
    the same on node1 of a site of Docker nodes (make drill)

Without --over, writer, sender and receiver are three processes on this machine, joined by pipes.
Each case prints one line of JSON: bytes that were written and that came over the wire, seconds,
peak memory of sender and receiver (KiB; the sender's only here), and where lines carry the time of
their writing, the delay from there to the receiver's hands in milliseconds. A node in a container
has this machine's clock; on another machine the delays hold the difference of the clocks. FOLDER
needs as much space as is asked for, twice; it is emptied after each case.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import threading
import time

NODE = "node1"
LINE = (
    "@%.6f ppdet.engine.callbacks INFO: Epoch: [%d] [%d/8000] learning_rate: 0.000500 loss:"
    " 5.294779 eta: 0:01:13 batch_cost: 0.58 ips: 27.4 images/s\n"
)


# --- on the node: needs nothing but Python's own library, since it may come there over standard
# input


def begin(place, ranks):
    """Make the attempt's directory with a plan of so many ranks; return the paths of their logs."""
    os.makedirs(os.path.join(place, "log"), exist_ok=True)
    plan = {
        "launcher": {"rank_log": "log/workerlog.{local_rank}", "console": "logs.txt"},
        "ranks": [{"rank": number, "local_rank": number, "node": NODE} for number in range(ranks)],
    }
    with open(os.path.join(place, "plan.json"), "w", encoding="utf-8") as handle:
        json.dump(plan, handle)
    return [os.path.join(place, "log", "workerlog.%d" % number) for number in range(ranks)]


def write_size(place, gigabytes, _seconds):
    """One log that is there already, of so many GB (10^9 bytes), in lines."""
    block = "".join(LINE % (0, 1, number) for number in range(7000)).encode()
    written = 0
    with open(begin(place, 1)[0], "wb") as log:
        while written < gigabytes * 1e9:
            written += log.write(block)
    return written


def write_delay(place, _gigabytes, seconds):
    """Write two lines per second from each of 64 ranks, not in step."""
    logs = [open(path, "ab", buffering=0) for path in begin(place, 64)]
    return paced(logs, 128, seconds)


def write_rate(place, _gigabytes, seconds):
    """Write 50,000 lines per second from one rank."""
    with open(begin(place, 1)[0], "ab", buffering=0) as log:
        return paced([log], 50000, min(seconds, 20))


def paced(logs, rate, seconds):
    """Write lines to the logs in turn, so many a second in all; those that are due at once go in
    one write, as a buffer would.
    """
    start, done, written = time.time(), 0, 0
    while time.time() - start < seconds:
        due = int((time.time() - start) * rate)
        if len(logs) > 1:
            for number in range(done, due):
                written += logs[number % len(logs)].write(
                    (LINE % (time.time(), 1, number)).encode()
                )
        elif due > done:
            written += logs[0].write(
                "".join(LINE % (time.time(), 1, number) for number in range(done, due)).encode()
            )
        done = due
        time.sleep(0.002)
    return written


def write_long(place, _gigabytes, seconds):
    """Lines of a megabyte, ten a second."""
    written = 0
    with open(begin(place, 1)[0], "ab", buffering=0) as log:
        for number in range(10 * min(seconds, 20)):
            written += log.write(b"@%.6f " % time.time() + b"x" * (1 << 20) + b"%d\n" % number)
            time.sleep(0.1)
    return written


def write_rotation(place, _gigabytes, seconds):
    """Write four logs with 20,000 lines per second together. Every second, one of them is renamed
    or truncated in turn. The renamed files are removed.
    """
    logs, written, number = {path: open(path, "ab", buffering=0) for path in begin(place, 4)}, 0, 0
    start = turn = time.time()
    while time.time() - start < min(seconds, 20):
        for log in list(logs.values()):
            text = "".join(LINE % (time.time(), 1, number + each) for each in range(50))
            written += log.write(text.encode())
        number += 50
        time.sleep(0.01)
        if time.time() - turn > 1:
            turn = time.time()
            path = sorted(logs)[int(turn) % 4]
            if int(turn) % 2:
                os.rename(path, path + ".old")
                logs[path].write(b"last words\n")
                written += 11
                logs[path].close()
                logs[path] = open(path, "ab", buffering=0)
                os.unlink(path + ".old")
            else:
                time.sleep(1)  # what is truncated sooner than it is read is gone for everybody
                os.truncate(path, 0)
    return written


WRITERS = {
    "size": write_size,
    "delay": write_delay,
    "rate": write_rate,
    "long": write_long,
    "rotation": write_rotation,
}


def digests(place):
    """Return {name: sha256} of the logs below a directory."""
    found = {}
    for folder, _folders, names in os.walk(place):
        for name in names:
            digest = hashlib.sha256()
            with open(os.path.join(folder, name), "rb") as handle:
                chunk = handle.read(1 << 20)
                while chunk:
                    digest.update(chunk)
                    chunk = handle.read(1 << 20)
            found[name] = digest.hexdigest()
    return found


# --- here


def used_by(pid):
    """Return (the most memory a process had so far in KiB, its processor time in seconds); (0, 0)
    where it is gone.
    """
    try:
        with open("/proc/%d/status" % pid, encoding="ascii") as handle:
            memory = next((int(line.split()[1]) for line in handle if line.startswith("VmHWM")), 0)
        with open("/proc/%d/stat" % pid, encoding="ascii") as handle:
            return memory, sum(map(int, handle.read().split()[13:15])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0, 0


def receive(place, home, over):
    """Receive until standard input says so; print what came as one line of JSON."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    project = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path.insert(0, os.path.join(project, "collections"))
    from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import (
        log_receiver as receiving,
    )

    delays, lines, sender, first = [], [0], [0, 0], []

    def on_lines(_home, _rank, _node, _time, whole):
        now = time.time()
        first.append(now) if not first else None
        lines[0] += len(whole)
        times = [
            float(line[1 : line.index(b" ")])
            for line in whole[:: 1 if len(whole) < 100 else 50]
            if line[:1] == b"@"
        ]
        delays.extend(
            [now - when for when in times if when > first[0]]
        )  # what was there before waited for the start

    receiver = receiving.Receiver(home, on_lines, NODE)
    spec = {"attempt_dir": place, "node": NODE, "follow": True, "interval": 0.25, "have": {}}
    argv = receiving.sender_argv("python3" if over else sys.executable)
    argv = [*shlex.split(over), shlex.join(argv)] if over else argv
    begun = time.time()
    process = receiving.start_sender(argv, spec)

    def ends():
        while not sys.stdin.readline():
            pass
        process.stdin.close()

    def watches():
        while process.poll() is None:
            sender[:] = map(max, zip(sender, used_by(process.pid)))
            time.sleep(0.05)

    for work in (ends, watches):
        threading.Thread(target=work, daemon=True).start()
    whole = receiver.receive(process.stdout.fileno())
    taken = time.time() - begun
    receiver.close()
    delays.sort()
    used = resource.getrusage(resource.RUSAGE_SELF)
    said = {
        "whole": whole,
        "seconds": round(taken, 2),
        "wire": receiver.bytes,
        "frames": receiver.frames,
        "lines": lines[0],
        "sender_kib": sender[0],
        "sender_cpu": sender[1],
        "receiver_kib": used.ru_maxrss,
        "receiver_cpu": round(used.ru_utime + used.ru_stime, 2),
        "events": len(receiver.events),
    }
    if delays:
        said["delay_ms"] = {
            name: round(1000 * delays[min(len(delays) - 1, int(len(delays) * part))])
            for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1))
        }
    print(json.dumps(said), flush=True)


def case(name, arguments):
    """Run one case; print and return what it gave."""
    there, home = (
        (f"log-stress/{name}" if arguments.over else os.path.join(arguments.folder, "node")),
        os.path.join(arguments.folder, "home"),
    )
    own = os.path.abspath(__file__)

    def on_node(*words):
        argv = (
            [sys.executable, own, *words]
            if not arguments.over
            else [*shlex.split(arguments.over), "python3 - " + " ".join(map(shlex.quote, words))]
        )
        with open(own, "rb") as source:
            return subprocess.Popen(argv, stdin=source, stdout=subprocess.PIPE, text=True)

    def said(process):
        text = process.communicate()[0]
        assert process.returncode == 0, text
        return json.loads(text.splitlines()[-1])

    writer = on_node("write", name, there, str(arguments.gigabytes), str(arguments.seconds))
    if name == "size":
        written = said(writer)
    else:
        time.sleep(1)  # its plan is there
    receiver = subprocess.Popen(
        [sys.executable, own, "receive", there, home, arguments.over],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if name != "size":
        written = said(writer)
    result = json.loads(receiver.communicate("end\n")[0])
    node = said(on_node("digests", there))
    here = digests(home)
    result = dict({"case": name, "written": written}, **result)
    if name == "rotation":
        result["at_home"] = sum(
            os.path.getsize(os.path.join(home, file)) for file in os.listdir(home)
        )
    result["equal"] = all(
        here.get("rank-%03d.%s.log" % (number, NODE)) == node["workerlog.%d" % number]
        for number in range(len(node) - 1)
    )
    print(json.dumps(result), flush=True)
    shutil.rmtree(home)
    on_node("remove", there).communicate()
    return result


def main():
    """Dispatch: the parts of a case run as processes of their own."""
    if sys.argv[1:2] == ["write"]:
        print(
            WRITERS[sys.argv[2]](
                os.path.expanduser(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
            )
        )
    elif sys.argv[1:2] == ["digests"]:
        print(json.dumps(digests(sys.argv[2])))
    elif sys.argv[1:2] == ["remove"]:
        shutil.rmtree(sys.argv[2])
    elif sys.argv[1:2] == ["receive"]:
        receive(*sys.argv[2:5])
    else:
        parser = argparse.ArgumentParser(
            description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        parser.add_argument("--folder", required=True)
        parser.add_argument("--gigabytes", type=float, default=2)
        parser.add_argument("--seconds", type=int, default=60)
        parser.add_argument("--over", default="")
        parser.add_argument(
            "-i",
            "--inventory",
            help="a site of Docker nodes: the node's part on its node1, over SSH",
        )
        parser.add_argument("--json", help="where the cases' results go, besides")
        parser.add_argument("--only", nargs="*", default=list(WRITERS), choices=list(WRITERS))
        arguments = parser.parse_args()
        os.makedirs(arguments.folder, exist_ok=True)
        if arguments.inventory:
            from bare_faults import (
                Site,
            )  # here, since the node's part of this file needs nothing but Python

            arguments.over = shlex.join(Site(arguments.inventory).ssh("node1"))
        results = [case(name, arguments) for name in arguments.only]
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as handle:
                json.dump(results, handle, indent=1)


if __name__ == "__main__":
    main()
