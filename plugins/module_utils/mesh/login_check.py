# SPDX-License-Identifier: Apache-2.0
"""The mesh's proof: every node logs in to every other one, and what answers must be the right
machine. A failure gets a cause and a remedy.

The logins are made by a function that is handed in: run(name) -> (ssh's exit code, or None where it
took too long, stdout, stderr).
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
# Part of what ssh says, the cause, the remedy; the first that is found counts.
LOOK_THERE = "look on that node at `journalctl -u ssh`, which names the reason"
LOGIN_FAILURES = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "host key changed: the machine at that address is not the one whose key was pinned",
     f"an impostor, a wrong trainyard_address, or it was installed again: {CONSOLE}; if it is right, see docs/runbooks/trust.md"),
    ("host key is known for", "no host key of it is pinned in the mesh", TRUST),
    ("Host key verification failed", "host key verification failed", f"{CONSOLE}, then {TRUST}"),
    ("Can't open user config file", "this node has no mesh", TRUST),
    ("Bad configuration option", "this node's ssh is too old for the mesh's configuration", "install OpenSSH 7.3 or newer on it"),
    ("Permission denied", REFUSED,
     f"{LOOK_THERE} (address not in from=: see ssh_trust_from; AuthorizedKeysFile elsewhere; home open to others; clock)"),
    ("Too many authentication failures", REFUSED, LOOK_THERE),
    ("Connection refused", "nothing listens on its SSH port", "start sshd there, open the port in its firewall, or set ssh_trust_port"),
    ("No route to host", "no route to its address", "check the fabric, its firewall and trainyard_address"),
    ("Network is unreachable", "no route to its address", "check the fabric, its firewall and trainyard_address"),
    ("timed out", "no answer from its SSH port", "check that the node runs and that no firewall drops the port between the nodes"),
    ("Could not resolve hostname", "its name cannot be resolved on this node", "set trainyard_address to an IP address"),
    ("Connection closed by", "its sshd closed the connection", f"{LOOK_THERE} (MaxStartups, fail2ban, DenyUsers)"),
    ("Connection reset by", "its sshd closed the connection", f"{LOOK_THERE} (MaxStartups, fail2ban, DenyUsers)"),
    ("closed by remote host", "its sshd closed the connection", f"{LOOK_THERE} (MaxStartups, fail2ban, DenyUsers)"),
)  # fmt: skip
BUSY = (
    "kex_exchange_identification",
    "Connection closed by",
    "Connection reset by",
    "closed by remote host",
)
BUSY_WAITS = (0.5, 1.0, 2.0)


def own_fault(place, now):
    """Return (cause, remedy) where a node's own credentials cannot be accepted by any peer, else
    None. place: the mesh's directory.
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


def classify_login(code, stderr, own=None):
    """Return (cause, remedy) of a login that failed. code: ssh's exit code (None: it did not end in
    time).

    A refused login looks the same to ssh whatever the reason, so what is known of the node's own
    credentials (own_fault) comes first.
    """
    if code is None and stderr:
        return (
            "its answer to the login has no end",
            f"look at what a login prints on that node, then {TRUST}",
        )
    if code is None:
        return "no answer to the login in time", "check that the node is not frozen or overloaded"
    for needle, cause, remedy in LOGIN_FAILURES:
        if needle in stderr:
            return own if own and cause == REFUSED else (cause, remedy)
    said = [line for line in stderr.splitlines() if line.strip()]
    told = printable(said[-1], limit=300) if said else "it said nothing"
    return (
        f"ssh ended with code {code}: {told}",
        f"run the same login by hand: ssh -F ~/{DIRECTORY}/config",
    )


def login_argv(config, peer):
    """Return the command that logs in to a peer and asks its gate for machine id and host name."""
    return ["ssh", "-F", config, "-T", "--", peer, "identify"]


def check_answer(answer, expected):
    """Return None where a peer's answer is that of the expected machine, else (cause, remedy). A
    greeting may stand before it.
    """
    lines = [line for line in answer.splitlines() if line.strip()][-2:]
    if len(lines) == 2 and identity(*lines) == expected:
        return None
    other = printable(lines[-1], limit=100) if lines else "nothing"
    return (
        f"another machine answers there (it says: {other})",
        f"correct ansible_host or trainyard_address in the inventory, then {TRUST}",
    )


def log_in(peer, run, wait, own=None):
    """Log in to one peer. Return None or (cause, remedy). run(name) -> (code or None, stdout,
    stderr).
    """
    for pause in (*BUSY_WAITS, None):
        code, out, err = run(peer["name"])
        if code == 0:
            return check_answer(out, peer["identity"])
        if pause is None or not any(word in err for word in BUSY):
            break
        wait(pause)  # sshd drops logins at random when many nodes come at once (MaxStartups)
    return classify_login(code, err, own)


def log_in_everywhere(node, peers, run, parallel=8, own=None, wait=time.sleep):
    """Log in from one node to all its peers, `parallel` at a time. Return the failures as [{from,
    to, cause, remedy}].

    peers: [{name, identity}] of all nodes in order; each node starts with the one after itself, so
    that no node is asked by all at once. own: own_fault of the node.
    """
    names = [peer["name"] for peer in peers]
    start = names.index(node) + 1
    others = [peer for peer in peers[start:] + peers[:start] if peer["name"] != node]
    with concurrent.futures.ThreadPoolExecutor(
        max_workers=max(1, min(parallel, len(others)))
    ) as pool:
        results = list(pool.map(lambda peer: log_in(peer, run, wait, own), others))
    failed = [
        {"from": node, "to": peer["name"], "cause": result[0], "remedy": result[1]}
        for peer, result in zip(others, results)
        if result
    ]
    return sorted(failed, key=lambda failure: names.index(failure["to"]))
