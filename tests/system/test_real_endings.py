# SPDX-License-Identifier: Apache-2.0
"""The verdict on the ends of real Python processes, whose output and exit codes are their own.

tests/corpus/endings has the scripts. Each is the guilty rank of two. The other one prints what a
rank prints that lost its peer.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import line_cases
import pytest
import yaml

ENDINGS = Path(__file__).resolve().parents[1] / "corpus" / "endings" / "python.yml"
# TRAINYARD_PYTHON names another interpreter to try.
PYTHON = os.environ.get("TRAINYARD_PYTHON", sys.executable)
BEGIN = """\
import asyncio, atexit, concurrent.futures, ctypes, faulthandler, gc, logging, multiprocessing, os
import signal, subprocess, sys, threading, time, traceback, warnings

def step(count):
    for number in range(count):
        print('working on part', number)

print('loading annotations into memory...')
"""
GUILTY = 1


def endings():
    """The endings, each a mapping."""
    return yaml.safe_load(ENDINGS.read_text())


def start(script, folder):
    """Return (output, exit code, signal) of a script that an interpreter runs."""
    path = folder / "train.py"
    path.write_text(BEGIN + script)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    ended = subprocess.run(
        [PYTHON, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        timeout=60,
    )
    text = ended.stdout.decode("utf-8", "replace")
    if ended.returncode < 0:
        return text, None, signal.Signals(-ended.returncode).name
    return text, ended.returncode, None


def lay(folder, text, code, signal_name):
    """Lay an attempt whose guilty rank printed a text and ended in a way."""
    line_cases.lay(folder, [line_cases.LOST, text], GUILTY)
    path = folder / "node2" / "ranks.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    for event in events:
        if event["event"] == "end":
            event.update(exit_code=code, signal=signal_name)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def judge(ending, folder):
    """Return (grade, why, verdict) of an ending, after its real end was checked."""
    (folder / "code").mkdir()
    text, code, signal_name = start(ending["script"], folder / "code")
    assert (code, signal_name) == (ending.get("code"), ending.get("signal")), text
    lay(folder / "attempt", text, code, signal_name)
    right = {"outcome": ["failed"], "ranks": [GUILTY], "nodes": [], "causes": ending["causes"]}
    decided = line_cases.corpus.decide(folder / "attempt")
    return (*line_cases.corpus.grade(decided, right), decided)


def version():
    """Return the version of the interpreter, as a list."""
    code = "import sys; print(*sys.version_info[:2])"
    shown = subprocess.run([PYTHON, "-c", code], stdout=subprocess.PIPE, check=True).stdout
    return [int(part) for part in shown.split()]


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """[(ending, grade, why, verdict)] of all endings that this interpreter has."""
    own = version()
    return [
        (ending, *judge(ending, tmp_path_factory.mktemp("ending")))
        for ending in endings()
        if ending.get("since", own) <= own
    ]


def test_no_real_ending_is_taken_for_another(graded):
    for ending, grade, why, decided in graded:
        print(f"{ending['name']:48} {grade:8} {why:8} {decided['cause']}")
    unknown = [ending["name"] for ending, grade, *_rest in graded if grade == "unknown"]
    wrong = [(e["name"], why, d["text"]) for e, grade, why, d in graded if grade == "wrong"]
    print(f"{len(graded)} endings: {len(unknown)} unknown, {len(wrong)} wrong")
    assert wrong == []
    assert len(unknown) <= len(graded) // 20, unknown


def test_the_error_that_ended_a_process_is_quoted(graded):
    for ending, grade, _why, decided in graded:
        if ending.get("says") and grade == "right":
            assert ending["says"] in decided["error"]["text"], ending["name"]
