# SPDX-License-Identifier: Apache-2.0
"""What becomes root on a node that lies: only constants of the controller's, through the
administrator's login, with the system's Python.

Ansible logs in through a stand-in for ssh, which runs the remote command here. A stand-in for sudo
writes down which module root would have run with which arguments, and runs nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from core_support import ROOT, collection

SSH = """#!%s
import json, os, sys
user = [word[5:].strip('"') for word in sys.argv if word.startswith("User=")]
with open(os.environ["NODE"] + "/logins", "a") as handle:
    handle.write(json.dumps(user) + "\\n")
os.environ["LOGIN"] = user[-1]
os.chdir(os.environ["NODE"])  # as sshd starts in the account's home: "~trainer" is no account here, but a directory's name
os.execvp("/bin/sh", ["sh", "-c", sys.argv[-1]])
"""
SUDO = """#!%s
import ast, json, os, sys
print("BECOME-SUCCESS-" + sys.argv[-1].split("BECOME-SUCCESS-")[1].split()[0], flush=True)
# The payload ends with a call whose words are literals: which module, and its arguments.
calls = [n for n in ast.walk(ast.parse(sys.stdin.buffer.read())) if isinstance(n, ast.Call)]
# Ansible's own payload, or the product's.
theirs = [n for n in calls if getattr(n.func, "id", "") == "_ansiballz_main"]
ours = [n for n in calls if ast.unparse(n.func) == "scope['run_module']"]
given = {word.arg: word.value.value for word in (theirs + ours)[-1].keywords if isinstance(word.value, ast.Constant)}
if theirs:
    arguments, name = json.loads(given["params"])["ANSIBLE_MODULE_ARGS"], given["ansible_module"]
else:
    arguments, name = json.loads(ours[-1].args[1].value), given["module_fqn"]
name = name.rpartition(".")[2]
with open(os.environ["NODE"] + "/root", "a") as handle:
    said = {key: value for key, value in arguments.items() if not key.startswith("_ansible")}
    handle.write(json.dumps([name, said, os.environ["LOGIN"], sys.argv[-1], not theirs]) + "\\n")
with open(os.environ["NODE"] + "/answers") as handle:
    print(json.dumps(json.load(handle).get(name, {"changed": True})))
"""
# What the training account's own Python says: first the lie, and after root has been there that
# nothing is missing.
LIAR = """#!/usr/bin/python
import json, os, sys
path = os.environ["NODE"] + "/lie"
with open(path) as handle:
    lies = json.load(handle)
lie = lies.pop(0) if len(lies) > 1 else lies[0]
with open(path, "w") as handle:
    json.dump(lies, handle)
print(json.dumps(lie))
"""
LIMIT = {"wanted": -1, "allowed": -1, "measured": -1}
READY = {
    "changed": False, "needs": [], "family": "debian", "missing": [], "user": "trainer",
    "records": [], "notes": [], "manager": "running",
    "limits": {"memlock": LIMIT, "nofile": LIMIT}, "units": [],
}  # fmt: skip
BARE = dict(READY, needs=["packages", "linger", "limits", "manager", "restart"], missing=["rsync"])
ANSWERS = {
    "ping": {"ping": "pong", "changed": False},
    "training_account": {"changed": True, "uid": 1000, "changes": [], "may_sudo": False},
    "firewall_record": {"changed": False, "record": None},
}
GIVEN = {"name": "trainer", "site": "mysite", "memlock": "infinity", "nofile": "1048576"}


class Site:
    """One node that is pretended in a folder, and what was asked of its root."""

    def __init__(self, folder):
        self.folder, self.actions = folder, folder / "actions"
        for name, text in (("ssh", SSH), ("sudo", SUDO)):
            (folder / name).write_text(text % sys.executable)
            (folder / name).chmod(0o755)
        self.collections = collection(folder, {"node_requirements": LIAR})

    def play(self, *lies, tasks_from="system", **known):
        """Run a part of the role while the node lies; return the exit code."""
        (self.folder / "lie").write_text(json.dumps(lies))
        (self.folder / "answers").write_text(json.dumps(dict(ANSWERS, **known.pop("answers", {}))))
        host = {
            "ansible_host": "192.0.2.1", "ansible_user": "trainer",
            "trainyard_admin_user": "keeper", "trainyard_site": "mysite",
            "ansible_ssh_executable": str(self.folder / "ssh"),
            "ansible_become_exe": str(self.folder / "sudo"),
            "ansible_python_interpreter": sys.executable, "runtime_home": str(self.folder / "home"),
        }  # fmt: skip
        host = {key: value for key, value in dict(host, **known).items() if value is not None}
        role = {"name": "runtime", "tasks_from": tasks_from, "rolespec_validate": False}
        (self.folder / "hosts.yml").write_text(json.dumps({"trainers": {"hosts": {"node1": host}}}))
        (self.folder / "play.yml").write_text(
            yaml.safe_dump(
                [
                    {
                        "hosts": "trainers",
                        "gather_facts": False,
                        "tasks": [{"ansible.builtin.include_role": role}],
                    }
                ]
            )
        )
        environment = dict(
            os.environ,
            NODE=str(self.folder),
            ANSIBLE_COLLECTIONS_PATH=self.collections,
            ANSIBLE_BECOME_ALLOW_SAME_USER="true",
            # Without the gate, which refuses most of these answers before: what root does must not
            # rest on it alone.
            ANSIBLE_ACTION_PLUGINS=str(self.actions),
        )
        command = [
            str(Path(sys.executable).with_name("ansible-playbook")),
            "-i",
            str(self.folder / "hosts.yml"),
            str(self.folder / "play.yml"),
        ]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300
        )
        self.said = done.stdout + done.stderr
        return done.returncode

    def _lines(self, name):
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def root(self):
        """Return [(module, arguments)] of what root was asked for."""
        return [(name.rpartition(".")[2], given) for name, given, *_rest in self._lines("root")]

    def ours(self):
        """Return the modules that came in the product's own payload."""
        return {each[0] for each in self._lines("root") if each[4]}

    def logins(self):
        """Return (the accounts that logged in, the accounts that became root, the commands that
        sudo was given).
        """
        asked = self._lines("root")
        return (
            {user for users in self._lines("logins") for user in users},
            {each[2] for each in asked},
            [each[3] for each in asked],
        )


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def short(asked):
    """Return what was asked of root without what only tunes a module."""
    found = []
    for name, given in asked:
        kept = {
            key: value
            for key, value in given.items()
            if key in ("name", "state", "path", "dest", "argv", "site", "tool", "peers", "zone")
        }
        found.append((name, kept))
    return found


EXPECTED = [
    ("ping", {}),
    ("apt", {"name": ["rsync"]}),
    ("training_account", {"name": "trainer", "site": "mysite"}),
    ("systemd_service", {"name": "user@1000.service", "state": "restarted"}),
]
LIES = (
    {"dropins": {"/etc/cron.d/x": "* * * * * root id\n"}, "uid": "1000/../../cron.d/x"},
    {
        "missing": [
            "rsync",
            "evil",
            "--allow-unauthenticated",
            "../x.deb",
            "rsync\nevil",
            7,
            {"a": 1},
        ]
    },
    {"needs": [*BARE["needs"], "x; id", "../x"], "manager": "x\n- y"},
    {
        "ansible_facts": {
            "discovered_interpreter_python": "/home/trainer/python3",
            "ansible_user": "root",
            "ansible_become_exe": "/x",
        }
    },
    {"records": ["firewall"], "notes": ["firewall.json", "lingering", "../x"]},
)


def test_a_node_that_lies_changes_nothing_of_what_root_does(site):
    lie = {name: value for lie in LIES for name, value in lie.items()}
    assert site.play(dict(BARE, **lie), dict(BARE, **lie), READY) == 0, site.said
    asked = [each for each in short(site.root()) if each[0] != "firewall_record"]
    assert asked == EXPECTED
    assert [given for name, given in site.root() if name == "training_account"][0] == dict(
        GIVEN, lowest_uid=1000
    )
    assert all(
        set(given) <= {"site", "state"} for name, given in site.root() if name == "firewall_record"
    )


def test_root_is_the_administrators_and_runs_the_systems_python(site):
    assert site.play(BARE, BARE, READY) == 0, site.said
    logins, became, words = site.logins()
    assert (logins, became) == ({"trainer", "keeper"}, {"keeper"})
    assert words and all(
        word.endswith(" /usr/bin/python3") and "PYTHONNOUSERSITE=1" in word for word in words
    ), words


def test_root_gets_the_same_arguments_in_the_payload_that_comes_with_the_gate(site):
    site.actions = ROOT / "plugins" / "action"
    assert site.play(BARE, BARE, READY) == 0, site.said
    assert short(site.root()) == EXPECTED
    assert site.logins()[:2] == ({"trainer", "keeper"}, {"keeper"})
    (given,) = [given for name, given in site.root() if name == "training_account"]
    assert given == dict(GIVEN, lowest_uid=1000)
    assert site.ours() == {"training_account"}


def test_with_one_account_it_becomes_root_itself(site):
    assert site.play(BARE, BARE, READY, trainyard_admin_user=None) == 0, site.said
    assert site.logins()[:2] == ({"trainer"}, {"trainer"}) and short(site.root()) == EXPECTED
    # One account is warned about.
    assert "trainyard_admin_user" in site.said


def test_a_ready_node_is_asked_nothing_as_root(site):
    assert site.play(READY) == 0, site.said
    assert site.root() == [] and site.logins()[0] == {"trainer"}
    assert "trainyard_admin_user" not in site.said


@pytest.mark.parametrize(
    "given",
    [
        {"ansible_user": "root; id"},
        {"ansible_user": None},
        {"trainyard_admin_user": "-oProxyCommand=id"},
        {"trainyard_site": "../../etc"},
    ],
    ids=["training account", "no training account", "administrator", "site"],
)
def test_names_that_root_must_not_be_given_are_refused_before_a_node_is_asked(site, given):
    assert site.play(BARE, **given) != 0
    assert site.root() == [] and site.logins()[0] == set()


def test_another_account_that_answers_is_refused(site):
    assert site.play(dict(BARE, user="root")) != 0
    assert site.root() == []


def test_an_undo_as_root_is_not_told_what_by_the_account_that_trains(site):
    lie = dict(READY, notes=["lingering"], dropins={"/etc/passwd": ""}, uid=0, records=["../../x"])
    record = {"tool": "ufw", "peers": ["10.0.0.1"], "zone": ""}
    assert (
        site.play(
            lie,
            tasks_from="absent",
            answers={"firewall_record": {"changed": True, "record": record}},
        )
        == 0
    ), site.said
    asked = site.root()
    assert [name for name, _given in asked] == [
        "training_account",
        "firewall_record",
        "ufw",
        "ufw",
        "firewall_record",
    ]
    assert asked[0][1] == {
        "name": "trainer",
        "site": "mysite",
        "state": "absent",
        "lowest_uid": 1000,
        "lingering_was_off": True,
    }
    assert {given.get("from_ip") for name, given in asked if name == "ufw"} == {
        "10.0.0.1"
    } and site.logins()[1] == {"keeper"}


def test_only_the_parts_of_two_verbs_become_root():
    """A task that becomes root stands in the role that provision.yml and unprovision.yml alone take
    these parts from.
    """
    allowed = {
        "root_setup.yml",
        "root_removal.yml",
        "verify.yml",
        "packages.yml",
        "firewall.yml",
        "firewall_close.yml",
    }
    allowed |= {f"firewall_{tool}.yml" for tool in ("firewalld", "iptables", "ufw")}
    found = {
        path
        for folder in ("roles", "playbooks")
        for path in (ROOT / folder).rglob("*.yml")
        if "become: true" in path.read_text()
    }
    assert {path.parent.parent.name + "/" + path.name for path in found} == {
        "runtime/" + name for name in allowed
    }
    users = {
        path.name
        for path in (ROOT / "playbooks").rglob("*.yml")
        if "tasks_from: system" in path.read_text() or "tasks_from: absent" in path.read_text()
    }
    assert users - {"local_down.yml"} == {"provision.yml", "unprovision.yml"}
