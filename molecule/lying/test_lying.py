# SPDX-License-Identifier: Apache-2.0
"""A lying training on a real node: the honest rank's verdict and logs are right, and nothing
changes on the controller but this run.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import re
import stat
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from harness import (
    INVENTORY,
    NODES,
    PROJECT,
    STATE,
    attempt_file,
    last_line,
    new_run,
    on,
    playbook,
    runs,
    wait_for,
)

MARK = Path("/tmp/trainyard-lying-pwned")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
QUOTA = {"trainyard_collect_bytes": "50 MiB", "trainyard_collect_files": 100}
BYTES = 50 << 20
Lied = collections.namedtuple("Lied", "run outputs codes seconds before after")


def entries(top, skipped=()):
    """Return {path: type, mode, owner, size, time, link} of a directory's tree."""
    found = {}
    for where, folders, files in os.walk(top):
        folders[:] = [name for name in folders if os.path.join(where, name) not in skipped]
        for name in folders + files:
            path = os.path.join(where, name)
            info = os.lstat(path)
            kind = stat.S_IFMT(info.st_mode)
            times = (0, 0) if kind == stat.S_IFDIR else (info.st_size, info.st_mtime_ns)
            found[path] = (
                info.st_mode,
                info.st_uid,
                times,
                os.readlink(path) if kind == stat.S_IFLNK else "",
            )
    return found


def controller():
    """Return what lies on the controller that no run may change: keys, the site's authority, other
    runs, the project.
    """
    git = subprocess.run(
        ["git", "status", "--porcelain"],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout
    kept = {str(PROJECT / "runs" / run): entries(PROJECT / "runs" / run) for run in runs()}
    ways = {str(STATE / name): entries(STATE / name) for name in ("ca",)}
    keys = {name: (STATE / name).read_bytes() for name in ("known_hosts", "id_ed25519")}
    return {
        "git": git,
        "runs": kept,
        "authority": ways,
        "keys": keys,
        "ssh": entries(Path.home() / ".ssh"),
        "mark": MARK.exists(),
    }


def disarm():
    """Take the rewriting of answers off every node, whatever became of the run."""
    for node in NODES:
        on(
            node,
            "rm -f .local/lib/python3.*/site-packages/usercustomize.py; rm -rf"
            " .local/lib/python3.*/site-packages/__pycache__",
            check=False,
        )


@pytest.fixture(scope="module")
def lied(tmp_path_factory):
    """What every verb printed of a run whose rank 0 lies, and the controller before and after."""
    folder = tmp_path_factory.mktemp("lying")
    job = {"suite": "paddledetection", "launcher": "fleetrun", "config": "configs/lie.yml"}
    (folder / "lie.yml").write_text(yaml.safe_dump(job), encoding="utf-8")
    site = yaml.safe_load((INVENTORY / "group_vars" / "all.yml").read_text(encoding="utf-8"))
    workspace = str(PROJECT / "molecule/lying/workspace")
    suite = dict(site["trainyard_suites"]["paddledetection"], code={"path": workspace}, data={})
    (folder / "given.json").write_text(
        json.dumps(dict(QUOTA, trainyard_suites={"paddledetection": suite})), encoding="utf-8"
    )
    given = ("-e", f"@{folder}/given.json")
    before, known, outputs, codes = controller(), runs(), {}, {}
    begun = time.monotonic()
    try:
        done = playbook(
            "train", "-e", f"config={folder}/lie.yml", "-e", "rehearse=false", *given, timeout=300
        )
        run = new_run(known)
        assert run, done.stdout[-4000:]
        outputs["train"], codes["train"] = done.stdout, done.returncode
        for verb, *more in (
            ("status",),
            ("follow",),
            ("logs",),
            ("logs", "-e", "query=ranks"),
            ("resume", "--check"),
            ("stop",),
            ("report",),
        ):
            done = playbook(verb, "-e", f"run={run}", *more, *given, timeout=120)
            outputs[" ".join([verb, *more])], codes[verb] = done.stdout, done.returncode
        seconds = time.monotonic() - begun
    finally:
        disarm()
    yield Lied(run, outputs, codes, seconds, before, controller())
    disarm()
    MARK.unlink(missing_ok=True)
    on("node1", f"rm -rf .trainyard/runs/{run}", check=False)


def test_the_training_has_lied(lied):
    plan = json.loads(attempt_file("node1", lied.run, "plan.json"))
    assert plan["nodes"][-1]["name"] == "localhost", (
        "the attack did not happen, so nothing here would prove anything"
    )
    assert "node1 gave an answer" in "".join(lied.outputs.values())


def test_the_verdict_is_the_honest_ranks(lied):
    record = json.loads((PROJECT / "runs" / lied.run / "run.json").read_text(encoding="utf-8"))
    verdict = record["attempts"][-1]["verdict"]
    assert (verdict["outcome"], verdict["node"], verdict["rank"]) == ("failed", "node2", 1), verdict
    assert "the honest rank's own failure" in verdict["text"], verdict
    assert "node2" in last_line(lied.outputs["train"]) and lied.codes["train"] != 0


def test_the_honest_nodes_logs_are_home(lied):
    home = PROJECT / "runs" / lied.run / "attempt-1"
    for there, here in (
        ("log/workerlog.0", "rank-001.node2.log"),
        ("logs.txt", "launcher.node2.log"),
        ("ranks.jsonl", "ranks.node2.jsonl"),
    ):
        digest = on("node2", f"sha256sum .trainyard/runs/{lied.run}/attempt-1/{there}").split()[0]
        assert hashlib.sha256((home / here).read_bytes()).hexdigest() == digest, here


def test_nothing_changes_on_the_controller_but_this_run(lied):
    after = dict(
        lied.after,
        runs={
            path: tree for path, tree in lied.after["runs"].items() if not path.endswith(lied.run)
        },
    )
    assert {name for name in after if after[name] != lied.before[name]} == set()
    for path, (mode, owner, (size, _time), link) in entries(PROJECT / "runs" / lied.run).items():
        assert stat.S_ISREG(mode) or stat.S_ISDIR(mode), f"{path} is a link or a pipe: {link}"
        assert owner == os.getuid() and not mode & 0o077, path
        assert size <= BYTES, path
    assert not Path("~/.trainyard").expanduser().exists(), "a play of the nodes ran here"


def test_what_is_beyond_the_quota_stays_on_the_node(lied):
    home = PROJECT / "runs" / lied.run / "attempt-1"
    own = [path for path in home.rglob("*") if path.is_file() and "node1" in path.name]
    assert (
        len(own) <= QUOTA["trainyard_collect_files"]
        and sum(path.stat().st_blocks * 512 for path in own) <= BYTES
    )
    assert on("node1", f"ls .trainyard/runs/{lied.run}/attempt-1/log | wc -l") > "400", (
        "nothing is deleted there"
    )


def test_the_terminal_obeys_nothing(lied):
    for name, text in lied.outputs.items():
        found = CONTROL.search(text)
        assert not found, f"{name}: {text[max(0, found.start() - 80) : found.start() + 20]!r}"


def test_the_credential_of_the_run_has_ended(lied):
    """Node1 holds another plan than the one that was started: its unit's own words end the
    credential.
    """
    left = (
        f"grep -c 'trainyard-run .* {lied.run} ' .ssh/authorized_keys; ls -d"
        f" .trainyard/mesh/runs/{lied.run} 2>/dev/null; true"
    )
    wait_for(lambda: all(on(node, left) == "0" for node in NODES), 60)


def test_it_ends_in_time(lied):
    assert lied.seconds < 240, lied.seconds
