# SPDX-License-Identifier: Apache-2.0
"""What root gives a training account on a node, and its undo: limits, lingering, a record of both.

Runs as root. Its input is the account's name and the site's limits, from the controller's
inventory. The uid comes from the system's own database; nothing that the account can write is read
or followed. Python >= 3.8, standard library only.
"""

from __future__ import annotations

import os
import pwd

from ..environments import root_records, user_manager

# In the C locale `sudo -l -U` says this of an account that may use it.
MAY_SUDO = "may run the following commands"


class AccountError(Exception):
    """An account that cannot be given its part, in words with the remedy."""


def look_up(name, lowest_uid, database=pwd.getpwnam):
    """Return the uid of an account that may train, by the system's own database."""
    if not user_manager.ACCOUNT.match(name):
        raise AccountError(f"{name!r} is not the name of an account")
    try:
        entry = database(name)
    except KeyError:
        text = "there is no account %s on this node; create it, or correct ansible_user"
        raise AccountError(text % name) from None
    if entry.pw_name != name or not lowest_uid <= entry.pw_uid <= user_manager.HIGHEST_UID:
        text = "%s has the uid %d; a training account has %d to %d (runtime_lowest_uid)"
        known = (name, entry.pw_uid, lowest_uid, user_manager.HIGHEST_UID)
        raise AccountError(text % known)
    return entry.pw_uid


class Account:
    """One account of this node; system and records differ in tests alone."""

    def __init__(self, name, uid, records, check=False, system="/", ask=user_manager.call):
        self.name, self.uid, self.records, self.check = name, uid, records, check
        self.system, self.ask, self.changes = system, ask, []

    def present(self, asked):
        """Give it the limits that the node allows, and a systemd that lives without a login."""
        limits = user_manager.node_limits(asked, lambda path: user_manager.read(self._at(path)))
        known = self.records.read("accounts") or {}
        lingers = os.path.lexists(self._at(os.path.join(user_manager.LINGER, self.name)))
        ours = known.get(self.name, {}).get("lingering", False) or not lingers
        wanted = dict(known, **{self.name: {"uid": self.uid, "lingering": ours}})
        if wanted != known:
            # first, so that the undo finds what an interrupted run has left
            self._do("record", self.records.write, "accounts", wanted)
        written = [self._write(*each) for each in user_manager.dropins(self.uid, limits).items()]
        if any(written):
            self._call("systemctl", "daemon-reload")
        if not lingers:
            self._do("lingering", self._call, "loginctl", "enable-linger", self.name)
        return limits

    def absent(self, lingering_was_off=False):
        """Take back what was given to this account and to every other one of the record.

        lingering_was_off: a note of an earlier version in the account's home says so.
        It switches off no lingering but that of the account, which its owner could do as well.
        """
        known = self.records.read("accounts") or {}
        mine = known.get(self.name, {"uid": self.uid, "lingering": False})
        mine = dict(mine, lingering=mine["lingering"] or lingering_was_off)
        removed = False
        for name, entry in dict(known, **{self.name: mine}).items():
            if entry["uid"] is not None:
                for path in user_manager.dropin_paths(entry["uid"]):
                    removed = self._remove(path) or removed
            lingers = os.path.lexists(self._at(os.path.join(user_manager.LINGER, name)))
            if entry["lingering"] and lingers:
                self._do("lingering", self._call, "loginctl", "disable-linger", name)
        if removed:
            self._call("systemctl", "daemon-reload")
        if known:
            self._do("record", self.records.remove, "accounts")

    def may_sudo(self):
        """Whether the account may use sudo; None where that cannot be told."""
        code, text = self.ask(["env", "LC_ALL=C", "sudo", "-n", "-l", "-U", self.name])
        if MAY_SUDO in text:
            return True
        return False if code == 0 or "not allowed to run sudo" in text else None

    def _at(self, path):
        return os.path.join(self.system, path.lstrip("/"))

    def _do(self, what, action, *arguments):
        self.changes.append(what)
        if not self.check:
            action(*arguments)

    def _call(self, *argv):
        if self.check:
            return
        code, text = self.ask(list(argv))
        if code:
            raise AccountError("{}: {}".format(" ".join(argv), text or "exit code %d" % code))

    def _write(self, path, content):
        """Write a drop-in where it differs; return whether it did."""
        path = self._at(path)
        if not os.path.islink(path) and user_manager.read(path) == content:
            return False

        def write():
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            folder = os.open(os.path.dirname(path), flags)
            try:
                os.fchmod(folder, 0o755)
                root_records.write_below(folder, os.path.basename(path), content)
            finally:
                os.close(folder)

        self._do(path, write)
        return True

    def _remove(self, path):
        """Remove a drop-in, and its directory where nothing else is in it; return whether it was
        there.
        """
        path = self._at(path)
        if not os.path.lexists(path):
            return False

        def remove():
            os.unlink(path)
            try:
                os.rmdir(os.path.dirname(path))
            except OSError:
                pass  # others have drop-ins there, too

        self._do(path, remove)
        return True
