# SPDX-License-Identifier: Apache-2.0
"""The choice of the site that a command is about, from any directory."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .product import Product, shown_path

# Copied by users and never trained on.
TEMPLATE = "sample"
# The demo site. It is chosen by itself only if there is no other.
DEMO = "local"


class SiteError(Exception):
    """No site could be chosen. The message says what to do."""


@dataclass(frozen=True)
class Site:
    """An inventory, as `ansible-playbook -i` takes it."""

    inventory: str
    # The directory that the site's runs and relative paths belong to; None for the product's own.
    project: Path | None

    @property
    def path(self) -> Path | None:
        """The inventory's path, None if it is a list of hosts."""
        path = Path(self.inventory).expanduser()
        if path.exists():
            return path.absolute()
        return None


def choose_site(given: str | None, environment: Mapping[str, str], product: Product) -> Site:
    """Return the site of a command.

    The order: --site, TRAINYARD_SITE, ANSIBLE_INVENTORY, the only site of the nearest directory
    above that has inventory/, the product's only site. Raises SiteError.
    """
    for name in (given, environment.get("TRAINYARD_SITE")):
        if name:
            return _named_site(name, product)
    if environment.get("ANSIBLE_INVENTORY"):
        inventory = environment["ANSIBLE_INVENTORY"]
        return Site(inventory, _project_of(Path(inventory), product))
    for folder in inventory_folders(product):
        names = site_names(folder)
        own = [name for name in names if name != DEMO]
        if len(own) == 1:
            return _site_in(folder, own[0], product)
        if own:
            raise SiteError(
                f"{shown_path(folder)} has several sites: {', '.join(own)}."
                f" Say which: --site {own[0]}, or export TRAINYARD_SITE={own[0]}"
            )
        if names:
            return _site_in(folder, DEMO, product)
    raise SiteError(
        "there is no site here. Write one: trainyard init HOST...; or say where it is: --site PATH"
    )


def inventory_folders(product: Product) -> list[Path]:
    """Return the directories that hold sites, the nearest one first."""
    here = Path.cwd()
    folders = [folder / "inventory" for folder in (here, *here.parents)]
    folders.append(product.root / "inventory")
    unique = dict.fromkeys(folder for folder in folders if folder.is_dir())
    return list(unique)


def site_names(folder: Path) -> list[str]:
    """Return the names of the sites in a directory."""
    return sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and entry.name != TEMPLATE and not entry.name.startswith(".")
    )


def all_site_names(product: Product) -> list[str]:
    """Return the names of all sites that --site takes here."""
    return sorted({name for folder in inventory_folders(product) for name in site_names(folder)})


def _named_site(name: str, product: Product) -> Site:
    """Return the site with a name or a path."""
    if os.sep not in name:
        for folder in inventory_folders(product):
            if name != TEMPLATE and (folder / name).is_dir():
                return _site_in(folder, name, product)
    path = Path(name).expanduser()
    if path.exists() or "," in name:
        return Site(name, _project_of(path, product))
    known = all_site_names(product)
    near = difflib.get_close_matches(name, known, n=1)
    text = f"no site {name!r} here; known: {', '.join(known) or 'none'}"
    if near:
        text += f"; did you mean {near[0]!r}?"
    raise SiteError(text)


def _site_in(folder: Path, name: str, product: Product) -> Site:
    """Return a site of a directory."""
    path = folder / name
    return Site(shown_path(path), _project_of(path, product))


def _project_of(path: Path, product: Product) -> Path | None:
    """Return the directory above inventory/, None if that is the product's checkout.

    A site elsewhere belongs to the working directory unless the product is a checkout.
    """
    if path.exists():
        for folder in path.resolve().parents:
            if folder.name == "inventory":
                if product.checkout and folder.parent == product.root:
                    return None
                return folder.parent
    if product.checkout:
        return None
    return Path.cwd()
