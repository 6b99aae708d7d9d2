# SPDX-License-Identifier: Apache-2.0
"""Messages about logs that a node keeps, and about logs that differ from a node's."""

from __future__ import annotations

from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_bytes

from ..config import quota

SHOWN_NAMES = 5


def describe_left(node: str, sizes: dict[str, int], bound: str, files: int) -> str:
    """Return the warning about files that a bound leaves on their node."""
    names = ", ".join(sorted(sizes)[:SHOWN_NAMES])
    if len(sizes) > SHOWN_NAMES:
        names += ", ..."
    total, most = (
        format_bytes(sum(sizes.values())),
        format_bytes(quota.Quota(bound).bytes),
    )
    return printable(
        f"{node}: {len(sizes)} log files ({total}) stay on the node: a run may copy {most} and"
        f" {files} files of each node (trainyard_collect_bytes, _files): {names}"
    )


def describe_mismatches(mismatches: list[dict[str, Any]]) -> str:
    """Return the message about files that are not what their nodes have."""
    texts = list_problems(mismatches, {})
    return printable(
        f"logs on the controller differ from their nodes': {'; '.join(texts)}; collect again",
        limit=20_000,
    )


def list_problems(mismatches: list[dict[str, Any]], refused: dict[str, str]) -> list[str]:
    """Return one text per file that does not match, and per node whose answer is not valid."""
    texts = [f"{item['node']}: {item['file']}: {item['problem']}" for item in mismatches]
    texts += [f"{node}: {reason}" for node, reason in refused.items()]
    return [printable(text) for text in texts]
