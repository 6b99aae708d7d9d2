# SPDX-License-Identifier: Apache-2.0
"""Nodes that lie, against the real ansible-playbook: what they say sets no variable, obeys no
terminal and names no host.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from types import SimpleNamespace

import pytest
from ansible.utils import color, display
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler as plans
from ansible_collections.trainyard.cluster.plugins.plugin_utils.base import terminal
from core_support import RUN, attempt_files, compiled, put
from lying_support import Site

# OSC 52 (clipboard), title, clear, cursor, C1, bidirectional, carriage return, NUL; and a colour
# that is not ours.
EVIL = "x\x1b]52;c;ZXZpbA==\x07\x1b]0;t\x07\x1b[2J\x1b[9A\x9b31m\u202eyz\r\x00\x1b[8m\x1b[0;31mRED"
# What Ansible itself writes where it is told to use colours.
PAINT = re.compile(rb"\x1b\[[0-9;]*m")


@pytest.fixture
def site(tmp_path):
    """Two pretended nodes."""
    return Site(tmp_path)


def obeyed(*streams):
    """Return what a terminal would obey in these bytes, other than line ends and tabs."""
    text = b"".join(streams).decode("utf-8")
    return sorted({char for char in text if not char.isprintable() and char not in "\n\t"})


# --- variables


def test_facts_in_an_answer_set_no_variable_of_site_or_role(site):
    facts = {
        "ssh_trust_validity": "+5000d",
        "trainyard_site": "other",
        "runtime_index_url": "http://evil.example",
        "ansible_host": "evil",
    }
    lies = [[["ansible_facts"], facts]]
    site.lie(node1={"answers": {name: lies for name in ("command", "ping")}})
    said = (
        "{{ [ssh_trust_validity | default('-'), trainyard_site, runtime_index_url | default('-'),"
        " ansible_host] | join(' ') }}"
    )
    tasks = [
        {"ansible.builtin.command": "true"}, {"ansible.builtin.ping": {}},
        {"ansible.builtin.copy": {"content": said,
        "dest": f"{site.folder}/said.{{{{ inventory_hostname }}}}"}, "delegate_to": "localhost"},
    ]  # fmt: skip
    code, out, err = site.play(
        [
            {
                "hosts": "trainers",
                "gather_facts": False,
                "vars": {"ssh_trust_validity": "+30d"},
                "tasks": tasks,
            }
        ]
    )
    assert code == 0, out + err
    told = {name: (site.folder / ("said." + name)).read_text() for name in site.nodes}
    assert told == {"node1": "+30d test - node1", "node2": "+30d test - node2"}


# --- paths


@pytest.mark.parametrize("name", ["a@b:c", "plain"])
def test_no_path_of_a_node_says_where_a_tree_is_sent(site, name):
    """rsync takes a path with a colon behind a slash for one of this machine, and synchronize puts
    no host before a path with a colon and an @.
    """
    source = put(site.folder / "tree", {"train.py": "print(1)\n"})
    entries = manifest.scan(source)
    tree = {
        "kind": "code",
        "name": "x",
        "digest": manifest.digest(entries),
        "source": source,
        "files": 1,
        "bytes": 9,
    }
    cache = {
        "{}.files".format(tree["digest"]): "train.py\n",
        "{}.json".format(tree["digest"]): json.dumps(entries),
    }
    put(site.folder / "cache" / "manifests", cache)
    here = site.folder / "here"
    here.mkdir()
    site.lie(node1={"answers": {"tree_install": [[["staging"], f"{here}/{name}"]]}})
    role = {"name": "workspace"}
    given = {"workspace_trees": [tree], "workspace_cache_dir": str(site.folder / "cache")}
    play = {
        "hosts": "trainers",
        "gather_facts": False,
        "tasks": [{"ansible.builtin.include_role": role, "vars": given}],
    }
    _code, out, err = site.play(
        [play], PATH="{}:{}".format(site.folder / "bin", os.environ["PATH"])
    )  # (rsync takes the ssh that it finds)
    assert os.listdir(here) == [], out + err
    argv = [json.loads(line) for line in (site.folder / "argv").read_text().splitlines()]
    sent = {words[0]: words for words in argv if "--server" in " ".join(words)}
    assert sorted(sent) == (["node2"] if ":" in name else ["node1", "node2"]), out + err
    assert all(
        words[-1].endswith(".trainyard/staging/code-{}/".format(tree["digest"][:16]))
        for words in sent.values()
    ), sent
    assert not any(str(here) in word for words in sent.values() for word in words), sent


# --- the terminal

HOSTILE = {
    "stdout": "out " + EVIL, "msg": "text " + EVIL, "warnings": ["warning " + EVIL],
    "extra": {"key " + EVIL: ["deep " + EVIL]},
    "deprecations": [{"msg": "deprecated " + EVIL, "version": "9.9"}], "exception": "trace " + EVIL,
    "changed": True,
    "diff": {"before": "old " + EVIL + "\n", "after": "new " + EVIL + "\n",
    "before_header": "head " + EVIL},
}  # fmt: skip
PLAY = [
    {
        "hosts": "trainers", "gather_facts": False,
        "tasks": [
            {"name": "Ask", "ansible.builtin.command": "true", "register": "said", "diff": True},
            {"name": "Say", "ansible.builtin.debug": {"msg": "{{ said.msg }}"}},
            {"name": "Dump", "ansible.builtin.debug": {"var": "said"}},
            {"name": "Label", "ansible.builtin.debug": {"msg": "{{ item }}"},
            "loop": ["{{ said.stdout }}"]},
            {"name": "Fail", "ansible.builtin.fail": {"msg": "{{ said.msg }}"},
            "ignore_errors": True},
            {"name": "Break", "ansible.builtin.command": "false", "ignore_errors": True},
            {"name": "Raise {{ said.stdout }}",
            "ansible.builtin.set_fact": {"x": "{{ said.nothere[said.stdout] }}"},
            "ignore_errors": True},
            {"name": "Try", "ansible.builtin.command": "true", "register": "tried", "until": False,
            "retries": 1, "delay": 0, "ignore_errors": True},
            {"name": "Leave", "ansible.builtin.meta": "reset_connection"},
        ],
    }
]  # fmt: skip


@pytest.mark.parametrize(
    "callback, words",
    [
        ("trainyard.cluster.live", []),
        ("trainyard.cluster.live", ["-vvv", "--diff"]),
        ("default", ["-v", "--diff"]),
    ],
    ids=["quiet", "vvv", "default"],
)
def test_no_byte_that_a_terminal_obeys_is_printed_or_logged(site, callback, words):
    lies = [[[key], value] for key, value in HOSTILE.items()]
    site.lie(
        node1={"answers": {"command": lies}, "banner": "banner " + EVIL + "\n"},
        node2={"unreachable": True, "banner": "gone " + EVIL},
    )
    log = site.folder / "log.txt"
    code, out, err = site.play(
        PLAY,
        *words,
        ANSIBLE_STDOUT_CALLBACK=callback,
        ANSIBLE_LOG_PATH=str(log),
        ANSIBLE_DISPLAY_TRACEBACK="always",
    )
    assert code != 0 and b"gone x\\x1b]52" in out + err, out + err
    assert b"text x\\x1b]52;c;" in out + err and b"warning x\\x1b" in out + err
    assert obeyed(out, err, log.read_bytes()) == [], out + err


FORGED = "pip says:\n  no such wheel\nPLAY RECAP ****\nCOMPLETED: forged"


@pytest.mark.parametrize(
    "callback, words",
    [("trainyard.cluster.live", []), ("default", ["-vvv", "--diff"])],
    ids=["quiet", "default"],
)
def test_no_line_of_a_node_stands_where_ours_begin(site, callback, words):
    """A text of several lines stays readable: they are indented below the line that says whose they
    are.
    """
    lies = [
        [[key], value.replace(EVIL, FORGED)]
        for key, value in HOSTILE.items()
        if isinstance(value, str)
    ] + [[["warnings"], [FORGED]]]
    site.lie(
        node1={"answers": {"command": lies}}, node2={"unreachable": True, "banner": FORGED + "\n"}
    )
    log = site.folder / "log.txt"
    code, out, err = site.play(
        PLAY,
        *words,
        ANSIBLE_STDOUT_CALLBACK=callback,
        ANSIBLE_LOG_PATH=str(log),
        ANSIBLE_DISPLAY_TRACEBACK="always",
    )
    lines = b"\n".join((out, err, log.read_bytes())).splitlines()
    assert code != 0 and b"    COMPLETED: forged" in lines
    assert [
        line
        for line in lines
        if line == b"PLAY RECAP ****" or line.startswith((b"COMPLETED", b"  no such"))
    ] == []


@pytest.mark.parametrize("callback", ["trainyard.cluster.live", "default"])
def test_colours_are_ansibles_own(site, callback):
    site.lie(node1={"answers": {"command": [[[key], value] for key, value in HOSTILE.items()]}})
    code, out, err = site.play(
        PLAY, "--diff", ANSIBLE_STDOUT_CALLBACK=callback, ANSIBLE_FORCE_COLOR="1"
    )
    painted = PAINT.findall(out + err)
    assert (
        b"\x1b[0;32m" in painted and b"\x1b[8m" not in painted and b"\x1b[0;31mRED" not in out + err
    )
    assert obeyed(PAINT.sub(b"", out), PAINT.sub(b"", err)) == []


def test_a_text_keeps_ansibles_colours_and_no_other(monkeypatch):
    monkeypatch.setattr(color, "ANSIBLE_COLOR", True)
    painted = color.stringc("good", "green")
    assert (
        terminal.clean_painted(painted + "\x1b[8m\x1b[30m\x1b[2J")
        == painted + "\\x1b[8m\\x1b[30m\\x1b[2J"
    )
    monkeypatch.setattr(color, "ANSIBLE_COLOR", False)
    assert "\x1b" not in terminal.clean_painted(painted)


def test_what_only_the_log_file_gets_is_clean_too(monkeypatch):
    terminal.install()
    said = []
    monkeypatch.setattr(
        display, "logger", SimpleNamespace(log=lambda _level, text: said.append(text))
    )
    monkeypatch.setattr(color, "ANSIBLE_COLOR", True)
    display.Display()._verbose_log("seen " + EVIL, caplevel=-1)
    display.Display().display(color.stringc("good", "green") + EVIL, log_only=True)
    assert len(said) == 2 and obeyed("".join(said).encode()) == [] and said[1].startswith("good")


# --- which run, and on which hosts

FAKE = "20991231-000000-fake-0000"
FIND = [
    {
        "hosts": "trainers", "gather_facts": False, "ignore_unreachable": True,
        "tasks": [{"name": "Find", "ansible.builtin.import_role": {"name": "launch",
        "tasks_from": "find_run"}}],
    },
    {
        "hosts": "trainyard_run_nodes", "gather_facts": False,
        "tasks": [
            {
                "name": "Note", "delegate_to": "localhost", "vars": {"ansible_connection": "local"},
                "ansible.builtin.copy": {"content": "{{ run_attempt | to_json }}",
                "dest": "FOLDER/ran.{{ inventory_hostname }}"},
            }
        ],
    },
]  # fmt: skip


@pytest.mark.parametrize(
    "at_home, lies",
    [
        (False, [[["status", "nodes"], ["localhost"]]]),
        (False, [[["status", "nodes"], ["all", "node2"]], [["status", "attempts"], [1, 99999]]]),
        (True, [[["status", "run"], FAKE], [["status", "nodes"], ["localhost"]]]),
        (False, [[["status", "attempt"], 77], [["status", "nodes"], ["node1"]]]),
    ],
    ids=["localhost", "all", "a later run", "a later attempt"],
)
def test_a_node_alone_chooses_neither_the_run_nor_the_hosts(site, lies, at_home):
    site.nodes = ("node1", "node2", "node3")
    hosts = {name: {"ansible_host": name} for name in site.nodes}
    made = compiled(count=3, devices=1)
    known = json.loads((site.folder / "hosts.json").read_text())["trainers"]["vars"]
    site.write("hosts.json", {"trainers": {"hosts": hosts, "vars": known}})
    for name in site.nodes:
        attempt_files(site.folder / "nodes" / name / ".trainyard", made, name)
    if at_home:
        put(site.runs / RUN, {"attempt-1/plan.json": plans.canonical_bytes(made).decode("ascii")})
    site.lie(node1={"answers": {"attempt_monitor": lies}})
    play = json.loads(json.dumps(FIND).replace("FOLDER", str(site.folder)))
    code, out, err = site.play(play)
    ran = {path.name[4:]: json.loads(path.read_text()) for path in site.folder.glob("ran.*")}
    assert sorted(ran) == ["node1", "node2", "node3"], out + err
    assert ran["node2"] == {
        "run_id": RUN,
        "number": 1,
        "nodes": ["node1", "node2", "node3"],
        "later": False,
    }
    assert code == 0 and (FAKE not in str(lies) or FAKE.encode() in err + out), out + err


# --- logins


def test_nothing_of_the_users_own_reaches_a_node(site):
    site.play([{"hosts": "node1", "gather_facts": False, "tasks": [{"ansible.builtin.ping": {}}]}])
    config = site.write(
        "config",
        "Host *\n  ForwardAgent yes\n  ForwardX11 yes\n  PermitLocalCommand yes\n  LocalCommand"
        " touch /tmp/x\n",
    )
    for argv in site.logins():
        words = argv[: argv.index("node1")] if "node1" in argv else argv
        said = subprocess.run(
            ["ssh", "-G", "-F", config, *words, "node1"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert {"forwardagent no", "forwardx11 no", "permitlocalcommand no"} <= set(said), argv
    assert site.logins()
