# SPDX-License-Identifier: Apache-2.0
"""The files of a mesh, from inventory, host keys and the nodes' descriptions."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.base.coded_error import CodedError
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives

from . import known_nodes, ssh_config


class MeshRefused(CodedError):
    """The reasons why nodes cannot be made to trust each other. The code is that of the first."""


def compile_mesh(given: dict[str, Any]) -> dict[str, Any]:
    """Return the texts of a mesh and whether all nodes have it. Refuse with every problem."""
    described, expected = len(given["nodes"]), len(given["names"])
    if described != expected:
        raise MeshRefused(
            "trust.undescribed", f"every node has to describe itself: {described} of {expected} did"
        )
    nodes = known_nodes.merge_nodes(
        given["names"], given["inventory"], given["nodes"], given["known_hosts"],
        commands.run_program,
    )  # fmt: skip
    compiled, problems = ssh_config.compile_mesh(
        nodes, given["site"], given["ca_public_key"], given["directory"], given["extra_from"],
        given["shared_home"], given["validity"], given["renew_before"], given["gate"],
    )  # fmt: skip
    if problems:
        head = "The nodes cannot be made to trust each other:"
        lines = [head, *(f"  {problem.text}" for problem in problems)]
        code = problems[0].code
        raise MeshRefused(code, "\n".join(lines))
    pattern = primitives.line_pattern(given["site"])
    return {"ready": _is_ready(compiled, given), "pattern": pattern, **compiled}


def _is_ready(compiled: dict[str, Any], given: dict[str, Any]) -> bool:
    """Return whether every node has what was compiled, for long enough."""
    before = ssh_config.span_seconds(given["renew_before"])
    most = ssh_config.span_seconds(given["validity"]) + primitives.CLOCK_SLACK_SECONDS
    if len(given["states"]) != len(given["nodes"]):
        return False
    return ssh_config.is_ready(compiled, given["states"], time.time(), before, most)
