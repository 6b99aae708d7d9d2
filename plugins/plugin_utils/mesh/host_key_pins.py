# SPDX-License-Identifier: Apache-2.0
"""The host keys that a site has pinned in its own known_hosts."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import run_program
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import replace_file

from . import host_keys

Node = dict[str, Any]
Verdicts = dict[str, dict[str, Any]]


class PinRefused(Exception):
    """The reason why no key was pinned."""


def nodes_of(
    hosts: dict[str, str], ports: dict[str, Any], fingerprints: dict[str, list[str]]
) -> list[Node]:
    """Return the nodes as the core wants them. Every value may be missing or empty."""
    return [
        {
            "name": name,
            "host": str(host or name),
            "port": int(ports.get(name) or 22),
            "fingerprints": list(fingerprints.get(name) or []),
        }
        for name, host in hosts.items()
    ]


def pin_keys(
    nodes: list[Node], known_hosts: str, also: list[str], timeout: int, write: bool
) -> dict[str, Any]:
    """Scan the nodes and pin the keys that a user vouched for."""
    verdicts = host_keys.judge_nodes(nodes, [known_hosts, *also], run_program, timeout)
    problems = [item["problem"] for item in verdicts.values() if item["status"] == "refused"]
    if problems:
        raise PinRefused("\n".join(["Nothing was pinned:", *(f"  {text}" for text in problems)]))
    before = host_keys.read_text(known_hosts)
    after = host_keys.add_lines(before, nodes, verdicts)
    if after != before and write:
        replace_text(known_hosts, after)
    return {
        "changed": after != before,
        "pinned": _names(verdicts, "pinned"),
        "recorded": _names(verdicts, "vouched"),
        "unknown": {
            name: [host_keys.fingerprint(key) for key in verdicts[name]["keys"]]
            for name in _names(verdicts, "unknown")
        },
        "shown": _describe_unknown(nodes, verdicts),
    }


def replace_text(path: str, text: str) -> None:
    """Write a file whole or not at all. One that is there keeps its mode."""
    mode = 0o600
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(os.stat(path).st_mode)
    replace_file(path, text.encode("utf-8", "surrogateescape"), mode, sync=False)


def _names(verdicts: Verdicts, status: str) -> list[str]:
    return [name for name, verdict in verdicts.items() if verdict["status"] == status]


def _describe_unknown(nodes: list[Node], verdicts: Verdicts) -> list[str]:
    """Return one line for each key without a vouched fingerprint."""
    unknown = set(_names(verdicts, "unknown"))
    return [
        f"{node['name']} ({host_keys.host_pattern(node['host'], node['port'])}):"
        f" {key.split()[0]} {host_keys.fingerprint(key)}"
        for node in nodes
        if node["name"] in unknown
        for key in verdicts[node["name"]]["keys"]
    ]
