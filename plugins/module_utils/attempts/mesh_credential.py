# SPDX-License-Identifier: Apache-2.0
"""The credential of one attempt on one node: a key pair, one line per peer in authorized_keys, and
the gate's program.

It is made by the probe, opened by the start and removed after the end by a timer that the unit sets
(attempts.start_argv). So the nodes can stop and guard an attempt for weeks without the controller
and without a certificate. Its lines permit the verbs of mesh_gate.py for this attempt and for the
rehearsal before it, nothing else. Everything of a node lies in
~/.trainyard/mesh/runs/<run>/<attempt>/<node>, because nodes may share a home directory.

The file is complete in itself and needs nothing but Python >= 3.8: the unit of an attempt holds it
as a word of the command that removes the credential.

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
GATE = "gate.py"
MACHINE = "machine.json"
PYTHON = "/usr/bin/python3"
# What the gate needs beside it; the attempt ships them.
PROGRAMS = ("agent.py", "guard_beat.py", "mesh_credential.py", "openmpi.py")
# A credential whose attempt was never started is removed after so many seconds: bringing data to a
# node may take hours.
UNUSED_SECONDS = 86400
# How long after the end of its unit the credential of an attempt is removed.
RELEASE_SECONDS = 30
SYSTEMD_RUN = "/usr/bin/systemd-run"
# What starts a program that is given as a word. systemd replaces what begins with $ or %, and there
# is none.
UNPACK = "import base64,sys,zlib;exec(zlib.decompress(base64.b64decode(sys.argv.pop(1))))"
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
    """A credential that cannot be made or opened; the message is for the user."""


def valid_key(text):
    """Return whether a text is one ed25519 public key without a comment."""
    return (
        isinstance(text, str)
        and bool(PUBLIC_KEY.match(text))
        and len(base64.b64decode(text.split()[1])) == 51
    )


def identity():
    """Return what tells this machine from others that share its home directory: a digest of machine
    id and host name.
    """
    parts = []
    for path in ("/etc/machine-id", "/proc/sys/kernel/hostname"):
        with open(path, encoding="ascii", errors="replace") as handle:
            parts.append(handle.read().strip())
    return hashlib.sha256("\n".join([*parts, ""]).encode()).hexdigest()


def place_of(home, run, number, node):
    """Return the directory of a node's credential; raise CredentialError for words that are no run,
    attempt or node.
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
    """Return a file's text; '' where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as handle:
            return handle.read()
    except OSError:
        return ""


def write_text(path, text):
    """Write a file for this user alone in one step."""
    part = "%s.%d.part" % (path, os.getpid())
    with os.fdopen(
        os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
        "w",
        encoding="utf-8",
        errors="surrogateescape",
    ) as handle:
        handle.write(text)
    os.replace(part, path)


# --- authorized_keys


def edit_lines(home, drop, add=(), write=True):
    """Replace lines of ~/.ssh/authorized_keys; return whether that changes the file. Other bytes
    stay as they are.

    drop(line): whether a line goes. add: lines that come to the beginning, where they need no
    newline of another line. Every writer holds a lock on the file itself: the end of one attempt
    and the start of another may meet.
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
    while True:
        handle = os.open(path, os.O_RDWR if write else os.O_RDONLY)
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
            return _replace(path, handle, info, drop, [line.encode("utf-8") for line in add], write)
        finally:
            os.close(handle)


def _replace(path, handle, info, drop, add, write):
    old = b"".join(iter(lambda: os.read(handle, 1 << 20), b""))
    lines = old.splitlines(True)
    own = [line for line in lines if drop(line.rstrip(b"\r\n").decode("utf-8", "replace"))]
    if [line.rstrip(b"\r\n") for line in own] == add and lines[: len(own)] == own:
        return False
    new = b"".join(line + b"\n" for line in add) + b"".join(
        line for line in lines if line not in own
    )
    if new == old:
        return False
    if write:
        part = "%s.%d.part" % (path, os.getpid())
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            out.write(new)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(part, info.st_mode & 0o7777)
        os.replace(part, path)
    return True


def run_lines(home):
    """Return [{site, run, number, peer, node}] of the lines that attempts have in authorized_keys."""
    found = [
        _LINE.match(line)
        for line in read_text(os.path.join(home, ".ssh", "authorized_keys")).splitlines()
    ]
    return [dict(match.groupdict(), number=int(match.group("number"))) for match in found if match]


def _belongs(run, node, number=None):
    """Return a function that says whether a line is one that a node has written for a run."""

    def drop(line):
        match = _LINE.match(line)
        of_run = match and (match.group("run"), match.group("node")) == (run, node)
        return bool(of_run) and number in (None, int(match.group("number")))

    return drop


# --- the life of a credential


def make(home, run, number, node):
    """Make the key pair of an attempt on this node, or find the one that is there; return its
    public key without a comment.
    """
    place = place_of(home, run, number, node)
    os.makedirs(place, mode=0o700, exist_ok=True)
    path = os.path.join(place, KEY)
    if not (os.path.exists(path) and os.path.exists(path + ".pub")):
        part = "%s.%d" % (path, os.getpid())
        argv = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            "trainyard-run %s %d %s" % (run, number, node),
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
            raise CredentialError(
                "ssh-keygen: {}".format(done.stdout.decode("utf-8", "replace").strip()[-300:])
            )
        os.replace(part + ".pub", path + ".pub")
        os.replace(part, path)
    return " ".join(read_text(path + ".pub").split()[:2])


def sources_of(home, site, peers):
    """Return {peer: the addresses that the site's own line in authorized_keys has for it}, as the
    controller wrote them.
    """
    found = {}
    for line in read_text(os.path.join(home, ".ssh", "authorized_keys")).splitlines():
        match = _FROM.match(line)
        for peer in peers if match else ():
            if line.endswith(f" trainyard-ca {site} {peer}"):
                found[peer] = match.group(1)
    return found


def client_config(home, place):
    """Return the ssh configuration of a credential: the mesh's own, with another key and a copy of
    its known_hosts.
    """
    lines = []
    for line in read_text(os.path.join(home, MESH, "config")).splitlines():
        word = (line.split() or [""])[0]
        if word == "IdentityFile":
            line = f"  IdentityFile {place}/{KEY}"
        elif word == "UserKnownHostsFile":
            line = f"  UserKnownHostsFile {place}/known_hosts"
        if word != "CertificateFile":
            lines.append(line)
    return "\n".join(lines) + "\n"


def open_lines(home, site, run, number, node, keys):
    """Return the lines that let the peers of an attempt in; keys: {node: public key} of all its
    nodes, as the controller checked them.
    """
    place, peers = place_of(home, run, number, node), sorted(name for name in keys if name != node)
    sources = sources_of(home, site, peers)
    for peer in peers:
        if not NODE.match(peer) or not valid_key(keys[peer]):
            raise CredentialError(f"the key of {peer} for this run is not valid")
        if peer not in sources:
            raise CredentialError(
                f"{node} has no line for {peer} in authorized_keys; run playbooks/trust.yml"
            )
    text = 'restrict,from="%s",command="%s -I %s/%s --run %s %d %s" %s trainyard-run %s %s %d %s %s'
    return [
        text
        % (
            sources[peer],
            PYTHON,
            place,
            GATE,
            run,
            number,
            peer,
            keys[peer],
            site,
            run,
            number,
            peer,
            node,
        )
        for peer in peers
    ]


def grant(home, base, site, run, number, node, keys, programs, attempt=None):
    """Let the peers of an attempt call this node, and write what this node calls them with; return
    the path of its ssh configuration.

    base: the product's directory on this machine. number: the attempt that the probe made the key
    for. programs: {file name: source}. attempt: which attempt starts now; 0 is the rehearsal before
    it, and None the attempt itself.
    """
    place = place_of(home, run, number, node)
    if not PLAIN_PATH.match(place) or not SITE.match(site):
        raise CredentialError(
            f"{place}: a home directory with other than letters, digits and ./_+@- cannot be used"
        )
    own = " ".join(read_text(os.path.join(place, KEY + ".pub")).split()[:2])
    if not os.path.exists(os.path.join(place, KEY)) or own != keys.get(node):
        raise CredentialError(
            f"the key that was made for {run} on {node} is not there any more; start it again"
        )
    if len(set(keys.values())) != len(keys):
        raise CredentialError("two nodes have one key for this run")
    lines = open_lines(home, site, run, number, node, keys)
    for name in (GATE, *PROGRAMS):
        if "mesh_gate.py" if name == GATE else name in programs:
            write_text(
                os.path.join(place, name), programs["mesh_gate.py" if name == GATE else name]
            )
    write_text(
        os.path.join(place, "known_hosts"), read_text(os.path.join(home, MESH, "known_hosts"))
    )
    write_text(os.path.join(place, "config"), client_config(home, place))
    machine = {
        "identity": identity(),
        "node": node,
        "base": base,
        "run": run,
        "number": number,
        "nodes": sorted(keys),
    }
    machine["begun"] = attempt is None or int(attempt) == int(number)
    write_text(os.path.join(place, MACHINE), json.dumps(machine, sort_keys=True) + "\n")
    edit_lines(home, _belongs(run, node), lines)
    return os.path.join(place, "config")


def close(home, run, number, node):
    """Remove a node's lines of an attempt, of all attempts where number is None; the key stays for
    the start that follows a rehearsal.
    """
    return edit_lines(home, _belongs(run, node, number))


def release(home, run, number, node):
    """Remove a node's lines and key of an attempt; return whether there was anything."""
    place = place_of(home, run, number, node)
    changed = close(home, run, int(number), node) or os.path.isdir(place)
    shutil.rmtree(place, ignore_errors=True)
    for folder in (os.path.dirname(place), os.path.dirname(os.path.dirname(place))):
        try:
            os.rmdir(folder)  # another node with this home may still have something in it
        except OSError:
            break
    return changed


def machine_of(place):
    """Return what the start has noted beside a key: {identity, node, base, run, number, nodes,
    begun}; {} where nothing was started with it.
    """
    try:
        found = json.loads(read_text(os.path.join(place, MACHINE)) or "{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def key_age(place, now):
    """Return for how many seconds a key has been there, by the time that no account can set;
    UNUSED_SECONDS where there is none.
    """
    try:
        return abs(now - os.stat(os.path.join(place, KEY)).st_ctime)
    except OSError:
        return UNUSED_SECONDS


def tidy(home, base, node, units, now):
    """Remove what ended attempts have left on this node, after a reboot for instance; return [(run,
    attempt)].

    A line whose unit is not there goes in any case, whatever the files of the attempt say: the
    training can write them. Of a key that was made and not used yet, the start may be under way, so
    it stays for a day. The caller holds the lock of the starts (attempts.hold), so that no start is
    between its lines and its unit. units: names of the units that are active now. now: unix
    seconds.
    """
    folder, gone = os.path.join(home, MESH, RUNS), []
    lines = {(item["run"], item["number"]) for item in run_lines(home) if item["node"] == node}
    pairs = set(lines)
    for run in os.listdir(folder) if os.path.isdir(folder) else ():
        for number in os.listdir(os.path.join(folder, run)) if RUN_ID.match(run) else ():
            if number.isdigit() and os.path.isdir(os.path.join(folder, run, number, node)):
                pairs.add((run, int(number)))
    for run, number in sorted(pairs):
        try:
            place = place_of(home, run, number, node)
        except CredentialError:
            continue
        if any("trainyard-%s-%d.service" % (run, each) in units for each in (number, 0)):
            continue
        attempt = os.path.join(base, "runs", run, "attempt-%d" % number)
        begun = machine_of(place).get("begun") or os.path.exists(
            os.path.join(attempt, "attempt.json")
        )
        if begun or key_age(place, now) >= UNUSED_SECONDS:
            release(home, run, number, node)
            gone.append((run, number))
        elif (run, number) in lines:
            close(home, run, number, node)  # of a rehearsal; the start after it writes its own
            gone.append((run, number))
    return gone


def release_words(home, run, number, node):
    """Return the command by which the end of an attempt's unit has its credential removed: a timer,
    so that the peers can still ask how it stands.

    Its program is in the words of the unit, which the manager has in memory since the start: no
    file of the attempt or of the mesh is executed. The account stays the master of its own systemd
    and of its own authorized_keys.
    """
    place_of(home, run, number, node)
    source = inspect.getsource(sys.modules[__name__])
    packed = base64.b64encode(zlib.compress(source.encode("utf-8"), 9)).decode("ascii")
    words = [PYTHON, "-I", "-B", "-c", UNPACK, packed, "release", home, run, str(int(number)), node]
    timer = [
        "--user",
        "--quiet",
        "--description=Remove the key of a Trainyard attempt",
        "--collect",
        "--no-block",
        "--on-active=%d" % RELEASE_SECONDS,
        "--timer-property=AccuracySec=1s",
    ]
    return [SYSTEMD_RUN, *timer, *words]


# --- product directories of this machine


def bases_path(home):
    """Return where this machine notes its product directories; nodes that share a home have one
    file each.
    """
    return os.path.join(home, MESH, f"bases-{identity()[:16]}.json")


def register(home, base):
    """Note a product directory of this machine, below which the gate may look for a run."""
    if not os.path.isdir(os.path.join(home, MESH)):
        return
    try:
        found = json.loads(read_text(bases_path(home)) or "[]")
    except (ValueError, RecursionError):
        found = []
    found = found if isinstance(found, list) else []
    base = os.path.realpath(base)
    if base not in found:
        write_text(bases_path(home), json.dumps([base, *found][:8]) + "\n")


def main(arguments):
    """Remove the credential that the command names."""
    if len(arguments) != 5 or arguments[0] != "release":
        raise SystemExit(__doc__)
    release(*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
