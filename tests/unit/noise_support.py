# SPDX-License-Identifier: Apache-2.0
"""Put errors that a training handled into the logs of the corpus, and grade the verdict again.

A place lies before the event that ended the rank: what follows an uncaught error of the main thread
can come from a destructor or another thread only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from pathlib import Path
from unittest import mock

import corpus_support as corpus
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import evidence
from noise_kinds import KINDS

RECORDS = {
    "paddledetection": "[11/20 21:35:46] ppdet.data.source ERROR: ",
    "paddleocr": "[2026/11/20 21:36:05] ppocr ERROR: ",
    "paddleseg": "2026-11-20 21:56:11 [ERROR]\t",
    "mindocr": "[2026-11-20 23:52:38] mindocr.data ERROR - ",
}
PLACES = ("start", "middle", "late", "last")
# What a handler in the script's own module level prints, as an uncaught exception is printed.
SCRIPTS = ("script_import", "main_retried", "remote_traceback", "loguru")
CRASHES = ("det22-segv-rank3", "msrun-segv-evaluation", "ocr-segv", "seg-abort")
# Logs that hold the same lines as those of another failure: (case, kind, place).
ALIKE = {
    # what sys.exit("...") prints is the last line: only a destructor prints after it
    ("det-data-missing", None, "last"),
    ("mpirun-data-missing", None, "last"),
    # a worker that died right before its loader reports a dead worker
    ("ocr-worker-exits", "loader_restarted", "last"),
    ("ocr-worker-exits", "loader_restarted", "late"),
    # an exception of the script right before a crash, as a crash of the interpreter's end has it
    *((case, kind, "last") for case in CRASHES for kind in SCRIPTS),
    *(
        (case, kind, "late")
        for case in ("ocr-segv", "seg-abort", "det22-segv-rank3")
        for kind in SCRIPTS
    ),
    # a traceback right before os._exit(1), as of a handler that gives up
    ("det22-exit-evaluation", None, "last"),
    # the rank slept right after it, and its end was not seen
    ("mpirun-cluster-timeout", "script_import", "start"),
    ("mpirun-cluster-timeout", "script_import", "middle"),
    ("mpirun-cluster-timeout", "script_import", "late"),
    ("mpirun-cluster-timeout", "script_import", "last"),
    ("mpirun-cluster-timeout", "main_retried", "start"),
    ("mpirun-cluster-timeout", "main_retried", "middle"),
    ("mpirun-cluster-timeout", "main_retried", "late"),
    ("mpirun-cluster-timeout", "main_retried", "last"),
}


def is_alike(case: str, kind: str, place: str) -> bool:
    """Whether a case with a noise has the log of another failure."""
    return (case, kind, place) in ALIKE or (case, None, place) in ALIKE


WHOM = ("innocent", "guilty", "all")
_EVENT = re.compile(
    r"Traceback \(most|^terminate called|^Fatal Python error|^\[ERROR\]|^ERROR: Unexpected"
    r"|^Exception in thread|^Exception ignored|Error Message Summary|^usage: |can't open file"
)


scan = evidence.scan


class Case:
    """One case of the corpus, unpacked, whose logs can be changed and restored."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.right = name, folder, corpus.answer(name)
        corpus.unpack(name, folder)
        self.logs, self._scanned = {}, {}
        for path in sorted(folder.glob("*/plan.json")):
            plan = json.loads(path.read_text())
            self.suite = plan["suite"]["name"]
            for rank in plan["ranks"]:
                log = path.parent / _log_of(rank, plan["launcher"]["rank_log"])
                if rank["node"] == path.parent.name and log.is_file():
                    self.logs[rank["rank"]] = log
        self.base = self.grade()[0]

    def grade(self) -> tuple[str, str]:
        """The grade of the verdict on the logs as they are, and what is wrong."""
        with mock.patch.object(evidence, "scan", self._scan):
            decided = corpus.decide(self.folder, self.right["unreachable"])
        return corpus.grade(decided, self.right)

    def _scan(self, descriptor, table, ended=None):
        """What the parser finds in a log, once for each content: most logs do not change."""
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        key = (hashlib.sha256(data).digest(), table.watch.pattern, ended)
        if key not in self._scanned:
            self._scanned[key] = json.dumps(scan(descriptor, table, ended))
        return json.loads(self._scanned[key])

    def ranks(self, whom: str) -> list[int]:
        """The ranks that get the noise, [] where the case has none of them."""
        guilty = set(self.right.get("ranks") or ())
        if whom == "innocent":
            return [rank for rank in self.logs if rank not in guilty]
        if whom == "guilty":
            return [rank for rank in self.logs if rank in guilty]
        return list(self.logs)

    def grade_with(self, kind: str, place: str, whom: str) -> tuple[str, str]:
        """The grade with a noise at a place in the logs of some ranks."""
        kept = {}
        for rank in self.ranks(whom):
            log = self.logs[rank]
            kept[log] = (log.read_bytes(), log.stat())
            text = kept[log][0].decode("utf-8", "surrogateescape")
            noise = KINDS[kind].replace("{record}", RECORDS[self.suite])
            write(log, put(text, noise, place).encode("utf-8", "surrogateescape"), kept[log][1])
        try:
            return self.grade()
        finally:
            for log, (data, info) in kept.items():
                write(log, data, info)


def _log_of(rank: dict, template: str) -> str:
    path = rank.get("log")
    if isinstance(path, str):
        return path
    return template.replace("{local_rank}", str(rank["local_rank"])).replace(
        "{rank}", str(rank["rank"])
    )


def write(log: Path, data: bytes, info: os.stat_result) -> None:
    """Write a log and keep its times, which are evidence."""
    log.write_bytes(data)
    os.utime(log, ns=(info.st_atime_ns, info.st_mtime_ns))


def put(text: str, noise: str, place: str) -> str:
    """Return a log with a noise at a place before the event that ended the rank."""
    lines = text.split("\n")
    end = next((n for n, line in enumerate(lines) if _EVENT.search(line)), len(lines) - 1)
    at = {"start": 0, "middle": end // 2, "late": max(0, end - 3), "last": end}[place]
    return "\n".join([*lines[:at], noise.rstrip("\n"), *lines[at:]])


def sample(case: str, kind: str, place: str, whom: str, one_of: int) -> bool:
    """Whether a combination is in the sample of one in so many, the same at every run."""
    return zlib.crc32(f"{case} {kind} {place} {whom}".encode()) % one_of == 0


def grade_case(name: str, one_of: int) -> list[tuple]:
    """[(case, kind, place, whom, grade)] of a case, [] where it is not right without noise."""
    folder = Path(tempfile.mkdtemp(prefix="noise-"))
    try:
        (folder / name).mkdir()
        case = Case(name, folder / name)
        if case.base != "right":
            return []
        return [
            (name, kind, place, whom, case.grade_with(kind, place, whom))
            for kind in KINDS
            for whom in WHOM
            if case.ranks(whom)
            for place in PLACES
            if not is_alike(name, kind, place) and sample(name, kind, place, whom, one_of)
        ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
