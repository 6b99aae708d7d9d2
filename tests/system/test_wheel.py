# SPDX-License-Identifier: Apache-2.0
"""The wheel: built, installed with its dependencies into an empty environment, and used there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from core_support import ROOT

UV = Path(sys.executable).with_name("uv")
PRODUCT = "trainyard/product/ansible_collections/trainyard/cluster"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel from this checkout, and return its path."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([UV, "build", "--quiet", "--wheel", "--out-dir", out, ROOT], check=True)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """Install the wheel alone into an empty environment; run its command in an empty project."""
    folder = tmp_path_factory.mktemp("installed")
    environment, project = folder / "venv", folder / "project"
    project.mkdir()
    subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, wheel], check=True)
    # Nothing may be written into it afterwards, as if root had installed it.
    site_packages = next(environment.glob("lib/python*/site-packages/trainyard"))
    before = _files(site_packages)

    def run(*words):
        # Neither this checkout nor its environment is on a path.
        clean = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [environment / "bin" / "trainyard", *words],
            cwd=project,
            env=clean,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    run.project = project
    yield run
    assert _files(site_packages) == before
    shutil.rmtree(environment)


def _files(folder):
    """Return the files below a directory, without bytecode."""
    return {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_the_wheel_has_the_product_and_nothing_of_a_checkout(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for file in ("ansible.cfg", "playbooks/train.yml", "plugins/modules/plan.py"):
        assert f"{PRODUCT}/{file}" in names
    assert f"{PRODUCT}/inventory/sample/hosts.yml" in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"trainyard"}
    assert not [name for name in names if "/tests/" in name or name.endswith(".pyc")]


def test_the_installed_command_writes_a_site_and_checks_a_job(installed):
    version = installed("--version").stdout
    assert version.split()[-1] in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    data = installed.project / "coco"
    (data / "annotations").mkdir(parents=True)
    for part in ("train2017", "val2017"):
        (data / part).mkdir()
        (data / "annotations" / f"instances_{part}.json").write_text("{}")
    code = str(ROOT / "examples" / "paddledetection")
    words = ["--suite", "paddledetection", "--code", code, "--data", f"coco={data}"]
    done = installed("init", "one.invalid", "--accelerator", "cpu", "--devices", "1", *words)
    assert done.returncode == 0, done.stderr
    done = installed("--json", "train", "ppyoloe", "--check")
    result = json.loads(done.stdout)
    assert (done.returncode, result["unreachable"]) == (20, ["one.invalid"]), done.stderr


def test_a_bad_job_is_refused_as_in_a_checkout(installed):
    done = installed("--json", "--site", "one.invalid,", "check", "nope")
    assert done.returncode == 20
    codes = [code for item in json.loads(done.stdout)["problems"] for code in item["codes"]]
    assert "cli.unknown_job" in codes


def test_the_collections_that_the_roles_need_came_with_it(installed):
    folder = next(installed.project.parent.glob("venv/lib/python*/site-packages"))
    for name in ("ansible/posix", "community/crypto", "community/general"):
        assert (folder / "ansible_collections" / name).is_dir()
    assert os.access(folder / PRODUCT, os.R_OK)
