# SPDX-License-Identifier: Apache-2.0
"""A node's part of its mesh: files, certificate, record of the proof.

The record is mesh.json.
"""

from __future__ import annotations

import glob
import json
import os
import re

from ..attempts import attempt_dir
from ..base.commands import user_environment
from ..base.files import read_bytes, replace_file
from . import authorized_keys
from .certificates import read_end
from .primitives import (
    CERTIFICATE,
    DIRECTORY,
    HOST_KEYS,
    KEY,
    PROVEN_FILES,
    RECORD,
    RECORD_VERSION,
    WHO,
    identity,
    line_pattern,
    public_key,
    sha256,
)

# The state of a node on which no proof was ever recorded.
NO_MESH = {
    "present": False,
    "site": None,
    "digest": None,
    "inventory": None,
    "nodes": [],
    "valid_until": None,
    "proven": None,
    "stale": [],
    "authority": {},
    "carried": False,
}


def _read_text(path, errors="replace"):
    """Return a file's text, '' where it cannot be read."""
    return (read_bytes(path) or b"").decode("utf-8", errors)


def _authorized_keys(home):
    """Return the path of the account's authorized_keys."""
    return os.path.join(home, ".ssh", "authorized_keys")


def own_identity():
    """Return the identity of this machine."""
    return identity(*(_read_text(path) for path in WHO))


def read_host_keys(patterns=HOST_KEYS):
    """Return the sorted host public keys of this machine."""
    keys = {public_key(_read_text(path)) for pattern in patterns for path in glob.glob(pattern)}
    return sorted(key for key in keys if key)


def is_busy(run_command):
    """Return True if an attempt of this user runs on the node.

    It is True, too, if the user's systemd does not answer. run_command: AnsibleModule's.
    """
    environ = dict(user_environment(os.getuid()), LANG="C", LC_ALL="C")
    try:
        return bool(
            attempt_dir.active_units(lambda argv: run_command(argv, environ_update=environ))
        )
    except (attempt_dir.AttemptError, OSError):
        return True


def held_lines(home, site, busy):
    """Return {count, authorities, open, busy} of a site's authorized_keys lines.

    busy(): True if an attempt runs. It is called only where the site has lines.
    """
    lines = authorized_keys.describe(_read_text(_authorized_keys(home), "surrogateescape"), site)
    return dict(lines, busy=bool(lines["count"]) and busy())


def read_record(home, directory=DIRECTORY):
    """Return the node's record of its mesh (mesh.json), or None."""
    try:
        record = json.loads(read_bytes(os.path.join(home, directory, RECORD)) or b"null")
    except (ValueError, RecursionError):
        return None
    if isinstance(record, dict) and record.get("version") in range(1, RECORD_VERSION + 1):
        return record
    return None


def certificate_end(place):
    """Return when the mesh's certificate ends (unix seconds), or None.

    place: the mesh's directory.
    """
    try:
        return read_end(_read_text(os.path.join(place, CERTIFICATE)))
    except ValueError:
        return None


def key_exposed(place):
    """Return True if others than the owner may read the node's private key.

    ssh ignores such a key, and it must not be used again. place: the mesh's directory.
    """
    path = os.path.join(place, KEY)
    return os.path.exists(path) and bool(os.stat(path).st_mode & 0o077)


def key_to_replace(place, name):
    """Return True if a node needs a new key.

    Others may have read the key, or it was made on another node (a copied disk). place: the mesh's
    directory.
    """
    comment = _read_text(os.path.join(place, KEY + ".pub")).split()[2:]
    return key_exposed(place) or bool(comment and not comment[0].endswith("-" + name))


def read_state(home, site, directory=DIRECTORY):
    """Return {files, line, valid_until} of what lies in a home.

    files: {name: digest, None for a missing one}. line: the digest of the site's lines in
    authorized_keys, or None.
    """
    folder = os.path.join(home, directory)
    lines = [
        line
        for line in _read_text(_authorized_keys(home)).splitlines()
        if re.match(line_pattern(site), line)
    ]
    digest = None
    if lines:
        digest = sha256("\n".join(lines))
    return {
        "files": {name: _digest_of(os.path.join(folder, name)) for name in PROVEN_FILES},
        "line": digest,
        "valid_until": certificate_end(folder),
    }


def _digest_of(path):
    """Return the digest of a file, None where it cannot be read."""
    data = read_bytes(path)
    if data is None:
        return None
    return sha256(data)


def mesh_state(home_dir, now, directory=DIRECTORY):
    """Return what a node knows of its mesh, without root or any change.

    {present, site, digest, inventory, nodes, valid_until, proven, stale, authority, carried}:
    present is False where no proof was ever recorded. stale names what differs from what was proven
    (a file, 'authorized_keys', 'host key', 'key exposed', 'certificate expired', 'written on
    another machine', 'authority', 'made by an earlier Trainyard'). proven (unix time) is missing
    (None) where anything is stale. authority: {fingerprint, by, since} of its maker. carried: True
    if an earlier line of the site stays until nothing runs. now: unix seconds.
    """
    record = read_record(home_dir, directory)
    if record is None:
        return dict(NO_MESH, nodes=[], stale=[], authority={})
    state = read_state(home_dir, str(record.get("site")), directory)
    authority = _mapping_of(record, "authority")
    stale = _stale_parts(record, state, os.path.join(home_dir, directory), now)
    # A mesh from before authorities were distinguished is made anew by the next playbook that
    # looks.
    if not authority.get("fingerprint"):
        stale.append("authority")
    proven = record.get("proven")
    if stale:
        proven = None
    return {
        "present": True,
        "site": record.get("site"),
        "digest": record.get("digest"),
        "inventory": record.get("inventory"),
        "nodes": _list_of(record, "nodes"),
        "valid_until": state["valid_until"],
        "proven": proven,
        "stale": stale,
        "authority": authority,
        "carried": bool(record.get("carried")),
    }


def _stale_parts(record, state, folder, now):
    """Return the names of what differs from what was proven.

    state: of read_state. folder: the mesh's directory.
    """
    stale = []
    if record["version"] != RECORD_VERSION:
        stale.append("made by an earlier Trainyard")
    proven_files = _mapping_of(record, "files")
    stale += [
        name
        for name, digest in state["files"].items()
        if digest is None or digest != proven_files.get(name)
    ]
    if key_exposed(folder):
        stale.append("key exposed")
    if record.get("identity") and record["identity"] != own_identity():
        stale.append("written on another machine")
    if state["line"] is None or state["line"] != record.get("line"):
        stale.append("authorized_keys")
    pinned = set(map(str, _list_of(record, "pinned")))
    if not pinned <= set(read_host_keys(record.get("host_keys") or HOST_KEYS)):
        stale.append("host key")
    if state["valid_until"] is not None and state["valid_until"] <= now:
        stale.append("certificate expired")
    return stale


def _mapping_of(record, key):
    """Return a mapping of a record, {} where it is something else."""
    if isinstance(record.get(key), dict):
        return record[key]
    return {}


def _list_of(record, key):
    """Return a list of a record, [] where it is something else."""
    if isinstance(record.get(key), list):
        return record[key]
    return []


def new_record(home, mesh, now, directory=DIRECTORY, host_keys=HOST_KEYS, writer=""):
    """Return the record of a mesh that has just been proven.

    mesh: {site, nodes, digest, inventory, authority, carried} as compiled. host_keys: patterns of
    the paths of sshd's keys. writer: this node's identity, '' where its home is shared by several.
    """
    state = read_state(home, mesh["site"], directory)
    authority = mesh.get("authority") or {}
    known_hosts = _read_text(os.path.join(home, directory, "known_hosts"))
    return {
        "version": RECORD_VERSION,
        "site": mesh["site"],
        "nodes": list(mesh["nodes"]),
        "digest": mesh["digest"],
        "inventory": mesh["inventory"],
        "valid_until": state["valid_until"],
        "proven": int(now),
        "files": state["files"],
        "line": state["line"],
        "host_keys": list(host_keys),
        # The controller has pinned these of this machine's keys, not always all of them.
        "pinned": [key for key in read_host_keys(host_keys) if f" {key}\n" in known_hosts],
        "identity": writer,
        "authority": {key: authority.get(key) for key in ("fingerprint", "by", "since")},
        "carried": bool(mesh.get("carried")),
    }


def earlier_attempts(home, site, directory, run):
    """Return a problem for each attempt that an earlier Trainyard's line lets run.

    Such an attempt keeps that line until its end. site: the site of the mesh that lies here.
    run(argv) -> (code, stdout, stderr). Attempts with keys of their own (mesh_credential.py) are
    not concerned.
    """
    if not site or not _has_early_line(home, site):
        return []
    os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    argv = ["systemctl", "--user", "list-units", "--state=active,activating,deactivating"]
    listing = run([*argv, "--plain", "--no-legend", "trainyard-*.service"])[1]
    return [
        f"runs {line.split()[0]} under the mesh of an earlier Trainyard, which stays until that has"
        " ended; then repeat this, or stop it: ansible-playbook playbooks/stop.yml"
        for line in listing.splitlines()
        if line.split()
    ]


def _has_early_line(home, site):
    """Return True if authorized_keys has an earlier Trainyard's line for all peers."""
    return any(
        re.match(line_pattern(site), line) and line.endswith(" trainyard-ca " + site)
        for line in _read_text(_authorized_keys(home)).splitlines()
    )


def withdraw(home, directory=DIRECTORY):
    """Withdraw the recorded proof of a node, which is known not to hold any more.

    Returns True if there was one.
    """
    record = read_record(home, directory)
    if not record or not record.get("proven"):
        return False
    write_record(os.path.join(home, directory), dict(record, proven=None))
    return True


def differs(old, new):
    """Return True if two records differ in more than the time of their proof."""
    return old is None or dict(old, proven=None) != dict(new, proven=None)


def write_record(place, record):
    """Write mesh.json whole or not at all.

    place: the mesh's directory.
    """
    replace_file(os.path.join(place, RECORD), json.dumps(record, indent=2) + "\n", sync=False)
