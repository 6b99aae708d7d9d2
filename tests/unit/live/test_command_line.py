# SPDX-License-Identifier: Apache-2.0
"""Commands in texts, complete with the inventory in use."""

from __future__ import annotations

import os

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.live.command_line import (
    CommandLine,
    complete_all,
)
from core_support import RUN

HERE = CommandLine([os.path.abspath("inventory/my site")], ["inventory/local"])
COMPLETE = f"ansible-playbook -i 'inventory/my site' playbooks/stop.yml -e run={RUN}"


@pytest.mark.parametrize("program", ["", "ansible-playbook "])
def test_a_command_in_a_text_gets_program_and_inventory_once(program):
    text = f"wait, or {program}playbooks/stop.yml -e run={RUN} ends it; x"
    complete = HERE.complete(text)
    assert complete == f"wait, or {COMPLETE} ends it; x"
    assert HERE.complete(complete) == complete
    assert complete_all({"a": [text, 1], "b": None}, HERE) == {"a": [complete, 1], "b": None}


def test_the_configured_inventory_is_not_named():
    line = CommandLine([os.path.abspath("inventory/local")], ["inventory/local"])
    assert line.of("stop") == "ansible-playbook playbooks/stop.yml"


@pytest.mark.parametrize(
    "text",
    [
        "/opt/trainyard/playbooks/stop.yml is a file",
        "../playbooks/stop.yml",
        "playbooks/configs/ppyoloe.yml",
        "in playbooks/stop.yml:12",
        "stop.yml ends it",
    ],
)
def test_a_file_is_no_command(text):
    assert HERE.complete(text) == text


def test_a_command_from_another_directory_has_its_configuration(tmp_path):
    environ = {"ANSIBLE_CONFIG": str(tmp_path / "ansible.cfg"), "TRAINYARD_PROJECT": "/my project"}
    line = CommandLine(["a,"], [], str(tmp_path / "playbooks" / "train.yml"), environ)
    variables = f"ANSIBLE_CONFIG={tmp_path}/ansible.cfg TRAINYARD_PROJECT='/my project' "
    playbook = f"ansible-playbook -i a, {tmp_path}/playbooks/stop.yml"
    assert line.of("stop") == variables + playbook
    assert line.complete(line.of("stop")) == line.of("stop")
    environ["ANSIBLE_CONFIG"] = os.path.abspath("ansible.cfg")
    assert CommandLine(environ=environ).of("stop") == "ansible-playbook playbooks/stop.yml"


def test_a_verb_of_the_collection_leads_to_another_one():
    line = CommandLine(playbook="trainyard.cluster.train")
    assert line.of("stop") == "ansible-playbook trainyard.cluster.stop"
    assert CommandLine(playbook="converge.yml").of("stop").endswith(" playbooks/stop.yml")


def test_nothing_that_a_terminal_obeys_is_printed():
    assert "\x1b" not in CommandLine(["\x1b]0;y\x07"]).of("stop")
