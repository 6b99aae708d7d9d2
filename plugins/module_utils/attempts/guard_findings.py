# SPDX-License-Identifier: Apache-2.0
"""What the nodes' guards found: a training that hung, a node that was lost; and what of it a
verdict may say. Pure.

guard.py writes stall.json and loss.json, guard_evidence.py what every rank did
(docs/runbooks/watchdog.md).
"""

from __future__ import annotations

# What comes home of them and of the agent's notes, in flat names as all of an attempt's files have.
_FILES = (
    ("ranks.jsonl", "ranks.{}.jsonl"),
    ("exit.json", "exit.{}.json"),
    ("stall.json", "stall.{}.json"),
    ("loss.json", "loss.{}.json"),
    ("evidence/state.json", "state.{}.json"),
    ("evidence/sockets.log", "sockets.{}.log"),
)
_STALL = ("phase", "budget", "seconds", "since", "time", "step", "last_line", "by", "ranks")
_LOSS = ("node", "how", "seconds", "since", "time", "by")
_SEEN = ("rank", "state", "state_words", "where", "wchan", "cpu", "stack_from", "why")
_NUMBERS = ("budget", "seconds", "since", "time")
PHASES = {"rendezvous": "rendezvous", "first_step": "first step", "step": "step", "evaluation": "evaluation", "checkpoint": "checkpoint",
          "teardown": "teardown"}  # fmt: skip
# Functions of Python code in which ranks wait for each other (paddle.distributed,
# mindspore.communication and what they call).
WAITS = (
    "all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "barrier", "broadcast", "alltoall", "synchronize", "wait", "_sync",
    "backward",
)  # fmt: skip
# States of a process in which it waits for nobody of its own accord (proc(5)).
_HELD = ("T", "t", "D", "Z")
FRAMES = 3


def files(node, ranks):
    """Return [(file below the attempt, its name at home)] that agent and guard may have left;
    ranks: the node's entries of plan["ranks"].
    """
    stacks = [
        ("evidence/stacks-%03d.log" % item["rank"], "stacks-%03d.%s.log" % (item["rank"], node))
        for item in ranks
    ]
    return [(name, home.format(node)) for name, home in _FILES] + stacks


def _kept(value, keys):
    value = value if isinstance(value, dict) else {}
    found = {key: value.get(key) for key in keys}
    number = all(
        isinstance(found.get(key), (int, float)) and not isinstance(found[key], bool)
        for key in _NUMBERS
        if key in keys
    )
    return found if value and number else None


def found(read):
    """Return {stall, loss, seen} of a node, each None or [] where there is none; read(name) gives a
    JSON file's value or None.
    """
    state = read("evidence/state.json")
    ranks = state.get("ranks") if isinstance(state, dict) else None
    seen = [
        {key: item.get(key) for key in _SEEN}
        for item in ranks or ()
        if isinstance(item, dict) and isinstance(item.get("rank"), int)
    ]
    for item in seen:
        item["where"] = [str(frame) for frame in item["where"] or ()][:6]
    return {
        "stall": _kept(read("stall.json"), _STALL),
        "loss": _kept(read("loss.json"), _LOSS),
        "seen": seen,
    }


def _of(asked, what):
    return {
        name: node["guard"][what]
        for name, node in asked.items()
        if (node.get("guard") or {}).get(what)
    }


def stalled(asked):
    """Return (node, stall) of the one that was noticed first, or None; asked: {node: its findings}."""
    every = _of(asked, "stall")
    return min(every.items(), key=lambda item: item[1]["time"]) if every else None


def odd(asked):
    """Return (rank, node, words) of the one rank that does not wait where the others do, or None
    where none differs or more than one does.
    """
    seen = [dict(item, node=name) for name, items in _of(asked, "seen").items() for item in items]
    held = [item for item in seen if item["state"] in _HELD]
    if held:
        return (
            (held[0]["rank"], held[0]["node"], "is {}".format(held[0]["state_words"]))
            if len(held) == 1
            else None
        )
    if len(seen) < 2 or not all(item["where"] for item in seen):
        return None
    waiting = [
        item
        for item in seen
        if any(word in frame.split(" (")[0] for frame in item["where"] for word in WAITS)
    ]
    rest = [item for item in seen if item not in waiting]
    if not waiting or len(rest) != 1:
        places = {}
        for item in seen:
            places.setdefault(tuple(item["where"][:FRAMES]), []).append(item)
        most = max(places.values(), key=len)
        rest = (
            [item for item in seen if item not in most]
            if 2 * len(most) > len(seen) and len(most) > 1
            else []
        )
    if len(rest) != 1:
        return None
    return (
        rest[0]["rank"],
        rest[0]["node"],
        "does not wait where the others do: it is in {}".format(rest[0]["where"][0]),
    )


def step_words(step):
    """Return where a training was, ' after epoch 1, step 3 of 4', or ' before the first step'."""
    if not isinstance(step, dict) or not step:
        return ""
    words = ["epoch {}".format(step["epoch"])] if step.get("epoch") else []
    for key, total in (("global_step", "total_steps"), ("step", "steps")):
        if step.get(key):
            words.append(f"step {step[key]}" + (f" of {step[total]}" if step.get(total) else ""))
            break
    return " after " + ", ".join(words) if words else ""


def hang_words(node, stall):
    """Return one sentence about a stall."""
    phase = stall.get("phase")
    after = step_words(stall.get("step")) or (
        " before the first step" if phase in ("rendezvous", "first_step") else ""
    )
    text = (
        "the training hung%s: no sign of life for %.0f s in the phase %s, whose limit is %.0f s"
        " (seen by %s)"
    )
    return text % (after, stall["seconds"], PHASES.get(phase, phase), stall["budget"], node)


def lost(asked):
    """Return (nodes that were lost, sentence, mutual) or None.

    A node that is cut off says that its neighbour is gone, as that one's other neighbour says of
    it: who accuses and is accused is the one, unless there are two that accuse each other and both
    answer now; then it was what is between them (mutual).
    """
    said = _of(asked, "loss")
    if not said:
        return None
    accused = {str(loss["node"]): (by, loss) for by, loss in sorted(said.items(), reverse=True)}
    pairs = [
        name
        for name in accused
        if name in said
        and str(said[name]["node"]) in accused
        and accused[name][0] == said[name]["node"]
    ]
    if len(pairs) > 1:
        first, other = sorted(pairs)[:2]
        loss = said[first]
        return (
            [first, other],
            "{} and {} lost each other: {}".format(first, other, loss["how"]),
            True,
        )
    both = [name for name in accused if name in said]
    absent = [name for name in accused if name not in asked]
    culprits = absent or both or sorted(accused)
    if not absent and len(culprits) > 1:
        text = "%s were lost to their neighbours, and all answer now: look at what is between them"
        return sorted(culprits), text % ", ".join(sorted(culprits)), True
    name = culprits[0]
    by, loss = accused[name]
    return [name], "{} was lost: {} says that {}".format(name, by, loss["how"]), False


def halt(asked):
    """Return what a guard ended the training for, or None: {outcome, cause, nodes, rank, by, time,
    text}.

    nodes: those that were lost. rank: the one that does not wait where the others do, or None. by,
    time: whose clock says from when on nothing counts.
    """
    gone, hung = lost(asked), stalled(asked)
    if gone:
        names, text, mutual = gone
        by, loss = next(item for item in _of(asked, "loss").items() if item[1]["node"] in names)
        outcome = "failed" if mutual else "lost"
        return {
            "outcome": outcome,
            "cause": "node_lost",
            "nodes": names,
            "rank": None,
            "by": by,
            "time": loss["since"],
            "text": text,
        }
    if not hung:
        return None
    name, stall = hung
    text, differs = hang_words(name, stall), odd(asked)
    text += "; rank %d on %s %s" % differs if differs else ""
    return {
        "outcome": "failed",
        "cause": "hang",
        "nodes": [],
        "rank": differs and differs[0],
        "by": name,
        "time": stall["time"],
        "text": text,
    }


def lines(asked):
    """Return evidence lines: what each guard said and what each rank did when it was asked."""
    out = [
        hang_words(name, stall) + f" (stall.{name}.json)"
        for name, stall in _of(asked, "stall").items()
    ]
    out += [
        "{} says that {} is gone: {} (loss.{}.json)".format(name, loss["node"], loss["how"], name)
        for name, loss in _of(asked, "loss").items()
    ]
    for name, items in _of(asked, "seen").items():
        for item in items:
            cpu = (
                ""
                if not isinstance(item["cpu"], (int, float))
                else ", %.0f %% of a core" % (100 * item["cpu"])
            )
            where = (
                "in " + " < ".join(item["where"][:FRAMES])
                if item["where"]
                else "no stack: {}".format(item["why"])
            )
            out.append(
                "rank %d on %s was %s%s, %s (stacks-%03d.%s.log)"
                % (item["rank"], name, item["state_words"], cpu, where, item["rank"], name)
            )
    return out
