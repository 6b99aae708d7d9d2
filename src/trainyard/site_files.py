# SPDX-License-Identifier: Apache-2.0
"""Write the files of a new site, from the commented sample that the product brings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from . import host_sources
from .host_sources import Host, HostError
from .product import Product, shown_path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}\Z")
# The first environment of a suite on a site. The sample's comments say what else there is.
_PACKAGES = {"gpu": "paddlepaddle-gpu", "cpu": "paddlepaddle"}
_VERSION = "2.6.2"
# Suites whose framework the product does not install: the site names a Python that has it.
_OWN_PYTHON = {"mindocr": "/opt/mindspore/bin/python"}


@dataclass(frozen=True)
class WrittenSite:
    """A site that was written: its directory, and what is still to be done by hand."""

    path: Path
    todo: tuple[str, ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return what the user reads."""
        site = shown_path(self.path)
        return [
            f"wrote {site}: hosts.yml, group_vars/all.yml, group_vars/trainers.yml",
            *self.notes,
            *(f"edit  {item}" for item in self.todo),
            f"then  trainyard --site {self.path.name} trust",
            f"      trainyard --site {self.path.name} provision -K",
            f"      trainyard --site {self.path.name} check JOB",
        ]


def write_site(product: Product, words: Sequence[str], options: Mapping[str, Any]) -> WrittenSite:
    """Write inventory/NAME below the working directory and return what was written.

    words: hosts of the command line. options: those of `trainyard init`. Raises HostError, and then
    nothing was written.
    """
    name = options["name"]
    if not _NAME.match(name) or name in ("sample", "local"):
        raise HostError(f"--name {name!r} is no name for a site; give letters, digits, - and _")
    folder = _inventory_folder(product) / name
    if folder.exists():
        raise HostError(f"{shown_path(folder)} exists; take another --name, or edit its files")
    hosts = _find_hosts(words, options)
    sample = product.root / "inventory" / "sample"
    texts = {
        "hosts.yml": _hosts_text(hosts),
        "group_vars/all.yml": _settings_text(
            (sample / "group_vars" / "all.yml").read_text(encoding="utf-8"), hosts, options
        ),
        "group_vars/trainers.yml": _login_text(
            (sample / "group_vars" / "trainers.yml").read_text(encoding="utf-8"), hosts, options
        ),
    }
    (folder / "group_vars").mkdir(parents=True)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    return WrittenSite(folder, _todo(folder, options, hosts), _notes(hosts))


def _inventory_folder(product: Product) -> Path:
    """Return the directory for new sites: the checkout's if the user is in it, else one here."""
    here = Path.cwd()
    if product.checkout and (here == product.root or product.root in here.parents):
        return product.root / "inventory"
    return here / "inventory"


def _find_hosts(words: Sequence[str], options: Mapping[str, Any]) -> list[Host]:
    """Return the site's hosts from the one source that the user gave."""
    given = [bool(words), bool(options["hostfile"]), bool(options["slurm"])]
    if given.count(True) != 1:
        raise HostError("give the hosts, or --hostfile FILE, or --slurm: one of the three")
    if words:
        hosts = host_sources.hosts_of_words(words)
    elif options["hostfile"]:
        hosts = host_sources.hosts_of_file(options["hostfile"])
    else:
        hosts = host_sources.hosts_of_slurm(os.environ)
    names = [host.name for host in hosts]
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise HostError(f"{', '.join(double)}: given twice")
    hosts = [host_sources.look_up(host) for host in hosts]
    problems = [text for text in map(host_sources.local_problem, hosts) if text]
    if problems:
        raise HostError("\n".join(problems))
    if options["devices"]:
        return [replace(host, devices=options["devices"]) for host in hosts]
    return hosts


def _hosts_text(hosts: Sequence[Host]) -> str:
    """Return hosts.yml. What all hosts have in common is in the group variables."""
    common = _common_devices(hosts)
    entries = {}
    for host in hosts:
        entry: dict[str, Any] = {"ansible_host": host.address}
        if host.port:
            entry["ansible_port"] = host.port
        if host.user and not _common(hosts, "user"):
            entry["ansible_user"] = host.user
        if host.key and not _common(hosts, "key"):
            entry["ansible_ssh_private_key_file"] = host.key
        if host.jump and not _common(hosts, "jump"):
            entry["ansible_ssh_extra_args"] = f"-o ProxyJump={host.jump}"
        if host.devices and not common:
            entry["trainyard_devices"] = host.devices
        entries[host.name] = entry
    body = yaml.safe_dump({"trainers": {"hosts": entries}}, sort_keys=False, allow_unicode=True)
    return (
        "---\n# The machines of this site. Their order is the node rank, from 0.\n"
        "# trainyard_address: the address on the training network, if it is not ansible_host.\n"
        + body
    )


def _common(hosts: Sequence[Host], field: str) -> Any:
    """Return the value of a field that all hosts have, else None."""
    values = {getattr(host, field) for host in hosts}
    if len(values) == 1:
        return values.pop()
    return None


def _common_devices(hosts: Sequence[Host]) -> int | None:
    devices: int | None = _common(hosts, "devices")
    return devices


def _settings_text(sample: str, hosts: Sequence[Host], options: Mapping[str, Any]) -> str:
    """Return group_vars/all.yml: the sample's comments with this site's values."""
    text = _replace_line(sample, "trainyard_site: mysite", f"trainyard_site: {options['name']}")
    text = _replace_line(
        text, "trainyard_accelerator: gpu", f"trainyard_accelerator: {options['accelerator']}"
    )
    devices = _common_devices(hosts) or 1
    text = _replace_line(text, "trainyard_devices: 8", f"trainyard_devices: {devices}")
    if options["suite"]:
        head, line, _rest = text.partition("trainyard_suites:\n")
        suites = yaml.safe_dump(_suite(options), sort_keys=False, allow_unicode=True, indent=2)
        text = head + line + "".join(f"  {row}\n" for row in suites.splitlines())
    return text


def _suite(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the site's entry of the suite that the user named."""
    suite = options["suite"]
    entry: dict[str, Any] = {"code": {"path": _absolute(options["code"] or f"~/{suite}")}}
    if options["data"]:
        entry["data"] = {}
        for pair in options["data"]:
            name, equals, path = pair.partition("=")
            if not (name and equals and path):
                raise HostError(f"--data {pair!r}: give NAME=PATH, such as coco=/data/coco")
            entry["data"][name] = {"path": _absolute(path)}
    package = _PACKAGES.get(options["accelerator"])
    if suite in _OWN_PYTHON or not package:
        entry["environment"] = {"python": _OWN_PYTHON.get(suite, "/opt/paddle/bin/python")}
    else:
        entry["environment"] = {
            "package": package,
            "version": _VERSION,
            "requirements": [f"{suite}.txt"],
        }
    return {suite: entry}


def _absolute(path: str) -> str:
    """Return a path as it means the same from every directory."""
    if path.startswith("~"):
        return path
    return os.path.abspath(path)


def _login_text(sample: str, hosts: Sequence[Host], options: Mapping[str, Any]) -> str:
    """Return group_vars/trainers.yml."""
    user = options["user"] or _common(hosts, "user")
    if user:
        text = _replace_line(sample, "ansible_user: trainer", f"ansible_user: {user}")
    else:
        text = _replace_line(sample, "ansible_user: trainer", "# ansible_user: trainer")
    admin = "# trainyard_admin_user: keeper"
    if options["admin_user"]:
        admin = f"trainyard_admin_user: {options['admin_user']}"
    text = _replace_line(text, "trainyard_admin_user: keeper", admin)
    key = _common(hosts, "key")
    if key:
        text = _replace_line(
            text,
            "# ansible_ssh_private_key_file: ~/.ssh/id_ed25519",
            f"ansible_ssh_private_key_file: {key}",
        )
    jump = _common(hosts, "jump")
    if jump:
        text += f"\n# The way to the machines.\nansible_ssh_extra_args: -o ProxyJump={jump}\n"
    return text


def _replace_line(text: str, old: str, new: str) -> str:
    """Replace a line of the sample. Raises ValueError if the sample has changed."""
    lines = text.splitlines()
    if lines.count(old) != 1:
        raise ValueError(f"the sample site has no line {old!r}")
    lines[lines.index(old)] = new
    return "\n".join(lines) + "\n"


def _todo(folder: Path, options: Mapping[str, Any], hosts: Sequence[Host]) -> tuple[str, ...]:
    """Return what the user still has to fill in."""
    settings, login = folder / "group_vars" / "all.yml", folder / "group_vars" / "trainers.yml"
    todo = []
    if not options["suite"]:
        todo.append(f"{shown_path(settings)}: trainyard_suites, the paths of code and data")
    elif not (options["code"] and options["data"]):
        todo.append(f"{shown_path(settings)}: trainyard_suites, check the paths")
    if not (_common_devices(hosts) or any(host.devices for host in hosts)):
        todo.append(f"{shown_path(settings)}: trainyard_devices is 1")
    if not options["admin_user"]:
        todo.append(
            f"{shown_path(login)}: trainyard_admin_user, if the training account lacks sudo"
        )
    return tuple(todo)


def _notes(hosts: Sequence[Host]) -> tuple[str, ...]:
    """Return what was taken from the user's OpenSSH configuration."""
    return tuple(
        f"      {host.name} is {host.address}, as your OpenSSH configuration says"
        for host in hosts
        if host.address != host.name
    )
