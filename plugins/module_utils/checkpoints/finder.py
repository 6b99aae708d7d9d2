# SPDX-License-Identifier: Apache-2.0
"""What a run can be resumed from: the newest complete checkpoint, on its nodes and at home. Nothing
is unpickled, nothing is changed.

A suite's table says which files belong to a checkpoint and how they are named (`resume` in
suites/<name>.yml): holds: endings of one stem (.pdparams), or the files of one folder
(model.pdparams); the last one is what the suite writes last. names, instead: the stems or folders
that are looked for; those of `instead` are taken only where there is no other. last_record:
{ending: name of a MindSpore file's last record}. state: {epoch, step, lr: where that number
stands}: a pattern for the name, or a list of a file's ending and keys into it. epoch and step count
what is done.

Within an attempt, what was saved last is furthest. Several attempts are compared by the epochs
(else the steps) that are done: an attempt that was resumed goes on from the other's. An attempt is
resumed from its own folder only, so that nothing of another run is ever taken.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import re
import stat

from ..base import manifest, safe_names
from ..base.safe_open import DIRECTORY, open_below
from . import (
    model_collector,
    validate,
)

HOME = "home"
# What a suite leaves where it was ended while it wrote beside its place.
UNFINISHED = (".tmp", ".part")
_ATTEMPT = re.compile(r"attempt-([1-9][0-9]{0,5})\Z")
_LARGEST = 2**53
# A training may write as many names as it likes. What is above these bounds is left out, and
# `skipped` says so.
MOST_ATTEMPTS = 200  # of a run, the newest
MOST_ENTRIES = 20_000  # of a folder and the folders in it
MOST_READ = 50  # checkpoints of an attempt, the newest; reading one may take seconds


# --- one checkpoint


def state(rule, name, read):
    """Return {epoch, step, lr} of a checkpoint: whole numbers, and a rate; None where a file does
    not say.

    rule: the table's `state`. name: stem or folder. read: {file: what completeness.read gave}.
    """
    found = {"epoch": None, "step": None, "lr": None}
    for key in found:
        where = rule.get(key)
        if isinstance(where, str):
            match = re.search(where, name)
            value = int(match.group(1)) if match else None
        else:
            value = _within(read, where or (), found["step"])
        if value is not None and not abs(value) < _LARGEST:  # (nan is not smaller either)
            value = None
        found[key] = value if key == "lr" or value is None else int(value)
    return found


def _within(read, where, step):
    """Return the number at [ending, key, ...]; of a row of numbers, one for every step, that of the
    next step.
    """
    for name, value in read.items() if where else ():
        if name.endswith(where[0]):
            row = value.get(where[1]) if isinstance(value, dict) and len(where) == 2 else None
            if isinstance(row, list):
                value, where = (
                    {
                        "at": (
                            row[min(max(step, 0), len(row) - 1)]
                            if row and step is not None
                            else None
                        )
                    },
                    [where[0], "at"],
                )
            return validate.lookup(value, where[1:])
    return None


def wanted_files(rule, name):
    """Return the files that a checkpoint of this name has to have, below the folder that it lies
    in; the one that is written last comes last.
    """
    return [name + held if held.startswith(".") else f"{name}/{held}" for held in rule["holds"]]


def examine(root, folder, name, files, rule):
    """Return the {epoch, step, lr} of a complete checkpoint; raise Broken with what is wrong with
    it, beginning with the file.

    root: descriptor of the attempt's directory. folder: below it. files: {path below folder:
    modification time in ns}.
    """
    wanted = wanted_files(rule, name)
    missing = [path for path in wanted if path not in files]
    if missing:
        raise validate.Broken("{} is missing".format(", ".join(missing)))
    later = [path for path in wanted if files[path] > files[wanted[-1]]]
    if later:
        # Files that the suite writes anew at every save, cut between two of them: each is whole,
        # together they are none.
        raise validate.Broken("{} is of a later save than {}".format(", ".join(later), wanted[-1]))
    read, rows = (
        {},
        [where[1] for where in (rule.get("state") or {}).values() if isinstance(where, list)],
    )
    for path in sorted(files):
        ending = os.path.splitext(path)[1]
        try:
            with os.fdopen(open_below(root, folder + "/" + path), "rb") as handle:
                size = os.fstat(handle.fileno()).st_size
                read[path] = validate.read(
                    handle, size, ending, (rule.get("last_record") or {}).get(ending), rows
                )
        except (OSError, validate.Broken) as error:
            # What the suite writes besides (texts, exported models) is taken along as it is.
            if path in wanted or ending in validate.PICKLES + validate.RECORDS:
                raise validate.Broken(f"{path} {error}") from None
    return state(rule.get("state") or {}, name, {path: read[path] for path in wanted})


# --- one attempt


def candidates(root, folder, rule):
    """Return (rows, whether the folder has more entries than are looked at).

    rows: [(instead, saved in ns, name, {path: modification time in ns})], the likeliest first: by
    name, then what was saved last.
    """
    try:
        here = open_below(root, folder, DIRECTORY)
    except OSError:
        return [], False
    folded, found = not rule["holds"][0].startswith("."), {}
    entries = _names(here, MOST_ENTRIES + 1)
    left = MOST_ENTRIES - len(entries)
    try:
        for entry in entries[:MOST_ENTRIES]:
            with contextlib.suppress(OSError):
                if not folded:
                    _note(
                        found,
                        os.path.splitext(entry)[0],
                        entry,
                        os.stat(entry, dir_fd=here, follow_symlinks=False),
                    )
                    continue
                inside = os.open(entry, DIRECTORY, dir_fd=here)
                try:
                    inner = _names(inside, max(0, left) + 1)
                    left -= len(inner)
                    for each in inner:
                        _note(
                            found,
                            entry,
                            f"{entry}/{each}",
                            os.stat(each, dir_fd=inside, follow_symlinks=False),
                        )
                finally:
                    os.close(inside)
    finally:
        os.close(here)
    rows = []
    for name, files in found.items():
        instead = not _fits(name, rule["names"])
        if not instead or _fits(name, rule.get("instead") or ()):
            rows.append(
                (instead, files.get(wanted_files(rule, name)[-1], max(files.values())), name, files)
            )
    return sorted(rows, key=lambda row: (row[0], -row[1], row[2])), left < 0


def _names(folder, most):
    """Return at most so many names of a directory descriptor."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in itertools.islice(entries, most)]


def _note(found, name, path, info):
    """Note a regular file of a checkpoint; names that rsync could read otherwise belong to none."""
    if stat.S_ISREG(info.st_mode) and model_collector.plain(path) and not path.endswith(UNFINISHED):
        found.setdefault(name, {})[path] = info.st_mtime_ns


def _fits(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def of_attempt(attempt_dir, number, folders, rule):
    """Return (point or None, skipped) of an attempt: the newest complete checkpoint, without its
    digest, and what was newer and is not complete.

    folders: below attempt_dir, the likeliest first. skipped: [{attempt, name, why}].
    """
    skipped = []
    try:
        root = os.open(attempt_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        return None, [{"attempt": number, "name": "", "why": f"cannot be read: {error.strerror}"}]
    try:
        rows = []
        for folder in folders:
            found, cut = candidates(root, folder, rule)
            rows += [(row[:2], folder, row) for row in found]
            if cut:
                skipped.append(
                    {
                        "attempt": number,
                        "name": "",
                        "why": (
                            "%s has more than %d entries; the rest is left out"
                            % (folder, MOST_ENTRIES)
                        ),
                    }
                )
        rows.sort(key=lambda row: (row[0][0], -row[0][1]))
        for _order, folder, (instead, saved, name, files) in rows[:MOST_READ]:
            try:
                numbers = examine(root, folder, name, files, rule)
            except validate.Broken as error:
                skipped.append({"attempt": number, "name": name, "why": str(error)})
                continue
            point = {
                "attempt": number,
                "name": name,
                "stem": name,
                "path": os.path.join(attempt_dir, folder),
                "instead": instead,
            }
            return dict(point, saved=saved / 1e9, paths=sorted(files), **numbers), skipped
    finally:
        os.close(root)
    if len(rows) > MOST_READ:
        skipped.append(
            {
                "attempt": number,
                "name": "",
                "why": "%d older checkpoints are not looked at" % (len(rows) - MOST_READ),
            }
        )
    return None, skipped


def order(point):
    """Return what points are compared by, the best last: by name, epochs or else steps that are
    done, attempt, time of saving.
    """
    done = point["epoch"] if point["epoch"] is not None else point["step"]
    return (not point["instead"], -1 if done is None else done, point["attempt"], point["saved"])


# --- one place


def of_run(run_dir, rule, at_home=False):
    """Return {'point': best point of a run in one place, or None, 'skipped': [...]}; every byte of
    that point is read, for its digest.

    run_dir: runs/<run id> on a node, or at home, where a checkpoint lies in attempt-N/checkpoint.
    rule: the suite table's `resume`; {}: what the attempts' own plans say.
    """
    points, skipped, run_plan = [], [], os.path.join(run_dir, "plan.json")
    numbers = _numbers(run_dir)
    if len(numbers) > MOST_ATTEMPTS:
        text = "%d older attempts are not looked at" % (len(numbers) - MOST_ATTEMPTS)
        skipped.append({"attempt": numbers[MOST_ATTEMPTS], "name": "", "why": text})
    for number in numbers[:MOST_ATTEMPTS]:
        attempt_dir = os.path.join(run_dir, "attempt-%d" % number)
        plan = manifest.read_mapping(os.path.join(attempt_dir, "plan.json")) or (
            manifest.read_mapping(run_plan) if at_home else {}
        )
        folders = [model_collector.PLACE] if at_home else _folders(plan)
        known = rule or _section(plan, "resume")
        if not known.get("holds") or not known.get("names"):
            continue
        point, passed = of_attempt(attempt_dir, number, folders, known)
        points += [dict(point, first=_first(plan))] if point else []
        skipped += passed
    for point in sorted(points, key=order, reverse=True):
        try:
            root = os.open(point["path"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                files = {path: model_collector.described(root, path) for path in point.pop("paths")}
            finally:
                os.close(root)
        except OSError as error:
            skipped.append(
                {
                    "attempt": point["attempt"],
                    "name": point["name"],
                    "why": f"cannot be read: {error}",
                }
            )
            continue
        size = sum(entry[1] for entry in files.values())
        return {
            "point": dict(point, files=files, bytes=size, digest=manifest.digest(files)),
            "skipped": _ordered(skipped),
        }
    return {"point": None, "skipped": _ordered(skipped)}


def _numbers(run_dir):
    """Return the numbers of a run's attempts in one place, the newest first."""
    names = os.listdir(run_dir) if os.path.isdir(run_dir) else []
    matches = [
        match
        for match in map(_ATTEMPT.match, names)
        if match and not os.path.islink(os.path.join(run_dir, match.group(0)))
    ]
    return sorted((int(match.group(1)) for match in matches), reverse=True)


def _section(plan, name):
    """Return a mapping of the plan's suite; {} where it has none."""
    suite = plan.get("suite")
    found = suite.get(name) if isinstance(suite, dict) else None
    return found if isinstance(found, dict) else {}


def _folders(plan):
    folders = _section(plan, "checkpoints").get("folders")
    return (
        [folder for folder in folders if isinstance(folder, str)]
        if isinstance(folders, list)
        else []
    )


def _first(plan):
    """Return the node whose rank 0 writes the checkpoints, as far as the plan tells."""
    nodes = plan.get("nodes")
    first = nodes[0] if isinstance(nodes, list) and nodes else None
    return str(first["name"]) if isinstance(first, dict) and "name" in first else ""


def _ordered(skipped):
    return sorted(skipped, key=lambda row: (-row["attempt"], row["name"], row.get("node", "")))


# --- all places


_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


def unsound(point):
    """Say why what a place calls a point cannot be one, or return None. The digest is counted anew
    from the files: it names directories.
    """
    if not isinstance(point, dict):
        return "is not a description of a checkpoint"
    files = point.get("files")
    try:
        model_collector.check(files)
    except model_collector.CheckpointError as error:
        return str(error)
    if not files or not all(model_collector.plain(path) for path in files):
        return "has no files, or names that no checkpoint has"
    if point.get("digest") != manifest.digest(files):
        return "has a digest that is not that of its files"
    for key in ("name", "stem"):
        if safe_names.part_problem(point.get(key)):
            return f"has no {key} that can be used"
    path = point.get("path")
    if not isinstance(path, str) or not path.startswith("/") or safe_names.problem(path[1:]):
        return "lies at no path that can be used"
    whole = [point.get("attempt")] + [
        point.get(key) for key in ("epoch", "step") if point.get(key) is not None
    ]
    if not all(
        isinstance(number, int) and not isinstance(number, bool) and abs(number) < _LARGEST
        for number in whole
    ):
        return "has no whole numbers for attempt, epoch and step"
    numbers = [point.get("saved"), *([point["lr"]] if point.get("lr") is not None else [])]
    if not all(
        isinstance(number, (int, float)) and not isinstance(number, bool) and abs(number) < _LARGEST
        for number in numbers
    ):
        return "has no times and rates that are numbers"
    if (
        not 0 < point["attempt"] < 10**6
        or not isinstance(point.get("instead"), bool)
        or not isinstance(point.get("first", ""), str)
    ):
        return "has no attempt's number"
    return None


def believed(found):
    """Return `found` of `choose` without the points that cannot be one; each of them is skipped,
    with the reason.
    """
    kept = {}
    for place, here in found.items():
        here = here if isinstance(here, dict) else {}
        rows = here.get("skipped") if isinstance(here.get("skipped"), list) else []
        rows = [_skipped(row) for row in rows[:1000] if isinstance(row, dict)]
        point = here.get("point")
        said = unsound(point) if point else None
        if said:
            number = point.get("attempt") if isinstance(point, dict) else 0
            number = number if isinstance(number, int) and not isinstance(number, bool) else 0
            rows.append({"attempt": number, "name": "", "why": said})
        kept[place] = {"point": None if said else point, "skipped": rows}
    return kept


def _skipped(row):
    number = row.get("attempt")
    number = number if isinstance(number, int) and not isinstance(number, bool) else 0
    return {
        "attempt": number,
        "name": str(row.get("name") or "")[:200],
        "why": str(row.get("why") or "")[:1000],
    }


def choose(found):
    """Return (point or None, skipped) of what every place has found; pure.

    found: {node's name or HOME: {point, skipped}}. The best point is taken. Where two places have
    different bytes under one name of one attempt, that of the node on which rank 0 saved it counts,
    and the others are skipped. The point gets source (where it is taken from, a node rather than
    home), sources ([{source, path}] of all places with the same digest, the likeliest first) and
    note.
    """
    found = believed(found)
    skipped = [dict(row, node=name) for name, here in found.items() for row in here["skipped"]]
    points = [
        dict(here["point"], source=name)
        for name, here in sorted(found.items())
        if here.get("point")
    ]
    points.sort(
        key=lambda point: (
            order(point),
            point["source"] == point.get("first"),
            point["source"] != HOME,
        ),
        reverse=True,
    )
    if points:
        best = points[0]
        same = [
            point
            for point in points
            if (point["attempt"], point["name"]) == (best["attempt"], best["name"])
        ]
        chosen = next((point for point in same if point["source"] == point.get("first")), best)
        for point in same:
            if point["digest"] != chosen["digest"]:
                why = "differs from the one on {}, which is taken".format(chosen["source"])
                skipped.append(
                    {
                        "attempt": point["attempt"],
                        "name": point["name"],
                        "node": point["source"],
                        "why": why,
                    }
                )
        equal = [point for point in points if point["digest"] == chosen["digest"]]
        equal.sort(
            key=lambda point: (
                point["source"] == HOME,
                point["source"] != point.get("first"),
                point["source"],
            )
        )
        sources = [{"source": point["source"], "path": point["path"]} for point in equal]
        return dict(chosen, **sources[0], sources=sources, note=_remark(chosen)), _ordered(skipped)
    return None, _ordered(skipped)


def _remark(point):
    if point["instead"]:
        return (
            "no other checkpoint is complete; the epoch in which {} was saved may not have been"
            " done to its end".format(point["name"])
        )
    return ""


def lines(point, skipped):
    """Return what people are told of the choice: the point in one line, and one line for everything
    that is not complete.
    """
    told = [
        "%s of attempt %d on %s: %s"
        % (row["name"] or "the directory", row["attempt"], row["node"], row["why"])
        for row in skipped
    ]
    told = ["skipped: " + text for text in told]
    if point is None:
        return told + [
            "there is no complete checkpoint to resume from: the training starts from the beginning"
        ]
    return [
        f"resumed from {said(point)}",
        *(["note: " + point["note"]] if point["note"] else []),
        *told,
    ]


def said(point):
    """Return a point in words: name, attempt, where it lies, what is done, and its digest."""
    where = " and ".join(each["source"] for each in point.get("sources") or ())
    parts = ["%s of attempt %d%s" % (point["name"], point["attempt"], where and f" (on {where})")]
    for key in ("epoch", "step"):
        parts += (
            ["%d %s%s done" % (point[key], key, "" if point[key] == 1 else "s")]
            if point[key] is not None
            else []
        )
    parts += ["learning rate {:g}".format(point["lr"])] if point["lr"] is not None else []
    return ", ".join([*parts, "digest {}".format(point["digest"][:12])])
