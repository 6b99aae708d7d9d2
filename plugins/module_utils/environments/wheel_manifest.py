# SPDX-License-Identifier: Apache-2.0
"""Manifest of a wheelhouse: its wheels and their digests, as nodes verify them.

plugin_utils/environments/wheelhouse.py makes the wheelhouse and writes the manifest last.
"""

from __future__ import annotations

import json
import os

from ..base.manifest import file_sha256

FORMAT = 1
MANIFEST = "manifest.json"
TOOLS = "tools"  # the directory of the installer's wheel
INSTALLER = "uv"


def read_manifest(path):
    """Return a wheelhouse's manifest, or None where it cannot be read."""
    try:
        with open(os.path.join(path, MANIFEST), encoding="utf-8") as handle:
            manifest = json.load(handle)
        if manifest.get("version") == FORMAT:
            return manifest
    except (OSError, ValueError, AttributeError):
        pass
    return None


def verify(path, manifest):
    """Return one line per wheel that is missing or is not the one of the manifest."""
    problems = []
    for name, wheel in sorted(manifest["wheels"].items()):
        try:
            sha256 = file_sha256(os.path.join(path, name))
        except OSError as error:
            problems.append(f"{name}: {error.strerror}")
            continue
        if sha256 != wheel["sha256"]:
            problems.append(f"{name}: sha256 is {sha256[:12]}..., want {wheel['sha256'][:12]}...")
    return problems
