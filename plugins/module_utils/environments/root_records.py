# SPDX-License-Identifier: Apache-2.0
"""Records of what root changed on a node, kept where only root can write.

A record lies in /var/lib/trainyard/<site>/<name>.json. Every account may read it: it holds no
secret, and a look without root shows that there is something to undo. It counts only where every
directory on the way and the file itself belong to root and no other account may write to them. Runs
on nodes: Python >= 3.8, standard library only.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import stat

from . import user_manager

BASE = "/var/lib/trainyard"
NAMES = ("accounts", "firewall")
SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
TOOLS = ("firewalld", "ufw", "iptables")
ZONE = re.compile(r"[A-Za-z0-9_-]{0,32}\Z")
MOST_BYTES = 1 << 20
MOST_PEERS = 4096
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class RecordError(Exception):
    """A record cannot be relied on. The message has the remedy."""


def firewall_problem(record):
    """Return why this is not a record of an opened firewall, or None."""
    if not isinstance(record, dict) or set(record) != {"tool", "peers", "zone"}:
        return "want the keys tool, peers, zone"
    if record["tool"] not in TOOLS:
        return f"tool: want one of {', '.join(TOOLS)}"
    if not isinstance(record["zone"], str) or not ZONE.match(record["zone"]):
        return "zone: want letters, digits, dashes, underscores"
    peers = record["peers"]
    if not isinstance(peers, list) or len(peers) > MOST_PEERS:
        return f"peers: want a list of {MOST_PEERS} addresses at most"
    for peer in peers:
        if not isinstance(peer, str) or not is_peer(peer):
            return "peers: want IPv4 addresses and networks"
    return None


def is_peer(text):
    """Return True for an IPv4 address or network, but not the whole internet.

    It is written in digits.
    """
    if not re.match(r"[0-9]{1,3}(\.[0-9]{1,3}){3}(/[0-9]{1,2})?\Z", text):
        return False
    try:
        return ipaddress.IPv4Network(text, strict=False).prefixlen > 0
    except ValueError:
        return False


def accounts_problem(record):
    """Return why this is not a record {account: {uid, lingering}}, or None."""
    if not isinstance(record, dict):
        return "want a mapping of accounts"
    for name, entry in record.items():
        if not user_manager.ACCOUNT.match(name):
            return "an account's name is not valid"
        if not isinstance(entry, dict) or set(entry) != {"uid", "lingering"}:
            return "want the keys uid, lingering"
        uid = entry["uid"]
        if isinstance(uid, bool) or not isinstance(uid, int):
            return "uid: want a whole number"
        if not 0 <= uid <= user_manager.HIGHEST_UID or not isinstance(entry["lingering"], bool):
            return "uid or lingering is out of its range"
    return None


PROBLEMS = {"accounts": accounts_problem, "firewall": firewall_problem}


class Records:
    """Records of one site on this node.

    base and owner differ in tests alone.
    """

    def __init__(self, site, base=BASE, owner=0):
        if not SITE.match(site):
            raise RecordError(f"the site's name is not valid: {site!r}")
        self.folder = os.path.join(base, site)
        self.base, self.site, self.owner = base, site, owner

    def path(self, name):
        """Return a record's path."""
        return os.path.join(self.folder, name + ".json")

    def read(self, name):
        """Return a record, None without one.

        Raises RecordError where it cannot be relied on.
        """
        try:
            folder = self._open()
        except FileNotFoundError:
            return None
        try:
            descriptor = os.open(name + ".json", _FILE, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RecordError(self._refusal(self.path(name), error.strerror)) from error
        finally:
            os.close(folder)
        with os.fdopen(descriptor, "rb") as handle:
            self._check(os.fstat(descriptor), self.path(name), stat.S_ISREG)
            text = handle.read(MOST_BYTES + 1)
        return self._parse(name, text)

    def write(self, name, record):
        """Write a record, whole or not at all. Raises RecordError."""
        problem = PROBLEMS[name](record)
        if problem:
            raise RecordError(f"{self.path(name)}: {problem}")
        for folder in (self.base, self.folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o755)
        folder = self._open()
        try:
            write_below(folder, name + ".json", json.dumps(record, sort_keys=True) + "\n")
        finally:
            os.close(folder)

    def remove(self, name):
        """Remove a record, and the directories that are empty then."""
        try:
            folder = self._open()
        except FileNotFoundError:
            return
        try:
            os.unlink(name + ".json", dir_fd=folder)
        except FileNotFoundError:
            pass
        finally:
            os.close(folder)
        for path in (self.folder, self.base):
            try:
                os.rmdir(path)
            except OSError:
                return

    def _open(self):
        """Return a descriptor of the site's directory, which root alone may write to."""
        try:
            base = os.open(self.base, _DIRECTORY)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RecordError(self._refusal(self.base, error.strerror)) from error
        try:
            self._check(os.fstat(base), self.base, stat.S_ISDIR)
            folder = os.open(self.site, _DIRECTORY, dir_fd=base)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise RecordError(self._refusal(self.folder, error.strerror)) from error
        finally:
            os.close(base)
        try:
            self._check(os.fstat(folder), self.folder, stat.S_ISDIR)
        except RecordError:
            os.close(folder)
            raise
        return folder

    def _check(self, state, path, is_kind):
        """Raise RecordError for a file of another kind or that others may write to.

        state: as os.fstat returns it. is_kind: stat.S_ISDIR or stat.S_ISREG.
        """
        if not is_kind(state.st_mode):
            raise RecordError(self._refusal(path, "not the kind of file that it should be"))
        if state.st_uid != self.owner or state.st_mode & 0o022:
            raise RecordError(self._refusal(path, "others than root may write to it"))

    @staticmethod
    def _refusal(path, why):
        """Return the message about a file that is not obeyed."""
        return f"{path} is not obeyed ({why}). Look at it as root, and remove it"

    def _parse(self, name, text):
        """Return the record that a file's bytes hold. Raises RecordError."""
        record = None
        if len(text) <= MOST_BYTES:
            with contextlib.suppress(ValueError, RecursionError):
                record = json.loads(text.decode())
        problem = PROBLEMS[name](record)
        if problem:
            raise RecordError(self._refusal(self.path(name), problem))
        return record


def write_below(folder, name, text, mode=0o644):
    """Write a file whole or not at all.

    folder: the descriptor of its directory. mode: its permissions.
    """
    temporary = f".{name}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
            os.fchmod(descriptor, mode)
            handle.write(text)
            handle.flush()
            os.fsync(descriptor)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise
