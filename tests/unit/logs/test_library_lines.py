# SPDX-License-Identifier: Apache-2.0
"""The verdict on what libraries of accelerators print. tests/corpus/lines has the lines."""

from __future__ import annotations

import collections

import line_cases
import pytest
import yaml
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
    if case.get("each"):
        assert decided["code"] == "verdict.common"
    else:
        assert decided["rank"] == case.get("rank")


def test_grades_per_family(tmp_path):
    """No case accuses falsely in either layout. Right means here: the cause itself, not a vague one
    beside it.
    """
    grades = {"as laid": {}, "turned": {}}
    wrong = []
    for number, case in enumerate(CASES):
        for name, judge in (("as laid", line_cases.judge), ("turned", line_cases.judge_turned)):
            found, why, decided = judge(tmp_path / f"{number} {name}", case)
            grade = found
            if found == "right" and decided["cause"] not in case["causes"]:
                grade = "vague"
            grades[name].setdefault(case["family"], collections.Counter())[grade] += 1
            if found == "wrong":
                wrong.append((case["family"], case["name"], name, why, decided["text"]))
    print()
    for name, families in grades.items():
        for family, counts in families.items():
            print(f"{name:8} {family:11} {sum(counts.values()):3} cases: {dict(counts)}")
    assert wrong == []
    for families in grades.values():
        right = sum(counts["right"] for counts in families.values())
        assert right >= 0.95 * len(CASES)
    assert len(CASES) >= 140 + 74


HARMLESS = yaml.safe_load(line_cases.HARMLESS.read_text())


@pytest.mark.parametrize("case", HARMLESS, ids=lambda case: case["name"])
def test_a_harmless_line_accuses_nobody_and_hides_nothing(case, tmp_path):
    assert case["source"]
    lost = case["log"] + line_cases.LOST
    for name, logs in (
        ("own", [line_cases.FAILED, lost]),
        ("all", [case["log"] + line_cases.FAILED, lost]),
    ):
        line_cases.lay(tmp_path / name, logs, 0)
        decided = line_cases.corpus.decide(tmp_path / name)
        assert (decided["rank"], decided["cause"]) == (0, "python_exception"), decided["text"]
    for name, logs in (("one", [line_cases.LOST, lost]), ("both", [lost, lost])):
        line_cases.lay(tmp_path / name, logs, 0)
        decided = line_cases.corpus.decide(tmp_path / name)
        assert (decided["rank"], decided["node"]) == (None, None), decided["text"]
        assert decided["cause"] in ("connection_lost", "unknown"), decided["text"]


def test_a_code_that_no_entry_knows_blames_no_device():
    """A number of a known family that is in no table falls to a cause that says no more."""
    for text, cause, grade in (
        ("(External) CUDA error(456), a new thing. ", "accelerator_call", "primary"),
        ("(External) CUBLAS error(77). ", "accelerator_call", "primary"),
        ("(External) CUDNN error(3999), CUDNN_STATUS_NEW_THING. ", "accelerator_call", "primary"),
        ("(External) ACL error, the error code is : 507777.", "accelerator_call", "primary"),
        ("NPU function error: aclrtNew, error code is 207077", "accelerator_call", "primary"),
        ("[EL0099: A new thing.]", "accelerator_call", "primary"),
        ("[EI9999: Inner Error!]", "collective_error", "shared"),
        ("[EI0099: A new thing.]", "collective_error", "shared"),
        ("[EJ0099: A new thing.]", "collective_error", "shared"),
        ("HCCL function error: HcclNew, error code is 77", "collective_error", "shared"),
    ):
        entry = failure_catalogue.classify("RuntimeError", text, "python")
        assert (entry["cause"], entry["grade"]) == (cause, grade), text
    entry = failure_catalogue.classify("NCCL WARN", "A line that no entry has", "cpp")
    assert (entry["cause"], entry["grade"]) == ("connection_lost", "secondary")


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
    "[PID: 22] 2026-01-06-15:38:29.881.877 Execution_Error_SDMA(EI0012): SDMA memory copy task"
    " exception occurred. Remote rank: 1. Base information: x.\n",
    "[PID: 22] 2026-01-06-15:38:29.881.877 Communication_Error_Timeout(EI0002): A timeout occurs"
    " when the Notify register waits for execution. Waiting peer rank: 1; task information: x\n",
    "[PID: 22] 2026-01-06-15:38:29.881.877 Execution Error ROCE CQE(EI0013): An error CQE occurred"
    " during operator execution. Local information: server 198.51.100.131, device ID 0, device IP"
    " 203.0.113.1. Peer information: server 198.51.100.132, device ID 1, device IP 203.0.113.2.\n",
    "[ERROR] HCCL(22,python):2025-11-21-01:20:01.630.122 [topoinfo_exchange_base.cc:145]"
    ' [22][InitGroupStage][RanktableDetect] fault_info["Failed to connect agent[1,]"]\n',
    "node1:7:9 [0] init.cc:1961 NCCL WARN Mismatched collective detected, please check your"
    " collective calls at and around rank 1. You can use NCCL_DEBUG=INFO\n",
    "terminate called after throwing an instance of 'gloo::IoException'\n  what():"
    "  [/gloo/transport/tcp/pair.cc:846] connect [198.51.100.132]:41234: Connection refused\n",
    "node1:7:9 [0] misc/socket.cc:484 NCCL WARN Connect to 198.51.100.132<5123> failed : x\n",
)
NAMED_ZERO = (
    "ValueError: (InvalidArgument) Network 198.51.100.131:17000 cannot be connected.\n",
    "RuntimeError: Failed to fetch the unique id of the collective lib from the meta server node."
    " Please check root rank: 0's log.\n",
)


@pytest.mark.parametrize("log", NAMED)
def test_a_peer_that_a_library_names_is_evidence_and_no_accusation(log, tmp_path):
    line_cases.lay(tmp_path, [log, "loading\n"], 0)
    named = line_cases.corpus.decide(tmp_path)
    assert "rank 0 names rank 1 on node2" in named["evidence"]
    line_cases.lay(tmp_path / "both", [log, line_cases.LOST], 0)
    decided = line_cases.corpus.decide(tmp_path / "both")
    assert (decided["rank"], decided["node"]) == (None, None)


@pytest.mark.parametrize("end", NAMED_ZERO)
def test_the_rank_where_all_meet_is_named(end, tmp_path):
    log = "".join(line_cases.LOST.splitlines(keepends=True)[:-1]) + end
    line_cases.lay(tmp_path, ["loading\n", log], 1)
    assert "rank 1 names rank 0 on node1" in line_cases.corpus.decide(tmp_path)["evidence"]


def test_several_ranks_that_never_came_name_none(tmp_path):
    several = next(log for log in NAMED if "agent[1,]" in log).replace("[1,]", "[1,3,]")
    line_cases.lay(tmp_path, [several, line_cases.LOST], 0)
    assert not any("0 names" in line for line in line_cases.corpus.decide(tmp_path)["evidence"])


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
