# SPDX-License-Identifier: Apache-2.0
"""agent.pyz: what travels to a node for a run is the programs and what they import, and it runs on
every Python that a node may have.
"""

from __future__ import annotations

import ast
import base64
import glob
import io
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest
from ansible_collections.trainyard.cluster.plugins.plugin_utils.agent import zipapp
from core_support import ROOT, agent_archive, put

# The nine files of a start, as they travelled before there was an archive (release 0.1).
PEER_BYTES = 140246
PROGRAMS = ["agent.main", "agent.drill_probe", "recovery.checkpoint_replicator"]
# Of module_utils/agent these travel alone: the first starts an archive, the second stands in the
# plan of a rehearsal, the third has an archive of its own, the fourth is for the modules' archives.
ALONE = {"stdin_boot.py", "rehearsal_rank.py", "drill_probe.py", "node_module.py"}


def entries(program="agent.main"):
    """Return {name: content} of an archive."""
    with zipfile.ZipFile(io.BytesIO(zipapp.build(program))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def imports_of(name, content):
    """Return (absolute modules, entries of the archive) that a module imports, by its syntax."""
    absolute, own = set(), set()
    for node in ast.walk(ast.parse(content, name, feature_version=(3, 8))):
        if isinstance(node, ast.Import):
            absolute |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            absolute.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            folder = name.split("/")[: -node.level]
            base = "/".join(folder + (node.module or "").split(".")).rstrip("/")
            own |= {base + ".py", *(f"{base}/{alias.name}.py" for alias in node.names)}
    return absolute, own


def pythons():
    """Return the Pythons of this machine from 3.8 on, {version: path}."""
    found = {}
    for pattern in ("/usr/bin/python3*", "~/.pyenv/versions/*/bin/python3"):
        for path in glob.glob(os.path.expanduser(pattern)):
            done = subprocess.run(
                [path, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True,
                text=True,
                check=False,
            )
            version = done.stdout.strip()
            if done.returncode == 0 and tuple(map(int, version.split("."))) >= (3, 8):
                found.setdefault(version, path)
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_archive_is_the_closure_of_its_imports_and_nothing_else(program):
    archive = entries(program)
    modules = {name for name in archive if not name.endswith("__init__.py")}
    needed, waiting = set(), {"trainyard/{}.py".format(program.replace(".", "/"))}
    while waiting:
        name = waiting.pop()
        needed.add(name)
        _absolute, own = imports_of(name, archive[name])
        waiting |= {one for one in own if one in archive or in_tree(one)} - needed
    assert modules == needed | {"__main__.py"}
    folders = {os.path.dirname(name) for name in modules} - {""}
    assert {name for name in archive if name.endswith("__init__.py")} == {
        f"{folder}/__init__.py" for folder in folders | {"trainyard"}
    }


def in_tree(entry):
    return (ROOT / "plugins/module_utils" / entry.partition("/")[2]).is_file()


def test_what_a_package_imports_travels_with_each_of_its_modules(monkeypatch, tmp_path):
    files = {
        "main.py": "from .package.one import name\n",
        "__init__.py": "",
        "package/__init__.py": "from .two import name\n",
        "package/one.py": "name = 1\n",
        "package/two.py": "name = 2\n",
    }
    monkeypatch.setattr(zipapp, "SOURCES", Path(put(tmp_path / "sources", files)))
    found = {str(path.relative_to(zipapp.SOURCES)) for path in zipapp.closure("main")}
    assert found == set(files)


def test_every_program_of_a_run_travels():
    sources = {path.name for path in (ROOT / "plugins/module_utils/agent").glob("*.py")}
    travelling = {name.rpartition("/")[2] for name in entries() if "/agent/" in name}
    assert travelling == sources - ALONE


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_needs_the_standard_library_alone(program):
    for name, content in entries(program).items():
        absolute = imports_of(name, content)[0] - {"__future__", "trainyard"}
        assert absolute <= sys.stdlib_module_names, name


def test_equal_sources_give_equal_bytes(monkeypatch, tmp_path):
    first = zipapp.build.__wrapped__()
    copied = tmp_path / "module_utils"
    shutil.copytree(ROOT / "plugins/module_utils", copied)
    for path in copied.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700)
    monkeypatch.setattr(zipapp, "SOURCES", copied)
    assert zipapp.build.__wrapped__() == first
    (copied / "agent/guard.py").write_text("'''Another one.'''\n")
    assert zipapp.build.__wrapped__() != first


def without_docstrings(source):
    """Return the syntax tree of a source, in which functions and classes have empty docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            node.body[0].value.value = ""
    return ast.dump(tree)


def test_comments_and_docstrings_stay_behind_and_nothing_else():
    for name, content in entries().items():
        if in_tree(name) and name.count("/") > 1:
            source = (ROOT / "plugins/module_utils" / name.partition("/")[2]).read_text()
            assert ast.dump(ast.parse(content)) == without_docstrings(source), name
            assert len(content.splitlines()) == len(source.splitlines())


@pytest.mark.parametrize("path", sorted(zipapp.SOURCES.rglob("*.py")))
def test_a_payload_of_a_module_keeps_the_same_of_every_source(path):
    stripped = ast.dump(ast.parse(zipapp.stripped(path)))
    assert stripped == without_docstrings(path.read_text())


def test_it_costs_fewer_bytes_than_the_files_did():
    """Base64 included, as an argument of a module has it."""
    assert base64.b64decode(zipapp.encoded()) == zipapp.build()
    assert len(zipapp.encoded()) < 0.52 * PEER_BYTES


@pytest.mark.parametrize("version, python", sorted(pythons().items()))
def test_every_verb_starts_on_every_python(tmp_path, version, python):
    """Without a file or a variable of another place on its path."""
    (tmp_path / "json.py").write_text("raise SystemExit('a file beside the archive was imported')")
    shutil.copy(agent_archive(), tmp_path)
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}
    for name in entries():
        if name.startswith("trainyard/") and not name.endswith("__init__.py"):
            module = name[: -len(".py")].replace("/", ".")
            code = f"import sys; sys.path.insert(0, 'agent.pyz'); import {module}"
            subprocess.run([python, "-I", "-c", code], cwd=tmp_path, check=True)
    argv = [python, "-I", "agent.pyz"]
    for verb, words in (("gate", ["x", "1", "y"]), ("openmpi", ["none"]), ("none", [])):
        done = subprocess.run(
            [*argv, verb, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        expected = {"gate": 77}.get(verb, 1)
        assert done.returncode == expected and "Traceback" not in done.stderr, (verb, done.stderr)
    # Nothing is written beside it.
    assert sorted(os.listdir(tmp_path)) == ["agent.pyz", "json.py"]


@pytest.mark.parametrize("version, python", sorted(pythons().items()))
@pytest.mark.parametrize("memory", [True, False])
def test_it_starts_from_standard_input_without_a_file(tmp_path, version, python, memory):
    boot = zipapp.BOOT
    if not memory:  # as a Python that was built for an old C library
        boot = "import os; del os.memfd_create; " + boot
    spec = b'{"attempt_dir": "%s", "node": "node1"}\n' % str(tmp_path).encode()
    done = subprocess.run(
        [python, "-I", "-c", boot, "send-logs"],
        input=zipapp.stdin_bytes() + spec,
        capture_output=True,
        env={"HOME": str(tmp_path), "TMPDIR": "/nowhere"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b'"event": "end"' in zlib.decompressobj().decompress(done.stdout)
