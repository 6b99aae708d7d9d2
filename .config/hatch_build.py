# SPDX-License-Identifier: Apache-2.0
"""Put the collection, its ansible.cfg and the sample site into the wheel.

Hatchling calls it for `pip install .`, `uv tool install .` and `uv build`.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET = "trainyard/product/ansible_collections/trainyard/cluster"
# In a checkout the collection consists of links. In the wheel it is the product's directory, which
# has no demo site.
SETTINGS = {
    "inventory = inventory/local\n": "",
    "library = library\n": "library = plugins/modules\n",
    "collections_path = collections:": "collections_path = ../../..:",
}


class CustomBuildHook(BuildHookInterface):
    """Add the product's files to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Copy the files into a temporary directory and name them to the builder."""
        if version == "editable":
            return  # the command finds the checkout above its package
        root = Path(self.root)
        self._folder = tempfile.mkdtemp(prefix="trainyard-wheel-")
        target = Path(self._folder)
        _load_collection(root).copy_collection(target)
        (target / "ansible.cfg").write_text(settings((root / "ansible.cfg").read_text()))
        shutil.copytree(root / "inventory" / "sample", target / "inventory" / "sample")
        build_data["force_include"][self._folder] = TARGET

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary directory."""
        if version != "editable":
            shutil.rmtree(self._folder, ignore_errors=True)


def settings(text: str) -> str:
    """Return the checkout's ansible.cfg with the paths of the wheel."""
    for old, new in SETTINGS.items():
        if text.count(old) != 1:
            raise ValueError(f"ansible.cfg has no line {old!r}")
        text = text.replace(old, new)
    return text


def _load_collection(root: Path) -> Any:
    """Return the module .config/collection.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("collection", root / ".config" / "collection.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
