# SPDX-License-Identifier: Apache-2.0
"""run.json and what lies beside it in runs/<run id>/ on the controller.

It is read at today's version, and written whole under a lock. docs/run-json.md explains every
field. docs/schemas/run.yml is the same as JSON schema, and the tests compare what is written with
both.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat

from ..attempts.attempt_dir import RUN_ID
from ..attempts.states import Outcome
from ..base import locks
from ..base.files import RECORD_BYTES, read_json, read_mapping, replace_file, write_json
from ..base.safe_open import FILE, read_file

NAME, LOCK, VERSION = "run.json", ".run.lock", 2
# The reason of an attempt that ran nowhere, and of a run whose restarts bring nothing; all others
# are causes of the catalogue (failure_catalogue/).
NOT_STARTED, NO_PROGRESS = "not_started", "no_progress"
# The run's outcome by that of a verdict; a node that was lost has made it fail.
OUTCOMES = {
    Outcome.COMPLETED: Outcome.COMPLETED.value,
    Outcome.FAILED: Outcome.FAILED.value,
    Outcome.LOST: Outcome.FAILED.value,
    Outcome.STOPPED: Outcome.STOPPED.value,
}
_NOTHING = {
    "plan_sha256": None,
    "code": None,
    "started": None,
    "ended": None,
    "by": None,
    "planned_by": None,
    "verdict": None,
    "reason": None,
    "culprit": None,
    "resume": None,
    "again": None,
    "ranks": [],
    "nodes": [],
    "checkpoint": [],
    "model": {},
    "endpoints": None,
}
_POINT = ("attempt", "name", "digest", "epoch", "step", "lr", "source", "note")


class NewerRecord(ValueError):
    """A run.json that a newer Trainyard has written.

    It is left as it is.
    """


def new_entry(number, **fields):
    """Return an attempt's entry. A field that is not given is null or empty."""
    return dict(_NOTHING, number=number, **fields)


def new_record(run_id, job, started):
    """Return the record of a run without attempts.

    started: unix seconds.
    """
    return {
        "version": VERSION,
        "run": run_id,
        "job": job,
        "outcome": Outcome.RUNNING.value,
        "reason": None,
        "started": started,
        "ended": None,
        "restarts": 0,
        "plan_sha256": None,
        "code": {},
        "attempts": [],
    }


def read(run_dir):
    """Return run.json as today's version has it, or None.

    Return None where no run.json can be read. Raises NewerRecord.
    """
    record = read_json(os.path.join(run_dir, NAME))
    if not isinstance(record, dict) or not isinstance(record.get("attempts"), list):
        return None
    return upgrade(record)


def upgrade(record):
    """Return a record of any version as one of today's.

    Version 1 had one attempt, its start as the run's, and an entry only at its end. Raises
    NewerRecord.
    """
    version = record.get("version")
    if version == VERSION:
        return dict(record, attempts=[_with_code(item) for item in record["attempts"]])
    if version != 1:
        raise NewerRecord(
            f"run.json has version {version!r}, this Trainyard reads 1 and {VERSION}; use the newer"
            " one"
        )
    new = dict(
        new_record(record.get("run"), record.get("job"), record.get("started")),
        code=record.get("code") or {},
    )
    start = {"plan_sha256": record.get("plan_sha256"), "started": record.get("started")}
    for item in [item for item in record["attempts"] if isinstance(item, dict)] or [{"number": 1}]:
        attempt = new_entry(item.get("number") or 1)
        if attempt["number"] == 1:
            attempt.update(start)
        attempt.update((key, item[key]) for key in item if key in _NOTHING)
        new = merge_entry(new, attempt)
    return new


def _with_code(item):
    """Return an attempt's entry with its code, who began and planned it, and who decides a restart.

    An earlier release of this version wrote none of them.
    """
    if not isinstance(item, dict):
        return item
    item = dict({"code": None, "by": None, "planned_by": None}, **item)
    if isinstance(item.get("again"), dict):
        item["again"] = dict({"code": None, "by": None}, **item["again"])
    return item


def attempt_entry(record, number):
    """Return a record's entry of an attempt, or an empty one."""
    return next(
        (dict(item) for item in record["attempts"] if item["number"] == number), new_entry(number)
    )


def merge_entry(record, item):
    """Return the record with an attempt's entry in it.

    The run's own fields then say how the newest attempt stands.
    """
    verdict = None
    if isinstance(item["verdict"], dict):
        verdict = item["verdict"]
    item = dict(item, reason=(verdict or {}).get("cause"), culprit=_culprit(verdict))
    attempts = sorted(
        [one for one in record["attempts"] if one["number"] != item["number"]] + [item],
        key=lambda one: one["number"],
    )
    newest = attempts[-1]
    outcome, reason = Outcome.RUNNING.value, newest["reason"]
    if newest["verdict"]:
        outcome = OUTCOMES.get(newest["verdict"].get("outcome"), Outcome.UNKNOWN.value)
    if (newest["again"] or {}).get("reason") == NO_PROGRESS:
        reason = NO_PROGRESS
    return dict(
        record,
        version=VERSION,
        attempts=attempts,
        outcome=outcome,
        reason=reason,
        ended=newest["ended"],
        restarts=newest["number"] - 1,
        plan_sha256=newest["plan_sha256"] or record.get("plan_sha256"),
    )


def _culprit(verdict):
    """Return {node, rank} that a verdict names, or None."""
    if not verdict or verdict.get("outcome") == Outcome.COMPLETED or not verdict.get("node"):
        return None
    return {"node": verdict["node"], "rank": verdict.get("rank")}


def write_entry(run_dir, record, item):
    """Write the record with an attempt's entry.

    The caller holds the lock.
    """
    write_json(os.path.join(run_dir, NAME), merge_entry(record, item))


@contextlib.contextmanager
def lock_record(run_dir):
    """Lock run.json for other commands.

    A command that still records the end of an attempt must not lose the start of the next one.
    """
    os.makedirs(run_dir, mode=0o700, exist_ok=True)
    with locks.lock_file(os.path.join(run_dir, LOCK)):
        yield


def read_plan(run_dir, number):
    """Return an attempt's plan, or None.

    Runs of version 1 keep it in the run's directory alone.
    """
    for folder in (os.path.join(run_dir, f"attempt-{number}"), run_dir):
        plan = read_json(os.path.join(folder, "plan.json"))
        if isinstance(plan, dict):
            return plan
    return None


def install_plan(run_dir, number):
    """Make this attempt's plan.json the run's, byte for byte.

    One that is equal already stays.
    """
    source = os.path.join(run_dir, f"attempt-{number}", "plan.json")
    target = os.path.join(run_dir, "plan.json")
    plan = read_json(source)
    if plan is None or plan == read_json(target):
        return
    replace_file(target, read_file(source, RECORD_BYTES), sync=False)


def keep_first_plan(run_dir):
    """Give attempt 1 of a run of version 1 a plan in its own directory.

    The run's plan.json becomes another attempt's.
    """
    source = os.path.join(run_dir, "plan.json")
    target = os.path.join(run_dir, "attempt-1", "plan.json")
    is_old = read_mapping(os.path.join(run_dir, NAME)).get("version") == 1
    if (
        is_old
        and os.path.isfile(source)
        and os.path.isdir(os.path.dirname(target))
        and not os.path.exists(target)
    ):
        shutil.copyfile(source, target)
        os.chmod(target, 0o600)


def attempt_numbers(run_dir):
    """Return the sorted numbers of the attempts that the controller has.

    Each has a directory.
    """
    if not os.path.isdir(run_dir):
        return []
    matches = [re.match(r"attempt-([1-9][0-9]{0,5})\Z", name) for name in os.listdir(run_dir)]
    return sorted(int(match.group(1)) for match in matches if match)


def read_restart_limit(run_dir):
    """Return the job's max_restarts, 0 where it wants none."""
    limit = read_mapping(os.path.join(run_dir, "job.json")).get("max_restarts")
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        return limit
    return 0


def is_supervised(run_dir, plan):
    """Return whether the nodes restart a run themselves. plan: of its newest attempt.

    Plans of an earlier release do not say it. Then only detached runs were restarted so.
    """
    job = read_mapping(os.path.join(run_dir, "job.json"))
    return plan.get("supervised") is True or job.get("detach") is True


def resume_entry(point):
    """Return the part of a resume point that run.json keeps, or None."""
    if not point:
        return None
    return {key: point.get(key) for key in _POINT}


def describe_resume(point, number):
    """Return the sentence about the point from which an attempt went on, '' for a first one."""
    if point:
        text = f"attempt {number} from {point.get('name')} of attempt {point.get('attempt')}"
        progress = _describe_progress(point)
        if progress:
            text += f": {progress}"
        return text
    if number > 1:
        return f"attempt {number} began anew"
    return ""


def _describe_progress(point):
    """Return the words for the progress of a resume point."""
    parts = []
    if point.get("epoch") is not None:
        parts.append(f"{point['epoch']} epochs done")
    if point.get("step") is not None:
        parts.append(f"{point['step']} steps done")
    if point.get("lr") is not None:
        parts.append(f"learning rate {point['lr']}")
    return ", ".join(parts)


def make_private(folder):
    """Take all rights on a run's files from other users.

    plan.json holds the environment, and the program that copied it may have been generous. Raises
    ValueError for a path that is not the directory of a run.
    """
    if not RUN_ID.match(os.path.basename(os.path.abspath(folder))) or os.path.islink(folder):
        raise ValueError(f"{folder} is not the directory of a run")
    # Directory by directory and without links, so that nothing outside is touched.
    for _path, _folders, names, directory in os.fwalk(folder, follow_symlinks=False):
        _seal_file(directory, os.fstat(directory).st_mode)
        for name in names:
            # another terminal's stream has ended meanwhile
            with contextlib.suppress(FileNotFoundError, PermissionError):
                _seal_name(directory, name)


def _seal_name(directory, name):
    """Seal one entry of an open directory where it is a regular file."""
    if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        return
    handle = os.open(name, FILE, dir_fd=directory)
    try:
        _seal_file(handle, os.fstat(handle).st_mode)
    finally:
        os.close(handle)


def _seal_file(handle, mode):
    """Take all rights but the owner's from an open file or directory."""
    if mode & 0o077:
        os.fchmod(handle, stat.S_IMODE(mode) & 0o700)
