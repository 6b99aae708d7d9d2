# SPDX-License-Identifier: Apache-2.0
"""Attempts on a node: the directory, the working directory of links, and the transient unit of the
user's own systemd (decisions 1, 2, 9).

Functions take `run`, a callable like AnsibleModule.run_command, so that they are tested without
Ansible and without systemd.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import time

from ..base import manifest
from . import guard_unit, mesh_credential

RUN_ID = re.compile(r"^[0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4}\Z")
PLAIN_PATH = re.compile(r"^[A-Za-z0-9._/+@-]+\Z")
UNIT = re.compile(r"^trainyard-(.+)-([0-9]+)\.service$")
# Who "stops" an attempt that was taken back before it had begun on all nodes (stop.json's from;
# roles/launch/tasks/start.yml).
NO_GUARD = "a guard that did not start"
UNDONE = ("a start that failed on another node", NO_GUARD)
ACTIVE = ("active", "activating", "deactivating", "reloading")


class AttemptError(Exception):
    """An attempt that cannot be started or found; the message is for the user."""


def unit_name(run_id, attempt):
    """Return the unit's name; it holds run and attempt, so that stopping an old attempt can never
    hit a new one.
    """
    return "trainyard-%s-%d.service" % (run_id, attempt)


def attempt_dir(base, run_id, attempt):
    """Return the attempt's directory below a node's product directory."""
    if not RUN_ID.match(run_id):
        raise AttemptError(f"{run_id!r} is no run id")
    return os.path.join(base, "runs", run_id, "attempt-%d" % attempt)


def user_environment(uid):
    """Return the variables that let systemctl and systemd-run find the user's manager over SSH
    (facts, 'Nodes in Docker').
    """
    return {"XDG_RUNTIME_DIR": "/run/user/%d" % uid}


def runs_on(base):
    """Return [(run id, attempt)] that have a directory here, oldest first. A rehearsal (attempt 0)
    is none.
    """
    return [pair for pair in _directories(base) if pair[1]]


def rehearsals_on(base):
    """Return [(run id, 0)] of rehearsals that have a directory here."""
    return [pair for pair in _directories(base) if not pair[1]]


def _directories(base):
    found = []
    folder = os.path.join(base, "runs")
    for run_id in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if RUN_ID.match(run_id):
            for name in os.listdir(os.path.join(folder, run_id)):
                # a directory that holds nothing but stop.json is a start that was refused
                if re.match(r"^attempt-[0-9]+$", name) and os.path.exists(
                    os.path.join(folder, run_id, name, "attempt.json")
                ):
                    found.append((run_id, int(name[8:])))
    return sorted(found)


def active_units(run):
    """Return [{unit, state, description}] of this user's Trainyard units that hold the node now.

    Raises AttemptError where the user has no manager: the remedy is provision.yml.
    """
    code, out, err = run(
        [
            "systemctl",
            "--user",
            "list-units",
            "--all",
            "--plain",
            "--no-legend",
            "--full",
            "trainyard-*.service",
        ]
    )
    if code:
        raise AttemptError(
            "the user's systemd does not answer (%s); run playbooks/provision.yml once"
            % (err.strip() or "exit code %d" % code)
        )
    units = []
    for line in out.splitlines():
        words = line.split(None, 4)
        if len(words) >= 4 and words[2] in ACTIVE:
            units.append(
                {
                    "unit": words[0],
                    "state": words[2],
                    "description": words[4] if len(words) > 4 else "",
                }
            )
    return units


@contextlib.contextmanager
def hold(base):
    """Let one start at a time look at the node and start: two controllers at once get one attempt,
    not two.
    """
    # Not below base: a lock on a network file system may be none, and what is locked is this
    # machine.
    folder = user_environment(os.getuid())["XDG_RUNTIME_DIR"]
    if not os.access(folder, os.W_OK):
        folder = base
        os.makedirs(base, mode=0o700, exist_ok=True)
    name = "trainyard-start.lock" if folder != base else "start.lock"
    with open(os.path.join(folder, name), "w", encoding="ascii") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def parse_unit(unit):
    """Return (run id, attempt) of a unit's name; raises AttemptError for a name that is none of
    ours.
    """
    match = UNIT.match(unit)
    if not match:
        raise AttemptError(f"{unit} is no attempt's unit")
    return match.group(1), int(match.group(2))


def link_tree(code, work, links, files=None):
    """Make work a directory of links to the entries of code, with links = {path below work: target}
    and files = {path: text} in their places.

    Only the folders on the way to such a path become real directories, so that the code tree stays
    untouched and read-only while the training finds its data and writes its output (decision 9).
    Raises AttemptError for a file that would lie anywhere else.
    """
    tree, files = {}, files or {}
    for path in files:
        if (
            os.path.isabs(path)
            or os.path.normpath(path) != path
            or path.split("/")[0] in ("", ".", "..")
        ):
            raise AttemptError(f"the plan's file {path!r} does not lie below the working directory")
    for path, target in dict(links, **dict.fromkeys(files)).items():
        parts = path.strip("/").split("/")
        folder = tree
        for part in parts[:-1]:
            folder = folder.setdefault(part, {})
            if not isinstance(folder, dict):
                raise AttemptError(f"{path} would lie below the link or file {part!r}")
        folder[parts[-1]] = target

    def build(source, place, wanted):
        os.makedirs(place, exist_ok=True)
        for name in sorted(os.listdir(source)) if source and os.path.isdir(source) else []:
            if name not in wanted:
                os.symlink(os.path.join(source, name), os.path.join(place, name))
        for name, value in wanted.items():
            here = os.path.join(source, name) if source else None
            if isinstance(value, dict):
                build(here, os.path.join(place, name), value)
            elif value is not None:
                os.symlink(value, os.path.join(place, name))

    build(code, work, tree)
    for path, text in files.items():
        _write(os.path.join(work, path), text)


def prepare(attempt, plan_text, plan_sha256, node, run_id, number, programs, begun=None):
    """Write the attempt's directory; return the sha256 of the plan's bytes as they lie on the disk.

    programs: {file name: source} of what the unit executes: agent.py and what stands beside it.
    begun: what attempt.json says besides: start (the token of the command that starts it), by
    (user@controller), boot (holds.boot_mark).

    Raises AttemptError where the directory is in use already (no attempt is ever reused), where a
    peer has already stopped this attempt, or where the code tree is missing.
    """
    if os.path.exists(os.path.join(attempt, "attempt.json")):
        raise AttemptError(f"{attempt} exists already; an attempt is never reused")
    os.makedirs(attempt, mode=0o700, exist_ok=True)
    stop = os.path.join(attempt, "stop.json")
    if os.path.exists(stop):
        raise AttemptError(
            "stopped before the start by {}".format(
                manifest.read_mapping(stop).get("from", "the user")
            )
        )
    plan = json.loads(plan_text)
    mine = next((item for item in plan["nodes"] if item["name"] == node), None)
    if mine is None:
        raise AttemptError(
            "{} is not in the plan; it has {}".format(
                node, ", ".join(item["name"] for item in plan["nodes"])
            )
        )
    if not PLAIN_PATH.match(attempt) or not PLAIN_PATH.match(node):
        # systemd splits ExecStopPost at spaces and reads % and $ in it
        raise AttemptError(
            f"{attempt}: a home directory or a node name with other than letters, digits and ./_+@-"
            " cannot be used in a unit"
        )
    _write(os.path.join(attempt, "plan.json"), plan_text)
    with open(os.path.join(attempt, "plan.json"), "rb") as handle:
        found = hashlib.sha256(handle.read()).hexdigest()
    if found != plan_sha256:
        raise AttemptError(f"the plan arrived with sha256 {found} instead of {plan_sha256}")
    for name, source in programs.items():
        _write(os.path.join(attempt, os.path.basename(name)), source)
    links = {path: os.path.join(mine["base"], place) for path, place in plan["links"].items()}
    for path, name in plan["suite"]["redirects"].items():
        os.makedirs(os.path.join(attempt, name), exist_ok=True)
        links[path] = os.path.join(attempt, name)
    # a tree that lies on the nodes already is used where it is
    code = plan["code"].get("path") or os.path.join(
        mine["base"], "code", plan["code"]["digest"][:16]
    )
    if not os.path.isdir(code):
        raise AttemptError(f"the code tree {code} is missing")
    work = os.path.join(attempt, "work")
    if os.path.isdir(work):
        shutil.rmtree(
            work
        )  # of a start that was cut off before attempt.json was written: nothing of it has run
    link_tree(code, work, links, plan.get("files"))
    record = {
        "version": 1,
        "run": run_id,
        "attempt": number,
        "node": node,
        "unit": unit_name(run_id, number),
        "plan_sha256": plan_sha256,
        "started": time.time(),
    }
    record.update(begun or {})
    _write(os.path.join(attempt, "attempt.json"), json.dumps(record, sort_keys=True))
    return found


def _write(path, text):
    with os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())


def start_argv(attempt, plan, node, unit, description, mesh="", release=()):
    """Return the systemd-run command that starts the attempt on this node (decision 1).

    mesh: the ssh configuration with which its peers are called. release: the command that removes
    the attempt's credential after its end. It comes first, whatever becomes of the agent's part,
    which reads what the training can write.
    """
    agent = os.path.join(attempt, "agent.py")
    console = os.path.join(attempt, plan["launcher"]["console"])
    python = "/usr/bin/python3"
    properties = [
        "Type=exec",
        "KillMode=control-group",
        "TimeoutStopSec=%d" % plan["stop"]["timeout"],
        # the agent asks for more time while it tells the peers; nothing of the training is heard
        "NotifyAccess=exec",
        "UMask=0077",
        f"WorkingDirectory={attempt}",
        f"StandardOutput=append:{console}",
        f"StandardError=append:{console}",
        *(
            ["ExecStopPost=-" + " ".join(f'"{word}"' if " " in word else word for word in release)]
            if release
            else []
        ),
        "ExecStopPost="
        + " ".join([python, "-I", agent, "ended", attempt, node, *([mesh] if mesh else [])]),
    ]
    if plan["stop"].get("limit"):
        # a rehearsal: it ends even where the controller that started it is gone
        properties.append("RuntimeMaxSec=%d" % plan["stop"]["limit"])
    argv = [
        "systemd-run",
        "--user",
        "--quiet",
        "--collect",
        f"--unit={unit}",
        f"--description={description}",
    ]
    return (
        argv
        + [word for prop in properties for word in ("--property", prop)]
        + [python, "-I", agent, "run", attempt, node]
    )


def start(run, attempt, plan, node, record_unit, description, mesh="", release=()):
    """Start the unit and its guard; raise AttemptError with systemd's own words where one does not
    start. Then nothing of them runs.
    """
    code, _out, err = run(start_argv(attempt, plan, node, record_unit, description, mesh, release))
    if code:
        raise AttemptError(f"systemd did not start {record_unit}: {err.strip()}")
    problem = guard_unit.start(run, attempt, node, record_unit)
    if problem:
        stop(run, attempt, record_unit, "peer", NO_GUARD)
        raise AttemptError(problem)


def stop(run, attempt, unit, by, source, node=None):
    """Stop the attempt's unit and everything in it; return whether it was running.

    by: 'user' or 'peer'; source: who, for the record. The note is written first, so that the unit's
    end is known for what it is. node: this node's name, whose credential is removed where nothing
    runs any more; None leaves it.
    """
    # The note comes before the look: a start that is under way has its unit up when we look, or
    # finds the note (prepare, agent.run).
    ended = os.path.exists(os.path.join(attempt, "exit.json"))
    if not ended:
        _note_stop(attempt, by, source)
    # 'systemctl is-active' ends with 3 for a unit that is not there
    _code, out, _err = run(["systemctl", "--user", "is-active", unit])
    running = out.strip() in ACTIVE
    if running and ended:
        _note_stop(attempt, by, source)
    if running:
        code, _out, err = run(["systemctl", "--user", "stop", unit])
        if code:
            raise AttemptError(f"{unit} does not stop: {err.strip()}")
    guard_unit.stop(run, attempt, unit)
    if not running and node is not None:
        release(unit, node)
    run(["systemctl", "--user", "reset-failed", unit])
    return running


def release(unit, node):
    """Remove the credential of an attempt whose unit has gone without an end, after a reboot for
    instance; its own end removes it otherwise.
    """
    with contextlib.suppress(AttemptError, OSError, mesh_credential.CredentialError):
        run_id, number = parse_unit(unit)
        if number:  # that of a rehearsal serves the start after it
            mesh_credential.release(os.path.expanduser("~"), run_id, number, node)


def _note_stop(attempt, by, source):
    """Write stop.json, unless somebody has before: the first word on who stopped it stays."""
    os.makedirs(attempt, mode=0o700, exist_ok=True)
    path = os.path.join(attempt, "stop.json")
    if not os.path.exists(path):
        try:
            _write(path, json.dumps({"by": by, "from": source, "time": time.time()}))
        except OSError:
            # A full disk: what runs is stopped all the same, and an empty note would say nothing.
            with contextlib.suppress(OSError):
                os.unlink(path)


def processes_of(run_id, number):
    """Return the pids of processes that carry this attempt's mark in their environment, wherever
    they are.
    """
    marker = ("TRAINYARD_ATTEMPT=%s/%d" % (run_id, number)).encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as handle:
                    if marker in handle.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                continue
    return sorted(found)
