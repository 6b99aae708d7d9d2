# SPDX-License-Identifier: Apache-2.0
"""What a node knows of an attempt: its ranks' logs, how each rank ended, what the launcher said,
and which files are to be brought home.

Everything is read below the attempt's directory and nowhere else: each step of a path is opened
without following links, and only regular files are read. Whole environments (envlog.*,
backup_env.*, default.*.log) are never brought home; of default.*.log only the list of endpoints is
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
from ..base.safe_open import DIRECTORY, open_below
from ..base.sanitize import printable_data, secrets_of
from ..logs.parser import (
    Table,
    TableError,
    last_line,
    scan,
    tail_status,
)
from ..logs.timestamps import span, utc_offset
from ..logs.visualdl import records
from . import guard_findings, ownership

SMALL = 8 << 20  # bytes of plan.json, ranks.jsonl, exit.json and default.*.log that are read
_NAME = re.compile(
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z"
)  # of a node, and of a file at home, which bears the node's name
_FILE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,%d}\Z" % (safe_names.PART_BYTES - 1))
_ENDPOINTS_FILE = re.compile(r"^default\.[A-Za-z0-9_-]+\.log$")
_ENDPOINT = re.compile(r"^[A-Za-z0-9._:\[\]-]+:\d{1,5}$")
# A process that got one of these failed by itself; other signals came from outside.
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


class EvidenceError(Exception):
    """The attempt cannot be read at all; the message is for people."""


def _read(root, relative, limit=SMALL):
    """The first `limit` bytes of a small file, or None where there is none that may be read."""
    try:
        descriptor = open_below(root, relative)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        return handle.read(limit)


def _json(data):
    try:
        return json.loads(data.decode("utf-8", "replace")) if data is not None else None
    except (ValueError, RecursionError):
        return None


def _time(value):
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def signal_name(value):
    """`SIGKILL` for 9, "9", "KILL" or "SIGKILL"; None for what is no signal."""
    if isinstance(value, str) and not value.isdecimal():
        name = value if value.startswith("SIG") else "SIG" + value
        return name if re.match(r"^SIG[A-Z0-9+-]{2,12}$", name) else None
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    try:
        return signal.Signals(int(value)).name
    except ValueError:
        return f"SIG{int(value)}"


def read_events(data):
    """ranks.jsonl as {"ranks": {rank: {...}}, "launcher": {...}}.

    Torn, foreign and malformed lines are passed over; of a rank's events the latest counts.
    """
    ranks, launcher = {}, {}
    for line in (data or b"").split(b"\n"):
        event = _json(line)
        if not isinstance(event, dict):
            continue
        kind, code = event.get("event"), event.get("exit_code")
        code = code if isinstance(code, int) and not isinstance(code, bool) else None
        end = {
            "ended": _time(event.get("time")),
            "exit_code": code,
            "signal": signal_name(event.get("signal")),
        }
        if isinstance(event.get("endpoints"), list):
            launcher["endpoints"] = [
                str(item) for item in event["endpoints"] if _ENDPOINT.match(str(item))
            ]
        if kind == "launched":
            launcher["started"] = _time(event.get("time"))
        elif kind == "launcher_end":
            launcher.update(end)
        elif kind in ("start", "end") and isinstance(event.get("rank"), int):
            known = ranks.setdefault(event["rank"], {})
            if kind == "start":
                known.update(
                    {
                        "pid": event.get("pid"),
                        "started": _time(event.get("time")),
                        "ended": None,
                        "exit_code": None,
                        "signal": None,
                    }
                )
            elif known.get("pid") in (None, event.get("pid")):
                known.update(end, pid=event.get("pid"))
    return {"ranks": ranks, "launcher": launcher}


def is_child(said, rank):
    """Whether what a launcher said of a child is said of this rank: msrun names pids, mpirun global
    ranks, Paddle's launcher local ones.
    """
    return any(
        said[key] is not None and said[key] == rank.get(key)
        for key in ("rank", "pid", "local_rank")
    )


def state_of(rank, ended, unit):
    """waiting, starting, training, done, failed, killed or stopped, for one rank's findings.

    `ended`: whether its end was seen. `unit`: exit.json, or None while the attempt's unit has not
    ended on this node.
    """
    stopped = bool((unit or {}).get("stopped_by"))
    if rank["exit_code"] == 0:
        return "done"
    if rank["signal"] in _OWN_SIGNALS or rank["exit_code"]:
        return "failed"
    if rank["signal"]:
        return "stopped" if stopped else "killed"
    if unit is not None:
        if stopped:
            return "stopped"
        return (
            "done"
            if unit.get("service_result") == "success" and not rank["first_error"]
            else "failed"
        )
    if ended:  # the end was seen, how was not
        return "failed" if rank["first_error"] else "done"
    if rank["last_step"] or rank["evaluation"] or rank["saved"]:
        return "training"
    return "starting" if rank["pid"] or rank["bytes"] else "waiting"


def _plan(root, node):
    """(the node's ranks, the launcher's entry, the suite's table, the plan itself) of plan.json."""
    plan = _json(_read(root, "plan.json"))
    if not isinstance(plan, dict):
        raise EvidenceError("plan.json is missing here or is not JSON")
    ranks, launcher, suite = plan.get("ranks"), plan.get("launcher"), plan.get("suite")
    if (
        not isinstance(ranks, list)
        or not isinstance(launcher, dict)
        or not isinstance(launcher.get("rank_log"), str)
    ):
        raise EvidenceError("plan.json has no list `ranks` or no `launcher.rank_log`")
    whole = [
        r
        for r in ranks
        if isinstance(r, dict) and all(isinstance(r.get(k), int) for k in ("rank", "local_rank"))
    ]
    mine = sorted((r for r in whole if r.get("node") == node), key=lambda r: r["local_rank"])
    if not mine:
        raise EvidenceError(
            f"the plan has no rank on {node}; it has"
            f" {', '.join(sorted({str(r.get('node')) for r in whole})) or 'none'}"
        )
    try:
        table = Table(suite.get("logs") if isinstance(suite, dict) else None)
    except TableError as error:
        raise EvidenceError(f"plan.json: suite: {error}") from error
    return mine, launcher, table, plan


def launcher_notes(root, folder):
    """(endpoints, environment) from the newest default.<pod>.log: what Paddle's launcher wrote of
    the cluster it believes in.
    """
    try:
        here = open_below(root, folder, DIRECTORY)
    except OSError:
        return None, {}
    try:
        found = [
            (os.stat(name, dir_fd=here, follow_symlinks=False).st_mtime, name)
            for name in os.listdir(here)
            if _ENDPOINTS_FILE.match(name)
        ]
    except OSError:
        found = []
    finally:
        os.close(here)
    endpoints, environment = None, {}
    for line in (_read(root, f"{folder}/{max(found)[1]}") or b"").split(b"\n") if found else ():
        text = line.decode("utf-8", "replace")
        try:
            value = ast.literal_eval(text[8:-1] if text.startswith("environ({") else text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(value, dict):
            environment = value
        elif (
            isinstance(value, list)
            and value
            and all(isinstance(v, str) and _ENDPOINT.match(v) for v in value)
        ):
            endpoints = value
    return endpoints, environment


class _Attempt:
    """One attempt's directory, open."""

    def __init__(self, root, node, digest):
        self.root, self.node, self.digest = root, node, digest
        self.files, self.problems = [], []

    def scan(self, relative, home, table):
        """The findings of one log, or None; the file is noted as one to bring home."""
        try:
            descriptor = open_below(self.root, relative)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.problems.append(f"{relative}: not read: {error.strerror or error}")
            return None
        try:
            found = scan(descriptor, table) if self.digest else tail_status(descriptor, table)
            found["mtime"] = os.fstat(descriptor).st_mtime
            found["last_line"] = last_line(descriptor)
            found["first_time"], found["last_time"] = span(descriptor, utc_offset(found["mtime"]))
        except OSError as error:
            self.problems.append(f"{relative}: not read to its end: {error.strerror or error}")
            return None
        finally:
            os.close(descriptor)
        self.files.append(
            {"file": relative, "home": home, "bytes": found["bytes"], "sha256": found["sha256"]}
        )
        return found

    def strays(self, template, planned):
        """Rank logs that no rank of the plan owns (a launcher that started more than it should):
        they come home too.
        """
        folder, _slash, name = template.rpartition("/")
        pattern = re.compile(
            "^" + re.sub(r"\\\{(?:local_)?rank\\\}", r"\\d{1,6}", re.escape(name)) + "\\Z"
        )
        try:
            here = open_below(self.root, folder, DIRECTORY) if folder else os.dup(self.root)
        except OSError:
            return []
        try:
            names = sorted(
                n
                for n in os.listdir(here)
                if pattern.match(n) and _FILE.match(n) and _NAME.match(_stray(n, self.node))
            )
        finally:
            os.close(here)
        return [n for n in (folder + "/" + n if folder else n for n in names) if n not in planned]


def _stray(name, node):
    """Return the name at home of a log that no rank of the plan owns."""
    return f"stray-{name}.{node}.log"


def collect(attempt_dir, node, digest=True, names=()):
    """Everything about one node's part of an attempt, safe to show. `names`: environment variables
    whose values must not be shown.
    """
    now = time.time()
    if not _NAME.match(node):
        raise EvidenceError(f"{node!r} cannot be a node's name")
    try:
        root = os.open(attempt_dir, DIRECTORY)
    except OSError as error:
        raise EvidenceError(error.strerror or str(error)) from error
    try:
        result, secrets = _collect(_Attempt(root, node, digest), names)
    finally:
        os.close(root)
    return printable_data(dict(result, node=node, now=now, utc_offset=utc_offset(now)), *secrets)


def _collect(attempt, names):
    mine, launcher, table, plan = _plan(attempt.root, attempt.node)
    events = read_events(_read(attempt.root, "ranks.jsonl"))
    unit = _json(_read(attempt.root, "exit.json"))
    unit = {str(k): v for k, v in unit.items()} if isinstance(unit, dict) else None
    if unit is not None:
        stop = _json(
            _read(attempt.root, "stop.json")
        )  # when the stop was asked for, by this node's clock
        unit["stopped_at"] = (
            _time(stop.get("time")) if unit.get("stopped_by") and isinstance(stop, dict) else None
        )
    console = launcher.get("console") if isinstance(launcher.get("console"), str) else "logs.txt"
    said = attempt.scan(console, f"launcher.{attempt.node}.log", Table()) or {}
    children = [entry for entry in said.get("containers", ()) if entry["code"] is not None]
    template, ranks, planned = launcher["rank_log"], [], set()
    for entry in mine:
        relative = template.replace("{local_rank}", str(entry["local_rank"])).replace(
            "{rank}", str(entry["rank"])
        )
        relative = (
            entry["log"] if isinstance(entry.get("log"), str) else relative
        )  # a plan of an older version has the template alone
        planned.add(relative)
        home = f"rank-{entry['rank']:03d}.{attempt.node}.log"
        ranks.append(
            _rank(
                entry,
                relative,
                home,
                attempt.scan(relative, home, table),
                events["ranks"].get(entry["rank"], {}),
                children,
                unit,
            )
        )
    for stray in attempt.strays(template, planned):
        attempt.scan(stray, _stray(stray.rpartition("/")[2], attempt.node), Table())
        attempt.problems.append(f"{stray}: no rank of the plan owns this log")
    scheduler = None
    for name in launcher.get("logs") if isinstance(launcher.get("logs"), list) else ():
        home = f"{os.path.basename(str(name))[:-4]}.{attempt.node}.log"
        found = attempt.scan(str(name), home, Table())  # MindSpore's scheduler
        if found:
            scheduler = {"home": home, "first_error": found["first_error"], "mtime": found["mtime"]}
    suite = plan.get("suite") if isinstance(plan.get("suite"), dict) else {}
    redirects = suite.get("redirects") if isinstance(suite.get("redirects"), dict) else {}
    for name, home in (
        records(attempt.root, redirects.values(), attempt.node) if attempt.digest else ()
    ):
        attempt.scan(name, home, Table())
    for name, home in guard_findings.files(attempt.node, mine):
        attempt.scan(name, home, Table())
    endpoints, environment = launcher_notes(attempt.root, template.rpartition("/")[0])
    secrets = secrets_of(
        dict(plan, secret_env=[*names, *(plan.get("secret_env") or ())]), more=[environment]
    )
    result = {
        "ranks": ranks,
        "files": attempt.files,
        "endpoints": events["launcher"].pop("endpoints", None) or endpoints,
        "exit": unit,
        "launcher": {
            **_LAUNCHER,
            "first_error": said.get("first_error"),
            "children": children,
            **events["launcher"],
        },
        "scheduler": scheduler,
        "problems": attempt.problems,
        "guard": guard_findings.found(lambda name: _json(_read(attempt.root, name))),
        "restarted": unit is None and restarted(_json(_read(attempt.root, "attempt.json"))),
        "free": free_bytes(attempt.root),
    }
    return result, secrets


def free_bytes(root):
    """Return the bytes that a user may still write to the file system of an open directory; None
    where it does not say.
    """
    try:
        found = os.fstatvfs(root)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def restarted(record):
    """Whether the node (or its container) was booted since an attempt began here; record: its
    attempt.json.
    """
    begun = record.get("boot") if isinstance(record, dict) else None
    return bool(begun) and begun != ownership.boot_mark()


def _rank(entry, relative, home, found, event, children, unit):
    rank = {key: entry.get(key) for key in ("rank", "node", "local_rank", "device")}
    rank.update(file=relative if found else None, home=home)
    rank.update({key: (found or {}).get(key) for key in _LOG_KEYS + _STEP_KEYS})
    rank.update({key: event.get(key) for key in ("pid", "started", "ended", "exit_code", "signal")})
    rank["observed"] = "agent" if rank["exit_code"] is not None or rank["signal"] else None
    code = next((said["code"] for said in children if is_child(said, rank)), None)
    if (
        rank["observed"] is None and code is not None
    ):  # the launcher's own word, which it gives for one child only
        rank.update(
            observed="launcher",
            exit_code=code if code >= 0 else None,
            signal=signal_name(-code) if code < 0 else None,
        )
    rank["state"] = state_of(rank, rank["ended"] is not None or rank["observed"] is not None, unit)
    return rank
