# SPDX-License-Identifier: Apache-2.0
"""node_requirements: what a node still needs."""

from __future__ import annotations

import json
import os

import node_requirements
import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.trainyard.cluster.plugins.module_utils.environments import (
    root_records,
    user_manager,
)
from ansible_collections.trainyard.cluster.plugins.plugin_utils.gate import answer_gate
from core_support import ROOT

ROLE_PACKAGES = yaml.safe_load((ROOT / "roles/runtime/vars/main.yml").read_text())[
    "__runtime_packages"
]
UBUNTU = 'PRETTY_NAME="Ubuntu 24.04"\nID=ubuntu\nID_LIKE=debian\n'
PID1 = """Limit                     Soft Limit           Hard Limit           Units
Max open files            1024                 20000                files
Max locked memory         65536                8388608              bytes
"""


@pytest.mark.parametrize(
    "text, family",
    [
        (UBUNTU, "debian"),
        ("ID=debian\n", "debian"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', "redhat"),
        ('ID="openEuler"\n', "redhat"),
        ("ID=alpine\n", ""),
        ("", ""),
    ],
)
def test_families(text, family):
    assert node_requirements.family_of(text) == family


def test_hard_limits_are_read():
    assert user_manager.hard_limits(PID1) == {"memlock": 8388608, "nofile": 20000}
    assert (
        user_manager.hard_limits(PID1.replace("8388608", "unlimited"))["memlock"]
        == user_manager.UNLIMITED
    )


@pytest.mark.parametrize(
    "wanted, hard, may_raise, nr_open, result",
    [
        (-1, 8388608, True, 0, -1),
        (-1, 8388608, False, 0, 8388608),
        (-1, -1, False, 0, -1),
        (1048576, 20000, False, 1048576, 20000),
        (1048576, 20000, True, 1048576, 1048576),
        (1048576, -1, True, 65536, 65536),
        (1000, 20000, False, 0, 1000),
    ],
)
def test_what_a_limit_can_become(wanted, hard, may_raise, nr_open, result):
    assert user_manager.allowed_limit(wanted, hard, may_raise, nr_open) == result


def test_limits_the_node_does_not_allow_stay_out_of_the_dropin():
    none = user_manager.dropins(
        1000,
        {
            "memlock": {"wanted": -1, "allowed": 8388608},
            "nofile": {"wanted": 1048576, "allowed": 20000},
        },
    )
    service = none["/etc/systemd/system/user@1000.service.d/50-trainyard.conf"]
    assert service.endswith("[Service]\nTasksMax=infinity\n") and "Limit" not in service
    both = user_manager.dropins(
        1000,
        {
            "memlock": {"wanted": -1, "allowed": -1},
            "nofile": {"wanted": 1048576, "allowed": 1048576},
        },
    )
    service = both["/etc/systemd/system/user@1000.service.d/50-trainyard.conf"]
    assert "LimitMEMLOCK=infinity\n" in service and "LimitNOFILE=1048576\n" in service


def test_packages_are_asked_of_the_right_database():
    def dpkg(argv):
        assert argv[0] == "dpkg-query"
        return 1, "rsync installed\nlibgomp1 not-installed\n"

    def rpm(argv):
        return (0, "") if argv[-1] == "rsync" else (1, "no package provides libgomp")

    assert node_requirements.missing_packages("debian", ["rsync", "libgomp1", "python3"], dpkg) == [
        "libgomp1",
        "python3",
    ]
    assert node_requirements.missing_packages("redhat", ["rsync", "libgomp"], rpm) == ["libgomp"]


@pytest.mark.parametrize(("version", "missing"), [((3, 9, 2), True), ((3, 13, 5), False)])
def test_distutils_is_wanted_only_by_a_python_that_needs_it(monkeypatch, version, missing):
    """Debian 11 has it as a package of its own, Debian 13 has no such package."""
    monkeypatch.setattr(node_requirements.sys, "version_info", version)
    wanted = ["rsync", "python3-distutils"]
    found = node_requirements.missing_packages(
        "debian", wanted, lambda argv: (0, "rsync installed")
    )
    assert ("python3-distutils" in found) is missing


@pytest.mark.parametrize(
    ("release", "family"),
    [
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"\n', "debian"),
        ('ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\n', "debian"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="8.10"\n', "redhat"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.6"\n', "redhat"),
        ('ID=debian\nVERSION_ID="11"\n', "debian"),
    ],
)
def test_each_release_has_the_table_of_its_family(release, family):
    table = ROLE_PACKAGES[family]
    assert node_requirements.family_of(release) == family and {"python3", "rsync"} <= set(table)
    assert ("openssh-client" in table, "openssh-clients" in table) == (
        family == "debian",
        family == "redhat",
    )


def test_an_unknown_distribution_is_asked_for_programs(monkeypatch):
    monkeypatch.setattr(
        node_requirements.shutil,
        "which",
        lambda name: None if name == "rsync" else "/usr/bin/" + name,
    )
    assert node_requirements.missing_packages("", []) == ["rsync"]


@pytest.fixture
def node(monkeypatch, tmp_path):
    """A ready node without CAP_SYS_RESOURCE; returns (files, answers) that a test may change."""
    uid = os.getuid()
    user = node_requirements.pwd.getpwuid(uid).pw_name
    mine = {
        "memlock": {"wanted": -1, "allowed": 8388608},
        "nofile": {"wanted": 1048576, "allowed": 20000},
    }
    files = {
        "/etc/os-release": UBUNTU,
        "/proc/1/limits": PID1,
        "/proc/1/status": "CapEff:\t00000000a82435fb\n",
        "/proc/sys/fs/nr_open": "1048576\n",
        **user_manager.dropins(uid, mine),
    }
    answers = {
        "dpkg-query": (0, "rsync installed"),
        "is-system-running": (0, "running"),
        "systemd-run": (0, PID1),
        "list-units": (0, ""),
        "show": (0, "MainPID=0"),
    }
    there = {f"/var/lib/systemd/linger/{user}"}
    monkeypatch.setattr(node_requirements, "read_text", lambda path: files.get(path, ""))
    monkeypatch.setattr(node_requirements.os.path, "exists", lambda path: path in there)

    def ask(argv):
        return next(value for key, value in answers.items() if key in argv)

    arguments = {"packages": {"debian": ["rsync"]}, "memlock": "infinity", "nofile": "1048576"}
    return files, answers, there, lambda: node_requirements.look(arguments, ask)


def test_a_ready_node_needs_nothing(node):
    result = node[3]()
    assert result["needs"] == []
    assert result["limits"]["memlock"] == {"wanted": -1, "allowed": 8388608, "measured": 8388608}


def test_each_need_is_told(node):
    files, answers, there, look = node
    answers["dpkg-query"] = (1, "")
    there.clear()
    for path in [path for path in files if "50-trainyard" in path]:
        del files[path]
    answers["is-system-running"] = (1, "Failed to connect to bus: No such file or directory")
    result = look()
    assert result["needs"] == ["packages", "linger", "limits", "manager"]
    assert (
        result["missing"] == ["rsync"]
        and result["units"] == []
        and "connect to bus" in result["manager"]
    )


def test_a_manager_older_than_its_limits_must_be_started_anew(node, monkeypatch):
    files, answers, there, look = node
    answers["systemd-run"] = (0, PID1.replace("20000", "4096"))
    there.update(path for path in files if "50-trainyard" in path)
    monkeypatch.setattr(node_requirements.os.path, "getmtime", lambda path: 2000)
    monkeypatch.setattr(node_requirements, "manager_started", lambda uid, ask: 1000)
    assert look()["needs"] == ["restart"]
    monkeypatch.setattr(node_requirements, "manager_started", lambda uid, ask: 3000)
    assert look()["needs"] == []  # the kernel refuses; starting it again would not help


def test_records_and_old_notes_are_named_and_not_read(monkeypatch, tmp_path):
    there = {"/var/lib/trainyard/mysite/firewall.json", str(tmp_path / "lingering")}
    monkeypatch.setattr(node_requirements.os.path, "exists", lambda path: path in there)
    given = {
        "packages": {},
        "memlock": "infinity",
        "nofile": "infinity",
        "site": "mysite",
        "home": str(tmp_path),
    }
    result = node_requirements.look(given, lambda argv: (0, ""))
    assert result["records"] == ["firewall"] and result["notes"] == ["lingering"]


def test_runs_that_hold_the_node_are_told(node):
    node[1]["list-units"] = (0, "trainyard-20261120-1.service loaded active running x\n")
    assert node[3]()["units"] == ["trainyard-20261120-1.service"]


def test_programs_that_are_missing_or_hang_are_answers():
    assert user_manager.run_program(["/no/such/program"])[0] == 127
    assert user_manager.run_program(["sleep", "5"], timeout=0.1)[0] == 124


def test_a_limit_that_is_no_number_is_refused(capsys):
    with patch_module_args({"packages": {}, "memlock": "lots"}), pytest.raises(SystemExit) as end:
        node_requirements.main()
    output = capsys.readouterr().out
    assert end.value.code == 1 and "infinity" in output and "got 'lots'" in output


@pytest.mark.parametrize("name", ["1234567", "CORP\\alice", "first+last"])
def test_an_account_that_root_is_not_given_is_no_lie(monkeypatch, name):
    account = node_requirements.pwd.getpwuid(os.getuid())
    monkeypatch.setattr(
        node_requirements.pwd,
        "getpwuid",
        lambda uid: node_requirements.pwd.struct_passwd((name, *account[1:])),
    )
    given = {"packages": {}, "memlock": "infinity", "nofile": "1048576"}
    result = node_requirements.look(given, lambda argv: (0, ""))
    assert (
        answer_gate.validate(
            "node_requirements", json.loads(json.dumps(dict(result, changed=False))), {}
        )["user"]
        == name
    )


def test_root_is_given_one_kind_of_names():
    role = yaml.safe_load((ROOT / "roles/runtime/vars/main.yml").read_text(encoding="utf-8"))
    assert role["__runtime_account_pattern"] == "^" + user_manager.ACCOUNT.pattern
    assert role["__runtime_site_pattern"] == "^" + root_records.SITE.pattern
