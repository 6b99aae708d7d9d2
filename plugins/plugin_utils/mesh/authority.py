# SPDX-License-Identifier: Apache-2.0
"""Certificate authority of a site: key, serial numbers, history, nodes taken back.

All of it lies in one directory of mode 0700: the key pair (or nothing of it, where the key is in an
agent or on a token), `signed/` with the newest certificate of each node, and the journal
`authority.json`. Every change is made under one lock.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.trainyard.cluster.plugins.module_utils.base.commands import RunCommand
from ansible_collections.trainyard.cluster.plugins.module_utils.base.files import replace_file
from ansible_collections.trainyard.cluster.plugins.module_utils.base.findings import named
from ansible_collections.trainyard.cluster.plugins.module_utils.base.locks import lock_file
from ansible_collections.trainyard.cluster.plugins.module_utils.base.sanitize import printable
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh.primitives import (
    fingerprint,
    public_key,
)

KEY = "id_ed25519"
JOURNAL = "authority.json"
SIGNED = "signed"
# The content of an authority's directory. Nothing else in it is ever removed.
OWN_FILES = (KEY, KEY + ".pub", JOURNAL, SIGNED, ".lock")
# The same as for inventory names in known_nodes: they stand in file names and in certificates.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}\Z")


class AuthorityError(Exception):
    """The authority cannot work. The message has the reason and the remedy."""


def folder_of(state_dir: str) -> str:
    """Return the authority's directory below what the controller keeps of a site.

    roles/ssh_trust/vars has the same.
    """
    return os.path.join(os.path.expanduser(state_dir), "ca")


# What journal.json holds: serial, authorities, taken_back.
Journal = dict[str, Any]


@contextlib.contextmanager
def lock(folder: str) -> Iterator[None]:
    """Lock an authority's directory.

    The directory is made where it is missing.
    """
    os.makedirs(os.path.join(folder, SIGNED), mode=0o700, exist_ok=True)
    os.chmod(folder, 0o700)
    with lock_file(os.path.join(folder, ".lock")):
        yield


def read_journal(folder: str) -> Journal:
    """Return {serial, authorities, taken_back} of an authority's directory.

    Raises AuthorityError for a damaged one.
    """
    path = os.path.join(folder, JOURNAL)
    empty = {"version": 1, "serial": 0, "authorities": [], "taken_back": {}}
    try:
        with open(path, encoding="utf-8") as handle:
            journal = json.load(handle)
    except FileNotFoundError:
        return empty
    except (OSError, ValueError) as problem:
        raise AuthorityError(
            f"{path} cannot be read ({problem}); restore it, or move it away to start a new one"
        ) from problem
    kinds = {"serial": int, "authorities": list, "taken_back": dict}
    if not isinstance(journal, dict) or not all(
        isinstance(journal.get(key), kind) for key, kind in kinds.items()
    ):
        raise AuthorityError(
            f"{path} is not a journal of an authority; restore it, or move it away to start a"
            " new one"
        )
    return dict(empty, **journal)


def write_journal(folder: str, journal: Journal) -> None:
    """Write the journal of an authority's directory."""
    replace_file(os.path.join(folder, JOURNAL), json.dumps(journal, indent=2) + "\n")


def read_public_key(path: str) -> str:
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


def make_key(folder: str, site: str, run_command: RunCommand) -> None:
    """Make a new key pair of the authority in the place of the present one."""
    new = os.path.join(folder, f"{KEY}.new")
    for path in (new, new + ".pub"):
        if os.path.lexists(path):
            os.unlink(path)
    code, _out, err = run_command(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "trainyard-ca " + site, "-f", new]
    )
    if code != 0:
        raise AuthorityError(
            f"ssh-keygen could not make the authority's key: {err.strip() or code}"
        )
    # The private half counts. The public half is made from it again where the two differ.
    os.replace(new, os.path.join(folder, KEY))
    os.replace(new + ".pub", os.path.join(folder, KEY + ".pub"))


def own_key(folder: str, run_command: RunCommand) -> str:
    """Return the public key of the pair in the directory, '' without a pair.

    A public half that is not the private one's is fixed. Raises AuthorityError.
    """
    private = os.path.join(folder, KEY)
    if not os.path.exists(private):
        return ""
    code, out, _err = run_command(["ssh-keygen", "-y", "-P", "", "-f", private])
    if code != 0:
        # A passphrase: only an agent can sign with the key, and it does so by the public half.
        return read_public_key(private + ".pub")
    recorded = None
    with contextlib.suppress(AuthorityError):
        recorded = read_public_key(private + ".pub")
    if public_key(out) != recorded:
        replace_file(private + ".pub", out.strip() + "\n")
    return public_key(out)


def provide_key(
    folder: str,
    site: str,
    external: str,
    by: str,
    now: float,
    run_command: RunCommand,
    rotate: bool = False,
) -> tuple[dict[str, Any], Journal, bool]:
    """Provide the authority's key and return (authority, journal, changed).

    The journal knows the key then. external: path of a public key whose private half is in an agent
    or on a token, '' for a pair in the directory. by: user@controller. now: unix seconds. rotate:
    make a new key. An authority is {fingerprint, public_key, by, since}. The journal has all there
    were, the present one last. Raises AuthorityError.
    """
    private = os.path.join(folder, KEY)
    since, is_new = int(now), False
    if external:
        if rotate:
            raise AuthorityError(
                "the authority's key is not in this directory; make a new one where it is kept and"
                " name it in ssh_trust_ca_public_key"
            )
        key = read_public_key(external)
    else:
        is_new = rotate or not os.path.exists(private)
        if is_new:
            make_key(folder, site, run_command)
        key = own_key(folder, run_command)
    journal = read_journal(folder)
    if journal["authorities"] and journal["authorities"][-1].get("public_key") == key:
        return journal["authorities"][-1], journal, is_new
    if not (is_new or external):
        # A key from before there was a journal is as old as its file.
        since = int(os.stat(private).st_mtime)
    entry = {"fingerprint": fingerprint(key), "public_key": key, "by": by, "since": since}
    journal["authorities"].append(entry)
    write_journal(folder, journal)
    return entry, journal, True


def next_serial(journal: Journal, now: float) -> int:
    """Return the next serial number and note it in the journal.

    It only grows. Two copies of one directory do not give the same number either, because of the
    time. now: unix seconds.
    """
    journal["serial"] = max(int(journal["serial"]) + 1, int(now * 1000))
    return journal["serial"]


def signed_files(folder: str, node: str) -> list[str]:
    """Return the names in `signed/` that belong to a node."""
    folder = os.path.join(folder, SIGNED)
    if not os.path.isdir(folder):
        return []
    pattern = re.compile(re.escape(node) + r"-[0-9a-f]{16}(-cert)?\.pub\Z")
    return sorted(name for name in os.listdir(folder) if pattern.match(name))


def remove_signed(folder: str, node: str, keep: Sequence[str] = ()) -> bool:
    """Remove what was signed for a node, but for the names in keep.

    Returns True if there was anything.
    """
    names = [name for name in signed_files(folder, node) if name not in keep]
    for name in names:
        os.unlink(os.path.join(folder, SIGNED, name))
    return bool(names)


def take_back(folder: str, node: str, by: str, now: float) -> bool:
    """Note that a node is no longer trusted and remove what was signed for it.

    Returns True if anything changed. by: user@controller. now: unix seconds.
    """
    journal = read_journal(folder)
    new = node not in journal["taken_back"]
    if new:
        journal["taken_back"][node] = {"since": int(now), "by": by}
        write_journal(folder, journal)
    return remove_signed(folder, node) or new


def take_in(folder: str, names: Sequence[str]) -> list[str]:
    """Forget that nodes were taken back and return their names.

    Raises AuthorityError for a node that was not.
    """
    journal = read_journal(folder)
    unknown = [name for name in names if name not in journal["taken_back"]]
    if unknown:
        known = ", ".join(sorted(journal["taken_back"])) or "none"
        raise AuthorityError(f"{', '.join(unknown)} was not taken back; taken back: {known}")
    for name in names:
        del journal["taken_back"][name]
    if names:
        write_journal(folder, journal)
    return list(names)


def describe_foreign(journal: Journal, nodes: Mapping[str, tuple[Sequence[str], Any]]) -> list[str]:
    """Return a sentence for every authority of another controller, with the remedy.

    nodes: {name: (fingerprints, record)}: authorities' fingerprints in the node's lines for this
    site, and the authority that its record names. Both come from the node.
    """
    known = {item["fingerprint"] for item in journal["authorities"]}
    entries: dict[str, dict[str, Any]] = {}
    for name, (fingerprints, record) in nodes.items():
        if not isinstance(record, dict):
            record = {}
        recorded = record.get("fingerprint")
        others = [item for item in fingerprints if item not in known]
        if not others and recorded and recorded not in known:
            others = [recorded]
        for other in others:
            entry = entries.setdefault(str(other), {"names": [], "by": "", "since": None})
            entry["names"].append(name)
            if other == recorded:
                entry.update(by=str(record.get("by") or ""), since=record.get("since"))
    return [_describe_foreign(key, entry) for key, entry in sorted(entries.items())]


def _describe_foreign(key: str, entry: Mapping[str, Any]) -> str:
    """Return the sentence about one authority of another controller."""
    owner = entry["by"] or "a controller that is not recorded"
    since = ""
    if _is_time(entry["since"]):
        since = time.strftime(", since %Y-%m-%d %H:%M UTC", time.gmtime(entry["since"]))
    text = (
        f"{named(entry['names'])}: {owner} made the mesh of this site with another authority"
        f" ({key}{since})"
    )
    return printable(text, limit=600)


def _is_time(value: Any) -> bool:
    """Return True if a node's value can be a time."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**33


def remove_authority(folder: str) -> bool:
    """Remove an authority with all it signed.

    Returns True if there was one. Raises AuthorityError for a directory that holds other files.
    """
    if not os.path.isdir(folder):
        return False
    names = os.listdir(folder)
    # A write that was cut off leaves a .part; an earlier release's a name with ~.
    passing = re.compile(re.escape(KEY) + r"\.new(\.pub)?|.+~|.+\.part")
    strange = [name for name in names if name not in OWN_FILES and not passing.fullmatch(name)]
    if strange or os.path.islink(folder):
        listed = ", ".join(sorted(strange)[:3]) or "a link"
        raise AuthorityError(
            f"{folder} holds what no authority has ({listed}); check trainyard_state_dir, nothing"
            " was removed"
        )
    shutil.rmtree(folder)
    return True
