# SPDX-License-Identifier: Apache-2.0
"""logs_question, and logs.yml as a user runs it: refusals before a node is contacted, and a run
that is on the controller although its nodes are gone.
"""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
from core_support import ROOT
from system.test_playbooks import ansible, site

RUN = "20261120-190935-raise-1b3e"
RAISED = ROOT / "tests/fixtures/raised" / RUN
LATER = RUN.replace("190935", "190936")
LAST = "ValueError: image 000000012.jpg is truncated"
ERROR = (
    '[1, "node2", {"kind": "ValueError", "text": "image 000000012.jpg is truncated", "line": 26,'
    ' "cause": "python_exception"}]'
)
# name: words of the command line, is a node asked, exit code, what is said, what is not said
CASES = {
    "refused: all at once": (
        ["-e", "rank=x/y", "-e", "lines=ten", "-e", "folow=true"],
        False,
        2,
        [
            "3 problems, nothing was touched:",
            "folow: unknown variable",
            "did you mean 'follow'?",
            "lines: must be a whole number",
            "rank: must be",
        ],
        [],
    ),
    "refused: a bad expression": (
        ["-e", "query=ranks[?"],
        False,
        2,
        ["Incomplete expression at character 8"],
        [],
    ),
    "refused: no such rank": (
        ["-e", "run=" + RUN, "-e", "rank=7"],
        False,
        2,
        ["rank 7: there is no such log; ranks: 0-1; others: launcher"],
        [],
    ),
    "refused: no such node": (
        ["-e", "run=" + RUN, "-e", "node=node9"],
        False,
        2,
        ["there is no node9; nodes: node1, node2"],
        [],
    ),
    "refused: no run id": (["-e", "run=../../x"], False, 2, ["'../../x' is no run id"], []),
    "all is on the controller": (
        ["-e", "run=" + RUN],
        False,
        0,
        ["attempt 1: over", "failed (exit code 1)", LAST, "/rank-001.node2.log"],
        [],
    ),
    "the end of one log": (
        ["-e", "run=" + RUN, "-e", "rank=1", "-e", "lines=2"],
        False,
        0,
        ["its last 2 lines", LAST],
        ["self.fail"],
    ),
    "with --limit": (
        ["-e", "run=" + RUN, "-e", "lines=1", "--limit", "node2"],
        False,
        0,
        ["[1 node2] " + LAST, "[0 node1]"],
        [],
    ),
    "a question": (
        ["-e", "run=" + RUN, "-e", "query=ranks[?state=='failed'].[rank,node,error]"],
        False,
        0,
        [ERROR],
        [],
    ),
    "follow what is over": (
        ["-e", "run=" + RUN, "-e", "follow=true"],
        False,
        0,
        ["[1 node2] " + LAST, f"the run {RUN} is over"],
        [],
    ),
    "a question without an answer": (
        ["-e", "run=" + RUN, "-e", "query=sum(ranks[].state)"],
        False,
        2,
        ["the index of ranks cannot answer"],
        [],
    ),
    "the newest, its nodes are gone": (
        ["-e", "rank=0", "-e", "lines=1"],
        True,
        0,
        [
            "unreachable, the playbook goes on: [node1]",
            "node1 does not answer: its logs are shown as far as they were copied before",
            f"runs/{LATER}/attempt-1/rank-000.node1.log",
        ],
        [],
    ),
    "a run that nobody knows": (
        ["-e", "run=20200101-000000-none-0000"],
        True,
        2,
        ["no node knows the run", "known: " + LATER],
        [],
    ),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Run logs.yml in every way, where no node can be reached; {name: (exit code, output,
    folder)}.
    """

    def one(item):
        name, case = item
        folder = str(tmp_path_factory.mktemp("logs"))
        inventory = site(folder)
        shutil.copytree(RAISED, os.path.join(folder, "runs", RUN))
        shutil.copytree(RAISED, os.path.join(folder, "runs", LATER))
        os.unlink(os.path.join(folder, "runs", LATER, "attempt-1", "ranks.json"))
        return name, (*ansible(folder, "-i", inventory, "playbooks/logs.yml", *case[0]), folder)

    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(pool.map(one, CASES.items()))


@pytest.mark.parametrize("name", list(CASES))
def test_logs(outcomes, name):
    _words, asks, wanted, said, unsaid = CASES[name]
    code, output, folder = outcomes[name]
    assert (code, "unreachable, the playbook" in output) == (wanted, asks), output
    for words in said:
        assert " ".join(words.split()) in output, output
    assert not [words for words in unsaid if words in output]
    here, there = os.path.join(folder, "runs", RUN, "attempt-1"), RAISED / "attempt-1"
    assert {path: open(os.path.join(here, path), "rb").read() for path in os.listdir(here)} == {
        path.name: path.read_bytes() for path in there.iterdir()
    }, "it only reads"
