# SPDX-License-Identifier: Apache-2.0
"""The ground that conform's checks stand on: jobs compiled for a document's machines, and a note of
everything that was compared.

Nothing of the product is written again here: site and job are read, chosen for, settled and
compiled by the functions that train.yml uses. Only what node_probe would say is made up, since the
documents' machines are nobody's. Controller only.
"""

from __future__ import annotations

import os
import re
import shlex
from types import SimpleNamespace

import yaml

from ..attempts import attempt_dir
from ..config import job as jobs
from ..config import site as sites
from ..inputs import sources
from ..inputs.describe import settled
from ..mesh import primitives
from ..plan import compiler, scaling
from ..suites import suite_table

CODE, DATA, ENVIRONMENT = "c" * 64, "d" * 64, "e" * 64
RUN = "20260101-000000-conform-0000"
# The machines of the documents have 8 cards; commands are compared on 1, 2 and 4 of them.
CARDS, MANY = 8, 4
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
HERE = "<run>"  # stands for the attempt's directory in what is compared and shown


class Broken(Exception):
    """The product refused what it must take; the message is its own."""


def machines_of(line, count):
    """Return the first machines that a line's document names."""
    return line["document"]["machines"][:count]


def job_of(ground, line, **changes):
    """Return the job that stands for a line's document, changed."""
    return ground.job(line.get("job") or line["document"]["job"], **changes)


def sequence(ground):
    """Return train.yml's plays, those that it imports among them, as what they do (ready, start,
    follow, or nothing of these), and the plays.
    """
    words = (
        ("ready", "ready.yml"),
        ("start", "'tasks_from': 'start'"),
        ("follow", "'tasks_from': 'follow'"),
    )
    kinds, found = [], []

    def read(*parts):
        for play in ground.data(*parts):
            kind = next((kind for kind, word in words if word in str(play)), "")
            path = os.path.normpath(
                os.path.join(*parts[:-1], play.get("ansible.builtin.import_playbook", ""))
            )
            if not kind and os.path.isfile(ground.path(path)):
                read(*path.split(os.sep))
            else:
                kinds.append(kind)
                found.append(play)

    read("playbooks", "train.yml")
    return kinds, found


class Ground:
    """Jobs and plans for one examination."""

    def __init__(self, project, contract, scratch, site=None, run_module=None, run_program=None):
        """project: the product's directory. scratch: a directory for files of the examination.
        site: see conform_site.py, None where not asked.

        run_module, run_program: see conform.examine.
        """
        self.project, self.contract, self.scratch, self.site = project, contract, scratch, site
        self.run_module, self.run_program = run_module, run_program
        self.count, self.kept = 0, {}

    def path(self, *parts):
        """Return a path below the product's directory."""
        return os.path.join(self.project, *parts)

    def text(self, *parts):
        """Return the text of one of the product's files."""
        with open(self.path(*parts), encoding="utf-8") as handle:
            return handle.read()

    def data(self, *parts):
        """Return one of the product's YAML files as data."""
        return self.once(("data", parts), lambda: yaml.load(self.text(*parts), Loader=LOADER))

    def place(self):
        """Return a new directory below scratch."""
        path = self.home()
        os.makedirs(path)
        return path

    def once(self, key, make):
        """Return what make returned for this key; jobs and tables are read once, since reading them
        is most of the time.
        """
        if key not in self.kept:
            self.kept[key] = make()
        return self.kept[key]

    def suite(self, name):
        """Return a suite's table."""
        return self.once(("suite", name), lambda: jobs.load_suite(name))

    def home(self):
        """Return a home directory of its own below scratch; it is made where something is put
        there.
        """
        self.count += 1
        return os.path.join(self.scratch, "%d" % self.count)

    def job(self, name, **changes):
        """Return a shipped job as `-e config=NAME` reads it, from a changed copy of its file where
        there are changes. Raises Broken.
        """
        return self.once(("job", name, repr(changes)), lambda: self.read(name, changes))

    def jobs(self):
        """Return the names of the jobs that ship."""
        return jobs.shipped_jobs(self.path("playbooks", "configs"))

    def read(self, name, changes):
        """Read a job; see job."""
        path, shown_as, problems = jobs.find_job(
            name, self.path("playbooks", "configs"), self.scratch
        )
        self.refuse(problems)
        if changes:
            content = dict(self.data("playbooks", "configs", os.path.basename(path)), **changes)
            path = os.path.join(self.place(), os.path.basename(path))
            with open(path, "w", encoding="utf-8") as handle:
                yaml.safe_dump(content, handle)
        job, problems = jobs.read_job(path, shown_as)
        self.refuse(problems)
        return job

    @staticmethod
    def refuse(problems):
        """Raise Broken where there are problems."""
        if problems:
            raise Broken("; ".join(str(problem) for problem in problems))

    def inventory(self, machines, devices=8, accelerator="gpu", names=None, suite="", **variables):
        """Return (groups, hostvars) of an inventory that lists machines in this order; names: what
        ansible_host says instead of the address.
        """
        hosts = ["node%d" % (index + 1) for index in range(len(machines))]
        package = (
            suite_table.load(suite)["environment"]["packages"][0]
            if suite in suite_table.names()
            else "paddlepaddle"
        )
        source = {
            "code": {"path": "/code"},
            "environment": {"package": package, "version": "2.6.2"},
        }
        common = {
            "trainyard_accelerator": accelerator,
            "trainyard_devices": devices,
            "trainyard_suites": {suite: source},
            "trainyard_site": "documents",
        }
        said = names or machines
        hostvars = {
            host: dict(common, ansible_host=said[index], **variables)
            for index, host in enumerate(hosts)
        }
        return {"all": hosts, "trainers": hosts}, hostvars

    def facts(self, address, number=0, user="trainer", home="/home/trainer"):
        """Return what node_probe says of a ready node with this address; number: its place in the
        list, which its devices' addresses follow.
        """
        own = [{"interface": "lo", "address": "127.0.0.1"}] + [
            {"interface": "eth0", "address": address}
        ] * (address != "127.0.0.1")
        ips = {
            str(card): "192.168.%d.%d" % (100 + card % 4, 101 - card // 4 + 2 * number)
            for card in range(8)
        }
        return {
            "hostname": "h", "home": home, "base": os.path.join(home, ".trainyard"), "user": user, "uid": 1000, "python_version": "3.11",
            "machine": "x86_64", "libc": "2.36", "cores": 64, "route_source": address, "resolves_to": [address], "missing": [],
            "addresses": own, "device_ips": ips, "device_problems": [],
            "units": [], "environments": {ENVIRONMENT: "f"}, "mesh": None, "time": 0.0,
            "trees": {"{}/{}".format(*item): {"ok": True, "present": True, "differences": []} for item in (("code", CODE[:16]), ("data", DATA[:16]))},
        }  # fmt: skip

    def make(
        self,
        job,
        machines,
        devices=8,
        accelerator="gpu",
        names=None,
        extra=None,
        says=None,
        user="trainer",
        home="/home/trainer",
    ):
        """Return everything that train.yml would know of a job on these machines: {job, suite,
        site, nodes, facts, inputs, advice, plan}.

        extra: the command line's variables. says: {config key: value} that the suite's config holds
        besides what the job knows of it. Raises Broken with the product's own words where it
        refuses.
        """
        suite = self.suite(job["suite"])
        listed = self.inventory(machines, devices, accelerator, names, job["suite"])
        site, problems = self.once(("site", repr(listed)), lambda: sites.read_site(*listed))
        self.refuse(problems)
        problems = []
        job = jobs.apply_command_line(job, extra or {}, problems)
        self.refuse(problems)
        nodes, problems = sites.choose(job, site)
        self.refuse(problems)
        cards = {"nodes": len(nodes), "devices": len(nodes[0]["devices"])}
        values = self.config(job, suite, says)
        asked = settled(
            dict(cards, job=job, suite=suite, overrides={}, accelerator=accelerator), values
        )
        self.refuse(asked["problems"])
        advice = scaling.advise(
            job, suite, values, job["overrides"], cards["nodes"], cards["devices"]
        )
        facts = {
            node["name"]: self.facts(machines[index], index, user, home)
            for index, node in enumerate(nodes)
        }
        inputs = {
            "suite": suite,
            "script": sources.find_script(suite, dict.fromkeys(suite["scripts"]), "the code tree"),
            "code": {"digest": CODE, "commit": None, "dirty": False},
            "data": {"data": DATA},
            "weights": {},
            "environment": {
                "package": suite["environment"]["packages"][0],
                "version": "2.6.2",
                "digest": ENVIRONMENT,
            },
            "config": dict(
                suite_table.settings(suite, asked["effective"], asked["arguments"]),
                files=[job["config"]],
            ),
            "overrides": asked["overrides"],
            "arguments": asked["arguments"],
            "advice": asked["advice"],
        }
        try:
            made = compiler.compile_plan(job, site, nodes, facts, inputs)
        except compiler.PlanError as error:
            raise Broken(str(error)) from error
        return SimpleNamespace(
            job=job,
            suite=suite,
            site=site,
            nodes=nodes,
            facts=facts,
            inputs=inputs,
            advice=advice,
            plan=made,
        )

    def config(self, job, suite, says=None):
        """Return the config as far as the job knows it: the values that its `upstream` carries."""
        upstream, keys = job.get("upstream") or {}, dict(suite["config_keys"])
        keys["learning_rate"] = ((job.get("document") or {}).get("learning_rate") or {}).get(
            "key"
        ) or keys.get("learning_rate")
        known = {
            "batch": "per_card_batch",
            "learning_rate": "learning_rate",
            "epochs": "epochs",
            "iterations": "iterations",
        }
        values = {
            keys[name]: upstream[mine]
            for name, mine in known.items()
            if mine in upstream and keys.get(name)
        }
        return suite_table.overridden({}, dict(values, **(says or {})))

    def attempt(self, made, node=0):
        """Return the directory of an attempt that the product prepared for a node of a plan, its
        home lying in scratch.
        """
        base = made.plan["nodes"][node]["base"]
        code = os.path.join(base, "code", CODE[:16], os.path.dirname(made.inputs["script"]))
        os.makedirs(code, exist_ok=True)
        text = compiler.canonical(made.plan).decode("ascii")
        self.count += 1
        place = attempt_dir.attempt_dir(base, RUN, self.count)
        attempt_dir.prepare(
            place,
            text,
            compiler.sha256(made.plan),
            made.plan["nodes"][node]["name"],
            RUN,
            self.count,
            {},
        )
        return place

    def commands(self, line, found, job, documents, **options):
        """Compare a job's command on 1, 2, 4 machines with the document's, word for word, on every
        node that runs it.
        """
        said = []
        for count, text in documents.items():
            made = self.make(
                job, machines_of(line, count), home=self.home(), says=line.get("says"), **options
            )
            for index, node in enumerate(made.plan["nodes"]):
                if index and not (made.plan["launcher"]["kind"] == "each"):
                    continue
                what = "%d x %d" % (count, made.plan["ports"]["count"]) + (
                    ", {}".format(node["name"]) if "{node_rank}" in text else ""
                )
                expected = [
                    line.get("renamed", {}).get(word, word)
                    for word in shlex.split(text.replace("{node_rank}", str(index)))
                ]
                expected = self.held(
                    expected + self.appended(line, made.suite),
                    lambda path: os.path.join(HERE, os.path.normpath(path)),
                )
                whole = node.get("argv") or made.plan["argv"]
                whole = self.held(
                    whole,
                    lambda path, made=made, index=index: written_to(
                        self.attempt(made, index), path
                    ),
                )
                got = without(whole, line.get("added", {}))
                if found.words(what, expected, got, whole) and not index:
                    said.append(
                        "%d words (%d x %d)" % (len(got), count, made.plan["ports"]["count"])
                    )
        found.say("word for word: %s", ", ".join(said))

    @staticmethod
    def appended(line, suite):
        """Return the words of ours that a line has after the document's; {data} stands for where
        the suite's configs find the site's data.
        """
        data = ["{}={}".format(*item) for item in suite["data"]["overrides"].items()]
        return [
            part
            for word in line.get("appended", [])
            for part in (data if word == "{data}" else [word])
        ]

    def held(self, words, place):
        """Return a command line with every path that is written put through place (contract.md,
        head).
        """
        result, options = [], self.contract["written"]
        for index, word in enumerate(words):
            name, equals, value = word.partition("=")
            if equals and name in options:
                word = f"{name}={place(value)}"
            elif index and words[index - 1] in options:
                word = place(word)
            result.append(word)
        return result


def written_to(attempt, path):
    """Return where a command's path ends up that is relative to the attempt's working directory:
    <run>/... , or the real path outside.
    """
    real, root = os.path.realpath(os.path.join(attempt, "work", path)), os.path.realpath(attempt)
    inside = real.startswith(root + "/") and not real.startswith(os.path.join(root, "work") + "/")
    return os.path.join(HERE, os.path.relpath(real, root)) if inside else real


def without(words, options):
    """Return a command line without some options and their values; options: {option: number of
    values}.
    """
    result, skip = [], 0
    for word in words:
        if skip:
            skip -= 1
        elif word in options:
            skip = options[word]
        else:
            result.append(word)
    return result


def only_added(short, long, what):
    """Return a text where the longer command is not the shorter one plus exactly one word that
    begins with `what`, else ''.
    """
    more = [word for word in long if word.startswith(what)]
    if len(more) != 1:
        return "%d words begin with %s" % (len(more), what)
    rest = [word for word in long if word not in more]
    return "" if rest == short else "without {} it is: {}".format(more[0], " ".join(rest))


def has_address(text):
    """Whether a text holds an IPv4 address."""
    return re.search(r"\b\d{1,3}(\.\d{1,3}){3}\b", text) is not None


def proven_mesh(groups, hostvars):
    """Return what node_probe says of a mesh that is proven for these nodes."""
    rows = [(name, hostvars[name]["ansible_host"], 22, None) for name in groups["trainers"]]
    return {
        "present": True,
        "proven": 1.0,
        "valid_until": 10.0**10,
        "nodes": groups["trainers"],
        "digest": "m",
        "inventory": primitives.inventory_digest(rows),
    }
