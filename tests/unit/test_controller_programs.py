# SPDX-License-Identifier: Apache-2.0
"""An rsync that a hostile sender can lead astray is named; one that a distribution has mended is not."""

from __future__ import annotations

import pytest
from ansible.module_utils.trainyard import controller_programs

MENDED = "rsync (3.2.7-1+deb12u1)\n  * CVE-2024-12084, CVE-2024-12085,\n    CVE-2024-12086, CVE-2024-12087, CVE-2024-12088\n"


@pytest.mark.parametrize(
    "version, changes, words",
    [
        ("rsync  version 3.4.0  protocol version 32\n", "", None),
        ("rsync  version 3.10.1  protocol version 33\n", "", None),
        ("rsync  version 3.2.7  protocol version 31\n", MENDED, None),
        ("rsync  version 3.2.7  protocol version 31\n", MENDED.replace("12087", "1"), "is not mended for CVE-2024-12087,"),
        ("rsync  version 3.1.3  protocol version 31\n", "", "it is unknown whether rsync 3.1.3"),
        ("what?", "", "it is unknown whether rsync an unknown version"),
    ],
)
def test_rsync_is_judged_by_version_and_by_its_package(version, changes, words):
    said = controller_programs.rsync_warning(version, changes)
    assert (said is None) if words is None else words in said


def test_what_the_controller_has_is_looked_at(tmp_path, monkeypatch):
    (tmp_path / "rsync").write_text("#!/bin/sh\necho 'rsync  version 3.1.0  protocol version 31'\n")
    (tmp_path / "rsync").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(controller_programs.glob, "glob", lambda _pattern: [])
    assert len(controller_programs.warnings()) == 1
    (tmp_path / "rsync").unlink()
    assert controller_programs.warnings() == []
