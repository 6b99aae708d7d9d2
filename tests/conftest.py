# SPDX-License-Identifier: Apache-2.0
"""Let tests import the product as Ansible does: modules by name, module_utils as parts of the
collection, plugins by kind and name.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.loader import init_plugin_loader

ROOT = Path(__file__).resolve().parent.parent

# As ansible-playbook does it: the collection is known with its metadata before anything imports it.
init_plugin_loader([str(ROOT / "collections")])
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import node_module, priority
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate


@pytest.fixture(autouse=True)
def same_environment():
    """Give the next test the environment that this one got. A module's main() may change it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def root():
    """The project's directory."""
    return ROOT


@pytest.fixture
def samples():
    """Real logs, as the nodes wrote them."""
    return ROOT / "tests" / "samples"


@pytest.fixture
def load_plugin():
    """Load plugins/<kind>/<name>.py; plugins of several kinds share one file name, so they cannot
    be on sys.path.
    """

    def load(kind, name):
        spec = importlib.util.spec_from_file_location(
            f"trainyard_{kind}_{name}", ROOT / "plugins" / kind / f"{name}.py"
        )
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def lowered(monkeypatch):
    """Count how often a module has lowered its priority, and keep that of the tests."""
    calls = []
    monkeypatch.setattr(priority, "lower", lambda: calls.append(1))
    return calls


@pytest.fixture
def run_module(capsys, monkeypatch, lowered):
    """Run a module's main() with arguments, as a node does; returns its JSON result."""

    def run(module, arguments, check=False):
        capsys.readouterr()
        monkeypatch.setattr(module, "AnsibleModule", node_module.AnsibleModule)
        given = json.dumps(dict(arguments, _ansible_check_mode=check))
        monkeypatch.setattr(sys, "argv", [module.__name__, given])
        with pytest.raises(SystemExit):
            module.main()
        result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        hold_against_schema(module.__name__, result, arguments)
        return result

    return run


@pytest.fixture
def run_action(load_plugin):
    """Run an action plugin that works on the controller, as its task does; returns its result."""

    def run(name, arguments, check=False):
        task = SimpleNamespace(args=dict(arguments), async_val=0, check_mode=check, action=name)
        shell = SimpleNamespace(tmpdir="/tmp")
        link = SimpleNamespace(_shell=shell, transport="local")
        action = load_plugin("action", name).ActionModule(
            task, link, None, DataLoader(), None, None
        )
        action._load_name = name
        before = process_state()
        result = action.run(task_vars={"inventory_hostname": "localhost"})
        assert process_state() == before, "an action leaves the controller's process as it is"
        return result

    return run


def process_state():
    """Return what an action must not change of the process that it runs in."""
    mask = os.umask(0o077)
    os.umask(mask)
    return os.getcwd(), mask, dict(os.environ)


def hold_against_schema(name, result, arguments):
    """Fail the test where the gate on the controller would refuse an honest answer of a module that
    runs on nodes.
    """
    if name not in answer_gate.modules():
        return
    try:
        answer_gate.validate(
            name,
            json.loads(json.dumps(result)),
            {key: str(value) for key, value in arguments.items()},
        )
    except answer_gate.InvalidAnswer as error:
        pytest.fail(f"the gate would refuse the answer of {name}: {error}")


@pytest.fixture
def marked():
    """Start real processes that bear an attempt's mark (none where it is empty) and stand in no
    unit; they end with the test.
    """
    started = []

    def call(mark, argv=None):
        environment = {
            key: value for key, value in os.environ.items() if key != "TRAINYARD_ATTEMPT"
        }
        environment.update({"TRAINYARD_ATTEMPT": mark} if mark else {})
        argv = argv or [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(60)"]
        process = subprocess.Popen(
            argv, env=environment, stdout=subprocess.PIPE, start_new_session=True
        )
        process.stdout.read(2)
        started.append(process)
        return process

    yield call
    for process in started:
        process.kill()
        process.communicate()


def sample_plan(nodes=2, per_node=2, logs=None):
    """A plan with the parts that readers of logs look at."""
    ranks = [
        {
            "rank": n * per_node + i,
            "node": f"node{n + 1}",
            "local_rank": i,
            "device": str(i),
            "endpoint": f"198.51.100.{11 + n}:{17000 + i}",
        }
        for n in range(nodes)
        for i in range(per_node)
    ]
    launcher = {"name": "paddle", "rank_log": "log/workerlog.{local_rank}", "console": "logs.txt"}
    return {
        "ranks": ranks,
        "suite": {"name": "paddledetection", "logs": logs or {}},
        "launcher": launcher,
    }


@pytest.fixture
def make_attempt(tmp_path, samples):
    """Lay out a node's attempt directory, from a real sample where one is named:
    make_attempt("node2", sample=..., events=[...], exit={...}).
    """

    def make(
        node, sample=None, plan=None, events=None, exit=None, stop=None, logs=None, console=None
    ):
        home = tmp_path / "nodes" / node / "attempt-1"
        (home / "log").mkdir(parents=True)
        (home / "plan.json").write_text(json.dumps(plan or sample_plan()))
        if sample:
            for path in sorted((samples / "logs" / sample / node).iterdir()):
                shutil.copyfile(
                    path, home / ("logs.txt" if path.name == "launch.out" else f"log/{path.name}")
                )
        for local, text in (logs or {}).items():
            (home / "log" / f"workerlog.{local}").write_bytes(
                text.encode() if isinstance(text, str) else text
            )
        if console is not None:
            (home / "logs.txt").write_text(console)
        if events is not None:
            (home / "ranks.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
        for name, value in (("exit.json", exit), ("stop.json", stop)):
            if value is not None:
                (home / name).write_text(json.dumps(value))
        return home

    return make


def pytest_make_parametrize_id(val):
    """A test has the same name in every process. core_support.RUN ends otherwise in each, so that
    none takes another's processes for its own.
    """
    core = sys.modules.get("core_support")
    return (
        val.replace(core.UNIQUE, "ppyoloe-run")
        if core and isinstance(val, str) and core.UNIQUE in val
        else None
    )
