#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What bare `paddle.distributed.launch` does with the faults of a start, beside what check.yml says
of them: a Markdown table.

Not part of CI and nothing is asserted: the figures depend on the machine. The site is one of two
Docker nodes (playbooks/local.yml) that is provisioned and synchronised; `make start-faults` does all that,
or by hand:

    ansible-playbook -i INVENTORY playbooks/local.yml
    ansible-playbook -i INVENTORY playbooks/provision.yml -e suite=paddledetection
    ansible-playbook -i INVENTORY playbooks/sync.yml -e config=molecule/shared/jobs/short.yml
    .venv/bin/python tests/bench/bare_faults.py -i INVENTORY --out FOLDER [--limit 60] [--only
    PART_OF_A_NAME ...]

For each fault: do it to the nodes (those of molecule/preflight/test_preflight.py where it has
them); start the bare command on both nodes at once, each in a terminal of its own over SSH and a
login shell, with nothing of ours in the environment; note the first error that any terminal shows,
the last one, and the exit codes, or that the limit came first; close the terminals; run check.yml
on the same nodes; undo the fault and end what is left by pid: only processes whose working
directory is the folder that this script made. FOLDER gets every terminal's and every check's text,
result.json and table.md; a further call with the same FOLDER replaces the rows that it measures.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PORT = 17000
FOLDER = "/home/trainer/bare-faults"
# The smallest training there is: join, one all-reduce. Every rank that works prints the sum.
SCRIPT = """\
import paddle
import paddle.distributed as dist

dist.init_parallel_env()
total = paddle.to_tensor([float(dist.get_rank() + 1)])
if dist.get_world_size() > 1:
    dist.all_reduce(total)
print("rank %d of %d: sum %d" % (dist.get_rank(), dist.get_world_size(), int(total)), flush=True)
"""
ERROR = re.compile(
    r"error|exception|traceback|refused|fatal|fail|timeout|timed out|abort|signal|unable|no"
    r" route|closed by|cannot|can't|invalid",
    re.I,
)
# Lines with such a word that are no error: the launcher's table of its options, and its list of the
# children's environment.
HARMLESS = re.compile(
    r"elastic_timeout|log_overwrite|^LAUNCH INFO"
    r" .*(Successfully|Create|configuration)|max_restart|-{9}"
)
# Seconds that the launcher must have been up before its silence counts; without a fault it has done
# all after 10.
FAIR = 40
# What an exception says, and ssh: the line that a person looks for.
TELLING = re.compile(r"^\w*(Error|Exception): |^ssh: ")
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Fault:
    """One fault. does, undoes: (root, on or docker; node; line of shell). given: what a user types
    instead, {node: (ips, devices, before)}; a node with None is not started. words: for check.yml.
    row: the finding (level, nodes, code, text), or said: a pattern in its output. tries: of the
    bare command, where chance decides; the first that fails is shown.
    """

    name: str
    does: list = field(default_factory=list)
    undoes: list = field(default_factory=list)
    given: dict = field(default_factory=dict)
    words: tuple = ()
    row: tuple = ()
    said: str = ""
    note: str = ""
    tries: int = 1


class Site:
    """Two nodes: their addresses, ways in, and the bare command."""

    def __init__(self, inventory):
        self.inventory = str(Path(inventory).resolve())
        listed = subprocess.run(
            ["ansible-inventory", "-i", self.inventory, "--list"],
            cwd=PROJECT,
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            timeout=60,
        )
        hosts = json.loads(listed.stdout)["_meta"]["hostvars"]
        self.nodes = {name: hosts[name]["ansible_host"] for name in sorted(hosts)}
        if list(self.nodes) != ["node1", "node2"]:
            sys.exit(
                "this takes a site of two Docker nodes, node1 and node2; {} has: {}".format(
                    inventory, ", ".join(self.nodes) or "none"
                )
            )
        self.name = hosts["node1"]["trainyard_site"]
        self.state = Path.home() / ".local/state/trainyard" / self.name

    def container(self, node):
        return f"trainyard-{self.name}-{node}"

    def ssh(self, node, *options):
        known = "UserKnownHostsFile=%s" % (self.state / "known_hosts")
        words = ("IdentitiesOnly=yes", "StrictHostKeyChecking=yes", "BatchMode=yes", known)
        return [
            "ssh",
            *options,
            "-i",
            str(self.state / "id_ed25519"),
            *(part for word in words for part in ("-o", word)),
            f"trainer@{self.nodes[node]}",
        ]

    def root(self, node, script, check=True):
        argv = ["docker", "exec", self.container(node), "sh", "-c", script]
        return subprocess.run(
            argv,
            check=check,
            text=True,
            timeout=240,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ).stdout.strip()

    def on(self, node, script, check=True):
        argv = [*self.ssh(node), "export XDG_RUNTIME_DIR=/run/user/$(id -u); " + script]
        done = subprocess.run(
            argv,
            check=check,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        return done.stdout.strip()

    def docker(self, node, verb):
        subprocess.run(
            ["docker", verb, self.container(node)],
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=60,
        )

    def do(self, steps):
        for way, node, script in steps:
            getattr(self, way)(node, script)

    def bare(self, node, ips=None, devices=1, before=""):
        """Return the argv of one terminal: a login shell, as a person would use it, and the command
        of the upstream documentation.
        """
        ips = ips or ",".join(self.nodes.values())
        command = (
            f"cd {FOLDER} && {before} $(ls -d ~/.trainyard/env/*/bin/python) -m"
            " paddle.distributed.launch"
        )
        command += " --ips=%s --nproc_per_node=%d --start_port %d tiny.py" % (ips, devices, PORT)
        return [*self.ssh(node, "-tt"), f"exec bash -lc {shlex.quote(command)}"]

    def left(self, node):
        """Return the pids of this script's own processes on a node. Asked as their owner: a
        container's root may not see their directory.
        """
        script = (
            f'for one in /proc/[0-9]*; do [ "$(readlink $one/cwd)" = {FOLDER} ] && echo'
            " ${one#/proc/}; done; true"
        )
        argv = ["docker", "exec", "-u", "trainer", self.container(node), "sh", "-c", script]
        return subprocess.run(
            argv,
            check=True,
            text=True,
            timeout=60,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ).stdout.split()

    def clear(self, node):
        """End them, by pid."""
        for pid in self.left(node):
            self.root(node, f"kill -9 {pid}", check=False)

    def quiet(self, node):
        """Wait until nothing listens where rank 0 will: what an earlier row has left would look
        like a fault of this one.
        """
        listening = "ss -Htln sport = :%d" % PORT
        for _time in range(20):
            if not self.root(node, listening):
                return
            time.sleep(0.5)
        sys.exit(
            "something listens on port %d of %s: %s" % (PORT, node, self.root(node, listening))
        )


class Terminal:
    """One node's terminal: its lines with the second in which each came."""

    def __init__(self, node, argv, begun):
        self.node, self.begun, self.lines = node, begun, []
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for raw in self.process.stdout:
            self.lines.append(
                (
                    round(time.monotonic() - self.begun, 1),
                    COLOURS.sub("", raw.decode("utf-8", "replace")).rstrip(),
                )
            )
        self.ended = time.monotonic() - self.begun

    def up(self):
        """Return the second in which the launcher said that it watches its ranks, None before."""
        return next((second for second, line in list(self.lines) if "Watching Pod" in line), None)

    def close(self):
        """Return the exit code, None where the command still ran; the terminal is closed then, as a
        window is.
        """
        code = self.process.poll()
        if code is None:
            self.process.terminate()
            self.process.wait(20)
        self.thread.join(5)
        return code


def try_bare(site, fault, limit, out, number=1):
    """Start the bare command on both nodes; return what the terminals showed."""
    load, begun = os.getloadavg()[0], time.monotonic()
    given = {node: fault.given.get(node, {}) for node in site.nodes}
    terminals = [
        Terminal(node, site.bare(node, **how), begun)
        for node, how in given.items()
        if how is not None
    ]
    seconds = 0
    while any(terminal.process.poll() is None for terminal in terminals):
        time.sleep(0.2)
        seconds = time.monotonic() - begun
        # On a loaded machine the launcher itself takes half a minute; a terminal that never shows
        # it is not waited for much longer.
        ups = [terminal.up() for terminal in terminals if terminal.process.poll() is None]
        if seconds > (limit + max(ups, default=0) if None not in ups else 1.5 * limit):
            break
    codes = {terminal.node: terminal.close() for terminal in terminals}
    for terminal in terminals:
        text = "".join("{:7.1f}  {}\n".format(*line) for line in terminal.lines)
        (out / ("%s-%d.txt" % (terminal.node, number))).write_text(
            text + f"exit code: {codes[terminal.node]}\n"
        )
    lines = [
        (second, terminal.node, line) for terminal in terminals for second, line in terminal.lines
    ]
    lines.sort(key=lambda line: line[0])  # lines of one moment stay in their order
    return {"load": load, "seconds": seconds, "codes": codes, "lines": lines}


def heard(bare):
    """Return what the terminals' lines say: the errors, the sums, and whether all went right."""
    errors = [
        line for line in bare["lines"] if ERROR.search(line[2]) and not HARMLESS.search(line[2])
    ]
    sums = sorted(line[2] for line in bare["lines"] if re.match(r"rank \d+ of \d+: sum", line[2]))
    right = sums == ["rank 0 of 2: sum 3", "rank 1 of 2: sum 3"] and set(
        bare["codes"].values()
    ) == {0}
    return errors, sums, right


def try_ours(tests, fault, out):
    """Run check.yml; return the finding's row and the seconds until the table was there."""
    load = os.getloadavg()[0]
    done = tests.Outcome(*fault.words)
    (out / "check.txt").write_text(done.stdout)
    row = None
    if fault.row:
        level, nodes, code, text = fault.row
        row = next(
            filter(None, (done.row(level, one, code, text) for one in nodes.split("|"))), None
        )
    elif fault.said:
        found = re.search(fault.said, done.stdout)
        row = (found.group(0), "") if found else None
    last = done.table[-1] if done.table else ""
    return {"load": load, "seconds": done.seconds, "code": done.code, "row": row, "last": last}


def load_tests(site):
    """Import molecule's faults for this site: harness has molecule's own addresses and state."""
    sys.path.insert(0, str(PROJECT / "molecule" / "shared"))
    sys.path.insert(0, str(PROJECT / "molecule" / "preflight"))
    import harness

    harness.NODES.update(site.nodes)
    harness.INVENTORY, harness.STATE = Path(site.inventory), site.state
    import test_preflight

    return test_preflight


def faults(site, tests, scratch):
    """Return the faults, in the table's order."""

    def known(name, shown=None, **more):
        node, by_root, does, undoes, words, row = tests.FAULTS[name]
        way = "root" if by_root else "on"
        before = more.pop("before", [])
        return Fault(
            shown or name,
            before + [(way, node, does)],
            [(way, node, undoes)],
            words=words,
            row=row,
            **more,
        )

    swapped = ",".join(reversed(site.nodes.values()))
    loopback = tests.hosts("node1", "127.0.1.1"), "cat /root/hosts > /etc/hosts"
    eth9 = "GLOO_SOCKET_IFNAME=eth9"
    stray = (
        "echo 'export PADDLE_NNODES=1' >> .bashrc; echo 'export PADDLE_NNODES=1' >> .profile;"
        " systemctl --user set-environment PADDLE_NNODES=1"
    )
    more = scratch / "more.yml"
    more.write_text(json.dumps({"trainers": {"hosts": {"node2": {"trainyard_devices": 2}}}}))
    both = known(
        "127.0.1.1 in /etc/hosts", "127.0.1.1 for its own name in `/etc/hosts`, both nodes"
    )
    both.does.append(("root", "node1", loopback[0]))
    both.undoes.append(("root", "node1", loopback[1]))
    both.row = ("WARN", "node1, node2|node1", "name.resolves_wrong", r"127\.0\.1\.1")
    taken = known("start port of rank 0 taken", "rank 0's start port taken")
    # The launcher's own words are turned on node2, since with us nobody types them twice.
    launch = f"cd {tests.SITE_PACKAGES}/paddle/distributed/launch"
    turn = (
        f'import sys; sys.argv = ["--ips={swapped}" if w.startswith("--ips=") else w for w in'
        " sys.argv]"
    )
    turned = (
        f"{launch} && cp -p main.py /tmp/main.py && {{ echo '{turn}'; cat /tmp/main.py; }} >"
        " main.py"
    )
    # what has changed since the installation would be named before any rehearsal
    fresh = "touch ~/.trainyard/env/*/.trainyard.json"
    clock = (
        f"test -e {tests.FAKETIME} || {{ apt-get -q update && apt-get -qy install"
        " --no-install-recommends libfaketime; } > /dev/null"
    )
    return [
        Fault("none, rehearsed", words=tests.AGAIN, note="with its rehearsal"),
        Fault("none", words=tests.QUICK),
        known("127.0.1.1 in /etc/hosts", "127.0.1.1 for its own name in `/etc/hosts`, node2"),
        both,
        known("equal host names"),
        Fault(
            "another order of `--ips` on node2",
            [("on", "node2", turned), ("on", "node2", fresh)],
            [("on", "node2", f"{launch} && cp -p /tmp/main.py main.py"), ("on", "node2", fresh)],
            words=tests.AGAIN,
            row=("STOP", "node2", "rehearsal.rank_unlike_plan", "rank 0"),
            note="by its rehearsal",
        ),
        taken,
        known("DROP on the planned port", "firewall on node1 drops rank 0's start port"),
        known("DROP on the ephemeral range", "firewall on node2 drops the ephemeral range",
            tries=3),
        Fault("node2 is never started", given={"node2": None}, said="",
            note="one command starts all nodes or none"),
        Fault(
            "node2 is frozen",
            [("docker", "node2", "pause")],
            [("docker", "node2", "unpause")],
            words=(*tests.QUICK, *tests.FRESH),
            row=("STOP", "node2", "reach.timed_out", ""),
        ),
        known("SSH refused by one node", "node2's SSH refuses"),
        known("another Paddle on one node", "another version of Paddle on node2",
            note="its dist-info renamed: Paddle itself cannot see that"),
        Fault(
            "stray `PADDLE_NNODES=1` in both nodes' profile",
            [("on", node, stray) for node in site.nodes],
            [("on", node,
            "sed -i /PADDLE_NNODES/d .bashrc .profile; systemctl --user unset-environment PADDLE_NNODES") for node in site.nodes],
            words=tests.AGAIN,
            said=r"NOTE .*2 ranks.*",
            note="by its rehearsal: no effect",
        ),
        known("a clock one hour off", "node2's clock one hour off",
            before=[("root", "node2", clock)]),
        known(
            "a wrong interface by the site",
            "a wrong interface (`GLOO_SOCKET_IFNAME=eth9`)",
            given={node: {"before": eth9} for node in site.nodes},
        ),
        Fault(
            "unequal numbers of devices: 1 and 2",
            given={"node2": {"devices": 2}},
            words=("-i", str(more), *tests.QUICK),
            said=r"[^\n]*need equal numbers of devices[^\n]*",
            note="before a node is asked",
        ),
    ]  # fmt: skip


def shown(text, width=170):
    """Return a text as one cell of a table."""
    text = " ".join(text.split())
    return "`{}`".format(
        (text if len(text) <= width else text[: width - 1] + "…")
        .replace("|", "\\|")
        .replace("`", "'")
    )


def cells(fault, bare, ours):
    """Return a fault's line of the table."""
    codes = ", ".join(
        "{} {}".format(node, "waits" if code is None else code)
        for node, code in bare["codes"].items()
    )
    errors, sums, right = heard(bare)
    if right:
        seconds, said = "–", "nothing; both ranks add up right ({:.0f} s)".format(bare["seconds"])
    elif errors:
        telling = [line for line in errors if TELLING.search(line[2])] or errors
        seconds, said = (
            "{:.0f} ({})".format(*tuple(errors[0][:2])),
            f"{telling[-1][1]}: {shown(telling[-1][2])}",
        )
    elif None in bare["codes"].values():
        up = [line[0] for line in bare["lines"] if "Watching Pod" in line[2]]
        silent = bare["seconds"] - max(up) if up else 0
        said = f"nothing for {silent:.0f} s after the launcher was up"
        if silent < FAIR:
            said = (
                "not judged: the machine was so loaded that the launcher ran for only"
                f" {silent:.0f} s"
            )
        seconds = "none in {:.0f}".format(bare["seconds"])
    else:
        seconds, said = (
            "–",
            "nothing, and wrong: {}".format("; ".join(sums or ["no rank came to its sum"])),
        )
    if len(bare.get("tries", [])) > 1:
        said += "; %d of %d tries went right" % (sum(bare["tries"]), len(bare["tries"]))
    if bare["left"]:
        said += "; left when the terminals were closed: %d" % bare["left"]
    if ours is None:
        return [fault.name, seconds, said, codes, "–", fault.note, "{:.0f}".format(bare["load"])]
    words = (
        " ".join(shown(part) for part in ours["row"] if part)
        if ours["row"]
        else shown(ours["last"])
    )
    words += f" ({fault.note})" if fault.note else ""
    return [
        fault.name,
        seconds,
        said,
        codes,
        "{:.0f}".format(ours["seconds"]),
        words,
        "{:.0f}, {:.0f}".format(bare["load"], ours["load"]),
    ]


def measure(site, tests, fault, limit, out):
    """Do one fault, try both, undo it; return the results."""
    out.mkdir(parents=True, exist_ok=True)
    for node in site.nodes:
        site.quiet(node)
    try:
        site.do(fault.does)
        reachable = [node for node in site.nodes if ("docker", node, "pause") not in fault.does]
        bares = []
        for number in range(1, fault.tries + 1):
            bares.append(try_bare(site, fault, limit, out, number))
            time.sleep(2)
            bares[-1]["left"] = sum(len(site.left(node)) for node in reachable)
            for node in reachable:
                site.clear(node)
        bare = next((one for one in bares if not heard(one)[2]), bares[-1])
        bare["tries"] = [heard(one)[2] for one in bares]
        ours = try_ours(tests, fault, out) if fault.words else None
    finally:
        site.do(fault.undoes)
        for node in site.nodes:
            site.clear(node)
    return {"bare": bare, "ours": ours}


def table(known, results):
    """Return the Markdown table."""
    head = [
        "fault",
        "bare: first error after s",
        "bare: last error",
        "bare: exit codes",
        "check.yml: s",
        "check.yml: finding, remedy",
        "load",
    ]
    lines = [
        head,
        ["---"] * len(head),
        *(cells(fault, **results[fault.name]) for fault in known if fault.name in results),
    ]
    foot = (
        "%s; load: average of the last minute when bare and when check.yml began, on %d"
        " processors.\n"
    )
    foot %= (datetime.date.today().isoformat(), os.cpu_count())
    return "\n".join("| {} |".format(" | ".join(line)) for line in lines) + "\n\n" + foot


def main():
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("-i", "--inventory", default=str(PROJECT / "molecule" / "inventory"))
    asked.add_argument(
        "--out",
        type=Path,
        help="where texts and table go; default: a new folder in the temporary directory",
    )
    asked.add_argument(
        "--limit",
        type=float,
        default=60,
        help="seconds that the bare command gets once its launchers are up (default 60)",
    )
    asked.add_argument("--only", nargs="*", help="parts of names of faults")
    asked = asked.parse_args()
    # As `. .venv/bin/activate` would: Ansible's own commands lie beside this Python.
    os.environ["PATH"] = "{}:{}".format(Path(sys.executable).parent, os.environ["PATH"])
    site = Site(asked.inventory)
    tests = load_tests(site)
    out = asked.out or Path(tempfile.mkdtemp(prefix="bare-faults-"))
    out.mkdir(parents=True, exist_ok=True)
    for node in site.nodes:
        site.on(
            node,
            f"mkdir -p {FOLDER} && printf %s {shlex.quote(SCRIPT)} > {FOLDER}/tiny.py",
        )
    known, kept = faults(site, tests, out), out / "result.json"
    results = json.loads(kept.read_text()) if kept.exists() else {}
    try:
        for number, fault in enumerate(known):
            if asked.only and not any(part in fault.name for part in asked.only):
                continue
            results[fault.name] = measure(site, tests, fault, asked.limit, out / ("%02d" % number))
            kept.write_text(json.dumps(results, indent=1))
            print("| {} |".format(" | ".join(cells(fault, **results[fault.name]))), flush=True)
            if number == 0 and not heard(results[fault.name]["bare"])[2]:
                sys.exit(f"the bare command does not work without a fault; see {out}")
    finally:
        for node in site.nodes:
            site.on(node, f"rm -rf {FOLDER}", check=False)
    (out / "table.md").write_text(table(known, results))
    print(f"\n{table(known, results)}\n{out}")


if __name__ == "__main__":
    main()
