# SPDX-License-Identifier: Apache-2.0
"""Report about the mesh's certificates: end, authority, nodes taken back.

Pure. See findings.py.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import (
    Finding,
    finding,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.base.units import format_duration
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh.primitives import TRUST

_SOON = f"train.yml renews it before a start; {TRUST} renews it now"


def _moment(seconds: Any) -> str:
    """Return a time as text, '' for a value that is not one.

    The value may come from a node.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        return ""
    if not 0 <= seconds < 2**33:
        return ""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def _authority(record: Any) -> str:
    """Return the text about the authority that a node's record names."""
    if not isinstance(record, dict):
        record = {}
    text = f"{record.get('fingerprint') or 'unknown'} of {record.get('by') or 'unknown'}"
    since = _moment(record.get("since"))
    if since:
        text += f" since {since}"
    return printable(text, limit=300)


def judge_mesh(
    names: Sequence[str],
    facts: Mapping[str, Mapping[str, Any]],
    now: float,
    margin: float,
    fingerprints: Sequence[str] = (),
    report: bool = False,
) -> list[Finding]:
    """Return the findings about the certificates of nodes that train together.

    names: the nodes. facts: {name: facts}. now: unix seconds. margin: a certificate is renewed when
    less than these seconds are left. fingerprints: those of this controller's authority, empty
    where it has none yet. report: for check.yml. Every other verb renews what is short before a
    start, and says no more of it.
    """
    findings: list[Finding] = []
    if len(names) < 2:
        return findings
    for name in names:
        mesh = (facts.get(name) or {}).get("mesh") or {}
        if not mesh.get("present") or not _moment(mesh.get("valid_until")):
            continue
        authority = mesh.get("authority") or {}
        if (
            fingerprints
            and authority.get("fingerprint")
            and authority["fingerprint"] not in fingerprints
        ):
            text = (
                f"the certificates are of another controller's authority: {_authority(authority)}"
            )
            remedy = "docs/runbooks/trust.md, Two controllers"
            findings.append(finding("trust.other_authority", text, remedy, name, "warn"))
        if report:
            findings += _report_term(name, mesh, authority, now, margin)
    return findings


def _report_term(
    name: str, mesh: Mapping[str, Any], authority: Mapping[str, Any], now: float, margin: float
) -> list[Finding]:
    """Return the findings about one node's certificate.

    See judge_mesh.
    """
    until = mesh["valid_until"]
    if until <= now:
        text = f"the certificate has expired: {_moment(until)}"
        findings = [finding("trust.expired", text, _SOON, name, "warn")]
    elif until < now + margin:
        rest = format_duration(until - now)
        text = f"the certificate is valid until {_moment(until)}, for {rest} more"
        findings = [finding("trust.expires_soon", text, _SOON, name, "warn")]
    else:
        text = (
            f"the certificate is valid until {_moment(until)}; authority: {_authority(authority)}"
        )
        findings = [finding("trust.valid", text, "", name, "note")]
    if mesh.get("carried"):
        text = "an earlier line of the site stays in authorized_keys until no attempt runs"
        findings.append(finding("trust.old_line_kept", text, f"{TRUST} after that", name, "note"))
    return findings


def judge_taken_back(names: Sequence[str], taken: Mapping[str, Mapping[str, Any]]) -> list[Finding]:
    """Return a stop for every chosen node that was taken back.

    taken: {name: {since, by}}.
    """
    findings: list[Finding] = []
    if len(names) < 2:
        return findings
    for name in names:
        if name in taken:
            by, since = taken[name].get("by"), _moment(taken[name].get("since"))
            text = f"was taken back by {by}, {since}: no other node lets it in"
            remedy = f"choose other nodes, or take it in: {TRUST} -e take_in={name}"
            findings.append(finding("trust.taken_back", text, remedy, name))
    return findings
