# SPDX-License-Identifier: Apache-2.0
"""When a log's line was written: the dates that training suites and frameworks print, as unix
seconds. Pure, but for `span` and `utc_offset`.

Known are `[11/20 19:17:36]` (PaddleDetection), `[2026/11/20 19:14:12]` (PaddleOCR, PaddleSeg since
v2.9.1), `2026-11-20 19:12:24 [INFO]` (PaddleSeg), `[2026-11-20 19:12:25,145]` (paddle.distributed,
MindOCR), `LAUNCH INFO 2026-11-20 19:12:18,345` (paddle.distributed.launch), `I1120 19:14:11.964748`
(glog) and `[WARNING] DISTRIBUTED(1347,7fcf,python):2026-11-20-19:03:17.601.560` (MindSpore). None
of them names a zone, and two have no year.
"""

from __future__ import annotations

import calendar
import os
import re
import time

EDGE = 65536  # bytes at a log's beginning and end in which its first and last date are looked for
LATEST = 4e9  # no log of ours was written in 2096; a file's time can be anything
_DATE = re.compile(
    r"^(?:\[[A-Z]+\] [A-Z_]+\([0-9]+[,:][0-9a-f]+,[^)]{0,80}\):|LAUNCH [A-Z]+ |\[)?"
    r"(?:(\d{4})[-/])?(\d\d)[-/](\d\d)[ T-](\d\d):(\d\d):(\d\d)(?:[.,](\d{3})(?:\.(\d{3}))?)?"
    r"|^[IWEF](?P<month>\d\d)(?P<day>\d\d)"
    r" (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)\.(?P<micro>\d{6})"
)


class Clock:
    """Dates of one node as unix seconds. `offset`: seconds its zone is east of UTC; `near`: unix
    time near which a date without a year lies.
    """

    def __init__(self, offset, near):
        self.offset = offset or 0.0
        self.near = min(max(near, 0.0), LATEST)
        self._days = {}

    def read(self, text):
        """The unix time of a line, or of a date alone; None where it does not begin with one."""
        match = _DATE.match(text)
        if match is None:
            return None
        year, month, day, hour, minute, second, milli, micro = match.groups()[:8]
        if month is None:
            year, milli = None, None
            month, day, hour, minute, second, micro = match.groups()[8:]
            fraction = int(micro) / 1e6
        else:
            fraction = int((milli or "000") + (micro or "000")) / 1e6
        key = (year, month, day)
        if key not in self._days:
            if len(self._days) > 1000:
                self._days.clear()  # a log of our trainings has few days
            self._days[key] = self._day(year, int(month), int(day))
        begin = self._days[key]
        return (
            None
            if begin is None
            else begin + int(hour) * 3600 + int(minute) * 60 + int(second) + fraction - self.offset
        )

    def _day(self, year, month, day):
        if not (1 <= month <= 12 and 1 <= day <= 31):
            return None
        if year is not None:
            return calendar.timegm((int(year), month, day, 0, 0, 0)) if int(year) >= 1970 else None
        middle = time.gmtime(self.near).tm_year
        return min(
            (calendar.timegm((y, month, day, 0, 0, 0)) for y in (middle - 1, middle, middle + 1)),
            key=lambda t: abs(t - self.near),
        )


def utc_offset(when):
    """Seconds that this machine's zone is east of UTC at a unix time, daylight saving included."""
    return time.localtime(min(max(when, 0.0), LATEST)).tm_gmtoff


def span(descriptor, offset, near=None):
    """(unix time of the first dated line, of the last one) of an open log, by its ends alone; None
    where there is none.

    near: a unix time that says which year is meant; without it the file's last write does, which a
    copy may have lost.
    """
    info = os.fstat(descriptor)
    clock = Clock(offset, info.st_mtime if near is None else near)
    head = os.pread(descriptor, EDGE, 0)
    tail = os.pread(descriptor, EDGE, max(0, info.st_size - EDGE))
    return _first(clock, _lines(head)), _first(clock, reversed(_lines(tail)))


def _lines(data):
    # A progress bar ends its line with CR; what follows may be dated.
    return data.replace(b"\0", b"").replace(b"\r", b"\n").decode("utf-8", "replace").split("\n")


def _first(clock, lines):
    return next((when for when in (clock.read(line) for line in lines) if when is not None), None)
