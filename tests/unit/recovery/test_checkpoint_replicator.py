# SPDX-License-Identifier: Apache-2.0
"""The replica of rank 0's newest checkpoint: real rsync through the real gate of a run, without
sshd.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import processes
from ansible_collections.trainyard.cluster.plugins.module_utils.checkpoints import finder, replica
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import (
    bounded_rsync,
    checkpoint_replicator,
)
from core_support import RUN, attempt_files, gang, open_gate, program, put
from detached_support import wait_for

RATE = 1 << 30
FOLDER = "output/ppyoloe_crn_s_300e_coco"


class Two:
    """An attempt of two nodes. node2 keeps the replica, and its ssh starts node1's gate here."""

    def __init__(self, folder):
        given = gang()
        given["site"] = dict(given["site"], replica_rate=RATE)
        self.plan = compiler.compile_plan(**given)
        names = [node["name"] for node in self.plan["nodes"]]
        config = open_gate(folder, names[0], names)
        attempt_files(folder / names[0] / ".trainyard", self.plan, names[0])
        self.mine = Path(
            attempt_files(folder / names[1] / ".trainyard", self.plan, names[1], mesh=config)
        )
        os.utime(self.mine / "plan.json", (1_000_000,) * 2)  # the run began long ago
        self.theirs = folder / names[0] / ".trainyard/runs" / RUN / "attempt-1"
        gate = os.path.join(os.path.dirname(config), "agent.pyz")
        shell = (
            '[ "$3" = -G ] && exit\necho "$@" >> $LOG\n'
            'case "$*" in *ControlMaster*)'
            " touch ${12#*=}; echo $$ > $LOG.pid; exec sleep 60;; esac\n"
            'while [ "$1" != "${1#-}" ]; do shift 2; done\nshift\n'
            f'HOME={folder}/{names[0]} SSH_ORIGINAL_COMMAND="$*" exec {sys.executable} -I {gate}'
            f" gate {RUN} 1 {names[1]}"
        )
        self.tools = program(folder / "bin", "ssh", shell)
        self.rule = self.plan["suite"]["resume"]

    def save(self, epoch, name=None, weight=b"w" * 5000, at=None):
        """Save a checkpoint on node1, as PaddleDetection does."""
        place = self.theirs / FOLDER
        place.mkdir(parents=True, exist_ok=True)
        options = {"last_epoch": epoch, "LR_Scheduler": {"last_epoch": epoch, "last_lr": 0.1}}
        for ending, value in ((".pdparams", {"of": epoch, "weight": weight}), (".pdopt", options)):
            path = place / f"{name or epoch}{ending}"
            path.write_bytes(pickle.dumps(value, protocol=4))
            os.utime(path, (at or 1_000_000 + epoch,) * 2)

    def replicator(self):
        return checkpoint_replicator.Replicator(str(self.mine))

    def found(self):
        """Return what a resume finds on node2: (name, bytes of its parameters)."""
        answer = finder.find_in_run(str(self.mine.parent), self.rule)
        if not answer["point"]:
            return None
        path = Path(answer["point"]["path"], answer["point"]["name"] + ".pdparams")
        return answer["point"]["name"], path.read_bytes()

    def parameters(self, name):
        return (self.theirs / FOLDER / f"{name}.pdparams").read_bytes()


@pytest.fixture
def two(tmp_path, monkeypatch):
    made = Two(tmp_path)
    monkeypatch.setenv("PATH", made.tools, prepend=os.pathsep)
    return made


def test_each_new_checkpoint_is_copied_once_and_a_resume_finds_it(two):
    replicator = two.replicator()
    assert replicator.look() is None and two.found() is None
    for epoch in (1, 2, 3):
        two.save(epoch)
        made = replicator.look()
        assert (made["name"], made["source"]) == (str(epoch), two.plan["nodes"][0]["name"])
        assert two.found() == (str(epoch), two.parameters(epoch))
        assert replicator.look() is None
        assert two.replicator().look() is None  # nor after a restart
    # Two are kept, however many were saved.
    kept = {path.name for path in two.mine.glob(f"replica/*/{FOLDER}/*.pdparams")}
    assert kept == {"2.pdparams", "3.pdparams"}


def calls(two):
    """Return the words of each ssh up to now."""
    return Path(two.tools, "ssh.log").read_text().splitlines()


def test_all_calls_of_a_look_use_one_connection_which_ends_with_it(two):
    two.save(1)
    assert two.replicator().look()
    first, *others = calls(two)
    socket = next(word for word in first.split() if word.startswith("ControlPath="))
    assert "ControlMaster=yes" in first and len(others) == 4
    assert all(socket in call.split() and "ControlMaster" not in call for call in others)
    two.replicator().look()
    assert socket not in calls(two)[-1].split()
    assert int(Path(two.tools, "ssh.log.pid").read_text()) not in processes.pids()


def test_without_a_shared_connection_each_call_has_its_own(two):
    two.save(1)
    ssh = Path(two.tools, "ssh")
    ssh.write_text(ssh.read_text().replace("touch $", "exit 255; $"))
    assert two.replicator().look() and two.found()[0] == "1"


@pytest.mark.parametrize("knows, wanted", [("exit 0", 1), ("exit 255", 0)])
def test_the_cheap_cipher_is_put_first_where_this_ssh_knows_how(
    tmp_path, monkeypatch, knows, wanted
):
    monkeypatch.setenv("PATH", program(tmp_path / "bin", "ssh", knows), prepend=os.pathsep)
    words = bounded_rsync.ssh_words(str(tmp_path))
    assert sum(word.startswith("Ciphers=^aes128-gcm") for word in words) == wanted


def test_a_copy_keeps_the_priority_of_its_session(two, tmp_path):
    session = tmp_path / "session"
    program(two.tools, "rsync", f"cut -d' ' -f6 /proc/$$/stat > {session}")
    staging = tmp_path / "staging"
    staging.mkdir()
    bounded_rsync.copy(["node1::checkpoint/"], str(staging), {"1": ["f", 1, ""]}, 60)
    assert int(session.read_text()) == os.getsid(0)


def test_a_checkpoint_that_is_saved_again_under_its_name_is_copied_again(two):
    two.save(1, "model_final", weight=b"1" * 5000)
    replicator = two.replicator()
    assert replicator.look()
    two.save(2, "model_final", weight=b"2" * 5000)
    assert replicator.look() and two.found() == ("model_final", two.parameters("model_final"))


def test_the_last_replica_stays_while_a_checkpoint_is_written(two):
    two.save(1)
    replicator = two.replicator()
    replicator.look()
    two.save(2)
    (two.theirs / FOLDER / "2.pdopt").unlink()  # which PaddleDetection writes last
    assert replicator.look() is None and two.found()[0] == "1"


def test_what_changed_under_the_copy_is_no_replica(two, monkeypatch):
    two.save(1)
    copy = bounded_rsync.copy

    def copy_while_saved(*arguments):
        problem = copy(*arguments)
        two.save(1, weight=b"x" * 5000, at=1_000_009)
        return problem

    monkeypatch.setattr(bounded_rsync, "copy", copy_while_saved)
    with pytest.raises(checkpoint_replicator.ReplicaError):
        two.replicator().look()
    assert two.found() is None
    monkeypatch.undo()
    monkeypatch.setenv("PATH", two.tools, prepend=os.pathsep)
    assert two.replicator().look() and two.found()[0] == "1"


def test_a_damaged_checkpoint_does_not_replace_the_last_replica(two):
    two.save(1)
    replicator = two.replicator()
    replicator.look()
    two.save(2)
    path = two.theirs / FOLDER / "2.pdparams"
    path.write_bytes(path.read_bytes()[:3000])
    os.utime(path, (1_000_002,) * 2)
    with pytest.raises(checkpoint_replicator.ReplicaError):
        replicator.look()
    assert two.found()[0] == "1"


def test_a_full_disk_and_a_silent_node_are_said(two, monkeypatch):
    two.save(1)
    monkeypatch.setattr(bounded_rsync, "FREE_BYTES", 1 << 60)
    with pytest.raises(checkpoint_replicator.ReplicaError, match="MiB are free"):
        two.replicator().look()
    Path(two.tools, "ssh").write_text("#!/bin/sh\necho no route >&2; exit 255\n")
    with pytest.raises(checkpoint_replicator.ReplicaError, match="no route"):
        two.replicator().look()
    assert two.found() is None


def test_the_rate_is_that_of_the_plan(two, monkeypatch):
    two.save(1, weight=os.urandom(300_000))
    replicator = two.replicator()
    assert replicator.rate == RATE
    replicator.rate = 100 << 10
    assert replicator.look()["seconds"] > 1


def test_it_ends_with_the_attempt_and_goes_on_after_a_problem(two, monkeypatch, capsys):
    looks, lowered = [], []
    monkeypatch.setattr(checkpoint_replicator.priority, "lower", lambda: lowered.append(1))

    def look(_self):
        looks.append(1)
        if len(looks) == 1:
            raise OSError("a first problem")
        (two.mine / "exit.json").write_text("{}")

    monkeypatch.setattr(checkpoint_replicator.Replicator, "look", look)
    monkeypatch.setattr(checkpoint_replicator, "LOOK_SECONDS", 0)
    monkeypatch.setattr(checkpoint_replicator, "SHARE", 1e9)
    checkpoint_replicator.main([str(two.mine)])
    assert len(looks) == 2 and "a first problem" in capsys.readouterr().out
    assert lowered == [1]


@pytest.mark.parametrize("spent, pause", [(0.0, 20), (0.1, 20), (0.3, 50.0), (10.0, 300)])
def test_what_takes_much_of_a_processor_is_made_seldom(two, monkeypatch, spent, pause):
    times = iter([(2.0, 0.0, 0.0, 1.0, 9.0), (2.0, 0.0, spent, 1.0, 99.0)])
    replicator, now = two.replicator(), time.monotonic() + 1
    monkeypatch.setattr(checkpoint_replicator.os, "times", lambda: next(times))
    monkeypatch.setattr(checkpoint_replicator.Replicator, "look", lambda _self: None)
    assert replicator.is_due(now)
    replicator.update(now)
    assert not replicator.is_due(now + pause - 0.1) and replicator.is_due(now + pause + 0.1)


def say(two, **status):
    """Write what the supervisor on node2 knows."""
    place = two.mine.parent / "supervisor" / two.plan["replica"]["node"]
    put(place, {"status.json": json.dumps(dict({"time": time.time(), "point": None}, **status))})


def test_where_supervisors_look_for_checkpoints_there_is_a_look_for_each_new_one_alone(two):
    replicator, now = two.replicator(), time.monotonic() + 1
    # The last one: of the attempt before, which a run begins from.
    for point in (None, "forged", {"attempt": 0, "name": "7", "step": 7}):
        say(two, point=point)
        assert not replicator.is_due(now)
    for epoch in (1, 2):
        two.save(epoch)
        say(two, point={"attempt": 1, "name": str(epoch), "step": epoch})
        now += 100
        assert replicator.is_due(now)
        replicator.update(now)
        assert two.found()[0] == str(epoch) and not replicator.is_due(now + 100)
    # After a while there is one all the same.
    assert replicator.is_due(now + 125)


@pytest.mark.parametrize("seconds", [-100.0, 100.0, None])
def test_a_supervisor_that_says_nothing_more_does_not_count(two, seconds):
    say(two, time=seconds and time.time() + seconds)
    assert two.replicator().is_due(time.monotonic())


def test_a_checkpoint_that_has_the_name_of_the_last_one_is_new(two):
    replicator, now = two.replicator(), time.monotonic() + 1
    for saved in (1000.0, 2000.0):
        say(two, point={"attempt": 1, "name": "latest", "step": None, "saved": saved})
        assert replicator.is_due(now)
        replicator.update(now)
        now += 100
        assert not replicator.is_due(now)


def test_the_time_of_a_copy_is_part_of_the_time_until_the_next_one():
    assert checkpoint_replicator.pause_after(15.0, 0.36) == pytest.approx(45.0)


def test_a_look_that_takes_long_is_followed_by_a_pause(two, monkeypatch):
    replicator, now = two.replicator(), time.monotonic() + 1
    monkeypatch.setattr(checkpoint_replicator.Replicator, "look", lambda _self: time.sleep(1))
    replicator.update(now)
    assert not replicator.is_due(now + 20.9) and replicator.is_due(now + 25)


def test_a_copy_that_its_attempt_did_not_survive_counts_for_the_pause_of_the_next_one(
    two, monkeypatch
):
    times = iter([(0.0,) * 5, (0.3, 0.0, 0.0, 0.0, 9.0)])
    monkeypatch.setattr(checkpoint_replicator.os, "times", lambda: next(times))
    monkeypatch.setattr(checkpoint_replicator.Replicator, "look", lambda _self: sys.exit(0))
    with pytest.raises(SystemExit):
        two.replicator().update(time.monotonic())
    assert next_attempt(two).earlier_pause() == pytest.approx(50, abs=2)


def test_the_first_look_waits_from_the_start_of_the_run_until_it_has_a_share(two):
    two.save(1)
    os.utime(two.mine / "plan.json", (time.time() - 30,) * 2)
    left = replica.FIRST_SECONDS - 30
    assert next_attempt(two).earlier_pause() == pytest.approx(left, abs=2)
    replicator, now = two.replicator(), time.monotonic()
    assert not replicator.is_due(now + left - 2) and replicator.is_due(now + left + 2)
    os.utime(two.mine / "plan.json", (time.time() + 1e6,) * 2)  # a training can write it
    assert two.replicator().earlier_pause() == checkpoint_replicator.MOST_PAUSE_SECONDS


def test_an_end_of_the_unit_takes_away_what_a_look_has_made(two, tmp_path):
    program(two.tools, "rsync", "echo $$ > $LOG; exec sleep 60")
    code = "import sys; from {} import checkpoint_replicator; checkpoint_replicator.main({})"
    place = checkpoint_replicator.__name__.rpartition(".")[0]
    argv = [sys.executable, "-c", code.format(place, [str(two.mine)])]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = dict(os.environ, TMPDIR=str(temporary), PYTHONPATH=os.pathsep.join(sys.path))
    process = subprocess.Popen(argv, env=environment)
    try:
        wait_for(lambda: Path(two.tools, "rsync.log").exists(), lambda: time.sleep(0.05))
        process.terminate()
        assert process.wait(20) == 0 and list(temporary.iterdir()) == []
    finally:
        process.kill()


def test_a_problem_is_followed_by_another_look_at_the_same_checkpoint(two, monkeypatch):
    replicator, now = two.replicator(), time.monotonic() + 1
    two.save(1)
    say(two, point={"attempt": 1, "name": "1", "step": 1})
    assert replicator.is_due(now)
    with monkeypatch.context() as patch:
        patch.setattr(bounded_rsync, "FREE_BYTES", 1 << 60)
        replicator.update(now)
    assert two.found() is None and replicator.is_due(now + 100)
    replicator.update(now + 100)
    assert two.found()[0] == "1" and not replicator.is_due(now + 200)


def next_attempt(two):
    """Return the replicator of the attempt after the first one."""
    record = json.loads((two.mine / "attempt.json").read_text())
    plan = (two.mine / "plan.json").read_text()
    files = {"plan.json": plan, "attempt.json": json.dumps(dict(record, attempt=2))}
    return checkpoint_replicator.Replicator(str(put(two.mine.parent / "attempt-2", files)))


def test_the_pause_after_a_copy_goes_on_in_the_next_attempt(two):
    assert next_attempt(two).is_due(time.monotonic())
    two.save(1)
    replicator = two.replicator()
    replicator.update(time.monotonic())
    now = time.monotonic()
    second = next_attempt(two)
    assert not second.is_due(now + 10) and second.is_due(now + 301)


@pytest.mark.parametrize("due", [1e300, float("inf"), 10**400, -5.0, "soon", None, [1.0]])
def test_a_forged_pause_is_bounded(two, due):
    put(two.mine, {"replica.json": json.dumps({"next": due})})
    assert next_attempt(two).is_due(time.monotonic() + 301)


# --- what a lying node lists


@pytest.mark.parametrize(
    "line",
    [
        "2026/11/26-11:00:00 5 ../../x.pdparams",
        "2026/11/26-11:00:00 5 /etc/x.pdparams",
        "2026/11/26-11:00:00 5 -x.pdparams",
        "2026/11/26-11:00:00 5 a b.pdparams",
        "2026/11/26-11:00:00 5 a\\#012b.pdparams",
        "2026/11/26-11:00:00 -5 1.pdparams",
        "2026/19/39-29:00:00 5 1.pdparams",
        "2026/02/31-11:00:00 5 1.pdparams",
        "yesterday 5 1.pdparams",
        "1.pdparams",
    ],
)
def test_a_line_that_names_no_file_of_a_checkpoint_is_passed_over(two, line):
    listing = bounded_rsync.parse_listing(line + "\n" + line.replace("pdparams", "pdopt"))
    assert replica.choose_newest({FOLDER: listing}, two.rule) is None


def test_a_flood_of_names_ends(two):
    Path(two.tools, "rsync").write_text("#!/bin/sh\nexec yes '2026/11/26-11:00:00 5 1.pdparams'\n")
    Path(two.tools, "rsync").chmod(0o755)
    files, problem = bounded_rsync.list_files(["node1::checkpoint/"], 30)
    assert files == {} and problem
