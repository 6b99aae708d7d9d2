# SPDX-License-Identifier: Apache-2.0
"""The site's certificate authority on the controller."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives

from . import authority

Given = dict[str, Any]
MOST_FINGERPRINTS = 100  # of those that a node says it holds


def keep_authority(given: Given, write: bool, by: str) -> dict[str, Any]:
    """Return the result for an authority that is to be there."""
    folder = given["directory"]
    taken = authority.read_journal(folder)["taken_back"]
    out = [text for text in taken_back_texts(taken) if text.split()[0] in given["nodes"]]
    if out:
        raise authority.AuthorityError("\n".join([*out, "Or take it out of the inventory."]))
    refuse_foreign(given, by)
    if write:
        with authority.lock(folder):
            last, journal, changed = authority.provide_key(
                folder, given["site"], given["public_key"] or "", by, time.time(),
                commands.run_program, given["rotate"],
            )  # fmt: skip
        key = last["public_key"]
    else:
        last, journal, key = _foresee(given)
        changed = not key or given["rotate"]
    return {
        "changed": changed,
        "public_key": key,
        "authority": last,
        "own": [item["fingerprint"] for item in journal["authorities"]],
        "taken_back": taken,
        "texts": taken_back_texts(taken),
    }


def take_nodes(given: Given, write: bool, by: str) -> dict[str, Any]:
    """Take a node back and others in, as the arguments say."""
    folder, name = given["directory"], given["take_back"]
    if name and not _may_be_taken_back(given):
        known = ", ".join(given["known"])
        raise authority.AuthorityError(
            f"{name!r} is not a node of this site, and nothing was signed for it; nodes: {known}"
        )
    taken = authority.read_journal(folder)["taken_back"]
    changed = bool(name or given["take_in"])
    if changed and write:
        with authority.lock(folder):
            changed = bool(authority.take_in(folder, given["take_in"]))
            changed = bool(name and authority.take_back(folder, name, by, time.time())) or changed
            taken = authority.read_journal(folder)["taken_back"]
    return {"changed": changed, "taken_back": taken, "texts": taken_back_texts(taken)}


def taken_back_texts(taken: dict[str, dict[str, Any]]) -> list[str]:
    """Return a sentence for each node that was taken back."""
    texts = []
    for name, item in sorted(taken.items()):
        when = time.strftime("%Y-%m-%d %H:%M", time.gmtime(item.get("since") or 0))
        texts.append(
            f"{name} was taken back by {item.get('by')} ({when} UTC) and is not trusted; to take it"
            f" in: playbooks/trust.yml -e take_in={name}"
        )
    return texts


def refuse_foreign(given: Given, by: str) -> None:
    """Fail where nodes hold another controller's authority of this site.

    It is called before anything is made.
    """
    journal, keys = authority.read_journal(given["directory"]), []
    if given["public_key"]:
        keys.append(authority.read_public_key(given["public_key"]))
    keys.append(authority.own_key(given["directory"], commands.run_program))
    journal["authorities"] = journal["authorities"] + [
        {"fingerprint": primitives.fingerprint(key)} for key in keys if key
    ]
    texts = authority.describe_foreign(journal, _held_by_nodes(given["nodes"]))
    if texts and not given["replace"]:
        mine = (journal["authorities"] or [{"fingerprint": "none yet"}])[-1]["fingerprint"]
        head = (
            "Another controller's authority is in use, and nothing was changed; the authority here"
            f" ({by}): {mine}"
        )
        tail = (
            "Copy that controller's trainyard_state_dir here; or give this site another"
            " trainyard_site; or replace that authority, which then works no more from there:"
            " playbooks/trust.yml -e replace_ca=true"
        )
        raise authority.AuthorityError("\n".join([head, *(f"  {text}" for text in texts), tail]))


def _foresee(given: Given) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return (newest authority, journal, public key) as they are. The key may be empty."""
    journal = authority.read_journal(given["directory"])
    last = (journal["authorities"] or [{}])[-1]
    key = last.get("public_key", "")
    if given["public_key"]:
        key = authority.read_public_key(given["public_key"])
    return last, journal, key


def _may_be_taken_back(given: Given) -> bool:
    name = given["take_back"]
    if not authority.NAME.match(name):
        return False
    return name in given["known"] or bool(authority.signed_files(given["directory"], name))


def _held_by_nodes(nodes: dict[str, Any]) -> dict[str, tuple[list[str], Any]]:
    """Return each node's fingerprints of authorities, and the authority that it recorded."""
    known = {}
    for name, pair in nodes.items():
        held, recorded = [*pair, None, None][:2]
        found = (held or {}).get("authorities")
        if not isinstance(found, list):
            found = []
        known[name] = ([str(item) for item in found][:MOST_FINGERPRINTS], recorded)
    return known
