# SPDX-License-Identifier: Apache-2.0
"""Hosts of a new site: words, hostfiles, the user's OpenSSH configuration, Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard import host_sources
from trainyard.host_sources import Host, HostError


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return a function that puts a program of the shell on PATH."""

    def add(name, script):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n" + script)
        path.chmod(0o755)
        monkeypatch.setenv("PATH", str(path.parent), prepend=":")

    return add


def test_words_have_account_and_port():
    hosts = host_sources.hosts_of_words(["gpu-01", "ml@10.0.0.2:2222", "[2001:db8::1]:22"])
    assert hosts == [
        Host("gpu-01", "gpu-01"),
        Host("10.0.0.2", "10.0.0.2", user="ml", port=2222),
        Host("2001:db8::1", "2001:db8::1", port=22),
    ]


@pytest.mark.parametrize(
    "word", ["", "-oProxyCommand=x", "a b", "a:0", "a:70000", "a;b", "ml@", "$(id)", "a/b"]
)
def test_other_words_are_refused(word):
    with pytest.raises(HostError):
        host_sources.hosts_of_words([word])


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a slots=8\nb slots=4 max_slots=8\n", [("a", 8), ("b", 4)]),  # Open MPI, DeepSpeed
        ("a:8\nb:4\n", [("a", 8), ("b", 4)]),  # MPICH
        ("# all\n\na  # the first\nb\n", [("a", None), ("b", None)]),
        ("a slots=2\nb slots=1\na slots=2\n", [("a", 4), ("b", 1)]),
    ],
)
def test_hostfiles_of_three_kinds(tmp_path, text, expected):
    path = tmp_path / "hostfile"
    path.write_text(text)
    hosts = host_sources.hosts_of_file(path)
    assert [(host.name, host.devices) for host in hosts] == expected


@pytest.mark.parametrize("text", ["", "# none\n", "a eight\n", "a slots=8 -x\n", "--bad slots=1\n"])
def test_a_hostfile_that_is_none_is_refused_with_its_line(tmp_path, text):
    path = tmp_path / "hostfile"
    path.write_text(text)
    with pytest.raises(HostError, match=str(path)):
        host_sources.hosts_of_file(path)


def test_a_name_of_the_ssh_configuration_is_looked_up(tmp_path, programs):
    config = tmp_path / "config"
    config.write_text(
        "Host one\n HostName 192.0.2.1\n User ml\n Port 2201\n ProxyJump gate\n"
        f" IdentityFile {tmp_path}/key\n"
    )
    real = "/usr/bin/ssh"
    if not Path(real).exists():
        pytest.skip("no OpenSSH client here")
    # The user's file, but for the second question, which wants ssh's own defaults.
    programs("ssh", f'[ "$1" = -F ] && exec {real} "$@"\nexec {real} -F {config} "$@"\n')
    found = host_sources.look_up(Host("one", "one"))
    assert found == Host(
        "one", "192.0.2.1", user="ml", port=2201, jump="gate", key=f"{tmp_path}/key"
    )
    assert host_sources.look_up(Host("two", "two")) == Host("two", "two")
    given = host_sources.look_up(Host("one", "one", user="root", port=22))
    assert (given.user, given.port) == ("root", 22)


def test_the_nodes_of_an_allocation_keep_slurms_order(programs):
    programs("scontrol", '[ "$3" = "gpu-[02,01]" ] && printf "gpu-02\\ngpu-01\\n"\n')
    environment = {"SLURM_JOB_NODELIST": "gpu-[02,01]", "SLURM_GPUS_ON_NODE": "8"}
    hosts = host_sources.hosts_of_slurm(environment)
    assert [(host.name, host.devices) for host in hosts] == [("gpu-02", 8), ("gpu-01", 8)]
    with pytest.raises(HostError):
        host_sources.hosts_of_slurm({})


@pytest.mark.parametrize(
    ("name", "value", "devices"),
    [
        ("SLURM_GPUS_ON_NODE", "8", 8),
        ("SLURM_GPUS_PER_NODE", "8", 8),
        ("SLURM_GPUS_PER_NODE", "a100:8", 8),
        ("SLURM_GPUS_PER_NODE", "a100:2,h100:1", 3),
        ("SLURM_GPUS_PER_NODE", "a100", None),
        ("SLURM_GPUS", "16", None),
    ],
)
def test_the_devices_of_an_allocation(programs, name, value, devices):
    programs("scontrol", "echo gpu-01\n")
    environment = {"SLURM_JOB_NODELIST": "gpu-01", name: value}
    assert [host.devices for host in host_sources.hosts_of_slurm(environment)] == [devices]


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1", "0.0.0.0", "localhost"])
def test_an_address_that_means_this_machine_everywhere_is_a_problem(address):
    assert host_sources.local_problem(Host("mine", address))


@pytest.mark.parametrize("address", ["192.0.2.1", "gpu-01", "2001:db8::1"])
def test_other_addresses_are_none(address):
    assert host_sources.local_problem(Host("mine", address)) is None
