# SPDX-License-Identifier: Apache-2.0
"""The report of a node's devices, made by the real agent.pyz. Programs stand in for nvidia-smi,
npu-smi, journalctl and dmesg, and print what the real ones print (tests/fixtures/device_report).
NCCL's RAS is a real server. Not run on such hardware.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.agent import (
    attempt_end,
    device_report,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import device_findings
from core_support import agent_archive, attempt_files, compiled, program, put, recorded
from device_support import FIXTURES, TABLES, RasServer, text_of

NODE = "node2"
SMI = """
echo "$*" >> $LOG
case "$*" in
*query-gpu*) cat {folder}/query.csv;;
*query-compute-apps*) echo "gpu_uuid, pid, used_gpu_memory [MiB]"
    echo "GPU-00000000-0000-0000-0000-00000000000b, 4712, 41801";;
esac
"""
OLD = """
echo "$*" >> $LOG
case "$*" in
*retired_pages*) echo 'Field "retired_pages.pending" is not a valid field to query.'; echo; exit 2;;
*query-gpu*) cat {folder}/query_old.csv;;
esac
"""
LOST = "cat {folder}/lost.txt; exit 15"
JOURNAL = 'echo "$*" >> $LOG; cat {folder}/journal.txt'


class Node:
    """An attempt on node2 of two, and a folder with the tools that stand before the real ones."""

    def __init__(self, folder, accelerator="gpu", env=None, started=1795166000.0, **record):
        job = {"launcher": "msrun" if accelerator == "ascend" else "paddle", "env": env or {}}
        self.made = compiled(count=2, devices=2, accelerator=accelerator, job=job)
        self.path = attempt_files(folder / "node", self.made, NODE)
        kept = json.loads(Path(self.path, "attempt.json").read_text())
        put(self.path, {"attempt.json": json.dumps(dict(kept, started=started, **record))})
        shutil.copy(agent_archive(), self.path)
        self.bin = program(folder / "bin", "dmesg", "exit 1")
        self.tool("journalctl", "exit 0")

    def tool(self, name, text, folder=FIXTURES):
        """Put a program that stands in for a tool before all others."""
        program(Path(self.bin), name, text.replace("{folder}", str(folder)))

    def environment(self):
        return dict(os.environ, PATH=self.bin + os.pathsep + os.environ["PATH"])

    def look(self, moment="end"):
        """Let the real program make a report; return (its findings, the seconds that it took)."""
        begun = time.monotonic()
        argv = [sys.executable, "-I", os.path.join(self.path, "agent.pyz"), "devices"]
        subprocess.run([*argv, self.path, NODE, moment], env=self.environment(), check=True)
        seconds = time.monotonic() - begun
        return device_findings.read_findings(self.report()), seconds

    def report(self):
        """Return the report as it was written."""
        path = Path(self.path, device_report.NAME)
        assert path.stat().st_mode & 0o777 == 0o600
        return json.loads(path.read_text(encoding="utf-8"))


def test_a_gpu_node_at_a_hang(tmp_path):
    ras = RasServer(text_of("ras.txt"))
    node = Node(tmp_path, env={"NCCL_RAS_ADDR": ras.address})
    node.tool("nvidia-smi", SMI)
    node.tool("journalctl", JOURNAL)
    found, _seconds = node.look("hang")
    assert found["moment"] == "hang" and found["error"] == "" and found["lost"] == []
    assert [(card["index"], card["bus"], card["utilization"]) for card in found["cards"]] == [
        ("0", "0000:1b:00", 100),
        ("1", "0000:3b:00", 100),
    ]
    assert found["cards"][1]["memory_used"] == 41873
    assert found["users"] == [{"pid": 4712, "uuid": found["cards"][1]["uuid"]}]
    assert ras.asked == ["TIMEOUT 3", "VERBOSE STATUS"]
    assert [(entry["how"], entry["rank"], entry["pid"]) for entry in found["ras"]["named"]] == [
        ("silent", None, 4713),
        ("dead", None, 4712),
        ("silent", 2, 4713),
        ("silent", 3, 4712),
    ]
    # Each question is asked once.
    assert len(recorded(node.bin, "nvidia-smi")) == 2 and len(recorded(node.bin, "journalctl")) == 1


def test_what_was_before_the_attempt_or_is_no_fault_is_left_out(tmp_path):
    node = Node(tmp_path)
    node.tool("journalctl", JOURNAL)
    kernel = node.look()[0]["kernel"]
    assert kernel["source"] == "journalctl -k" and kernel["readable"]
    assert [(line["kind"], line["xid"], line["pid"]) for line in kernel["lines"]] == [
        ("other", None, None),
        ("other", None, None),
        ("xid", 31, 4711),
        ("xid", 79, 4712),
        ("off_bus", None, None),
        ("oom", None, 4713),
        ("oom", None, 4713),
    ]
    assert kernel["lines"][3]["text"].startswith("NVRM: Xid (PCI:0000:3b:00): 79")
    assert recorded(node.bin, "journalctl") == ["-kqo short-unix --no-pager --since=@1795166000"]


def test_an_older_driver_that_refuses_a_field_is_asked_for_the_others(tmp_path):
    node = Node(tmp_path)
    node.tool("nvidia-smi", OLD)
    found, _seconds = node.look()
    assert [card["memory_total"] for card in found["cards"]] == [81559, 81559]
    assert found["cards"][0]["rows_pending"] is False and found["error"] == ""


@pytest.mark.parametrize(
    "text, lost",
    [(LOST, ["0000:3b:00"]), ("exit 15", [None]), ("echo No devices were found; exit 6", [])],
    ids=["in its words", "by the exit code alone", "another exit code"],
)
def test_a_gpu_that_is_lost(tmp_path, text, lost):
    node = Node(tmp_path)
    node.tool("nvidia-smi", text)
    found, _seconds = node.look()
    assert found["lost"] == lost and found["cards"] == [] and found["error"]


def test_a_tool_that_hangs_costs_its_own_answer_only(tmp_path):
    node = Node(tmp_path)
    node.tool("nvidia-smi", "exec sleep 600")
    node.tool("journalctl", JOURNAL)
    found, seconds = node.look()
    assert found["error"] == "no answer in time" and len(found["kernel"]["lines"]) == 7
    # Ten times the limit would still be less than the tool takes.
    assert seconds < 10 * device_report.SECONDS


def test_a_tool_that_never_stops_to_print_fills_nothing(tmp_path):
    node = Node(tmp_path)
    node.tool("nvidia-smi", "yes 0, GPU-0, 00000000:1B:00.0")
    node.tool("journalctl", "yes '1795166900.0 h kernel: NVRM: Xid (PCI:0000:1b:00): 31, pid=1'")
    found, _seconds = node.look()
    assert Path(node.path, device_report.NAME).stat().st_size < 8 * device_report.TEXT_BYTES
    assert len(found["kernel"]["lines"]) == device_findings.LINES


def test_npus(tmp_path):
    node = Node(tmp_path, "ascend")
    node.tool("npu-smi", "cat {folder}/npu_910b.txt", TABLES)
    found, _seconds = node.look()
    assert [(card["index"], card["health"], card["memory_used"]) for card in found["cards"]] == [
        ("0", "OK", 3190),
        ("1", "Alarm", 3190),
    ]
    assert found["users"] == [{"pid": 4054862, "uuid": "1"}] and found["ras"] is None


def test_on_a_cpu_node_only_the_kernel_is_asked(tmp_path):
    ras = RasServer(text_of("ras.txt"))
    node = Node(tmp_path, "cpu", env={"NCCL_RAS_ADDR": ras.address})
    for tool in ("nvidia-smi", "npu-smi"):
        node.tool(tool, 'echo "$*" >> $LOG')
    node.tool("journalctl", JOURNAL)
    found, _seconds = node.look("hang")
    assert list(node.report()["answers"]) == ["kernel"] and found["kernel"]["lines"]
    assert not recorded(node.bin, "nvidia-smi") and not recorded(node.bin, "npu-smi")
    assert found["ras"] is None and ras.asked == []


def test_the_ring_buffer_is_read_where_the_journal_shows_nothing(tmp_path):
    now, up = time.time(), time.monotonic()
    node = Node(tmp_path, started=now - 60)
    line = "[%12.6f] NVRM: Xid (PCI:0000:3b:00): 79, pid=4712, GPU has fallen off the bus."
    texts = [line % (up - 3000), line % (up - 30), "[%12.6f] eth0: link up" % up]
    put(Path(node.bin), {"ring": "\n".join(texts) + "\n"})
    node.tool("dmesg", "cat {folder}/ring", node.bin)
    kernel = node.look()[0]["kernel"]
    assert kernel["source"] == "dmesg" and [line["xid"] for line in kernel["lines"]] == [79]
    assert abs(kernel["lines"][0]["time"] - (now - 30)) < 5


def test_a_kernel_that_lets_nobody_read_is_no_failure(tmp_path):
    node = Node(tmp_path)
    node.tool("dmesg", "echo dmesg: read kernel buffer failed: Operation not permitted >&2; exit 1")
    kernel = node.look()[0]["kernel"]
    assert kernel == {"source": "dmesg", "readable": False, "lines": []}


@pytest.mark.parametrize("kind", ["closed", "silent", "other"])
def test_a_ras_that_gives_no_answer(tmp_path, kind):
    ras = RasServer("220 mail.example.org ESMTP\r\n", silent=kind == "silent")
    if kind == "closed":
        ras.socket.close()
    node = Node(tmp_path, env={"NCCL_RAS_ADDR": ras.address})
    found, seconds = node.look("hang")
    assert found["ras"]["named"] == [] and found["ras"]["error"]
    assert seconds < 10 * device_report.SECONDS


@pytest.mark.parametrize("record", [{"attempt": 0}, {"attempt": None}])
def test_a_rehearsal_is_not_asked(tmp_path, record):
    node = Node(tmp_path, **record)
    assert device_report.start(node.path, "end") is None


def test_a_node_is_asked_once(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.tool("nvidia-smi", SMI)
    monkeypatch.setenv("PATH", node.environment()["PATH"])
    for moment in ("hang", "end"):
        device_report.await_end(device_report.start(node.path, moment))
    assert node.report()["moment"] == "hang" and len(recorded(node.bin, "nvidia-smi")) == 2


# --- at the end of the unit

OVER = json.dumps({"event": "launcher_end", "exit_code": 0}) + "\n"


def finish(node, monkeypatch, result="exit-code", **files):
    """Let the unit end; return the seconds from its end until a peer was called, or None."""
    node.tool("ssh", 'date +%s.%N >> $LOG; echo "$*" >> $LOG.words')
    node.tool("systemctl", "exit 0")
    put(node.path, {name.replace("_", "."): text for name, text in files.items()})
    for name, value in {"SERVICE_RESULT": result, "PATH": node.environment()["PATH"]}.items():
        monkeypatch.setenv(name, value)
    begun = time.time()
    assert attempt_end.finish(node.path, NODE, "/mesh/config") == 0
    called = recorded(node.bin, "ssh")
    return float(called[0]) - begun if called else None


@pytest.mark.parametrize(
    "result, files, asked",
    [
        ("exit-code", {}, True),
        ("success", {}, True),  # the unit was stopped from outside
        ("success", {"ranks_jsonl": OVER}, False),
        ("exit-code", {"stop_json": '{"by": "user", "from": "ops"}'}, False),
        ("success", {"stop_json": '{"by": "peer", "from": "node1"}'}, True),
        ("success", {"stop_json": '{"by": "guard", "reason": "lost"}'}, True),
    ],
    ids=["failed", "ended by someone", "completed", "by the user", "by a peer", "by the guard"],
)
def test_which_ends_are_looked_at(tmp_path, monkeypatch, result, files, asked):
    node = Node(tmp_path)
    node.tool("nvidia-smi", SMI)
    finish(node, monkeypatch, result, **files)
    assert Path(node.path, device_report.NAME).exists() == asked
    if asked:
        report = node.report()
        assert report["moment"] == "end" and "ras" not in report["answers"]
        assert report["answers"]["devices"]["code"] == 0


def test_a_driver_that_hangs_keeps_no_peer_from_being_stopped(tmp_path, monkeypatch):
    node = Node(tmp_path)
    node.tool("nvidia-smi", "trap '' TERM; sleep 600")
    begun = time.monotonic()
    until_called = finish(node, monkeypatch)
    total = time.monotonic() - begun
    # The peers are called before the tool's time is over, and the unit ends with it.
    assert until_called < device_report.ANSWER_SECONDS < total < 10 * device_report.SECONDS
    assert "stop 1 peer" in Path(node.bin, "ssh.log.words").read_text()
    assert node.report()["answers"]["kernel"]["code"] is not None
    assert json.loads(Path(node.path, "exit.json").read_text())["peers"] == {"node1": "stopped"}


def test_a_report_that_hangs_itself_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(device_report, "SECONDS", -0.5)
    node = Node(tmp_path)
    node.tool("nvidia-smi", "sleep 600")
    monkeypatch.setenv("PATH", node.environment()["PATH"])
    report = device_report.start(node.path, "end")
    device_report.await_end(report)
    assert report[0].wait(10) == -9
