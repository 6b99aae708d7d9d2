# SPDX-License-Identifier: Apache-2.0
"""Attempts on four nodes with eight ranks each, made from the texts of tests/corpus/wide.yml.

One rank fails, or the ranks of one node do. The others print what such ranks print, their launchers
end the rest, and the node that failed first stops the other ones. Each node has a clock of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import random
import string
import tarfile
import time
import typing
from pathlib import Path

import corpus_support as corpus
import yaml

TEXTS = Path(__file__).resolve().parents[1] / "corpus" / "wide.yml"
NODES, LOCAL = 4, 8
SIZE = NODES * LOCAL
STARTED = 1795211956.0
ASKED = 90.0  # seconds after the end of all at which the nodes are asked
NEVER = math.inf
# Real cases whose plan and step lines are taken.
PLANS = {"paddle": "ocr22-sigkill-rank0", "mindspore": "msrun22-raise-rank2"}
STEPS = {
    "paddle": (
        "[2026/11/20 21:49:14] ppocr INFO: epoch: [1/60], global_step: 8, lr: 0.003000, acc:"
        " 0.000000, norm_edit_dis: 0.000000, loss: 18.870156, avg_reader_cost: 0.00394 s,"
        " avg_batch_cost: 0.11922 s, avg_samples: 16.0, ips: 134.20313 samples/s, eta: 0:03:47\n"
    ),
    "mindspore": (
        "[2026-11-20 23:55:31] mindocr.utils.callbacks INFO - epoch: [1/9] step: [4/32], loss:"
        " 27.159426, lr: 0.000750, per step time: 1318.534 ms, fps per card: 6.07 img/s\n"
    ),
}
WARNING = (
    "/home/trainer/env/lib/python3.11/site-packages/paddle/nn/layer/norm.py:824: UserWarning:"
    " When training, we now always track global mean and variance.\n  warnings.warn(\n"
)
UNREACHABLE = "Failed to connect to the host via ssh: No route to host"


def read_texts():
    """Return {"kinds": {name: kind}, "words": {name: words}} of wide.yml."""
    texts = yaml.safe_load(TEXTS.read_text())
    return {key: {item["name"]: item for item in texts[key]} for key in texts}


TEXT = read_texts()
KINDS, WORDS = TEXT["kinds"], TEXT["words"]
# Seconds by which the clocks of the four nodes are ahead.
CLOCKS = {
    "one clock": (0.0, 0.0, 0.0, 0.0),
    "2 s apart": (0.0, -1.1, 0.9, 0.4),
    "4 s apart": (1.5, -2.0, 2.0, -0.7),
    "one 4 s ahead": (0.0, 0.0, 4.0, 0.0),
    "one 40 s behind": (0.0, 0.0, -40.0, 0.0),
}


class Scene(typing.NamedTuple):
    """One attempt."""

    kind: str
    suite: str
    guilty: int
    words: str
    clocks: str

    @property
    def seed(self):
        """The text that all chances of the scene come from."""
        return "/".join(map(str, self))


def node_of(rank):
    return f"node{rank // LOCAL + 1}"


def address_of(rank):
    return f"198.51.100.{11 + rank // LOCAL}"


def fits(kind, words, suite):
    """Return whether peers of a kind of failure print these words in a suite."""
    both = ["paddle", "mindspore"]
    if suite not in kind.get("suites", both) or suite not in words.get("suites", both):
        return False
    if words.get("of_hang"):
        return words["name"] in kind.get("words", ())
    return words["name"] in kind.get("words", [words["name"]])


def scenes():
    """Yield all scenes: each kind, suite, rank, words of the peers, and clocks."""
    for kind in KINDS.values():
        ranks = range(SIZE)
        if kind.get("who") == "rank 0":
            ranks = range(1)
        for suite in PLANS:
            for words in WORDS.values():
                if not fits(kind, words, suite):
                    continue
                for guilty in ranks:
                    for clocks in CLOCKS:
                        yield Scene(kind["name"], suite, guilty, words["name"], clocks)


@dataclasses.dataclass
class _End:
    """The end of a rank. Times are true ones, of no node's clock."""

    printed: float
    ended: float
    code: int | None
    signal: str | None
    text: str


class Attempt:
    """The files of a scene, and the right answer."""

    def __init__(self, scene):
        self.scene = scene
        self.kind, self.words = KINDS[scene.kind], WORDS[scene.words]
        self.random = random.Random(scene.seed)
        self.names = [f"node{number + 1}" for number in range(NODES)]
        self.ahead = dict(zip(self.names, CLOCKS[scene.clocks]))
        self.failed_at = STARTED + (8 if self.kind.get("early") else 60)
        self.guilty = self._find_guilty()
        self.guard = self.kind.get("guard")
        self.absent = node_of(scene.guilty) if self.guard == "lost" else None
        self.ends: dict[int, _End] = {}
        self.launcher_ends: dict[str, float] = {}
        self.noticed: dict[str, float] = {}  # when a launcher saw the first failed rank
        self.stops: dict[str, tuple[str, str | None, float]] = {}
        self._fail()
        self._react()
        self._end_launchers()
        self._stop_nodes()

    def _find_guilty(self):
        if self.kind.get("who") == "node":
            first = self.scene.guilty // LOCAL * LOCAL
            return set(range(first, first + LOCAL))
        return {self.scene.guilty}

    def right(self):
        """Return the right answer, as answer.yml of the corpus has it."""
        hangs = self.guard == "hang" and not self.kind.get("guard")
        return {
            "outcome": self.kind.get("outcome", ["failed"]),
            "ranks": sorted(self.guilty),
            "nodes": [node_of(self.scene.guilty)],
            "causes": self.kind["causes"] + ["hang"] * hangs,
            "unknown": self.kind.get("unknown", False),
        }

    # --- what happens

    def _fail(self):
        """Set the ends of the guilty ranks."""
        end = self.kind.get("end")
        for rank in self.guilty:
            at = self.failed_at
            if len(self.guilty) > 1:
                at += self.random.uniform(0, 1.5)
            if end is None:
                self.ends[rank] = _End(at, NEVER, None, None, "")
            elif isinstance(end, int):
                # An interpreter takes its time to end after it has printed why.
                linger = self.random.uniform(0.05, 1.2) if self.kind["log"] else 0.0
                self.ends[rank] = _End(at, at + linger, end, None, self.kind["log"])
            else:
                self.ends[rank] = _End(at, at, None, end, self.kind["log"])

    def _react(self):
        """Set the ends of the others, by what they print."""
        seconds, end = self.words.get("seconds"), self.words.get("end")
        for rank in set(range(SIZE)) - self.guilty:
            at = NEVER
            if seconds:
                at = self.failed_at + self.random.uniform(*seconds)
            code, signal = (end, None) if isinstance(end, int) else (None, end)
            self.ends[rank] = _End(at, at, code, signal, self.words["log"])

    def _ranks_on(self, name):
        return [rank for rank in range(SIZE) if node_of(rank) == name]

    def _end_launchers(self):
        """Let each launcher end the rest of its ranks after the first that failed."""
        for name in self.names:
            ranks = self._ranks_on(name)
            failed = [r for r in ranks if self.ends[r].code != 0 and r not in self._lost()]
            first = min((self.ends[r].ended for r in failed), default=NEVER)
            if first == NEVER:
                self.launcher_ends[name] = NEVER
                continue
            noticed = self.noticed[name] = first + self.random.uniform(0.2, 1.0)
            for rank in ranks:
                self._end_by_launcher(rank, noticed)
            self.launcher_ends[name] = max(self.ends[r].ended for r in ranks) + 0.5

    def _lost(self):
        return self.guilty if self.absent else set()

    def _end_by_launcher(self, rank, noticed):
        """End a rank that still runs when its launcher has noticed a failure.

        Paddle's launcher sends SIGTERM, and SIGKILL to what does not go. msrun sends SIGKILL.
        """
        if self.ends[rank].ended <= noticed:
            return
        if self.scene.suite == "mindspore":
            self._kill(rank, noticed, 0.08, "SIGKILL")
        elif self.random.random() < 0.1:
            self._kill(rank, noticed, self.random.uniform(3, 6), "SIGKILL")
        else:
            self._kill(rank, noticed, self.random.uniform(0.05, 0.4), "SIGTERM")

    def _kill(self, rank, when, delay, signal):
        """End a rank by a signal. What it had not printed by then it does not print."""
        end = self.ends[rank]
        text = ""
        if end.printed <= when:
            text = end.text
        elif "seconds" not in self.words and rank not in self.guilty:
            has_handler = "SIGTERM" in self.words["log"]
            text = self.words["log"] if signal == "SIGTERM" or not has_handler else ""
        self.ends[rank] = _End(when, when + delay, None, signal, text)

    def _stop_nodes(self):
        """Stop the nodes that still run when the first has failed, or when a guard ends all.

        Where the rest waits for a rank that ended with 0, a guard ends all.
        """
        if min(self.launcher_ends.values()) == NEVER:
            self.guard = self.guard or "hang"
        if self.guard:
            by = self.guard_node()
            at = self.failed_at + 40
            for name in self.names:
                if name != self.absent and self.launcher_ends[name] > at:
                    stopper = ("guard", None) if name == by else ("peer", by)
                    self._stop(name, *stopper, at + (0.2 if name != by else 0))
            return
        first = min(self.launcher_ends, key=self.launcher_ends.get)
        at = self.launcher_ends[first] + 0.25
        for name in self.names:
            if self.launcher_ends[name] > at:
                self._stop(name, "peer", first, at)

    def _stop(self, name, by, source, at):
        self.stops[name] = (by, source, at)
        for rank in self._ranks_on(name):
            if self.ends[rank].ended > at:
                self._kill(rank, at, self.random.uniform(0.05, 0.4), "SIGTERM")
        self.launcher_ends[name] = max(
            at + 0.1, max(self.ends[r].ended for r in self._ranks_on(name))
        )

    def guard_node(self):
        """Return the node whose guard ends the training: not the guilty one."""
        return self.names[(self.names.index(node_of(self.scene.guilty)) + 1) % NODES]

    # --- files

    def lay(self, folder):
        """Write the files of all nodes below a folder. Return the clocks when they are asked."""
        plan = self._plan()
        asked = max(end for end in self.launcher_ends.values() if end != NEVER) + ASKED
        clocks = {}
        for number, name in enumerate(self.names):
            if name == self.absent:
                continue
            self._lay_node(folder / name, name, plan)
            # They are asked one after the other.
            clocks[name] = asked + 0.3 * number + self.ahead[name]
        return clocks

    def unreachable(self):
        return {self.absent: UNREACHABLE} if self.absent else {}

    def _plan(self):
        plan = json.loads(_real_plan(self.scene.suite))
        template = plan["launcher"]["rank_log"]
        plan["ranks"] = [
            {
                "rank": rank,
                "local_rank": rank % LOCAL,
                "node": node_of(rank),
                "device": str(rank % LOCAL),
                "env": {},
                "endpoint": f"{address_of(rank)}:{17000 + rank % LOCAL}",
                "log": template.format(rank=rank, local_rank=rank % LOCAL),
            }
            for rank in range(SIZE)
        ]
        plan["endpoints"] = [rank["endpoint"] for rank in plan["ranks"]]
        return plan

    def _lay_node(self, place, name, plan):
        (place / "log").mkdir(parents=True)
        ahead, ranks = self.ahead[name], self._ranks_on(name)
        launcher_end = self.launcher_ends[name]
        by, source, stopped_at = self.stops.get(name, (None, None, None))
        code = next((self.ends[r].code for r in self._in_order(ranks) if self.ends[r].code), 1)
        if stopped_at is None and all(self.ends[r].code == 0 for r in ranks):
            code = 0
        exit_note = {
            "exit_code": "exited",
            "exit_status": "0" if stopped_at else str(code),
            "oom_kills": 0,
            "peers": {},
            "service_result": "success" if stopped_at or not code else "exit-code",
            "stop_reason": None,
            "stopped_by": by,
            "stopped_from": source,
            "time": launcher_end + 0.05 + ahead,
        }
        if name == node_of(self.scene.guilty):
            exit_note.update(self.kind.get("unit", {}))
        files = {
            "plan.json": plan,
            "attempt.json": {"attempt": 1, "node": name, "started": STARTED + ahead, "version": 1},
            "exit.json": exit_note,
        }
        if stopped_at is not None:
            stop = {"by": by, "from": source, "time": stopped_at + ahead}
            files["stop.json"] = dict(stop, reason=self.guard)
        files.update(self._guard_files(name))
        for path, content in files.items():
            (place / path).parent.mkdir(exist_ok=True)
            (place / path).write_text(json.dumps(content))
        self._write_events(place, name)
        self._write_logs(place, name, plan)

    def _in_order(self, ranks):
        return sorted(ranks, key=lambda rank: self.ends[rank].ended)

    def _write_events(self, place, name):
        ahead, ranks = self.ahead[name], self._ranks_on(name)
        events = [{"event": "launched", "pid": 90, "time": STARTED + 1 + ahead, "oom_kills": 0}]
        for rank in ranks:
            child = {"rank": rank, "local_rank": rank % LOCAL, "pid": self.pid(rank)}
            start = STARTED + 2 + 0.1 * (rank % LOCAL) + ahead
            events.append({"event": "start", **child, "time": start, "endpoints_as_planned": True})
        for rank in self._in_order(ranks):
            end = self.ends[rank]
            if end.ended != NEVER:
                child = {"rank": rank, "local_rank": rank % LOCAL, "pid": self.pid(rank)}
                result = {"exit_code": end.code, "signal": end.signal}
                events.append({"event": "end", **child, "time": end.ended + ahead, **result})
        last = {"event": "launcher_end", "time": self.launcher_ends[name] + ahead}
        if name in self.stops:
            last.update(exit_code=None, signal="SIGTERM")
        else:
            last.update(exit_code=1, signal=None)
        if all(self.ends[r].code == 0 for r in ranks):
            last.update(exit_code=0, signal=None)
        events.append(last)
        (place / "ranks.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))

    def pid(self, rank):
        return 3000 + rank

    def _write_logs(self, place, name, plan):
        for entry in plan["ranks"]:
            if entry["node"] != name:
                continue
            rank = entry["rank"]
            end = self.ends[rank]
            text = self._beginning(rank)
            text += string.Template(end.text).substitute(self._facts(rank, end))
            path = place / entry["log"]
            path.write_text(text)
            written = min(end.printed, end.ended) + self.ahead[name]
            os.utime(path, (written, written))
        (place / "logs.txt").write_text(self._console(name))
        for log in plan["launcher"]["logs"]:
            if name == self.names[0]:
                (place / log).write_text("")

    def _beginning(self, rank):
        """Return what a rank has printed until its training failed."""
        text = WARNING if self.scene.suite == "paddle" else ""
        if rank == 0 and not self.kind.get("early"):
            text += STEPS[self.scene.suite]
        return text

    def _facts(self, rank, end):
        """Return what the texts name, for one rank."""
        when = time.gmtime(min(end.printed, end.ended) + self.ahead[node_of(rank)])
        before, guilty = (rank - 1) % SIZE, self.scene.guilty
        return {
            "rank": rank,
            "local": rank % LOCAL,
            "card": rank % LOCAL,
            "node": node_of(rank),
            "address": address_of(rank),
            "pid": self.pid(rank),
            "unix": int(min(end.printed, end.ended) + self.ahead[node_of(rank)]),
            "glog": time.strftime("%m%d %H:%M:%S.651736", when),
            "cann": time.strftime("%Y-%m-%d-%H:%M:%S.651.736", when),
            "stamp": time.strftime("%Y-%m-%d %H:%M:%S,629", when),
            "guilty": guilty,
            "guilty_card": guilty % LOCAL,
            "guilty_node": node_of(guilty),
            "guilty_address": address_of(guilty),
            "before": before,
            "before_address": address_of(before),
        }

    def _console(self, name):
        """Return what the launcher prints: msrun names the first child that failed."""
        ranks = [r for r in self._in_order(self._ranks_on(name)) if self.ends[r].code != 0]
        stopped_at = self.stops.get(name, (None, None, NEVER))[2]
        if not ranks or self.noticed.get(name, NEVER) > stopped_at:
            return ""
        end = self.ends[ranks[0]]
        number = end.code
        if number is None:
            number = -{"SIGKILL": 9, "SIGSEGV": 11, "SIGABRT": 6, "SIGTERM": 15}[end.signal]
        if self.scene.suite == "mindspore":
            head = "[ERROR] ME(90:139845183238208,MainProcess):2026-11-21-06:09:21.717.000"
            return (
                f"{head} [mindspore/parallel/cluster/process_entity/_api.py:363] Worker process"
                f" {self.pid(ranks[0])} exit with exception. Error code: {number}.\n"
            )
        local = ranks[0] % LOCAL
        return (
            "LAUNCH INFO 2026-11-20 21:49:15,604 Pod failed\nLAUNCH ERROR 2026-11-20 21:49:15,604"
            f" Container failed !!!\nContainer rank {local} status failed cmd ['python', '-u',"
            f" 'tools/train.py'] code {number} log ./log/workerlog.{local} \nenv {{}}\n"
        )

    def _guard_files(self, name):
        """Return {path: content} of what the guard of a node has written."""
        guard, at = self.guard, self.failed_at + 40 + self.ahead[name]
        files = {}
        if guard == "hang":
            running = [r for r in self._ranks_on(name) if self.ends[r].ended > self.failed_at + 40]
            seen = [self._state(rank) for rank in running]
            files["evidence/state.json"] = {"ranks": seen}
        if not guard or name != self.guard_node():
            return files
        if guard == "hang":
            files["stall.json"] = {
                "phase": "step",
                "budget": 30,
                "seconds": 30.4,
                "since": at - 30.4,
                "time": at,
                "step": {"epoch": "1", "global_step": "8"},
                "last_line": None,
                "by": name,
                "ranks": [0],
            }
        else:
            how = "it says nothing for 17 s, and at its SSH port: nobody answered within 6 s"
            loss = {"node": self.absent, "how": how, "seconds": 17.0, "since": at - 30, "by": name}
            files["loss.json"] = dict(loss, time=at)
        return files

    def _state(self, rank):
        """Return what the guard saw of a rank that hangs: one sleeps where no rank waits."""
        where = ["all_reduce (group.py:12)", "step (train.py:3)", "main (train.py:9)"]
        if rank in self.guilty:
            where = ["read (tokens.py:41)", "__getitem__ (tokens.py:77)", "main (train.py:9)"]
        words = {"state": "S", "state_words": "asleep", "wchan": "", "cpu": 0.0}
        return {"rank": rank, **words, "where": where, "stack_from": "py-spy", "why": ""}


@functools.cache
def _real_plan(suite):
    """Return the text of the plan of a real case."""
    with tarfile.open(corpus.CASES / PLANS[suite] / "nodes.tar.xz") as archive:
        member = next(m for m in archive.getmembers() if m.name.endswith("plan.json"))
        return archive.extractfile(member).read().decode()


def judge(folder, scene):
    """Return (grade, why, verdict) of a scene, its attempt laid below a folder."""
    attempt = Attempt(scene)
    clocks = attempt.lay(folder)
    decided = corpus.decide(folder, attempt.unreachable(), clocks)
    return (*corpus.grade(decided, attempt.right()), decided)
