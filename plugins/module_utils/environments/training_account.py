# SPDX-License-Identifier: Apache-2.0
"""Root's part of a training account: limits, lingering, a record of both.

Runs as root. Its input is the account's name and the site's limits, from the controller's
inventory. The uid comes from the system's own database. Nothing that the account can write is read
or followed. Python >= 3.8, standard library only.
"""

from __future__ import annotations

import contextlib
import os
import pwd

from . import root_records, user_manager

# In the C locale `sudo -l -U` says this of an account that may use it.
MAY_SUDO = "may run the following commands"


class AccountError(Exception):
    """An account that cannot be set up, in words with the remedy."""


def look_up(name, lowest_uid, database=pwd.getpwnam):
    """Return the uid of an account that may train, by the system's own database.

    Raise AccountError.
    """
    if not user_manager.ACCOUNT.match(name):
        raise AccountError(f"{name!r} is not the name of an account")
    try:
        entry = database(name)
    except KeyError:
        text = f"there is no account {name} on this node; create it, or correct ansible_user"
        raise AccountError(text) from None
    if entry.pw_name != name or not lowest_uid <= entry.pw_uid <= user_manager.HIGHEST_UID:
        raise AccountError(
            f"{name} has the uid {entry.pw_uid}; a training account has {lowest_uid} to"
            f" {user_manager.HIGHEST_UID} (runtime_lowest_uid)"
        )
    return entry.pw_uid


class Account:
    """One account of this node. System and records differ in tests alone."""

    def __init__(self, name, uid, records, check=False, system="/", ask=user_manager.run_program):
        self.name = name
        self.uid = uid
        self.records = records
        self.check = check
        self.system = system
        self.ask = ask
        self.changes = []

    def present(self, asked):
        """Set the limits that the node allows, and lingering: a systemd without a login.

        Return the limits. asked: the limits that the site asks for.
        """
        limits = user_manager.node_limits(
            asked, lambda path: user_manager.read_text(self._at(path))
        )
        accounts = self.records.read("accounts") or {}
        lingers = self._lingers(self.name)
        ours = accounts.get(self.name, {}).get("lingering", False) or not lingers
        new_accounts = dict(accounts, **{self.name: {"uid": self.uid, "lingering": ours}})
        if new_accounts != accounts:
            # first, so that the undo finds what an interrupted run has left
            self._change("record", self.records.write, "accounts", new_accounts)
        dropins = user_manager.dropins(self.uid, limits)
        written = [self._write(path, content) for path, content in dropins.items()]
        if any(written):
            self._call("systemctl", "daemon-reload")
        if not lingers:
            self._change("lingering", self._call, "loginctl", "enable-linger", self.name)
        return limits

    def absent(self, lingering_was_off=False):
        """Undo the changes for this account and for every other one of the record.

        lingering_was_off: a note of an earlier version in the account's home says so.
        It switches off no lingering but that of the account, which its owner could do as well.
        """
        accounts = self.records.read("accounts") or {}
        own_entry = accounts.get(self.name, {"uid": self.uid, "lingering": False})
        own_entry = dict(own_entry, lingering=own_entry["lingering"] or lingering_was_off)
        removed = False
        for name, entry in dict(accounts, **{self.name: own_entry}).items():
            if entry["uid"] is not None:
                for path in user_manager.dropin_paths(entry["uid"]):
                    removed = self._remove(path) or removed
            if entry["lingering"] and self._lingers(name):
                self._change("lingering", self._call, "loginctl", "disable-linger", name)
        if removed:
            self._call("systemctl", "daemon-reload")
        if accounts:
            self._change("record", self.records.remove, "accounts")

    def _lingers(self, name):
        return os.path.lexists(self._at(os.path.join(user_manager.LINGER, name)))

    def may_sudo(self):
        """Return whether the account may use sudo, None where that cannot be known."""
        code, text = self.ask(["env", "LC_ALL=C", "sudo", "-n", "-l", "-U", self.name])
        if MAY_SUDO in text:
            return True
        if code == 0 or "not allowed to run sudo" in text:
            return False
        return None

    def _at(self, path):
        return os.path.join(self.system, path.lstrip("/"))

    def _change(self, label, action, *arguments):
        """Note a change, and make it unless this is a check."""
        self.changes.append(label)
        if not self.check:
            action(*arguments)

    def _call(self, *argv):
        if self.check:
            return
        code, text = self.ask(list(argv))
        if code:
            raise AccountError(f"{' '.join(argv)}: {text or f'exit code {code}'}")

    def _write(self, path, content):
        """Write a drop-in where it differs and return whether it did."""
        path = self._at(path)
        if not os.path.islink(path) and user_manager.read_text(path) == content:
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

        self._change(path, write)
        return True

    def _remove(self, path):
        """Remove a drop-in, and its directory if empty. Return whether it existed."""
        path = self._at(path)
        if not os.path.lexists(path):
            return False

        def remove():
            os.unlink(path)
            # Others may have drop-ins there, too.
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(path))

        self._change(path, remove)
        return True
