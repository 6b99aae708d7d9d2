# SPDX-License-Identifier: Apache-2.0
"""What a node holds of its mesh: files, certificate, the record of the proof (mesh.json)."""

from __future__ import annotations

import glob
import json
import os
import re

from ..attempts import attempt_dir
from . import authorized_keys
from .certificates import parse_certificate
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
    read_bytes,
    sha256,
)


def own_identity():
    """Return the identity of this machine."""
    return identity(*((read_bytes(path) or b"").decode("utf-8", "replace") for path in WHO))


def read_host_keys(patterns=HOST_KEYS):
    """Return the sorted host public keys of this machine."""
    texts = [read_bytes(path) or b"" for pattern in patterns for path in glob.glob(pattern)]
    return sorted(
        {key for key in (public_key(text.decode("utf-8", "replace")) for text in texts) if key}
    )


def is_busy(run_command):
    """Return whether an attempt of this user runs on the node, or may: its systemd does not answer.
    run_command: AnsibleModule's.
    """
    environ = dict(attempt_dir.user_environment(os.getuid()), LANG="C", LC_ALL="C")
    try:
        return bool(
            attempt_dir.active_units(lambda argv: run_command(argv, environ_update=environ))
        )
    except (attempt_dir.AttemptError, OSError):
        return True


def held_lines(home, site, busy):
    """Return {count, authorities, open, busy} of a site's own lines in authorized_keys. busy():
    whether an attempt runs, asked where it matters.
    """
    text = (read_bytes(os.path.join(home, ".ssh", "authorized_keys")) or b"").decode(
        "utf-8", "surrogateescape"
    )
    found = authorized_keys.describe(text, site)
    return dict(found, busy=bool(found["count"]) and busy())


def read_record(home, directory=DIRECTORY):
    """Return the node's record of its mesh (mesh.json), or None."""
    try:
        record = json.loads(read_bytes(os.path.join(home, directory, RECORD)) or b"null")
    except (ValueError, RecursionError):
        return None
    return (
        record
        if isinstance(record, dict) and record.get("version") in (1, RECORD_VERSION)
        else None
    )


def certificate_end(place):
    """Return when the certificate in the mesh's directory ends (unix seconds), or None."""
    try:
        return parse_certificate(
            (read_bytes(os.path.join(place, CERTIFICATE)) or b"").decode("utf-8", "replace")
        )["valid_until"]
    except ValueError:
        return None


def key_exposed(place):
    """Return whether others than the owner may read the node's private key; ssh ignores such a key,
    and it must not be used again.
    """
    path = os.path.join(place, KEY)
    return os.path.exists(path) and bool(os.stat(path).st_mode & 0o077)


def key_to_replace(place, name):
    """Return whether a node's key must be made anew: others may have read it, or it was made on
    another node (a copied disk).
    """
    comment = (
        (read_bytes(os.path.join(place, KEY + ".pub")) or b"")
        .decode("utf-8", "replace")
        .split()[2:]
    )
    return key_exposed(place) or bool(comment and not comment[0].endswith("-" + name))


def read_state(home, site, directory=DIRECTORY):
    """Return {files, line, valid_until} of what lies in a home: digests of the mesh's files (None:
    missing) and of the site's line.
    """
    place = os.path.join(home, directory)
    files = {
        name: (
            None
            if read_bytes(os.path.join(place, name)) is None
            else sha256(read_bytes(os.path.join(place, name)))
        )
        for name in PROVEN_FILES
    }
    keys = (
        (read_bytes(os.path.join(home, ".ssh", "authorized_keys")) or b"")
        .decode("utf-8", "replace")
        .splitlines()
    )
    lines = [line for line in keys if re.match(line_pattern(site), line)]
    return {
        "files": files,
        "line": sha256("\n".join(lines)) if lines else None,
        "valid_until": certificate_end(place),
    }


def mesh_state(home_dir, now, directory=DIRECTORY):
    """Return what a node knows of its mesh, without root and without changing anything.

    {present, site, digest, inventory, nodes, valid_until, proven, stale, authority, carried}:
    present is False where no proof was ever recorded; stale names what differs from what was proven
    (a file, 'authorized_keys', 'host key', 'key exposed', 'certificate expired', 'written on
    another machine', 'authority', 'made by an earlier Trainyard'); proven (unix time) is None where
    anything is stale. authority: {fingerprint, by, since} of who made it. carried: whether an
    earlier line of the site stays until nothing runs.
    """
    record = read_record(home_dir, directory)
    if record is None:
        return {
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
    state = read_state(home_dir, str(record.get("site")), directory)
    proven_files = record.get("files") if isinstance(record.get("files"), dict) else {}
    stale = [] if record["version"] == RECORD_VERSION else ["made by an earlier Trainyard"]
    stale += [
        name
        for name in PROVEN_FILES
        if state["files"][name] is None or state["files"][name] != proven_files.get(name)
    ]
    if key_exposed(os.path.join(home_dir, directory)):
        stale.append("key exposed")
    if record.get("identity") and record["identity"] != own_identity():
        stale.append("written on another machine")
    if state["line"] is None or state["line"] != record.get("line"):
        stale.append("authorized_keys")
    pinned = record.get("pinned") if isinstance(record.get("pinned"), list) else []
    if not set(map(str, pinned)) <= set(read_host_keys(record.get("host_keys") or HOST_KEYS)):
        stale.append("host key")
    if state["valid_until"] is not None and state["valid_until"] <= now:
        stale.append("certificate expired")
    authority = record.get("authority") if isinstance(record.get("authority"), dict) else {}
    if not authority.get(
        "fingerprint"
    ):  # a mesh from before authorities were told apart, made anew by the next playbook that looks
        stale.append("authority")
    return {
        "present": True,
        "site": record.get("site"),
        "digest": record.get("digest"),
        "inventory": record.get("inventory"),
        "nodes": record.get("nodes") if isinstance(record.get("nodes"), list) else [],
        "valid_until": state["valid_until"],
        "proven": None if stale else record.get("proven"),
        "stale": stale,
        "authority": authority,
        "carried": bool(record.get("carried")),
    }


def new_record(home, told, now, directory=DIRECTORY, host_keys=HOST_KEYS, writer=""):
    """Return the record of a mesh that has just been proven. told: {site, nodes, digest, inventory,
    authority, carried} as compiled.

    host_keys: where sshd's are; writer: this node's identity, '' where its home is shared by
    several.
    """
    state = read_state(home, told["site"], directory)
    listed = (read_bytes(os.path.join(home, directory, "known_hosts")) or b"").decode(
        "utf-8", "replace"
    )
    return {
        "version": RECORD_VERSION,
        "site": told["site"],
        "nodes": list(told["nodes"]),
        "digest": told["digest"],
        "inventory": told["inventory"],
        "valid_until": state["valid_until"],
        "proven": int(now),
        "files": state["files"],
        "line": state["line"],
        "host_keys": list(host_keys),
        # The controller has pinned these of this machine's keys, not always all of them.
        "pinned": [key for key in read_host_keys(host_keys) if " " + key + "\n" in listed],
        "identity": writer,
        "authority": {
            key: (told.get("authority") or {}).get(key) for key in ("fingerprint", "by", "since")
        },
        "carried": bool(told.get("carried")),
    }


def earlier_attempts(home, site, directory, run):
    """Return a problem for each attempt that runs here under the one line of an earlier Trainyard;
    it keeps that line until its end.

    site: whose mesh lies here. run(argv) -> (code, stdout, stderr). Attempts with keys of their own
    (mesh_credential.py) are not concerned.
    """
    keys = (
        (read_bytes(os.path.join(home, ".ssh", "authorized_keys")) or b"")
        .decode("utf-8", "replace")
        .splitlines()
    )
    if not site or not any(
        re.match(line_pattern(site), line) and line.endswith(" trainyard-ca " + site)
        for line in keys
    ):
        return []
    os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    listed = run(
        [
            "systemctl",
            "--user",
            "list-units",
            "--state=active,activating,deactivating",
            "--plain",
            "--no-legend",
            "trainyard-*.service",
        ]
    )[1]
    units = [line.split()[0] for line in listed.splitlines() if line.split()]
    text = (
        "runs {} under the mesh of an earlier Trainyard, which stays until that has ended; then"
        " repeat this, or stop it: playbooks/stop.yml"
    )
    return [text.format(unit) for unit in units]


def withdraw(home, directory=DIRECTORY):
    """Take the recorded proof of a node back, which is known not to hold any more. Return whether
    there was one.
    """
    record = read_record(home, directory)
    if not record or not record.get("proven"):
        return False
    write_record(os.path.join(home, directory), dict(record, proven=None))
    return True


def differs(old, new):
    """Return whether two records say different things, apart from when they were proven."""
    return old is None or dict(old, proven=None) != dict(new, proven=None)


def write_record(place, record):
    """Write mesh.json whole or not at all."""
    temporary = os.path.join(place, f".{RECORD}.{os.getpid()}")
    with os.fdopen(
        os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as handle:
        handle.write(json.dumps(record, indent=2) + "\n")
    os.replace(temporary, os.path.join(place, RECORD))
