# SPDX-License-Identifier: Apache-2.0
"""Evidence of an attempt on its node, for the controller.

It has the ranks' logs, the end of each rank, the launcher's words and the files to fetch.
Everything is read below the attempt's directory and nowhere else: each step of a path is opened
without following links, and only regular files are read. Whole environments (envlog.*,
backup_env.*, default.*.log) are never fetched. Of default.*.log only the list of endpoints is
returned.
"""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import time

from ..base import safe_names
from ..base.coded_error import CodedError
from ..base.safe_open import DIRECTORY, open_below
from ..base.sanitize import printable_data, secrets_of
from ..checkpoints import model_collector
from ..logs.parser import (
    Table,
    TableError,
    last_line,
    scan,
    tail_status,
)
from ..logs.timestamps import span, utc_offset
from ..logs.visualdl import records
from . import cann_logs, device_findings, guard_findings, ownership
from .states import RankState

SMALL = 8 << 20  # bytes of plan.json, ranks.jsonl, exit.json and default.*.log that are read
# A node's name, and a file's on the controller, which has the node's name in it.
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")
_FILE = re.compile(rf"^[A-Za-z0-9][A-Za-z0-9._-]{{0,{safe_names.PART_BYTES - 1}}}\Z")
_ENDPOINTS_FILE = re.compile(r"^default\.[A-Za-z0-9_-]+\.log$")
_ENDPOINT = re.compile(r"^[A-Za-z0-9._:\[\]-]+:\d{1,5}$")
# A process that got one of these failed through its own fault. Other signals came from outside.
_OWN_SIGNALS = frozenset(("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE"))
_LAUNCHER = {"started": None, "ended": None, "exit_code": None, "signal": None}
_LOG_KEYS = ("bytes", "sha256", "lines", "mtime", "first_time", "last_time", "last_line")
_STEP_KEYS = (
    "steps",
    "first_step",
    "last_step",
    "evaluation",
    "nan",
    "saved",
    "saved_count",
    "first_error",
)


class EvidenceError(CodedError):
    """An attempt that cannot be read at all."""


def _read_bytes(root, path, limit=SMALL):
    """Return the first `limit` bytes of a small file, None where it cannot be read."""
    try:
        descriptor = open_below(root, path)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        return handle.read(limit)


def _parse_json(data):
    """Return the value of a JSON text in bytes, None where it is not valid."""
    if data is None:
        return None
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _read_mapping(root, path):
    """Return the mapping in a JSON file below the attempt, or None."""
    value = _parse_json(_read_bytes(root, path))
    if not isinstance(value, dict):
        return None
    return value


def _mapping(value):
    """Return the value where it is a mapping, else {}."""
    if isinstance(value, dict):
        return value
    return {}


def _is_integer(value):
    return isinstance(value, int) and not isinstance(value, bool)


def _seconds(value):
    """Return a time as a float, None where the value is not a number."""
    if _is_integer(value) or isinstance(value, float):
        return float(value)
    return None


def signal_name(value):
    """Return the name of a signal, None for a value that is not a signal.

    `SIGKILL` is the name of 9, "9", "KILL" and "SIGKILL".
    """
    if isinstance(value, str) and not value.isdecimal():
        name = value
        if not value.startswith("SIG"):
            name = "SIG" + value
        if re.match(r"^SIG[A-Z0-9+-]{2,12}$", name):
            return name
        return None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        return signal.Signals(int(value)).name
    except ValueError:
        return f"SIG{int(value)}"


def read_events(data):
    """Return {"ranks": {rank: {...}}, "launcher": {...}} from ranks.jsonl's bytes.

    Torn, foreign and malformed lines are passed over. Of a rank's events the latest counts.
    """
    ranks, launcher = {}, {}
    for line in (data or b"").split(b"\n"):
        event = _parse_json(line)
        if not isinstance(event, dict):
            continue
        kind = event.get("event")
        if isinstance(event.get("endpoints"), list):
            texts = [str(item) for item in event["endpoints"]]
            launcher["endpoints"] = [text for text in texts if _ENDPOINT.match(text)]
        if kind == "launched":
            launcher["started"] = _seconds(event.get("time"))
        elif kind == "launcher_end":
            launcher.update(_end_of(event))
        elif kind in ("start", "end") and isinstance(event.get("rank"), int):
            _update_rank(ranks.setdefault(event["rank"], {}), event)
    return {"ranks": ranks, "launcher": launcher}


def _end_of(event):
    """Return {ended, exit_code, signal} of an event."""
    code = event.get("exit_code")
    if not _is_integer(code):
        code = None
    return {
        "ended": _seconds(event.get("time")),
        "exit_code": code,
        "signal": signal_name(event.get("signal")),
    }


def _update_rank(rank, event):
    """Take a start into a rank's entry, or an end where it is of the same process."""
    pid = event.get("pid")
    if event["event"] == "start":
        started = _seconds(event.get("time"))
        rank.update(pid=pid, started=started, ended=None, exit_code=None, signal=None)
    elif rank.get("pid") in (None, pid):
        rank.update(_end_of(event), pid=pid)


def is_child(report, rank):
    """Return whether a launcher's words about a child are about this rank.

    msrun names pids, mpirun global ranks, Paddle's launcher local ones.
    """
    return any(
        report[key] is not None and report[key] == rank.get(key)
        for key in ("rank", "pid", "local_rank")
    )


def rank_state(rank, ended, unit):
    """Return a rank's RankState from its findings.

    `ended`: whether its end was
    seen. `unit`: exit.json, or None while the attempt's unit has not ended on this node.
    """
    stopped = bool((unit or {}).get("stopped_by"))
    if rank["exit_code"] == 0:
        return RankState.DONE
    if rank["signal"] in _OWN_SIGNALS or rank["exit_code"]:
        return RankState.FAILED
    if rank["signal"] and not stopped:
        return RankState.KILLED
    if stopped:
        return RankState.STOPPED
    if unit is not None:
        return _end_state(rank, unit.get("service_result") == "success")
    if ended:  # its end was seen, but not its exit status
        return _end_state(rank, True)
    if rank["last_step"] or rank["evaluation"] or rank["saved"]:
        return RankState.TRAINING
    if rank["pid"] or rank["bytes"]:
        return RankState.STARTING
    return RankState.WAITING


def _end_state(rank, success):
    """Return DONE or FAILED for a rank whose exit status is not known."""
    if success and not rank["first_error"]:
        return RankState.DONE
    return RankState.FAILED


def _read_plan(root, node):
    """Return (the plan, the node's ranks, the suite's table of log patterns).

    Raises EvidenceError where plan.json does not have them.
    """
    plan = _parse_json(_read_bytes(root, "plan.json"))
    if not isinstance(plan, dict):
        raise EvidenceError("attempt.no_plan", "plan.json is missing here or is not JSON")
    ranks, launcher = plan.get("ranks"), plan.get("launcher")
    if (
        not isinstance(ranks, list)
        or not isinstance(launcher, dict)
        or not isinstance(launcher.get("rank_log"), str)
    ):
        raise EvidenceError(
            "attempt.bad_plan", "plan.json has no list `ranks` or no `launcher.rank_log`"
        )
    complete = [entry for entry in ranks if _is_rank(entry)]
    own_ranks = [entry for entry in complete if entry.get("node") == node]
    if not own_ranks:
        others = ", ".join(sorted({str(entry.get("node")) for entry in complete})) or "none"
        raise EvidenceError(
            "attempt.not_planned", f"the plan has no rank on {node}; it has {others}"
        )
    try:
        table = Table(_mapping(plan.get("suite")).get("logs"))
    except TableError as error:
        raise EvidenceError("attempt.bad_plan", f"plan.json: suite: {error}") from error
    return plan, sorted(own_ranks, key=lambda entry: entry["local_rank"]), table


def _is_rank(entry):
    return isinstance(entry, dict) and all(
        isinstance(entry.get(key), int) for key in ("rank", "local_rank")
    )


def read_launcher_log(root, folder):
    """Return (endpoints, environment) that Paddle's launcher has logged.

    They are from the newest default.<pod>.log: None and {} where it does not have them. The
    endpoints are those of the cluster as the launcher sees it.
    """
    name = _newest_launcher_log(root, folder)
    if name is None:
        return None, {}
    endpoints, environment = None, {}
    for line in (_read_bytes(root, f"{folder}/{name}") or b"").split(b"\n"):
        text = line.decode("utf-8", "replace")
        if text.startswith("environ({"):
            text = text[8:-1]
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, dict):
            environment = value
        elif _are_endpoints(value):
            endpoints = value
    return endpoints, environment


def _newest_launcher_log(root, folder):
    """Return the name of the newest default.<pod>.log in a folder, None without one."""
    try:
        descriptor = open_below(root, folder, DIRECTORY)
    except OSError:
        return None
    try:
        logs = [
            (os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mtime, name)
            for name in os.listdir(descriptor)
            if _ENDPOINTS_FILE.match(name)
        ]
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if not logs:
        return None
    return max(logs)[1]


def _are_endpoints(value):
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, str) and _ENDPOINT.match(item) for item in value)
    )


class TooLong(Exception):
    """The files are larger than the caller wants to have read."""


class _Attempt:
    """Opened directory of one attempt, with the files and problems found in it.

    most: bytes that are read whole, None for all.
    """

    def __init__(self, root, node, digest, most=None):
        self.root, self.node, self.digest, self.left = root, node, digest, most
        self.files, self.problems = [], []

    def read_mapping(self, path):
        """Return the mapping in a JSON file of the attempt, or None."""
        return _read_mapping(self.root, path)

    def scan(self, path, controller_name, table, ended=None):
        """Return the findings of one log or None, and note the file as one to fetch.

        controller_name: its name on the controller. ended: exit code and signal of its process,
        None where it may still run.
        """
        try:
            descriptor = open_below(self.root, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems.append(f"{path}: not read: {error.strerror or error}")
            return None
        try:
            findings = self._scan_descriptor(descriptor, table, ended)
        except OSError as error:
            self.problems.append(f"{path}: not read to its end: {error.strerror or error}")
            return None
        finally:
            os.close(descriptor)
        file = {"file": path, "home": controller_name}
        self.files.append(dict(file, bytes=findings["bytes"], sha256=findings["sha256"]))
        return findings

    def _scan_descriptor(self, descriptor, table, ended):
        if self.digest:
            self._count(os.fstat(descriptor).st_size)
            findings = scan(descriptor, table, ended)
        else:
            findings = tail_status(descriptor, table)
        findings["mtime"] = os.fstat(descriptor).st_mtime
        findings["last_line"] = last_line(descriptor)
        offset = utc_offset(findings["mtime"])
        findings["first_time"], findings["last_time"] = span(descriptor, offset)
        return findings

    def _count(self, size):
        """Raise TooLong where the files are larger, together, than they may be."""
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise TooLong("the logs are larger than was asked for")

    def holds(self, path):
        """Return whether a file was found among those to fetch."""
        return any(file["file"] == path for file in self.files)

    def scan_strays(self, template, planned):
        """Scan logs that look like a rank's, but belong to no rank of the plan.

        A launcher that started more ranks than it should has left them. They are fetched too.
        """
        folder, _slash, name = template.rpartition("/")
        pattern = re.compile(
            "^" + re.sub(r"\\\{(?:local_)?rank\\\}", r"\\d{1,6}", re.escape(name)) + "\\Z"
        )
        for name in self._list_folder(folder):
            controller_name = f"stray-{name}.{self.node}.log"
            path = name
            if folder:
                path = f"{folder}/{name}"
            named_well = pattern.match(name) and _FILE.match(name) and _NAME.match(controller_name)
            if named_well and path not in planned:
                self.scan(path, controller_name, Table())
                self.problems.append(f"{path}: no rank of the plan owns this log")

    def _list_folder(self, folder):
        """Return the sorted names in a folder, [] where it cannot be opened."""
        try:
            if folder:
                descriptor = open_below(self.root, folder, DIRECTORY)
            else:
                descriptor = os.dup(self.root)
        except OSError:
            return []
        try:
            return sorted(os.listdir(descriptor))
        finally:
            os.close(descriptor)


def collect(attempt_dir, node, digest=True, names=(), most=None):
    """Return all evidence of one node's part of an attempt, safe to show.

    digest: scan each log as a whole, else only its end. names: environment variables whose values
    must not be shown. most: bytes of all logs, None for any. Raises TooLong where they are larger,
    EvidenceError where the attempt cannot be read at all.
    """
    now = time.time()
    if not _NAME.match(node):
        raise EvidenceError("attempt.bad_node", f"{node!r} cannot be a node's name")
    try:
        root = os.open(attempt_dir, DIRECTORY)
    except OSError as error:
        raise EvidenceError("attempt.unreadable", error.strerror or str(error)) from error
    try:
        result, secrets = _collect(_Attempt(root, node, digest, most), attempt_dir, names)
    finally:
        os.close(root)
    return printable_data(dict(result, node=node, now=now, utc_offset=utc_offset(now)), *secrets)


def _collect(attempt, attempt_dir, names):
    """Return (evidence, secrets) of an attempt."""
    plan, own_ranks, table = _read_plan(attempt.root, attempt.node)
    launcher, template = plan["launcher"], plan["launcher"]["rank_log"]
    events = read_events(_read_bytes(attempt.root, "ranks.jsonl"))
    unit = _read_unit_end(attempt)
    console = _scan_console(attempt, launcher)
    children = [entry for entry in console.get("containers", ()) if entry["code"] is not None]
    ranks = []
    for entry in own_ranks:
        path = _rank_log(entry, template)
        controller_name = f"rank-{entry['rank']:03d}.{attempt.node}.log"
        event = events["ranks"].get(entry["rank"], {})
        rank = _describe_rank(entry, controller_name, event)
        has_ended = _note_end(rank, children)
        ended = None
        if has_ended or unit is not None:
            ended = (rank["exit_code"], rank["signal"])
        findings = attempt.scan(path, controller_name, table, ended)
        if findings:
            rank.update({key: findings.get(key) for key in _LOG_KEYS + _STEP_KEYS}, file=path)
        rank["state"] = rank_state(rank, has_ended, unit).value
        ranks.append(rank)
    attempt.scan_strays(template, {_rank_log(entry, template) for entry in own_ranks})
    scheduler = _scan_schedulers(attempt, launcher)
    _scan_other_files(attempt, own_ranks, plan)
    endpoints, environment = read_launcher_log(attempt.root, template.rpartition("/")[0])
    secrets = secrets_of(
        dict(plan, secret_env=[*names, *(plan.get("secret_env") or ())]), more=[environment]
    )
    begun = _mapping(attempt.read_mapping("attempt.json"))
    result = {
        "ranks": ranks,
        "files": attempt.files,
        "endpoints": events["launcher"].pop("endpoints", None) or endpoints,
        "exit": unit,
        "launcher": {
            **_LAUNCHER,
            "first_error": console.get("first_error"),
            "children": children,
            **events["launcher"],
        },
        "scheduler": scheduler,
        "problems": attempt.problems,
        "guard": guard_findings.read_findings(
            lambda name: _parse_json(_read_bytes(attempt.root, name))
        ),
        "devices": device_findings.read_findings(attempt.read_mapping(device_findings.FILE)),
        "restarted": unit is None and was_rebooted(begun),
        "by_nodes": begun.get("by") == ownership.BY_NODES,
        "planned_by": _node_name(begun.get("planned_by")),
        "free": free_bytes(attempt.root),
        "has_checkpoint": _has_checkpoint(attempt_dir, plan),
    }
    return result, secrets


def _node_name(value):
    """Return a value that can be a node's name, None for any other."""
    if isinstance(value, str) and _NAME.match(value):
        return value
    return None


def _has_checkpoint(attempt_dir, plan):
    """Return whether the attempt has saved a checkpoint on this node, by the names of its files."""
    table = _mapping(_mapping(plan.get("suite")).get("checkpoints"))
    patterns = {key: str(table.get(key) or "") for key in ("best", "last")}
    folders = [str(folder) for folder in table.get("folders") or ()]
    try:
        return bool(model_collector.newest_name(attempt_dir, folders, patterns))
    except OSError:  # a folder that this account cannot read, or that was removed meanwhile
        return False


def _read_unit_end(attempt):
    """Return exit.json, None while the unit has not ended.

    stopped_at is the time at which the stop was asked for, by this node's clock, or None.
    """
    unit = attempt.read_mapping("exit.json")
    if unit is None:
        return None
    stop_note = attempt.read_mapping("stop.json")
    stopped_at = None
    if unit.get("stopped_by") and stop_note is not None:
        stopped_at = _seconds(stop_note.get("time"))
    return dict(unit, stopped_at=stopped_at)


def _scan_console(attempt, launcher):
    """Return the findings of the launcher's console, {} where it cannot be read."""
    path = launcher.get("console")
    if not isinstance(path, str):
        path = "logs.txt"
    return attempt.scan(path, f"launcher.{attempt.node}.log", Table()) or {}


def _rank_log(entry, template):
    """Return the path of a rank's log below the attempt."""
    if isinstance(entry.get("log"), str):
        return entry["log"]
    # A plan of an older version has the template alone.
    path = template.replace("{local_rank}", str(entry["local_rank"]))
    return path.replace("{rank}", str(entry["rank"]))


def _scan_schedulers(attempt, launcher):
    """Return {home, first_error, mtime} of the launcher's last own log, or None.

    The launcher's own logs are those of MindSpore's scheduler.
    """
    names, scheduler = launcher.get("logs"), None
    if not isinstance(names, list):
        return None
    for name in names:
        controller_name = f"{os.path.basename(str(name))[:-4]}.{attempt.node}.log"
        findings = attempt.scan(str(name), controller_name, Table())
        if findings:
            scheduler = {key: findings[key] for key in ("first_error", "mtime")}
            scheduler["home"] = controller_name
    return scheduler


def _scan_other_files(attempt, own_ranks, plan):
    """Scan VisualDL's records and the files of guard and agent, to fetch them."""
    if attempt.digest:
        redirects = _mapping(_mapping(plan.get("suite")).get("redirects"))
        for name, controller_name in records(attempt.root, redirects.values(), attempt.node):
            attempt.scan(name, controller_name, Table())
    for name, controller_name in guard_findings.evidence_files(attempt.node, own_ranks):
        attempt.scan(name, controller_name, Table())
    if attempt.digest and attempt.holds(device_findings.FILE):
        for name, controller_name in cann_logs.find_logs(attempt.root, attempt.node):
            attempt.scan(name, controller_name, Table())


def free_bytes(root):
    """Return the bytes that a user may still write to a directory's file system.

    root: a descriptor of the directory. Return None where the system does not show it.
    """
    try:
        stats = os.fstatvfs(root)
    except OSError:
        return None
    return stats.f_bavail * stats.f_frsize


def was_rebooted(record):
    """Return whether the node was booted since an attempt began on it.

    A container's restart counts as well. record: the attempt's attempt.json, or None.
    """
    boot = (record or {}).get("boot")
    return bool(boot) and boot != ownership.boot_mark()


def _describe_rank(entry, controller_name, event):
    """Return a rank's entry of the evidence, without its state and what its log has.

    event: its entry of read_events.
    """
    rank = {key: entry.get(key) for key in ("rank", "node", "local_rank", "device")}
    rank.update(file=None, home=controller_name)
    rank.update(dict.fromkeys(_LOG_KEYS + _STEP_KEYS))
    rank.update({key: event.get(key) for key in ("pid", "started", "ended", "exit_code", "signal")})
    return rank


def _note_end(rank, children):
    """Set the observer of a rank's end (agent, launcher or None), and return whether it ended.

    The launcher reports the end of one child only. It counts where the agent has not seen the end.
    """
    rank["observed"] = None
    if rank["exit_code"] is not None or rank["signal"]:
        rank["observed"] = "agent"
    code = next((child["code"] for child in children if is_child(child, rank)), None)
    if rank["observed"] is None and code is not None:
        rank.update(observed="launcher", exit_code=None, signal=None)
        if code >= 0:
            rank["exit_code"] = code
        else:
            rank["signal"] = signal_name(-code)
    return rank["ended"] is not None or rank["observed"] is not None
