# SPDX-License-Identifier: Apache-2.0
"""run_plan: this controller's plan and job stay; another controller's are taken from nodes that
agree, and only where they are what they should be.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler
from ansible_collections.trainyard.cluster.plugins.module_utils.records import run_json
from ansible_collections.trainyard.cluster.plugins.plugin_utils.logsync import collector
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import series
from ansible_collections.trainyard.cluster.plugins.plugin_utils.runs import plan_directory
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file
from core_support import ROOT, RUN, compiled, job_of, put

PLAN = compiled()
TEXT = compiler.canonical_bytes(PLAN)
DIGEST = hashlib.sha256(TEXT).hexdigest()
OTHER = RUN[:-4] + "ffff"
SITE = ["node1", "node2", "node3"]
SLOW = r"^(\w+\s?)*$"


@pytest.fixture
def here(tmp_path):
    path = tmp_path / "runs" / RUN / "attempt-1"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def bring(here):
    """Let nodes have brought these bytes: bring({node: (plan, job)}) -> the module's result."""

    def call(brought, digests=None, site=SITE):
        for node, (text, job) in brought.items():
            files = {"plan.json": text, "job.json": job}
            for name, data in files.items():
                if data is not None:
                    path = here / ".incoming" / node / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(data)
        digests = digests or {
            node: hashlib.sha256(text).hexdigest() if text else ""
            for node, (text, _job) in brought.items()
        }
        changed, problems = plan_directory.take(str(here), digests, site)
        return {
            "changed": changed,
            "warnings": problems,
            "lacking": plan_directory.missing_files(str(here)),
        }

    return call


JOB = json.dumps(job_of()).encode()


def test_what_is_here_stays_whatever_a_node_has(bring, here):
    put(here, {"plan.json": '{"ours": 1}', "../job.json": '{"ours": 2}'})
    result = bring({"node1": (TEXT, JOB), "node2": (TEXT, JOB)})
    assert (result["changed"], result["lacking"]) == (False, {})
    assert json.loads((here / "plan.json").read_text()) == {"ours": 1} and json.loads(
        (here.parent / "job.json").read_text()
    ) == {"ours": 2}


def test_what_the_nodes_agree_on_is_taken_with_the_shipped_tables(bring, here):
    result = bring({"node1": (TEXT, JOB), "node2": (TEXT, JOB)})
    assert (result["changed"], result["lacking"]) == (True, {})
    taken = json.loads((here / "plan.json").read_text())
    assert taken == json.loads(
        json.dumps(dict(PLAN, suite=plan_directory.shipped_suite(PLAN["suite"])))
    )
    assert (
        taken["suite"]["logs"] == suite_file.load("paddledetection")["logs"]
        and taken["suite"]["checkpoints"] == PLAN["suite"]["checkpoints"]
    )
    assert json.loads((here.parent / "job.json").read_text())["suite"] == "paddledetection"
    assert {
        os.stat(path).st_mode & 0o777 for path in (here / "plan.json", here.parent / "job.json")
    } == {0o600}
    assert bring({"node1": (b"{}", b"{}")})["changed"] is False


def test_one_liar_of_three_is_outvoted_and_of_two_nothing_is_taken(bring, here):
    other = compiler.canonical_bytes(dict(PLAN, env={"X": "1"}))
    result = bring({"node1": (other, JOB), "node2": (TEXT, JOB)})
    assert (
        "plan.json" in result["lacking"]
        and not (here / "plan.json").exists()
        and result["warnings"]
    )
    assert (
        bring({"node1": (other, None), "node2": (TEXT, None), "node3": (TEXT, None)})["lacking"]
        == {}
    )
    assert json.loads((here / "plan.json").read_text())["env"] == PLAN["env"]


def test_bytes_of_another_digest_than_was_said_are_not_taken(bring, here):
    other = compiler.canonical_bytes(dict(PLAN, env={"X": "1"}))
    assert (
        "plan.json"
        in bring({"node1": (other, None)}, {"node1": DIGEST, "node2": DIGEST})["lacking"]
    )
    assert "plan.json" in bring({"node1": (TEXT, None)}, {"node1": "", "node2": ""})["lacking"]


def changed(*path, to):
    """Return the plan with another value at a path."""
    value = copy.deepcopy(PLAN)
    inside = value
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = to
    return value


def deep(levels):
    value = 1
    for _level in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"null", b"{", b'{"a": NaN}', b"\xff", b"[" * 100000,
        b"x" * (plan_directory.PLAN_BYTES + 1),
        *(json.dumps(value).encode() for value in (
            changed("nodes", 0, "name", to="localhost"), changed("nodes", 0, "name", to="../x"),
                changed("nodes", 1, "name", to="node1"),
            changed("nodes", to=[]), changed("nodes", to="x"), changed("ranks", 0, "rank", to=7),
                changed("ranks", 0, "node", to="node3"),
            changed("ranks", 0, "rank", to="0"), changed("ranks", 0, "rank", to=10**400),
                changed("ranks", 0, "log", to="../../x"),
            changed("ranks", 0, "log", to="/etc/passwd"), changed("ranks", 0, "endpoint", to="a b"),
                changed("ranks", to=[]),
            changed("suite", "name", to="../../x"), changed("suite", "name", to="none"),
                changed("suite", to=None),
            changed("launcher", "name", to="none"), changed("launcher", "rank_log", to="../x"),
                changed("launcher", "console", to="/x"),
            changed("env", to={"A": 1}), changed("env", to={"A": "x" * 20000}),
                changed("job", "name", to="a\nb"), changed("version", to=2),
            changed("suite", "checkpoints", "folders", to=["../.."]),
                changed("suite", "redirects", to={"a": "../b"}), changed("advice", to=deep(30)),
            changed("ranks", 1, "local_rank", to=0), changed("epochs", to="x"),
        )),
    ],
    ids=lambda text: hashlib.sha256(text).hexdigest()[:8],
)  # fmt: skip
def test_what_is_no_plan_is_not_taken(bring, here, text):
    result = bring(
        {"node1": (text, None), "node2": (text, None)},
        {name: hashlib.sha256(text).hexdigest() for name in ("node1", "node2")},
    )
    assert (
        "plan.json" in result["lacking"]
        and result["warnings"]
        and not (here / "plan.json").exists()
    )


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"[" * 100000, b"x" * (plan_directory.JOB_BYTES + 1), b"{}",
    json.dumps(job_of(suite="x")).encode(),
     json.dumps(job_of(env={"LD_PRELOAD": "x"})).encode(),
     json.dumps(job_of(name="a\x1b[2J")).encode(), json.dumps(job_of(nodes="x")).encode()],
)  # fmt: skip
def test_what_is_no_job_is_not_taken(bring, here, data):
    assert (
        "job.json" in bring({"node1": (TEXT, data)})["lacking"]
        and not (here.parent / "job.json").exists()
    )
    with pytest.raises(plan_directory.PlanProblem):
        plan_directory.read_job(data)
    assert plan_directory.read_job(JOB)["suite"] == "paddledetection"


@pytest.mark.parametrize("planted", [".incoming", ".incoming/node1", ".incoming/node1/plan.json"])
def test_a_link_in_the_way_is_not_read(bring, here, tmp_path, planted):
    outside = tmp_path / "outside"
    put(outside, {"plan.json": TEXT.decode(), "node1/plan.json": TEXT.decode()})
    (here / planted).parent.mkdir(parents=True, exist_ok=True)
    os.symlink(outside / "plan.json" if planted.endswith("json") else outside, here / planted)
    assert "plan.json" in bring({}, {"node1": DIGEST})["lacking"]
    assert (outside / "plan.json").exists() and (outside / "node1/plan.json").exists()


def laid(folder, value, own):
    """Lay out a run whose plan.json is `value`; own: this controller has recorded its digest."""
    text = compiler.canonical_bytes(value)
    put(
        folder,
        {
            "attempt-1/plan.json": text.decode(),
            "plan.json": text.decode(),
            "attempt-1/rank-000.node1.log": "a " * 30 + "!\n",
        },
    )
    digest = hashlib.sha256(text).hexdigest() if own else "0" * 64
    run_json.write_entry(
        str(folder),
        run_json.new_record(RUN, "x", 1.0),
        run_json.new_entry(1, plan_sha256=digest, started=1.0),
    )
    return str(folder)


def test_an_expression_of_a_node_is_not_run_here(tmp_path):
    """A plan that an older Trainyard has fetched from a node, in the place of the controller's
    own.
    """
    value = changed("suite", "logs", to={"step": {"line": SLOW}})
    began = time.monotonic()
    found = series.of_run(laid(tmp_path / RUN, value, own=False))
    assert time.monotonic() - began < 20 and found["suite"] == "paddledetection"
    mine = changed("suite", "logs", to={"step": {"line": r"^a (?P<loss>a)"}})
    put(tmp_path / "own", {})
    assert found["unit"] == "images/s" and found["attempts"][0]["series"] == {}
    own = series.of_run(laid(tmp_path / "own" / RUN, mine, own=True))
    assert list(own["attempts"][0]["series"]) == [0]


def test_curves_of_a_plan_that_was_taken(bring, here):
    bring({"node1": (TEXT, None)})
    put(
        here,
        {
            "rank-000.node1.log": (
                "[11/20 19:18:14] ppdet.engine INFO: Epoch: [0] [ 1/12] learning_rate: 0.1 loss:"
                " 2.6 eta: 0:00:02 ips: 4.1 images/s\n"
            )
        },
    )
    found = series.of_run(str(here.parent))
    assert found["attempts"][0]["series"][0]["loss"] == [2.6]


def test_the_role_keeps_what_is_here_and_asks_no_node(tmp_path, here):
    """The role's own tasks, against a node that cannot even be reached: with a plan here nothing is
    asked.
    """
    put(here, {"plan.json": '{"ours": 1}', "../job.json": "{}"})
    task = {"import_role": {"name": "collect", "tasks_from": "plan"}}
    plays = [{"hosts": "node1", "gather_facts": False, "tasks": [task]}]
    plays[0]["vars"] = {
        "run_attempt": {"run_id": RUN, "number": 1, "nodes": ["node1"]},
        "collect_runs_dir": str(tmp_path / "runs"),
        "ansible_ssh_executable": "/bin/false",
    }
    put(
        tmp_path,
        {
            "play.yml": json.dumps(plays),
            "hosts.yml": json.dumps({"trainers": {"hosts": {"node1": None}}}),
        },
    )
    words = [
        os.path.join(os.path.dirname(sys.executable), "ansible-playbook"),
        "-i",
        str(tmp_path / "hosts.yml"),
        str(tmp_path / "play.yml"),
    ]
    done = subprocess.run(
        [*words, "-e", json.dumps({"ansible_python_interpreter": sys.executable})],
        cwd=ROOT, env=dict(os.environ, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg")),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert json.loads((here / "plan.json").read_text()) == {"ours": 1}
    assert collector.INCOMING not in os.listdir(here)


def test_the_patterns_of_a_node_are_not_taken_and_neither_are_nodes_that_the_site_does_not_have(
    bring, here
):
    text = compiler.canonical_bytes(changed("suite", "logs", to={"step": {"line": SLOW}}))
    assert "plan.json" in bring({"node1": (text, None)}, site=["node1"])["lacking"]
    assert bring({"node1": (text, None)})["lacking"].keys() == {"job.json"}
    assert (
        json.loads((here / "plan.json").read_text())["suite"]["logs"]
        == suite_file.load("paddledetection")["logs"]
    )


def test_each_node_has_the_digest_that_one_of_its_answers_named():
    first = {"node1": {"plan_sha256": "a", "attempt": 2}, "node2": {}, "node3": {"attempt": 2}}
    second = {"node1": {}, "node2": {"plan_sha256": "b", "attempt": 2}, "node3": {}}
    later = {"node1": {"plan_sha256": "c", "attempt": 3}, "node3": {"plan_sha256": "c"}}
    found = plan_directory.read_digests([first, second, later], "runs/x/attempt-2/")
    assert found == {"node1": "a", "node2": "b", "node3": ""}


def test_nobody_else_reads_the_directories_of_a_run(run_action, here):
    here.chmod(0o755)
    here.parent.chmod(0o755)
    asked = {"state": "looked", "attempt_dir": str(here)}
    assert not run_action("run_plan", asked, check=True)["changed"]
    assert run_action("run_plan", asked)["changed"]
    assert [path.stat().st_mode & 0o777 for path in (here, here.parent)] == [0o700, 0o700]
    assert not run_action("run_plan", asked)["changed"]
    other = here.parent.parent / OTHER / "attempt-1"
    run_action("run_plan", {"state": "looked", "attempt_dir": str(other)})
    assert other.stat().st_mode & 0o777 == 0o700
