# SPDX-License-Identifier: Apache-2.0
"""The login check of the mesh: which cause a failed login gets, which node is asked when, and what
counts as the correct answer.
"""

from __future__ import annotations

import threading
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import (
    login_check,
    primitives,
)

CHANGED = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Host key for node2 has changed and you have requested strict checking.
Host key verification failed.
"""
DENIED = "trainer@198.51.100.12: Permission denied (publickey,password).\n"


@pytest.mark.parametrize(
    ("code", "stderr", "cause"),
    [
        (255, CHANGED, "host key changed"),
        (
            255,
            (
                "No ED25519 host key is known for node2 and you have requested strict"
                " checking.\nHost key verification failed.\n"
            ),
            "no host key of it is pinned",
        ),
        (255, DENIED, "the certificate was refused"),
        (
            255,
            "ssh: connect to host 198.51.100.12 port 22: Connection refused\n",
            "nothing listens",
        ),
        (
            255,
            "ssh: connect to host 198.51.100.12 port 22: Connection timed out\n",
            "no answer from its SSH port",
        ),
        (
            255,
            (
                "Connection timed out during banner exchange\nConnection to 198.51.100.12 port 22"
                " timed out\n"
            ),
            "no answer from its SSH port",
        ),
        (255, "ssh: connect to host 198.51.100.12 port 22: No route to host\n", "no route"),
        (255, "ssh: connect to host 198.51.100.12 port 22: Network is unreachable\n", "no route"),
        (
            255,
            "ssh: Could not resolve hostname gpu-b: Name or service not known\n",
            "cannot be resolved",
        ),
        (
            255,
            "kex_exchange_identification: Connection closed by remote host\n",
            "its sshd closed the connection",
        ),
        (
            255,
            "kex_exchange_identification: read: Connection reset by peer\n",
            "its sshd closed the connection",
        ),
        (255, "config: line 3: Bad configuration option: identityagent\n", "too old"),
        (
            255,
            (
                "Can't open user config file /home/trainer/.trainyard/mesh/config: No such file or"
                " directory\n"
            ),
            "this node has no mesh",
        ),
        (255, "Host key verification failed.\n", "host key verification failed"),
        (
            255,
            "Received disconnect from 198.51.100.12 port 22:2: Too many authentication failures\n",
            "the certificate was refused",
        ),
        (
            255,
            "Connection to 198.51.100.12 closed by remote host.\n",
            "its sshd closed the connection",
        ),
        (None, "", "no answer to the login in time"),
        (
            1,
            "This account is currently not available.\n",
            "ssh ended with code 1: This account is currently not available.",
        ),
        (3, "", "it said nothing"),
    ],
)
def test_classify_login(code, stderr, cause):
    found, remedy = login_check.classify_login(code, stderr)
    assert cause in found
    assert remedy


def test_what_a_peer_says_cannot_drive_the_terminal():
    assert "\x1b" not in login_check.classify_login(1, "\x1b]0;owned\x07\n")[0]
    assert "\x1b" not in login_check.check_answer("x\n\x1b[2Jhost\n", "other")[0]


def test_a_refused_login_names_the_own_fault_first():
    own = ("the certificate of this node has expired", "trust.yml")
    assert login_check.classify_login(255, DENIED, own) == own
    assert "host key changed" in login_check.classify_login(255, CHANGED, own)[0]
    assert "nothing listens" in login_check.classify_login(255, "Connection refused", own)[0]


def test_the_answer_must_be_that_of_the_right_machine():
    wanted = primitives.identity("abc", "node2")
    assert login_check.check_answer("abc\nnode2\n", wanted) is None
    assert login_check.check_answer("Welcome!\n\nabc\nnode2\n", wanted) is None
    for answer in ("abc\nnode3\n", "abd\nnode2\n", "node2\n", "", "node2\nabc\n"):
        assert "another machine answers" in login_check.check_answer(answer, wanted)[0]
    assert login_check.check_answer("\nnode2\n", primitives.identity("", "node2")) is not None


def test_login_argv_runs_a_fixed_command():
    assert login_check.login_argv("/h/config", "node2") == [
        "ssh",
        "-F",
        "/h/config",
        "-T",
        "--",
        "node2",
        "identify",
    ]


PEERS = [
    {"name": f"node{i}", "identity": primitives.identity(f"id{i}", f"node{i}")} for i in range(1, 5)
]


def answer(name):
    return 0, f"id{name[4:]}\n{name}\n", ""


def test_every_peer_is_asked_and_each_node_starts_elsewhere():
    asked = []
    assert (
        login_check.log_in_everywhere(
            "node2", PEERS, lambda name: asked.append(name) or answer(name), parallel=1
        )
        == []
    )
    assert asked == ["node3", "node4", "node1"]


def test_failures_name_the_ordered_pair_in_the_order_of_the_nodes():
    failed = login_check.log_in_everywhere(
        "node2",
        PEERS,
        lambda name: answer(name) if name == "node3" else (255, "", "Connection refused"),
    )
    assert [(item["from"], item["to"]) for item in failed] == [
        ("node2", "node1"),
        ("node2", "node4"),
    ]
    assert all(item["cause"] and item["remedy"] for item in failed)


def test_a_login_that_ends_on_another_machine_is_a_failure():
    failed = login_check.log_in_everywhere("node1", PEERS[:2], lambda name: answer("node3"))
    assert "another machine answers" in failed[0]["cause"]


def test_logins_are_bounded():
    running, most, lock = [0], [0], threading.Lock()

    def slow(name):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.05)
        with lock:
            running[0] -= 1
        return answer(name)

    login_check.log_in_everywhere("node1", PEERS, slow, parallel=2)
    assert most[0] == 2


def test_a_busy_sshd_is_asked_again():
    waits, tries = (
        [],
        iter(
            [
                (255, "", "kex_exchange_identification: Connection closed by remote host"),
                (255, "", "Connection reset by 1.2.3.4 port 22"),
                answer("node2"),
            ]
        ),
    )
    assert (
        login_check.log_in_everywhere(
            "node1", PEERS[:2], lambda name: next(tries), wait=waits.append
        )
        == []
    )
    assert waits == [0.5, 1.0]


def test_a_sshd_that_stays_busy_is_named():
    waits = []
    failed = login_check.log_in_everywhere(
        "node1",
        PEERS[:2],
        lambda name: (255, "", "Connection closed by 1.2.3.4 port 22"),
        wait=waits.append,
    )
    assert "closed the connection" in failed[0]["cause"]
    assert len(waits) == len(login_check.BUSY_WAITS)


@pytest.mark.parametrize("result", [(255, "", DENIED), (None, "", ""), (255, "", CHANGED)])
def test_other_failures_are_not_tried_again(result):
    waits = []
    assert login_check.log_in_everywhere("node1", PEERS[:2], lambda name: result, wait=waits.append)
    assert waits == []


def test_a_mesh_of_one_has_nothing_to_prove():
    assert (
        login_check.log_in_everywhere("node1", PEERS[:1], lambda name: pytest.fail("nobody to ask"))
        == []
    )
