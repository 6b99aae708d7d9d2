# SPDX-License-Identifier: Apache-2.0
"""The hosts of a new site, from words, hostfiles, Slurm and OpenSSH.

Words of the command line, a hostfile, the user's OpenSSH configuration, a Slurm allocation.
"""

from __future__ import annotations

import ipaddress
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_WORD = re.compile(
    r"(?:(?P<user>[A-Za-z_][A-Za-z0-9_.-]*)@)?"
    r"(?P<name>\[[0-9A-Fa-f:]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)"
    r"(?::(?P<port>[0-9]{1,5}))?\Z"
)
# Open MPI and DeepSpeed: `name slots=8`. MPICH: `name:8`.
_SLOTS = re.compile(r"(?:slots|max_slots|max-slots)=([0-9]+)\Z")
_MPICH = re.compile(r"(?P<name>.+):(?P<slots>[0-9]+)\Z")
_COMMAND_SECONDS = 20


class HostError(Exception):
    """The hosts of a site cannot be had. The message says what to do."""


@dataclass(frozen=True)
class Host:
    """A machine of a new site. What is None or empty is not written."""

    name: str
    address: str
    user: str | None = None
    port: int | None = None
    devices: int | None = None
    jump: str | None = None
    key: str | None = None


def hosts_of_words(words: Sequence[str]) -> list[Host]:
    """Return the hosts of the command line's words: [USER@]NAME[:PORT]."""
    hosts = []
    for word in words:
        parts = _WORD.match(word)
        if not parts:
            raise HostError(f"{word!r} is no host; give [USER@]NAME[:PORT]")
        port = None
        if parts["port"]:
            port = int(parts["port"])
            if not 0 < port < 65536:
                raise HostError(f"{word!r}: {port} is no port; give 1 to 65535")
        name = parts["name"].strip("[]")
        hosts.append(Host(name, name, parts["user"], port))
    return hosts


def hosts_of_file(path: Path) -> list[Host]:
    """Return the hosts of an MPI or DeepSpeed hostfile.

    A host that has several lines has the slots of all of them.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HostError(f"{path}: cannot be read: {error}") from error
    hosts: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if words:
            host = _host_of_line(words, f"{path}:{number}")
            known = hosts.get(host.name)
            if known and known.devices and host.devices:
                host = replace(host, devices=known.devices + host.devices)
            hosts[host.name] = host
    if not hosts:
        raise HostError(f"{path}: names no host")
    return list(hosts.values())


def _host_of_line(words: Sequence[str], place: str) -> Host:
    """Return the host of a line of a hostfile."""
    name, devices = words[0], None
    mpich = _MPICH.match(name)
    if mpich:
        name, devices = mpich["name"], int(mpich["slots"])
    for word in words[1:]:
        slots = _SLOTS.match(word)
        if slots and word.startswith("slots"):
            devices = int(slots[1])
        elif not slots and "=" not in word:
            raise HostError(f"{place}: {word!r} is not understood; a line is NAME slots=N")
    try:
        return replace(hosts_of_words([name])[0], devices=devices)
    except HostError as error:
        raise HostError(f"{place}: {error}") from error


def hosts_of_slurm(environment: Mapping[str, str]) -> list[Host]:
    """Return the nodes of the Slurm allocation that this shell belongs to, in Slurm's order."""
    nodes = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if not nodes:
        raise HostError(
            "this shell belongs to no Slurm allocation. Get one first: salloc --nodes=2"
        )
    output = _output_of(["scontrol", "show", "hostnames", nodes])
    devices = _devices_of_slurm(environment)
    hosts = hosts_of_words(output.split())
    return [replace(host, devices=devices) for host in hosts]


def _devices_of_slurm(environment: Mapping[str, str]) -> int | None:
    """Return the devices per node of an allocation, None if Slurm does not say.

    A batch script and a step have SLURM_GPUS_ON_NODE. The shell of `salloc --gpus-per-node=a100:8`
    has only SLURM_GPUS_PER_NODE, which is a100:8 (seen with Slurm 22.05).
    """
    words = environment.get("SLURM_GPUS_ON_NODE") or environment.get("SLURM_GPUS_PER_NODE") or ""
    numbers = [word.rpartition(":")[2] for word in words.split(",")]
    if not all(number.isdecimal() for number in numbers):
        return None
    return sum(map(int, numbers))


def look_up(host: Host) -> Host:
    """Return a host as the user's OpenSSH configuration has it.

    It takes the address, the port, the account, the jump host and the first key that differ from
    OpenSSH's own defaults. What the command line has given stays.
    """
    configured = _ssh_options(["ssh", "-G", "--", host.name])
    defaults = _ssh_options(["ssh", "-F", "none", "-G", "--", host.name])

    def own(key: str) -> str | None:
        value = configured.get(key)
        if value == defaults.get(key) or value == "none":
            return None
        return value

    port = host.port
    if port is None and own("port"):
        port = int(configured["port"])
    return replace(
        host,
        address=own("hostname") or host.address,
        user=host.user or own("user"),
        port=port,
        jump=own("proxyjump"),
        key=own("identityfile"),
    )


def _ssh_options(command: Sequence[str]) -> dict[str, str]:
    """Return the options that ssh would use for a host, the first value of each."""
    options: dict[str, str] = {}
    for line in _output_of(command).splitlines():
        key, _space, value = line.partition(" ")
        options.setdefault(key.lower(), value)
    return options


def local_problem(host: Host) -> str | None:
    """Return why the other nodes could not reach a host under its address, None if they might."""
    try:
        address = ipaddress.ip_address(host.address)
    except ValueError:
        if host.address != "localhost":
            return None
    else:
        if not (address.is_loopback or address.is_unspecified):
            return None
    return (
        f"{host.name}: {host.address} means this machine itself on every node. If this machine is"
        " to train, run sshd on it and give its address in your network (`ip -br a` shows it)"
    )


def _output_of(command: Sequence[str]) -> str:
    """Return what a program prints. Raises HostError if it fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError as error:
        raise HostError(f"{command[0]} is not installed on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise HostError(f"{command[0]} gave no answer in {_COMMAND_SECONDS} s") from error
    if done.returncode:
        raise HostError(f"{' '.join(command)}: {done.stderr.strip() or 'failed'}")
    return done.stdout
