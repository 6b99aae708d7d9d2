# SPDX-License-Identifier: Apache-2.0
"""Each entry of the verdict's tables decides something, and so do checks for unknown times."""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.diagnosis import verdict
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import failure_catalogue
from unit.diagnosis.test_verdict import (
    ABORT,
    BAD,
    GLOO,
    PLAN,
    TERM,
    VALUE,
    end,
    error,
    named,
    node,
    stopped,
)

MPI = {"kind": "Open MPI", "text": "PMIX ERROR: UNREACHABLE in file a.c", "origin": "line"}
SEEN = {"kind": "line", "text": "Container failed !!!", "origin": "line"}


def judge(rank, **more):
    """The verdict where rank 3 ended so, and the others say nothing."""
    return verdict.decide(
        PLAN, [node("node1", end(0), end(1)), node("node2", end(2), rank, **more)]
    )


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("SIGSEGV", "segfault"),
        ("SIGILL", "segfault"),
        ("SIGFPE", "segfault"),
        ("SIGBUS", "bus_error"),
        ("SIGABRT", "aborted"),
        ("SIGXCPU", "resource_limit"),
        ("SIGXFSZ", "resource_limit"),
        ("SIGKILL", "killed"),
    ],
)
def test_a_signal_without_a_word_has_its_cause(name, cause):
    assert named(judge(end(3, signal=name, at=0))) == ("failed", 3, cause)


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        ("train.py: error: unrecognized arguments: --fast", "bad_argument"),
        ("yaml.scanner.ScannerError: mapping values are not allowed here", "bad_config"),
        ("cannot identify image file 'a.jpg'", "data_corrupt"),
        ("No such file or directory: 'a.json'", "data_missing"),
        ("No space left on device", "disk_full"),
        ("Downloading from https://example.org/a failed", "download_failed"),
        ("Permission denied: 'a.json'", "permission"),
        ("a.so: undefined symbol: b", "version_mismatch"),
    ],
)
def test_last_words_that_name_a_thing_are_believed(last, cause):
    assert failure_catalogue.classify("", last)["cause"] == cause
    assert named(judge(end(3, 1, at=0, last_line=last))) == ("failed", 3, cause)


def test_a_rank_that_fell_silent_where_the_memory_killer_was():
    nodes = [
        node("node1", end(0, said=GLOO), end(1, said=GLOO)),
        node("node2", end(2, said=GLOO), end(3), unit=dict(BAD, oom_kills=1)),
    ]
    assert named(verdict.decide(PLAN, nodes)) == ("failed", 3, "out_of_memory")
    nodes[1]["exit"] = BAD
    assert named(verdict.decide(PLAN, nodes)) == ("failed", 3, "silent_end")


@pytest.mark.parametrize("said", [ABORT, TERM, MPI, SEEN])
def test_what_goes_with_lost_contact_explains_nothing_else(said):
    nodes = [
        node("node1", end(0, 1, at=0, said=dict(GLOO, peer=None)), end(1, 1, at=0, said=said)),
        node("node2", end(2, 1, at=0, said=said), end(3, 1, at=0, said=said)),
    ]
    assert named(verdict.decide(PLAN, nodes)) == ("failed", None, "connection_lost")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGINT", "SIGHUP"])
def test_signals_that_end_a_process_that_had_gone_on(name):
    result = judge(end(3, signal=name, at=0, mtime=0, said=VALUE))
    assert result["cause"] != "python_exception"


@pytest.mark.parametrize(
    ("below", "cause"),
    [
        (["  a", "[Hint: b]", "E19999: c"], "python_exception"),
        (["  a", "training goes on", "for long"], "silent_exit"),
        (["  a", "[2026-11-20 21:51:55,629] [ WARNING] loader.py:7 - slow", "  c"], "silent_exit"),
    ],
)
def test_details_of_a_message_belong_to_it_and_records_do_not(below, cause):
    said = error(VALUE, handled=True, context=["frame", "ValueError: bad image", *below])
    rank = end(3, 1, at=0, first_error=said, lines=said["line"] + len(below), last_line=below[-1])
    assert named(judge(rank)) == ("failed", 3, cause)


@pytest.mark.parametrize("at", [1, None])
def test_a_stop_by_a_user_counts_where_a_time_is_unknown(at):
    units = {"unit": stopped(by="user", at=at, source="trainer")}
    nodes = [
        node("node1", end(0), end(1), **units),
        node("node2", end(2), end(3, said=VALUE), **units),
    ]
    assert verdict.decide(PLAN, nodes)["outcome"] == "stopped"
    units = {"unit": stopped(by="user", at=at, source=None)}
    nodes = [node("node1", end(0), **units), node("node2", end(2), **units)]
    assert "None" not in verdict.decide(PLAN, nodes)["text"]


def test_one_node_was_restarted_and_two_were():
    lost = dict(node("node2", end(2), end(3), unit=None), restarted=True)
    one = verdict.decide(PLAN, [node("node1", end(0, 0), end(1, 0), unit=stopped(at=0)), lost])
    assert one["text"].startswith("LOST: node2 was restarted")
    two = dict(node("node1", end(0), end(1), unit=None), restarted=True)
    assert verdict.decide(PLAN, [two, lost])["text"].startswith("LOST: node1 and node2 were")
