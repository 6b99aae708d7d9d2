# SPDX-License-Identifier: Apache-2.0
"""Start, detach, stop: exactly the run ends, on every node, and nothing else."""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import subprocess
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import (
    JOBS,
    NODES,
    PROJECT,
    background,
    ended,
    last_line,
    left_behind,
    new_run,
    on,
    playbook,
    root,
    runs,
    training,
    wait_for,
)

JOB = ("-e", f"config={JOBS}/long.yml")


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A server for notifications and a directory for metrics: events, metrics, options of both."""
    events = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments):
            """Print nothing."""

    metrics = tmp_path_factory.mktemp("metrics")
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        receivers = [{"url": f"http://127.0.0.1:{server.server_port}/hook"}]
        variables = {"trainyard_metrics_dir": str(metrics), "trainyard_notify": receivers}
        yield SimpleNamespace(events=events, metrics=metrics, options=("-e", json.dumps(variables)))
        server.shutdown()


def state_in(folder, run):
    """Return the state that the metrics of a run have, None if there are none."""
    for path in Path(folder).glob(f"*{run}.prom"):
        for line in path.read_text().splitlines():
            if line.startswith("trainyard_run_state{") and line.endswith(" 1.0"):
                return line.partition('state="')[2].partition('"')[0]
    return None


@pytest.fixture(scope="module")
def detached(tmp_path_factory, told):
    """A long training that was left with Ctrl-C once it had made its first steps, and a bystander
    of the same user on every node.
    """
    for node in NODES:
        on(
            node,
            "systemctl --user reset-failed bystander.service 2>/dev/null; systemd-run --user"
            " --quiet --unit=bystander sleep 3600",
        )
    before, log = runs(), tmp_path_factory.mktemp("stop") / "log"
    controller = background(log, "train", *JOB, *told.options)
    run = wait_for(lambda: new_run(before), 120)
    wait_for(lambda: training(run), 180)
    wait_for(lambda: state_in(told.metrics, run), 30)
    os.killpg(controller.pid, signal.SIGINT)
    code = controller.wait(60)
    yield run, code, log.read_text()
    playbook("stop", "-e", f"run={run}")
    for node in NODES:
        on(node, "systemctl --user stop bystander.service", check=False)


def test_ctrl_c_detaches_and_says_how_to_come_back(detached):
    run, code, text = detached
    assert code != 0
    assert (
        f"playbooks/follow.yml -e run={run}" in text and f"playbooks/stop.yml -e run={run}" in text
    )
    steps = len(training(run))
    wait_for(lambda: len(training(run)) > steps, 60)


def test_status_tells_how_it_stands(detached):
    done = playbook("status")
    assert done.returncode == 0
    assert detached[0] in done.stdout or "running" in done.stdout
    assert all("%-10s running" % node in done.stdout for node in NODES)


def test_a_second_run_is_refused_and_told_who_holds_the_nodes(detached):
    done = playbook("train", *JOB)
    assert done.returncode != 0
    assert f"held by Trainyard run {detached[0]}" in done.stdout
    assert all(ended(node, detached[0]) is None for node in NODES), (
        "the refused start must not end the run that holds the nodes"
    )


def test_another_controller_lists_the_run_that_goes_on(detached, tmp_path):
    """It has no record of its own, and learns everything from the nodes."""
    run = detached[0]
    result = tmp_path / "result.json"
    done = playbook("runs", "-e", f"trainyard_runs_dir={tmp_path}/runs", result=result)
    assert done.returncode == 0, done.stdout
    (row,) = [row for row in json.loads(result.read_text())["runs"] if row["run"] == run]
    assert (row["state"], row["job"], row["mine"]) == ("running", "long", True)
    assert row["nodes"] == list(NODES) and row["loss"] > 0 and row["fraction"] > 0
    assert row["owner"] and row["last_sign"] > 0
    assert run in (tmp_path / "runs" / "index.html").read_text()


def test_the_command_that_followed_has_measured_and_told(detached, told):
    assert [(event["event"], event["run"]) for event in told.events] == [("started", detached[0])]
    assert told.events[0]["nodes"] == list(NODES)
    assert state_in(told.metrics, detached[0]) == "running"


def test_the_exporter_sees_the_run_that_nobody_follows(detached, tmp_path):
    done = playbook("export", "-e", f"trainyard_metrics_dir={tmp_path}")
    assert done.returncode == 0, done.stdout
    assert state_in(tmp_path, detached[0]) == "running"
    (site,) = tmp_path.glob("*.site.prom")
    lines = [line for line in site.read_text().splitlines() if line.endswith(" 1.0")]
    for node in NODES:
        for name in ("trainyard_node_up", "trainyard_node_held"):
            assert [line for line in lines if line.startswith(name + "{") and node in line]


def test_another_account_sees_that_the_node_is_taken(detached):
    """The control group's path is all that it may read."""
    run = detached[0]
    program = (
        "import sys; sys.path.insert(0, '/tmp/core'); from plugins.module_utils.runs import"
        " run_states; print(run_states.other_users())"
    )
    source = PROJECT / "plugins" / "module_utils"
    names = [path for path in source.rglob("*.py")]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for path in names:
            tar.add(path, str(path.relative_to(PROJECT)))
    text = base64.b64encode(archive.getvalue()).decode()
    root("node1", "rm -rf /tmp/core; mkdir /tmp/core")
    subprocess.run(
        ["docker", "exec", "-i", "trainyard-molecule-node1", "sh", "-c"]
        + ["base64 -d | tar -xz -C /tmp/core"],
        input=text,
        text=True,
        check=True,
    )
    found = root("node1", f'setpriv --reuid nobody --clear-groups python3 -c "{program}"')
    assert run in found and "trainer" in found
    root("node1", "rm -r /tmp/core")


def test_stop_of_an_unknown_run_names_the_known_ones(detached):
    done = playbook("stop", "-e", "run=20200101-000000-nothing-0000")
    assert done.returncode != 0 and detached[0] in done.stdout
    assert all(ended(node, detached[0]) is None for node in NODES)


def test_stop_leaves_nothing_of_the_run_and_everything_else(detached):
    run = detached[0]
    assert left_behind(run), "nothing was running that could be stopped"
    done = playbook("stop", "-e", f"run={run}")
    assert done.returncode == 0, done.stdout
    assert left_behind(run) == {}
    for node in NODES:
        assert on(node, "ss -Htln 'sport = :17000'") == ""
        assert on(node, "systemctl --user is-active bystander.service") == "active"
        assert on(node, "systemctl --user list-units --all --plain --no-legend 'trainyard-*'") == ""
    again = playbook("stop", "-e", f"run={run}")
    assert again.returncode == 0 and "changed=0" in again.stdout


def test_the_verdict_of_a_stopped_run_is_stopped_and_told(detached, told):
    done = playbook("follow", "-e", f"run={detached[0]}", *told.options)
    assert done.returncode != 0 and last_line(done.stdout).startswith("STOPPED")
    assert [event["event"] for event in told.events] == ["started", "stopped"]
    assert state_in(told.metrics, detached[0]) == "stopped"
