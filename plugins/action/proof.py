# SPDX-License-Identifier: GPL-3.0-or-later
"""Judge what nodes have proven. Documented in library/proof.py."""

from __future__ import annotations

from ansible_collections.trainyard.cluster.plugins.module_utils.base import findings
from ansible_collections.trainyard.cluster.plugins.modules.proof import DOCUMENTATION
from ansible_collections.trainyard.cluster.plugins.plugin_utils.controller_action import (
    Arguments,
    ControllerAction,
    Result,
    arguments_of,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.start import proof_verdict


class ActionModule(ControllerAction):
    """Judge the nodes' answers, and keep the proof below the site's state directory."""

    ARGUMENTS = arguments_of(DOCUMENTATION)

    def execute(self, arguments: Arguments) -> Result:
        """Return the findings, or fail with those that are in the way of a start."""
        for node, rival in arguments["rivals"].items():
            arguments["results"].setdefault(node, {})["rival"] = rival
        proof_findings = proof_verdict.judge(arguments)
        stops = findings.stops(proof_findings)
        if stops and not arguments["report"]:
            lines = (f"  {line}" for line in proof_verdict.lines_of(proof_findings))
            message = "\n".join(["nothing was started:", *lines])
            codes = sorted({findings.code_of(item) for item in stops})
            self.fail(message, stops=findings.short(stops), codes=codes)
        if proof_verdict.is_kept(arguments, proof_findings) and not self.check_mode:
            proof_findings = proof_verdict.keep(arguments, proof_findings)
        not_rehearsed = arguments["rehearsal"] if stops else []
        return {
            "changed": False,
            "findings": proof_findings + proof_verdict.note_skipped_rehearsal(not_rehearsed),
            "lines": proof_verdict.lines_of(proof_findings),
            "not_rehearsed": not_rehearsed,
        }
