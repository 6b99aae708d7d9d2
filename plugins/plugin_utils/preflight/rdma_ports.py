# SPDX-License-Identifier: Apache-2.0
"""The RDMA ports and GIDs that a plan's variables choose, compared with the nodes'.

NCCL's manual (Environment Variables): NCCL_IB_HCA chooses adapters and ports, NCCL_IB_GID_INDEX is
the index of the GID that RoCE uses. Untested on such hardware.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import (
    Finding,
    finding,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import gpu_links

from .forced_interfaces import match_names


def chosen(text: str, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the ports that NCCL_IB_HCA chooses.

    text: '' for all. A list of ports to leave out takes whole adapters out, so that no port is
    blamed that NCCL may not use.
    """
    if not text:
        return list(rows)
    sign = text[: len(text) - len(text.lstrip("^="))]
    words = [word.strip().partition(":")[::2] for word in text[len(sign) :].split(",")]
    if sign.startswith("^"):
        names = match_names(
            sign + ",".join(name for name, _port in words), [row["name"] for row in rows]
        )
        return [row for row in rows if row["name"] in names]
    return [row for row in rows if any(_means(row, sign == "=", *word) for word in words)]


def _means(row: Mapping[str, Any], exact: bool, name: str, port: str) -> bool:
    """Return whether one word of NCCL_IB_HCA means a port."""
    if not name or (port and port != row["port"]):
        return False
    if exact:
        return bool(row["name"] == name)
    return bool(row["name"].startswith(name))


def judge(plan: Mapping[str, Any], facts: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return findings about the RDMA ports of a plan for several nodes with GPUs."""
    env = plan["env"]
    uses = plan["accelerator"] == "gpu" and len(plan["nodes"]) > 1
    findings: list[Finding] = []
    if not uses or env.get("NCCL_IB_DISABLE") == "1":
        return findings
    for node in plan["nodes"]:
        state = facts[node["name"]].get("devices") or {}
        rows = chosen(env.get("NCCL_IB_HCA", ""), state.get("adapters") or [])
        active = [row for row in rows if "ACTIVE" in row["state"]]
        if env.get("NCCL_IB_HCA") and not env["NCCL_IB_HCA"].startswith("^"):
            findings += _down_findings(node["name"], env["NCCL_IB_HCA"], rows, active)
        findings += _gid_findings(node["name"], env.get("NCCL_IB_GID_INDEX", ""), active)
    return findings


def _down_findings(
    name: str, text: str, rows: Sequence[Mapping[str, Any]], active: Sequence[Mapping[str, Any]]
) -> list[Finding]:
    """Return the finding of chosen ports that are not active, where others are.

    If none is active, the network's check says so (forced_interfaces.judge_adapters).
    """
    down = [row for row in rows if row not in active]
    if not active or not down:
        return []
    problem = (
        f"NCCL_IB_HCA={text} also means ports that are not active:"
        f" {', '.join(_label(row) for row in down)}; NCCL goes on with {len(active)} of {len(rows)}"
    )
    remedy = "see `ibstat` and the cable; or take the port out of NCCL_IB_HCA"
    return [finding("interface.rdma_port_down", problem, remedy, name, "warn")]


def _gid_findings(name: str, text: str, active: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """Return the finding of RoCE ports without a GID at the plan's index."""
    roce = [row for row in active if row["link_layer"] == "Ethernet" and row["listed"]]
    if not text.isdecimal() or not roce:
        return []
    index = int(text)
    empty = [row for row in roce if _is_empty(row, index)]
    if not empty:
        return []
    level = "warn"
    if len(empty) == len(active):
        level = "stop"
    row = empty[0]
    shown = ", ".join(
        f"{place} ({_words(row['gids'][place])})" for place in sorted(row["gids"], key=int)[:8]
    )
    problem = (
        f"NCCL_IB_GID_INDEX={index}: no GID at this index of"
        f" {', '.join(port['name'] + ':' + port['port'] for port in empty[:8])};"
        f" {row['name']}:{row['port']} has {shown or 'none'}"
    )
    remedy = (
        "take NCCL_IB_GID_INDEX out of trainyard_env and the job's env (NCCL 2.21 and later find"
        " it), or name the index of RoCE v2 with the fabric's address: show_gids"
    )
    return [finding("interface.gid_empty", problem, remedy, name, level)]


def _is_empty(row: Mapping[str, Any], index: int) -> bool:
    """Return whether a port certainly has no GID at an index. Not all of a long table is read."""
    return str(index) not in row["gids"] and (
        index < gpu_links.MOST_GIDS or row["listed"] <= gpu_links.MOST_GIDS
    )


def _words(gid: Mapping[str, Any]) -> str:
    return " ".join(text for text in (gid["type"], gid["ndev"], gid["gid"]) if text)


def _label(row: Mapping[str, Any]) -> str:
    return f"{row['name']}:{row['port']} ({row['state'] or 'state unknown'})"
