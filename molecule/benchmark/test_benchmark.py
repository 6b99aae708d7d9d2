# SPDX-License-Identifier: Apache-2.0
"""benchmark.yml on real nodes: a training on each number of nodes, its table, its end, a limit of
time, and a node that is held.
"""

from __future__ import annotations

import json
import os
import signal

from harness import JOBS, PROJECT, background, on, playbook, runs, wait_for

FOLDERS = PROJECT / "runs" / "benchmark"


def benchmark(job, *words):
    """Return (the finished command, its rows, the runs that it has made)."""
    before = set(runs())
    folders = set(FOLDERS.glob("*"))
    done = playbook("benchmark", "-e", f"config={JOBS}/{job}.yml", *words, timeout=900)
    fresh = set(FOLDERS.glob("*")) - folders
    rows = []
    for folder in fresh:
        if (folder / "benchmark.json").exists():
            rows = json.loads((folder / "benchmark.json").read_text())["rows"]
    return done, rows, sorted(set(runs()) - before)


def test_a_job_is_trained_on_one_and_on_two_nodes():
    done, rows, made = benchmark("one_epoch", "-e", "nodes=1,2")
    assert done.returncode == 0, done.stdout[-4000:]
    assert [row["nodes"] for row in rows] == [1, 2] and [row["run"] for row in rows] == made
    assert [row["names"] for row in rows] == [["node1"], ["node1", "node2"]]
    assert all(row["outcome"] == "completed" for row in rows)
    # The same samples on twice the ranks are half the steps. An epoch's last one is not printed.
    assert [row["steps"] for row in rows] == [23, 11]
    for row in rows:
        record = json.loads((PROJECT / "runs" / row["run"] / "run.json").read_text())
        assert record["outcome"] == "completed" and record["restarts"] == 0
        assert 0 < row["seconds"] < row["whole_seconds"]
        # All parts of a step are its time, but for the spread of the figures.
        assert sum(row["step_parts"].values()) >= 0.99 * row["step_seconds"]
    assert rows[0]["speed_up"] == 1 and rows[1]["speed_up"] == rows[1]["speed"] / rows[0]["speed"]
    (page,) = [line for line in done.stdout.splitlines() if line.startswith("report ")][-1:]
    assert "Scaling" in open(page.split()[-1], encoding="utf-8").read()


def test_a_training_ends_with_its_time():
    done, rows, made = benchmark("long", "-e", "nodes=2", "-e", "minutes=0.2")
    assert done.returncode == 0, done.stdout[-4000:]
    (row,) = rows
    assert row["outcome"] == "stopped" and row["run"] == made[0] and row["speed"] > 0
    # Afterwards each node trained alone, both at the same time.
    (said,) = [path for path in FOLDERS.glob("*/benchmark.json") if row["run"] in path.read_text()]
    alone = json.loads(said.read_text())["alone"]
    assert [one["node"] for one in alone] == ["node1", "node2"]
    assert sorted(one["run"] for one in alone) == made[1:] and len(made) == 3
    first, second = (
        json.loads((PROJECT / "runs" / run / "run.json").read_text()) for run in made[1:]
    )
    assert first["started"] < second["ended"] and second["started"] < first["ended"]
    assert sum(row["step_parts"].values()) >= 0.99 * row["step_seconds"]
    assert set(row["step_parts"]) == {"compute", "loading", "waiting", "exchange"}
    assert on("node1", "systemctl --user list-units 'trainyard-*' --no-legend").strip() == ""


def test_nothing_is_trained_where_a_node_is_held():
    done = playbook("train", "-e", f"config={JOBS}/long.yml", "-e", "detach=true", timeout=300)
    try:
        done, rows, made = benchmark("one_epoch", "-e", "nodes=1,2")
        assert done.returncode != 0 and (rows, made) == ([], []), done.stdout[-4000:]
        assert "held" in done.stdout
    finally:
        assert playbook("stop").returncode == 0


def test_ctrl_c_stops_the_training_on_its_nodes(tmp_path):
    before = set(runs())
    words = ["-e", f"config={JOBS}/long.yml", "-e", "nodes=2"]
    process = background(tmp_path / "output", "benchmark", *words)
    units = "systemctl --user list-units 'trainyard-*' --no-legend"
    wait_for(lambda: "-1.service" in on("node1", units), 180)
    os.killpg(process.pid, signal.SIGINT)
    process.wait(180)
    (run,) = set(runs()) - before
    wait_for(lambda: on("node1", units).strip() == "", 60)
    said = [path.read_text() for path in FOLDERS.glob("*/train-2.txt.stop")]
    assert any(f"STOPPED {run} on node1, node2" in text for text in said)
    record = PROJECT / "runs" / run / "run.json"
    wait_for(lambda: json.loads(record.read_text())["outcome"] == "stopped", 60)
