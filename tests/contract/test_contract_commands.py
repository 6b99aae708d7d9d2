# SPDX-License-Identifier: Apache-2.0
"""The command of every contract line that has one, as text, on 1, 2 and 4 machines with 8 devices
each.

The words of the upstream documentation are in contract.yml. The plan is compiled here without
conform, from the shipped job, the table of its suite and made-up facts.
"""

from __future__ import annotations

import shlex

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import compiler
from ansible_collections.trainyard.cluster.plugins.module_utils.suites import suite_table
from ansible_collections.trainyard.cluster.plugins.plugin_utils.config import job as jobs
from core_support import CODE, DATA, ENVIRONMENT, ROOT, fact_of

CONTRACT = yaml.safe_load(
    (ROOT / "plugins" / "plugin_utils" / "conformance" / "contract.yml").read_text(encoding="utf-8")
)
COMMANDS = [
    (name, count)
    for name, line in CONTRACT["promises"].items()
    for count in line.get("commands", {})
]
DEVICES = [str(device) for device in range(8)]


def compiled(name, count):
    """Return the plan of a line's job on the first machines of its document."""
    line, document = CONTRACT["promises"][name], CONTRACT["documents"][name[0]]
    shipped = line.get("job", document["job"])
    job, problems = jobs.read_job(str(ROOT / "playbooks" / "configs" / (shipped + ".yml")), shipped)
    assert not problems
    job = dict(job, launcher=line.get("other_launcher", job["launcher"]))
    nodes, facts = [], {}
    for number, address in enumerate(document["machines"][:count], 1):
        nodes.append(
            {
                "name": "node%d" % number,
                "host": address,
                "port": 22,
                "address": None,
                "accelerator": document["accelerator"],
                "devices": DEVICES,
            }
        )
        facts["node%d" % number] = fact_of(
            address,
            user="root",
            device_ips={d: "192.168.%s.%d" % (d, number) for d in DEVICES},
            device_problems=[],
        )
    suite = jobs.load_suite(job["suite"])
    values = suite_table.apply_overrides({}, line.get("says", {}))
    overrides, problems = suite_table.settle_overrides(
        suite, values, job["overrides"], document["accelerator"], 8 * count
    )
    assert not problems
    inputs = {
        "suite": suite, "script": suite["scripts"][0], "code": {"digest": CODE},
        "data": {"x": DATA}, "weights": {}, "overrides": overrides,
        "environment": {"digest": ENVIRONMENT}, "config": {"files": [job["config"]]},
        "arguments": job["arguments"], "advice": [],
    }  # fmt: skip
    site = {"name": "documents", "nodes": nodes, "suites": {}, "env": {}, "start_port": 17000}
    return compiler.compile_plan(job, site, nodes, facts, inputs), suite


def document(name, count, node_rank, suite):
    """Return the words of the upstream documentation. contract.yml says how to read them."""
    line = CONTRACT["promises"][name]
    words = [
        line.get("renamed", {}).get(word, word)
        for word in shlex.split(line["commands"][count].replace("{node_rank}", str(node_rank)))
    ]
    data = ["{}={}".format(*item) for item in suite["data"]["overrides"].items()]
    return words + [
        part for word in line.get("appended", []) for part in (data if word == "{data}" else [word])
    ]


def without_ours(words, added):
    """Return a command without the options that are this product's, each with as many values as
    `added` says.
    """
    words = list(words)
    for option, values in added.items():
        while option in words:
            at = words.index(option)
            del words[at : at + 1 + values]
    return words


@pytest.mark.parametrize("name, count", COMMANDS, ids=["%s on %d" % item for item in COMMANDS])
def test_the_plan_holds_the_documents_command(name, count):
    made, suite = compiled(name, count)
    added = CONTRACT["promises"][name].get("added", {})
    for rank, node in enumerate(made["nodes"]):
        if rank and made["launcher"]["kind"] == "first":
            break  # the command runs on the first node alone
        argv = without_ours(node.get("argv") or made["argv"], added)
        assert shlex.join(argv) == shlex.join(document(name, count, rank, suite))


def test_each_way_of_the_documents_is_compared_on_one_two_and_four_machines():
    counts = {}
    for name, count in COMMANDS:
        ways = CONTRACT["promises"][name]
        way = (name[0], ways.get("job"), ways.get("other_launcher") if name[0] != "B" else None)
        counts.setdefault(way, set()).add(count)
    assert set(map(frozenset, counts.values())) == {frozenset({1, 2, 4})} and len(counts) == 7
    assert {name[0] for name, _count in COMMANDS} == set("ABCD")
