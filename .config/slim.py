# SPDX-License-Identifier: Apache-2.0
"""Remove the collections of the `ansible` package that requirements.yml does not ask for.

The package brings a hundred collections, and the product uses four. What those four depend on
stays. With `--lacks`, only say by the exit status whether a collection that is asked for is absent.
"""

from __future__ import annotations

import json
import shutil
import sys
import sysconfig
from pathlib import Path

import yaml

BUNDLE = Path(sysconfig.get_path("purelib"), "ansible_collections")


def read_required(path: Path) -> list[str]:
    """Return the names of the collections that a requirements.yml lists."""
    return [entry["name"] for entry in yaml.safe_load(path.read_text("utf-8"))["collections"]]


def directory_of(name: str) -> Path:
    """Return where the package has a collection."""
    return BUNDLE.joinpath(*name.split("."))


def with_dependencies(names: list[str]) -> set[str]:
    """Return the collections of the package that these need, themselves included."""
    needed: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        manifest = directory_of(name) / "MANIFEST.json"
        if name in needed or not manifest.is_file():
            continue
        needed.add(name)
        pending += json.loads(manifest.read_text("utf-8"))["collection_info"]["dependencies"]
    return needed


def size_of(directory: Path) -> int:
    """Return the bytes of all files below a directory."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def remove_others(needed: set[str]) -> tuple[int, int]:
    """Remove every other collection; return how many there were, and their bytes."""
    others = [
        path.parent
        for path in BUNDLE.glob("*/*/MANIFEST.json")
        if ".".join(path.parts[-3:-1]) not in needed
    ]
    freed = sum(size_of(directory) for directory in others)
    for directory in others:
        shutil.rmtree(directory)
        if not list(directory.parent.glob("*/MANIFEST.json")):
            shutil.rmtree(directory.parent)
    return len(others), freed


def main() -> None:
    """Do what the command line says."""
    names = read_required(Path(__file__).resolve().parent.parent / "requirements.yml")
    needed = with_dependencies(names)
    if "--lacks" in sys.argv:
        sys.exit(0 if set(names) - needed else 1)
    count, freed = remove_others(needed)
    if needed and count:
        kept = ", ".join(sorted(needed))
        print(f"setup: removed {count} unused collections ({freed >> 20} MB), kept {kept}")


if __name__ == "__main__":
    main()
