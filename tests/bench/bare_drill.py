#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The faults of playbooks/drill.yml done to bare `python -m paddle.distributed.launch`, started
over SSH in two terminals: JSON for docs/drills.md.

Not part of CI and nothing is asserted: the figures depend on the machine. The site is one of two
Docker nodes that is provisioned and synchronised for PaddleDetection, as `make drill` leaves it, or
by hand as bare_faults.py says:

.venv/bin/python tests/bench/bare_drill.py -i INVENTORY --out FOLDER [--limit 120] [--only NAME ...]

The same training, the same moments and the same steps as in
plugins/plugin_utils/drills/faults.yml, in a folder of this script's own on both nodes. Noted
are: the first error that a terminal shows, the end of both commands, which of both came by
themselves within the limit, and the processes that were left when the terminals were closed. What
is left is then ended by pid. Faults that have no counterpart there (a controller, a resume) are
left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import bare_faults

PROJECT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PROJECT / "collections"))
from ansible_collections.trainyard.cluster.plugins.plugin_utils.drills import fault_table

FOLDER = "/home/trainer/bare-drill"
# Bare Paddle has these moments, too; the others are about our controller, our checks or our logs.
FAULTS = (
    "exit", "raise", "import", "kill", "segfault", "memory", "hang", "stubborn", "nan", "node_kill",
    "reboot", "freeze", "cut", "away", "sshd", "connection",
)  # fmt: skip
PREPARE = """set -e
code=$(ls -td ~/.trainyard/code/*/configs/ppyoloe | head -1); test -n "$code"
coco=$(ls -td ~/.trainyard/data/*/annotations/instances_train2017.json | head -1); test -n "$coco"
rm -rf %(folder)s; mkdir -p %(folder)s; cd %(folder)s
cp -rL "${code%%/configs/*}/." .; chmod -R u+w .; mkdir -p dataset; rm -rf dataset/coco; ln -s "${coco%%/annotations/*}" dataset/coco"""
# The installed packages of the detector: a site may have other suites' environments beside it.
PACKAGES = (
    "P=$(ls -td /home/trainer/.trainyard/env/*/lib/python3.*/site-packages/ppdet | head -1);"
    " S=${P%/ppdet}; "
)
PYTHON = "${S%/lib/*}/bin/python"
# rank: the first process in our folder that has a rank's variable.
PRELUDE = (
    PACKAGES.replace("%", "%%")
    + """export S A=%(folder)s OTHER=%(other)s
rank() { for one in /proc/[0-9]*; do [ "$(readlink $one/cwd)" = %(folder)s ] && tr '\\0' '\\n' 2> /dev/null < $one/environ | grep -q '^PADDLE_TRAINER_ID=' \\
  && echo ${one#/proc/} && return; done; }
"""
)
# What a start without any fault says, too, and no person takes for an error.
USUAL = re.compile(r"^Warning: Unable to use|\b0 samples invalid\]")
# Seconds: from a fault inside a rank until this script has seen that the rank is gone; what was
# said meanwhile belongs to the fault.
SEEN = 15


class Eye:
    """A look at a node from this machine: it costs the node nothing, where `docker exec` costs more
    than a tenth of a step of the training. For root only.

    container: its name. folder: where the working directory of its rank begins.
    """

    def __init__(self, container, folder):
        if os.geteuid():
            raise SystemExit("run it as root: it reads the nodes' files and processes in /proc")
        self.container, self.folder, self.pid = container, folder, None

    def root(self):
        """Return the node's file system as this machine sees it, None while the node is down."""
        if self.pid is None or not os.path.exists(f"/proc/{self.pid}/root/proc/1"):
            asked = ["docker", "inspect", "--format", "{{.State.Pid}}", self.container]
            self.pid = subprocess.run(
                asked, check=True, text=True, stdout=subprocess.PIPE, timeout=60
            ).stdout.strip()
        return Path(f"/proc/{self.pid}/root") if self.pid != "0" else None

    def list(self, pattern):
        """Return the paths of a pattern on the node, attempt-9 before attempt-10; none while it is
        down.
        """
        root, paths = self.root(), []
        with contextlib.suppress(OSError):
            found = root.glob(pattern.lstrip("/")) if root else ()
            paths = [f"/{path.relative_to(root)}" for path in found]
        return sorted(paths, key=lambda path: [int(n) for n in re.findall("[0-9]+", path)])

    def read(self, pattern):
        """Return what the files of a pattern hold, one after the other."""
        text = ""
        for path in self.list(pattern):
            with contextlib.suppress(OSError):
                place = f"/proc/{self.pid}/root{path}"
                text += Path(place).read_text(encoding="utf-8", errors="replace")
        return text

    @property
    def rank(self):
        """The pid of the node's rank as the node counts, '' without one."""
        root = self.root()
        with contextlib.suppress(OSError):
            for place in (root / "proc").iterdir() if root else ():
                if place.name.isdigit() and self.is_rank(place):
                    return place.name
        return ""

    def processor_seconds(self, rank):
        """Return the seconds of a processor that a rank has taken, None where it is gone.

        rank: its pid as the node counts.
        """
        root = self.root()
        with contextlib.suppress(OSError, IndexError):
            if root and rank:
                text = (root / "proc" / rank / "stat").read_text(encoding="ascii")
                fields = text.rpartition(")")[2].split()  # proc(5): utime and stime
                return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return None

    def is_rank(self, place):
        """Whether a process is a rank in the folder. place: its directory in /proc."""
        try:
            if not os.readlink(place / "cwd").startswith(self.folder):
                return False
            return b"\0PADDLE_TRAINER_ID=" in b"\0" + (place / "environ").read_bytes()
        except OSError:
            return False


class Site(bare_faults.Site):
    """bare_faults.py's two nodes with a real training in the folder."""

    def __init__(self, inventory):
        super().__init__(inventory)
        self.eye = Eye(self.container("node1"), FOLDER)
        asked = ["docker", "inspect", "--format", "{{.HostConfig.Memory}}", self.container("node2")]
        # Before any fault: afterwards it is the fault's own limit.
        self.memory = subprocess.run(
            asked, check=True, text=True, stdout=subprocess.PIPE, timeout=60
        ).stdout.strip()

    def prepare(self):
        for node in self.nodes:
            self.on(node, PREPARE % {"folder": FOLDER})

    def words(self, job, resume=None):
        overrides = dict(job["overrides"], use_gpu="false")
        words = "tools/train.py -c {} -o {}".format(
            job["config"],
            " ".join("{}={}".format(*pair) for pair in sorted(overrides.items())),
        )
        return words + (f" -r {resume}" if resume else "")

    def bare(self, node, job, resume=None):
        """Return the argv of one terminal: a login shell, as a person would use it, and the command
        of the upstream documentation.
        """
        command = (
            f"cd {FOLDER} && {PACKAGES}OMP_NUM_THREADS=1 exec {PYTHON} -m paddle.distributed.launch"
        )
        command += " --ips=%s --nproc_per_node=1 --start_port %d %s" % (
            ",".join(self.nodes.values()),
            bare_faults.PORT,
            self.words(job, resume),
        )
        return [
            *self.ssh(node, "-tt", "-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=3"),
            f"exec bash -lc {shlex.quote(command)}",
        ]

    def step(self, step):
        names = {"first": "node1", "last": "node2"}
        if "sleep" in step:
            time.sleep(step["sleep"])
        elif "docker" in step:
            containers = dict(
                {place: self.container(node) for place, node in names.items()}, memory=self.memory
            )
            subprocess.run(
                ["docker", *(word.format(**containers) for word in step["docker"])],
                check=True,
                stdout=subprocess.DEVNULL,
                timeout=120,
            )
        elif "up" in step:
            self.up(names[step["up"]])
        elif "user" in step or "root" in step:
            node = names[step.get("user") or step["root"]]
            other = next(address for name, address in self.nodes.items() if name != node)
            (self.on if "user" in step else self.root)(
                node, PRELUDE % {"folder": FOLDER, "other": other} + step["do"]
            )

    def up(self, node):
        for _time in range(60):
            try:
                if "active" in self.on(node, "systemctl --user is-active basic.target"):
                    return
            except subprocess.SubprocessError:
                time.sleep(1)
        raise subprocess.SubprocessError(f"{node} does not come back")

    def fresh(self):
        """Take away what the training before has written: its log would be taken for this one's."""
        for node in self.nodes:
            self.on(node, f"rm -rf {FOLDER}/log {FOLDER}/output")

    def eyes(self, folder=FOLDER):
        """Return {node: Eye} for ranks whose working directory begins with a path."""
        return {node: Eye(self.container(node), folder) for node in self.nodes}

    def log(self):
        """Return rank 0's log; '' while its node is down."""
        return self.eye.read(f"{FOLDER}/log/workerlog.0")

    def left_anywhere(self):
        found = {}
        for node in self.nodes:
            try:
                found[node] = self.left(node)
            except subprocess.SubprocessError:
                found[node] = []  # down or frozen
        return found


def left_in(folder):
    """bare_faults.py looks for processes in its own folder; here they are in ours."""
    bare_faults.FOLDER = folder


def moment(site, fault, terminals, limit, eyes):
    """Wait until the training has come to the fault's moment; return whether it did. From inside:
    until the rank's log says so or the rank is gone.
    """
    kind, _space, count = fault["at"].partition(" ")
    end, seen = time.monotonic() + limit, False
    while kind != "run" and time.monotonic() < end:  # run: before anything of it is started
        text = "" if seen else site.log()
        if kind == "ranks":
            if all(eye.rank for eye in eyes.values()):
                return True
        elif kind == "inside":
            seen = seen or "Epoch: [" in text
            if seen and not eyes["node2"].rank:
                return True
        elif text.count("Epoch: [" if kind == "step" else "Save checkpoint: ") >= int(count):
            return True
        if all(terminal.process.poll() is not None for terminal in terminals):
            return kind == "inside" and seen
        time.sleep(0.3)
    return kind == "run"


def measure(site, job, fault, limit, out):
    """Do one fault to the bare command; return what came of it, seconds from the fault on."""
    found, terminals, eyes = {"name": fault["name"], "limit": limit}, [], site.eyes()
    for node in site.nodes:
        site.quiet(node)
    site.fresh()
    try:
        for step in fault.get("before", ()):
            site.step(step)
        begun = time.monotonic()
        terminals += [
            bare_faults.Terminal(node, site.bare(node, job), begun) for node in site.nodes
        ]
        reached = moment(site, fault, terminals, 240, eyes)
        if not reached:
            found["note"] = "the training did not come to its moment"
            return found
        since = time.monotonic()
        for step in fault.get("then", ()):
            if "verb" in step:  # stop.yml there: Ctrl-C in both terminals here
                since = time.monotonic()
                for terminal in terminals:
                    interrupt(terminal)
            else:
                site.step(step)
        steps = site.log().count("Epoch: [")
        while time.monotonic() - since < limit and any(
            terminal.process.poll() is None for terminal in terminals
        ):
            time.sleep(0.2)
        found["went_on"] = site.log().count("Epoch: [") - steps
        found["codes"] = {terminal.node: terminal.close() for terminal in terminals}
        ends = [getattr(terminal, "ended", None) for terminal in terminals]
        whole = all(code is not None for code in found["codes"].values())
        found["ended"] = round(max(ends) + begun - since, 1) if whole and None not in ends else None
        lines = [
            (second + begun - since, terminal.node, line)
            for terminal in terminals
            for second, line in terminal.lines
        ]
        errors = errors_of(lines, -SEEN if fault["at"] == "inside" else 0)
        found["first_error"] = round(max(errors[0][0], 0), 1) if errors else None
        telling = [
            line
            for line in errors
            if re.search(r"^\w*(Error|Exception): |^ssh: |signal|SIG", line[2])
        ] or errors
        found["said"] = "{}: {}".format(*telling[0][1:]) if telling else ""
        time.sleep(2)
        found["left"] = sum(len(pids) for pids in site.left_anywhere().values())
    finally:
        for terminal in terminals:
            terminal.close()
            text = "".join("{:7.1f}  {}\n".format(*line) for line in terminal.lines)
            (out / "{}-{}.txt".format(fault["name"], terminal.node)).write_text(text)
        for step in fault.get("heal", ()):
            try:
                site.step(step)
            except (subprocess.SubprocessError, OSError) as error:
                print("{}: not undone: {}: {}".format(fault["name"], step, error), flush=True)
        for node in site.nodes:
            site.up(node)
            site.clear(node)
    return found


def interrupt(terminal):
    """Type Ctrl-C; a terminal whose command has ended takes none."""
    try:
        terminal.process.stdin.write(b"\x03")
        terminal.process.stdin.flush()
    except OSError:
        pass


def errors_of(lines, earliest):
    """Return the lines (second, node, text) that a person takes for errors, from a second on; those
    of one moment stay in their order.
    """
    told = (bare_faults.HARMLESS, USUAL)
    chosen = [
        line
        for line in lines
        if bare_faults.ERROR.search(line[2]) and not any(one.search(line[2]) for one in told)
    ]
    return sorted((line for line in chosen if line[0] >= earliest), key=lambda line: line[0])


def main():
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("-i", "--inventory", default=str(PROJECT / "molecule" / "inventory"))
    asked.add_argument(
        "--out",
        type=Path,
        help="where texts and bare.json go; default: a new folder in the temporary directory",
    )
    asked.add_argument(
        "--limit",
        type=float,
        default=120,
        help="seconds that the bare command gets after the fault (default 120)",
    )
    asked.add_argument("--only", nargs="*", help="names of faults")
    asked = asked.parse_args()
    os.environ["PATH"] = "{}:{}".format(Path(sys.executable).parent, os.environ["PATH"])
    out = asked.out or Path(tempfile.mkdtemp(prefix="bare-drill-"))
    out.mkdir(parents=True, exist_ok=True)
    left_in(FOLDER)
    site, table = Site(asked.inventory), fault_table.load()
    kept = out / "bare.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    site.prepare()
    try:
        for name in asked.only or FAULTS:
            fault = table["faults"][name]
            try:
                results[name] = measure(
                    site, fault_table.make_job(table["job"], fault, ""), fault, asked.limit, out
                )
            except (subprocess.SubprocessError, OSError) as error:  # the others are measured, too
                results[name] = {
                    "name": name,
                    "limit": asked.limit,
                    "note": f"not measured: {error}",
                }
            kept.write_text(json.dumps(results, indent=1))
            print(json.dumps(results[name]), flush=True)
    finally:
        for node in site.nodes:
            site.on(node, f"rm -rf {FOLDER}", check=False)
    print(out)


if __name__ == "__main__":
    main()
