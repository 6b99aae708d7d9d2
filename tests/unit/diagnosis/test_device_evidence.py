# SPDX-License-Identifier: Apache-2.0
"""Whom the verdict blames by what devices, kernels and NCCL's RAS say: each row of the table in
docs/runbooks/verdict.md, "When a device or a node is blamed".

The reports are read from texts of the real tools (tests/fixtures/device_report). None of it was
run on such hardware.
"""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import device_findings
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import verdict
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import failure_catalogue
from ansible_collections.trainyard.cluster.plugins.module_utils.recovery import machine_faults
from conftest import sample_plan
from device_support import report_of, text_of

T = 1795166907.0
PLAN = sample_plan(nodes=2, per_node=2)["ranks"]
SMI, NPU = "nvidia-smi --query-gpu=index", "npu-smi info"
XID = "NVRM: Xid (PCI:0000:%s:00): %d, pid=%s, name=python, %s"
OFF_BUS = XID % ("3b", 79, "4713", "GPU has fallen off the bus.")
GUARD = {"service_result": "success", "stopped_by": "guard", "stopped_from": "node1",
    "stopped_at": T + 0.1, "time": T + 3.0}  # fmt: skip
BAD = {"service_result": "exit-code", "exit_code": "exited", "exit_status": "1",
    "stopped_by": None, "stopped_at": None, "time": T + 2.0}  # fmt: skip
STALL = {"phase": "step", "budget": 60.0, "seconds": 61.0, "since": T - 61, "time": T,
    "step": {"epoch": 1, "step": 3, "steps": 40}, "last_line": "x", "by": "node1",
    "ranks": [0]}  # fmt: skip
ILLEGAL = "CUDA error(700), an illegal memory access was encountered."
FRAMES = {"waits": ["all_reduce (x.py:1)"], "works": ["decode (y.py:2)"]}


def rank(number, kind=None, text="", **more):
    """Return a rank's findings: by default an end that followed another one's."""
    error = None
    if kind:
        error = dict(failure_catalogue.classify(kind, text, "python"), kind=kind, text=text,
            origin="python", line=9, file=None, file_line=None, context=[], handled=False,
            survived=False, root=None, peer=None, time=None)  # fmt: skip
    name = PLAN[number]["node"]
    found = {"rank": number, "node": name, "local_rank": number % 2, "pid": 4710 + number,
        "exit_code": 1 if kind else None, "signal": None if kind else "SIGABRT",
        "ended": T + (0.0 if kind else 1.0), "home": f"rank-{number:03d}.{name}.log", "bytes": 10,
        "lines": 9, "mtime": T, "state": "failed", "observed": "agent", "nan": None,
        "last_step": None, "first_error": error}  # fmt: skip
    return dict(found, **more)


def lost_peer(number, **more):
    """Return a rank that lost its peers, as all do once one has gone."""
    text = "Connection closed by peer"
    return rank(number, "gloo::IoException", text, ended=T + 1.0, **more)


def kernel(*lines, at=T - 2):
    """Return the answer of journalctl with these lines."""
    stamped = [f"{at:.6f} gpu2 kernel: {line}" for line in lines]
    return "journalctl -kqo short-unix", 0, "\n".join(stamped) + "\n"


def decide(ranks, reports=None, unit=BAD, stall=None, seen=()):
    """Return the verdict. ranks: all four. reports: {node: devices.json's value}."""
    nodes = []
    for name in ("node1", "node2"):
        mine = [item for item in ranks if item["node"] == name]
        own_stall = stall if name == "node1" else None
        guard = {"stall": own_stall, "loss": None, "seen": [s for s in seen if s["node"] == name]}
        found = {"node": name, "now": T + 10, "exit": unit, "ranks": mine, "files": [],
            "launcher": {"exit_code": 1, "signal": None, "first_error": None}, "guard": guard,
            "devices": device_findings.read_findings((reports or {}).get(name))}  # fmt: skip
        nodes.append(found)
    return verdict.decide(PLAN, nodes, "runs/x/attempt-1")


def who(said):
    return said["cause"], said["node"], said["rank"]


def gpu(table="query.csv", moment="end", lines=(OFF_BUS,), at=T - 2, **answers):
    """Return the report of a GPU node."""
    answers.setdefault("devices", (SMI, 0, text_of(table)))
    return report_of(moment, kernel=kernel(*lines, at=at), **answers)


def illegal(number=3, **more):
    """Return four ranks of which one met CUDA error 700."""
    return [rank(n, "OSError", ILLEGAL, **more) if n == number else lost_peer(n) for n in range(4)]


# --- a rank whose log names an error of CUDA


def test_an_illegal_access_without_evidence_stays_the_programs():
    said = decide(illegal())
    assert who(said) == ("kernel_error", "node2", 3)
    assert machine_faults.culprits(said, ["node1", "node2"]) == {}
    healthy = {"node2": gpu(lines=()), "node1": gpu(lines=())}
    assert who(decide(illegal(), healthy)) == ("kernel_error", "node2", 3)
    assert decide(illegal(), healthy)["evidence"] == said["evidence"]


@pytest.mark.parametrize("xid", [48, 62, 64, 74, 79, 94, 95, 119, 120, 140, 143])
def test_the_kernel_says_that_the_device_failed(xid):
    line = XID % ("3b", xid, "4713", "words")
    said = decide(illegal(), {"node2": gpu(lines=[line])})
    assert who(said) == ("device_error", "node2", 3) and f"3b:00): {xid}, " in said["text"]
    assert "devices.node2.json" in said["text"]
    assert f"node2: journalctl -k: {line} (devices.node2.json)" in said["evidence"]
    assert machine_faults.culprits(said, ["node1", "node2"]) == {"node2": "device_error"}


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 8, 32, 63, 68, 109, 154])
def test_what_a_program_does_to_itself_blames_no_device(xid):
    said = decide(illegal(), {"node2": gpu(lines=[XID % ("3b", xid, "4713", "words")])})
    assert who(said) == ("kernel_error", "node2", 3)
    (line,) = [line for line in said["evidence"] if "Xid" in line]
    assert ("is of the program" in line) == (xid in (13, 31, 43, 45))


@pytest.mark.parametrize(
    "words, cause",
    [("NETIR_LINK_EVT Fatal XC0", "device_error"), ("x Nonfatal XC0", "kernel_error")],
)
def test_nvlink_of_the_fifth_generation_says_whether_it_is_fatal(words, cause):
    line = f"NVRM: Xid (PCI:0000:3b:00): 149, {words} i0 Link 00 (0x0 0x0)"
    assert decide(illegal(), {"node2": gpu(lines=[line])})["cause"] == cause


@pytest.mark.parametrize("bus, node", [("1b", "node2"), ("3b", "node1")])
def test_a_fault_of_another_device_or_node_is_not_its_own(bus, node):
    line = XID % (bus, 79, "1", "GPU has fallen off the bus.")
    said = decide(illegal(), {node: gpu(lines=[line])})
    assert who(said) == ("kernel_error", "node2", 3)
    assert any("79" in line for line in said["evidence"])


@pytest.mark.parametrize("at, cause", [(T + 4, "device_error"), (T + 60, "kernel_error")])
def test_a_fault_long_after_the_end_did_not_cause_it(at, cause):
    assert decide(illegal(), {"node2": gpu(at=at)})["cause"] == cause


def test_the_device_is_that_of_the_ranks_process():
    """CUDA may count the devices in another order than nvidia-smi."""
    card = "GPU-00000000-0000-0000-0000-00000000000a"
    users = "nvidia-smi --query-compute-apps", 0, f"gpu_uuid, pid, used\n{card}, 4713, 41801\n"
    lines = {bus: XID % (bus, 79, "'<unknown>'", "GPU has fallen off") for bus in ("1b", "3b")}
    said = decide(illegal(), {"node2": gpu(lines=[lines["3b"]], processes=users)})
    assert said["cause"] == "kernel_error", "Xid 79 is of the other card"
    said = decide(illegal(), {"node2": gpu(lines=[lines["1b"]], processes=users)})
    assert who(said) == ("device_error", "node2", 3)


@pytest.mark.parametrize("devices", [(SMI, 15, text_of("lost.txt")), (SMI, 15, "")])
def test_a_gpu_that_is_lost_has_no_index_any_more(devices):
    said = decide(illegal(), {"node2": gpu(lines=(), devices=devices)})
    assert who(said) == ("device_error", "node2", 3) and "is lost" in said["text"]
    other = decide(illegal(number=0), {"node2": gpu(lines=(), devices=devices)})
    assert who(other) == ("kernel_error", "node1", 0)


def table_with(cell):
    """Return nvidia-smi's table with another count of ECC errors of device 1."""
    head, _zero, tail = text_of("query.csv").rpartition("100, 0, ")
    return f"{head}100, {cell}, {tail}"


@pytest.mark.parametrize("cell", ["2", "[GPU is lost]", "[GPU requires reset]"])
def test_what_the_table_says_of_the_ranks_device(cell):
    report = gpu(lines=(), devices=(SMI, 0, table_with(cell)))
    assert who(decide(illegal(), {"node2": report})) == ("device_error", "node2", 3)
    assert who(decide(illegal(number=2), {"node2": report})) == ("kernel_error", "node2", 2)


@pytest.mark.parametrize(
    "health, cause",
    [("Alarm", "device_error"), ("Critical", "device_error"), ("Warning", "kernel_error"),
     ("UNKNOWN", "kernel_error"), ("OK", "kernel_error")],
)  # fmt: skip
def test_the_health_of_an_npu(health, cause):
    table = text_of("npu_910b.txt").replace("| Alarm         |", f"| {health:<13} |")
    report = report_of(devices=(NPU, 0, table), kernel=kernel())
    ranks = [lost_peer(n) for n in range(3)]
    ranks.append(rank(3, "RuntimeError", "Ascend error: ai core exception, EZ9999"))
    assert who(decide(ranks, {"node2": report})) == (cause, "node2", 3)


@pytest.mark.parametrize("health, named", [("Alarm", False), ("Critical", True)])
def test_an_alarm_may_be_older_than_the_attempt(health, named):
    table = text_of("npu_910b.txt").replace("Alarm   ", f"{health:<8}")
    report = report_of(devices=(NPU, 0, table), kernel=kernel())
    said = decide([lost_peer(n) for n in range(4)], {"node2": report})
    assert (said["cause"] == "device_error") == named
    assert any(f"is {health}" in line for line in said["evidence"])


def test_memory_rows_that_wait_are_shown_and_blame_no_one():
    table = text_of("query.csv").replace("[N/A], No, No", "[N/A], Yes, No", 1)
    said = decide(illegal(), {"node2": gpu(lines=(), devices=(SMI, 0, table))})
    assert said["cause"] == "kernel_error" and any("rows that wait" in x for x in said["evidence"])


@pytest.mark.parametrize(
    "kind, text, cause",
    [
        ("ValueError", "bad image", "python_exception"),
        ("OSError", "CUDA error(710), device-side assert triggered.", "device_assert"),
        ("ResourceExhaustedError", "Out of memory error on GPU 0", "device_out_of_memory"),
    ],
)
def test_an_error_with_a_reason_of_its_own_keeps_it(kind, text, cause):
    ranks = [*(lost_peer(n) for n in range(3)), rank(3, kind, text)]
    assert who(decide(ranks, {"node2": gpu()})) == (cause, "node2", 3)


def test_an_end_without_a_reason_is_explained_by_its_own_device_for_sure():
    ranks = [*(lost_peer(n) for n in range(3)), rank(3, exit_code=7, signal=None, ended=T)]
    assert who(decide(ranks)) == ("silent_exit", "node2", 3)
    assert who(decide(ranks, {"node2": gpu()})) == ("device_error", "node2", 3)
    old = {"node2": gpu(lines=(), devices=(SMI, 0, table_with("2")))}
    assert who(decide(ranks, old)) == ("silent_exit", "node2", 3)


# --- an end whose rank no log names


def test_a_device_that_failed_alone_is_named_where_no_log_says_anything():
    ranks = [lost_peer(n) for n in range(4)]
    before = decide(ranks)
    assert before["rank"] is None and before["cause"] == "connection_lost"
    said = decide(ranks, {"node1": gpu(lines=()), "node2": gpu()})
    assert who(said) == ("device_error", "node2", 3) and said["code"] == "verdict.device_failed"
    assert "device 1 of node2 (rank 3) failed" in said["text"] and said["local_rank"] == 1


def test_two_devices_of_one_node_name_the_node_alone():
    lines = [OFF_BUS, XID % ("1b", 79, "4712", "GPU has fallen off the bus.")]
    said = decide([lost_peer(n) for n in range(4)], {"node2": gpu(lines=lines)})
    assert who(said) == ("device_error", "node2", None)


def test_devices_of_two_nodes_name_no_one():
    said = decide([lost_peer(n) for n in range(4)], {"node1": gpu(), "node2": gpu()})
    assert who(said) == ("connection_lost", None, None)
    assert sum("Xid" in line for line in said["evidence"]) == 2


def test_a_device_that_no_rank_uses_blames_no_one():
    table = text_of("query.csv").replace("\n1, GPU", "\n5, GPU")
    line = XID % ("3b", 79, "77", "GPU has fallen off the bus.")
    report = gpu(lines=[line], devices=(SMI, 0, table))
    said = decide([lost_peer(n) for n in range(4)], {"node2": report})
    assert who(said) == ("connection_lost", None, None)
    assert any("of a device that no rank uses" in line for line in said["evidence"])


@pytest.mark.parametrize("cell", ["2", "0"])
def test_a_count_that_may_be_older_does_not_decide_alone(cell):
    report = gpu(lines=(), devices=(SMI, 0, table_with(cell)))
    said = decide([lost_peer(n) for n in range(4)], {"node2": report})
    assert who(said) == ("connection_lost", None, None)
    assert any("ECC" in line for line in said["evidence"]) == (cell == "2")


def test_a_silent_rank_gives_way_to_a_device_that_failed_before():
    ranks = [*(lost_peer(n) for n in range(1, 4))]
    ranks.insert(0, rank(0, exit_code=7, signal=None, ended=T))
    assert who(decide(ranks)) == ("silent_exit", "node1", 0)
    assert who(decide(ranks, {"node2": gpu()})) == ("device_error", "node2", 3)
    assert who(decide(ranks, {"node2": gpu(at=T + 60)})) == ("silent_exit", "node1", 0)


def test_of_two_failures_at_once_the_device_that_failed_before_them_decides():
    ranks = [rank(0, "ValueError", "one"), lost_peer(1), rank(2, "KeyError", "two"), lost_peer(3)]
    assert decide(ranks)["code"] == "verdict.tied"
    assert who(decide(ranks, {"node2": gpu()})) == ("device_error", "node2", 3)


# --- a hang


def hung(reports=None, works=None):
    """Return the verdict of a hang. works: the rank whose stack differs from the others'."""
    ranks = [rank(n, signal="SIGTERM", state="stopped") for n in range(4)]
    seen = []
    if works is not None:
        seen = [
            {"node": PLAN[n]["node"], "rank": n, "state": "S", "state_words": "asleep",
             "where": FRAMES["works" if n == works else "waits"], "wchan": "", "cpu": 0.0,
             "stack_from": "py-spy", "why": ""}
            for n in range(4)
        ]  # fmt: skip
    return decide(ranks, reports, GUARD, STALL, seen)


def test_a_hang_without_evidence_is_a_hang():
    assert who(hung()) == ("hang", None, None)
    assert who(hung({"node2": gpu(moment="hang", lines=())})) == ("hang", None, None)
    assert who(hung(works=1)) == ("hang", "node1", 1)


def test_a_card_that_fell_off_the_bus_explains_a_hang():
    said = hung({"node1": gpu(moment="hang", lines=()), "node2": gpu(moment="hang")})
    assert who(said) == ("device_error", "node2", 3)
    assert any(line.startswith("the training hung") for line in said["evidence"])
    lost = gpu(moment="hang", lines=(), devices=(SMI, 15, text_of("lost.txt")))
    assert who(hung({"node2": lost})) == ("device_error", "node2", None)


def test_a_device_that_failed_while_the_hang_was_ended_did_not_cause_it():
    assert who(hung({"node2": gpu(moment="hang", at=T + 60)})) == ("hang", None, None)


def test_one_full_card_explains_a_silent_hang():
    full = gpu("query_full.csv", moment="hang", lines=())
    said = hung({"node1": gpu(moment="hang", lines=()), "node2": full})
    assert who(said) == ("device_memory_full", "node2", 3) and said["outcome"] == "failed"
    assert "the memory of device 1 of node2 is full" in said["text"]
    assert any("81502 of 81559 MiB" in line for line in said["evidence"])
    assert machine_faults.culprits(said, ["node1", "node2"]) == {}


def test_several_full_cards_name_no_one_and_all_of_them_explain_nothing():
    full = gpu("query_full.csv", moment="hang", lines=())
    assert who(hung({"node1": full, "node2": full})) == ("device_memory_full", None, None)
    table = text_of("query_full.csv").replace("40211, 81559", "81500, 81559")
    every = gpu(moment="hang", lines=(), devices=(SMI, 0, table))
    assert who(hung({"node1": every, "node2": every})) == ("hang", None, None)


def test_at_97_percent_a_card_is_not_full_and_a_later_look_says_nothing():
    table = text_of("query_full.csv").replace("81502, 81559", "79112, 81559")
    nearly = gpu(moment="hang", lines=(), devices=(SMI, 0, table))
    assert who(hung({"node2": nearly})) == ("hang", None, None)
    late = gpu("query_full.csv", moment="end", lines=())
    assert who(hung({"node2": late})) == ("hang", None, None)


@pytest.mark.parametrize(
    "works, expected",
    [(3, ("device_memory_full", "node2", 3)), (1, ("hang", "node1", 1))],
)
def test_stacks_that_name_another_rank_count(works, expected):
    full = gpu("query_full.csv", moment="hang", lines=())
    reports = {"node1": gpu(moment="hang", lines=()), "node2": full}
    assert who(hung(reports, works)) == expected


# --- the memory of the node

OOM = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python,pid=%d,uid=1000"


def killed(*numbers, **more):
    return [
        rank(n, signal="SIGKILL", ended=T) if n in numbers else lost_peer(n, **more)
        for n in range(4)
    ]


def test_the_kernel_names_the_rank_that_it_killed():
    said = decide(killed(2, 3))
    assert said["cause"] in ("killed", "unknown")
    report = report_of(kernel=kernel(OOM % 4713))
    said = decide(killed(2, 3), {"node2": report})
    assert who(said) == ("out_of_memory", "node2", 3)
    assert any("pid=4713" in line and "which is rank 3" in line for line in said["evidence"])


def test_another_process_that_the_kernel_killed_is_no_rank():
    report = report_of(kernel=kernel(OOM % 99))
    assert who(decide(killed(3), {"node2": report})) == ("killed", "node2", 3)


def test_a_kill_before_all_errors_is_explained_by_the_kernel_as_well():
    ranks = [rank(0, "ValueError", "late"), *(lost_peer(n) for n in (1, 2))]
    ranks.append(rank(3, signal="SIGKILL", ended=T - 20))
    assert who(decide(ranks)) == ("killed", "node2", 3)
    report = report_of(kernel=kernel(OOM % 4713, at=T - 21))
    assert who(decide(ranks, {"node2": report})) == ("out_of_memory", "node2", 3)


def test_a_rank_that_crashed_was_not_killed_for_memory():
    ranks = [*(lost_peer(n) for n in range(3)), rank(3, signal="SIGSEGV", ended=T)]
    report = report_of(kernel=kernel(OOM % 4713))
    assert who(decide(ranks, {"node2": report})) == ("segfault", "node2", 3)


def test_a_pid_of_another_namespace_names_no_rank_that_ended_otherwise():
    report = report_of(kernel=kernel(OOM % 4713))
    assert who(decide(illegal(), {"node2": report})) == ("kernel_error", "node2", 3)


# --- NCCL's RAS


def test_ras_is_a_witness_and_accuses_no_one():
    text = text_of("ras.txt").replace("10.127.5.142", "198.51.100.12")
    report = gpu(moment="hang", lines=(), ras=("NCCL RAS 127.0.0.1:28028", 0, text))
    said = hung({"node1": report})
    assert who(said) == ("hang", None, None)
    file = " (devices.node1.json)"
    assert f"NCCL's RAS on node1 has no answer of rank 3 on node2{file}" in said["evidence"]
    assert f"NCCL's RAS on node1 calls dead process 4712 on node2{file}" not in said["evidence"]
    assert f"NCCL's RAS on node1 calls dead rank 2 on node2{file}" in said["evidence"]


def test_ras_without_an_answer_says_so():
    report = gpu(moment="hang", lines=(), ras=("NCCL RAS x", 1, "[Errno 111] Connection refused"))
    assert any(
        "RAS did not answer: [Errno 111]" in line for line in hung({"node1": report})["evidence"]
    )


# --- other lines


def test_what_else_the_kernel_says_is_shown_with_a_bound():
    lines = [f"EXT4-fs error (device sda1): number {n}" for n in range(8)]
    said = decide(illegal(), {"node2": gpu(lines=lines)})
    shown = [line for line in said["evidence"] if "journalctl -k" in line]
    assert len(shown) == 6 and "3 more lines" in shown[-1]
    assert said["cause"] == "kernel_error"


def test_a_tool_that_described_no_device_is_shown_in_its_words():
    report = gpu(lines=(), devices=(SMI, None, ""))
    assert any(
        "no answer in time" in line for line in decide(illegal(), {"node2": report})["evidence"]
    )


def test_the_clock_of_a_node_is_corrected():
    report = gpu(at=T + 3598)
    ranks = illegal()
    for item in ranks:
        if item["node"] == "node2":
            item.update(ended=item["ended"] + 3600, mtime=item["mtime"] + 3600)
    nodes = []
    for name, ahead in (("node1", 0), ("node2", 3600)):
        mine = [item for item in ranks if item["node"] == name]
        nodes.append({"node": name, "now": T + 10 + ahead, "exit": dict(BAD, time=T + 2 + ahead),
            "ranks": mine, "launcher": {"exit_code": 1, "signal": None, "started": T - 60 + ahead},
            "devices": device_findings.read_findings(report if ahead else None)})  # fmt: skip
    assert who(verdict.decide(PLAN, nodes)) == ("device_error", "node2", 3)
