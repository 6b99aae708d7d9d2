# SPDX-License-Identifier: Apache-2.0
"""The embedded site where no engine is needed: its inventory, and everything that its role refuses
before it touches anything.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ANSIBLE = Path(sys.executable).with_name("ansible-playbook")
SITE = {"trainyard_site": "test", "trainyard_state_dir": "/home/me/state"}
USER = {"user_uid": 1000, "user_id": "me", "os_family": "Debian", "service_mgr": "systemd"}


def inventory(home, **environment):
    given = {key: value for key, value in os.environ.items() if key != "TRAINYARD_LOCAL_NODES"}
    return subprocess.run(
        [sys.executable, str(ROOT / "inventory" / "local" / "nodes.py")],
        env={**given, "HOME": str(home), **environment},
        capture_output=True,
        text=True,
    )


def record(home, text):
    path = home / ".local" / "state" / "trainyard" / "local" / "nodes"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def addresses(done):
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return [
        (name, answer["_meta"]["hostvars"][name]["ansible_host"])
        for name in answer["trainers"]["hosts"]
    ]


def test_a_site_has_two_nodes_at_first(tmp_path):
    assert addresses(inventory(tmp_path)) == [
        ("node1", "198.51.100.11"),
        ("node2", "198.51.100.12"),
    ]


def test_the_number_of_nodes_is_remembered_and_the_environment_beats_it(tmp_path):
    record(tmp_path, "12\n")
    assert [name for name, _address in addresses(inventory(tmp_path))] == [
        f"node{n}" for n in range(1, 13)
    ]
    assert len(addresses(inventory(tmp_path, TRAINYARD_LOCAL_NODES="3"))) == 3
    assert len(addresses(inventory(tmp_path, TRAINYARD_LOCAL_NODES=""))) == 12


@pytest.mark.parametrize("number", ["0", "-1", "two", "1.5", "91", " "])
def test_a_number_that_is_none_is_refused(tmp_path, number):
    done = inventory(tmp_path, TRAINYARD_LOCAL_NODES=number)
    assert done.returncode != 0 and "from 1 to 90" in done.stderr


def play(folder, tasks_from, path="", hosts=None, **variables):
    """Run one of the role's task files for two nodes of an engine that is only told about; return
    (exit code, output).
    """
    nodes = {"node1": {"ansible_host": "198.51.100.11"}, "node2": {"ansible_host": "198.51.100.12"}}
    nodes = {name: {**about, **(hosts or {}).get(name, {})} for name, about in nodes.items()}
    (folder / "hosts.json").write_text(json.dumps({"trainers": {"hosts": nodes}}))
    role = {
        "name": "local_cluster",
        "tasks_from": tasks_from,
        "rolespec_validate": False,
        "apply": {"delegate_to": "localhost", "run_once": True},
    }
    tasks = [{"name": "Do this part", "ansible.builtin.include_role": role}]
    (folder / "play.yml").write_text(
        json.dumps([{"name": "Test", "hosts": "trainers", "gather_facts": False, "tasks": tasks}])
    )
    (folder / "vars.json").write_text(json.dumps({**SITE, **variables}))
    done = subprocess.run(
        [
            str(ANSIBLE),
            "-i",
            str(folder / "hosts.json"),
            "-e",
            f"@{folder / 'vars.json'}",
            str(folder / "play.yml"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "ANSIBLE_NOCOLOR": "1",
            "HOME": str(folder),
            "PATH": f"{path}:{os.environ['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, " ".join(done.stdout.split())


def engine(containers=(), subnet="198.51.100.0/24", security=("name=seccomp,profile=default",)):
    return {
        "host_info": {"SecurityOptions": list(security), "CgroupVersion": "2"},
        "containers": [
            {"Id": name, "Names": ["/" + name], "Labels": labels} for name, labels in containers
        ],
        "networks": (
            [{"Name": "trainyard", "IPAM": {"Config": [{"Subnet": subnet}]}}] if subnet else []
        ),
        "images": [],
    }


OURS = {"trainyard_site": "test", "trainyard_state": "/home/me/state"}
THEIRS = {"trainyard_site": "test", "trainyard_state": "/home/you/state"}


@pytest.mark.parametrize(
    "answer",
    [
        engine(),
        engine(subnet=None),
        engine([("trainyard-test-node1", OURS), ("web", {}), ("trainyard-other-node1", THEIRS)]),
    ],
)
def test_an_engine_that_can_be_used_is_used(tmp_path, answer):
    code, output = play(tmp_path, "guard", __local_cluster_engine=answer)
    assert code == 0, output


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (engine(security=["name=seccomp,profile=builtin", "name=rootless"]), "runs rootless"),
        (
            engine([("trainyard-test-node2", {})]),
            "trainyard-test-node2: a container of this name is not of the site",
        ),
        (
            engine([("trainyard-test-node1", THEIRS)]),
            "trainyard-test-node1: a container of this name is not of the site",
        ),
        (engine(subnet="10.1.0.0/16"), "trainyard does not have the subnet 198.51.100.0/24"),
    ],
)
def test_an_engine_that_cannot_be_used_is_refused(tmp_path, answer, said):
    code, output = play(tmp_path, "guard", __local_cluster_engine=answer)
    assert code != 0 and said in output and "Remedy:" in output, output


@pytest.mark.parametrize(
    ("change", "dockerd"),
    [({}, ["/usr/sbin/dockerd"]), ({}, []), ({"user_uid": 0, "os_family": "RedHat"}, [])],
)
def test_an_engine_that_this_user_cannot_start_is_said_with_the_remedy(tmp_path, change, dockerd):
    silent = {"msg": "Error connecting: PermissionError(13, 'Permission denied')"}
    code, output = play(
        tmp_path,
        "start_engine",
        __local_cluster_engine=silent,
        __local_cluster_controller={**USER, **change},
        __local_cluster_dockerd=dockerd,
    )
    assert code != 0 and "(Error connecting: PermissionError" in output and "Remedy:" in output, (
        output
    )


def test_the_process_id_of_a_containerd_that_has_ended_is_forgotten(tmp_path):
    name, living = tmp_path / "containerd", tmp_path / "living.pid"
    name.symlink_to(shutil.which("sleep"))
    ended = tmp_path / "ended.pid"
    ended.write_text(str(os.getpid()))  # another program has the id today
    with subprocess.Popen([str(name), "60"]) as containerd:
        try:
            living.write_text(str(containerd.pid))
            for pidfile in (living, ended, tmp_path / "never.pid"):
                code, output = play(
                    tmp_path, "forget_containerd", __local_cluster_containerd_pidfile=str(pidfile)
                )
                assert code == 0, output
        finally:
            containerd.kill()
    assert living.exists() and not ended.exists()


@pytest.mark.parametrize("change", [{}, {"user_uid": 0, "os_family": "RedHat"}])
def test_a_base_that_cannot_be_made_here_is_said_with_the_remedy(tmp_path, change):
    code, output = play(
        tmp_path,
        "make_base",
        __local_cluster_pull={"msg": "no such host"},
        __local_cluster_controller={**USER, **change},
    )
    assert code != 0 and "debian:12 (no such host)" in output and "Remedy:" in output, output


FABRIC = {"name": "fabric", "subnet": "203.0.113.0/24"}


def further(*last):
    """What node1 and node2 say of a further network of theirs, by host variables."""
    return {
        "node%d" % at: {"local_cluster_networks": [{**FABRIC, "address": address}]}
        for at, address in enumerate(last, 1)
    }


def test_a_further_network_of_another_shape_is_refused(tmp_path):
    answer = engine()
    answer["networks"].append({"Name": "fabric", "IPAM": {"Config": [{"Subnet": "10.1.0.0/16"}]}})
    code, output = play(
        tmp_path,
        "guard",
        hosts=further("203.0.113.11", "203.0.113.12"),
        __local_cluster_engine=answer,
    )
    assert code != 0 and "the subnet 203.0.113.0/24" in output, output
    assert "fabric does not have" in output, output
    answer["networks"][-1]["IPAM"]["Config"][0]["Subnet"] = FABRIC["subnet"]
    assert (
        play(
            tmp_path,
            "guard",
            hosts=further("203.0.113.11", "203.0.113.12"),
            __local_cluster_engine=answer,
        )[0]
        == 0
    )


def test_a_further_network_is_made_once_for_all_nodes_and_hides_none_in_use(tmp_path):
    ip = tmp_path / "bin" / "ip"
    ip.parent.mkdir()
    ip.write_text(
        '#!/bin/sh\n[ "$*" = \'-json route show match 203.0.113.0\' ] && echo \'[{"dst":'
        ' "203.0.113.0/24"}]\'\n'
    )
    ip.chmod(0o755)
    code, output = play(
        tmp_path,
        "network",
        hosts=further("203.0.113.11", "203.0.113.12"),
        path=str(ip.parent),
        __local_cluster_engine=engine(),
    )
    assert (
        code != 0 and "reaches 203.0.113.0/24 by" in output and output.count("(item=fabric)") == 1
    ), output


def test_a_network_that_would_hide_one_in_use_is_refused(tmp_path):
    routes = [
        {"dst": "default", "gateway": "192.0.2.1"},
        {"dst": "0.0.0.0/1", "dev": "tun0"},
        {"dst": "198.51.100.0/24", "dev": "eth1"},
    ]
    ip = tmp_path / "bin" / "ip"
    ip.parent.mkdir()
    ip.write_text(
        "#!/bin/sh\n[ \"$*\" = '-json route show match 198.51.100.0' ] && echo"
        f" '{json.dumps(routes)}'\n"
    )
    ip.chmod(0o755)
    code, output = play(
        tmp_path, "network", path=str(ip.parent), __local_cluster_engine=engine(subnet=None)
    )
    assert code != 0 and "reaches 198.51.100.0/24 by" in output and "Remedy:" in output, output


def test_the_first_node_of_each_release_makes_its_image(tmp_path):
    hosts = {f"node{n}": {"local_cluster_release": "bookworm"} for n in (1, 2, 3)}
    hosts["node2"] = hosts["node3"] = {"local_cluster_release": "trixie"}
    (tmp_path / "hosts.json").write_text(json.dumps({"trainers": {"hosts": hosts}}))
    builder = "{{ inventory_hostname }} is built by {{ __local_cluster_builder }}."
    play_of_nodes = {
        "name": "Test",
        "hosts": "trainers",
        "gather_facts": False,
        "vars_files": [str(ROOT / "roles/local_cluster/vars/main.yml")],
        "vars": {"local_cluster_nodes": sorted(hosts)},
        "tasks": [{"name": "Show", "ansible.builtin.debug": {"msg": builder}}],
    }
    (tmp_path / "play.yml").write_text(json.dumps([play_of_nodes]))
    done = subprocess.run(
        [str(ANSIBLE), "-i", str(tmp_path / "hosts.json"), str(tmp_path / "play.yml")],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_NOCOLOR": "1", "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for name, first in (("node1", "node1"), ("node2", "node2"), ("node3", "node2")):
        assert f"{name} is built by {first}." in done.stdout
