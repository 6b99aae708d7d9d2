# SPDX-License-Identifier: Apache-2.0
"""What the runs of one place are, and their removal: a node's base/runs, or the controller's
directory of runs.

Nothing is removed that is not understood from top to bottom: a real directory of this user with a
run's name, its own records in it, nothing of another user's, of another file system or mounted in
it. A run is renamed before it is removed, so that half of one is never taken for a run.
"""

from __future__ import annotations

import fcntl
import glob
import os
import re
import shutil
import stat
import time

from ..attempts import attempt_dir, status
from ..base import manifest, processes
from ..checkpoints import model_collector
from ..records.prune_rules import JUST_SECONDS

MARK = ".pruning-"
_ATTEMPT = re.compile(r"attempt-([1-9][0-9]{0,5})\Z")


def size_of(folder):
    """Return (allocated bytes, why it is not to be touched or None) of a tree; links are not
    followed, and a file with two names counts once.
    """
    top, uid, seen, total = os.lstat(folder), os.geteuid(), set(), 0
    for where, folders, names in os.walk(folder):
        for name in (
            [""] + names + [each for each in folders if os.path.islink(os.path.join(where, each))]
        ):
            path = os.path.join(where, name) if name else where
            try:
                info = os.lstat(path)
            except FileNotFoundError:  # a training deletes its older checkpoints
                continue
            if info.st_dev != top.st_dev:
                return total, f"{os.path.relpath(path, folder)} lies on another file system"
            if info.st_uid != uid and uid:
                return (
                    total,
                    (
                        f"{os.path.relpath(path, folder)} belongs to"
                        f" {processes.user_name(info.st_uid)}"
                    ),
                )
            total += 0 if (info.st_dev, info.st_ino) in seen else info.st_blocks * 512
            seen.add((info.st_dev, info.st_ino))
    return total, None


def mounted_in(folder, table="/proc/self/mountinfo"):
    """Return a place at or below folder where something is mounted, or None (proc(5), mountinfo)."""
    real = os.path.realpath(folder)
    try:
        with open(table, encoding="utf-8", errors="surrogateescape") as handle:
            points = [line.split()[4].replace("\\040", " ") for line in handle]
    except (OSError, IndexError):
        return "what is mounted cannot be read"
    return next((point for point in points if point == real or point.startswith(real + "/")), None)


def strange(folder, name):
    """Say why an entry of a directory of runs is none, or return None."""
    info = os.lstat(os.path.join(folder, name))
    if stat.S_ISLNK(info.st_mode):
        return "is a link"
    if not stat.S_ISDIR(info.st_mode):
        return "is no directory"
    if not attempt_dir.RUN_ID.match(name[len(MARK) :] if name.startswith(MARK) else name):
        return "is not named as a run is"
    if info.st_uid != os.geteuid():
        return f"belongs to {processes.user_name(info.st_uid)}"
    return None


def job_of(plan):
    """Return what a plan trains, as a text that is the same for the same job: its name, suite and
    config.
    """
    job, suite = (
        plan.get(key) if isinstance(plan.get(key), dict) else {} for key in ("job", "suite")
    )
    return "{}/{}/{}".format(job.get("name"), suite.get("name"), job.get("config"))


def _of_plan(plan):
    """Return a run's entry with what its plan says; what a place knows besides is put in by who
    looks there.
    """
    table = (plan.get("suite") or {}).get("checkpoints") or {}
    nodes = [
        node["name"]
        for node in plan.get("nodes") or []
        if isinstance(node, dict) and "name" in node
    ]
    return {"job": job_of(plan), "site": plan.get("site"), "nodes": nodes, "table": table}


def _best_of(entry, attempt_dirs, folders=None):
    """Return the name of the newest attempt's checkpoint that has no empty file, or ''."""
    table = entry.pop("table")
    for folder in reversed(attempt_dirs):
        found = model_collector.seen(
            folder,
            folders or table.get("folders") or [],
            {key: table.get(key) or "" for key in ("best", "last")},
        )
        if found:
            return found
    return ""


def on_node(base, name, held):
    """Return the entry of a run on a node; held: {run id: why} of what runs there."""
    folder = os.path.join(base, "runs", name)
    entries = sorted(os.listdir(folder))
    places = [
        os.path.join(folder, each)
        for each in sorted(entries, key=lambda each: (len(each), each))
        if _ATTEMPT.match(each)
    ]
    places = [
        place for place in places if os.listdir(place) != ["stop.json"]
    ]  # a start that was refused
    plans, records = (
        [status.read_json(place, file) for place in places]
        for file in ("plan.json", "attempt.json")
    )
    odd = [each for each in entries if not _ATTEMPT.match(each)]
    if (
        odd
        or not places
        or not all(plans)
        or not all(record and record.get("run") == name for record in records)
    ):
        why = (
            f"holds {odd[0]} besides its attempts"
            if odd
            else "has no attempt with its plan and record"
        )
        return dict(_nothing(name, held), odd=why)
    ending = status.read_json(places[-1], "exit.json") or {}
    finished = any(
        event.get("event") == "launcher_end" and event.get("exit_code") == 0
        for event in status.read_events(places[-1])
    )
    when = ending.get("time") if isinstance(ending.get("time"), (int, float)) else None
    entry = dict(_nothing(name, held), **_of_plan(plans[-1]))
    entry["checkpoint"] = _best_of(entry, places)
    return dict(
        entry,
        ended=when,
        completed=finished
        and ending.get("service_result") == "success"
        and not ending.get("stopped_by"),
    )


def at_home(runs_dir, name, held):
    """Return the entry of a run on the controller; held: {run id: why} of what somebody works on
    there.
    """
    folder = os.path.join(runs_dir, name)
    plan, record = (
        manifest.read_mapping(os.path.join(folder, file)) for file in ("plan.json", "run.json")
    )
    if not plan or record.get("run") != name:
        return dict(_nothing(name, held), odd="has no plan.json and run.json of its own")
    entry, tried = (
        dict(_nothing(name, held), **_of_plan(plan)),
        [item for item in record.get("attempts") or [] if isinstance(item, dict)],
    )
    verdict = (tried[-1].get("verdict") or {}) if tried else {}
    places = [
        os.path.join(folder, each)
        for each in sorted(os.listdir(folder), key=lambda each: (len(each), each))
        if _ATTEMPT.match(each)
    ]
    entry["checkpoint"] = _best_of(entry, places, [model_collector.PLACE])
    settled = (
        bool(verdict.get("outcome"))
        and not verdict.get("unreachable")
        and verdict.get("outcome") not in ("unknown", "lost")
    )
    begun = [
        item.get("started")
        for item in [record, *tried]
        if isinstance(item.get("started"), (int, float))
    ]
    waits = bool(
        tried and isinstance(tried[-1].get("again"), dict) and tried[-1]["again"].get("again")
    )
    ended = (
        tried[-1].get("ended")
        if waits and isinstance(tried[-1].get("ended"), (int, float))
        else None
    )
    return dict(
        entry,
        settled=settled and not waits,
        completed=verdict.get("outcome") == "completed",
        begun=max([*begun, ended or 0], default=None),
    )


def _nothing(name, held):
    return {
        "run": name, "job": "?", "site": None, "nodes": [], "checkpoint": "", "completed": False, "settled": False, "begun": None, "ended": None,
        "held": held.get(name) or "", "odd": "", "bytes": 0,
    }  # fmt: skip


def held_here(run):
    """Return {run id: why} of what runs on this node or holds it: units, and processes with a run's
    mark outside of any. Raises AttemptError.
    """
    found = {}
    for pid in processes.pids():
        mark = processes.mark_of(pid)
        if mark:
            found[mark[0]] = "process %d bears its mark" % pid
    for item in attempt_dir.active_units(run):
        found[attempt_dir.parse_unit(item["unit"])[0]] = "{} is {}".format(
            item["unit"], item["state"]
        )
    return found


def held_at_home(runs_dir):
    """Return {run id: why} of the runs whose logs somebody brings home at this moment: a stream or
    a collection holds its lock (stream_lock.py).
    """
    found = {}
    for path in glob.glob(os.path.join(glob.escape(runs_dir), "*", "attempt-*", ".stream.*")):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            found[os.path.relpath(path, runs_dir).split(os.sep)[0]] = (
                "its logs are being brought home"
            )
        finally:
            os.close(descriptor)
    return found


def look(folder, describe):
    """Return {runs, strange: [{name, why}], unfinished: [names], bytes} of a directory of runs;
    describe(name): on_node or at_home. Raises OSError.
    """
    found = {"runs": [], "strange": [], "unfinished": [], "bytes": 0}
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        why = strange(folder, name)
        if name.startswith(MARK) and not why:
            found["unfinished"].append(name)
            continue
        if why:
            found["strange"].append({"name": name, "why": why})
            continue
        entry = describe(name)
        entry["bytes"], odd = size_of(os.path.join(folder, name))
        mount = mounted_in(os.path.join(folder, name))
        entry["odd"] = entry["odd"] or odd or (mount and f"something is mounted at {mount}") or ""
        found["bytes"] += entry["bytes"]
        found["runs"].append(entry)
    return found


def remove(folder, names, describe, held):
    """Remove runs that were judged before; return {removed, freed (bytes), problems}. held(): looks
    once more at what runs here.

    What has changed since, or cannot be removed whole, is left and named. Raises OSError and
    AttemptError before anything is removed.
    """
    running, result, doomed = held(), {"removed": [], "freed": 0, "problems": []}, []
    for name in names:
        why = running.get(name) or (
            strange(folder, name) if os.path.lexists(os.path.join(folder, name)) else "is gone"
        )
        if not why:
            size, why = size_of(os.path.join(folder, name))
            mount = mounted_in(os.path.join(folder, name))
            now = describe(name)
            just = now["begun"] and not now["settled"] and time.time() - now["begun"] < JUST_SECONDS
            why = (
                now["odd"]
                or why
                or ("it was begun just now" if just else None)
                or (mount and f"something is mounted at {mount}")
            )
        if why:
            result["problems"].append(f"{name} stays: {why}")
            continue
        os.rename(os.path.join(folder, name), os.path.join(folder, MARK + name))
        doomed.append((name, size))
    left = (
        [
            each
            for each in sorted(os.listdir(folder))
            if each.startswith(MARK) and not strange(folder, each)
        ]
        if os.path.isdir(folder)
        else []
    )
    sizes = dict(doomed)
    for each in left:
        name = each[len(MARK) :]
        size = sizes.get(name) or size_of(os.path.join(folder, each))[0]
        why = _removed(os.path.join(folder, each))
        if why:
            result["problems"].append(f"{name}: not removed whole, the rest lies in {each}: {why}")
        else:
            result["removed"].append(name)
            result["freed"] += size
    return result


def _removed(folder):
    """Remove a tree without following a link; return why it is not gone, or ''."""
    mount = mounted_in(folder)
    if mount:
        return f"something is mounted at {mount}"
    try:
        for where, folders, _names in os.walk(folder):
            for each in folders:
                path = os.path.join(where, each)
                if not os.path.islink(path) and os.lstat(path).st_mode & 0o700 != 0o700:
                    os.chmod(
                        path, 0o700
                    )  # a training may have written a folder that nobody can write to
        shutil.rmtree(folder)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""
