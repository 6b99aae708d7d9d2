# SPDX-License-Identifier: Apache-2.0
"""A member that lies to the supervisors of its run, on real nodes. The other node follows it, and
executes nothing that no controller has compiled. Nothing changes there but this run.
"""

from __future__ import annotations

import base64
import collections
import json
import re
import shlex
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from harness import left_behind, new_run, on, playbook, quick_job, runs, wait_for

LIAR = Path(__file__).resolve().parent / "files/liar.py"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
# What a node has, but for the run: its account's files, and the user's units.
EVERYTHING = (
    "find . /tmp -xdev -not -path '*{run}*' -type f -printf '%p %s %T@ %m\\n';"
    " systemctl --user list-units --plain --no-legend --type=service | cut -d' ' -f1"
    " | sed '/{run}/d'"
)
Lied = collections.namedtuple("Lied", "run answers attempts before after log status outputs")


def supervisors(node, run, name):
    """Return the text of a file of a node's supervisor."""
    return on(node, f"cat .trainyard/runs/{run}/supervisor/{node}/{name}")


def outside(run):
    """Return the description of a checkpoint: the keys of node1's account, by their true digest."""
    size, digest = on(
        "node1", "wc -c < .ssh/authorized_keys; sha256sum .ssh/authorized_keys"
    ).split()[:2]
    files = {"authorized_keys": ["f", int(size), digest]}
    path = f"/home/trainer/.trainyard/runs/{run}/../../../.ssh"
    return {
        "attempt": 1, "name": "authorized_keys", "stem": "authorized_keys", "path": path,
        "source": "node1", "files": files, "digest": manifest.digest(files), "bytes": int(size),
        "epoch": 9, "step": 9, "lr": None, "saved": 1.0, "instead": False, "first": "node1",
    }  # fmt: skip


@pytest.fixture(scope="module")
def lied():
    """The result of a run whose node2 lied."""
    known = runs()
    done = playbook("train", *quick_job("saves"), "-e", "detach=true")
    assert done.returncode == 0, done.stdout
    run = new_run(known)
    look, outputs = EVERYTHING.format(run=run), {}
    try:
        wait_for(lambda: json.loads(supervisors("node2", run, "status.json"))["point"], 120)
        before = on("node1", look)
        words = shlex.join([run, "node2", "node1", json.dumps(outside(run))])
        program = base64.b64encode(LIAR.read_bytes()).decode()
        try:
            answers = json.loads(on("node2", f"echo {program} | base64 -d | python3 - {words}"))
            # Node1 alone is no majority, so that it decides nothing meanwhile.
            status = json.loads(supervisors("node1", run, "status.json"))
            attempts = on("node1", f"cd .trainyard/runs/{run}; ls -d attempt-*")
            after, log = on("node1", look), supervisors("node1", run, "supervisor.log")
        finally:
            on("node2", f"systemctl --user start yardsupervisor-{run}-1-node2.service")
        for verb, *more in (("status",), ("logs", "-e", "query=ranks")):
            done = playbook(verb, "-e", f"run={run}", *more)
            assert done.returncode == 0, done.stdout
            outputs[verb] = done.stdout
    finally:
        outputs["stop"] = playbook("stop", "-e", f"run={run}").stdout
    return Lied(run, answers, attempts, before, after, log, status, outputs)


def test_the_liar_was_followed(lied):
    assert any(answer["kind"] == "appended" and answer["success"] for answer in lied.answers)
    assert lied.status["attempt"] >= 3 and [v["attempt"] for v in lied.status["verdicts"]] == [1, 2]


def test_what_was_agreed_on_before_stays(lied):
    assert lied.status["denied_by"] == "node2"
    log = json.loads(supervisors("node1", lied.run, "state.json"))["log"]
    plans = [value for _term, value in log if value and value["kind"] == "plan"]
    assert plans[0]["attempt"] == 1 and plans[0]["members"] == ["node1", "node2"]


def test_nothing_begins_that_no_controller_has_compiled(lied):
    findings = [answer["report"][6] for answer in lied.answers if "report" in answer]
    problems = {found["unreachable"] for found in findings if found and "unreachable" in found}
    second, third = sorted(problems)
    assert "attempt 2" in second and "compiled no plan for the nodes node1" in second
    assert "attempt 3" in third and "the checkpoint lies at no path that can be used" in third
    assert lied.attempts == "attempt-1"


def test_nothing_changes_on_the_other_node_but_this_run(lied):
    before, after = set(lied.before.splitlines()), set(lied.after.splitlines())
    # A restart makes a tree of the run's own checkpoint, lends it out by a file of rsync's, and
    # removes such trees of old runs.
    own = ("./.trainyard/checkpoints/", "./.trainyard/staging/", "/tmp/trainyard-rsyncd-")
    assert [line for line in after ^ before if not line.startswith(own)] == []
    assert "./.ssh/authorized_keys" in lied.before
    assert on("node1", "ls /tmp/trainyard-lying-pwned 2>&1 || true").count("No such file") == 1


def test_no_text_of_the_liar_commands_a_terminal(lied):
    assert "\\x1b]52" in lied.log
    for text in (lied.log, *lied.outputs.values()):
        found = CONTROL.search(text)
        assert not found, repr(text[max(0, found.start() - 80) : found.start() + 20])


def test_a_stop_ends_the_run_of_the_liar(lied):
    assert "STOPPED" in lied.outputs["stop"] and left_behind(lied.run) == {}
    for node in ("node1", "node2"):
        assert json.loads(supervisors(node, lied.run, "status.json"))["is_stopped"]
