# SPDX-License-Identifier: Apache-2.0
"""Rehearsal of a plan: its real launcher with a tiny script.

The script is in the training's place. Pure. The module `node_rehearsal` is the node's side.

A launcher that is given another list of nodes, another port or another address than the plan has
starts ranks all the same. They then wait for each other in silence, for ever (facts 3, 5). In a
rehearsal every rank states its identity before it looks for the others, so this is seen within
seconds.
"""

from __future__ import annotations

import copy
import json
import os
import re

from ..agent.rank_watch import match_endpoints
from ..base.findings import finding, named
from ..gate.isolation import judge_apart

# A rehearsal is attempt 0 of the run that it comes before. No run of a training has one.
NUMBER = 0
FOLDER = "trainyard_rehearsal"
SCRIPT = "trainyard_rehearsal.py"
SECONDS = 90
# How many seconds longer than the bound the unit itself may live. If the controller is gone,
# systemd ends it.
MARGIN = 15
# The all-reduce that is measured, by accelerator: bytes, number of times.
LOADS = {"cpu": (4 << 20, 2), "gpu": (64 << 20, 5), "ascend": (64 << 20, 5)}
# The state of a rank, by the stage that it reported last.
STAGES = {
    "started": "imports the framework",
    "imported": "looks for the other ranks",
    "joined": "waits in the first all-reduce",
    "added": "waits in the all-reduce of some MB",
    "measured": "computes a small convolution",
    "convolved": "waits for the others' end",
    "ended": "has done all and does not end",
}
# The last stage that a rank notes before the convolution, and the value that this gives: 3 channels
# times 3 x 3 ones.
CONVOLVING = "measured"
CONVOLVED = 27.0
# A GPU's convolution is the first use of cuDNN, which the import does not load.
CONVOLUTION = (
    "the all-reduce worked, so it is not the network. On a GPU look which cuDNN the ranks find"
    " (LD_LIBRARY_PATH of the site's trainyard_env, the nvidia-cudnn wheels) and which one this"
    " build of the framework needs"
)
# Stages in which a rank waits for others, and the variable that keeps NCCL from direct traffic
# between GPUs.
WAITING = ("imported", "joined", "added")
NO_PEERS = "NCCL_P2P_DISABLE"
# Remedies for known texts in a rank's error.
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
        "the environment lacks what the training needs: ansible-playbook"
        " playbooks/provision.yml with the suite",
    ),
)
_CHANNEL = re.compile(r" via (NET/[A-Za-z0-9_-]+|P2P|SHM|COLLNET|DIRECT)(?:/|\b)(\S*)")
_SHOWN_LINES = 6


# What a finding says of an answer that raises where it is judged.
UNREADABLE = "its answer cannot be judged (docs/security.md)"


def plan_of(plan, script="", seconds=SECONDS):
    """Return the rehearsal's plan: the given one with another script.

    script: the text of rehearsal_rank.py. seconds: the time after which the unit is ended.
    Launcher, environment, ports and nodes are the same. The training's arguments stay, so that the
    command has its shape.
    """
    result = copy.deepcopy(plan)
    folder = os.path.dirname(plan["script"][0])
    path = os.path.join(folder, SCRIPT)
    for holder in [result] + result["nodes"]:
        if holder.get("argv"):
            holder["argv"][-len(plan["script"])] = path
    result["script"] = [path] + plan["script"][1:]
    size, times = LOADS[plan["accelerator"]]
    framework = "mindspore"
    if plan["launcher"]["rank_env"].startswith("PADDLE"):
        framework = "paddle"
    settings = {
        "framework": framework,
        "accelerator": plan["accelerator"],
        "bytes": size,
        "times": times,
    }
    files = {path: script, f"{FOLDER}/asked.json": json.dumps(settings, sort_keys=True)}
    result["files"] = dict(plan["files"], **files)
    result.pop("replica", None)
    result["stop"] = dict(plan["stop"], limit=int(seconds) + MARGIN)
    return result


def unfit(todo, stops):
    """Return the note of why check.yml cannot rehearse, [] if it can.

    check.yml copies nothing to the nodes. todo: see library/plan.py. stops: other findings with
    which nothing may start.
    """
    if stops:
        return [
            finding(
                "rehearsal.not_tried", "not rehearsed, because of what else was found", level="note"
            )
        ]
    lacking = {
        kind: todo[kind]
        for kind in ("provision", "trust", "environment", "code", "data", "weights", "checkpoints")
        if todo.get(kind)
    }
    if not lacking:
        return []
    parts = "; ".join(f"{kind} on {named(nodes)}" for kind, nodes in lacking.items())
    text = f"not rehearsed, because the nodes have not got all that it takes: {parts}"
    remedy = (
        "ansible-playbook playbooks/sync.yml with the same config brings it; train.yml does so"
        " automatically"
    )
    nodes = list(dict.fromkeys(name for names in lacking.values() for name in names))
    return [finding("rehearsal.nodes_incomplete", text, remedy, nodes, "note")]


def transports(text):
    """Return {transport: connections} of NCCL's log with NCCL_DEBUG=INFO.

    Transports are NET/IB, NET/Socket, P2P and SHM. GDRDMA is counted apart.

    Lines of NCCL 2.4 to 2.28: `... NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via
    NET/IB/0/GDRDMA`, `... via P2P/IPC/read`, `... via SHM/direct/direct`.
    """
    counts = {}
    for line in text.splitlines():
        match = "NCCL INFO" in line and _CHANNEL.search(line)
        if match:
            transport = match.group(1)
            if "GDRDMA" in match.group(2):
                transport += "/GDRDMA"
            counts[transport] = counts.get(transport, 0) + 1
    return counts


def judge(plan, results, allowed):
    """Return the findings of a rehearsal.

    results: {node name: what rehearsal_wait returned, or msg}. allowed: rehearsal_seconds,
    the bound. A node whose answer cannot be judged counts as one that gave none.
    """
    names = [node["name"] for node in plan["nodes"]]

    def judge_nodes(kept):
        """Return the findings of some nodes alone."""
        return _judge(_part_of(plan, kept), {name: results.get(name) for name in kept}, allowed)

    findings, unusable = judge_apart(judge_nodes, names)
    if not unusable:
        return findings
    return _judge(plan, dict(results, **{name: {"msg": UNREADABLE} for name in unusable}), allowed)


def _part_of(plan, names):
    """Return a plan with some of its nodes and their ranks."""
    return dict(
        plan,
        nodes=[node for node in plan["nodes"] if node["name"] in names],
        ranks=[rank for rank in plan["ranks"] if rank["node"] in names],
    )


def _judge(plan, results, allowed):
    """Return the findings of a rehearsal whose answers can all be judged."""
    if not plan["nodes"]:
        return []
    names = [node["name"] for node in plan["nodes"]]
    findings = _judge_silent_nodes(names, results, allowed)
    if findings:
        return findings
    leftovers = _judge_leftovers(names, results)
    findings = _judge_refusals(names, results)
    # What the launcher made wrong makes ranks wait and fail, too, and that would hide it. So the
    # ranks' identity comes first.
    findings = (
        findings
        or _judge_identity(plan, results)
        or _judge_failures(plan, results)
        or _judge_hang(plan, results, allowed)
        or _judge_absent_ranks(plan, results)
        or sums(plan, results)
        or convolutions(plan, results)
    )
    if not findings:
        findings = [_summarize(plan, results)] + _judge_late_crashes(plan, results)
    return leftovers + findings


# --- nodes


def _bound_of(allowed):
    """Return the bound of the rehearsal in seconds."""
    return float(allowed.get("rehearsal_seconds", SECONDS))


def _judge_silent_nodes(names, results, allowed):
    """Return findings about nodes that gave no answer."""
    findings = []
    for name in names:
        result = results.get(name) or {}
        if "ranks" not in result:
            reason = result.get("msg") or "no reason was given"
            text = f"the node did not answer while the plan was rehearsed: {reason}"
            limit = int(_bound_of(allowed) + MARGIN)
            remedy = f"a unit that may still run there ends automatically within {limit} s"
            findings.append(finding("rehearsal.no_answer", text, remedy, name))
    return findings


def _judge_refusals(names, results):
    """Return findings about nodes that did not start the rehearsal."""
    findings = []
    for name in names:
        reason = results[name]["refused"]
        if not reason:
            continue
        remedy = ""
        if " is held by " in reason:
            remedy = (
                "another training or check holds the node: wait for its end, or"
                " ansible-playbook playbooks/stop.yml"
            )
        findings.append(finding("rehearsal.refused", f"could not start: {reason}", remedy, name))
    return findings


def _judge_leftovers(names, results):
    """Return findings about files that could not be removed."""
    return [
        finding(
            "rehearsal.not_removed",
            f"the rehearsal's directory could not be removed: {results[name]['left']}",
            "remove it by hand",
            name,
            "warn",
        )
        for name in names
        if results[name].get("left")
    ]


# --- the ranks' identity


def _judge_identity(plan, results):
    """Return findings about ranks that are not as or where the plan says."""
    program = os.path.basename(plan["argv"][0])
    remedy = (
        "on this node the launcher is given, or makes of it, something else than the plan's"
        f" command: look for a wrapper in the place of {program} or python there, sitecustomize.py"
        " and *.pth files of the environment; ansible-playbook playbooks/provision.yml makes"
        " a new one"
    )
    findings, nodes_of_rank = [], {}
    for node in plan["nodes"]:
        name, texts = node["name"], []
        expected = [rank["rank"] for rank in plan["ranks"] if rank["node"] == name]
        for rank in results[name]["ranks"]:
            nodes_of_rank.setdefault(rank["rank"], []).append(name)
            texts += _describe_differences(plan, rank, expected)
        if texts:
            findings.append(finding("rehearsal.rank_unlike_plan", "; ".join(texts), remedy, name))
    duplicates = {rank: names for rank, names in nodes_of_rank.items() if len(names) > 1}
    for rank, names in sorted(duplicates.items(), key=str):
        # The remedy is shown once.
        if findings:
            remedy = ""
        text = f"rank {rank} is there {len(names)} times: on {named(names)}"
        findings.append(finding("rehearsal.rank_twice", text, remedy, sorted(set(names))))
    return findings


def _describe_differences(plan, rank, expected):
    """Return texts about what of one rank is not as planned.

    expected: the numbers that the plan has on its node.
    """
    texts, world, number = [], len(plan["ranks"]), rank["rank"]
    if number not in expected:
        texts.append(
            f"a process says that it is rank {number}; the plan has rank"
            f" {_numbers_text(expected)} here"
        )
    worlds = {rank["world"], rank.get("joined_world")} - {None, world}
    if worlds:
        texts.append(
            f"rank {number} was started as one of {_numbers_text(worlds)};"
            f" the plan has {world} ranks"
        )
    if rank.get("joined_rank") not in (None, number):
        texts.append(f"rank {number} is rank {rank['joined_rank']} to the framework")
    given, planned = rank["endpoints"], plan["endpoints"]
    # A single node's launcher takes any free ports, which no other node has to find.
    shared = planned and len(plan["nodes"]) > 1
    if shared and given is not None and not match_endpoints(planned, given):
        difference = "other endpoints"
        if sorted(planned) == sorted(given):
            difference = "the ranks in another order"
        texts.append(
            f"rank {number} was given {difference}: {','.join(given)[:300]};"
            f" planned are {','.join(planned)[:300]}"
        )
    return texts


# --- ranks that failed


def _judge_failures(plan, results):
    """Return findings about ranks that failed, with what their logs say last.

    Where no rank failed, they say how the launcher ended.
    """
    crashed = bool(_judge_late_crashes(plan, results))
    findings = []
    for node in plan["nodes"]:
        name, result = node["name"], results[node["name"]]
        raised = [rank for rank in result["ranks"] if rank.get("error")]
        killed = _killed_ranks(result)
        failed = raised or [rank for rank in killed if rank["stage"] != "ended"]
        findings += [_describe_failed_rank(name, result, rank) for rank in failed]
        # A launcher that ends badly for a rank that had done all says nothing new.
        if not (raised or killed or crashed or _was_ended(result)):
            findings += _judge_launcher(name, result)
    return findings


def _was_ended(result):
    """Return True if the node's unit was ended.

    Then signals say nothing of its ranks.
    """
    return bool(result["halted"] or result["hung"])


def _signals(result):
    """Return {rank: name of the signal that ended it, or None} of a node."""
    return {
        event.get("rank"): event.get("signal")
        for event in result["events"]
        if event.get("event") == "end"
    }


def _killed_ranks(result):
    """Return the ranks of a node that a signal ended.

    Ranks that ended with their unit are left out.
    """
    if _was_ended(result):
        return []
    signals = _signals(result)
    return [rank for rank in result["ranks"] if not rank.get("error") and signals.get(rank["rank"])]


def _describe_failed_rank(name, result, rank):
    """Return the finding about a rank that raised or was killed."""
    number, cause = rank["rank"], rank.get("error")
    if not cause:
        stage = STAGES.get(rank["stage"], rank["stage"])
        cause = f"ended by {_signals(result)[number]} while it {stage}"
    text = f"rank {number} failed: {cause}{_log_end(result['logs'].get(str(number)))}"
    code, remedy = "rehearsal.rank_failed", ""
    if _failed_to_convolve(rank):
        code, remedy = "rehearsal.convolution_failed", CONVOLUTION
    for sign, known_remedy in KNOWN:
        if sign in text:
            remedy = known_remedy
            break
    return finding(code, text, remedy, name)


def _failed_to_convolve(rank):
    """Return whether a rank that failed did so in the convolution."""
    return CONVOLVING in (rank["stage"], rank.get("after"))


def _judge_launcher(name, result):
    """Return the finding about a launcher that failed, as a list."""
    ends = [event for event in result["events"] if event.get("event") == "launcher_end"]
    if not ends or not (ends[0].get("exit_code") or ends[0].get("signal")):
        return []
    how = ends[0].get("signal") or f"exit code {ends[0].get('exit_code')}"
    text = f"the launcher ended with {how} before every rank had ended{_log_end(result['console'])}"
    return [finding("rehearsal.launcher_failed", text, "", name)]


def _judge_late_crashes(plan, results):
    """Return a warning for ranks that had done all and crashed as they ended.

    MindSpore's CPU build does so about once in ten times.
    """
    findings = []
    for node in plan["nodes"]:
        result = results[node["name"]]
        signals = _signals(result)
        for rank in result["ranks"]:
            signal = signals.get(rank["rank"])
            if rank["stage"] != "ended" or rank.get("error") or not signal or signal == "SIGTERM":
                continue
            text = (
                f"rank {rank['rank']} had done all and was ended by {signal} as it ended; a"
                " training that ends so counts as failed, though its checkpoints are whole"
            )
            remedy = "a crash at the end is the framework's: look for a newer build"
            findings.append(finding("rehearsal.crashed_at_end", text, remedy, node["name"], "warn"))
    return findings


# --- ranks that hang or are absent


def _judge_hang(plan, results, allowed):
    """Return the finding about ranks that did not end within the bound.

    It names each rank's stage.
    """
    hung = [node["name"] for node in plan["nodes"] if results[node["name"]]["hung"]]
    if not hung:
        return []
    ranks_by_stage = {}
    for rank in plan["ranks"]:
        stage = _stage_of(rank["rank"], results[rank["node"]])
        ranks_by_stage.setdefault(stage, []).append(f"{rank['rank']} ({rank['node']})")
    stages = "; ".join(f"rank {named(ranks)} {stage}" for stage, ranks in ranks_by_stage.items())
    text = f"the ranks did not find an end within {_bound_of(allowed):g} s: {stages}"
    # A slow node is no broken plan. While one rank still imports, the others wait for it as they
    # should, so nothing was shown either way. If every rank has done all, only the processes' end
    # is slow.
    if STAGES["started"] in ranks_by_stage or set(ranks_by_stage) == {STAGES["ended"]}:
        remedy = (
            "importing the framework takes seconds elsewhere: look at load, memory and disk of"
            " these nodes; preflight_rehearsal_seconds sets the bound"
        )
        return [finding("rehearsal.slow", text, remedy, hung, "warn")]
    second = _judge_second_try(plan, results, text)
    if second:
        return second
    faces = named([f"{node['address']} on {node['interface']}" for node in plan["nodes"]])
    remedy = (
        f"the ranks reach each other by TCP at {faces}, from port {plan['ports']['start']} on and"
        " at the ephemeral ones: look for a firewall between them, and for variables of the site"
        " or the job that name another interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)"
    )
    if plan["accelerator"] == "gpu" and len(plan["nodes"]) < len(plan["ranks"]):
        remedy += _advice_about_peers(plan, results)
    return [finding("rehearsal.hung", text, remedy, hung)]


def _judge_second_try(plan, results, text):
    """Return the finding about GPUs that hang with direct traffic and pass without it, or [].

    text: of the hang.
    """
    (name, *others) = [node["name"] for node in plan["nodes"]]
    second = results[name].get("without_peers")
    if others or not second or second["hung"]:
        return []
    done = {rank["rank"]: rank for rank in second["ranks"]}
    expected = _expected_sum(plan)
    for rank in plan["ranks"]:
        found = done.get(rank["rank"]) or {}
        if found.get("stage") != "ended" or found.get("sum") != expected:
            return []
    text = f"{text}. With {NO_PEERS}=1 all ranks came to their end"
    remedy = (
        f'set {NO_PEERS}: "1" in the site\'s trainyard_env, which is slower; for good turn the'
        " IOMMU and PCI access control (ACS) off in the firmware, or start the kernel with iommu=pt"
    )
    return [finding("rehearsal.hung_peer_to_peer", text, remedy, name)]


def _advice_about_peers(plan, results):
    """Return what to do besides about a hang of nodes with several GPUs."""
    if len(plan["nodes"]) > 1:
        return (
            "; or it is the traffic between the GPUs of one node: check.yml -e nodes=1 rehearses"
            f" one node alone, and again with {NO_PEERS}=1 if that hangs"
        )
    if results[plan["nodes"][0]["name"]].get("without_peers"):
        return f"; it is not the traffic between the GPUs: {NO_PEERS}=1 did not help"
    return ""


def _expected_sum(plan):
    """Return 1 + ... + N for the plan's N ranks."""
    return len(plan["ranks"]) * (len(plan["ranks"]) + 1) / 2.0


def _stage_of(number, result):
    """Return the text that says how far a rank came."""
    for rank in result["ranks"]:
        if rank["rank"] == number:
            return STAGES.get(rank["stage"], rank["stage"])
    return "never started"


def _judge_absent_ranks(plan, results):
    """Return findings about ranks that never spoke or stopped.

    They count where nothing else explains it.
    """
    findings = []
    for node in plan["nodes"]:
        name, result = node["name"], results[node["name"]]
        present = [rank["rank"] for rank in result["ranks"]]
        missing = [
            rank["rank"]
            for rank in plan["ranks"]
            if rank["node"] == name and rank["rank"] not in present
        ]
        idle = [rank for rank in result["ranks"] if rank["stage"] != "ended"]
        if missing:
            end = _log_end(result["console"])
            text = f"rank {_numbers_text(missing)} never started{end}"
            findings.append(finding("rehearsal.rank_never_started", text, "", name))
        elif idle:
            number, stage = idle[0]["rank"], STAGES.get(idle[0]["stage"], "?")
            end = _log_end(result["logs"].get(str(number)))
            text = f"rank {number} stopped without a word while it {stage}{end}"
            findings.append(finding("rehearsal.rank_stopped", text, "", name))
    return findings


# --- what the ranks computed


def sums(plan, results):
    """Return findings about ranks for which the all-reduce did not give 1 + ... + N."""
    expected = _expected_sum(plan)
    remedy = (
        "the gradients would be added up as wrongly: compare framework, driver and NCCL of the"
        " nodes, and try without the fast network"
    )
    findings = []
    for node in plan["nodes"]:
        for rank in results[node["name"]]["ranks"]:
            if rank.get("sum") != expected:
                text = (
                    f"the all-reduce of 1, 2, ... over all ranks gave {rank.get('sum')} on rank"
                    f" {rank['rank']}; it must be {expected:g}"
                )
                findings.append(finding("rehearsal.wrong_sum", text, remedy, node["name"]))
    return findings


def convolutions(plan, results):
    """Return findings about ranks whose convolution of ones gave another value than it must."""
    findings = []
    for node in plan["nodes"]:
        for rank in results[node["name"]]["ranks"]:
            if rank.get("convolution") != CONVOLVED:
                text = (
                    f"a convolution of ones gave {rank.get('convolution')} on rank {rank['rank']};"
                    f" it must be {CONVOLVED:g}"
                )
                remedy = "compare framework, driver and cuDNN of the nodes; test this device"
                findings.append(finding("rehearsal.wrong_convolution", text, remedy, node["name"]))
    return findings


def _summarize(plan, results):
    """Return the note of a rehearsal in which all was as planned."""
    ranks = [rank for result in results.values() for rank in result["ranks"]]
    connections = {}
    for result in results.values():
        for transport, count in result["transports"].items():
            connections[transport] = connections.get(transport, 0) + count
    noun = "ranks"
    if len(ranks) == 1:
        noun = "rank"
    seconds = max(result["seconds"] for result in results.values())
    parts = [f"{len(ranks)} {noun} as planned in {seconds:.1f} s"]
    if len(ranks) > 1:
        slowest = min(ranks, key=lambda rank: rank["bandwidth"])
        interfaces = ", ".join(sorted({node["interface"] for node in plan["nodes"]}))
        parts.append(
            f"all-reduce of {slowest['bytes'] / 1e6:.1f} MB"
            f" at {slowest['bandwidth'] / 1e6:.0f} MB/s ({slowest['backend']}, {interfaces})"
        )
        parts += _gradients(plan, slowest["bandwidth"])
    if connections:
        pairs = [f"{transport} x {count}" for transport, count in sorted(connections.items())]
        parts.append(f"NCCL: {', '.join(pairs)}")
    return finding("rehearsal.passed", "; ".join(parts), level="note")


def _gradients(plan, bandwidth):
    """Return the sentence about the gradients of a job with pretrained weights, as a list.

    A gradient has the size of its weight. Weights of a part of the model only say what the
    gradients need at least. bandwidth: bytes a second that the wire of the slowest rank carries, of
    which a ring over n ranks takes 2 (n - 1) / n of the gradients' size.
    """
    size = max((item.get("bytes") or 0 for item in plan["weights"].values()), default=0)
    if not size:
        return []
    ranks = len(plan["ranks"])
    seconds = size * 2.0 * (ranks - 1) / ranks / bandwidth
    return [
        f"the gradients, {size / 1e6:.1f} MB or more by the pretrained weights, take"
        f" {seconds:.2f} s a step at that rate"
    ]


# --- texts


def _numbers_text(numbers):
    """Return numbers as text, sorted as texts."""
    return named(sorted(map(str, numbers)))


def _log_end(lines):
    """Return the last lines of a log as the end of a sentence, '' for none."""
    lines = [line.strip() for line in lines or [] if line.strip()][-_SHOWN_LINES:]
    if not lines:
        return ""
    return f"; its log ends: {' | '.join(lines)[-900:]}"
