# SPDX-License-Identifier: Apache-2.0
"""The module mesh_lines: the site's own lines in authorized_keys change, and no other byte does."""

from __future__ import annotations

import fcntl
import os
import pwd
import threading
import time

import mesh_lines as module
import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import authorized_keys as core
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives, store
from unit.mesh.test_primitives import host_key

FOREIGN = (
    b'# a comment\r\nssh-rsa AAAA odd  spacing \xff user\n\ncert-authority,principals="x"'
    b" ssh-ed25519 AAAA trainyard-ca lab2\nno newline"
)


def line(node, number=1, gate=True, site="lab"):
    """One line of the site, of one of its authorities."""
    name = primitives.principal(site, node) if node else "trainer"
    command = f',command="/usr/bin/python3 -I ~/gate.py {node}"' if gate else ""
    return (
        f'cert-authority,restrict,principals="{name}",from="198.51.100.11"{command}'
        f" {host_key(number)} trainyard-ca {site}"
    )


def run_line(peer):
    return (
        f'restrict,from="198.51.100.11",command="gate {peer}" {host_key(9)} trainyard-run lab'
        f" 20261120-103501-x-1f2e 1 {peer} node1"
    )


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """A home with an authorized_keys; nothing runs on the machine unless a test says so."""
    account = pwd.getpwuid(0)
    monkeypatch.setattr(
        module.pwd,
        "getpwuid",
        lambda uid: pwd.struct_passwd((*account[:5], str(tmp_path), account[6])),
    )
    monkeypatch.setattr(store.attempt_dir, "active_units", lambda run: [])
    (tmp_path / ".ssh").mkdir()
    path = tmp_path / ".ssh" / "authorized_keys"
    path.write_bytes(FOREIGN)
    path.chmod(0o640)
    return path


def text_of(*lines):
    return "".join(item + "\n" for item in lines).encode() + FOREIGN


def test_lines_come_and_go_and_other_bytes_stay(keys, run_module):
    wanted = [line("node2"), line("node3")]
    assert run_module(module, {"site": "lab", "lines": wanted}, check=True)["changed"] is True
    assert keys.read_bytes() == FOREIGN
    assert run_module(module, {"site": "lab", "lines": wanted})["changed"] is True
    assert keys.read_bytes() == text_of(*wanted) and keys.stat().st_mode & 0o777 == 0o640
    assert run_module(module, {"site": "lab", "lines": wanted})["changed"] is False
    assert run_module(module, {"site": "lab", "lines": [], "old": "drop"})["changed"] is True
    assert keys.read_bytes() == FOREIGN and os.listdir(keys.parent) == ["authorized_keys"]


def test_the_keys_of_attempts_go_with_the_site_and_not_before(keys, run_module):
    other = run_line("node2").replace("trainyard-run lab ", "trainyard-run other ")
    keys.write_bytes(text_of(run_line("node2"), line("node2"), other))
    assert (
        run_module(module, {"site": "lab", "lines": [line("node3")], "old": "idle"})["changed"]
        is True
    )
    assert (
        run_line("node2").encode() in keys.read_bytes()
        and line("node2").encode() not in keys.read_bytes()
    )
    assert run_module(module, {"site": "lab", "lines": [], "old": "drop"})["changed"] is True
    assert keys.read_bytes() == text_of(other)


def test_a_file_that_is_not_there(keys, run_module):
    keys.unlink()
    assert run_module(module, {"site": "lab", "lines": [], "old": "drop"})["changed"] is False
    assert run_module(module, {"site": "lab", "gone": ["node2"]})["changed"] is False
    assert not keys.exists()
    run_module(module, {"site": "lab", "lines": [line("node2")]})
    assert keys.read_text() == line("node2") + "\n" and keys.stat().st_mode & 0o777 == 0o600


def test_a_link_stays_a_link(keys, run_module):
    keys.rename(keys.with_name("real"))
    keys.symlink_to("real")
    run_module(module, {"site": "lab", "lines": [line("node2")]})
    assert keys.is_symlink() and keys.with_name("real").read_bytes() == text_of(line("node2"))


@pytest.mark.parametrize(
    ("units", "old", "left"),
    [
        ([{"unit": "u"}], "idle", 1),
        ([], "idle", 0),
        (None, "idle", 1),
        ([], "keep", 1),
        ([{"unit": "u"}], "drop", 0),
    ],
)
def test_an_earlier_line_goes_when_nothing_runs(keys, run_module, monkeypatch, units, old, left):
    def active(run):
        if units is None:
            raise store.attempt_dir.AttemptError("attempt.no_user_systemd", "no answer")
        return units

    monkeypatch.setattr(store.attempt_dir, "active_units", active)
    former, wanted = line("node2", 1), line("node2", 2)
    keys.write_bytes(text_of(former))
    found = run_module(module, {"site": "lab", "lines": [wanted], "old": old})
    assert found["old"] == left
    assert keys.read_bytes() == text_of(*([former] * left), wanted)


def test_an_attempt_that_began_with_the_shell_keeps_it_first(keys, run_module):
    shell = line("", 1, gate=False)
    keys.write_bytes(text_of(shell))
    run_module(module, {"site": "lab", "lines": [line("node2", 1)]})
    assert keys.read_bytes() == text_of(shell, line("node2", 1))


def test_a_node_that_is_taken_back_is_let_in_by_no_line(keys, run_module, monkeypatch):
    monkeypatch.setattr(
        store.attempt_dir, "active_units", lambda run: [{"unit": "u"}]
    )  # whatever runs
    stay = [line("node2", 1), line("node2", 2), line("node33", 1)]
    go = [line("node3", 1), line("node3", 2), line("", 1, gate=False)]
    others = [line("node3", 1, site="lab2"), run_line("node2")]
    keys.write_bytes(text_of(*go, *stay, *others, run_line("node3")))
    assert run_module(module, {"site": "lab", "gone": ["node3"]})["changed"] is True
    assert keys.read_bytes() == text_of(*stay, *others)
    assert run_module(module, {"site": "lab", "gone": ["node3"]})["changed"] is False


def test_what_a_site_has_in_the_file(keys):
    text = text_of(line("node2", 1), line("node2", 2), line("", 2, gate=False)).decode(
        "utf-8", "surrogateescape"
    )
    found = core.describe(text, "lab")
    assert (found["count"], found["open"]) == (3, True)
    assert found["authorities"] == sorted(primitives.fingerprint(host_key(n)) for n in (1, 2))
    assert core.describe(text, "other") == {"count": 0, "authorities": [], "open": False}
    # what stands in the command is not an option, and what stands in the comment is not a key
    assert not core.lets_in(
        f'cert-authority,command="principals=lab/node2" {host_key(1)} trainyard-ca lab', "lab/node2"
    )
    assert core.is_open(f'cert-authority,principals="x" {host_key(1)} command="x" trainyard-ca lab')


def test_two_writers_do_not_lose_each_others_lines(keys):
    """A writer that waits for the lock sees the file that the other one has put in its place."""
    done = []
    with open(keys, "rb") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        writer = threading.Thread(
            target=lambda: done.append(core.rewrite(str(keys), lambda text: "mine\n" + text, 0o600))
        )
        writer.start()
        time.sleep(0.3)
        assert not done
        part = keys.with_name("part")
        part.write_bytes(b"theirs\n" + FOREIGN)
        os.replace(part, keys)
    writer.join(10)
    assert keys.read_bytes() == b"mine\ntheirs\n" + FOREIGN
