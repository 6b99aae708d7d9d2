# SPDX-License-Identifier: Apache-2.0
"""The addresses of an Ascend node's devices, read on the node.

The source is hccn_tool, else /etc/hccn.conf (contract D6). Not run on Ascend hardware: the tool's
output is taken from its manual and from its source, which the driver's makers have published.
"""

from __future__ import annotations

import re
import time

from ..base.sanitize import printable
from .rank_table import PER_SERVER, usable_ipv4

TOOL = "hccn_tool"
# where the driver puts it; that directory is on no PATH unless a person adds it
DRIVER_TOOL = "/usr/local/Ascend/driver/tools/hccn_tool"
CONF = "/etc/hccn.conf"
LIMIT_S = 10  # a faulty device can keep the tool waiting for ever
BUSY = "is busy"  # in the tool's message: it lets one process at a time ask the driver
TRIES = 3
WAIT_S = 1.0
_NO_PROGRAM, _NO_TIME = (126, 127), 124  # exit codes of timeout(1)
_ADDRESS = re.compile(r"^\s*ipaddr\s*:\s*(\S+)\s*$", re.MULTILINE)
_CONF_LINE = re.compile(r"^[ \t]*address_(\d+)[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)


class AscendError(Exception):
    """Devices without a usable address.

    .problems holds a sentence with its remedy for each.
    """

    def __init__(self, problems):
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def read_devices(run, conf=CONF, devices=None):
    """Return {source, devices: [{device_id, device_ip}]} of this node.

    source: "hccn_tool" or the path of conf. One source for all devices. run: like
    AnsibleModule.run_command. A missing program is an OSError or one of the shell's exit codes.
    devices: ids that must have an address, in the order of the result (default: those of 0-7 that
    have one). Raises AscendError.
    """
    names = range(PER_SERVER)
    if devices is not None:
        names = devices
    device_names = [str(name) for name in names]
    from_tool, reasons = ask_tool(run, device_names)
    if _suffices(from_tool, device_names, devices):
        return _result(TOOL, device_names, from_tool)
    from_conf, conf_reason = read_conf(conf, device_names)
    _refuse_stale_file(conf, device_names, from_conf, from_tool)
    if _suffices(from_conf, device_names, devices):
        return _result(conf, device_names, from_conf)
    if devices is None:
        raise AscendError(
            [
                "no device has an address. hccn_tool: {}. {}: {}. {}".format(
                    reasons["0"], conf, conf_reason, _remedy("N")
                )
            ]
        )
    lacking = [device for device in device_names if device not in from_conf]
    problems = []
    for device in lacking:
        if device not in from_tool:
            reason = conf_reason or f"no address_{device}="
            problems.append(
                f"device {device} has no address. hccn_tool: {reasons[device]}."
                f" {conf}: {reason}. {_remedy(device)}"
            )
    if not problems:
        # Each source lacks what the other has. A mixture of two sources is not a valid table.
        problems = [
            "hccn_tool has no address of device {}, {} none of device {}; fix the file".format(
                ", ".join(reasons), conf, ", ".join(lacking)
            )
        ]
    raise AscendError(problems)


def _suffices(addresses, device_names, devices):
    """Return whether a source has the address of every device that must have one."""
    if devices is None:
        return bool(addresses)
    return bool(addresses) and len(addresses) == len(device_names)


def _refuse_stale_file(conf, device_names, from_conf, from_tool):
    """Raise AscendError where the file contradicts the driver.

    Such a file is out of date, and HCCL fails on an address that the device does not have.
    """
    problems = []
    for device in device_names:
        if device in from_tool and from_conf.get(device, from_tool[device]) != from_tool[device]:
            problems.append(
                f"device {device} is {from_tool[device]} to hccn_tool and {from_conf[device]} in"
                f" {conf}; the tool is right, fix the file"
            )
    if problems:
        raise AscendError(problems)


def ask_tool(run, devices):
    """Return ({device: address}, {device: why it has none}) as hccn_tool says."""
    addresses, reasons, tools = {}, {}, [TOOL, DRIVER_TOOL]
    for index, device in enumerate(devices):
        code, output = _call(run, tools[0], device)
        if code in _NO_PROGRAM and len(tools) > 1:
            tools.pop(0)
            code, output = _call(run, tools[0], device)
        reason = _common_reason(code)
        if reason:
            reasons.update(dict.fromkeys(devices[index:], reason))
            return addresses, reasons
        match = _ADDRESS.search(output)
        if match and usable_ipv4(match.group(1)):
            addresses[device] = match.group(1)
        else:
            reasons[device] = printable(" ".join(output.split()), limit=200) or "it says nothing"
    return addresses, reasons


def _common_reason(code):
    """Return why every further call of the tool will fail, or None."""
    if code == _NO_TIME:
        return f"no answer within {LIMIT_S} s"
    if code in _NO_PROGRAM:
        return "it is not installed, or may not be run"
    return None


def read_conf(path, devices):
    """Return ({device: address}, reason) of a file of address_N= lines.

    reason: why it has no address at all, or "". Raises AscendError on a bad line.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            lines = _CONF_LINE.findall(handle.read(1 << 20))
    except OSError as error:
        return {}, (error.strerror or str(error)).lower()
    addresses, problems = {}, []
    for device, address in lines:
        if device not in devices:
            continue
        if not usable_ipv4(address):
            problems.append(
                f"{path}: address_{device}= is {_quoted(address)}, no IPv4 address that other"
                " devices reach; fix it"
            )
        elif addresses.setdefault(device, address) != address:
            problems.append(
                f"{path}: device {device} has two addresses, {addresses[device]} and {address};"
                " fix it"
            )
    if problems:
        raise AscendError(problems)
    if not addresses:
        return {}, "no address_N= line for these devices"
    return addresses, ""


def _call(run_command, tool, device):
    """Return (exit code, output of both streams) of one call of the tool.

    The call is repeated while the tool is busy.
    """
    for retries in reversed(range(TRIES)):
        try:
            code, out, err = run_command(["timeout", str(LIMIT_S), tool, "-i", device, "-ip", "-g"])
        except OSError as error:
            return _NO_PROGRAM[1], str(error)
        if BUSY not in out + err or not retries:
            break
        time.sleep(WAIT_S)
    return code, out + "\n" + err


def _result(source, device_names, addresses):
    return {
        "source": source,
        "devices": [
            {"device_id": name, "device_ip": addresses[name]}
            for name in device_names
            if name in addresses
        ],
    }


def _quoted(value):
    return printable(ascii(value), limit=60)


def _remedy(device):
    """Return how to set a device's address on the node."""
    return (
        f"Remedy, on the node and as root: `hccn_tool -i {device} -ip -g` shows the address,"
        f" `hccn_tool -i {device} -ip -s address ADDRESS netmask MASK` sets it; where only root may"
        f" run the tool, let the training user read {CONF}"
    )
