# SPDX-License-Identifier: Apache-2.0
"""The site's certificate authority on the controller: its key, its serial numbers, its history, and
the nodes that were taken back.

All of it lies in one directory of mode 0700: the key pair (or nothing of it, where the key is in an
agent or on a token), `signed/` with the newest certificate of each node, and the journal
`authority.json`. Every change is made under one lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time

from ..base.findings import named
from ..base.sanitize import printable
from .primitives import fingerprint, public_key

KEY = "id_ed25519"
JOURNAL = "authority.json"
SIGNED = "signed"
# What an authority's directory holds; nothing else in it is ever removed.
OWN = (KEY, KEY + ".pub", JOURNAL, SIGNED, ".lock")
# The same as for inventory names in mesh_compiled: they stand in file names and in certificates.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}\Z")


class AuthorityError(Exception):
    """What keeps the authority from working, in words with the remedy."""


def folder_of(state_dir):
    """Return the authority's directory below what the controller keeps of a site;
    roles/ssh_trust/vars has the same.
    """
    return os.path.join(os.path.expanduser(state_dir), "ca")


@contextlib.contextmanager
def locked(folder):
    """Hold the lock of an authority's directory, and make the directory where it is missing."""
    os.makedirs(os.path.join(folder, SIGNED), mode=0o700, exist_ok=True)
    with open(os.path.join(folder, ".lock"), "a", encoding="ascii") as handle:
        os.chmod(folder, 0o700)
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def read_journal(folder):
    """Return {serial, authorities, taken_back} of an authority's directory. Raises AuthorityError
    for a damaged one.
    """
    path = os.path.join(folder, JOURNAL)
    journal = {"version": 1, "serial": 0, "authorities": [], "taken_back": {}}
    try:
        with open(path, encoding="utf-8") as handle:
            found = json.load(handle)
    except FileNotFoundError:
        return journal
    except (OSError, ValueError) as problem:
        raise AuthorityError(
            f"{path} cannot be read ({problem}); restore it, or move it away to start a new one"
        ) from problem
    kinds = {"serial": int, "authorities": list, "taken_back": dict}
    if not isinstance(found, dict) or not all(
        isinstance(found.get(key), kind) for key, kind in kinds.items()
    ):
        raise AuthorityError(
            f"{path} is not a journal of an authority; restore it, or move it away to start a"
            " new one"
        )
    return dict(journal, **found)


def write_file(path, text):
    """Write a file of mode 0600 whole or not at all."""
    temporary = f"{path}.{os.getpid()}~"
    with os.fdopen(
        os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(temporary, path)


def write_journal(folder, journal):
    """Write the journal of an authority's directory."""
    write_file(os.path.join(folder, JOURNAL), json.dumps(journal, indent=2) + "\n")


def read_public_key(path):
    """Return the public key in a file, 'type base64'. Raises AuthorityError."""
    try:
        with open(path, encoding="utf-8") as handle:
            text = handle.read(20000)
    except (OSError, UnicodeDecodeError) as problem:
        raise AuthorityError(f"the authority's public key cannot be read: {problem}") from problem
    key = public_key(text)
    if not fingerprint(text):
        raise AuthorityError(
            f"{path} does not hold a public key of OpenSSH (ssh-ed25519, ecdsa-sha2-*, ssh-rsa)"
        )
    return key


def make_key(folder, site, run):
    """Make a key pair of the authority anew, in the place of the one that is there."""
    new = os.path.join(folder, f"{KEY}.new")
    for path in (new, new + ".pub"):
        if os.path.lexists(path):
            os.unlink(path)
    code, _out, err = run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "trainyard-ca " + site, "-f", new]
    )
    if code != 0:
        raise AuthorityError(
            f"ssh-keygen could not make the authority's key: {err.strip() or code}"
        )
    # The private half is what counts; the public half is made from it again where the two differ.
    os.replace(new, os.path.join(folder, KEY))
    os.replace(new + ".pub", os.path.join(folder, KEY + ".pub"))


def own_key(folder, run):
    """Return the public key of the pair in the directory, '' where there is none. Mends a public
    half that is not the private one's.
    """
    private = os.path.join(folder, KEY)
    if not os.path.exists(private):
        return ""
    code, out, _err = run(["ssh-keygen", "-y", "-P", "", "-f", private])
    if code != 0:  # a passphrase: only an agent can sign with it, and it does so by the public half
        return read_public_key(private + ".pub")
    held = None
    with contextlib.suppress(AuthorityError):
        held = read_public_key(private + ".pub")
    if public_key(out) != held:
        write_file(private + ".pub", out.strip() + "\n")
    return public_key(out)


def settle(folder, site, external, by, now, run, rotate=False):
    """Return (authority, journal, changed) after the key is there and the journal knows it.

    external: path of a public key whose private half is in an agent or on a token; '' for a pair in
    the directory. by: user@controller. An authority is {fingerprint, public_key, by, since}; the
    journal has all there were, the present one last.
    """
    made = False
    if external:
        if rotate:
            text = (
                "the authority's key is not in this directory; make a new one where it is kept and"
                " name it in ssh_trust_ca_public_key"
            )
            raise AuthorityError(text)
        key = read_public_key(external)
    else:
        made = rotate or not os.path.exists(os.path.join(folder, KEY))
        if made:
            make_key(folder, site, run)
        key = own_key(folder, run)
    journal = read_journal(folder)
    last = journal["authorities"][-1] if journal["authorities"] else {}
    if last.get("public_key") == key:
        return last, journal, made
    # A key from before there was a journal is as old as its file.
    since = int(now) if made or external else int(os.stat(os.path.join(folder, KEY)).st_mtime)
    entry = {"fingerprint": fingerprint(key), "public_key": key, "by": by, "since": since}
    journal["authorities"].append(entry)
    write_journal(folder, journal)
    return entry, journal, True


def next_serial(journal, now):
    """Return the next serial number: it only grows, and two copies of one directory do not give the
    same number either.
    """
    journal["serial"] = max(int(journal["serial"]) + 1, int(now * 1000))
    return journal["serial"]


def signed_files(folder, node):
    """Return the names in `signed/` that belong to a node."""
    pattern = re.compile(re.escape(node) + r"-[0-9a-f]{16}(-cert)?\.pub\Z")
    place = os.path.join(folder, SIGNED)
    return sorted(
        name for name in (os.listdir(place) if os.path.isdir(place) else ()) if pattern.match(name)
    )


def forget_signed(folder, node, keep=()):
    """Remove what was signed for a node, but for the names in keep. Return whether there was
    anything.
    """
    names = [name for name in signed_files(folder, node) if name not in keep]
    for name in names:
        os.unlink(os.path.join(folder, SIGNED, name))
    return bool(names)


def take_back(folder, node, by, now):
    """Remember that a node is no longer trusted and remove what was signed for it. Return whether
    anything changed.
    """
    journal = read_journal(folder)
    new = node not in journal["taken_back"]
    if new:
        journal["taken_back"][node] = {"since": int(now), "by": by}
        write_journal(folder, journal)
    return forget_signed(folder, node) or new


def take_in(folder, names):
    """Forget that nodes were taken back. Return the names that were."""
    journal = read_journal(folder)
    strange = [name for name in names if name not in journal["taken_back"]]
    if strange:
        known = ", ".join(sorted(journal["taken_back"])) or "none"
        raise AuthorityError(
            "{} was not taken back; taken back: {}".format(", ".join(strange), known)
        )
    for name in names:
        del journal["taken_back"][name]
    if names:
        write_journal(folder, journal)
    return list(names)


def foreign(journal, nodes):
    """Return a sentence for every authority of another controller that the nodes hold for this
    site, with the remedy.

    nodes: {name: (held, recorded)}: authorities' fingerprints in the node's lines, and the
    authority that its record names. Both come from the node.
    """
    own = {item["fingerprint"] for item in journal["authorities"]}
    found = {}
    for name, (held, recorded) in nodes.items():
        recorded = recorded if isinstance(recorded, dict) else {}
        said = recorded.get("fingerprint")
        for each in [item for item in held if item not in own] or (
            [said] if said and said not in own else []
        ):
            entry = found.setdefault(str(each), {"names": [], "by": "", "since": None})
            entry["names"].append(name)
            if each == said:
                entry.update(by=str(recorded.get("by") or ""), since=recorded.get("since"))
    texts = []
    for key, entry in sorted(found.items()):
        who = entry["by"] or "a controller that is not recorded"
        since = (
            time.strftime(", since %Y-%m-%d %H:%M UTC", time.gmtime(entry["since"]))
            if _is_time(entry["since"])
            else ""
        )
        told = "{}: {} made the mesh of this site with another authority ({}{})".format(
            named(entry["names"]), who, key, since
        )
        texts.append(printable(told, limit=600))
    return texts


def _is_time(value):
    """Return whether a node's value can be a time."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**33


def remove(folder):
    """Remove an authority with all it signed. Return whether there was one. Raises AuthorityError
    for a directory that is not one's.
    """
    if not os.path.isdir(folder):
        return False
    names = os.listdir(folder)
    strange = [
        name
        for name in names
        if name not in OWN and not re.fullmatch(re.escape(KEY) + r"\.new(\.pub)?|.+~", name)
    ]
    if strange or os.path.islink(folder):
        told = ", ".join(sorted(strange)[:3]) or "a link"
        raise AuthorityError(
            f"{folder} holds what no authority has ({told}); check trainyard_state_dir, nothing was"
            " removed"
        )
    shutil.rmtree(folder)
    return True
