# SPDX-License-Identifier: Apache-2.0
"""What a rank prints that lost another one, in words that look like a failure of its own."""

from __future__ import annotations

import json

import line_cases
import pytest

LOST = line_cases.LOST
ABOVE = LOST[: LOST.index("OSError")]
CHAINED = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
NCCL = "node2:4711:4799 [0] include/alloc.h:243 NCCL WARN "
TAG = "[ERROR] DEVICE(4711,7f0a,python):2026-11-20-21:49:20.651.736 [mindspore/x.cc:123] Destroy] "
NOTIFY = (
    ABOVE
    + "RuntimeError: HcclAllReduce failed, ret: 4\n\n"
    + "EI0002: [PID: 4711] 2026-11-20-21:49:20.651.736 The wait execution of the Notify register"
    " times out. Reason: it has not received the Notify record from remote rank [0].\n"
)
WORDS = {
    "an exception raised from it": LOST + CHAINED + ABOVE + "RuntimeError: the step failed\n",
    "an exception while it was cleaned up": (
        LOST + DURING + ABOVE + "AttributeError: 'NoneType' object has no attribute 'close'\n"
    ),
    "CUDA while it ends": LOST + NCCL + "Cuda failure 'driver shutting down'\n",
    "CUDA of a process that goes down": LOST + NCCL + "Cuda failure 'invalid device context'\n",
    "a file of the peer": (
        NCCL
        + "Error while attaching to shared memory segment /dev/shm/nccl-glnlGK (size 14156128),"
        " error: No such file or directory (2)\n" + LOST
    ),
    "a socket of the peer": (
        NCCL + "UDS: Sending data over /tmp/nccl-1 failed: No such file or directory\n" + LOST
    ),
    "a plugin that is never there": (
        NCCL + "dlerror=libnccl-net.so: cannot open shared object file. No plugin found\n" + LOST
    ),
    "a stream that is destroyed": (
        TAG + "Call aclrtDestroyStream failed, return value: 107002.\n" + NOTIFY
    ),
    "a wait": ABOVE + "TimeoutError: rank 0 did not come to the barrier within 600 s\n",
}


def decided(folder, log, guilty="SIGSEGV", apart=2.0, code=1):
    """Return the verdict where a signal ended rank 0, and rank 1, with a log, ended after it."""
    line_cases.lay(folder, ["", log], 0)
    for node, number in (("node1", 0), ("node2", 1)):
        path = folder / node / "ranks.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()]
        for event in events:
            if event["event"] == "end" and number == 0:
                event.update(exit_code=None, signal=guilty)
            elif event["event"] == "end":
                event.update(exit_code=code, time=line_cases.STARTED + 30 + apart)
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return line_cases.corpus.decide(folder)


@pytest.mark.parametrize("name", WORDS)
def test_words_about_a_lost_peer_accuse_nobody(name, tmp_path):
    found = decided(tmp_path / "killed", WORDS[name])
    assert found["rank"] in (0, None), found["text"]
    line_cases.lay(tmp_path / "lost", [LOST, WORDS[name]], 1)
    found = line_cases.corpus.decide(tmp_path / "lost")
    assert (found["rank"], found["node"]) == (None, None), found["text"]


def test_a_list_of_the_ranks_below_an_exception_is_not_its_cause(tmp_path):
    log = ABOVE + "RuntimeError: the job failed:\n  %suncorrectable ECC error encountered\n"
    assert decided(tmp_path / "own", log % "", "SIGTERM")["cause"] == "device_error"
    assert decided(tmp_path / "other", log % "trainer 0: ", "SIGTERM")["cause"] != "device_error"


@pytest.mark.parametrize(
    "line",
    [
        "ERROR: abort received from trainer 0: CUDA out of memory\n",
        "stopping: node1 lost GPU 0 (uncorrectable ECC error), see its log\n",
        "trainer 0 says data/train.txt does not exist, exiting\n",
    ],
)
def test_a_last_line_that_quotes_another_rank_is_not_the_ranks_own(line, tmp_path):
    found = decided(tmp_path, "loading\n" + line, guilty="SIGTERM")
    assert found["cause"] not in ("device_out_of_memory", "device_error", "data_missing")


def test_the_same_words_of_a_ranks_own_name_it(tmp_path):
    log = NCCL + "Error while creating shared memory segment /dev/shm/nccl-x (size 9)\n" + LOST
    line_cases.lay(tmp_path, [line_cases.LOST, log], 1)
    found = line_cases.corpus.decide(tmp_path)
    assert (found["rank"], found["cause"]) == (1, "bus_error")


def test_a_line_of_nccl_above_an_exception_counts(tmp_path):
    log = NCCL + "Cuda failure 'invalid device context'\n" + LOST
    line_cases.lay(tmp_path, [line_cases.LOST, log], 1)
    found = line_cases.corpus.decide(tmp_path)
    assert (found["rank"], found["cause"]) == (1, "nccl_cuda_error")
