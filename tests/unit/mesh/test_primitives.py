# SPDX-License-Identifier: Apache-2.0
"""The core of the mesh: what is compiled, and what a node has. OpenSSH itself creates the keys and
certificates.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import struct
import subprocess
import time

import pytest
import yaml
from ansible_collections.trainyard.cluster.plugins.module_utils.attempts import mesh_credential
from ansible_collections.trainyard.cluster.plugins.module_utils.base import commands
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import (
    authorized_keys,
    certificates,
    login_check,
    node_description,
    primitives,
    store,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh import ssh_config
from ansible_collections.trainyard.cluster.plugins.plugin_utils.mesh.certificates import (
    parse_certificate,
)

CA = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHDoLdMLkt2IPrQk1qEZnWAIhEbJQ/EcGZhjB1Z56kDi trainyard-ca"
    " local"
)

AUTHORITY = {"fingerprint": primitives.fingerprint(CA), "by": "alice@desk", "since": 1}


def host_key(number):
    """A well-formed ed25519 public key that differs from the others."""
    return (
        "ssh-ed25519 "
        + base64.b64encode(
            struct.pack(">I", 11) + b"ssh-ed25519" + struct.pack(">I", 32) + bytes([number]) * 32
        ).decode()
    )


def node(number, **changes):
    """A node as describe_node makes it."""
    made = {
        "name": f"node{number}", "user": "trainer", "address": f"198.51.100.{10 + number}",
        "port": 22, "host": f"198.51.100.{10 + number}",
        "addresses": [f"198.51.100.{10 + number}"], "host_keys": [host_key(number)],
        "identity": primitives.identity(f"id{number}", f"node{number}"),
        "home": "", "site": "", "inventory": [f"node{number}", f"198.51.100.{10 + number}", 22, ""],
        "problems": [],
    }  # fmt: skip
    return dict(made, **changes)


def keygen(*argv):
    subprocess.run(["ssh-keygen", "-q", *argv], check=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """Paths of a certificate authority and of a node's key, made once."""
    place = tmp_path_factory.mktemp("authority")
    keygen("-t", "ed25519", "-N", "", "-C", "trainyard-ca local", "-f", str(place / "ca"))
    keygen("-t", "ed25519", "-N", "", "-C", "local-node1", "-f", str(place / "id_ed25519"))
    return place


def sign(authority, target, validity, principals="trainer"):
    """Sign the node's key into the target directory; return the certificate's text."""
    shutil.copy(authority / "id_ed25519.pub", target / "id_ed25519.pub")
    keygen(
        "-s",
        str(authority / "ca"),
        "-I",
        "local-node1",
        "-n",
        principals,
        "-V",
        validity,
        "-O",
        "clear",
        str(target / "id_ed25519.pub"),
    )
    return (target / "id_ed25519-cert.pub").read_text()


# --- spans and certificates
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("+7d", 604800), ("+1h30m", 5400), ("+2w", 1209600), ("+90s", 90)]
)
def test_span_seconds(text, seconds):
    assert ssh_config.span_seconds(text) == seconds


@pytest.mark.parametrize("text", ["7d", "seven", "+7", "", "+7d; rm", "-1d", None])
def test_span_seconds_refuses(text):
    with pytest.raises(ValueError, match="want a span"):
        ssh_config.span_seconds(text)


def test_a_certificate_reads_as_ssh_keygen_made_it(authority, tmp_path):
    text = sign(authority, tmp_path, "-1h:+7d", "trainer,root")
    found = parse_certificate(text)
    assert found.key_id == "local-node1"
    assert found.principals == ["trainer", "root"]
    assert found.valid_until - found.valid_after == pytest.approx(7 * 86400 + 3600, abs=61)
    assert found.valid_until == pytest.approx(time.time() + 7 * 86400, abs=62)
    assert found.public_key == primitives.public_key((tmp_path / "id_ed25519.pub").read_text())
    assert found.ca == primitives.public_key((authority / "ca.pub").read_text())
    assert certificates.read_end(text) == found.valid_until


def test_a_certificate_without_an_end(authority, tmp_path):
    text = sign(authority, tmp_path, "always:forever")
    assert parse_certificate(text).valid_until == certificates.read_end(text) == 2**64 - 1


READERS = [parse_certificate, certificates.read_end]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "garbage",
        "ssh-ed25519-cert-v01@openssh.com !!!!",
        host_key(1),
        "ssh-ed25519-cert-v01@openssh.com " + host_key(1).split()[1],
    ],
)
def test_what_is_no_certificate(text, read):
    with pytest.raises(ValueError, match="not a user certificate"):
        read(text)


@pytest.mark.parametrize("read", READERS)
def test_a_truncated_certificate_is_refused(authority, tmp_path, read):
    kind, blob = sign(authority, tmp_path, "+1d").split()[:2]
    for size in (8, 60, 120, 200, len(base64.b64decode(blob)) - 1):
        with pytest.raises(ValueError, match="not a user certificate"):
            read(f"{kind} {base64.b64encode(base64.b64decode(blob)[:size]).decode()}")


@pytest.mark.parametrize("read", READERS)
def test_a_certificate_of_another_kind_of_key_is_refused(authority, tmp_path, read):
    keygen("-t", "ecdsa", "-N", "", "-f", str(tmp_path / "other"))
    keygen("-s", str(authority / "ca"), "-I", "x", "-n", "trainer", str(tmp_path / "other.pub"))
    text = (tmp_path / "other-cert.pub").read_text()
    with pytest.raises(ValueError, match="type ecdsa-sha2-nistp256-cert-v01"):
        read(text)


def test_a_certificate_of_a_host_or_with_a_changed_field_is_refused(authority, tmp_path):
    kind, encoded = sign(authority, tmp_path, "+1d").split()[:2]
    blob = base64.b64decode(encoded).replace(b"local-node1", b"local-node2")
    with pytest.raises(ValueError, match="signature"):
        parse_certificate(f"{kind} {base64.b64encode(blob).decode()}")
    keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / "host"))
    keygen("-s", str(authority / "ca"), "-h", "-I", "x", "-n", "a", str(tmp_path / "host.pub"))
    with pytest.raises(ValueError, match="type ssh-ed25519-cert-v01"):
        parse_certificate((tmp_path / "host-cert.pub").read_text())


@pytest.mark.parametrize(
    ("until", "wanted"), [(None, True), (1000 + 86399, True), (1000 + 86400, False), (900, True)]
)
def test_needs_renewal(until, wanted):
    assert certificates.needs_renewal(until, 1000) is wanted


@pytest.mark.parametrize("text", ["", "ssh-rsa", "ssh-dss AAAA x", "# ssh-rsa AAAA"])
def test_what_is_no_public_key(text):
    assert primitives.public_key(text) is None


# --- addresses and homes
# --------------------------------------------------------------------------------------------------

IP_JSON = json.dumps(
    [
        {
            "ifname": "lo",
            "addr_info": [
                {"family": "inet", "local": "127.0.0.1"},
                {"family": "inet6", "local": "::1"},
            ],
        },
        {
            "ifname": "eth0",
            "addr_info": [
                {"family": "inet", "local": "192.0.2.7"},
                {"family": "inet6", "local": "fe80::1"},
            ],
        },
        {
            "ifname": "ib0",
            "addr_info": [
                {"family": "inet", "local": "10.1.0.7"},
                {"family": "inet6", "local": "2001:db8::7"},
            ],
        },
    ]
)


def test_own_addresses_leaves_loopback_and_link_local_out():
    assert node_description.own_addresses(IP_JSON) == ["192.0.2.7", "10.1.0.7", "2001:db8::7"]
    assert node_description.own_addresses("") == []


@pytest.mark.parametrize(
    ("wanted", "reached", "address"),
    [
        ("", "192.0.2.7", "192.0.2.7"),  # where the controller arrived, behind a jump host too
        ("", "fe80::1%eth0", "fe80::1"),
        ("", "", "gpu-a"),  # no SSH connection: the inventory's word
        ("10.1.0.7", "192.0.2.7", "10.1.0.7"),
        (
            "203.0.113.9",
            "192.0.2.7",
            "203.0.113.9",
        ),  # translated on the way: the node itself does not hold it
        ("10.1.0.0/16", "192.0.2.7", "10.1.0.7"),
        ("2001:db8::/32", "192.0.2.7", "2001:db8::7"),
    ],
)
def test_choose_address(wanted, reached, address):
    assert (
        node_description.choose_address(
            wanted, reached, "gpu-a", node_description.own_addresses(IP_JSON)
        )
        == address
    )


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("10.2.0.0/16", "which has: 192.0.2.7, 10.1.0.7, 2001:db8::7"),
        ("0.0.0.0/0", "which has: 192.0.2.7, 10.1.0.7$"),
        ("gpu-a", "does not appear to be"),
    ],
)
def test_choose_address_refuses_none_and_several(wanted, words):
    with pytest.raises(ValueError, match=words):
        node_description.choose_address(
            wanted, "", "gpu-a", node_description.own_addresses(IP_JSON)
        )


MOUNTS = """\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 21 0:40 / /home rw,relatime shared:1 - nfs4 {server}:/export/home rw,vers=4.2
41 21 0:41 / /home/other rw,relatime - ext4 /dev/vdb rw
"""


def test_shared_home_is_the_same_from_every_address_of_its_server():
    one = node_description.shared_home(
        MOUNTS.format(server="10.0.0.1"), "/home/trainer", 77, ["nfs4"]
    )
    assert one
    assert one == node_description.shared_home(
        MOUNTS.format(server="nas.lan"), "/home/trainer", 77, ["nfs4"]
    )


@pytest.mark.parametrize(
    ("home", "inode", "types"),
    [
        ("/home/trainer", 78, ["nfs4"]),
        ("/home/trainer", 77, ["nfs"]),
        ("/home/other", 77, ["nfs4"]),
        ("/root", 77, ["nfs4"]),
    ],
)
def test_another_home_is_not_the_shared_one(home, inode, types):
    text = MOUNTS.format(server="10.0.0.1")
    assert node_description.shared_home(text, home, inode, types) != node_description.shared_home(
        text, "/home/trainer", 77, ["nfs4"]
    )


def test_a_local_home_has_no_id():
    assert node_description.shared_home(MOUNTS, "/root", 1, ["nfs4"]) == ""
    assert node_description.shared_home("", "/root", 1, ["nfs4"]) == ""


def test_the_last_mount_over_a_path_counts():
    text = "1 0 0:1 / /home rw - nfs4 a:/x rw\n2 0 0:2 / /home rw - ext4 /dev/vda rw\n"
    assert node_description.shared_home(text, "/home/trainer", 1, ["nfs4"]) == ""


def test_the_innermost_mount_counts_in_any_order_and_odd_lines_do_not():
    inner = "2 1 0:2 / /home/trainer rw - nfs4 a:/x rw\n"
    outer = "1 0 0:1 / / rw - ext4 /dev/vda rw\n"
    wanted = node_description.shared_home(outer + inner, "/home/trainer", 1, ["nfs4"])
    assert wanted
    assert (
        node_description.shared_home(
            "garbage\n - \n1 2 3 4 / - x\n" + inner + outer, "/home/trainer", 1, ["nfs4"]
        )
        == wanted
    )


def test_home_owners():
    nodes = [node(1, home="a"), node(2), node(3, home="a")]
    assert ssh_config.home_owners(nodes) == {
        "node1": "node1",
        "node2": "node2",
        "node3": "node1",
    }


# --- what is refused
# --------------------------------------------------------------------------------------------------


def test_sound_nodes_have_no_problems():
    assert ssh_config.find_problems([node(1), node(2)], "local") == []
    assert (
        ssh_config.find_problems([node(1, address="127.0.0.1")], "local") == []
    )  # a mesh of one node has no pairs


@pytest.mark.parametrize(
    ("changes", "code", "nodes"),
    [
        ({"name": "node 2"}, "trust.node_name", "'node 2'"),
        ({"name": "-oProxyCommand=x"}, "trust.node_name", "'-oProxyCommand=x'"),
        ({"name": "node*"}, "trust.node_name", "'node*'"),
        ({"user": 'a"b'}, "trust.user_name", "node2"),
        ({"address": "10.0.0.2\n  ProxyCommand id"}, "trust.address", "node2"),
        ({"user": "root"}, "trust.users_differ", "(node1 trainer, node2 root)"),
        ({"address": "127.0.1.1"}, "trust.loopback_address", "node2"),
        ({"address": "0.0.0.0"}, "trust.loopback_address", "node2"),
        ({"site": "other"}, "trust.other_site", "node2"),
        ({"identity": node(1)["identity"]}, "trust.same_machine", "node1"),
        ({"host_keys": [host_key(9), host_key(1)]}, "trust.same_host_key", "node1"),
        ({"address": "198.51.100.11"}, "trust.same_address", "node1"),
        ({"problems": ["has no ssh"]}, "trust.node_problem", "node2: has no ssh"),
    ],
)
def test_problems_name_the_node(changes, code, nodes):
    problems = ssh_config.find_problems([node(1), node(2, **changes)], "local")
    assert nodes in {problem.code: problem.text for problem in problems}[code]
    assert all("node2" in item.text or "name" in item.code for item in problems)


def test_one_address_with_two_ports_is_two_nodes():
    assert (
        ssh_config.find_problems([node(1), node(2, address="198.51.100.11", port=2222)], "local")
        == []
    )


def test_a_name_for_an_address_and_the_own_site_are_fine():
    assert (
        ssh_config.find_problems(
            [node(1, address="gpu-a", site="local"), node(2, site="local")], "local"
        )
        == []
    )


def test_two_nodes_without_a_machine_id_are_not_called_one_machine():
    assert ssh_config.find_problems([node(1, identity=""), node(2, identity="")], "local") == []


def test_every_problem_at_once():
    assert (
        len(ssh_config.find_problems([node(1, problems=["a", "b"]), node(2, site="x")], "local"))
        == 3
    )


def test_a_shared_home_wants_consent():
    nodes = [node(1, home="a"), node(2, home="a")]
    problem = ssh_config.find_problems(nodes, "local")[0]
    assert problem.code == "trust.shared_home" and problem.text.startswith("node2: ")
    assert "with node1" in problem.text and "ssh_trust_shared_home: true" in problem.text
    assert ssh_config.find_problems(nodes, "local", consent=True) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"site": "a b"}, "trust.site_name"),
        ({"directory": "../x"}, "trust.directory"),
        ({"directory": "a b"}, "trust.directory"),
        ({"directory": "%h"}, "trust.directory"),
        ({"extra": ["gpu-a"]}, "trust.sources"),
        ({"extra": ["0.0.0.0/0"]}, "trust.sources"),
        ({"extra": ["::/0"]}, "trust.sources"),
        ({"validity": "week"}, "trust.validity"),
        ({"renew_before": "+7d"}, "trust.validity"),
    ],
)
def test_compile_refuses_settings(changes, code):
    given = dict({"nodes": [node(1), node(2)], "site": "local", "ca": CA}, **changes)
    compiled, problems = ssh_config.compile_mesh(**given)
    assert compiled == {} and problems[0].code == code


def test_compile_refuses_an_empty_group():
    compiled, problems = ssh_config.compile_mesh([], "local", CA)
    assert compiled == {} and [problem.code for problem in problems] == ["trust.no_nodes"]


# --- what is compiled
# --------------------------------------------------------------------------------------------------


def compiled(nodes=None, site="local", ca=CA, **more):
    made, problems = ssh_config.compile_mesh(nodes or [node(1), node(2)], site, ca, **more)
    assert problems == []
    return made


def test_known_hosts_lists_every_name_with_its_port():
    lines = ssh_config.known_hosts(
        [node(1), node(2, port=2222, address="10.0.0.2", host="gpu-b", addresses=["192.0.2.2"])]
    ).splitlines()
    assert lines[0] == f"node1,198.51.100.11 {host_key(1)}"
    assert (
        lines[1]
        == f"node2,[node2]:2222,[10.0.0.2]:2222,[gpu-b]:2222,[192.0.2.2]:2222 {host_key(2)}"
    )


def test_ssh_keygen_finds_every_name(tmp_path):
    (tmp_path / "known_hosts").write_text(ssh_config.known_hosts([node(1), node(2, port=2222)]))
    for name in ("node1", "198.51.100.11", "node2", "[198.51.100.12]:2222"):
        assert (
            subprocess.run(
                ["ssh-keygen", "-F", name, "-f", str(tmp_path / "known_hosts")],
                capture_output=True,
                check=False,
            ).returncode
            == 0
        )


def ssh_reads(tmp_path, text, name):
    """What ssh itself makes of a configuration."""
    (tmp_path / "config").write_text(text)
    out = subprocess.run(
        ["ssh", "-G", "-F", str(tmp_path / "config"), name],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {
        line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in out.splitlines() if " " in line
    }


def test_ssh_reads_the_configuration(tmp_path):
    text = compiled([node(1), node(2, address="10.0.0.2", port=2222)])["config"]
    found = ssh_reads(tmp_path, text, "node2")
    assert (found["hostname"], found["port"], found["user"], found["hostkeyalias"]) == (
        "10.0.0.2",
        "2222",
        "trainer",
        "node2",
    )
    assert found["identityfile"] == "~/.trainyard/mesh/id_ed25519"
    assert found["certificatefile"] == "~/.trainyard/mesh/id_ed25519-cert.pub"
    assert found["userknownhostsfile"].endswith("/.trainyard/mesh/known_hosts")
    assert found["globalknownhostsfile"] == "/etc/ssh/no_known_hosts"
    assert found["connecttimeout"] == "5"


@pytest.mark.parametrize("name", ["node2", "198.51.100.12", "somewhere-else"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("stricthostkeychecking", "true"), ("forwardagent", "no"), ("identitiesonly", "yes"),
        ("identityagent", "none"),
        ("batchmode", "yes"), ("serveraliveinterval", "5"), ("serveralivecountmax", "3"),
        ("loglevel", "ERROR"),
        ("updatehostkeys", "false"), ("controlmaster", "false"),
        ("preferredauthentications", "publickey"), ("clearallforwardings", "yes"),
    ],
)  # fmt: skip
def test_ssh_keeps_the_mesh_strict(tmp_path, name, key, value):
    assert ssh_reads(tmp_path, compiled()["config"], name)[key] == value


def test_what_ssh_would_do_anyway_is_said_too():
    lines = [line.strip() for line in compiled()["config"].splitlines()]
    for line in (
        "ForwardAgent no",
        "ForwardX11 no",
        "StrictHostKeyChecking yes",
        "UpdateHostKeys no",
        "ControlMaster no",
        "RequestTTY no",
    ):
        assert line in lines


def test_an_address_that_two_nodes_share_is_no_name_of_either(tmp_path):
    text = compiled([node(1), node(2, address="198.51.100.11", port=2222)])["config"]
    assert "Host node1\n" in text
    assert "Host node2\n" in text


def test_an_address_that_is_another_nodes_name_stays_that_nodes():
    assert (
        "Host node1 198.51.100.11\n" in compiled([node(1), node(2, name="198.51.100.12")])["config"]
    )
    assert (
        "Host node1\n"
        in compiled([node(1, address="198.51.100.77"), node(2, name="198.51.100.77")])["config"]
    )


def test_an_absolute_directory_is_kept():
    assert (
        "IdentityFile /data/trainer/mesh/id_ed25519\n"
        in compiled(directory="/data/trainer/mesh")["config"]
    )


def test_each_peer_has_a_line_with_its_principal_addresses_and_name():
    lines = compiled([node(1), node(2, address="10.0.0.2", host="gpu-b", addresses=["192.0.2.2"])])[
        "lines"
    ]
    options, comments = zip(
        *(
            (line.split(" ssh-ed25519 ")[0], line.split(" ", 5)[-1].split(" ", 1)[1])
            for line in lines
        )
    )
    gate = "/usr/bin/python3 -I ~/.trainyard/mesh/gate.py"
    assert list(options) == [
        (
            f'cert-authority,restrict,principals="local/node1",from="198.51.100.11",command="{gate}'
            ' node1"'
        ),
        (
            f'cert-authority,restrict,principals="local/node2",from="10.0.0.2,192.0.2.2",command="{gate}'
            ' node2"'
        ),
    ]
    assert [comment[-len("trainyard-ca local node1") :] for comment in comments] == [
        "trainyard-ca local node1",
        "trainyard-ca local node2",
    ]
    assert all(f" {primitives.public_key(CA)} " in line for line in lines)


def test_nodes_that_share_a_home_share_the_principal_of_its_owner():
    made = compiled([node(1, home="a"), node(2, home="a")], consent=True)
    assert made["principals"] == {"node1": "local/node1", "node2": "local/node1"}
    assert ['principals="local/node1"' in line for line in made["lines"]] == [True, True]
    assert ['gate.py node1"' in made["lines"][0], 'gate.py node2"' in made["lines"][1]] == [
        True,
        True,
    ]


def test_a_line_takes_more_sources_and_both_families():
    lines = ssh_config.authorized_lines(
        [node(1, address="2001:db8::7")], "local", CA, ["203.0.113.9", "203.0.113.0/28"]
    )
    assert 'from="198.51.100.11,2001:db8::7,203.0.113.9/32,203.0.113.0/28"' in lines[0]


def test_before_the_authority_is_made_there_is_no_line():
    made = compiled(ca="")
    assert (made["lines"], made["digest"]) == ([], "")
    assert made["config"]


def line_of(site, number=1):
    return ssh_config.authorized_lines([node(number)], site, CA)[0]


def test_the_pattern_matches_the_own_lines_and_no_other():
    pattern = primitives.line_pattern("local")
    earlier = (
        f'cert-authority,restrict,principals="trainer",from="198.51.100.11" {primitives.public_key(CA)}'
        " trainyard-ca local"
    )
    for line in (line_of("local"), line_of("local", 3), earlier):
        assert re.match(pattern, line)
    for other in (
        line_of("local2"),
        line_of("xlocal"),
        CA,
        "# " + line_of("local"),
        line_of("local") + " x",
        line_of("x local"),
    ):
        assert not re.match(pattern, other)
    assert not re.match(primitives.line_pattern("a.b"), line_of("axb"))
    run = (
        'restrict,from="198.51.100.12",command="gate" ssh-ed25519 AAAA trainyard-run local'
        " 20261120-103501-a-1f2e 1 node2 node1"
    )
    assert authorized_keys.run_pattern("local").match(run) and not authorized_keys.run_pattern(
        "loc"
    ).match(run)
    assert not re.match(pattern, run)


def test_the_role_lays_the_mesh_where_probe_and_agent_look_for_it(root):
    variables = yaml.safe_load((root / "roles/ssh_trust/vars/main.yml").read_text())
    assert variables["__ssh_trust_place"] == primitives.DIRECTORY
    assert mesh_credential.MESH == primitives.DIRECTORY


@pytest.mark.parametrize(
    "changes",
    [
        {"address": "10.0.0.9"},
        {"port": 2222},
        {"host": "x"},
        {"addresses": ["10.0.0.9"]},
        {"host_keys": [host_key(7)]},
        {"name": "node9"},
    ],
)
def test_the_digest_follows_every_input(changes):
    assert compiled([node(1), node(2, **changes)])["digest"] != compiled()["digest"]


def test_the_digest_follows_authority_user_site_sources_and_order():
    base = compiled()["digest"]
    assert compiled(ca=host_key(5))["digest"] != base
    assert compiled([node(1, user="a"), node(2, user="a")])["digest"] != base
    assert compiled(site="other")["digest"] != base
    assert compiled(extra=["203.0.113.9"])["digest"] != base
    assert compiled(gate="another program")["digest"] != base
    assert compiled([node(2), node(1)])["digest"] != base
    assert compiled(ca=primitives.public_key(CA) + " another comment")["digest"] == base


def test_the_inventory_digest_reads_missing_values_as_ansible_does():
    assert primitives.inventory_digest([("node1", "", None, None)]) == primitives.inventory_digest(
        [("node1", "node1", 22, "")]
    )
    base = primitives.inventory_digest([("node1", "a", 22, "")])
    for changed in (
        ("node1", "b", 22, ""),
        ("node1", "a", 2222, ""),
        ("node1", "a", 22, "10.0.0.1"),
        ("node2", "a", 22, ""),
    ):
        assert primitives.inventory_digest([changed]) != base
    assert primitives.inventory_digest(
        [("a", "a", 22, ""), ("b", "b", 22, "")]
    ) != primitives.inventory_digest([("b", "b", 22, ""), ("a", "a", 22, "")])


def test_a_site_of_hundreds_compiles_in_no_time():
    many = [
        node(
            1,
            name=f"n{i}",
            address=f"10.0.{i // 250}.{i % 250 + 1}",
            identity=str(i),
            host_keys=[f"ssh-rsa {i}"],
        )
        for i in range(500)
    ]
    started = time.monotonic()
    assert len(compiled(many)["nodes"]) == 500
    assert time.monotonic() - started < 5


# --- what a node holds
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, authority):
    """A home directory with a proven mesh, and what was compiled for it."""
    place = tmp_path / ".trainyard" / "mesh"
    place.mkdir(parents=True)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / "etc").mkdir()
    sign(authority, place, "-1h:+7d")
    shutil.copy(authority / "id_ed25519", place / "id_ed25519")
    (place / "id_ed25519").chmod(0o600)
    (tmp_path / "etc" / "ssh_host_ed25519_key.pub").write_text(host_key(1) + " root@node1\n")
    made = compiled(ca=(authority / "ca.pub").read_text())
    (place / "known_hosts").write_text(made["known_hosts"])
    (place / "config").write_text(made["config"])
    (place / "gate.py").write_text("gate")
    (place / "tree_sender.py").write_text("sender")
    (tmp_path / ".ssh" / "authorized_keys").write_text(
        "\n".join([*made["lines"], f"{host_key(8)} visitor"]) + "\n"
    )
    told = {
        "site": "local",
        "nodes": made["nodes"],
        "digest": made["digest"],
        "inventory": made["inventory"],
        "authority": AUTHORITY,
    }
    record = store.new_record(
        str(tmp_path),
        told,
        1234.9,
        host_keys=[str(tmp_path / "etc" / "ssh_host_*_key.pub")],
        writer=store.own_identity(),
    )
    store.write_record(str(place), record)
    return tmp_path, made


def test_state_of_a_proven_mesh(home):
    place, made = home
    state = store.mesh_state(str(place), time.time())
    assert state["present"] is True
    assert (state["site"], state["digest"], state["inventory"], state["nodes"]) == (
        "local",
        made["digest"],
        made["inventory"],
        ["node1", "node2"],
    )
    assert state["proven"] == 1234
    assert state["stale"] == []
    assert state["valid_until"] == pytest.approx(time.time() + 7 * 86400, abs=62)


def test_the_record_holds_what_readers_of_it_need(home):
    record = json.loads((home[0] / ".trainyard/mesh/mesh.json").read_text())
    assert record["version"] == primitives.RECORD_VERSION
    assert set(record) >= {"site", "nodes", "digest", "valid_until", "proven"}
    assert (home[0] / ".trainyard/mesh/mesh.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("damage", "stale"),
    [
        (lambda h: (h / ".trainyard/mesh/config").write_text("x"), "config"),
        (lambda h: (h / ".trainyard/mesh/known_hosts").open("a").write("x"), "known_hosts"),
        (lambda h: (h / ".trainyard/mesh/gate.py").write_text("another"), "gate.py"),
        (lambda h: (h / ".trainyard/mesh/gate.py").unlink(), "gate.py"),
        (lambda h: (h / ".trainyard/mesh/tree_sender.py").write_text("another"), "tree_sender.py"),
        (lambda h: (h / ".trainyard/mesh/id_ed25519").unlink(), "id_ed25519"),
        (lambda h: (h / ".trainyard/mesh/id_ed25519").write_text("garbage"), "id_ed25519"),
        (lambda h: (h / ".trainyard/mesh/id_ed25519").chmod(0o644), "key exposed"),
        (lambda h: (h / ".trainyard/mesh/id_ed25519-cert.pub").unlink(), "id_ed25519-cert.pub"),
        (lambda h: (h / ".ssh/authorized_keys").write_text(host_key(8) + "\n"), "authorized_keys"),
        (lambda h: (h / ".ssh/authorized_keys").unlink(), "authorized_keys"),
        (
            lambda h: (h / ".ssh/authorized_keys").write_text(
                (h / ".ssh/authorized_keys").read_text().replace("198.51.100.12", "203.0.113.1")
            ),
            "authorized_keys",
        ),
        (
            lambda h: (h / "etc/ssh_host_ed25519_key.pub").write_text(host_key(9) + " new\n"),
            "host key",
        ),
    ],
)
def test_a_proof_does_not_outlive_what_was_proven(home, damage, stale):
    damage(home[0])
    state = store.mesh_state(str(home[0]), time.time())
    assert stale in state["stale"]
    assert state["proven"] is None


def test_a_mesh_of_an_earlier_trainyard_is_made_again(home):
    path = home[0] / ".trainyard/mesh/mesh.json"
    path.write_text(json.dumps(dict(json.loads(path.read_text()), version=1)))
    state = store.mesh_state(str(home[0]), time.time())
    assert (state["present"], state["proven"], state["site"]) == (True, None, "local")


def test_keys_of_a_machine_that_the_controller_has_not_pinned_are_no_reason_for_a_new_proof(home):
    (home[0] / "etc/ssh_host_rsa_key.pub").write_text(host_key(33) + " another type\n")
    assert store.mesh_state(str(home[0]), time.time())["proven"] == 1234


def test_attempts_under_the_one_line_of_an_earlier_trainyard_are_named(home):
    def units(argv):
        return 0, "trainyard-20261120-103501-a-1f2e-1.service loaded active running x\n", ""

    assert store.earlier_attempts(str(home[0]), "local", primitives.DIRECTORY, units) == []
    keys = home[0] / ".ssh/authorized_keys"
    keys.write_text(
        f'cert-authority,restrict,principals="trainer" {primitives.public_key(CA)} trainyard-ca local\n'
    )
    found = store.earlier_attempts(str(home[0]), "local", primitives.DIRECTORY, units)
    assert len(found) == 1 and "trainyard-20261120-103501-a-1f2e-1.service" in found[0]
    assert (
        store.earlier_attempts(
            str(home[0]), "local", primitives.DIRECTORY, lambda argv: (0, "", "")
        )
        == []
    )


def test_another_line_in_authorized_keys_is_not_our_matter(home):
    with (home[0] / ".ssh/authorized_keys").open("a") as handle:
        handle.write(host_key(9) + " a colleague\n")
    assert store.mesh_state(str(home[0]), time.time())["stale"] == []


def test_an_expired_certificate_ends_the_proof(home):
    state = store.mesh_state(str(home[0]), time.time() + 8 * 86400)
    assert state["stale"] == ["certificate expired"]
    assert state["proven"] is None


def test_a_copied_disk_has_no_proof(home, monkeypatch):
    monkeypatch.setattr(store, "own_identity", lambda: primitives.identity("another", "node2"))
    stale = store.mesh_state(str(home[0]), time.time())["stale"]
    assert len(stale) == 1 and stale[0].endswith("another machine")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version": 9}', '"x"'])
def test_a_broken_record_is_none(home, text):
    (home[0] / ".trainyard/mesh/mesh.json").write_text(text)
    state = store.mesh_state(str(home[0]), time.time())
    assert (state["present"], state["proven"], state["nodes"]) == (False, None, [])


def test_a_record_with_odd_contents_does_not_raise(home):
    (home[0] / ".trainyard/mesh/mesh.json").write_text(
        '{"version": 1, "files": 3, "nodes": "x", "site": null, "proven": 1}'
    )
    state = store.mesh_state(str(home[0]), time.time())
    assert (state["proven"], state["nodes"]) == (None, [])


def test_a_missing_file_is_stale_whatever_was_recorded(home):
    path = home[0] / ".trainyard/mesh/mesh.json"
    path.write_text(json.dumps(dict(json.loads(path.read_text()), files={})))
    (home[0] / ".trainyard/mesh/config").unlink()
    assert "config" in store.mesh_state(str(home[0]), time.time())["stale"]


def test_no_line_is_not_the_same_as_a_proven_line(home):
    path = home[0] / ".trainyard/mesh/mesh.json"
    path.write_text(json.dumps(dict(json.loads(path.read_text()), line=None)))
    (home[0] / ".ssh/authorized_keys").unlink()
    assert store.mesh_state(str(home[0]), time.time())["stale"] == ["authorized_keys"]


def test_no_mesh_at_all(tmp_path):
    assert store.mesh_state(str(tmp_path), 0)["present"] is False


def test_withdraw_takes_the_proof_and_nothing_else(home):
    before = json.loads((home[0] / ".trainyard/mesh/mesh.json").read_text())
    assert store.withdraw(str(home[0])) is True
    assert json.loads((home[0] / ".trainyard/mesh/mesh.json").read_text()) == dict(
        before, proven=None
    )
    assert store.withdraw(str(home[0])) is False
    assert store.withdraw(str(home[0] / "nowhere")) is False


def test_differs_looks_past_the_time():
    assert store.differs(None, {"a": 1}) is True
    assert store.differs({"a": 1, "proven": 1}, {"a": 1, "proven": 2}) is False
    assert store.differs({"a": 1, "proven": 1}, {"a": 2, "proven": 1}) is True


def test_key_to_replace(home):
    place = home[0] / ".trainyard/mesh"
    assert store.key_to_replace(str(place), "node1") is False
    assert store.key_to_replace(str(place), "node2") is True
    (place / "id_ed25519").chmod(0o640)
    assert store.key_to_replace(str(place), "node1") is True
    assert store.key_to_replace(str(home[0] / "nowhere"), "node1") is False


def states(home, made, **changes):
    state = dict(store.mesh_state(str(home), time.time()), **changes)
    return [state, dict(store.mesh_state(str(home), time.time()))], made


def test_ready(home):
    found, made = states(*home)
    assert ssh_config.is_ready(made, found, time.time(), 86400) is True


@pytest.mark.parametrize(
    "changes",
    [
        {"proven": None},
        {"digest": "x"},
        {"inventory": "x"},
        {"nodes": ["node1"]},
        {"valid_until": None},
    ],
)
def test_not_ready(home, changes):
    found, made = states(*home, **changes)
    assert ssh_config.is_ready(made, found, time.time(), 86400) is False


def test_not_ready_when_renewal_is_due_or_the_authority_is_not_made(home):
    found, made = states(*home)
    assert ssh_config.is_ready(made, found, time.time() + 6.5 * 86400, 86400) is False
    assert (
        ssh_config.is_ready(
            dict(made, digest=""), [dict(state, digest="") for state in found], time.time(), 86400
        )
        is False
    )


def test_describe_node_here(tmp_path, monkeypatch):
    monkeypatch.setattr(node_description.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(node_description, "own_identity", lambda: "me")
    monkeypatch.setattr(node_description.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(
        node_description.pwd,
        "getpwuid",
        lambda uid: node_description.pwd.struct_passwd(
            ("trainer", "x", uid, uid, "", str(tmp_path), "/bin/sh")
        ),
    )
    (tmp_path / "ssh_host_ed25519_key.pub").write_text(host_key(4) + " root@here\n")
    (tmp_path / "ssh_host_dsa_key.pub").write_text("ssh-dss AAAA old\n")
    patterns = [str(tmp_path / "ssh_host_*_key.pub")]
    environ = {
        "SSH_CONNECTION": "192.0.2.1 50000 192.0.2.7 2222",
        "SUDO_USER": "visitor",
    }  # a training user may have been reached by su
    found = node_description.describe_node(
        "gpu-a",
        "",
        22,
        "",
        0,
        ".trainyard/mesh",
        patterns,
        [],
        lambda argv: (0, IP_JSON, ""),
        environ,
    )
    assert (found["address"], found["port"], found["host"], found["addresses"]) == (
        "192.0.2.7",
        2222,
        "gpu-a",
        ["192.0.2.7"],
    )
    assert found["host_keys"] == [host_key(4)]
    assert found["inventory"] == ["gpu-a", "", 22, ""]
    assert (found["identity"], found["user"], found["problems"]) == ("me", "trainer", [])


def test_describe_node_sees_on_what_the_home_lies():
    kinds = {line.split(" - ")[1].split()[0] for line in open("/proc/self/mountinfo")}
    assert node_description.describe_node(
        "a", "b", 22, "", 0, "x", [], sorted(kinds), lambda argv: (1, "", ""), {}
    )["home"]
    assert (
        node_description.describe_node(
            "a", "b", 22, "", 0, "x", [], [], lambda argv: (1, "", ""), {}
        )["home"]
        == ""
    )


def test_describe_node_takes_the_inventory_where_there_is_no_ssh(tmp_path):
    found = node_description.describe_node(
        "gpu-a",
        "10.9.9.9",
        2200,
        "",
        0,
        "x",
        [str(tmp_path / "none")],
        [],
        lambda argv: (1, "", ""),
        {},
    )
    assert (found["address"], found["port"], found["host"], found["addresses"]) == (
        "10.9.9.9",
        2200,
        "10.9.9.9",
        [],
    )
    assert any("no host public key found" in text for text in found["problems"])
    assert (
        node_description.describe_node(
            "a", "b", 22, "", 2022, "x", [], [], lambda argv: (1, "", ""), {}
        )["port"]
        == 2022
    )


def test_describe_node_says_what_is_wrong(monkeypatch):
    monkeypatch.setattr(node_description.shutil, "which", lambda name: None)
    monkeypatch.setattr(node_description.os, "geteuid", lambda: 0)
    monkeypatch.setattr(store, "WHO", ("/nonexistent", "/proc/sys/kernel/hostname"))
    found = node_description.describe_node(
        "a",
        "b",
        22,
        "10.2.0.0/16",
        0,
        "x",
        [],
        [],
        lambda argv: (0, IP_JSON, ""),
        {"SUDO_USER": "trainer"},
    )
    told = "\n".join(found["problems"])
    for words in (
        "must hold exactly one address",
        "became root from trainer",
        "has no ssh;",
        "has no ssh-keygen;",
        "has no machine id",
    ):
        assert words in told


def test_run_program_is_bounded_and_never_raises():
    assert commands.run_program(["sh", "-c", "echo a; echo $LC_ALL >&2; exit 3"]) == (
        3,
        "a\n",
        "C\n",
    )
    started = time.monotonic()
    assert commands.run_program(["sleep", "30"], timeout=0.2) == (None, "", "")
    assert time.monotonic() - started < 5
    assert commands.run_program(["/nonexistent/ssh"])[0] == 127
    assert commands.run_program(["cat"])[0] == 0  # no input is ever waited for


@pytest.mark.parametrize("where", ["", ">&2"], ids=["stdout", "stderr"])
def test_a_program_that_says_too_much_is_ended(where):
    many = f"head -c 300000000 /dev/zero {where}"
    code, out, err = commands.run_program(["sh", "-c", many])
    assert (code, out) == (None, "") and 0 < len(err) < 300
    most = commands.run_program(
        ["sh", "-c", "head -c %d /dev/zero %s; exit 3" % (commands.MOST_BYTES, where)]
    )
    assert (most[0], len(most[1] + most[2])) == (3, commands.MOST_BYTES)
    assert login_check.classify_login(code, err) != login_check.classify_login(None, "")


def test_own_fault(home):
    place = home[0] / ".trainyard/mesh"
    assert login_check.own_fault(str(place), time.time()) is None
    assert "has expired" in login_check.own_fault(str(place), time.time() + 8 * 86400)[0]
    (place / "id_ed25519").chmod(0o604)
    assert "can be read by others" in login_check.own_fault(str(place), time.time())[0]
    (place / "id_ed25519").chmod(0o600)
    (place / "id_ed25519-cert.pub").unlink()
    assert "has no certificate" in login_check.own_fault(str(place), time.time())[0]
    (place / "id_ed25519").unlink()
    assert "no key of its own" in login_check.own_fault(str(place), time.time())[0]
