# SPDX-License-Identifier: Apache-2.0
"""examples/monitoring against a real Prometheus: its alerts, and each query of the dashboard.

The product writes the files. A server of this test serves them as the node exporter would, and
Prometheus scrapes it. .config/prometheus.sh brings Prometheus, and TRAINYARD_PROMETHEUS names its
directory.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.monitor import live_metrics
from ansible_collections.trainyard.cluster.plugins.plugin_utils.report import metrics_file
from unit.live.test_screen import STEP, status
from unit.monitor.test_live_metrics import RUN, STALL, both, watched

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "monitoring"
SERIES = ROOT / "tests" / "fixtures" / "series"
BOARD = json.loads((EXAMPLES / "trainyard.dashboard.json").read_text())
QUERIES = [
    (panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]
]
# The alerts that the files below cause, each evaluated once.
EXPECTED = {
    ("TrainyardRunHung", "firing"),
    ("TrainyardNodeDown", "pending"),
    ("TrainyardRunNotFollowed", "pending"),
}
ALL_ALERTS = " and on () ".join(f'ALERTS{{alertname="{name}"}}' for name, _state in EXPECTED)


def program(name):
    folder = os.environ.get("TRAINYARD_PROMETHEUS")
    return shutil.which(name, path=folder or None)


pytestmark = pytest.mark.skipif(
    not program("promtool") and not os.environ.get("TRAINYARD_PROMETHEUS"),
    reason="no prometheus here; .config/prometheus.sh brings it",
)


@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", "trainyard.rules.yml"),
        ("test", "rules", "trainyard.rules.test.yml"),
        ("check", "config", "prometheus.yml"),
    ],
)
def test_promtool_accepts_the_examples(command):
    done = subprocess.run(
        [program("promtool"), *command], cwd=EXAMPLES, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Collector(BaseHTTPRequestHandler):
    """Serves the text files of a directory as one page."""

    def do_GET(self):
        paths = sorted(self.server.folder.glob("*.prom"))
        body = b"".join(path.read_bytes() for path in paths)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments):
        """Print nothing."""


def write_files(folder, run_action):
    """Write what a follower, an end and an exporter write."""
    runs = folder.parent / "runs"
    for name in ("evaluated", "failed"):
        run = json.loads((SERIES / name / "run.json").read_text())["run"]
        shutil.copytree(SERIES / name, runs / run)
        metrics_file.write_metrics(str(runs), run, str(folder), True, pytest.fail)
    ended = (runs / RUN / "run.json").read_text()
    assert f'"{RUN}"' in ended, "the failed run is the one that goes on below"
    shutil.rmtree(runs / RUN)
    hung = both(step=dict(STEP, lr=0.1), guard={"stall": STALL})
    follower = live_metrics.RunMetrics(str(runs), str(folder), "lab", follows=True)
    follower.write(watched(*hung), 0.0, time.time())
    other = status("node3", run="20261121-190935-other-1b3e", nodes=["node3"], job="other")
    run_action(
        "site_metrics",
        {
            "site": "lab",
            "nodes": ["node3", "node4"],
            "results": {"node3": {"status": other}, "node4": {"unreachable": True}},
            "runs_dir": str(runs),
            "directory": str(folder),
        },
    )


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def prometheus(tmp_path, run_action):
    """The address of a Prometheus that has scraped the files."""
    folder = tmp_path / "collector"
    folder.mkdir()
    write_files(folder, run_action)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    server.folder = folder
    threading.Thread(target=server.serve_forever, daemon=True).start()
    text = (EXAMPLES / "prometheus.yml").read_text()
    text = text.replace("controller.example:9100", f"127.0.0.1:{server.server_port}")
    text = text.replace("15s", "1s").replace("[trainyard", f"[{EXAMPLES}/trainyard")
    (tmp_path / "prometheus.yml").write_text(text)
    port = free_port()
    with open(tmp_path / "log", "wb") as log:
        process = subprocess.Popen(
            [
                program("prometheus"),
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(
            lambda: ask(address, "query", query=ALL_ALERTS),
            tmp_path / "log",
        )
        yield address
    finally:
        process.terminate()
        process.wait()
        server.shutdown()
        server.server_close()


def ask(address, path, **parameters):
    """Return the result of Prometheus' interface."""
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        data = json.load(response)["data"]
    return data.get("result", data)


def wait_for(look, log, seconds=60):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if look():
                return
        except OSError:
            pass  # it does not listen yet
        time.sleep(0.5)
    pytest.fail(f"nothing after {seconds} s: {log.read_text()[-2000:]}")


def test_a_live_prometheus_takes_files_rules_and_queries(prometheus):
    [target] = ask(prometheus, "targets")["activeTargets"]
    assert target["health"] == "up", target["lastError"]
    groups = ask(prometheus, "rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert rules and {rule["health"] for rule in rules} == {"ok"}
    alerts = ask(prometheus, "query", query="ALERTS")
    named = {(one["metric"]["alertname"], one["metric"]["alertstate"]) for one in alerts}
    assert named == EXPECTED
    assert {one["metric"]["run"] for one in alerts if "run" in one["metric"]} == {
        RUN,
        "20261121-190935-other-1b3e",
    }
    for title, query in QUERIES:
        assert ask(prometheus, "query", query=query.replace("$run", ".*")), (title, query)
