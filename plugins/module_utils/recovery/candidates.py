# SPDX-License-Identifier: Apache-2.0
"""Who of the site could take part in the next attempt of a run, by what every node answered when it
was looked at. Pure.
"""

from __future__ import annotations

from ..config import spares
from . import node_replacement

SILENT = "it does not answer"


def silent(looks, nodes):
    """Return {node: 'unreachable'} of the attempt's nodes that do not answer. Where no node of the
    site answers, it may be the controller: nobody.
    """
    quiet = [name for name, look in looks.items() if look.get("unreachable")]
    return (
        {name: "unreachable" for name in nodes if name in quiet} if len(quiet) < len(looks) else {}
    )


def unfit(names, given):
    """Return {node: why} of those that cannot take part now.

    names: who is asked about. given: {run_id, nodes (of the newest attempt), site, job, looks
    {node: what library/node_held.py returned there, or how that failed}}.
    """
    known = {node["name"]: node for node in given["site"]["nodes"] + given["site"]["spares"]}
    like = next((known[name] for name in given["nodes"] if name in known), None)
    found = {}
    for name in names:
        look, held = given["looks"].get(name), []
        if look is not None:
            said = look.get("held")
            if said is not None and not (
                isinstance(said, list) and all(isinstance(item, dict) for item in said)
            ):
                look = {"msg": "its answer is not valid"}
            held = [
                item
                for item in look.get("held") or ()
                if not (item.get("mine") and item.get("run") == given["run_id"])
            ]
        if name not in known:
            found[name] = "it is no longer in the inventory"
        elif look is None:
            found[name] = "it was not asked (--limit)"
        elif look.get("unreachable"):
            found[name] = f"{SILENT}{_said(look)}"
        elif "held" not in look:
            found[name] = f"it cannot say whether it is free{_said(look)}"
        elif held:
            found[name] = "it is held by {} of the user {}".format(
                held[0].get("run") or held[0].get("unit"),
                held[0].get("user"),
            )
        else:
            why = spares.unfit(given["job"], known[name], like) if like else None
            found.update({name: why} if why else {})
    return found


def _said(look):
    text = (str(look.get("msg") or "").strip().splitlines() or [""])[-1]
    return ": {}".format(text.rpartition("via ssh: ")[2].strip()[:200]) if text else ""


def choose(given, failed, now):
    """Return what replacing.choose does, with `places`. Spares are the group's; where a place's
    node is no longer in the inventory, also the trainers that the run does not use. given: as
    `unfit` has it, with places and cooldown_minutes. failed: failures.read's.
    """
    site, current = given["site"], given["nodes"]
    places = given["job"].get("places") or given["places"] or current
    trainers, kept = ([node["name"] for node in site[part]] for part in ("nodes", "spares"))
    if any(name not in trainers + kept for name in places):
        # who was taken out of the inventory was replaced there
        kept += [name for name in trainers if name not in places]
    found = node_replacement.choose(
        places, current, failed, unfit(list(dict.fromkeys(current + places + kept)), given), kept, given["job"].get("min_nodes"),
        60.0 * given["cooldown_minutes"], now, trainers,
    )  # fmt: skip
    return dict(found, places=places)
