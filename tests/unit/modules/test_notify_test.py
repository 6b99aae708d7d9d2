# SPDX-License-Identifier: Apache-2.0
"""notify.yml as a user calls it: what is sent and shown, with an address from the vault."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import notify_support
import pytest
import yaml
from core_support import ROOT

ANSIBLE = os.path.join(os.path.dirname(sys.executable), "ansible-playbook")
WORDS = "vault-password"


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with notify_support.receive() as httpd:
        yield httpd


@pytest.fixture
def call(tmp_path, server):
    """Call notify.yml for a site whose receiver has a secret address in a vault."""
    variables = tmp_path / "group_vars" / "all"
    variables.mkdir(parents=True)
    password = tmp_path / "password"
    password.write_text(WORDS)
    vault = variables / "vault.yml"
    vault.write_text(yaml.safe_dump({"vault_url": server.url, "vault_secret": "SIGNED9876"}))
    home = dict(os.environ, HOME=str(tmp_path), ANSIBLE_LOCAL_TEMP=str(tmp_path / "tmp"))
    subprocess.run(
        [ANSIBLE.replace("-playbook", "-vault"), "encrypt", str(vault)]
        + ["--vault-password-file", str(password)],
        env=home,
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    site = {
        "trainyard_site": "lab",
        "trainyard_accelerator": "cpu",
        "trainyard_devices": 1,
        "trainyard_suites": {},
        "trainyard_notify": [
            {"url": "{{ vault_url }}", "secret": "{{ vault_secret }}", "on": ["hung"]}
        ],
    }
    text = yaml.safe_dump(site).replace("'on':", "on:")  # as people write it
    assert "- on:" in text
    (variables / "site.yml").write_text(text)
    (tmp_path / "hosts.yml").write_text(
        yaml.safe_dump({"all": {"children": {"trainers": {"hosts": {"node1": {}}}}}})
    )

    def run(*words):
        done = subprocess.run(
            [ANSIBLE, "-i", str(tmp_path / "hosts.yml"), "playbooks/notify.yml"]
            + ["--vault-password-file", str(password), *words],
            cwd=ROOT,
            env=home,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_receiver_from_the_vault_is_told_and_not_shown(call, server):
    code, output = call("-vvv")
    assert code == 0, output
    [(path, headers, body)] = server.requests
    assert path.endswith("/TOKEN123?x=1") and json.loads(body)["event"] == "test"
    assert headers["X-Trainyard-Signature"].startswith("sha256=")
    assert "TOKEN123" not in output and "SIGNED9876" not in output


def test_a_receiver_that_refuses_fails_the_test_with_a_code(call, server):
    server.answers += [(403, b"bad TOKEN123")]
    code, output = call()
    assert code != 0 and "notify.not_told" in output and "403" in output
    assert "TOKEN123" not in output


def test_a_wrong_setting_is_refused_without_its_value(call):
    code, output = call("-e", json.dumps({"trainyard_notify": [{"url": "ftp://x/TOKEN123"}]}))
    assert code != 0 and "trainyard_notify.0" in output and "TOKEN123" not in output
