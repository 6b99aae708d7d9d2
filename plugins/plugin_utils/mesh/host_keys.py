# SPDX-License-Identifier: Apache-2.0
"""Host keys of a site's nodes at first contact.

They are scanned and compared with the pinned ones. They are pinned only when a user vouched for
them. `run_command` is a function such as commands.run_program: run(argv) -> (code, stdout, stderr).
"""

from __future__ import annotations

import base64
import binascii
import concurrent.futures
import hashlib
import re
from collections.abc import Mapping, Sequence, Set
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import RunCommand

TYPES = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "ssh-rsa",
)
# {type of key: {'type base64'}}
Keys = dict[str, set[str]]
# {status, keys, problem}, see judge.
Verdict = dict[str, Any]

# {pattern in what ssh-keyscan says: the cause with its remedy}.
_SCAN_FAILURES = {
    r"Name or service not known|nodename nor servname|No address associated|name resolution": (
        "its name cannot be resolved: correct ansible_host, or give it the node's IP address"
    ),
    r"Connection refused": (
        "nothing listens on that port: start sshd there, or correct ansible_host and ansible_port"
    ),
    r"No route to host|Network is unreachable": (
        "there is no route to it: check ansible_host, and the network or VPN"
    ),
}


def fingerprint(key: str) -> str:
    """Return the SHA256 fingerprint of 'type base64', as ssh-keygen prints it.

    Raises ValueError.
    """
    try:
        blob = base64.b64decode(key.split()[1], validate=True)
    except (IndexError, binascii.Error) as problem:
        raise ValueError(f"not a public key: {key!r}") from problem
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def host_pattern(host: str, port: int) -> str:
    """Return the name under which ssh looks a host up in known_hosts."""
    if port == 22:
        return host
    return f"[{host}]:{port}"


def parse_keys(text: str) -> tuple[Keys, bool]:
    """Return (keys, authority) of the lines of a known_hosts file or a scan.

    keys: {type: {'type base64'}}. authority: True if a certificate authority is among them.
    """
    keys: Keys = {}
    authority = False
    for line in text.splitlines():
        fields = line.split()
        if fields and fields[0].startswith("@"):
            authority = authority or fields[0] == "@cert-authority"
        elif len(fields) >= 3 and fields[1] in TYPES:
            keys.setdefault(fields[1], set()).add(" ".join(fields[1:3]))
    return keys, authority


def pinned_keys(
    run_command: RunCommand, files: Sequence[str], host: str, port: int
) -> tuple[Keys, bool, str]:
    """Return (keys, authority, source) that the known_hosts files hold for a host.

    keys, authority: see parse_keys. source: the first file that holds the host. Hashed names and
    patterns are found too.
    """
    text, source = "", ""
    for path in files:
        lines = run_command(["ssh-keygen", "-F", host_pattern(host, port), "-f", path])[1]
        text += lines
        if lines and not source:
            source = path
    return (*parse_keys(text), source)


def scan_keys(run_command: RunCommand, host: str, port: int, timeout: int) -> tuple[Keys, str]:
    """Return ({type: {'type base64'}}, words) of a host as it answers now.

    The keys are empty where the host does not answer. words: what ssh-keyscan said of that.
    """
    options = ["-T", str(timeout), "-p", str(port), "-t", "ed25519,ecdsa,rsa"]
    _code, out, error = run_command(["ssh-keyscan", *options, "--", host])
    return parse_keys(out)[0], error


def judge(
    node: Mapping[str, Any],
    pinned: Keys,
    authority: bool,
    scanned: Keys,
    source: str = "",
    words: str = "",
) -> Verdict:
    """Return {status, keys, problem} of one node.

    node: {name, host, port, fingerprints}. pinned, scanned: {type: {'type base64'}}. authority:
    True if a certificate authority is pinned. source: the file that pins the node. words: of a scan
    that found no key.

    status: pinned (nothing to do), vouched (keys: to be recorded, their fingerprints were given),
    unknown (keys: no user vouched for them yet) or refused (problem: why, with the remedy).
    """
    where = f"{node['name']} ({host_pattern(node['host'], node['port'])})"
    for kind in sorted(set(pinned) & set(scanned)):
        if not pinned[kind] & scanned[kind]:
            return _refuse(_describe_change(node, where, pinned[kind], scanned[kind], source))
    fingerprints = {_complete_fingerprint(item) for item in node["fingerprints"]}
    keys = sorted(key for keys in (pinned or scanned).values() for key in keys)
    vouched = [key for key in keys if fingerprint(key) in fingerprints]
    if fingerprints and keys and not vouched:
        return _refuse(_describe_unvouched(where, keys, fingerprints, is_pinned=bool(pinned)))
    if pinned or authority:
        return {"status": "pinned", "keys": [], "problem": None}
    if not keys:
        return _refuse(
            f"{where}: no host key is pinned and {_describe_silence(words)}. Behind a jump host log"
            " in once by hand with ssh, which shows the fingerprint and pins it"
        )
    if fingerprints:
        return {"status": "vouched", "keys": vouched, "problem": None}
    return {"status": "unknown", "keys": keys, "problem": None}


def _describe_silence(words: str) -> str:
    """Return why a scan found no key, with the remedy. words: what ssh-keyscan said."""
    for pattern, text in _SCAN_FAILURES.items():
        if re.search(pattern, words):
            return text
    return "it does not answer a scan: check address, port and firewall"


def _complete_fingerprint(text: str) -> str:
    """Return a fingerprint with the name of its digest."""
    if text.startswith("SHA256:"):
        return text
    return "SHA256:" + text


def _refuse(problem: str) -> Verdict:
    """Return the verdict of `judge` for a node that is refused."""
    return {"status": "refused", "keys": [], "problem": problem}


def _describe_unvouched(
    where: str, keys: Sequence[str], fingerprints: Set[str], is_pinned: bool
) -> str:
    """Return the problem of a node whose keys are not among the vouched fingerprints."""
    verb = "answered"
    if is_pinned:
        verb = "pinned"
    return (
        f"{where}: its host key is not one of those vouched for"
        f" ({', '.join(sorted(fingerprints))}); {verb} is"
        f" {', '.join(map(fingerprint, keys))}. Compare on its own console, then correct"
        " the inventory"
    )


def _describe_change(
    node: Mapping[str, Any], where: str, pinned: Set[str], scanned: Set[str], source: str
) -> str:
    """Return the problem of a node that answers with another key than the pinned one."""
    old = ", ".join(sorted(map(fingerprint, pinned)))
    new = ", ".join(sorted(map(fingerprint, scanned)))
    return (
        f"{where}: HOST KEY CHANGED: pinned is {old}, it answers with {new}. An impostor, or it was"
        " installed again: compare on its own console with ssh-keygen -lf"
        " /etc/ssh/ssh_host_ed25519_key.pub; if the new one is right, remove the old one with"
        f" ssh-keygen -R '{host_pattern(node['host'], node['port'])}' -f {source} and repeat"
    )


def judge_nodes(
    nodes: Sequence[Mapping[str, Any]],
    files: Sequence[str],
    run_command: RunCommand,
    timeout: int = 5,
    parallel: int = 16,
) -> dict[str, Verdict]:
    """Judge all nodes and return {name: verdict of judge}.

    `parallel` scans run at a time. timeout: seconds of each.
    """

    def judge_node(node: Mapping[str, Any]) -> Verdict:
        """Return the verdict of one node."""
        pinned, authority, source = pinned_keys(run_command, files, node["host"], node["port"])
        scanned, words = scan_keys(run_command, node["host"], node["port"], timeout)
        return judge(node, pinned, authority, scanned, source, words)

    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, parallel)) as pool:
        return {node["name"]: verdict for node, verdict in zip(nodes, pool.map(judge_node, nodes))}


def add_lines(
    text: str, nodes: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return the text of a known_hosts file with the vouched keys of all nodes added.

    Lines that are there stay as they are.
    """
    present = text.splitlines()
    new = []
    for node in nodes:
        verdict = verdicts[node["name"]]
        if verdict["status"] == "vouched":
            host = host_pattern(node["host"], node["port"])
            new += [f"{host} {key}" for key in verdict["keys"]]
    new = [line for line in new if line not in present]
    if new and text and not text.endswith("\n"):
        text += "\n"
    return text + "".join(line + "\n" for line in new)


def read_text(path: str) -> str:
    """Return the text of a file, '' where it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as handle:
            return handle.read()
    except FileNotFoundError:
        return ""


def write_text(path: str, text: str) -> None:
    """Write a new file."""
    with open(path, "x", encoding="utf-8", errors="surrogateescape") as handle:
        handle.write(text)
