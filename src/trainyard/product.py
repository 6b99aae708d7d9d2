# SPDX-License-Identifier: Apache-2.0
"""The place of the product's playbooks: a checkout, or the files that came with the wheel."""

from __future__ import annotations

import os
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

# The wheel has the collection here, below the package (.config/hatch_build.py).
_INSTALLED = Path("product", "ansible_collections", "trainyard", "cluster")


@dataclass(frozen=True)
class Product:
    """The directory that has ansible.cfg, playbooks/ and roles/."""

    root: Path
    # False if it was installed from a wheel: then nothing of a site or a run is written below it.
    checkout: bool

    @property
    def config(self) -> Path:
        """The product's ansible.cfg."""
        return self.root / "ansible.cfg"

    @property
    def collections(self) -> Path:
        """The directory that holds ansible_collections/."""
        if self.checkout:
            return self.root / "collections"
        return self.root.parents[2]

    def playbook(self, verb: str) -> Path:
        """Return the path of a verb's playbook."""
        return self.root / "playbooks" / f"{verb}.yml"

    def jobs(self) -> list[str]:
        """Return the names of the shipped jobs."""
        return sorted(path.stem for path in (self.root / "playbooks" / "configs").glob("*.yml"))


def find_product() -> Product:
    """Return the product that this command belongs to.

    Raises FileNotFoundError if the command was copied without it.
    """
    package = Path(__file__).resolve().parent
    checkout = package.parents[1]
    if (checkout / "ansible.cfg").is_file() and (checkout / "playbooks").is_dir():
        return Product(checkout, checkout=True)
    installed = package / _INSTALLED
    if (installed / "ansible.cfg").is_file():
        return Product(installed, checkout=False)
    raise FileNotFoundError(
        f"no playbooks belong to {package}. Install the command from a clone: pip install ."
    )


def find_version() -> str:
    """Return the version of the product that this command belongs to."""
    checkout = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if checkout.is_file():
        return str(tomllib.loads(checkout.read_text(encoding="utf-8"))["project"]["version"])
    return metadata.version("trainyard")


def import_collection(product: Product) -> None:
    """Make the product's own Python importable, as ansible_collections.trainyard.cluster."""
    path = str(product.collections)
    if path not in sys.path:
        sys.path.insert(0, path)


def program(name: str) -> str:
    """Return the path of a program of Ansible: the one beside this Python, else the one on PATH."""
    beside = Path(sys.executable).with_name(name)
    if beside.exists():
        return str(beside)
    return name


def shown_path(path: Path) -> str:
    """Return a path as a person would type it here."""
    relative = os.path.relpath(path)
    if relative.startswith(".."):
        return str(path)
    return relative
