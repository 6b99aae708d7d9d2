# SPDX-License-Identifier: Apache-2.0
"""What is no YAML in a site's files is named with file and line, and nothing else is."""

from __future__ import annotations

import pytest
from core_support import ROOT

from trainyard import site_syntax


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a function that writes a file of a site and returns the site's problems."""
    monkeypatch.chdir(tmp_path)

    def problems(name, text, mode=0o644):
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        return site_syntax.syntax_problems(tmp_path / "site")

    return problems


@pytest.mark.parametrize(
    "text, line",
    [
        ("a: 1\n\tb: 2\n", 2),
        ("a: 1\nb: [1, 2\nc: 3\n", 3),
        ("a: 'x\nb: y\n", 3),
        ("a: 1\n  b: 2\n", 2),
        ("a: b: c\n", 1),
        ("a: 1\nb\n", 3),
    ],
)
def test_a_broken_file_is_named_with_its_line(site, text, line):
    (problem,) = site("group_vars/all.yml", text)
    assert problem.startswith(f"site/group_vars/all.yml:{line}: ")


@pytest.mark.parametrize("name", ["hosts.yml", "host_vars/gpu-01", "group_vars/all/main.yaml"])
def test_every_file_that_ansible_reads_is_read(site, name):
    (problem,) = site(name, "a: [\n")
    assert problem.startswith(f"site/{name}:")


@pytest.mark.parametrize(
    "name, text, mode",
    [
        ("hosts.yml", "#!/bin/sh\n: [\n", 0o755),  # a program
        ("hosts.ini", "[trainers]\na\n", 0o644),
        ("group_vars/all.yml~", "a: [\n", 0o644),
        ("group_vars/all.md", "a: [\n", 0o644),
        ("group_vars/all.yml", "$ANSIBLE_VAULT;1.1;AES256\n3132\n", 0o644),
        ("group_vars/all.yml", "a: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  3132\n", 0o644),
        ("group_vars/all.yml", "a: !unsafe '{{ x }}'\n", 0o644),
        ("group_vars/all.yml", "\ufeffa: 1\r\nb: 2\r\n", 0o644),
    ],
)
def test_what_ansible_can_read_is_no_problem(site, name, text, mode):
    assert site(name, text, mode) == []


def test_bytes_that_are_no_text_are_a_problem(site):
    (problem,) = site("group_vars/all.yml", b"a: \xff\xfe\n")
    assert problem.startswith("site/group_vars/all.yml")


@pytest.mark.parametrize("name", ["sample", "local"])
def test_the_shipped_sites_have_none(name):
    assert site_syntax.site_files(ROOT / "inventory" / name)
    assert site_syntax.syntax_problems(ROOT / "inventory" / name) == []
