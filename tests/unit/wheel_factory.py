# SPDX-License-Identifier: Apache-2.0
"""Small real wheels and a package index of files, so that pip and uv can be tried without a
network.
"""

from __future__ import annotations

import io
import tarfile
import zipfile

PADDLE = """
__version__ = "{version}"
class version:
    commit = "c0ffee"
    @staticmethod
    def cuda():
        return {cuda_version!r} or "False"
def is_compiled_with_cuda():
    return {cuda}
"""


def make_wheel(directory, name, version, files=None, tag="py3-none-any"):
    """Write a wheel of these {path: text or bytes} below directory; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    path = directory / f"{stem}-{tag}.whl"
    entries = dict(files or {f"{name.replace('-', '_')}.py": f"VERSION = {version!r}\n"})
    entries[f"{stem}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    entries[f"{stem}.dist-info/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n"
    )
    record = "".join(f"{entry},,\n" for entry in entries) + f"{stem}.dist-info/RECORD,,\n"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, content in {**entries, f"{stem}.dist-info/RECORD": record}.items():
            archive.writestr(entry, content)
    return path


def make_paddle(
    directory,
    version="2.6.2",
    package="paddlepaddle",
    cuda_version=None,
    tag="py3-none-any",
    imports_as=None,
):
    """Write a wheel that imports like Paddle."""
    text = PADDLE.format(
        version=imports_as or version, cuda=cuda_version is not None, cuda_version=cuda_version
    )
    return make_wheel(directory, package, version, {"paddle/__init__.py": text}, tag)


BACKEND = """
import os, zipfile
def build_wheel(directory, config_settings=None, metadata_directory=None):
    stem = {stem!r}
    with zipfile.ZipFile(os.path.join(directory, stem + "-{tag}.whl"), "w") as archive:
        archive.writestr({name!r} + ".py", "")
        archive.writestr(stem + ".dist-info/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        archive.writestr(stem + ".dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: {tag}\\n")
        archive.writestr(stem + ".dist-info/RECORD", "")
    return stem + "-{tag}.whl"
"""


def make_source(directory, name, version, tag="py3-none-any"):
    """Write a source archive that builds itself without any package beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{version}"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        "pyproject.toml": (
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        ),
        "backend.py": BACKEND.format(stem=stem, tag=tag, name=name, version=version),
    }
    with tarfile.open(directory / f"{stem}.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{stem}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


def make_mindspore(directory, version="2.7.0", devices=()):
    """Write a wheel that imports like MindSpore and holds a library for each of the devices."""
    files = {
        "mindspore/__init__.py": f"__version__ = {version!r}\n",
        "mindspore/.commit_id": "__commit_id__ = '[sha1]:7edec76e,[branch]:(r)'",
    }
    files.update({f"mindspore/lib/plugin/libmindspore_{device}.so.2": "" for device in devices})
    return make_wheel(directory, "mindspore", version, files)


def make_index(root, wheels):
    """Lay wheels out as a package index; return its address."""
    for wheel in wheels:
        project = root / wheel.name.split("-")[0].replace("_", "-").lower()
        project.mkdir(parents=True, exist_ok=True)
        wheel.rename(project / wheel.name)
        links = "".join(
            f'<a href="{each.name}">{each.name}</a>\n' for each in sorted(project.glob("*.whl"))
        )
        (project / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return root.as_uri()
