# SPDX-License-Identifier: Apache-2.0
"""A training prints secrets and terminal control sequences, and leaves links and pipes. Nothing of
it is shown, and no other user can read its files.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess

import pytest
import yaml
from harness import (
    NODES,
    PROJECT,
    attempt_file,
    last_line,
    left_behind,
    new_run,
    on,
    playbook,
    root,
    runs,
)

# Made of pieces, so that no file holds the shape of a token.
CANARIES = {
    "MY_TOKEN": "canary-by-name-1",
    "WANDB_LOGIN": "canary-marked-2",
    "SHAPE": "gh" + "p_" + "CaNaRy77" * 5,
    "override": "canary-override-4",
}
# What holds them by right: the raw logs, the plan and the job, each its user's alone.
RAW = re.compile(r"(rank-\d+|launcher|stray-.*)\..*\.log(\.\d+)?|plan\.json|job\.json")
Said = collections.namedtuple("Said", "run outputs")


def leaks(text):
    """Return the canaries that a text holds."""
    return [
        value for value in CANARIES.values() if value in text or value in text.replace("\\", "")
    ]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """Everything that the product printed of such a run, each time as verbose as it can be:
    {command: output}.
    """
    folder = tmp_path_factory.mktemp("keep")
    job = {
        "suite": "paddledetection", "launcher": "fleetrun", "config": "configs/say.yml",
        "overrides": {"logger.api_key": CANARIES["override"]},
        "env": {"MY_TOKEN": CANARIES["MY_TOKEN"], "SHAPE": CANARIES["SHAPE"]},
    }  # fmt: skip
    (folder / "say.yml").write_text(yaml.safe_dump(job), encoding="utf-8")
    # the site's own way of making the environment, so that nothing new is installed
    site = yaml.safe_load(
        (PROJECT / "molecule/inventory/group_vars/all.yml").read_text(encoding="utf-8")
    )
    suite = dict(
        site["trainyard_suites"]["paddledetection"],
        code={"path": str(PROJECT / "molecule/logs/workspace")},
        data={},
    )
    given = {
        "trainyard_suites": {"paddledetection": suite}, "trainyard_secret_env": ["WANDB_LOGIN"],
        "trainyard_env": {"OMP_NUM_THREADS": "1", "WANDB_LOGIN": CANARIES["WANDB_LOGIN"]},
    }  # fmt: skip
    words = ["-vvv", "-e", f"config={folder}/say.yml", "-e", json.dumps(given)]
    before, outputs = runs(), {}
    outputs["check"] = playbook("train", "--check", *words).stdout
    outputs["train"] = playbook("train", *words, "-e", "rehearse=false").stdout
    run = new_run(before)
    assert run, outputs["train"][-3000:]
    for verb, more in (
        ("status", []), ("follow", []), ("logs", ["-e", "rank=1", "-e", "lines=50"]),
        ("logs", ["-e", "query=ranks"]), ("report", []), ("stop", []),
    ):  # fmt: skip
        outputs[" ".join([verb, *more[1:2]])] = playbook(
            verb, "-vvv", "-e", f"run={run}", *more
        ).stdout
    return Said(run, outputs)


def test_no_secret_is_shown(said):
    assert "FAILED: rank 1 on node2" in said.outputs["train"], said.outputs["train"][-4000:]
    assert {name: leaks(text) for name, text in said.outputs.items() if leaks(text)} == {}
    assert (
        "logger.api_key=********" in said.outputs["check"]
        and "WANDB_LOGIN=********" in said.outputs["check"]
    )


def test_no_order_reaches_the_terminal_and_a_template_is_text(said):
    for name, text in said.outputs.items():
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), name
        assert "9449868410449" not in text and "pwned" not in text, name
    assert (
        "{{ 1234577 * 7654337 }}" in said.outputs["train"]
        and "{{ 1234577 * 7654337 }}" in said.outputs["logs rank=1"]
    )


def test_no_secret_is_written_but_in_what_is_raw(said):
    folder = PROJECT / "runs" / said.run
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if not RAW.fullmatch(path.name):
            assert leaks(path.read_text(encoding="utf-8", errors="replace")) == [], path
    raw = (folder / "attempt-1" / "rank-001.node2.log").read_bytes()
    assert leaks(raw.decode("utf-8", "replace")), "the raw log is no longer raw"


def test_every_byte_of_the_hostile_log_is_home(said):
    index = json.loads((PROJECT / "runs" / said.run / "attempt-1" / "ranks.json").read_text())
    for rank, node in enumerate(NODES):
        raw = (
            PROJECT / "runs" / said.run / "attempt-1" / ("rank-%03d.%s.log" % (rank, node))
        ).read_bytes()
        assert b"\x1b]0;owned\x07" in raw and b"\x00\xff\xfe" in raw and b"x" * (1 << 20) in raw
        there = on(node, f"sha256sum .trainyard/runs/{said.run}/attempt-1/log/workerlog.0").split()[
            0
        ]
        assert (
            hashlib.sha256(raw).hexdigest()
            == there
            == next(item["sha256"] for item in index["ranks"] if item["rank"] == rank)
        )


def test_links_pipes_and_options_of_rsync_were_left_where_they_are(said):
    folder = PROJECT / "runs" / said.run / "attempt-1"
    assert (
        "Jpwd" not in str(folder)
        and on("node1", f"ls .trainyard/runs/{said.run}/attempt-1/log").count("workerlog.") >= 4
    )
    everything = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert b"root:x:0:0" not in everything and not [
        path
        for path in folder.rglob("*")
        if path.is_symlink() or not (path.is_file() or path.is_dir())
    ]
    assert sorted(path.name for path in (folder / "checkpoint").rglob("*")) == [
        "best_model.pdparams"
    ]


def test_nobody_else_reads_a_file_of_the_run(said):
    folder = PROJECT / "runs" / said.run
    for path in [folder, *folder.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    for node in NODES:
        # by way of the directories above it, whatever mode a careless training gave its files
        script = (
            "cd /tmp; setpriv --reuid 65534 --regid 65534 --clear-groups find"
            " ~trainer/.trainyard/runs/%s/attempt-1 -type f -readable 2>/dev/null"
        )
        assert root(node, "%s | head -3" % (script % said.run)) == ""
        plan = root(
            node,
            f"stat -c %a ~trainer/.trainyard/runs/{said.run}/attempt-1"
            f" ~trainer/.trainyard/runs/{said.run}/attempt-1/plan.json",
        )
        assert plan.split() == ["700", "600"]


def test_no_file_that_others_may_read_holds_a_secret(said):
    """All places on the nodes are searched except the kernel's own file systems. On this machine,
    the places are searched where the product and Ansible write.
    """
    pattern = "\\|".join(CANARIES.values())
    for node in NODES:
        script = (
            "setpriv --reuid 65534 --regid 65534 --clear-groups find / -xdev -type f -newer %s"
            " -readable -exec grep -l '%s' {} + 2>/dev/null || true"
        )
        assert (
            root(
                node,
                script % (f"~trainer/.trainyard/runs/{said.run}/attempt-1/plan.json", pattern),
            )
            == ""
        )
    since = str(PROJECT / "runs" / said.run / "job.json")
    places = [
        str(PROJECT / "runs"),
        os.path.expanduser("~/.cache/trainyard"),
        os.path.expanduser("~/.local/state/trainyard"),
        os.path.expanduser("~/.ansible"),
    ]
    argv = [
        "find",
        *[place for place in places if os.path.isdir(place)],
        "-type",
        "f",
        "-perm",
        "/044",
        "-newer",
        since,
        "-exec",
        "grep",
        "-l",
        pattern,
        "{}",
        "+",
    ]
    assert subprocess.run(argv, text=True, stdout=subprocess.PIPE, check=False).stdout == ""


def test_all_of_it_has_ended(said):
    assert left_behind(said.run) == {} and attempt_file("node1", said.run, "exit.json")


# --- prune.yml

OLD = "20200101-000000-say-0000"


@pytest.fixture
def old(said):
    """A run from years ago on every node and on the controller. It is a copy of this run under its
    own name.
    """
    copy = "cp -a %s %s && sed -i s/%s/%s/g %s/%s"
    for node in NODES:
        on(
            node,
            "cd .trainyard/runs && "
            + copy % (said.run, OLD, said.run, OLD, OLD, "attempt-1/attempt.json"),
        )
    folder = PROJECT / "runs"
    subprocess.run(
        ["sh", "-c", copy % (said.run, OLD, said.run, OLD, OLD, "run.json")], cwd=folder, check=True
    )
    yield OLD
    for node in NODES:
        on(
            node,
            f"systemctl --user stop trainyard-{OLD}-1.service 2>/dev/null; rm -rf"
            f" .trainyard/runs/{OLD}",
        )
    shutil.rmtree(folder / OLD, ignore_errors=True)


def there(run):
    """Return the places that have a run."""
    found = [node for node in NODES if on(node, f"ls -d .trainyard/runs/{run} 2>/dev/null || true")]
    return found + ["home"] * (PROJECT / "runs" / run).exists()


def test_prune_shows_first_spares_what_runs_and_then_removes_it_alone(said, old):
    shown = playbook("prune", "-e", "older_than=260w")
    assert shown.returncode == 0 and last_line(shown.stdout).startswith(
        "WOULD REMOVE 1 run and free"
    ), shown.stdout[-3000:]
    assert re.search(
        rf"  {old} +\d+ days +ago  node1 .*iB, node2 .*iB, home .*iB", shown.stdout
    ) and there(old) == [
        "node1",
        "node2",
        "home",
    ]
    on("node2", f"systemd-run --user --quiet --unit=trainyard-{old}-1 sleep 600")
    held = playbook("prune", "-e", "older_than=260w", "-e", "confirm=true")
    assert (
        f"{old} on node1, node2, home is in use on node2: trainyard-{old}-1.service is active"
        in " ".join(held.stdout.split())
    ), held.stdout[-3000:]
    assert there(old) == ["node1", "node2", "home"]
    on("node2", f"systemctl --user stop trainyard-{old}-1.service")
    done = playbook("prune", "-e", "older_than=260w", "-e", "confirm=true")
    assert done.returncode == 0 and last_line(done.stdout).startswith("REMOVED 1 run,"), (
        done.stdout[-3000:]
    )
    assert there(old) == [] and there(said.run) == ["node1", "node2", "home"]


def test_prune_keeps_the_last_good_checkpoint_of_a_job(said):
    done = playbook("prune", "-e", f"run={said.run}", "-e", "confirm=true")
    assert (
        "holds the last good checkpoint of the job say (best_model, of a run that did not complete)"
        in " ".join(done.stdout.split())
    ), done.stdout[-3000:]
    assert there(said.run) == ["node1", "node2", "home"]
