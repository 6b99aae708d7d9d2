# SPDX-License-Identifier: Apache-2.0
"""The addresses of an Ascend node's devices, read on the node: hccn_tool, else /etc/hccn.conf
(contract D6). Not run on Ascend hardware.

What the tool prints is taken from its manual and from its source, which the driver's makers have
published.
"""

from __future__ import annotations

import re
import time

from ..base.sanitize import printable
from .rank_table import PER_SERVER, usable_ipv4

TOOL = "hccn_tool"
# where the driver puts it; by itself that directory is on nobody's PATH
DRIVER_TOOL = "/usr/local/Ascend/driver/tools/hccn_tool"
CONF = "/etc/hccn.conf"
LIMIT_S = 10  # a device that has gone wrong can hold the tool for ever
BUSY = "is busy"  # the tool's own words: it lets one process at a time ask the driver
TRIES = 3
WAIT_S = 1.0
_NO_PROGRAM, _NO_TIME = (126, 127), 124  # exit codes of timeout(1)
_ADDRESS = re.compile(r"^\s*ipaddr\s*:\s*(\S+)\s*$", re.MULTILINE)
_CONF_LINE = re.compile(r"^[ \t]*address_(\d+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)


class AscendError(Exception):
    """Devices without an address that can be used. `problems`: every one of them as a sentence with
    its remedy.
    """

    def __init__(self, problems):
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def read_devices(run, conf=CONF, devices=None):
    """Return {source: "hccn_tool" or the path of conf, devices: [{device_id, device_ip}]} of this
    node; one source for all devices.

    run: like AnsibleModule.run_command; a missing program is an OSError or one of the shell's exit
    codes. devices: ids that must have an address, in the order they are wanted back (default: those
    of 0-7 that have one). Raises AscendError.
    """
    wanted = (
        [str(device) for device in devices]
        if devices is not None
        else [str(number) for number in range(PER_SERVER)]
    )
    told, reasons = ask_tool(run, wanted)
    if told and (devices is None or len(told) == len(wanted)):
        return _result(TOOL, wanted, told)
    written, why = read_conf(conf, wanted)
    # A file that contradicts the driver is out of date, and HCCL fails on an address that the
    # device does not have.
    stale = [
        device
        for device in wanted
        if device in told and written.get(device, told[device]) != told[device]
    ]
    if stale:
        words = "device %s is %s to hccn_tool and %s in %s; the tool is right, mend the file"
        raise AscendError(
            [words % (device, told[device], written[device], conf) for device in stale]
        )
    if written and (devices is None or len(written) == len(wanted)):
        return _result(conf, wanted, written)
    if devices is None:
        raise AscendError(
            [
                "no device has an address. hccn_tool: {}. {}: {}. {}".format(
                    reasons["0"], conf, why, _remedy("N")
                )
            ]
        )
    lacking = [device for device in wanted if device not in written]
    words = "device %s has no address. hccn_tool: %s. %s: %s. %s"
    problems = [
        words % (d, reasons[d], conf, why or f"no address_{d}=", _remedy(d))
        for d in lacking
        if d not in told
    ]
    if not problems:  # each knows what the other lacks; a mixture of two sources is nobody's table
        problems = [
            "hccn_tool has no address of device {}, {} none of device {}; mend the file".format(
                ", ".join(reasons), conf, ", ".join(lacking)
            )
        ]
    raise AscendError(problems)


def ask_tool(run, devices):
    """Return ({device: address}, {device: why it has none}) as hccn_tool says."""
    told, reasons, tools = {}, {}, [TOOL, DRIVER_TOOL]
    for place, device in enumerate(devices):
        code, said = _call(run, tools[0], device)
        if code in _NO_PROGRAM and len(tools) > 1:
            tools.pop(0)
            code, said = _call(run, tools[0], device)
        if code in _NO_PROGRAM or code == _NO_TIME:  # so it would be with all that follow
            reason = (
                "no answer within %d s" % LIMIT_S
                if code == _NO_TIME
                else "it is not installed, or may not be run"
            )
            return told, dict(reasons, **{other: reason for other in devices[place:]})
        match = _ADDRESS.search(said)
        if match and usable_ipv4(match.group(1)):
            told[device] = match.group(1)
        else:
            reasons[device] = printable(" ".join(said.split()), limit=200) or "it says nothing"
    return told, reasons


def read_conf(path, devices):
    """Return ({device: address}, why there is none at all or "") from a file of address_N= lines.
    Raises AscendError on a bad one.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            lines = _CONF_LINE.findall(handle.read(1 << 20))
    except OSError as error:
        return {}, (error.strerror or str(error)).lower()
    found, problems = {}, []
    for device, address in lines:
        if device not in devices:
            continue
        if not usable_ipv4(address):
            problems.append(
                f"{path}: address_{device}= is {_quoted(address)}, no IPv4 address that other"
                " devices reach; mend it"
            )
        elif found.setdefault(device, address) != address:
            problems.append(
                f"{path}: device {device} has two addresses, {found[device]} and {address}; mend it"
            )
    if problems:
        raise AscendError(problems)
    return found, "" if found else "no address_N= line for these devices"


def _call(run, tool, device):
    """Return (exit code, output of both streams) of one question to the tool, asked again while the
    tool is busy.
    """
    for left in reversed(range(TRIES)):
        try:
            code, out, err = run(["timeout", str(LIMIT_S), tool, "-i", device, "-ip", "-g"])
        except OSError as error:
            return _NO_PROGRAM[1], str(error)
        if BUSY not in out + err or not left:
            break
        time.sleep(WAIT_S)
    return code, out + "\n" + err


def _result(source, wanted, addresses):
    return {
        "source": source,
        "devices": [
            {"device_id": name, "device_ip": addresses[name]}
            for name in wanted
            if name in addresses
        ],
    }


def _quoted(value):
    return printable(ascii(value), limit=60)


def _remedy(device):
    """Return what to do on the node."""
    return (
        f"Remedy, on the node and as root: `hccn_tool -i {device} -ip -g` shows the address,"
        f" `hccn_tool -i {device} -ip -s address ADDRESS netmask MASK` sets it; where only root may"
        f" run the tool, let the training user read {CONF}"
    )
