# SPDX-License-Identifier: GPL-3.0-or-later
"""Read job, site and command line on the controller; see library/read_job.py for the documentation."""

from __future__ import annotations

import glob
import os
import re
import secrets
import time

from ansible import constants as C
from ansible import context
from ansible._internal._datatag._tags import Origin
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.splitter import parse_kv
from ansible.parsing.vault import EncryptedString
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import connection_loader
from ansible.utils.vars import load_extra_vars
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts.attempt_dir import RUN_ID
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.untag import plain
from ansible_collections.trainyard.cluster.plugins.module_utils.base.yaml_source import (
    Problem,
    near,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.config import (
    duplicate_hosts,
    extra_vars,
    role_vars,
    spares,
    ssh_policy,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.config import job as jobs
from ansible_collections.trainyard.cluster.plugins.module_utils.config import site as sites
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import (
    controller_programs,
    ports,
    software,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table
from ansible_collections.trainyard.cluster.plugins.module_utils.suites.launchers import LAUNCHERS

# What read_job itself looks at besides `config`, for every verb that reads a job.
COMMON = ("config",)
# So many problems are shown; the rest is counted.
MOST = 100

# playbook_dir is another one in an imported playbook.
_PROJECT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))


class ActionModule(ActionBase):
    """Everything is read and judged in the controller's process; no connection is opened."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp=None, task_vars=None):
        super().run(tmp, task_vars)
        arguments = plain(self._task.args)
        project = _PROJECT
        resumed = arguments.get("resumed") or {}
        left = set(arguments.get("ignored") or [])
        extra = {
            name: value
            for name, value in plain(load_extra_vars(self._loader)).items()
            if name not in left
        }
        reads_job = "config" in arguments or bool(resumed)
        allowed = set(COMMON if "config" in arguments else ()) | set(arguments.get("extra") or [])
        roles = role_variables(project, self._loader)
        problems = jobs.command_line(extra, allowed, roles) + extra_vars.values(
            extra, allowed, roles
        )
        problems += (
            extra_vars.contradictions(extra, self._verb(), self._task.check_mode)
            + self._given_twice()
        )
        hosts = _Hosts(task_vars["hostvars"], extra)
        self._administrator = bool(arguments.get("administrator"))
        site, found = self._site(
            task_vars, hosts, extra, asks=self._asks_nodes(arguments, extra, allowed)
        )
        found += self._roles(hosts, site, extra, roles, project)
        if not reads_job:
            problems += self._names(extra, allowed, site)
            self._refuse(problems + found + hosts.problems, site)
            warned = [printable(str(said)) for said in controller_programs.warnings(self._verb())]
            return {"changed": False, "project": project, "warnings": warned}
        job, said = self._job(arguments, resumed, project)
        problems, nodes, forwarded = problems + said + found, [], []
        if site and not resumed:  # a run that was started under such names goes on
            problems += self._located(sites.confusable(site), task_vars, site, extra)
        if job:
            job = jobs.apply_command_line(job, extra, problems)
        if job and site:
            # a run that goes on has its nodes, however many trainers there are now; who takes part
            # is chosen later
            held = [
                node["name"]
                for node in site["nodes"] + site["spares"]
                if node["name"] in (resumed.get("nodes") or ())
            ]
            nodes, said = sites.choose(job, site, arguments.get("members") or held or None)
            # who took part in the first attempt, in rank order, whoever takes part in a later one
            # (replacing.py)
            job.setdefault("places", resumed.get("places") or [node["name"] for node in nodes])
            problems += self._located(said, task_vars, site, extra) + self._limit(nodes)
            ways = {node["name"]: hosts.way(node["name"]) for node in nodes}
            problems += ssh_policy.here_problems(ways, context.CLIARGS.get("connection"))
            forwarded = ssh_policy.forwarding(ways, settings())
        self._refuse(problems + hosts.problems, site)
        # a job file of the user's own may have any name; a run's is part of paths and of the unit's
        # name
        name = re.sub(r"[^A-Za-z0-9_.]", "_", job["name"])[:64]
        run_id = "{}-{}-{}".format(
            time.strftime("%Y%m%d-%H%M%S", time.gmtime()),
            name,
            secrets.token_hex(2),
        )
        return {
            "changed": False,
            # the environment may hold secrets, and -v would show them
            "_ansible_verbose_override": True,
            "job": job,
            "site": site,
            "nodes": nodes,
            "suite": jobs.load_suite(job["suite"]),
            "source": sites.on_controller(site["suites"][job["suite"]], project),
            "programs": LAUNCHERS[job["launcher"]].get("programs", {}),
            "ports": ports.wanted(job, site, nodes),
            "hidden": suite_table.hidden(
                jobs.load_suite(job["suite"]), site["suites"][job["suite"]].get("data") or {}
            ),
            "environments": software.possible_digests(
                site["suites"][job["suite"]]["environment"], project
            ),
            "run": resumed.get("run") or run_id,
            "number": resumed.get("number") or 1,
            # two commands that go on with one run must not take each other's checks of the network
            # for their own
            "token": secrets.token_hex(6),
            "project": project,
            "warnings": [
                printable(str(said))
                for said in [
                    *jobs.port_warnings(job, site),
                    *spares.notes(site["nodes"], site["spares"]),
                    *forwarded,
                    *controller_programs.warnings(self._verb()),
                ]
            ],
        }

    @staticmethod
    def _job(arguments, resumed, project):
        """Return (job, problems): of a run's record, or of the file that the command line names."""
        if resumed:
            return jobs.recorded(resumed["job"], "runs/{}/job.json".format(resumed["run"]))
        path, shown, said = jobs.find_job(
            arguments.get("config"), os.path.join(project, "playbooks", "configs"), os.getcwd()
        )
        return jobs.examine(path, shown) if path else (None, said)

    def _site(self, task_vars, hosts, extra, asks):
        """Return (site, problems): the nodes, and how they are logged in to; asks: whether a node
        will be asked anything.
        """
        site, problems = sites.read_site(plain(task_vars["groups"]), hosts)
        problems = self._located(problems, task_vars, site, extra)
        problems += duplicate_hosts.twice(list(context.CLIARGS.get("inventory") or ()))
        if site:
            ways = {
                node["name"]: hosts.way(node["name"]) for node in site["nodes"] + site["spares"]
            }
            kept = list(settings())
            if not asks:  # nothing is done as another user all the same
                ways = {
                    name: {key: entry for key, entry in way.items() if key == ssh_policy.BECOME}
                    for name, way in ways.items()
                }
                kept = [entry for entry in kept if entry[1] == "become"]
            if not self._administrator:
                ways = {
                    name: {key: entry for key, entry in way.items() if key != ssh_policy.ADMIN_KEY}
                    for name, way in ways.items()
                }
            problems += ssh_policy.problems(ways, kept)
            problems += hosts.accounts(ways) if self._administrator else []
        return site, problems

    @staticmethod
    def _asks_nodes(arguments, extra, allowed):
        """Return whether the verb will ask a node anything, so that the logins matter."""
        asked_for = "site" not in allowed or extra_vars.switch(extra.get("site", True)) is not False
        return asked_for and arguments.get("logins") is not False

    @staticmethod
    def _roles(hosts, site, extra, roles, project):
        """Hold the roles' variables, as the nodes and the controller have them, against the roles'
        argument specs.
        """
        names = [node["name"] for node in site["nodes"] + site["spares"]] if site else []
        folders = sorted(os.listdir(os.path.join(project, "roles")))
        found = [
            problem
            for name in names + ["localhost"]
            for problem in hosts.roles(name, roles, folders, project)
        ]
        # The controller judges; what only nodes have would be passed over without a word.
        judged = [
            name
            for name in roles
            if name.startswith("preflight_") and name != "preflight_home" and name not in extra
        ]
        return found + [problem for name in names for problem in hosts.unheard(name, judged)]

    @staticmethod
    def _located(problems, task_vars, site, extra=()):
        """Give the problems of the inventory the file and the line that they come from, where
        Ansible knows it.
        """
        for problem in problems:
            if problem.file.startswith("inventory") and problem.key.partition(".")[0] in extra:
                problem.file, problem.line = "command line", None
            elif problem.file.startswith("inventory") and site:
                host = problem.file.partition(", host ")[2]
                origin = origin_of(
                    raw_of(task_vars["hostvars"], host or site["nodes"][0]["name"]), problem.key
                )
                if origin:
                    problem.text = f"host {host}: {problem.text}" if host else problem.text
                    problem.file, problem.line = origin
        return problems

    @staticmethod
    def _names(extra, allowed, site):
        """Hold the names of a run and of a suite against what there can be."""
        problems = []
        if "run" in allowed and "run" in extra and not RUN_ID.match(str(extra["run"])):
            text = (
                "{!r} is no run id; it looks like 20261120-103501-ppyoloe-1f2e, and"
                " playbooks/status.yml shows it".format(extra["run"])
            )
            problems.append(Problem("command line", None, "run", text, code="cli.bad_run"))
        if (
            "suite" in allowed
            and "suite" in extra
            and site
            and extra["suite"] not in site["suites"]
        ):
            known = sorted(site["suites"])
            text = "{!r} does not stand in trainyard_suites; allowed: {}{}".format(
                extra["suite"],
                ", ".join(known),
                near(extra["suite"], known),
            )
            problems.append(Problem("command line", None, "suite", text, code="site.unknown_suite"))
        return problems

    @staticmethod
    def _verb():
        """Return the playbook's name without its ending: what the user asked for."""
        return os.path.splitext(
            os.path.basename((list(context.CLIARGS.get("args") or ()) or [""])[0])
        )[0]

    @staticmethod
    def _given_twice():
        """Say which names have two values; Ansible takes the last one without a word."""
        seen, problems = {}, []
        for words in context.CLIARGS.get("extra_vars") or ():
            pairs = parse_kv(words) if words[:1] not in ("@", "[", "{") else {}
            for name, value in pairs.items():
                if seen.setdefault(name, value) != value:
                    problems.append(
                        Problem(
                            "command line",
                            None,
                            name,
                            f"is given twice: {str(seen[name])!r} and {str(value)!r}",
                            code="cli.contradiction",
                        )
                    )
        return problems

    @staticmethod
    def _refuse(problems, site):
        for problem in problems:
            if site and problem.key.rpartition(".")[2] in site["secret_env"]:
                problem.text = re.sub(r"\bgot .*", "got ********", problem.text, flags=re.DOTALL)
        if problems:
            code_of_line = {}
            for problem in problems:
                code_of_line.setdefault("  " + printable(str(problem)), problem.code)
            lines = list(code_of_line)
            more = ["  and %d more" % (len(lines) - MOST)] * (len(lines) > MOST)
            head = "%d problem%s, nothing was touched:" % (
                len(lines),
                "s" if len(lines) > 1 else "",
            )
            raise AnsibleActionFail(
                "\n".join([head] + lines[:MOST] + more),
                result={"codes": list(code_of_line.values())[:MOST]},
            )

    def _limit(self, nodes):
        """A gang runs whole or not at all: --limit must not cut a node off."""
        subset = context.CLIARGS.get("subset")
        if not subset:
            return []
        inventory = InventoryManager(
            loader=self._loader, sources=list(context.CLIARGS["inventory"])
        )
        inventory.subset(subset)
        kept = {host.name for host in inventory.get_hosts("all")}
        lost = [node["name"] for node in nodes if node["name"] not in kept]
        if not lost:
            return []
        text = (
            "cuts %s off the %d nodes of this job; take --limit away, or ask for fewer nodes with"
            " -e nodes=N"
            % (
                ", ".join(lost),
                len(nodes),
            )
        )
        return [Problem("command line", None, "--limit", text, code="cli.limit_cuts_job")]


def role_variables(project, loader):
    """Return {name: spec} of all public role variables, from the roles' argument specs; they may be
    given with -e, too.
    """
    found = {}
    for path in glob.glob(os.path.join(project, "roles", "*", "meta", "argument_specs.yml")):
        for entry in plain(loader.load_from_file(path)["argument_specs"]).values():
            found.update(entry.get("options") or {})
    return found


def settings():
    """Return [(where, name, value)]: what Ansible's configuration, environment and command line say
    of every login.
    """
    connection_loader.get("ssh", class_only=True)  # makes its settings known
    found = []
    for name in (
        "host_key_checking",
        "ssh_args",
        "ssh_common_args",
        "ssh_extra_args",
        "private_key_file",
    ):
        value, origin = C.config.get_config_value_and_origin(
            name, plugin_type="connection", plugin_name="ssh"
        )
        found.append(
            ("command line" if str(origin).startswith("cli:") else str(origin), name, plain(value))
        )
    value, origin = C.config.get_config_value_and_origin("DEFAULT_BECOME")
    given = context.CLIARGS.get("become")
    return found + [
        ("command line", "become", True) if given else (str(origin), "become", plain(value))
    ]


def raw_of(hostvars, name):
    """Return a host's variables as they were written, before any templating."""
    return hostvars.raw_get(name) if hasattr(hostvars, "raw_get") else hostvars[name]


def origin_of(variables, key):
    """Return (file, line) of the innermost part of a dotted key that Ansible knows the origin of,
    or None.
    """
    origin, value = None, variables
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            break
        own = next(
            (name for name in value if name == part), part
        )  # a switch and an empty value carry no origin, their name does
        value = value[part]
        origin = Origin.get_tag(value) or Origin.get_tag(own) or origin
    if origin and origin.path:
        return os.path.relpath(origin.path), origin.line_num or None
    return ("command line", None) if origin and "-e" in (origin.description or "") else None


def written(value, name, project):
    """Whether a value was written by the site's people; what our own roles set or register lies
    among a host's variables, too.
    """
    origin = Origin.get_tag(value) or Origin.get_tag(name)
    return bool(
        origin
        and (origin.path or origin.description)
        and not str(origin.path).startswith(os.path.join(project, "roles") + os.sep)
    )


def plain_text(value):
    """Return what stands there, to be compared; nothing is templated and nothing decrypted."""
    return str(plain(value))


def hidden(value):
    """Whether a value came out of a vault: by itself, or with its whole file."""
    if isinstance(value, EncryptedString):
        return True
    origin = Origin.get_tag(value)
    if not origin or not origin.path:
        return False
    with open(origin.path, "rb") as handle:
        return handle.read(14) == b"$ANSIBLE_VAULT"


class _Hosts:
    """hostvars as plain data, one host at a time, so that a site of hundreds is not templated more
    than once.
    """

    def __init__(self, hostvars, extra=()):
        self._hostvars, self._extra, self.problems, self._known = hostvars, extra, [], {}

    def _of(self, name):
        """Return a host's variables as they were written, and templated as they are looked at;
        empty for one that there is not.
        """
        if name not in self._known:
            try:
                self._known[name] = raw_of(self._hostvars, name), self._hostvars[name]
            except KeyError:
                self._known[name] = {}, {}
        return self._known[name]

    def __getitem__(self, name):
        names = [
            key
            for key in self._of(name)[0]
            if key.startswith("trainyard_") or key in ("ansible_host", "ansible_port")
        ]
        # a misspelt name of the command line is said once, not once a host
        return self._values(
            name,
            [
                key
                for key in names
                if key not in self._extra
                or key in sites.SITE_VARIABLES
                or key.startswith("ansible_")
            ],
        )

    def _values(self, name, keys):
        (raw, found), result = self._of(name), {}
        for key in keys:
            try:
                result[str(key)] = plain(found[key])
            except AnsibleError as error:
                self.problems.append(
                    Problem(
                        *self._place(raw, name, key),
                        str(key),
                        f"cannot be templated: {str(error).splitlines()[0]}",
                        code="site.bad_template",
                    )
                )
        return result

    def _place(self, raw, name, key):
        """Return (file, line) of where a host's variable was set."""
        return (
            ("command line", None)
            if key in self._extra
            else origin_of(raw, key) or (f"inventory, host {name}", None)
        )

    def roles(self, name, specs, folders, project):
        """Yield a Problem for every variable of a role that a host has and that is none, or holds
        what it cannot be.
        """
        raw, found = self._of(name)
        for own in list(raw):
            key = str(own)
            spec, mine = specs.get(key), key not in self._extra
            if (
                mine
                and (said := role_vars.unknown(key, specs, folders))
                and written(raw[key], own, project)
            ):
                yield Problem(*self._place(raw, name, key), key, said, code="role.unknown_variable")
            held = (
                spec is not None
                and not key.startswith("trainyard_")
                and (mine or "{" in str(raw[key]))
            )
            if not held and not (mine and key in extra_vars.DEFAULTS):
                continue
            try:
                value = plain(found[key])
            except AnsibleError as error:
                # a group's variable may need what only nodes have, and the embedded site's what
                # only its own playbook has
                if name != "localhost" and not key.startswith("local_cluster_"):
                    yield Problem(
                        *self._place(raw, name, key),
                        key,
                        f"cannot be templated: {str(error).splitlines()[0]}",
                        code="site.bad_template",
                    )
                continue
            said = (
                role_vars.held(key, value, spec) if held else [(key, extra_vars.short(key, value))]
            )
            for dotted, text in said:
                if text:
                    file, line = self._place(raw, name, key)
                    yield Problem(
                        file,
                        origin_of(raw, dotted)[1] if line and origin_of(raw, dotted) else line,
                        dotted,
                        text,
                        code="role.wrong_value",
                    )

    def accounts(self, names):
        """Return a Problem for every account that trains and that root's part of provision.yml
        cannot be given, the same one once.
        """
        found = {}
        for name in names:
            raw = self._of(name)[0]
            key = next((key for key in ("ansible_ssh_user", "ansible_user") if key in raw), None)
            value = self._values(name, [key]).get(key) if key else None
            said = ssh_policy.account_problem(value) if value not in (None, "") else None
            if said:
                problem = Problem(*self._place(raw, name, key), key, said, code="login.bad_account")
                found.setdefault(str(problem), problem)
        return list(found.values())

    def unheard(self, name, judged):
        """Yield a Problem for every variable that a node has otherwise than the controller, which
        alone goes by it.
        """
        raw, own = self._of(name)[0], self._of("localhost")[0]
        for key in [
            key
            for key in judged
            if key in raw and (key not in own or plain_text(own[key]) != plain_text(raw[key]))
        ]:
            text = (
                "is read on the controller alone, and holds for all nodes; set it in"
                " group_vars/all.yml"
            )
            yield Problem(*self._place(raw, name, key), key, text, code="site.node_variable")

    def way(self, name):
        """Return how a host is logged in to, as access.problems wants it; a password is never
        templated.
        """
        raw, result = self._of(name)[0], {}
        for key in [key for key in raw if ssh_policy.wanted(key)]:
            origin = (
                ("command line", None)
                if key in self._extra
                else origin_of(raw, key) or (None, None)
            )
            value = None if ssh_policy.SECRET.match(key) else self._values(name, [key]).get(key)
            text = (
                raw[key]
                if isinstance(raw[key], str)
                else ""
                if raw[key] is None
                else str(type(raw[key]))
            )
            result[str(key)] = {
                "value": value,
                "raw": str(text),
                "hidden": hidden(raw[key]),
                "file": origin[0],
                "line": origin[1],
            }
        return result
