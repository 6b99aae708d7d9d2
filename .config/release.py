# SPDX-License-Identifier: Apache-2.0
"""Build the files of a release: collection, wheel, notes and SHA256SUMS.

docs/releasing.md has all steps of a release.

    .venv/bin/python .config/release.py [DIRECTORY]     (default: dist)

Nothing is built unless pyproject.toml, galaxy.yml and CHANGELOG.md name the same version, nothing
waits under "Unreleased", and all changes are committed.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
GALAXY = "collections/ansible_collections/trainyard/cluster/galaxy.yml"
NOTES = "release-notes.md"


def read_versions(root: Path) -> tuple[str, str]:
    """Return the version of the wheel and the version of the collection."""
    wheel = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    collection = yaml.safe_load((root / GALAXY).read_text(encoding="utf-8"))
    return wheel["project"]["version"], str(collection["version"])


def read_sections(root: Path) -> dict[str, str]:
    """Return the text of each section of CHANGELOG.md by its heading."""
    parts = re.split(r"^## (.+)$", (root / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], map(str.strip, parts[2::2]), strict=True))


def find_problems(root: Path) -> list[str]:
    """Return what prevents a release. Each item names the file to change."""
    wheel, collection = read_versions(root)
    sections, problems = read_sections(root), []
    if wheel != collection:
        problems.append(f"{GALAXY}: version {collection}, but pyproject.toml has {wheel}")
    if sections.get("Unreleased"):
        problems.append(
            "CHANGELOG.md: lines wait under Unreleased. Move them to the version's section"
        )
    if not any(_is_of(heading, wheel) and text for heading, text in sections.items()):
        problems.append(f"CHANGELOG.md: no section `## {wheel} (YEAR-MONTH-DAY)` with text")
    if _git(root, "status", "--porcelain"):
        problems.append("git: changes are not committed")
    return problems


def build(root: Path, out: Path) -> list[Path]:
    """Build everything into an empty directory. Return the files."""
    wheel, _collection = read_versions(root)
    out.mkdir(parents=True, exist_ok=True)
    # The same commit gives the same wheel.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _git(root, "log", "-1", "--format=%ct")}
    subprocess.run([sys.executable, root / ".config" / "collection.py", out], check=True)
    uv = Path(sys.executable).with_name("uv")
    subprocess.run(
        [uv, "build", "--quiet", "--wheel", "--no-create-gitignore", "--out-dir", out, root],
        check=True,
        env=environment,
    )
    notes = [text for heading, text in read_sections(root).items() if _is_of(heading, wheel)]
    (out / NOTES).write_text(notes[0] + "\n", encoding="utf-8")
    files = sorted(path for path in out.iterdir() if path.suffix in (".gz", ".whl", ".md"))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    return [*files, out / "SHA256SUMS"]


def _is_of(heading: str, version: str) -> bool:
    """Return whether a heading is that of a version, with the day of the release."""
    return re.fullmatch(re.escape(version) + r" \(\d{4}-\d\d-\d\d\)", heading) is not None


def _git(root: Path, *words: str) -> str:
    """Return what git prints."""
    done = subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main() -> None:
    """Build a release, or say what prevents it."""
    out = Path(*sys.argv[1:2] or [ROOT / "dist"])
    problems = find_problems(ROOT)
    if out.exists() and any(out.iterdir()):
        problems.append(f"{out}: is not empty")
    if problems:
        sys.exit("\n".join(["release: nothing was built", *problems]))
    for path in build(ROOT, out):
        print(path)
    version = read_versions(ROOT)[0]
    print(f"Now: git tag -a v{version} -F {out / NOTES}")


if __name__ == "__main__":
    main()
