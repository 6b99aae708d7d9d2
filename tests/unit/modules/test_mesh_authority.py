# SPDX-License-Identifier: Apache-2.0
"""The module mesh_authority: the key and its history, revoked nodes, the authority of another
controller, and files that are never removed.
"""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import primitives
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh import certificate_term
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import checks

OTHER = {"fingerprint": "SHA256:other", "by": "bob@tower", "since": 1763000000}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "state" / "ca"


@pytest.fixture
def settle(folder, run_action):
    """Call the module."""

    def call(check=False, **more):
        return run_action(
            "mesh_authority", dict({"directory": str(folder), "site": "lab"}, **more), check
        )

    return call


def held(*authorities):
    return {
        "count": len(authorities),
        "authorities": list(authorities),
        "open": False,
        "busy": True,
    }


def test_the_key_is_made_once_and_is_private(settle, folder):
    first = settle()
    assert first["changed"] is True
    assert first["public_key"] == primitives.public_key((folder / "id_ed25519.pub").read_text())
    told = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(folder / "id_ed25519.pub")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert first["authority"]["fingerprint"] == told.split()[1] and "@" in first["authority"]["by"]
    assert (
        folder / "id_ed25519"
    ).stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    assert settle() == dict(first, changed=False)


def test_a_check_makes_nothing(settle, folder):
    assert settle(check=True)["public_key"] == ""
    assert not folder.exists()


def test_an_authority_from_before_the_journal_is_carried_over(settle, folder):
    folder.mkdir(parents=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "id_ed25519")],
        check=True,
    )
    os.utime(folder / "id_ed25519", (1e9, 1e9))
    key = primitives.public_key((folder / "id_ed25519.pub").read_text())
    mine = {"node1": [held(primitives.fingerprint(key)), {}], "node2": [{}, {}]}
    found = settle(nodes=mine)
    assert (found["public_key"], found["authority"]["since"]) == (key, 10**9)


def test_a_public_half_that_is_not_the_keys_is_mended(settle, folder):
    first = settle()
    (folder / "id_ed25519.pub").write_text("ssh-ed25519 AAAA cut off\n")
    assert settle()["public_key"] == first["public_key"]
    assert primitives.public_key((folder / "id_ed25519.pub").read_text()) == first["public_key"]


def test_a_rotation_makes_another_key_and_knows_the_former_one(settle):
    first, second = settle(), settle(rotate=True)
    assert second["public_key"] != first["public_key"]
    assert second["own"] == [first["authority"]["fingerprint"], second["authority"]["fingerprint"]]
    nodes = {
        "node1": [
            held(first["authority"]["fingerprint"], second["authority"]["fingerprint"]),
            first["authority"],
        ]
    }
    assert settle(nodes=nodes)["changed"] is False  # its own lines, in the middle of the rotation


def test_a_key_that_is_kept_elsewhere_is_taken_by_its_public_half(settle, folder, tmp_path):
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", str(tmp_path / "kept")], check=True
    )
    first = settle()
    found = settle(public_key=str(tmp_path / "kept.pub"))
    assert found["public_key"] == primitives.public_key((tmp_path / "kept.pub").read_text())
    assert first["authority"]["fingerprint"] in found["own"]
    said = settle(public_key=str(tmp_path / "kept.pub"), rotate=True)["msg"]
    assert "a new one where it is" in said
    (tmp_path / "kept.pub").write_text("no key\n")
    assert "not hold a public key" in settle(public_key=str(tmp_path / "kept.pub"))["msg"]


# --- two controllers


@pytest.mark.parametrize(
    "nodes",
    [
        {"node1": [held("SHA256:other"), OTHER], "node2": [held(), {}]},
        {"node1": [held(), {}], "node2": [held(), OTHER]},  # its line is gone, its record names it
    ],
)
def test_another_controllers_authority_is_refused_by_name_and_nothing_is_made(
    settle, folder, nodes
):
    said = settle(nodes=nodes)["msg"]
    for words in (
        "bob@tower",
        "2025-11-13",
        "SHA256:other",
        "trainyard_state_dir",
        "replace_ca=true",
        "trainyard_site",
    ):
        assert words in said
    assert not (folder / "id_ed25519").exists()
    assert settle(nodes=nodes, replace=True)["changed"] is True


def test_an_authority_that_no_record_names_is_refused_too(settle):
    said = settle(nodes={n: [held("SHA256:x"), {}] for n in ("node1", "node2")})["msg"]
    assert "node1, node2: " in said and "not recorded" in said


def test_a_rotation_does_not_pass_another_controller(settle, folder):
    before = settle()["public_key"]
    assert "bob@tower" in settle(rotate=True, nodes={"node1": [held("SHA256:other"), OTHER]})["msg"]
    assert primitives.public_key((folder / "id_ed25519.pub").read_text()) == before


def test_what_a_node_says_of_its_authority_is_shown_and_not_obeyed(settle):
    wild = {"fingerprint": "SHA256:\x1b[2Jx", "by": "a\x1b]52;c;x\x07" + "b" * 5000, "since": 1e300}
    said = settle(
        nodes={
            "node1": [{"authorities": ["SHA256:\x1b[2Jx", 7, None]}, wild],
            "node2": [{"authorities": 9}, "x"],
        }
    )["msg"]
    assert "\x1b" not in said and len(said) < 3000
    assert (
        settle(nodes={"node2": [{"authorities": 9}, "x"], "node3": [None, None]})["changed"] is True
    )


# --- taken back


def test_a_node_is_taken_back_before_any_key_is_there(settle, folder):
    found = settle(state="noted", take_back="node3", known=["node1", "node3"])
    assert found["changed"] is True and list(found["taken_back"]) == ["node3"]
    assert "take_in=node3" in found["texts"][0]
    assert not (folder / "id_ed25519").exists()
    assert settle(state="noted", take_back="node3", known=["node3"])["changed"] is False
    assert "node3 was taken back" in settle(nodes={"node3": [held(), {}]})["msg"]
    assert settle(nodes={"node1": [held(), {}]})["taken_back"] == found["taken_back"]


def test_a_node_is_taken_in_again(settle):
    settle(state="noted", take_back="node3", known=["node3"])
    said = settle(state="noted", take_in=["node2"])["msg"]
    assert "node2 was not" in said and "; taken back: node3" in said
    assert settle(state="noted", take_in=["node3"])["taken_back"] == {}
    assert settle(nodes={"node3": [held(), {}]})["changed"] is True


@pytest.mark.parametrize("name", ["nod3", "../x", "-x", "node3\n"])
def test_only_a_node_can_be_taken_back(settle, folder, name):
    known = ["node1", "node3"] + [name] * (name != "nod3")
    assert "is not a node" in settle(state="noted", take_back=name, known=known)["msg"]
    assert not folder.exists()


def test_a_node_that_left_the_inventory_can_be_taken_back(settle, folder):
    (folder / "signed").mkdir(parents=True)
    for name in (
        "old1-0123456789abcdef-cert.pub",
        "old1-0123456789abcdef.pub",
        "old1-b-0123456789abcdef.pub",
    ):
        (folder / "signed" / name).write_text("x")
    assert settle(state="noted", take_back="old1", known=["node1"])["changed"] is True
    assert os.listdir(folder / "signed") == ["old1-b-0123456789abcdef.pub"]


# --- removed


def test_an_authority_is_removed_and_nothing_else_is(settle, folder):
    settle()
    (folder / "certs.txt").write_text("another user's")
    assert "authority has (certs.txt)" in settle(state="absent")["msg"]
    assert (folder / "certs.txt").exists() and (folder / "id_ed25519").exists()
    (folder / "certs.txt").unlink()
    # a write that was cut off has left these, by this release and by an earlier one
    (folder / "authority.json.0123456789abcdef.part").write_text("{")
    (folder / "authority.json.4321~").write_text("{")
    assert settle(state="absent", check=True)["changed"] is True and folder.exists()
    assert settle(state="absent")["changed"] is True and not folder.exists()
    assert settle(state="absent")["changed"] is False


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"serial": "x", "authorities": [], "taken_back": {}}']
)
def test_a_damaged_journal_stops(settle, folder, text):
    settle()
    (folder / "authority.json").write_text(text)
    assert "authority.json" in settle()["msg"]
    assert [item["level"] for item in checks.judge_trust([], {}, str(folder.parent), 0.0)] == [
        "stop"
    ]


# --- what check.yml shows

NODES = [{"name": "node1"}, {"name": "node2"}]


def facts(**changes):
    own = {"fingerprint": "SHA256:mine", "by": "alice@desk", "since": 10**9}
    mesh_fact = {"present": True, "valid_until": 2000000.0, "authority": own}
    return {"node1": {"mesh": dict(mesh_fact)}, "node2": {"mesh": dict(mesh_fact, **changes)}}


def levels(found):
    return [(item["level"], item["nodes"]) for item in found]


def test_the_end_of_every_certificate_is_a_note():
    found = certificate_term.judge_mesh(
        ["node1", "node2"], facts(), 1000000.0, 100, ["SHA256:mine"], True
    )
    assert levels(found) == [("note", ["node1"]), ("note", ["node2"])]
    for words in ("1970-01-24 03:33 UTC", "SHA256:mine of alice@desk since 2001-09-09 01:46 UTC"):
        assert words in found[0]["text"]
    assert (
        certificate_term.judge_mesh(["node1", "node2"], facts(), 1000000.0, 100, ["SHA256:mine"])
        == []
    )
    assert (
        certificate_term.judge_mesh(["node1"], facts(), 1000000.0, 100, [], True) == []
    )  # one node has no peers


@pytest.mark.parametrize(
    ("until", "words"), [(1000050.0, "for 50 s more"), (999999.0, "has expired")]
)
def test_a_short_or_expired_certificate_is_warned_of(until, words):
    found = certificate_term.judge_mesh(
        ["node1", "node2"], facts(valid_until=until), 1000000.0, 100, ["SHA256:mine"], True
    )
    assert levels(found)[1] == ("warn", ["node2"]) and words in found[1]["text"]


def test_another_controllers_authority_and_an_earlier_line_are_named():
    found = certificate_term.judge_mesh(
        ["node1", "node2"], facts(authority=OTHER), 1000000.0, 100, ["SHA256:mine"]
    )
    assert levels(found) == [("warn", ["node2"])] and "bob@tower" in found[0]["text"]
    assert (
        certificate_term.judge_mesh(["node1", "node2"], facts(authority=OTHER), 1000000.0, 100)
        == []
    )
    assert (
        len(
            certificate_term.judge_mesh(
                ["node1", "node2"], facts(carried=True), 1000000.0, 100, ["SHA256:mine"], True
            )
        )
        == 3
    )


@pytest.mark.parametrize("value", ["x", None, True, -1, 1e300, [1]])
def test_a_nodes_odd_times_are_not_judged(value):
    assert (
        certificate_term.judge_mesh(
            ["node1", "node2"], facts(valid_until=value), 1000000.0, 100, [], True
        )[1:]
        == []
    )


def test_a_chosen_node_that_was_taken_back_stops_the_start(settle, folder):
    settle(state="noted", take_back="node2", known=["node2"])
    found = checks.judge_trust(NODES, facts(), str(folder.parent), 0.0)
    assert levels(found) == [("stop", ["node2"])] and "take_in=node2" in found[0]["remedy"]
    assert checks.judge_trust(NODES[:1], facts(), str(folder.parent), 0.0) == []
    assert json.loads((folder / "authority.json").read_text())["taken_back"]["node2"]["since"] > 0
