# SPDX-License-Identifier: Apache-2.0
"""Versions of a node's frameworks, libraries and drivers, from their files.

Nothing is imported and nothing is started but ldconfig.
"""

from __future__ import annotations

import glob
import os
import re

from ..base.files import read_text

# So many characters of such a file are read at most.
HEAD = 1 << 16
# Each framework's own file about its build, below the packages' directory, and {word: pattern}.
BUILDS = {
    "paddle": (
        "paddle/version/__init__.py",
        {
            "version": r"^full_version\s*=\s*'([^']*)'",
            "cuda": r"^cuda_version\s*=\s*'([^']*)'",
            "cudnn": r"^cudnn_version\s*=\s*'([^']*)'",
            "nccl": r"^nccl_version\s*=\s*'([^']*)'",
            "commit": r"^commit\s*=\s*'([^']*)'",
        },
    ),
    "mindspore": ("mindspore/version.py", {"version": r"^__version__\s*=\s*'([^']*)'"}),
}
# Libraries that a framework takes from the system -> the wheel that brings them instead.
LIBRARIES = {"nccl": "nvidia-nccl-", "cudnn": "nvidia-cudnn-", "cudart": "nvidia-cuda-runtime-"}
LDCONFIG = ("/sbin/ldconfig", "-p")
# Files in which vendors say what is installed. The first that is there counts.
VENDOR_FILES = {
    "cann": (
        "/usr/local/Ascend/ascend-toolkit/latest/version.cfg",
        "/usr/local/Ascend/ascend-toolkit/latest/*/ascend_toolkit_install.info",
        "/usr/local/Ascend/latest/version.cfg",
    ),
    "ascend driver": ("/usr/local/Ascend/driver/version.info",),
    "cuda toolkit": ("/usr/local/cuda/version.json",),
}
_VENDOR_VERSION = (
    r"^[Vv]ersion=\[?([^\]\s:]+)",
    r"^runtime_running_version=\[?([^\]\s]+)",
    r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([^"]+)"',
)


def frameworks(paths):
    """Return {paddle or mindspore: {version, cuda, ...}} as their own files say it.

    paths: the directories of packages. Nothing is imported.
    """
    versions = {}
    for name, (file, patterns) in BUILDS.items():
        text = _first_text(os.path.join(path, file) for path in paths)
        matches = {
            word: re.search(pattern, text, re.MULTILINE) for word, pattern in patterns.items()
        }
        values = {word: match.group(1) for word, match in matches.items() if match}
        if values:
            versions[name] = {
                word: value for word, value in values.items() if value not in ("False", "")
            }
    return versions


def libraries(run):
    """Return {library or vendor's software: version} of what the system has.

    A library's version is its real file's.
    """
    versions = {}
    code, out, _err = run(list(LDCONFIG))
    if code == 0:
        for line in out.splitlines():
            match = re.match(r"\s*lib(nccl|cudnn|cudart)\.so(?:\.\d+)* .*=> (\S+)$", line)
            if match:
                versions.setdefault(match.group(1), _version_of_library(match.group(2)))
    for name, patterns in VENDOR_FILES.items():
        version = _vendor_version(patterns)
        if version:
            versions[name] = version
    return versions


def _first_text(paths):
    """Return the beginning of the first file that has a text, '' where none has."""
    for path in paths:
        text = read_text(path, HEAD)
        if text:
            return text
    return ""


def _version_of_library(path):
    """Return the version in the name of a library's real file, '?' where it has none."""
    match = re.search(r"\.so\.([0-9.]+)$", os.path.realpath(path))
    if not match:
        return "?"
    return match.group(1)


def _vendor_version(patterns):
    """Return the version that a vendor's file says, or None.

    patterns: of paths, the best first.
    """
    text = _first_text(path for pattern in patterns for path in sorted(glob.glob(pattern)))
    for pattern in _VENDOR_VERSION:
        match = re.search(pattern, text, re.MULTILINE)
        if match:
            return match.group(1)
    return None
