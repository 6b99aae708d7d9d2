# SPDX-License-Identifier: Apache-2.0
"""Attempts on a node: directory, working directory of links, and unit.

The unit is a transient one of the user's own systemd (docs/design.md, 1, 2 and 9). Functions take
`run_command`, a callable like AnsibleModule.run_command, so that they are tested without Ansible
and without systemd.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import time

from ..base import commands
from ..base.coded_error import CodedError
from ..base.files import read_mapping
from ..base.interpreter import node_python
from ..base.locks import lock_file
from . import guard_unit, mesh_credential, replica_unit

RUN_ID = re.compile(r"^[0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4}\Z")
PLAIN_PATH = re.compile(r"^[A-Za-z0-9._/+@-]+\Z")
UNIT = re.compile(r"^trainyard-(.+)-([0-9]+)\.service$")
# Values of `from` in stop.json for an attempt that was taken back before it had begun on all nodes
# (roles/launch/tasks/start.yml).
NO_GUARD = "a guard that did not start"
UNDONE = ("a start that failed on another node", NO_GUARD)
# The archive with all programs of an attempt (agent/main.py). Attempts of earlier releases have
# agent.py and further files instead. Their units and keys name these files, and nothing here does.
ARCHIVE = guard_unit.ARCHIVE
ACTIVE = ("active", "activating", "deactivating", "reloading")


class AttemptError(CodedError):
    """An attempt that cannot be started, stopped or found."""


def unit_name(run_id, attempt):
    """Return the name of an attempt's unit.

    It has run and attempt in it, so that stopping an old attempt can never hit a new one.
    """
    return f"trainyard-{run_id}-{attempt:d}.service"


def check_run_id(run_id):
    """Raise AttemptError for a text that is not a run id."""
    if not RUN_ID.match(run_id):
        raise AttemptError("attempt.bad_run_id", f"{run_id!r} is not a run id")


def attempt_dir(base, run_id, attempt):
    """Return the attempt's directory below a node's product directory.

    Raises AttemptError for a malformed run id.
    """
    check_run_id(run_id)
    return os.path.join(base, "runs", run_id, f"attempt-{attempt:d}")


def list_attempts(base):
    """Return [(run id, attempt)] that have a directory on this node, oldest first.

    A rehearsal (attempt 0) is not an attempt.
    """
    return [pair for pair in _directories(base) if pair[1]]


def list_rehearsals(base):
    """Return [(run id, 0)] of rehearsals that have a directory on this node."""
    return [pair for pair in _directories(base) if not pair[1]]


def _directories(base):
    """Return the sorted [(run id, attempt)] of all directories, also of rehearsals."""
    folder = os.path.join(base, "runs")
    if not os.path.isdir(folder):
        return []
    pairs = []
    for run_id in os.listdir(folder):
        if not RUN_ID.match(run_id):
            continue
        for name in os.listdir(os.path.join(folder, run_id)):
            # A directory with nothing but stop.json is a start that was refused.
            record = os.path.join(folder, run_id, name, "attempt.json")
            if re.match(r"^attempt-[0-9]+$", name) and os.path.exists(record):
                pairs.append((run_id, int(name[8:])))
    return sorted(pairs)


def active_units(run_command):
    """Return [{unit, state, description}] of this user's active Trainyard units.

    These hold the node. Raises AttemptError where the user has no manager: the remedy is
    provision.yml.
    """
    code, out, err = run_command(
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
        reason = err.strip() or f"exit code {code}"
        raise AttemptError(
            "attempt.no_user_systemd",
            f"the user's systemd does not answer ({reason}); run ansible-playbook"
            " playbooks/provision.yml once",
        )
    units = []
    for line in out.splitlines():
        columns = line.split(None, 4)
        if len(columns) >= 4 and columns[2] in ACTIVE:
            description = ""
            if len(columns) > 4:
                description = columns[4]
            units.append({"unit": columns[0], "state": columns[2], "description": description})
    return units


@contextlib.contextmanager
def lock_node(base):
    """Lock the node, so that one start at a time looks at it and starts.

    Two controllers at once get one attempt, not two.
    """
    # Not below base: a lock on a network file system may have no effect, and it is this machine
    # that is locked.
    folder, name = commands.user_environment(os.getuid())["XDG_RUNTIME_DIR"], "trainyard-start.lock"
    if not os.access(folder, os.W_OK):
        folder, name = base, "start.lock"
        os.makedirs(base, mode=0o700, exist_ok=True)
    with lock_file(os.path.join(folder, name)):
        yield


def parse_unit(unit):
    """Return (run id, attempt) of a unit's name.

    Raises AttemptError for a name that is not an attempt's.
    """
    match = UNIT.match(unit)
    if not match:
        raise AttemptError("attempt.bad_unit", f"{unit} is not the unit of an attempt")
    return match.group(1), int(match.group(2))


def link_tree(code, work, links, files=None):
    """Make work a directory of links to the entries of code.

    links: {path below work: target}. files: {path below work: text}. Only the folders on the way to
    such a path become real directories. So the code tree stays untouched and read-only while the
    training finds its data and writes its output (docs/design.md, 9). Raises AttemptError for a
    file that would lie anywhere else.
    """
    files = files or {}
    for path in files:
        if (
            os.path.isabs(path)
            or os.path.normpath(path) != path
            or path.split("/")[0] in ("", ".", "..")
        ):
            raise AttemptError(
                "attempt.file_outside",
                f"the plan's file {path!r} does not lie below the working directory",
            )
    _build_folder(code, work, _link_targets(links, files))
    for path, text in files.items():
        _write(os.path.join(work, path), text)


def _link_targets(links, files):
    """Return {name: folder, link target, or None for a file} as a nested mapping."""
    tree = {}
    for path, target in dict(links, **dict.fromkeys(files)).items():
        parts = path.strip("/").split("/")
        folder = tree
        for part in parts[:-1]:
            folder = folder.setdefault(part, {})
            if not isinstance(folder, dict):
                raise AttemptError(
                    "attempt.file_outside", f"{path} would lie below the link or file {part!r}"
                )
        folder[parts[-1]] = target
    return tree


def _build_folder(source, path, targets):
    """Make a folder of links to the entries of source, apart from those in targets."""
    os.makedirs(path, exist_ok=True)
    if os.path.isdir(source):
        for name in sorted(os.listdir(source)):
            if name not in targets:
                os.symlink(os.path.join(source, name), os.path.join(path, name))
    for name, target in targets.items():
        if isinstance(target, dict):
            _build_folder(os.path.join(source, name), os.path.join(path, name), target)
        elif target is not None:
            os.symlink(target, os.path.join(path, name))


def prepare(attempt, plan_text, plan_sha256, node, run_id, number, files, begun=None):
    """Write the attempt's directory and return the sha256 of the plan on the disk.

    files: {file name: bytes} of agent.pyz, which the unit executes, and of further files.
    begun: further fields of attempt.json: start (the token of the command that starts it), by
    (user@controller), boot (ownership.boot_mark), told (seconds since the epoch when
    the first node can begin; what another one waits for it counts from there, where that is past).

    Raises AttemptError where the directory is in use already (no attempt is ever reused), where a
    peer has already stopped this attempt, or where the code tree is missing.
    """
    if os.path.exists(os.path.join(attempt, "attempt.json")):
        raise AttemptError(
            "attempt.exists", f"{attempt} exists already; an attempt is never reused"
        )
    os.makedirs(attempt, mode=0o700, exist_ok=True)
    stop = os.path.join(attempt, "stop.json")
    if os.path.exists(stop):
        source = read_mapping(stop).get("from", "the user")
        raise AttemptError("attempt.stopped_early", f"stopped before the start by {source}")
    plan = json.loads(plan_text)
    own_node = _planned_node(plan, node)
    if not PLAIN_PATH.match(attempt) or not PLAIN_PATH.match(node):
        # systemd splits ExecStopPost at spaces and reads % and $ in it.
        raise AttemptError(
            "attempt.unusable_path",
            f"{attempt}: a home directory or a node name with other than letters, digits and ./_+@-"
            " cannot be used in a unit",
        )
    digest = _write_plan(attempt, plan_text, plan_sha256)
    for name, content in files.items():
        _write_bytes(os.path.join(attempt, os.path.basename(name)), content)
    _prepare_work(attempt, plan, own_node)
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
    return digest


def _planned_node(plan, node):
    """Return the plan's entry of a node, or raise AttemptError."""
    for entry in plan["nodes"]:
        if entry["name"] == node:
            return entry
    names = ", ".join(entry["name"] for entry in plan["nodes"])
    raise AttemptError("attempt.not_planned", f"{node} is not in the plan; it has {names}")


def _write_plan(attempt, plan_text, plan_sha256):
    """Write plan.json and return the sha256 of its bytes on the disk.

    Raises AttemptError where that is not the planned one.
    """
    path = os.path.join(attempt, "plan.json")
    _write(path, plan_text)
    with open(path, "rb") as handle:
        digest = hashlib.sha256(handle.read()).hexdigest()
    if digest != plan_sha256:
        raise AttemptError(
            "attempt.plan_changed",
            f"the plan arrived with sha256 {digest} instead of {plan_sha256}",
        )
    return digest


def _prepare_work(attempt, plan, own_node):
    """Make the attempt's working directory.

    own_node: this node's entry of the plan.
    """
    links = {path: os.path.join(own_node["base"], target) for path, target in plan["links"].items()}
    for path, name in plan["suite"]["redirects"].items():
        os.makedirs(os.path.join(attempt, name), exist_ok=True)
        links[path] = os.path.join(attempt, name)
    # A tree that lies on the nodes already is used where it is.
    code = plan["code"].get("path") or os.path.join(
        own_node["base"], "code", plan["code"]["digest"][:16]
    )
    if not os.path.isdir(code):
        raise AttemptError("attempt.code_missing", f"the code tree {code} is missing")
    work = os.path.join(attempt, "work")
    if os.path.isdir(work):
        # It is from a start that was cut off before attempt.json was written: nothing of it has
        # run.
        shutil.rmtree(work)
    link_tree(code, work, links, plan.get("files"))


def _write(path, text):
    """Write a text file for this user alone, through to the disk."""
    _write_bytes(path, text.encode("utf-8"))


def _write_bytes(path, content):
    """Write a file for this user alone, through to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def start_argv(attempt, plan, node, unit, description, mesh="", release=()):
    """Return the systemd-run command that starts the attempt on this node.

    See docs/design.md, 1.
    mesh: the ssh configuration with which its peers are called. release: the command that removes
    the attempt's credential after its end. It comes first, whatever becomes of the agent's part,
    which reads what the training can write.
    """
    agent = os.path.join(attempt, ARCHIVE)
    console = os.path.join(attempt, plan["launcher"]["console"])
    python = node_python()
    end_argv = [python, "-I", agent, "ended", attempt, node]
    if mesh:
        end_argv.append(mesh)
    properties = [
        "Type=exec",
        "KillMode=control-group",
        f"TimeoutStopSec={int(plan['stop']['timeout'])}",
        # The agent asks for more time while it stops the peers. Nothing of the training is heard.
        "NotifyAccess=exec",
        "UMask=0077",
        f"WorkingDirectory={attempt}",
        f"StandardOutput=append:{console}",
        f"StandardError=append:{console}",
    ]
    if release:
        properties.append("ExecStopPost=-" + " ".join(_quote(word) for word in release))
    properties.append("ExecStopPost=" + " ".join(end_argv))
    if plan["stop"].get("limit"):
        # A rehearsal ends even where the controller that started it is gone.
        properties.append(f"RuntimeMaxSec={int(plan['stop']['limit'])}")
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


def _quote(word):
    """Return a word of ExecStopPost, in quotes where it has a space or a quote."""
    if set(" '") & set(word):
        return f'"{word}"'
    return word


def start(run_command, attempt, plan, node, record_unit, description, mesh="", release=()):
    """Start the unit and its guard, and the replicator where its archive is.

    Raises AttemptError with systemd's own words where one of the two does not start. Then neither
    runs. Return the problem of the replicator, '' without one.
    """
    argv = start_argv(attempt, plan, node, record_unit, description, mesh, release)
    code, _out, err = run_command(argv)
    if code:
        raise AttemptError(
            "attempt.unit_not_started", f"systemd did not start {record_unit}: {err.strip()}"
        )
    problem = guard_unit.start(run_command, attempt, node, record_unit)
    if problem:
        stop(run_command, attempt, record_unit, "peer", NO_GUARD)
        raise AttemptError("attempt.guard_not_started", problem)
    return replica_unit.start(run_command, attempt, record_unit)


def stop(run_command, attempt, unit, by, source, node=None):
    """Stop the attempt's unit with everything in it and return whether it was running.

    by: 'user' or 'peer'. source: the name of that user or peer, for the record. The note is written
    first, so that the unit's end is known for what it is. node: this node's name, whose credential
    is removed where nothing runs any more. With None it stays.
    """
    # The note comes before the look: a start that is under way has its unit up at the look, or
    # finds the note (prepare, runner.run).
    ended = os.path.exists(os.path.join(attempt, "exit.json"))
    if not ended:
        _note_stop(attempt, by, source)
    # 'systemctl is-active' ends with 3 for a unit that is not there.
    _code, out, _err = run_command(["systemctl", "--user", "is-active", unit])
    running = out.strip() in ACTIVE
    if running and ended:
        _note_stop(attempt, by, source)
    if running:
        code, _out, err = run_command(["systemctl", "--user", "stop", unit])
        if code:
            raise AttemptError("attempt.unit_not_stopped", f"{unit} does not stop: {err.strip()}")
    guard_unit.stop(run_command, unit)
    replica_unit.stop(run_command, attempt, unit)
    if not running and node is not None:
        release(unit, node)
    run_command(["systemctl", "--user", "reset-failed", unit])
    return running


def release(unit, node):
    """Remove the credential of an attempt whose unit has gone without an end.

    That is so after a reboot, for instance. Otherwise its own end removes it.
    """
    with contextlib.suppress(AttemptError, OSError, mesh_credential.CredentialError):
        run_id, number = parse_unit(unit)
        if number:  # that of a rehearsal serves the start after it
            mesh_credential.release(os.path.expanduser("~"), run_id, number, node)


def _note_stop(attempt, by, source):
    """Write stop.json unless it is there already: the first note stays."""
    os.makedirs(attempt, mode=0o700, exist_ok=True)
    path = os.path.join(attempt, "stop.json")
    if not os.path.exists(path):
        try:
            _write(path, json.dumps({"by": by, "from": source, "time": time.time()}))
        except OSError:
            # The disk is full. The unit is stopped all the same, and an empty note would say
            # nothing.
            with contextlib.suppress(OSError):
                os.unlink(path)
