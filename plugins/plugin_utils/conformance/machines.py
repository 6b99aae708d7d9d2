# SPDX-License-Identifier: Apache-2.0
"""conform's checks of the Paddle documents' machines, order, SSH and ports.

They are contract A3 to A6, A11, B1, B4, B5 and C4. Each takes the fixtures, its line of
contract.yml and the findings.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import login_check

from ..plan import readiness
from .findings_check import Findings
from .fixtures import (
    CARDS,
    MANY,
    Broken,
    Fixtures,
    Job,
    Line,
    has_address,
    job_of,
    machines_of,
    proven_mesh,
    roles_of,
    sequence,
)

# Lines of document A, and a text that names a port and one of them together.
OCR_LINE = re.compile(r"\bA(?:[1-9]|10)\b")
ATTRIBUTED = re.compile(
    r"(?i:port)s?\b[^.;|,()]{0,40}\(?(?:contract"
    rf" )?{OCR_LINE.pattern}|{OCR_LINE.pattern}[^.;|,()]{{0,40}}(?i:port)s?\b"
)


def addresses(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check A3: the addresses are those of the nodes.

    That holds where the inventory has host names, too. They are one word with commas and without
    spaces. The job has none.
    """
    job, machines = job_of(fixtures, line), machines_of(line, MANY)
    host_names = [f"trainer-{number}.example.org" for number in range(1, MANY + 1)]
    for listed_by, names in (("address", None), ("name", host_names)):
        argv = fixtures.make(job, machines, names=names).plan["argv"]
        words = [word for word in argv if "".join(machines[:1]) in word]
        findings.same(
            f"--ips, machines listed by {listed_by}",
            [f"--ips={','.join(machines)}"],
            words,
        )
    findings.true(
        "the job holds no address",
        not has_address(fixtures.text("playbooks", "configs", job["name"] + ".yml")),
        "it does",
    )
    try:
        fixtures.job(job["name"], ips="192.0.2.1")
        problems = []
    except Broken as error:
        problems = [error]
    findings.refused("addresses typed into a job", problems, "ips", "unknown key")
    findings.say("--ips from the nodes' own addresses")


def passwordless(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check A4: without proof of every login nothing starts.

    A login that fails is named. On the site, all logins are made now.
    """
    compiled_job = fixtures.make(job_of(fixtures, line), machines_of(line, 2))
    names = [node["name"] for node in compiled_job.nodes]
    findings.same(
        "nodes that are to be trusted where no mesh is proven",
        names,
        readiness.pending_steps(compiled_job.plan, compiled_job.facts, time.time())["trust"],
    )
    groups, hostvars = fixtures.inventory(machines_of(line, 2))
    ready = {
        name: dict(compiled_job.facts[name], mesh=proven_mesh(groups, hostvars)) for name in names
    }
    findings.same(
        "nodes that are to be trusted where it is",
        [],
        readiness.pending_steps(compiled_job.plan, ready, time.time())["trust"],
    )
    peers = [{"name": name, "identity": name} for name in names]
    failures = login_check.log_in_everywhere(
        names[0],
        peers,
        lambda peer: (255, "", "ssh: connect to host x port 22: Connection refused"),
    )
    pairs = [
        (failure["from"], failure["to"], bool(failure["cause"]), bool(failure["remedy"]))
        for failure in failures
    ]
    findings.same(
        "the pair that a failed login names, with cause and remedy",
        [(names[0], names[1], True, True)],
        pairs,
    )
    proof = [
        task
        for task in fixtures.data("roles", "ssh_trust", "tasks", "prove.yml")
        if "ansible.builtin.assert" in task
    ]
    findings.true(
        "the role stops on any failed login",
        proof
        and "texts" in str(proof[0].get("vars"))
        and "length == 0" in proof[0]["ansible.builtin.assert"]["that"],
    )
    first = fixtures.data("playbooks", "includes", "make_ready.yml")[0]
    findings.same(
        "the play that proves ends all on a failure",
        (["ssh_trust"], True),
        (roles_of([first]), first.get("any_errors_fatal")),
    )
    findings.same(
        "what train.yml does before what",
        ["ready", "start", "follow"],
        [kind for kind in sequence(fixtures)[0] if kind],
    )
    findings.say(f"a failed login is named ({names[0]} -> {names[1]}) before the start")
    if fixtures.site:
        fixtures.site.logins(findings)


def same_everywhere(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check A5: one plan, one command, one digest of code and data for all.

    A node that has others is updated or named. On the site, a finished run is checked.
    """
    compiled_job = fixtures.make(job_of(fixtures, line), machines_of(line, MANY))
    names = [node["name"] for node in compiled_job.nodes]
    findings.same(
        "nodes with a command of their own",
        [],
        [node["name"] for node in compiled_job.plan["nodes"] if node.get("argv")],
    )
    findings.same("where the command runs", "each", compiled_job.plan["launcher"]["kind"])
    bare = {name: dict(compiled_job.facts[name], trees={}) for name in names[-1:]}
    todo = readiness.pending_steps(compiled_job.plan, dict(compiled_job.facts, **bare), time.time())
    findings.same(
        "nodes that get code and data where one lacks them",
        (names[-1:], names[-1:]),
        (todo["code"], todo["data"]),
    )
    other = {
        name: {"ok": False, "present": True, "differences": ["tools/train.py: other content"]}
        for name in compiled_job.facts[names[-1]]["trees"]
    }
    obstacles = readiness.obstacles(
        compiled_job.plan,
        dict(compiled_job.facts, **{names[-1]: dict(compiled_job.facts[names[-1]], trees=other)}),
    )
    findings.refused(
        "a start where a node's code and data were changed",
        [str(item) for item in obstacles],
        f"{names[-1]}: code/",
        f"{names[-1]}: data/",
        "tools/train.py",
    )
    findings.say("one plan for all")
    if fixtures.site:
        fixtures.site.finished_run(
            findings, line["document"]["suite"], line["document"]["title"], line["document"]["job"]
        )


def order(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check A6: ranks follow the list, and turn round with it.

    Every node gets its own one of the addresses.
    """
    job, machines = job_of(fixtures, line), machines_of(line, MANY)
    for listed in (machines, machines[::-1]):
        compiled_job = fixtures.make(job, listed).plan
        ranks = compiled_job["ranks"]
        expected = [
            (number, listed[number // CARDS], str(number % CARDS))
            for number in range(CARDS * len(listed))
        ]
        got = [(rank["rank"], rank["endpoint"].split(":")[0], rank["device"]) for rank in ranks]
        findings.same(f"ranks of {listed[0]}, ...", expected, got)
        # Without it the launcher asks for its host name's address, and a node that does not find
        # itself in --ips becomes rank 0 (facts, 3).
        addresses = [
            dict(compiled_job["env"], **node["env"]).get("POD_IP") for node in compiled_job["nodes"]
        ]
        findings.same(f"POD_IP of {listed[0]}, ...", listed, addresses)
    findings.say(f"{CARDS * len(machines)} ranks in list order, and turned round with the list")


def here_too(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check B4: A3 to A6 for the job of this promise."""
    for check in (addresses, passwordless, same_everywhere, order):
        check(fixtures, line, findings)


def port_and_here_too(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check C4: B4 and B5 for the job of this promise."""
    here_too(fixtures, line, findings)
    start_port(fixtures, dict(fixtures.contract["promises"]["B5"], **line), findings)


def start_port(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check B5: every node's ranks get one start port.

    The site's is the recommended one. The command line's goes everywhere. None is too high.
    """
    job, machines, values = job_of(fixtures, line), machines_of(line, MANY), line["values"]
    low, high = values["recommended"]
    for origin, extra, port in (
        ("as it comes", {}, values["port"]),
        ("start_port=12000", {"start_port": "12000"}, 12000),
    ):
        compiled_job = fixtures.make(job, machines, extra=extra)
        for variable in (values["variable"], values["read"]):
            ports = [
                dict(compiled_job.plan["env"], **node["env"]).get(variable)
                for node in compiled_job.plan["nodes"]
            ]
            findings.same(
                f"{variable} on every node, {origin}",
                [str(port)] * MANY,
                ports,
            )
        expected = [f"{machine}:{port + card}" for machine in machines for card in range(CARDS)]
        findings.same(
            f"endpoints, {origin}",
            expected,
            compiled_job.plan["endpoints"],
        )
    findings.true(
        "the default port is in the recommended range",
        low <= int(fixtures.make(job, machines).plan["ports"]["start"]) <= high,
    )
    findings.refused(
        "a start port without room",
        too_high(fixtures, job, machines),
        f"recommended {low} to {high}",
        "B5",
    )
    findings.say(f"{values['variable']}={values['port']} on {MANY} nodes; start_port moves all")


def too_high(fixtures: Fixtures, job: Job, machines: Sequence[str]) -> list[Broken]:
    """Return the product's problems with a start port that leaves no room."""
    try:
        fixtures.make(job, machines, extra={"start_port": "65530"})
    except Broken as error:
        return [error]
    return []


def devices_variable(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check B1: the variable on every node, and the model's config and folder."""
    promise = line["values"]
    for count in (1, MANY):
        compiled_job = fixtures.make(job_of(fixtures, line), machines_of(line, count))
        values = {
            dict(compiled_job.plan["env"], **node["env"]).get("CUDA_VISIBLE_DEVICES")
            for node in compiled_job.plan["nodes"]
        }
        findings.same(
            f"CUDA_VISIBLE_DEVICES on {count}",
            [promise["CUDA_VISIBLE_DEVICES"]],
            sorted(map(str, values)),
        )
        findings.same(
            "the config's name",
            promise["model"] + ".yml",
            os.path.basename(compiled_job.job["config"]),
        )
        findings.true(
            "it saves below the model's name",
            "output/" + promise["model"] in compiled_job.plan["argv"],
        )
    findings.say(f"CUDA_VISIBLE_DEVICES={promise['CUDA_VISIBLE_DEVICES']} on 1 and {MANY} nodes")


def no_port_rule(fixtures: Fixtures, line: Line, findings: Findings) -> None:
    """Check A11: no PaddleOCR job has a port.

    A refused port cites B5, and no text of the product gives this document a port rule.
    """
    mine = [
        name for name in fixtures.jobs() if fixtures.job(name)["suite"] == line["document"]["suite"]
    ]
    for name in mine:
        job = fixtures.job(name)
        findings.same(f"{name}: start port", None, job.get("start_port"))
        findings.same(
            f"{name}: sources that are port rules",
            [],
            [source for source in job["source"] if source in ("B5", "C4")],
        )
        text = "".join(map(str, too_high(fixtures, job, machines_of(line, 2))))
        findings.true(
            f"{name}: a refused port cites B5 alone",
            "B5" in text and not OCR_LINE.search(text),
            text,
        )
    hits = [
        hit
        for folder in ("docs", "inventory", "playbooks", "plugins", "roles")
        for hit in attributed(fixtures.path(folder))
    ]
    findings.same("lines that attribute a port rule to A1 to A10", [], hits)
    findings.say(f"{len(mine)} jobs say none; a refused port cites B5; no text cites A for one")


def attributed(folder: str) -> list[str]:
    """Return 'file:line' of texts with a line of document A and a port together."""
    hits = []
    for where, _folders, files in os.walk(folder):
        for name in sorted(files):
            # The comparison itself cites the upstream documentation; so does the runbook about it.
            about_conform = os.path.basename(where) == "conformance" or name.startswith("conform")
            if about_conform or not name.endswith((".md", ".yml", ".py")) or name == "contract.md":
                continue
            with open(os.path.join(where, name), encoding="utf-8") as handle:
                hits += [
                    f"{name}:{number}"
                    for number, text in enumerate(handle, 1)
                    if ATTRIBUTED.search(text)
                ]
    return hits


CHECKS = {
    "A3": addresses,
    "A4": passwordless,
    "A5": same_everywhere,
    "A6": order,
    "A11": no_port_rule,
    "B1": devices_variable,
    "B4": here_too,
    "B5": start_port,
    "C4": port_and_here_too,
}
