# SPDX-License-Identifier: Apache-2.0
"""Report how long the mesh's certificates last, whose authority made them, and which nodes were
taken back. Pure; see findings.py.
"""

from __future__ import annotations

import time

from ..base.findings import finding
from ..base.processes import age
from ..base.sanitize import printable
from .primitives import TRUST

_SOON = f"train.yml renews it before a start; {TRUST} renews it now"


def _moment(seconds):
    """Return a time as text, '' for a value that is not one; it may come from a node."""
    number = (
        isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < 2**33
    )
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds)) if number else ""


def _authority(record):
    """Return whose authority a node's record names."""
    record = record if isinstance(record, dict) else {}
    since = _moment(record.get("since"))
    text = "{} of {}".format(record.get("fingerprint") or "unknown", record.get("by") or "unknown")
    return printable(text + (f" since {since}" if since else ""), limit=300)


def of_mesh(names, facts, now, margin, own=(), report=False):
    """Return what is found of the certificates of nodes that train together.

    names: the nodes. facts: {name: facts}. now: unix seconds. margin: a certificate is renewed when
    less than these seconds are left. own: fingerprints of this controller's authority, empty where
    it has none yet. report: for check.yml. Every other verb renews what is short before a start,
    and says no more of it.
    """
    found = []
    for name in names if len(names) > 1 else ():
        mesh = (facts.get(name) or {}).get("mesh") or {}
        until, authority = mesh.get("valid_until"), mesh.get("authority") or {}
        if not mesh.get("present") or not _moment(until):
            continue
        if own and authority.get("fingerprint") and authority["fingerprint"] not in own:
            text = (
                f"the certificates are of another controller's authority: {_authority(authority)}"
            )
            found.append(
                finding("trust", text, "docs/runbooks/trust.md, Two controllers", name, "warn")
            )
        if until <= now and report:
            found.append(
                finding(
                    "trust", f"the certificate has expired: {_moment(until)}", _SOON, name, "warn"
                )
            )
        elif until < now + margin and report:
            text = f"the certificate is valid until {_moment(until)}, for {age(until - now)} more"
            found.append(finding("trust", text, _SOON, name, "warn"))
        elif report:
            text = (
                f"the certificate is valid until {_moment(until)}; authority:"
                f" {_authority(authority)}"
            )
            found.append(finding("trust", text, "", name, "note"))
        if mesh.get("carried") and report:
            text = "an earlier line of the site stays in authorized_keys until no attempt runs"
            found.append(finding("trust", text, f"{TRUST} after that", name, "note"))
    return found


def of_taken_back(names, taken):
    """Return a stop for every chosen node that was taken back; taken: {name: {since, by}}."""
    text = "was taken back by {}, {}: no other node lets it in"
    remedy = "choose other nodes, or take it in: {} -e take_in={}"
    return [
        finding(
            "trust",
            text.format(taken[name].get("by"), _moment(taken[name].get("since"))),
            remedy.format(TRUST, name),
            name,
        )
        for name in names
        if name in taken and len(names) > 1
    ]
