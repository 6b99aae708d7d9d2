# SPDX-License-Identifier: Apache-2.0
"""A release: refused until everything names its version, and then complete with its check sums."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from core_support import ROOT

GALAXY = Path("collections/ansible_collections/trainyard/cluster/galaxy.yml")


@pytest.fixture
def clone(tmp_path):
    """A clone of this commit, with the build's own programs."""
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    return folder


def commit(folder, **texts):
    """Write files into a clone, and commit them."""
    for name, text in texts.items():
        path = folder / {"changelog": "CHANGELOG.md", "galaxy": GALAXY}[name]
        path.write_text(text)
    words = ["-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qam", "release"]
    subprocess.run(["git", *words], cwd=folder, check=True)


def release(folder, out):
    """Build the release of a clone with the Python of these tests."""
    return subprocess.run(
        [sys.executable, folder / ".config" / "release.py", out],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def version_of(folder):
    """Return the wheel's version."""
    text = (folder / "pyproject.toml").read_text()
    return re.search(r'^version = "(.+)"$', text, flags=re.M).group(1)


def test_collection_and_wheel_have_one_version():
    assert f"\nversion: {version_of(ROOT)}\n" in (ROOT / GALAXY).read_text()


def test_a_release_that_is_not_prepared_is_refused(clone, tmp_path):
    galaxy = (clone / GALAXY).read_text().replace(version_of(clone), "9.9.9")
    commit(clone, galaxy=galaxy, changelog="# Changes\n\n## Unreleased\n\n- a line\n")
    (clone / "README.md").write_text("changed")
    done = release(clone, tmp_path / "dist")
    assert done.returncode == 1 and not (tmp_path / "dist").exists()
    files = [line.partition(":")[0] for line in done.stderr.splitlines()[1:]]
    assert files == [str(GALAXY), "CHANGELOG.md", "CHANGELOG.md", "git"]


def test_a_prepared_release_has_all_files_and_their_sums(clone, tmp_path):
    version = version_of(clone)
    heading = f"## {version} (2026-11-24)"
    commit(clone, changelog=f"# Changes\n\n## Unreleased\n\n{heading}\n\n- a line\n")
    out = tmp_path / "dist"
    done = release(clone, out)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in out.iterdir()} == {
        f"trainyard-cluster-{version}.tar.gz",
        f"trainyard-{version}-py3-none-any.whl",
        "release-notes.md",
        "SHA256SUMS",
    }
    assert (out / "release-notes.md").read_text() == "- a line\n"
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=out, check=True)
    assert release(clone, out).returncode == 1, "an old release is not overwritten"
