# SPDX-License-Identifier: Apache-2.0
"""What molecule's checks share: the product's commands as a user types them, and a look at the
nodes over SSH.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
INVENTORY = PROJECT / "molecule" / "inventory"
STATE = Path.home() / ".local/state/trainyard/molecule"
JOBS = "molecule/shared/jobs"
NODES = {"node1": "198.51.100.101", "node2": "198.51.100.102"}
ENVIRONMENT = {
    **{
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ANSIBLE_", "MOLECULE_"))
    },
    "PATH": "{}:{}".format(Path(sys.executable).parent, os.environ["PATH"]),
    "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
}


def command(verb, *arguments):
    """Return the argv of one of the product's playbooks on molecule's site."""
    return ["ansible-playbook", "-i", str(INVENTORY), f"playbooks/{verb}.yml", *arguments]


def playbook(verb, *arguments, timeout=600, result=None):
    """Run a playbook to its end; return the completed process with both streams in stdout.

    result: path of a file for the playbook's result as JSON.
    """
    environment = ENVIRONMENT
    if result:
        environment = {**ENVIRONMENT, "TRAINYARD_RESULT": str(result)}
    return subprocess.run(
        command(verb, *arguments),
        cwd=PROJECT,
        env=environment,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def background(log, verb, *arguments):
    """Start a playbook in a session of its own, as a terminal would; return the process."""
    with open(log, "w", encoding="utf-8") as handle:
        return subprocess.Popen(
            command(verb, *arguments),
            cwd=PROJECT,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            stdout=handle,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def on(node, script, check=True):
    """Run a line of shell on a node over SSH, as the training user; return what it prints."""
    argv = [
        "ssh",
        "-i",
        str(STATE / "id_ed25519"),
        "-o",
        "IdentitiesOnly=yes",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "BatchMode=yes",
        "-o",
        "UserKnownHostsFile=%s" % (STATE / "known_hosts"),
        f"trainer@{NODES[node]}",
        f"export XDG_RUNTIME_DIR=/run/user/$(id -u); {script}",
    ]
    return subprocess.run(
        argv, text=True, check=check, timeout=60, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    ).stdout.strip()


def root(node, script, check=True):
    """Run a line of shell in a node's container as root: a fault's own way in, which a broken
    network or sshd does not close.
    """
    argv = ["docker", "exec", f"trainyard-molecule-{node}", "sh", "-c", script]
    return subprocess.run(
        argv, text=True, check=check, timeout=60, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ).stdout.strip()


def wait_for(what, seconds, every=0.5):
    """Return the first true value of what(); fail after so many seconds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = what()
        if value:
            return value
        time.sleep(every)
    raise AssertionError("not within %d s: %s" % (seconds, what.__doc__ or what))


def runs():
    """Return the controller's run ids, oldest first."""
    return sorted(
        path.name for path in (PROJECT / "runs").glob("*") if (path / "run.json").exists()
    )


def new_run(before):
    """Return the id of the run that was started since `before`, or None."""
    fresh = [name for name in runs() if name not in before]
    return fresh[-1] if fresh else None


def last_line(text):
    """Return the last line that is not empty."""
    return [line for line in text.splitlines() if line.strip()][-1]


def attempt_file(node, run, name, number=1):
    """Return the text of a file of the run's attempt on a node, '' where it is not there (yet)."""
    return on(node, f"cat .trainyard/runs/{run}/attempt-{number}/{name} 2>/dev/null || true")


def events(node, run):
    """Return the events the node's agent has noted."""
    return [json.loads(line) for line in attempt_file(node, run, "ranks.jsonl").splitlines()]


def ended(node, run):
    """Return exit.json of the attempt on a node, or None while it runs."""
    text = attempt_file(node, run, "exit.json")
    return json.loads(text) if text else None


def left_behind(run):
    """Return every process on any node that carries the run's mark in its environment, as text."""
    script = f"grep -lzs '^TRAINYARD_ATTEMPT={run}/' /proc/[0-9]*/environ || true"
    return {node: found for node in NODES if (found := on(node, script))}


def training(run):
    """Return the step lines rank 0 has printed so far."""
    return [
        line
        for line in attempt_file("node1", run, "log/workerlog.0").splitlines()
        if "Epoch: [" in line
    ]


def senders(node):
    """Return the pids of this machine's ssh processes that bring this node's logs home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if (
            os.path.basename(words[0]) == b"ssh"
            and NODES[node].encode() in words
            and any(b"send-logs" in word for word in words)
        ):
            found.append(int(path.parent.name))
    return found


def kill_rank(node, run, attempt):
    """End a node's rank as the kernel does without memory."""
    mark, local = f"TRAINYARD_ATTEMPT={run}/{attempt}", "PADDLE_TRAINER_ID="
    on(
        node,
        f"for pid in $(grep -lzs '^{mark}' /proc/[0-9]*/environ | cut -d/ -f3); do"
        f" grep -qzs '^{local}' /proc/$pid/environ && kill -KILL $pid; done; true",
    )


def quick_job(name):
    """Return the words for a shared job without its rehearsal."""
    return ("-e", f"config={JOBS}/{name}.yml", "-e", "rehearse=false")


def record(run, folder=PROJECT / "runs"):
    """Return a run's record on the controller."""
    return json.loads((folder / run / "run.json").read_text())


def verdict(run, folder=PROJECT / "runs"):
    """Return the verdict in a run's record."""
    return record(run, folder)["attempts"][-1]["verdict"]


def begin(log, name, *more):
    """Start a job in the background and return (process, run) once it has made steps."""
    before = runs()
    controller = background(log, "train", *quick_job(name), *more)
    run = wait_for(lambda: new_run(before), 120)
    wait_for(lambda: training(run), 120)
    return controller, run
