# SPDX-License-Identifier: Apache-2.0
"""A short real training on two nodes, looked at from outside."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import threading

import pytest
from harness import JOBS, NODES, PROJECT, last_line, left_behind, new_run, on, playbook, runs

JOB = ("-e", f"config={JOBS}/short.yml")


@pytest.fixture(scope="module")
def strays():
    """Variables in the user's own systemd and shells that must reach neither rehearsal nor
    training.
    """
    for node in NODES:
        on(
            node,
            "systemctl --user set-environment PADDLE_NNODES=1 PADDLE_TRAINER_ENDPOINTS=127.0.0.1:1"
            " TRAINYARD_STRAY=1",
        )
        on(
            node,
            "echo 'export PADDLE_NNODES=1' >> .bashrc; echo 'export PADDLE_NNODES=1' >> .profile",
        )
    yield
    for node in NODES:
        on(
            node,
            "systemctl --user unset-environment PADDLE_NNODES PADDLE_TRAINER_ENDPOINTS"
            " TRAINYARD_STRAY",
        )
        on(node, "sed -i /PADDLE_NNODES/d .bashrc .profile")


@pytest.fixture(scope="module")
def checked(strays):
    """The whole check of the job, rehearsal included."""
    return playbook("check", *JOB, "-e", "preflight_rehearsal_hours=0")


@pytest.fixture(scope="module")
def monitored(tmp_path_factory):
    """Options of a site that is told about its runs, and where it is told."""
    folder = tmp_path_factory.mktemp("monitored")
    (folder / "collector").mkdir()
    command = ["sh", "-c", 'cat >> "$0"; echo >> "$0"', str(folder / "events")]
    unreachable = {"url": "http://127.0.0.1:9/TOKEN4711", "template": "slack"}
    variables = {
        "trainyard_metrics_dir": str(folder / "collector"),
        "trainyard_notify": [{"command": command}, unreachable],
    }
    return folder, ("-e", json.dumps(variables))


@pytest.fixture(scope="module")
def snapshots(monitored):
    """Contents of the collector's directory, one of every second, while the tests go on."""
    ended, contents = threading.Event(), []

    def look():
        while not ended.wait(1):
            contents.extend(
                path.read_text() for path in (monitored[0] / "collector").glob("*.prom")
            )

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield contents
    ended.set()
    thread.join()


@pytest.fixture(scope="module")
def trained(checked, monitored, snapshots):
    """Train once."""
    before = runs()
    done = playbook("train", *JOB, *monitored[1])
    print(done.stdout)
    return done, new_run(before)


def test_completes_and_says_so_last(trained):
    done, run = trained
    assert done.returncode == 0
    assert last_line(done.stdout).startswith("COMPLETED: 2 ranks on 2 nodes")
    assert re.search(r"epoch 3/3  step \d+/\d+  loss [\d.]+  [\d.]+ images/s", done.stdout), (
        "no progress was shown"
    )
    record = json.loads((PROJECT / "runs" / run / "run.json").read_text())
    assert record["attempts"][0]["verdict"]["outcome"] == "completed"
    log = (PROJECT / "runs" / run / "attempt-1" / "rank-000.node1.log").read_text()
    losses = [float(loss) for loss in re.findall(r" loss: ([\d.]+) ", log)]
    assert len(losses) >= 18 and sum(losses[-6:]) < 0.9 * sum(losses[:6]), (
        f"the loss does not fall: {losses}"
    )


def test_metrics_and_events_while_it_goes_on(trained, monitored, snapshots):
    """A receiver that cannot be reached is a warning and keeps its address secret."""
    done, run = trained
    going = [text for text in snapshots if 'state="running"} 1.0' in text]
    assert len({text for text in going}) >= 3, "the file is written again and again"
    steps = [re.search(r"trainyard_run_last_step\{.*\} (\S+)", text) for text in going]
    numbers = [float(match[1]) for match in steps if match]
    assert len(set(numbers)) >= 2 and numbers == sorted(numbers), numbers
    [path] = (monitored[0] / "collector").glob("*.prom")
    assert path.name == f"trainyard-molecule-{run}.prom"
    assert 'state="completed"} 1.0' in path.read_text(), "the end replaces them"
    lines = (monitored[0] / "events").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["event"] for event in events] == ["started", "completed"]
    assert {(event["run"], event["attempt"]) for event in events} == {(run, 1)}
    assert done.stdout.count("trainyard_notify[1] (http://127.0.0.1:9) was not told") == 1
    assert "TOKEN4711" not in done.stdout


def test_a_look_at_the_site_leaves_the_files_of_an_end(trained, monitored):
    """export.yml sees the same run and the nodes, with one task per node."""
    [path] = (monitored[0] / "collector").glob("*.prom")
    before = path.read_bytes()
    done = playbook("export", *monitored[1])
    assert done.returncode == 0, done.stdout
    assert path.read_bytes() == before
    text = (monitored[0] / "collector" / "trainyard-molecule.site.prom").read_text()
    for node in NODES:
        assert f'trainyard_node_up{{node="{node}",site="molecule"}} 1.0' in text


def test_check_proves_all_of_it_without_a_start(checked):
    assert checked.returncode == 0, checked.stdout
    assert last_line(checked.stdout) == "READY: nothing keeps this job from starting"
    assert "TASK [preflight : Start the rehearsal" in checked.stdout and re.search(
        r"^NOTE .* rehearsal.passed .*2 ranks", checked.stdout, re.M
    )


def test_the_network_is_tested_with_fewer_workers_than_nodes_too(checked):
    done = playbook("check", *JOB, "--forks", "1", "-e", "preflight_network_hours=0")
    assert done.returncode == 0, done.stdout
    assert "TASK [preflight : Record the listeners]" in done.stdout
    for words in (checked.stdout, done.stdout):
        assert "network.measured" in words and "Gbit/s" in words


def test_a_site_that_was_proven_costs_a_node_two_tasks_before_the_start(trained):
    """The probe and the network's check; nothing is rehearsed again."""
    before_start = trained[0].stdout.split("TASK [launch : Start the attempt]")[0]
    assert "TASK [preflight : Start the rehearsal" not in before_start
    own = {
        node: re.findall(rf"^(?:ok|changed|skipping): \[{node}\]", before_start, re.M)
        for node in NODES
    }
    assert [len(lines) for lines in own.values()] == [2, 2], before_start
    # nor does the controller do anything in the name of a node
    assert not re.findall(r"^\w+: \[\w+ -> localhost\]", before_start, re.M), before_start


def test_every_rank_log_is_home_bit_for_bit(trained):
    run = trained[1]
    home = PROJECT / "runs" / run / "attempt-1"
    for rank, node in enumerate(NODES):
        for copy, original in (
            ("rank-%03d.%s.log" % (rank, node), "log/workerlog.0"),
            (f"launcher.{node}.log", "logs.txt"),
        ):
            there = on(node, f"sha256sum .trainyard/runs/{run}/attempt-1/{original}").split()[0]
            here = subprocess.run(
                ["sha256sum", home / copy], text=True, check=True, stdout=subprocess.PIPE
            ).stdout.split()[0]
            assert here == there, copy
            assert stat.S_IMODE((home / copy).stat().st_mode) == 0o600
    names = " ".join(path.name for path in home.rglob("*"))
    assert "envlog" not in names and "backup_env" not in names and "default." not in names
    assert on("node1", f"ls .trainyard/runs/{run}/attempt-1/log | grep -c ^default") != "0", (
        "there was nothing to leave behind"
    )
    assert {
        entry["rank"]: entry["node"]
        for entry in json.loads((home / "ranks.json").read_text())["ranks"]
    } == {0: "node1", 1: "node2"}


def test_the_checkpoint_is_home_bit_for_bit(trained):
    run = trained[1]
    copy = PROJECT / "runs" / run / "attempt-1" / "checkpoint" / "best_model.pdparams"
    there = on(
        "node1", f"sha256sum .trainyard/runs/{run}/attempt-1/output/*/best_model.pdparams"
    ).split()[0]
    assert (
        subprocess.run(
            ["sha256sum", copy], text=True, check=True, stdout=subprocess.PIPE
        ).stdout.split()[0]
        == there
    )


def test_all_nodes_ran_the_same_plan_and_nothing_else(trained):
    run = trained[1]
    digests = {on(node, f"sha256sum < .trainyard/runs/{run}/attempt-1/plan.json") for node in NODES}
    assert len(digests) == 1
    plan = json.loads((PROJECT / "runs" / run / "plan.json").read_text())
    assert plan["argv"][:2] == ["fleetrun", "--ips=198.51.100.101,198.51.100.102"]
    for node in NODES:
        # what Paddle itself reports, and what really was in the children's environment (Paddle
        # writes it down)
        reported = on(node, f"cat .trainyard/runs/{run}/attempt-1/log/default.*.log")
        assert "['198.51.100.101:17000', '198.51.100.102:17000']" in reported
        assert "TRAINYARD_STRAY" not in reported and "'PADDLE_NNODES': '1'" not in reported
    assert left_behind(run) == {}


def test_the_code_tree_stays_as_it_was(trained):
    plan = json.loads((PROJECT / "runs" / trained[1] / "plan.json").read_text())
    tree = ".trainyard/code/{}".format(plan["code"]["digest"][:16])
    for node in NODES:
        assert on(node, f"find {tree} -name '*.pyc' -o -name output -o -writable -type f") == ""


def test_check_mode_shows_the_commands_and_changes_nothing(trained):
    before = runs(), [on(node, "ls -R .trainyard/runs .trainyard/code") for node in NODES]
    done = playbook("train", *JOB, "--check")
    assert done.returncode == 0
    assert (
        "fleetrun --ips=198.51.100.101,198.51.100.102" in done.stdout
        and "FLAGS_START_PORT=17000" in done.stdout
    )
    assert before == (runs(), [on(node, "ls -R .trainyard/runs .trainyard/code") for node in NODES])


def test_a_changed_file_on_one_node_stops_the_run_by_name_and_sync_mends_it(trained):
    plan = json.loads((PROJECT / "runs" / trained[1] / "plan.json").read_text())
    victim = ".trainyard/code/{}/tools/train.py".format(plan["code"]["digest"][:16])
    on("node2", f"chmod u+w {victim} && printf ' ' >> {victim}")
    before = runs()
    done = playbook("train", *JOB)
    assert done.returncode != 0 and runs() == before
    rows = {
        tuple(line.split()[:4])
        for line in done.stdout.splitlines()
        if line.lstrip().startswith("STOP ")
    }
    assert rows == {
        ("STOP", "node2", "ready.tree_differs", "code/{}".format(plan["code"]["digest"][:16]))
    }, done.stdout
    assert "tools/train.py" in done.stdout
    assert playbook("sync", *JOB).returncode == 0
    assert "nothing, every node is ready" in playbook("train", *JOB, "--check").stdout


def test_one_machine_takes_the_same_path(trained):
    done = playbook("train", "-e", f"config={JOBS}/single.yml")
    assert done.returncode == 0, done.stdout
    assert last_line(done.stdout) == "COMPLETED: 1 rank on 1 node ended with exit code 0"
    assert (
        "--ips" not in json.loads((PROJECT / "runs" / runs()[-1] / "plan.json").read_text())["argv"]
    )


def test_visualdl_records_come_as_far_as_they_are_written(trained):
    """They come again and again, as the training writes them."""
    run = trained[1]
    refused = playbook("visualdl", "-e", f"run={run}")
    assert refused.returncode != 0 and "--use_vdl" in refused.stdout
    record = f".trainyard/runs/{run}/attempt-1/vdl/vdlrecords.1795183247.log"
    copy = PROJECT / "runs" / run / "attempt-1" / "visualdl" / "node1"
    copy = copy / "vdl" / "vdlrecords.1795183247.log"
    for text in ("one", "one two"):
        on("node1", f"mkdir -p {record.rpartition('/')[0]}; printf '{text}' > {record}")
        done = playbook("visualdl", "-e", f"run={run}")
        assert done.returncode == 0, done.stdout
        assert copy.read_text() == text
    assert f"visualdl --logdir {copy.parents[2]}" in done.stdout
