# SPDX-License-Identifier: Apache-2.0
"""Credential of one attempt on one node, for the calls between the nodes.

It is a key pair, one line per peer in authorized_keys, and the archive with the gate. It is made by
the probe, opened by the start and removed after the end by a timer that the unit sets
(attempt_dir.start_argv). So the nodes can stop and guard an attempt for weeks without the
controller and without a certificate. Its lines permit the verbs of agent/peer_gate.py for this
attempt and for the rehearsal before it, nothing else. Everything of a node lies in
~/.trainyard/mesh/runs/<run>/<attempt>/<node>, because nodes may share a home directory.

The file is complete in itself and needs only Python >= 3.8: the unit of an attempt has it as a word
of the command that removes the credential.

    mesh_credential.py release HOME RUN ATTEMPT NODE
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import zlib

MESH = ".trainyard/mesh"
RUNS = "runs"
KEY = "id_ed25519"
# The archive with the gate. It lies beside the key, where no command of the attempt begins.
ARCHIVE = "agent.pyz"
MACHINE = "machine.json"
# A credential whose attempt was never started is removed after so many seconds: bringing data to a
# node may take hours.
UNUSED_SECONDS = 86400
# Seconds from the end of its unit to the removal of an attempt's credential.
RELEASE_SECONDS = 30
SYSTEMD_RUN = "/usr/bin/systemd-run"
# Start of a program that is given as a word. systemd replaces words with $ or %, and writes a
# semicolon so that it cannot read the word itself after `systemctl daemon-reload` (252): it has
# none of them.
UNPACK = (
    "exec(__import__('zlib').decompress("
    "__import__('base64').b64decode(__import__('sys').argv.pop(1))))"
)
RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4}\Z")
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")
SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}\Z")
PLAIN_PATH = re.compile(r"/[A-Za-z0-9._/+@-]{1,400}\Z")
PUBLIC_KEY = re.compile(r"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI[A-Za-z0-9+/]{43}\Z")
_FROM = re.compile(r'^cert-authority,[^ ]*\bfrom="([0-9A-Fa-f.:/,]{1,4000})"')
_LINE = re.compile(
    r"^restrict,.* trainyard-run (?P<site>\S+) (?P<run>\S+) (?P<number>\d+) (?P<peer>\S+)"
    r" (?P<node>\S+)$"
)


class CredentialError(Exception):
    """A credential that cannot be made or opened, with a message for the user."""


def valid_key(text):
    """Return whether a text is one ed25519 public key without a comment."""
    return (
        isinstance(text, str)
        and bool(PUBLIC_KEY.match(text))
        and len(base64.b64decode(text.split()[1])) == 51
    )


def identity():
    """Return a digest of this machine's id and host name.

    It differs between machines that share a home directory.
    """
    parts = []
    for path in ("/etc/machine-id", "/proc/sys/kernel/hostname"):
        with open(path, encoding="ascii", errors="replace") as handle:
            parts.append(handle.read().strip())
    return hashlib.sha256("\n".join([*parts, ""]).encode()).hexdigest()


def place_of(home, run, number, node):
    """Return the directory of a node's credential.

    Raises CredentialError for words that are not a run, an attempt and a node.
    """
    if (
        not RUN_ID.match(run)
        or not NODE.match(node)
        or ".." in run
        or not 0 <= int(number) <= 99999
    ):
        raise CredentialError(f"not a run, an attempt and a node: {(run, number, node)!r}")
    return os.path.join(home, MESH, RUNS, run, str(int(number)), node)


def config_of(home, run, number, node):
    """Return the path of the ssh configuration that belongs to a credential."""
    return os.path.join(place_of(home, run, number, node), "config")


def read_text(path):
    """Return a file's text, '' where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as handle:
            return handle.read()
    except OSError:
        return ""


def write_text(path, text):
    """Write a text file for this user alone in one step."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"))


def write_bytes(path, content):
    """Write a file for this user alone in one step."""
    part = f"{path}.{os.getpid()}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(content)
    os.replace(part, path)


# --- authorized_keys


def edit_lines(home, drop, add=(), write=True):
    """Replace lines of ~/.ssh/authorized_keys and return whether that changes it.

    Other bytes stay as they are. drop(line): whether a line goes. add: lines that come to the
    beginning, where they need no newline of another line. write: False only compares. Each writer
    locks the file itself, because the end of one attempt and the start of another may meet.
    """
    path = os.path.realpath(os.path.join(home, ".ssh", "authorized_keys"))
    if not os.path.exists(path):
        if not add:
            return False
        if write:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if not os.path.exists(path):
        return True
    flags = os.O_RDONLY
    if write:
        flags = os.O_RDWR
    while True:
        handle = os.open(path, flags)
        try:
            if write:
                fcntl.flock(handle, fcntl.LOCK_EX)
            info = os.fstat(handle)
            try:
                current = os.stat(path)
            except FileNotFoundError:
                continue
            if (current.st_dev, current.st_ino) != (info.st_dev, info.st_ino):
                continue  # another writer has replaced it while this one waited
            old = _read_all(handle)
            new = _edited(old, drop, [line.encode("utf-8") for line in add])
            if new == old:
                return False
            if write:
                _replace(path, new, info.st_mode & 0o7777)
            return True
        finally:
            os.close(handle)


def _read_all(descriptor):
    return b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))


def _edited(old, drop, add):
    """Return the bytes of a file without the dropped lines, and with the new ones."""
    lines = old.splitlines(True)
    dropped = [line for line in lines if drop(line.rstrip(b"\r\n").decode("utf-8", "replace"))]
    if [line.rstrip(b"\r\n") for line in dropped] == add and lines[: len(dropped)] == dropped:
        return old
    others = [line for line in lines if line not in dropped]
    return b"".join([line + b"\n" for line in add] + others)


def _replace(path, data, mode):
    """Replace a file in one step, through to the disk."""
    part = f"{path}.{os.getpid()}.part"
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    os.chmod(part, mode)
    os.replace(part, path)


def run_lines(home):
    """Return [{site, run, number, peer, node}] of attempts' lines in authorized_keys."""
    lines = read_text(os.path.join(home, ".ssh", "authorized_keys")).splitlines()
    matches = (_LINE.match(line) for line in lines)
    return [
        dict(match.groupdict(), number=int(match.group("number"))) for match in matches if match
    ]


def _belongs(run, node, number=None):
    """Return a function that returns whether a node has written a line for a run."""

    def drop(line):
        match = _LINE.match(line)
        of_run = match and (match.group("run"), match.group("node")) == (run, node)
        return bool(of_run) and number in (None, int(match.group("number")))

    return drop


# --- making, opening and removing a credential


def make(home, run, number, node):
    """Make the key pair of an attempt on this node, unless it is there already.

    Return its public key without a comment. Raises CredentialError where ssh-keygen fails.
    """
    directory = place_of(home, run, number, node)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, KEY)
    if not (os.path.exists(path) and os.path.exists(path + ".pub")):
        part = f"{path}.{os.getpid()}"
        argv = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            f"trainyard-run {run} {number:d} {node}",
            "-f",
            part,
        ]
        try:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=30,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CredentialError(f"ssh-keygen: {error}") from error
        if done.returncode:
            message = done.stdout.decode("utf-8", "replace").strip()[-300:]
            raise CredentialError(f"ssh-keygen: {message}")
        os.replace(part + ".pub", path + ".pub")
        os.replace(part, path)
    return " ".join(read_text(path + ".pub").split()[:2])


def sources_of(home, site, peers):
    """Return {peer: addresses} from the site's own lines in authorized_keys.

    The controller has written these lines.
    """
    sources = {}
    for line in read_text(os.path.join(home, ".ssh", "authorized_keys")).splitlines():
        match = _FROM.match(line)
        if not match:
            continue
        for peer in peers:
            if line.endswith(f" trainyard-ca {site} {peer}"):
                sources[peer] = match.group(1)
    return sources


def client_config(home, directory):
    """Return the ssh configuration of a credential.

    It is the mesh's own, with another key and a copy of its known_hosts. directory: the
    credential's directory.
    """
    lines = []
    for line in read_text(os.path.join(home, MESH, "config")).splitlines():
        word = (line.split() or [""])[0]
        if word == "IdentityFile":
            line = f"  IdentityFile {directory}/{KEY}"
        elif word == "UserKnownHostsFile":
            line = f"  UserKnownHostsFile {directory}/known_hosts"
        if word != "CertificateFile":
            lines.append(line)
    return "\n".join(lines) + "\n"


def open_lines(home, site, run, number, node, keys, python):
    """Return the lines of authorized_keys for the peers of an attempt.

    keys: {node: public key} of all its nodes, as the controller checked them. python: path of this
    node's Python, of interpreter.node_python. Raises CredentialError.
    """
    directory = place_of(home, run, number, node)
    peers = sorted(name for name in keys if name != node)
    sources, lines = sources_of(home, site, peers), []
    for peer in peers:
        if not NODE.match(peer) or not valid_key(keys[peer]):
            raise CredentialError(f"the key of {peer} for this run is not valid")
        if peer not in sources:
            raise CredentialError(
                f"{node} has no line for {peer} in authorized_keys; run ansible-playbook"
                " playbooks/trust.yml"
            )
        command = f"{python} -I {directory}/{ARCHIVE} gate {run} {number:d} {peer}"
        comment = f"trainyard-run {site} {run} {number:d} {peer} {node}"
        lines.append(f'restrict,from="{sources[peer]}",command="{command}" {keys[peer]} {comment}')
    return lines


def grant(
    home, base, site, run, number, node, keys, archive, python, attempt=None, supervised=False
):
    """Open the credential: let the peers of an attempt call this node, and it them.

    Return the path of its ssh configuration. base: the product's directory on this machine. number:
    the attempt that the probe made the key for. archive: the bytes of agent.pyz. python: path
    of this node's Python. attempt: the attempt that starts now. 0 is the rehearsal before it, and
    None the attempt itself. supervised: whether the nodes begin later attempts themselves, and
    keep the credential until the run is over. Raises CredentialError.
    """
    directory = place_of(home, run, number, node)
    if not PLAIN_PATH.match(directory) or not SITE.match(site):
        raise CredentialError(
            f"{directory}: a home directory with other than letters, digits and ./_+@- cannot be"
            " used"
        )
    public_key = " ".join(read_text(os.path.join(directory, KEY + ".pub")).split()[:2])
    if not os.path.exists(os.path.join(directory, KEY)) or public_key != keys.get(node):
        raise CredentialError(
            f"the key that was made for {run} on {node} is not there any more; start it again"
        )
    if len(set(keys.values())) != len(keys):
        raise CredentialError("two nodes have one key for this run")
    lines = open_lines(home, site, run, number, node, keys, python)
    write_bytes(os.path.join(directory, ARCHIVE), archive)
    known_hosts = read_text(os.path.join(home, MESH, "known_hosts"))
    write_text(os.path.join(directory, "known_hosts"), known_hosts)
    write_text(os.path.join(directory, "config"), client_config(home, directory))
    machine = {
        "identity": identity(),
        "node": node,
        "base": base,
        "run": run,
        "number": number,
        "nodes": sorted(keys),
    }
    machine["begun"] = attempt is None or int(attempt) == int(number)
    machine["supervised"] = bool(supervised)
    write_text(os.path.join(directory, MACHINE), json.dumps(machine, sort_keys=True) + "\n")
    edit_lines(home, _belongs(run, node), lines)
    return os.path.join(directory, "config")


def close(home, run, number, node):
    """Remove a node's lines of an attempt, or of all without a number.

    The key stays for the start that follows a rehearsal.
    """
    return edit_lines(home, _belongs(run, node, number))


def release(home, run, number, node):
    """Remove a node's lines and key of an attempt, and return whether there were any."""
    directory = place_of(home, run, number, node)
    changed = close(home, run, int(number), node) or os.path.isdir(directory)
    shutil.rmtree(directory, ignore_errors=True)
    for folder in (os.path.dirname(directory), os.path.dirname(os.path.dirname(directory))):
        try:
            os.rmdir(folder)  # another node with this home may still have something in it
        except OSError:
            break
    return changed


def machine_of(directory):
    """Return the note of the start beside a key, {} where nothing was started with it.

    It is {identity, node, base, run, number, nodes, begun}.
    """
    try:
        note = json.loads(read_text(os.path.join(directory, MACHINE)) or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(note, dict):
        return {}
    return note


def key_age(directory, now):
    """Return the age of a key in seconds, UNUSED_SECONDS without a key.

    It is by the time that no account can set (ctime).
    """
    try:
        return abs(now - os.stat(os.path.join(directory, KEY)).st_ctime)
    except OSError:
        return UNUSED_SECONDS


def tidy(home, base, node, units, now, is_kept=lambda home, unit, node: False):
    """Remove the credentials of ended attempts here and return [(run, attempt)].

    They are left after a reboot, for instance. A line whose unit is not there goes in any case,
    whatever the files of the attempt say: the training can write them. Of a key that was made and
    not used yet, the start may be under way, so it stays for a day. The caller has the lock of the
    starts (attempt_dir.lock_node), so that no start is between its lines and its unit. units: the
    names of the units that are active now. now: unix seconds. is_kept: whether the nodes begin the
    attempts after this one themselves (supervisor_unit.is_installed).
    """
    removed = []
    lines = {(item["run"], item["number"]) for item in run_lines(home) if item["node"] == node}
    for run, number in sorted(lines | _key_attempts(home, node)):
        try:
            directory = place_of(home, run, number, node)
        except CredentialError:
            continue
        if any(f"trainyard-{run}-{attempt:d}.service" in units for attempt in (number, 0)):
            continue
        if is_kept(home, f"trainyard-{run}-{number:d}.service", node):
            continue
        record = os.path.join(base, "runs", run, f"attempt-{number:d}", "attempt.json")
        started = machine_of(directory).get("begun") or os.path.exists(record)
        if started or key_age(directory, now) >= UNUSED_SECONDS:
            release(home, run, number, node)
            removed.append((run, number))
        elif (run, number) in lines:
            # The lines are of a rehearsal. The start after it writes its own.
            close(home, run, number, node)
            removed.append((run, number))
    return removed


def _key_attempts(home, node):
    """Return {(run, attempt)} of a node's credentials that have a directory."""
    folder, pairs = os.path.join(home, MESH, RUNS), set()
    if not os.path.isdir(folder):
        return pairs
    for run in os.listdir(folder):
        if not RUN_ID.match(run):
            continue
        for number in os.listdir(os.path.join(folder, run)):
            if number.isdigit() and os.path.isdir(os.path.join(folder, run, number, node)):
                pairs.add((run, int(number)))
    return pairs


def release_words(home, run, number, node, python):
    """Return the command that removes an attempt's credential after its unit's end.

    python: path of this node's Python. The unit's end calls the command. It sets a timer, so that
    the peers can still ask for the attempt's state. Its program is in the words of the unit, which
    the manager has in memory since the start: no file of the attempt or of the mesh is executed.
    The account stays the master of its own systemd and of its own authorized_keys.
    """
    place_of(home, run, number, node)
    source = inspect.getsource(sys.modules[__name__])
    packed = base64.b64encode(zlib.compress(source.encode("utf-8"), 9)).decode("ascii")
    words = [python, "-I", "-B", "-c", UNPACK, packed, "release", home, run, str(int(number)), node]
    timer = [
        "--user",
        "--quiet",
        "--description=Remove the key of a Trainyard attempt",
        "--collect",
        "--no-block",
        f"--on-active={RELEASE_SECONDS}",
        "--timer-property=AccuracySec=1s",
    ]
    return [SYSTEMD_RUN, *timer, *words]


# --- product directories of this machine


def bases_path(home):
    """Return the path of this machine's list of product directories.

    Nodes that share a home directory have one file each.
    """
    return os.path.join(home, MESH, f"bases-{identity()[:16]}.json")


def register(home, base):
    """Note a product directory of this machine.

    The gate may look for a run below it.
    """
    if not os.path.isdir(os.path.join(home, MESH)):
        return
    try:
        bases = json.loads(read_text(bases_path(home)) or "[]")
    except (ValueError, RecursionError):
        bases = []
    if not isinstance(bases, list):
        bases = []
    base = os.path.realpath(base)
    if base not in bases:
        write_text(bases_path(home), json.dumps([base, *bases][:8]) + "\n")


def main(arguments):
    """Remove the credential that the command names."""
    if len(arguments) != 5 or arguments[0] != "release":
        raise SystemExit(__doc__)
    release(*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
