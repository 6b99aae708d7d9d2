# SPDX-License-Identifier: Apache-2.0
"""The certificates against OpenSSH's own sshd, on loopback with a configuration of its own: whom it
lets in, and whom not any more.
"""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import socket
import subprocess
import time

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.mesh import (
    authorized_keys,
    primitives,
)

# .config/sshd.sh names one that is unpacked and not installed; `make test` sets this where there
# must be one.
SSHD = os.environ.get("TRAINYARD_SSHD") or shutil.which(
    "sshd", path="/usr/sbin:/usr/local/sbin:/sbin:" + os.environ["PATH"]
)


def can_serve():
    """Return whether sshd can run here: as root it needs its own account."""
    try:
        return bool(SSHD) and (os.geteuid() != 0 or bool(pwd.getpwnam("sshd")))
    except KeyError:
        return False


pytestmark = pytest.mark.skipif(
    not can_serve() and not os.environ.get("TRAINYARD_SSHD"),
    reason="OpenSSH's server is not here; .config/sshd.sh as root",
)
CONFIG = """\
ListenAddress 127.0.0.1:{port}
HostKey {place}/host
AuthorizedKeysFile {place}/authorized_keys
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
PidFile none
"""


def make_key(path):
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "x", "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return primitives.public_key(path.with_name(path.name + ".pub").read_text())


@pytest.fixture
def port(tmp_path):
    """The port of an sshd that reads tmp_path/authorized_keys; it ends with the test."""
    make_key(tmp_path / "host")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number = probe.getsockname()[1]
    (tmp_path / "sshd_config").write_text(CONFIG.format(port=number, place=tmp_path))
    made = os.geteuid() == 0 and not os.path.isdir("/run/sshd")
    if made:
        os.mkdir("/run/sshd", 0o755)
    with open(tmp_path / "sshd.log", "wb") as log:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
    deadline = time.monotonic() + 20
    while (
        "Server listening" not in (tmp_path / "sshd.log").read_text()
        and time.monotonic() < deadline
        and server.poll() is None
    ):
        time.sleep(0.05)
    yield number
    server.terminate()
    server.wait(10)
    if made:
        os.rmdir("/run/sshd")


@pytest.fixture
def site(tmp_path, run_action, port):
    """Authority, certificates and lines of two nodes as the modules make them, and the answer that
    a login gets.
    """

    class Site:
        keys = {name: make_key(tmp_path / name) for name in ("node1", "node2")}

        def authority(self, **more):
            return run_action(
                "mesh_authority", dict({"directory": str(tmp_path / "ca"), "site": "lab"}, **more)
            ).get("public_key")

        def sign(self, names=("node1", "node2"), **more):
            given = {
                "directory": str(tmp_path / "ca"),
                "site": "lab",
                "ca_public_key": self.authority(),
            }
            found = run_action(
                "mesh_sign", dict(given, keys={name: self.keys[name] for name in names}, **more)
            )["certificates"]
            for name, text in found.items():
                (tmp_path / (name + "-cert.pub")).write_text(text)

        def lines(self, names=("node1", "node2"), **more):
            """Set the lines of these nodes for the present authority, each with a command that says
            whose line it is.
            """
            form = (
                'cert-authority,restrict,principals="{}",from="127.0.0.1",command="echo line of {}"'
                " {} trainyard-ca lab"
            )
            wanted = (
                None
                if names is None
                else [
                    form.format(primitives.principal("lab", name), name, self.authority())
                    for name in names
                ]
            )
            path = tmp_path / "authorized_keys"
            path.write_text(
                authorized_keys.arrange(
                    path.read_text() if path.exists() else "", "lab", wanted, **more
                )[0]
            )

        def log_in(self, name, certificate=None):
            """Log in with a node's key and a certificate; return what the line's command said, or
            '' where it was refused.
            """
            certificate = certificate or tmp_path / (name + "-cert.pub")
            argv = [
                "ssh",
                "-F",
                "none",
                "-p",
                str(port),
                "-i",
                str(tmp_path / name),
                "-o",
                f"CertificateFile={certificate}",
            ]
            for option in (
                "IdentitiesOnly=yes", "IdentityAgent=none", "BatchMode=yes",
                "StrictHostKeyChecking=yes", "GlobalKnownHostsFile=none",
                f"UserKnownHostsFile={tmp_path}/known_hosts", "PreferredAuthentications=publickey",
            ):  # fmt: skip
                argv += ["-o", option]
            kind, blob = (tmp_path / "host.pub").read_text().split()[:2]
            (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {blob}\n")
            done = subprocess.run(
                [*argv, f"{getpass.getuser()}@127.0.0.1", "id"],
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
            )
            assert done.returncode == 0 or "Permission denied (publickey" in done.stderr, (
                done.stderr
            )
            return done.stdout.strip() if done.returncode == 0 else ""

    made = Site()
    made.authority()
    made.sign()
    made.lines()
    return made


def test_each_node_is_let_in_by_its_own_line_and_by_no_other(site):
    assert (site.log_in("node1"), site.log_in("node2")) == ("line of node1", "line of node2")
    site.lines(["node1"], keep=False)
    assert (site.log_in("node1"), site.log_in("node2")) == ("line of node1", "")


def test_a_certificate_is_good_for_the_key_that_was_signed_alone(site, tmp_path):
    assert site.log_in("node2", tmp_path / "node1-cert.pub") == ""


def test_an_expired_certificate_is_refused(site):
    site.sign(["node1"], validity="+3s", renew_before="+1s")
    assert site.log_in("node1") == "line of node1"
    time.sleep(4)
    assert site.log_in("node1") == ""
    site.sign(["node1"])
    assert site.log_in("node1") == "line of node1"


def test_a_certificate_holds_for_a_peer_whose_clock_is_behind(site, tmp_path):
    """Checked by ssh-keygen's own reading: it holds from some minutes before it was made."""
    told = subprocess.run(
        ["ssh-keygen", "-L", "-f", str(tmp_path / "node1-cert.pub")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    begins = time.mktime(
        time.strptime(told.split("Valid: from ")[1].split()[0], "%Y-%m-%dT%H:%M:%S")
    )
    assert 200 < time.time() - begins < 600


def test_a_node_that_was_taken_back_is_refused(site):
    site.lines(None, gone=["node2"])
    assert (site.log_in("node1"), site.log_in("node2")) == ("line of node1", "")


def test_after_a_rotation_the_former_authority_is_refused(site, tmp_path):
    """At each step every node is let in by what it holds at that moment."""
    shutil.copy(tmp_path / "node1-cert.pub", tmp_path / "former-cert.pub")
    site.authority(rotate=True)
    site.lines()  # the earlier lines stay
    assert site.log_in("node1", tmp_path / "former-cert.pub") == "line of node1"
    site.sign()
    assert (site.log_in("node1"), site.log_in("node2")) == ("line of node1", "line of node2")
    assert site.log_in("node1", tmp_path / "former-cert.pub") == "line of node1"
    site.lines(keep=False)
    assert (site.log_in("node1"), site.log_in("node2")) == ("line of node1", "line of node2")
    assert site.log_in("node1", tmp_path / "former-cert.pub") == ""
