# SPDX-License-Identifier: Apache-2.0
"""Build the collection trainyard.cluster into a directory, `dist` unless another is named.

In the checkout, parts of the collection are symbolic links out of its directory, and
ansible-galaxy leaves such links out. So it builds a copy in which each link is what it points to.
The copy has the files that git tracks: no caches, no runs, no jobs of one user.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "collections" / "ansible_collections" / "trainyard" / "cluster"


def tracked_files(path: Path) -> list[Path]:
    """Return the files that git tracks at a path or below it, as absolute paths.

    An archive of a release has no repository. There it is every file but caches.
    """
    if not (ROOT / ".git").exists():
        return _all_files(path)
    done = subprocess.run(
        ["git", "ls-files", "-z", "--", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / name for name in done.stdout.split("\0") if name]


def _all_files(path: Path) -> list[Path]:
    """Return a file, or the files and links below a directory, without caches."""
    if not path.is_dir():
        return [path]
    found = []
    for entry in sorted(path.iterdir()):
        if entry.is_symlink() or not entry.is_dir():
            found += [entry] * (entry.suffix != ".pyc")
        elif entry.name != "__pycache__":
            found += _all_files(entry)
    return found


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, or what a link leads to; a tracked file that was deleted is left out."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)


def copy_collection(target: Path) -> None:
    """Copy the collection, with what its links lead to."""
    for entry in tracked_files(SOURCE):
        place = target / entry.relative_to(SOURCE)
        linked = entry.resolve()
        if not linked.is_dir():
            copy_file(linked, place)
            continue
        for path in tracked_files(linked):
            copy_file(path, place / path.relative_to(linked))


def main() -> None:
    """Build the archive where the command line says."""
    out = Path(*sys.argv[1:2] or [ROOT / "dist"])
    # ansible-galaxy lies beside this Python, which need not be on PATH.
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    with tempfile.TemporaryDirectory(prefix="trainyard-collection-") as temporary:
        copy_collection(Path(temporary))
        command = [galaxy, "collection", "build", temporary, "--output-path", out, "--force"]
        subprocess.run(command, cwd=temporary, check=True)


if __name__ == "__main__":
    main()
