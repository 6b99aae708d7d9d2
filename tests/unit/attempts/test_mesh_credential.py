# SPDX-License-Identifier: Apache-2.0
"""The credential of an attempt: made by the probe, opened by the start, gone after the end; real
keys and a real authorized_keys.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    attempt_dir,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import (
    mesh_credential as credential,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import probe
from ansible_collections.trainyard.cluster.plugins.plugin_utils.plan import readiness
from core_support import RUN, peer_key, put, trusted

PYTHON = sys.executable
ARCHIVE = b"PK agent"
NODES = ["node1", "node2", "node3"]
OTHER = "20261120-103502-other-1f2e"


@pytest.fixture
def home(tmp_path):
    """node2's home with a mesh and the key pair of attempt 1."""
    return str(tmp_path), trusted(tmp_path, NODES, "node2")


def keys_file(home):
    return Path(home, ".ssh", "authorized_keys")


def grant(home, keys, run=RUN, number=1, **given):
    base = os.path.join(home, ".trainyard")
    return credential.grant(
        home, base, "test", run, number, "node2", keys, ARCHIVE, PYTHON, **given
    )


def of_runs(home):
    return [
        (item["run"], item["number"], item["peer"], item["node"])
        for item in credential.run_lines(home)
    ]


def test_a_key_is_made_once_for_an_attempt(home):
    folder, keys = home
    place = credential.place_of(folder, RUN, 1, "node2")
    assert (
        credential.valid_key(keys["node2"])
        and credential.make(folder, RUN, 1, "node2") == keys["node2"]
    )
    assert (
        credential.make(folder, RUN, 2, "node2")
        != keys["node2"]
        != credential.make(folder, RUN, 1, "node1")
    )
    assert stat.S_IMODE(os.stat(os.path.join(place, "id_ed25519")).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(place).st_mode) == 0o700


def test_a_start_lets_each_peer_in_by_one_line(home):
    folder, keys = home
    before = keys_file(folder).read_text()
    config = grant(folder, keys)
    lines = keys_file(folder).read_text().splitlines()
    place = credential.place_of(folder, RUN, 1, "node2")
    command = f'command="{PYTHON} -I {place}/agent.pyz gate {RUN} 1 '
    assert lines[:2] == [
        (
            f'restrict,from="198.51.100.10",{command}node1" {keys["node1"]} trainyard-run test'
            f" {RUN} 1 node1 node2"
        ),
        (
            f'restrict,from="198.51.100.12",{command}node3" {keys["node3"]} trainyard-run test'
            f" {RUN} 1 node3 node2"
        ),
    ]
    assert "\n".join(lines[2:]) + "\n" == before
    text = Path(config).read_text()
    assert (
        f"IdentityFile {place}/id_ed25519\n" in text
        and "CertificateFile" not in text
        and f"{place}/known_hosts" in text
    )
    shown = subprocess.run(
        ["ssh", "-G", "-F", config, "node2"], capture_output=True, text=True, check=True
    ).stdout
    assert f"identityfile {place}/id_ed25519\n" in shown and "hostname 198.51.100.12\n" in shown
    assert json.loads(Path(place, "machine.json").read_text())["nodes"] == NODES
    grant(folder, keys)
    # A start that is repeated changes nothing.
    assert keys_file(folder).read_text().splitlines() == lines


@pytest.mark.parametrize(
    "change",
    [
        {"node1": None},
        {"node1": "ssh-ed25519 AAAA"},
        {"node1": peer_key(1) + " x"},
        {"node1": peer_key(1) + "\nssh-ed25519 AAAA evil"},
        {"node1": peer_key(3)},
        {"node2": peer_key(9)},
        {"node4": peer_key(4)},
        {'node"x': peer_key(4)},
    ],
    ids=[
        "none",
        "short",
        "comment",
        "two lines",
        "another node's",
        "not the own",
        "a stranger",
        "a quote",
    ],
)
def test_keys_that_are_not_valid_open_nothing(home, change):
    folder, keys = home
    before = keys_file(folder).read_text()
    with pytest.raises(credential.CredentialError):
        grant(folder, dict(keys, **change))
    assert keys_file(folder).read_text() == before


def test_a_peer_without_a_line_of_the_site_is_not_let_in(home):
    folder, keys = home
    lines = keys_file(folder).read_text().splitlines(True)
    keys_file(folder).write_text("".join(line for line in lines if not line.endswith(" node3\n")))
    with pytest.raises(credential.CredentialError, match=r"node3 .*trust\.yml"):
        grant(folder, keys)
    assert of_runs(folder) == []


def test_the_end_takes_lines_and_key_of_this_attempt_alone(home):
    folder, keys = home
    other = dict(keys, node2=credential.make(folder, OTHER, 1, "node2"))
    mine = "# mine\nssh-rsa AAAA me"
    keys_file(folder).write_text(keys_file(folder).read_text() + mine)
    before = keys_file(folder).read_bytes()
    grant(folder, keys)
    grant(folder, other, run=OTHER)
    assert credential.release(folder, RUN, 1, "node2") is True
    assert of_runs(folder) == [(OTHER, 1, "node1", "node2"), (OTHER, 1, "node3", "node2")]
    assert not os.path.exists(credential.place_of(folder, RUN, 1, "node2")) and not os.path.exists(
        Path(folder, ".trainyard/mesh/runs", RUN)
    )
    assert credential.release(folder, RUN, 1, "node2") is False
    credential.release(folder, OTHER, 1, "node2")
    assert keys_file(folder).read_bytes() == before


def test_a_late_removal_of_one_attempt_leaves_the_next_alone(home):
    folder, keys = home
    grant(folder, keys)
    second = dict(keys, node2=credential.make(folder, RUN, 2, "node2"))
    grant(folder, second, number=2)
    assert of_runs(folder) == [(RUN, 2, "node1", "node2"), (RUN, 2, "node3", "node2")]
    credential.release(folder, RUN, 1, "node2")
    assert of_runs(folder) == [(RUN, 2, "node1", "node2"), (RUN, 2, "node3", "node2")]
    assert os.path.exists(credential.config_of(folder, RUN, 2, "node2"))


def test_nodes_that_share_a_home_take_back_their_own(home):
    folder, keys = home
    keys = dict(keys, node1=credential.make(folder, RUN, 1, "node1"))
    grant(folder, keys)
    credential.grant(folder, folder, "test", RUN, 1, "node1", keys, ARCHIVE, PYTHON)
    assert len(of_runs(folder)) == 4
    credential.release(folder, RUN, 1, "node2")
    assert of_runs(folder) == [(RUN, 1, "node2", "node1"), (RUN, 1, "node3", "node1")]
    assert os.path.exists(credential.config_of(folder, RUN, 1, "node1"))


def test_what_a_reboot_has_left_is_removed_by_the_next_probe(home):
    folder, keys = home
    base, now = os.path.join(folder, ".trainyard"), time.time()
    grant(folder, keys)
    units = {f"trainyard-{RUN}-1.service"}
    put(Path(base, "runs", RUN, "attempt-1"), {"attempt.json": "{}"})
    assert credential.tidy(folder, base, "node2", units, now) == [], "it runs"
    assert credential.tidy(folder, base, "node2", {f"trainyard-{RUN}-0.service"}, now) == [], (
        "its rehearsal runs"
    )
    assert credential.tidy(folder, base, "node1", set(), now) == [], "another node's"
    assert (
        credential.tidy(folder, base, "node2", set(), now) == [(RUN, 1)] and of_runs(folder) == []
    )
    credential.make(folder, OTHER, 1, "node2")
    assert credential.tidy(folder, base, "node2", set(), now) == []
    assert credential.tidy(folder, base, "node2", set(), now + credential.UNUSED_SECONDS + 1) == [
        (OTHER, 1)
    ]


def test_no_file_of_the_training_keeps_a_credential(home):
    """The directory of the run is gone, the note beside the key says that nothing was begun, the
    key is of tomorrow: without a unit no line.
    """
    folder, keys = home
    base, place, now = (
        os.path.join(folder, ".trainyard"),
        Path(credential.place_of(folder, RUN, 1, "node2")),
        time.time(),
    )
    grant(folder, keys)
    # The run's directory is gone.
    assert credential.tidy(folder, base, "node2", set(), now) == [(RUN, 1)] and not place.exists()
    for note in ("{}", "[]", '{"begun": false}', "x"):
        given = dict(keys, node2=credential.make(folder, RUN, 1, "node2"))
        grant(folder, given)
        (place / "machine.json").write_text(note)
        assert (
            credential.tidy(folder, base, "node2", set(), now) == [(RUN, 1)]
            and of_runs(folder) == []
        )
    os.utime(place / "id_ed25519", (now + credential.UNUSED_SECONDS,) * 2)
    assert (
        credential.tidy(folder, base, "node2", set(), now + credential.UNUSED_SECONDS + 1)
        == [(RUN, 1)]
        and not place.exists()
    )
    assert credential.tidy(folder, base, "node2", set(), now) == []


def test_no_probe_looks_between_a_starts_lines_and_its_unit(home, monkeypatch):
    """The start has written its lines and holds the lock; when its unit is there, the probe of
    another run leaves the lines alone.
    """
    folder, keys = home
    base, units = os.path.join(folder, ".trainyard"), []
    monkeypatch.setattr(
        attempt_dir, "active_units", lambda _run: [{"unit": unit} for unit in units]
    )
    made = []
    other = threading.Thread(
        target=lambda: made.append(
            probe.run_key(
                None, folder, base, {"run": OTHER, "number": 1, "node": "node2", "look": False}
            )
        )
    )
    with attempt_dir.lock_node(base):
        grant(folder, keys)
        other.start()
        other.join(0.5)
        assert made == [] and len(of_runs(folder)) == 2
        units.append(f"trainyard-{RUN}-1.service")
    other.join(30)
    assert credential.valid_key(made[0]) and len(of_runs(folder)) == 2
    units.clear()
    probe.run_key(None, folder, base, {"run": OTHER, "number": 1, "node": "node2", "look": False})
    assert of_runs(folder) == []


def test_what_is_left_of_a_rehearsal_keeps_the_key_for_the_start_after_it(home):
    folder, keys = home
    base, now = os.path.join(folder, ".trainyard"), time.time()
    grant(folder, keys, attempt=0)
    assert (
        credential.tidy(folder, base, "node2", {f"trainyard-{RUN}-0.service"}, now) == []
        and len(of_runs(folder)) == 2
    )
    assert (
        credential.tidy(folder, base, "node2", set(), now) == [(RUN, 1)] and of_runs(folder) == []
    )
    assert credential.make(folder, RUN, 1, "node2") == keys["node2"]
    grant(folder, keys, attempt=1)
    assert credential.tidy(folder, base, "node2", set(), now) == [(RUN, 1)] and not os.path.exists(
        credential.place_of(folder, RUN, 1, "node2")
    )


def test_the_units_own_words_remove_its_credential(home):
    folder, keys = home
    config = grant(folder, keys)
    words = credential.release_words(folder, RUN, 1, "node2", PYTHON)
    at = words.index(PYTHON)
    assert (
        words[0] == "/usr/bin/systemd-run"
        and "--on-active=30" in words[:at]
        and len(of_runs(folder)) == 2
    )
    place, executed = os.path.dirname(config), os.path.join(folder, "executed")
    for name in os.listdir(place):  # the training can write all of them
        if name.endswith(".py"):
            with open(os.path.join(place, name), "w", encoding="utf-8") as handle:
                handle.write(f"open({executed!r}, 'w')\n")
    subprocess.run(words[at:], check=True, cwd=place)
    assert of_runs(folder) == [] and not os.path.exists(place) and not os.path.exists(executed)


def test_systemd_takes_the_units_own_words_as_they_are(home):
    """Its own reading of a command: words in double quotes; $ and % are replaced, a backslash
    begins an escape, and a semicolon becomes one where the manager reads its units again. One word
    has 128 KiB at most (execve(2)).
    """
    words = credential.release_words(home[0], RUN, 1, "node2", PYTHON)
    plan = {"launcher": {"console": "c"}, "stop": {"timeout": 5}}
    (line,) = [
        word
        for word in attempt_dir.start_argv("/a", plan, "node2", "u", "d", "", words)
        if word.startswith("ExecStopPost=-")
    ]
    assert shlex.split(line.partition("=-")[2]) == words
    assert not set("$%\\\n;") & set(line) and max(map(len, words)) < 1 << 16


@pytest.mark.parametrize(
    "words",
    [
        ("../x", 1, "n"),
        (RUN, -1, "n"),
        (RUN, 1, "../n"),
        (RUN, 1, ".."),
        (RUN + "\n", 1, "n"),
        (RUN, 10**6, "n"),
    ],
)
def test_words_that_are_no_attempt_have_no_place(tmp_path, words):
    with pytest.raises(credential.CredentialError):
        credential.place_of(str(tmp_path), *words)


def test_two_writers_at_once_lose_no_line(home):
    folder, keys = home
    runs = ["20261120-1035%02d-a-1f2e" % number for number in range(16)]
    given = {run: dict(keys, node2=credential.make(folder, run, 1, "node2")) for run in runs}
    threads = [
        threading.Thread(target=grant, args=(folder, given[run]), kwargs={"run": run})
        for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(of_runs(folder)) == sorted(
        (run, 1, peer, "node2") for run in runs for peer in ("node1", "node3")
    )


@pytest.mark.parametrize(
    ("said", "keys", "wrong"),
    [
        ({"node1": peer_key(1), "node2": peer_key(2)}, 2, []),
        ({"node1": "", "node2": ""}, 0, []),  # nothing was asked for: --check
        ({"node1": peer_key(1), "node2": ""}, 0, ["node2"]),
        ({"node1": peer_key(1), "node2": peer_key(2) + "\n"}, 0, ["node2"]),
        ({"node1": peer_key(1), "node2": 'x" ssh-ed25519'}, 0, ["node2"]),
        ({"node1": peer_key(1), "node2": {}}, 0, ["node2"]),
        ({"node1": peer_key(1), "node2": peer_key(1)}, 0, ["node1", "node2"]),
        ({"node1": peer_key(1)}, 0, []),
    ],
)
def test_the_controller_takes_one_valid_key_of_each_node(said, keys, wrong):
    found, problems = readiness.run_keys(
        {"nodes": [{"name": name} for name in said]},
        {name: {"run_key": key} for name, key in said.items()},
    )
    assert (len(found), [name for name, _text in problems]) == (keys, wrong)


def test_a_credential_of_an_earlier_release_is_found_and_removed(home):
    """Its lines start gate.py, and its programs lie beside that."""
    folder, keys = home
    before = keys_file(folder).read_text()
    grant(folder, keys)
    place = Path(credential.place_of(folder, RUN, 1, "node2"))
    (place / "agent.pyz").rename(place / "gate.py")
    (place / "guard_beat.py").write_text("")
    text = keys_file(folder).read_text()
    keys_file(folder).write_text(text.replace(f"agent.pyz gate {RUN}", f"gate.py --run {RUN}"))
    assert "gate.py --run" in keys_file(folder).read_text()
    assert of_runs(folder) == [(RUN, 1, peer, "node2") for peer in ("node1", "node3")]
    assert credential.release(folder, RUN, 1, "node2") is True
    assert keys_file(folder).read_text() == before and not place.exists()
