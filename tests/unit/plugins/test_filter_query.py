# SPDX-License-Identifier: Apache-2.0
"""The filter query: JMESPath over values as Ansible really hands them over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader

RANKS = """
- {rank: 0, node: node1, state: done, ips: 4.5, last_step: {ips: 4.5}}
- {rank: 1, node: node1, state: failed, ips: 2, last_step: null}
- {rank: 2, node: node2, state: failed, ips: 3.25, last_step: {ips: 3.25}}
"""


@pytest.fixture
def query(load_plugin):
    return load_plugin("filter", "query").FilterModule().filters()["query"]


@pytest.fixture
def tagged():
    """The ranks as YAML that Ansible has read: its texts and numbers are subclasses that carry
    their origin.
    """
    data = DataLoader().load(RANKS)
    assert type(data[0]["ips"]) is not float
    return data


@pytest.mark.parametrize(
    "expression, expected",
    [
        ("sum([].ips)", 9.75),
        ("max_by(@, &ips).rank", 0),
        ("min_by([?last_step.ips], &last_step.ips).rank", 2),
        ("[?state=='failed'].rank", [1, 2]),
        ("sort_by(@, &node)[-1].node", "node2"),
        ("join(',', [].node)", "node1,node1,node2"),
        ("[?rank==`1`] | [0].ips", 2),
        ("nothing", None),
    ],
)
def test_functions_work_on_tagged_values(query, tagged, expression, expected):
    result = query(tagged, expression)
    assert result == expected
    assert type(result) in (int, float, str, list, type(None))


def test_the_former_name_still_works(load_plugin):
    filters = load_plugin("filter", "query").FilterModule().filters()
    assert filters["trainyard_query"] is filters["query"]


def test_the_plain_library_fails_on_tagged_values(tagged):
    """Why the filter is there; when this fails, it may go."""
    import jmespath

    with pytest.raises(jmespath.exceptions.JMESPathError):
        jmespath.search("sum([].ips)", tagged)


@pytest.mark.parametrize(
    "expression", ["[?", "sum(@)", "no_such_function(@)", "max_by([].node, &x)"]
)
def test_a_bad_expression_is_named(query, tagged, expression):
    with pytest.raises(AnsibleFilterError, match="trainyard.cluster.query: ") as caught:
        query(tagged, expression)
    assert expression in str(caught.value)


def test_an_expression_that_is_no_text(query):
    with pytest.raises(AnsibleFilterError, match="not text"):
        query([], 3)


def test_without_jmespath_it_says_what_to_install(load_plugin, monkeypatch):
    module = load_plugin("filter", "query")
    monkeypatch.setattr(module, "jmespath", None)
    with pytest.raises(AnsibleFilterError, match="jmespath"):
        module.query([], "a")


def test_the_documented_examples_work_in_a_playbook(root, tmp_path):
    examples = yaml.safe_load(
        yaml.safe_load((root / "plugins" / "filter" / "query.yml").read_text())["EXAMPLES"]
    )
    play = [
        {
            "hosts": "localhost",
            "gather_facts": False,
            "vars": {"ranks": yaml.safe_load(RANKS)},
            "tasks": examples,
        }
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play))
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        "localhost,",
        "-c",
        "local",
        str(tmp_path / "play.yml"),
    ]
    settings = {
        "ANSIBLE_COLLECTIONS_PATH": str(root / "collections"),
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "ANSIBLE_NOCOLOR": "1",
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ('"rank": 1', '"rank": 2', '"msg": 2', '"msg": "7.75"'):
        assert (
            said in done.stdout.replace("'", '"') or said.replace('"7.75"', "7.75") in done.stdout
        ), done.stdout
