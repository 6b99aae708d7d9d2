# SPDX-License-Identifier: Apache-2.0
"""Builder of agent.pyz, the archive with all programs of a run on a node, and of its companions.

An archive has one program of module_utils and the modules that it imports, and nothing else.
Equal sources give equal bytes, because the entries are sorted and have a fixed date. Nothing is
imported for it and nothing is written.
"""

from __future__ import annotations

import base64
import functools
import io
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ansible_collections.trainyard.cluster.plugins.module_utils import agent

NAME = "agent.pyz"
# Name in the archive of the package that holds the packages of module_utils.
PACKAGE = "trainyard"
SOURCES = Path(agent.__file__).resolve().parents[1]
# Executes as many bytes of standard input as its first line says (stdin_boot.py).
BOOT = (
    "import sys; i=sys.stdin.buffer; exec(compile(i.read(int(i.readline())),'agent.pyz','exec'),"
    "{'__name__':'__main__'})"
)
_START = """\
import sys

from {package}.{program} import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""
# A relative import: dots, module, names. A parser would take ten times as long as all else, on each
# start of each node. The tests compare the two.
_IMPORT = re.compile(r"^\s*from (\.+)([\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)
_WORD = re.compile(r"\w+")
# A line with a comment alone. It becomes empty, so that tracebacks keep their numbers of lines. The
# tests show that no source has such a line inside a text.
_COMMENT = re.compile(rb"^[ \t]*#.*$", re.MULTILINE)
# The docstring of a function or class becomes an empty one. That of a module may be its usage.
_DOCSTRING = re.compile(rb'(:\n[ \t]+)""".*?"""$', re.MULTILINE | re.DOTALL)
_DATE = (1980, 1, 1, 0, 0, 0)  # the first that the format knows


@functools.lru_cache(maxsize=4)
def build(program: str = "agent.main") -> bytes:
    """Return the archive that executes main() of a module.

    program: the module's name below module_utils. Raises OSError where a source is missing.
    """
    entries = {"__main__.py": _START.format(package=PACKAGE, program=program).encode()}
    entries[f"{PACKAGE}/__init__.py"] = b""
    for path in closure(program):
        entries[f"{PACKAGE}/{path.relative_to(SOURCES).as_posix()}"] = stripped(path)
    return pack(entries)


def stripped(path: Path) -> bytes:
    """Return a source without comments and without the docstrings of functions and classes."""
    return _DOCSTRING.sub(_empty_docstring, _COMMENT.sub(b"", path.read_bytes()))


def _empty_docstring(match: re.Match[bytes]) -> bytes:
    return match[1] + b'""' + b"\n" * match[0].count(b"\n", len(match[1]))


def pack(entries: dict[str, bytes]) -> bytes:
    """Return a zip file of these entries, {name: content}, in equal bytes for equal entries."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(entries):
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = 0o644 << 16
            archive.writestr(info, entries[name])
    return buffer.getvalue()


def closure(program: str) -> list[Path]:
    """Return the sorted sources of a program: its own and its imports."""
    return reached_from([SOURCES.joinpath(*program.split(".")).with_suffix(".py")])


def reached_from(paths: Iterable[Path]) -> list[Path]:
    """Return the sorted sources that are reached from some of module_utils, with these."""
    reached: set[Path] = set()
    waiting = set(paths)
    while waiting:
        path = waiting.pop()
        reached.add(path)
        waiting |= {path.with_name("__init__.py"), *_imports_of(path)} - reached
    return sorted(reached)


def _imports_of(path: Path) -> Iterator[Path]:
    """Yield the sources that a module imports by relative imports."""
    for dots, name, imported in _IMPORT.findall(path.read_text(encoding="utf-8")):
        module = path.parents[len(dots) - 1].joinpath(*name.split("."))
        for candidate in [module, *(module / word for word in _WORD.findall(imported))]:
            for source in (candidate.with_suffix(".py"), candidate / "__init__.py"):
                if source.is_file():
                    yield source


def encoded(program: str = "agent.main") -> str:
    """Return the archive as base64, as an argument of a module can hold it."""
    return base64.b64encode(build(program)).decode("ascii")


def stdin_bytes(program: str = "agent.main") -> bytes:
    """Return what `python3 -I -c BOOT VERB...` reads first from standard input."""
    boot, archive = (SOURCES / "agent" / "stdin_boot.py").read_bytes(), build(program)
    return b"%d\n%s%d\n%s" % (len(boot), boot, len(archive), archive)
