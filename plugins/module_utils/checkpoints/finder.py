# SPDX-License-Identifier: Apache-2.0
"""The checkpoint that a run is resumed from.

It is the newest complete one on the run's nodes and the controller. Nothing is unpickled, nothing
is changed. A suite's table says which files belong to a checkpoint and how they are named (`resume`
in suites/<name>.yml):

holds           endings of one stem (.pdparams), or the files of one folder (model.pdparams). The
                suite writes the last one last.
names, instead  patterns of stems or folders. Those of `instead` are taken only where there is no
                other.
last_record     {ending: name of a MindSpore file's last record}
state           {epoch, step, lr: where that number stands}: a pattern for the name, or a list of a
                file's ending and keys into it. epoch and step count what is done.

Within an attempt, the checkpoint that was saved last is furthest. Several attempts are compared by
the epochs (else the steps) that are done: an attempt that was resumed goes on from the other's. An
attempt is resumed from its own folder only, so that nothing of another run is ever taken.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import itertools
import os
import re
import stat
import typing

from ..base import manifest
from ..base.files import read_mapping
from ..base.safe_open import DIRECTORY, open_below
from . import (
    model_collector,
    readings,
    validate,
)

CONTROLLER = "home"
# Endings of the files that a suite leaves where it was ended in the middle of a save.
UNFINISHED = (".tmp", ".part")
_ATTEMPT = re.compile(r"attempt-([1-9][0-9]{0,5})\Z")
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
LARGEST = 2**53
# A training may write any number of names. What is above these bounds is left out, and `skipped`
# says so.
MOST_ATTEMPTS = 200  # of a run, the newest
MOST_ENTRIES = 20_000  # of a folder and the folders in it
MOST_READ = 50  # checkpoints of an attempt, the newest; reading one may take seconds


class SkippedCheckpoint(typing.TypedDict):
    """A checkpoint or directory that cannot be used."""

    attempt: int
    name: str  # of the checkpoint, empty for a directory
    why: str
    code: str


class ResumePoint(typing.TypedDict, total=False):
    """A complete checkpoint from which a run can go on. An unknown number is None."""

    attempt: int  # that saved it
    name: str
    stem: str
    path: str  # of its folder on the machine
    instead: bool  # whether its name fits the patterns of `instead`
    saved: float  # unix seconds
    epoch: int | None  # epochs that are done
    step: int | None  # steps that are done
    lr: float | None  # the learning rate there
    paths: list[str]  # of its files, before they are described
    files: dict[str, list[typing.Any]]  # path: ['f', bytes, sha256]
    bytes: int
    digest: str  # of the files
    first: str  # the node of rank 0
    # Of the chosen one, as resume_point_choice.choose makes them:
    source: str  # the machine that it is taken from
    sources: list[dict[str, str]]  # [{source, path}] of all machines with the same files
    note: str


# --- one checkpoint


def read_progress(rule, name, read):
    """Return {epoch, step, lr} of a checkpoint: whole numbers, and a rate.

    A number that no file has stays None. rule: the table's `state`. name: stem or folder. read:
    {file: what validate.read gave}.
    """
    numbers = {"epoch": None, "step": None, "lr": None}
    for key in numbers:
        value = _state_number(rule.get(key), name, read, numbers["step"])
        if value is None or not abs(value) < LARGEST:  # (nan is not smaller either)
            continue
        if key != "lr":
            value = int(value)
        numbers[key] = value
    return numbers


def _state_number(entry, name, read, step):
    """Return one number of a checkpoint's state, or None.

    entry: of the table's `state`.
    """
    if not isinstance(entry, str):
        return _within(read, entry or (), step)
    match = re.search(entry, name)
    if not match:
        return None
    return int(match.group(1))


def _within(read, entry, step):
    """Return the number at [ending, key, ...] of the files, or None.

    Of a row of numbers, one for every step, it is that of the next step.
    """
    if not entry:
        return None
    keys = entry[1:]
    for name, value in read.items():
        if name.endswith(entry[0]):
            if len(keys) == 1 and isinstance(value, dict) and isinstance(value.get(keys[0]), list):
                return validate.lookup({"at": _at_step(value[keys[0]], step)}, ["at"])
            return validate.lookup(value, keys)
    return None


def _at_step(row, step):
    if not row or step is None:
        return None
    return row[min(max(step, 0), len(row) - 1)]


def wanted_files(rule, name):
    """Return the files that a checkpoint of this name must have.

    They lie below the checkpoint's folder. The one that is written last comes last.
    """
    files = []
    for part in rule["holds"]:
        if not part.startswith("."):
            part = "/" + part
        files.append(name + part)
    return files


def examine(root, folder, name, files, rule):
    """Return the {epoch, step, lr} of a complete checkpoint.

    Raises BrokenFile with the reason, beginning with the file. root: descriptor of the attempt's
    directory. folder: below it. files: {path below folder: modification time in ns}.
    """
    required = wanted_files(rule, name)
    refuse_incomplete(required, files)
    entries = (rule.get("state") or {}).values()
    rows = [entry[1] for entry in entries if isinstance(entry, list)]
    values = {}
    for path in sorted(files):
        ending = os.path.splitext(path)[1]
        last_record = (rule.get("last_record") or {}).get(ending)
        try:
            with os.fdopen(open_below(root, folder + "/" + path), "rb") as handle:
                size = os.fstat(handle.fileno()).st_size
                values[path] = validate.read(handle, size, ending, last_record, rows)
        except (OSError, validate.BrokenFile) as error:
            # Other files that the suite writes (texts, exported models) are taken along as they
            # are.
            if path in required or ending in validate.PICKLES + validate.RECORDS:
                code = "checkpoint.unreadable"
                if isinstance(error, validate.BrokenFile):
                    code = error.code
                raise validate.BrokenFile(code, f"{path} {error}") from None
    return read_progress(rule.get("state") or {}, name, {path: values[path] for path in required})


def refuse_incomplete(required, files):
    """Raise BrokenFile where files are missing, or are of two saves.

    required: as `wanted_files` gives them. files: {path: modification time}.
    """
    missing = [path for path in required if path not in files]
    if missing:
        raise validate.BrokenFile("checkpoint.file_missing", f"{', '.join(missing)} is missing")
    later = [path for path in required if files[path] > files[required[-1]]]
    if later:
        # A suite that writes its files anew at every save was cut off between two of them: each
        # file is whole, but together they are not a checkpoint.
        raise validate.BrokenFile(
            "checkpoint.mixed_saves", f"{', '.join(later)} is of a later save than {required[-1]}"
        )


# --- one attempt


def list_candidates(root, folder, rule):
    """Return (rows, whether the folder has more entries than are looked at).

    rows: [(instead, saved in ns, name, {path: modification time in ns})], the likeliest first: by
    name, then by the time of saving.
    """
    try:
        descriptor = open_below(root, folder, DIRECTORY)
    except OSError:
        return [], False
    try:
        if rule["holds"][0].startswith("."):
            checkpoint_files, is_cut = _files_by_stem(descriptor)
        else:
            checkpoint_files, is_cut = _files_by_folder(descriptor)
    finally:
        os.close(descriptor)
    return sort_candidates(checkpoint_files, rule), is_cut


def sort_candidates(checkpoint_files, rule):
    """Return [(instead, saved in ns, name, files)] of checkpoints, the likeliest first.

    checkpoint_files: {name: files}, where files is {path: modification time in ns}.
    """
    rows = []
    for name, files in checkpoint_files.items():
        instead = not _fits(name, rule["names"])
        if not instead or _fits(name, rule.get("instead") or ()):
            saved = files.get(wanted_files(rule, name)[-1], max(files.values()))
            rows.append((instead, saved, name, files))
    return sorted(rows, key=lambda row: (row[0], -row[1], row[2]))


def group_files(files, rule):
    """Return {name of a checkpoint: {path: modification time in ns}} of a folder's files.

    files: {path below the folder: modification time in ns}.
    """
    checkpoint_files = {}
    for path, saved in files.items():
        name, slash, _rest = path.partition("/")
        if rule["holds"][0].startswith("."):
            name = os.path.splitext(path)[0]
        elif not slash:
            continue
        if "/" not in name:
            checkpoint_files.setdefault(name, {})[path] = saved
    return checkpoint_files


def _files_by_stem(descriptor):
    """Return ({stem: {path: modification time in ns}}, whether there are too many)."""
    checkpoint_files = {}
    names = _names(descriptor, MOST_ENTRIES + 1)
    for name in names[:MOST_ENTRIES]:
        with contextlib.suppress(OSError):
            info = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            _note(checkpoint_files, os.path.splitext(name)[0], name, info)
    return checkpoint_files, len(names) > MOST_ENTRIES


def _files_by_folder(descriptor):
    """Return ({folder: {path: modification time in ns}}, whether there are too many)."""
    checkpoint_files = {}
    folders = _names(descriptor, MOST_ENTRIES + 1)
    room = MOST_ENTRIES - len(folders)
    for folder in folders[:MOST_ENTRIES]:
        with contextlib.suppress(OSError):
            inner = os.open(folder, DIRECTORY, dir_fd=descriptor)
            try:
                names = _names(inner, max(0, room) + 1)
                room -= len(names)
                for name in names:
                    info = os.stat(name, dir_fd=inner, follow_symlinks=False)
                    _note(checkpoint_files, folder, f"{folder}/{name}", info)
            finally:
                os.close(inner)
    return checkpoint_files, room < 0


def _names(folder, most):
    """Return at most so many names of a directory descriptor."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in itertools.islice(entries, most)]


def _note(checkpoint_files, name, path, info):
    """Note a regular file of a checkpoint.

    Names that rsync could read otherwise belong to no checkpoint.
    """
    if (
        stat.S_ISREG(info.st_mode)
        and model_collector.is_plain_path(path)
        and not path.endswith(UNFINISHED)
    ):
        checkpoint_files.setdefault(name, {})[path] = info.st_mtime_ns


def _fits(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def describe_skipped(code, number, why, name=""):
    """Return the SkippedCheckpoint of attempt `number`."""
    return {"attempt": number, "name": name, "why": why, "code": code}


def find_in_attempt(attempt_dir, number, folders, rule, known=None):
    """Return (ResumePoint or None, skipped) of an attempt.

    The point is the newest complete checkpoint, without its digest. skipped: entries about newer
    ones that are not complete. folders: below attempt_dir, the likeliest first. known: what was
    read before (readings.Readings).
    """
    known = known or readings.Readings()
    try:
        root = _open_folder(attempt_dir)
    except OSError as error:
        return None, [
            describe_skipped("checkpoint.unreadable", number, f"cannot be read: {error.strerror}")
        ]
    try:
        rows, skipped = _attempt_rows(root, number, folders, rule)
        for folder, (instead, saved, name, files) in rows[:MOST_READ]:
            paths = [f"{folder}/{path}" for path in files]
            look = functools.partial(examine, root, folder, name, files, rule)
            try:
                numbers = _read_once(known, attempt_dir, root, paths, look)
            except validate.BrokenFile as error:
                skipped.append(describe_skipped(error.code, number, str(error), name))
                continue
            point = {
                "attempt": number,
                "name": name,
                "stem": name,
                "path": os.path.join(attempt_dir, folder),
                "instead": instead,
                "saved": saved / 1e9,
                "paths": sorted(files),
                **numbers,
            }
            return point, skipped
    finally:
        os.close(root)
    if len(rows) > MOST_READ:
        older = len(rows) - MOST_READ
        why = f"{older} older checkpoints are not looked at"
        skipped.append(describe_skipped("checkpoint.not_read", number, why))
    return None, skipped


def _read_once(known, what, root, paths, read):
    """Return read(), or what it has returned for the same files (readings.Readings)."""
    try:
        return known.take(what, root, paths, read)
    except OSError:  # a file that cannot be opened: reading it says why
        return read()


def _open_folder(path):
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _attempt_rows(root, number, folders, rule):
    """Return ([(folder, row of `list_candidates`)], skipped), the likeliest first."""
    rows, skipped = [], []
    for folder in folders:
        folder_rows, is_cut = list_candidates(root, folder, rule)
        rows += [(folder, row) for row in folder_rows]
        if is_cut:
            why = f"{folder} has more than {MOST_ENTRIES} entries; the rest is left out"
            skipped.append(describe_skipped("checkpoint.too_many_files", number, why))
    rows.sort(key=lambda row: (row[1][0], -row[1][1]))
    return rows, skipped


def sort_key(point):
    """Return the sort key of points, the best last.

    Points are compared by name, then by the epochs or else steps that are done, attempt and time of
    saving.
    """
    done = point["epoch"]
    if done is None:
        done = point["step"]
    if done is None:
        done = -1
    return not point["instead"], done, point["attempt"], point["saved"]


# --- one machine


def find_in_run(run_dir, rule, on_controller=False, attempt=None, known=None):
    """Return {'point': best point of a run on one machine, or None, 'skipped': [...]}.

    Every byte of that point is read, for its digest. run_dir: runs/<run id>. on_controller:
    whether that is the controller's, where a checkpoint lies in attempt-N/checkpoint. rule: the
    suite table's `resume`. With {} it is that of the attempts' own plans. attempt: the number of
    the only one that is read, None for all. known: what was read before (readings.Readings).
    """
    known = known or readings.Readings()
    numbers = [number for number in _numbers(run_dir) if attempt in (None, number)]
    points, skipped = _run_points(run_dir, numbers, rule, on_controller, known)
    for point in sorted(points, key=sort_key, reverse=True):
        try:
            files = _describe_files(point["path"], point.pop("paths"), known)
        except OSError as error:
            why = f"cannot be read: {error}"
            skipped.append(
                describe_skipped("checkpoint.unreadable", point["attempt"], why, point["name"])
            )
            continue
        point["files"] = files
        point["bytes"] = sum(entry[1] for entry in files.values())
        point["digest"] = manifest.digest(files)
        return {"point": point, "skipped": sort_skipped(skipped)}
    return {"point": None, "skipped": sort_skipped(skipped)}


def _run_points(run_dir, numbers, rule, on_controller, known):
    """Return (the best point of each attempt, skipped) of a run on one machine.

    numbers: the attempts', the newest first. known: what was read before.
    """
    points, skipped = [], []
    if len(numbers) > MOST_ATTEMPTS:
        why = f"{len(numbers) - MOST_ATTEMPTS} older attempts are not looked at"
        skipped.append(describe_skipped("checkpoint.not_read", numbers[MOST_ATTEMPTS], why))
    for number in numbers[:MOST_ATTEMPTS]:
        attempt_dir = os.path.join(run_dir, f"attempt-{number}")
        plan = read_mapping(os.path.join(attempt_dir, "plan.json"))
        folders = _folders(plan)
        if on_controller:
            plan = plan or read_mapping(os.path.join(run_dir, "plan.json"))
            folders = [model_collector.PLACE]
        attempt_rule = rule or _section(plan, "resume")
        if not attempt_rule.get("holds") or not attempt_rule.get("names"):
            continue
        point, incomplete = find_in_attempt(attempt_dir, number, folders, attempt_rule, known)
        skipped += incomplete
        if point:
            points.append(dict(point, first=_first(plan)))
    return points, skipped


def _describe_files(folder, paths, known):
    """Return {path: ['f', bytes, sha256]} of the files of a checkpoint.

    known: what was read before.
    """
    root = _open_folder(folder)
    try:
        described = {}
        for path in paths:
            look = functools.partial(model_collector.describe_file, root, path)
            described[path] = _read_once(known, folder, root, [path], look)
        return described
    finally:
        os.close(root)


def _numbers(run_dir):
    """Return the numbers of a run's attempts on one machine, the newest first."""
    if not os.path.isdir(run_dir):
        return []
    numbers = []
    for name in os.listdir(run_dir):
        match = _ATTEMPT.match(name)
        if match and not os.path.islink(os.path.join(run_dir, name)):
            numbers.append(int(match.group(1)))
    return sorted(numbers, reverse=True)


def _section(plan, name):
    """Return a mapping of the plan's suite, {} where it has none."""
    suite = plan.get("suite")
    if isinstance(suite, dict) and isinstance(suite.get(name), dict):
        return suite[name]
    return {}


def _folders(plan):
    folders = _section(plan, "checkpoints").get("folders")
    if not isinstance(folders, list):
        return []
    return [folder for folder in folders if isinstance(folder, str)]


def _first(plan):
    """Return the name of the node with rank 0, '' where the plan lacks it."""
    nodes = plan.get("nodes")
    if not isinstance(nodes, list) or not nodes:
        return ""
    if not isinstance(nodes[0], dict) or "name" not in nodes[0]:
        return ""
    return str(nodes[0]["name"])


def sort_skipped(skipped):
    return sorted(skipped, key=lambda row: (-row["attempt"], row["name"], row.get("node", "")))


def describe_point(point):
    """Return a point as text: name, attempt, machines, what is done, and its digest."""
    text = f"{point['name']} of attempt {point['attempt']}"
    machines = " and ".join(each["source"] for each in point.get("sources") or ())
    if machines:
        text += f" (on {machines})"
    parts = [text]
    for key in ("epoch", "step"):
        count = point[key]
        if count == 1:
            parts.append(f"1 {key} done")
        elif count is not None:
            parts.append(f"{count} {key}s done")
    if point["lr"] is not None:
        parts.append("learning rate {:g}".format(point["lr"]))
    return ", ".join([*parts, "digest {}".format(point["digest"][:12])])
