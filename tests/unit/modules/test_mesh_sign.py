# SPDX-License-Identifier: Apache-2.0
"""The module mesh_sign: what a certificate holds, when it is renewed, and whose key signs it.
ssh-keygen and ssh-agent are real.
"""

from __future__ import annotations

import os
import re
import subprocess
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh import authority, signing
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh.certificates import (
    parse_certificate,
)

DAY = 86400


def make_key(path, passphrase=""):
    """Make a key pair; return its public half without the comment."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "x", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return primitives.public_key(path.with_name(path.name + ".pub").read_text())


@pytest.fixture(scope="module")
def node_keys(tmp_path_factory):
    """Public keys of three nodes."""
    place = tmp_path_factory.mktemp("nodes")
    return {name: make_key(place / name) for name in ("node1", "node2", "node3")}


@pytest.fixture
def folder(tmp_path):
    """The directory of an authority."""
    place = tmp_path / "ca"
    with authority.lock(str(place)):
        authority.provide_key(
            str(place), "lab", "", "alice@desk", time.time(), commands.run_program
        )
    return place


def ca_of(folder):
    return primitives.public_key((folder / "id_ed25519.pub").read_text())


@pytest.fixture
def sign(folder, run_action, node_keys):
    """Call the module."""

    def call(names=("node1",), check=False, **more):
        given = {
            "directory": str(folder),
            "site": "lab",
            "ca_public_key": ca_of(folder),
            "keys": {name: node_keys[name] for name in names},
        }
        return run_action("mesh_sign", dict(given, **more), check)

    return call


def test_a_certificate_is_one_nodes_short_and_numbered(sign, folder, node_keys):
    found = sign(["node1", "node2"])
    assert found["signed"] == ["node1", "node2"]
    first, second = (parse_certificate(found["certificates"][name]) for name in ("node1", "node2"))
    assert (first.principals, first.key_id, first.public_key) == (
        ["lab/node1"],
        "lab-node1",
        node_keys["node1"],
    )
    assert second.principals == ["lab/node2"] == [primitives.principal("lab", "node2")]
    assert first.valid_until == pytest.approx(time.time() + DAY, abs=30)
    assert first.valid_after == pytest.approx(time.time() - primitives.CLOCK_SLACK_SECONDS, abs=30)
    told = subprocess.run(
        ["ssh-keygen", "-L", "-f", "-"],
        input=found["certificates"]["node1"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "Critical Options: (none)" in told and "Extensions: (none)" in told
    numbers = [first.serial, second.serial]
    assert (
        numbers[1] > numbers[0] > 0 and authority.read_journal(str(folder))["serial"] == numbers[1]
    )


def test_a_good_certificate_is_kept_and_a_due_one_renewed(sign, folder):
    one = sign()
    again = sign()
    assert again["changed"] is False and again["certificates"] == one["certificates"]
    assert sign(validity="+30h", renew_before="+25h")["signed"] == ["node1"]  # 24 h are left
    longer = sign(validity="+9d")
    assert longer["changed"] is False  # 30 h are left, which is enough
    assert sign(validity="+1h", renew_before="+30m")["signed"] == [
        "node1"
    ]  # the validity was shortened
    assert (
        parse_certificate(
            sign(validity="+1h", renew_before="+30m")["certificates"]["node1"]
        ).valid_until
        < time.time() + 2 * 3600
    )
    assert len(os.listdir(folder / "signed")) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda wanted: dict(wanted, ca="ssh-ed25519 AAAA"),
        lambda wanted: dict(wanted, principals=["lab/node2"]),
        lambda wanted: dict(wanted, key_id="lab-node2"),
        lambda wanted: dict(wanted, public_key="ssh-ed25519 AAAA"),
    ],
)
def test_a_certificate_for_something_else_is_not_good(sign, folder, node_keys, change):
    text = sign()["certificates"]["node1"]
    wanted = {
        "key_id": "lab-node1",
        "principals": ["lab/node1"],
        "public_key": node_keys["node1"],
        "ca": ca_of(folder),
    }
    assert signing.is_usable(text, wanted, time.time(), DAY, 3600)
    assert not signing.is_usable(text, change(wanted), time.time(), DAY, 3600)
    assert not signing.is_usable(
        text, wanted, time.time() - 3600, DAY, 3600
    )  # it is from the future


@pytest.mark.parametrize(
    "key",
    [
        "",
        "ssh-ed25519 AAAA",
        "ssh-rsa AAAAB3NzaC1yc2E=",
        'no-pty ssh-ed25519 x"',
        "ssh-ed25519 !!",
        7,
    ],
)
def test_what_a_node_gives_for_its_key_is_checked(sign, folder, key):
    if key == "":
        assert sign(keys={"node1": key})["certificates"] == {}
        return
    said = sign(keys={"node1": key})["msg"]
    assert "node1: its public key" in said and "not an ed25519 key" in said
    assert os.listdir(folder / "signed") == []


def test_two_nodes_do_not_get_certificates_for_one_key(sign, node_keys):
    said = sign(keys={"node1": node_keys["node1"], "node2": node_keys["node1"]})["msg"]
    assert "node2: " in said and "key of node1" in said


def test_a_node_that_was_taken_back_gets_none(sign, folder):
    sign(["node1", "node2"])
    authority.take_back(str(folder), "node2", "alice@desk", time.time())
    assert not any(name.startswith("node2") for name in os.listdir(folder / "signed"))
    assert "node2 was taken back" in sign(["node2"])["msg"]
    assert sign(["node1"])["changed"] is False


def test_a_check_signs_nothing(sign, folder):
    assert sign(check=True)["certificates"] == {"node1": ""}
    assert os.listdir(folder / "signed") == []


def test_the_users_name_is_a_second_principal_only_where_it_is_asked_for(sign):
    assert parse_certificate(sign(user="trainer")["certificates"]["node1"]).principals == [
        "lab/node1",
        "trainer",
    ]
    assert parse_certificate(sign()["certificates"]["node1"]).principals == ["lab/node1"]
    assert "slash" in sign(user="lab/node2")["msg"]


def test_serial_numbers_grow_in_two_copies_of_one_directory():
    journal = {"serial": 5}
    assert authority.next_serial(journal, 100.0) == 100000
    assert authority.next_serial(journal, 100.0) == 100001
    assert authority.next_serial(journal, 1.0) == 100002  # a clock that was set back


# --- keys that are kept elsewhere


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """A real ssh-agent; it ends with the test."""
    out = subprocess.run(
        ["ssh-agent", "-s", "-a", str(tmp_path / "agent")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pid = int(re.search(r"SSH_AGENT_PID=(\d+)", out).group(1))
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    yield
    os.kill(pid, 15)


def test_a_key_with_a_passphrase_signs_from_an_agent(sign, folder, tmp_path, agent):
    key = make_key(tmp_path / "kept", "passphrase")
    (tmp_path / "ask").write_text("#!/bin/sh\necho passphrase\n")
    (tmp_path / "ask").chmod(0o700)
    environ = dict(
        os.environ, SSH_ASKPASS=str(tmp_path / "ask"), SSH_ASKPASS_REQUIRE="force", DISPLAY=":0"
    )
    subprocess.run(
        ["ssh-add", "-q", str(tmp_path / "kept")], check=True, env=environ, stdin=subprocess.DEVNULL
    )
    given = {"ca_public_key": key, "agent_key": str(tmp_path / "kept.pub")}
    assert parse_certificate(sign(**given)["certificates"]["node1"]).ca == key != ca_of(folder)
    subprocess.run(["ssh-add", "-q", "-D"], check=True, stdin=subprocess.DEVNULL)
    assert sign(**given)["changed"] is False  # the one that is there is still good
    assert "ssh-add" in sign(["node2"], **given)["msg"]


def test_a_key_with_a_passphrase_alone_is_refused_with_the_remedy(sign, folder, tmp_path):
    for name in ("id_ed25519", "id_ed25519.pub"):
        (folder / name).unlink()
    make_key(folder / "id_ed25519", "passphrase")
    assert "set ssh_trust_ca_public_key" in sign()["msg"]


def test_the_commands_of_agent_and_token():
    given = ("ca.pub", "n.pub", "lab-node1", ["lab/node1", "u"], 7, DAY)
    words = signing.sign_argv(*given)
    assert words[-1] == "n.pub" and "-U" not in words and "-D" not in words
    assert [words[words.index(flag) + 1] for flag in ("-s", "-I", "-n", "-z", "-V", "-O")] == [
        "ca.pub", "lab-node1", "lab/node1,u", "7", "-300s:+86400s", "clear",
    ]  # fmt: skip
    assert "-U" in signing.sign_argv(*given, agent=True)
    words = signing.sign_argv(*given, pkcs11="/usr/lib/token.so")
    assert words[words.index("-D") + 1] == "/usr/lib/token.so" and "-U" not in words
