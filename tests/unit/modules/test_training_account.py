# SPDX-License-Identifier: Apache-2.0
"""training_account: what root gives an account follows from its uid alone, and the undo obeys
root's record alone.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
import training_account as module
from ansible.module_utils.testing import patch_module_args
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    root_records,
    training_account,
)

PID1 = (
    "Limit  Soft  Hard  Units\nMax open files  1024  1048576  files\nMax locked memory  65536 "
    " unlimited  bytes\n"
)
ASKED = {"memlock": "infinity", "nofile": "1048576"}
DROPINS = (
    "etc/systemd/system/user@1000.service.d/50-trainyard.conf",
    "etc/systemd/system/user-1000.slice.d/50-trainyard.conf",
)


class Node:
    """A node's files in a folder, and a list of the programs that root would have run there."""

    def __init__(self, folder):
        self.folder, self.ran = folder, []
        for path, text in (
            ("proc/1/limits", PID1),
            ("proc/1/status", "CapEff:\tff\n"),
            ("proc/sys/fs/nr_open", "1048576\n"),
        ):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        for path in ("var/lib/systemd/linger", "etc/systemd/system"):
            (folder / path).mkdir(parents=True)

    def account(self, name="trainer", uid=1000, check=False):
        records = root_records.Records(
            "mysite", str(self.folder / "var/lib/trainyard"), os.getuid()
        )
        return training_account.Account(name, uid, records, check, str(self.folder), self.ask)

    def ask(self, argv):
        self.ran.append(" ".join(argv))
        linger = self.folder / "var/lib/systemd/linger" / argv[-1]
        if "enable-linger" in argv:
            linger.touch()
        if "disable-linger" in argv:
            linger.unlink()
        return 0, ""

    def files(self):
        """Return {path: text} of all that is there and was not there at first, empty directories
        with a slash.
        """
        found = {}
        for where, folders, names in os.walk(self.folder):
            here = os.path.relpath(where, self.folder)
            found.update(
                {os.path.join(here, name): open(os.path.join(where, name)).read() for name in names}
            )
            if not folders and not names:
                found[here + "/"] = None
        return {path: text for path, text in found.items() if not path.startswith("proc/")}


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def test_an_account_gets_its_two_dropins_and_lingering_and_no_more(node):
    account = node.account()
    account.present(ASKED)
    files = node.files()
    assert set(files) == {
        *DROPINS,
        "var/lib/systemd/linger/trainer",
        "var/lib/trainyard/mysite/accounts.json",
    }
    assert "LimitMEMLOCK=infinity\nLimitNOFILE=1048576\n" in files[DROPINS[0]]
    assert json.loads(files["var/lib/trainyard/mysite/accounts.json"]) == {
        "trainer": {"uid": 1000, "lingering": True}
    }
    assert node.ran == ["systemctl daemon-reload", "loginctl enable-linger trainer"]
    again = node.account()
    again.present(ASKED)
    assert again.changes == [] and len(node.ran) == 2  # a second time nothing changes


def test_an_undo_leaves_the_machine_as_before(node):
    before = node.files()
    node.account().present(ASKED)
    node.account().absent()
    assert node.files() == before
    last = node.account()
    last.absent()
    assert last.changes == []


def test_lingering_that_was_on_before_stays(node):
    linger = node.folder / "var/lib/systemd/linger/trainer"
    linger.touch()
    node.account().present(ASKED)
    node.account().absent()
    assert linger.exists()
    node.account().absent(lingering_was_off=True)  # the note of an earlier version
    assert not linger.exists()


def test_the_account_before_is_undone_too(node):
    node.account().present(ASKED)
    node.account("other", 1001).present(ASKED)
    node.account("other", 1001).absent()
    assert set(node.files()) <= {"var/lib/systemd/linger/", "etc/systemd/system/", "var/lib/"}


def test_dropins_of_others_beside_ours_stay(node):
    node.account().present(ASKED)
    (node.folder / DROPINS[0]).with_name("90-site.conf").write_text("[Service]\n")
    node.account().absent()
    assert [path for path in node.files() if "90-site" in path] == [
        "etc/systemd/system/user@1000.service.d/90-site.conf"
    ]


def test_a_dropin_that_became_a_link_is_replaced_and_not_written_through(node):
    node.account().present(ASKED)
    victim = node.folder / "victim"
    victim.write_text("root:x:0:0\n")
    (node.folder / DROPINS[0]).unlink()
    (node.folder / DROPINS[0]).symlink_to(victim)
    node.account().present(dict(ASKED, nofile="1024"))
    assert victim.read_text() == "root:x:0:0\n" and not (node.folder / DROPINS[0]).is_symlink()
    same = node.folder / "same"
    (node.folder / DROPINS[0]).rename(same)
    (node.folder / DROPINS[0]).symlink_to(same)
    node.account().present(dict(ASKED, nofile="1024"))
    # what is behind the link may change later
    assert not (node.folder / DROPINS[0]).is_symlink()


def test_a_directory_that_became_a_link_is_refused(node):
    elsewhere = node.folder / "elsewhere"
    elsewhere.mkdir()
    folder = (node.folder / DROPINS[0]).parent
    folder.symlink_to(elsewhere)
    with pytest.raises(OSError):
        node.account().present(ASKED)
    assert list(elsewhere.iterdir()) == []


def test_a_look_changes_nothing(node):
    before = node.files()
    account = node.account(check=True)
    account.present(ASKED)
    assert (
        set(account.changes) >= {"record", "lingering"}
        and node.files() == before
        and node.ran == []
    )
    node.account().present(ASKED)
    before = node.files()
    account = node.account(check=True)
    account.absent()
    assert set(account.changes) >= {"record", "lingering"} and node.files() == before


def entry(name, uid):
    return lambda _asked: SimpleNamespace(pw_name=name, pw_uid=uid)


@pytest.mark.parametrize(
    "name", ["", "-x", "../x", "a/b", "a\n", "a b", "1x", ".", "a" * 65, "a;b", "é"]
)
def test_a_name_that_is_none_is_not_looked_up(name):
    with pytest.raises(training_account.AccountError):
        training_account.look_up(name, 1000, entry(name, 1000))


@pytest.mark.parametrize(
    "uid, lowest, good",
    [
        (1000, 1000, True),
        (999, 1000, False),
        (0, 1000, False),
        (0, 0, True),
        (2**32 - 2, 1000, True),
        (2**32 - 1, 1000, False),
    ],
)
def test_a_uid_must_be_one_that_may_train(uid, lowest, good):
    try:
        assert training_account.look_up("trainer", lowest, entry("trainer", uid)) == uid and good
    except training_account.AccountError:
        assert not good


def test_a_database_that_answers_for_another_account_is_refused():
    with pytest.raises(training_account.AccountError):
        training_account.look_up("trainer", 1000, entry("alice", 1001))


@pytest.mark.parametrize(
    "code, text, told",
    [
        (0, "User trainer may run the following commands on node1:\n    (ALL : ALL) ALL", True),
        (0, "User trainer is not allowed to run sudo on node1.", False),
        (1, "User trainer is not allowed to run sudo on node1.", False),
        (127, "sudo is not installed", None),
    ],
)
def test_whether_the_account_may_use_sudo_is_told(node, code, text, told):
    account = node.account()
    account.ask = lambda argv: (code, text)
    assert account.may_sudo() is told


@pytest.mark.parametrize(
    "given",
    [
        {"memlock": "infinity\nExecStart=/x"},
        {"nofile": "1k"},
        {"name": "../../x"},
        {"site": "../x"},
        {"name": "no-such-account"},
    ],
)
def test_the_module_refuses_what_root_must_not_be_given(given, capsys, monkeypatch):
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        training_account.Account, "present", lambda *_given: pytest.fail("it was done")
    )
    with patch_module_args(
        {"name": "nobody", "site": "mysite", "lowest_uid": 0, **given}
    ), pytest.raises(SystemExit) as end:
        module.main()
    assert end.value.code == 1 and json.loads(capsys.readouterr().out)["failed"] is True


def test_without_root_nothing_is_done(capsys, monkeypatch):
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(
        training_account.Account, "present", lambda *_given: pytest.fail("it was done")
    )
    with patch_module_args({"name": "nobody", "site": "mysite", "lowest_uid": 0}), pytest.raises(
        SystemExit
    ) as end:
        module.main()
    assert end.value.code == 1
