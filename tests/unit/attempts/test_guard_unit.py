# SPDX-License-Identifier: Apache-2.0
"""The guard's unit: started after the attempt's, never starting it, gone with it; without
systemd.
"""

from __future__ import annotations

import os
import sys

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import attempt_end
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    guard_unit,
    replica_unit,
)
from core_support import RUN, attempt_files, compiled, program, put, recorded

UNIT = f"trainyard-{RUN}-1.service"


class Systemd:
    """A `run` callable that answers by the words it is called with and remembers its calls."""

    def __init__(self, **answers):
        self.answers, self.calls = answers, []

    def __call__(self, argv):
        self.calls.append(argv)
        words = [
            word for word in argv if word in self.answers or word.rsplit("/", 1)[-1] in self.answers
        ]
        return self.answers.get(words[-1].rsplit("/", 1)[-1], (0, "", "")) if words else (0, "", "")


def test_the_guard_is_started_with_exactly_these_words():
    argv = guard_unit.start_argv("/b/a", "node2", UNIT)
    assert argv[:5] == [
        "systemd-run",
        "--user",
        "--quiet",
        "--collect",
        f"--unit=yardguard-{RUN}-1.service",
    ]
    given = [argv[index + 1] for index, word in enumerate(argv) if word == "--property"]
    # A guard that comes back never starts the attempt.
    assert "Requisite=" + UNIT in given and "After=" + UNIT in given
    assert not [word for word in given if word.startswith(("BindsTo", "Requires", "PartOf"))]
    assert (
        "Restart=always" in given
        and "RestartPreventExitStatus=75" in given
        and "TimeoutStopSec=2" in given
    )
    assert argv[-6:] == [sys.executable, "-I", "/b/a/agent.pyz", "guard", "/b/a", "node2"]
    with pytest.raises(attempt_dir.AttemptError):
        attempt_dir.parse_unit(guard_unit.unit_name(UNIT))  # it holds no node


def test_an_attempt_has_its_guard_and_a_rehearsal_none(tmp_path):
    run = Systemd()
    attempt_dir.start(run, str(tmp_path), compiled(), "node2", f"trainyard-{RUN}-0.service", "d")
    assert len(run.calls) == 1
    attempt_dir.start(run, str(tmp_path), compiled(), "node2", UNIT, "d")
    assert run.calls[2] == guard_unit.start_argv(str(tmp_path), "node2", UNIT)


def test_a_guard_that_does_not_start_leaves_no_attempt_behind(tmp_path):
    run = Systemd(
        **{"guard": (1, "", "Unknown assignment: Requisite\n"), "is-active": (0, "active\n", "")}
    )
    with pytest.raises(
        attempt_dir.AttemptError,
        match=f"systemd did not start yardguard-{RUN}-1.service: Unknown assignment",
    ):
        attempt_dir.start(run, str(tmp_path), compiled(), "node2", UNIT, "d")
    assert ["systemctl", "--user", "stop", UNIT] in run.calls


def test_an_attempt_that_was_over_before_its_guard_came_is_no_failure(tmp_path):
    run = Systemd(**{"guard": (1, "", "Dependency failed\n"), "is-active": (3, "inactive\n", "")})
    attempt_dir.start(run, str(tmp_path), compiled(), "node2", UNIT, "d")
    assert ["systemctl", "--user", "stop", UNIT] not in run.calls


def test_a_stop_ends_the_guard_too(tmp_path):
    run = Systemd(**{"is-active": (0, "active\n", "")})
    assert attempt_dir.stop(run, str(tmp_path), UNIT, "user", "me") is True
    stops = [call for call in run.calls if "stop" in call]
    assert stops == [
        ["systemctl", "--user", "stop", UNIT],
        ["systemctl", "--user", "stop", f"yardguard-{RUN}-1.service"],
    ]


def test_the_end_of_the_attempt_ends_a_guard_that_is_stuck(tmp_path, monkeypatch):
    tools = program(tmp_path / "tools", "systemctl", 'echo "$*" >> $LOG')
    monkeypatch.setenv("PATH", tools + os.pathsep + os.environ["PATH"])
    monkeypatch.setenv("SERVICE_RESULT", "success")
    attempt = attempt_files(tmp_path, compiled(), "node2")
    put(attempt, {"stop.json": '{"by": "user"}'})
    assert attempt_end.finish(attempt, "node2") == 0
    # Nobody waits for it.
    assert recorded(tools, "systemctl") == [f"--user stop --no-block yardguard-{RUN}-1.service"]


def test_an_attempt_of_an_earlier_release_is_stopped_with_its_guard(tmp_path):
    """Its files have other names, which its own units know. No command of ours names them."""
    names = ("agent.py", "guard.py", "guard_beat.py", "openmpi.py", "mesh_gate.py")
    attempt = put(tmp_path / "attempt", dict.fromkeys(names, ""))
    run = Systemd(**{"is-active": (0, "active\n", "")})
    assert attempt_dir.stop(run, attempt, UNIT, "user", "me") is True
    assert [call[-1] for call in run.calls if "stop" in call] == [UNIT, guard_unit.unit_name(UNIT)]
    assert not any(word.startswith(attempt) for call in run.calls for word in call)


# --- the replicator


def test_the_replicator_is_started_with_exactly_these_words():
    argv = replica_unit.start_argv("/b/a", UNIT)
    given = [argv[index + 1] for index, word in enumerate(argv) if word == "--property"]
    assert f"--unit=yardreplica-{RUN}-1.service" in argv
    # One that is started again never starts the attempt, and the training comes first.
    assert "Requisite=" + UNIT in given and "After=" + UNIT in given
    assert not [word for word in given if word.startswith(("BindsTo", "Requires", "PartOf"))]
    assert "Nice=19" in given and "IOSchedulingClass=idle" in given
    assert argv[-4:] == [sys.executable, "-I", "/b/a/replicator.pyz", "/b/a"]
    with pytest.raises(attempt_dir.AttemptError):
        attempt_dir.parse_unit(replica_unit.unit_name(UNIT))  # it holds no node


def test_a_replicator_lives_beside_an_attempt_that_has_its_archive(tmp_path):
    run, place = Systemd(), str(tmp_path)
    assert replica_unit.start(run, place, UNIT) == ""
    replica_unit.stop(run, place, UNIT)
    assert run.calls == []
    put(tmp_path, {"replicator.pyz": ""})
    assert replica_unit.start(run, place, UNIT) == "" and run.calls[-1][0] == "systemd-run"
    replica_unit.stop(run, place, UNIT)
    assert run.calls[-1] == ["systemctl", "--user", "stop", replica_unit.unit_name(UNIT)]
    problem = replica_unit.start(Systemd(**{"systemd-run": (1, "", "no bus")}), place, UNIT)
    assert "no bus" in problem


def test_the_end_of_the_attempt_ends_its_replicator(tmp_path, monkeypatch):
    tools = program(tmp_path / "bin", "systemctl", 'echo "$@" >>$LOG')
    monkeypatch.setenv("PATH", tools, prepend=os.pathsep)
    attempt = attempt_files(tmp_path, compiled(count=1), "node1")
    put(attempt, {"replicator.pyz": ""})
    attempt_end.stop_companions(attempt)
    assert recorded(tools, "systemctl") == [
        f"--user stop --no-block yardguard-{RUN}-1.service yardreplica-{RUN}-1.service"
    ]
