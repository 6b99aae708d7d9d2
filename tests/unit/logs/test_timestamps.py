# SPDX-License-Identifier: Apache-2.0
"""Dates of log lines as unix seconds, in every form that the suites and frameworks print."""

from __future__ import annotations

import calendar
import os
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.logs import parser
from ansible_collections.trainyard.cluster.plugins.module_utils.logs.timestamps import (
    EDGE,
    Clock,
    span,
    utc_offset,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.suites import suite_file

NEAR = calendar.timegm((2026, 11, 20, 12, 0, 0))
AT = calendar.timegm((2026, 11, 20, 19, 17, 36))
# Lines of real logs (runs of 2026-11-20, tests/fixtures/series and tests/samples/logs).
LINES = {
    "paddledetection": (
        "[11/20 19:17:36] ppdet.data.source.coco INFO: Load [96 samples valid",
        0.0,
    ),
    "paddleocr": ("[2026/11/20 19:17:36] ppocr INFO: train from scratch", 0.0),
    "paddleseg": ("2026-11-20 19:17:36 [INFO]\t[TRAIN] epoch: 1, iter: 3/30, loss: 9.0936", 0.0),
    "paddleseg since 2.9.1": ("[2026/11/20 19:17:36] INFO: [TRAIN] epoch: 1, iter: 3/30", 0.0),
    "paddle.distributed": (
        (
            "[2026-11-20 19:17:36,145] [    INFO] distributed_strategy.py:214 - distributed"
            " strategy initialized"
        ),
        0.145,
    ),
    "its launcher": ("LAUNCH INFO 2026-11-20 19:17:36,345 -----------  Configuration  ----", 0.345),
    "glog": (
        "I1120 19:17:36.964748  4602 tcp_utils.cc:181] The server starts to listen on IP_ANY:17000",
        0.964748,
    ),
    "mindocr": (
        "[2026-11-20 19:17:36] mindocr.utils.callbacks INFO - epoch: [1/2] step: [8/32]",
        0.0,
    ),
    "mindspore": (
        (
            "[WARNING] DISTRIBUTED(1347,7fcfe6f65100,python):2026-11-20-19:17:36.601.560"
            " [mindspore/ccsrc/distributed"
        ),
        0.60156,
    ),
    "mindspore's python": (
        (
            "[WARNING] ME(1664:140084387717184,MainProcess):2026-11-20-19:17:36.172.000"
            " [mindspore/communication"
        ),
        0.172,
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_every_form(name):
    text, fraction = LINES[name]
    assert Clock(0, NEAR).read(text) == pytest.approx(AT + fraction, abs=1e-6)
    assert Clock(8 * 3600, NEAR).read(text) == pytest.approx(AT + fraction - 8 * 3600, abs=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Done (t=0.00s)",
        "loss at 2026-11-20 19:17:36",
        "[13/32 19:17:36] x",
        "2026-00-20 19:17:36",
        "99/99 19:17:36",
        "[0000/11/20 19:17:36]",
        "I11",
    ],
)
def test_what_is_no_date_at_a_lines_beginning(text):
    assert Clock(0, NEAR).read(text) is None


def test_a_year_that_is_not_printed_is_the_nearest():
    new_year = calendar.timegm((2027, 1, 1, 0, 0, 0))
    for near in (new_year - 3600, new_year + 3600):
        clock = Clock(0, near)
        assert clock.read("[12/31 23:59:59] x") == new_year - 1
        assert clock.read("[01/01 00:00:01] x") == new_year + 1


@pytest.mark.parametrize("name", suite_file.names())
def test_the_date_of_every_suites_step_lines_is_read(name, root):
    """A new suite's form has to be known here, or its curves have no time."""
    table = parser.Table(suite_file.load(name)["logs"])
    real = [
        root / "tests" / "fixtures" / "series" / run / "attempt-1" / "rank-000.node1.log"
        for run in ("failed", "evaluated", "msrun", "recognition")
    ]
    texts = [
        line
        for path in real
        for line in path.read_text().splitlines()
        if any(pattern.search(line) for pattern in table.step)
    ]
    times = [
        Clock(0, NEAR).read(match.group("time"))
        for line in texts
        for match in (table.fields[0].search(line),)
        if match
    ]
    assert len(times) == len(texts) > 0
    assert all(when is not None and abs(when - NEAR) < 86400 for when in times)


def test_the_first_and_the_last_date_of_a_log(tmp_path):
    path = tmp_path / "workerlog.0"
    middle = b"[11/20 19:17:50] not looked at\n" + b"x" * 70 + b"\n"
    path.write_bytes(
        b"\0\0warning\n[11/20 19:17:36] begin\n"
        + middle * 2000
        + b"bar\r[11/20 19:18:00] end\r\nDone\n"
        + b"\xff\xfe"
    )
    os.utime(path, (NEAR, NEAR))
    assert path.stat().st_size > 2 * EDGE
    with path.open("rb") as handle:
        assert span(handle.fileno(), 3600) == (AT - 3600, AT + 24 - 3600)
        assert handle.tell() == 0
    path.write_bytes(b"no date\n" * 10)
    with path.open("rb") as handle:
        assert span(handle.fileno(), 0) == (None, None)


def test_this_machines_zone(monkeypatch):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        assert (
            utc_offset(calendar.timegm((2026, 1, 1, 0, 0, 0))),
            utc_offset(calendar.timegm((2026, 7, 1, 0, 0, 0))),
        ) == (3600, 7200)
        assert utc_offset(1e30) == utc_offset(4e9)  # a file's time can be anything
    finally:
        monkeypatch.undo()
        time.tzset()
