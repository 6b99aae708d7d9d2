# SPDX-License-Identifier: Apache-2.0
"""The site's certificate authority on the controller."""

from __future__ import annotations

import time
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives

from . import authority

Arguments = dict[str, Any]
MOST_FINGERPRINTS = 100  # of those that a node says it holds


def keep_authority(arguments: Arguments, write: bool, by: str) -> dict[str, Any]:
    """Return the result for an authority that is to be there."""
    folder = arguments["directory"]
    taken = authority.read_journal(folder)["taken_back"]
    out = [text for text in taken_back_texts(taken) if text.split()[0] in arguments["nodes"]]
    if out:
        raise authority.AuthorityError("\n".join([*out, "Or take it out of the inventory."]))
    refuse_foreign(arguments, by)
    if write:
        with authority.lock(folder):
            last, journal, changed = authority.provide_key(
                folder, arguments["site"], arguments["public_key"] or "", by, time.time(),
                commands.run_program, arguments["rotate"],
            )  # fmt: skip
        key = last["public_key"]
    else:
        last, journal, key = _foresee(arguments)
        changed = not key or arguments["rotate"]
    return {
        "changed": changed,
        "public_key": key,
        "authority": last,
        "own": [item["fingerprint"] for item in journal["authorities"]],
        "taken_back": taken,
        "texts": taken_back_texts(taken),
    }


def take_nodes(arguments: Arguments, write: bool, by: str) -> dict[str, Any]:
    """Take a node back and others in, as the arguments say."""
    folder, name = arguments["directory"], arguments["take_back"]
    if name and not _may_be_taken_back(arguments):
        known = ", ".join(arguments["known"])
        raise authority.AuthorityError(
            f"{name!r} is not a node of this site, and nothing was signed for it; nodes: {known}"
        )
    taken = authority.read_journal(folder)["taken_back"]
    changed = bool(name or arguments["take_in"])
    if changed and write:
        with authority.lock(folder):
            changed = bool(authority.take_in(folder, arguments["take_in"]))
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
            f" in: ansible-playbook playbooks/trust.yml -e take_in={name}"
        )
    return texts


def refuse_foreign(arguments: Arguments, by: str) -> None:
    """Fail where nodes hold another controller's authority of this site.

    It is called before anything is made.
    """
    journal, keys = authority.read_journal(arguments["directory"]), []
    if arguments["public_key"]:
        keys.append(authority.read_public_key(arguments["public_key"]))
    keys.append(authority.own_key(arguments["directory"], commands.run_program))
    journal["authorities"] = journal["authorities"] + [
        {"fingerprint": primitives.fingerprint(key)} for key in keys if key
    ]
    texts = authority.describe_foreign(journal, _held_by_nodes(arguments["nodes"]))
    if texts and not arguments["replace"]:
        mine = (journal["authorities"] or [{"fingerprint": "none yet"}])[-1]["fingerprint"]
        head = (
            "Another controller's authority is in use, and nothing was changed; the authority here"
            f" ({by}): {mine}"
        )
        tail = (
            "Copy that controller's trainyard_state_dir here; or give this site another"
            " trainyard_site; or replace that authority, which then works no more from there:"
            " ansible-playbook playbooks/trust.yml -e replace_ca=true"
        )
        raise authority.AuthorityError("\n".join([head, *(f"  {text}" for text in texts), tail]))


def _foresee(arguments: Arguments) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return (newest authority, journal, public key) as they are. The key may be empty."""
    journal = authority.read_journal(arguments["directory"])
    last = (journal["authorities"] or [{}])[-1]
    key = last.get("public_key", "")
    if arguments["public_key"]:
        key = authority.read_public_key(arguments["public_key"])
    return last, journal, key


def _may_be_taken_back(arguments: Arguments) -> bool:
    name = arguments["take_back"]
    if not authority.NAME.match(name):
        return False
    return name in arguments["known"] or bool(authority.signed_files(arguments["directory"], name))


def _held_by_nodes(nodes: dict[str, Any]) -> dict[str, tuple[list[str], Any]]:
    """Return each node's fingerprints of authorities, and the authority that it recorded."""
    known = {}
    for name, pair in nodes.items():
        state, recorded = [*pair, None, None][:2]
        fingerprints = (state or {}).get("authorities")
        if not isinstance(fingerprints, list):
            fingerprints = []
        known[name] = ([str(item) for item in fingerprints][:MOST_FINGERPRINTS], recorded)
    return known
