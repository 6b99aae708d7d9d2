# SPDX-License-Identifier: Apache-2.0
"""Lines of native code that a rank outlived, long before it lost the rank that really failed."""

from __future__ import annotations

import json

import line_cases
import pytest

GOING_ON = "".join(f"working on part {number}\n" for number in range(40))
LOST = line_cases.LOST
VAGUE = LOST[: LOST.index("OSError")] + "RuntimeError: shapes do not fit\n"
TAG = "[ERROR] DEVICE(1,7f,python):2026-11-20-14:39:49.952.006 [mindspore/x.cc:1] Malloc] "
BUS = "ERROR: Unexpected bus error encountered in DataLoader workers. Shared memory is short.\n"
LINES = {
    "a helper's assertion": "ffmpeg: x/decode.c:312: send: Assertion `size >= 0' failed.\n",
    "a thread of its own": (
        "INFO: metrics watchdog thread terminated with exception: Permission denied; restarted\n"
    ),
    "a warning of another library": "reader.cc:270 WARN only 200 MB of shared memory are free\n",
    "a signal of a worker": "*** SIGBUS (@0x0) received by PID 4711 (TID 0x7f) from PID 0; ***\n",
    "a try of CUDA": "Failed, cuda error ./x.cu:1 'out of memory', using the CPU for this one\n",
    "a try of ACL": "Call aclrtMalloc(x) failed : 207001 at file x.cc, using the host instead\n",
    "another transport": "[17.1] [n:1:0] a.c:1 UCX  ERROR ibv_reg_mr(): Cannot allocate memory\n",
}
RETRIED = TAG + "Malloc memory failed, free the cache and try again\n"


def decided(folder, log):
    """Return the verdict where SIGSEGV ended rank 0, and rank 1, with a log, ended 2 s later."""
    line_cases.lay(folder, ["", log], 0)
    path = folder / "node1" / "ranks.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        if event["event"] == "end":
            event.update(exit_code=None, signal="SIGSEGV")
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return line_cases.corpus.decide(folder)


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("end", [LOST, "rank 0 is gone\n"])
def test_an_outlived_line_accuses_nobody(name, end, tmp_path):
    found = decided(tmp_path, LINES[name] + GOING_ON + end)
    assert (found["rank"], found["cause"]) == (0, "segfault"), found["text"]


@pytest.mark.parametrize("end", [LOST, "rank 0 is gone\n"])
def test_a_library_that_tries_again_accuses_nobody(end, tmp_path):
    found = decided(tmp_path, RETRIED + GOING_ON + end)
    assert (found["rank"], found["cause"]) == (0, "segfault"), found["text"]


def test_a_worker_that_dies_while_its_rank_goes_down_accuses_nobody(tmp_path):
    assert decided(tmp_path, LOST + BUS)["rank"] == 0


def test_a_warning_of_nccl_far_above_a_lost_peer_accuses_nobody(tmp_path):
    warned = "node2:7:9 [0] init.cc:9 NCCL WARN Failed to CUDA malloc 1024 bytes\n"
    assert decided(tmp_path, warned + GOING_ON + LOST)["rank"] == 0


def own_cause(folder, log):
    """Return the cause of rank 1, whose exception ended it, by its log."""
    line_cases.lay(folder, [LOST, log], 1)
    found = line_cases.corpus.decide(folder)
    assert found["rank"] == 1, found["text"]
    return found["cause"]


def test_a_library_far_above_an_exception_does_not_explain_it(tmp_path):
    assert own_cause(tmp_path / "far", RETRIED + GOING_ON + VAGUE) == "python_exception"
    assert own_cause(tmp_path / "near", RETRIED + VAGUE) == "device_out_of_memory"


@pytest.mark.parametrize(
    "detail, expected",
    [
        ("CUDA error: out of memory", "device_out_of_memory"),
        ("- CUDA error: out of memory", "python_exception"),
        ("Hint: after CUDA error: out of memory take a smaller batch", "python_exception"),
        ("no label for 'CUDA error: out of memory.jpg'", "python_exception"),
        ("use_shared_memory: /dev/shm", "python_exception"),
    ],
)
def test_what_a_line_below_an_exception_explains(detail, expected, tmp_path):
    assert own_cause(tmp_path, f"{VAGUE}    {detail}\n") == expected
