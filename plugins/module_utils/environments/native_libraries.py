# SPDX-License-Identifier: Apache-2.0
"""What frameworks, libraries and drivers of a node say of themselves, read from files; nothing is
imported and nothing is started but ldconfig.
"""

from __future__ import annotations

import glob
import os
import re

from ..base.unit_limits import text_of

# So many characters of such a file are read at most.
HEAD = 1 << 16
# What each framework's own files say of their build: file below the packages' directory -> {word:
# pattern}.
BUILDS = {
    "paddle": (
        "paddle/version/__init__.py",
        {name: rf"^{key}\s*=\s*'([^']*)'" for name, key in (("version", "full_version"), ("cuda", "cuda_version"), ("cudnn", "cudnn_version"),
                                                            ("nccl", "nccl_version"), ("commit", "commit"))},
    ),
    "mindspore": ("mindspore/version.py", {"version": r"^__version__\s*=\s*'([^']*)'"}),
}  # fmt: skip
# Libraries that a framework takes from the system -> the wheel that brings them instead.
LIBRARIES = {"nccl": "nvidia-nccl-", "cudnn": "nvidia-cudnn-", "cudart": "nvidia-cuda-runtime-"}
LDCONFIG = ("/sbin/ldconfig", "-p")
# Where vendors say what is installed; the first that is there counts.
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
    """Return {paddle or mindspore: {version, cuda, ...}} as their own files say it; nothing is
    imported.
    """
    told = {}
    for name, (file, patterns) in BUILDS.items():
        text = next(
            (text for text in (text_of(os.path.join(path, file), HEAD) for path in paths) if text),
            "",
        )
        said = {
            word: found.group(1)
            for word, found in ((w, re.search(p, text, re.MULTILINE)) for w, p in patterns.items())
            if found
        }
        if said:
            told[name] = {word: value for word, value in said.items() if value not in ("False", "")}
    return told


def libraries(run):
    """Return {library or vendor's software: version} of what the system brings; a library's version
    is its real file's.
    """
    told = {}
    code, out, _err = run(list(LDCONFIG))
    for line in out.splitlines() if code == 0 else []:
        found = re.match(r"\s*lib(nccl|cudnn|cudart)\.so(?:\.\d+)* .*=> (\S+)$", line)
        if found and found.group(1) not in told:
            version = re.search(r"\.so\.([0-9.]+)$", os.path.realpath(found.group(2)))
            told[found.group(1)] = version.group(1) if version else "?"
    for name, patterns in VENDOR_FILES.items():
        text = next(
            (
                text
                for pattern in patterns
                for path in sorted(glob.glob(pattern))
                for text in [text_of(path, HEAD)]
                if text
            ),
            "",
        )
        version = next(
            (
                found.group(1)
                for found in (re.search(pattern, text, re.MULTILINE) for pattern in _VENDOR_VERSION)
                if found
            ),
            None,
        )
        if version:
            told[name] = version
    return told
