# SPDX-License-Identifier: Apache-2.0
"""Real MindSpore trainings on two nodes, with an AllReduce over both; a stop under mpirun; the rank
table's environment.
"""

from __future__ import annotations

import json
import re

import pytest
from harness import (
    JOBS,
    NODES,
    PROJECT,
    attempt_file,
    background,
    ended,
    last_line,
    left_behind,
    new_run,
    on,
    playbook,
    root,
    runs,
    wait_for,
)

LAUNCHERS = {"msrun": "log/worker_%d.log", "mpirun": "log/rank_%d.log"}


@pytest.fixture(scope="module", params=LAUNCHERS)
def trained(request):
    """Train; once more where MindSpore's CPU build crashed while it shut down, after the training's
    last word (docs/facts.md).
    """
    for _attempt in range(2):
        before = runs()
        done = playbook("train", "-e", f"config={JOBS}/{request.param}.yml", timeout=1500)
        print(done.stdout)
        run = new_run(before)
        if not run or "SIGSEGV" not in last_line(done.stdout):
            break
        logs = (PROJECT / "runs" / run / "attempt-1").glob("rank-*.log")
        assert all("the sum of its weights is" in path.read_text() for path in logs), (
            "a rank crashed before it had trained"
        )
    return request.param, done, run


def test_completes_with_an_all_reduce_over_both_nodes(trained):
    _launcher, done, run = trained
    assert done.returncode == 0 and last_line(done.stdout).startswith(
        "COMPLETED: 2 ranks on 2 nodes"
    ), done.stdout[-3000:]
    home = PROJECT / "runs" / run / "attempt-1"
    for rank, node in enumerate(NODES):
        log = (home / ("rank-%03d.%s.log" % (rank, node))).read_text()
        assert re.search(r"AllReduce of .* gave \[3.0, 3.0\], wanted", log), (
            "rank %d does not say what it reduced" % rank
        )
    losses = [
        float(loss)
        for loss in re.findall(
            r"epoch: \[\d+/\d+\], loss: ([\d.]+)", (home / "rank-000.node1.log").read_text()
        )
    ]
    assert len(losses) == 2 and losses[1] < losses[0], f"the loss does not fall: {losses}"
    assert not left_behind(run)


def test_the_launchers_command_and_logs(trained):
    launcher, _done, run = trained
    plan = json.loads((PROJECT / "runs" / run / "plan.json").read_text())
    assert plan["argv"][0] == launcher and "system.distribute=true" in plan["argv"]  # contract D2
    for rank, node in enumerate(NODES):
        assert attempt_file(node, run, LAUNCHERS[launcher] % rank), (
            "rank %d has no log where the plan says" % rank
        )
    assert attempt_file("node1", run, "log/scheduler.log") and not attempt_file(
        "node2", run, "log/scheduler.log"
    )
    assert (PROJECT / "runs" / run / "attempt-1" / "scheduler.node1.log").exists()


def test_a_stop_under_mpirun_ends_its_daemons_on_every_node(tmp_path):
    before = runs()
    background(tmp_path / "train.log", "train", "-e", f"config={JOBS}/mpirun_long.yml")

    def training():
        """Rank 1, which Open MPI's daemon started on node2, trains."""
        run = new_run(before)
        return (
            run
            and "TRAINYARD_RANK"
            in on(
                "node2",
                "cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep ^TRAINYARD_RANK= || true",
            )
            and run
        )

    run = wait_for(training, 120)
    unit = on(
        "node2", "systemctl --user list-units --plain --no-legend 'trainyard-*' | cut -d' ' -f1"
    )
    assert run in unit
    inside = on("node2", f"systemctl --user status --no-pager --lines=0 '{unit}' || true")
    assert "orted" in inside and "tools/train.py" in inside, (
        "the daemon is not inside the unit:\n" + inside
    )
    stopped = playbook("stop")
    assert stopped.returncode == 0, stopped.stdout
    assert all(
        wait_for(lambda node=node: ended(node, run), 30) for node in NODES
    ) and not left_behind(run)
    assert "orted" not in "".join(on(node, "ps -u trainer -o comm=") for node in NODES)


# --- the rank table

DEVICES = {
    "node1": ["192.168.100.101", "192.168.101.101"],
    "node2": ["192.168.100.102", "192.168.101.102"],
}


def site():
    """Return what makes an Ascend site of molecule's nodes: the stand-in's devices, a Python that
    is taken as it is.
    """
    python = on("node1", "ls -d ~/.trainyard/env/*/bin/python | head -n 1")
    suite = {
        "code": {"path": str(PROJECT / "molecule/shared/rank_table")},
        "environment": {"python": python},
    }
    return json.dumps(
        {
            "trainyard_accelerator": "ascend",
            "trainyard_devices": 2,
            "trainyard_suites": {"mindocr": suite},
        }
    )


@pytest.fixture
def ascend():
    """Put a stand-in for Huawei's hccn_tool on the nodes: there is no Ascend device here, so it
    answers from a list.
    """
    tool = (PROJECT / "molecule/shared/files/hccn_tool").read_text()
    for node, addresses in DEVICES.items():
        listing = "".join("%d %s 255.255.255.0\n" % pair for pair in enumerate(addresses))
        for path, text, mode in (
            ("/usr/local/bin/hccn_tool", tool, "755"),
            ("/etc/trainyard-fake-hccn", listing, "644"),
        ):
            root(node, f"cat > {path} <<'END'\n{text}END\nchmod {mode} {path}")
    yield
    for node in DEVICES:
        root(node, "rm -f /usr/local/bin/hccn_tool /etc/trainyard-fake-hccn")


def test_every_rank_finds_itself_in_the_rank_table(ascend):
    before = runs()
    done = playbook(
        "train", "-e", f"config={JOBS}/rank_table.yml", "-e", site(), "-e", "rehearse=false"
    )  # no device, no all-reduce
    run = new_run(before)
    home = PROJECT / "runs" / run / "attempt-1"
    # it trained nothing, and that is not called a success
    assert done.returncode != 0 and last_line(done.stdout).startswith(
        "UNKNOWN: every rank ended with exit code 0, but none printed"
    ), done.stdout
    addresses = [
        (node, device, address) for node in NODES for device, address in enumerate(DEVICES[node])
    ]
    for rank, (node, device, address) in enumerate(addresses):
        said = (home / ("rank-%03d.%s.log" % (rank, node))).read_text()
        assert (
            "rank %d of 4: device %d at %s on server %s" % (rank, device, address, NODES[node])
            in said
        )
        assert "words --config configs/given.yaml" in said
    assert "this launcher has not been run on Ascend hardware" in playbook(
        "train", "-e", f"config={JOBS}/rank_table.yml", "-e", site(), "--check"
    ).stdout.replace("\n        ", " ")


def test_a_node_without_its_addresses_is_refused_by_name(ascend):
    root("node2", "rm -f /etc/trainyard-fake-hccn")
    before = runs()
    done = playbook(
        "train", "-e", f"config={JOBS}/rank_table.yml", "-e", site(), "-e", "rehearse=false"
    )  # no device, no all-reduce
    assert done.returncode != 0 and "node2" in done.stdout and new_run(before) is None, done.stdout
