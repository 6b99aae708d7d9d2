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


def compile_mesh(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the texts of a mesh and whether all nodes have it. Refuse with every problem."""
    described, expected = len(arguments["nodes"]), len(arguments["names"])
    if described != expected:
        raise MeshRefused(
            "trust.undescribed", f"every node has to describe itself: {described} of {expected} did"
        )
    nodes = known_nodes.merge_nodes(
        arguments["names"], arguments["inventory"], arguments["nodes"], arguments["known_hosts"],
        commands.run_program,
    )  # fmt: skip
    compiled, problems = ssh_config.compile_mesh(
        nodes, arguments["site"], arguments["ca_public_key"], arguments["directory"],
        arguments["extra_from"], arguments["shared_home"], arguments["validity"],
        arguments["renew_before"], arguments["gate"],
    )  # fmt: skip
    if problems:
        head = "The nodes cannot be made to trust each other:"
        lines = [head, *(f"  {problem.text}" for problem in problems)]
        code = problems[0].code
        raise MeshRefused(code, "\n".join(lines))
    pattern = primitives.line_pattern(arguments["site"])
    return {"ready": _is_ready(compiled, arguments), "pattern": pattern, **compiled}


def _is_ready(compiled: dict[str, Any], arguments: dict[str, Any]) -> bool:
    """Return whether every node has what was compiled, for long enough."""
    before = ssh_config.span_seconds(arguments["renew_before"])
    most = ssh_config.span_seconds(arguments["validity"]) + primitives.CLOCK_SLACK_SECONDS
    if len(arguments["states"]) != len(arguments["nodes"]):
        return False
    return ssh_config.is_ready(compiled, arguments["states"], time.time(), before, most)
