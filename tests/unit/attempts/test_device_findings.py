# SPDX-License-Identifier: Apache-2.0
"""devices.json of a node as data: what the tools say, and what a training may write into it."""

from __future__ import annotations

import json

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    device_findings,
    evidence,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from core_support import attempt_files, compiled, put
from device_support import report_of, text_of

SMI = "nvidia-smi --query-gpu=index"
KERNEL = "journalctl -kqo short-unix"


def read(moment="end", **answers):
    return device_findings.read_findings(report_of(moment, **answers))


def kernel_line(text):
    """Return what is found in one line of the kernel's log."""
    found = read(kernel=(KERNEL, 0, f"1795166900.5 gpu2 kernel: {text}\n"))
    return found["kernel"]["lines"][0]


@pytest.mark.parametrize(
    "text, bus",
    [
        ("00000000:3B:00.0", "0000:3b:00"),
        ("0000:3b:00", "0000:3b:00"),
        ("3b:00.0", "0000:3b:00"),
        ("0019:01:00", "0019:01:00"),
        ("0000:C1:00.0", "0000:c1:00"),
        ("[N/A]", None),
        (None, None),
        ("0000:3b:00.0x", None),
    ],
)
def test_one_address_for_all_programs(text, bus):
    assert device_findings.normalize_bus(text) == bus


@pytest.mark.parametrize(
    "text, expected",
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=4712, name=python, GPU has fallen off the bus.",
         ("xid", 79, "0000:3b:00", 4712)),
        ("NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp",
         ("xid", 13, "0000:cb:00", None)),
        ("NVRM: Xid (0000:01:00): 31, Ch 0000000b", ("xid", 31, "0000:01:00", None)),
        ("NVRM: GPU 0000:44:00.0: GPU has fallen off the bus.",
         ("off_bus", None, "0000:44:00", None)),
        ("Memory cgroup out of memory: Killed process 63214 (uwsgi) total-vm:3149468kB",
         ("oom", None, None, 63214)),
        ("Out of memory: Kill process 812 (python) score 900 or sacrifice child",
         ("oom", None, None, 812)),
        ("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN", ("other", None, None, None)),
    ],
)  # fmt: skip
def test_the_lines_of_the_kernel(text, expected):
    line = kernel_line(text)
    assert tuple(line[key] for key in ("kind", "xid", "bus", "pid")) == expected
    assert line["time"] == 1795166900.5 and line["text"] == text


def test_a_flood_keeps_what_says_most():
    flood = "1795166800.0 h kernel: nvme nvme0: I/O 1 timeout, aborting\n" * 500
    xid = "1795166900.0 h kernel: NVRM: Xid (PCI:0000:3b:00): 48, pid=1, DBE\n"
    lines = read(kernel=(KERNEL, 0, flood + xid))["kernel"]["lines"]
    assert len(lines) == device_findings.LINES and lines[-1]["xid"] == 48


@pytest.mark.parametrize(
    "cell, fault", [("[GPU is lost]", True), ("[GPU requires reset]", True), ("[N/A]", False)]
)
def test_the_words_of_a_cell_that_name_a_fault(cell, fault):
    table = text_of("query.csv").replace("100, 0, [N/A]", f"100, {cell}, [N/A]", 1)
    cards = read(devices=(SMI, 0, table))["cards"]
    assert [card["fault"] for card in cards] == [cell if fault else None, None]
    assert [card["ecc"] for card in cards] == [None, 0]


def test_rows_that_wait_for_a_reset():
    table = text_of("query.csv").replace("[N/A], No, No", "[N/A], Yes, No", 1)
    cards = read(devices=(SMI, 0, table))["cards"]
    assert [card["rows_pending"] for card in cards] == [True, False]


@pytest.mark.parametrize(
    "words, lost",
    [
        ("GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU", ["0000:3b:00"]),
        ("GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU", ["0000:3b:00"]),
        # The same words stand for a driver that was changed: nothing says that the card is gone.
        ("GPU 0000:3B:00.0: Unknown Error", []),
    ],
)
def test_gpus_that_the_tool_calls_lost(words, lost):
    text = f"Unable to determine the device handle for {words}\n"
    assert read(devices=(SMI, 255, text))["lost"] == lost


def test_ras_that_knows_no_error_names_no_process():
    text = text_of("ras.txt").partition("\nINCOMPLETE\n  Missing communicator data from 1")[0]
    assert read("hang", ras=("NCCL RAS", 0, text))["ras"] == {"error": "", "named": [], "lines": []}


def test_what_a_tool_says_instead_of_a_table():
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert read(devices=(SMI, 9, words))["error"] == words
    assert read(devices=(SMI, None, ""))["error"] == "no answer in time"
    assert read(devices=(SMI, 127, "No such file or directory"))["error"].startswith("No such")
    assert read(devices=None)["error"] == "" and read()["kernel"]["lines"] == []


HOSTILE = [
    None, [], "x", {}, {"answers": []}, {"answers": None}, {"answers": {"devices": 5}},
    {"answers": {"devices": {"command": 7, "code": "x", "text": {"a": 1}}, "kernel": [], "ras": 1}},
    {"moment": ["hang"], "answers": {"kernel": {"command": "dmesg", "code": 0, "text":
        "9" * 400 + ".1 x\n99999999999999.5 h kernel: NVRM: Xid (PCI:::::): 9999\n"
        "1.1 NVRM: Xid (PCI:0000:3b:00): 31, pid=9999999\n1.1 oom-kill: pid=9999999,\n"}}},
    {"answers": {"devices": {"command": "npu-smi info", "code": 0, "text":
        "| 0 910 | Alarm | 1 |\n| 0 | 0000:C1:00.0 | " + "9" * 5000 + " / " + "9" * 5000 + " |\n"
        "| 0 0 | " + "9" * 5000 + " | p | " + "9" * 5000 + " |\n| \u00b2 0 | \u00b2 | p | 1 |\n"}}},
    {"answers": {"devices": {"command": "nvidia-smi", "code": 15, "text":
        "index, uuid, pci.bus_id, name, memory.used\n\u0662, " + "u" * 9000 + ", x, \x1b[31m, "
        + "9" * 5000 + "\n\u00b2, a, b, c, \u00b2\n" + "1, a, 00000000:3B:00.0, n, 1\n" * 300},
        "processes": {"command": "", "code": 0, "text": "GPU, 9999999\nGPU, \u00b2\nx\n"}}},
    {"answers": {"devices": {"command": "nvidia-smi", "code": 15, "text": "".join(
        f"device handle for GPU 0000:3B:{n:02x}.0: GPU is lost\n" for n in range(200))}}},
    {"answers": {"ras": {"command": "", "code": 0, "text": "\nErrors\n\nDEAD\n" + "".join(
        f"  Process {n} on node 10.0.0.1 managing GPU 1\n" for n in range(200))}}},
    {"answers": {"ras": {"command": "", "code": 0, "text":
        "\nErrors\n\nDEAD\n  Process 9999999 on node " + "n" * 60 + " managing GPU 1\n"
        + "#0-0 (x) INCOMPLETE\n  Rank 999999 -- [process information not found]\n" * 200}}},
]  # fmt: skip


@pytest.mark.parametrize("report", HOSTILE)
def test_whatever_a_training_writes_there_passes_the_gate_or_counts_as_nothing(tmp_path, report):
    attempt = attempt_files(tmp_path, compiled(count=2, devices=1), "node2")
    put(attempt, {"evidence/devices.json": json.dumps(report), "logs.txt": ""})
    found = evidence.collect(attempt, "node2")
    arguments = {"node": "node2", "attempt_dir": attempt}
    passed = answer_gate.validate("rank_logs_info", dict(found, changed=False), arguments)
    assert (passed["devices"] is None) == (found["devices"] is None)
    assert "\x1b" not in json.dumps(found["devices"])


def real(samples, name):
    """Return what is found in a report that was made on an H100 with driver 580.159.04."""
    report = json.loads((samples / "devices" / f"h100_{name}.json").read_text())
    return device_findings.read_findings(report)


def test_a_real_card_whose_memory_is_full(samples):
    found = real(samples, "full")
    (card,) = found["cards"]
    assert (card["name"], card["bus"], card["index"]) == (
        "NVIDIA H100 80GB HBM3",
        "0000:00:06",
        "0",
    )
    assert (card["memory_used"], card["memory_total"], card["utilization"]) == (81077, 81559, 4)
    assert (card["ecc"], card["rows_pending"], card["fault"]) == (0, False, None)
    assert found["users"] == [{"pid": 490, "uuid": card["uuid"]}]
    assert (found["error"], found["lost"]) == ("", [])
    assert not [line for line in found["kernel"]["lines"] if line["xid"]]


def test_a_real_xid_of_an_illegal_address(samples):
    found = real(samples, "illegal")
    xids = [line for line in found["kernel"]["lines"] if line["kind"] == "xid"]
    assert [(line["xid"], line["bus"]) for line in xids] == [(13, "0000:00:06")] * 4
    assert [line["pid"] for line in xids] == [None, None, None, 490]
    assert found["cards"][0]["bus"] == xids[0]["bus"]
