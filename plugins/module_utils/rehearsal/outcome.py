# SPDX-License-Identifier: Apache-2.0
"""A rehearsal: the real plan through the installed launcher, with a tiny script instead of the
training. Pure; rehearsing.py is the node's side.

A launcher that is given another list of nodes, another port or another address than the plan has
starts ranks all the same, which then wait for each other in silence, for ever (facts 3, 5). Here
every rank says who it is before it looks for the others, so that this is seen within seconds.
"""

from __future__ import annotations

import copy
import json
import os
import re

from ..agent.agent import as_planned
from ..base.findings import finding, named
from ..gate.isolation import judge_apart

# A rehearsal is attempt 0 of the run that it comes before; no run of a training has one.
NUMBER = 0
FOLDER = "trainyard_rehearsal"
SCRIPT = "trainyard_rehearsal.py"
SECONDS = 90
# How much longer than the bound the unit itself may live: where the controller is gone, systemd
# ends it.
MARGIN = 15
# What is added up to measure, by accelerator: bytes, how often.
LOADS = {"cpu": (4 << 20, 2), "gpu": (64 << 20, 5), "ascend": (64 << 20, 5)}
# How far a rank is that has said this last.
STAGES = {
    "started": "imports the framework",
    "imported": "looks for the other ranks",
    "joined": "waits in the first all-reduce",
    "added": "waits in the all-reduce of some MB",
    "measured": "waits for the others' end",
    "ended": "has done all and does not end",
}
# What a rank's own words are known to mean.
KNOWN = (
    (
        "Unable to find address for",  # gloo/transport/tcp/device.cc
        (
            "the site or the job names an interface that this node does not have"
            " (GLOO_SOCKET_IFNAME): take it out, the plan names the right one itself"
        ),
    ),
    (
        "No module named",
        "the environment lacks what the training needs: playbooks/provision.yml with the suite",
    ),
)
_CHANNEL = re.compile(r" via (NET/[A-Za-z0-9_-]+|P2P|SHM|COLLNET|DIRECT)(?:/|\b)(\S*)")
_SHOWN_LINES = 6


def plan_of(made, script="", seconds=SECONDS):
    """Return the rehearsal's plan: the same launcher, environment, ports and nodes, with our script
    in the place of the training's.

    script: the text of rehearse.py. seconds: after so many the unit is ended. The training's
    arguments stay, so that the command has its shape.
    """
    result = copy.deepcopy(made)
    folder = os.path.dirname(made["script"][0])
    path = os.path.join(folder, SCRIPT)
    for holder in [result] + result["nodes"]:
        if holder.get("argv"):
            holder["argv"][-len(made["script"])] = path
    result["script"] = [path] + made["script"][1:]
    size, times = LOADS[made["accelerator"]]
    asked = {
        "framework": "paddle" if made["launcher"]["rank_env"].startswith("PADDLE") else "mindspore",
        "accelerator": made["accelerator"],
        "bytes": size,
        "times": times,
    }
    result["files"] = dict(
        made["files"], **{path: script, f"{FOLDER}/asked.json": json.dumps(asked, sort_keys=True)}
    )
    result["stop"] = dict(made["stop"], limit=int(seconds) + MARGIN)
    return result


def unfit(todo, stops):
    """Return the note of why check.yml, which brings nothing to the nodes, cannot rehearse; []
    where it can. todo: see library/plan.py.
    """
    if stops:
        return [finding("rehearsal", "not rehearsed, because of what else was found", level="note")]
    lacking = {
        kind: todo[kind]
        for kind in ("provision", "trust", "environment", "code", "data", "weights", "checkpoints")
        if todo.get(kind)
    }
    if not lacking:
        return []
    text = "not rehearsed, because the nodes have not got all that it takes: {}".format(
        "; ".join(f"{kind} on {named(nodes)}" for kind, nodes in lacking.items())
    )
    nodes = list(dict.fromkeys(name for names in lacking.values() for name in names))
    return [
        finding(
            "rehearsal",
            text,
            "playbooks/sync.yml with the same config brings it; train.yml does so by itself",
            nodes,
            "note",
        )
    ]


def transports(text):
    """Return {way: connections} of NCCL's log with NCCL_DEBUG=INFO: NET/IB, NET/Socket, P2P, SHM;
    GDRDMA is told apart.

    Lines of NCCL 2.4 to 2.28: `... NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via
    NET/IB/0/GDRDMA`, `... via P2P/IPC/read`, `... via SHM/direct/direct`.
    """
    found = {}
    for line in text.splitlines():
        match = _CHANNEL.search(line) if "NCCL INFO" in line else None
        if match:
            way = match.group(1) + ("/GDRDMA" if "GDRDMA" in match.group(2) else "")
            found[way] = found.get(way, 0) + 1
    return found


def judge(made, results, allowed):
    """Return findings of a rehearsal; results: {node name: what the module rehearsal returned, or
    msg}.

    allowed: rehearsal_seconds, the bound. A node whose answer cannot be judged counts as one that
    gave none.
    """
    names = [node["name"] for node in made["nodes"]]
    found, left = judge_apart(
        lambda kept: _judge(
            _part_of(made, kept), {name: results.get(name) for name in kept}, allowed
        ),
        names,
    )
    return (
        _judge(made, dict(results, **{name: {"msg": UNREADABLE} for name in left}), allowed)
        if left
        else found
    )


UNREADABLE = "its answer cannot be judged (docs/security.md)"


def _part_of(made, names):
    """Return a plan with some of its nodes and their ranks."""
    return dict(
        made,
        nodes=[node for node in made["nodes"] if node["name"] in names],
        ranks=[rank for rank in made["ranks"] if rank["node"] in names],
    )


def _judge(made, results, allowed):
    if not made["nodes"]:
        return []
    names = [node["name"] for node in made["nodes"]]
    silent = {
        name: results.get(name) or {} for name in names if "ranks" not in (results.get(name) or {})
    }
    if silent:
        text = "the node did not answer while the plan was rehearsed: %s"
        remedy = "a unit that may still run there ends by itself within %d s" % (
            float(allowed.get("rehearsal_seconds", SECONDS)) + MARGIN
        )
        return [
            finding("rehearsal", text % (item.get("msg") or "no reason was given"), remedy, name)
            for name, item in silent.items()
        ]
    refused = {name: results[name]["refused"] for name in names if results[name]["refused"]}
    if refused:
        remedy = (
            "somebody else's training or check holds the node: wait for its end, or"
            " playbooks/stop.yml"
        )
        return left(names, results) + [
            finding(
                "rehearsal",
                f"could not start: {text}",
                remedy if " is held by " in text else "",
                name,
            )
            for name, text in refused.items()
        ]
    wrong = identity(made, results)
    # What the launcher made wrong makes ranks wait and fail, too; that would hide it.
    found = (
        wrong
        or failures(made, results)
        or hanging(made, results, allowed)
        or absent(made, results)
        or sums(made, results)
    )
    return left(names, results) + (found or [summary(made, results)] + crashed_late(made, results))


def crashed_late(made, results):
    """Return a warning for ranks that had shown all that a rehearsal asks and crashed as they
    ended: MindSpore's CPU build does, once in about ten times.
    """
    text = (
        "rank %s had done all and was ended by %s as it ended; a training that ends so counts as"
        " failed, though its checkpoints are whole"
    )
    return [
        finding(
            "rehearsal",
            text % (rank["rank"], how),
            "a crash at the end is the framework's: look for a newer build",
            node["name"],
            "warn",
        )
        for node in made["nodes"]
        for rank, how in done_and_killed(results[node["name"]])
        if how != "SIGTERM"
    ]


def done_and_killed(result):
    """Return [(rank, signal)] of a node's ranks that had done all when a signal ended them."""
    ends = {event.get("rank"): event for event in result["events"] if event.get("event") == "end"}
    pairs = [
        (rank, (ends.get(rank["rank"]) or {}).get("signal"))
        for rank in result["ranks"]
        if rank["stage"] == "ended"
    ]
    return [(rank, how) for rank, how in pairs if how and not rank.get("error")]


def left(names, results):
    """Return what could not be removed."""
    return [
        finding(
            "rehearsal",
            "the rehearsal's directory could not be removed: {}".format(results[name]["left"]),
            "remove it by hand",
            name,
            "warn",
        )
        for name in names
        if results[name].get("left")
    ]


def identity(made, results):
    """Return where ranks are not who and where the plan says."""
    found, where = [], {}
    planned = {
        node["name"]: [rank["rank"] for rank in made["ranks"] if rank["node"] == node["name"]]
        for node in made["nodes"]
    }
    remedy = (
        "on this node the launcher is given, or makes of it, something else than the plan's"
        " command: look for a wrapper in the place of {} or python there, sitecustomize.py and"
        " *.pth files of the environment; playbooks/provision.yml makes a new one".format(
            os.path.basename(made["argv"][0])
        )
    )
    for name, expected in planned.items():
        texts = []
        for rank in results[name]["ranks"]:
            where.setdefault(rank["rank"], []).append(name)
            texts += strange(made, rank, expected)
        if texts:
            found.append(finding("rehearsal", "; ".join(texts), remedy, name))
    twice = {rank: nodes for rank, nodes in where.items() if len(nodes) > 1}
    for rank, nodes in sorted(twice.items(), key=str):
        text = "rank %s is there %d times: on %s" % (rank, len(nodes), named(nodes))
        found.append(finding("rehearsal", text, "" if found else remedy, sorted(set(nodes))))
    return found


def strange(made, rank, expected):
    """Return in words what of one rank is not as planned; expected: the numbers that the plan has
    on its node.
    """
    texts, world = [], len(made["ranks"])
    if rank["rank"] not in expected:
        texts.append(
            "a process says that it is rank {}; the plan has rank {} here".format(
                rank["rank"], spans(expected)
            )
        )
    worlds = {
        value for value in (rank["world"], rank.get("joined_world")) if value not in (None, world)
    }
    if worlds:
        texts.append(
            "rank %s was started as one of %s; the plan has %d ranks"
            % (rank["rank"], spans(worlds), world)
        )
    if rank.get("joined_rank") not in (None, rank["rank"]):
        texts.append(
            "rank {} is rank {} to the framework".format(rank["rank"], rank["joined_rank"])
        )
    planned, given = made["endpoints"], rank["endpoints"]
    # A single node's launcher takes any free ports, and nobody has to find them.
    if planned and len(made["nodes"]) > 1 and given is not None and not as_planned(planned, given):
        what = (
            "the ranks in another order" if sorted(planned) == sorted(given) else "other endpoints"
        )
        shown = tuple(",".join(items)[:300] for items in (given, planned))
        texts.append("rank %s was given %s: %s; planned are %s" % ((rank["rank"], what) + shown))
    return texts


def failures(made, results):
    """Return which ranks raised, or how the launcher ended where none did, with what the logs say
    last.
    """
    found, crashed = [], crashed_late(made, results)
    for name in (node["name"] for node in made["nodes"]):
        result = results[name]
        raised = [rank for rank in result["ranks"] if rank.get("error")]
        ends = {
            event.get("rank"): event for event in result["events"] if event.get("event") == "end"
        }
        # those that were ended with their unit are none
        alone = not (result["halted"] or result["hung"])
        killed = [
            rank
            for rank in result["ranks"]
            if alone and not rank.get("error") and (ends.get(rank["rank"]) or {}).get("signal")
        ]
        late = [rank for rank, _how in done_and_killed(result)] if alone else []
        for rank in raised or [rank for rank in killed if rank not in late]:
            how = rank.get("error") or "ended by {} while it {}".format(
                ends[rank["rank"]]["signal"],
                STAGES.get(rank["stage"], rank["stage"]),
            )
            text = "rank {} failed: {}{}".format(
                rank["rank"],
                how,
                said(result["logs"].get(str(rank["rank"]))),
            )
            found.append(
                finding(
                    "rehearsal",
                    text,
                    next((words for sign, words in KNOWN if sign in text), ""),
                    name,
                )
            )
        code = next(
            (event for event in result["events"] if event.get("event") == "launcher_end"), {}
        )
        # (a launcher that ends badly for a rank that had done all says nothing new)
        if (
            alone
            and not raised
            and not killed
            and not crashed
            and (code.get("exit_code") or code.get("signal"))
        ):
            text = "the launcher ended with %s before every rank had ended%s"
            how = code.get("signal") or "exit code {}".format(code.get("exit_code"))
            found.append(finding("rehearsal", text % (how, said(result["console"])), "", name))
    return found


def hanging(made, results, allowed):
    """Return what did not end within the bound, with how far every rank came."""
    hung = [node["name"] for node in made["nodes"] if results[node["name"]]["hung"]]
    if not hung:
        return []
    far = {}
    for rank in made["ranks"]:
        mine = [item for item in results[rank["node"]]["ranks"] if item["rank"] == rank["rank"]]
        how = STAGES.get(mine[0]["stage"], mine[0]["stage"]) if mine else "never started"
        far.setdefault(how, []).append("%d (%s)" % (rank["rank"], rank["node"]))
    text = "the ranks did not find an end within {:g} s: {}".format(
        float(allowed.get("rehearsal_seconds", SECONDS)),
        "; ".join(f"rank {named(ranks)} {how}" for how, ranks in far.items()),
    )
    # A slow node is no broken plan: while one rank still imports, the others wait for it as they
    # should, so nothing was shown either way; and where every rank has done all, only the
    # processes' end is slow.
    slow = STAGES["started"] in far or set(far) == {STAGES["ended"]}
    return [finding("rehearsal", text, remedies(made, far), hung, "warn" if slow else "stop")]


def remedies(made, far):
    """Return what helps against a rehearsal that hangs; far: {how far: ranks}."""
    if STAGES["started"] in far or set(far) == {STAGES["ended"]}:
        return (
            "importing the framework takes seconds elsewhere: look at load, memory and disk of"
            " these nodes; preflight_rehearsal_seconds sets the bound"
        )
    faces = named(["{} on {}".format(node["address"], node["interface"]) for node in made["nodes"]])
    return (
        "the ranks reach each other by TCP at %s, from port %d on and at the ephemeral ones: look"
        " for a firewall between them, and for variables of the site or the job that name another"
        " interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)" % (faces, made["ports"]["start"])
    )


def absent(made, results):
    """Return ranks that never spoke, where nothing else was found that explains it."""
    found = []
    for node in made["nodes"]:
        result = results[node["name"]]
        missing = [
            r["rank"]
            for r in made["ranks"]
            if r["node"] == node["name"]
            and r["rank"] not in [said["rank"] for said in result["ranks"]]
        ]
        if missing:
            found.append(
                finding(
                    "rehearsal",
                    "rank {} never started{}".format(spans(missing), said(result["console"])),
                    "",
                    node["name"],
                )
            )
        idle = [rank for rank in result["ranks"] if rank["stage"] != "ended"]
        if idle and not missing:
            text = "rank %s stopped without a word while it %s%s"
            rank = idle[0]
            found.append(
                finding(
                    "rehearsal",
                    text
                    % (
                        rank["rank"],
                        STAGES.get(rank["stage"], "?"),
                        said(result["logs"].get(str(rank["rank"]))),
                    ),
                    "",
                    node["name"],
                )
            )
    return found


def sums(made, results):
    """Return ranks for which the all-reduce gave something else than 1 + ... + N."""
    found, expected = [], len(made["ranks"]) * (len(made["ranks"]) + 1) / 2.0
    for node in made["nodes"]:
        for rank in results[node["name"]]["ranks"]:
            if rank.get("sum") != expected:
                text = "the all-reduce of 1, 2, ... over all ranks gave {} on rank {}; it must be {:g}".format(
                    rank.get("sum"),
                    rank["rank"],
                    expected,
                )
                remedy = (
                    "the gradients would be added up as wrongly: compare framework, driver and NCCL"
                    " of the nodes, and try without the fast network"
                )
                found.append(finding("rehearsal", text, remedy, node["name"]))
    return found


def summary(made, results):
    """Return the note of a rehearsal in which all was as planned."""
    ranks = [rank for result in results.values() for rank in result["ranks"]]
    ways = {}
    for result in results.values():
        for way, count in result["transports"].items():
            ways[way] = ways.get(way, 0) + count
    words = [
        "%d rank%s as planned in %.1f s"
        % (len(ranks), "" if len(ranks) == 1 else "s", max(r["seconds"] for r in results.values()))
    ]
    if len(ranks) > 1:
        slow = min(ranks, key=lambda rank: rank["bandwidth"])
        over = ", ".join(sorted({node["interface"] for node in made["nodes"]}))
        words.append(
            "all-reduce {} at {:.0f} MB/s ({}, {})".format(
                size_text(slow["bytes"]), slow["bandwidth"] / 1e6, slow["backend"], over
            )
        )
    if ways:
        words.append(
            "NCCL: {}".format(", ".join("%s x %d" % pair for pair in sorted(ways.items())))
        )
    return finding("rehearsal", "; ".join(words), level="note")


def size_text(count):
    """Return a number of bytes in MB."""
    return "of %.1f MB" % (count / 1e6)


def spans(numbers):
    """Return numbers as text."""
    return named(sorted(map(str, numbers)))


def said(lines):
    """Return the last lines of a log as the end of a sentence."""
    lines = [line.strip() for line in lines or [] if line.strip()][-_SHOWN_LINES:]
    return "; its log ends: {}".format(" | ".join(lines)[-900:]) if lines else ""
