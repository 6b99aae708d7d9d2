# SPDX-License-Identifier: Apache-2.0
"""Way of a tree to the nodes that lack it: through a chain of them, or from the controller to each.

Pure. A chain takes the time of one copy and a little more for each node, and a star that of as many
copies as there are nodes. A star needs no login from node to node, so small trees go that way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Bytes from which on a tree goes through a chain.
CHAIN_BYTES = 8 << 20
STALL_SECONDS, STALL_STEP_SECONDS, MOST_STALL_SECONDS = 20, 10, 600
# Nodes that one node asks before the controller sends it what it lacks.
MOST_SOURCES = 8


def sources_of(node: str, size: int, chain: Sequence[str], holders: Sequence[str]) -> list[str]:
    """Return the nodes that a node asks for a tree, in this order; [] for the controller alone.

    size: bytes of the tree. chain: the nodes that lack it, in the order in which it goes through
    them. holders: nodes that hold it already. The node just before comes first. The first node of
    the chain has holders alone.
    """
    if size < CHAIN_BYTES or node not in chain:
        return []
    before = list(reversed(chain[: list(chain).index(node)]))
    return [*before, *holders][:MOST_SOURCES]


def stall_seconds(node: str, chain: Sequence[str]) -> int:
    """Return the seconds after which a node leaves a source without progress.

    Each node waits longer than the one before, so that the one nearest to a break repairs the chain
    for all after it.
    """
    position = list(chain).index(node)
    return min(STALL_SECONDS + STALL_STEP_SECONDS * position, MOST_STALL_SECONDS)


def missing_names(entries: Mapping[str, Any], ranges: Sequence[Sequence[int]]) -> str:
    """Return rsync's list of the files at these places of a manifest's sorted paths.

    ranges: (first, last), ascending. Only the places come from a node. Those that do not exist, or
    come again, are passed over.
    """
    paths, names, after = sorted(entries), [], 0
    for first, last in ranges:
        # rsync takes '#' and ';' at the start of a line for a comment.
        names += [f"./{path}\n" for path in paths[max(first, after) : last + 1]]
        after = max(after, last + 1)
    return "".join(names)


def synchronize_arguments(tree: Mapping[str, Any], names: str, staging: str) -> dict[str, Any]:
    """Return the arguments of ansible.posix.synchronize that send a tree from here.

    names: path of the list of files. staging: where it is sent to.
    """
    return {
        "src": tree["source"] + "/",
        "dest": staging + "/",
        "archive": False,
        "links": True,
        # Of data with links that lead out of it. Its manifest has their contents as files.
        "copy_links": bool(tree.get("follow")),
        "perms": True,
        "times": True,
        "partial": True,
        # Each file has its name as soon as it is there: the next node waits for it.
        "delay_updates": False,
        "use_ssh_args": True,
        "verify_host": True,
        # A file gets the mode that it has in the end: it may be that of another tree, too.
        "rsync_opts": [f"--files-from={names}", "--chmod=Du+rwX,Fa-w"],
    }
