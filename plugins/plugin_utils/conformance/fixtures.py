# SPDX-License-Identifier: Apache-2.0
"""Fixtures of conform's checks: jobs compiled for documented machines.

It also notes everything that was compared. Nothing of the product is written again here: site and
job are read, chosen, settled and compiled by the functions that train.yml uses. Only the answers of
node_info are made up, since the documented machines do not exist.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import attempt_dir
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler, scaling
from ansible_collections.trainyard.cluster.plugins.module_utils.plan.plan_types import Plan
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table

from ..config import config_types
from ..config import job as jobs
from ..config import site as sites
from ..inputs import sources
from ..inputs.describe import settle_options
from ..suites import suite_file
from .findings_check import Findings
from .site_checks import Site

CODE, DATA, ENVIRONMENT = "c" * 64, "d" * 64, "e" * 64
RUN = "20260101-000000-conform-0000"
# The documented machines have 8 cards; commands are compared on 1, 2 and 4 of them.
CARDS, MANY = 8, 4
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
HERE = "<run>"  # stands for the attempt's directory in what is compared and shown


T = TypeVar("T")
# Parsed YAML and JSON: a line of contract.yml, the whole file, a job, a suite's table.
Line = dict[str, Any]
Contract = dict[str, Any]
Job = dict[str, Any]
Suite = dict[str, Any]
# Groups and variables of an inventory, by name.
Groups = dict[str, list[str]]
Hostvars = dict[str, dict[str, Any]]
# Runs a module on the controller: (name, arguments) -> answer.
RunModule = Callable[[str, dict[str, Any]], dict[str, Any]]


class Broken(Exception):
    """The product refused what it must take, with its own message."""


@dataclass(frozen=True)
class CompiledJob:
    """Everything that train.yml would know of a job on some machines."""

    job: Job
    suite: Suite
    site: config_types.Site
    nodes: list[config_types.Node]
    facts: dict[str, dict[str, Any]]
    inputs: dict[str, Any]
    advice: dict[str, Any]
    plan: Plan


def machines_of(line: Line, count: int) -> list[str]:
    """Return the first machines that a line's document names."""
    machines: list[str] = line["document"]["machines"]
    return machines[:count]


def job_of(fixtures: Fixtures, line: Line, **changes: Any) -> Job:
    """Return the job that stands for a line's document, changed."""
    return fixtures.job(line.get("job") or line["document"]["job"], **changes)


def roles_of(plays: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the roles that plays include as a whole, in their order."""
    included = [
        task.get("ansible.builtin.include_role") or {}
        for play in plays
        for task in play.get("tasks", ())
    ]
    return [role["name"] for role in included if role and "tasks_from" not in role]


def sequence(fixtures: Fixtures) -> tuple[list[str], list[dict[str, Any]]]:
    """Return (kinds, plays) of train.yml, with the plays that it imports.

    kinds: what each play does (ready, start, follow, or '').
    """
    words = (
        ("ready", "make_ready.yml"),
        ("start", "'tasks_from': 'start'"),
        ("follow", "'tasks_from': 'follow'"),
    )
    kinds: list[str] = []
    plays: list[dict[str, Any]] = []

    def read(*parts: str) -> None:
        for play in fixtures.data(*parts):
            kind = next((kind for kind, word in words if word in str(play)), "")
            path = os.path.normpath(
                os.path.join(*parts[:-1], play.get("ansible.builtin.import_playbook", ""))
            )
            if not kind and os.path.isfile(fixtures.path(path)):
                read(*path.split(os.sep))
            else:
                kinds.append(kind)
                plays.append(play)

    read("playbooks", "train.yml")
    return kinds, plays


class Fixtures:
    """Jobs, plans and files of the product for the checks."""

    def __init__(
        self,
        project: str,
        contract: Contract,
        scratch: str,
        site: Site | None = None,
        run_module: RunModule | None = None,
    ) -> None:
        """Keep the product's directory and a directory for files of the checks.

        site: None where the site's nodes are left out. run_module: see runner.examine.
        """
        self.project, self.contract, self.scratch, self.site = project, contract, scratch, site
        self.run_module = run_module
        self.count = 0
        self.kept: dict[Hashable, Any] = {}

    def path(self, *parts: str) -> str:
        """Return a path below the product's directory."""
        return os.path.join(self.project, *parts)

    def text(self, *parts: str) -> str:
        """Return the text of one of the product's files."""
        with open(self.path(*parts), encoding="utf-8") as handle:
            return handle.read()

    def data(self, *parts: str) -> Any:
        """Return one of the product's YAML files as data."""
        return self.once(("data", parts), lambda: yaml.load(self.text(*parts), Loader=LOADER))

    def place(self) -> str:
        """Return a new directory below scratch."""
        path = self.home()
        os.makedirs(path)
        return path

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what make returned for this key.

        Jobs and tables are read once, since reading them is most of the time.
        """
        if key not in self.kept:
            self.kept[key] = make()
        value: T = self.kept[key]
        return value

    def suite(self, name: str) -> Suite:
        """Return a suite's table."""
        suite: Suite = self.once(("suite", name), lambda: jobs.load_suite(name))
        return suite

    def home(self) -> str:
        """Return a home directory of its own below scratch.

        It is made when something is written into it.
        """
        self.count += 1
        return os.path.join(self.scratch, f"{self.count}")

    def job(self, name: str, **changes: Any) -> Job:
        """Return a shipped job as `-e config=NAME` reads it.

        Raises Broken. With changes it is read from a changed copy of its file.
        """
        return self.once(("job", name, repr(changes)), lambda: self.read(name, changes))

    def jobs(self) -> list[str]:
        """Return the names of the jobs that ship."""
        return jobs.shipped_jobs(self.path("playbooks", "configs"))

    def read(self, name: str, changes: Any) -> Job:
        """Read a job.

        See job.
        """
        path, shown_as, problems = jobs.find_job(
            name, self.path("playbooks", "configs"), self.scratch
        )
        self.refuse(problems)
        assert path is not None and shown_as is not None
        if changes:
            content = dict(self.data("playbooks", "configs", os.path.basename(path)), **changes)
            path = os.path.join(self.place(), os.path.basename(path))
            with open(path, "w", encoding="utf-8") as handle:
                yaml.safe_dump(content, handle)
        job, problems = jobs.read_job(path, shown_as)
        self.refuse(problems)
        assert job is not None
        return job

    @staticmethod
    def refuse(problems: Sequence[object]) -> None:
        """Raise Broken where there are problems."""
        if problems:
            raise Broken("; ".join(str(problem) for problem in problems))

    def inventory(
        self,
        machines: Sequence[str],
        devices: int = 8,
        accelerator: str = "gpu",
        names: Sequence[str] | None = None,
        suite: str = "",
        **variables: Any,
    ) -> tuple[Groups, Hostvars]:
        """Return (groups, hostvars) of an inventory with machines in this order.

        names: the values of ansible_host instead of the addresses.
        """
        hosts = [f"node{index + 1}" for index in range(len(machines))]
        package = "paddlepaddle"
        if suite in suite_file.names():
            package = suite_file.load(suite)["environment"]["packages"][0]
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
        host_names = names or machines
        hostvars = {
            host: dict(common, ansible_host=host_names[index], **variables)
            for index, host in enumerate(hosts)
        }
        return {"all": hosts, "trainers": hosts}, hostvars

    def facts(
        self, address: str, number: int = 0, user: str = "trainer", home: str = "/home/trainer"
    ) -> dict[str, Any]:
        """Return node_info's answer of a ready node with this address.

        number: its index in the list, which its devices' addresses follow.
        """
        addresses = [{"interface": "lo", "address": "127.0.0.1"}]
        if address != "127.0.0.1":
            addresses.append({"interface": "eth0", "address": address})
        device_ips = {
            str(card): f"192.168.{100 + card % 4}.{101 - card // 4 + 2 * number}"
            for card in range(8)
        }
        trees = {
            f"{kind}/{digest[:16]}": {"ok": True, "present": True, "differences": []}
            for kind, digest in (("code", CODE), ("data", DATA))
        }
        return {
            "hostname": "h",
            "home": home,
            "base": os.path.join(home, ".trainyard"),
            "user": user,
            "uid": 1000,
            "python_version": "3.11",
            "machine": "x86_64",
            "libc": "2.36",
            "cores": 64,
            "route_source": address,
            "resolves_to": [address],
            "missing": [],
            "addresses": addresses,
            "device_ips": device_ips,
            "device_problems": [],
            "units": [],
            "environments": {ENVIRONMENT: "f"},
            "mesh": None,
            "time": 0.0,
            "trees": trees,
        }

    def make(
        self,
        job: Job,
        machines: Sequence[str],
        devices: int = 8,
        accelerator: str = "gpu",
        names: Sequence[str] | None = None,
        extra: Mapping[str, str] | None = None,
        says: Mapping[str, Any] | None = None,
        user: str = "trainer",
        home: str = "/home/trainer",
    ) -> CompiledJob:
        """Return everything that train.yml would know of a job on these machines.

        It has job, suite, site, nodes, facts, inputs, advice and plan. extra: the command line's
        variables. says: {config key: value} of the suite's config besides what the job knows of it.
        Raises Broken with the product's own words where it refuses.
        """
        suite = self.suite(job["suite"])
        listed = self.inventory(machines, devices, accelerator, names, job["suite"])
        site, problems = self.once(("site", repr(listed)), lambda: sites.read_site(*listed))
        self.refuse(problems)
        problems = []
        job = jobs.apply_command_line(job, extra or {}, problems)
        self.refuse(problems)
        assert site is not None
        nodes, problems = sites.select_nodes(job, site)
        self.refuse(problems)
        cards = {"nodes": len(nodes), "devices": len(nodes[0]["devices"])}
        values = self.config(job, suite, says)
        choices = settle_options(
            dict(cards, job=job, suite=suite, overrides={}, accelerator=accelerator), values
        )
        self.refuse(choices["problems"])
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
                suite_table.settings(suite, choices["effective"], choices["arguments"]),
                files=[job["config"]],
            ),
            "overrides": choices["overrides"],
            "arguments": choices["arguments"],
            "advice": choices["advice"],
        }
        try:
            compiled = compiler.compile_plan(job, site, nodes, facts, inputs)
        except compiler.PlanError as error:
            raise Broken(str(error)) from error
        return CompiledJob(
            job=job,
            suite=suite,
            site=site,
            nodes=nodes,
            facts=facts,
            inputs=inputs,
            advice=advice,
            plan=compiled,
        )

    def config(
        self, job: Job, suite: Suite, says: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the config as far as the job knows it.

        That is the values that its `upstream` has.
        """
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
        return suite_table.apply_overrides({}, dict(values, **(says or {})))

    def attempt(self, compiled_job: CompiledJob, node: int = 0) -> str:
        """Return the directory of an attempt that the product prepared for a node.

        The node is one of a plan, and its home lies in scratch.
        """
        base = compiled_job.plan["nodes"][node]["base"]
        code = os.path.join(base, "code", CODE[:16], os.path.dirname(compiled_job.inputs["script"]))
        os.makedirs(code, exist_ok=True)
        text = compiler.canonical_bytes(compiled_job.plan).decode("ascii")
        self.count += 1
        place = attempt_dir.attempt_dir(base, RUN, self.count)
        attempt_dir.prepare(
            place,
            text,
            compiler.sha256(compiled_job.plan),
            compiled_job.plan["nodes"][node]["name"],
            RUN,
            self.count,
            {},
        )
        return place

    def commands(
        self, line: Line, findings: Findings, job: Job, documents: Mapping[int, str], **options: Any
    ) -> None:
        """Compare a job's command on 1, 2, 4 machines with the upstream one.

        They are compared word for word, on every node that runs the command.
        """
        evidence = []
        for count, text in documents.items():
            compiled = self.make(
                job, machines_of(line, count), home=self.home(), says=line.get("says"), **options
            )
            nodes = compiled.plan["nodes"]
            if compiled.plan["launcher"]["kind"] != "each":
                nodes = nodes[:1]
            size = f"{count} x {compiled.plan['ports']['count']}"
            for index, node in enumerate(nodes):
                label = size
                if "{node_rank}" in text:
                    label += f", {node['name']}"
                command = self.attempt_command(compiled, index)
                got = without(command, line.get("added", {}))
                expected = self.document_command(line, text, index, compiled.suite)
                if findings.words(label, expected, got, command) and not index:
                    evidence.append(f"{len(got)} words ({size})")
        findings.say(f"word for word: {', '.join(evidence)}")

    def document_command(self, line: Line, text: str, index: int, suite: Suite) -> list[str]:
        """Return the upstream command for a node, with our words after it.

        index: the node's index.
        """
        renamed = line.get("renamed", {})
        words = shlex.split(text.replace("{node_rank}", str(index)))
        return self.held(
            [renamed.get(word, word) for word in words] + self.appended(line, suite),
            lambda path: os.path.join(HERE, os.path.normpath(path)),
        )

    def attempt_command(self, compiled: CompiledJob, index: int) -> list[str]:
        """Return the command of a node in a plan, with its paths as an attempt has them."""
        command = compiled.plan["nodes"][index].get("argv") or compiled.plan["argv"]
        return self.held(command, lambda path: written_to(self.attempt(compiled, index), path))

    @staticmethod
    def appended(line: Line, suite: Suite) -> list[str]:
        """Return our words of a line after the upstream ones.

        {data} stands for the paths where the suite's configs find the site's data.
        """
        words = []
        for word in line.get("appended", []):
            if word == "{data}":
                words += [f"{key}={value}" for key, value in suite["data"]["overrides"].items()]
            else:
                words.append(word)
        return words

    def held(self, words: Sequence[str], place: Callable[[str], str]) -> list[str]:
        """Return a command line with every written path put through place.

        The options with such a path are in the head of contract.md.
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


def written_to(attempt: str, path: str) -> str:
    """Return the place of a command's relative path.

    The path is relative to the attempt's working directory. The place is <run>/... , or the real
    path outside.
    """
    real, root = os.path.realpath(os.path.join(attempt, "work", path)), os.path.realpath(attempt)
    inside = real.startswith(root + "/") and not real.startswith(os.path.join(root, "work") + "/")
    if inside:
        return os.path.join(HERE, os.path.relpath(real, root))
    return real


def without(words: Sequence[str], options: Mapping[str, int]) -> list[str]:
    """Return a command line without some options and their values.

    options: {option: number of values}.
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


def only_added(short: Sequence[str], long: Sequence[str], prefix: str) -> str:
    """Return how the longer command is not the shorter one plus one word, or ''.

    The word begins with `what`.
    """
    more = [word for word in long if word.startswith(prefix)]
    if len(more) != 1:
        return f"{len(more)} words begin with {prefix}"
    rest = [word for word in long if word not in more]
    if rest == short:
        return ""
    return f"without {more[0]} it is: {' '.join(rest)}"


def replaced(words: Sequence[str], old: str, new: str) -> list[str]:
    """Return a command line with one word in the place of another."""
    result = []
    for word in words:
        if word == old:
            word = new
        result.append(word)
    return result


def has_address(text: str) -> bool:
    """Return whether a text has an IPv4 address."""
    return re.search(r"\b\d{1,3}(\.\d{1,3}){3}\b", text) is not None


def proven_mesh(
    groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return node_info's answer about a mesh that is proven for these nodes."""
    rows = [(name, hostvars[name]["ansible_host"], 22, None) for name in groups["trainers"]]
    return {
        "present": True,
        "proven": 1.0,
        "valid_until": 10.0**10,
        "nodes": groups["trainers"],
        "digest": "m",
        "inventory": primitives.inventory_digest(rows),
    }
