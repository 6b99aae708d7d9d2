# SPDX-License-Identifier: Apache-2.0
"""The filter history_lines; tests/unit/modules/test_run_history_info.py has the lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml
from ansible.parsing.dataloader import DataLoader

LOOK = """
- run: r
  node: node1
  attempts:
    - {number: 1, started: null, ended: null, well: false, by: ann, stop: null, ends: [],
       resumed: null, nodes: [node1], epochs: 3, first: {}, log: null}
- run: r
  node: node2
  attempts: nonsense
"""
LINES = ["attempt 1 by ann on node1: goes on", "node2 gave a history that cannot be read"]


def test_values_as_ansible_hands_them_over(load_plugin):
    plugin = load_plugin("filter", "history_lines")
    describe = plugin.FilterModule().filters()["history_lines"]
    lines = describe(DataLoader().load(LOOK))
    assert lines == LINES and {type(line) for line in lines} == {str}
    assert describe([]) == []


def test_a_playbook_finds_it_by_the_collections_name(tmp_path, root):
    (tmp_path / "looks.yml").write_text(LOOK)
    play = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "tasks": [
                {
                    "debug": {
                        "msg": "{{ lookup('file', looks) | from_yaml"
                        " | trainyard.cluster.history_lines }}"
                    }
                }
            ],
        }
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play))
    ansible = Path(sys.executable).with_name("ansible-playbook")
    words = [ansible, tmp_path / "play.yml", "-e", f"looks={tmp_path / 'looks.yml'}"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and all(line in done.stdout for line in LINES), done.stdout


def test_it_is_documented(root):
    text = (root / "plugins" / "filter" / "history_lines.yml").read_text()
    assert yaml.safe_load(text)["DOCUMENTATION"]["name"] == "history_lines"
