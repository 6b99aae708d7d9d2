# SPDX-License-Identifier: Apache-2.0
"""The gate on the controller: what a node answers is used only where it matches its schema."""

from __future__ import annotations

import math
import os
import pathlib
import re
import resource
import signal
import subprocess
import time
from types import SimpleNamespace

import ansible.plugins.action
import jsonschema
import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.base import safe_names
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import (
    model_collector,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import devices, orphans
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from unit.preflight.test_devices import FIXTURES, Smi

RUN = "20261120-103501-ppyoloe-1f2e"
TREE = {
    "ok": True,
    "differences": [],
    "staging": "/home/t/.trainyard/staging/x",
    "place": "/home/t/.trainyard/code/x",
    "missing": None,
    "changed": False,
}
NONE = {
    "changed": False,
    "status": {"found": False, "ended": True, "state": "none", "known": [], "run": RUN},
}


def fields(module, answer, **arguments):
    """Return the fields that the gate names as wrong; [] where the answer passes."""
    try:
        answer_gate.validate(module, answer, arguments)
    except answer_gate.InvalidAnswer as error:
        return [field for field, _text in error.problems]
    return []


@pytest.mark.parametrize("module", answer_gate.modules())
def test_every_schema_is_closed_and_bounded(module):
    schema = answer_gate.schema(module)
    jsonschema.Draft202012Validator.check_schema(schema)

    def walk(part, where):
        assert part.get("$ref", "#/$defs/").startswith("#/$defs/"), where
        assert "$ref" not in part or part["$ref"][len("#/$defs/") :] in schema["$defs"], (
            where,
            part["$ref"],
        )
        kinds = part.get("type", ())
        kinds = [kinds] if isinstance(kinds, str) else kinds
        assert "string" not in kinds or "maxLength" in part, where
        assert "array" not in kinds or "maxItems" in part, where
        if "object" in kinds:
            closed = (
                part.get("additionalProperties", True) is not True or part.get("maxProperties") == 0
            )
            assert closed or "allOf" in part, where
        for key in ("properties", "$defs", "patternProperties"):
            for name, value in part.get(key, {}).items():
                walk(value, f"{where}.{name}")
        for key in ("items", "additionalProperties", "propertyNames"):
            if isinstance(part.get(key), dict):
                walk(part[key], where + "." + key)
        for key in ("anyOf", "allOf", "prefixItems"):
            for one in part.get(key, ()):
                walk(one, where + "." + key)

    walk(schema, module)


def test_an_honest_answer_passes_as_it_is():
    assert (
        answer_gate.validate("tree_install", dict(TREE, invocation={"module_args": {}}), {}) == TREE
    )


@pytest.mark.parametrize("key", answer_gate.OBEYED)
def test_what_ansible_would_obey_is_refused(key):
    found = fields("tree_install", dict(TREE, **{key: {"host_name": "x", "groups": ["trainers"]}}))
    assert found == ([] if key == "ansible_facts" else [key])


def test_facts_never_come_through_but_for_the_interpreter_that_ansible_found():
    answer = dict(
        TREE,
        ansible_facts={
            "ssh_trust_validity": "+3650d",
            "discovered_interpreter_python": "/usr/bin/python3.11",
        },
    )
    assert answer_gate.validate("tree_install", answer, {})["ansible_facts"] == {
        "discovered_interpreter_python": "/usr/bin/python3.11"
    }
    assert fields(
        "tree_install", dict(TREE, ansible_facts={"discovered_interpreter_python": "/bin/sh -c id"})
    )


def test_the_answer_is_about_what_was_asked():
    assert fields("attempt_monitor", NONE, run_id=RUN, node="node1") == []
    assert fields("attempt_monitor", NONE, run_id="", node="node1") == []
    assert fields("attempt_monitor", NONE, run_id=RUN[:-1] + "f", node="node1") == ["status.run"]


@pytest.mark.parametrize(
    "run",
    [
        "../../x",
        RUN + "\n",
        RUN + " -e x=y",
        "/" + RUN,
        "-" + RUN,
        "localhost",
        7,
        None,
        ["a"],
        RUN[:8],
        "{{ lookup('pipe','id') }}",
    ],
)
def test_a_run_id_is_one(run):
    status = dict(NONE["status"], run=run)
    assert fields(
        "attempt_monitor", {"changed": False, "status": status}, run_id="", node="node1"
    ) == ["status.run"]


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "-rf",
        "../x",
        "/x",
        "x/../y",
        "x\n",
        "a//b",
        "",
        ".",
        "x/..",
        "a" * 300,
        "--rsh=sh",
        "x\x1b",
    ],
)
def test_a_checkpoints_file_name_is_one(name):
    saved = {
        "wanted": "best",
        "kind": "best",
        "name": "x",
        "folder": "output",
        "bytes": 1,
        "note": "",
        "passed_over": [],
    }
    good = {"changed": False, "saved": dict(saved, files={"x.pdparams": ["f", 1, "0" * 64]})}
    assert fields("checkpoint_info", good) == []
    assert fields(
        "checkpoint_info",
        {"changed": False, "saved": dict(saved, files={name: ["f", 1, "0" * 64]})},
    )
    assert fields(
        "checkpoint_info", {"changed": False, "saved": dict(saved, folder=name or "/", files={})}
    )


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, 2**70, "\ud800", {1: 2}],
    ids=["nan", "inf", "70 bits", "surrogate", "key"],
)
def test_what_json_cannot_hold_is_refused(value):
    assert fields("tree_install", dict(TREE, differences=[value])) == ["answer"]


def test_depth_and_size_are_bounded_before_anything_else():
    deep = []
    for _level in range(100_000):
        deep = [deep]
    assert fields("tree_install", dict(TREE, differences=deep)) == ["answer"]
    assert fields("tree_install", dict(TREE, differences=[0] * (answer_gate.MAX_VALUES + 1))) == [
        "answer"
    ]
    assert fields(
        "tree_install", dict(TREE, place="/" + "x" * (answer_gate.MAX_CHARACTERS + 1))
    ) == ["answer"]


def test_text_is_escaped_and_a_line_end_cannot_forge_a_line():
    answer = answer_gate.validate(
        "tree_install", dict(TREE, differences=["a\nCOMPLETED: all\x1b]52;c;eA==\x07\u202e"]), {}
    )
    assert answer["differences"] == ["a\\nCOMPLETED: all\\x1b]52;c;eA==\\x07\\u202e"]


def test_a_checkpoint_to_go_on_from_passes():
    files = {name: ["f", 3, "0" * 64] for name in ("0.pdparams", "0.pdopt", "0.pdema")}
    point = {
        "attempt": 1, "name": "0", "stem": "0",
        "path": f"/home/t/.trainyard/runs/{RUN}/attempt-1/output/x", "instead": False, "saved": 1.5,
        "epoch": 1, "step": 4, "lr": 0.001, "first": "node1", "files": files, "bytes": 9,
        "digest": "0" * 64,
    }  # fmt: skip
    answer = {
        "changed": False,
        "found": {
            "point": point,
            "skipped": [
                {
                    "attempt": 1,
                    "name": "1",
                    "why": "1.pdopt is missing",
                    "code": "checkpoint.file_missing",
                }
            ],
        },
    }
    assert fields("checkpoint_candidates_info", answer) == []
    assert fields(
        "checkpoint_candidates_info",
        dict(answer, found=dict(answer["found"], point=dict(point, path="../x"))),
    )


@pytest.mark.parametrize(
    "address, sound",
    [
        ("10.0.0.1", True),
        ("fe80::1", True),
        ("..", False),
        (":::", False),
        ("1.2.3", False),
        ("999.1.1.1", False),
        ("10.0.0.01", False),
    ],
)
def test_an_address_is_one(address, sound):
    """The controller's own functions raise for others, and the message would name no node."""
    rows = [{"to": "node2", "port": 17000, "why": "error", "text": "", "you": address}]
    answer = {"seen_as": {"node2": address}, "unreached": rows}
    assert sorted(fields("network_check", answer)) == (
        [] if sound else ["seen_as.node2", "unreached.0.you"]
    )


@pytest.mark.parametrize(
    "libc, sound",
    [("2.36", True), ("", True), ("2.3.6", True), ("..", False), ("2", False), ("2.", False)],
)
def test_a_version_of_the_c_library_is_one(libc, sound):
    answer = {
        "home": "/h",
        "python": "3.11",
        "machine": "x86_64",
        "libc": libc,
        "free_bytes": 1,
        "environments": {},
        "unusable": {},
    }
    assert fields("python_environment_info", answer) == ([] if sound else ["libc"])


@pytest.mark.parametrize("length", [safe_names.PART_BYTES, safe_names.PART_BYTES + 1])
def test_one_bound_for_the_parts_of_a_name(length):
    """What a node may call a file of a checkpoint is what the controller takes, to the
    character.
    """
    name = "x" * length
    point = {
        "attempt": 1, "name": name, "stem": name, "path": "/home/t/output", "instead": False,
        "saved": 1.5, "epoch": 1, "step": 4, "lr": 0.001,
        "first": "node1", "files": {name: ["f", 3, "0" * 64]}, "bytes": 3, "digest": "0" * 64,
    }  # fmt: skip
    taken = (
        fields(
            "checkpoint_candidates_info",
            {"changed": False, "found": {"point": point, "skipped": []}},
        )
        == []
    )
    assert (
        taken
        is model_collector.is_plain_path(name)
        is (safe_names.problem(name) is None)
        is (length == safe_names.PART_BYTES)
    )


def test_a_failed_answer_keeps_its_message_and_no_fields():
    answer = {
        "failed": True,
        "msg": "no\x1b[2J",
        "status": NONE["status"],
        "place": "/etc",
        "rc": 1,
    }
    assert answer_gate.validate("tree_install", answer, {}) == {
        "failed": True,
        "msg": "no\\x1b[2J",
        "rc": 1,
    }


@pytest.mark.parametrize(
    "code",
    ["attempt.node_held", "Attempt.x", "attempt", "a.b\n", "a.b; rm", "a." + "b" * 99, 7, []],
)
def test_a_failed_answer_keeps_a_message_code_and_nothing_else_in_its_place(code):
    answer = answer_gate.validate("tree_install", {"failed": True, "msg": "x", "code": code}, {})
    assert answer.get("code") == (code if code == "attempt.node_held" else None)


def test_of_ansibles_own_modules_only_what_is_read_is_kept():
    stat = {"changed": False, "stat": {"exists": True, "path": "/x"}, "evil": 1}
    assert answer_gate.validate("stat", stat, {}) == {
        "changed": False,
        "stat": {"exists": True, "path": "/x"},
    }
    assert answer_gate.validate(
        "unknown_module", {"changed": True, "add_host": {"host_name": "x"}}, {}
    ) == {"changed": True}
    key = {"changed": False, "public_key": "ssh-ed25519 " + "A" * 68 + " local-node1"}
    assert answer_gate.validate("openssh_keypair", key, {})["public_key"] == key["public_key"]
    assert fields(
        "openssh_keypair", dict(key, public_key=key["public_key"] + "\nssh-rsa AAAA")
    ) == ["public_key"]


def test_the_refusal_holds_nothing_that_the_node_said():
    try:
        answer_gate.validate("tree_install", dict(TREE, place="evil\x1b place"), {})
    except answer_gate.InvalidAnswer as error:
        result = answer_gate.refusal("tree_install", "node1", error)
    assert result["failed"] and result["code"] == "answer.invalid" and result["fields"] == ["place"]
    assert "\x1b" not in result["msg"]


class FakeConnection:
    """A connection of some transport."""

    def __init__(self, transport):
        self.transport = transport


class FakeTask:
    """What Gated reads of a task."""

    action, args, delegate_to, check_mode = "tree_install", {}, None, False


class Base:
    """What an action plugin's base class does with a module."""

    answer = None

    def _execute_module(self, *_args, **_more):
        return self.answer() if callable(self.answer) else self.answer


def action(answer, transport="ssh"):
    plugin = type(
        "Action",
        (answer_gate.Gated, Base),
        {"answer": staticmethod(answer) if callable(answer) else answer},
    )()
    plugin._connection, plugin._task = FakeConnection(transport), FakeTask()
    return plugin


def test_an_invalid_answer_fails_the_node_that_gave_it():
    result = action(dict(TREE, place="../x"))._execute_module(
        task_vars={"inventory_hostname": "node7"}
    )
    assert result["code"] == "answer.invalid" and result["msg"].startswith("node7 ")
    assert action(TREE)._execute_module(task_vars={})["place"] == TREE["place"]


def test_a_node_cannot_leave_out_its_answer_as_if_it_were_check_mode():
    asked = action({"skipped": True, "changed": False})
    assert asked._execute_module(task_vars={"inventory_hostname": "node7"})["fields"] == ["skipped"]
    asked._task.check_mode = True
    assert asked._execute_module(task_vars={}) == {"skipped": True, "changed": False}


@pytest.mark.parametrize(
    "table", ["geforce.csv", "h100x2.csv", "h100x2_ill.csv", "npu_910b.txt", "npu_a3.txt"]
)
def test_devices_with_a_process_that_cannot_be_seen_pass(table):
    folder = FIXTURES
    if table.startswith("npu"):
        told = devices.look(
            lambda _argv: (0, (folder / table).read_text(), ""), "/b", {"accelerator": "ascend"}
        )
    else:
        told = devices.look(
            Smi(table, (folder / "apps.csv").read_text()), "/b", {"accelerator": "gpu"}
        )
    full = answer_gate.schema("node_info")
    part = dict(full["properties"]["facts"]["properties"]["devices"], **{"$defs": full["$defs"]})
    assert told["processes"] and list(jsonschema.Draft202012Validator(part).iter_errors(told)) == []


@pytest.mark.parametrize("lost", ["attempt", "rss_mib", "run", "pid", "age_s", "command", "user"])
def test_a_process_that_is_half_described_spoils_no_check(lost):
    process = {
        "pid": 7,
        "user": "a",
        "command": "x",
        "age_s": 3,
        "rss_mib": 1,
        "run": RUN,
        "attempt": 1,
    }
    for told in (
        dict(process, **{lost: None}),
        {key: value for key, value in process.items() if key != lost},
    ):
        facts = {"n": {"orphans": {"ours": [told, process], "foreign": [told]}}}
        assert orphans.judge([{"name": "n"}], facts, {})[0]["nodes"] == ["n"]


def test_what_runs_on_the_controller_is_not_a_nodes_answer():
    assert action({"anything": 1}, "local")._execute_module() == {"anything": 1}


def test_a_module_that_does_not_answer_is_ended(monkeypatch):
    monkeypatch.setitem(answer_gate.definition("tree_install"), "seconds", 1)
    begun = time.monotonic()
    result = action(lambda: time.sleep(30))._execute_module(task_vars={})
    assert result["code"] == "answer.late" and time.monotonic() - begun < 10


def test_a_login_that_waits_for_an_answer_ends_with_it_and_no_other(monkeypatch):
    monkeypatch.setitem(answer_gate.definition("tree_install"), "seconds", 1)
    started = [subprocess.Popen(["sleep", "60"])]
    time.sleep(0.05)  # two ticks of the kernel's clock
    try:

        def ask():
            started.append(subprocess.Popen(["sleep", "60"]))
            time.sleep(30)

        assert action(ask)._execute_module(task_vars={})["code"] == "answer.late"
        assert started[1].wait(10) == -signal.SIGTERM and started[0].poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_an_endless_answer_costs_bounded_memory(monkeypatch):
    monkeypatch.setattr(answer_gate, "MEMORY_BYTES", 256 << 20)
    before = resource.getrlimit(resource.RLIMIT_AS)
    result = action(lambda: b"x" * (1 << 30))._execute_module(task_vars={})
    assert result["code"] == "answer.invalid"
    assert resource.getrlimit(resource.RLIMIT_AS) == before


# Modules and actions of the product that run on the controller alone.
CONTROLLERS = set(
    [
        "findings_report",
        "checkpoint_compare",
        "checkpoint_install",
        "conformance",
        "benchmark",
        "drill",
        "environment_differences",
        "fetch_files",
        "tree_send",
        "ssh_host_keys",
        "job_inputs",
        "mesh_authority",
        "ssh_mesh_config",
        "mesh_sign",
        "placement_compare",
        "plan",
        "proof",
        "prune_choice",
        "controller_run_prune",
        "controller_runs_info",
        "prune_summary",
        "log_index",
        "hccl_rank_table",
        "job_config",
        "node_replacement",
        "notify_test",
        "resume_point_choice",
        "resume_decision",
        "run_choice",
        "run_info",
        "run_list",
        "logs_question",
        "logs_run_info",
        "logs_choice",
        "logs_show",
        "logs_follow",
        "run_metrics",
        "run_plan",
        "run_record",
        "run_report",
        "shared_base_check",
        "site_metrics",
        "stop_summary",
        "wheelhouse",
    ]
)


def test_every_module_runs_on_the_controller_or_has_a_schema(root):
    """Of a module without a schema of its own nothing but the common fields passes the gate."""
    names = {path.stem for path in (root / "library").glob("*.py")}
    assert set(answer_gate.modules()) == names - CONTROLLERS


# Actions that run other modules, which have schemas; conformance on the controller alone.
WITH_MODULES = {"conformance", "drill", "logs_run_info", "logs_follow", "tree_send"}


def test_what_runs_on_the_controller_is_an_action_that_asks_no_node(root, load_plugin):
    """Such an action has no schema for answers, so no module of its task may reach a node."""
    actions = CONTROLLERS - {"hccl_rank_table"}  # (a module; called by hand)
    for name in sorted(actions):
        module = (root / "library" / f"{name}.py").read_text(encoding="utf-8")
        assert "import AnsibleModule" not in module, name
    for name in sorted(actions - WITH_MODULES):
        assert load_plugin("action", name).ActionModule.TRANSFERS_FILES is False, name
        text = (root / "plugins" / "action" / f"{name}.py").read_text(encoding="utf-8")
        assert "_execute_module" not in text and "_low_level" not in text, name


# What these do, they do on the controller: no module of theirs runs on a node.
ON_THE_CONTROLLER = {
    "add_host", "assert", "debug", "fail", "group_by", "include_role", "include_tasks",
    "include_vars", "import_playbook", "import_role",
    "import_tasks", "meta", "pause", "set_fact", "validate_argument_spec",
}  # fmt: skip
KEYWORDS = {
    "args", "become", "block", "always", "rescue", "changed_when", "check_mode", "delay",
    "delegate_facts", "delegate_to", "environment",
    "failed_when", "ignore_errors", "ignore_unreachable", "listen", "loop", "loop_control", "name",
    "no_log", "notify", "register", "remote_user",
    "retries", "run_once", "tags", "timeout", "until", "vars", "when",
}  # fmt: skip


def tasks_of(items, local=False):
    """Yield the action of every task in a list of tasks or plays that may run on a node."""
    for item in items if isinstance(items, list) else ():
        here = (
            local
            or str(item.get("delegate_to", "")) == "localhost"
            or item.get("hosts") == "localhost"
        )
        nested = [
            key
            for key in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always")
            if key in item
        ]
        for key in nested:
            yield from tasks_of(item[key], here)
        if not nested and not here and "hosts" not in item:
            yield from (key for key in item if key not in KEYWORDS)


def test_what_is_sent_goes_where_the_controller_says(root):
    """The paths of synchronize come from the inventory, the plan and digests; no name in them is
    one that a node's answer is registered under.
    """
    roles, seen = [path for path in root.glob("roles/*") if path.name != "local_cluster"], 0
    for role in roles:
        known = (
            yaml.safe_load((role / "vars" / "main.yml").read_text())
            if (role / "vars" / "main.yml").exists()
            else {}
        )
        tasks = "\n".join(path.read_text() for path in sorted(role.glob("tasks/*.yml")))
        registered = set(re.findall(r"register: (\w+)", tasks)) - {
            "__runtime_wheelhouse"
        }  # (of the controller)
        for text in re.findall(
            r"(?:synchronize|tree_send|tasks_from: tree\n +vars):\n(?: {4,}\w+: .*\n| +#.*\n| +- .*\n)+",
            tasks,
        ):
            words, seen = set(re.findall(r"\w+", text)), seen + 1
            for _level in range(4):
                words |= {
                    word
                    for name in words & set(known)
                    for word in re.findall(r"\w+", str(known[name]))
                }
            assert not words & registered, (role.name, words & registered)
    assert seen == 2


def test_every_task_on_a_node_passes_the_gate(root, load_plugin):
    """Ansible's own action plugins, by their full names, would hand a node's answer on as it is:
    `add_host` in it is obeyed.
    """
    own = {path.stem for path in (root / "plugins" / "action").glob("*.py")}
    builtin = {
        path.stem for path in pathlib.Path(ansible.plugins.action.__file__).parent.glob("*.py")
    } - {"normal", "__init__"}
    roles = [
        path
        for path in sorted(root.glob("roles/*/tasks/*.yml"))
        if path.parts[-3] != "local_cluster"
    ]
    found = set()
    for path in [*roles, *root.glob("roles/*/handlers/*.yml"), *root.glob("playbooks/**/*.yml")]:
        data = yaml.safe_load(path.read_text())
        found |= {(name, path.name) for name in tasks_of(data)}
    assert len(found) > 60
    # synchronize sends from the controller, where its module runs
    open_ = {
        pair for pair in found if pair[0].rpartition(".")[2] in builtin and pair[0].rpartition(".")[2] not in ON_THE_CONTROLLER
        and (pair[0].startswith("ansible.") or pair[0] not in own)
    }  # fmt: skip
    assert open_ == set()
    for name in (
        "attempt_monitor",
        "command",
        "copy",
        "dnf",
        "drill",
        "node_info",
        "normal",
        "logs_run_info",
        "logs_follow",
        "tree_send",
    ):
        assert issubclass(load_plugin("action", name).ActionModule, answer_gate.Gated), name


@pytest.mark.parametrize(
    ("module", "data", "nice"),
    [
        ("attempt_monitor", b"module", True),
        ("rank_logs_info", b"module", True),
        ("run_history_info", b"module", True),
        ("attempt", b"module", False),
        ("attempt_monitor", None, False),  # no module, but a command of Ansible's own
    ],
)
def test_what_runs_beside_a_training_has_the_processors_last(module, data, nice):
    ran = []

    class Ansible:
        """What the gate needs of an action plugin, with a node that runs each command here."""

        _connection = SimpleNamespace(transport="ssh")
        _task = SimpleNamespace(action=module, args={}, delegate_to=None, check_mode=False)

        def _execute_module(self, *_arguments):
            return self._low_level_execute_command("A=b sh -c 'echo $A; nice'", in_data=data)

        def _low_level_execute_command(self, cmd, _sudoable, in_data):
            done = subprocess.run(["sh", "-c", cmd], input=in_data, capture_output=True, text=False)
            ran.append(done.stdout.split())
            return {}

    class Action(answer_gate.Gated, Ansible):
        """The gate before it."""

    Action()._execute_module(module)
    assert ran == [[b"b", b"19" if nice else str(os.nice(0)).encode()]]
