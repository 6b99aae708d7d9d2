#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Provoke the failures of faults.yml on two Docker nodes and keep what the nodes know of each, with
the right answer beside it.

Not part of CI; `make corpus`, or by hand on a site that is provisioned for all four suites:

    .venv/bin/python tests/corpus/provoke.py -i INVENTORY [--only PART_OF_A_NAME ...] [--again]

A plan is compiled by the product (plan.yml) once for each of the `plans` of faults.yml. A case
takes a copy, puts its fault into it, and starts the attempt on all of its nodes by the product's
own functions (node/attempt.py). Then it does what it has to do from outside, waits for the end, and
copies what the product itself would read there: plan, events, exits, logs; no environment dumps, no
data. The answer is what faults.yml says was done. What the product's verdict says is printed, for
information, and written nowhere.
"""

from __future__ import annotations

import argparse
import copy
import datetime
import hashlib
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
sys.path.insert(0, str(PROJECT / "collections"))
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import zipapp

CORE = PROJECT / "plugins" / "module_utils"
THERE = "/home/trainer/corpus"  # beside the product's own directory on every node
# What a node keeps of an attempt and the product reads; default.<pod>.log, envlog.N and
# backup_env.N.json hold whole environments.
KEPT = (
    "find . -maxdepth 1 -type f \\( -name '*.json' -o -name '*.jsonl' -o -name '*.txt' \\) -print0;"
)
KEPT += (
    " find log -type f ! -name 'envlog.*' ! -name 'backup_env.*' ! -name 'default.*.log' -print0 2>"
    " /dev/null"
)
# For the shell lines of faults.yml: the attempt's directory, the pids that the agent has noted, the
# node's installed packages.
PRELUDE = """export XDG_RUNTIME_DIR=/run/user/$(id -u trainer) A=%(place)s S=%(packages)s OTHER=%(other)s
pid() { sed -n "s/.*\\"event\\": \\"$1\\".*\\"pid\\": \\([0-9]*\\).*/\\1/p" $A/ranks.jsonl | tail -n 1; }
rank() { sed -n "s/.*\\"start\\", \\"rank\\": $1,.*\\"pid\\": \\([0-9]*\\).*/\\1/p" $A/ranks.jsonl | tail -n 1; }
main() { systemctl --user show -p MainPID --value %(unit)s; }
"""


class Site:
    """The nodes and the two ways in: as the training user over SSH, and as a container's root."""

    def __init__(self, inventory):
        self.inventory = str(Path(inventory).resolve())
        words = ["ansible-inventory", "-i", self.inventory, "--list"]
        hosts = json.loads(
            subprocess.run(
                words, cwd=PROJECT, check=True, text=True, stdout=subprocess.PIPE, timeout=60
            ).stdout
        )
        hosts = hosts["_meta"]["hostvars"]
        self.nodes = {name: hosts[name]["ansible_host"] for name in sorted(hosts)}
        self.name = hosts["node1"]["trainyard_site"]
        self.state = Path.home() / ".local/state/trainyard" / self.name

    def container(self, node):
        return f"trainyard-{self.name}-{node}"

    def ssh(self, node, command, data=None, timeout=120, check=True):
        """Return what a command says on a node, as bytes; data: its standard input."""
        options = [
            "IdentitiesOnly=yes",
            "StrictHostKeyChecking=yes",
            "BatchMode=yes",
            "UserKnownHostsFile=%s" % (self.state / "known_hosts"),
        ]
        argv = [
            "ssh",
            "-i",
            str(self.state / "id_ed25519"),
            *(word for option in options for word in ("-o", option)),
        ]
        argv += [f"trainer@{self.nodes[node]}", command]
        given = {"input": data} if data is not None else {"stdin": subprocess.DEVNULL}
        done = subprocess.run(
            argv,
            check=False,
            timeout=timeout,
            capture_output=True,
            **given,
        )
        if check and done.returncode:
            raise Provoked(
                "{}: {}: {}".format(
                    node,
                    command[:60],
                    (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-400:],
                )
            )
        return done.stdout

    def root(self, node, script, check=True):
        argv = ["docker", "exec", self.container(node), "sh", "-c", script]
        done = subprocess.run(
            argv,
            check=False,
            text=True,
            timeout=120,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if check and done.returncode:
            raise Provoked(f"{node}: {script[-80:]}: {done.stdout.strip()[-400:]}")
        return done.stdout

    def docker(self, *words):
        subprocess.run(["docker", *words], check=True, stdout=subprocess.DEVNULL, timeout=120)

    def up(self, node):
        """Wait until a node that was started again takes logins and has its user's manager."""
        for _try in range(60):
            if b"running" in self.ssh(
                node,
                "export XDG_RUNTIME_DIR=/run/user/$(id -u); systemctl --user is-active"
                " default.target && echo running",
                check=False,
            ):
                return
            time.sleep(1)
        raise Provoked(f"{node} does not come back")

    def furnish(self):
        """Put the product's core and our two programs on every node."""
        with tempfile.TemporaryDirectory() as folder:
            package = (
                Path(folder)
                / "corpus/lib/ansible_collections/trainyard/cluster/plugins/module_utils"
            )
            shutil.copytree(CORE, package, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copytree(
                HERE / "node",
                Path(folder) / "corpus/inject",
                ignore=shutil.ignore_patterns("attempt.py", "__pycache__"),
            )
            shutil.copy(HERE / "node/attempt.py", Path(folder) / "corpus/attempt.py")
            (Path(folder) / "corpus" / zipapp.NAME).write_bytes(zipapp.build())
            packed = subprocess.run(
                ["tar", "-C", folder, "-c", "corpus"], check=True, stdout=subprocess.PIPE
            ).stdout
        for node in self.nodes:
            self.ssh(node, "tar -C /home/trainer -x", packed)


class Provoked(Exception):
    """The fault could not be provoked; the message is for whoever runs this."""


def compile_plan(site, name, known, folder):
    """Return a plan of the product for one of the known jobs, and bring what the job needs to the
    nodes.
    """
    spec = known[name]
    base = known.get(spec.get("like"), {})
    spec = {**base, **spec, "job": {**base.get("job", {}), **spec.get("job", {})}}
    path, job = folder / (name + ".plan.json"), folder / (name + ".yml")
    if not path.exists():
        job.write_text(yaml.safe_dump(dict(spec["job"], description="a job of the corpus")))
        words = [
            "ansible-playbook",
            "-i",
            site.inventory,
            "tests/corpus/plan.yml",
            "-e",
            f"config={job}",
        ]
        words += ["-e", json.dumps({"trainyard_devices": spec.get("devices", 1)})]
        environment = dict(
            os.environ, CORPUS_PLAN=str(path), ANSIBLE_CONFIG=str(PROJECT / "ansible.cfg")
        )
        done = subprocess.run(
            words,
            cwd=PROJECT,
            env=environment,
            check=False,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if done.returncode:
            raise Provoked(f"no plan {name}:\n{done.stdout[-3000:]}")
    return json.loads(path.read_text())


def changed(plan, case, run):
    """Return the plan with the case's fault in it; the keys are explained in faults.yml."""
    plan = copy.deepcopy(plan)
    nodes = {item["name"]: item for item in plan["nodes"]}
    environment = dict(case.get("env", {}))
    if case.get("inject"):
        environment.update(
            CORPUS_FAULT=json.dumps(case["inject"]),
            PYTHONPATH=":".join([THERE + "/inject", plan["env"].get("PYTHONPATH", "")]).strip(":"),
        )
    laid = {
        node: ["{}/wheels/{}".format(THERE, wheel.replace("==", "-")) for wheel in wheels]
        for node, wheels in case.get("wheels", {}).items()
    }
    for node, folders in laid.items():
        nodes[node]["env"]["PYTHONPATH"] = ":".join(folders)
    for node, values in case.get("node_env", {}).items():
        for key, value in values.items():
            nodes[node]["env"].pop(key, None)
            if value is not None:
                nodes[node]["env"][key] = value.replace("{node1}", nodes["node1"]["address"])
    plan["env"].update(environment)
    if plan.get("scheduler"):
        plan["scheduler"]["env"].update(case.get("env", {}))
    commands = [plan["argv"]] + [item["argv"] for item in plan["nodes"] if item.get("argv")]
    for argv in commands:
        replace(argv, case.get("replace", {}))
        if case.get("append"):
            argv += case["append"]
        if argv[0] == "mpirun":
            at = argv.index("-n")
            argv[at:at] = [word for name in environment for word in ("-x", name)]
    for node, words in case.get("node_replace", {}).items():
        nodes[node]["argv"] = list(nodes[node].get("argv") or plan["argv"])
        replace(nodes[node]["argv"], words)
    if case.get("own_data"):
        plan["links"] = {
            path: f"runs/{run}/attempt-1/own/{target}" for path, target in plan["links"].items()
        }
    return plan


def replace(argv, words):
    for old, new in words.items():
        at = [number for number, word in enumerate(argv) if word.startswith(old)]
        if not at:
            raise Provoked(f"no word of the command begins with {old!r}: {shlex.join(argv)}")
        for number in at:
            argv[number] = new


class Case:
    """One case on its way."""

    def __init__(self, site, name, case, plan):
        self.site, self.name, self.case = site, name, case
        now = datetime.datetime.now(datetime.timezone.utc)
        self.run = "{}-{}-{}".format(
            now.strftime("%Y%m%d-%H%M%S"),
            name.replace("-", "_"),
            secrets.token_hex(2),
        )
        self.unit = f"trainyard-{self.run}-1.service"
        self.place = f"/home/trainer/.trainyard/runs/{self.run}/attempt-1"
        self.plan = changed(plan, case, self.run)
        self.text = json.dumps(self.plan, indent=1, sort_keys=True) + "\n"
        self.nodes = [item["name"] for item in self.plan["nodes"]]
        self.gone, self.gave_up = {}, None

    def tell(self, node, verb, timeout=120, check=True, **more):
        spec = {"run": self.run, "node": node, **more}
        words = f"PYTHONPATH={THERE}/lib python3 {THERE}/attempt.py {verb}"
        return self.site.ssh(node, words, json.dumps(spec).encode(), timeout, check)

    def everywhere(self, verb, **more):
        """Do it on all nodes at once that are there; raise what the first of them raised."""
        nodes = [node for node in self.nodes if node not in self.gone]
        with ThreadPoolExecutor(len(nodes) or 1) as pool:
            for done in [pool.submit(self.tell, node, verb, **more) for node in nodes]:
                done.result()

    def act(self, steps):
        """Do the steps in order: see the head of faults.yml."""
        for step in steps:
            if "until" in step:
                self.tell(
                    step["until"],
                    "until",
                    name=step["file"],
                    has=step["has"],
                    seconds=step.get("seconds", 300),
                    timeout=330,
                )
            elif "sleep" in step:
                time.sleep(step["sleep"])
            elif "docker" in step:
                self.site.docker(
                    *(
                        word.replace("{node", f"trainyard-{self.site.name}-node").replace("}", "")
                        for word in step["docker"]
                    )
                )
            elif "up" in step:
                self.site.up(step["up"])
            elif "gone" in step:
                self.gone.update(step["gone"])
            elif "back" in step:
                del self.gone[step["back"]]
            elif "stop" in step:
                self.everywhere("stop", by=step["stop"], source=step.get("from", "trainer"))
            elif "give_up" in step:
                self.give_up(step["give_up"])
            else:
                node = step.get("user") or step["root"]
                mine = next(
                    (item for item in self.plan["nodes"] if item["name"] == node),
                    self.plan["nodes"][0],
                )
                other = next(
                    (address for name, address in self.site.nodes.items() if name != node), ""
                )
                packages = str(Path(mine["python"]).parents[1] / "lib/python3.11/site-packages")
                script = (
                    PRELUDE
                    % {
                        "place": self.place,
                        "unit": self.unit,
                        "packages": packages,
                        "other": other,
                    }
                    + step["do"]
                )
                if "user" in step:
                    self.site.ssh(node, script)
                else:
                    self.site.root(node, script, check=not step.get("may_fail"))

    def give_up(self, seconds):
        """Wait for the end. If it does not come, stop the run as the user would."""
        try:
            self.everywhere("wait", seconds=seconds, timeout=seconds + 60)
        except Provoked:
            self.gave_up = seconds
            self.everywhere("stop", by="user", source="trainer")

    def provoke(self):
        """Run it from preparation to end."""
        case = self.case
        for node, wheels in case.get("wheels", {}).items():
            for wheel in wheels:
                self.lay(node, wheel)
        self.everywhere(
            "prepare", plan=self.text, sha256=hashlib.sha256(self.text.encode()).hexdigest()
        )
        if case.get("own_data"):
            for node in self.nodes:
                copied = "".join(
                    f"mkdir -p $A/own/{t} && cp -rL ~/.trainyard/{t}/. $A/own/{t}/ && chmod -R u+w"
                    f" $A/own/{t}; "
                    for t in self.targets()
                )
                self.act([{"user": node, "do": copied}])
        self.act(case.get("before", []))
        self.everywhere("start")
        self.act(case.get("then", []))
        for node in case.get("ends", [node for node in self.nodes if node not in self.gone]):
            self.tell(node, "wait", seconds=case.get("seconds", 300), timeout=330)

    def undo(self):
        """Leave the nodes as they were, but for the attempt's directory; what cannot be undone is
        said, and the rest is.
        """
        for step in self.case.get("undo", []):
            try:
                self.act([step])
            except (Provoked, subprocess.SubprocessError) as error:
                print(f"not undone: {step}: {error}", flush=True)
        for node in self.nodes:
            self.tell(node, "clean")

    def lay(self, node, wheel):
        """Unpack a wheel on a node, beside its environment."""
        name, version = wheel.split("==")
        pattern = f"{name}-{version}-*cp311*.whl"
        cached = sorted((Path.home() / ".cache/trainyard/wheels").glob("*/" + pattern))
        with tempfile.TemporaryDirectory() as folder:
            if not cached:
                words = [
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    "-q",
                    wheel,
                    "--no-deps",
                    "--only-binary=:all:",
                    "--python-version=3.11",
                ]
                subprocess.run(
                    [*words, "-d", folder], check=True, stdout=subprocess.DEVNULL, timeout=300
                )
                cached = sorted(Path(folder).glob(pattern))
            there = f"{THERE}/wheels/{name}-{version}"
            script = (
                "test -e %s || { mkdir -p %s && cat > /tmp/w.whl && python3 -m zipfile -e"
                " /tmp/w.whl %s && rm /tmp/w.whl; }"
            )
            self.site.ssh(node, script % (there, there, there), cached[0].read_bytes())

    def targets(self):
        return [
            target.split("/own/", 1)[1]
            for target in self.plan["links"].values()
            if "/own/" in target
        ]

    def bring(self, folder):
        """Copy what the nodes keep to folder/<node>/."""
        for node in self.nodes:
            if node not in self.gone:
                (folder / node).mkdir(parents=True)
                packed = self.site.ssh(
                    node,
                    f"cd {self.place} && {{ {KEPT}; }} | tar --null --files-from=- --format=pax -c",
                )
                subprocess.run(["tar", "-C", str(folder / node), "-x"], input=packed, check=True)
                os.chmod(folder / node, 0o755)

    def keep(self, files):
        """Lay a checkpoint of this training on every node, for cases that go on from one. files: a
        pattern of the shell.
        """
        packed = self.site.ssh("node1", f"cd {self.place} && tar -c {files}")
        for node in self.site.nodes:
            self.site.ssh(node, f"mkdir -p {THERE}/kept && tar -C {THERE}/kept -x", packed)


def answer_of(case, work, name):
    """Return the case's answer.yml: what was done, and by whose fault it ended."""
    plan = work.plan
    answer = {
        "case": name,
        "done": " ".join(case["done"].split()),
        "date": datetime.date.today().isoformat(),
    }
    answer["suite"], answer["launcher"] = plan["suite"]["name"], plan["launcher"]["name"]
    answer["nodes_x_devices"] = "%dx%d" % (len(plan["nodes"]), len(plan["nodes"][0]["devices"]))
    answer["versions"] = {
        plan["environment"]["package"]: plan["environment"]["version"],
        "python": "3.11",
    }
    answer["moment"] = case["moment"]
    answer["unreachable"] = work.gone
    answer.update(
        {
            key: case["answer"][key]
            for key in ("outcome", "ranks", "nodes", "causes", "symptoms", "unknown")
            if key in case["answer"]
        }
    )
    if work.gave_up:
        answer["done"] += "; the user gave up after %d s" % work.gave_up
    if any("give_up" in step for step in case.get("then", [])):
        left = "failed" if work.gave_up else "stopped"  # what it cannot have been then
        answer["outcome"] = [outcome for outcome in answer["outcome"] if outcome != left]
    answer.setdefault(
        "nodes", sorted({item["node"] for item in plan["ranks"] if item["rank"] in answer["ranks"]})
    )
    return answer


def pack(folder, place):
    """Write folder's nodes as place/nodes.tar.xz; times stay, names of users do not."""
    place.mkdir(parents=True, exist_ok=True)
    words = [
        "tar",
        "-C",
        str(folder),
        "--format=pax",
        "--pax-option=delete=atime,delete=ctime",
        "--sort=name",
        "--owner=trainer:1000",
    ]
    words += [
        "--group=trainer:1000",
        "-cJf",
        str(place / "nodes.tar.xz"),
        *sorted(path.name for path in folder.iterdir()),
    ]
    subprocess.run(words, check=True, env=dict(os.environ, XZ_OPT="-9e"))


def said(folder, work):
    """Return the product's verdict on what was brought, for whoever watches."""
    sys.path[:0] = [str(PROJECT / "tests" / "unit"), str(PROJECT / "collections")]
    import corpus_support

    found = corpus_support.decide(folder, work.gone)
    return "{} | {}".format(found["cause"], " ".join(found["text"].split())[:200])


def main():
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("-i", "--inventory", default=str(PROJECT / "molecule" / "inventory"))
    asked.add_argument("--only", nargs="*", help="parts of names of cases")
    asked.add_argument(
        "--again", action="store_true", help="provoke cases that the corpus has already, too"
    )
    asked.add_argument(
        "--plans",
        type=Path,
        help="where plans are kept between calls; default: a new temporary directory",
    )
    asked = asked.parse_args()
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # what a case did to the nodes is undone then, too
    os.environ["PATH"] = "{}:{}".format(Path(sys.executable).parent, os.environ["PATH"])
    table, site = yaml.safe_load((HERE / "faults.yml").read_text()), Site(asked.inventory)
    plans = asked.plans or Path(tempfile.mkdtemp(prefix="corpus-"))
    plans.mkdir(parents=True, exist_ok=True)
    site.furnish()
    wanted = {}
    for name, case in table["cases"].items():
        if (not asked.only or any(part in name for part in asked.only)) and (
            asked.again or not (HERE / "cases" / name / "answer.yml").exists()
        ):
            wanted[name] = case
    # All of them before the first fault: some break packages for a while, which the product would
    # fix.
    compiled = {
        name: compile_plan(site, name, table["plans"], plans)
        for name in dict.fromkeys(case["plan"] for case in wanted.values())
    }
    failed = []
    for name, case in wanted.items():
        begun, place = time.monotonic(), HERE / "cases" / name
        try:
            work = Case(site, name, case, compiled[case["plan"]])
            try:
                work.provoke()
                with tempfile.TemporaryDirectory() as folder:
                    work.bring(Path(folder))
                    pack(Path(folder), place)
                    shown = said(Path(folder), work)
                if case.get("keep"):
                    work.keep(case["keep"])
            finally:
                work.undo()
            (place / "answer.yml").write_text(
                "---\n" + yaml.safe_dump(answer_of(case, work, name), sort_keys=False, width=140)
            )
            print("%-30s %4.0f s  %s" % (name, time.monotonic() - begun, shown), flush=True)
        except (Provoked, subprocess.SubprocessError) as error:
            failed.append(name)
            print(
                "%-30s %4.0f s  NOT PROVOKED: %s" % (name, time.monotonic() - begun, error),
                flush=True,
            )
    sys.exit("not provoked: {}".format(", ".join(failed)) if failed else 0)


if __name__ == "__main__":
    main()
