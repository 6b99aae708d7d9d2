# SPDX-License-Identifier: Apache-2.0
"""The verdict on what libraries of accelerators print. tests/corpus/lines has the lines."""

from __future__ import annotations

import line_cases
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import failure_catalogue

CASES = line_cases.cases()
# What launchers put before each line of a rank.
PREFIXES = ("", "[rank1]: ", "[1,1]<stderr>:")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_verdict_names_who_and_why(case, prefix, tmp_path):
    found, why, decided = line_cases.judge(tmp_path, case, prefix)
    assert found == "right", (why, decided["text"])
    assert decided["cause"] in case["causes"], decided["text"]
    assert decided["rank"] == case.get("rank")


def test_each_case_has_its_source_and_a_cause_of_the_catalogue():
    causes = failure_catalogue.every()
    for case in CASES:
        assert case["source"]
        assert set(case["causes"]) <= set(causes)
    for path in line_cases.LINES.glob("*.yml"):
        assert path.read_text().count("\n  source: ") >= 12, path.name


NAMED = (
    "node1:984:1357 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer"
    " 198.51.100.132<44206> with status=12 opcode=129 len=65536 vendor err 129 (Recv)\n",
    "[ERROR]HCCL(8,python):2025-10-23-17:28:06.049.385[task_exception_handler.cc:610][8]"
    "[HeartbeatAbnormal]Cluster Exception Location[IP/ID]:[198.51.100.132/1],"
    " ExceptionType:[Heartbeat Lost Occurred], Possible Reason:1. Process has exited\n",
    "EI0002: [PID: 2969] 2025-10-11-15:09:34.713.335 The wait execution of the Notify register"
    " times out. stage:[0], remote rank:[1]\n",
    "[ERROR] DISTRIBUTED(1,7f,python):2026-11-20-14:39:49.952.006 [meta_server_node.cc:485]"
    " UpdateTopoState] The node: 1 is timed out. It may exit with exception\n",
)


@pytest.mark.parametrize("log", NAMED)
def test_a_peer_that_a_library_names_is_evidence_and_no_accusation(log, tmp_path):
    line_cases.lay(tmp_path, [log, "loading\n"], 0)
    named = line_cases.corpus.decide(tmp_path)
    assert "rank 0 names rank 1 on node2" in named["evidence"]
    line_cases.lay(tmp_path / "both", [log, line_cases.LOST], 0)
    decided = line_cases.corpus.decide(tmp_path / "both")
    assert (decided["rank"], decided["node"]) == (None, None)


def test_a_line_below_a_vague_exception_does_not_explain_it(tmp_path):
    line = (
        "[ERROR] HCCL(7,python):2025-07-23-03:47:57.070.463 [hccl_socket.cc:100] [7][Listen]"
        " listen on ip[198.51.100.132] and specific port[16666] fail.\n"
    )
    vague = line_cases.LOST.splitlines(keepends=True)[:-1] + ["RuntimeError: init failed\n"]
    for name, log, cause in (
        ("above", line + "".join(vague), "port_in_use"),
        ("below", "".join(vague) + line, "python_exception"),
    ):
        line_cases.lay(tmp_path / name, [log, line_cases.LOST], 0)
        decided = line_cases.corpus.decide(tmp_path / name)
        assert (decided["rank"], decided["cause"]) == (0, cause)


def test_an_address_of_the_own_rank_or_of_no_rank_names_nobody(tmp_path):
    own = NAMED[0].replace("198.51.100.132", "198.51.100.131")
    for log in (own, NAMED[0].replace("198.51.100.132", "203.0.113.9")):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        line_cases.lay(folder, [log, line_cases.LOST], 0)
        assert not any("0 names" in line for line in line_cases.corpus.decide(folder)["evidence"])
