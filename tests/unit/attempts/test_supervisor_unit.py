# SPDX-License-Identifier: Apache-2.0
"""The supervisor's unit: its exact text, and systemd's calls at its begin and end."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
    supervisor_unit,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.interpreter import node_python
from ansible_collections.trainyard.cluster.plugins.module_utils.supervision import supervisor
from core_support import RUN

UNIT = f"trainyard-{RUN}-1.service"
NAME = f"yardsupervisor-{RUN}-1-node2.service"
TEXT = f"""\
[Unit]
Description=Supervisor of {UNIT} on node2
ConditionHost=abc
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart=/usr/bin/python3 -I /b/node2/supervisor.pyz /b/node2
Restart=always
RestartSec=1
RestartPreventExitStatus=75
SuccessExitStatus=75
WatchdogSec=12
KillMode=control-group
TimeoutStopSec=2
UMask=0077
WorkingDirectory=/b/node2
StandardOutput=append:/b/node2/supervisor.log
StandardError=append:/b/node2/supervisor.log

[Install]
WantedBy=default.target
"""


class Systemd:
    """A `run_command` that remembers its calls and whether the unit's file was there."""

    def __init__(self, home, **answers):
        self.path, self.answers = Path(supervisor_unit.unit_path(home, UNIT, "node2")), answers
        self.calls = []

    def __call__(self, argv):
        assert argv[:2] == ["systemctl", "--user"]
        self.calls.append((" ".join(argv[2:]), self.path.exists()))
        return self.answers.get(argv[2], (0, "", ""))


@pytest.fixture
def home(tmp_path):
    return str(tmp_path)


def install(run, home):
    return supervisor_unit.install(run, home, "/b/node2", UNIT, "node2")


def test_the_text_is_exactly_this():
    assert supervisor_unit.unit_text("/b/node2", UNIT, "node2", "abc", "/usr/bin/python3") == TEXT


def test_a_supervisor_that_stands_still_ends_before_its_lease():
    assert supervisor_unit.WATCHDOG_SECONDS < supervisor.LEASE


def test_no_attempt_has_its_name_and_each_node_its_own():
    assert supervisor_unit.unit_name(UNIT, "node2") == NAME
    with pytest.raises(attempt_dir.AttemptError):
        attempt_dir.parse_unit(NAME)  # it holds no node
    names = {supervisor_unit.unit_name(UNIT, node) for node in ("node1", "node2")}
    assert len(names) == 2


def test_it_is_written_enabled_and_started_in_this_order(home):
    run = Systemd(home)
    assert install(run, home) == ""
    assert run.calls == [
        ("daemon-reload", True),
        (f"enable --quiet {NAME}", True),
        (f"start {NAME}", True),
    ]
    machine = Path("/etc/machine-id").read_text("ascii").strip()
    expected = supervisor_unit.unit_text("/b/node2", UNIT, "node2", machine, node_python())
    assert run.path == Path(home, ".config/systemd/user", NAME)
    assert run.path.read_text() == expected and f"ConditionHost={machine}\n" in expected
    assert supervisor_unit.is_installed(home, UNIT, "node2")
    assert not supervisor_unit.is_installed(home, UNIT, "node1")


@pytest.mark.parametrize("verb", ["daemon-reload", "enable", "start"])
def test_a_failure_leaves_no_unit_and_says_why(home, verb):
    run = Systemd(home, **{verb: (1, "", "Unknown lvalue\n")})
    assert install(run, home) == f"systemd did not start {NAME}: Unknown lvalue"
    assert not supervisor_unit.is_installed(home, UNIT, "node2")
    assert run.calls[-2:] == [(f"disable --quiet {NAME}", True), ("daemon-reload", False)]
    started = [call for call, _there in run.calls if call.startswith("start")]
    assert len(started) == (verb == "start")


def test_its_removal_stops_it_first(home):
    run = Systemd(home)
    install(run, home)
    run.calls.clear()
    supervisor_unit.remove(run, home, UNIT, "node2")
    assert run.calls == [
        (f"stop {NAME}", True),
        (f"disable --quiet {NAME}", True),
        ("daemon-reload", False),
    ]
    run.calls.clear()
    supervisor_unit.remove(run, home, UNIT, "node2")
    assert run.calls == [], "there is no other"


def test_a_supervisor_that_goes_does_not_stop_itself(home):
    run = Systemd(home)
    install(run, home)
    run.calls.clear()
    supervisor_unit.forget(run, home, UNIT, "node2")
    supervisor_unit.forget(run, home, UNIT, "node2")
    assert not run.path.exists()
    assert {call.split()[0] for call, _there in run.calls} == {"disable", "daemon-reload"}
