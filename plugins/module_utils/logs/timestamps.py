# SPDX-License-Identifier: Apache-2.0
"""Dates of log lines as unix seconds. Pure, but for `span` and `utc_offset`.

Training suites and frameworks print these forms:

[11/20 19:17:36]                        PaddleDetection
[2026/11/20 19:14:12]                   PaddleOCR, PaddleSeg since v2.9.1
2026-11-20 19:12:24 [INFO]              PaddleSeg
[2026-11-20 19:12:25,145]               paddle.distributed, MindOCR
LAUNCH INFO 2026-11-20 19:12:18,345     paddle.distributed.launch
I1120 19:14:11.964748                   glog
[WARNING] DISTRIBUTED(1347,7fcf,python):2026-11-20-19:03:17.601.560     MindSpore

None of them names a zone, and two have no year.
"""

from __future__ import annotations

import calendar
import os
import re
import time

# Bytes at a log's beginning and end that are searched for its first and last date.
EDGE = 65536
LATEST = 4e9  # in 2096, after any log; a file's time can be anything
_DATE = re.compile(
    r"^(?:\[[A-Z]+\] [A-Z_]+\([0-9]+[,:][0-9a-f]+,[^)]{0,80}\):|LAUNCH [A-Z]+ |\[)?"
    r"(?:(\d{4})[-/])?(\d\d)[-/](\d\d)[ T-](\d\d):(\d\d):(\d\d)(?:[.,](\d{3})(?:\.(\d{3}))?)?"
    r"|^[IWEF](?P<month>\d\d)(?P<day>\d\d)"
    r" (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)\.(?P<micro>\d{6})"
)


class Clock:
    """Dates of one node as unix seconds.

    offset: seconds that its zone is east of UTC. near: unix time near which a date without a year
    lies.
    """

    def __init__(self, offset, near):
        self.offset = offset or 0.0
        self.near = min(max(near, 0.0), LATEST)
        self._days = {}

    def read(self, text):
        """Return the unix time of a line, or of a date alone.

        None where the line does not begin with a date.
        """
        match = _DATE.match(text)
        if match is None:
            return None
        begin = self._begin_of_day(match)
        if begin is None:
            return None
        if match.group("month") is not None:
            hours, minutes, seconds = match.group("hour", "minute", "second")
            fraction = int(match.group("micro")) / 1e6
        else:
            hours, minutes, seconds = match.group(4, 5, 6)
            fraction = int((match.group(7) or "000") + (match.group(8) or "000")) / 1e6
        seconds = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
        return begin + seconds + fraction - self.offset

    def _begin_of_day(self, match):
        """Return the unix time at which a line's day begins in UTC, or None."""
        key = match.group(1, 2, 3)
        if match.group("month") is not None:
            key = (None, *match.group("month", "day"))
        if key not in self._days:
            if len(self._days) > 1000:
                self._days.clear()  # a log of a training has few days
            year, month, day = key
            self._days[key] = self._day(year, int(month), int(day))
        return self._days[key]

    def _day(self, year, month, day):
        if not (1 <= month <= 12 and 1 <= day <= 31):
            return None
        if year is None:
            return self._nearest_day(month, day)
        if int(year) < 1970:
            return None
        return calendar.timegm((int(year), month, day, 0, 0, 0))

    def _nearest_day(self, month, day):
        """Return a day's unix time in the year that brings it nearest to `near`."""
        middle = time.gmtime(self.near).tm_year
        days = [
            calendar.timegm((year, month, day, 0, 0, 0))
            for year in (middle - 1, middle, middle + 1)
        ]
        return min(days, key=lambda begin: abs(begin - self.near))


def utc_offset(when):
    """Return the seconds that this machine's zone is east of UTC at a unix time.

    Daylight saving time is included.
    """
    return time.localtime(min(max(when, 0.0), LATEST)).tm_gmtoff


def span(descriptor, offset, near=None):
    """Return (unix time of the first dated line, of the last one) of an open log.

    Only the log's ends are read. An end without a date gives None. near: a unix time that decides
    the year. Without it the file's last write does, which a copy may have lost.
    """
    info = os.fstat(descriptor)
    if near is None:
        near = info.st_mtime
    clock = Clock(offset, near)
    head = os.pread(descriptor, EDGE, 0)
    tail = os.pread(descriptor, EDGE, max(0, info.st_size - EDGE))
    return _first_time(clock, _lines(head)), _first_time(clock, reversed(_lines(tail)))


def _lines(data):
    # A progress bar ends its line with CR, and what follows may be dated.
    return data.replace(b"\0", b"").replace(b"\r", b"\n").decode("utf-8", "replace").split("\n")


def _first_time(clock, lines):
    for line in lines:
        when = clock.read(line)
        if when is not None:
            return when
    return None
