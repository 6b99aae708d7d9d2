# SPDX-License-Identifier: Apache-2.0
"""First contact: a host key is pinned only if a person vouched for it. No pinned key is ever
replaced.
"""

from __future__ import annotations

import re
import subprocess

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh import host_key_pins
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh import host_keys as core
from unit.mesh.test_primitives import host_key

ONE, TWO = host_key(1), host_key(2)
NODE = {"name": "node1", "host": "198.51.100.11", "port": 22, "fingerprints": []}


def keys(*texts):
    return {
        kind: {text for text in texts if text.split()[0] == kind}
        for kind in {text.split()[0] for text in texts}
    }


def test_fingerprint_is_the_one_ssh_keygen_prints(tmp_path):
    (tmp_path / "key.pub").write_text(ONE + "\n")
    printed = subprocess.run(
        ["ssh-keygen", "-lf", str(tmp_path / "key.pub")], capture_output=True, text=True, check=True
    ).stdout
    assert core.fingerprint(ONE) == printed.split()[1]
    with pytest.raises(ValueError, match="not a public key"):
        core.fingerprint("ssh-ed25519")


def test_keys_of_a_scan():
    text = (
        f"# 198.51.100.11:22 SSH-2.0-OpenSSH_9.2\n198.51.100.11 {ONE}\n\n198.51.100.11 ssh-dss"
        " AAAA\ngarbage\n"
    )
    assert core.parse_keys(text) == ({"ssh-ed25519": {ONE}}, False)
    assert core.parse_keys(f"@cert-authority *.lan {TWO}\n@revoked * {ONE}\n") == ({}, True)


def test_pinned_keys_reads_hashed_names_ports_and_several_files(tmp_path):
    site, own = tmp_path / "site", tmp_path / "own"
    site.write_text(f"198.51.100.12 {TWO}\n")
    own.write_text(f"198.51.100.11,node1 {ONE}\n[198.51.100.11]:2222 {TWO}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(own)], check=True, capture_output=True)
    assert "198.51.100.11" not in own.read_text()
    files = [str(site), str(tmp_path / "missing"), str(own)]

    def run(argv):
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    assert core.pinned_keys(run, files, "198.51.100.11", 22) == (
        {"ssh-ed25519": {ONE}},
        False,
        str(own),
    )
    assert core.pinned_keys(run, files, "198.51.100.11", 2222)[0] == {"ssh-ed25519": {TWO}}
    assert core.pinned_keys(run, files, "198.51.100.13", 22) == ({}, False, "")
    site.write_text(f"198.51.100.11 {ONE}\n")
    assert core.pinned_keys(run, files, "198.51.100.11", 22)[2] == str(site)


def test_scan_command_is_bounded_and_cannot_be_an_option():
    ran = []
    core.scan_keys(lambda argv: ran.append(argv) or (0, "", ""), "-oops", 2222, 4)
    assert ran == [
        ["ssh-keyscan", "-T", "4", "-p", "2222", "-t", "ed25519,ecdsa,rsa", "--", "-oops"]
    ]


@pytest.mark.parametrize(
    ("pinned", "authority", "scanned", "vouched", "status"),
    [
        (keys(ONE), False, keys(ONE), [], "pinned"),
        (
            keys(ONE),
            False,
            {},
            [],
            "pinned",
        ),  # behind a jump host: no scan, but a key that ssh will check
        (keys(ONE), False, keys(TWO), [], "refused"),
        ({"ssh-ed25519": {ONE, TWO}}, False, keys(TWO), [], "pinned"),
        ({}, True, keys(TWO), [], "pinned"),
        ({}, False, keys(ONE), [], "unknown"),
        ({}, False, {}, [], "refused"),
        ({}, False, keys(ONE), [core.fingerprint(ONE)], "vouched"),
        (
            {},
            False,
            keys(ONE),
            [core.fingerprint(ONE)[7:]],
            "vouched",
        ),  # as some consoles print it, without SHA256:
        ({}, False, keys(TWO), [core.fingerprint(ONE)], "refused"),
        (keys(TWO), False, {}, [core.fingerprint(ONE)], "refused"),
        (keys(TWO), False, keys(TWO), [core.fingerprint(ONE)], "refused"),
        (keys(ONE), False, {}, [core.fingerprint(ONE)], "pinned"),
        (
            keys(ONE),
            False,
            keys(TWO),
            [core.fingerprint(TWO)],
            "refused",
        ),  # a changed key is refused although it is vouched for
    ],
)
def test_judge(pinned, authority, scanned, vouched, status):
    verdict = core.judge(dict(NODE, fingerprints=vouched), pinned, authority, scanned, "/site")
    assert verdict["status"] == status
    assert (verdict["problem"] is not None) == (status == "refused")
    if status == "refused":
        assert verdict["problem"].startswith("node1 (198.51.100.11): ")
        assert verdict["keys"] == []


@pytest.mark.parametrize(
    ("pinned", "scanned", "words"),
    [
        ({}, {}, "does not answer a scan"),
        ({}, keys(TWO), "answered is " + core.fingerprint(TWO)),
        (keys(TWO), {}, "pinned is " + core.fingerprint(TWO)),
    ],
)
def test_a_refusal_says_what_was_found(pinned, scanned, words):
    assert (
        words
        in core.judge(dict(NODE, fingerprints=[core.fingerprint(ONE)]), pinned, False, scanned)[
            "problem"
        ]
    )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("getaddrinfo gpu-01: Name or service not known", "name cannot be resolved"),
        ("connect (`192.0.2.1'): Connection refused", "nothing listens"),
        ("", "does not answer a scan"),
    ],
)
def test_a_node_that_gives_no_key_is_refused_for_its_own_reason(words, part):
    assert part in core.judge(dict(NODE, fingerprints=[]), {}, False, {}, "", words)["problem"]


def test_only_the_vouched_key_of_several_is_kept():
    rsa = "ssh-rsa AAAAB3NzaC1yc2E="
    verdict = core.judge(
        dict(NODE, fingerprints=[core.fingerprint(ONE)]), {}, False, keys(ONE, rsa)
    )
    assert verdict["keys"] == [ONE]


def test_a_changed_key_names_both_and_the_file():
    text = core.judge(NODE, keys(ONE), False, keys(TWO), "/home/me/.ssh/known_hosts")["problem"]
    assert core.fingerprint(ONE) in text
    assert core.fingerprint(TWO) in text
    assert "ssh-keygen -R '198.51.100.11' -f /home/me/.ssh/known_hosts" in text


def test_with_lines_keeps_what_is_there():
    nodes = [
        dict(NODE),
        dict(NODE, name="node2", host="198.51.100.12", port=2222),
        dict(NODE, name="node3", host="x"),
    ]
    verdicts = {
        "node1": {"status": "vouched", "keys": [ONE]},
        "node2": {"status": "vouched", "keys": [TWO]},
        "node3": {"status": "unknown", "keys": [TWO]},
    }
    assert (
        core.add_lines("# mine", nodes, verdicts)
        == f"# mine\n198.51.100.11 {ONE}\n[198.51.100.12]:2222 {TWO}\n"
    )
    assert core.add_lines("# mine\n", nodes, verdicts).startswith("# mine\n198.51.100.11 ")
    assert core.add_lines("# mine", nodes[2:], verdicts) == "# mine"
    again = core.add_lines("", nodes, verdicts)
    assert core.add_lines(again, nodes, verdicts) == again


# --- the module
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def net(monkeypatch):
    """Hosts that answer a scan; ssh-keygen is the real one."""
    answering = {"198.51.100.11": ONE, "198.51.100.12": TWO}

    def run(argv, timeout=20):
        if argv[0] == "ssh-keyscan":
            host = argv[-1]
            return (
                (0, f"{host} {answering[host]}\n", "") if host in answering else (1, "", "timeout")
            )
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    monkeypatch.setattr(host_key_pins, "run_program", run)
    return answering


def contact(run_action, tmp_path, check=False, **more):
    hosts = {"node1": "198.51.100.11", "node2": "198.51.100.12"}
    return run_action(
        "ssh_host_keys",
        dict({"hosts": hosts, "known_hosts": str(tmp_path / "known_hosts")}, **more),
        check,
    )


def test_unknown_keys_are_shown_and_not_pinned(net, run_action, tmp_path):
    result = contact(run_action, tmp_path)
    assert (result["changed"], result["pinned"], result["recorded"]) == (False, [], [])
    assert result["unknown"] == {"node1": [core.fingerprint(ONE)], "node2": [core.fingerprint(TWO)]}
    assert result["shown"][0].split() == [
        "node1",
        "(198.51.100.11):",
        "ssh-ed25519",
        core.fingerprint(ONE),
    ]
    assert not (tmp_path / "known_hosts").exists()


def test_what_was_shown_is_what_is_pinned(net, run_action, tmp_path):
    shown = contact(run_action, tmp_path)["unknown"]
    result = contact(run_action, tmp_path, fingerprints=shown)
    assert (result["changed"], result["recorded"], result["unknown"]) == (
        True,
        ["node1", "node2"],
        {},
    )
    assert (tmp_path / "known_hosts").read_text() == f"198.51.100.11 {ONE}\n198.51.100.12 {TWO}\n"
    assert contact(run_action, tmp_path)["pinned"] == ["node1", "node2"]


def test_only_unknown_nodes_are_shown(net, run_action, tmp_path):
    result = contact(run_action, tmp_path, fingerprints={"node1": [core.fingerprint(ONE)]})
    assert (result["recorded"], list(result["unknown"])) == (["node1"], ["node2"])
    assert [line.split()[0] for line in result["shown"]] == ["node2"]


def test_a_key_that_changed_between_question_and_answer_is_refused(net, run_action, tmp_path):
    shown = contact(run_action, tmp_path)["unknown"]
    net["198.51.100.12"] = host_key(9)
    result = contact(run_action, tmp_path, fingerprints=shown)
    assert result["failed"] is True
    assert re.findall(r"(\w+ \S+): its host key", result["msg"]) == ["node2 (198.51.100.12)"]
    assert "not one of" in result["msg"]
    assert not (tmp_path / "known_hosts").exists()


def test_a_changed_key_is_refused_and_the_pinned_one_stays(net, run_action, tmp_path):
    (tmp_path / "known_hosts").write_text(f"198.51.100.11 {host_key(9)}\n")
    result = contact(run_action, tmp_path, fingerprints={"node1": [core.fingerprint(ONE)]})
    assert re.search(r"node1 \(198.51.100.11\): HOST", result["msg"])
    assert result["msg"].count("HOST KEY CHANGED") == 1
    assert (tmp_path / "known_hosts").read_text() == f"198.51.100.11 {host_key(9)}\n"


def test_the_users_own_file_is_honoured_and_never_written(net, run_action, tmp_path):
    own = tmp_path / "own"
    own.write_text(f"198.51.100.11 {ONE}\n")
    result = contact(
        run_action, tmp_path, also=[str(own)], fingerprints={"node2": [core.fingerprint(TWO)]}
    )
    assert (result["pinned"], result["recorded"]) == (["node1"], ["node2"])
    assert own.read_text() == f"198.51.100.11 {ONE}\n"
    assert (tmp_path / "known_hosts").read_text() == f"198.51.100.12 {TWO}\n"


def test_every_problem_at_once(net, run_action, tmp_path):
    net.clear()
    message = contact(run_action, tmp_path)["msg"]
    assert re.findall(r"(\w+ \S+): no host key", message) == [
        "node1 (198.51.100.11)",
        "node2 (198.51.100.12)",
    ]


def test_check_mode_writes_nothing(net, run_action, tmp_path):
    result = contact(
        run_action,
        tmp_path,
        check=True,
        fingerprints={"node1": [core.fingerprint(ONE)], "node2": [core.fingerprint(TWO)]},
    )
    assert result["changed"] is True
    assert not (tmp_path / "known_hosts").exists()


def test_nodes_of_fills_in_what_the_inventory_leaves_out():
    assert host_key_pins.nodes_of({"a": ""}, {}, {}) == [
        {"name": "a", "host": "a", "port": 22, "fingerprints": []}
    ]
    assert host_key_pins.nodes_of({"a": "b"}, {"a": "2222"}, {"a": ["x"]}) == [
        {"name": "a", "host": "b", "port": 2222, "fingerprints": ["x"]}
    ]
