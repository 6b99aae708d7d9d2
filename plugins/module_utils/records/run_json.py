# SPDX-License-Identifier: Apache-2.0
"""run.json and what lies beside it in runs/<run id>/ on the controller: read at today's version,
and written whole under a lock.

docs/run-json.md explains every field; docs/schemas/run.yml is the same as JSON schema, and the tests
hold what is written against both.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat

from ..attempts.attempt_dir import RUN_ID
from ..base import manifest
from ..base.safe_open import FILE

NAME, LOCK, VERSION = "run.json", ".run.lock", 2
# The reason of an attempt that ran nowhere, and of a run whose restarts bring nothing; all others
# are causes of the catalogue (causes.py).
NOT_STARTED, NO_PROGRESS = "not_started", "no_progress"
# A verdict's outcome as the run's; a node that was lost has made it fail.
OUTCOMES = {"completed": "completed", "failed": "failed", "lost": "failed", "stopped": "stopped"}
_NOTHING = {
    "plan_sha256": None, "started": None, "ended": None, "verdict": None, "reason": None, "culprit": None, "resume": None, "again": None,
    "ranks": [], "nodes": [], "checkpoint": [], "model": {}, "endpoints": None,
}  # fmt: skip
_POINT = ("attempt", "name", "digest", "epoch", "step", "lr", "source", "note")


class NewerRecord(ValueError):
    """A run.json that a newer Trainyard has written; it is left as it is."""


def entry(number, **known):
    """Return an attempt's entry; what is not known yet is null or empty."""
    return dict(_NOTHING, number=number, **known)


def empty(run_id, job, started):
    """Return the record of a run without attempts. started: unix seconds."""
    return {
        "version": VERSION, "run": run_id, "job": job, "outcome": "running", "reason": None, "started": started, "ended": None, "restarts": 0,
        "plan_sha256": None, "code": {}, "attempts": [],
    }  # fmt: skip


def read(run_dir):
    """Return run.json as today's version has it, or None where there is none that can be read.
    Raises NewerRecord.
    """
    found = manifest.read_json(os.path.join(run_dir, NAME))
    return (
        upgraded(found)
        if isinstance(found, dict) and isinstance(found.get("attempts"), list)
        else None
    )


def upgraded(record):
    """Return a record of any version as one of today's. Version 1 had one attempt, its start as the
    run's, and an entry only at its end.
    """
    if record.get("version") == VERSION:
        return record
    if record.get("version") != 1:
        raise NewerRecord(
            "run.json has version %r, this Trainyard reads 1 and %d; use the newer one"
            % (record.get("version"), VERSION)
        )
    new = dict(
        empty(record.get("run"), record.get("job"), record.get("started")),
        code=record.get("code") or {},
    )
    digest, started = record.get("plan_sha256"), record.get("started")
    for item in [item for item in record["attempts"] if isinstance(item, dict)] or [{"number": 1}]:
        number = item.get("number") or 1
        first = {"plan_sha256": digest, "started": started} if number == 1 else {}
        new = with_entry(
            new, dict(entry(number, **first), **{key: item[key] for key in item if key in _NOTHING})
        )
    return new


def known(record, number):
    """Return what a record has of an attempt, or an entry that is empty."""
    return next(
        (dict(item) for item in record["attempts"] if item["number"] == number), entry(number)
    )


def with_entry(record, item):
    """Return the record with an attempt's entry in its place, and what the run's own fields then
    say: how the newest attempt stands.
    """
    verdict = item["verdict"] if isinstance(item["verdict"], dict) else None
    item = dict(item, reason=(verdict or {}).get("cause"), culprit=_culprit(verdict))
    attempts = sorted(
        [one for one in record["attempts"] if one["number"] != item["number"]] + [item],
        key=lambda one: one["number"],
    )
    last = attempts[-1]
    outcome = (last["verdict"] or {}).get("outcome")
    fruitless = (last["again"] or {}).get("reason") == NO_PROGRESS
    return dict(
        record,
        version=VERSION,
        attempts=attempts,
        outcome=OUTCOMES.get(outcome, "unknown") if last["verdict"] else "running",
        reason=NO_PROGRESS if fruitless else last["reason"],
        ended=last["ended"],
        restarts=last["number"] - 1,
        plan_sha256=last["plan_sha256"] or record.get("plan_sha256"),
    )


def _culprit(verdict):
    if not verdict or verdict.get("outcome") == "completed" or not verdict.get("node"):
        return None
    return {"node": verdict["node"], "rank": verdict.get("rank")}


def write(run_dir, record, item):
    """Write the record with an attempt's entry; the caller holds the lock."""
    manifest.write_json(os.path.join(run_dir, NAME), with_entry(record, item))


@contextlib.contextmanager
def alone(run_dir):
    """One writer of run.json at a time: somebody who still records the end of an attempt must not
    lose the start of the next one.
    """
    os.makedirs(run_dir, mode=0o700, exist_ok=True)
    with os.fdopen(
        os.open(os.path.join(run_dir, LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+"
    ) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def plan_of(run_dir, number):
    """Return an attempt's plan, or None. Runs of version 1 keep it in the run's directory alone."""
    for folder in (os.path.join(run_dir, "attempt-%d" % number), run_dir):
        plan = manifest.read_json(os.path.join(folder, "plan.json"))
        if isinstance(plan, dict):
            return plan
    return None


def show_plan(run_dir, number):
    """Make the run's plan.json the one of this attempt, byte for byte, where it is another one or
    missing.
    """
    source, target = (
        os.path.join(run_dir, "attempt-%d" % number, "plan.json"),
        os.path.join(run_dir, "plan.json"),
    )
    wanted = manifest.read_json(source)
    if wanted is not None and wanted != manifest.read_json(target):
        part = "%s.%d.part" % (target, os.getpid())
        with open(source, "rb") as handle, os.fdopen(
            os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb"
        ) as copy:
            shutil.copyfileobj(handle, copy)
        os.replace(part, target)


def keep_first_plan(run_dir):
    """Give attempt 1 of a run of version 1 its plan in its own place, before the run's plan.json
    becomes another attempt's.
    """
    source, target = (
        os.path.join(run_dir, "plan.json"),
        os.path.join(run_dir, "attempt-1", "plan.json"),
    )
    old = manifest.read_mapping(os.path.join(run_dir, NAME)).get("version") == 1
    if (
        old
        and os.path.isfile(source)
        and os.path.isdir(os.path.dirname(target))
        and not os.path.exists(target)
    ):
        shutil.copyfile(source, target)
        os.chmod(target, 0o600)


def numbers(run_dir):
    """Return the numbers of the attempts that have a directory at home."""
    names = os.listdir(run_dir) if os.path.isdir(run_dir) else []
    found = [re.match(r"attempt-([1-9][0-9]{0,5})\Z", name) for name in names]
    return sorted(int(match.group(1)) for match in found if match)


def limit_of(run_dir):
    """Return how often the run's job wants it started again."""
    limit = manifest.read_mapping(os.path.join(run_dir, "job.json")).get("max_restarts")
    return limit if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 else 0


def point_of(point):
    """Return what run.json keeps of the point that an attempt resumes from, or None."""
    return {key: point.get(key) for key in _POINT} if point else None


def resumed_words(point, number):
    """Return from what an attempt went on, as text; '' for a first one."""
    if not point:
        return "attempt %d began anew" % number if number > 1 else ""
    told = [("%s epochs done", "epoch"), ("%s steps done", "step"), ("learning rate %s", "lr")]
    place = [words % point[key] for words, key in told if point.get(key) is not None]
    return "attempt %d from %s of attempt %s%s" % (
        number,
        point.get("name"),
        point.get("attempt"),
        ": " + ", ".join(place) if place else "",
    )


def seal(folder):
    """Take from everybody else what of a run they could read: plan.json holds the environment, and
    what brought it may have been generous.
    """
    if not RUN_ID.match(os.path.basename(os.path.abspath(folder))) or os.path.islink(folder):
        raise ValueError(f"{folder} is not the directory of a run")
    # Directory by directory and without links, so that nothing outside is touched.
    for _where, _folders, names, here in os.fwalk(folder, follow_symlinks=False):
        _seal(here, os.fstat(here).st_mode)
        for name in names:
            with contextlib.suppress(
                FileNotFoundError, PermissionError
            ):  # another terminal's stream has ended meanwhile
                if not stat.S_ISREG(os.stat(name, dir_fd=here, follow_symlinks=False).st_mode):
                    continue
                handle = os.open(name, FILE, dir_fd=here)
                try:
                    _seal(handle, os.fstat(handle).st_mode)
                finally:
                    os.close(handle)


def _seal(handle, mode):
    if mode & 0o077:
        os.fchmod(handle, stat.S_IMODE(mode) & 0o700)
