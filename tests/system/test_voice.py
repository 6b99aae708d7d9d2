# SPDX-License-Identifier: Apache-2.0
"""What a person reads when something fails: each cause once, plainly, as the last lines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from core_support import ROOT, put
from system.test_playbooks import ANSIBLE

HOSTS = """---
trainers:
  hosts: {node1: {number: 1}, node2: {number: 2}}
  vars: {ansible_connection: local, ansible_python_interpreter: PYTHON}
""".replace("PYTHON", sys.executable)
# One play of each kind. `case` chooses which of them has hosts.
PLAY = """---
- name: No host
  hosts: nobody
  tasks: [{ansible.builtin.ping: {}}]
- name: Nothing to do
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Be skipped
      ansible.builtin.debug: {msg: never}
      when: false
- name: Do something
  hosts: trainers
  gather_facts: false
  tasks:
    - name: Put it into a group
      ansible.builtin.add_host: {name: node1, groups: others}
      changed_when: false
    - name: Show a plan
      ansible.builtin.debug: {msg: ["a  'plain' line: LONG", "  indented"]}
      run_once: true
    - name: Go on after this
      block: [{ansible.builtin.fail: {msg: "rescued on {{ number }}"}}]
      rescue: [{ansible.builtin.debug: {msg: again, verbosity: 1}}]
    - name: Ignore this
      ansible.builtin.fail: {msg: the same on both}
      ignore_errors: true
    - name: Fail in a loop
      ansible.builtin.fail: {msg: "broken"}
      loop: [left, right]
      when: item == 'right' and case == 'loop'
    - name: Run a program
      ansible.builtin.command: {argv: [sh, -c, "echo why >&2; echo COMPLETED; exit 3"]}
      changed_when: false
      when: case == 'program'
    - name: Read the job
      trainyard.cluster.findings_report:
        findings:
          - {code: disk.full, check: disk, level: stop, nodes: [node1], text: full, remedy: x}
      delegate_to: localhost
      run_once: true
      when: case == 'findings'
    - name: Find a site
      trainyard.cluster.job_config: {extra: [case]}
      run_once: true
      delegate_to: localhost
      when: case == 'refusal'
""".replace("LONG", "x" * 150)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run the play; return (exit code, lines). Once per case and option."""
    folder = tmp_path_factory.mktemp("voice")
    put(folder, {"play.yml": PLAY, "hosts.yml": HOSTS})
    known = {}

    def call(case, *options, **environment):
        key = (case, options, *environment)
        if key not in known:
            done = subprocess.run(
                [ANSIBLE, "-i", str(folder / "hosts.yml"), "-e", f"case={case}", *options]
                + [str(folder / "play.yml")],
                cwd=str(ROOT),
                env=dict(os.environ, ANSIBLE_NOCOLOR="1", HOME=str(folder), **environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
            )
            known[key] = done.returncode, done.stdout.splitlines()
        return known[key]

    return call


def after_recap(lines):
    """Return the lines after the table of the hosts."""
    recap = next(index for index, line in enumerate(lines) if line.startswith("PLAY RECAP"))
    return lines[lines.index("", recap) + 1 :]


def test_only_what_follows_has_a_heading_and_a_message_is_plain(run):
    code, lines = run("nothing")
    assert code == 0 and after_recap(lines) == []
    assert [line.split(" *")[0] for line in lines if line.startswith(("PLAY", "TASK"))] == [
        "PLAY [Do something]",
        "TASK [Show a plan]",
        "TASK [ansible.builtin.fail]",
        "TASK [Ignore this]",
        "PLAY RECAP",
    ]
    place = lines.index("a  'plain' line: " + "x" * 150)
    assert lines[place + 1] == "  indented"


def test_what_the_playbook_goes_on_with_is_said_where_it_happens_once_per_cause(run):
    _code, lines = run("nothing")
    assert lines.count("node1, node2: the same on both") == 1
    assert "node1: rescued on 1" in lines and "node2: rescued on 2" in lines
    assert lines.index("node1: rescued on 1") < lines.index("node1, node2: the same on both")


@pytest.mark.parametrize(
    ("case", "last"),
    [
        ("loop", ["node1, node2: right: broken"]),
        (
            "program",
            [
                "node1, node2: Run a program: non-zero return code",
                "    exit code 3",
                "    why",
                "    COMPLETED",
            ],
        ),
    ],
)
def test_a_failure_comes_last_and_once_for_all_nodes(run, case, last):
    code, lines = run(case)
    assert code == 2 and after_recap(lines) == last
    assert "failed: [node1]" in lines and "failed: [node2]" in lines
    assert not [
        line for line in lines if "Origin:" in line or "fatal:" in line or "[ERROR]" in line
    ]


def test_a_refusal_is_a_heading_and_its_problems_with_their_codes(run):
    code, lines = run("refusal")
    head, *problems = after_recap(lines)
    assert code == 2 and head.endswith("problems, nothing was touched:")
    assert problems and all(
        line.startswith("  ") and line.endswith("]") and "[" in line for line in problems
    )
    assert not [line for line in lines if "Find a site" in line]


def test_a_table_of_findings_is_not_repeated(run):
    code, lines = run("findings")
    assert code == 2
    row, remedy, head = after_recap(lines)
    assert row.split()[:3] == ["STOP", "node1", "disk.full"]
    assert remedy.split()[0] == "->" and head.startswith("NOT READY: 1 finding")


def test_the_answer_of_a_question_has_no_headings_and_keeps_its_failures(run):
    code, lines = run("program", TRAINYARD_BRIEF="1")
    text = "\n".join(lines)
    assert code == 2 and "PLAY" not in text and "TASK" not in text and "changed:" not in text
    assert "a  'plain' line: " + "x" * 150 in lines
    assert lines[-4:] == [
        "node1, node2: Run a program: non-zero return code",
        "    exit code 3",
        "    why",
        "    COMPLETED",
    ]
    assert "TASK [Show a plan]" in "\n".join(run("nothing", "-v", TRAINYARD_BRIEF="1")[1])


def test_verbose_output_is_ansibles(run):
    code, lines = run("program", "-v")
    assert code == 2 and after_recap(lines) == []
    text = "\n".join(lines)
    for part in ("PLAY [Nothing to do]", "fatal: [node1]: FAILED!", "Origin:", "ok: [node1] =>"):
        assert part in text


def without_site(tmp_path, *words):
    """Run a verb of the product as a user who forgot -i; return (exit code, output)."""
    environment = {key: value for key, value in os.environ.items() if "INVENTORY" not in key}
    done = subprocess.run(
        [ANSIBLE, *words],
        cwd=str(ROOT),
        env=dict(environment, ANSIBLE_NOCOLOR="1", HOME=str(tmp_path)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_refusal_about_the_demo_site_says_that_it_was_not_chosen(tmp_path):
    code, output = without_site(tmp_path, "playbooks/train.yml", "-e", "config=ppyoloe")
    assert code == 2 and "[login.bad_key_file]" in output
    assert output.splitlines()[-1].startswith("Neither -i nor ANSIBLE_INVENTORY was given")
    output = without_site(tmp_path, "-i", "inventory/local", "playbooks/stop.yml")[1]
    assert "[login.bad_key_file]" in output and "ANSIBLE_INVENTORY" not in output


def test_a_report_needs_no_key(tmp_path):
    code, output = without_site(
        tmp_path, "playbooks/report.yml", "-e", "run=20200101-000000-x-0000"
    )
    assert code == 2 and "no report: " in output and "login." not in output
