# SPDX-License-Identifier: Apache-2.0
"""conform's checks of the Paddle documents' commands.

They are contract A1, A2, A7, B2, B3, C1 to C3 and C7. Each takes the fixtures, its line of
contract.yml and the findings.
"""

from __future__ import annotations

import os
import shlex

from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import attempt_dir

from ..inputs import sources
from .findings_check import Findings
from .fixtures import MANY, Fixtures, Job, Line, job_of, machines_of, only_added


def one_machine(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check A1: the command on one machine."""
    fixtures.commands(line, findings, job_of(fixtures, line), line["commands"])


def many_machines(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check A2, B3, C2: the commands, one-machine form plus one word."""
    job = job_of(fixtures, line)
    fixtures.commands(line, findings, job, line["commands"])
    alone = fixtures.make(job, machines_of(line, 1)).plan["argv"]
    for count in line["commands"]:
        findings.same(
            f"what {count} machines add to one",
            "",
            only_added(alone, fixtures.make(job, machines_of(line, count)).plan["argv"], "--ips="),
        )
    findings.say("only --ips is added")


def seg_command(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check B2: the command, with the old and the new path of the script.

    fleetrun runs the same words.
    """
    job = job_of(fixtures, line)
    fixtures.commands(line, findings, job, line["commands"])
    suite = fixtures.suite(job["suite"])
    for old, new in line["renamed"].items():
        findings.same(
            f"the script in a tree that has {old} only",
            old,
            sources.find_script(suite, {old: None}, "tree"),
        )
        findings.same(
            "the script in a tree that has both",
            new,
            sources.find_script(suite, {old: None, new: None}, "tree"),
        )
    other_spelling(fixtures, line, findings, job, line["equal"])


def other_spelling(
    fixtures: Fixtures, line: Line, findings: Findings, job: Job, launcher: str
) -> None:
    """Check that the other launcher runs the same words of the script.

    It runs them on the same devices.
    """
    other = fixtures.job(job["name"], launcher=launcher)
    for count in (1, MANY):
        mine, theirs = (
            fixtures.make(item, machines_of(line, count)).plan["argv"] for item in (job, other)
        )
        script = [
            next(index for index, word in enumerate(words) if word.endswith("train.py"))
            for words in (mine, theirs)
        ]
        findings.words(
            f"{launcher} on {count} machines, from the script on",
            mine[script[0] :],
            theirs[script[1] :],
        )
        findings.same(
            f"its devices on {count} machines", mine[script[0] - 1], theirs[script[1] - 1]
        )
        findings.same(
            f"its launcher on {count} machines",
            other["launcher"] == "fleetrun",
            theirs[0] == "fleetrun",
        )
    findings.say(f"{launcher} runs the same words of the script")


def detection_command(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check C1: the command.

    The unit's two streams go to one file, and no process waits for it.
    """
    job = job_of(fixtures, line)
    fixtures.commands(line, findings, job, line["commands"])
    compiled_job = fixtures.make(job, machines_of(line, 1), home=fixtures.home())
    place, console = fixtures.attempt(compiled_job), line["values"]["console"]
    words = attempt_dir.start_argv(place, compiled_job.plan, "node1", "u.service", "d")
    streams = {
        word.split("=")[0]: word.split(":", 1)[1]
        for word in words
        if word.startswith(("StandardOutput=", "StandardError="))
    }
    console_path = os.path.join(place, console)
    findings.same(
        "where the unit's streams go",
        {"StandardOutput": console_path, "StandardError": console_path},
        streams,
    )
    findings.same(
        "words that make systemd-run wait",
        [],
        [word for word in words if word in ("--wait", "--pty", "--scope", "-t", "-P")],
    )
    findings.say(f"both streams in {console}, nobody waits")


def detection_spelling(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check C3: the commands of the other launcher.

    fleetrun's differ in the launcher alone.
    """
    fixtures.commands(
        line, findings, job_of(fixtures, line, launcher=line["other_launcher"]), line["commands"]
    )
    other_spelling(fixtures, line, findings, job_of(fixtures, line), line["other_launcher"])


def the_users_command(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check C7: -e config=... leads to the command of another line."""
    target = fixtures.contract["promises"][line["same_as"]]
    fixtures.commands(
        dict(line, renamed=target.get("renamed", {})),
        findings,
        fixtures.job(line["config"]),
        target["commands"],
    )
    reading = [
        task["trainyard.cluster.job_config"]
        for task in fixtures.data("roles", "preflight", "tasks", "read.yml")
        if "trainyard.cluster.job_config" in task
    ]
    # a resumed run brings its own job
    expression = "{{ (launch_resume_decision is defined) | ternary(omit, config | default('')) }}"
    findings.same("what the role reads", [expression], [task["config"] for task in reading])
    first = fixtures.data("playbooks", "train.yml")[0]["ansible.builtin.import_playbook"]
    findings.same("what train.yml imports first", "includes/read_job.yml", first)
    reader = fixtures.data("playbooks", "includes", "read_job.yml")[0]["tasks"][0]
    role = reader["ansible.builtin.import_role"]
    findings.same("what it does first", ("preflight", "read"), (role["name"], role["tasks_from"]))


def one_job(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check A7: the same job file gives both commands."""
    job = job_of(fixtures, line)
    promises, machines = fixtures.contract["promises"], machines_of(line, MANY)
    for name, extra, count in (("A1", {"nodes": "1"}, 1), ("A2", {}, MANY)):
        expected = shlex.split(promises[name]["commands"][count])
        findings.words(
            f"{name} of {MANY} listed machines",
            expected,
            fixtures.make(job, machines, extra=extra).plan["argv"],
        )
    findings.say("-e nodes=1 gives A1, without it A2")


CHECKS = {
    "A1": one_machine,
    "A2": many_machines,
    "A7": one_job,
    "B2": seg_command,
    "B3": many_machines,
    "C1": detection_command,
    "C2": many_machines,
    "C3": detection_spelling,
    "C7": the_users_command,
}
