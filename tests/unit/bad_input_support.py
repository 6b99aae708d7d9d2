# SPDX-License-Identifier: Apache-2.0
"""Ask the real job_config action about real files: an inventory that Ansible reads, a job, and the
words of a command line.
"""

from __future__ import annotations

import functools
import os
from types import SimpleNamespace

import yaml
from ansible._internal._datatag._tags import Origin, TrustedAsTemplate
from ansible.inventory.manager import InventoryManager
from ansible.module_utils.common.collections import ImmutableDict
from ansible.parsing.dataloader import DataLoader
from ansible.parsing.vault import VaultSecret
from ansible.plugins.loader import init_plugin_loader
from ansible.utils import vars as extra_words
from ansible.vars.hostvars import HostVars
from ansible.vars.manager import VariableManager
from core_support import CONFIG, ROOT

# What the verbs without a job take on the command line.
EXTRA = {
    "stop": ["run"],
    "provision": ["suite"],
    "conform": ["site"],
    "trust": ["trust_accept", "rotate_ca", "replace_ca", "take_in"],
    "untrust": ["untrust_ca", "node"],
}
GOOD = f"suite: paddledetection\nlauncher: fleetrun\nconfig: {CONFIG}\n"
CLI = Origin(description="<CLI option '-e'>")
TRAIN = ["nodes", "devices", "start_port", "rendezvous", "scaling", "rehearse", "verify", "matrix"]
SITE = {
    "trainyard_accelerator": "cpu",
    "trainyard_devices": 2,
    "trainyard_suites": {
        "paddledetection": {
            "code": {"path": "/src/PaddleDetection"},
            "data": {"coco": {"path": "/data/coco"}},
            "environment": {"package": "paddlepaddle", "version": "2.6.2"},
        }
    },
}


@functools.lru_cache(maxsize=None)
def plugins():
    """Let Ansible find its own lookups, as its commands do at their start."""
    init_plugin_loader()


class Bench:
    """A site in a folder of its own, and what job_config says of a command line there."""

    def __init__(self, folder, plugin, monkeypatch):
        self.folder, self.plugin, self.monkeypatch = folder, plugin, monkeypatch
        self.key = self.write("id_test", "not a real key\n", 0o600)

    def write(self, name, text, mode=0o644):
        """Write a file below the folder; return its path."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        path.chmod(mode)
        return str(path)

    def site(self, site=None, node1=None, node2=None, inventory=None, **_rest):
        """Write the inventory; a value None takes a variable away. Return its sources."""
        variables = dict(SITE, ansible_ssh_private_key_file=self.key, **{})
        variables.update(site or {})
        variables = {key: value for key, value in variables.items() if value is not None}
        self.write("site/group_vars/all.yml", yaml.safe_dump(variables, allow_unicode=True))
        hosts = {
            "node%d" % n: dict({"ansible_host": "192.0.2.%d" % n}, **(more or {}))
            for n, more in ((1, node1), (2, node2))
        }
        self.write(
            "site/hosts.yml",
            yaml.safe_dump({"trainers": {"hosts": hosts}}) if inventory is None else inventory,
        )
        return [str(self.folder / "site")]

    def ask(
        self,
        job=GOOD,
        words=(),
        verb="train",
        check=False,
        limit=None,
        cli=None,
        sources=None,
        environ=None,
        **site,
    ):
        """Return (result, lines): what the verb would go on with, or None and the lines of the
        refusal.

        job: the text of a job file, or None for a command line that says config itself. words: of
        -e. cli: further options.
        """
        sources = sources or self.site(**site)
        plugins()
        words = list(words) + ([] if job is None else ["config=" + self.write("mine.yml", job)])
        given = {
            "extra_vars": tuple(
                CLI.tag(TrustedAsTemplate().tag(word)) for word in words
            ),  # as Ansible's own options are
            "inventory": tuple(sources),
            "subset": limit,
            "args": (f"playbooks/{verb}.yml",),
            "check": check,
        }
        with self.monkeypatch.context() as patch:
            for name, value in (environ or {}).items():
                patch.setenv(name, value)
            patch.setattr(self.plugin.context, "CLIARGS", ImmutableDict(given, **(cli or {})))
            patch.setattr(extra_words.load_extra_vars, "extra_vars", None, raising=False)
            loader = DataLoader()
            loader.set_vault_secrets([("default", VaultSecret(b"secret"))])
            extra = self.plugin.load_extra_vars(loader)
            arguments = {"config": str(extra.get("config", "")), "extra": TRAIN}
            arguments = {"extra": EXTRA[verb]} if verb in EXTRA else arguments
            arguments["administrator"] = verb == "provision"
            inventory = InventoryManager(loader=loader, sources=sources)
            variables = VariableManager(loader=loader, inventory=inventory)
            task = SimpleNamespace(
                args=arguments, async_val=0, check_mode=check, action="job_config"
            )
            action = self.plugin.ActionModule(
                task, SimpleNamespace(_shell=SimpleNamespace(tmpdir="/tmp")), None, loader, None
            )
            hostvars = HostVars(inventory, variables, loader)
            known = {
                "playbook_dir": str(ROOT / "playbooks"),
                "groups": inventory.get_groups_dict(),
                "hostvars": hostvars,
            }
            before = self.listing()
            result, lines, self.codes = action.run(task_vars=known), [], []
            if result.get("failed"):
                self.codes = result["codes"]
                result, lines = None, result["msg"].splitlines()
            assert self.listing() == before, "something was written"
        return result, lines

    def listing(self):
        """Return what lies in the folder, with sizes and times."""
        return {
            os.path.join(where, name): (
                os.stat(os.path.join(where, name)).st_size,
                os.stat(os.path.join(where, name)).st_mtime_ns,
            )
            for where, _folders, names in os.walk(self.folder)
            for name in names
        }
