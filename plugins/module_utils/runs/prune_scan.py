# SPDX-License-Identifier: Apache-2.0
"""The runs of one place, and their removal.

A place is a node's base/runs, or the controller's directory of runs (controller_runs.py). Only
what is understood completely is removed: a real directory of this user with a run's name, its own
records in it, nothing of another user, of another file system or mounted in it. A run is renamed
before it is removed, so that half of one is never taken for a run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import time

from ..attempts import attempt_dir as attempts
from ..attempts import status, supervisor_unit
from ..attempts import supervisor_order as orders
from ..base import mounts, processes
from ..base.files import read_bytes, read_json
from ..checkpoints import model_collector
from ..records.prune_rules import JUST_SECONDS

MARK = ".pruning-"
SUPERVISORS = "supervisor"  # has a directory for each node that keeps or kept the run
_ATTEMPT = re.compile(r"attempt-([1-9][0-9]{0,5})\Z")


def measure(folder):
    """Return (allocated bytes, the reason not to touch it or None) of a tree.

    Links are not followed, and a file with two names counts once.
    """
    top, uid = os.lstat(folder), os.geteuid()
    seen = set()
    total = 0
    for path in _walk(folder):
        try:
            info = os.lstat(path)
        except FileNotFoundError:  # a training deletes its older checkpoints
            continue
        if info.st_dev != top.st_dev:
            return total, f"{os.path.relpath(path, folder)} lies on another file system"
        if info.st_uid != uid and uid:
            owner = processes.user_name(info.st_uid)
            return total, f"{os.path.relpath(path, folder)} belongs to {owner}"
        if (info.st_dev, info.st_ino) not in seen:
            total += info.st_blocks * 512
            seen.add((info.st_dev, info.st_ino))
    return total, None


def _walk(folder):
    """Yield the paths of a tree, the tree's own first.

    Links to directories are not followed.
    """
    for parent, folders, names in os.walk(folder):
        yield parent
        for name in names:
            yield os.path.join(parent, name)
        for name in folders:
            path = os.path.join(parent, name)
            if os.path.islink(path):
                yield path


def mounted_in(folder, table=mounts.TABLE):
    """Return a mount point at or below folder, or None. table: path of a mountinfo."""
    data = read_bytes(table)
    if not data:
        return "what is mounted cannot be read"
    text = data.decode("utf-8", "surrogateescape")
    if len(mounts.parse_mounts(text)) < sum(bool(line.strip()) for line in text.split("\n")):
        return "what is mounted cannot be read"
    return mounts.mount_point_in(folder, text)


def entry_problem(folder, name):
    """Return the reason why an entry of a directory of runs is not a run, or None."""
    info = os.lstat(os.path.join(folder, name))
    if stat.S_ISLNK(info.st_mode):
        return "is a link"
    if not stat.S_ISDIR(info.st_mode):
        return "is no directory"
    run_id = name
    if name.startswith(MARK):
        run_id = name[len(MARK) :]
    if not attempts.RUN_ID.match(run_id):
        return "is not named as a run is"
    if info.st_uid != os.geteuid():
        return f"belongs to {processes.user_name(info.st_uid)}"
    return None


def describe_job(plan):
    """Return what a plan trains: its name, suite and config.

    The text is the same for the same job.
    """
    job, suite = plan.get("job"), plan.get("suite")
    if not isinstance(job, dict):
        job = {}
    if not isinstance(suite, dict):
        suite = {}
    return f"{job.get('name')}/{suite.get('name')}/{job.get('config')}"


def describe_plan(plan):
    """Return the part of a run's entry that its plan says."""
    nodes = [
        node["name"]
        for node in plan.get("nodes") or []
        if isinstance(node, dict) and "name" in node
    ]
    return {"job": describe_job(plan), "site": plan.get("site"), "nodes": nodes}


def find_checkpoint(plan, attempt_dirs, folders=None):
    """Return the name of the newest checkpoint without an empty file, or ''.

    It is that of the newest attempt that has one. folders: the directories that hold checkpoints,
    those of the plan's suite by default.
    """
    table = (plan.get("suite") or {}).get("checkpoints") or {}
    patterns = {key: table.get(key) or "" for key in ("best", "last")}
    for attempt_dir in reversed(attempt_dirs):
        name = model_collector.newest_name(
            attempt_dir, folders or table.get("folders") or [], patterns
        )
        if name:
            return name
    return ""


def find_attempts(folder):
    """Return the directories of a run's attempts, the oldest first."""
    names = [name for name in os.listdir(folder) if _ATTEMPT.match(name)]
    return [
        os.path.join(folder, name) for name in sorted(names, key=lambda name: (len(name), name))
    ]


def describe_node_run(base, name, held):
    """Return the entry of a run on a node.

    held: {run id: why} of what runs there.
    """
    try:
        found = _describe_run(os.path.join(base, "runs", name), name)
    except OSError as error:
        found = {"odd": f"cannot be read: {error.strerror}"}
    return dict(empty_entry(name, held), **found)


def _describe_run(folder, name):
    """Return what the attempts and supervisors of a run on this node say. Raises OSError."""
    stranger = _find_stranger(folder)
    if stranger:
        return {"odd": f"holds {stranger} besides its attempts"}
    # the directory of a start that was refused holds the note of the stop alone
    attempt_dirs = [path for path in find_attempts(folder) if os.listdir(path) != ["stop.json"]]
    supervised = _describe_supervisors(os.path.join(folder, SUPERVISORS), name)
    if supervised.get("odd") or (supervised and not attempt_dirs):
        return supervised  # without an attempt: a spare that never took part
    plans = [status.read_json(path, "plan.json") for path in attempt_dirs]
    records = [status.read_json(path, "attempt.json") for path in attempt_dirs]
    are_of_run = all(record and record.get("run") == name for record in records)
    if not attempt_dirs or not all(plans) or not are_of_run:
        return {"odd": "has no attempt with its plan and record"}
    return dict(
        describe_plan(plans[-1]),
        checkpoint=find_checkpoint(plans[-1], attempt_dirs),
        **_describe_end(attempt_dirs[-1]),
    )


def _find_stranger(folder):
    """Return the first entry of a run that is no attempt's directory and no supervisors', or ''."""
    for entry in sorted(os.listdir(folder)):
        is_known = _ATTEMPT.match(entry) or entry == SUPERVISORS
        path = os.path.join(folder, entry)
        if not is_known or os.path.islink(path) or not os.path.isdir(path):
            return entry
    return ""


def _describe_supervisors(folder, run):
    """Return the part of a run's entry that its supervisors on this node say, {} without one.

    Nodes that share the directory have one each. Where one has another run's order, the result has
    `odd`. Raises OSError.
    """
    found, ends = {}, []
    if not os.path.isdir(folder):
        return found
    for node in os.listdir(folder):
        place = os.path.join(folder, node)
        order = status.read_json(place, orders.NAME)
        if order and order.get("run") != run:
            return {"odd": "holds the supervisor of another run"}
        if order:
            found = _describe_orders_plan(place)
            shown, end = status.read_json(place, orders.STATUS) or {}, None
            if shown.get("is_open") is False:
                end = number_or_none(shown.get("time"))
            ends.append(end)
    if found and None not in ends:
        found["ended"] = max(ends)
    return found


def _describe_orders_plan(place):
    """Return the part of a run's entry that a supervisor's plans say, {} without any."""
    plans = read_json(os.path.join(place, orders.PLANS))
    try:
        return describe_plan(json.loads(plans[0]["fresh"]))
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError):
        return {}


def _describe_end(attempt_dir):
    """Return {ended, completed} of an attempt on a node."""
    end = status.read_json(attempt_dir, "exit.json") or {}
    launcher_ended_well = any(
        event.get("event") == "launcher_end" and event.get("exit_code") == 0
        for event in status.read_events(attempt_dir)
    )
    completed = (
        launcher_ended_well and end.get("service_result") == "success" and not end.get("stopped_by")
    )
    return {"ended": number_or_none(end.get("time")), "completed": completed}


def number_or_none(value):
    """Return a value that is a number, else None."""
    if isinstance(value, (int, float)):
        return value
    return None


def empty_entry(name, held):
    """Return the entry of a run of which nothing is known yet."""
    return {
        "run": name,
        "job": "?",
        "site": None,
        "nodes": [],
        "checkpoint": "",
        "completed": False,
        "settled": False,
        "begun": None,
        "ended": None,
        "held": held.get(name) or "",
        "odd": "",
        "bytes": 0,
    }


def find_held(run):
    """Return {run id: why} of what runs on this node or holds it.

    Units count, supervisors also where they do not run, and processes with a run's mark outside of
    any. run: runs a command. Raises AttemptError and OSError.
    """
    supervised = supervisor_unit.installed_runs(os.path.expanduser("~"))
    held = dict.fromkeys(supervised, "its supervisor is installed here and may begin an attempt")
    for pid in processes.pids():
        mark = processes.mark_of(pid)
        if mark:
            held[mark[0]] = f"process {pid} bears its mark"
    for item in attempts.active_units(run):
        held[attempts.parse_unit(item["unit"])[0]] = f"{item['unit']} is {item['state']}"
    return held


def scan_runs(folder, describe):
    """Return {runs, strange, unfinished, bytes} of a directory of runs.

    strange: [{name, why}]. unfinished: [names]. describe(name): describes a run. Raises OSError.
    """
    result = {"runs": [], "strange": [], "unfinished": [], "bytes": 0}
    if not os.path.isdir(folder):
        return result
    for name in sorted(os.listdir(folder)):
        why = entry_problem(folder, name)
        if why:
            result["strange"].append({"name": name, "why": why})
        elif name.startswith(MARK):
            result["unfinished"].append(name)
        else:
            entry = describe(name)
            entry["bytes"], odd = measure(os.path.join(folder, name))
            entry["odd"] = entry["odd"] or odd or _describe_mount(os.path.join(folder, name))
            result["bytes"] += entry["bytes"]
            result["runs"].append(entry)
    return result


def _describe_mount(folder):
    """Return the words for a mount point at or below folder, '' without one."""
    mount = mounted_in(folder)
    if not mount:
        return ""
    return f"something is mounted at {mount}"


def remove_runs(folder, names, describe, held):
    """Remove runs that were judged before.

    Return {removed, freed (bytes), problems}. describe(name): describes a run. held(): looks
    once more at what runs here. What has changed since, or cannot be removed whole, is left and
    named. Raises OSError and AttemptError before anything is removed.
    """
    running = held()
    result = {"removed": [], "freed": 0, "problems": []}
    sizes = {}
    for name in names:
        size, why = 0, running.get(name)
        if not why:
            size, why = _inspect(folder, name, describe)
        if why:
            result["problems"].append(f"{name} stays: {why}")
        else:
            os.rename(os.path.join(folder, name), os.path.join(folder, MARK + name))
            sizes[name] = size
    for marked in _marked_runs(folder):
        name, path = marked[len(MARK) :], os.path.join(folder, marked)
        size = sizes.get(name) or measure(path)[0]
        why = _remove_tree(path)
        if why:
            result["problems"].append(
                f"{name}: not removed whole, the rest lies in {marked}: {why}"
            )
        else:
            result["removed"].append(name)
            result["freed"] += size
    return result


def _inspect(folder, name, describe):
    """Return (bytes, the reason why the run is not to be removed now or '') of a run."""
    path = os.path.join(folder, name)
    if not os.path.lexists(path):
        return 0, "is gone"
    why = entry_problem(folder, name)
    if why:
        return 0, why
    size, odd = measure(path)
    mount = _describe_mount(path)
    entry = describe(name)
    begun = entry["begun"]
    if entry["odd"] or odd:
        return size, entry["odd"] or odd
    if begun and not entry["settled"] and time.time() - begun < JUST_SECONDS:
        return size, "it was begun just now"
    return size, mount


def _marked_runs(folder):
    """Return the names of the runs that were renamed to be removed, sorted."""
    if not os.path.isdir(folder):
        return []
    return [
        name
        for name in sorted(os.listdir(folder))
        if name.startswith(MARK) and not entry_problem(folder, name)
    ]


def _remove_tree(folder):
    """Remove a tree without following a link.

    Return the reason why it is not gone, or ''.
    """
    mount = _describe_mount(folder)
    if mount:
        return mount
    try:
        for parent, folders, _names in os.walk(folder):
            for name in folders:
                path = os.path.join(parent, name)
                if not os.path.islink(path) and os.lstat(path).st_mode & 0o700 != 0o700:
                    # a training may have written a folder without the right to write to it
                    os.chmod(path, 0o700)
        shutil.rmtree(folder)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""
