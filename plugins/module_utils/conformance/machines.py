# SPDX-License-Identifier: Apache-2.0
"""conform's checks of what the Paddle documents say of machines, order, SSH, sameness and ports:
contract A3 to A6, A11, B1, B4, B5, C4.

Each takes the ground, its line of contract.yml and the findings.
"""

from __future__ import annotations

import os
import re
import time

from ..mesh import login_check
from ..plan import readiness
from .fixtures import (
    CARDS,
    MANY,
    Broken,
    has_address,
    job_of,
    machines_of,
    proven_mesh,
    sequence,
)

# Lines of document A, and a text that says a port and one of them in one breath.
OCR_LINE = re.compile(r"\bA(?:[1-9]|10)\b")
ATTRIBUTED = re.compile(
    r"(?i:port)s?\b[^.;|,()]{0,40}\(?(?:contract"
    rf" )?{OCR_LINE.pattern}|{OCR_LINE.pattern}[^.;|,()]{{0,40}}(?i:port)s?\b"
)


def addresses(ground, line, found):
    """A3: where the inventory has host names, the addresses are those that the nodes have; one
    word, commas, no spaces; the job holds none.
    """
    job, machines = job_of(ground, line), machines_of(line, MANY)
    for names in (None, ["trainer-%d.example.org" % number for number in range(1, MANY + 1)]):
        argv = ground.make(job, machines, names=names).plan["argv"]
        words = [word for word in argv if "".join(machines[:1]) in word]
        found.same(
            "--ips, machines listed by %s" % ("name" if names else "address"),
            ["--ips={}".format(",".join(machines))],
            words,
        )
    found.true(
        "the job holds no address",
        not has_address(ground.text("playbooks", "configs", job["name"] + ".yml")),
        "it does",
    )
    try:
        ground.job(job["name"], ips="192.0.2.1")
        problems = []
    except Broken as error:
        problems = [error]
    found.refused("addresses typed into a job", problems, "ips", "unknown key")
    found.say("--ips from the nodes' own addresses")


def passwordless(ground, line, found):
    """A4: without proof of every login nothing starts, and a login that fails is named; on the
    site, all of them are made now.
    """
    made = ground.make(job_of(ground, line), machines_of(line, 2))
    names = [node["name"] for node in made.nodes]
    found.same(
        "nodes that are to be trusted where no mesh is proven",
        names,
        readiness.todo(made.plan, made.facts, time.time())["trust"],
    )
    groups, hostvars = ground.inventory(machines_of(line, 2))
    ready = {name: dict(made.facts[name], mesh=proven_mesh(groups, hostvars)) for name in names}
    found.same(
        "nodes that are to be trusted where it is",
        [],
        readiness.todo(made.plan, ready, time.time())["trust"],
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
    found.same(
        "the pair that a failed login names, with cause and remedy",
        [(names[0], names[1], True, True)],
        pairs,
    )
    proof = [
        task
        for task in ground.data("roles", "ssh_trust", "tasks", "prove.yml")
        if "ansible.builtin.assert" in task
    ]
    found.true(
        "the role stops on any failed login",
        proof
        and "texts" in str(proof[0].get("vars"))
        and "length == 0" in proof[0]["ansible.builtin.assert"]["that"],
    )
    first = ground.data("playbooks", "includes", "ready.yml")[0]
    found.same(
        "the play that proves ends all on a failure",
        (["ssh_trust"], True),
        ([role["role"] for role in first["roles"]], first.get("any_errors_fatal")),
    )
    found.same(
        "what train.yml does before what",
        ["ready", "start", "follow"],
        [kind for kind in sequence(ground)[0] if kind],
    )
    found.say("a failed login is named (%s -> %s) before the start", *names)
    if ground.site:
        ground.site.logins(found)


def same_everywhere(ground, line, found):
    """A5: one plan, one command, one digest of code and data for all; a node that has others is
    brought up or named; a finished run on the site.
    """
    made = ground.make(job_of(ground, line), machines_of(line, MANY))
    names = [node["name"] for node in made.nodes]
    found.same(
        "nodes with a command of their own",
        [],
        [node["name"] for node in made.plan["nodes"] if node.get("argv")],
    )
    found.same("where the command runs", "each", made.plan["launcher"]["kind"])
    bare = {name: dict(made.facts[name], trees={}) for name in names[-1:]}
    todo = readiness.todo(made.plan, dict(made.facts, **bare), time.time())
    found.same(
        "nodes that get code and data where one lacks them",
        (names[-1:], names[-1:]),
        (todo["code"], todo["data"]),
    )
    other = {
        name: {"ok": False, "present": True, "differences": ["tools/train.py: other content"]}
        for name in made.facts[names[-1]]["trees"]
    }
    said = readiness.obstacles(
        made.plan, dict(made.facts, **{names[-1]: dict(made.facts[names[-1]], trees=other)})
    )
    found.refused(
        "a start where a node's code and data were changed",
        said,
        f"{names[-1]}: code/",
        f"{names[-1]}: data/",
        "tools/train.py",
    )
    found.say("one plan for all")
    if ground.site:
        ground.site.finished_run(
            found, line["document"]["suite"], line["document"]["title"], line["document"]["job"]
        )


def order(ground, line, found):
    """A6: ranks follow the list, and turn round with it; every node is told which of the addresses
    is its own.
    """
    job, machines = job_of(ground, line), machines_of(line, MANY)
    for listed in (machines, machines[::-1]):
        made = ground.make(job, listed).plan
        ranks = made["ranks"]
        wanted = [
            (number, listed[number // CARDS], str(number % CARDS))
            for number in range(CARDS * len(listed))
        ]
        got = [(rank["rank"], rank["endpoint"].split(":")[0], rank["device"]) for rank in ranks]
        found.same(f"ranks of {listed[0]}, ...", wanted, got)
        # Without it the launcher asks for its host name's address, and a node that does not find
        # itself in --ips becomes rank 0 (facts, 3).
        own = [dict(made["env"], **node["env"]).get("POD_IP") for node in made["nodes"]]
        found.same(f"POD_IP of {listed[0]}, ...", listed, own)
    found.say("%d ranks in list order, and turned round with the list", CARDS * len(machines))


def here_too(ground, line, found):
    """B4: what A3 to A6 say, for this document's job."""
    for check in (addresses, passwordless, same_everywhere, order):
        check(ground, line, found)


def port_and_here_too(ground, line, found):
    """C4: what B4 and B5 say, for this document's job."""
    here_too(ground, line, found)
    start_port(ground, dict(ground.contract["promises"]["B5"], **line), found)


def start_port(ground, line, found):
    """B5: every node's ranks get one start port; the site's is the recommended one, the command
    line's goes everywhere, none too high.
    """
    job, machines, values = job_of(ground, line), machines_of(line, MANY), line["values"]
    low, high = values["recommended"]
    for extra, port in (({}, values["port"]), ({"start_port": "12000"}, 12000)):
        made = ground.make(job, machines, extra=extra)
        for variable in (values["variable"], values["read"]):
            ports = [
                dict(made.plan["env"], **node["env"]).get(variable) for node in made.plan["nodes"]
            ]
            found.same(
                "{} on every node, {}".format(
                    variable, "start_port=12000" if extra else "as it comes"
                ),
                [str(port)] * MANY,
                ports,
            )
        expected = [
            "%s:%d" % (machine, port + card) for machine in machines for card in range(CARDS)
        ]
        found.same(
            "endpoints, %s" % ("start_port=12000" if extra else "as it comes"),
            expected,
            made.plan["endpoints"],
        )
    found.true(
        "the port that comes by itself is in the recommended range",
        low <= int(ground.make(job, machines).plan["ports"]["start"]) <= high,
    )
    found.refused(
        "a start port without room",
        too_high(ground, job, machines),
        "recommended %d to %d" % (low, high),
        "B5",
    )
    found.say("%s=%d on %d nodes; start_port moves all", values["variable"], values["port"], MANY)


def too_high(ground, job, machines):
    """Return what the product says of a start port that leaves no room."""
    try:
        ground.make(job, machines, extra={"start_port": "65530"})
    except Broken as error:
        return [error]
    return []


def devices_variable(ground, line, found):
    """B1: the variable on every node, and the model's config and folder."""
    wanted = line["values"]
    for count in (1, MANY):
        made = ground.make(job_of(ground, line), machines_of(line, count))
        seen = {
            dict(made.plan["env"], **node["env"]).get("CUDA_VISIBLE_DEVICES")
            for node in made.plan["nodes"]
        }
        found.same(
            "CUDA_VISIBLE_DEVICES on %d" % count,
            [wanted["CUDA_VISIBLE_DEVICES"]],
            sorted(map(str, seen)),
        )
        found.same(
            "the config's name", wanted["model"] + ".yml", os.path.basename(made.job["config"])
        )
        found.true(
            "it saves below the model's name", "output/" + wanted["model"] in made.plan["argv"]
        )
    found.say("CUDA_VISIBLE_DEVICES=%s on 1 and %d nodes", wanted["CUDA_VISIBLE_DEVICES"], MANY)


def no_port_rule(ground, line, found):
    """A11: no PaddleOCR job says a port, a refused port is B5's matter, and no text of the product
    gives this document a port rule.
    """
    mine = [
        name for name in ground.jobs() if ground.job(name)["suite"] == line["document"]["suite"]
    ]
    for name in mine:
        job = ground.job(name)
        found.same(f"{name}: start port", None, job.get("start_port"))
        found.same(
            f"{name}: sources that are port rules",
            [],
            [source for source in job["source"] if source in ("B5", "C4")],
        )
        said = str((too_high(ground, job, machines_of(line, 2)) or [""])[0])
        found.true(
            f"{name}: a refused port cites B5 alone",
            "B5" in said and not OCR_LINE.search(said),
            said,
        )
    hits = [
        hit
        for folder in ("docs", "inventory", "playbooks", "plugins", "roles")
        for hit in attributed(ground.path(folder))
    ]
    found.same("lines that attribute a port rule to A1 to A10", [], hits)
    found.say("%d jobs say none; a refused port cites B5; no text cites A for one", len(mine))


def attributed(folder):
    """Return 'file:line' of the texts that name a line of document A and a port together."""
    hits = []
    for where, _folders, files in os.walk(folder):
        for name in sorted(files):
            # The comparison itself cites the documents; so does the runbook about it.
            own = os.path.basename(where) == "conformance" or name.startswith("conform")
            if own or not name.endswith((".md", ".yml", ".py")) or name == "contract.md":
                continue
            with open(os.path.join(where, name), encoding="utf-8") as handle:
                hits += [
                    "%s:%d" % (name, number)
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
