# SPDX-License-Identifier: Apache-2.0
"""Proof of the mesh: every node logs in to every other one.

The right machine has to answer. A failure gets a cause and a remedy. The logins are made by a
function that is handed in: run(name) -> (ssh's exit code, or None where it took too long, stdout,
stderr).
"""

from __future__ import annotations

import concurrent.futures
import os
import time

from ..base.sanitize import printable
from .primitives import DIRECTORY, KEY, TRUST, identity
from .store import certificate_end, key_exposed

CONSOLE = (
    "on that node's own console run ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub and compare"
)
REFUSED = "the certificate was refused"
LOOK_THERE = "look on that node at `journalctl -u ssh`, which names the reason"
SSHD_CLOSED = (
    "its sshd closed the connection",
    f"{LOOK_THERE} (MaxStartups, fail2ban, DenyUsers)",
)
NO_ROUTE = (
    "no route to its address",
    "check the fabric, its firewall and trainyard_address",
)
# {part of what ssh says: (cause, remedy)}. The first part that matches counts.
LOGIN_FAILURES = {
    "REMOTE HOST IDENTIFICATION HAS CHANGED": (
        "host key changed: the machine at that address is not the one whose key was pinned",
        f"an impostor, a wrong trainyard_address, or it was installed again: {CONSOLE}; if it is"
        " right, see docs/runbooks/trust.md",
    ),
    "host key is known for": ("no host key of it is pinned in the mesh", TRUST),
    "Host key verification failed": ("host key verification failed", f"{CONSOLE}, then {TRUST}"),
    "Can't open user config file": ("this node has no mesh", TRUST),
    "Bad configuration option": (
        "this node's ssh is too old for the mesh's configuration",
        "install OpenSSH 7.3 or newer on it",
    ),
    "Permission denied": (
        REFUSED,
        f"{LOOK_THERE} (address not in from=: see ssh_trust_from; AuthorizedKeysFile elsewhere;"
        " home open to others; clock)",
    ),
    "Too many authentication failures": (REFUSED, LOOK_THERE),
    "Connection refused": (
        "nothing listens on its SSH port",
        "start sshd there, open the port in its firewall, or set ssh_trust_port",
    ),
    "No route to host": NO_ROUTE,
    "Network is unreachable": NO_ROUTE,
    "timed out": (
        "no answer from its SSH port",
        "check that the node runs and that no firewall drops the port between the nodes",
    ),
    "Could not resolve hostname": (
        "its name cannot be resolved on this node",
        "set trainyard_address to an IP address",
    ),
    "Connection closed by": SSHD_CLOSED,
    "Connection reset by": SSHD_CLOSED,
    "closed by remote host": SSHD_CLOSED,
}
BUSY = (
    "kex_exchange_identification",
    "Connection closed by",
    "Connection reset by",
    "closed by remote host",
)
BUSY_WAITS = (0.5, 1.0, 2.0)


def own_fault(place, now):
    """Return (cause, remedy) of a fault in a node's own credentials, or None.

    With such a fault no peer can accept them. place: the mesh's directory. now: unix seconds.
    """
    if not os.path.exists(os.path.join(place, KEY)):
        return "this node has no key of its own for the mesh", TRUST
    if key_exposed(place):
        return (
            "this node's private key can be read by others, so ssh does not use it",
            f"{TRUST}, which replaces the key",
        )
    ends = certificate_end(place)
    if ends is None:
        return "this node has no certificate", TRUST
    if ends <= now:
        ended = time.strftime("%Y-%m-%d %H:%M", time.gmtime(ends))
        return f"the certificate of this node has expired ({ended} UTC)", TRUST
    return None


def classify_login(code, stderr, node_fault=None):
    """Return (cause, remedy) of a login that failed.

    code: ssh's exit code, None where it did not end in time. node_fault: own_fault of the node. A
    refused login looks the same to ssh whatever the reason, so a fault of the node's own
    credentials comes first.
    """
    if code is None and stderr:
        return (
            "its answer to the login has no end",
            f"look at what a login prints on that node, then {TRUST}",
        )
    if code is None:
        return "no answer to the login in time", "check that the node is not frozen or overloaded"
    for sign, (cause, remedy) in LOGIN_FAILURES.items():
        if sign in stderr:
            if node_fault and cause == REFUSED:
                return node_fault
            return cause, remedy
    message = "it said nothing"
    lines = [line for line in stderr.splitlines() if line.strip()]
    if lines:
        message = printable(lines[-1], limit=300)
    return (
        f"ssh ended with code {code}: {message}",
        f"run the same login by hand: ssh -F ~/{DIRECTORY}/config",
    )


def login_argv(config, peer):
    """Return the command that logs in to a peer.

    It asks the peer's gate for machine id and host name.
    """
    return ["ssh", "-F", config, "-T", "--", peer, "identify"]


def check_answer(answer, expected):
    """Return None for the answer of the expected machine, else (cause, remedy).

    A greeting may stand before the answer. expected: the machine's identity.
    """
    lines = [line for line in answer.splitlines() if line.strip()][-2:]
    if len(lines) == 2 and identity(*lines) == expected:
        return None
    other = "nothing"
    if lines:
        other = printable(lines[-1], limit=100)
    return (
        f"another machine answers there (it says: {other})",
        f"correct ansible_host or trainyard_address in the inventory, then {TRUST}",
    )


def log_in(peer, run, wait, node_fault=None):
    """Log in to one peer and return None or (cause, remedy).

    run(name) -> (code or None, stdout, stderr). wait(seconds): time.sleep. node_fault: see
    classify_login.
    """
    for pause in (*BUSY_WAITS, None):
        code, out, err = run(peer["name"])
        if code == 0:
            return check_answer(out, peer["identity"])
        if pause is None or not any(word in err for word in BUSY):
            break
        wait(pause)  # sshd drops logins at random when many nodes come at once (MaxStartups)
    return classify_login(code, err, node_fault)


def log_in_everywhere(node, peers, run, parallel=8, node_fault=None, wait=time.sleep):
    """Log in from one node to all its peers and return the failures.

    A failure is {from, to, cause, remedy}. `parallel` logins run at a time. peers: [{name,
    identity}] of all nodes in order. Each node starts with the one after itself, so that they do
    not all log in to one node at once. node_fault: own_fault of the node.
    """
    names = [peer["name"] for peer in peers]
    start = names.index(node) + 1
    others = [peer for peer in peers[start:] + peers[:start] if peer["name"] != node]
    workers = max(1, min(parallel, len(others)))
    with concurrent.futures.ThreadPoolExecutor(max_workers=workers) as pool:
        results = list(pool.map(lambda peer: log_in(peer, run, wait, node_fault), others))
    failed = [
        {"from": node, "to": peer["name"], "cause": result[0], "remedy": result[1]}
        for peer, result in zip(others, results)
        if result
    ]
    return sorted(failed, key=lambda failure: names.index(failure["to"]))
