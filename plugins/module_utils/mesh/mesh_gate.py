# SPDX-License-Identifier: Apache-2.0
"""Gate of a node: the one program that its peers' certificates can start here.

It has three verbs and executes nothing that a caller sends. sshd starts it by the forced command of
a line in authorized_keys, which names the caller. The caller's own words are in
SSH_ORIGINAL_COMMAND. They are split without a shell, and every word is compared with a pattern.

It serves the site and not a run: trust.yml installs it once, and mesh.json is bound to its bytes.
So it is one file that needs nothing but Python >= 3.8, and imports none of ours. The gate of a run
is agent/peer_gate.py.

    gate.py PEER                        a peer with a certificate of the site, for what a
                                        controller directs
        identify                        print this machine's id and host name
        pull RUN ATTEMPT FOLDER --server --daemon .
                                        serve a folder of checkpoints to rsync, read-only
        tree KIND NAME                  send a tree (code, data, wheels) that lies here or arrives
                                        at this moment (tree_sender.py, which lies beside this file)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

LONGEST = 16384
REFUSED = 77
IDENTITY = ("/etc/machine-id", "/proc/sys/kernel/hostname")
RUN_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[A-Za-z0-9_.]{1,64}-[0-9a-f]{4}\Z")
NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,4})\Z")
NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}\Z")
FOLDER = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9._@+=-]{0,120}(?:/[A-Za-z0-9_][A-Za-z0-9._@+=-]{0,120}){0,8}\Z"
)
KIND = re.compile(r"(?:code|data|weights|checkpoints|wheels)\Z")
# The first letters of a tree's digest (inputs/tree_install.py).
TREE = re.compile(r"[0-9a-f]{16}\Z")
# Beside this file, as it is installed.
SENDER = "tree_sender.py"
PATH = "/usr/local/bin:/usr/bin:/bin"
# The one module of rsync's daemon that a caller can name.
MODULE = "checkpoint"
# The words of an rsync that asks for a daemon over ssh.
DAEMON = ["--server", "--daemon", "."]
RSYNC = """\
use chroot = no
log file = /dev/null
max verbosity = 0
list = no
reverse lookup = no
numeric ids = yes
{account}refuse options = delete remove-source-files copy-links copy-dirlinks copy-unsafe-links \
links devices specials write-devices copy-devices
[{module}]
path = {path}
read only = yes
munge symlinks = yes
"""


class Refused(Exception):
    """A call that this gate does not carry out. The message goes to the caller."""


def split(text):
    """Return the words of a caller's command.

    Raises Refused for one that is not a command of ours.
    """
    if not text or len(text) > LONGEST or not all(" " <= char <= "~" for char in text):
        raise Refused("the mesh has verbs and no shell")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise Refused("the words cannot be split") from error


def match(pattern, word, label):
    """Return a word that fits its pattern.

    label: the word's name. Raises Refused for another one.
    """
    if not pattern.match(word):
        raise Refused(f"not {label}")
    return word


def read_json(path):
    """Return the content of a JSON file, {} where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return json.load(handle)
    except (OSError, ValueError, RecursionError):
        return {}


def identity():
    """Return the digest by which this machine knows its own entry in a shared home.

    It is the same as mesh_credential.identity.
    """
    parts = []
    for path in IDENTITY:
        with open(path, encoding="ascii", errors="replace") as handle:
            parts.append(handle.read().strip())
    return hashlib.sha256("\n".join([*parts, ""]).encode()).hexdigest()


def identify():
    """Print this machine's id and host name, each on a line."""
    for path in IDENTITY:
        with open(path, encoding="ascii", errors="replace") as handle:
            print(handle.read().strip(), flush=True)
    return 0


def own_bases():
    """Return the product's directories on this machine."""
    mesh = os.path.dirname(os.path.abspath(__file__))
    bases = read_json(os.path.join(mesh, f"bases-{identity()[:16]}.json"))
    if not isinstance(bases, list):
        return []
    return [str(base) for base in bases]


def served_folder(run, number, folder):
    """Return the folder of checkpoints that a caller may read.

    Raises Refused for any other one. It is below an attempt of this machine.
    """
    for base in own_bases():
        path = folder_in_attempt(base, run, number, folder)
        if path:
            return path
    raise Refused("no such folder of checkpoints is here")


def folder_in_attempt(base, run, number, folder):
    """Return the path of a folder of checkpoints that an attempt's own plan names, else None.

    base: the product's directory on this machine.
    """
    attempt = os.path.join(base, "runs", run, f"attempt-{number}")
    record = read_json(os.path.join(attempt, "attempt.json"))
    plan = read_json(os.path.join(attempt, "plan.json"))
    try:
        known = record["run"] == run and str(record["attempt"]) == number
        folders = plan["suite"]["checkpoints"]["folders"]
    except (KeyError, TypeError):
        return None
    path = os.path.realpath(os.path.join(attempt, folder))
    # A link that leads elsewhere is not served.
    inside = path == os.path.join(os.path.realpath(attempt), folder)
    if known and folder in folders and inside:
        return path
    return None


def pull(words):
    """Serve one folder of checkpoints of an attempt.

    words: RUN ATTEMPT FOLDER --server --daemon .
    """
    if len(words) != 6 or words[3:] != DAEMON:
        raise Refused("want: pull RUN ATTEMPT FOLDER --server --daemon .")
    run, number = match(RUN_ID, words[0], "a run"), match(NUMBER, words[1], "an attempt")
    return serve(served_folder(run, number, match(FOLDER, words[2], "a folder")))


def serve(folder):
    """Run rsync's daemon for one folder, read-only, and return its exit code.

    rsync itself keeps what a caller asks for below that folder.
    """
    if "\n" in folder or "%" in folder:
        raise Refused("the folder's path cannot be served")
    account = ""
    if os.getuid() == 0:
        # Else rsync becomes `nobody`. Any other account must not be named: rsync 3.5.0 fails on it.
        account = "uid = 0\ngid = 0\n"
    environment = {
        name: os.environ[name] for name in ("SSH_CONNECTION", "SSH_CLIENT") if name in os.environ
    }
    with tempfile.NamedTemporaryFile("w", prefix="trainyard-rsyncd-", encoding="utf-8") as handle:
        handle.write(RSYNC.format(module=MODULE, path=folder, account=account))
        handle.flush()
        argv = ["rsync", "--server", "--daemon", "--config=" + handle.name, "."]
        return subprocess.call(argv, env=dict(environment, PATH=PATH, LC_ALL="C"))


def send_tree(words):
    """Become the sender of a tree of this node. words: KIND NAME."""
    if len(words) != 2:
        raise Refused("want: tree KIND NAME")
    kind, name = match(KIND, words[0], "a kind of tree"), match(TREE, words[1], "a tree")
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), SENDER)
    if not os.path.isfile(program):
        raise Refused("no sender of trees is here")
    os.execv(sys.executable, [sys.executable, "-I", program, kind, name, *own_bases()])


def of_site(words):
    """Carry out a call that came with a certificate of the site."""
    if words == ["identify"]:
        return identify()
    if words[:1] == ["pull"]:
        return pull(words[1:])
    if words[:1] == ["tree"]:
        return send_tree(words[1:])
    raise Refused("not a verb of the mesh: a certificate permits identify, pull and tree")


def main(arguments):
    """Dispatch a call.

    arguments: those of the line in authorized_keys, which no caller can change.
    """
    os.umask(0o077)
    sys.dont_write_bytecode = True
    try:
        words = split(os.environ.get("SSH_ORIGINAL_COMMAND", ""))
        if len(arguments) == 1:
            match(NODE, arguments[0], "a node")
            return of_site(words)
    except Refused as refusal:
        print(f"trainyard: refused: {refusal}", file=sys.stderr, flush=True)
        return REFUSED
    raise SystemExit(__doc__)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        os._exit(0)
