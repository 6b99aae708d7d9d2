# SPDX-License-Identifier: Apache-2.0
"""Put errors that a training handled into the logs of the corpus, and grade the verdict again.

A place lies before the event that ended the rank: what follows an uncaught error of the main thread
can come from a destructor or another thread only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from pathlib import Path

import corpus_support as corpus

SITE = "/home/trainer/.trainyard/env/35fad65f502f8a28/lib/python3.11/site-packages"
TRACEBACK = "Traceback (most recent call last):"
FRAME = f'  File "{SITE}/ppdata/cache.py", line 41, in load\n    return read(path)\n'
# What a handler at the module level of the script or of a library prints.
SCRIPT = '  File "/home/trainer/code/tools/train.py", line 12, in <module>\n    import apex\n'
LIBRARY = f'  File "{SITE}/ppdata/__init__.py", line 3, in <module>\n    import apex\n'


def caught(final: str, frame: str = FRAME) -> str:
    """A traceback as traceback.print_exc() prints it."""
    return f"{TRACEBACK}\n{frame}{final}\n"


RECORDS = {
    "paddledetection": "[11/20 21:35:46] ppdet.data.source ERROR: ",
    "paddleocr": "[2026/11/20 21:36:05] ppocr ERROR: ",
    "paddleseg": "2026-11-20 21:56:11 [ERROR]\t",
    "mindocr": "[2026-11-20 23:52:38] mindocr.data ERROR - ",
}
# Name: the text, with {record} for the beginning of a record in the suite's own log format.
KINDS = {
    "print_exc": caught("KeyError: 'cached_size'"),
    "logger_exception": "{record}the cache is skipped\n" + caught("KeyError: 'cached_size'"),
    "destructor": (
        "Exception ignored in: <function Pool.__del__ at 0x7f8a1c0d5e40>\n"
        + caught("AttributeError: 'NoneType' object has no attribute 'close'")
    ),
    "thread": (
        "Exception in thread Thread-7 (report):\n"
        + caught("ConnectionRefusedError: [Errno 111] Connection refused")
    ),
    "loader_restarted": (
        "Process Process-3:\n"
        + caught("OSError: [Errno 24] Too many open files")
        + "ERROR: Unexpected BUS error encountered in DataLoader worker.\n"
        + "loader worker 3 was started again\n"
    ),
    "chain": (
        caught("KeyError: 'size'")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + caught("ValueError: no size in the header")
    ),
    "cause": (
        caught("FileNotFoundError: [Errno 2] No such file or directory: '/tmp/index.pkl'")
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + caught("RuntimeError: the index has to be built")
    ),
    "warning": (
        f"{SITE}/ppdata/cache.py:41: UserWarning: RuntimeError: the cache is off: No space left\n"
        "  warnings.warn(\n"
    ),
    "optional_import": caught("ModuleNotFoundError: No module named 'apex'"),
    "script_import": caught("ModuleNotFoundError: No module named 'apex'", SCRIPT),
    "library_import": caught("ModuleNotFoundError: No module named 'apex'", LIBRARY),
    "main_retried": caught("KeyError: 'cached_size'", SCRIPT + FRAME),
    "import_line": "Warning: import apex failed: No module named 'apex', using plain layers\n",
    "download_retried": (
        "WARNING:urllib3.connectionpool:Retrying (Retry(total=2, connect=None)) after connection"
        " broken by 'NewConnectionError: Failed to establish a new connection'\n"
        + caught("urllib.error.URLError: <urlopen error [Errno 110] Connection timed out>")
    ),
    "memory_probe": caught("MemoryError: Unable to allocate 512. GiB for an array"),
    "error_line": "[ERROR] libpng: sRGB: out of memory for a chunk, ignored\n",
    "nccl_warn": (
        "node1:2131:2140 [0] misc/ibvwrap.cc:63 NCCL WARN Failed to open libibverbs.so[.1]\n"
    ),
    "cache_pickle": caught("_pickle.UnpicklingError: pickle data was truncated"),
    "cache_json": caught("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"),
}
PLACES = ("start", "middle", "late", "last")
# Logs that hold the same lines as those of another failure: (case, kind, place).
ALIKE = {
    # what sys.exit("...") prints is the last line: only a destructor prints after it
    ("det-data-missing", None, "last"),
    ("mpirun-data-missing", None, "last"),
    # a worker that died right before its loader reports a dead worker
    ("ocr-worker-exits", "loader_restarted", "last"),
    ("ocr-worker-exits", "loader_restarted", "late"),
    # an exception of the script right before a crash, as a crash of the interpreter's end has it
    ("det22-segv-rank3", "script_import", "last"),
    ("det22-segv-rank3", "main_retried", "last"),
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
    r"|^Exception in thread|^Exception ignored|Error Message Summary"
)


class Case:
    """One case of the corpus, unpacked, whose logs can be changed and restored."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.right = name, folder, corpus.answer(name)
        corpus.unpack(name, folder)
        self.logs = {}
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
        decided = corpus.decide(self.folder, self.right["unreachable"])
        return corpus.grade(decided, self.right)

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


def unpack_all(folder: Path) -> list[Case]:
    """Return the cases that are right without noise, below a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    cases = []
    for name in corpus.names():
        (folder / name).mkdir(parents=True)
        case = Case(name, folder / name)
        if case.base == "right":
            cases.append(case)
    return cases
