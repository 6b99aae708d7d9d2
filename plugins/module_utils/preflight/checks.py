# SPDX-License-Identifier: Apache-2.0
"""All that is judged of the nodes before anything starts, in one list of findings. Pure; each
subject has its own module.
"""

from __future__ import annotations

from ..base import findings
from ..gate import isolation
from ..inputs import placement
from ..mesh import authority, certificate_term
from ..plan import compiler, readiness
from . import (
    devices,
    interfaces,
    machine,
    orphans,
    ports,
    software,
)

# Each judges {node name: facts}: (nodes as read_site gives them, facts, what the site allows) ->
# findings. None of them needs a plan, so that they are said even where no plan can be made. They
# pass over what a probe did not ask.
SUBJECTS = {
    "machines": machine,
    "devices": devices,
    "installed": software,
    "orphans": orphans,
    "placement": placement,
}


# What keeps things from being brought to the nodes (sync.yml): a node that does not answer, no
# plan, one directory under two names, no room, a Python that differs, what root or another run has
# in hand (`ready`). Every other stop is about a start alone: a port or device that a colleague's
# training has is free again when this job's turn comes, and its code and data can lie there by
# then.
BRINGING = (
    "reach",
    "answer",
    "plan",
    "machine",
    "placement",
    "disk",
    "inodes",
    "environment",
    "ready",
)


def of_bringing(found):
    """Return the findings as they count where things are brought and nothing is started: what keeps
    only a start is warned of.
    """
    return [
        (
            dict(item, level="warn")
            if item["level"] == "stop" and item["check"] not in BRINGING
            else item
        )
        for item in found
    ]


def silent(reasons):
    """Return what is said of nodes that did not answer; reasons: {node name: the connection's own
    words}.
    """
    remedy = (
        "log in by hand with the same user and key, or take the node out; a host key that is not"
        " known yet: playbooks/trust.yml shows and pins it"
    )
    return [
        findings.finding(
            "reach", "did not answer: %s" % (text or "no reason was given"), remedy, name
        )
        for name, text in reasons.items()
    ]


def of_nodes(nodes, facts, allowed):
    """Return what is wrong with the nodes that answered."""
    heard = [node for node in nodes if node["name"] in facts]
    return [
        item
        for key, subject in SUBJECTS.items()
        for item in _apart(
            key, facts, lambda known, subject=subject: subject.judge(heard, known, allowed)
        )
    ]


def _apart(key, facts, judge):
    """Return what is judged of one subject; a node whose facts of it cannot be judged gets a
    finding of its own, and hides no other's.

    key: the subject's name in the facts. judge(facts) gives findings; it passes over a node without
    this key.
    """
    found, left = isolation.judge_apart(
        lambda names: judge(
            {name: fact if name in names else {**fact, key: None} for name, fact in facts.items()}
        ),
        facts,
    )
    remedy = (
        "look which programs of the training account start with every Python there:"
        " docs/security.md"
    )
    return found + [
        findings.finding("answer", f"what it says of its {key} cannot be judged", remedy, name)
        for name in left
    ]


def of_trust(nodes, facts, state_dir, now, report=False):
    """Return what is wrong with the mesh between the chosen nodes, and with report how long it
    lasts. state_dir: what the controller keeps of the site.
    """
    names = [node["name"] for node in nodes]
    try:
        journal = authority.read_journal(authority.folder_of(state_dir)) if state_dir else {}
    except authority.AuthorityError as error:
        return [findings.finding("trust", str(error))]
    own = [item["fingerprint"] for item in journal.get("authorities", ())]
    found = certificate_term.of_taken_back(names, journal.get("taken_back", {}))
    return found + certificate_term.of_mesh(
        names, facts, now, readiness.CERTIFICATE_MARGIN, own, report
    )


def of_plan(made, facts, allowed, repair=False):
    """Return what stands between a plan and its start; see readiness.obstacles for repair."""
    found = _apart(
        "ports", facts, lambda known: ports.judge(made, known, allowed)
    ) + interfaces.forced(made, facts)
    return found + [_about(text, facts) for text in readiness.obstacles(made, facts, repair)]


def _about(text, facts):
    """Return the finding of a sentence that begins with the node it is about, and may end with its
    remedy.
    """
    name = next((name for name in facts if text.startswith((name + ": ", name + " "))), None)
    said, _semicolon, remedy = (
        text.rpartition("; ") if "playbooks/" in text.rpartition("; ")[2] else (text, "", "")
    )
    return findings.finding(
        "ready", said[len(name) :].lstrip(": ") if name else said, remedy, name or ()
    )


# What is not ready and is brought by whoever starts, in words.
BROUGHT = {
    "trust": "the passwordless SSH between the nodes",
    "environment": "the Python environment",
    "code": "code",
    "data": "data",
    "weights": "weights",
    "checkpoints": "the checkpoint to resume from",
}


def of_todo(todo, found):
    """Return what train.yml brings by itself before it starts; check.yml changes nothing and only
    says so.

    found: the findings so far; an environment that somebody has changed stops instead.
    """
    remedy = "train.yml brings it before the start, sync.yml brings it without a start"
    changed = {
        name
        for item in findings.stops(found)
        if item["check"] == "environment"
        for name in item["nodes"]
    }
    together = {}
    for kind, words in BROUGHT.items():
        names = [
            name for name in todo.get(kind, ()) if kind != "environment" or name not in changed
        ]
        if names:
            together.setdefault(tuple(names), []).append(words)
    return [
        findings.finding(
            "ready", "not there yet: {}".format(", ".join(words)), remedy, names, "note"
        )
        for names, words in together.items()
    ]


# What is not tried again while its proof is young, in words.
REMEMBERED = {
    "network": "latency, bandwidth and path MTU were proven",
    "rehearsal": "this plan was rehearsed",
}


def remembered(kept, rehearse, now):
    """Return what a check did not try, so that READY hides nothing; kept: {kind: proof or None},
    see proofs.valid. now: unix seconds.
    """
    found = []
    for kind, proof in kept.items():
        if kind == "rehearsal" and not rehearse:
            found.append(findings.finding(kind, "not rehearsed, as was asked", "", (), "note"))
        elif proof:
            remedy = f"-e preflight_{kind}_hours=0 tries it again"
            found.append(
                findings.finding(
                    kind,
                    "%s %d min ago" % (REMEMBERED[kind], (now - proof["time"]) / 60),
                    remedy,
                    (),
                    "note",
                )
            )
    return found


def unplanned(error):
    """Return why there is no plan."""
    problems = error.problems if isinstance(error, compiler.PlanError) else [str(error)]
    return [findings.finding("plan", text) for text in problems]
