# SPDX-License-Identifier: Apache-2.0
"""Findings of the nodes' guards for a verdict: a hung training, a lost node.

The module is pure. agent/guard.py writes stall.json and loss.json, agent/stack_dump.py the state of
each rank (docs/runbooks/watchdog.md).
"""

from __future__ import annotations

import typing

from ..base import folding
from .states import Outcome

# The files of guards and agent that are fetched, with flat names as all of an attempt's files have.
_FILES = (
    ("ranks.jsonl", "ranks.{}.jsonl"),
    ("exit.json", "exit.{}.json"),
    ("stall.json", "stall.{}.json"),
    ("loss.json", "loss.{}.json"),
    ("pause.json", "pause.{}.json"),
    ("evidence/state.json", "state.{}.json"),
    ("evidence/sockets.log", "sockets.{}.log"),
    ("evidence/devices.json", "devices.{}.json"),
)
_STALL = ("phase", "budget", "seconds", "since", "time", "step", "last_line", "by", "ranks")
_LOSS = ("node", "how", "seconds", "since", "time", "by")
_PAUSE = ("seconds", "time")
_SEEN = ("rank", "state", "state_words", "where", "wchan", "cpu", "stack_from", "why")
_NUMBERS = ("budget", "seconds", "since", "time")
PHASES = {
    "rendezvous": "rendezvous",
    "first_step": "first step",
    "step": "step",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "teardown": "teardown",
}
# Functions of Python code in which ranks wait for each other (paddle.distributed,
# mindspore.communication and what they call).
WAITS = (
    "all_reduce",
    "allreduce",
    "all_gather",
    "allgather",
    "reduce_scatter",
    "barrier",
    "broadcast",
    "alltoall",
    "synchronize",
    "wait",
    "_sync",
    "backward",
)
# States in which a process does not wait for another one of its own accord (proc(5)).
_HALTED = ("T", "t", "D", "Z")
FRAMES = 3
# A node's pause explains a loss that is no more than so many seconds away, since clocks differ.
PAUSE_APART = 10.0
# A node that ended or was stopped within so many seconds of its loss had not vanished.
SOUND_SECONDS = 60.0


class Halt(typing.NamedTuple):
    """The finding for which a guard ended the training."""

    outcome: Outcome
    cause: str  # of the failure catalogue
    nodes: list[str]  # the nodes that were lost
    rank: int | None  # the rank that does not wait where the others do
    by: str  # the node whose clock `time` is of
    time: float  # unix seconds, from which on nothing counts
    text: str


def evidence_files(node, ranks):
    """Return [(file below the attempt, name on the controller)] of agent and guard.

    ranks: the node's entries of plan["ranks"]. The files need not exist.
    """
    stacks = [
        (f"evidence/stacks-{item['rank']:03d}.log", f"stacks-{item['rank']:03d}.{node}.log")
        for item in ranks
    ]
    return [(name, name_on_controller.format(node)) for name, name_on_controller in _FILES] + stacks


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _pick_fields(value, keys):
    """Return the known fields of a guard's file, None where it is not one."""
    if not isinstance(value, dict) or not value:
        return None
    fields = {key: value.get(key) for key in keys}
    if not all(_is_number(fields[key]) for key in _NUMBERS if key in keys):
        return None
    return fields


def read_findings(read):
    """Return {stall, loss, pause, seen} of a node, each None or [] where nothing was found.

    pause: the latest time for which the guard itself was not scheduled, as on a frozen node.

    read(name) returns a JSON file's value or None.
    """
    state, ranks = read("evidence/state.json"), None
    if isinstance(state, dict):
        ranks = state.get("ranks")
    entries = [
        {key: item.get(key) for key in _SEEN}
        for item in ranks or ()
        if isinstance(item, dict) and isinstance(item.get("rank"), int)
    ]
    for entry in entries:
        frames = entry["where"]
        if not isinstance(frames, list):
            frames = []
        entry["where"] = [str(frame) for frame in frames[:6]]
    return {
        "stall": _pick_fields(read("stall.json"), _STALL),
        "loss": _pick_fields(read("loss.json"), _LOSS),
        "pause": _pick_fields(read("pause.json"), _PAUSE),
        "seen": entries,
    }


def _select(answers, key):
    """Return {node: finding} of the nodes whose guard has this kind of finding."""
    return {
        name: node["guard"][key]
        for name, node in answers.items()
        if (node.get("guard") or {}).get(key)
    }


def first_stall(answers):
    """Return (node, stall) of the stall that was noticed first, or None.

    asked: {node: its findings}.
    """
    stalls = _select(answers, "stall")
    if not stalls:
        return None
    return min(stalls.items(), key=lambda item: item[1]["time"])


def find_odd_rank(answers):
    """Return (rank, node, words) of the only rank that does not wait as the others.

    Return None where none differs or more than one does.
    """
    entries = [
        dict(item, node=name) for name, items in _select(answers, "seen").items() for item in items
    ]
    halted = [item for item in entries if item["state"] in _HALTED]
    if len(halted) > 1:
        return None
    if halted:
        return halted[0]["rank"], halted[0]["node"], f"is {halted[0]['state_words']}"
    if len(entries) < 2 or not all(item["where"] for item in entries):
        return None
    differing = [item for item in entries if not _waits(item)]
    if len(differing) != 1:
        differing = _minority(entries)
    if len(differing) != 1:
        return None
    return (
        differing[0]["rank"],
        differing[0]["node"],
        f"does not wait where the others do: it is in {differing[0]['where'][0]}",
    )


def _waits(item):
    """Return whether a rank is in a function in which ranks wait for each other."""
    functions = [frame.split(" (")[0] for frame in item["where"]]
    return any(word in function for function in functions for word in WAITS)


def _minority(entries):
    """Return the ranks that are elsewhere than most, [] without such a majority."""
    groups = {}
    for item in entries:
        groups.setdefault(tuple(item["where"][:FRAMES]), []).append(item)
    largest = max(groups.values(), key=len)
    if len(largest) < 2 or 2 * len(largest) <= len(entries):
        return []
    return [item for item in entries if item not in largest]


def describe_step(step):
    """Return the position of a training, as words that go on a sentence.

    For example ' after epoch 1, step 3 of 4', and '' where no step is known.
    """
    if not isinstance(step, dict) or not step:
        return ""
    parts = []
    if step.get("epoch"):
        parts.append(f"epoch {step['epoch']}")
    for key, total in (("global_step", "total_steps"), ("step", "steps")):
        if step.get(key):
            position = f"step {step[key]}"
            if step.get(total):
                position += f" of {step[total]}"
            parts.append(position)
            break
    if not parts:
        return ""
    return " after " + ", ".join(parts)


def describe_hang(node, stall):
    """Return one sentence about a stall."""
    phase = stall.get("phase")
    after = describe_step(stall.get("step"))
    if not after and phase in ("rendezvous", "first_step"):
        after = " before the first step"
    return (
        f"the training hung{after}: no sign of life for {stall['seconds']:.0f} s in the phase"
        f" {PHASES.get(phase, phase)}, whose limit is {stall['budget']:.0f} s (seen by {node})"
    )


def find_lost(answers, sound=None):
    """Return (nodes that were lost, sentence, mutual) or None.

    A node that is cut off says that its neighbour is gone, and its other neighbour says the same of
    it. So the node that accuses and is accused is the lost one. The exception are two nodes that
    accuse each other and both answer now: then the fault is between them (mutual). The same holds
    for a single accusation of a sound node, which names its pair and accuses neither: the packets
    of one direction may have been lost. A node that stood still meanwhile is accused.
    sound: names of the nodes that did not vanish, by default those that ended at about that time.
    """
    losses = _select(answers, "loss")
    if not losses:
        return None
    accused = {str(loss["node"]): (by, loss) for by, loss in sorted(losses.items(), reverse=True)}
    pair = _mutual_pair(losses, accused)
    if pair:
        text = f"{pair[0]} and {pair[1]} lost each other: {losses[pair[0]]['how']}"
        return pair, text, True
    accusing = [name for name in accused if name in losses]
    absent = [name for name in accused if name not in answers]
    culprits = absent or accusing or sorted(accused)
    if not absent and len(culprits) > 1:
        culprits = sorted(culprits)
        text = (
            f"{', '.join(culprits)} were lost to their neighbours, and all answer now: look at what"
            " is between them"
        )
        return culprits, text, True
    name = culprits[0]
    by, loss = accused[name]
    pause = _find_pause(answers.get(name), loss)
    is_sound = _ended_soon(answers.get(name), loss)
    if sound is not None:
        is_sound = name in sound
    if is_sound and name not in losses and not pause:
        text = (
            f"{by} lost {name}, which answers all the same: look at what is between them;"
            f" {by} says of {name}: {loss['how']}"
        )
        return sorted((by, name)), text, True
    text = f"{name} was lost: {by} says that {loss['how']}"
    if pause:
        text += f"; {name} itself stood still for {pause['seconds']:.0f} s"
    return [name], text, False


def _ended_soon(node, loss):
    """Return whether a node recorded its end, and ended at about the time of its loss."""
    unit = (node or {}).get("exit") or {}
    when = unit.get("stopped_at") or unit.get("time")
    return when is not None and when - loss["time"] < SOUND_SECONDS


def _find_pause(node, loss):
    """Return the pause of a node that explains why another node lost it, or None."""
    pause = ((node or {}).get("guard") or {}).get("pause")
    if not pause:
        return None
    begin, end = loss["since"] - PAUSE_APART, loss["time"] + PAUSE_APART
    if pause["time"] < begin or pause["time"] - pause["seconds"] > end:
        return None
    return pause


def _mutual_pair(losses, accused):
    """Return the first two nodes that accuse each other, sorted, or None.

    losses: {accusing node: loss}. accused: {node: (accusing node, loss)}.
    """
    names = [
        name
        for name in accused
        if name in losses
        and str(losses[name]["node"]) in accused
        and accused[name][0] == losses[name]["node"]
    ]
    if len(names) < 2:
        return None
    return sorted(names)[:2]


def find_halt(answers):
    """Return the Halt of an attempt, None where no guard ended it."""
    loss = find_lost(answers)
    if loss:
        return _loss_halt(answers, *loss)
    stall = first_stall(answers)
    if stall:
        return _stall_halt(answers, *stall)
    return None


def _loss_halt(answers, names, text, mutual):
    by, loss = next(item for item in _select(answers, "loss").items() if item[1]["node"] in names)
    outcome = Outcome.LOST
    if mutual:
        outcome = Outcome.FAILED
    return Halt(outcome, "node_lost", names, None, by, loss["since"], text)


def _stall_halt(answers, node, stall):
    text, rank, different = describe_hang(node, stall), None, find_odd_rank(answers)
    if different:
        rank, rank_node, difference = different
        text += f"; rank {rank:d} on {rank_node} {difference}"
    return Halt(Outcome.FAILED, "hang", [], rank, node, stall["time"], text)


def evidence_lines(answers):
    """Return evidence lines: each guard's finding and each rank's state."""
    stall_lines = [
        f"{describe_hang(name, stall)} (stall.{name}.json)"
        for name, stall in _select(answers, "stall").items()
    ]
    loss_lines = [
        f"{name} says that {loss['node']} is gone: {loss['how']} (loss.{name}.json)"
        for name, loss in _select(answers, "loss").items()
    ]
    seen = [
        dict(item, node=name) for name, items in _select(answers, "seen").items() for item in items
    ]
    groups = folding.group(seen, _state_key)
    return stall_lines + loss_lines + [_rank_line(group) for group in groups]


def _state_key(item):
    """Return what makes the states of ranks equal, None for one without a stack."""
    if not item["where"]:
        return None
    return (str(item["state_words"]), tuple(item["where"][:FRAMES]))


def _rank_line(items):
    """Return the evidence line of one rank, or of several that were in the same state."""
    item = items[0]
    who, logs = f"rank {item['rank']:d} on {item['node']} was", "stacks-{:03d}.{}.log"
    load, position = "", f"no stack: {item['why']}"
    if len(items) > 1:
        who = f"{folding.name_ranks(items)} were"
    elif isinstance(item["cpu"], (int, float)):
        load = f", {100 * item['cpu']:.0f} % of a core"
    if item["where"]:
        position = "in " + " < ".join(item["where"][:FRAMES])
    log = logs.format(item["rank"], item["node"])
    return f"{who} {item['state_words']}{load}, {position} ({log})"
