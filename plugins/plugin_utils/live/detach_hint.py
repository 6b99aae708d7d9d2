# SPDX-License-Identifier: Apache-2.0
"""Commands that lead back to a run which goes on after its terminal was left."""

from __future__ import annotations

import shlex

from ansible_collections.trainyard.cluster.plugins.module_utils.base import sanitize

from .command_line import CommandLine


def describe_detached_run(run: str, commands: CommandLine) -> str:
    """Return the text for the terminal, safe to print.

    run: its id. commands: of the playbook that was left.
    """
    name = shlex.quote(run)
    return sanitize.escape(
        f"\nThe run {name} goes on without this terminal."
        f"\n  follow it again:  {commands.of('follow')} -e run={name}"
        f"\n  how it stands:    {commands.of('status')} -e run={name}"
        f"\n  stop it:          {commands.of('stop')} -e run={name}\n",
        newlines=True,
    )
