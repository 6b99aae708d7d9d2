# SPDX-License-Identifier: Apache-2.0
"""A report names an rsync that a hostile sender can mislead, and an sshd with a known hole. It does
not name programs that a distribution has fixed.
"""

from __future__ import annotations

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.preflight import (
    openssh,
    package_fixes,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.preflight import controller_programs

OLD = "\n -- A Maintainer <a@debian.invalid>  Mon, 13 Jan 2020 08:00:00 +0200\n"
NEW = "\n -- A Maintainer <a@debian.invalid>  Tue, 13 May 2025 08:00:00 +0200\n"
RPM = "* Mon Jan 13 2020 A Packager <a@redhat.invalid> - 8.7p1-1\n- first\n"
LATER = "  * CVE-2026-43618, CVE-2026-70456, CVE-2026-70458, CVE-2026-70461\n"
FIXED = (
    "rsync (3.2.7-1+deb12u1)\n  * CVE-2024-12084, CVE-2024-12085,\n    CVE-2024-12086,"
    " CVE-2024-12087, CVE-2024-12088\n" + LATER + NEW
)


@pytest.mark.parametrize(
    "version, changes, words",
    [
        ("rsync  version 3.5.0  protocol version 32\n", "", None),
        ("rsync  version 3.4.4  protocol version 32\n", LATER, None),
        (
            "rsync  version 3.4.4  protocol version 32\n",
            LATER.replace("70458", "704580") + OLD,
            "it is unknown whether rsync 3.4.4",
        ),
        (
            "rsync  version 3.4.2  protocol version 32\n",
            LATER.replace("43618", "1") + OLD,
            "is not fixed for CVE-2026-43618,",
        ),
        (
            "rsync  version 3.4.2  protocol version 32\n",
            LATER.replace("43618", "1"),
            "it is unknown whether rsync 3.4.2",
        ),
        ("rsync  version 3.4.1  protocol version 32\n", "", "it is unknown whether rsync 3.4.1"),
        ("rsync  version 3.10.1  protocol version 33\n", "", None),
        ("rsync  version 3.2.7  protocol version 31\n", FIXED, None),
        (
            "rsync  version 3.2.7  protocol version 31\n",
            FIXED.replace("12087", "1") + OLD,
            "is not fixed for CVE-2024-12087,",
        ),
        (
            "rsync  version 3.2.7  protocol version 31\n",
            FIXED.replace("12087", "1"),
            "it is unknown whether rsync 3.2.7",
        ),
        ("rsync  version 3.1.3  protocol version 31\n", "", "it is unknown whether rsync 3.1.3"),
        ("what?", "", "it is unknown whether rsync an unknown version"),
        (
            "rsync  version 3.2.7  protocol version 31\n",
            FIXED.replace("12084", "1") + OLD,
            "is not fixed for CVE-2024-12084,",
        ),
        (
            "rsync  version 3.3.0  protocol version 31\n",
            FIXED.replace("12085", "1") + OLD,
            "is not fixed for CVE-2024-12085,",
        ),
        # Debian 11 and Ubuntu 20.04: older than the overflow, which their change logs do not name
        # as fixed.
        ("rsync  version 3.2.3  protocol version 31\n", FIXED.replace("12084", "1") + OLD, None),
    ],
)
def test_rsync_is_judged_by_version_and_by_its_package(version, changes, words):
    said = controller_programs.rsync_warning(version, changes)
    assert (said is None) if words is None else words in said


@pytest.mark.parametrize(
    "version, changes, fixed",
    [
        ("OpenSSH_8.4p1 Debian-5", "", True),
        ("OpenSSH_8.5p1", OLD, False),
        ("OpenSSH_9.7p1", OLD, False),
        ("OpenSSH_9.8p1", "", True),
        ("OpenSSH_10.0p2 Debian-7", "", True),
        ("OpenSSH_9.2p1 Debian-2+deb12u2", "", False),
        ("OpenSSH_9.2p1 Debian-2+deb12u3", "", True),
        ("OpenSSH_9.2p1 Debian-2+deb12u10", "", True),
        ("OpenSSH_8.9p1 Ubuntu-3ubuntu0.9", "", False),
        ("OpenSSH_9.6p1 Ubuntu-3ubuntu13.15", "", True),
        ("OpenSSH_8.7p1", RPM, False),
        (
            "OpenSSH_8.7p1",
            RPM + "* Wed Jul 03 2024 A Packager <a@redhat.invalid>\n- CVE-2024-6387\n",
            True,
        ),
        (
            "OpenSSH_8.7p1",
            RPM + "* Wed Jul 03 2024 A Packager <a@redhat.invalid>\n- CVE-2024-63870\n",
            False,
        ),
        ("OpenSSH_8.7p1", "", None),
        ("OpenSSH_8.9p1 Other-1", NEW, None),
        ("Dropbear v2022.83", OLD, None),
        ("", "", None),
    ],
)
def test_sshd_is_judged_by_version_package_and_change_log(version, changes, fixed):
    assert openssh.is_fixed(version, changes) is fixed
    found = openssh.problem({"version": version, "fixed": fixed})
    assert (found is None) is (fixed is True)
    assert found is None or ("unknown" in found[0]) is (fixed is None)


def test_what_a_controller_has_is_looked_at_by_the_verbs_that_use_it(tmp_path, monkeypatch):
    for name, said in (
        ("rsync", "rsync  version 3.1.0  protocol version 31"),
        ("ssh", "OpenSSH_9.2p1 Debian-2+deb12u2, OpenSSL 3"),
        ("sshd", ""),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{said}' >&2\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(openssh, "SYSTEM", str(tmp_path))
    monkeypatch.setattr(package_fixes.glob, "glob", lambda _pattern: [])
    said = controller_programs.warnings("train")
    assert len(said) == 2 and "CVE-2024-12086" in said[0] and openssh.CVE in said[1]
    assert openssh.look() == {"version": "OpenSSH_9.2p1 Debian-2+deb12u2", "fixed": False}
    assert controller_programs.warnings("sync") == controller_programs.warnings("provision") == said
    assert controller_programs.warnings("status") == controller_programs.warnings("trust") == []
    (tmp_path / "rsync").unlink()
    assert len(controller_programs.warnings("logs")) == 1


def test_a_change_log_is_read_whether_packed_or_not(tmp_path, monkeypatch):
    (tmp_path / "changelog.Debian").write_text(OLD)
    monkeypatch.setattr(
        package_fixes.glob,
        "glob",
        lambda _pattern: [
            str(tmp_path / "changelog.Debian.gz"),
            str(tmp_path / "changelog.Debian"),
        ],
    )
    assert package_fixes.change_log("x") == OLD  # the first one is not there
    (tmp_path / "changelog.Debian.gz").write_bytes(package_fixes.gzip.compress(NEW.encode()))
    assert package_fixes.change_log("x") == NEW


def test_a_users_own_ssh_says_nothing_of_the_systems_server(tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text("#!/bin/sh\necho 'OpenSSH_9.0p1' >&2\n")
    (tmp_path / "ssh").chmod(0o755)
    before = openssh.look()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert openssh.look() == before
