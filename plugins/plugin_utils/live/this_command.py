# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line of this process, for the callbacks."""

from __future__ import annotations

import os

from ansible import constants as C
from ansible import context

from .command_line import CommandLine


def command_line() -> CommandLine:
    """Return how this process was started, as Ansible has read it."""
    playbooks = list(context.CLIARGS.get("args") or ()) or [""]
    return CommandLine(
        inventories=tuple(context.CLIARGS.get("inventory") or ()),
        defaults=tuple(C.config.get_config_value("DEFAULT_HOST_LIST") or ()),
        playbook=str(playbooks[0]),
        environ=dict(os.environ),
    )
