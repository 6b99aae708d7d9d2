# SPDX-License-Identifier: Apache-2.0
"""Commands that lead back to a run."""

from __future__ import annotations

import os

from ansible_collections.trainyard.cluster.plugins.plugin_utils.live.command_line import (
    CommandLine,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live.detach_hint import (
    describe_detached_run,
)
from core_support import RUN


def commands(text):
    return [line.split(":  ")[1] for line in text.splitlines() if ":  " in line]


def test_every_command_is_complete():
    verbs = ("follow", "status", "stop")
    default = os.path.abspath("inventory/local")
    line = CommandLine([default, "/sites/a b", "node1,"], ["inventory/local"])
    text = describe_detached_run(RUN, line)
    options = "-i '/sites/a b' -i node1,"
    expected = [f"ansible-playbook {options} playbooks/{verb}.yml -e run={RUN}" for verb in verbs]
    assert [line.strip() for line in commands(text)] == expected


def test_nothing_that_a_terminal_obeys_is_printed():
    text = describe_detached_run("x\x1b[2J", CommandLine(["\x1b]0;y\x07"]))
    assert "\x1b" not in text
