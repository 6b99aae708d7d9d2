# SPDX-License-Identifier: Apache-2.0
"""`make setup`: what it leaves alone, and which collections it removes. Nothing is installed."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess

import pytest
from core_support import ROOT

LISTS = ("requirements.txt", ".config/requirements-dev.txt", "requirements.yml")
FILES = (*LISTS, ".config/setup.sh", ".config/slim.py", ".config/python_remedy.sh")


@pytest.fixture
def checkout(tmp_path):
    """Call it with a name: a checkout that has the files of the setup and no .venv."""

    def make(name):
        for path in FILES:
            (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, tmp_path / name / path)
        return tmp_path / name

    return make


@pytest.fixture
def slim(tmp_path, monkeypatch):
    """slim.py, for a package of collections in a directory of the test."""
    spec = importlib.util.spec_from_file_location("slim", ROOT / ".config" / "slim.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "BUNDLE", tmp_path / "ansible_collections")
    return module


def make_venv(checkout):
    """Make what the setup takes for a complete .venv of this checkout, with both sets."""
    program = checkout / ".venv" / "bin" / "ansible-playbook"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    user, dev, collections = (checkout.joinpath(path).read_text() for path in LISTS)
    stamps = {"trainyard-setup": user, "trainyard-setup-dev": user + dev}
    for name, lists in stamps.items():
        (checkout / ".venv" / name).write_text(f"{checkout}\n{lists}{collections}")
    return checkout / ".venv"


def run_setup(checkout, *arguments):
    """Run the setup; return its exit code and its output."""
    done = subprocess.run(
        [checkout / ".config" / "setup.sh", *arguments], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [(), ("dev",)])
def test_nothing_to_do_is_nothing_done(checkout, arguments):
    here = checkout("here")
    before = sorted(make_venv(here).rglob("*"))
    assert run_setup(here, *arguments) == (0, "")
    assert sorted((here / ".venv").rglob("*")) == before


@pytest.mark.parametrize("arguments", [(), ("dev",)])
def test_a_worktree_shares_a_venv_by_a_link(checkout, arguments):
    here, other = checkout("here"), checkout("other")
    (here / ".venv").symlink_to(make_venv(other))
    assert run_setup(here, *arguments) == (0, "")


def test_the_venv_of_another_checkout_is_never_emptied(checkout):
    here, other = checkout("here"), checkout("other")
    venv = make_venv(other)
    (here / ".venv").symlink_to(venv)
    with open(here / "requirements.txt", "a") as handle:
        handle.write("# changed\n")
    before = sorted(venv.rglob("*"))
    code, output = run_setup(here)
    assert code == 1 and f".venv is a link to {venv}" in output
    assert sorted(venv.rglob("*")) == before


@pytest.mark.parametrize(
    ("release", "python", "tools", "remedy"),
    [
        ('ID=debian\nVERSION_ID="12"', "yes", (), "sudo apt-get install python3 python3-venv"),
        ("ID=debian\nVERSION_ID=13", "no", ("git",), "sudo apt-get install git"),
        ("ID=debian\nVERSION_ID=11", "yes", (), "uv python install 3.12 (uv: https://"),
        (
            'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"',
            "yes",
            ("rsync",),
            "sudo add-apt-repository ppa:deadsnakes/ppa && sudo apt-get install python3.11"
            " python3.11-venv rsync, or without root uv python install 3.12 (uv: https://",
        ),
        ("ID=ubuntu\nVERSION_ID=24.04", "yes", (), "sudo apt-get install python3 python3-venv"),
        (
            'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="8.10"',
            "yes",
            ("openssh-client",),
            "sudo dnf install python3.11 openssh-clients",
        ),
        ('ID="rhel"\nVERSION_ID="9.4"', "yes", (), "sudo dnf install python3.11"),
        ("ID=fedora\nVERSION_ID=42", "yes", (), "sudo dnf install python3"),
        ("ID=arch", "yes", ("git",), "install git with this system's package manager, and uv py"),
        ("", "yes", (), "uv python install 3.12"),
    ],
)
def test_the_remedy_is_the_systems_own(tmp_path, release, python, tools, remedy):
    path = tmp_path / "os-release"
    path.write_text(release + "\n")
    program = ROOT / ".config" / "python_remedy.sh"
    done = subprocess.run(
        [program, path, "Linux", python, *tools], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 0 and done.stdout.startswith(remedy), done
    if not remedy.endswith(("https://", "py", "3.12")):
        assert done.stdout == remedy + "\n"


def test_the_remedy_on_macos_is_a_virtual_machine(tmp_path):
    program = ROOT / ".config" / "python_remedy.sh"
    done = subprocess.run(
        [program, tmp_path / "none", "Darwin", "yes"], capture_output=True, text=True, timeout=20
    )
    assert "docs/runbooks/controllers.md" in done.stdout


def test_what_a_machine_lacks_is_named_with_the_remedy(checkout, tmp_path):
    """There is a PATH without a Python, ssh, rsync and git."""
    here, programs = checkout("here"), tmp_path / "programs"
    programs.mkdir()
    for name in "dirname readlink cat printf head sed tr uname id sh".split():
        if shutil.which(name):
            (programs / name).symlink_to(shutil.which(name))
    (programs / "id").unlink()
    (programs / "id").write_text("#!/bin/sh\necho 1000\n")
    (programs / "id").chmod(0o755)
    text = (here / ".config" / "setup.sh").read_text()
    (here / ".config" / "setup.sh").write_text(text.replace("/usr/bin/python3", "/nothere/python3"))
    done = subprocess.run(
        [here / ".config" / "setup.sh"],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=20,
    )
    remedy = subprocess.run(
        [ROOT / ".config" / "python_remedy.sh", "/etc/os-release", "Linux", "yes"]
        + ["openssh-client", "rsync", "git"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 1 and f"Remedy: {remedy.stdout.strip()}; then" in done.stderr, done


def test_an_unknown_set_is_refused(checkout):
    code, output = run_setup(checkout("here"), "everything")
    assert code == 2 and output.startswith("usage: ")


def add_collection(slim, name, dependencies=()):
    """Add a collection with one file to the package."""
    folder = slim.directory_of(name)
    folder.mkdir(parents=True)
    manifest = {"collection_info": {"dependencies": dict.fromkeys(dependencies, "*")}}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))


def test_collections_in_use_stay_with_what_they_need(slim):
    add_collection(slim, "ansible.posix")
    add_collection(slim, "community.docker", ["community.filters"])
    add_collection(slim, "community.filters")
    add_collection(slim, "community.unused")
    add_collection(slim, "vendor.unused")
    (slim.BUNDLE / "ansible_release.py").write_text("")
    needed = slim.with_dependencies(["ansible.posix", "community.docker", "absent.here"])
    assert needed == {"ansible.posix", "community.docker", "community.filters"}
    count, _freed = slim.remove_others(needed)
    left = {path.relative_to(slim.BUNDLE).as_posix() for path in slim.BUNDLE.glob("*")}
    assert count == 2 and left == {"ansible", "community", "ansible_release.py"}
    assert slim.with_dependencies(sorted(needed)) == needed
    assert slim.remove_others(needed) == (0, 0)


def test_the_collections_of_requirements_yml_are_read(slim):
    names = slim.read_required(ROOT / "requirements.yml")
    assert "ansible.posix" in names and "community.docker" in names
