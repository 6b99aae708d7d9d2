# SPDX-License-Identifier: Apache-2.0
"""The mesh between real nodes. Its login accepts verbs and gives no shell. A gang is stopped
without certificates and without the controller.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import manifest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.inputs import describe
from harness import (
    ENVIRONMENT,
    INVENTORY,
    JOBS,
    NODES,
    PROJECT,
    STATE,
    background,
    ended,
    events,
    last_line,
    left_behind,
    new_run,
    on,
    playbook,
    runs,
    senders,
    wait_for,
)

REFUSED = 77
MESH = ".trainyard/mesh"
STOP_SECONDS = 10.0
# The timer that removes the credential after the end, and its accuracy.
RELEASE_SECONDS = 60


def call(node, peer, words, config=MESH + "/config"):
    """Return (exit code, what is printed) of a call over the mesh from a node to a peer."""
    *said, code = on(
        node, f"ssh -F {config} {peer} '{words}' 2>&1 < /dev/null; echo $?"
    ).splitlines() or ["255"]
    return int(code), "\n".join(said)


def lines(node, word):
    """Return the lines of authorized_keys on a node that hold a word."""
    return [line for line in on(node, "cat .ssh/authorized_keys").splitlines() if word in line]


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """A training whose ranks run; return (run id, the controller's process)."""
    before = runs()
    controller = background(
        tmp_path_factory.mktemp("mesh") / "log", "train", "-e", f"config={JOBS}/long.yml"
    )
    run = wait_for(lambda: new_run(before), 120)
    wait_for(
        lambda: all(
            any(event["event"] == "start" for event in events(node, run)) for node in NODES
        ),
        180,
    )
    yield run, controller
    playbook("stop", "-e", f"run={run}")


def of_run(run, node):
    """Return the ssh configuration of a run's own key on a node."""
    return f"{MESH}/runs/{run}/1/{node}/config"


@pytest.mark.parametrize(
    "words",
    [
        "id",
        "sh -c id",
        "",
        "identify; id",
        "stop 1 peer",
        "rsync --server --sender -r . .",
        "python3 -I -",
    ],
)
def test_a_certificate_gives_no_shell(words):
    code, said = call("node1", "node2", words)
    assert code == REFUSED and "uid=" not in said


def test_a_certificate_permits_the_proof():
    own = on("node2", "cat /etc/machine-id /proc/sys/kernel/hostname")
    assert call("node1", "node2", "identify") == (0, own)


SIZE = 12 << 20


def sent():
    """Return the bytes that this machine has sent to the nodes' network since it was started."""
    words = ["docker", "network", "inspect", "-f", "{{.Id}}", "trainyard"]
    network = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return int(Path(f"/sys/class/net/br-{network[:12]}/statistics/tx_bytes").read_text())


def make_tree(folder, name):
    """Make a tree of random bytes."""
    (folder / "tree" / "part").mkdir(parents=True)
    (folder / "tree" / "part" / name).write_bytes(os.urandom(SIZE))
    (folder / "tree" / "small").write_text("x")
    os.symlink("part", folder / "tree" / "link")


def send_tree(folder, name):
    """Send the tree to the nodes.

    Return (its place on a node, the bytes that this machine sent, the command's output).
    """
    cache = str(folder / "cache")
    entries = manifest.scan(str(folder / "tree"))
    tree = describe.keep_manifest("data", name, str(folder / "tree"), entries, cache)
    words = json.dumps({"trees": [tree], "trainyard_cache_dir": cache})
    argv = ["ansible-playbook", "-i", INVENTORY, "molecule/shared/send_tree.yml", "-e", words]
    before = sent()
    done = subprocess.run(
        argv, cwd=PROJECT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    place = f".trainyard/data/{tree['digest'][:16]}"
    for node in NODES:
        found = on(node, f"cd {place} && sha256sum part/{name} && readlink link")
        assert found.split()[0] == entries[f"part/{name}"][2] and found.endswith("part")
    return place, sent() - before, done.stdout + done.stderr


def remove(*places):
    """Remove trees from the nodes."""
    for node in NODES:
        for place in places:
            on(node, f"find {place} -type d -exec chmod u+w {{}} +; rm -r {place} {place}.*")


def test_a_tree_leaves_the_controller_once_and_a_change_of_it_alone(tmp_path):
    make_tree(tmp_path, "large.bin")
    place, used, said = send_tree(tmp_path, "large.bin")
    assert "origin node1 controller" in said and "origin node2 nodes" in said
    assert used < 1.3 * SIZE, "once, whatever the number of nodes"
    (tmp_path / "tree" / "small").write_text("y")
    second, used, _said = send_tree(tmp_path, "large.bin")
    # What is sent are the modules of four tasks.
    assert second != place and used < 0.2 * SIZE
    for node in NODES:
        inodes = on(node, f"stat -c %i {place}/part/large.bin {second}/part/large.bin").split()
        assert inodes[0] == inodes[1]
    remove(place, second)


def test_a_node_that_no_other_one_serves_gets_the_tree_from_the_controller(tmp_path):
    make_tree(tmp_path, "other.bin")
    gate = f"{MESH}/gate.py"
    on("node1", f"chmod 0 {gate}")
    try:
        place, used, said = send_tree(tmp_path, "other.bin")
    finally:
        on("node1", f"chmod 600 {gate}")
    assert "origin node2 controller" in said and "node2 gets data other.bin" in said
    assert used > 1.9 * SIZE
    remove(place)


def test_the_wheels_of_an_environment_leave_the_controller_once():
    # That of PaddleDetection; MindOCR's has pycocotools, too.
    place = "lib/python3*/site-packages"
    line = f"for e in *; do ls -d $e/{place}/paddle $e/{place}/pycocotools >&2 && echo $e; done"
    (digest,) = on("node1", f"cd .trainyard/env; ({line}) 2> /dev/null || true").split()
    wheels = Path.home() / ".cache/trainyard/wheels" / digest / "manifest.json"
    size = sum(wheel["bytes"] for wheel in json.loads(wheels.read_text())["wheels"].values())
    for node in NODES:
        on(node, f"rm .trainyard/env/{digest}/.trainyard.json")
    words = ("provision", "-e", "suite=paddledetection")
    checked = playbook(*words, "--check", timeout=300)
    assert checked.returncode == 0, checked.stdout
    assert on("node1", f"ls -A .trainyard/env/{digest} | grep -c trainyard.json || true") == "0"
    before = sent()
    done = playbook(*words, timeout=900)
    assert done.returncode == 0, done.stdout
    # Modules are less than a percent of it.
    assert 0.99 * size < sent() - before < 1.05 * size, "once, whatever the number of nodes"
    for node in NODES:
        assert on(node, "ls .trainyard/wheels .trainyard/staging").split() == [
            ".trainyard/staging:",
            ".trainyard/wheels:",
        ]


@pytest.mark.parametrize(
    "words",
    [
        "id",
        "stop 2 peer",
        "stop 0001 peer",
        "identify",
        "door 1 orted -mca ess env",
        "stop 1 user",
        "beat 1; id",
    ],
)
def test_the_key_of_a_run_permits_its_own_verbs_alone(training, words):
    code, said = call("node1", "node2", words, of_run(training[0], "node1"))
    assert code == REFUSED and "uid=" not in said


def test_the_key_of_one_run_stops_no_other(training):
    """An attempt of the same name exists in another run. The gate takes the run from the line of
    the key. The words that it is sent name no run.
    """
    other = "20260101-000000-other-0000"
    on("node2", f"mkdir -p .trainyard/runs/{other}/attempt-1")
    assert call("node1", "node2", f"stop {other} peer", of_run(training[0], "node1"))[0] == REFUSED
    assert on("node2", f"ls .trainyard/runs/{other}/attempt-1") == ""
    on("node2", f"rm -r .trainyard/runs/{other}")
    assert all(ended(node, training[0]) is None for node in NODES)


def expire(node, folder):
    """Give a node a certificate that the site's authority has signed and that is over; its valid
    one lies in MESH/away.
    """
    key = folder / f"{node}.pub"
    key.write_text(on(node, f"cat {MESH}/id_ed25519.pub") + "\n", encoding="utf-8")
    argv = [
        "ssh-keygen",
        "-q",
        "-s",
        str(STATE / "ca/id_ed25519"),
        "-I",
        "expired",
        "-n",
        f"molecule/{node}",
        "-V",
        "-2h:-1h",
        str(key),
    ]
    subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    text = (folder / f"{node}-cert.pub").read_text(encoding="utf-8").strip()
    on(
        node,
        f"cd {MESH} && mkdir away && mv id_ed25519-cert.pub away/ && echo '{text}' >"
        " id_ed25519-cert.pub",
    )


def children(pid):
    """Return the pids of a process's children; Ansible's workers are in sessions of their own."""
    with open("/proc/%d/task/%d/children" % (pid, pid), encoding="ascii") as handle:
        return [int(word) for word in handle.read().split()]


def test_a_killed_rank_stops_all_with_expired_certificates_and_without_controller(
    training, tmp_path
):
    """All processes on node1 are frozen first, so that it cannot notice on its own that its peer
    has gone. Only node2's message can end it.
    """
    run, controller = training
    log = PROJECT / "runs" / run / "attempt-1" / "rank-000.node1.log"
    wait_for(lambda: log.exists() and log.stat().st_size, 120)
    assert controller.poll() is None, "the controller was to be killed while it follows"
    workers = children(controller.pid)
    try:
        for node in NODES:
            expire(node, tmp_path)
        assert (
            call("node1", "node2", "identify")[0] == 255
            and call("node2", "node1", "identify")[0] == 255
        )
        os.killpg(controller.pid, signal.SIGKILL)
        wait_for(lambda: not any(senders(node) for node in NODES), 30)
        wait_for(lambda: not [pid for pid in workers if os.path.exists("/proc/%d" % pid)], 30)
        frozen = on(
            "node1",
            f"grep -lzs '^TRAINYARD_ATTEMPT={run}/' /proc/[0-9]*/environ | cut -d/ -f3 | xargs -t"
            " kill -STOP 2>&1",
        )
        assert len(frozen.split()) > 2, frozen
        pid = next(event["pid"] for event in events("node2", run) if event["event"] == "start")
        begun = time.time()
        on("node2", "kill -9 %d" % pid)
        wait_for(lambda: all(ended(node, run) for node in NODES), 60)
        took = max(ended(node, run)["time"] for node in NODES) - begun
        print(
            f"{took:.1f} s from the kill to the end on all nodes, without certificates and"
            " controller"
        )
        wait_for(lambda: ended("node2", run)["peers"], 30)
        assert (
            ended("node2", run)["peers"] == {"node1": "stopped"}
            and ended("node1", run)["stopped_from"] == "node2"
        )
        assert took < STOP_SECONDS and left_behind(run) == {}
    finally:
        for node in NODES:
            on(node, f"cd {MESH} && [ ! -e away ] || {{ mv away/* . && rmdir away; }}")


def test_who_follows_after_that_has_the_verdict_and_the_rest_of_the_logs(training):
    """Nothing that the killed controller has fetched is lost. The next controller continues from
    there.
    """
    run, _controller = training
    log = PROJECT / "runs" / run / "attempt-1" / "rank-000.node1.log"
    had = log.read_bytes()
    done = playbook("follow", "-e", f"run={run}")
    assert done.returncode != 0
    assert last_line(done.stdout).startswith(
        "FAILED: rank 1 on node2 (local rank 0) was killed by SIGKILL"
    ), done.stdout
    record = json.loads((PROJECT / "runs" / run / "run.json").read_text())
    assert record["attempts"][0]["verdict"]["signal"] == "SIGKILL"
    there = on("node1", f"sha256sum .trainyard/runs/{run}/attempt-1/log/workerlog.0").split()[0]
    now = log.read_bytes()
    assert hashlib.sha256(now).hexdigest() == there and now.startswith(had) and had
    assert not [path for path in log.parent.iterdir() if path.name.startswith(".")]


def test_the_credential_ends_with_the_run(training):
    """A run that has begun leaves no line and no key. The keys of refused starts stay for a day."""
    run, _controller = training
    wait_for(lambda: not any(lines(node, " trainyard-run ") for node in NODES), RELEASE_SECONDS)
    begun = f"grep -l '\"begun\": true' {MESH}/runs/*/*/*/machine.json 2>/dev/null || true"
    wait_for(lambda: all(on(node, begun) == "" for node in NODES), 10)
    assert all(run not in on(node, f"ls {MESH}/runs 2>/dev/null || true") for node in NODES)


def test_a_check_leaves_no_key():
    listed = f"ls {MESH}/runs 2>/dev/null || true"
    before = {node: on(node, listed) for node in NODES}
    done = playbook("check", "-e", f"config={JOBS}/long.yml")
    assert done.returncode == 0, done.stdout[-3000:]
    assert {node: on(node, listed) for node in NODES} == before


def test_a_node_whose_line_is_removed_cannot_call():
    kept = lines("node2", "trainyard-ca molecule node1")
    assert len(kept) == 1
    on("node2", "sed -i.kept '/trainyard-ca molecule node1$/d' .ssh/authorized_keys")
    try:
        assert (
            call("node1", "node2", "identify")[0] == 255
            and call("node2", "node1", "identify")[0] == 0
        )
    finally:
        on(
            "node2",
            "cat .ssh/authorized_keys.kept > .ssh/authorized_keys; rm .ssh/authorized_keys.kept",
        )
    assert call("node1", "node2", "identify")[0] == 0
