# SPDX-License-Identifier: Apache-2.0
"""Reports of devices, kernels and NCCL's RAS about the end of an attempt, and whom they blame.

Pure. A device or a node is blamed only on evidence of its own (docs/runbooks/verdict.md, "When a
device or a node is blamed"). The numbers of Xid events are those of NVIDIA's Xid catalogue. The
words for an NPU's health are those of `npu-smi info -t health`.
"""

from __future__ import annotations

import typing

# The device or its link failed: memory that ECC could not correct (48, 64, 94, 95, 140), NVLink
# (74), off the bus (79), its own processors (62, 119, 120, 143). The action that the catalogue has
# for them is a reset, a repair or a drain.
HARD_XIDS = frozenset((48, 62, 64, 74, 79, 94, 95, 119, 120, 140, 143))
# NVLink 5. The line says Fatal or Nonfatal.
LINK_XIDS = frozenset(range(144, 151))
# What a program does to itself, or has done to it: an exception in a kernel (13), a page fault
# (31), a reset of its channel (43), its own end (45).
PROGRAM_XIDS = frozenset((13, 31, 43, 45))
BAD_HEALTH = ("Alarm", "Critical")
# Causes that a fault of the rank's device explains better than the words of its log do: those of
# CUDA, and those without a reason of their own.
CUDA_CAUSES = frozenset(("device_unavailable", "kernel_error", "nccl_cuda_error"))
VAGUE_CAUSES = frozenset(("aborted", "cpp_exception", "segfault", "silent_end", "silent_exit"))
# Seconds by which the kernel's word may follow the end of the rank: its log is not written at once.
AFTER = 5.0
FULL = 0.97  # share of a device's memory from which on it counts as full
MANY = 5  # lines of one node's kernel and of RAS that are shown
_SHOWN = 240


class Fault(typing.NamedTuple):
    """Evidence that a device failed."""

    node: str
    device: str | None  # its index, None where the address is not known to the driver any more
    rank: int | None  # the rank that uses it
    when: float | None  # by the middle clock
    text: str
    alone: bool  # whether it is of this attempt for sure, so that it may decide alone


class FullCard(typing.NamedTuple):
    """A device without free memory at a hang."""

    node: str
    device: str
    rank: int | None
    text: str


class DeviceEvidence:
    """The reports of all nodes: {node: attempts/device_findings.read_findings}."""

    def __init__(self, answers, plan_ranks, ahead):
        """Take the reports of the nodes that have one.

        answers: {node: its findings}. ahead: {node: seconds that its clock is ahead}.
        """
        self.reports = {
            name: node["devices"] for name, node in answers.items() if node.get("devices")
        }
        self.planned, self.ahead = plan_ranks, ahead
        self.pids = {
            (name, rank["pid"]): rank["rank"]
            for name, node in answers.items()
            for rank in node.get("ranks") or ()
            if rank.get("pid")
        }
        self.hosts = {
            str(rank.get("endpoint") or "").rpartition(":")[0].strip("[]"): rank["node"]
            for rank in plan_ranks
        }
        self.faults = [
            fault
            for name, report in self.reports.items()
            for fault in self._faults_of(name, report)
        ]

    # --- devices and their ranks

    def _card_at(self, name, bus):
        """Return the card at a bus address of a node, None where the tool did not show it."""
        return next(
            (card for card in self.reports[name]["cards"] if bus and card["bus"] == bus), None
        )

    def _rank_of(self, name, card):
        """Return the rank that uses a card, by its process or else by the plan."""
        users = {
            self.pids.get((name, user["pid"])): user["uuid"] for user in self.reports[name]["users"]
        }
        ranks = [rank for rank, uuid in users.items() if rank is not None and uuid == card["uuid"]]
        if not ranks:
            names = (card["index"], card["uuid"])
            ranks = [
                rank["rank"]
                for rank in self.planned
                if rank["node"] == name
                and rank["rank"] not in users
                and rank.get("device") in names
            ]
        if len(ranks) != 1:
            return None
        return ranks[0]

    def _fault(self, name, text, card=None, pid=None, when=None, alone=True):
        """Return the Fault of a card, None where no rank of the attempt uses it.

        pid: of the kernel's line. It counts where nothing else shows who uses the card.
        """
        rank, device = None, None
        if card:
            rank, device = self._rank_of(name, card), card["index"]
        if rank is None:
            rank = self.pids.get((name, pid))
        if card and rank is None:
            return None
        if when is not None:
            when -= self.ahead.get(name, 0.0)
        return Fault(name, device, rank, when, text[:_SHOWN], alone)

    def _faults_of(self, name, report):
        """Return the faults that the report of a node shows, the kernel's first."""
        source = report["kernel"]["source"]
        faults = [
            self._fault(
                name,
                f"{source}: {line['text']}",
                self._card_at(name, line["bus"]),
                line["pid"],
                line["time"],
            )
            for line in report["kernel"]["lines"]
            if is_device_fault(line)
        ]
        for bus in report["lost"]:
            address = bus or "an address that it does not name"
            text = f"nvidia-smi: the GPU at {address} is lost"
            faults.append(self._fault(name, text, self._card_at(name, bus)))
        for card in report["cards"]:
            words, alone = card_fault(card)
            if words:
                faults.append(self._fault(name, words, card, alone=alone))
        return [fault for fault in faults if fault]

    # --- what the verdict asks

    def explain(self, candidate, cause):
        """Return the fault of the device of a rank that failed for this cause, or None.

        Of a device whose address the driver does not know any more, only the node is known.
        """
        for fault in self.faults:
            is_its_own = fault.rank is not None and fault.rank == candidate["rank"]
            is_unknown = fault.rank is None and fault.device is None
            explains = cause in CUDA_CAUSES and (is_its_own or is_unknown)
            explains = explains or (cause in VAGUE_CAUSES and is_its_own and fault.alone)
            is_here = fault.node == candidate["node"] and candidate["rank"] is not None
            if explains and is_here and _is_in_time(fault.when, candidate["when"]):
                return fault
        return None

    def sole_fault(self, before=None):
        """Return the fault that explains an end whose rank no log names, or None.

        All devices that failed are of one node, and one of them is named only where it is alone.
        before: a time by the middle clock that it must not follow.
        """
        faults = [fault for fault in self.faults if fault.alone and _is_in_time(fault.when, before)]
        if len({fault.node for fault in faults}) != 1:
            return None
        first = faults[0]
        if len({fault.rank for fault in faults} - {None}) > 1:
            return first._replace(rank=None, device=None)
        return next((fault for fault in faults if fault.rank is not None), first)

    def full_cards(self):
        """Return the FullCards of a hang, [] where every device that trains is as full.

        Suites that take all memory at the start leave none free on any device.
        """
        used, full = 0, []
        for name, report in self.reports.items():
            for card in report["cards"]:
                rank, total = self._rank_of(name, card), card["memory_total"]
                if report["moment"] != "hang" or rank is None or not total:
                    continue
                used += 1
                if (card["memory_used"] or 0) > FULL * total:
                    text = f"{card['memory_used']} of {total} MiB are in use"
                    full.append(FullCard(name, card["index"], rank, text))
        if len(full) == used:
            return []
        return full

    # --- lines of evidence

    def lines(self):
        """Return the lines of evidence, each with its source."""
        lines = []
        for name, report in self.reports.items():
            file = f"devices.{name}.json"
            blamed = [fault.text for fault in self.faults if fault.node == name]
            lines += [f"{name}: {text} ({file})" for text in dict.fromkeys(blamed)]
            lines += [f"{text} ({file})" for text in self._kernel_lines(name, report, blamed)]
            lines += [
                f"{name}: device {card['index']} has memory rows that wait for a reset ({file})"
                for card in report["cards"]
                if card["rows_pending"]
            ]
            if report["error"]:
                lines.append(f"{name}: its tool described no device: {report['error']} ({file})")
            if report["ras"]:
                lines += [f"{text} ({file})" for text in self._ras_lines(name, report["ras"])]
        return lines + [
            f"device {card.device} of {card.node} (rank {card.rank}) was full: {card.text}"
            f" (devices.{card.node}.json)"
            for card in self.full_cards()
        ]

    def _kernel_lines(self, name, report, blamed):
        """Return lines about what the kernel said that blames no device of the attempt."""
        source, lines = report["kernel"]["source"], []
        others = [
            line
            for line in report["kernel"]["lines"]
            if f"{source}: {line['text']}"[:_SHOWN] not in blamed
        ]
        for line in others[:MANY]:
            note = ""
            if is_device_fault(line):
                note = ", of a device that no rank uses"
            if line["xid"] in PROGRAM_XIDS:
                note = ", which is of the program and not of the device"
            elif line["kind"] == "oom" and (name, line["pid"]) in self.pids:
                note = f", which is rank {self.pids[name, line['pid']]}"
            lines.append(f"{name}: {source}: {line['text'][:_SHOWN]}{note}")
        if len(others) > MANY:
            lines.append(f"{name}: {source}: {len(others) - MANY} more lines")
        return lines

    def _ras_lines(self, name, ras):
        """Return lines about the processes that NCCL's RAS names."""
        if ras["error"]:
            return [f"{name}: NCCL's RAS did not answer: {ras['error']}"]
        words = {"dead": "calls dead", "silent": "has no answer of"}
        lines = [
            f"NCCL's RAS on {name} {words[entry['how']]} {self._name_process(entry)}"
            for entry in ras["named"]
        ]
        if not lines:
            lines = [f"NCCL's RAS on {name}: {line.strip()}" for line in ras["lines"]]
        return list(dict.fromkeys(lines))[:MANY]

    def _name_process(self, entry):
        """Return the words for a process that RAS names by its rank, pid and address."""
        node = self.hosts.get(entry["address"])
        rank = self.pids.get((node, entry["pid"]))
        if rank is not None:
            return f"rank {rank} on {node}"
        if entry["rank"] is not None and entry["pid"] is None:
            return f"rank {entry['rank']} of a communicator"
        return f"process {entry['pid']} on {node or entry['address']}"


def is_device_fault(line):
    """Return whether a line of the kernel's log tells of a fault of the device itself."""
    if line["kind"] == "xid":
        is_link = line["xid"] in LINK_XIDS and " Fatal " in line["text"]
        return is_link or line["xid"] in HARD_XIDS
    return line["kind"] == "off_bus"


def card_fault(card):
    """Return (words, whether they decide alone) of a device's fault, ("", False) without one.

    A count of ECC errors and an alarm may be older than the attempt.
    """
    if card["fault"]:
        return f"nvidia-smi: device {card['index']} says {card['fault']}", True
    if card["health"] in BAD_HEALTH:
        words = f"npu-smi: the health of device {card['index']} is {card['health']}"
        return words, card["health"] == "Critical"
    if card["ecc"]:
        words = f"nvidia-smi: device {card['index']} has {card['ecc']} memory errors that ECC could"
        return words + " not correct", False
    return "", False


def oom_pids(node):
    """Return the pids that the kernel of a node killed because memory was short.

    node: its findings.
    """
    lines = ((node.get("devices") or {}).get("kernel") or {}).get("lines") or ()
    return {line["pid"] for line in lines if line["kind"] == "oom" and line["pid"]}


def _is_in_time(fault, end):
    """Return whether a fault did not follow an end, as far as both times are known."""
    return fault is None or end is None or fault <= end + AFTER
