#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

DOCUMENTATION = r"""
---
module: mesh_authority
short_description: Keep the site's certificate authority on the controller
description:
  - Runs on the controller, once for a site. Makes the authority's key pair, or takes the public key of one in an agent or on a token, and keeps the
    journal of it. The journal has the serial numbers, every key that the authority has had, and the nodes that were taken back.
  - With O(state=absent) it removes the directory, and refuses one that holds anything else.
version_added: "0.1.0"
author: Trainyard
options:
  directory:
    description: Directory of the authority on the controller.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  state:
    description: Whether there is an authority. V(noted) makes none, and only takes nodes back and in.
    type: str
    choices: [present, noted, absent]
    default: present
  public_key:
    description: Path of a public key whose private half is in an agent or on a token. Empty for a key pair in O(directory).
    type: path
  nodes:
    description:
      - RV(mesh_node#module:held) and C(state.authority) of every node, as a pair. An authority of this site that is not one of this controller's
        is refused, before a key is made or changed.
    type: dict
    default: {}
  replace:
    description: Replace another controller's authority instead.
    type: bool
    default: false
  rotate:
    description: Make a new key pair. The former one stays known as this site's own, and its private half is removed.
    type: bool
    default: false
  take_back:
    description: Name of a node that is no longer trusted. What was signed for it is removed, and it gets no certificate again.
    type: str
    default: ""
  known:
    description: Names that may be taken back. Besides them, nodes for which something was signed may be.
    type: list
    elements: str
    default: []
  take_in:
    description: Names of nodes that were taken back and are trusted again.
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: full, description: Writes nothing; an authority that is not there yet has an empty public key.}
"""

EXAMPLES = r"""
- name: Make the site's certificate authority
  mesh_authority:
    directory: "{{ trainyard_state_dir }}/ca"
    site: "{{ trainyard_site }}"
  delegate_to: localhost
  run_once: true
  register: mesh_authority
"""

RETURN = r"""
public_key:
  description: The authority's public key; empty where it was not made yet, as in a check of a fresh site.
  returned: with O(state=present)
  type: str
authority:
  description: The authority's C(fingerprint), C(public_key), C(by) (user@controller) and C(since) (unix seconds).
  returned: with O(state=present)
  type: dict
own:
  description: Fingerprints of all keys that this authority has had.
  returned: with O(state=present)
  type: list
  elements: str
taken_back:
  description: Nodes that were taken back, each with C(by) and C(since).
  returned: with O(state=present) and O(state=noted)
  type: dict
texts:
  description: The same as sentences, with the remedy.
  returned: with O(state=present) and O(state=noted)
  type: list
  elements: str
"""

import getpass
import os
import socket
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import authority, primitives

SPEC = {
    "directory": {"type": "path", "required": True},
    "site": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "noted", "absent"], "default": "present"},
    "public_key": {"type": "path", "no_log": False},
    "nodes": {"type": "dict", "default": {}},
    "replace": {"type": "bool", "default": False},
    "rotate": {"type": "bool", "default": False},
    "take_back": {"type": "str", "default": ""},
    "known": {"type": "list", "elements": "str", "default": []},
    "take_in": {"type": "list", "elements": "str", "default": []},
}


def taken_back_texts(taken):
    """Return a sentence for every node that was taken back."""
    text = (
        "%s was taken back by %s (%s UTC) and is not trusted; to take it in: playbooks/trust.yml -e"
        " take_in=%s"
    )
    stamp = {
        name: time.strftime("%Y-%m-%d %H:%M", time.gmtime(item.get("since") or 0))
        for name, item in taken.items()
    }
    return [
        text % (name, item.get("by"), stamp[name], name) for name, item in sorted(taken.items())
    ]


def noted(given, check, by, now):
    """Take a node back and others in, as was asked for. Return the module's result."""
    folder, name = given["directory"], given["take_back"]
    if name and (
        not authority.NAME.match(name)
        or not (name in given["known"] or authority.signed_files(folder, name))
    ):
        known = ", ".join(given["known"])
        raise authority.AuthorityError(
            f"{name!r} is not a node of this site, and nothing was signed for it; nodes: {known}"
        )
    taken, changed = authority.read_journal(folder)["taken_back"], bool(name or given["take_in"])
    if changed and not check:
        with authority.locked(folder):
            changed = bool(authority.take_in(folder, given["take_in"]))
            changed = bool(name and authority.take_back(folder, name, by, now)) or changed
            taken = authority.read_journal(folder)["taken_back"]
    return {"changed": changed, "taken_back": taken, "texts": taken_back_texts(taken)}


def refuse_foreign(given, by):
    """Fail where nodes hold another controller's authority of this site. Called before anything is
    made.
    """
    journal = authority.read_journal(given["directory"])
    keys = [authority.read_public_key(given["public_key"])] if given["public_key"] else []
    keys += [key for key in [authority.own_key(given["directory"], primitives.run_program)] if key]
    journal["authorities"] = journal["authorities"] + [
        {"fingerprint": primitives.fingerprint(key)} for key in keys
    ]
    nodes = {}
    for name, pair in given["nodes"].items():
        held, recorded = (list(pair) + [None, None])[:2]
        found = (held or {}).get("authorities")
        nodes[name] = (
            [str(item) for item in found][:100] if isinstance(found, list) else [],
            recorded,
        )
    texts = [] if given["replace"] else authority.foreign(journal, nodes)
    if texts:
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
        raise authority.AuthorityError("\n".join([head] + ["  " + text for text in texts] + [tail]))


def present(given, check, by, now):
    """Return the module's result for an authority that is to be there."""
    folder = given["directory"]
    taken = authority.read_journal(folder)["taken_back"]
    out = [text for text in taken_back_texts(taken) if text.split()[0] in given["nodes"]]
    if out:
        raise authority.AuthorityError("\n".join([*out, "Or take it out of the inventory."]))
    refuse_foreign(given, by)
    if check:
        journal = authority.read_journal(folder)
        last = journal["authorities"][-1] if journal["authorities"] else {}
        key = (
            authority.read_public_key(given["public_key"])
            if given["public_key"]
            else last.get("public_key", "")
        )
        changed = not key or given["rotate"]
    else:
        with authority.locked(folder):
            last, journal, changed = authority.settle(
                folder,
                given["site"],
                given["public_key"] or "",
                by,
                now,
                primitives.run_program,
                given["rotate"],
            )
        key = last["public_key"]
    own = [item["fingerprint"] for item in journal["authorities"]]
    return {
        "changed": changed,
        "public_key": key,
        "authority": last,
        "own": own,
        "taken_back": taken,
        "texts": taken_back_texts(taken),
    }


def main():
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    given = module.params
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    try:
        if given["state"] != "absent":
            module.exit_json(
                **(present if given["state"] == "present" else noted)(
                    given, module.check_mode, by, time.time()
                )
            )
        gone = (
            os.path.isdir(given["directory"])
            if module.check_mode
            else authority.remove(given["directory"])
        )
        module.exit_json(changed=gone)
    except (authority.AuthorityError, OSError) as problem:
        module.fail_json(msg=str(problem))


if __name__ == "__main__":
    main()
