# SPDX-License-Identifier: Apache-2.0
"""The addresses of Ascend devices: what hccn_tool prints, what /etc/hccn.conf holds, and what is
said where neither helps.
"""

from __future__ import annotations

import subprocess

import pytest
from ansible_collections.trainyard.cluster.plugins.module_utils.plan import (
    ascend_addresses,
)
from core_support import program, recorded

IPS = {
    "0": "192.168.100.101",
    "1": "192.168.101.101",
    "2": "192.168.102.101",
    "3": "192.168.103.101",
}
EIGHT = dict(
    IPS,
    **{
        "4": "192.168.100.100",
        "5": "192.168.101.100",
        "6": "192.168.102.100",
        "7": "192.168.103.100",
    },
)
NO_IP = "Get ip failed, because no ip was preset there!"
DENIED = "permission denied: pls check this cmd run permission."
BUSY = "hccn_tool is busy, please try again."
ANSWER = "printf 'ipaddr:%s\\nnetmask:255.255.255.0\\n'"


def tool(folder, addresses, otherwise=f"echo '{NO_IP}'; exit 1", first=""):
    """Put a program that answers like hccn_tool first on PATH."""
    cases = "".join(
        f'"-i {device} -ip -g") {ANSWER % address};;\n' for device, address in addresses.items()
    )
    program(
        folder,
        "hccn_tool",
        f'echo "$*" >> "$LOG"\n{first}\ncase "$*" in\n{cases}*) {otherwise};;\nesac',
    )


def conf(folder, addresses, more=""):
    """Write a file like /etc/hccn.conf."""
    lines = [
        f"address_{device}={address}\nnetmask_{device}=255.255.255.0\n"
        for device, address in addresses.items()
    ]
    path = folder / "hccn.conf"
    path.write_text("".join(lines) + more)
    return str(path)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A real run_command whose PATH begins with the test's folder; the driver's own directory is
    not this machine's.
    """
    monkeypatch.setattr(ascend_addresses, "DRIVER_TOOL", str(tmp_path / "driver" / "hccn_tool"))
    monkeypatch.setattr(ascend_addresses, "WAIT_S", 0)

    def call(argv):
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        )
        return done.returncode, done.stdout, done.stderr

    return call


def listed(addresses):
    """Return addresses as read_devices gives them."""
    return [{"device_id": device, "device_ip": address} for device, address in addresses.items()]


def test_what_hccn_tool_prints(run, tmp_path):
    tool(tmp_path, EIGHT)
    assert ascend_addresses.read_devices(run, "/none") == {
        "source": "hccn_tool",
        "devices": listed(EIGHT),
    }
    assert recorded(tmp_path, "hccn_tool") == ["-i %d -ip -g" % number for number in range(8)]


def test_only_the_devices_that_are_asked_for_in_their_order(run, tmp_path):
    tool(tmp_path, EIGHT)
    found = ascend_addresses.read_devices(run, "/none", ["5", 4])
    assert (
        found["devices"] == [{"device_id": d, "device_ip": EIGHT[d]} for d in ("5", "4")]
        and len(recorded(tmp_path, "hccn_tool")) == 2
    )


def test_without_being_asked_for_more_the_devices_that_have_an_address(run, tmp_path):
    tool(tmp_path, IPS)
    assert ascend_addresses.read_devices(run, "/none")["devices"] == listed(IPS)


def test_the_drivers_directory_need_not_be_on_the_path(run, tmp_path):
    tool(tmp_path / "driver", IPS)
    assert ascend_addresses.read_devices(run, "/none", IPS) == {
        "source": "hccn_tool",
        "devices": listed(IPS),
    }


def test_a_run_that_raises_for_a_missing_program(tmp_path):
    def run(argv):
        raise FileNotFoundError(2, "No such file or directory", argv[0])

    assert ascend_addresses.read_devices(run, conf(tmp_path, IPS), IPS)["devices"] == listed(IPS)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_without_the_tool_the_file(run, tmp_path, ending):
    path = conf(
        tmp_path, EIGHT, "gateway_0=192.168.100.1\n# address_0=1.1.1.1\nIPv6address_0=fe80::1\n"
    )
    with open(path, "r+b") as handle:
        text = handle.read().replace(b"\n", ending.encode())
        handle.seek(0)
        handle.write(text)
    assert ascend_addresses.read_devices(run, path) == {"source": path, "devices": listed(EIGHT)}
    assert ascend_addresses.read_devices(run, path, ["4", "5"])["devices"] == listed(
        {d: EIGHT[d] for d in ("4", "5")}
    )


def test_a_user_who_may_not_run_the_tool_reads_the_file(run, tmp_path):
    tool(tmp_path, {}, f"echo '{DENIED}' >&2; exit 1")
    assert ascend_addresses.read_devices(run, conf(tmp_path, IPS), IPS)["source"] == str(
        tmp_path / "hccn.conf"
    )


def test_one_device_without_an_answer_takes_all_from_the_file(run, tmp_path):
    tool(tmp_path, {"0": IPS["0"]})
    assert ascend_addresses.read_devices(run, conf(tmp_path, IPS), IPS) == {
        "source": str(tmp_path / "hccn.conf"),
        "devices": listed(IPS),
    }


def test_a_file_that_contradicts_the_driver_is_not_believed(run, tmp_path):
    tool(tmp_path, {"0": "192.168.7.7"})
    with pytest.raises(
        ascend_addresses.AscendError,
        match=(
            "device 0 is 192.168.7.7 to hccn_tool and 192.168.100.101 in .*hccn.conf; the tool is"
            " right"
        ),
    ):
        ascend_addresses.read_devices(run, conf(tmp_path, IPS), IPS)


def test_a_tool_that_is_busy_is_asked_again(run, tmp_path):
    tool(tmp_path, IPS, first=f'[ "$(wc -l < "$LOG")" -gt 2 ] || {{ echo "{BUSY}"; exit 1; }}')
    assert ascend_addresses.read_devices(run, "/none", ["0"])["devices"] == listed({"0": IPS["0"]})
    tool(tmp_path, {}, f"echo '{BUSY}'; exit 1")
    with pytest.raises(ascend_addresses.AscendError, match="hccn_tool is busy"):
        ascend_addresses.read_devices(run, "/none", ["0"])


def test_a_tool_that_hangs_is_left_after_its_first_device(run, tmp_path, monkeypatch):
    monkeypatch.setattr(ascend_addresses, "LIMIT_S", 1)
    tool(tmp_path, {}, "sleep 60")
    with pytest.raises(ascend_addresses.AscendError) as caught:
        ascend_addresses.read_devices(run, "/none", IPS)
    assert [problem.split(" has ")[0] for problem in caught.value.problems] == [
        f"device {device}" for device in IPS
    ]
    assert all("hccn_tool: no answer" in problem for problem in caught.value.problems)
    assert all("within 1 s" in problem for problem in caught.value.problems)
    assert len(recorded(tmp_path, "hccn_tool")) == 1


@pytest.mark.parametrize(
    "said",
    [
        "ipaddr:\nnetmask:\n",
        "ipaddr:0.0.0.0\nnetmask:0.0.0.0\n",
        "ipaddr:192.168.1.300\n",
        "netmask:255.255.255.0\n",
        "192.168.1.1\n",
        "",
    ],
)
def test_an_answer_without_an_address_that_can_be_used_is_none(run, tmp_path, said):
    tool(tmp_path, {}, "printf '{}'".format(said.replace("\n", "\\n")))
    with pytest.raises(ascend_addresses.AscendError, match="device 0 has no address. hccn_tool: "):
        ascend_addresses.read_devices(run, "/none", ["0"])


def test_a_device_without_address_is_named_with_its_remedy(run, tmp_path):
    tool(tmp_path, {d: IPS[d] for d in "012"})
    with pytest.raises(ascend_addresses.AscendError) as caught:
        ascend_addresses.read_devices(run, conf(tmp_path, {d: IPS[d] for d in "012"}), IPS)
    (problem,) = caught.value.problems
    assert problem.startswith("device 3 ") and f"hccn_tool: {NO_IP}. " in problem
    assert f"{tmp_path / 'hccn.conf'}: no address_3=. " in problem
    assert "`hccn_tool -i 3 -ip -s address ADDRESS netmask MASK` sets it" in problem


def test_nothing_there_at_all(run):
    with pytest.raises(ascend_addresses.AscendError) as caught:
        ascend_addresses.read_devices(run, "/none")
    (problem,) = caught.value.problems
    assert "hccn_tool: it is not" in problem and "/none: no such file" in problem
    assert " as root" in problem
    with pytest.raises(ascend_addresses.AscendError) as caught:
        ascend_addresses.read_devices(run, "/none", ["0", "1"])
    assert [problem.split(".")[0] for problem in caught.value.problems] == [
        "device 0 has no address",
        "device 1 has no address",
    ]


def test_two_sources_are_not_mixed(run, tmp_path):
    tool(tmp_path, {"0": IPS["0"]})
    with pytest.raises(
        ascend_addresses.AscendError,
        match="hccn_tool has no address of device 1, .*hccn.conf none of device 0; fix the file",
    ):
        ascend_addresses.read_devices(run, conf(tmp_path, {"1": IPS["1"]}), ["0", "1"])


@pytest.mark.parametrize(
    "more, reason",
    [
        ("address_4=192.168.1.300\n", "address_4= is '192.168.1.300', no IPv4 address"),
        ("address_4=\n", "address_4= is '', no IPv4 address"),
        ("address_4=\x1b[2J\n", r"address_4= is '\x1b[2J', no IPv4 address"),
        (
            "address_0=192.168.1.1\n",
            "device 0 has two addresses, 192.168.100.101 and 192.168.1.1; fix it",
        ),
    ],
)
def test_a_bad_file_is_refused_where_it_matters(run, tmp_path, more, reason):
    path = conf(tmp_path, IPS, more)
    with pytest.raises(ascend_addresses.AscendError) as caught:
        ascend_addresses.read_devices(run, path, ["0", "4"])
    assert reason in str(caught.value)
    assert ascend_addresses.read_devices(run, path, ["1", "2"])["source"] == path
