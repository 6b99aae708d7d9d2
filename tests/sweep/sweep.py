#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of the controller at every task of train.yml, stop.yml and logs.yml on real nodes; what
is lost and what is doubled, as a table.

python tests/sweep/sweep.py -i INVENTORY --job JOB.yml [--long JOB.yml] [--verbs train,stop,logs]
[--only 3,7+0.5] [--work DIR]

INVENTORY is a directory with a site of its own that nobody else uses; its nodes are provisioned for
the job. `7+0.5` kills half a second after the seventh task has begun. After each kill a second
controller (another HOME, its own key, no runs/, no state directory) looks at the run, and follows
it to its end or stops it; the next kill's command is the same command again. Checked by effect:

    N1  every log on the controller has the digest of the node's file
    N2  the checkpoints of the first run are unchanged
    N3  after stop.yml, no process of the run is left
    N5  the second controller finds, follows and stops the run
    N8  the same command works again, no two attempts run at once, and no part of a gang stays
"""

from __future__ import annotations

import argparse
import base64
import configparser
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
RUN = r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]+-[0-9a-f]{4}"
# What a node is asked: its active units, the runs whose mark a process bears, and the digests of a
# run's files.
LOOK = """
import glob, hashlib, json, os, re, subprocess, sys
env = dict(os.environ, XDG_RUNTIME_DIR="/run/user/%d" % os.getuid())
out = subprocess.run(["systemctl", "--user", "list-units", "--plain", "--no-legend", "--full", "trainyard-*", "yardguard-*"], env=env,
                     stdout=subprocess.PIPE, text=True).stdout
units = [line.split()[0] for line in out.splitlines() if line.split()[2:3] in (["active"], ["activating"], ["deactivating"])]
marked = {}
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        for item in open(path, "rb").read().split(b"\\0"):
            if item.startswith(b"TRAINYARD_ATTEMPT="):
                marked.setdefault(item[18:].decode(), []).append(int(path.split("/")[2]))
    except OSError:
        pass
def digest(path):
    return hashlib.sha256(open(path, "rb").read()).hexdigest()
base, files, kept = os.path.expanduser("~/.trainyard/runs/"), {}, {}
for path in glob.glob(base + sys.argv[1] + "/attempt-*/log/workerlog.*") + glob.glob(base + sys.argv[1] + "/attempt-*/logs.txt"):
    files[path.split(sys.argv[1] + "/")[1]] = digest(path)
for path in glob.glob(base + sys.argv[2] + "/attempt-*/output/**", recursive=True):
    if os.path.isfile(path):
        kept[path] = digest(path)
runs = sorted(os.listdir(base)) if os.path.isdir(base) else []
print("<<" + json.dumps({"units": units, "marked": marked, "files": files, "kept": kept, "runs": runs}) + ">>")
"""


class Controller:
    """A person who types the product's commands, with a HOME, an inventory and a place for runs."""

    def __init__(self, inventory, home, runs, folder):
        self.inventory, self.home, self.runs, self.folder = (
            str(inventory),
            str(home),
            Path(runs),
            Path(folder),
        )

    def environment(self, **more):
        found = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("ANSIBLE_", "SWEEP_"))
        }
        config = configparser.ConfigParser()
        config.read(PROJECT / "ansible.cfg")
        enabled = config["defaults"].get("callbacks_enabled", "")
        found.update(
            HOME=self.home,
            PATH="{}:{}".format(Path(sys.executable).parent, found["PATH"]),
            ANSIBLE_CONFIG=str(PROJECT / "ansible.cfg"),
            ANSIBLE_CALLBACK_PLUGINS=str(PROJECT / "tests/sweep/callback"),
            ANSIBLE_CALLBACKS_ENABLED=",".join(name for name in (enabled, "sweep_kill") if name),
            **more,
        )
        return found

    def play(self, verb, *words, at=None, after=0.0, log=None, timeout=900):
        """Run a playbook; return (exit code, output, seconds). at: the task at whose start it is
        killed.
        """
        sweep = {"SWEEP_LOG": str(log)} if log else {}
        sweep.update({"SWEEP_AT": str(at), "SWEEP_AFTER": str(after)} if at else {})
        argv, began = (
            ["ansible-playbook", "-i", self.inventory, f"playbooks/{verb}.yml", *words],
            time.monotonic(),
        )
        # A file and not a pipe: what a killed controller leaves behind keeps a pipe open.
        path = self.folder / f"output-{Path(self.home).name}"
        with open(path, "w+", encoding="utf-8", errors="replace") as handle:
            try:
                code = subprocess.run(
                    argv, cwd=PROJECT, env=self.environment(**sweep), stdin=subprocess.DEVNULL,
                    stdout=handle, stderr=subprocess.STDOUT,
                    timeout=timeout, check=False, start_new_session=True,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = 124
        return code, path.read_text(encoding="utf-8", errors="replace"), time.monotonic() - began

    def ask(self, run="none", first="none"):
        """Return {node: what LOOK says}, None for a node that does not answer."""
        script = (
            f"echo {base64.b64encode(LOOK.encode()).decode()} | base64 -d | python3 - {run} {first}"
        )
        argv = [
            "ansible",
            "-i",
            self.inventory,
            "trainers",
            "-m",
            "ansible.builtin.raw",
            "-a",
            script,
            "-o",
        ]
        done = subprocess.run(
            argv,
            cwd=PROJECT,
            env=self.environment(),
            text=True,
            timeout=120,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        found = {}
        for line in done.stdout.splitlines():
            match = re.match(r"^(\S+) \| .*<<(.*)>>", line)
            if match:
                found[match.group(1)] = json.loads(match.group(2))
        return found


def second(first, folder):
    """Return a second controller: the inventory with another key and place for everything; its key
    is let in by the first one.
    """
    home = folder / "second"
    shutil.rmtree(home, ignore_errors=True)
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    key = home / ".ssh/id_ed25519"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "second", "-f", str(key)], check=True
    )
    line = key.with_suffix(".pub").read_text(encoding="ascii").strip()
    script = f"grep -qF '{line}' ~/.ssh/authorized_keys || echo '{line}' >> ~/.ssh/authorized_keys"
    argv = ["ansible", "-i", first.inventory, "trainers", "-m", "ansible.builtin.raw", "-a", script]
    subprocess.run(
        argv,
        cwd=PROJECT,
        env=first.environment(),
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    listed = subprocess.run(
        ["ansible", "-i", first.inventory, "trainers", "-m", "ansible.builtin.debug", "-a",
        "msg={{ ansible_host }}", "-o"],
        cwd=PROJECT, env=first.environment(), check=True, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ).stdout  # fmt: skip
    hosts = dict(re.findall(r'^(\S+) \| SUCCESS => .*"msg": "([^"]+)"', listed, re.M))
    known = home / ".ssh/known_hosts"
    with open(known, "wb") as handle:  # as after a first login there
        for address in hosts.values():
            handle.write(
                subprocess.run(
                    ["ssh-keyscan", "-t", "ed25519", address],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    check=True,
                ).stdout
            )
    shutil.copytree(first.inventory, home / "inventory")
    (home / "inventory/host_vars").mkdir()
    places = {"trainyard_state_dir": str(home / "state"), "trainyard_runs_dir": str(home / "runs")}
    options = f"-o IdentitiesOnly=yes -o StrictHostKeyChecking=yes -o UserKnownHostsFile={known}"
    for name in [*hosts, "localhost"]:
        way = (
            {}
            if name == "localhost"
            else {"ansible_ssh_private_key_file": str(key), "ansible_ssh_common_args": options}
        )
        (home / "inventory/host_vars" / (name + ".yml")).write_text(
            json.dumps(dict(way, **places)), encoding="utf-8"
        )
    return Controller(home / "inventory", home, home / "runs", folder)


def held(nodes):
    """Return {node: runs whose attempt holds it}."""
    return {
        name: sorted({unit[10:-10] for unit in told["units"] if unit.startswith("trainyard-")})
        for name, told in nodes.items()
    }


def left(nodes, run):
    """Return {node: what of a run is left there}: units and pids."""
    found = {}
    for name, told in nodes.items():
        units = [unit for unit in told["units"] if run in unit]
        pids = [
            pid
            for mark, pids in told["marked"].items()
            if mark.startswith(run + "/")
            for pid in pids
        ]
        if units or pids:
            found[name] = units + pids
    return found


def same_logs(runs, run, nodes):
    """Return (count, what is wrong). Compare every log of a node with the log on the controller."""
    count, wrong = 0, []
    for node, told in nodes.items():
        for name, digest in told["files"].items():
            attempt, _slash, path = name.partition("/")
            kind = "launcher" if path == "logs.txt" else "rank-*"
            here = [file for file in (runs / run / attempt).glob(f"{kind}.{node}.log")]
            count += 1
            if digest not in [hashlib.sha256(file.read_bytes()).hexdigest() for file in here]:
                wrong.append(f"{node}:{name}")
    return count, wrong


@contextlib.contextmanager
def alone(path):
    """One training at a time on this machine, with whoever else holds the same lock file."""
    with open(path or os.devnull, "w", encoding="ascii") as handle:
        if path:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


class Sweep:
    """The table, a row a kill."""

    lock = ""

    def __init__(self, first, other, folder, job, long_job):
        self.first, self.other, self.folder, self.job, self.long = (
            first,
            other,
            folder,
            ["-e", f"config={job}"],
            ["-e", f"config={long_job}"],
        )
        self.rows, self.kept, self.whole = [], {}, ""

    def row(self, verb, place, task, **said):
        bad = [key for key, value in said.items() if str(value).startswith("NO")]
        self.rows.append((verb, place, task, said, bad))
        print(
            "%-5s %-7s %-62s %s"
            % (verb, place, task[:62], "  ".join("{} {}".format(*pair) for pair in said.items())),
            flush=True,
        )

    def tasks(self, verb, *words, log="tasks"):
        """Run a command to its end; return (exit code, output, names of its tasks)."""
        path = self.folder / log
        path.unlink(missing_ok=True)
        code, output, seconds = self.first.play(verb, *words, log=path)
        names = (
            [line.split("\t")[1] for line in path.read_text(encoding="utf-8").splitlines()]
            if path.exists()
            else []
        )
        print(
            "# %s to its end: exit code %d, %d tasks, %.0f s" % (verb, code, len(names), seconds),
            flush=True,
        )
        return code, output, names

    def newest(self, before):
        """Return the run that came since, by this controller's directory or by the nodes', or
        ''.
        """
        names = {path.name for path in self.first.runs.glob("*") if re.fullmatch(RUN, path.name)}
        names |= {run for told in self.first.ask().values() for run in told["runs"]}
        return max(names - before, default="")

    def known(self):
        return {path.name for path in self.first.runs.glob("*")} | {
            run for told in self.first.ask().values() for run in told["runs"]
        }

    def whole_run(self):
        with alone(self.lock):
            code, output, names = self.tasks("train", *self.job)
        if code:
            print(output[-3000:])
            raise SystemExit("the job itself does not complete")
        self.whole = re.findall(RUN, output)[-1]
        self.kept = {name: told["kept"] for name, told in self.first.ask(first=self.whole).items()}
        return names

    def train(self, names, only):
        for index, (at, after) in enumerate(
            only or [(number, 0.0) for number in range(1, len(names) + 1)]
        ):
            with alone(self.lock):
                before = self.known()
                code, output, _s = self.first.play("train", *self.job, at=at, after=after)
                time.sleep(5 if after else 0)  # what was sent to a node goes on there
                again = (
                    "ok"
                    if code == -signal.SIGKILL
                    else "NO: exit code %d: %s" % (code, output.strip()[-300:])
                )
                self.after_train(
                    "%d%s" % (at, f"+{after:g}" if after else ""),
                    names[at - 1],
                    before,
                    again,
                    stop=index % 2 == 1,
                )

    def after_train(self, place, task, before, again, stop):
        run = self.newest(before)
        nodes = self.first.ask(run or "none", self.whole)
        holding = held(nodes)
        runs = {one for several in holding.values() for one in several}
        said = {"N8": again if len(runs) <= 1 else f"NO: {runs}"}
        code, output, _s = self.other.play("status")
        found = all(one in output for one in runs)
        said["N5"] = (
            "ok"
            if code == 0 and (found or "| running" in output or "running" in output)
            else "NO: status %d: %s" % (code, output[-400:])
        )
        if not runs:
            self.row("train", place, task, holds="-", **said, N2=self.untouched(nodes))
            return
        active = next(iter(runs))
        whole = all(holding.values())
        verb = "stop" if stop or not whole else "follow"
        code, output, _s = self.other.play(verb, "-e", f"run={active}")
        nodes = self.first.ask(active, self.whole)
        rest = left(nodes, active)
        said["N3"] = "ok" if not rest else f"NO: {rest}"
        if verb == "follow":
            count, wrong = same_logs(self.other.runs, active, nodes)
            said["N1"] = "ok (%d logs)" % count if not wrong and count else f"NO: {wrong}"
        if code:
            said["N5"] = "NO: %s %d: %s" % (verb, code, output.strip()[-400:])
        self.row(
            "train",
            place,
            task,
            holds="all" if whole else "HALF",
            then=verb,
            **said,
            N2=self.untouched(nodes),
        )

    def untouched(self, nodes):
        now = {name: told["kept"] for name, told in nodes.items() if name in self.kept}
        return (
            "ok"
            if not self.kept or now == {name: self.kept[name] for name in now}
            else "NO: changed"
        )

    def begun(self, follow):
        """Start the long job and leave it; return its run."""
        before = self.known()
        self.first.play("train", *self.long, at=follow)
        return self.newest(before)

    def stop(self, follow, only):
        run = self.begun(follow)
        _code, _output, names = self.tasks("stop", "-e", f"run={run}", log="stop-tasks")
        for index, (at, after) in enumerate(
            only or [(number, 0.0) for number in range(1, len(names) + 1)]
        ):
            run = self.begun(follow)
            code, output, _s = self.first.play("stop", "-e", f"run={run}", at=at, after=after)
            said = {"killed": "yes" if code == -signal.SIGKILL else "no (%d)" % code}
            who = self.other if index % 2 else self.first
            code, output, _s = who.play("stop", "-e", f"run={run}")
            rest = left(self.first.ask(run), run)
            said.update(
                N8="ok" if code == 0 else "NO: %d: %s" % (code, output.strip()[-300:]),
                N3="ok" if not rest else f"NO: {rest}",
            )
            said["by"] = "second" if index % 2 else "first"
            self.row("stop", "%d%s" % (at, f"+{after:g}" if after else ""), names[at - 1], **said)

    def logs(self, follow, only):
        run = self.begun(follow)
        time.sleep(15)
        _code, _output, names = self.tasks("logs", "-e", f"run={run}", log="logs-tasks")
        for index, (at, after) in enumerate(
            only or [(number, 0.0) for number in range(1, len(names) + 1)]
        ):
            who = self.other if index % 3 == 2 else self.first
            code, _output, _s = who.play("logs", "-e", f"run={run}", at=at, after=after)
            said = {"killed": "yes" if code == -signal.SIGKILL else "no (%d)" % code}
            code, output, _s = who.play("logs", "-e", f"run={run}")
            said["N8"] = "ok" if code == 0 else "NO: %d: %s" % (code, output.strip()[-300:])
            said["goes on"] = (
                "ok"
                if all(run in str(several) for several in held(self.first.ask()).values())
                else "NO"
            )
            self.row("logs", "%d%s" % (at, f"+{after:g}" if after else ""), names[at - 1], **said)
        code, output, _s = self.first.play("stop", "-e", f"run={run}")
        for number in range(1, 60):  # of a run that is over
            code, output, _s = self.first.play("logs", "-e", f"run={run}", at=number)
            if code != -signal.SIGKILL:
                break
        code, output, _s = self.first.play("logs", "-e", f"run={run}")
        count, wrong = same_logs(self.first.runs, run, self.first.ask(run))
        said = {"N8": "ok" if code == 0 else "NO: %d: %s" % (code, output.strip()[-300:])}
        said["N1"] = "ok (%d logs)" % count if not wrong and count else f"NO: {wrong}"
        self.row("logs", "1-%d" % (number - 1), "of the same run when it was over", **said)

    def rubbish(self):
        """Return what the kills have left on the controller that is locked or incomplete."""
        found = [
            str(path)
            for path in self.first.runs.glob("*/attempt-*/.incoming/**/*")
            if path.is_file()
        ]
        for path in self.first.runs.glob("*/attempt-*/.stream.*"):
            done = subprocess.run(["flock", "-n", str(path), "true"], check=False)
            found += [f"{path} is held"] if done.returncode else []
        return found


def places(text):
    """Return [(task, seconds after)] of '3,7+0.5'."""
    return (
        [
            (int(word.partition("+")[0]), float(word.partition("+")[2] or 0))
            for word in text.split(",")
        ]
        if text
        else []
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-i", "--inventory", required=True)
    parser.add_argument(
        "--runs", required=True, help="where the inventory has its runs (trainyard_runs_dir)"
    )
    parser.add_argument("--job", required=True)
    parser.add_argument("--long", default="molecule/shared/jobs/long.yml")
    parser.add_argument("--verbs", default="train,stop,logs")
    parser.add_argument("--only", default="")
    parser.add_argument("--work", default="sweep-work")
    parser.add_argument(
        "--lock", default="", help="a lock file that others who train on this machine hold, too"
    )
    given = parser.parse_args()
    folder = Path(given.work).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    first = Controller(Path(given.inventory).resolve(), os.environ["HOME"], given.runs, folder)
    sweep = Sweep(first, second(first, folder), folder, given.job, given.long)
    sweep.lock = given.lock
    names = sweep.whole_run()
    follow = next(
        number
        for number, name in enumerate(names, 1)
        if name.endswith("Follow the attempt until it ends")
    )
    for verb in given.verbs.split(","):
        with alone("" if verb == "train" else given.lock):
            getattr(sweep, verb)(names if verb == "train" else follow, places(given.only))
    sweep.whole_run()
    print("# left on the controller: %s" % (sweep.rubbish() or "nothing"))
    bad = [row for row in sweep.rows if row[4]]
    print("# %d kills, %d with something that does not hold" % (len(sweep.rows), len(bad)))
    for verb, place, task, said, keys in bad:
        print(f"#   {verb} {place} {task}: { ({key: said[key] for key in keys}) }")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
