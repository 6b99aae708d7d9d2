# SPDX-License-Identifier: Apache-2.0
"""python_environment: real installations with the real uv, from wheels made here, without a
network.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile

import pytest
import python_environment
import uv
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    environment_install,
    wheel_manifest,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    python_env as core,
)
from ansible_collections.trainyard.cluster.plugins.module_utils.inputs import tree_install
from ansible_collections.trainyard.cluster.plugins.plugin_utils.environments.wheelhouse import (
    inspect_wheel,
)
from wheel_factory import make_mindspore, make_paddle, make_wheel

DIGEST = "ab" * 8


def write_manifest(directory, digest=DIGEST):
    """Describe the wheels below directory as a wheelhouse; return the manifest's sha256."""
    found = {}
    for path in [*directory.glob("*.whl"), *directory.glob("tools/*.whl")]:
        found[str(path.relative_to(directory))] = inspect_wheel(str(path))
    packages = {
        each["name"]: each["version"]
        for name, each in found.items()
        if not name.startswith("tools/")
    }
    text = json.dumps(
        {
            "version": 1,
            "digest": digest,
            "python": "3.11",
            "machine": "x86_64",
            "libc": "2.36",
            "uv_version": "1.0",
            "packages": packages,
            "wheels": found,
        }
    )
    (directory / wheel_manifest.MANIFEST).write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(scope="module")
def installer(tmp_path_factory):
    """uv as it travels: inside a wheel."""
    path = tmp_path_factory.mktemp("uv") / "uv-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("uv-1.0.dist-info/METADATA", "Name: uv\nVersion: 1.0\n")
        archive.write(uv.find_uv_bin(), "uv-1.0.data/scripts/uv")
    return path


@pytest.fixture
def wheelhouse(tmp_path, installer):
    """A wheelhouse on the node, with a Paddle and one package."""
    directory = tmp_path / "home" / "wheels" / DIGEST
    make_paddle(directory)
    make_wheel(directory, "some-package", "1.5")
    (directory / "tools").mkdir()
    os.link(installer, directory / "tools" / installer.name)
    return directory


@pytest.fixture
def arguments(tmp_path, wheelhouse):
    return {
        "home": str(tmp_path / "home"),
        "digest": DIGEST,
        "package": "paddlepaddle",
        "version": "2.6.2",
        "interpreter": sys.executable,
        "wheelhouse": str(wheelhouse),
        "manifest_sha256": write_manifest(wheelhouse),
    }


@pytest.fixture
def target(tmp_path):
    return tmp_path / "home" / "env" / DIGEST


def test_an_environment_is_installed_once(run_module, arguments, target, wheelhouse):
    result = run_module(python_environment, arguments)
    marker = result["environments"][DIGEST]
    assert result["changed"] and result["reason"].startswith("absent")
    assert marker["packages"] == {"paddlepaddle": "2.6.2", "some-package": "1.5"}
    assert marker["imported"] == {
        "version": "2.6.2",
        "cuda": False,
        "cuda_version": None,
        "commit": "c0ffee",
    }
    assert marker["fingerprint"] == core.fingerprint(marker["packages"])
    assert list(
        target.glob("lib/python3.*/site-packages/__pycache__/some_package.*.pyc")
    )  # compiled, before anybody imported it
    assert (
        subprocess.run([marker["interpreter"], "-c", "import some_package"], check=False).returncode
        == 0
    )
    assert not wheelhouse.exists() and not list(wheelhouse.parent.iterdir())
    again = run_module(python_environment, arguments)
    assert (again["changed"], again["environments"][DIGEST]) == (False, marker)


@pytest.mark.parametrize(
    "package, words",
    [
        ("mindspore", None),
        ("mindspore-ascend", None),
        ("mindspore-gpu", "is built for CUDA, but what was imported is built for CPU and Ascend"),
    ],
)
def test_mindspore_tells_what_it_was_built_for(run_module, arguments, wheelhouse, package, words):
    (wheelhouse / "paddlepaddle-2.6.2-py3-none-any.whl").unlink()
    make_mindspore(wheelhouse, devices=["ascend"])
    changed = dict(
        arguments, package=package, version="2.7.0", manifest_sha256=write_manifest(wheelhouse)
    )
    result = run_module(python_environment, changed)
    if words:
        assert result["failed"] and words in result["msg"]
    else:
        assert result["environments"][DIGEST]["imported"] == {
            "version": "2.7.0",
            "targets": ["CPU", "Ascend"],
            "commit": "7edec76e",
        }


def test_wheels_stay_where_asked(run_module, arguments, wheelhouse):
    run_module(python_environment, dict(arguments, keep_wheels=True))
    assert (wheelhouse / wheel_manifest.MANIFEST).exists()


def test_the_wheels_go_with_what_lies_beside_them(run_module, arguments, wheelhouse):
    for name in (tree_install.MANIFEST, tree_install.SCAN):
        wheelhouse.with_name(DIGEST + name).write_text("{}")
    tree_install.protect(wheelhouse)  # as a tree is on a node
    run_module(python_environment, arguments)
    assert list(wheelhouse.parent.iterdir()) == []


def test_check_mode_installs_nothing(run_module, arguments, target):
    result = run_module(python_environment, arguments, check=True)
    assert result["changed"] and result["environments"] == {} and not target.exists()


def test_an_interrupted_installation_is_made_again(run_module, arguments, target):
    (target / "lib").mkdir(parents=True)
    (target / "left-behind").write_text("half")
    result = run_module(python_environment, arguments)
    assert (
        result["changed"]
        and result["reason"].startswith("incomplete")
        and not (target / "left-behind").exists()
    )


def test_a_changed_environment_is_made_again(run_module, arguments, target):
    run_module(python_environment, dict(arguments, keep_wheels=True))
    info = next(target.glob("lib/python3.*/site-packages/some_package-1.5.dist-info"))
    info.rename(info.with_name("some_package-9.9.dist-info"))
    result = run_module(python_environment, arguments)
    assert result["reason"].startswith("changed: some-package ")
    assert re.findall(r"\d\.\d", result["reason"]) == ["9.9", "1.5"]
    assert result["environments"][DIGEST]["packages"]["some-package"] == "1.5"


def test_a_damaged_wheel_is_named_and_the_next_command_reads_all_of_them(
    run_module, arguments, wheelhouse, target
):
    records = wheelhouse.with_name(DIGEST + tree_install.SCAN)
    records.write_text("{}")
    damaged = wheelhouse / "some_package-1.5-py3-none-any.whl"
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    result = run_module(python_environment, arguments)
    assert (
        result["failed"] and damaged.name in result["msg"] and "same command again" in result["msg"]
    )
    assert not records.exists() and damaged.exists() and not target.exists()


def test_a_missing_wheel_is_named(run_module, arguments, wheelhouse):
    wheel = wheelhouse / "some_package-1.5-py3-none-any.whl"
    wheel.unlink()
    assert f"{wheel.name}: No such file" in run_module(python_environment, arguments)["msg"]


def test_a_manifest_that_is_not_the_controllers_is_refused(run_module, arguments, wheelhouse):
    result = run_module(python_environment, dict(arguments, manifest_sha256="0" * 64))
    assert result["failed"] and "is not the controller's" in result["msg"]


def test_a_package_that_is_not_in_the_manifest_is_noticed(
    run_module, arguments, wheelhouse, target
):
    (wheelhouse / "some_package-1.5-py3-none-any.whl").unlink()
    make_wheel(
        wheelhouse,
        "some-package",
        "1.5",
        {"some_package-1.5.data/purelib/stray-2.0.dist-info/METADATA": "Name: stray\n"},
    )
    result = run_module(
        python_environment, dict(arguments, manifest_sha256=write_manifest(wheelhouse))
    )
    assert (
        result["failed"]
        and "stray 2.0 is not in" in result["msg"]
        and not (target / core.MARKER).exists()
    )


@pytest.mark.parametrize(
    "change, words",
    [
        (
            {"package": "paddlepaddle-gpu"},
            (
                "asked for paddlepaddle-gpu, which is built for CUDA, but what was imported is"
                " built for CPU"
            ),
        ),
        ({"version": "3.0.0"}, "asked for 3.0.0, but what was imported is 2.6.2"),
    ],
)
def test_another_paddle_than_asked_for_is_refused(run_module, arguments, target, change, words):
    result = run_module(python_environment, dict(arguments, **change))
    assert result["failed"] and words in result["msg"] and "index_url" in result["msg"]
    assert not (target / core.MARKER).exists()


def test_a_paddle_that_lacks_a_package_says_which(run_module, arguments, wheelhouse, target):
    (wheelhouse / "paddlepaddle-2.6.2-py3-none-any.whl").unlink()
    make_wheel(
        wheelhouse, "paddlepaddle", "2.6.2", {"paddle/__init__.py": "import nowhere_to_be_found\n"}
    )
    result = run_module(
        python_environment, dict(arguments, manifest_sha256=write_manifest(wheelhouse))
    )
    for words in ("ModuleNotFoundError: ", "'nowhere_to_be_found'", "; pin the package"):
        assert words in result["msg"]


def test_an_installer_that_is_killed_leaves_no_marker_and_the_next_run_repairs(
    run_module, arguments, target, monkeypatch
):
    real = environment_install.subprocess.run

    def killed(argv, **options):
        if "install" in argv:
            options["check"] = False
            return real(
                [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
                **options,
            )
        return real(argv, **options)

    monkeypatch.setattr(environment_install.subprocess, "run", killed)
    result = run_module(python_environment, arguments)
    assert result["failed"] and "SIGKILL" in result["msg"] and "same command" in result["msg"]
    assert target.exists() and not (target / core.MARKER).exists()
    monkeypatch.undo()
    assert run_module(python_environment, arguments)["reason"].startswith("incomplete")


def test_two_installations_at_once_are_kept_apart(run_module, arguments, target):
    target.parent.mkdir(parents=True)
    lock = target.parent / f".{DIGEST}.lock"
    holder = subprocess.Popen(["flock", str(lock), "sleep", "60"])
    try:
        while (
            subprocess.run(["flock", "--nonblock", str(lock), "true"], check=False).returncode == 0
        ):
            pass
        result = run_module(python_environment, dict(arguments, wait=0))
        assert result["failed"] and "another installation" in result["msg"]
        assert " 0 s" in result["msg"]
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()


def test_what_another_installation_made_meanwhile_is_not_made_again(
    run_module, arguments, target, wheelhouse, monkeypatch
):
    run_module(python_environment, dict(arguments, keep_wheels=True))
    marker = (target / core.MARKER).rename(target / "aside")
    monkeypatch.setattr(
        environment_install, "wait_for_lock", lambda *_: marker.rename(target / core.MARKER)
    )
    result = run_module(python_environment, arguments)
    assert not result["changed"] and DIGEST in result["environments"] and not wheelhouse.exists()


def test_the_installer_inherits_the_lock(tmp_path):
    path = tmp_path / "lock"
    with open(path, "w") as lock:
        environment_install.wait_for_lock(lock, 0, DIGEST)
        text = environment_install.run_program(["ls", "-l", "/proc/self/fd"], lock)
    assert str(path) in text


def test_programs_see_a_small_environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("SECRET_TOKEN", "x")
    names = environment_install.run_program(
        [sys.executable, "-c", "import os; print(sorted(os.environ))"]
    )
    assert "SECRET" not in names and "PYTHONPATH" not in names and "HOME" in names


@pytest.fixture
def own(tmp_path):
    """A Python of the user's, with a Paddle."""
    venv = [
        uv.find_uv_bin(),
        "venv",
        "--quiet",
        "--offline",
        "--no-project",
        "--python",
        sys.executable,
        str(tmp_path / "own"),
    ]
    subprocess.run(venv, check=True)
    site = next((tmp_path / "own").glob("lib/python3.*/site-packages"))
    with zipfile.ZipFile(make_paddle(tmp_path / "x")) as archive:
        archive.extractall(site)
    return tmp_path / "own", site


def test_an_own_python_is_looked_at_and_not_touched(run_module, own, tmp_path, target):
    directory, site = own
    before = sorted(str(path) for path in directory.rglob("*"))
    arguments = {
        "home": str(tmp_path / "home"),
        "digest": DIGEST,
        "python": str(directory / "bin/python"),
        "version": "2.6.2",
    }
    result = run_module(python_environment, arguments)
    marker = result["environments"][DIGEST]
    assert (
        result["changed"]
        and not marker["managed"]
        and marker["packages"]["paddlepaddle"] == "2.6.2"
    )
    assert (
        marker["interpreter"] == str(directory / "bin/python")
        and marker["imported"]["version"] == "2.6.2"
    )
    assert sorted(str(path) for path in directory.rglob("*")) == before
    assert os.listdir(target) == [core.MARKER]
    assert not run_module(python_environment, arguments)["changed"]
    (site / "extra-1.0.dist-info").mkdir()
    assert run_module(python_environment, arguments)["reason"].startswith("changed: extra 1.0 ")


def test_an_own_python_with_mindspore_alone_is_looked_at(run_module, own, tmp_path):
    directory, site = own
    shutil.rmtree(site / "paddle")
    with zipfile.ZipFile(make_mindspore(tmp_path / "y")) as archive:
        archive.extractall(site)
    arguments = {
        "home": str(tmp_path / "home"),
        "digest": DIGEST,
        "python": str(directory / "bin/python"),
    }
    assert run_module(python_environment, arguments)["environments"][DIGEST]["imported"][
        "targets"
    ] == ["CPU"]


def test_an_own_python_with_another_paddle_is_refused(run_module, own, tmp_path):
    arguments = {
        "home": str(tmp_path / "home"),
        "digest": DIGEST,
        "python": str(own[0] / "bin/python"),
        "package": "paddlepaddle-gpu",
    }
    assert "is built for CPU" in run_module(python_environment, arguments)["msg"]


@pytest.mark.parametrize("digest", ["../../etc", "", "AB" * 8, "ab" * 9])
def test_a_digest_that_is_a_path_is_refused(run_module, arguments, digest):
    said = run_module(python_environment, dict(arguments, digest=digest))["msg"]
    assert "16 hexadecimal digits" in said


def test_an_interpreter_that_is_not_there_is_named(run_module, arguments):
    result = run_module(python_environment, dict(arguments, interpreter="/no/such/python"))
    assert result["failed"] and "/no/such/python" in result["msg"]
    shutil.rmtree(arguments["home"])
