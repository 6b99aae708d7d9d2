# SPDX-License-Identifier: Apache-2.0
"""logs.yml on real nodes: each line is shown once as it was written, the controller fetches exactly
what the nodes have, and the index gives its answers.
"""

from __future__ import annotations

import hashlib
import json

from harness import NODES, PROJECT, attempt_file, last_line, on, playbook


def shown(text, label):
    """Return the lines that logs.yml printed with rank and node before them."""
    return [line[len(label) :].strip() for line in text.splitlines() if line.startswith(label)]


def test_follow_prints_every_line_once_until_the_run_ends(followed):
    print(followed.text)
    assert followed.code == 0 and f"following the run {followed.run}" in followed.text
    for label, node in (("[0 node1]", "node1"), ("[1 node2]", "node2")):
        written = [
            line.strip()
            for line in attempt_file(node, followed.run, "log/workerlog.0").splitlines()
        ]
        lines = shown(followed.text, label)
        # history first, its end only, and from there every line
        assert lines and [line.partition("... [+")[0] for line in lines] == [line[: len(one.partition("... [+")[0])] for line, one in
                                                                            zip(written[-len(lines) :], lines)]  # fmt: skip
    steps = [line for line in shown(followed.text, "[0 node1]") if "Epoch: [2]" in line]
    assert steps, "the last epoch was trained after the view began"


def test_the_stream_has_brought_what_the_nodes_have(finished):
    home = PROJECT / "runs" / finished / "attempt-1"
    index = json.loads((home / "ranks.json").read_text())
    assert [(rank["rank"], rank["node"], rank["state"]) for rank in index["ranks"]] == [
        (0, "node1", "done"),
        (1, "node2", "done"),
    ]
    for item in index["files"]:
        there = on(
            item["node"], "sha256sum .trainyard/runs/{}/attempt-1/{}".format(finished, item["file"])
        ).split()[0]
        assert (
            there
            == hashlib.sha256((home / item["home"]).read_bytes()).hexdigest()
            == item["sha256"]
        ), item
    assert {item["node"] for item in index["files"]} == set(NODES)


def test_beside_train_in_another_terminal_both_end_well(beside):
    print(beside.text)
    assert beside.code == 0
    assert "ValueError: image 000000012.jpg is truncated" in shown(beside.text, "[1 node2]")
    assert "FAILED: rank 1 on node2" in beside.interrupted


def test_a_run_that_is_over_is_shown_and_asked_without_a_node(failed):
    done = playbook("logs", "-e", f"run={failed}", "-e", "rank=1", "-e", "lines=3")
    assert done.returncode == 0 and "node2 ->" not in done.stdout, done.stdout
    assert (
        "its last 3 lines" in done.stdout
        and "\nValueError: image 000000012.jpg is truncated\n" in done.stdout
    )
    done = playbook(
        "logs",
        "-e",
        f"run={failed}",
        "-e",
        "query=ranks[?state=='failed'].[rank,node,error.kind]",
    )
    assert '[1, "node2", "ValueError"]' in done.stdout, done.stdout


def test_without_a_run_it_is_the_newest_and_one_node_is_enough(failed):
    done = playbook("logs", "--limit", "node2")
    assert done.returncode == 0 and f"run {failed}, attempt 1: over" in done.stdout, done.stdout
    index = json.loads((PROJECT / "runs" / failed / "attempt-1" / "ranks.json").read_text())
    assert [rank["node"] for rank in index["ranks"]] == [
        "node1",
        "node2",
    ], "what is known of the other node must stay"


def test_a_run_whose_copy_was_lost_comes_home_again(failed):
    home = PROJECT / "runs" / failed / "attempt-1"
    before = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    for name in ("ranks.json", "rank-001.node2.log"):
        (home / name).unlink()
    done = playbook("logs", "-e", f"run={failed}")
    assert done.returncode == 0, done.stdout
    after = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    assert (
        after.keys() == before.keys()
        and after["rank-001.node2.log"] == before["rank-001.node2.log"]
    )


def test_the_verdict_points_at_the_line_of_the_log(beside):
    verdict = last_line(beside.interrupted)
    assert verdict.startswith(
        "FAILED: rank 1 on node2 (local rank 0) raised ValueError: image 000000012.jpg is truncated"
        " (exit code 1)"
    )
    log = f"runs/{beside.run}/attempt-1/rank-001.node2.log"
    number = int(verdict.split(log + ":")[1].split(";")[0])
    assert "truncated" in (PROJECT / log).read_text().splitlines()[number - 1]
    assert (PROJECT / "runs" / beside.run / "attempt-1" / "rank-000.node1.log").stat().st_size > 0
